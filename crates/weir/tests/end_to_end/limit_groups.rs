//! Destinations that share a limit group: no window of theirs together holds more than its limit, also across kills, the
//! loss of Redis and moves. Judged by what arrives at the receiver, on the embedded and the scaled set-up.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{App, Fleet, Receiver, assert_cap_with};

const SECOND: Duration = Duration::from_secs(1);
/// Requests may reach a busy receiver late. The recorded starts are judged without slack.
const LATE: Duration = Duration::from_millis(500);

async fn group(app: &App, limit: u32) -> String {
    let body = json!({"name": format!("{limit} a second"), "rate_limits": [{"limit": limit, "period": "second"}]});
    let (status, body) = app.request(Method::POST, "/v1/limit-groups", Some(body)).await;
    assert_eq!(status, 201, "{body}");
    body["id"].as_str().unwrap().to_owned()
}

async fn member(app: &App, receiver: &Receiver, path: &str, group: &str) -> String {
    let settings = json!({
        "url": receiver.url(path), "event_types": ["shared"], "rate_limits": [], "limit_group": group,
    });
    app.destination(settings).await
}

async fn assert_group_audit_clean(app: &App, group: &str) {
    let audit = app.get(&format!("/v1/limit-groups/{group}/audit")).await;
    let limits = audit["rate_limits"].as_array().unwrap();
    assert!(!limits.is_empty() && limits.iter().all(|limit| limit["violations"] == 0), "{audit}");
}

async fn members_share_a_limit(start: impl AsyncFn() -> App, lose: impl AsyncFn()) {
    let receiver = Receiver::start().await;
    let app = start().await;
    let shared = group(&app, 20).await;
    let one = member(&app, &receiver, "/one", &shared).await;
    let two = member(&app, &receiver, "/two", &shared).await;
    app.events("shared", 100).await;
    // Both have a backlog, and neither waits for the other.
    receiver.wait_for("/one", 30, SECOND * 20).await;
    let counts = [receiver.count("/one"), receiver.count("/two")];
    assert!(counts[1].abs_diff(counts[0]) <= 8, "equal shares: {counts:?}");
    app.kill().await;
    lose().await;
    let app = start().await;
    receiver.wait_for("/two", 60, SECOND * 60).await;
    // One of them moves while both wait, and then leaves.
    let other = group(&app, 30).await;
    let settings = |group: Value| json!({"limit_group": group});
    app.patch(&two, settings(json!(other))).await;
    receiver.wait_for("/two", 80, SECOND * 60).await;
    app.patch(&two, settings(Value::Null)).await;
    for id in [&one, &two] {
        app.drained(id, SECOND * 90).await;
    }
    for id in [&shared, &other] {
        assert_group_audit_clean(&app, id).await;
    }
    assert_cap_with(LATE, &receiver.arrivals("/one"), 20, SECOND);
    let mut both = receiver.arrivals("/one");
    both.truncate(30);
    both.extend(receiver.arrivals("/two").into_iter().take(30));
    assert_cap_with(LATE, &both, 20, SECOND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_a_limit_across_kills_and_moves() {
    let folder = tempfile::tempdir().unwrap();
    members_share_a_limit(async || App::start(folder.path()).await, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_a_limit_across_kills_moves_and_flushes_at_scale() {
    let fleet = Fleet::new().await;
    let lose = async || drop(fleet.redis.ask("FLUSHALL").await);
    members_share_a_limit(async || fleet.launch("serve").await, lose).await;
}
