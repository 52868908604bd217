//! What failed: dead and failed deliveries, grouped by destination, state and error.

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;
use weir_core::{DeliveryId, DeliveryState, DestinationId, Timestamp};
use weir_store::{DeliveryFilter, ErrorFilter, FailureGroup};

use crate::{
    auth::Caller,
    problem::ApiResult,
    readers::{
        query::{Query, RangeParameters, parameters},
        texts::{AttemptErrorText, DestinationIdText, EventPatternText, FailureStatesText, TenantText},
    },
    resources::destinations::is_of_others,
    state::Api,
};

/// The most groups of an answer. Ten thousand destinations with different errors would make an answer of megabytes; a
/// person acts on the largest groups.
const MAX_GROUPS: usize = 200;

parameters! {
    /// The deliveries to group.
    pub(crate) struct GroupFilter {
        /// Only deliveries to this destination: `dst_…`
        destination: Option<DestinationIdText>,
        /// `dead`, `failed` or both (the default)
        state: Option<FailureStatesText>,
        /// Only this tenant
        tenant: Option<TenantText>,
        /// Only events of this type: exact (`video.created`), a prefix (`video.*`) or `*`
        event_type: Option<EventPatternText>,
        /// Only deliveries whose last attempt had this error, as in the list of deliveries: `timeout`, `5xx`, `503`
        error: Option<AttemptErrorText>,
    }
}

/// Group what failed
///
/// Groups dead and failed deliveries by destination, state and error, largest group first. A replay or a list with the
/// `destination`, the `state` and the `error` of a group has its deliveries. At most 10,000 deliveries are examined, the
/// same number of each state, newest first: then `capped` is true, and the groups have only these. The answer has at most
/// 200 groups.
#[utoipa::path(
    get, path = "/v1/deliveries/groups", operation_id = "group_deliveries", tag = "deliveries",
    params(GroupFilter, RangeParameters),
    responses((status = 200, description = "The groups", body = GroupsView))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    Query((filter, range)): Query<(GroupFilter, RangeParameters)>,
) -> ApiResult<Json<GroupsView>> {
    if is_of_others(&api, &caller, filter.destination.as_ref().map(|id| id.0)).await? {
        return Ok(Json(GroupsView { data: Vec::new(), scanned: 0, capped: false }));
    }
    let (from, to) = range.times();
    let both = || vec![DeliveryState::Dead, DeliveryState::Failed];
    let filter = DeliveryFilter {
        destination_id: filter.destination.map(|id| id.0),
        states: filter.state.map_or_else(both, |states| states.0),
        tenants: caller.scope(filter.tenant.map(|tenant| tenant.0))?,
        event_type: filter.event_type.map(|pattern| pattern.0),
        error: filter.error.map(|error| error.0),
        from,
        to,
        ..DeliveryFilter::default()
    };
    let found = api.store.group_failures(&filter).await?;
    // The store examines the deliveries of all tenants. Their number is hidden from a key that is bound to some.
    let scanned =
        if caller.sees_all() { found.scanned } else { found.groups.iter().map(|group| group.deliveries).sum() };
    let data = found.groups.into_iter().take(MAX_GROUPS).map(GroupView::from).collect();
    Ok(Json(GroupsView { data, scanned, capped: found.capped }))
}

/// Groups of deliveries that failed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeliveryGroups)]
pub(crate) struct GroupsView {
    data: Vec<GroupView>,
    /// How many deliveries were examined. For a key that is bound to tenants: how many of them are in a group.
    scanned: u64,
    /// Not all deliveries were examined, but the newest.
    capped: bool,
}

/// Deliveries of one destination that failed in the same way.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeliveryGroup)]
pub(crate) struct GroupView {
    #[schema(value_type = String)]
    destination_id: DestinationId,
    destination_name: String,
    #[schema(value_type = String, pattern = "^(dead|failed)$")]
    state: &'static str,
    /// The value of the filter `error` that finds these deliveries: a word such as `timeout`, or the status. Null if no
    /// attempt is recorded.
    #[schema(example = "503")]
    error: Option<String>,
    status_code: Option<u16>,
    /// The error of the newest delivery, in words.
    last_error: Option<String>,
    deliveries: u64,
    /// When the newest event of the group was created.
    #[schema(value_type = String, format = DateTime)]
    newest_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    oldest_at: Timestamp,
    /// The newest delivery of the group.
    #[schema(value_type = String)]
    example_id: DeliveryId,
}

impl From<FailureGroup> for GroupView {
    fn from(group: FailureGroup) -> Self {
        Self {
            destination_id: group.destination_id,
            destination_name: group.destination_name,
            state: group.state.as_str(),
            error: group.error.map(|error| error.to_string()),
            status_code: match group.error {
                Some(ErrorFilter::Status(status)) => Some(status),
                _ => None,
            },
            last_error: group.last_error,
            deliveries: group.deliveries,
            newest_at: group.newest_at,
            oldest_at: group.oldest_at,
            example_id: group.example_id,
        }
    }
}
