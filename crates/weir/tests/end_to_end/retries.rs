//! The effect of each answer on a delivery. Every retry counts against the limit.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use weir_core::Timestamp;

use crate::{
    refusals,
    support::{Answer, App, Fleet, Receiver, assert_cap, eventually, receiver::AnswerBody},
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Settings of a destination with fast retries.
pub(crate) fn settings(receiver: &Receiver, path: &str) -> Value {
    json!({
        "url": receiver.url(path),
        "event_types": [path.trim_start_matches('/')],
        "timeout_ms": 500,
        "retry": {"max_attempts": 3, "schedule_ms": [50]},
    })
}

/// Waits until the only delivery of a destination has ended, and returns it with its attempts.
pub(crate) async fn ended(app: &App, destination: &str) -> Value {
    let mut id = String::new();
    eventually("the delivery ends", Duration::from_secs(15), async || {
        let page = app.get(&format!("/v1/deliveries?destination={destination}")).await;
        let Some(delivery) = page["data"].as_array().and_then(|rows| rows.first().cloned()) else { return false };
        id = delivery["id"].as_str().unwrap().to_owned();
        ["delivered", "failed", "dead", "cancelled"].contains(&delivery["state"].as_str().unwrap())
    })
    .await;
    app.get(&format!("/v1/deliveries/{id}")).await
}

async fn each_status_leads_to_its_state(app: &App) {
    let receiver = Receiver::start().await;
    let table = [
        (200, "delivered", 1),
        (204, "delivered", 1),
        (301, "failed", 1),
        (302, "failed", 1),
        (400, "failed", 1),
        (404, "failed", 1),
        (410, "failed", 1),
        (408, "dead", 3),
        (425, "dead", 3),
        (500, "dead", 3),
        (503, "dead", 3),
    ];
    let mut destinations = Vec::new();
    for (status, _, _) in table {
        let path = format!("/status-{status}");
        receiver.script(&path, [Answer::status(status).header("location", "/elsewhere")]);
        destinations.push(app.destination(settings(&receiver, &path)).await);
        app.event(path.trim_start_matches('/')).await;
    }
    for ((status, state, attempts), id) in table.into_iter().zip(&destinations) {
        let delivery = ended(app, id).await;
        assert_eq!(
            (delivery["state"].as_str(), delivery["attempts"].as_array().unwrap().len()),
            (Some(state), attempts),
            "{status}: {delivery}"
        );
        assert_eq!(receiver.count(&format!("/status-{status}")), attempts, "{status}");
        let first = &delivery["attempts"][0];
        assert_eq!(
            (first["status_code"].as_u64(), first["number"].as_u64()),
            (Some(status.into()), Some(1)),
            "{first}"
        );
    }
    assert_eq!(receiver.count("/elsewhere"), 0, "redirects are not followed");
    let gone = app.get(&format!("/v1/destinations/{}", destinations[6])).await;
    assert_eq!(gone["paused"], true, "410 pauses the destination: {gone}");
    assert!(gone["paused_reason"].as_str().unwrap().contains("410"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_status_leads_to_the_state_of_the_retry_table() {
    let folder = tempfile::tempdir().unwrap();
    each_status_leads_to_its_state(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeouts_refusals_and_floods_are_retried_or_cut() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    receiver.script("/hangs", [Answer::status(200).after(Duration::from_secs(30))]);
    receiver.script("/drips", [Answer::status(200).body(AnswerBody::Drip(Duration::from_millis(50)))]);
    receiver.script("/floods", [Answer::status(200).body(AnswerBody::Large(64 << 20))]);
    let hangs = app.destination(settings(&receiver, "/hangs")).await;
    let drips = app.destination(settings(&receiver, "/drips")).await;
    let floods = app.destination(settings(&receiver, "/floods")).await;
    let mut refusing = settings(&receiver, "/refuses");
    refusing["url"] = json!("http://127.0.0.1:1/refuses");
    let refuses = app.destination(refusing).await;
    for event_type in ["hangs", "drips", "floods", "refuses"] {
        app.event(event_type).await;
    }
    let hung = ended(&app, &hangs).await;
    assert_eq!((hung["state"].as_str(), receiver.count("/hangs")), (Some("dead"), 3));
    assert!(hung["attempts"][0]["error"].as_str().unwrap().contains("500 ms"), "{hung}");
    let dripped = ended(&app, &drips).await;
    assert_eq!(
        (dripped["state"].as_str(), receiver.count("/drips")),
        (Some("delivered"), 1),
        "the status in the head counts"
    );
    let duration_ms = dripped["attempts"][0]["duration_ms"].as_u64().unwrap();
    assert!((450..3_000).contains(&duration_ms), "the body is read at most until the timeout: {dripped}");
    assert!(dripped["attempts"][0]["error"].is_string(), "the cut is recorded: {dripped}");
    let flooded = ended(&app, &floods).await;
    assert_eq!(flooded["state"], "delivered");
    assert_eq!(flooded["attempts"][0]["response_body"].as_str().unwrap().len(), 1 << 10);
    let signed: Timestamp = flooded["attempts"][0]["signed_at"].as_str().unwrap().parse().unwrap();
    let arrival = &receiver.arrivals("/floods")[0];
    assert_eq!(signed.as_secs().to_string(), arrival.header("webhook-timestamp"));
    assert_eq!(flooded["attempts"][0]["remote_address"], receiver.address.to_string());
    let refused = ended(&app, &refuses).await;
    assert_eq!(refused["state"], "dead");
    assert_eq!(refused["attempts"][0]["sent_at"], Value::Null, "nothing was sent: {refused}");
    assert_eq!(refused["attempts"][0]["signed_at"], Value::Null, "nothing was signed: {refused}");
    assert!(refused["attempts"][0]["error"].as_str().unwrap().contains("refused"), "{refused}");
}

async fn retry_after_holds(app: &App) {
    let receiver = Receiver::start().await;
    receiver.script("/asked", [Answer::status(429).header("retry-after", "2"), Answer::status(200)]);
    let mut asked = settings(&receiver, "/asked");
    asked["rate_limits"] = json!([{"limit": 20, "period": "second"}]);
    asked["max_in_flight"] = json!(1);
    let id = app.destination(asked).await;
    app.events("asked", 10).await;
    let arrivals = receiver.wait_for("/asked", 11, Duration::from_secs(15)).await;
    let held = arrivals[1].at - arrivals[0].at;
    assert!(held >= Duration::from_millis(1_990), "the next send came after {held:?}");
    assert!(held <= Duration::from_millis(2_500), "the hold ends: {held:?}");
    assert_cap(&arrivals, 20, SECOND);
    app.drained(&id, Duration::from_secs(5)).await;
    app.assert_audit_clean(&id).await;
}

async fn a_used_up_rate_limit_holds(app: &App) {
    let receiver = Receiver::start().await;
    let used_up = Answer::status(200).header("ratelimit", r#""default";r=0;t=2"#);
    receiver.script("/counted", [used_up, Answer::status(200).header("ratelimit", r#""default";r=9;t=60"#)]);
    let mut counted = settings(&receiver, "/counted");
    counted["max_in_flight"] = json!(1);
    let id = app.destination(counted).await;
    app.events("counted", 10).await;
    eventually("the hold is shown", Duration::from_secs(5), async || {
        let shown = app.get(&format!("/v1/destinations/{id}")).await;
        shown["held_reason"].as_str().is_some_and(|reason| reason.contains("rate limit"))
    })
    .await;
    let arrivals = receiver.wait_for("/counted", 10, Duration::from_secs(15)).await;
    let held = arrivals[1].at - arrivals[0].at;
    assert!(held >= Duration::from_millis(1_990), "the next send came after {held:?}");
    app.drained(&id, Duration::from_secs(5)).await;
}

async fn retry_after_as_a_date_holds(app: &App) {
    let receiver = Receiver::start().await;
    let far = "Fri, 31 Dec 2100 23:59:59 GMT";
    receiver.script("/dated", [Answer::status(503).header("retry-after", far)]);
    let id = app.destination(settings(&receiver, "/dated")).await;
    app.events("dated", 3).await;
    eventually("the hold is shown", Duration::from_secs(5), async || {
        app.get(&format!("/v1/destinations/{id}")).await["held_until"].is_string()
    })
    .await;
    let held = app.get(&format!("/v1/destinations/{id}")).await;
    assert!(held["held_reason"].as_str().unwrap().contains("503"), "{held}");
    let count = receiver.count("/dated");
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(receiver.count("/dated"), count, "a date far in the future holds for an hour");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manual_retry_goes_out_again_and_a_cancelled_delivery_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    receiver.script("/manual", [Answer::status(400), Answer::status(200)]);
    let id = app.destination(settings(&receiver, "/manual")).await;
    app.event("manual").await;
    let failed = ended(&app, &id).await;
    assert_eq!(failed["state"], "failed");
    let delivery = failed["id"].as_str().unwrap();
    let (status, _) = app.request(reqwest::Method::POST, &format!("/v1/deliveries/{delivery}/retry"), None).await;
    assert_eq!(status, 202);
    eventually("it is delivered", Duration::from_secs(5), async || {
        app.get(&format!("/v1/deliveries/{delivery}")).await["state"] == "delivered"
    })
    .await;
    let arrivals = receiver.arrivals("/manual");
    assert_eq!(arrivals[0].header("webhook-id"), arrivals[1].header("webhook-id"));

    app.patch(&id, json!({"paused": true})).await;
    app.event("manual").await;
    let page = app.get(&format!("/v1/deliveries?destination={id}&state=pending")).await;
    let pending = page["data"][0]["id"].as_str().unwrap().to_owned();
    let (status, body) = app.request(reqwest::Method::POST, &format!("/v1/deliveries/{pending}/cancel"), None).await;
    assert_eq!(status, 202, "{body}");
    app.patch(&id, json!({"paused": false})).await;
    app.drained(&id, Duration::from_secs(5)).await;
    assert_eq!(receiver.count("/manual"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_destination_gets_nothing_more_and_keeps_its_history() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    let mut deleted = settings(&receiver, "/deleted");
    deleted["rate_limits"] = json!([{"limit": 10, "period": "second"}]);
    let id = app.destination(deleted).await;
    app.events("deleted", 100).await;
    receiver.wait_for("/deleted", 5, Duration::from_secs(5)).await;
    let (status, _) = app.request(reqwest::Method::DELETE, &format!("/v1/destinations/{id}"), None).await;
    assert_eq!(status, 204);
    tokio::time::sleep(Duration::from_millis(150)).await;
    let count = receiver.count("/deleted");
    tokio::time::sleep(SECOND).await;
    assert_eq!(receiver.count("/deleted"), count);
    let page = app.get(&format!("/v1/deliveries?destination={id}&state=cancelled&limit=200")).await;
    assert_eq!(page["data"].as_array().unwrap().len(), 100 - count);
    let (status, _) = app.request(reqwest::Method::GET, &format!("/v1/destinations/{id}"), None).await;
    assert_eq!(status, 404);
}

/// A server that closes a connection three seconds after an answer, without announcing it, as many servers do.
async fn closes_after_three_seconds() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut read = Vec::new();
                while let Ok(Ok(1..)) = tokio::time::timeout(SECOND * 3, stream.read_buf(&mut read)).await {
                    // Only the end of a request's body contains this.
                    if read.ends_with(b"{\"n\":1}}") {
                        read.clear();
                        let answered = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                        answered.unwrap();
                    }
                }
            });
        }
    });
    address
}

/// These tests judge times.
mod timed {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn retry_after_in_seconds_holds_the_whole_destination() {
        let folder = tempfile::tempdir().unwrap();
        retry_after_holds(&App::start(folder.path()).await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_rate_limit_that_is_used_up_holds_the_whole_destination() {
        let folder = tempfile::tempdir().unwrap();
        a_used_up_rate_limit_holds(&App::start(folder.path()).await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn retry_after_as_a_date_holds_too_and_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        retry_after_as_a_date_holds(&App::start(folder.path()).await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn retries_share_the_cap_with_first_tries() {
        let folder = tempfile::tempdir().unwrap();
        let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
        receiver.script("/flaky", (0..40).map(|_| Answer::status(500)).chain([Answer::status(200)]));
        let id = app
            .destination(json!({
                "url": receiver.url("/flaky"),
                "rate_limits": [{"limit": 25, "period": "second"}],
                "retry": {"max_attempts": 10, "base_ms": 20, "cap_ms": 200},
                "breaker": null,
            }))
            .await;
        app.events("flaky", 60).await;
        let arrivals = receiver.wait_for("/flaky", 100, Duration::from_secs(20)).await;
        assert_cap(&arrivals, 25, SECOND);
        app.drained(&id, Duration::from_secs(10)).await;
        app.assert_audit_clean(&id).await;
        assert_eq!(receiver.count("/flaky"), 100, "60 deliveries and 40 retries");
        let attempts: Vec<_> = arrivals.iter().map(|arrival| arrival.header("weir-attempt").to_owned()).collect();
        assert!(attempts.iter().any(|number| number == "2"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn answers_control_the_sends_of_all_processes() {
        let fleet = Fleet::new().await;
        let api = fleet.launch("api").await;
        let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await, fleet.launch("worker").await];
        each_status_leads_to_its_state(&api).await;
        retry_after_holds(&api).await;
        a_used_up_rate_limit_holds(&api).await;
        retry_after_as_a_date_holds(&api).await;
        refusals::refusals_count_only_if_the_destination_says_so(&api).await;
        refusals::refusals_in_a_row_do_not_open_the_breaker(&api).await;
        refusals::an_announcement_of_our_own_limit_costs_nothing(&api).await;
    }

    /// At 20 a minute, each request comes when the server is closing the connection of the previous one.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_closes_its_connections_as_the_next_request_comes_costs_no_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let app = App::start(folder.path()).await;
        let url = format!("http://{}/closing", closes_after_three_seconds().await);
        let limits = json!([{"limit": 20, "period": "minute"}, {"limit": 1, "period": "second"}]);
        let id = app.destination(json!({"url": url, "rate_limits": limits})).await;
        for _ in 0..6 {
            app.event("closing").await;
        }
        app.drained(&id, SECOND * 40).await;
        let deliveries = app.get("/v1/deliveries?limit=200").await;
        let failed: Vec<_> =
            deliveries["data"].as_array().unwrap().iter().filter(|one| one["state"] != "delivered").collect();
        assert_eq!(failed, Vec::<&Value>::new());
        // One request may still meet the close and be repeated in the next slot.
        let attempts: u64 =
            deliveries["data"].as_array().unwrap().iter().map(|one| one["attempt_count"].as_u64().unwrap()).sum();
        assert!(attempts <= 7, "{attempts} attempts for 6 events: {deliveries}");
        let audit = app.audit(&id).await;
        assert_eq!(audit["rate_limits"][0]["violations"], 0, "{audit}");
    }
}
