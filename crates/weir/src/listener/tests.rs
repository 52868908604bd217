//! Clients that keep connections, over real sockets and with short times.

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
/// Longer than any test takes where no time-out is meant to act.
const LONG: Duration = Duration::from_secs(60);
const HELLO: &str = "GET /hello HTTP/1.1\r\nhost: localhost\r\n\r\n";

struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Server {
    async fn start(patience: Patience) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stops) = watch::channel(false);
        let router = Router::new()
            .route("/hello", get(async || "hello"))
            .route("/echo", post(async |body: String| body))
            .route("/slowly", get(slowly));
        Self { address, stop, serving: tokio::spawn(serve(listener, router, patience, stops)) }
    }

    async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }
}

/// Its body takes longer than [`SHORT`].
async fn slowly() -> Response {
    let parts = futures_util::stream::unfold(0, |part| async move {
        sleep(SHORT / 2).await;
        (part < 4).then(|| (Ok::<_, Infallible>(Bytes::from_static(b"slow ")), part + 1))
    });
    Response::new(Body::from_stream(parts))
}

struct Client(TcpStream);

impl Client {
    async fn say(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// What comes until `end` has.
    async fn hear(&mut self, end: &str) -> String {
        let mut heard = Vec::new();
        timeout(LONG, async {
            while !heard.ends_with(end.as_bytes()) {
                assert_ne!(self.0.read_buf(&mut heard).await.unwrap(), 0, "{}", String::from_utf8_lossy(&heard));
            }
        })
        .await
        .expect("an answer");
        String::from_utf8(heard).unwrap()
    }

    async fn hello(&mut self) {
        self.say(HELLO).await;
        assert!(self.hear("hello").await.starts_with("HTTP/1.1 200"));
    }

    /// Waits until the server hangs up.
    async fn hung_up_on(mut self) {
        let mut rest = Vec::new();
        // Either end is one: bytes that were not read make it a reset.
        let _ = timeout(LONG, self.0.read_to_end(&mut rest)).await.expect("the server hangs up");
    }
}

#[tokio::test]
async fn a_head_that_does_not_end_in_time_ends_the_connection() {
    let server = Server::start(Patience { max_connections: 9, head_timeout: SHORT, idle_timeout: LONG }).await;
    let silent = server.connect().await;
    let mut slow = server.connect().await;
    slow.say("GET /hello HTTP/1.1\r\n").await;
    let mut later = server.connect().await;
    later.hello().await;
    later.say("GET /hel").await;
    for client in [silent, slow, later] {
        client.hung_up_on().await;
    }
}

#[tokio::test]
async fn an_idle_connection_ends_and_one_in_use_does_not() {
    let server = Server::start(Patience { max_connections: 9, head_timeout: LONG, idle_timeout: SHORT }).await;
    let (mut idle, mut busy) = (server.connect().await, server.connect().await);
    idle.hello().await;
    let idle = tokio::spawn(idle.hung_up_on());
    let began = Instant::now();
    while began.elapsed() < SHORT * 2 {
        busy.hello().await;
        sleep(SHORT / 10).await;
    }
    busy.hello().await;
    idle.await.unwrap();
    busy.hung_up_on().await;
}

#[tokio::test]
async fn neither_a_slow_body_nor_a_slow_answer_counts_as_waiting() {
    let server = Server::start(Patience { max_connections: 9, head_timeout: SHORT, idle_timeout: SHORT }).await;
    let (mut asking, mut answered) = (server.connect().await, server.connect().await);
    answered.say("GET /slowly HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    asking.say("POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n").await;
    for part in ["b", "o", "d", "y"] {
        sleep(SHORT / 2).await;
        asking.say(part).await;
    }
    asking.hear("body").await;
    answered.hear("0\r\n\r\n").await;
}

#[tokio::test]
async fn a_connection_beyond_the_cap_waits_until_another_ends() {
    let server = Server::start(Patience { max_connections: 2, head_timeout: LONG, idle_timeout: LONG }).await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    first.hello().await;
    second.hello().await;
    let mut third = server.connect().await;
    third.say(HELLO).await;
    assert!(timeout(SHORT, third.0.readable()).await.is_err(), "a third was served");
    first.hello().await;
    drop(second);
    third.hear("hello").await;
}

#[tokio::test]
async fn stopping_ends_idle_connections_and_lets_answers_end() {
    let server = Server::start(Patience { max_connections: 9, head_timeout: LONG, idle_timeout: LONG }).await;
    let (mut idle, mut answered) = (server.connect().await, server.connect().await);
    idle.hello().await;
    answered.say("GET /slowly HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    answered.hear("slow \r\n").await;
    server.stop.send_replace(true);
    idle.hung_up_on().await;
    answered.hear("0\r\n\r\n").await;
    timeout(LONG, server.serving).await.expect("it ends").unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}
