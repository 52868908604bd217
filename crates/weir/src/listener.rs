//! The HTTP listener. It limits the number of connections, in all and of each client, and how long a client may keep a
//! connection without a request, or without reading its answer.
//!
//! ```text
//!        first byte of a head        head complete        answer's body ended
//!   idle ────────────────────▶ head ───────────────▶ served ─────────────────▶ idle
//!    ├── idle_timeout: close     └── head_timeout: close  └── write_timeout without progress: close
//!    └── makes room for a new connection
//! ```
//!
//! [`TimedStream`] keeps these timeouts, below hyper. Hyper's own timeout of heads runs on idle connections too, so
//! both timeouts would have to be equal. No other timeout runs here while a request is served: bodies have their own
//! timeout, and a response may be long.

mod connections;
mod lanes;
mod phases;
mod timed_stream;

use std::{convert::Infallible, io, io::Write as _, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use metrics::{counter, gauge};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::sleep,
};
use weir_api::{LastSender, RemoteAddress};

use self::{
    connections::{ConnectionGuard, Connections},
    lanes::Lanes,
    phases::{GuardedBody, PhaseTracker},
    timed_stream::TimedStream,
};
use crate::stage::stopped;

/// The metric of open client connections.
pub(crate) const CONNECTIONS: &str = "weir_http_connections";
/// The metric of refused clients, which the API describes.
const SHED: &str = "weir_http_shed_total";
/// The largest head of a request, and the largest buffer of a connection. Hyper answers larger heads with 431.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// The answer to a client that has its maximum number of connections.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
/// The pause of accepting when the process has no free file descriptors: until some are closed, every accept fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// The limits of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// The maximum number of open connections. An idle one makes room for a new one. When all are busy, further clients
    /// wait in the kernel's backlog until a connection ends.
    pub(crate) max_connections: usize,
    /// The maximum number of open connections of one client, by the address of its socket. Further ones are refused.
    pub(crate) max_per_address: usize,
    /// From the first byte of a head to its last byte, and from the accept to the end of the first head. Heads are a
    /// few hundred bytes that clients send at once.
    pub(crate) head_timeout: Duration,
    /// From the end of a response to the first byte of the next head. Most clients close an idle connection after 90 s.
    /// This timeout is longer, so that the client closes first and sends no request on a connection that the server is
    /// closing.
    pub(crate) idle_timeout: Duration,
    /// How long a client may take no byte of an answer that waits for it. Streams send something every 15 s.
    pub(crate) write_timeout: Duration,
}

impl ConnectionLimits {
    /// `max_per_address`: `None` is a quarter of all connections, so that no client alone keeps others out.
    pub(crate) fn new(max_connections: usize, max_per_address: Option<usize>) -> Self {
        Self {
            max_connections,
            max_per_address: max_per_address.unwrap_or((max_connections / 4).max(1)),
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(30),
        }
    }
}

/// Serves until it is stopped, and then until the open requests are answered.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    stops: watch::Receiver<bool>,
) {
    let (connections, lanes) = (Connections::new(limits), Lanes::new());
    let mut stop = pin!(stopped(stops.clone()));
    loop {
        let (stream, address, guard) = tokio::select! {
            accepted = accept(&listener, &connections) => accepted,
            () = &mut stop => break,
        };
        let Some(guard) = guard else {
            refuse(stream);
            continue;
        };
        let (router, stops, sender) = (router.clone(), stops.clone(), LastSender::default());
        lanes.spawn(address.0, sender.clone(), async move {
            let open = gauge!(CONNECTIONS);
            open.increment(1.0);
            serve_client(stream, (address, sender), &guard, router, limits, stops).await;
            open.decrement(1.0);
            drop(guard);
        });
    }
    // New clients are refused instead of waiting in the kernel's backlog.
    drop(listener);
    connections.all_ended().await;
}

/// Accepts the next connection, and waits until it may be open. Meanwhile further clients wait in the kernel's backlog.
async fn accept(
    listener: &TcpListener,
    connections: &Arc<Connections>,
) -> (TcpStream, RemoteAddress, Option<ConnectionGuard>) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let guard = connections.enter(address.ip()).await;
                return (stream, RemoteAddress(address.ip()), guard);
            }
            // The client closed the connection before it was accepted.
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept connections; trying again in half a second");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Tells a client that it has too many connections, if its kernel takes the answer at once.
fn refuse(stream: TcpStream) {
    counter!(SHED, "reason" => "connections").increment(1);
    let _ = stream.into_std().and_then(|mut stream| stream.write_all(TOO_MANY));
}

fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves one connection, from its accept to its end.
async fn serve_client(
    stream: TcpStream,
    (address, sender): (RemoteAddress, LastSender),
    guard: &ConnectionGuard,
    router: Router,
    limits: ConnectionLimits,
    stops: watch::Receiver<bool>,
) {
    // A response in several writes must not wait for the client's acknowledgements. An error here only costs latency.
    let _ = stream.set_nodelay(true);
    // The stream and the responses share the phase: it decides which timeout runs.
    let phases = Arc::clone(&guard.phases);
    let router = TowerToHyperService::new(router);
    let exchange = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(address);
        request.extensions_mut().insert(sender.clone());
        // This guard is in the response's body: until the body is written, no timeout runs.
        let serving = PhaseTracker::begin_request(&phases);
        let response = router.call(request);
        async move {
            let response = response.await?;
            Ok::<_, Infallible>(response.map(|body| GuardedBody { body, _guard: serving }))
        }
    });
    let stream = TokioIo::new(TimedStream::new(stream, Arc::clone(&phases), limits));
    // Hyper's timeout is off, because `TimedStream` keeps the timeouts.
    let mut server = http1::Builder::new();
    server.header_read_timeout(None).max_buf_size(MAX_HEAD_BYTES);
    let mut connection = pin!(server.serve_connection(stream, exchange));
    // When the listener stops, a request in progress is answered before the connection closes. So is one that has begun
    // just before the connection had to make room.
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = guard.makes_room() => {
            if !phases.current().is_busy() {
                return;
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = stopped(stops) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, "a connection ended");
    }
}

#[cfg(test)]
mod tests;
