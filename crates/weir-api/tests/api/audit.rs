//! Audits: the limits that judge each send, and the report.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::{
    Clock as _,
    claim::ClaimedDelivery,
    delivery::{Attempt, AttemptDetails, AttemptOutcome},
    id::AttemptId,
    outcome::Verdict,
};
use weir_store::{AttemptResult, ClaimRequest};

use crate::harness::Server;

const URL: &str = "https://example.com/hooks";

pub(crate) fn limits(all: &[(u32, &str)]) -> Value {
    let shown = |(limit, period): &(u32, &str)| json!({"limit": limit, "period": period, "burst": 1});
    all.iter().map(shown).collect()
}

impl Server {
    /// A destination with these limits, and `count` claimed deliveries to it.
    pub(crate) async fn claimed(&self, limits: Value, count: usize) -> (String, Vec<ClaimedDelivery>) {
        self.claimed_of(limits, json!({"type": "video.created", "data": 1}), count).await
    }

    /// The same with deliveries of this event.
    pub(crate) async fn claimed_of(&self, limits: Value, event: Value, count: usize) -> (String, Vec<ClaimedDelivery>) {
        let id = self.destination(json!({"url": URL, "rate_limits": limits})).await;
        let mut remaining = count;
        while remaining > 0 {
            let events = vec![event.clone(); remaining.min(1_000)];
            self.post("/v1/events/batch", json!({"events": events})).await.expect(StatusCode::ACCEPTED);
            remaining -= events.len();
        }
        let now = self.clock.now();
        let expires_at = now + Duration::from_secs(3_600);
        let request = ClaimRequest { expires_at, ..self.claim_request(&id, count as u32) };
        let claimed = self.store.claim(vec![request], now).await.unwrap().pop().unwrap().deliveries;
        assert_eq!(claimed.len(), count);
        (id, claimed)
    }

    /// Records one send per delivery at this interval, as the worker does.
    pub(crate) async fn record_sends(&self, deliveries: &[ClaimedDelivery], interval: Duration) {
        let mut results = Vec::new();
        for delivery in deliveries {
            let now = self.clock.now();
            let attempt = Attempt {
                id: AttemptId::new(now, results.len() as u128),
                delivery_id: delivery.claim.delivery_id,
                number: delivery.attempts + 1,
                sent_at: Some(now),
                duration_ms: 12,
                outcome: AttemptOutcome::Delivered,
                status_code: Some(200),
                error: None,
                failure: None,
                response_body: None,
                details: AttemptDetails::default(),
            };
            let now = now + Duration::from_millis(12);
            let (claim, verdict) = (delivery.claim, Verdict::Delivered);
            results.push(Arc::new(AttemptResult { claim, attempt, verdict, is_counted: true, now }));
            self.clock.advance(interval);
        }
        self.store.settle(results).await.unwrap();
    }

    pub(crate) async fn edit_limits(&self, id: &str, limits: Value) {
        self.patch(&format!("/v1/destinations/{id}"), json!({"rate_limits": limits})).await.expect(StatusCode::OK);
    }

    async fn audit(&self, id: &str, query: &str) -> Value {
        self.get(&format!("/v1/destinations/{id}/audit{query}")).await.expect(StatusCode::OK)
    }
}

/// Limit, period and violations of each row.
fn rows(report: &Value) -> Vec<(u64, String, u64)> {
    let number = |value: &Value| value.as_u64().unwrap();
    let row =
        |row: &Value| (number(&row["limit"]), row["period"].as_str().unwrap().to_owned(), number(&row["violations"]));
    report["rate_limits"].as_array().unwrap().iter().map(row).collect()
}

#[tokio::test]
async fn the_audit_judges_the_recorded_sends() {
    let server = Server::start().await;
    // All three sends are in the same second, two more than allowed.
    let (id, claimed) = server.claimed(limits(&[(1, "second")]), 3).await;
    server.record_sends(&claimed, Duration::ZERO).await;
    let report = server.audit(&id, "").await;
    assert_eq!(report["sends"], 3);
    let limit = &report["rate_limits"][0];
    assert_eq!((&limit["limit"], &limit["period"], &limit["burst"]), (&json!(1), &json!("second"), &json!(1)));
    assert_eq!((&limit["violations"], &limit["worst_sliding_window"]["sends"]), (&json!(2), &json!(3)));
    assert_eq!(limit["worst_calendar_window"], json!({"start": "2026-11-21T07:30:00.000Z", "sends": 3}));
    assert!(report["delivery_latency_ms"]["p99"].as_f64().unwrap() >= 12.0);
    assert_eq!((&report["unknown_sends"], &report["unknown_sends_total"]), (&json!([]), &json!(0)));
    let before = server.audit(&id, "?to=2026-11-21T07:00:00Z").await;
    assert_eq!(before["sends"], 0);
}

#[tokio::test]
async fn the_audit_judges_the_gaps_between_sends_by_the_minimum_interval() {
    let server = Server::start().await;
    let (id, claimed) = server.claimed(json!([]), 6).await;
    assert_eq!(server.audit(&id, "").await["min_intervals"], json!([]));
    let path = format!("/v1/destinations/{id}");
    let edit = async |millis: u32| {
        server.patch(&path, json!({"min_interval_ms": millis})).await.expect(StatusCode::OK);
    };
    edit(500).await;
    server.clock.advance(Duration::from_secs(1));
    server.record_sends(&claimed[..3], Duration::from_millis(499)).await;
    server.clock.advance(Duration::from_secs(1));
    edit(100).await;
    server.clock.advance(Duration::from_secs(1));
    server.record_sends(&claimed[3..], Duration::from_millis(100)).await;
    let expected = json!([
        {"min_interval_ms": 100, "least_gap_ms": 100.0, "violations": 0, "possible_violations": 0},
        {"min_interval_ms": 500, "least_gap_ms": 499.0, "violations": 2, "possible_violations": 0},
    ]);
    let mut intervals = server.audit(&id, "").await["min_intervals"].take();
    // The clock of the test moves with each reading.
    for interval in intervals.as_array_mut().unwrap() {
        interval["least_gap_ms"] = interval["least_gap_ms"].as_f64().unwrap().floor().into();
    }
    assert_eq!(intervals, expected);
}

#[tokio::test]
async fn a_removed_limit_still_has_its_row() {
    let server = Server::start().await;
    let (id, claimed) = server.claimed(limits(&[(2, "second"), (100, "minute")]), 6).await;
    server.record_sends(&claimed[..3], Duration::from_millis(10)).await;
    server.edit_limits(&id, limits(&[(100, "minute")])).await;
    server.clock.advance(Duration::from_secs(1));
    server.record_sends(&claimed[3..], Duration::from_millis(10)).await;
    let report = server.audit(&id, "").await;
    assert_eq!(rows(&report), [(2, "second".to_owned(), 1), (100, "minute".to_owned(), 0)]);
    server.edit_limits(&id, json!([])).await;
    let report = server.audit(&id, "").await;
    assert_eq!(rows(&report), [(2, "second".to_owned(), 1), (100, "minute".to_owned(), 0)]);
    server.delete(&format!("/v1/destinations/{id}")).await;
    assert_eq!(rows(&server.audit(&id, "").await).len(), 2, "a deleted destination has an audit too");
}

#[tokio::test]
async fn sends_beyond_a_lowered_limit_are_reported_from_100_ms_after_the_edit_on() {
    let server = Server::start().await;
    let (id, claimed) = server.claimed(limits(&[(10, "second")]), 9).await;
    server.clock.advance(Duration::from_secs(60));
    server.edit_limits(&id, limits(&[(1, "second")])).await;
    server.clock.advance(Duration::from_millis(110));
    server.record_sends(&claimed, Duration::from_millis(90)).await;
    let report = server.audit(&id, "").await;
    assert_eq!(rows(&report), [(1, "second".to_owned(), 8), (10, "second".to_owned(), 0)]);
    assert_eq!(report["rate_limits"][0]["worst_sliding_window"]["sends"], 9);
}

#[tokio::test]
async fn sends_of_unknown_outcome_count_at_their_latest_instant_and_are_listed() {
    let server = Server::start().await;
    let (id, claimed) = server.claimed(limits(&[(10, "second")]), 2).await;
    server.record_sends(&claimed[..1], Duration::from_secs(5)).await;
    let recovered_at = server.clock.now();
    server.store.recover_claims(recovered_at, true, 10).await.unwrap();
    let report = server.audit(&id, "").await;
    assert_eq!((&report["sends"], &report["unknown_sends_total"]), (&json!(2), &json!(1)));
    let named = json!([{
        "delivery_id": claimed[1].claim.delivery_id.to_string(), "number": 1, "latest_at": recovered_at.to_string()
    }]);
    assert_eq!(report["unknown_sends"], named);
}

#[tokio::test]
async fn without_a_range_the_last_day_is_judged() {
    let server = Server::start().await;
    let (id, claimed) = server.claimed(limits(&[(10, "second")]), 3).await;
    server.record_sends(&claimed[..2], Duration::from_secs(1)).await;
    server.clock.advance(Duration::from_secs(24 * 60 * 60));
    server.record_sends(&claimed[2..], Duration::from_secs(1)).await;
    let report = server.audit(&id, "").await;
    assert_eq!(
        (&report["sends"], &report["from"], &report["to"]),
        (&json!(1), &json!("2026-11-21T07:30:03.000Z"), &Value::Null)
    );
    assert_eq!(server.audit(&id, "?from=2026-11-21T07:00:00Z").await["sends"], 3);
    let day_before = server.audit(&id, "?to=2026-11-22T07:30:00Z").await;
    assert_eq!((&day_before["sends"], &day_before["from"]), (&json!(2), &json!("2026-11-21T07:30:00.000Z")));
    let empty = server.audit(&id, "?from=2026-11-23T00:00:00Z&to=2026-11-21T00:00:00Z").await;
    assert_eq!((&empty["sends"], &empty["series"]), (&json!(0), &Value::Null), "`to` is before `from`");
}

#[tokio::test]
async fn an_audit_reads_as_many_pages_as_there_are() {
    let server = Server::start().await;
    let (id, claimed) = server.claimed(limits(&[(1_000_000, "second")]), 5_001).await;
    server.record_sends(&claimed, Duration::from_millis(1)).await;
    let report = server.audit(&id, "").await;
    assert_eq!(report["sends"], 5_001);
    let counts = report["series"]["counts"].as_array().unwrap();
    assert_eq!(counts.iter().map(|count| count.as_u64().unwrap()).sum::<u64>(), 5_001);
}
