//! Clients that post whatever the answers are: a refusal is counted, not repeated.
//!
//! A producer has a thread and a runtime of its own, so that the thousand connections of a flood do not delay the
//! requests of the quiet client beside it in this process.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use hyper::Method;
use parking_lot::Mutex;
use tokio::{sync::Barrier, task::JoinSet, time::sleep_until};

use crate::{client::Connection, clock::now, figures::event};

/// An answer that takes longer counts as none.
const TIMEOUT: Duration = Duration::from_secs(10);

/// One client: a key on several connections.
#[derive(Clone)]
pub(super) struct Producer {
    pub(super) to: SocketAddr,
    pub(super) key: String,
    pub(super) connections: u32,
    /// On all connections together; `None`: the next request follows the answer.
    pub(super) per_s: Option<f64>,
    pub(super) lasts: Duration,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Bytes,
}

/// What a producer was answered.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    /// Microseconds until an answer of 2xx.
    pub(super) accepted: Histogram<u64>,
    pub(super) refused: u64,
    /// Other answers, and none.
    pub(super) failed: u64,
    /// From the first request to the last answer.
    pub(super) lasted: Duration,
}

impl Answers {
    fn new() -> anyhow::Result<Self> {
        let accepted = Histogram::new_with_bounds(1, 60_000_000, 3)?;
        Ok(Self { accepted, refused: 0, failed: 0, lasted: Duration::ZERO })
    }

    pub(super) fn all(&self) -> u64 {
        self.accepted.len() + self.refused + self.failed
    }

    pub(super) fn accepted_per_s(&self) -> f64 {
        self.accepted.len() as f64 / self.lasted.as_secs_f64()
    }

    pub(super) fn offered_per_s(&self) -> f64 {
        self.all() as f64 / self.lasted.as_secs_f64()
    }

    pub(super) fn p99_ms(&self) -> f64 {
        self.accepted.value_at_quantile(0.99) as f64 / 1_000.0
    }

    pub(super) fn p50_ms(&self) -> f64 {
        self.accepted.value_at_quantile(0.5) as f64 / 1_000.0
    }
}

impl Producer {
    /// Events for the only destination.
    pub(super) fn of_events(to: SocketAddr, key: &str, connections: u32, lasts: Duration) -> Self {
        let (method, path, body) = (Method::POST, "/v1/events".to_owned(), event("bench", 0).into());
        Self { to, key: key.to_owned(), connections, per_s: None, lasts, method, path, body }
    }

    pub(super) fn per_s(self, per_s: f64) -> Self {
        Self { per_s: Some(per_s), ..self }
    }

    /// Begins on a thread of its own.
    pub(super) fn start(self) -> Running {
        Running(std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(self.produce())
        }))
    }

    pub(super) async fn run(self) -> anyhow::Result<Answers> {
        self.start().answers().await
    }

    async fn produce(self) -> anyhow::Result<Answers> {
        let answers = Arc::new(Mutex::new(Answers::new()?));
        let ready = Arc::new(Barrier::new(self.connections as usize));
        let mut connections = JoinSet::new();
        for number in 0..self.connections {
            let (producer, answers, ready) = (self.clone(), Arc::clone(&answers), Arc::clone(&ready));
            let connection = Connection::open(self.to).await?.with_key(Some(&self.key));
            connections.spawn(async move {
                ready.wait().await;
                producer.post(number, connection, &answers).await
            });
        }
        let began = now();
        while let Some(ended) = connections.join_next().await {
            ended??;
        }
        let mut answers = answers.lock().clone();
        answers.lasted = now().duration_since(began);
        ensure!(answers.all() > 0, "a producer was not answered at all");
        Ok(answers)
    }

    /// One connection. Those of a paced client take turns; one that is late goes on at once, and skips what it missed.
    async fn post(&self, number: u32, mut connection: Connection, answers: &Mutex<Answers>) -> anyhow::Result<()> {
        let began = now();
        let every = self.per_s.map(|per_s| Duration::from_secs_f64(f64::from(self.connections) / per_s));
        let mut due = began + every.unwrap_or_default() * number / self.connections;
        loop {
            if every.is_some() {
                sleep_until(due.into()).await;
            }
            let sent = now();
            if sent.duration_since(began) >= self.lasts {
                return Ok(());
            }
            let request = connection.exchange(self.method.clone(), &self.path, self.body.clone());
            let answer = tokio::time::timeout(TIMEOUT, request).await;
            let took = now().duration_since(sent.min(due));
            match answer {
                Ok(Ok((status, _))) => {
                    let mut answers = answers.lock();
                    match status {
                        200..=299 => answers.accepted.saturating_record(took.as_micros() as u64),
                        429 | 503 => answers.refused += 1,
                        _ => answers.failed += 1,
                    }
                }
                Ok(Err(_)) | Err(_) => {
                    answers.lock().failed += 1;
                    connection = Connection::open(self.to).await?.with_key(Some(&self.key));
                }
            }
            due = every.map_or_else(now, |every| (due + every).max(now()));
        }
    }
}

/// A producer at work.
pub(super) struct Running(std::thread::JoinHandle<anyhow::Result<Answers>>);

impl Running {
    pub(super) async fn answers(self) -> anyhow::Result<Answers> {
        let joined = tokio::task::spawn_blocking(move || self.0.join()).await.context("a producer")?;
        joined.map_err(|_| anyhow!("the thread of a producer panicked"))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::Receiver;

    #[tokio::test]
    async fn a_producer_counts_every_answer_and_keeps_its_pace() {
        let receiver = Receiver::start().await.unwrap();
        let lasts = Duration::from_millis(300);
        let producer = Producer::of_events(receiver.address(), "key", 4, lasts).per_s(100.0);
        let answers = producer.run().await.unwrap();
        assert_eq!((answers.accepted.len(), answers.refused, answers.failed), (receiver.arrived(), 0, 0));
        // A connection posts at most every 40 ms, and a machine that is busy only makes it later.
        assert!((1..=32).contains(&answers.all()), "{}", answers.all());
    }
}
