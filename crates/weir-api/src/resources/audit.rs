//! The audit of a destination: reads the recorded send starts page by page and judges them.

use std::time::Duration;

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::{
    DestinationId, RateLimits, Timestamp,
    audit::{AuditReport, Auditor, UnknownSend},
    retention::ACTIVITY_KEPT,
};
use weir_store::{SendRecord, SendsRequest};

use super::{destinations, limit_keys};
use crate::{
    auth::Caller,
    problem::{ApiResult, Problem},
    readers::{
        body::PathId,
        query::{Query, RangeParameters, parameters},
        texts::{DestinationIdText, LimitKeyText},
    },
    state::{Api, ApiState},
};

/// The range of an audit without `from`.
pub(crate) const DEFAULT_RANGE: Duration = Duration::from_secs(24 * 60 * 60);
/// The number of sends per page. The judgement of a page takes a few milliseconds; then other tasks can run.
const PAGE: u32 = 5_000;
/// An audit that takes longer is refused. Shorter than the timeout of `weir audit`.
const TIME_LIMIT: Duration = Duration::from_secs(100);

parameters! {
    /// Of what to audit the sends.
    pub(crate) struct AuditParameters {
        /// Only the sends of this limit key, by the limits that it had itself. `""`: the events without a key. Only for
        /// destinations with `key_limits`.
        key: Option<LimitKeyText>,
    }
}

/// Audit a destination's limits
///
/// The audit is exact for every sliding window inside the range. It is computed from the recorded send starts. Without
/// `from`, the range begins a day before `to`; without `to`, it ends with the last send. Deleted destinations can be
/// audited too. An edit must take effect within 100 ms; a window that spans an edit is judged by the larger limit. A
/// range with too many sends for an audit of 100 s is refused. With `key` the same of one limit key; what its limits were at
/// each time says the activity log, of a year at most.
#[utoipa::path(
    get, path = "/v1/destinations/{id}/audit", operation_id = "show_audit", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`"), AuditParameters, RangeParameters),
    responses((status = 200, description = "The audit", body = types::Audit))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    Query((asked, range)): Query<(AuditParameters, RangeParameters)>,
) -> ApiResult<Json<AuditReport>> {
    let (from, to) = range.times();
    let from = from.unwrap_or_else(|| to.unwrap_or_else(|| api.clock.now()).before(DEFAULT_RANGE).max(Timestamp::MIN));
    let to = to.unwrap_or(Timestamp::MAX);
    match (api.store.destination(id).await?, &asked.key) {
        (Some(destination), Some(LimitKeyText(key))) if caller.sees(&destination.settings.tenant) => {
            let from = from.max(api.clock.now().before(ACTIVITY_KEPT));
            let audit = async {
                let (flow, changes) = limit_keys::evidence(&api, &destination, key, from).await?;
                judge(&api, flow, changes, (from, to)).await
            };
            return in_time("the audit", audit).await.map(Json);
        }
        (Some(destination), None) if caller.sees(&destination.settings.tenant) => {}
        // The tenant of a deleted destination is not known any more, so only a caller for all tenants may audit it.
        (None, None) if caller.sees_all() && api.store.destination_existed(id).await? => {}
        _ => return Err(destinations::missing(id)),
    }
    let audit = async {
        let changes = api.store.limit_changes(id).await?.into_iter().map(|change| (change.at, change.limits)).collect();
        judge(&api, id, changes, (from, to)).await
    };
    in_time("the audit", audit).await.map(Json)
}

/// The sends of a destination, or of the flow of one of its keys.
async fn judge(
    api: &ApiState,
    destination_id: DestinationId,
    changes: Vec<(Timestamp, RateLimits)>,
    (from, to): (Timestamp, Timestamp),
) -> ApiResult<AuditReport> {
    let mut auditor = Auditor::new(changes, from, to);
    let mut request = SendsRequest { destination_id, from, to, after: None, limit: PAGE };
    loop {
        let page = api.store.sends(request).await?;
        page.iter().for_each(|record| judge_send(&mut auditor, record));
        if page.len() < PAGE as usize {
            return Ok(auditor.report());
        }
        request.after = page.last().map(|record| record.position);
        tokio::task::yield_now().await;
    }
}

pub(crate) fn judge_send(auditor: &mut Auditor, record: &SendRecord) {
    let position = record.position;
    if record.is_unknown {
        let unknown =
            UnknownSend { delivery_id: position.delivery_id, number: position.number, latest_at: position.sent_at };
        auditor.unknown_send(unknown, record.cost);
    } else {
        auditor.send_of(record.cost, position.sent_at);
    }
    if let Some((created, done)) = record.delivered {
        auditor.delivered(done.since(created));
    }
}

/// What reads a whole range takes this long at most.
pub(crate) async fn in_time<T>(name: &str, audit: impl Future<Output = ApiResult<T>>) -> ApiResult<T> {
    let too_long = |_| {
        let seconds = TIME_LIMIT.as_secs();
        let detail = format!("must be later: {name} of this range takes longer than {seconds} s");
        Err(Problem::invalid_field("/from", detail))
    };
    tokio::time::timeout(TIME_LIMIT, audit).await.unwrap_or_else(too_long)
}

#[cfg(test)]
mod tests {
    use weir_core::{DeliveryId, Period, RateLimit, RateLimits};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_audit_that_takes_too_long_is_refused_with_a_remedy() {
        let refused = in_time("the audit", std::future::pending::<ApiResult<()>>()).await.expect_err("it never ends");
        assert_eq!(refused.errors()[0].pointer, "/from");
        assert!(refused.detail().contains("100 s"), "{}", refused.detail());
    }

    #[test]
    fn the_audit_of_the_document_is_the_json_of_the_report() {
        let limits = RateLimits::new(vec![RateLimit::new(1, Period::SECOND).unwrap()]).unwrap();
        let mut auditor = Auditor::new(vec![(Timestamp::MIN, limits)], Timestamp::MIN, Timestamp::MAX);
        auditor.send(Timestamp::from_secs(1));
        auditor.delivered(Duration::from_micros(1_500));
        let delivery_id = DeliveryId::from_bytes([1; 16]);
        auditor.unknown_send(UnknownSend { delivery_id, number: 1, latest_at: Timestamp::from_secs(2) }, 1);
        let report = auditor.report();
        assert!(!report.rate_limits.is_empty() && !report.unknown_sends.is_empty() && report.series.is_some());
        let report = serde_json::to_value(report).unwrap();
        let described: types::Audit = serde_json::from_value(report.clone()).unwrap();
        assert_eq!(serde_json::to_value(described).unwrap(), report);
    }
}
