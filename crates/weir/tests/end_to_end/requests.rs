//! Requests to destinations: the exact body, the headers, a signature that an independent verifier accepts, and
//! addresses that Weir refuses.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use reqwest::Method;
use serde_json::json;
use tokio::{net::TcpListener, process::Command};

use crate::support::{App, Receiver, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_delivery_is_verified_by_the_independent_standardwebhooks_crate() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    let settings = json!({"url": receiver.url("/signed?x=1"), "headers": {"X-Api-Key": "k-1"}});
    let id = app.destination(settings).await;
    let secret = app.get(&format!("/v1/destinations/{id}/secret")).await["secret"].as_str().unwrap().to_owned();

    let data = "{\"b\" : 1.50, \"a\":\"\\u00e9\",  \"z\":[ ]}";
    let body = format!("{{\"type\":\"video.created\",\"data\":{data}}}");
    let posted = app.http.post(format!("{}/v1/events", app.url)).header("content-type", "application/json").body(body);
    let answer: serde_json::Value = posted.send().await.unwrap().json().await.unwrap();

    let arrival = receiver.wait_for("/signed", 1, Duration::from_secs(5)).await.remove(0);
    let verifier = standardwebhooks::Webhook::new(&secret).unwrap();
    verifier.verify(&arrival.body, &arrival.headers).expect("the signature is good");
    assert_eq!(arrival.header("webhook-id"), answer["id"]);
    assert_eq!(arrival.header("content-type"), "application/json");
    assert_eq!(arrival.header("weir-attempt"), "1");
    assert_eq!(arrival.header("x-api-key"), "k-1");
    assert!(arrival.header("user-agent").starts_with("Weir/"));
    let text = std::str::from_utf8(&arrival.body).unwrap();
    assert!(text.ends_with(&format!("\"data\":{data}}}")), "{text}");
    let envelope: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_eq!((&envelope["timestamp"], &envelope["type"]), (&answer["created_at"], &json!("video.created")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_addresses_are_refused_in_every_spelling_and_nothing_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start_with(folder.path(), &[("WEIR_ALLOW_NETWORKS", ""), ("WEIR_ALLOW_HTTP", "true")]).await;
    for host in [
        "127.0.0.1",
        "10.0.0.1",
        "192.168.1.1",
        "172.16.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:a9fe:a9fe]",
        "[fd00::1]",
        "[fe80::1]",
        "2130706433",
        "0177.0.0.1",
        "0x7f.1",
        "localhost",
    ] {
        let settings = json!({"url": format!("http://{host}/")});
        let (status, body) = app.request(Method::POST, "/v1/destinations", Some(settings)).await;
        assert_eq!(status, 422, "{host}: {body}");
        assert_eq!(body["errors"][0]["pointer"], "/url", "{host}: {body}");
    }
    assert_eq!(app.get("/v1/destinations").await["data"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_is_no_longer_allowed_is_refused_at_the_send() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    let app = App::start(folder.path()).await;
    let id = app.destination(json!({"url": receiver.url("/private"), "paused": true})).await;
    app.event("private").await;
    assert!(app.terminate().await.success());

    let app = App::start_with(folder.path(), &[("WEIR_ALLOW_NETWORKS", "")]).await;
    app.patch(&id, json!({"paused": false})).await;
    eventually("the attempt is refused", Duration::from_secs(5), async || {
        let page = app.get(&format!("/v1/deliveries?destination={id}&state=retrying")).await;
        page["data"].as_array().is_some_and(|rows| rows.len() == 1)
    })
    .await;
    let page = app.get(&format!("/v1/deliveries?destination={id}")).await;
    let delivery = app.get(&format!("/v1/deliveries/{}", page["data"][0]["id"].as_str().unwrap())).await;
    assert!(delivery["attempts"][0]["error"].as_str().unwrap().contains("may be sent to"), "{delivery}");
    assert_eq!(receiver.count("/private"), 0);
}

/// The proxies stand in each variable that a common HTTP client reads. They would see every request, also to loopback.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_in_the_environment_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let (receiver, trap) = (Receiver::start().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    let proxy = format!("http://{}", trap.local_addr().unwrap());
    let connected = Arc::new(AtomicBool::new(false));
    let trapped = connected.clone();
    tokio::spawn(async move {
        while trap.accept().await.is_ok() {
            trapped.store(true, Ordering::Relaxed);
        }
    });
    let variables = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let proxies = variables.map(|variable| (variable, proxy.as_str()));
    let without_exceptions = |mut command: Command| {
        command.envs(proxies).env_remove("NO_PROXY").env_remove("no_proxy").kill_on_drop(true);
        command
    };
    let mut serve = without_exceptions(App::command(folder.path()));
    serve.arg("serve");
    let app = App::launch(serve).await.expect("it listens");
    app.destination(json!({"url": receiver.url("/direct")})).await;
    // No process listens on port 1. A proxy would be asked for a tunnel to it.
    let https = app.destination(json!({"url": "https://127.0.0.1:1/", "retry": {"schedule_ms": [3_600_000]}})).await;
    app.event("direct").await;
    receiver.wait_for("/direct", 1, Duration::from_secs(5)).await;
    eventually("the connection is refused", Duration::from_secs(5), async || {
        let page = app.get(&format!("/v1/deliveries?destination={https}&error=connect")).await;
        page["data"].as_array().is_some_and(|rows| rows.len() == 1)
    })
    .await;

    // The commands that are clients of a server.
    for arguments in [&["audit", "--url", &app.url][..], &["demo", "--seconds", "3"]] {
        let mut client = without_exceptions(App::command(folder.path()));
        let output = client.args(arguments).output().await.unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    assert!(!connected.load(Ordering::Relaxed), "something used the proxy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_posts_with_one_idempotency_key_are_one_event() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    app.destination(json!({"url": receiver.url("/once")})).await;
    let posts = (0..50).map(|_| {
        let body = json!({"type": "once", "data": 1, "idempotency_key": "k"});
        app.request(Method::POST, "/v1/events", Some(body))
    });
    let answers = futures_util::future::join_all(posts).await;
    assert_eq!(answers.iter().filter(|(status, _)| *status == 202).count(), 1);
    assert_eq!(answers.iter().filter(|(status, body)| *status == 200 && body["duplicate"] == true).count(), 49);
    assert!(answers.iter().all(|(_, body)| body["id"] == answers[0].1["id"]));
    receiver.wait_for("/once", 1, Duration::from_secs(5)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(receiver.count("/once"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_with_invalid_events_accepts_the_valid_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    app.destination(json!({"url": receiver.url("/batch")})).await;
    let events = json!({"events": [
        {"type": "good.one", "data": 1},
        {"type": "bad type", "data": 2},
        {"type": "good.two", "data": null},
        {"data": 4},
    ]});
    let (status, body) = app.request(Method::POST, "/v1/events/batch", Some(events)).await;
    assert_eq!(status, 202, "{body}");
    let answers = body["events"].as_array().unwrap();
    assert!(answers[0]["id"].is_string() && answers[2]["id"].is_string());
    assert!(answers[1]["error"]["status"] == 422 && answers[3]["error"]["status"] == 422, "{body}");
    receiver.wait_for("/batch", 2, Duration::from_secs(5)).await;
}
