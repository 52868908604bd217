//! Events: list and show. [`crate::ingest`] accepts them.

use axum::Json;
use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde_json::value::RawValue;
use weir_core::{
    EventId,
    event::{Event, valid_type},
};
use weir_store::EventFilter;

use crate::{
    extract::PathId,
    page::Listing,
    problem::{self, ApiResult, Problem},
    query::Query,
    state::Api,
    views::{DeliveryView, EventDetailView, EventView, List},
};

/// List events
///
/// The list omits `data`, which may be large, unless `include=data` is given.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "list_events", tag = "events",
    params(
        ("type" = Option<crate::openapi::EventTypeText>, Query, description = "Only events of exactly this type"),
        ("tenant" = Option<crate::openapi::TenantText>, Query, description = "Only this tenant"),
        ("include" = Option<String>, Query, pattern = "^data$", description = "`data`: include the data of each event"),
        crate::openapi::RangeParameters,
        crate::openapi::PageParameters,
    ),
    responses((status = 200, description = "One page, newest first", body = List<EventView<'static>>))
)]
pub(crate) async fn list(State(api): State<Api>, mut query: Query) -> ApiResult<Response> {
    let event_type =
        query.parse("type", |text| valid_type(text).then(|| text.to_owned()).ok_or("must be an event type"));
    let tenant = query.tenant();
    let (from, to) = query.range();
    let include = query.parse("include", |text| (text == "data").then_some(()).ok_or("must be `data`"));
    let page = Listing::Events.request(&mut query);
    query.close()?;
    let with_bodies = include.is_some();
    let page = api.store.list_events(&EventFilter { event_type, tenant, from, to, with_bodies }, page).await?;
    let next_cursor = Listing::Events.next_cursor(&page);
    let bodies: Vec<Option<Bytes>> = page.rows.iter().map(|event| with_bodies.then(|| event.body.data())).collect();
    let views = page.rows.iter().zip(&bodies).map(|(event, data)| view(event, data.as_ref()));
    Ok(Json(List { data: views.collect::<ApiResult<Vec<_>>>()?, next_cursor }).into_response())
}

/// Show an event with its deliveries
#[utoipa::path(
    get, path = "/v1/events/{id}", operation_id = "show_event", tag = "events", params(("id" = crate::openapi::EventIdText, Path, description = "`evt_…`")),
    responses((status = 200, description = "The event", body = EventDetailView<'static>))
)]
pub(crate) async fn show(State(api): State<Api>, PathId(id): PathId<EventId>, query: Query) -> ApiResult<Response> {
    query.close()?;
    let event = api.store.event(id).await?.ok_or_else(|| Problem::not_found(format!("there is no event {id}")))?;
    let deliveries = api.store.event_deliveries(id).await?.into_iter().map(DeliveryView::from).collect();
    let data = event.body.data();
    Ok(Json(EventDetailView { event: view(&event, Some(&data))?, deliveries }).into_response())
}

fn view<'a>(event: &'a Event, data: Option<&'a Bytes>) -> ApiResult<EventView<'a>> {
    let data: Option<&RawValue> = data
        .map(|data| serde_json::from_slice(data))
        .transpose()
        .map_err(|error| problem::internal("a stored event's data is not JSON", &format!("{}: {error}", event.id)))?;
    Ok(EventView::new(event, data))
}
