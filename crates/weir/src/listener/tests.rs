//! Clients that keep connections open or do not read, over real sockets and with short timeouts.

use std::{convert::Infallible, net::SocketAddr};

use axum::{
    body::Body,
    response::Response,
    routing::{get, post},
};
use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::*;

const SHORT: Duration = Duration::from_secs(1);
/// Longer than any test takes: a timeout that must not act.
const LONG: Duration = Duration::from_secs(60);
/// Far more than the buffers of both kernels take.
const MUCH: usize = 64 * 1024 * 1024;
const HELLO: &str = "GET /hello HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Limits of which none acts.
fn limits() -> ConnectionLimits {
    ConnectionLimits {
        max_connections: 9,
        max_per_address: 9,
        head_timeout: LONG,
        idle_timeout: LONG,
        write_timeout: LONG,
    }
}

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
            .route("/much", get(async || vec![b' '; MUCH]))
            .route("/endless", get(endless))
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

/// A response that has always more to say.
async fn endless() -> Response {
    let part = || Some((Ok::<_, Infallible>(Bytes::from_static(&[b' '; 4_096])), ()));
    Response::new(Body::from_stream(futures_util::stream::unfold((), move |()| async move { part() })))
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
    let server = Server::start(ConnectionLimits { head_timeout: SHORT, ..limits() }).await;
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
    let server = Server::start(ConnectionLimits { idle_timeout: SHORT, ..limits() }).await;
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
    let server = Server::start(ConnectionLimits { head_timeout: SHORT, idle_timeout: SHORT, ..limits() }).await;
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
async fn an_idle_connection_makes_room_for_a_new_one() {
    let server = Server::start(ConnectionLimits { max_connections: 2, ..limits() }).await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    first.request_hello().await;
    second.request_hello().await;
    first.request_hello().await;
    let mut third = server.connect().await;
    third.request_hello().await;
    second.expect_close().await;
    first.request_hello().await;
}

#[tokio::test]
async fn a_connection_whose_answer_is_not_read_yet_makes_no_room() {
    let server = Server::start(ConnectionLimits { max_connections: 1, ..limits() }).await;
    let mut first = server.connect().await;
    first.send("GET /much HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    first.0.readable().await.unwrap();
    let mut second = server.connect().await;
    second.send(HELLO).await;
    assert!(timeout(SHORT, second.0.readable()).await.is_err(), "a second was served");
    let (mut received, mut buffer) = (0, vec![0; MUCH / 16]);
    while received < MUCH {
        let read = first.0.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "closed after {received} bytes");
        received += read;
    }
    second.receive_until("hello").await;
}

#[tokio::test]
async fn a_connection_whose_head_does_not_come_makes_room_after_a_second() {
    let server = Server::start(ConnectionLimits { max_connections: 2, ..limits() }).await;
    let silent = server.connect().await;
    let mut slow = server.connect().await;
    slow.send("GET /hello HTTP/1.1\r\n").await;
    let (mut third, mut fourth) = (server.connect().await, server.connect().await);
    third.request_hello().await;
    silent.expect_close().await;
    fourth.request_hello().await;
    slow.expect_close().await;
}

#[tokio::test]
async fn beyond_the_limit_a_connection_waits_while_all_others_are_busy() {
    let server = Server::start(ConnectionLimits { max_connections: 2, ..limits() }).await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    for busy in [&mut first, &mut second] {
        busy.send("GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert_ne!(busy.0.read(&mut [0; 64]).await.unwrap(), 0);
    }
    let mut third = server.connect().await;
    third.send(HELLO).await;
    assert!(timeout(SHORT, third.0.readable()).await.is_err(), "a third was served");
    drop(second);
    third.receive_until("hello").await;
}

#[tokio::test]
async fn a_client_has_its_maximum_of_connections_and_others_are_served() {
    let server = Server::start(ConnectionLimits { max_per_address: 3, ..limits() }).await;
    let mut busy = Vec::new();
    for _ in 0..3 {
        let mut client = server.connect().await;
        client.send("GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert_ne!(client.0.read(&mut [0; 64]).await.unwrap(), 0);
        busy.push(client);
    }
    for _ in 0..200 {
        let mut refused = server.connect().await;
        let answer = refused.receive_until("\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after: 2"), "{answer}");
        refused.expect_close().await;
    }
    // Another address of loopback is another client.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = Client(socket.connect(server.address).await.unwrap());
    other.request_hello().await;
    // One that ends makes room, once the server has seen it.
    drop(busy.pop());
    let mut idle = timeout(LONG, async {
        loop {
            let (mut client, mut status) = (server.connect().await, [0; 12]);
            let _ = client.0.write_all(HELLO.as_bytes()).await;
            if client.0.read_exact(&mut status).await.is_ok() && status.ends_with(b"200") {
                break client;
            }
        }
    })
    .await
    .expect("a connection");
    idle.receive_until("hello").await;
    // So does one that is idle.
    server.connect().await.request_hello().await;
    idle.expect_close().await;
}

#[tokio::test]
async fn an_answer_that_nobody_reads_ends_its_connection_and_one_that_is_read_slowly_does_not() {
    let server = Server::start(ConnectionLimits { write_timeout: SHORT, ..limits() }).await;
    let mut unread = Vec::new();
    for path in ["/much", "/endless"] {
        let mut client = server.connect().await;
        client.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
        unread.push(client);
    }
    let mut slow = server.connect().await;
    slow.send("GET /much HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let (began, mut received) = (Instant::now(), 0);
    let mut buffer = vec![0; MUCH / 16];
    while received < MUCH {
        let read = slow.0.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "closed after {received} bytes");
        received += read;
        if began.elapsed() < SHORT * 3 {
            sleep(SHORT / 10).await;
        }
    }
    assert!(began.elapsed() > SHORT);
    for mut client in unread {
        // What is in the buffers is there, and then the connection ends.
        let mut rest = Vec::new();
        let _ = timeout(LONG, client.0.read_to_end(&mut rest)).await.expect("the server closes the connection");
        assert!(rest.len() < MUCH, "{}", rest.len());
    }
}

#[tokio::test]
async fn a_head_of_more_than_32_kib_is_refused() {
    let server = Server::start(limits()).await;
    let hello = |padding: usize| {
        let (name, end) = ("GET /hello HTTP/1.1\r\nhost: localhost\r\nx-padding: ", "\r\n\r\n");
        format!("{name}{}{end}", "x".repeat(padding))
    };
    let mut client = server.connect().await;
    client.send(&hello(30 * 1024)).await;
    client.receive_until("hello").await;
    client.send(&hello(40 * 1024)).await;
    assert!(client.receive_until("\r\n\r\n").await.starts_with("HTTP/1.1 431 "));
    client.expect_close().await;
}

#[tokio::test]
async fn a_stop_closes_idle_connections_and_lets_open_requests_end() {
    let server = Server::start(limits()).await;
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
