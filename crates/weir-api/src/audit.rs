//! The audit of a destination: the recorded send starts, judged page by page as they are read.

use std::time::Duration;

use axum::{Json, extract::State};
use weir_core::{
    DestinationId, Timestamp,
    audit::{AuditReport, Auditor, UnknownSend},
};
use weir_store::{SendRecord, SendsRequest};

use crate::{
    destinations,
    extract::PathId,
    problem::{Answer, Problem},
    query::Query,
    state::{Api, ApiState},
};

/// What is judged when nobody names a range.
const DEFAULT_RANGE: Duration = Duration::from_secs(24 * 60 * 60);
/// How many sends are read at once. To judge them takes a few milliseconds, after which others have their turn.
const PAGE: u32 = 5_000;
/// An audit that takes longer is refused. Shorter than the patience of `weir audit`.
const LONGEST: Duration = Duration::from_secs(100);

/// Audit a destination's limits
///
/// Exact over every sliding window inside the range, computed from the recorded send starts. Without `from`, the range begins a
/// day before `to`; without `to`, it ends with the last send. Deleted destinations have an audit too. An edit has 100 ms to act;
/// a window across an edit is judged by the larger limit. A range with more sends than can be judged in 100 s is refused.
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
    if api.store.destination(id).await?.is_none() && !api.store.destination_existed(id).await? {
        return Err(destinations::missing(id));
    }
    let from = from.unwrap_or_else(|| to.unwrap_or_else(|| api.clock.now()).before(DEFAULT_RANGE).max(Timestamp::MIN));
    in_time(judge(&api, id, from, to.unwrap_or(Timestamp::MAX))).await.map(Json)
}

async fn judge(api: &ApiState, destination_id: DestinationId, from: Timestamp, to: Timestamp) -> Answer<AuditReport> {
    let changes = api.store.limit_changes(destination_id).await?;
    let mut auditor = Auditor::new(changes.into_iter().map(|change| (change.at, change.limits)).collect(), from, to);
    let mut request = SendsRequest { destination_id, from, to, after: None, limit: PAGE };
    loop {
        let page = api.store.sends(request).await?;
        page.iter().for_each(|record| judge_send(&mut auditor, record));
        if page.len() < PAGE as usize {
            return Ok(auditor.report());
        }
        request.after = page.last().map(|record| record.place);
        tokio::task::yield_now().await;
    }
}

fn judge_send(auditor: &mut Auditor, record: &SendRecord) {
    let place = record.place;
    if record.is_unknown {
        auditor.unknown_send(UnknownSend {
            delivery_id: place.delivery_id,
            number: place.number,
            latest_at: place.sent_at,
        });
    } else {
        auditor.send(place.sent_at);
    }
    if let Some((created, done)) = record.delivered {
        auditor.delivered(done.since(created));
    }
}

async fn in_time<T>(judged: impl Future<Output = Answer<T>>) -> Answer<T> {
    let too_long = |_| {
        let detail = format!("holds more sends than can be judged in {} s; name a later time", LONGEST.as_secs());
        Err(Problem::invalid_field("/from", detail))
    };
    tokio::time::timeout(LONGEST, judged).await.unwrap_or_else(too_long)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_audit_that_takes_too_long_is_refused_with_what_to_do() {
        let refused = in_time(std::future::pending::<Answer<()>>()).await.expect_err("it never ends");
        assert_eq!(refused.errors()[0].pointer, "/from");
        assert!(refused.detail().contains("100 s"), "{}", refused.detail());
    }
}
