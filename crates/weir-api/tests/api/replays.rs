//! Replays: count, start, show, cancel and refusals. No scheduler runs: the tests move and send the deliveries
//! themselves.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::outcome::Verdict;

use crate::harness::Server;

const URL: &str = "https://example.com/hooks";

/// A destination with three dead letters and one failed delivery.
async fn with_dead_letters(server: &Server) -> String {
    let destination = server.destination(json!({"url": URL})).await;
    for event_type in ["video.created", "video.clip.cut", "order.paid", "order.refunded"] {
        server.event(event_type).await;
        server.clock.advance(Duration::from_secs(60));
    }
    for (claimed, verdict) in
        server.claim(&destination).await.iter().zip([Verdict::Dead, Verdict::Dead, Verdict::Failed, Verdict::Dead])
    {
        server.settle(claimed, 503, verdict).await;
    }
    server.clock.advance(Duration::from_secs(1));
    destination
}

async fn replay(server: &Server, body: Value) -> Value {
    server.post("/v1/replays", body).await.expect(StatusCode::ACCEPTED)
}

async fn step(server: &Server, replay: &Value) -> u64 {
    let id = replay["id"].as_str().unwrap().parse().unwrap();
    let mut moved = 0;
    loop {
        let step = server.store.step_replay(id, weir_core::Clock::now(&*server.clock)).await.unwrap();
        moved += step.moved;
        if !step.more {
            return moved;
        }
    }
}

#[tokio::test]
async fn a_dry_run_of_a_replay_only_counts() {
    let server = Server::start().await;
    let destination = with_dead_letters(&server).await;
    for (body, total) in [
        (json!({}), 4),
        (json!({"states": ["dead"]}), 3),
        (json!({"states": ["delivered", "cancelled"]}), 0),
        (json!({"event_type": "video.*"}), 2),
        (json!({"event_type": "video.*", "states": ["failed"]}), 0),
        (json!({"tenant": "other"}), 0),
        (json!({"error": "503"}), 4),
        (json!({"error": "timeout"}), 0),
        (json!({"destination": destination, "to": "2026-11-21T07:30:00Z"}), 0),
        (json!({"destination": destination, "from": "2026-11-21T07:30:00Z"}), 4),
    ] {
        let counted = server.post("/v1/replays?dry_run=true", body.clone()).await.expect(StatusCode::OK);
        assert_eq!(counted, json!({ "total": total }), "{body}");
    }
    assert_eq!(server.count("/v1/replays").await, 0);
}

#[tokio::test]
async fn a_replay_is_followed_to_its_end() {
    let server = Server::start().await;
    let destination = with_dead_letters(&server).await;
    let started = replay(&server, json!({"event_type": "video.*", "destination": destination})).await;
    assert_eq!(
        (&started["state"], &started["total"], &started["remaining"]),
        (&json!("running"), &json!(2), &json!(2))
    );
    assert_eq!((&started["states"], &started["event_type"]), (&json!(["dead", "failed"]), &json!("video.*")));
    assert_eq!((&started["eta_s"], &started["ended_at"]), (&Value::Null, &Value::Null));
    assert_eq!(step(&server, &started).await, 2);
    assert_eq!(server.count("/v1/deliveries?state=pending").await, 2);
    assert!(server.claim(&destination).await.is_empty(), "replayed deliveries are claimed separately");
    server.clock.advance(Duration::from_secs(4));
    let path = format!("/v1/replays/{}", started["id"].as_str().unwrap());
    let now = weir_core::Clock::now(&*server.clock);
    let request = server.claim_request(&destination, 1);
    for remaining in [1, 0] {
        let claimed = server.store.claim_replays(vec![request.clone()], now).await.unwrap().remove(0).deliveries;
        assert_eq!((claimed[0].attempts, claimed[0].attempts_before), (1, 1));
        server.settle(&claimed[0], 200, Verdict::Delivered).await;
        let shown = server.get(&path).await.expect(StatusCode::OK);
        assert_eq!((&shown["delivered"], &shown["remaining"]), (&json!(2 - remaining), &json!(remaining)));
        // Four seconds for the first delivery, plus the microseconds of the requests.
        assert_eq!(shown["eta_s"], if remaining == 1 { json!(5) } else { json!(0) });
    }
    step(&server, &started).await;
    let shown = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!((&shown["state"], &shown["delivered"], &shown["eta_s"]), (&json!("completed"), &json!(2), &Value::Null));
    server.post(&format!("{path}/cancel"), "").await.problem(409);
}

/// It gets a small part of the rate while other deliveries wait, so its average so far tells little.
#[tokio::test]
async fn a_replay_to_one_destination_ends_when_all_that_waits_there_is_sent() {
    let server = Server::start().await;
    let destination = with_dead_letters(&server).await;
    let limits = json!({"rate_limits": [{"limit": 2, "period": "second"}]});
    server.patch(&format!("/v1/destinations/{destination}"), limits).await.expect(StatusCode::OK);
    let started = replay(&server, json!({"destination": destination})).await;
    assert_eq!((&started["total"], &started["eta_s"]), (&json!(4), &json!(3)), "{started}");
    assert_eq!(step(&server, &started).await, 4);
    // Without anything delivered, for a long time.
    server.clock.advance(Duration::from_secs(600));
    let shown = server.get(&format!("/v1/replays/{}", started["id"].as_str().unwrap())).await.expect(StatusCode::OK);
    assert_eq!((&shown["delivered"], &shown["eta_s"]), (&json!(0), &json!(3)), "{shown}");
}

#[tokio::test]
async fn a_cancelled_replay_restores_the_previous_states() {
    let server = Server::start().await;
    with_dead_letters(&server).await;
    let first = replay(&server, json!({})).await;
    assert_eq!(step(&server, &first).await, 4);
    let path = format!("/v1/replays/{}/cancel", first["id"].as_str().unwrap());
    for _ in 0..2 {
        let cancelled = server.post(&path, "").await.expect(StatusCode::OK);
        assert_eq!((&cancelled["state"], &cancelled["remaining"]), (&json!("cancelled"), &json!(4)));
        assert!(cancelled["ended_at"].is_string() && cancelled["eta_s"].is_null());
    }
    assert_eq!(server.count("/v1/deliveries?state=dead").await, 3);
    assert_eq!(server.count("/v1/deliveries?state=failed").await, 1);
    server.clock.advance(Duration::from_secs(1));
    let second = replay(&server, json!({})).await;
    assert_eq!(second["total"], 4);
    let page = server.get("/v1/replays?limit=1").await.expect(StatusCode::OK);
    assert_eq!(page["data"][0]["id"], second["id"]);
    let next = format!("/v1/replays?limit=1&cursor={}", page["next_cursor"].as_str().unwrap());
    assert_eq!(server.get(&next).await.expect(StatusCode::OK)["data"][0]["id"], first["id"]);
}

#[tokio::test]
async fn an_invalid_replay_reports_its_errors_and_starts_nothing() {
    let server = Server::start().await;
    with_dead_letters(&server).await;
    for (body, pointers) in [
        (json!({"states": ["dead", "pending", "expired", 7]}), vec!["/states/1", "/states/2", "/states/3"]),
        (json!({"states": []}), vec!["/states"]),
        (
            json!({"event_type": "video*", "from": "yesterday", "destination": "x", "error": "odd", "tenant": "", "id": 1}),
            vec!["/destination", "/tenant", "/event_type", "/error", "/from", "/id"],
        ),
        (json!({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}), vec!["/to"]),
        (json!({"destination": "dst_01h2xcejqtf2nbrexx3vqjhp41"}), vec!["/destination"]),
        (json!([]), vec![""]),
    ] {
        assert_eq!(server.post("/v1/replays", &body).await.pointers(), pointers, "{body}");
    }
    assert_eq!(server.post("/v1/replays?dry_run=yes&colour=red", "{}").await.pointers(), ["/dry_run", "/colour"]);
    assert_eq!(server.count("/v1/replays").await, 0);
    for path in ["/v1/replays/rpl_01h2xcejqtf2nbrexx3vqjhp41/cancel", "/v1/replays/nonsense/cancel"] {
        server.post(path, "").await.problem(404);
    }
    server.get("/v1/replays/rpl_01h2xcejqtf2nbrexx3vqjhp41").await.problem(404);
}

#[tokio::test]
async fn a_replay_without_a_body_is_refused_with_a_hint() {
    let server = Server::start().await;
    with_dead_letters(&server).await;
    for path in ["/v1/replays", "/v1/replays?dry_run=true"] {
        for body in ["", "null"] {
            let problem = server.post(path, body).await.problem(422);
            assert!(problem["detail"].as_str().unwrap().contains("`{}`"), "{problem}");
        }
        let bare = http::Request::post(path).body(axum::body::Body::empty()).unwrap();
        server.send(bare).await.problem(422);
    }
    assert_eq!(server.count("/v1/replays").await, 0);
    assert_eq!(replay(&server, json!({})).await["total"], 4);
}
