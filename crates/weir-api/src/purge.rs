//! Purges: waiting deliveries of a destination cancelled in bulk.

use axum::{
    Json,
    extract::{Request, State},
};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use weir_core::{DeliveryState, DestinationId, Timestamp, pattern::EventPattern};
use weir_queue::Wake;
use weir_store::Purge;

use crate::{
    destinations::find,
    extract::{self, PathId},
    fields::{Errors, Object},
    problem::{ApiResult, Problem},
    query::Query,
    state::Api,
    views::CountView,
};

/// Cancel the waiting deliveries of a destination
///
/// By default (with the body `{}`) it cancels every `pending` and `retrying` delivery; `states`, `event_type` and
/// `before` are filters. Deliveries in state `delivering` and deliveries that arrive after the request are not
/// affected. The destination may be paused or active. A long backlog is cancelled in many small steps, while other
/// deliveries and events continue; the answer gives the total. If the answer does not arrive, repeat the request to
/// cancel the rest. `dry_run=true` only counts.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/purge", operation_id = "purge_destination", tag = "destinations",
    params(
        ("id" = crate::openapi::DestinationIdText, Path, description = "`dst_…`"),
        ("dry_run" = Option<bool>, Query, description = "Only count the deliveries that would be cancelled"),
    ),
    request_body = crate::openapi::PurgeRequest,
    responses((status = 200, description = "The number of cancelled deliveries, or of those that would be cancelled (`dry_run`)", body = PurgeAnswer))
)]
pub(crate) async fn purge(
    State(api): State<Api>,
    PathId(id): PathId<DestinationId>,
    mut query: Query,
    request: Request,
) -> ApiResult<Json<PurgeAnswer>> {
    let dry_run = query.dry_run();
    query.close()?;
    let filter = PurgeFilter::read(extract::json(&api, request).await?)?;
    let destination = find(&api, id).await?;
    let now = api.clock.now();
    let purge = Purge {
        destination_id: id,
        pending: filter.pending,
        retrying: filter.retrying,
        event_type: filter.event_type,
        before: filter.before.map_or(now, |before| before.min(now)),
        now,
    };
    if dry_run {
        return Ok(Json(PurgeAnswer::Counted(CountView { total: api.store.count_purge(&purge).await? })));
    }
    let cancelled = api.store.purge(&purge).await?;
    if cancelled > 0 && !destination.settings.paused {
        // A concurrent run may have claimed fewer deliveries because of the purge and concluded that the backlog is
        // empty.
        api.wake(&[Wake { destination_id: id, due: now }]).await;
    }
    tracing::info!(destination = %id, cancelled, "purged the waiting deliveries of a destination");
    Ok(Json(PurgeAnswer::Purged(PurgedView { cancelled })))
}

/// The result of a purge or of its dry run.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum PurgeAnswer {
    Purged(PurgedView),
    Counted(CountView),
}

/// The result of a purge.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Purged)]
pub(crate) struct PurgedView {
    cancelled: u64,
}

/// The filter of a request.
#[derive(Debug, PartialEq, Eq)]
struct PurgeFilter {
    pending: bool,
    retrying: bool,
    event_type: Option<EventPattern>,
    before: Option<Timestamp>,
}

impl PurgeFilter {
    fn read(body: Value) -> ApiResult<Self> {
        let mut errors = Errors::default();
        let filter = Object::open(body, "", &mut errors).map(|mut body| {
            let (pending, retrying) = states(&mut body);
            let event_type = body.parsed("event_type");
            let before = body.parsed("before");
            body.close(&[]);
            Self { pending, retrying, event_type, before }
        });
        match filter {
            Some(filter) if errors.is_empty() => Ok(filter),
            _ => Err(Problem::invalid(errors.into_vec())),
        }
    }
}

/// Whether to cancel pending and retrying deliveries.
fn states(body: &mut Object<'_>) -> (bool, bool) {
    let Some(states) = body.array("states") else { return (true, true) };
    if states.is_empty() {
        body.refuse("states", "must name `pending`, `retrying` or both");
    }
    let (mut pending, mut retrying) = (false, false);
    let pointer = body.pointer_to("states");
    for (index, state) in states.iter().enumerate() {
        match state.as_str().and_then(DeliveryState::parse) {
            Some(DeliveryState::Pending) => pending = true,
            Some(DeliveryState::Retrying) => retrying = true,
            _ => {
                let detail = "must be `pending` or `retrying`: only waiting deliveries can be purged";
                body.errors().add(format!("{pointer}/{index}"), detail);
            }
        }
    }
    (pending, retrying)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_empty_body_selects_all_waiting_deliveries() {
        let all = PurgeFilter { pending: true, retrying: true, event_type: None, before: None };
        assert_eq!(PurgeFilter::read(json!({})).unwrap(), all);
        assert_eq!(PurgeFilter::read(json!({"states": null, "event_type": null, "before": null})).unwrap(), all);
        assert_eq!(
            PurgeFilter::read(
                json!({"states": ["retrying"], "event_type": "video.*", "before": "2026-11-21T07:30:00Z"})
            )
            .unwrap(),
            PurgeFilter {
                pending: false,
                retrying: true,
                event_type: Some(EventPattern::Prefix("video.".to_owned())),
                before: Some(Timestamp::from_secs(1_795_246_200)),
            }
        );
    }
}
