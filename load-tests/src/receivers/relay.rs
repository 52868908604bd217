//! The way to a receiver: a loopback port that forwards to it, counts requests and answers, and delays each request by a
//! random time. Bytes pass unchanged, so the receiver decides about its connections as it does without the relay.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinHandle,
};

use crate::clock::now;

/// Larger than a head of any receiver here.
const BUFFER: usize = 16 * 1024;

/// One request of Weir and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exchange {
    /// When the request had arrived here: before the delay.
    pub(super) at: Instant,
    pub(super) status: u16,
}

/// Ends when it is dropped.
pub(super) struct Relay {
    port: u16,
    seen: Arc<Seen>,
    accepting: JoinHandle<()>,
}

struct Seen {
    exchanges: Mutex<Vec<Exchange>>,
    jitter: Duration,
}

impl Relay {
    /// Forwards to `receiver` and delays each request by up to `jitter`.
    pub(super) async fn to(receiver: SocketAddr, jitter: Duration) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let seen = Arc::new(Seen { exchanges: Mutex::default(), jitter });
        let connections = Arc::clone(&seen);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, receiver, Arc::clone(&connections)));
            }
        });
        Ok(Self { port, seen, accepting })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The exchanges so far, in the order of their answers.
    pub(super) fn exchanges(&self) -> Vec<Exchange> {
        self.seen.exchanges.lock().clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn forward(client: TcpStream, receiver: SocketAddr, seen: Arc<Seen>) {
    let Ok(server) = TcpStream::connect(receiver).await else { return };
    let _ = client.set_nodelay(true).and(server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    // The request that waits for its answer. HTTP/1.1 without pipelining has one at a time.
    let open = Mutex::new(None);
    // The end of either direction closes both connections.
    tokio::select! {
        () = requests(from_client, to_server, &seen, &open) => {}
        () = answers(from_server, to_client, &seen, &open) => {}
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, seen: &Seen, open: &Mutex<Option<Instant>>) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        // The rest of a request follows its first bytes without a delay of its own.
        if begins(open) && !seen.jitter.is_zero() {
            tokio::time::sleep(seen.jitter.mul_f64(rand::random())).await;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// Whether the bytes that have just arrived begin a request. Then notes its time.
fn begins(open: &Mutex<Option<Instant>>) -> bool {
    let mut open = open.lock();
    let begins = open.is_none();
    open.get_or_insert_with(now);
    begins
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, seen: &Seen, open: &Mutex<Option<Instant>>) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let bytes = &buffer[..length];
        // The first bytes after a request are the status line of its answer.
        let asked = open.lock().take();
        if let (Some(at), Some(status)) = (asked, status(bytes)) {
            seen.exchanges.lock().push(Exchange { at, status });
        }
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

/// The status of an answer that begins with these bytes.
fn status(bytes: &[u8]) -> Option<u16> {
    let code = bytes.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    std::str::from_utf8(code).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hyper::Method;

    use super::*;
    use crate::{
        client::Connection,
        receivers::{
            case::Limit,
            imitation::Imitation,
            limiters::{Gcra, Limiter},
        },
    };

    #[tokio::test]
    async fn requests_are_forwarded_and_their_answers_counted() {
        let limiter: Box<dyn Limiter> = Box::new(Gcra::new(Limit::per_minute(1)));
        let receiver = Imitation::start([("/0".to_owned(), limiter)].into()).await.unwrap();
        let relay = Relay::to(receiver.address(), Duration::from_millis(5)).await.unwrap();
        let mut connection = Connection::open(([127, 0, 0, 1], relay.port()).into()).await.unwrap();
        let began = now();
        for status in [200, 429] {
            // Larger than the buffer: the parts of a request are one request.
            let body = Bytes::from(vec![b'x'; 3 * BUFFER]);
            assert_eq!(connection.exchange(Method::POST, "/0", body).await.unwrap().0, status);
        }
        let exchanges = relay.exchanges();
        assert_eq!(exchanges.iter().map(|exchange| exchange.status).collect::<Vec<_>>(), [200, 429]);
        assert!(began <= exchanges[0].at && exchanges[0].at < exchanges[1].at);
    }

    #[test]
    fn a_status_is_read_from_the_first_bytes_of_an_answer() {
        assert_eq!(status(b"HTTP/1.1 429 Too Many Requests\r\n"), Some(429));
        assert_eq!(status(b"HTTP/1.0 200"), Some(200));
        assert_eq!(status(b"data"), None);
    }
}
