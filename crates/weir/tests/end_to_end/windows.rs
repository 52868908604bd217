//! Limits of the window shape: their sends need not be even, and no window holds more than the limit, also across kills
//! and the loss of Redis. Judged by what arrives at the receiver, on the embedded and the scaled set-up.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use crate::support::{App, Arrival, Fleet, Receiver, assert_cap, assert_cap_with, now};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Half of a window's sends, the death of the process, and more events than the other half takes.
async fn a_window_is_kept_and_used_across_kills(start: impl AsyncFn() -> App, lose: impl AsyncFn()) {
    let receiver = Receiver::start().await;
    let app = start().await;
    let id = app
        .destination(json!({
            "url": receiver.url("/window"), "event_types": ["window"],
            "rate_limits": [{"limit": 40, "window_s": 30, "shape": "window"}],
        }))
        .await;
    app.events("window", 20).await;
    app.drained(&id, SECOND * 30).await;
    app.kill().await;
    lose().await;
    let app = start().await;
    app.events("window", 30).await;
    // The records say that half of the window is left, so nothing waits for its end.
    receiver.wait_for("/window", 40, SECOND * 22).await;
    app.kill().await;
    lose().await;
    let app = start().await;
    app.drained(&id, MINUTE * 3).await;
    // Forty requests at once may reach a busy receiver late; the recorded starts are judged without slack.
    assert_cap_with(SECOND, &receiver.arrivals("/window"), 40, SECOND * 30);
    app.assert_audit_clean(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_holds_its_limit_across_kills() {
    let folder = tempfile::tempdir().unwrap();
    a_window_is_kept_and_used_across_kills(async || App::start(folder.path()).await, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_holds_its_limit_across_kills_and_flushes_at_scale() {
    let fleet = Fleet::new().await;
    let lose = async || drop(fleet.redis.ask("FLUSHALL").await);
    a_window_is_kept_and_used_across_kills(async || fleet.launch("serve").await, lose).await;
}

/// A window is used up, an override replaces its limit for two seconds, and the process dies meanwhile. When the limit is
/// back it counts what it has let through. The limit is that of the destination, or of its group.
async fn a_window_is_kept_across_an_override(start: impl AsyncFn() -> App, lose: impl AsyncFn(), of_group: bool) {
    const WINDOW: Duration = Duration::from_secs(10);
    let (receiver, app) = (Receiver::start().await, start().await);
    let limits = json!([{"limit": 20, "window_s": 10, "shape": "window"}]);
    let mut settings = json!({"url": receiver.url("/window"), "event_types": ["window"]});
    let group = if of_group {
        let body = json!({"name": "account", "rate_limits": limits});
        let (status, group) = app.request(Method::POST, "/v1/limit-groups", Some(body)).await;
        assert_eq!(status, 201, "{group}");
        settings["limit_group"] = group["id"].clone();
        group["id"].as_str().map(|group| format!("/v1/limit-groups/{group}"))
    } else {
        settings["rate_limits"] = limits;
        None
    };
    let id = app.destination(settings).await;
    app.events("window", 36).await;
    let first = receiver.wait_for("/window", 20, SECOND * 20).await;
    let overridden = group.unwrap_or_else(|| format!("/v1/destinations/{id}")) + "/override";
    let lower = json!({"rate_limits": [{"limit": 2, "period": "second"}], "for_s": 2, "reason": "incident"});
    let (status, answer) = app.request(Method::POST, &overridden, Some(lower)).await;
    assert_eq!(status, 200, "{answer}");
    let over = now() + SECOND * 2;
    app.kill().await;
    lose().await;
    let app = start().await;
    app.drained(&id, MINUTE).await;
    let arrivals = receiver.arrivals("/window");
    let early = |arrival: &&Arrival| {
        let after = arrival.at.duration_since(first[0].at);
        arrival.at > over + SECOND / 2 && after < WINDOW - SECOND / 5
    };
    let early: Vec<_> = arrivals.iter().filter(early).map(|arrival| arrival.at.duration_since(first[0].at)).collect();
    assert!(early.is_empty(), "the window was used up, and these came after {early:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_counts_what_was_sent_before_an_override() {
    for of_group in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        a_window_is_kept_across_an_override(async || App::start(folder.path()).await, async || (), of_group).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_counts_what_was_sent_before_an_override_at_scale() {
    for of_group in [false, true] {
        let fleet = Fleet::new().await;
        let lose = async || drop(fleet.redis.ask("FLUSHALL").await);
        a_window_is_kept_across_an_override(async || fleet.launch("serve").await, lose, of_group).await;
    }
}

/// These tests judge how fast a backlog is sent.
mod timed {
    use super::*;

    /// Under 300 a minute alone, evenly, the last of them would leave after 19.8 s.
    async fn a_window_beside_a_limit_per_second_does_not_slow_it_down(app: &App) {
        let receiver = Receiver::start().await;
        let limits = json!([
            {"limit": 10, "period": "second"}, {"limit": 300, "period": "minute", "shape": "window"},
        ]);
        let settings = json!({"url": receiver.url("/both"), "event_types": ["both"], "rate_limits": limits});
        let id = app.destination(settings).await;
        app.events("both", 100).await;
        let arrivals = receiver.wait_for("/both", 100, MINUTE).await;
        let took = arrivals[99].at.duration_since(arrivals[0].at);
        assert!(took < SECOND * 17, "{took:?}");
        assert_cap(&arrivals, 10, SECOND);
        app.assert_audit_clean(&id).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_hundred_events_leave_in_ten_seconds() {
        let folder = tempfile::tempdir().unwrap();
        a_window_beside_a_limit_per_second_does_not_slow_it_down(&App::start(folder.path()).await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_hundred_events_leave_in_ten_seconds_at_scale() {
        let fleet = Fleet::new().await;
        a_window_beside_a_limit_per_second_does_not_slow_it_down(&fleet.launch("serve").await).await;
    }
}
