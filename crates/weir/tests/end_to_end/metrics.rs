//! The values of metrics, and their listener.

use std::time::Duration;

use serde_json::json;

use crate::support::{self, App, Fleet, Receiver};

const SOON: Duration = Duration::from_secs(10);

/// Waits until a metric has an expected value.
async fn wait_for(app: &App, name: &str, is_expected: impl Fn(f64) -> bool) {
    let waited = tokio::time::timeout(SOON, async {
        while !is_expected(app.metric(name).await) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(waited.await.is_ok(), "{name} stays at {}", app.metric(name).await);
}

#[tokio::test]
async fn metrics_use_their_own_listener_when_one_is_configured() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [("WEIR_METRICS_LISTEN", "127.0.0.1:0"), ("WEIR_API_KEYS", "secret")];
    let app = App::start_with(folder.path(), &settings).await;
    let metrics = app.metrics_url.clone().expect("the server prints the URL");
    let get = async |url: String| app.http.get(url).send().await.unwrap();

    assert_eq!(get(format!("{}/metrics", app.url)).await.status(), 404, "metrics are not on the public listener");
    let answer = get(metrics.clone()).await;
    assert_eq!(answer.status(), 200, "without a key");
    let text = answer.text().await.unwrap();
    assert!(text.contains("weir_build_info{version=\"0.1.0\",role=\"serve\"} 1"), "{text}");
    let compressed = app.http.get(&metrics).header("accept-encoding", "gzip").send().await.unwrap();
    assert_eq!(compressed.headers()["content-encoding"], "gzip");
    let compressed = compressed.bytes().await.unwrap();
    assert!(compressed.starts_with(&[0x1f, 0x8b]) && compressed.len() * 4 < text.len(), "{}", compressed.len());
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/v1/destinations", 404), ("/docs", 404)] {
        assert_eq!(get(metrics.replace("/metrics", path)).await.status(), status, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_queue_is_reported_and_nothing_else_changes() {
    let mut fleet = Fleet::new().await;
    let scheduler = fleet.launch("scheduler").await;
    wait_for(&scheduler, "weir_queue_up", |up| up == 1.0).await;
    fleet.redis.kill().await.unwrap();
    wait_for(&scheduler, "weir_queue_up", |up| up == 0.0).await;
    assert_eq!(scheduler.metric("weir_store_up").await, 1.0);
    fleet.redis.start_again().await.unwrap();
    wait_for(&scheduler, "weir_queue_up", |up| up == 1.0).await;
}

/// These tests judge times.
mod timed {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn permits_that_no_worker_takes_are_counted_and_their_start_lag_is_recorded() {
        let fleet = Fleet::new().await;
        let (api, scheduler) = (fleet.launch("api").await, fleet.launch("scheduler").await);
        let receiver = Receiver::start().await;
        api.destination(json!({"url": receiver.url("/late"), "event_types": ["late"]})).await;
        api.events("late", 12).await;
        wait_for(&scheduler, "weir_delivery_queue_depth", |depth| depth == 12.0).await;
        wait_for(&scheduler, "weir_delivery_queue_oldest_seconds", |seconds| seconds > 1.0).await;
        wait_for(&scheduler, "weir_backlog_deliveries", |waiting| waiting == 0.0).await;

        let worker = fleet.launch("worker").await;
        receiver.wait_for("/late", 12, SOON).await;
        wait_for(&scheduler, "weir_delivery_queue_depth", |depth| depth == 0.0).await;
        assert_eq!(scheduler.metric("weir_delivery_queue_oldest_seconds").await, 0.0);
        wait_for(&worker, "weir_start_lag_seconds_count", |starts| starts == 12.0).await;
        let lag = worker.metric("weir_start_lag_seconds_sum").await / 12.0;
        assert!((1.0..30.0).contains(&lag), "each waited for a worker, {lag} s on the average");
        assert_eq!(worker.metric("weir_delivery_queue_depth").await, 0.0, "only schedulers report the queue");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn permits_that_a_full_worker_cannot_take_stay_in_the_queue_and_are_counted() {
        let fleet = Fleet::new().await;
        let (api, scheduler) = (fleet.launch("api").await, fleet.launch("scheduler").await);
        let worker = fleet.launch_with("worker", &[("WEIR_WORKER_CAPACITY", "16")]).await;
        let receiver = Receiver::start().await;
        receiver.script("/hot", [support::Answer::status(200).after(Duration::from_millis(100))]);
        let settings = json!({"url": receiver.url("/hot"), "event_types": ["hot"], "max_in_flight": 1_000});
        api.destination(settings).await;
        api.events("hot", 600).await;
        receiver.wait_for("/hot", 60, SOON).await;

        // Answers are quick, so permits without a place wait in the worker and are not handed back.
        let crowded_out = worker.metric("weir_permits_crowded_out_total").await;
        receiver.wait_for("/hot", 300, SOON).await;
        assert_eq!(worker.metric("weir_permits_crowded_out_total").await, crowded_out);
        let depth = scheduler.metric("weir_delivery_queue_depth").await;
        assert!(depth > 100.0, "300 have arrived, and {depth} of the others are in the queue");
        assert!(scheduler.metric("weir_delivery_queue_oldest_seconds").await > 0.5);
        // One destination takes half of the places, with a gap between two attempts.
        let busy = worker.metric("weir_worker_busy_ratio").await;
        assert!((0.4..=1.0).contains(&busy), "{busy}");
        receiver.wait_for("/hot", 600, Duration::from_secs(30)).await;
        wait_for(&scheduler, "weir_delivery_queue_depth", |depth| depth == 0.0).await;
        let lag = worker.metric("weir_start_lag_seconds_sum").await / 600.0;
        assert!(lag > 0.5, "most waited for a place for seconds: {lag} s on the average");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn waiting_for_a_limit_or_a_slow_answer_is_not_lag_and_gauges_return_to_zero() {
        let fleet = Fleet::new().await;
        let app = fleet.launch("serve").await;
        let receiver = Receiver::start().await;
        receiver.script("/slow", [support::Answer::status(200).after(Duration::from_millis(700))]);
        for path in ["/limited", "/slow"] {
            let limits = if path == "/limited" { json!([{"limit": 10, "period": "second"}]) } else { json!([]) };
            app.destination(json!({"url": receiver.url(path), "event_types": ["both"], "rate_limits": limits})).await;
        }
        app.events("both", 30).await;
        receiver.wait_for("/slow", 30, SOON).await;
        wait_for(&app, "weir_attempts_under_way", |under_way| under_way > 0.0).await;
        receiver.wait_for("/limited", 30, SOON).await;

        // The last request has arrived, but the worker may not have its answer yet. The gauges may already be zero.
        wait_for(&app, "weir_start_lag_seconds_count", |starts| starts == 60.0).await;
        wait_for(&app, "weir_deliveries_total", |delivered| delivered == 60.0).await;
        wait_for(&app, "weir_attempts_under_way", |under_way| under_way == 0.0).await;
        wait_for(&app, "weir_in_flight_sends", |in_flight| in_flight == 0.0).await;
        let lag = app.metric("weir_start_lag_seconds_sum").await / 60.0;
        assert!(lag < 0.2, "waiting for the limit does not count as lag: {lag} s on the average");
        assert!(app.metric("weir_worker_busy_ratio").await <= 1.0);
    }
}
