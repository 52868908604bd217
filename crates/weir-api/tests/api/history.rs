//! The history and the health of a destination.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::{Clock as _, outcome::Verdict};

use crate::{audit::limits, harness::Server};

const URL: &str = "https://example.com/hooks";

impl Server {
    async fn history(&self, id: &str, query: &str) -> Value {
        self.get(&format!("/v1/destinations/{id}/history{query}")).await.expect(StatusCode::OK)
    }

    async fn health(&self, id: &str, query: &str) -> Value {
        self.get(&format!("/v1/destinations/{id}/health{query}")).await.expect(StatusCode::OK)
    }

    /// The errors of a refused request, by their pointers.
    async fn refused_at(&self, path: &str) -> String {
        let problem = self.get(path).await.problem(422);
        problem["errors"][0]["pointer"].as_str().unwrap().to_owned()
    }
}

/// The values of one field in all buckets.
fn values(history: &Value, field: &str) -> Vec<u64> {
    history["data"].as_array().unwrap().iter().map(|bucket| bucket[field].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn every_bucket_of_the_range_is_present() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL})).await;
    server.clock.advance(Duration::from_secs(5));
    let history = server.history(&id, "").await;
    assert_eq!(history["step"], "10s");
    assert_eq!(
        (&history["from"], &history["to"]),
        (&json!("2026-11-21T07:15:10.000Z"), &json!("2026-11-21T07:30:10.000Z"))
    );
    assert_eq!(values(&history, "sends"), [0; 90]);
    let first = json!({
        "at": "2026-11-21T07:15:10.000Z", "sends": 0, "delivered": 0, "failed": 0, "arrivals": 0, "backlog": 0,
        "max_window": [], "errors": [],
    });
    assert_eq!(history["data"][0], first);
    assert_eq!(server.history(&id, "?step=1h&from=2026-11-21T00:30:00Z").await["data"].as_array().unwrap().len(), 8);
}

#[tokio::test]
async fn the_history_has_sends_arrivals_and_the_backlog_at_the_end_of_each_bucket() {
    let server = Server::start().await;
    let (id, claimed) = server.claimed(limits(&[(60, "minute")]), 6).await;
    server.clock.advance(Duration::from_secs(10));
    server.record_sends(&claimed[..4], Duration::from_secs(5)).await;
    server.store.release(claimed[4..].iter().map(|claimed| claimed.claim).collect(), server.clock.now()).await.unwrap();
    for folded in [false, true] {
        let history = server.history(&id, "?from=2026-11-21T07:30:00Z").await;
        assert_eq!(values(&history, "arrivals"), [6, 0, 0, 0], "folded: {folded}");
        assert_eq!(values(&history, "sends"), [0, 2, 2, 0]);
        assert_eq!(values(&history, "delivered"), [0, 2, 2, 0]);
        assert_eq!(values(&history, "failed"), [0, 0, 0, 0]);
        // All six deliveries were claimed in the first bucket. Two of them were released in the last bucket and wait
        // again.
        assert_eq!(values(&history, "backlog"), [0, 0, 0, 2]);
        let minute = json!([{"period": "minute", "sends": 4, "limit": 60}]);
        assert_eq!(history["data"][2]["max_window"], minute);
        let minute = json!([{"at": "2026-11-21T07:30:00.000Z", "step_s": 60, "p50": 11.7, "p95": 11.7}]);
        assert_eq!(history["latencies"], minute);
        server.store.fold_changes().await.unwrap();
    }
    let before = server.history(&id, "?from=2026-11-21T07:30:00Z&to=2026-11-21T07:30:30Z").await;
    assert_eq!(values(&before, "backlog"), [0, 0, 0], "the backlog of the past");
    let minutes = server.history(&id, "?from=2026-11-21T07:30:00Z&step=1m").await;
    assert_eq!((values(&minutes, "sends"), values(&minutes, "backlog")), (vec![4], vec![2]));
}

#[tokio::test]
async fn the_fullest_window_may_begin_before_its_bucket_and_is_the_same_at_every_step() {
    let server = Server::start().await;
    let (id, claimed) = server.claimed(limits(&[(3, "second"), (20, "minute")]), 12).await;
    // Two sends a second, from 4 s to 9.5 s.
    server.clock.advance(Duration::from_millis(4_000));
    server.record_sends(&claimed, Duration::from_millis(500)).await;
    let windows = |bucket: &Value| {
        let windows = bucket["max_window"].as_array().unwrap();
        windows.iter().map(|window| (window["sends"].as_u64().unwrap(), window["limit"].as_u64().unwrap())).collect()
    };
    let tens = server.history(&id, "?from=2026-11-21T07:30:00Z&to=2026-11-21T07:30:10Z").await;
    let of_tens: Vec<Vec<(u64, u64)>> = tens["data"].as_array().unwrap().iter().map(windows).collect();
    assert_eq!(of_tens, [[(2, 3), (12, 20)]]);
    server.clock.advance(Duration::from_secs(40));
    let minute = server.history(&id, "?from=2026-11-21T07:30:00Z&step=1m").await;
    let of_minute: Vec<Vec<(u64, u64)>> = minute["data"].as_array().unwrap().iter().map(windows).collect();
    assert_eq!(of_minute, [[(2, 3), (12, 20)]]);
    assert_eq!(minute["windows_left_out"], json!([]));
    let later = server.history(&id, "?from=2026-11-21T07:30:40Z").await;
    assert_eq!(windows(&later["data"][0]), [(0, 3), (12, 20)], "the minute that ends here began before the range");
}

#[tokio::test]
async fn the_windows_of_a_limit_in_costs_hold_costs() {
    let server = Server::start().await;
    let limits = json!([{"limit": 9, "period": "second"}, {"limit": 60, "period": "minute", "unit": "cost"}]);
    let event = json!({"type": "video.created", "data": 1, "cost": 7});
    let (id, claimed) = server.claimed_of(limits, event, 3).await;
    server.record_sends(&claimed, Duration::from_secs(1)).await;
    let history = server.history(&id, "?from=2026-11-21T07:30:00Z").await;
    let expected = json!([
        {"period": "second", "sends": 1, "limit": 9}, {"period": "minute", "unit": "cost", "sends": 21, "limit": 60},
    ]);
    assert_eq!(history["data"][0]["max_window"], expected);
}

#[tokio::test]
async fn the_history_has_the_limits_of_the_range_and_their_changes() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL, "rate_limits": limits(&[(5, "second")])})).await;
    server.clock.advance(Duration::from_secs(60));
    server.edit_limits(&id, limits(&[(7, "second")])).await;
    server.clock.advance(Duration::from_secs(60));
    server.edit_limits(&id, limits(&[])).await;
    let changes = |history: Value| -> Vec<(String, u64)> {
        let changes = history["limit_changes"].as_array().unwrap().iter();
        let of = |change: &Value| {
            (change["at"].as_str().unwrap()[11..19].to_owned(), change["rate_limits"][0]["limit"].as_u64())
        };
        changes.map(of).map(|(at, limit)| (at, limit.unwrap_or_default())).collect()
    };
    let shown = |at: &str, limit| (at.to_owned(), limit);
    let all = changes(server.history(&id, "").await);
    assert_eq!(all, [shown("07:30:00", 5), shown("07:31:00", 7), shown("07:32:00", 0)]);
    let middle = changes(server.history(&id, "?from=2026-11-21T07:30:30Z&to=2026-11-21T07:31:30Z").await);
    assert_eq!(middle, [shown("07:30:00", 5), shown("07:31:00", 7)], "the first applied at the beginning");
}

#[tokio::test]
async fn a_range_that_is_too_long_or_too_old_for_its_step_takes_a_longer_one() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL})).await;
    let path = format!("/v1/destinations/{id}/history");
    let of = async |query: &str| {
        let history = server.history(&id, query).await;
        (history["step"].as_str().unwrap().to_owned(), history["data"].as_array().unwrap().len())
    };
    assert_eq!(of("?from=2026-11-21T00:00:00Z").await, ("1m".to_owned(), 451));
    assert_eq!(of("?from=2026-11-20T07:00:00Z&to=2026-11-20T07:10:00Z").await, ("1m".to_owned(), 10));
    assert_eq!(of("?from=2026-10-22T07:30:00Z&step=10s").await, ("1h".to_owned(), 721), "30 days");
    assert_eq!(server.refused_at(&format!("{path}?from=2026-09-01T00:00:00Z")).await, "/from");
    assert_eq!(server.refused_at(&format!("{path}?step=5s")).await, "/step");
}

#[tokio::test]
async fn health_shows_how_the_attempts_of_a_window_went() {
    let server = Server::start().await;
    let (id, claimed) = server.claimed(limits(&[]), 4).await;
    server.record_sends(&claimed[..3], Duration::from_secs(1)).await;
    server.settle(&claimed[3], 503, Verdict::Dead).await;
    let health = server.health(&id, "").await;
    assert_eq!((&health["window"], &health["success_ratio"]), (&json!("1h"), &json!(0.75)));
    assert_eq!(health["attempts"], json!([{"number": 1, "deliveries": 3}]));
    let figures = ["attempts_made", "delivered", "failed", "dead"].map(|field| health[field].as_u64().unwrap());
    assert_eq!(figures, [4, 3, 1, 1]);
    assert_eq!(health["last_success_at"], "2026-11-21T07:30:02.012Z");
    for percentile in ["p50", "p95", "p99"] {
        let shown = health["latency_ms"][percentile].as_f64().unwrap();
        assert!((shown - 12.0).abs() / 12.0 < 0.1, "{percentile}: {shown}");
    }
    // Two hours later only the last day has attempts.
    server.clock.advance(Duration::from_secs(7_200));
    let hour = server.health(&id, "?window=1h").await;
    assert_eq!((&hour["success_ratio"], &hour["latency_ms"]["p50"]), (&Value::Null, &Value::Null));
    assert_eq!(hour["last_success_at"], health["last_success_at"]);
    for window in ["24h", "7d"] {
        assert_eq!(server.health(&id, &format!("?window={window}")).await["attempts_made"], 4);
    }
    assert_eq!(server.refused_at(&format!("/v1/destinations/{id}/health?window=2h")).await, "/window");
}
