//! The figures of limit keys: what each waits for, its backlog, its audit, and what its destination says of it.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::{Clock as _, Timestamp};

use crate::{
    harness::Server,
    limit_keys::{URL, per_second},
};

#[tokio::test]
async fn a_delivery_of_a_paused_key_or_destination_says_so_without_a_time() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    for key in ["a", "a", "b"] {
        server.event_of(&id, json!({"limit_key": key})).await;
    }
    let path = format!("/v1/destinations/{id}");
    server.post(&format!("{path}/keys/a/pause"), json!({})).await.expect(StatusCode::OK);
    let reasons = async || {
        let list = server.get(&format!("/v1/deliveries?destination={id}&order=oldest")).await.expect(StatusCode::OK);
        let of = |row: &Value| {
            let has_time = row["waits_for"]["reason"] == "turn";
            assert_eq!(
                (row["waits_for"]["ahead"].is_null(), row["expected_at"].is_null()),
                (!has_time, !has_time),
                "{row}"
            );
            row["waits_for"]["reason"].as_str().unwrap().to_owned()
        };
        list["data"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(reasons().await, ["key", "key", "turn"]);
    server.patch(&path, json!({"paused": true})).await.expect(StatusCode::OK);
    assert_eq!(reasons().await, ["pause"; 3]);
}

#[tokio::test]
async fn a_delivery_of_a_key_is_expected_when_those_ahead_of_it_in_its_key_are_sent() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    for key in ["a", "a", "b", "a", "a"] {
        server.event_of(&id, json!({"limit_key": key})).await;
    }
    let path = format!("/v1/destinations/{id}");
    // The key, how many are ahead, and the time until it is expected, in steps of 10 ms.
    let waiting = async || {
        let now = server.clock.now();
        let list = server.get(&format!("/v1/deliveries?destination={id}&order=oldest")).await.expect(StatusCode::OK);
        let of = |row: &Value| {
            let at: Timestamp = row["expected_at"].as_str().unwrap_or_else(|| panic!("{row}")).parse().unwrap();
            assert!(at >= now, "{row}");
            let ahead = row["waits_for"]["ahead"]["value"].as_u64();
            (row["limit_key"].as_str().unwrap().to_owned(), ahead, (at.since(now).as_millis() + 5) / 10 * 10)
        };
        list["data"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    // Each key may send twice a second.
    let row = |key: &str, ahead, ms| (key.to_owned(), Some(ahead), ms);
    let expected: [(&str, u64); 5] = [("a", 0), ("a", 1), ("b", 0), ("a", 2), ("a", 3)];
    let of_share = expected.map(|(key, ahead)| row(key, ahead, 500 * (u128::from(ahead) + 1)));
    assert_eq!(waiting().await, of_share);
    // Where all keys together may send 1/s, whose slots are 1.01 s apart, each has half of it.
    server.patch(&path, json!({"rate_limits": per_second(1)})).await.expect(StatusCode::OK);
    assert_eq!(waiting().await, expected.map(|(key, ahead)| row(key, ahead, 2_020 * (u128::from(ahead) + 1))));
    // A hold comes first.
    let hold = json!({"for_s": 60, "reason": "maintenance"});
    server.post(&format!("{path}/hold"), hold).await.expect(StatusCode::OK);
    let held = expected.map(|(key, ahead)| (key.to_owned(), None, 60_000 + 2_020 * (u128::from(ahead) + 1)));
    assert_eq!(waiting().await, held);
}

#[tokio::test]
async fn a_member_of_a_group_that_its_keys_bind_leaves_the_rest_of_the_group_to_others() {
    let server = Server::start().await;
    let group = json!({"name": "partner", "rate_limits": per_second(20)});
    let group = server.post("/v1/limit-groups", group).await.expect(StatusCode::CREATED)["id"].clone();
    let keys = json!({"key": "/customer/id", "rate_limits": per_second(2)});
    let keyed = server.destination(json!({"url": URL, "limit_group": group, "key_limits": keys})).await;
    let plain = server.destination(json!({"url": URL, "limit_group": group})).await;
    for number in 0..20 {
        server.event_of(&keyed, json!({"limit_key": if number % 2 == 0 { "a" } else { "b" }})).await;
        server.event_of(&plain, json!({})).await;
    }
    let overview = format!("/v1/limit-groups/{}/overview", group.as_str().unwrap());
    let shown = server.get(&overview).await.expect(StatusCode::OK);
    let member = |id: &str| shown["data"].as_array().unwrap().iter().find(|one| one["id"] == id).unwrap();
    let of = |id: &str| (member(id)["reason"].clone(), member(id)["share_per_s"].as_f64().unwrap());
    // Two keys of two a second each: half of the group would be ten.
    assert_eq!(of(&keyed), (json!("key"), 4.0));
    let (reason, share) = of(&plain);
    assert_eq!(reason, "group");
    assert!((share - 16.0).abs() < 0.5, "{shown}");
}

#[tokio::test]
async fn the_keys_of_a_destination_that_stands_say_so() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    let path = format!("/v1/destinations/{id}");
    server.event_of(&id, json!({"limit_key": "a"})).await;
    let bound = async || {
        let rows = server.keys_of(&id, "").await;
        (rows[0]["binding"].clone(), rows[0]["share_per_s"].clone(), rows[0]["drain_eta_s"].clone())
    };
    assert_eq!(bound().await, (json!("key"), json!(2.0), json!(0.5)));
    let hold = json!({"for_s": 60, "reason": "maintenance"});
    server.post(&format!("{path}/hold"), hold).await.expect(StatusCode::OK);
    assert_eq!(bound().await, (json!("destination_held"), json!(0.0), Value::Null));
    server.patch(&path, json!({"paused": true})).await.expect(StatusCode::OK);
    assert_eq!(bound().await, (json!("destination_paused"), json!(0.0), Value::Null));
    server.post(&format!("{path}/keys/a/pause"), json!({})).await.expect(StatusCode::OK);
    assert_eq!(bound().await, (json!("paused"), json!(0.0), Value::Null));
}

#[tokio::test]
async fn the_backlog_of_one_key_agrees_with_its_row() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    let backlog = format!("/v1/destinations/{id}/backlog");
    for (key, count) in [("a b", 3), ("", 2), ("c", 1)] {
        for _ in 0..count {
            server.event_of(&id, json!({"limit_key": key})).await;
        }
    }
    let shown = async |key: &str| server.get(&format!("{backlog}?key={key}")).await.expect(StatusCode::OK);
    let rows = server.keys_of(&id, "").await;
    for (key, row) in [("a%20b", &rows[0]), ("", &rows[1]), ("c", &rows[2])] {
        let backlog = shown(key).await;
        for (name, of_row) in [
            ("pending", "waiting"),
            ("limit_key", "key"),
            ("effective_per_s", "share_per_s"),
            ("configured_per_s", "configured_per_s"),
            ("binding", "binding"),
            ("drain_eta_s", "drain_eta_s"),
        ] {
            assert_eq!(backlog[name], row[of_row], "{name} of {key:?}: {backlog} {row}");
        }
        assert_eq!((&backlog["drains"], &backlog["is_partial"]), (&json!(true), &json!(false)));
        assert!(backlog["oldest_age_s"].is_number() && backlog["arrivals_per_s"].as_f64() > Some(0.0));
    }
    assert_eq!(shown("a%20b").await["drain_eta_s"], 1.5);
    let none = shown("none").await;
    assert_eq!((&none["pending"], &none["drains"], &none["oldest_age_s"]), (&json!(0), &json!(true), &Value::Null));
    assert_eq!(none.get("binding"), None);
    let whole = server.get(&backlog).await.expect(StatusCode::OK);
    assert_eq!((&whole["pending"], whole.get("limit_key")), (&json!(6), None));
    let plain = server.destination(json!({"url": URL})).await;
    assert_eq!(server.get(&format!("/v1/destinations/{plain}/backlog?key=a")).await.pointers(), ["/key"]);
    assert_eq!(server.get(&format!("/v1/destinations/{plain}/audit?key=a")).await.pointers(), ["/key"]);
}

#[tokio::test]
async fn the_audit_of_one_key_judges_its_sends_by_the_limits_that_it_had() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    let path = format!("/v1/destinations/{id}");
    let sends = async |events: &[(&str, usize)]| {
        for &(key, count) in events {
            for _ in 0..count {
                server.event_of(&id, json!({"limit_key": key})).await;
            }
        }
        server.record_sends(&server.claim(&id).await, Duration::ZERO).await;
        server.clock.advance(Duration::from_secs(10));
    };
    let edit = async |keys: Value| {
        server.patch(&path, json!({"key_limits": keys})).await.expect(StatusCode::OK);
        server.clock.advance(Duration::from_secs(1));
    };
    // Limit and violations of each row.
    let judged = async |query: &str| {
        let report = server.get(&format!("{path}/audit{query}")).await.expect(StatusCode::OK);
        let rows = report["rate_limits"].as_array().unwrap().clone();
        let row = |row: &Value| (row["limit"].as_u64().unwrap(), row["violations"].as_u64().unwrap());
        let mut rows: Vec<_> = rows.iter().map(row).collect();
        rows.sort_unstable();
        (report["sends"].as_u64().unwrap(), rows)
    };
    sends(&[("a", 3), ("b", 2)]).await;
    let at = server.clock.now();
    edit(json!({"rate_limits": per_second(4)})).await;
    sends(&[("a", 4), ("b", 5)]).await;
    edit(json!({"overrides": {"b": {"rate_limits": per_second(5)}}})).await;
    sends(&[("b", 5)]).await;
    assert_eq!(judged("?key=a").await, (7, vec![(2, 1), (4, 0)]));
    assert_eq!(judged("?key=b").await, (12, vec![(2, 0), (4, 1), (5, 0)]));
    // Edits before the range are not read, and do not matter.
    assert_eq!(judged(&format!("?key=b&from={}", at + Duration::from_secs(1))).await, (10, vec![(4, 1), (5, 0)]));
    assert_eq!(judged("?key=none").await.0, 0);
    assert_eq!(judged("").await.0, 19, "of the destination");
    server.patch(&path, json!({"key_limits": null})).await.expect(StatusCode::OK);
    assert_eq!(judged("?key=a").await, (7, vec![(2, 1), (4, 0)]), "also after its limits were removed");
}

#[tokio::test]
async fn the_overview_and_the_preview_say_that_keys_bind() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    let path = format!("/v1/destinations/{id}");
    for key in ["a", "a", "a", "b"] {
        server.event_of(&id, json!({"limit_key": key})).await;
    }
    let overview = async || {
        let row = server.get(&format!("{path}/overview")).await.expect(StatusCode::OK);
        ["reason", "effective_per_s", "drain_eta_s"].map(|name| row[name].clone())
    };
    // Two keys, each 2 per second; three wait of one of them.
    assert_eq!(overview().await, [json!("key"), json!(4.0), json!(1.5)]);
    let preview = async |body: Value| server.post(&format!("{path}/preview"), body).await.expect(StatusCode::OK);
    let twice = preview(json!({"rate_limits": per_second(20)})).await;
    assert_eq!((&twice["binding"], &twice["effective_per_s"]), (&json!("key"), &json!(4.0)));
    assert!(twice["key_limits"].as_str().unwrap().starts_with("The limits of the keys that wait allow 4 per second"));
    let slower = preview(json!({"rate_limits": per_second(1)})).await;
    assert_eq!(slower["binding"]["limit"], 1);
    server.post(&format!("{path}/keys/a/pause"), json!({})).await.expect(StatusCode::OK);
    assert_eq!(overview().await, [json!("key"), json!(2.0), Value::Null]);
    server.patch(&path, json!({"key_limits": {"overrides": {"b": {"rate_limits": []}}}})).await.expect(StatusCode::OK);
    assert_eq!(overview().await[0], "limit", "a key without limits of its own waits");
    let simulated = server.post(&format!("{path}/simulate"), json!({})).await.expect(StatusCode::OK);
    assert_eq!(simulated["ignores_key_limits"], true);
    let plain = server.destination(json!({"url": URL})).await;
    let preview = server.post(&format!("/v1/destinations/{plain}/preview"), json!({})).await.expect(StatusCode::OK);
    assert_eq!(preview["key_limits"], Value::Null);
}
