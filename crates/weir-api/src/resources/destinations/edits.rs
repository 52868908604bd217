//! How an edit of a destination is made: read, changed, stored if nobody else was faster, and announced.

use std::sync::Arc;

use weir_core::{
    Condition, Destination, DestinationId,
    access::Role,
    activity::{Action, Activity},
    destination::{ALL_TENANTS, Settings},
    egress::ProxyChoice,
    signing::Secret,
    temporary::Temporary,
};
use weir_store::{Created, Creation, DestinationPatch};

use super::{
    check_readable, etag, find,
    key_limits::check_alone,
    limit_group::{check_may_leave, check_may_move},
};
use crate::{
    auth::Caller,
    problem::{ApiResult, Problem, ProblemKind},
    readers::{
        if_match::{IfMatch, ROUNDS, crowded, later},
        texts::DestinationIdText,
    },
    resources::{
        activity::{Author, destination_action, destination_changes},
        edit::Edit,
    },
    state::ApiState,
};

/// Which destination a request edits, and for whom.
pub(crate) struct Requested<'a> {
    pub(crate) id: DestinationId,
    pub(crate) if_match: &'a IfMatch,
    pub(crate) caller: &'a Caller,
    pub(crate) author: &'a Author,
    pub(crate) ends: Ends,
}

impl Edit<DestinationIdText> {
    pub(crate) fn requested(&self, ends: Ends) -> Requested<'_> {
        let Self { id: DestinationIdText(id), if_match, caller, author, .. } = self;
        Requested { id: *id, if_match, caller, author, ends }
    }
}

/// Applies `edit` to a destination and announces the change. If another request changed the destination meanwhile, it
/// starts again from the new state.
pub(crate) async fn change(
    api: &ApiState,
    requested: Requested<'_>,
    edit: impl Fn(&Destination) -> ApiResult<Settings>,
) -> ApiResult<Arc<Destination>> {
    let (_, edited) = replace(api, requested, |current| Ok((edit(current)?, None))).await?;
    Ok(edited)
}

/// Replaces what holds for a while in place of the settings, which `edit` gets without what is over. Returns what held
/// before, too.
pub(super) async fn change_temporary(
    api: &ApiState,
    requested: Requested<'_>,
    edit: impl Fn(Temporary) -> Temporary,
) -> ApiResult<(Temporary, Arc<Destination>)> {
    let now = api.clock.now();
    let edit = |current: &Destination| Ok((current.settings.clone(), Some(edit(current.temporary.at(now)))));
    let (before, edited) = replace(api, requested, edit).await?;
    Ok((before.temporary.at(now), edited))
}

/// Returns the destination before the edit and after it.
async fn replace(
    api: &ApiState,
    Requested { id, if_match, caller, author, ends }: Requested<'_>,
    edit: impl Fn(&Destination) -> ApiResult<(Settings, Option<Temporary>)>,
) -> ApiResult<(Arc<Destination>, Arc<Destination>)> {
    for _ in 0..ROUNDS {
        let current = find(api, caller, id).await?;
        if_match.check(&etag(&current))?;
        check_readable(&current)?;
        let (settings, temporary) = edit(&current)?;
        let temporary = temporary.filter(|temporary| *temporary != current.temporary.at(api.clock.now()));
        // An edit without a change is announced too: it may repeat an edit whose announcement was lost.
        let closes_breaker = ends == Ends::BreakerAndHold && current.breaker.reason().is_some();
        let is_held = current.is(Condition::Held, api.clock.now());
        // A release is stored also where no hold is: the queue may know of one before the store.
        let lifts_hold = ends == Ends::Hold || ends == Ends::BreakerAndHold && is_held;
        let is_same = settings == current.settings && temporary.is_none();
        let edited = if is_same && !closes_breaker && !lifts_hold {
            Some(Arc::clone(&current))
        } else {
            let change = Change { settings, temporary, closes_breaker, lifts_hold };
            let edited = commit(api, caller, &current, change, author, |activity, _| Ok(activity.into())).await?;
            edited.into_new().flatten()
        };
        if let Some(destination) = edited {
            api.announce_edit(&destination).await;
            return Ok((current, destination));
        }
    }
    Err(crowded("destination"))
}

/// The conditions that an edit ends even if it changes no setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Nothing,
    /// A release.
    Hold,
    /// A resume, also of a destination that is not paused.
    BreakerAndHold,
}

/// What an edit makes of a destination.
pub(crate) struct Change {
    pub(crate) settings: Settings,
    /// What holds in place of the settings; `None`: what does already.
    pub(crate) temporary: Option<Temporary>,
    /// Whether it closes an open breaker.
    pub(crate) closes_breaker: bool,
    /// Whether it lifts a hold.
    pub(crate) lifts_hold: bool,
}

impl From<Settings> for Change {
    /// An edit of settings alone.
    fn from(settings: Settings) -> Self {
        Self { settings, temporary: None, closes_breaker: false, lifts_hold: false }
    }
}

/// Stores an edit with its activity and, if `recorded` adds one, with the answer of an idempotency key. `None` if the
/// destination was edited or deleted meanwhile.
pub(crate) async fn commit(
    api: &ApiState,
    caller: &Caller,
    current: &Destination,
    Change { settings, temporary, closes_breaker, lifts_hold }: Change,
    author: &Author,
    recorded: impl FnOnce(Activity, &Destination) -> ApiResult<Creation>,
) -> ApiResult<Created<Option<Arc<Destination>>>> {
    check_readable(current)?;
    check_may_change(caller, &current.settings.tenant)?;
    check_may_replace(caller, &current.settings.signing.secret, &settings.signing.secret)?;
    check_may_route(caller, &current.settings.egress.proxy, &settings.egress.proxy)?;
    let groups = (current.settings.limit_group, settings.limit_group);
    check_may_move(api, caller, groups, &current.settings.tenant).await?;
    check_may_leave(current, groups)?;
    check_alone(&settings, current.keyed_at.is_some())?;
    let changes_settings = settings != current.settings;
    let made_at = api.clock.now();
    let patch = DestinationPatch {
        id: current.id,
        expected_updated_at: current.updated_at,
        settings,
        temporary,
        closes_breaker,
        lifts_hold,
        now: later(current.version(made_at), made_at),
        made_at,
    };
    // The edit applies only to this version, so these are its values.
    let Some(edited) = patch.applied_to(current) else { return Ok(Created::New(None)) };
    let (before, after) = destination_changes(Some(current), Some(&edited))?;
    let action = if changes_settings {
        destination_action(before.as_ref(), after.as_ref())
    } else if let Some(action) = temporary_action(&current.temporary.at(made_at), &edited.temporary) {
        action
    } else if closes_breaker {
        Action::DestinationResumed
    } else {
        Action::DestinationReleased
    };
    let activity = author.does(action, made_at).of_destination(&edited).changing(before, after);
    Ok(api.store.patch_destination(patch, recorded(activity, &edited)?).await?)
}

fn temporary_action(before: &Temporary, after: &Temporary) -> Option<Action> {
    match () {
        () if before.overridden != after.overridden => {
            Some(if after.overridden.is_some() { Action::DestinationOverridden } else { Action::OverrideEnded })
        }
        () if before.hold != after.hold => {
            Some(if after.hold.is_some() { Action::DestinationHeld } else { Action::DestinationReleased })
        }
        () => None,
    }
}

/// Who replaces a secret knows the new one, so this needs the role that may see secrets.
fn check_may_replace(caller: &Caller, current: &Secret, edited: &Secret) -> ApiResult<()> {
    if current == edited {
        return Ok(());
    }
    caller.check_role(Role::Admin).map_err(|problem| {
        Problem::new(ProblemKind::Forbidden, format!("to set the `secret` of a destination {}", problem.detail()))
    })
}

/// A proxy sees where requests go, and leads around the rules of the installation's proxy. So the way out is a matter of
/// those who run Weir, not of a tenant.
pub(super) fn check_may_route(caller: &Caller, current: &ProxyChoice, edited: &ProxyChoice) -> ApiResult<()> {
    if current == edited {
        return Ok(());
    }
    let refused =
        |why: &str| Problem::new(ProblemKind::Forbidden, format!("to set the `proxy` of a destination {why}"));
    caller.check_role(Role::Admin).map_err(|problem| refused(problem.detail()))?;
    caller.sees_all().then_some(()).ok_or_else(|| refused("this needs a key that is not bound to tenants"))
}

/// Whoever edits a destination of operators could read the alerts of all tenants, so this needs the role `admin`.
pub(super) fn check_may_change(caller: &Caller, tenant: &str) -> ApiResult<()> {
    caller.check_sees(tenant)?;
    if tenant != ALL_TENANTS {
        return Ok(());
    }
    caller.check_role(Role::Admin).map_err(|problem| {
        Problem::new(ProblemKind::Forbidden, format!("to change a destination of all tenants {}", problem.detail()))
    })
}
