//! Weir while Redis or PostgreSQL is down, and its recovery by itself: no process of Weir is restarted here.

use std::{collections::HashSet, time::Duration};

use reqwest::header::RETRY_AFTER;
use serde_json::{Value, json};
use weir_test_support::Postgres;

use crate::support::{
    Answer, App, Fleet, Receiver, assert_cap,
    cases::{destination, limit},
    eventually, now,
};

const SECOND: Duration = Duration::from_secs(1);

/// Posts one event. Returns its id, or the status and the `Retry-After` of the refusal.
async fn post(api: &App, event_type: &str) -> Result<String, (u16, Option<String>)> {
    let body = json!({"type": event_type, "data": 1});
    let response = api.http.post(format!("{}/v1/events", api.url)).json(&body).send().await.expect("an answer");
    let status = response.status().as_u16();
    if status != 202 {
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        return Err((status, after));
    }
    let body: Value = response.json().await.expect("JSON");
    Ok(body["id"].as_str().expect("an id").to_owned())
}

async fn wait_for_readiness(app: &App, status: u16) {
    eventually(&format!("/readyz answers {status}"), Duration::from_secs(10), async || {
        app.status("/readyz").await == status
    })
    .await;
}

fn arrived(receiver: &Receiver, path: &str) -> HashSet<String> {
    receiver.arrivals(path).iter().map(|arrival| arrival.header("webhook-id").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_events_are_accepted_and_delivery_resumes_when_it_is_back() {
    let (mut fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let api = fleet.launch("api").await;
    let (scheduler, worker) = (fleet.launch("scheduler").await, fleet.launch("worker").await);
    let limits = [(50, "second"), (600, "minute")];
    let mut ids = Vec::new();
    for (rate, period) in limits {
        ids.push(destination(&api, &receiver, &format!("/{period}"), limit(rate, period)).await);
    }
    api.events("second", 400).await;
    api.events("minute", 60).await;
    receiver.wait_for("/second", 100, Duration::from_secs(10)).await;

    fleet.redis.kill().await.unwrap();
    for app in [&scheduler, &worker] {
        wait_for_readiness(app, 503).await;
    }
    let mut accepted = Vec::new();
    for _ in 0..20 {
        let posted = now();
        accepted.push(post(&api, "second").await.expect("events are accepted without Redis"));
        assert!(posted.elapsed() < SECOND, "answered after {:?}", posted.elapsed());
    }
    assert_eq!(api.status("/readyz").await, 200, "the API is ready without Redis");
    // Sends that had a slot when Redis died may still start, but none three seconds later.
    tokio::time::sleep(SECOND * 3).await;
    let held = receiver.total();
    tokio::time::sleep(SECOND * 2).await;
    assert_eq!(receiver.total(), held, "without Redis nothing is sent");

    fleet.redis.start_again().await.unwrap();
    for app in [&scheduler, &worker] {
        wait_for_readiness(app, 200).await;
    }
    eventually("delivery resumes", Duration::from_secs(15), async || receiver.total() > held + 100).await;
    for id in &ids {
        api.drained(id, Duration::from_secs(90)).await;
    }
    assert!(
        accepted.iter().all(|id| arrived(&receiver, "/second").contains(id)),
        "events accepted during the outage arrive"
    );
    assert_eq!((arrived(&receiver, "/second").len(), arrived(&receiver, "/minute").len()), (420, 60));
    for id in &ids {
        api.assert_audit_clean(id).await;
    }
    assert_cap(&receiver.arrivals("/second"), 50, SECOND);
    assert_cap(&receiver.arrivals("/minute"), 600, SECOND * 60);
    assert_eq!(receiver.total(), 480, "sends were recorded during the outage, so nothing is sent twice");
    eventually("the queue is empty", SECOND * 5, async || fleet.entries().await == "0 0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_redis_does_not_delay_the_acceptance_of_events() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await];
    let id = destination(&api, &receiver, "/hangs", limit(50, "second")).await;
    post(&api, "hangs").await.expect("events are accepted");
    receiver.wait_for("/hangs", 1, Duration::from_secs(10)).await;

    fleet.redis.signal("STOP").await.unwrap();
    let hangs_since = now();
    let mut posts = 1;
    // Longer than any connection timeout.
    while hangs_since.elapsed() < SECOND * 5 {
        let posted = now();
        post(&api, "hangs").await.expect("events are accepted although Redis hangs");
        assert!(posted.elapsed() < SECOND, "answered after {:?}", posted.elapsed());
        posts += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    fleet.redis.signal("CONT").await.unwrap();
    receiver.wait_for("/hangs", posts, Duration::from_secs(30)).await;
    api.drained(&id, Duration::from_secs(10)).await;
    api.assert_audit_clean(&id).await;
    assert_eq!(receiver.count("/hangs"), posts, "each event is sent once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_events_are_refused_and_delivery_resumes_without_duplicates_when_it_is_back() {
    let mut postgres = Postgres::start().await.unwrap();
    let (fleet, receiver) = (Fleet::on(postgres.url()).await, Receiver::start().await);
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await];
    // Slow answers keep many sends in flight.
    receiver.script("/away", [Answer::status(200).after(Duration::from_millis(500))]);
    let id = destination(&api, &receiver, "/away", limit(50, "second")).await;
    let mut accepted = HashSet::new();
    for _ in 0..300 {
        accepted.insert(post(&api, "away").await.expect("events are accepted"));
    }
    receiver.wait_for("/away", 50, Duration::from_secs(30)).await;

    postgres.stop().await.unwrap();
    for _ in 0..5 {
        let posted = now();
        let (status, after) = post(&api, "away").await.expect_err("nothing can be stored");
        assert_eq!(status, 503);
        assert!(after.is_some_and(|seconds| seconds.parse::<u32>().is_ok()), "a 503 says when to try again");
        assert!(posted.elapsed() < SECOND, "refused after {:?}", posted.elapsed());
    }
    assert_eq!(api.status("/readyz").await, 503, "the API is not ready without PostgreSQL");
    tokio::time::sleep(SECOND * 3).await;

    postgres.start_again().await.unwrap();
    eventually("events are accepted again", Duration::from_secs(10), async || match post(&api, "away").await {
        Ok(id) => accepted.insert(id),
        Err(_) => false,
    })
    .await;
    // Reads use other connections, which are tried again within a second.
    let path = format!("/v1/destinations/{id}/backlog");
    eventually("reads are answered again", Duration::from_secs(10), async || api.try_get(&path).await.is_some()).await;
    api.drained(&id, Duration::from_secs(90)).await;
    let arrivals = receiver.arrivals("/away");
    assert_eq!(arrived(&receiver, "/away"), accepted, "every accepted event arrives, and no other");
    assert_eq!(arrivals.len(), accepted.len(), "earlier sends are recorded when PostgreSQL is back");
    api.assert_audit_clean(&id).await;
    assert_cap(&arrivals, 50, SECOND);
    eventually("the queue is empty", SECOND * 5, async || fleet.entries().await == "0 0").await;
}
