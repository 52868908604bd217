//! The audit of a destination: the recorded send starts, judged.

use axum::{Json, extract::State};
use weir_core::{
    DestinationId, RateLimits, Timestamp,
    audit::{AuditReport, Evidence, audit},
};
use weir_store::SendRecord;

use crate::{
    destinations,
    extract::PathId,
    problem::{self, Answer},
    query::Query,
    state::Api,
};

/// From this many sends on, the judgement takes long enough to be moved off the threads that answer requests.
const LARGE: usize = 10_000;

/// Audit a destination's limits
///
/// Exact over every sliding window, computed from the recorded send starts. Deleted destinations have an audit too.
#[utoipa::path(
    get, path = "/v1/destinations/{id}/audit", operation_id = "show_audit", tag = "destinations",
    params(("id" = String, Path, description = "`dst_…`"), crate::openapi::RangeParameters),
    responses((status = 200, description = "The judgement", body = crate::openapi::Audit))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    PathId(id): PathId<DestinationId>,
    mut query: Query,
) -> Answer<Json<AuditReport>> {
    let (from, to) = query.range();
    query.close()?;
    let destination = api.store.destination(id).await?;
    if destination.is_none() && !api.store.destination_existed(id).await? {
        return Err(destinations::missing(id));
    }
    let changes: Vec<(Timestamp, RateLimits)> =
        api.store.limit_changes(id).await?.into_iter().map(|change| (change.at, change.limits)).collect();
    let limits = match (destination, changes.last()) {
        (Some(destination), _) => destination.settings.rate_limits.clone(),
        // Of a deleted destination, the limits it had last.
        (None, Some((_, limits))) => limits.clone(),
        (None, None) => RateLimits::UNLIMITED,
    };
    let sends = api.store.sends(id, from.unwrap_or(Timestamp::MIN), to.unwrap_or(Timestamp::MAX)).await?;
    let report = if sends.len() < LARGE {
        judge(&sends, &changes, &limits)
    } else {
        tokio::task::spawn_blocking(move || judge(&sends, &changes, &limits))
            .await
            .map_err(|error| problem::internal("an audit failed", &error))?
    };
    Ok(Json(report))
}

fn judge(records: &[SendRecord], limit_changes: &[(Timestamp, RateLimits)], limits: &RateLimits) -> AuditReport {
    let sends: Vec<Timestamp> = records.iter().map(|record| record.sent_at).collect();
    let latencies: Vec<_> =
        records.iter().filter_map(|record| record.delivered).map(|(created, done)| done.since(created)).collect();
    audit(&Evidence { sends: &sends, limit_changes, limits, latencies: &latencies })
}
