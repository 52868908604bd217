//! Clients that keep connections open, over real sockets and with short timeouts.

use std::net::SocketAddr;

use axum::{
    body::Body,
    response::Response,
    routing::{get, post},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinHandle,
    time::timeout,
};

use super::*;

const SHORT: Duration = Duration::from_secs(1);
/// Longer than any test takes: a timeout that must not act.
const LONG: Duration = Duration::from_secs(60);
const HELLO: &str = "GET /hello HTTP/1.1\r\nhost: localhost\r\n\r\n";

struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Server {
    async fn start(limits: ConnectionLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stops) = watch::channel(false);
        let router = Router::new()
            .route("/hello", get(async || "hello"))
            .route("/echo", post(async |body: String| body))
            .route("/slowly", get(slowly));
        Self { address, stop, serving: tokio::spawn(serve(listener, router, limits, stops)) }
    }

    async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }
}

/// A response whose body takes longer than [`SHORT`].
async fn slowly() -> Response {
    let parts = futures_util::stream::unfold(0, |part| async move {
        sleep(SHORT / 2).await;
        (part < 4).then(|| (Ok::<_, Infallible>(Bytes::from_static(b"slow ")), part + 1))
    });
    Response::new(Body::from_stream(parts))
}

struct Client(TcpStream);

impl Client {
    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until the received bytes end with `end`.
    async fn receive_until(&mut self, end: &str) -> String {
        let mut received = Vec::new();
        timeout(LONG, async {
            while !received.ends_with(end.as_bytes()) {
                assert_ne!(self.0.read_buf(&mut received).await.unwrap(), 0, "{}", String::from_utf8_lossy(&received));
            }
        })
        .await
        .expect("a response");
        String::from_utf8(received).unwrap()
    }

    async fn request_hello(&mut self) {
        self.send(HELLO).await;
        assert!(self.receive_until("hello").await.starts_with("HTTP/1.1 200"));
    }

    /// Waits until the server closes the connection.
    async fn expect_close(mut self) {
        let mut rest = Vec::new();
        // An orderly close or a reset: unread bytes make it a reset.
        let _ = timeout(LONG, self.0.read_to_end(&mut rest)).await.expect("the server closes the connection");
    }
}

#[tokio::test]
async fn a_head_that_is_not_complete_in_time_ends_the_connection() {
    let server = Server::start(ConnectionLimits { max_connections: 9, head_timeout: SHORT, idle_timeout: LONG }).await;
    let silent = server.connect().await;
    let mut slow = server.connect().await;
    slow.send("GET /hello HTTP/1.1\r\n").await;
    let mut later = server.connect().await;
    later.request_hello().await;
    later.send("GET /hel").await;
    for client in [silent, slow, later] {
        client.expect_close().await;
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_one_in_use_is_not() {
    let server = Server::start(ConnectionLimits { max_connections: 9, head_timeout: LONG, idle_timeout: SHORT }).await;
    let (mut idle, mut busy) = (server.connect().await, server.connect().await);
    idle.request_hello().await;
    let idle = tokio::spawn(idle.expect_close());
    let began = Instant::now();
    while began.elapsed() < SHORT * 2 {
        busy.request_hello().await;
        sleep(SHORT / 10).await;
    }
    busy.request_hello().await;
    idle.await.unwrap();
    busy.expect_close().await;
}

#[tokio::test]
async fn a_slow_body_and_a_slow_response_do_not_count_as_idle() {
    let server = Server::start(ConnectionLimits { max_connections: 9, head_timeout: SHORT, idle_timeout: SHORT }).await;
    let (mut uploading, mut downloading) = (server.connect().await, server.connect().await);
    downloading.send("GET /slowly HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    uploading.send("POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n").await;
    for part in ["b", "o", "d", "y"] {
        sleep(SHORT / 2).await;
        uploading.send(part).await;
    }
    uploading.receive_until("body").await;
    downloading.receive_until("0\r\n\r\n").await;
}

#[tokio::test]
async fn a_connection_beyond_the_limit_waits_until_another_ends() {
    let server = Server::start(ConnectionLimits { max_connections: 2, head_timeout: LONG, idle_timeout: LONG }).await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    first.request_hello().await;
    second.request_hello().await;
    let mut third = server.connect().await;
    third.send(HELLO).await;
    assert!(timeout(SHORT, third.0.readable()).await.is_err(), "a third was served");
    first.request_hello().await;
    drop(second);
    third.receive_until("hello").await;
}

#[tokio::test]
async fn a_stop_closes_idle_connections_and_lets_open_requests_end() {
    let server = Server::start(ConnectionLimits { max_connections: 9, head_timeout: LONG, idle_timeout: LONG }).await;
    let (mut idle, mut downloading) = (server.connect().await, server.connect().await);
    idle.request_hello().await;
    downloading.send("GET /slowly HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    downloading.receive_until("slow \r\n").await;
    server.stop.send_replace(true);
    idle.expect_close().await;
    downloading.receive_until("0\r\n\r\n").await;
    timeout(LONG, server.serving).await.expect("it ends").unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}
