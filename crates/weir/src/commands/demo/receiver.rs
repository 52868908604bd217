//! The receiver of the demo: a minimal HTTP server on loopback that checks the signatures and counts the requests.

use std::{collections::HashMap, convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use weir_core::{Clock, Timestamp, signing::Secret};

/// The requests that arrived for one destination.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) arrivals: Vec<Timestamp>,
    /// Requests whose signature was missing or wrong.
    pub(super) forged: usize,
}

/// One path of the receiver: its secret, its response time, and the arrived requests.
struct Inbox {
    secret: Secret,
    response_delay: Duration,
    tally: Tally,
}

/// A receiver with one path per destination.
#[derive(Clone)]
pub(super) struct Receiver {
    address: SocketAddr,
    clock: Arc<dyn Clock>,
    inboxes: Arc<Mutex<HashMap<String, Inbox>>>,
}

impl Receiver {
    pub(super) async fn start(clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let receiver = Self { address: listener.local_addr()?, clock, inboxes: Arc::default() };
        let serving = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serving.clone();
                tokio::spawn(async move {
                    // Avoids latency. An error here or below shows as a missing request.
                    let _ = stream.set_nodelay(true);
                    let service = service_fn(|request| serving.respond(request));
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(receiver)
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Opens a path whose requests must be signed with `secret`.
    pub(super) fn open(&self, path: &str, secret: Secret, response_delay: Duration) {
        self.inboxes.lock().insert(path.to_owned(), Inbox { secret, response_delay, tally: Tally::default() });
    }

    pub(super) fn tally(&self, path: &str) -> Tally {
        self.inboxes.lock().get(path).map(|inbox| inbox.tally.clone()).unwrap_or_default()
    }

    async fn respond(&self, request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
        let at = self.clock.now();
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let delay = self.inboxes.lock().get_mut(head.uri.path()).map(|inbox| {
            let timestamp = header("webhook-timestamp").parse().unwrap_or_default();
            let expected = inbox.secret.sign(header("webhook-id"), timestamp, &body);
            inbox.tally.arrivals.push(at);
            inbox.tally.forged += usize::from(header("webhook-signature") != expected);
            inbox.response_delay
        });
        let mut response = Response::new(Empty::new());
        match delay {
            Some(delay) => tokio::time::sleep(delay).await,
            None => *response.status_mut() = StatusCode::NOT_FOUND,
        }
        Ok(response)
    }
}
