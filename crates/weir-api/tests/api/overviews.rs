//! The overview: figures, orders, filters and pages.

use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use weir_core::{
    Clock,
    outcome::Verdict,
    stall::{Fault, Late, StallReport},
};

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
            "held_until": null, "held_reason": null, "override": null,
        },
        "pending": 3, "retrying": 0, "delivering": 99, "undelivered": 1, "backlog": 3, "oldest_age_s": 90.0,
        "configured_per_s": 5.0, "effective_per_s": 4.992, "achieved_per_s": 0.0, "arrivals_per_s": 0.0,
        "utilisation": 0.0, "binding": {"limit": 300, "period": "minute"}, "drain_eta_s": 0.601, "drains": true,
        "reason": "slow", "refused_within_limit": null, "adaptive_rate": null,
    });
    let age = row["oldest_age_s"].take().as_f64().unwrap();
    assert!((90.0..90.1).contains(&age), "{age}");
    row["oldest_age_s"] = json!(90.0);
    assert_eq!(*row, expected);
    assert_eq!(
        overview["totals"],
        json!({
            "destinations": 1, "backlog": 3, "undelivered": 1, "achieved_per_s": 0.0, "arrivals_per_s": 0.0, "paused": 0,
            "held": 0, "breaker": 0, "never_drains": 0,
        })
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
    let places = |page: &Value| ["matches", "skipped", "previous_cursor"].map(|field| page[field].clone());
    assert_eq!(places(&first), [json!(4), json!(0), Value::Null]);
    assert_eq!(places(&second)[..2], [json!(4), json!(3)]);
    let back = format!("?sort=name&limit=3&cursor={}", second["previous_cursor"].as_str().unwrap());
    assert_eq!(names(&server.overview(&back).await), names(&first));
    assert_eq!(server.names("?sort=name&reverse=true").await, ["delta", "Charlie", "bravo", "alpha"]);
    assert_eq!(server.names("?sort=drain_eta").await[0], "Charlie", "nobody knows when what is paused drains");
    // The rows of a page again, in their order; one that is gone is left out.
    let id = |name: &str| {
        let rows = first["data"].as_array().unwrap().iter().chain(second["data"].as_array().unwrap());
        let mut of = rows.filter(|row| row["destination"]["name"] == name);
        of.next().unwrap()["destination"]["id"].as_str().unwrap().to_owned()
    };
    let ids = format!("?ids={},dst_01h2xcejqtf2nbrexx3vqjhp41,{}", id("delta"), id("alpha"));
    assert_eq!(server.names(&ids).await, ["delta", "alpha"]);
    for (query, pointer) in [
        ("?ids=dst_1", "/ids"),
        ("?sort=age", "/sort"),
        ("?state=open", "/state"),
        ("?cursor=AAAA", "/cursor"),
        ("?limit=201", "/limit"),
    ] {
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

#[tokio::test]
async fn a_fault_of_weir_is_the_reason_everywhere_and_the_estimate_follows_the_recent_rate() {
    let server = Server::start().await;
    let limits = json!({"rate_limits": [{"limit": 100, "period": "second"}]});
    let [stalled, sound] = [server.named("stalled", limits.clone()).await, server.named("sound", limits).await];
    for tenant in ["stalled", "sound"] {
        server.events_of(tenant, 50).await;
    }
    let claimed = server.claim(&stalled).await;
    for delivery in &claimed[..10] {
        server.settle(delivery, 200, Verdict::Delivered).await;
    }
    let others = claimed[10..].iter().map(|delivery| delivery.claim).collect();
    server.store.release(others, server.clock.now()).await.unwrap();
    let report = |fault| {
        let at = server.clock.now();
        let late = Late { since: at - Duration::from_secs(12), fault };
        let late = [(stalled.parse().unwrap(), late)].into();
        server.stalls.send_replace(std::sync::Arc::new(StallReport { at, late, ..StallReport::default() }));
    };
    report(Fault::NoWorker);
    let overview = server.overview("").await;
    assert_eq!(names(&overview), ["stalled", "sound"], "what only Weir can repair comes first");
    let rows = &overview["data"];
    assert_eq!((&rows[0]["reason"], &rows[1]["reason"]), (&json!("no_worker"), &json!("limit")));
    // Ten of fifty were sent in the last seconds, at a tenth of what the limit allows.
    assert!(rows[0]["drain_eta_s"].as_f64() > Some(5.0), "{}", rows[0]);
    assert!(rows[1]["drain_eta_s"].as_f64() < Some(1.0), "{}", rows[1]);
    let backlog = server.get(&format!("/v1/destinations/{stalled}/backlog")).await.expect(StatusCode::OK);
    assert!(backlog["drain_eta_s"].as_f64() > Some(5.0), "{backlog}");
    let preview =
        async |id: &str| server.post(&format!("/v1/destinations/{id}/preview"), json!({})).await.expect(StatusCode::OK);
    let of_stalled = preview(&stalled).await;
    assert_eq!((&of_stalled["fault"], &of_stalled["drains"]), (&json!("no_worker"), &json!(true)), "{of_stalled}");
    assert!(of_stalled["now"]["drain_eta_s"].as_f64() > Some(5.0), "{of_stalled}");
    assert_eq!(preview(&sound).await["fault"], Value::Null);

    // Half a minute later nothing is sent any more, so nobody knows when it drains.
    server.clock.advance(Duration::from_secs(40));
    report(Fault::QueueAway);
    let overview = server.overview("").await;
    let row = &overview["data"][0];
    assert_eq!(
        (&row["reason"], &row["drain_eta_s"], &row["drains"]),
        (&json!("queue_away"), &Value::Null, &Value::Null)
    );
    // The watch has ended: its last report says nothing any more.
    server.clock.advance(Duration::from_secs(40));
    assert_eq!(server.overview("").await["data"][0]["reason"], "limit");
}

#[tokio::test]
async fn what_never_drains_is_counted_and_filtered() {
    let server = Server::start().await;
    server.named("calm", json!({})).await;
    server.named("flooded", json!({"rate_limits": [{"limit": 1, "period": "hour"}]})).await;
    // An inflow is what arrives in both parts of the last minute.
    for _ in 0..4 {
        server.events_of("flooded", 20).await;
        server.clock.advance(Duration::from_secs(15));
    }
    server.events_of("flooded", 20).await;
    let overview = server.overview("?state=never_drains").await;
    assert_eq!((names(&overview), &overview["totals"]["never_drains"]), (vec!["flooded".to_owned()], &json!(1)));
    assert_eq!(server.names("?sort=drain_eta").await, ["flooded", "calm"]);
    assert_eq!(server.names("?sort=arrivals").await, ["flooded", "calm"]);
}

#[tokio::test]
async fn the_last_half_hour_is_shown_by_minute_for_a_page_and_for_all_that_a_key_sees() {
    let server = Server::start().await;
    for name in ["acme", "globex"] {
        server.named(name, json!({})).await;
    }
    server.events_of("acme", 3).await;
    server.clock.advance(Duration::from_secs(60));
    server.events_of("globex", 4).await;
    let overview = server.overview("?sort=name&recent=true").await;
    let arrivals = |row: usize| -> Vec<u64> {
        let minutes = overview["data"][row]["recent"]["arrivals"].as_array().unwrap();
        minutes.iter().map(|count| count.as_u64().unwrap()).collect()
    };
    assert_eq!((arrivals(0).len(), &arrivals(0)[28..], &arrivals(1)[28..]), (30, &[3, 0][..], &[0, 4][..]));
    assert!(server.overview("").await["data"][0].get("recent").is_none(), "only if it is asked for");
    let last = |history: &Value, field: &str| -> Vec<u64> {
        let minutes = history["data"].as_array().unwrap();
        minutes[minutes.len() - 2..].iter().map(|minute| minute[field].as_u64().unwrap()).collect()
    };
    let all = server.get("/v1/overview/history").await.expect(StatusCode::OK);
    // One call reads the newest minutes first, and no longer than a moment.
    assert!((3..=30).contains(&all["data"].as_array().unwrap().len()), "{all}");
    assert_eq!((last(&all, "arrivals"), last(&all, "backlog")), (vec![3, 4], vec![3, 7]));
    let of_acme = server.get("/v1/overview/history?tenant=acme").await.expect(StatusCode::OK);
    assert_eq!((last(&of_acme, "arrivals"), last(&of_acme, "backlog")), (vec![3, 0], vec![3, 3]));
    let key = server.post("/v1/keys", json!({"name": "a", "role": "read", "tenants": ["globex"]})).await;
    let key = key.expect(StatusCode::CREATED)["secret"].as_str().unwrap().to_owned();
    let ask = async |path: &str| {
        let request = Request::get(path).header(header::AUTHORIZATION, format!("Bearer {key}"));
        server.send(request.body(Body::empty()).unwrap()).await
    };
    let bound = ask("/v1/overview/history").await.expect(StatusCode::OK);
    assert_eq!((last(&bound, "arrivals"), last(&bound, "backlog")), (vec![0, 4], vec![0, 4]));
    ask("/v1/overview/history?tenant=acme").await.problem(404);
}
