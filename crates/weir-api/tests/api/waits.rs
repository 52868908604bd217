//! Why deliveries wait and when they are expected to be sent, and what explains a destination that does not send faster.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_api_types::Unmeasured;
use weir_core::{Clock as _, Timestamp, outcome::Verdict};

use crate::harness::{Server, json_request, reply};

const URL: &str = "https://example.com/hooks";

impl Server {
    /// Sends `n` events, as one batch.
    async fn batch(&self, n: usize, more: &Value) {
        let event = |n: usize| {
            let mut event = json!({"type": "t", "data": n});
            event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            event
        };
        let events: Vec<Value> = (0..n).map(event).collect();
        self.post("/v1/events/batch", json!({ "events": events })).await.expect(StatusCode::ACCEPTED);
    }

    /// The deliveries, oldest first.
    async fn waiting(&self, query: &str) -> Vec<Value> {
        let listed = self.get(&format!("/v1/deliveries?order=oldest&{query}")).await.expect(StatusCode::OK);
        listed["data"].as_array().unwrap().clone()
    }
}

fn at(value: &Value) -> Timestamp {
    value.as_str().unwrap_or_else(|| panic!("{value} is no time")).parse().unwrap()
}

/// The whole seconds from `now` to a time that is not in the past.
fn seconds_from(now: Timestamp, value: &Value) -> u64 {
    let at = at(value);
    assert!(at.as_millis() >= now.as_millis(), "{at} is before {now}");
    at.since(now).as_secs()
}

#[tokio::test]
async fn a_delivery_says_how_many_are_ahead_of_it_and_when_it_is_sent() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL, "rate_limits": [{"limit": 60, "period": "minute"}]})).await;
    server.batch(5, &json!({})).await;
    // They are due, and their due time is long ago.
    server.clock.advance(Duration::from_secs(600));
    let now = server.clock.now();
    let listed = server.waiting(&format!("destination={id}")).await;
    for (ahead, delivery) in listed.iter().enumerate() {
        let waits_for = &delivery["waits_for"];
        assert_eq!(
            (&waits_for["reason"], &waits_for["ahead"]),
            (&json!("turn"), &json!({"value": ahead, "capped": false}))
        );
        assert_eq!(seconds_from(now, &delivery["expected_at"]), ahead as u64, "{delivery}");
        let path = format!("/v1/deliveries/{}", delivery["id"].as_str().unwrap());
        let shown = server.get(&path).await.expect(StatusCode::OK);
        assert_eq!(shown["waits_for"]["ahead"], waits_for["ahead"]);
        assert!(seconds_from(now, &shown["expected_at"]).abs_diff(ahead as u64) <= 1, "{shown}");
    }
    // What has been claimed is no longer ahead, and does not wait.
    let claimed = server.claim(&id).await;
    server.store.release(claimed[3..].iter().map(|one| one.claim).collect(), server.clock.now()).await.unwrap();
    let listed = server.waiting(&format!("destination={id}")).await;
    let ahead: Vec<_> = listed.iter().map(|delivery| delivery["waits_for"]["ahead"]["value"].clone()).collect();
    assert_eq!(ahead, [Value::Null, Value::Null, Value::Null, json!(0), json!(1)]);
    assert_eq!(listed[0]["expected_at"], Value::Null, "it is being sent");
}

#[tokio::test]
async fn a_delivery_says_who_has_paused_its_destination() {
    let server = Server::with_keys().await;
    let created = server.root("POST", "/v1/keys", json!({"name": "olga", "role": "operate"})).await;
    let olga = created["secret"].as_str().unwrap();
    let id = server.root("POST", "/v1/destinations", json!({"url": URL})).await["id"].as_str().unwrap().to_owned();
    server.root("POST", "/v1/events", json!({"type": "t", "data": 1})).await;
    let path = format!("/v1/destinations/{id}");
    assert!(server.ask(olga, "PATCH", &path, Some(&json!({"paused": true}))).await.status.is_success());
    let since = server.clock.now();
    let expected =
        json!({"reason": "pause", "until": null, "detail": null, "by": "olga", "since": since, "ahead": null});
    let listed = server.root("GET", "/v1/deliveries", json!({})).await;
    let delivery = &listed["data"][0];
    assert_eq!((&delivery["waits_for"], &delivery["expected_at"]), (&expected, &Value::Null));
    let overview = server.root("GET", &format!("{path}/overview"), json!({})).await;
    assert_eq!(overview["waits_for"], expected);
}

#[tokio::test]
async fn a_delivery_of_a_member_waits_for_the_end_of_the_hold_of_its_group() {
    let server = Server::start().await;
    let limits = json!([{"limit": 10, "period": "second"}]);
    let group = json!({"name": "partner", "rate_limits": limits});
    let group = server.post("/v1/limit-groups", group).await.expect(StatusCode::CREATED);
    let id = server.destination(json!({"url": URL, "rate_limits": limits, "limit_group": group["id"]})).await;
    server.batch(5, &json!({})).await;
    let hold = format!("/v1/limit-groups/{}/hold", group["id"].as_str().unwrap());
    server.post(&hold, json!({"for_s": 600, "reason": "their maintenance"})).await.expect(StatusCode::OK);
    let until = server.clock.now() + Duration::from_secs(600);
    for delivery in server.waiting(&format!("destination={id}")).await {
        let waits_for = &delivery["waits_for"];
        assert_eq!((&waits_for["reason"], &waits_for["until"]), (&json!("hold"), &json!(until)), "{delivery}");
        assert_eq!(waits_for["detail"], "its limit group is held");
        assert!(at(&delivery["expected_at"]) >= until, "{delivery}");
    }
    let overview = server.get(&format!("/v1/destinations/{id}/overview")).await.expect(StatusCode::OK);
    assert_eq!((&overview["reason"], &overview["effective_per_s"]), (&json!("held"), &json!(0.0)), "{overview}");
    assert_eq!(overview["waits_for"]["until"], json!(until));
    assert!(overview["drain_eta_s"].as_f64().unwrap() >= 600.0, "{overview}");
    let held = server.get("/v1/overview?state=held").await.expect(StatusCode::OK);
    assert_eq!((held["data"].as_array().unwrap().len(), &held["totals"]["held"]), (1, &json!(1)), "{held}");
    // A replay to the member says so too, wherever it is shown.
    let replay = json!({"destination": id, "states": ["cancelled"]});
    let one = server.waiting(&format!("destination={id}")).await[0]["id"].as_str().unwrap().to_owned();
    server.post(&format!("/v1/deliveries/{one}/cancel"), json!({})).await.expect(StatusCode::ACCEPTED);
    let replay = server.post("/v1/replays", replay).await.expect(StatusCode::ACCEPTED);
    let shown = server.get(&format!("/v1/replays/{}", replay["id"].as_str().unwrap())).await.expect(StatusCode::OK);
    let listed = server.get("/v1/replays").await.expect(StatusCode::OK);
    for replay in [&replay, &shown, &listed["data"][0]] {
        let waits_for = &replay["waits_for"];
        assert_eq!((&waits_for["reason"], &waits_for["until"]), (&json!("hold"), &json!(until)), "{replay}");
        assert_eq!(waits_for["detail"], "its limit group is held");
    }
}

#[tokio::test]
async fn a_delivery_of_a_paused_limit_key_waits_until_the_key_is_resumed() {
    let server = Server::start().await;
    let keys = json!({"key": "/customer", "rate_limits": [], "overrides": {"cus_9": {"paused": true}}});
    let limits = json!([{"limit": 1, "period": "second"}]);
    let id = server.destination(json!({"url": URL, "rate_limits": limits, "key_limits": keys})).await;
    server.batch(2, &json!({"limit_key": "cus_9"})).await;
    server.batch(2, &json!({"limit_key": "cus_1"})).await;
    let listed = server.waiting(&format!("destination={id}")).await;
    for delivery in &listed[..2] {
        let waits_for = &delivery["waits_for"];
        assert_eq!((&waits_for["reason"], &delivery["expected_at"]), (&json!("key"), &Value::Null), "{delivery}");
    }
    // The others do not wait for it.
    for (ahead, delivery) in listed[2..].iter().enumerate() {
        let waits_for = &delivery["waits_for"];
        assert_eq!((&waits_for["reason"], &waits_for["ahead"]["value"]), (&json!("turn"), &json!(ahead)), "{delivery}");
        assert_eq!(seconds_from(server.clock.now(), &delivery["expected_at"]), ahead as u64 + 1, "{delivery}");
    }
}

#[tokio::test]
async fn a_delivery_waits_for_its_retry_or_for_an_earlier_one_of_its_key() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL, "ordered": true})).await;
    server.batch(2, &json!({"ordering_key": "a"})).await;
    let claimed = server.claim(&id).await;
    let retry_at = server.clock.now() + Duration::from_secs(90);
    server.settle(&claimed[0], 503, Verdict::Retry { at: retry_at }).await;
    let listed = server.waiting(&format!("destination={id}")).await;
    let [head, behind] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((&head["waits_for"]["reason"], &head["waits_for"]["until"]), (&json!("due"), &json!(retry_at)));
    assert_eq!(head["expected_at"], json!(retry_at));
    assert_eq!((&behind["waits_for"]["reason"], &behind["expected_at"]), (&json!("order"), &Value::Null));
}

#[tokio::test]
async fn a_destination_at_which_no_attempt_succeeds_says_how_the_last_one_failed() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL})).await;
    server.batch(8, &json!({})).await;
    let retry_at = server.clock.now() + Duration::from_secs(90);
    for delivery in &server.claim(&id).await {
        server.settle(delivery, 503, Verdict::Retry { at: retry_at }).await;
    }
    let overview = server.get(&format!("/v1/destinations/{id}/overview")).await.expect(StatusCode::OK);
    assert_eq!((&overview["reason"], &overview["destination"]["breaker_state"]), (&json!("failing"), &json!("closed")));
    let last = &overview["last_failure"];
    assert_eq!((&last["status_code"], &last["answer"]), (&json!(503), &json!("ok")), "{overview}");
    assert!(last["at"].is_string(), "{last}");
    assert_eq!(overview["failures"], json!([{"error": "503", "count": 8}]));
}

#[tokio::test]
async fn a_delivery_says_when_the_next_probe_of_an_open_breaker_is_sent() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL})).await;
    server.batch(14, &json!({})).await;
    let claimed = server.claim(&id).await;
    let retry_at = server.clock.now() + Duration::from_secs(1);
    for (nth, delivery) in claimed.iter().take(12).enumerate() {
        server.settle(delivery, if nth < 9 { 503 } else { 500 }, Verdict::Retry { at: retry_at }).await;
        server.clock.advance(Duration::from_millis(10));
    }
    server.store.release(claimed[12..].iter().map(|one| one.claim).collect(), server.clock.now()).await.unwrap();
    server.open_breaker(id.parse().unwrap()).await;
    let listed = server.waiting(&format!("destination={id}")).await;
    for delivery in &listed {
        let waits_for = &delivery["waits_for"];
        assert_eq!(waits_for["reason"], "breaker", "{delivery}");
        assert_eq!(seconds_from(server.clock.now(), &waits_for["until"]), 29, "{delivery}");
    }
    let expected = listed.iter().filter(|delivery| !delivery["expected_at"].is_null()).count();
    assert_eq!(expected, 1, "the probe is the first of them: {listed:?}");
    // While the probe is out, nobody knows when the next is sent, and the last one is over.
    server.clock.advance(Duration::from_secs(40));
    let waits_for = &server.waiting(&format!("destination={id}")).await[0]["waits_for"];
    assert_eq!((&waits_for["reason"], &waits_for["until"]), (&json!("breaker"), &Value::Null));

    let overview = server.get(&format!("/v1/destinations/{id}/overview")).await.expect(StatusCode::OK);
    let last = &overview["last_failure"];
    assert_eq!((&last["status_code"], &last["answer"], &last["number"]), (&json!(500), &json!("ok"), &json!(1)));
    assert_eq!(last["delivery_id"], claimed[11].claim.delivery_id.to_string());
    assert_eq!(overview["failures"], json!([{"error": "503", "count": 9}, {"error": "500", "count": 3}]));
}

#[tokio::test]
async fn a_list_for_a_file_measures_no_destination() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL, "rate_limits": [{"limit": 1, "period": "minute"}]})).await;
    server.batch(3, &json!({})).await;
    let rows = async || {
        let mut request = json_request("GET", &format!("/v1/deliveries?destination={id}"), "");
        request.extensions_mut().insert(Unmeasured);
        let list: Value = serde_json::from_slice(&reply(server.router.clone(), request).await.body).unwrap();
        list["data"].as_array().unwrap().clone()
    };
    for row in rows().await {
        let waits_for = &row["waits_for"];
        let found = (&waits_for["reason"], &waits_for["ahead"], &row["expected_at"]);
        assert_eq!(found, (&json!("turn"), &Value::Null, &Value::Null));
    }
    let hold = json!({"for_s": 60, "reason": "maintenance"});
    server.post(&format!("/v1/destinations/{id}/hold"), hold).await.expect(StatusCode::OK);
    assert!(rows().await.iter().all(|row| row["waits_for"]["reason"] == "hold"));
}

#[tokio::test]
async fn a_list_measures_a_few_destinations() {
    let server = Server::start().await;
    for n in 0..12 {
        server.destination(json!({"url": URL, "name": n.to_string()})).await;
    }
    server.event("t").await;
    let listed = server.waiting("").await;
    assert_eq!(listed.len(), 12);
    assert!(listed.iter().all(|delivery| delivery["waits_for"]["reason"] == "turn"), "{listed:?}");
    let counted = |field: fn(&Value) -> &Value| listed.iter().filter(|delivery| !field(delivery).is_null()).count();
    assert_eq!(counted(|delivery| &delivery["waits_for"]["ahead"]), 8);
    assert_eq!(counted(|delivery| &delivery["expected_at"]), 8);
}

#[tokio::test]
async fn a_slow_receiver_is_advised_to_take_more_at_one_time_and_the_preview_agrees() {
    let server = Server::start().await;
    let limits = json!([{"limit": 10, "period": "second"}]);
    let id = server.destination(json!({"url": URL, "rate_limits": limits, "max_in_flight": 2})).await;
    server.batch(150, &json!({})).await;
    // Twenty sends in ten seconds, and all places are taken.
    let claimed = server.claim(&id).await;
    for delivery in &claimed[..20] {
        server.clock.advance(Duration::from_millis(500));
        server.settle_after(delivery, 200, Verdict::Delivered, 1_000).await;
    }
    let overview = server.get(&format!("/v1/destinations/{id}/overview")).await.expect(StatusCode::OK);
    assert_eq!(overview["reason"], "slow", "{overview}");
    // Known to within a tenth.
    let near = |value: &Value, expected: f64| value.as_f64().is_some_and(|value| (value / expected - 1.0).abs() < 0.1);
    assert!(near(&overview["effective_per_s"], 2.0) && near(&overview["answer_time_ms"], 1_000.0), "{overview}");
    let advice = &overview["advice"];
    assert!(advice["setting"] == "max_in_flight" && near(&advice["value"], 12.5), "{advice}");
    assert_eq!(advice["binding"], json!({"limit": 10, "period": "second"}), "then the limit binds");
    let path = format!("/v1/destinations/{id}/preview");
    let preview = server.post(&path, json!({"max_in_flight": advice["value"]})).await.expect(StatusCode::OK);
    assert_eq!(preview["now"]["effective_per_s"], overview["effective_per_s"]);
    assert_eq!(preview["effective_per_s"], advice["effective_per_s"]);
    let row = server.get("/v1/overview").await.expect(StatusCode::OK)["data"][0].clone();
    assert_eq!(row["reason"], "slow");
    assert!(row["effective_per_s"].as_f64().is_some_and(|rate| rate <= 2.5), "the list agrees: {row}");
}

#[tokio::test]
async fn a_limit_is_advised_with_what_raising_it_would_do() {
    let server = Server::start().await;
    let limits = json!([{"limit": 10, "period": "second"}, {"limit": 60, "period": "minute"}]);
    let id = server.destination(json!({"url": URL, "rate_limits": limits})).await;
    server.batch(100, &json!({})).await;
    let overview = server.get(&format!("/v1/destinations/{id}/overview")).await.expect(StatusCode::OK);
    assert_eq!((&overview["reason"], &overview["binding"]["period"]), (&json!("limit"), &json!("minute")));
    let advice = &overview["advice"];
    assert_eq!(
        (&advice["setting"], &advice["value"], &advice["period"]),
        (&json!("limit"), &json!(120), &json!("minute"))
    );
    assert_eq!(advice["effective_per_s"], 1.997);
    let (now, then) = (overview["drain_eta_s"].as_f64().unwrap(), advice["drain_eta_s"].as_f64().unwrap());
    assert!(then < now * 0.6, "{now} s, {then} s");
}

#[tokio::test]
async fn a_limit_in_costs_is_advised_in_costs() {
    let server = Server::start().await;
    let id =
        server.destination(json!({"url": URL, "rate_limits": [{"limit": 60, "period": "minute", "unit": "cost"}]}));
    let id = id.await;
    server.batch(100, &json!({"cost": 5})).await;
    let overview = server.get(&format!("/v1/destinations/{id}/overview")).await.expect(StatusCode::OK);
    let binding = |limit: u32| json!({"limit": limit, "period": "minute", "unit": "cost"});
    assert_eq!(overview["binding"], binding(60), "{overview}");
    let advice = &overview["advice"];
    assert_eq!((&advice["value"], &advice["binding"]), (&json!(120), &binding(120)), "{overview}");
    // 120 points in a minute are 24 sends of 5.
    assert!((0.39..0.401).contains(&advice["effective_per_s"].as_f64().unwrap()), "{advice}");
}

#[tokio::test]
async fn the_arrivals_of_a_flood_are_averaged_over_the_time_that_it_lasts() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL, "rate_limits": [{"limit": 1, "period": "second"}]})).await;
    // Five a second for twenty seconds.
    for _ in 0..20 {
        server.batch(5, &json!({})).await;
        server.clock.advance(Duration::from_secs(1));
    }
    let backlog = server.get(&format!("/v1/destinations/{id}/backlog")).await.expect(StatusCode::OK);
    let arrivals = backlog["arrivals_per_s"].as_f64().unwrap();
    assert!((4.9..5.1).contains(&arrivals), "{backlog}");
    assert_eq!(backlog["drains"], false, "more arrives than is sent: {backlog}");
    let row = server.get("/v1/overview").await.expect(StatusCode::OK)["data"][0].clone();
    assert!(row["arrivals_per_s"].as_f64().is_some_and(|rate| rate > 3.3), "also where only buckets are known: {row}");
    // A few deliveries are no flood.
    let quiet = server.destination(json!({"url": URL, "event_types": ["quiet"]})).await;
    server.event("quiet").await;
    let backlog = server.get(&format!("/v1/destinations/{quiet}/backlog")).await.expect(StatusCode::OK);
    assert_eq!(backlog["arrivals_per_s"], 0.01667);
}
