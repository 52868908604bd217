//! Events: list and show. [`super::ingest`] accepts them.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use weir_api_types as types;
use weir_core::{access::TenantScope, event::Event};
use weir_store::{EventFilter, Page};

use super::deliveries;
use crate::{
    auth::Caller,
    problem::{self, ApiResult, Problem},
    readers::{
        body::PathId,
        ordered_page::OrderedPage,
        page::{List, Listing, Room},
        query::{Query, RangeParameters, parameters},
        texts::{AnyTenantText, EventIdText, EventPatternText, IdempotencyKeyText, text},
    },
    state::{Api, ApiState},
};

/// The most tenants in which an idempotency key is looked up. A look-up costs a probe of an index in each of them, so
/// ten thousand cost some tens of milliseconds.
const MOST_TENANTS: u32 = 10_000;

/// The list of events.
pub(crate) enum Events {}

impl Listing for Events {
    const TAG: u8 = b'e';
}

type EventPage = OrderedPage<Events>;

text! {
    /// What to include.
    #[schema(as = Include, value_type = String, pattern = "^data$")]
    pub(crate) struct IncludeText(());
    parse = |text| (text == "data").then_some(()).ok_or_else(|| "must be `data`".to_owned());
}

parameters! {
    /// The filter of the list.
    pub(crate) struct Filter {
        /// Only events of this type: exact (`video.created`), a prefix (`video.*`) or `*`
        r#type: Option<EventPatternText>,
        /// Only this tenant; `*`: the alerts to operators
        tenant: Option<AnyTenantText>,
        /// Only the events with this key: at most one of each tenant
        idempotency_key: Option<IdempotencyKeyText>,
        /// `data`: include the data of each event
        #[param(inline)]
        include: Option<IncludeText>,
    }
}

/// List events
///
/// The list omits `data`, which may be large, unless `include=data` is given: then a page ends after 4 MiB of it. With
/// the filters `type` and `tenant` a page examines at most 5000 events. So a page may be short or empty and still have a
/// `next_cursor`. An idempotency key is looked up in all
/// tenants of the API key. With a type of Weir's own events (`weir.*`) it examines only those.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "list_events", tag = "events",
    params(Filter, RangeParameters, EventPage),
    responses((status = 200, description = "One page", body = List<types::Event>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query((filter, range, page)): Query<(Filter, RangeParameters, EventPage)>,
) -> ApiResult<Response> {
    let (from, to) = range.times();
    let with_data = filter.include.is_some();
    let mut tenants = caller.scope(filter.tenant.map(|tenant| tenant.0))?;
    if filter.idempotency_key.is_some() && tenants == TenantScope::All {
        tenants = tenants_with_keys(&api).await?;
    }
    let filter = EventFilter {
        event_type: filter.r#type.map(|event_type| event_type.0),
        tenants,
        idempotency_key: filter.idempotency_key.map(|key| key.0),
        from,
        to,
        order: page.order,
    };
    let mut read = api.store.list_events(&filter, page.request).await?;
    let bodies = match with_data {
        true => Some(read_data(&api, &mut read).await?),
        false => None,
    };
    let last = read.rows.last().map(|event| *event.id.as_bytes());
    let next_cursor = read.next.map(|end| match caller.sees_all() {
        true => page.cursor(end),
        false => page.cursor_beside(end, last),
    });
    let data = |index: usize| bodies.as_ref().and_then(|bodies| bodies.get(index)?.as_ref());
    let views = read.rows.iter().enumerate().map(|(index, event)| view(event, data(index)));
    Ok(Json(List { data: views.collect::<ApiResult<Vec<_>>>()?, next_cursor }).into_response())
}

/// All tenants that may have an event with an idempotency key.
async fn tenants_with_keys(api: &ApiState) -> ApiResult<TenantScope> {
    let found = api.store.tenants_with_keys(MOST_TENANTS + 1).await?;
    if found.len() > MOST_TENANTS as usize {
        let detail = format!("is required with an idempotency key, because more than {MOST_TENANTS} tenants have keys");
        return Err(Problem::invalid_field("/tenant", detail));
    }
    Ok(TenantScope::Only(found.into_iter().collect()))
}

/// The data of each event of a page. The page ends before the event whose data does not fit. The bodies are read one by
/// one, because a page may have 200 of the largest.
async fn read_data(api: &Api, page: &mut Page<Event>) -> ApiResult<Vec<Option<Bytes>>> {
    let mut room = Room::default();
    let mut bodies = Vec::with_capacity(page.rows.len());
    for event in &page.rows {
        let body = api.store.bodies(&[event.id]).await?.pop().flatten();
        let data = body.map(|body| body.data());
        if !room.takes(data.as_ref().map_or(0, Bytes::len)) {
            break;
        }
        bodies.push(data);
    }
    if bodies.len() < page.rows.len() {
        page.rows.truncate(bodies.len());
        page.next = page.rows.last().map(|event| *event.id.as_bytes());
    }
    Ok(bodies)
}

/// Show an event with its deliveries
#[utoipa::path(
    get, path = "/v1/events/{id}", operation_id = "show_event", tag = "events", params(("id" = EventIdText, Path, description = "`evt_…`")),
    responses((status = 200, description = "The event", body = types::EventDetail))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(EventIdText(id)): PathId<EventIdText>,
    _: Query<()>,
) -> ApiResult<Response> {
    let event = api.store.event(id).await?.filter(|event| caller.sees(&event.tenant));
    let event = event.ok_or_else(|| Problem::not_found(format!("there is no event {id}")))?;
    let deliveries = deliveries::views(&api, api.store.event_deliveries(id).await?, true).await?;
    let data = event.body.data();
    Ok(Json(types::EventDetail { event: view(&event, Some(&data))?, deliveries }).into_response())
}

fn view(event: &Event, data: Option<&Bytes>) -> ApiResult<types::Event> {
    let data = data
        .map(|data| serde_json::from_slice(data))
        .transpose()
        .map_err(|error| problem::internal("a stored event's data is not JSON", &format!("{}: {error}", event.id)))?;
    let event = event.clone();
    Ok(types::Event {
        id: event.id.to_string(),
        event_type: event.event_type,
        tenant: event.tenant,
        created_at: event.created_at,
        idempotency_key: event.idempotency_key,
        filtered: event.filtered,
        deliver_at: event.options.deliver_at,
        expires_at: event.options.expires_at,
        coalesce_key: event.options.coalesce_key,
        ordering_key: event.options.ordering_key,
        limit_key: event.options.limit_key.map(|key| key.to_string()),
        cost: event.options.cost,
        data,
    })
}
