//! Too many requests: which are refused, with what answer, and who may set the limits.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_api::SettingKeys;
use weir_core::shed::Mode;

use crate::{
    bounds::Open,
    harness::{Options, ROOT, Reply, Server},
};

const PATH: &str = "/v1/shedding";
/// The first half of an event.
const HALF: &str = r#"{"type":"t","#;
const REST: &str = r#""data":7}"#;

async fn in_mode(shed: Mode) -> Server {
    Server::start_with(Options { api_keys: SettingKeys::new([ROOT]), shed, ..Options::default() }).await
}

impl Server {
    async fn shedding(&self) -> Value {
        self.ask(ROOT, "GET", PATH, None).await.expect(StatusCode::OK)
    }

    async fn limit(&self, limits: Value) -> Reply {
        self.ask(ROOT, "PUT", PATH, Some(&limits)).await
    }

    /// The requests of a class in flight.
    pub(crate) async fn in_flight(&self, class: &str) -> Value {
        let shown = self.shedding().await;
        let classes = shown["now"]["classes"].as_array().unwrap().clone();
        classes.into_iter().find(|of| of["class"] == class).unwrap()["in_flight"].clone()
    }
}

#[tokio::test]
async fn a_full_class_is_503_before_the_body_is_read_and_control_and_health_go_on() {
    let server = in_mode(Mode::On).await;
    server.limit(json!({"classes": {"ingest": {"in_flight": 2}}})).await.expect(StatusCode::OK);
    let (one, other) = (server.key("ingest", Value::Null).await, server.key("ingest", Value::Null).await);
    let open = [Open::begin(&server, &one, None, HALF), Open::begin(&server, &other, None, HALF)];
    // The body of this one never comes.
    let (refused, _sender) = crate::bounds::arriving(ROOT, None);
    let refused = server.send(refused).await;
    let problem = refused.problem(503);
    assert_eq!((&problem["type"], &problem["reason"]), (&json!("/docs#problem-overloaded"), &json!("class")));
    assert!((1..=31).contains(&refused.header("retry-after").parse::<u32>().unwrap()));
    assert_eq!(refused.header("ratelimit-policy"), r#""ingest";q=2;qu="concurrent-requests""#);
    assert!(refused.header("ratelimit").starts_with(r#""ingest";r=0;t="#));
    for path in ["/healthz", "/readyz", "/docs"] {
        assert_eq!(server.get(path).await.status, StatusCode::OK, "{path}");
    }
    server.root("POST", "/v1/destinations", json!({"url": "https://example.com/"})).await;
    for open in open {
        open.end(REST).await.expect(StatusCode::ACCEPTED);
    }
    assert_eq!(server.in_flight("ingest").await, 0);
    server.root("POST", "/v1/events", json!({"type": "t", "data": 1})).await;
}

#[tokio::test]
async fn a_limit_of_a_client_is_429_and_says_beforehand_how_much_is_left() {
    let server = in_mode(Mode::On).await;
    let limits = json!({"clients": {"overrides": [{"tenant": "acme", "in_flight": 2}]}});
    server.limit(limits).await.expect(StatusCode::OK);
    let (bound, other) = (server.key("ingest", json!(["acme"])).await, server.key("ingest", Value::Null).await);
    let first = Open::begin(&server, &bound, None, HALF);
    let second = Open::begin(&server, &bound, None, HALF);
    let event = json!({"type": "t", "data": 1});
    let refused = server.ask(&bound, "POST", "/v1/events", Some(&event)).await;
    let problem = refused.problem(429);
    assert_eq!((&problem["type"], &problem["reason"]), (&json!("/docs#problem-too-many"), &json!("client")));
    assert_eq!(refused.header("ratelimit-policy"), r#""client";q=2;qu="concurrent-requests""#);
    assert_ne!(refused.header("retry-after"), "");
    server.ask(&other, "POST", "/v1/events", Some(&event)).await.expect(StatusCode::ACCEPTED);
    let answered = second.end(REST).await;
    answered.expect(StatusCode::ACCEPTED);
    assert_eq!(answered.header("ratelimit"), r#""client";r=0;t=1"#, "as it was let in, nothing was left");
    let answered = first.end(REST).await;
    assert_eq!(answered.header("ratelimit"), "", "half was left");
}

#[tokio::test]
async fn ten_thousand_aborted_posts_leave_nothing_in_flight() {
    let server = in_mode(Mode::On).await;
    let key = server.key("ingest", Value::Null).await;
    for _ in 0..100 {
        let open: Vec<_> = (0..100).map(|_| Open::begin(&server, &key, None, HALF)).collect();
        assert_eq!(server.in_flight("ingest").await, 100);
        drop(open);
    }
    assert_eq!(server.in_flight("ingest").await, 0);
    let client = &server.shedding().await["now"]["clients"];
    assert!(client.as_array().unwrap().iter().all(|client| client["in_flight"] == 0), "{client}");
}

#[tokio::test]
async fn a_dry_run_refuses_nothing_and_suggests_limits() {
    let server = in_mode(Mode::DryRun).await;
    server.limit(json!({"classes": {"ingest": {"in_flight": 4}}})).await.expect(StatusCode::OK);
    let key = server.key("ingest", Value::Null).await;
    let open: Vec<_> = (0..10).map(|_| Open::begin(&server, &key, None, HALF)).collect();
    for open in open {
        open.end(REST).await.expect(StatusCode::ACCEPTED);
    }
    server.clock.advance(Duration::from_secs(2));
    let shown = server.shedding().await;
    assert_eq!((&shown["mode"], &shown["now"]["mode"]), (&Value::Null, &json!("dry-run")));
    let of_ingest = &shown["now"]["classes"][1];
    let figures = |of: &Value| [&of["peak_p99"], &of["peak_max"], &of["suggested"]].map(|it| it.as_u64());
    assert_eq!(figures(of_ingest), [Some(10), Some(10), Some(15)], "{of_ingest}");
    let client = &shown["now"]["clients"][0];
    assert_eq!((&client["name"], &client["refused"]), (&json!("ingest"), &json!(7)), "more than its share");
    // `off` decides nothing, so nothing is counted.
    server.limit(json!({"mode": "off"})).await.expect(StatusCode::OK);
    let _open = Open::begin(&server, &key, None, HALF);
    assert_eq!(server.in_flight("ingest").await, 0);
}

#[tokio::test]
async fn limits_are_replaced_as_a_whole_and_none_may_refuse_everything() {
    let server = in_mode(Mode::On).await;
    let automatic = server.shedding().await;
    assert_eq!(automatic["target_ms"], 250);
    assert_eq!(automatic["clients"], json!({"default": {"in_flight": null, "weight": 1}, "overrides": []}));
    assert_eq!(automatic["classes"]["ingest"], json!({"in_flight": null}));
    let limits: Vec<_> = automatic["now"]["classes"].as_array().unwrap().iter().map(|of| &of["limit"]).collect();
    assert_eq!(limits, [64, 16_384, 256, 8]);

    let acme = json!({"tenant": "acme", "key": null, "in_flight": 0, "weight": 4});
    let limits = json!({"mode": "on", "target_ms": 400, "classes": {"heavy": {"in_flight": 0}}, "clients": {
        "default": {"in_flight": 50, "weight": 2}, "overrides": [acme],
    }});
    let set = server.limit(limits.clone()).await.expect(StatusCode::OK);
    assert_eq!((&set["mode"], &set["clients"]), (&json!("on"), &limits["clients"]));
    let refused = server.ask(ROOT, "POST", "/v1/replays", Some(&json!({}))).await;
    assert_eq!(refused.problem(503)["reason"], "class", "heavy requests may be refused altogether");

    for (limits, pointer) in [
        (json!({"classes": {"ingest": {"in_flight": 0}}}), "/classes/ingest/in_flight"),
        (json!({"classes": {"read": {"in_flight": 0}}}), "/classes/read/in_flight"),
        (json!({"classes": {"control": {"in_flight": 0}}}), "/classes/control/in_flight"),
        (json!({"classes": {"ingest": {"in_flight": 1_000_001}}}), "/classes/ingest/in_flight"),
        (json!({"clients": {"default": {"in_flight": 0}}}), "/clients/default/in_flight"),
        (json!({"clients": {"default": {"weight": 0}}}), "/clients/default/weight"),
        (json!({"clients": {"overrides": [{"in_flight": 1}]}}), "/clients/overrides/0"),
        (json!({"mode": "maybe"}), "/mode"),
        (json!({"now": {}}), "/now"),
    ] {
        assert_eq!(server.limit(limits).await.pointers(), [pointer]);
    }
    assert_eq!(server.shedding().await["classes"]["heavy"]["in_flight"], 0, "a refused change changes nothing");
    let back = server.limit(json!({})).await.expect(StatusCode::OK);
    assert_eq!((&back["classes"], &back["clients"]), (&automatic["classes"], &automatic["clients"]));
}

#[tokio::test]
async fn a_store_that_stands_still_refuses_reads_and_bounds_events_but_not_their_senders() {
    let server = in_mode(Mode::On).await;
    let stuck: Vec<_> = (0..80).map(|_| Open::begin(&server, ROOT, None, HALF)).collect();
    let storing = server.shedding.storing();
    server.clock.advance(Duration::from_secs(3));
    for (method, path, status) in
        [("GET", "/v1/events", 503), ("POST", "/v1/replays", 503), ("GET", PATH, 200), ("GET", "/v1/me", 200)]
    {
        let answer = server.ask(ROOT, method, path, None).await;
        assert_eq!(answer.status.as_u16(), status, "{path}");
        if status == 503 {
            assert_eq!(answer.problem(503)["reason"], "pressure");
        }
    }
    let refused = server.ask(ROOT, "POST", "/v1/events", Some(&json!({"type": "t", "data": 1}))).await;
    assert_eq!(refused.problem(503)["reason"], "pressure", "80 are in flight, and 64 may be");
    assert_eq!(server.shedding().await["now"]["level"], 3);
    // A wrong key stays a wrong key.
    server.ask("no such key", "GET", "/v1/events", None).await.problem(401);
    drop((stuck, storing));
}

#[tokio::test]
async fn a_queue_that_hangs_does_not_delay_the_next_event() {
    let server = Server::start().await;
    server.destination(json!({"url": "https://example.com/"})).await;
    let twenty_events = async || {
        let began = tokio::time::Instant::now();
        for _ in 0..20 {
            server.event("t").await;
        }
        began.elapsed()
    };
    let before = twenty_events().await;
    server.queue.hang();
    let during = twenty_events().await;
    // Each would wait for a quarter of a second.
    assert!(during < before + Duration::from_millis(20 * 125), "{before:?} {during:?}");
}
