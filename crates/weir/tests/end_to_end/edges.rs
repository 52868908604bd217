//! Edge cases of the HTTP server on raw sockets: hosts, connections, bodies that do not end.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::support::{App, eventually};

const LONG: Duration = Duration::from_secs(20);

async fn connected(app: &App, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(app.address()).await.expect("a connection");
    stream.write_all(request.as_bytes()).await.expect("written");
    stream
}

/// The status of the next answer.
async fn status(stream: &mut TcpStream) -> u16 {
    let mut head = [0; 12];
    timeout(LONG, stream.read_exact(&mut head)).await.expect("in time").expect("an answer");
    String::from_utf8_lossy(&head[9..]).parse().expect("a status")
}

async fn asked(app: &App, request: &str) -> u16 {
    status(&mut connected(app, request).await).await
}

#[tokio::test]
async fn a_request_must_name_a_loopback_or_configured_host() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start_with(folder.path(), &[("WEIR_HOSTS", "weir.example.com")]).await;
    for (request, expected) in [
        ("GET /v1/events HTTP/1.1\r\nHost: evil.test:8080\r\n\r\n", 421),
        ("GET /healthz HTTP/1.1\r\nHost: evil.test:8080\r\n\r\n", 421),
        ("GET http://evil.test/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n", 421),
        ("GET /v1/events HTTP/1.0\r\n\r\n", 421),
        ("GET /v1/events HTTP/1.1\r\n\r\n", 400),
        ("GET /v1/events HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        ("GET /v1/events HTTP/1.1\r\nHost: weir.example.com\r\n\r\n", 200),
        ("GET http://weir.example.com/v1/events HTTP/1.1\r\nHost: weir.example.com\r\n\r\n", 200),
        ("GET /v1/events HTTP/1.1\r\nHost: [::1]:1\r\n\r\n", 200),
        ("GET /v1/events HTTP/1.0\r\nHost: localhost\r\n\r\n", 200),
    ] {
        assert_eq!(asked(&app, request).await, expected, "{request}");
    }
}

#[tokio::test]
async fn an_idle_connection_makes_room_for_one_beyond_the_cap() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start_with(folder.path(), &[("WEIR_MAX_CONNECTIONS", "1")]).await;
    const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut first = connected(&app, HEALTH).await;
    assert_eq!(status(&mut first).await, 200);
    assert_eq!(asked(&app, HEALTH).await, 200);
    let mut rest = Vec::new();
    timeout(LONG, first.read_to_end(&mut rest)).await.expect("the idle connection is closed").expect("in order");
}

#[tokio::test]
async fn bodies_in_flight_share_a_budget_that_disconnected_clients_release() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start_with(folder.path(), &[("WEIR_BODY_BUDGET_BYTES", "1048576")]).await;
    let event = json!({"type": "video.created", "data": 1});
    // More than half of the budget: what one sender alone may hold.
    let chunk = " ".repeat(600_000);
    let head = "POST /v1/events HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunked = &format!("{head}{:x}\r\n{chunk}\r\n", chunk.len());
    let mut open = connected(&app, chunked).await;
    eventually("the budget is taken", LONG, async || {
        let is_taken = app.request(Method::POST, "/v1/events", Some(event.clone())).await.0 == 503;
        if !is_taken {
            // This event held a part of the budget, so the open request may have been refused.
            open = connected(&app, chunked).await;
        }
        is_taken
    })
    .await;
    assert_eq!(app.status("/v1/events").await, 200, "a request without a body needs no budget");
    drop(open);
    eventually("the budget is released", LONG, async || {
        app.request(Method::POST, "/v1/events", Some(event.clone())).await.0 == 202
    })
    .await;
}

#[tokio::test]
async fn denied_networks_and_other_ports_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [("WEIR_DENY_NETWORKS", "127.0.0.0/9,8.8.8.8"), ("WEIR_ALLOW_PORTS", "443,8000-8999")];
    let app = App::start_with(folder.path(), &settings).await;
    for (url, expected) in [
        ("http://127.0.0.1:8000/", Err("--deny-networks")),
        ("https://8.8.8.8/", Err("--deny-networks")),
        ("http://127.128.0.1/", Err("--allow-ports")),
        ("http://127.128.0.1:8000/", Ok(())),
    ] {
        let (status, answer) = app.request(Method::POST, "/v1/destinations", Some(json!({"url": url}))).await;
        match expected {
            Ok(()) => assert_eq!(status, 201, "{url}: {answer}"),
            Err(flag) => {
                assert_eq!((status, &answer["errors"][0]["pointer"]), (422, &json!("/url")), "{url}: {answer}");
                assert!(answer["detail"].as_str().unwrap().contains(flag), "{url}: {answer}");
            }
        }
    }
}
