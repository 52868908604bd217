//! The overview: figures, orders, filters and pages.

use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use weir_core::{Clock, outcome::Verdict};

use crate::harness::Server;

impl Server {
    /// The overview of this instant. An answer may be of an earlier one, because requests share a sample for a moment.
    async fn overview(&self, query: &str) -> Value {
        self.clock.advance(Duration::from_millis(1));
        let now = json!(self.clock.now());
        loop {
            let overview = self.get(&format!("/v1/overview{query}")).await.expect(StatusCode::OK);
            // Each reading advances the clock a little, so a new sample may be of the next millisecond.
            if overview["as_of"].as_str() >= now.as_str() {
                return overview;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn names(&self, query: &str) -> Vec<String> {
        names(&self.overview(query).await)
    }

    /// Sends `n` events to the tenant.
    async fn events_of(&self, tenant: &str, n: usize) {
        let events: Vec<Value> = (0..n).map(|n| json!({"type": "t", "data": n, "tenant": tenant})).collect();
        self.post("/v1/events/batch", json!({"events": events})).await.expect(StatusCode::ACCEPTED);
    }

    /// A destination with this name, in a tenant of the same name.
    async fn named(&self, name: &str, settings: Value) -> String {
        let mut body = json!({"url": format!("https://{name}.example/hooks"), "name": name, "tenant": name});
        body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        self.destination(body).await
    }
}

fn names(overview: &Value) -> Vec<String> {
    let name = |row: &Value| row["destination"]["name"].as_str().unwrap().to_owned();
    overview["data"].as_array().unwrap().iter().map(name).collect()
}

#[tokio::test]
async fn a_row_has_the_figures_of_its_destination() {
    let server = Server::start().await;
    let limits = json!([{"limit": 10, "period": "second"}, {"limit": 300, "period": "minute"}]);
    let id = server.named("acme", json!({"rate_limits": limits})).await;
    server.events_of("acme", 103).await;
    for delivery in &server.claim(&id).await[..1] {
        server.settle(delivery, 410, Verdict::Dead).await;
    }
    server.clock.advance(Duration::from_secs(90));
    let mut overview = server.overview("").await;
    let row = &mut overview["data"][0];
    // A hundred was claimed, and one of these is dead.
    let expected = json!({
        "destination": {
            "id": id, "name": "acme", "url": "https://acme.example/hooks", "tenant": "acme",
            "rate_limits": [
                {"limit": 10, "period": "second", "burst": 1, "margin_ms": 0},
                {"limit": 300, "period": "minute", "burst": 1, "margin_ms": 0},
            ],
            "min_interval_ms": null, "max_in_flight": 64, "ordered": false, "paused": false, "paused_reason": null,
            "breaker_state": "closed", "breaker_reason": null, "next_probe_at": null,
            "held_until": null, "held_reason": null,
        },
        "pending": 3, "retrying": 0, "delivering": 99, "undelivered": 1, "backlog": 3, "oldest_age_s": 90.0,
        "configured_per_s": 5.0, "effective_per_s": 4.992, "achieved_per_s": 0.0, "arrivals_per_s": 0.0,
        "utilisation": 0.0, "binding": {"limit": 300, "period": "minute"}, "drain_eta_s": 0.601, "drains": true,
        "reason": "slow", "refused_within_limit": null,
    });
    let age = row["oldest_age_s"].take().as_f64().unwrap();
    assert!((90.0..90.1).contains(&age), "{age}");
    row["oldest_age_s"] = json!(90.0);
    assert_eq!(*row, expected);
    assert_eq!(
        overview["totals"],
        json!({"destinations": 1, "backlog": 3, "undelivered": 1, "achieved_per_s": 0.0, "arrivals_per_s": 0.0})
    );
    let mut one = server.get(&format!("/v1/destinations/{id}/overview")).await.expect(StatusCode::OK);
    assert!(one.as_object_mut().unwrap().remove("as_of").unwrap().is_string());
    one["oldest_age_s"] = json!(90.0);
    // It is measured anew: its last send was long ago, so the first slot begins now.
    let mut expected = expected;
    expected["drain_eta_s"] = json!(0.401);
    let explained = ["answer_time_ms", "waits_for", "advice", "last_failure", "failures"];
    one.as_object_mut().unwrap().retain(|field, _| !explained.contains(&&**field));
    assert_eq!(one, expected);
}

#[tokio::test]
async fn rates_are_those_of_the_last_seconds() {
    let server = Server::start().await;
    let id = server.named("acme", json!({"rate_limits": [{"limit": 10, "period": "second"}]})).await;
    server.events_of("acme", 60).await;
    for delivery in &server.claim(&id).await {
        server.settle(delivery, 200, Verdict::Delivered).await;
    }
    server.clock.advance(Duration::from_secs(5));
    let row = server.overview("").await["data"][0].take();
    // The clock of the tests begins with a bucket of ten seconds.
    assert_eq!((&row["achieved_per_s"], &row["utilisation"]), (&json!(4.0), &json!(0.4)));
    // So many are a flood, which began five seconds ago.
    let arrivals = row["arrivals_per_s"].as_f64().unwrap();
    assert!((11.9..=12.0).contains(&arrivals), "{arrivals}");
    assert_eq!((&row["reason"], &row["drain_eta_s"]), (&Value::Null, &json!(0.0)));
}

#[tokio::test]
async fn rows_are_sorted_filtered_and_paged_from_one_sample() {
    let server = Server::start().await;
    let slow = json!({"rate_limits": [{"limit": 1, "period": "hour"}]});
    for (name, settings, events) in [
        ("delta", json!({}), 0),
        ("alpha", slow.clone(), 5),
        ("Charlie", json!({"paused": true}), 3),
        ("bravo", slow, 9),
    ] {
        server.named(name, settings).await;
        server.events_of(name, events.max(1)).await;
        if events == 0 {
            let id = server.overview("?q=delta").await["data"][0]["destination"]["id"].clone();
            for delivery in server.claim(id.as_str().unwrap()).await {
                server.settle(&delivery, 200, Verdict::Delivered).await;
            }
        }
        server.clock.advance(Duration::from_secs(100));
    }
    assert_eq!(server.names("?sort=name").await, ["alpha", "bravo", "Charlie", "delta"]);
    assert_eq!(server.names("?sort=backlog").await, ["bravo", "alpha", "Charlie", "delta"]);
    assert_eq!(server.names("?sort=oldest_age").await, ["alpha", "Charlie", "bravo", "delta"]);
    assert_eq!(server.names("").await, ["Charlie", "bravo", "alpha", "delta"], "trouble");
    assert_eq!(server.names("?state=waiting&sort=name").await, ["alpha", "bravo", "Charlie"]);
    assert_eq!(server.names("?state=active&sort=name").await, ["alpha", "bravo", "delta"]);
    assert_eq!(server.names("?state=paused").await, ["Charlie"]);
    assert_eq!(server.names("?state=held").await, [""; 0]);
    assert_eq!(server.names("?state=breaker").await, [""; 0]);
    assert_eq!(server.names("?q=CHARL").await, ["Charlie"]);
    assert_eq!(server.names("?q=bravo.example").await, ["bravo"]);
    let of_tenant = server.overview("?tenant=alpha&q=nothing").await;
    assert_eq!((of_tenant["data"].as_array().unwrap().len(), &of_tenant["totals"]["backlog"]), (0, &json!(5)));

    let first = server.overview("?sort=name&limit=3").await;
    assert_eq!((names(&first).len(), &first["totals"]["destinations"]), (3, &json!(4)));
    let next = format!("?sort=name&limit=3&cursor={}", first["next_cursor"].as_str().unwrap());
    let second = server.overview(&next).await;
    assert_eq!((names(&second), &second["next_cursor"]), (vec!["delta".to_owned()], &Value::Null));
    for (query, pointer) in
        [("?sort=age", "/sort"), ("?state=open", "/state"), ("?cursor=AAAA", "/cursor"), ("?limit=201", "/limit")]
    {
        assert_eq!(server.get(&format!("/v1/overview{query}")).await.pointers(), [pointer]);
    }
}

#[tokio::test]
async fn a_key_of_some_tenants_sees_and_counts_only_their_destinations() {
    let server = Server::start().await;
    for name in ["acme", "globex", "initech"] {
        server.named(name, json!({})).await;
        server.events_of(name, 2).await;
    }
    let key = server.post("/v1/keys", json!({"name": "a", "role": "read", "tenants": ["acme", "initech"]})).await;
    let key = key.expect(StatusCode::CREATED)["secret"].as_str().unwrap().to_owned();
    let ask = async |query: &str| {
        let request =
            Request::get(format!("/v1/overview{query}")).header(header::AUTHORIZATION, format!("Bearer {key}"));
        server.send(request.body(Body::empty()).unwrap()).await
    };
    let seen = ask("?sort=name").await.expect(StatusCode::OK);
    assert_eq!((names(&seen), &seen["totals"]["backlog"]), (vec!["acme".to_owned(), "initech".to_owned()], &json!(4)));
    assert_eq!(names(&ask("?tenant=acme").await.expect(StatusCode::OK)), ["acme"]);
    ask("?tenant=globex").await.problem(404);
}

#[tokio::test]
async fn the_overview_of_one_destination_shows_an_edit_at_once() {
    let server = Server::start().await;
    let id = server.named("acme", json!({})).await;
    let path = format!("/v1/destinations/{id}/overview");
    for limit in 1..5 {
        server
            .patch(&format!("/v1/destinations/{id}"), json!({"rate_limits": [{"limit": limit, "period": "day"}]}))
            .await;
        let shown = server.get(&path).await.expect(StatusCode::OK);
        assert_eq!(shown["binding"], json!({"limit": limit, "period": "day"}));
    }
    server.delete(&format!("/v1/destinations/{id}")).await;
    server.get(&path).await.problem(404);
}

#[tokio::test]
async fn the_overview_shows_the_changes_of_people_at_once() {
    let server = Server::start().await;
    let id = server.named("acme", json!({})).await;
    // A slow machine and a fast one show an old sample at different times, so the test asks several times.
    for round in 0..20 {
        for (pauses, expected) in [(true, vec!["acme"]), (false, vec![])] {
            server.patch(&format!("/v1/destinations/{id}"), json!({"paused": pauses})).await.expect(StatusCode::OK);
            let paused = server.get("/v1/overview?state=paused").await.expect(StatusCode::OK);
            assert_eq!(names(&paused), expected, "round {round}");
        }
    }
}
