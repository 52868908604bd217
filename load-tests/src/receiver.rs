//! The bare receiver: answers 200 to every POST and counts. On request it also keeps the arrival time of each numbered
//! event.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};

use crate::clock;

/// After this time without an arrival, missing events count as lost.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Receiver {
    address: SocketAddr,
    epoch: Instant,
    arrived: AtomicU64,
    /// Nanoseconds after `epoch`.
    last: AtomicU64,
    noting: AtomicBool,
    noted: Mutex<Vec<(u64, Instant)>>,
}

impl Receiver {
    /// Listens on a free port of loopback, for as long as the process lives.
    pub(crate) async fn start() -> anyhow::Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let receiver = Arc::new(Self {
            address: listener.local_addr()?,
            epoch: clock::now(),
            arrived: AtomicU64::new(0),
            last: AtomicU64::new(0),
            noting: AtomicBool::new(false),
            noted: Mutex::default(),
        });
        let accepting = Arc::clone(&receiver);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&accepting).serve(stream));
            }
        });
        Ok(receiver)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Clears all arrivals. `noting` says whether to keep the arrival times of numbered events from now on.
    pub(crate) fn reset(&self, noting: bool) {
        self.arrived.store(0, Ordering::Relaxed);
        self.noting.store(noting, Ordering::Relaxed);
        self.noted.lock().clear();
    }

    /// Waits until exactly `expected` requests have arrived and returns the time of the last arrival.
    pub(crate) async fn all_arrived(&self, expected: u64) -> anyhow::Result<Instant> {
        let mut seen = 0;
        let mut progress = clock::now();
        // Continue as long as something still arrives.
        while seen < expected {
            ensure!(
                clock::now().duration_since(progress) < TIMEOUT,
                "{} of {expected} events never arrived",
                expected - seen
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
            let arrived = self.arrived.load(Ordering::Acquire);
            if arrived > seen {
                (seen, progress) = (arrived, clock::now());
            }
        }
        // The last arrival, before a duplicate can take its place.
        let last = self.epoch + Duration::from_nanos(self.last.load(Ordering::Relaxed));
        // Duplicates may arrive later.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let arrived = self.arrived.load(Ordering::Acquire);
        ensure!(arrived == expected, "{arrived} requests arrived for {expected} events");
        Ok(last)
    }

    /// How many requests have arrived since the last reset.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Acquire)
    }

    /// The noted arrivals: number and instant.
    pub(crate) fn noted(&self) -> Vec<(u64, Instant)> {
        std::mem::take(&mut self.noted.lock())
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let answer = service_fn(|request| self.answer(request));
        // A receiver ignores clients that disconnect.
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
        // Noted before the body is read: the send has arrived when its head has.
        let now = clock::now();
        if let Ok(body) = request.into_body().collect().await {
            if self.noting.load(Ordering::Relaxed)
                && let Some(number) = number_in(&body.to_bytes())
            {
                self.noted.lock().push((number, now));
            }
            self.last.fetch_max(now.duration_since(self.epoch).as_nanos() as u64, Ordering::Relaxed);
            self.arrived.fetch_add(1, Ordering::Release);
        }
        Ok(Response::new(Empty::new()))
    }
}

/// The number that [`crate::figures::data`] put into an event.
fn number_in(body: &[u8]) -> Option<u64> {
    const MARK: &[u8] = br#""n":"#;
    let after = body.windows(MARK.len()).position(|window| window == MARK)? + MARK.len();
    let digits = body[after..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use hyper::Method;

    use super::*;
    use crate::{client::Connection, figures::data};

    #[tokio::test]
    async fn arrivals_are_counted_and_noted_by_number() {
        let receiver = Receiver::start().await.unwrap();
        receiver.reset(true);
        let mut connection = Connection::open(receiver.address()).await.unwrap();
        for number in [7, 8] {
            let body = format!(r#"{{"id":"evt_1","data":{}}}"#, data(number));
            connection.send(Method::POST, "/hook", body.into()).await.unwrap();
        }
        receiver.all_arrived(2).await.unwrap();
        let numbers: Vec<_> = receiver.noted().into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, [7, 8]);
    }

    #[test]
    fn a_body_without_a_number_has_none() {
        assert_eq!(number_in(b"{}"), None);
        assert_eq!(number_in(br#"{"data":{"n":120,"pad":""}}"#), Some(120));
    }
}
