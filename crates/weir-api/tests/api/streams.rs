//! The live stream, and the sample that its viewers share.

use std::{cell::Cell, collections::BTreeSet, time::Duration};

use axum::body::{Body, BodyDataStream};
use futures_util::{StreamExt as _, future::join_all};
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use weir_api::SettingKeys;
use weir_core::Clock;

use crate::harness::{Options, Server, reply};

const KEY: &str = "sesame";
const PATIENCE: Duration = Duration::from_secs(20);

/// An open stream.
struct Stream {
    body: BodyDataStream,
    text: String,
}

impl Stream {
    /// The next event: its name and its data. `None`: the stream has ended.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let found =
                    field("event: ").map(|name| (name, serde_json::from_str(&field("data: ").unwrap()).unwrap()));
                self.text = rest.to_owned();
                match found {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let part = tokio::time::timeout(PATIENCE, self.body.next()).await.expect("an event in time")?;
            self.text.push_str(std::str::from_utf8(&part.unwrap()).unwrap());
        }
    }

    /// The next event that is not a snapshot.
    async fn change(&mut self) -> (String, Value) {
        loop {
            let (name, data) = self.next().await.unwrap();
            if name != "snapshot" {
                return (name, data);
            }
        }
    }

    async fn ends(&mut self) {
        while self.next().await.is_some() {}
    }
}

impl Server {
    async fn follow(&self, query: &str, key: &str) -> Stream {
        let request = Request::get(format!("/v1/stream{query}")).header(header::HOST, "localhost");
        let request = request.header(header::AUTHORIZATION, format!("Bearer {key}")).body(Body::empty()).unwrap();
        let response = tower::ServiceExt::oneshot(self.router.clone(), request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        Stream { body: response.into_body().into_data_stream(), text: String::new() }
    }

    async fn with_a_key() -> Self {
        Self::start_with(Options { api_keys: SettingKeys::new([KEY]), ..Options::default() }).await
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> Value {
        let mut request = crate::harness::json_request(method, path, body);
        request.headers_mut().insert(header::AUTHORIZATION, format!("Bearer {KEY}").parse().unwrap());
        let reply = reply(self.router.clone(), request).await;
        assert!(reply.status.is_success(), "{method} {path}: {reply:?}");
        serde_json::from_slice(&reply.body).unwrap_or_default()
    }
}

#[tokio::test]
async fn a_stream_begins_with_a_snapshot_and_then_tells_of_edits_and_replays() {
    let server = Server::with_a_key().await;
    let mut stream = server.follow("", KEY).await;
    let (name, first) = stream.next().await.unwrap();
    assert_eq!((&*name, &first["destinations"], &first["totals"]["destinations"]), ("snapshot", &json!([]), &json!(0)));

    let created =
        server.call("POST", "/v1/destinations", json!({"url": "https://acme.example/", "tenant": "acme"})).await;
    let id = created["id"].as_str().unwrap();
    let (name, edit) = stream.change().await;
    let expected = json!({"at": created["created_at"], "destination_id": id, "state": "created"});
    assert_eq!((&*name, &edit), ("edit", &expected));
    let (name, snapshot) = stream.next().await.unwrap();
    assert_eq!((&*name, &snapshot["destinations"][0]["destination"]["id"]), ("snapshot", &json!(id)));

    let path = format!("/v1/destinations/{id}");
    let edited = server.call("PATCH", &path, json!({"name": "Acme"})).await;
    let expected = json!({"at": edited["updated_at"], "destination_id": id, "state": "edited"});
    assert_eq!(stream.change().await, ("edit".to_owned(), expected));
    let replay = server.call("POST", "/v1/replays", json!({"tenant": "acme"})).await;
    let (name, began) = stream.change().await;
    assert_eq!((&*name, &began["replay_id"], &began["state"]), ("replay", &replay["id"], &json!("running")));
    server.call("DELETE", &path, Value::Null).await;
    let (name, edit) = stream.change().await;
    assert_eq!((&*name, &edit["destination_id"], &edit["state"]), ("edit", &json!(id), &json!("deleted")));
}

#[tokio::test]
async fn a_stream_of_one_destination_or_tenant_shows_nothing_else() {
    let server = Server::with_a_key().await;
    let mut ids = Vec::new();
    for tenant in ["acme", "globex"] {
        let body = json!({"url": "https://example.com/", "tenant": tenant});
        ids.push(server.call("POST", "/v1/destinations", body).await["id"].as_str().unwrap().to_owned());
    }
    let bound = server.call("POST", "/v1/keys", json!({"name": "a", "role": "read", "tenants": ["acme"]})).await;
    let bound = bound["secret"].as_str().unwrap();
    let destination = format!("?destination={}", ids[0]);
    let mut streams = [
        server.follow(&destination, KEY).await,
        server.follow("?tenant=acme", KEY).await,
        server.follow("", bound).await,
    ];
    for stream in &mut streams {
        let (_, snapshot) = stream.next().await.unwrap();
        let shown = snapshot["destinations"].as_array().unwrap();
        assert_eq!((shown.len(), &shown[0]["destination"]["id"]), (1, &json!(ids[0])));
        assert_eq!(snapshot["totals"]["destinations"], 1);
    }
    // The other one is edited first.
    for id in ids.iter().rev() {
        server.call("PATCH", &format!("/v1/destinations/{id}"), json!({"paused": true})).await;
    }
    for stream in &mut streams {
        let (name, edit) = stream.change().await;
        assert_eq!((&*name, &edit["destination_id"]), ("edit", &json!(ids[0])));
    }
    for query in [format!("?destination={}", ids[1]), "?tenant=globex".to_owned()] {
        let request =
            Request::get(format!("/v1/stream{query}")).header(header::AUTHORIZATION, format!("Bearer {bound}"));
        server.send(request.body(Body::empty()).unwrap()).await.problem(404);
    }
}

#[tokio::test]
async fn a_stream_ends_with_its_key_and_when_the_process_stops() {
    let server = Server::with_a_key().await;
    let created = server.call("POST", "/v1/keys", json!({"name": "a", "role": "read"})).await;
    let mut of_key = server.follow("", created["secret"].as_str().unwrap()).await;
    let mut of_settings = server.follow("", KEY).await;
    assert!(of_key.next().await.is_some() && of_settings.next().await.is_some());
    server.call("DELETE", &format!("/v1/keys/{}", created["id"].as_str().unwrap()), Value::Null).await;
    of_key.ends().await;
    assert!(of_settings.next().await.is_some());
    server.stop.send(true).unwrap();
    // At once, not at the next snapshot.
    let ended = tokio::time::timeout(Duration::from_millis(500), of_settings.ends()).await;
    assert!(ended.is_ok());
}

#[tokio::test]
async fn the_number_of_open_streams_is_bounded_and_a_closed_one_makes_room() {
    let server = Server::with_a_key().await;
    let mut open = Vec::new();
    for _ in 0..50 {
        open.push(server.follow("", KEY).await);
    }
    let ask = || {
        let request = Request::get("/v1/stream").header(header::AUTHORIZATION, format!("Bearer {KEY}"));
        server.send(request.body(Body::empty()).unwrap())
    };
    ask().await.problem(503);
    open.pop();
    assert_eq!(ask().await.status, StatusCode::OK);
}

#[tokio::test]
async fn no_key_can_take_the_streams_of_all_others() {
    let server = Server::with_a_key().await;
    let mut keys = vec![KEY.to_owned()];
    for name in ["a", "b", "c", "d"] {
        let key = json!({"name": name, "role": "read", "tenants": ["acme"]});
        keys.push(server.call("POST", "/v1/keys", key).await["secret"].as_str().unwrap().to_owned());
    }
    let mut open = Vec::new();
    // Each takes what it can get, one after the other.
    for (key, share) in keys.iter().zip([50, 25, 13, 6, 3]) {
        for _ in 0..share {
            open.push(server.follow("", key).await);
        }
        let refused = server.ask(key, "GET", "/v1/stream", None).await;
        assert!(refused.problem(503)["detail"].as_str().unwrap().contains("open streams"));
        assert_eq!(refused.header("retry-after"), "2");
    }
    // The first closes half of its streams, and the last may have some more.
    open.drain(..25);
    for _ in 0..10 {
        open.push(server.follow("", &keys[4]).await);
    }
    server.ask(KEY, "GET", "/v1/stream", None).await.problem(503);
}

#[tokio::test]
async fn a_replay_of_several_tenants_is_shown_to_those_who_see_all_of_them_and_to_no_others() {
    let server = Server::with_a_key().await;
    let mut keys = Vec::new();
    for tenants in [json!(["acme", "globex"]), json!(["acme"])] {
        let key = json!({"name": "a", "role": "operate", "tenants": tenants});
        keys.push(server.call("POST", "/v1/keys", key).await["secret"].as_str().unwrap().to_owned());
    }
    let mut of_both = server.follow("", &keys[0]).await;
    let mut of_one = server.follow("", &keys[1]).await;
    let mut of_all = server.follow("", KEY).await;
    for stream in [&mut of_both, &mut of_one, &mut of_all] {
        stream.next().await.unwrap();
    }
    let several = server.ask(&keys[0], "POST", "/v1/replays", Some(&json!({}))).await.expect(StatusCode::ACCEPTED);
    for stream in [&mut of_both, &mut of_all] {
        let (name, began) = stream.change().await;
        assert_eq!((&*name, &began["replay_id"]), ("replay", &several["id"]));
    }
    // The key of one tenant is told first of a replay of its own.
    let own = server.call("POST", "/v1/replays", json!({"tenant": "acme"})).await;
    let (name, began) = of_one.change().await;
    assert_eq!((&*name, &began["replay_id"]), ("replay", &own["id"]));
}

#[tokio::test]
async fn many_viewers_share_one_sample_a_second() {
    const DESTINATIONS: u64 = 2_000;
    let server = Server::with_a_key().await;
    let create = || server.call("POST", "/v1/destinations", json!({"url": "https://example.com/"}));
    join_all((0..DESTINATIONS).map(|_| create())).await;
    let mut viewers = Vec::new();
    for _ in 0..20 {
        viewers.push(server.follow("", KEY).await);
    }
    // Every sample has its own instant.
    let clock = std::sync::Arc::clone(&server.clock);
    let ticks = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            clock.advance(Duration::from_millis(10));
        }
    });
    let began = tokio::time::Instant::now();
    let watched = viewers.iter_mut().map(async |viewer| {
        let mut instants = Vec::new();
        while instants.len() < 4 {
            let (_, snapshot) = viewer.next().await.unwrap();
            assert_eq!(snapshot["totals"]["destinations"], DESTINATIONS);
            assert_eq!(snapshot["destinations"].as_array().unwrap().len(), 200);
            instants.push(snapshot["as_of"].as_str().unwrap().to_owned());
        }
        instants
    });
    let watched: Vec<Vec<String>> = join_all(watched).await;
    let seconds = began.elapsed().as_secs_f64();
    ticks.abort();
    let samples: BTreeSet<&String> = watched.iter().flatten().collect();
    assert!(samples.len() as f64 <= seconds + 2.0, "{} samples in {seconds} s: {samples:?}", samples.len());
}

#[tokio::test]
async fn a_stream_shows_one_sample_a_second_also_while_pages_are_read() {
    let server = Server::with_a_key().await;
    let mut stream = server.follow("", KEY).await;
    // The second one is at the next whole second.
    stream.next().await.unwrap();
    stream.next().await.unwrap();
    let began = tokio::time::Instant::now();
    for _ in 0..4 {
        // What a page does at each snapshot. It takes a sample of its own, which the stream then shares.
        tokio::time::sleep(Duration::from_millis(150)).await;
        server.call("GET", "/v1/overview", Value::Null).await;
        let (name, _) = stream.next().await.unwrap();
        assert_eq!(name, "snapshot");
    }
    let seconds = began.elapsed().as_secs_f64();
    assert!(seconds > 3.0, "4 snapshots in {seconds} s");
}

#[tokio::test]
async fn a_stream_shows_a_change_through_its_process_without_waiting_for_the_next_second() {
    let server = Server::with_a_key().await;
    let id = server.call("POST", "/v1/destinations", json!({"url": "https://example.com/"})).await["id"].take();
    let path = format!("/v1/destinations/{}", id.as_str().unwrap());
    let mut stream = server.follow("", KEY).await;
    let mut delays = Vec::new();
    for paused in [true, false, true, false] {
        // The worst moment: the sample of this second has just been taken.
        while stream.next().await.unwrap().0 != "snapshot" {}
        let began = tokio::time::Instant::now();
        server.call("PATCH", &path, json!({"paused": paused})).await;
        assert_eq!(stream.change().await.1["destination_id"], id);
        delays.push(began.elapsed());
        let (_, snapshot) = stream.next().await.unwrap();
        assert_eq!(snapshot["destinations"][0]["destination"]["paused"], paused);
    }
    // Without the change each snapshot comes a second after the one before.
    assert!(delays.iter().min() < Some(&Duration::from_millis(800)), "{delays:?}");
}

/// The snapshots that a stream shows while `act` is called without pause, and how long that took: two seconds, or as long
/// as a busy machine needs for two snapshots.
async fn snapshots_during(server: &Server, act: impl AsyncFn()) -> (usize, f64) {
    let mut stream = server.follow("", KEY).await;
    let began = tokio::time::Instant::now();
    let snapshots = Cell::new(0);
    let acts = async {
        while began.elapsed() < Duration::from_secs(2) || snapshots.get() < 2 {
            act().await;
        }
    };
    tokio::select! {
        () = acts => {}
        () = async {
            while let Some((name, _)) = stream.next().await {
                snapshots.set(snapshots.get() + usize::from(name == "snapshot"));
            }
        } => panic!("the stream has ended"),
    }
    (snapshots.get(), began.elapsed().as_secs_f64())
}

#[tokio::test]
async fn changes_without_pause_cause_at_most_four_snapshots_a_second() {
    let server = Server::with_a_key().await;
    let id = server.call("POST", "/v1/destinations", json!({"url": "https://example.com/"})).await["id"].take();
    let path = format!("/v1/destinations/{}", id.as_str().unwrap());
    let edit = async || drop(server.call("PATCH", &path, json!({"paused": true})).await);
    let (snapshots, seconds) = snapshots_during(&server, edit).await;
    assert!(snapshots as f64 <= 4.0 * seconds + 1.0, "{snapshots} snapshots in {seconds} s");
    // Each second has one anyway, and a store that answers slowly delays it by a second at most.
    assert!(seconds < 10.0, "{snapshots} snapshots in {seconds} s");
}

#[tokio::test]
async fn events_without_pause_cause_no_more_snapshots() {
    let server = Server::with_a_key().await;
    let post = async || drop(server.call("POST", "/v1/events", json!({"type": "t", "data": 1})).await);
    let (snapshots, seconds) = snapshots_during(&server, post).await;
    assert!(snapshots as f64 <= seconds + 1.0, "{snapshots} snapshots in {seconds} s");
}

#[tokio::test]
async fn a_stream_that_is_opened_after_all_others_have_ended_begins_with_a_new_sample() {
    let server = Server::with_a_key().await;
    for _ in 0..3 {
        let (_, snapshot) = server.follow("", KEY).await.next().await.unwrap();
        let now = server.clock.now();
        assert_eq!(snapshot["as_of"], json!(now));
        // Older than what a stream shares.
        server.clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
}
