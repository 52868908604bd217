//! The list of deliveries and its count.

use axum::{Extension, Json, extract::State};
use weir_api_types as types;
use weir_core::LimitKey;
use weir_store::{DeliveryFilter, ListCount};

use crate::{
    auth::Caller,
    problem::{ApiResult, Problem},
    readers::{
        ordered_page::OrderedPage,
        page::{List, Listing},
        query::{Query, RangeParameters, parameters},
        texts::{
            AttemptErrorText, DeliveryStatesText, DestinationIdText, EventIdText, EventPatternText, LimitKeyText,
            TenantText,
        },
    },
    resources::destinations::is_of_others,
    state::Api,
};

/// The list of deliveries.
pub(crate) enum Deliveries {}

impl Listing for Deliveries {
    const TAG: u8 = b'l';
}

type DeliveryPage = OrderedPage<Deliveries>;

parameters! {
    /// The filter of the list.
    pub(crate) struct Filter {
        /// Only deliveries to this destination: `dst_…`
        destination: Option<DestinationIdText>,
        /// Only deliveries of this event: `evt_…`
        event: Option<EventIdText>,
        /// `pending`, `delivering`, `retrying`, `delivered`, `failed`, `dead`, `cancelled`, `superseded` or `expired`,
        /// or several of them separated by commas
        state: Option<DeliveryStatesText>,
        /// Only this tenant
        tenant: Option<TenantText>,
        /// Only events of this type: exact (`video.created`), a prefix (`video.*`) or `*`
        event_type: Option<EventPatternText>,
        /// Only deliveries whose last attempt had this error: `dns`, `connect`, `tls`, `timeout`, `broken`,
        /// `forbidden`, `unknown`, a class of statuses (`3xx`, `4xx`, `5xx`) or one status (`503`)
        error: Option<AttemptErrorText>,
        /// Only deliveries with this limit key; needs `destination`. Empty: events without a key
        limit_key: Option<LimitKeyText>,
    }
}

parameters! {
    /// Whether to count.
    pub(crate) struct CountParameters {
        /// Adds the number of deliveries that match
        count: Option<bool>,
    }
}

/// List deliveries
///
/// With the filters `tenant`, `event_type`, `error` and some states, a page examines at most 5000 deliveries, so that a
/// long history costs no more than a short one. Such a page may be short or empty and still have a `next_cursor`: the
/// list ends only when `next_cursor` is null. `from`, `to`, `destination` and the states `failed`, `dead`, `cancelled`,
/// `superseded` and `expired` reduce the number of deliveries to examine. `count=true` examines at most 10,000.
#[utoipa::path(
    get, path = "/v1/deliveries", operation_id = "list_deliveries", tag = "deliveries",
    params(Filter, RangeParameters, DeliveryPage, CountParameters),
    responses((status = 200, description = "One page", body = types::DeliveryList))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    unmeasured: Option<Extension<types::Unmeasured>>,
    Query((filter, range, page, count)): Query<(Filter, RangeParameters, DeliveryPage, CountParameters)>,
) -> ApiResult<Json<types::DeliveryList>> {
    let count = count.count == Some(true);
    if is_of_others(&api, &caller, filter.destination.as_ref().map(|id| id.0)).await? {
        let list = List { data: Vec::new(), next_cursor: None };
        return Ok(Json(types::DeliveryList { list, count: count.then(|| count_view(ListCount::default())) }));
    }
    let (from, to) = range.times();
    let filter = DeliveryFilter {
        limit_key: limit_key(filter.limit_key, filter.destination.is_some())?,
        destination_id: filter.destination.map(|id| id.0),
        event_id: filter.event.map(|id| id.0),
        states: filter.state.map(|states| states.0).unwrap_or_default(),
        tenants: caller.scope(filter.tenant.map(|tenant| tenant.0))?,
        event_type: filter.event_type.map(|pattern| pattern.0),
        error: filter.error.map(|error| error.0),
        from,
        to,
        order: page.order,
    };
    let count = if count { Some(count_view(api.store.count_deliveries(&filter).await?)) } else { None };
    let read = api.store.list_deliveries(&filter, page.request).await?;
    let last = read.rows.last().map(|delivery| *delivery.id.as_bytes());
    let next_cursor = read.next.map(|end| match caller.sees_all() {
        true => page.cursor(end),
        false => page.cursor_beside(end, last),
    });
    let data = super::views(&api, read.rows, unmeasured.is_none()).await?;
    Ok(Json(types::DeliveryList { list: List { data, next_cursor }, count }))
}

/// A key belongs to a destination: without one nothing would match.
fn limit_key(given: Option<LimitKeyText>, has_destination: bool) -> ApiResult<Option<LimitKey>> {
    match given {
        Some(_) if !has_destination => {
            Err(Problem::invalid_field("/limit_key", "needs `destination`, to which the key belongs: name it too"))
        }
        given => Ok(given.map(|key| key.0)),
    }
}

fn count_view(ListCount { value, capped }: ListCount) -> types::ListCount {
    types::ListCount { value, capped }
}
