//! The bare client: keep-alive connections of hyper without a pool, and two ways to load a server with them.
//!
//! A *closed loop* sends the next request when the last one is answered. It measures throughput. An *open loop* sends
//! at fixed times, however the server responds. It measures latency. Latencies count from the fixed times, so a server
//! that stalls is charged for the requests that it kept waiting (no coordinated omission).

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, sync::mpsc, task::JoinSet};

use crate::clock;

/// Makes the body of the n-th request.
pub(crate) type MakeBody = Arc<dyn Fn(u64) -> Bytes + Send + Sync>;

/// One keep-alive connection.
pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    server: SocketAddr,
    authorization: Option<String>,
}

impl Connection {
    pub(crate) async fn open(server: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(server).await.with_context(|| format!("cannot connect to {server}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, server, authorization: None })
    }

    /// Adds an API key to every request.
    pub(crate) fn with_key(self, key: Option<&str>) -> Self {
        Self { authorization: key.map(|key| format!("Bearer {key}")), ..self }
    }

    /// Sends a request and returns the body of the answer, which must be 2xx.
    pub(crate) async fn send(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        let (status, body) = self.exchange(method, path, body).await?;
        if !(200..300).contains(&status) {
            bail!("{path} was answered {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }

    /// Sends a request and returns the status and the body of the answer.
    pub(crate) async fn exchange(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<(u16, Bytes)> {
        let response = self.ask(method, path, body).await?;
        let status = response.status().as_u16();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    /// Sends a GET and returns the body of the answer while it arrives. The answer must be 2xx.
    pub(crate) async fn follow(&mut self, path: &str) -> anyhow::Result<Incoming> {
        let response = self.ask(Method::GET, path, Bytes::new()).await?;
        if !response.status().is_success() {
            bail!("{path} was answered {}", response.status());
        }
        Ok(response.into_body())
    }

    async fn ask(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.server.to_string())
            .header("content-type", "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        self.sender.ready().await?;
        let answer = self.sender.send_request(request.body(Full::new(body))?).await;
        answer.with_context(|| format!("no answer to {path}"))
    }
}

/// When a closed loop ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    Elapsed(Duration),
    Sent(u64),
}

/// The result of a closed loop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Driven {
    pub(crate) started: Instant,
    pub(crate) ended: Instant,
    /// Requests sent and answered.
    pub(crate) answered: u64,
}

impl Driven {
    pub(crate) fn per_second(&self) -> f64 {
        self.answered as f64 / self.ended.duration_since(self.started).as_secs_f64()
    }
}

/// POSTs to `path` on several connections at once, on each as fast as it is answered.
pub(crate) async fn closed_loop(
    server: SocketAddr,
    connections: usize,
    until: Until,
    path: &'static str,
    body: MakeBody,
) -> anyhow::Result<Driven> {
    // Open the connections before the time starts.
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(Connection::open(server).await?);
    }
    // All connections take their numbers from one counter.
    let next = Arc::new(AtomicU64::new(0));
    let started = clock::now();
    let mut loops = JoinSet::new();
    for mut connection in open {
        let (next, body) = (Arc::clone(&next), Arc::clone(&body));
        loops.spawn(async move {
            let mut answered = 0;
            loop {
                // Take the next number. End when the time is over or the numbers are used up.
                let number = match until {
                    Until::Elapsed(time) if clock::now().duration_since(started) >= time => break,
                    Until::Elapsed(_) => next.fetch_add(1, Ordering::Relaxed),
                    Until::Sent(total) => match next.fetch_add(1, Ordering::Relaxed) {
                        number if number < total => number,
                        _ => break,
                    },
                };
                connection.send(Method::POST, path, body(number)).await?;
                answered += 1;
            }
            anyhow::Ok(answered)
        });
    }
    // The first error ends all loops.
    let mut answered = 0;
    while let Some(done) = loops.join_next().await {
        answered += done??;
    }
    Ok(Driven { started, ended: clock::now(), answered })
}

/// POSTs `total` bodies to `path`, one every `every`, however the server responds. Returns the times at which they were
/// meant to be sent.
pub(crate) async fn open_loop(
    server: SocketAddr,
    connections: usize,
    every: Duration,
    total: u32,
    path: &'static str,
    body: MakeBody,
) -> anyhow::Result<Vec<Instant>> {
    let mut queues = Vec::new();
    let mut senders = JoinSet::new();
    // Each connection has a queue, so that a slow response delays only the requests of that connection.
    for _ in 0..connections {
        let mut connection = Connection::open(server).await?;
        let (queue, mut waiting) = mpsc::unbounded_channel::<u64>();
        let body = Arc::clone(&body);
        queues.push(queue);
        senders.spawn(async move {
            while let Some(number) = waiting.recv().await {
                connection.send(Method::POST, path, body(number)).await?;
            }
            anyhow::Ok(())
        });
    }
    // Pacing has its own thread, because the runtime's timers are only exact to a millisecond, which is longer than a
    // measured latency.
    let pacer = std::thread::spawn(move || {
        let started = clock::now() + Duration::from_millis(10);
        let meant: Vec<_> = (0..total).map(|number| started + every * number).collect();
        for (number, at) in meant.iter().enumerate() {
            std::thread::sleep(at.saturating_duration_since(clock::now()));
            // The task of a failed connection has ended; its error is reported below.
            let _ = queues[number % queues.len()].send(number as u64);
        }
        meant
    });
    while let Some(done) = senders.join_next().await {
        done??;
    }
    pacer.join().map_err(|_| anyhow::anyhow!("the pacing thread panicked"))
}
