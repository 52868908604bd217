//! A receiver that watches the order per key. Each event says in its data which key it is of and its place (`{"key", "at"}`); the
//! path is any. What it sees that strict order does not allow it keeps, and goes on.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;

use super::now;

/// How a request is answered: the status, and after how long.
pub(crate) type Reply = (u16, Duration);

/// From a key, a place in it, and how often that has come before, to the answer.
pub(crate) type Rule = dyn Fn(&str, usize, usize) -> Reply + Send + Sync;

/// What was seen of one key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// The places in the order in which they came, each time.
    pub(crate) arrivals: Vec<(usize, Instant)>,
    /// Every place before this one was answered for good: delivered, or refused.
    pub(crate) ended: usize,
    in_flight: usize,
}

impl Seen {
    pub(crate) fn times(&self, at: usize) -> usize {
        self.arrivals.iter().filter(|(place, _)| *place == at).count()
    }
}

#[derive(Default)]
struct State {
    keys: HashMap<String, Seen>,
    wrong: Vec<String>,
    /// Places from which on the order of their key is not watched: skipped ones.
    unwatched: Vec<(String, usize)>,
}

/// The receiver.
#[derive(Clone)]
pub(crate) struct Witness {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// A request is in flight until it is answered or its sender has gone.
struct InFlight<'w>(&'w Witness, String);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(seen) = self.0.state().keys.get_mut(&self.1) {
            seen.in_flight -= 1;
        }
    }
}

impl Witness {
    pub(crate) async fn start(rule: impl Fn(&str, usize, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (witness, rule) = (Self { address, state: Arc::default() }, Arc::new(rule));
        let serving = witness.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let (serving, rule) = (serving.clone(), rule.clone());
                tokio::spawn(async move {
                    let service = service_fn(|request| serving.answer(request, &*rule));
                    // A peer that goes away is no concern of the receiver's.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        witness
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, request: Request<Incoming>, rule: &Rule) -> Result<Response<Empty<Bytes>>, hyper::Error> {
        let body = request.into_body().collect().await?.to_bytes();
        let event: Value = serde_json::from_slice(&body).expect("an event");
        let key = event["data"]["key"].as_str().expect("a key").to_owned();
        let at = event["data"]["at"].as_u64().expect("a place") as usize;
        let (status, after) = rule(&key, at, self.arrived(&key, at));
        let in_flight = InFlight(self, key.clone());
        tokio::time::sleep(after).await;
        // Both before the answer leaves: the next may come as soon as it has.
        drop(in_flight);
        if !matches!(status, 408 | 425 | 429 | 500..) {
            let mut state = self.state();
            let seen = state.keys.entry(key).or_default();
            seen.ended = seen.ended.max(at + 1);
        }
        Ok(Response::builder().status(status).body(Empty::new()).expect("a response"))
    }

    /// Takes a request in, and answers how often it has come before.
    fn arrived(&self, key: &str, at: usize) -> usize {
        let mut state = self.state();
        let State { keys, wrong, unwatched } = &mut *state;
        let seen = keys.entry(key.to_owned()).or_default();
        let watched = !unwatched.iter().any(|(skipped, from)| skipped == key && *from == at);
        if watched {
            if seen.in_flight > 0 {
                wrong.push(format!("{key}: {at} came while another was in flight"));
            }
            if at > seen.ended {
                wrong.push(format!("{key}: {at} came before {} had ended", seen.ended));
            }
            if let Some(later) = seen.arrivals.iter().map(|(place, _)| *place).max().filter(|last| *last > at) {
                wrong.push(format!("{key}: {at} came after {later}"));
            }
        }
        let before = seen.times(at);
        seen.arrivals.push((at, now()));
        seen.in_flight += 1;
        before
    }

    /// From now on this place of a key may come at any time.
    pub(crate) fn unwatch(&self, key: &str, at: usize) {
        self.state().unwatched.push((key.to_owned(), at));
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn seen(&self, key: &str) -> Seen {
        self.state().keys.get(key).cloned().unwrap_or_default()
    }

    /// How many places have ended, of all keys.
    pub(crate) fn ended(&self) -> usize {
        self.state().keys.values().map(|seen| seen.ended).sum()
    }

    /// How many requests came.
    pub(crate) fn total(&self) -> usize {
        self.state().keys.values().map(|seen| seen.arrivals.len()).sum()
    }

    pub(crate) fn is_in_order(&self) -> bool {
        self.state().wrong.is_empty()
    }

    pub(crate) fn assert_in_order(&self) {
        let state = self.state();
        assert!(
            state.wrong.is_empty(),
            "{} times out of order: {:#?}",
            state.wrong.len(),
            &state.wrong[..9.min(state.wrong.len())]
        );
    }
}
