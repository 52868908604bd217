//! The activity log: who changed what. The handlers that change something record it with an [`Author`].

mod changes;

use axum::{
    Json,
    extract::{FromRequestParts, State},
};
use http::request::Parts;
use weir_api_types as types;
use weir_core::{
    Timestamp,
    activity::{Action, Activity, Origin, Subject},
};
use weir_store::{ActivityFilter, ActorFilter};

pub(crate) use self::changes::{destination_action, destination_changes, differences};
use crate::{
    auth::Caller,
    problem::{ApiResult, Problem},
    readers::{
        page::{self, List, Listing, PageParameters},
        query::{Query, RangeParameters, parameters},
        texts::{DestinationIdText, text},
    },
    request_id::RequestId,
    state::Api,
};

const MAX_ACTOR_CHARS: usize = 100;

/// Who asks for a change, and in which request.
#[derive(Debug, Clone)]
pub(crate) struct Author(Origin);

impl Author {
    /// The activity of this author who does `action` now.
    pub(crate) fn does(&self, action: Action, now: Timestamp) -> Activity {
        Activity::new(self.0.clone(), action, now)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Author {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let request_id = RequestId::from_request_parts(parts, state).await?;
        let request_id = Some(request_id.as_str().to_owned());
        Ok(Self(Origin { actor: caller.actor().clone(), request_id }))
    }
}

/// The list of activities.
pub(crate) enum Activities {}

impl Listing for Activities {
    const TAG: u8 = b'a';
}

type ActivityPage = PageParameters<Activities>;

text! {
    /// The name of an API key, `WEIR_API_KEYS` (a key of the settings), `anonymous` (no key), `weir` (Weir itself), or
    /// the id of an API key (`key_…`).
    #[schema(as = Actor, value_type = String, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]{1,100}$", example = "billing service")]
    pub(crate) struct ActorText(ActorFilter);
    parse = |text| {
        let fits = (1..=MAX_ACTOR_CHARS).contains(&text.chars().count()) && !text.chars().any(char::is_control);
        let actor = text.parse().map_or_else(|_| ActorFilter::Name(text.to_owned()), ActorFilter::Key);
        fits.then_some(actor).ok_or_else(|| "must be 1 to 100 characters without control characters".to_owned())
    };
}

parameters! {
    /// The filter of the list.
    pub(crate) struct Filter {
        /// Only this destination, with its deliveries and the replays of its deliveries: `dst_…`
        destination: Option<DestinationIdText>,
        /// Only this actor: a name or the id of an API key
        actor: Option<ActorText>,
    }
}

/// List who changed what
///
/// Every change that a request makes has a row, written together with the change, and so has what Weir does to a
/// destination by itself: pauses, holds, and breakers that open and close (actor `weir`). Secrets are shown as `•••`,
/// and so are the values of headers. A key that is bound to tenants sees the rows of these tenants. Rows are kept for a
/// year.
#[utoipa::path(
    get, path = "/v1/activity", operation_id = "list_activity", tag = "activity",
    params(Filter, RangeParameters, ActivityPage),
    responses((status = 200, description = "One page, newest first", body = List<types::Activity>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query((filter, range, page)): Query<(Filter, RangeParameters, ActivityPage)>,
) -> ApiResult<Json<List<types::Activity>>> {
    let (from, to) = range.times();
    let filter = ActivityFilter {
        destination_id: filter.destination.map(|id| id.0),
        actor: filter.actor.map(|actor| actor.0),
        tenants: caller.tenants().cloned(),
        from,
        to,
    };
    let page = api.store.list_activity(&filter, page.request).await?;
    Ok(page::view::<Activities, _, _>(page, |activity| *activity.id.as_bytes(), view))
}

pub(crate) fn view(activity: Activity) -> types::Activity {
    let Activity { id, at, origin, action, tenant, subject, before, after, .. } = activity;
    let Origin { actor, request_id } = origin;
    let subject = subject.map(|Subject { kind, id, name }| types::ActivitySubject { kind, id, name });
    let (id, action) = (id.to_string(), action.as_str().to_owned());
    let (actor_kind, actor_key_id) = (actor.kind().to_owned(), actor.key_id().map(ToString::to_string));
    let actor = actor.name().to_owned();
    types::Activity { id, at, actor, actor_kind, actor_key_id, action, tenant, subject, before, after, request_id }
}
