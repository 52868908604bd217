//! The activity log: who changed what. The handlers that change something record it with an [`Author`].

mod changes;

use axum::{
    Json,
    extract::{FromRequestParts, State},
};
use http::request::Parts;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use weir_core::{
    ActivityId, ApiKeyId, Timestamp,
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
    responses((status = 200, description = "One page, newest first", body = List<ActivityView>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query((filter, range, page)): Query<(Filter, RangeParameters, ActivityPage)>,
) -> ApiResult<Json<List<ActivityView>>> {
    let (from, to) = range.times();
    let filter = ActivityFilter {
        destination_id: filter.destination.map(|id| id.0),
        actor: filter.actor.map(|actor| actor.0),
        tenants: caller.tenants().cloned(),
        from,
        to,
    };
    let page = api.store.list_activity(&filter, page.request).await?;
    Ok(page::view::<Activities, _, _>(page, |activity| *activity.id.as_bytes(), ActivityView::from))
}

/// What somebody did.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Activity)]
pub(crate) struct ActivityView {
    #[schema(value_type = String, example = "act_01h2xcejqtf2nbrexx3vqjhp41")]
    id: ActivityId,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// The name of the API key at that time, `WEIR_API_KEYS` for a key of the settings, `anonymous` without a key, or
    /// `weir` for Weir itself.
    #[schema(example = "billing service")]
    actor: String,
    /// `key`: an API key of the store; `setting`: a key of the settings; `anonymous`: no key; `system`: Weir itself.
    #[schema(value_type = String, pattern = "^(key|setting|anonymous|system)$", example = "key")]
    actor_kind: &'static str,
    /// The API key of the actor. Names need not be unique.
    #[schema(value_type = Option<String>)]
    actor_key_id: Option<ApiKeyId>,
    #[schema(value_type = String, pattern = "^[a-z]+\\.[a-z_]+$", example = "destination.edited")]
    action: &'static str,
    /// Null: what belongs to no tenant.
    tenant: Option<String>,
    subject: Option<SubjectView>,
    /// The changed values before the change.
    #[schema(value_type = Option<Object>)]
    before: Option<Value>,
    /// The changed values after the change.
    #[schema(value_type = Option<Object>)]
    after: Option<Value>,
    /// The `x-request-id` of the request; null for Weir itself.
    request_id: Option<String>,
}

/// What an activity is about.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ActivitySubject)]
pub(crate) struct SubjectView {
    #[serde(rename = "type")]
    #[schema(pattern = "^(destination|delivery|replay|key)$", example = "destination")]
    kind: String,
    #[schema(example = "dst_01h2xcejqtf2nbrexx3vqjhp41")]
    id: String,
    /// Its name at that time; null if it has none.
    name: Option<String>,
}

impl From<Activity> for ActivityView {
    fn from(activity: Activity) -> Self {
        let Activity { id, at, origin, action, tenant, subject, before, after, .. } = activity;
        let Origin { actor, request_id } = origin;
        let subject = subject.map(|Subject { kind, id, name }| SubjectView { kind, id, name });
        let (actor_kind, actor_key_id, action) = (actor.kind(), actor.key_id().copied(), action.as_str());
        let actor = actor.name().to_owned();
        Self { id, at, actor, actor_kind, actor_key_id, action, tenant, subject, before, after, request_id }
    }
}
