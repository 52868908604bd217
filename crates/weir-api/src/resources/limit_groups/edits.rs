//! Changes of limit groups: stored only over the version that they were made from, recorded, and announced to the queue.

use std::sync::Arc;

use serde_json::{Value, json};
use weir_api_types as types;
use weir_core::{
    LimitGroup, Timestamp,
    activity::{Action, Activity},
    temporary::Temporary,
};
use weir_store::{Creation, GroupChange};

use super::{EditGroup, RESOURCE, etag, find, view};
use crate::{
    auth::Caller,
    problem::{ApiResult, Problem},
    readers::{
        if_match::{ROUNDS, crowded, later},
        texts::LimitGroupIdText,
    },
    resources::{
        activity::{Author, differences},
        destinations::check_may_change_group,
        edit::Edit,
    },
    state::ApiState,
};

/// Applies `edit` to a group. If another request changed the group meanwhile, it starts again from the new state. Returns
/// the group before the edit and after it.
pub(super) async fn change(
    Edit { api, id: LimitGroupIdText(id), caller, author, if_match }: &EditGroup,
    edit: impl Fn(&LimitGroup) -> ApiResult<LimitGroup>,
) -> ApiResult<(Arc<LimitGroup>, Arc<LimitGroup>)> {
    for _ in 0..ROUNDS {
        let current = find(api, caller, *id).await?;
        if_match.check(&etag(&current))?;
        match save(api, caller, author, Some(&current), edit(&current)?, unkeyed).await? {
            GroupChange::Made(made) => return Ok((current, made)),
            GroupChange::Taken => return Err(Problem::conflict("another limit group of the tenant has this name")),
            GroupChange::Full => return Err(full()),
            GroupChange::Before(_) | GroupChange::Outdated => {}
        }
    }
    Err(crowded(RESOURCE))
}

/// For a change without an idempotency key.
pub(super) fn unkeyed(activity: Activity, _: &LimitGroup) -> ApiResult<Creation> {
    Ok(activity.into())
}

/// Stores a new group or an edit of `current`, and announces it. `recorded_with` makes what is stored with the activity.
pub(super) async fn save(
    api: &ApiState,
    caller: &Caller,
    author: &Author,
    current: Option<&LimitGroup>,
    mut group: LimitGroup,
    recorded_with: impl FnOnce(Activity, &LimitGroup) -> ApiResult<Creation>,
) -> ApiResult<GroupChange> {
    check_may_change_group(caller, group.tenant.as_deref())?;
    let now = api.clock.now();
    // What is over is dropped, which is no change of its own.
    group.temporary = group.temporary.at(now);
    let is_same =
        current.is_some_and(|current| group == LimitGroup { temporary: current.temporary.at(now), ..current.clone() });
    let saved = if let Some(current) = current.filter(|_| is_same) {
        GroupChange::Made(Arc::new(current.clone()))
    } else {
        group.updated_at = current.map_or(now, |current| later(current.updated_at, now));
        if current.is_none() {
            group.created_at = now;
        }
        let (action, before, after) = match current {
            None => (Action::LimitGroupCreated, None, Some(values(&group, now))),
            Some(current) => {
                let (before, after) = differences(values(current, now), values(&group, now));
                (action_of(&current.temporary.at(now), &group.temporary), before, after)
            }
        };
        let activity = recorded(author.does(action, now), &group).changing(before, after);
        let creation = recorded_with(activity, &group)?;
        api.store.set_limit_group(current.map(|current| current.updated_at), group, creation).await?
    };
    // An edit without a change is announced too: it may repeat an edit whose announcement was lost.
    if let GroupChange::Made(made) = &saved {
        api.announce_group(made).await;
    }
    Ok(saved)
}

pub(super) fn full() -> Problem {
    Problem::conflict("the tenant has as many limit groups as it may have: delete one first")
}

/// An edit of the settings leaves what is temporary as it is.
fn action_of(before: &Temporary, after: &Temporary) -> Action {
    match () {
        () if before.overridden != after.overridden && after.overridden.is_some() => Action::LimitGroupOverridden,
        () if before.overridden != after.overridden => Action::LimitGroupOverrideEnded,
        () if before.hold != after.hold && after.hold.is_some() => Action::LimitGroupHeld,
        () if before.hold != after.hold => Action::LimitGroupReleased,
        () => Action::LimitGroupEdited,
    }
}

/// The values for the activity log.
pub(super) fn values(group: &LimitGroup, now: Timestamp) -> Value {
    let types::LimitGroup { name, tenant, rate_limits, max_in_flight, overridden, hold, .. } = view(group, now);
    json!({
        "name": name, "tenant": tenant, "rate_limits": rate_limits, "max_in_flight": max_in_flight,
        "override": overridden, "hold": hold,
    })
}

pub(super) fn recorded(activity: Activity, group: &LimitGroup) -> Activity {
    activity.of_limit_group(group.id, &group.name, group.tenant.clone())
}
