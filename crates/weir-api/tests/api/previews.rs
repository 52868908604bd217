//! Previews of limits.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::{Clock as _, outcome::Verdict};

use crate::harness::Server;

impl Server {
    async fn preview(&self, id: &str, request: Value) -> Value {
        self.post(&format!("/v1/destinations/{id}/preview"), request).await.expect(StatusCode::OK)
    }
}

/// A destination with a limit of ten a second, and a hundred waiting deliveries that came at once.
async fn backlog(server: &Server, settings: Value) -> String {
    let mut destination = json!({"url": "https://example.com/", "rate_limits": [{"limit": 10, "period": "second"}]});
    destination.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let id = server.destination(destination).await;
    let events: Vec<Value> = (0..100).map(|n| json!({"type": "t", "data": n, "ttl_s": 600})).collect();
    let accepted = server.post("/v1/events/batch", json!({"events": events})).await;
    accepted.expect(StatusCode::ACCEPTED);
    id
}

#[tokio::test]
async fn a_preview_shows_the_drain_with_the_proposed_limits_and_with_the_current_ones() {
    let server = Server::start().await;
    let id = backlog(&server, json!({})).await;
    let before = server.get(&format!("/v1/destinations/{id}")).await.expect(StatusCode::OK);
    let shown = server
        .preview(&id, json!({"rate_limits": [{"limit": 100, "period": "second"}, {"limit": 60, "period": "minute"}]}))
        .await;
    assert_eq!(
        shown,
        json!({
            "effective_per_s": 0.998, "binding": {"limit": 60, "period": "minute"}, "drain_eta_s": 99.165, "drains": true,
            "margins_cost_per_s": 0.0, "min_interval_costs_per_s": 0.0, "would_expire": false, "first_expiry_at": null, "key_limits": null,
            "keys": null, "fault": null,
            "now": {
                "effective_per_s": 9.901, "binding": {"limit": 10, "period": "second"}, "drain_eta_s": 9.999,
                "margins_cost_per_s": 0.0, "min_interval_costs_per_s": 0.0, "drains": true, "would_expire": false,
                "first_expiry_at": null,
            },
        })
    );
    // Without proposed settings both forecasts are the same. A preview changes nothing.
    let same = server.preview(&id, json!({})).await;
    assert_eq!((&same["drain_eta_s"], &same["now"]["drain_eta_s"]), (&json!(9.999), &json!(9.999)));
    assert_eq!(server.get(&format!("/v1/destinations/{id}")).await.expect(StatusCode::OK), before);
    assert!(server.queue.edited().is_empty());
}

#[tokio::test]
async fn proposed_limits_of_keys_show_what_would_bind_the_busiest_keys() {
    let server = Server::start().await;
    let second = |limit: u32| json!([{"limit": limit, "period": "second"}]);
    let own = json!({"key": "/customer", "rate_limits": second(1), "overrides": {"big": {"rate_limits": second(6)}}});
    let settings = json!({"url": "https://example.com/", "rate_limits": second(10), "key_limits": own});
    let id = server.destination(settings).await;
    let of = |customer: &str, count: usize| vec![json!({"type": "t", "data": {"customer": customer}}); count];
    let events = [of("big", 60), of("a", 30), of("b", 10)].concat();
    server.post("/v1/events/batch", json!({"events": events})).await.expect(StatusCode::ACCEPTED);
    assert_eq!(server.preview(&id, json!({})).await["keys"], Value::Null);
    let proposed = json!({"key": "/customer", "rate_limits": second(3)});
    let shown = server.preview(&id, json!({"key_limits": proposed})).await;
    let keys = shown["keys"].as_array().unwrap();
    let of_keys: Vec<_> = keys
        .iter()
        .map(|key| {
            (key["key"].as_str().unwrap(), key["waiting"].as_u64().unwrap(), &key["binding"], &key["now"]["binding"])
        })
        .collect();
    // Their own limits bind now: 6 + 1 + 1. Of 6 + 3 + 3 the destination allows ten.
    let (key, destination) = (&json!("key"), &json!("destination"));
    assert_eq!(of_keys, [("big", 60, destination, key), ("a", 30, key, key), ("b", 10, key, key)], "{shown}");
    assert!(keys[1]["share_per_s"].as_f64() > keys[1]["now"]["share_per_s"].as_f64(), "{shown}");
    assert_eq!((&shown["now"]["binding"], &shown["binding"]["limit"]), (&json!("key"), &json!(10)), "{shown}");
    assert!(
        shown["key_limits"].as_str().unwrap().starts_with("The limits of the keys that wait allow 12 per second"),
        "{shown}"
    );
    // Without limit keys all share the limit of the destination.
    let none = server.preview(&id, json!({"key_limits": null})).await;
    assert_eq!((&none["key_limits"], &none["keys"][1]["binding"]), (&Value::Null, destination), "{none}");
    let refused =
        server.post(&format!("/v1/destinations/{id}/preview"), json!({"key_limits": {"key": "customer"}})).await;
    assert_eq!(refused.problem(422)["errors"][0]["pointer"], "/key_limits/key");
    let ordered = server.destination(json!({"url": "https://example.com/", "ordered": true})).await;
    let refused = server.post(&format!("/v1/destinations/{ordered}/preview"), json!({"key_limits": proposed})).await;
    assert_eq!(refused.problem(422)["errors"][0]["pointer"], "/ordered");
    assert!(server.queue.edited().is_empty(), "nothing was changed");
}

#[tokio::test]
async fn a_preview_of_the_window_shape_sends_at_once_what_the_window_holds() {
    let server = Server::start().await;
    let id = backlog(&server, json!({})).await;
    let eta = async |limit: u32, shape: &str| {
        let minute = json!({"limit": limit, "period": "minute", "shape": shape});
        let limits = json!([{"limit": 10, "period": "second"}, minute]);
        server.preview(&id, json!({"rate_limits": limits})).await["drain_eta_s"].as_f64().unwrap()
    };
    // As fast as ten a second; evenly; and the last forty of a hundred a window later.
    assert_eq!((eta(300, "window").await, eta(300, "even").await), (9.999, 19.833));
    let next_window = eta(60, "window").await;
    assert!(next_window > 60.0 && next_window < 60.3, "{next_window}");
}

#[tokio::test]
async fn a_preview_of_a_limit_in_costs_takes_the_mean_cost_of_what_waits() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": "https://example.com", "rate_limits": []})).await;
    let events: Vec<Value> = (0..100).map(|n| json!({"type": "t", "data": n, "cost": 5 + n % 2 * 10})).collect();
    server.post("/v1/events/batch", json!({"events": events})).await.expect(StatusCode::ACCEPTED);
    let points = json!([{"limit": 500, "period": "minute", "unit": "cost"}]);
    let shown = server.preview(&id, json!({"rate_limits": points})).await;
    // A thousand points: half of them at once, the others a window later. Fifty sends a minute.
    let eta = shown["drain_eta_s"].as_f64().unwrap();
    assert!(eta > 60.0 && eta < 60.5, "{shown}");
    let per_s = shown["effective_per_s"].as_f64().unwrap();
    assert!((per_s - 50.0 / 60.0).abs() < 0.01, "{shown}");
}

#[tokio::test]
async fn a_preview_shows_what_a_margin_and_a_minimum_interval_cost() {
    let server = Server::start().await;
    let id = backlog(&server, json!({})).await;
    let costs = |shown: &Value| {
        ["effective_per_s", "margins_cost_per_s", "min_interval_costs_per_s"].map(|field| shown[field].clone())
    };
    let limits = json!([{"limit": 10, "period": "second", "margin_ms": 50}]);
    // 10 / 1.01 s, and 10 / 1.06 s.
    let margin = server.preview(&id, json!({"rate_limits": limits})).await;
    assert_eq!(costs(&margin), [json!(9.434), json!(0.467), json!(0.0)]);
    assert_eq!(margin["binding"], json!({"limit": 10, "period": "second"}));
    assert_eq!(costs(&margin["now"]), [json!(9.901), json!(0.0), json!(0.0)]);
    // 1 / (125 ms + 125 ms / 16).
    let both = server.preview(&id, json!({"rate_limits": limits, "min_interval_ms": 125})).await;
    assert_eq!(costs(&both), [json!(7.529), json!(0.467), json!(1.905)]);
    assert_eq!(both["binding"], "min_interval");
    // The first is sent at once.
    assert_eq!(both["drain_eta_s"], json!(13.148));
    let alone = server.preview(&id, json!({"rate_limits": [], "min_interval_ms": 125})).await;
    assert_eq!(costs(&alone), [json!(7.529), json!(null), json!(null)], "nothing else bounds the rate");

    let path = format!("/v1/destinations/{id}");
    server.patch(&path, json!({"min_interval_ms": 125})).await.expect(StatusCode::OK);
    let kept = server.preview(&id, json!({"max_in_flight": 9})).await;
    assert_eq!((&kept["binding"], &kept["now"]["binding"]), (&json!("min_interval"), &json!("min_interval")));
    let without = server.preview(&id, json!({"min_interval_ms": null})).await;
    assert_eq!(without["effective_per_s"], json!(9.901));
    let backlog = server.get(&format!("{path}/backlog")).await.expect(StatusCode::OK);
    let configured = backlog["configured_per_s"].as_f64().unwrap();
    assert!((configured - 7.529).abs() < 0.001, "{configured}");
    assert_eq!(backlog["effective_per_s"], json!(7.529));
}

#[tokio::test]
async fn a_limit_that_is_too_low_shows_when_the_first_delivery_expires() {
    let server = Server::start().await;
    let id = backlog(&server, json!({})).await;
    let slow = server.preview(&id, json!({"rate_limits": [{"limit": 1, "period": "minute"}]})).await;
    assert_eq!((&slow["would_expire"], &slow["now"]["would_expire"]), (&json!(true), &json!(false)));
    let expires_at = slow["first_expiry_at"].as_str().unwrap();
    assert!(expires_at.starts_with("2026-11-21T07:40:00"), "{expires_at}");
}

#[tokio::test]
async fn where_only_some_events_expire_no_expiry_is_in_the_past() {
    let server = Server::start().await;
    let limit = json!([{"limit": 1, "period": "minute"}]);
    let id = server.destination(json!({"url": "https://example.com/", "rate_limits": limit})).await;
    let lasting: Vec<Value> = (0..50).map(|n| json!({"type": "t", "data": n})).collect();
    server.post("/v1/events/batch", json!({"events": lasting})).await.expect(StatusCode::ACCEPTED);
    server.clock.advance(Duration::from_secs(300));
    server.post("/v1/events", json!({"type": "t", "data": 0, "ttl_s": 60})).await.expect(StatusCode::ACCEPTED);
    let preview = server.preview(&id, json!({})).await;
    let expires_at = preview["first_expiry_at"].as_str().unwrap();
    assert!(expires_at.starts_with("2026-11-21T07:36:00"), "{expires_at}");
}

#[tokio::test]
async fn the_answer_time_bounds_what_max_in_flight_allows() {
    let server = Server::start().await;
    let id = backlog(&server, json!({"rate_limits": []})).await;
    let unknown = server.preview(&id, json!({"max_in_flight": 1})).await;
    assert_eq!((&unknown["effective_per_s"], &unknown["drains"]), (&Value::Null, &Value::Null));
    // Answers within 12 ms.
    let claimed = server.claim(&id).await;
    for delivery in &claimed[..10] {
        server.settle(delivery, 200, Verdict::Delivered).await;
    }
    server.clock.advance(Duration::from_secs(1));
    let one = server.preview(&id, json!({"max_in_flight": 1})).await;
    assert_eq!(one["binding"], "max_in_flight");
    let per_s = one["effective_per_s"].as_f64().unwrap();
    assert!((75.0..92.0).contains(&per_s), "{per_s}");
    let limited =
        server.preview(&id, json!({"max_in_flight": 1, "rate_limits": [{"limit": 5, "period": "second"}]})).await;
    assert_eq!(limited["binding"], json!({"limit": 5, "period": "second"}));
}

#[tokio::test]
async fn the_backlog_shows_what_a_preview_of_the_current_limits_shows() {
    let server = Server::start().await;
    let (second, minute) = (json!({"limit": 20, "period": "second"}), json!({"limit": 60, "period": "minute"}));
    for (settings, effective_per_s) in [
        (json!({"rate_limits": [second]}), 19.802),
        (json!({"rate_limits": [second, minute]}), 0.998),
        (json!({"rate_limits": [{"limit": 20, "period": "second", "burst": 5}]}), 19.802),
        (json!({"rate_limits": [], "max_in_flight": 1}), 83.3),
    ] {
        let id = backlog(&server, settings.clone()).await;
        // Ten answers within 12 ms; the others wait again.
        let claimed = server.claim(&id).await;
        for delivery in &claimed[..10] {
            server.settle(delivery, 200, Verdict::Delivered).await;
        }
        let others = claimed[10..].iter().map(|delivery| delivery.claim).collect();
        server.store.release(others, server.clock.now()).await.unwrap();
        server.clock.advance(Duration::from_secs(1));

        let shown = server.get(&format!("/v1/destinations/{id}/backlog")).await.expect(StatusCode::OK);
        let preview = server.preview(&id, json!({})).await["now"].clone();
        for field in ["effective_per_s", "drains"] {
            assert_eq!(shown[field], preview[field], "{field} of {settings}");
        }
        let number = |of: &Value, field: &str| of[field].as_f64().unwrap();
        let apart = number(&shown, "effective_per_s") / effective_per_s;
        assert!((0.9..1.1).contains(&apart), "{shown}");
        let apart = number(&shown, "drain_eta_s") - number(&preview, "drain_eta_s");
        assert!(apart.abs() < 0.002 && number(&shown, "drain_eta_s") > 0.0, "{apart} s: {shown} {preview}");
        server.delete(&format!("/v1/destinations/{id}")).await;
    }
}

#[tokio::test]
async fn a_preview_refuses_what_an_edit_would_refuse() {
    let server = Server::start().await;
    let id = backlog(&server, json!({})).await;
    let path = format!("/v1/destinations/{id}/preview");
    let second = json!({"limit": 1, "period": "second"});
    for (body, pointers) in [
        (json!({"rate_limits": [second, second]}), &["/rate_limits/1/period"][..]),
        (json!({"rate_limits": [{"limit": 0, "period": "week"}]}), &["/rate_limits/0/limit", "/rate_limits/0/period"]),
        (json!({"max_in_flight": 0, "paused": true}), &["/max_in_flight", "/paused"]),
        (json!({"min_interval_ms": 60_001}), &["/min_interval_ms"]),
    ] {
        assert_eq!(server.post(&path, &body).await.pointers(), pointers, "{body}");
    }
    server.post("/v1/destinations/dst_01h2xcejqtf2nbrexx3vqjhp41/preview", "{}").await.problem(404);
}
