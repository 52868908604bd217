//! What failed: dead and failed deliveries, grouped by destination, state and error.

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::DeliveryState;
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
    responses((status = 200, description = "The groups", body = types::DeliveryGroups))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    Query((filter, range)): Query<(GroupFilter, RangeParameters)>,
) -> ApiResult<Json<types::DeliveryGroups>> {
    if is_of_others(&api, &caller, filter.destination.as_ref().map(|id| id.0)).await? {
        return Ok(Json(types::DeliveryGroups { data: Vec::new(), scanned: 0, capped: false }));
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
    let data = found.groups.into_iter().take(MAX_GROUPS).map(group).collect();
    Ok(Json(types::DeliveryGroups { data, scanned, capped: found.capped }))
}

pub(crate) fn group(group: FailureGroup) -> types::DeliveryGroup {
    types::DeliveryGroup {
        destination_id: group.destination_id.to_string(),
        destination_name: group.destination_name,
        state: group.state.as_str().to_owned(),
        error: group.error.map(|error| error.to_string()),
        status_code: match group.error {
            Some(ErrorFilter::Status(status)) => Some(status),
            _ => None,
        },
        last_error: group.last_error,
        deliveries: group.deliveries,
        newest_at: group.newest_at,
        oldest_at: group.oldest_at,
        example_id: group.example_id.to_string(),
    }
}
