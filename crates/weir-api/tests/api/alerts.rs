//! The alert thresholds.

use std::{collections::BTreeSet, sync::Arc};

use http::StatusCode;
use serde_json::json;

use crate::harness::{Server, json_request};

const ALERTS: &str = "/v1/alerts";

#[tokio::test]
async fn thresholds_are_the_defaults_until_they_are_set() {
    let server = Server::start().await;
    let defaults = json!({"backlog_depth": null, "oldest_age_s": null, "drain_beyond_ttl": true, "dead_letters": 1});
    assert_eq!(server.get(ALERTS).await.expect(StatusCode::OK), defaults);
    for (body, expected) in [
        (
            json!({"backlog_depth": 1_000, "drain_beyond_ttl": false, "dead_letters": null}),
            json!({"backlog_depth": 1_000, "oldest_age_s": null, "drain_beyond_ttl": false, "dead_letters": null}),
        ),
        (
            json!({"oldest_age_s": 60}),
            json!({"backlog_depth": null, "oldest_age_s": 60, "drain_beyond_ttl": true, "dead_letters": 1}),
        ),
        (json!({}), defaults.clone()),
    ] {
        let set = server.send(json_request("PUT", ALERTS, &body)).await.expect(StatusCode::OK);
        assert_eq!(set, expected, "{body}");
        assert_eq!(server.get(ALERTS).await.expect(StatusCode::OK), expected);
    }
}

#[tokio::test]
async fn invalid_thresholds_are_refused_by_name_and_nothing_changes() {
    let server = Server::start().await;
    let kept = json!({"backlog_depth": 5, "oldest_age_s": 6, "drain_beyond_ttl": false, "dead_letters": 7});
    server.send(json_request("PUT", ALERTS, &kept)).await.expect(StatusCode::OK);
    for (body, pointers) in [
        (json!({"backlog_depth": 0}), vec!["/backlog_depth"]),
        (json!({"backlog_depth": 1_000_000_001_u64, "dead_letters": 0}), vec!["/backlog_depth", "/dead_letters"]),
        (json!({"oldest_age_s": 31_536_001, "drain_beyond_ttl": "yes"}), vec!["/oldest_age_s", "/drain_beyond_ttl"]),
        (json!({"backlog_depth": 9, "depth": 1}), vec!["/depth"]),
        (json!([]), vec![""]),
    ] {
        let reply = server.send(json_request("PUT", ALERTS, &body)).await;
        reply.problem(422);
        assert_eq!(reply.pointers(), pointers, "{body}");
    }
    server.send(json_request("PUT", ALERTS, "{")).await.problem(400);
    server.get("/v1/alerts?tenant=a").await.problem(422);
    assert_eq!(server.get(ALERTS).await.expect(StatusCode::OK), kept);
}

#[tokio::test]
async fn a_destination_has_its_own_thresholds_until_they_are_removed() {
    let server = Server::start().await;
    let body = json!({"url": "https://example.com/", "alerts": {"backlog_depth": 9, "dead_letters": null}});
    let path = format!("/v1/destinations/{}", server.destination(body).await);
    let created = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!(created["alerts"], json!({"backlog_depth": 9, "dead_letters": null}));
    for (patch, expected) in [
        (json!({"name": "other"}), json!({"backlog_depth": 9, "dead_letters": null})),
        (
            json!({"alerts": {"oldest_age_s": 60}}),
            json!({"backlog_depth": 9, "oldest_age_s": 60, "dead_letters": null}),
        ),
        (
            json!({"alerts": {"backlog_depth": null}}),
            json!({"backlog_depth": null, "oldest_age_s": 60, "dead_letters": null}),
        ),
        (json!({"alerts": null}), json!({})),
    ] {
        let patched = server.patch(&path, &patch).await.expect(StatusCode::OK);
        assert_eq!(patched["alerts"], expected, "{patch}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_are_recorded_one_after_the_other() {
    let server = Arc::new(Server::start().await);
    let changes: Vec<_> = (1..=20)
        .map(|depth| {
            let server = Arc::clone(&server);
            tokio::spawn(async move { server.send(json_request("PUT", ALERTS, json!({"backlog_depth": depth}))).await })
        })
        .collect();
    for change in changes {
        change.await.unwrap().expect(StatusCode::OK);
    }
    let listed = server.get("/v1/activity").await.expect(StatusCode::OK);
    let rows = listed["data"].as_array().unwrap();
    let values =
        |field: &str| -> BTreeSet<String> { rows.iter().map(|row| row[field]["backlog_depth"].to_string()).collect() };
    // Each value is replaced once: the first is the default, and the last is the current one.
    let (before, after) = (values("before"), values("after"));
    assert_eq!((rows.len(), before.len(), after.len()), (20, 20, 20), "{listed}");
    let current = server.get(ALERTS).await.expect(StatusCode::OK)["backlog_depth"].to_string();
    assert_eq!(after.difference(&before).collect::<Vec<_>>(), [&current]);
}
