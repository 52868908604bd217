//! Purges: what waits for a destination cancelled by the many.

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
    problem::{Answer, Problem},
    query::Query,
    state::Api,
    views::CountView,
};

/// Cancel what waits for a destination
///
/// Everything that is `pending` or `retrying` by default (send `{}` for that); `states`, `event_type` and `before` narrow it.
/// What is being delivered is not touched, nor what comes in after the request. The destination may be paused or running. A
/// long backlog is cancelled in many small steps, beside which deliveries and events go on; the answer counts them all. Should
/// it not arrive, ask again for the rest. `dry_run=true` counts and does nothing.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/purge", operation_id = "purge_destination", tag = "destinations",
    params(
        ("id" = String, Path, description = "`dst_…`"),
        ("dry_run" = Option<bool>, Query, description = "Only count what would be cancelled"),
    ),
    request_body = crate::openapi::PurgeRequest,
    responses((status = 200, description = "How many deliveries were cancelled, or would be (`dry_run`)", body = PurgeAnswer))
)]
pub(crate) async fn purge(
    State(api): State<Api>,
    PathId(id): PathId<DestinationId>,
    mut query: Query,
    request: Request,
) -> Answer<Json<PurgeAnswer>> {
    let dry_run = query.dry_run();
    query.close()?;
    let chosen = Chosen::read(extract::json(&api, request).await?)?;
    let destination = find(&api, id).await?;
    let now = api.clock.now();
    let purge = Purge {
        destination_id: id,
        pending: chosen.pending,
        retrying: chosen.retrying,
        event_type: chosen.event_type,
        before: chosen.before.map_or(now, |before| before.min(now)),
        now,
    };
    if dry_run {
        return Ok(Json(PurgeAnswer::Counted(CountView { total: api.store.count_purge(&purge).await? })));
    }
    let cancelled = api.store.purge(&purge).await?;
    if cancelled > 0 && !destination.settings.paused {
        // A run that met the purge may have come back short and taken it for the end of the backlog.
        api.wake(&[Wake { destination_id: id, due: now }]).await;
    }
    tracing::info!(destination = %id, cancelled, "purged a destination");
    Ok(Json(PurgeAnswer::Purged(PurgedView { cancelled })))
}

/// What a purge did, or would do.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum PurgeAnswer {
    Purged(PurgedView),
    Counted(CountView),
}

/// What a purge did.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Purged)]
pub(crate) struct PurgedView {
    cancelled: u64,
}

/// What a request chose.
#[derive(Debug, PartialEq, Eq)]
struct Chosen {
    pending: bool,
    retrying: bool,
    event_type: Option<EventPattern>,
    before: Option<Timestamp>,
}

impl Chosen {
    fn read(body: Value) -> Answer<Self> {
        let mut errors = Errors::default();
        let chosen = Object::open(body, "", &mut errors).map(|mut body| {
            let (pending, retrying) = states(&mut body);
            let event_type = body.parsed("event_type");
            let before = body.parsed("before");
            body.close(&[]);
            Self { pending, retrying, event_type, before }
        });
        match chosen {
            Some(chosen) if errors.is_empty() => Ok(chosen),
            _ => Err(Problem::invalid(errors.into_vec())),
        }
    }
}

/// Whether to take what is pending, and what is retrying.
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
                let detail = "must be `pending` or `retrying`: only what waits can be purged";
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
    fn without_fields_everything_that_waits_is_chosen() {
        let all = Chosen { pending: true, retrying: true, event_type: None, before: None };
        assert_eq!(Chosen::read(json!({})).unwrap(), all);
        assert_eq!(Chosen::read(json!({"states": null, "event_type": null, "before": null})).unwrap(), all);
        assert_eq!(
            Chosen::read(json!({"states": ["retrying"], "event_type": "video.*", "before": "2026-11-21T07:30:00Z"}))
                .unwrap(),
            Chosen {
                pending: false,
                retrying: true,
                event_type: Some(EventPattern::Prefix("video.".to_owned())),
                before: Some(Timestamp::from_secs(1_795_246_200)),
            }
        );
    }
}
