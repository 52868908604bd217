//! Reservations: slots of a limit group for callers outside Weir.

use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use weir_core::{Clock as _, Timestamp, limiter::Slot};
use weir_queue::{QueueError, ReserveAnswer, WantedSlot};

use crate::harness::{FOREIGN, OWN, Server};

const LIST: &str = "/v1/limit-groups";

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Server {
    /// Creates a group with this limit a second, and returns the path of its reservations.
    async fn reserving(&self, limit: u32) -> String {
        let limits = json!([{"limit": limit, "period": "second"}]);
        let made = self.post(LIST, json!({"name": "stripe", "rate_limits": limits})).await.expect(StatusCode::CREATED);
        format!("{LIST}/{}/reservations", made["id"].as_str().unwrap())
    }

    /// The next request gets a slot that begins after this time and is 250 ms wide.
    fn grant(&self, after: Duration) -> Timestamp {
        let start = self.clock.now() + after;
        self.reserver.next(Ok(ReserveAnswer::Granted(Slot { start, end: start + ms(250) })));
        start
    }

    async fn reserved(&self, path: &str, after: Duration) -> Value {
        self.grant(after);
        self.post(path, json!({})).await.expect(StatusCode::CREATED)
    }
}

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_slot_is_reserved_and_shown_so_that_a_call_never_starts_before_it() {
    let server = Server::start().await;
    let path = server.reserving(10).await;
    let start = server.grant(Duration::from_micros(40_300));
    let body = json!({"cost": 3, "wait_ms": 2_000, "width_ms": 100});
    let slot = server.post(&path, body).await.expect(StatusCode::CREATED);
    assert_eq!(server.reserver.wanted(), [(WantedSlot { cost: 3, width: ms(100) }, ms(2_000))]);
    let (starts_at, ends_at) = (time(&slot["starts_at"]), time(&slot["ends_at"]));
    assert!(start <= starts_at && starts_at < start + ms(1), "{slot}");
    assert!(ends_at <= start + ms(250) && ends_at > start + ms(249), "{slot}");
    assert!((40..=42).contains(&slot["starts_in_ms"].as_u64().unwrap()), "{slot}");
    assert!((288..=290).contains(&slot["ends_in_ms"].as_u64().unwrap()), "{slot}");
    assert_eq!((&slot["cost"], &slot["took_ms"]), (&json!(3), &json!(0)));
    assert!(path.contains(slot["limit_group"].as_str().unwrap()));
    // By its name, and with an empty body.
    server.grant(ms(1));
    let named = Request::post(format!("{LIST}/by-name/default/stripe/reservations")).body(Body::empty()).unwrap();
    server.send(named).await.expect(StatusCode::CREATED);
    assert_eq!(server.reserver.wanted(), [(WantedSlot { cost: 1, width: ms(250) }, ms(0))]);
    server.post(&format!("{LIST}/by-name/default/other/reservations"), json!({})).await.problem(404);
    for (body, pointer) in [
        (json!({"cost": 0}), "/cost"),
        (json!({"cost": 1_001}), "/cost"),
        (json!({"wait_ms": 30_001}), "/wait_ms"),
        (json!({"width_ms": 9}), "/width_ms"),
        (json!({"width_ms": 2_501}), "/width_ms"),
        (json!({"wait": 1}), "/wait"),
    ] {
        assert_eq!(server.post(&path, &body).await.pointers(), [pointer], "{body}");
    }
    assert_eq!(server.reserver.wanted(), []);
}

#[tokio::test]
async fn without_a_slot_the_answer_says_when_there_is_one_and_what_helps() {
    let server = Server::start().await;
    let path = server.reserving(10).await;
    let next_at = server.clock.now() + ms(1_500);
    server.reserver.next(Ok(ReserveAnswer::Later(next_at)));
    let refused = server.post(&path, json!({})).await;
    assert_eq!(refused.header("retry-after"), "2");
    let problem = refused.problem(429);
    assert_eq!(problem["type"], "/docs#problem-no-slot");
    assert_eq!(time(&problem["next_at"]).as_millis(), next_at.as_millis());
    server.reserver.next(Ok(ReserveAnswer::AboveLimit));
    let refused = server.post(&path, json!({"cost": 11})).await;
    assert_eq!(refused.pointers(), ["/cost"]);
    server.reserver.next(Ok(ReserveAnswer::TooMany));
    let refused = server.post(&path, json!({})).await;
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(refused.problem(503)["reason"], "class");
    server.reserver.next(Err(QueueError::NotSent("127.0.0.1".to_owned()).into()));
    let problem = server.post(&path, json!({})).await.problem(503);
    assert!(!problem.to_string().contains("127.0.0.1"), "{problem}");
    assert_eq!(server.count(&path).await, 0, "nothing was taken");
}

#[tokio::test]
async fn a_slot_is_given_back_once_and_only_before_it_starts() {
    let server = Server::start().await;
    let path = server.reserving(10).await;
    let start = server.grant(ms(80));
    let slot = server.post(&path, json!({"cost": 2})).await.expect(StatusCode::CREATED);
    let one = format!("{path}/{}", slot["id"].as_str().unwrap());
    assert_eq!(server.delete(&one).await.status, StatusCode::NO_CONTENT);
    assert_eq!(server.reserver.given_back(), [(2, start)]);
    // Its slot may be another caller's by now, so a repeated request gives nothing back.
    assert_eq!(server.delete(&one).await.status, StatusCode::NO_CONTENT);
    assert_eq!(server.reserver.given_back(), []);
    let begun = server.reserved(&path, ms(0)).await;
    server.delete(&format!("{path}/{}", begun["id"].as_str().unwrap())).await.problem(409);
    server.delete(&format!("{path}/rsv_01h2xcejqtf2nbrexx3vqjhp41")).await.problem(404);
    assert_eq!(server.reserver.given_back(), []);
    let coming = server.reserved(&path, ms(90)).await;
    let shown = server.get(&path).await.expect(StatusCode::OK);
    let rows: Vec<_> =
        shown["data"].as_array().unwrap().iter().map(|row| (&row["id"], row["state"].as_str().unwrap())).collect();
    assert_eq!(rows, [(&coming["id"], "coming"), (&slot["id"], "given_back"), (&begun["id"], "coming")]);
    server.clock.advance(ms(500));
    let shown = server.get(&format!("{path}?limit=1")).await.expect(StatusCode::OK);
    assert_eq!((&shown["data"][0]["state"], shown["next_cursor"].is_string()), (&json!("over"), true));
}

#[tokio::test]
async fn a_slot_whose_caller_goes_away_before_it_learns_of_it_is_given_back() {
    let server = Server::start().await;
    let path = server.reserving(10).await;
    let start = server.grant(ms(90));
    server.reserver.hesitate();
    tokio::select! {
        () = server.reserver.asked() => {}
        reply = server.post(&path, json!({})) => panic!("the queue has not confirmed it yet: {reply:?}"),
    }
    // It was called for the slot, and then gets it back.
    server.reserver.called().await;
    server.reserver.called().await;
    assert_eq!(server.reserver.given_back(), [(1, start)]);
    let shown = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!(shown["data"][0]["state"], "given_back");
}

#[tokio::test]
async fn a_slot_that_the_queue_has_lost_before_its_row_was_stored_is_not_told() {
    let server = Server::start().await;
    let path = server.reserving(10).await;
    server.reserver.lose();
    server.grant(ms(90));
    server.post(&path, json!({})).await.problem(503);
    let shown = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!(shown["data"][0]["state"], "given_back");
}

#[tokio::test]
async fn a_request_that_waits_leaves_its_place_among_the_requests() {
    let server = Server::start().await;
    let path = server.reserving(10).await;
    server.reserver.wait();
    for (wait_ms, expected) in [(30_000, 0), (0, 1)] {
        let looked = async {
            server.reserver.called().await;
            server.in_flight("ingest").await
        };
        tokio::select! {
            reply = server.post(&path, json!({"wait_ms": wait_ms})) => panic!("it waits: {reply:?}"),
            found = looked => assert_eq!(found, expected),
        }
    }
}

#[tokio::test]
async fn an_ingest_key_reserves_in_the_groups_of_its_tenant() {
    let server = Server::with_keys().await;
    let ids = |value: &Value| format!("{LIST}/{}/reservations", value["id"].as_str().unwrap());
    let own = ids(&server.root("POST", LIST, json!({"name": "a", "tenant": OWN})).await);
    let foreign = ids(&server.root("POST", LIST, json!({"name": "a", "tenant": FOREIGN})).await);
    let all = ids(&server.root("POST", LIST, json!({"name": "a", "tenant": null})).await);
    let (bound, free) = (server.key("ingest", json!([OWN])).await, server.key("ingest", Value::Null).await);
    let by_name = |tenant: &str| format!("{LIST}/by-name/{tenant}/a/reservations");
    for (key, path, expected) in [
        (&bound, own.clone(), 201),
        (&bound, by_name(OWN), 201),
        (&bound, foreign.clone(), 404),
        (&bound, by_name(FOREIGN), 404),
        (&bound, all.clone(), 404),
        (&bound, by_name("*"), 404),
        (&free, foreign, 201),
        (&free, by_name("*"), 201),
    ] {
        server.grant(ms(5));
        let reply = server.ask(key, "POST", &path, Some(&json!({}))).await;
        assert_eq!(reply.status.as_u16(), expected, "{path}: {reply:?}");
    }
    server.ask(&bound, "GET", &own, None).await.problem(403);
}

#[tokio::test]
async fn the_audit_of_a_group_counts_reservations_at_the_end_of_their_slots() {
    let server = Server::start().await;
    let path = server.reserving(3).await;
    let group = path.trim_end_matches("/reservations");
    for after in [0, 100, 200] {
        server.reserved(&path, ms(after)).await;
    }
    let slot = server.reserved(&path, ms(300)).await;
    let audit = async || server.get(&format!("{group}/audit")).await.expect(StatusCode::OK);
    let judged = audit().await;
    assert_eq!(judged["sends"], 4);
    let limit = &judged["rate_limits"][0];
    assert_eq!((&limit["violations"], &limit["possible_violations"]), (&json!(0), &json!(1)), "{judged}");
    server.delete(&format!("{path}/{}", slot["id"].as_str().unwrap())).await;
    let judged = audit().await;
    assert_eq!((&judged["sends"], &judged["rate_limits"][0]["possible_violations"]), (&json!(3), &json!(0)));
    server.clock.advance(ms(1_000));
    let shown = server.get(&format!("{group}/overview")).await.expect(StatusCode::OK);
    assert_eq!(shown["reservations"], json!({"last_minute": 3, "per_s": 0.05}));
}
