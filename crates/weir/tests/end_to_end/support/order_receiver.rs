//! A receiver that checks the order per key. The data of each event contains its key and its place (`{"key", "at"}`);
//! any path is accepted. The receiver records each violation of strict order and continues.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;

use super::now;

/// The answer to a request: the status and the delay.
pub(crate) type Reply = (u16, Duration);

/// The answer for a key, a place in it, and the number of earlier arrivals of that place.
pub(crate) type Rule = dyn Fn(&str, usize, usize) -> Reply + Send + Sync;

/// The history of one key.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyHistory {
    /// The places in the order of their arrivals, repeats included.
    pub(crate) arrivals: Vec<(usize, Instant)>,
    /// Every place before this one has a final answer: delivered or refused.
    pub(crate) ended: usize,
    in_flight: usize,
}

impl KeyHistory {
    pub(crate) fn times(&self, at: usize) -> usize {
        self.arrivals.iter().filter(|(place, _)| *place == at).count()
    }
}

#[derive(Default)]
struct State {
    keys: HashMap<String, KeyHistory>,
    violations: Vec<String>,
    /// Events whose order is not checked, because Weir skips them: each by its key and its place in the key.
    ignored: Vec<(String, usize)>,
}

/// A receiver that checks order.
#[derive(Clone)]
pub(crate) struct OrderReceiver {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// Counts a request as in flight until it is answered or its sender disconnects.
struct InFlight<'w>(&'w OrderReceiver, String);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(seen) = self.0.state.lock().keys.get_mut(&self.1) {
            seen.in_flight -= 1;
        }
    }
}

impl OrderReceiver {
    pub(crate) async fn start(rule: impl Fn(&str, usize, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (order_receiver, rule) = (Self { address, state: Arc::default() }, Arc::new(rule));
        let serving = order_receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let (serving, rule) = (serving.clone(), rule.clone());
                tokio::spawn(async move {
                    let service = service_fn(|request| serving.answer(request, &*rule));
                    // The receiver ignores peers that disconnect.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        order_receiver
    }

    async fn answer(&self, request: Request<Incoming>, rule: &Rule) -> Result<Response<Empty<Bytes>>, hyper::Error> {
        let body = request.into_body().collect().await?.to_bytes();
        let event: Value = serde_json::from_slice(&body).expect("an event");
        let key = event["data"]["key"].as_str().expect("a key").to_owned();
        let at = event["data"]["at"].as_u64().expect("a place") as usize;
        let (before, blocks) = self.arrived(&key, at);
        let (status, after) = rule(&key, at, before);
        let in_flight = blocks.then(|| InFlight(self, key.clone()));
        tokio::time::sleep(after).await;
        // Both are updated before the answer is sent, because the next event may arrive right after it.
        drop(in_flight);
        if !matches!(status, 408 | 425 | 429 | 500..) {
            let mut state = self.state.lock();
            let seen = state.keys.entry(key).or_default();
            seen.ended = seen.ended.max(at + 1);
        }
        Ok(Response::builder().status(status).body(Empty::new()).expect("a response"))
    }

    /// Records an arrival. Returns the number of earlier arrivals of its place, and whether no other event of the key
    /// may arrive until it is answered.
    fn arrived(&self, key: &str, at: usize) -> (usize, bool) {
        let mut state = self.state.lock();
        let State { keys, violations, ignored } = &mut *state;
        let seen = keys.entry(key.to_owned()).or_default();
        let is_checked = !ignored.iter().any(|(skipped, place)| skipped == key && *place == at);
        if is_checked {
            if seen.in_flight > 0 {
                violations.push(format!("{key}: {at} arrived while another was in flight"));
            }
            if at > seen.ended {
                violations.push(format!("{key}: {at} arrived before {} had ended", seen.ended));
            }
            if let Some(later) = seen.arrivals.iter().map(|(place, _)| *place).max().filter(|last| *last > at) {
                violations.push(format!("{key}: {at} arrived after {later}"));
            }
        }
        let before = seen.times(at);
        seen.arrivals.push((at, now()));
        // A skipped event is retried outside the order, so its retries may be in flight beside any other event.
        let blocks = is_checked || before == 0;
        seen.in_flight += usize::from(blocks);
        (before, blocks)
    }

    /// Allows this place of a key to arrive at any time from now on.
    pub(crate) fn ignore_order(&self, key: &str, at: usize) {
        self.state.lock().ignored.push((key.to_owned(), at));
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn seen(&self, key: &str) -> KeyHistory {
        self.state.lock().keys.get(key).cloned().unwrap_or_default()
    }

    /// The number of places of all keys that have ended.
    pub(crate) fn ended(&self) -> usize {
        self.state.lock().keys.values().map(|seen| seen.ended).sum()
    }

    /// The number of arrivals.
    pub(crate) fn total(&self) -> usize {
        self.state.lock().keys.values().map(|seen| seen.arrivals.len()).sum()
    }

    pub(crate) fn is_in_order(&self) -> bool {
        self.state.lock().violations.is_empty()
    }

    pub(crate) fn assert_in_order(&self) {
        let state = self.state.lock();
        assert!(
            state.violations.is_empty(),
            "{} violations of the order: {:#?}",
            state.violations.len(),
            &state.violations[..9.min(state.violations.len())]
        );
    }
}
