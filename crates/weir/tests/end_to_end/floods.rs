//! Floods of hostile clients over real sockets: what they take of the memory, and whether others are served.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{
    Method,
    header::{AUTHORIZATION, HeaderMap},
};
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::support::App;

const KEY: &str = "the-key-of-the-settings";
/// Half of the memory of a small container. The floods together send several times as much.
const MOST_MEMORY: u64 = 512 * 1024 * 1024;
const CLIENTS: usize = 300;

async fn start(folder: &std::path::Path) -> App {
    let mut app = App::start_with(folder, &[("WEIR_API_KEYS", KEY)]).await;
    let headers = HeaderMap::from_iter([(AUTHORIZATION, format!("Bearer {KEY}").parse().unwrap())]);
    app.http = crate::support::http_client().default_headers(headers).build().unwrap();
    app
}

/// Opens a connection and sends a part of a form, which nobody has logged in for.
async fn send_form(app: &App, arrived: usize) -> TcpStream {
    let mut stream = TcpStream::connect(app.address()).await.expect("a connection");
    let head =
        "POST /login HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: same-origin\r\ncontent-length: 2000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("written");
    // The server may close the connection before it has read everything.
    let _ = timeout(Duration::from_secs(5), stream.write_all(&vec![b'x'; arrived])).await;
    stream
}

#[tokio::test]
async fn forms_of_unknown_senders_take_little_memory_and_keep_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let app = start(folder.path()).await;
    let _large = join_all((0..CLIENTS).map(|_| send_form(&app, 1_900_000))).await;
    let _slow = join_all((0..CLIENTS).map(|_| send_form(&app, 1))).await;
    let began = Instant::now();
    assert_eq!(app.status("/v1/events").await, 200);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let peak = app.peak_memory();
    assert!(peak < MOST_MEMORY / 2, "{peak}");
}

#[tokio::test]
async fn batches_of_millions_of_items_and_pages_of_large_events_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let app = start(folder.path()).await;
    let post = async |body: String| {
        let request = app.http.post(format!("{}/v1/events/batch", app.url)).header("content-type", "application/json");
        let answer = request.body(body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    let millions = format!(r#"{{"events":[{}1]}}"#, "1,".repeat(15_000_000));
    let unknown = format!(r#"{{"events":[],{}"x":1}}"#, r#""a":1,"#.repeat(4_000_000));
    for body in [millions, unknown] {
        let (status, refusal) = post(body).await;
        assert_eq!((status, refusal["status"].as_u64()), (422, Some(422)));
    }
    for _ in 0..4 {
        let event = json!({"type": "t", "data": "x".repeat(1_000_000)});
        let (status, _) = post(json!({"events": vec![event; 15]}).to_string()).await;
        assert_eq!(status, 202);
    }
    let pages = (0..8).map(|_| app.request(Method::GET, "/v1/events?include=data&limit=200", None));
    for (status, page) in join_all(pages).await {
        let rows = page["data"].as_array().map(Vec::len);
        assert_eq!((status, rows, page["next_cursor"].is_string()), (200, Some(4), true));
    }
    let peak = app.peak_memory();
    assert!(peak < MOST_MEMORY, "{peak}");
}
