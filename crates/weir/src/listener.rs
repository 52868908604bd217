//! The HTTP listener. It limits the number of connections, and how long a client may keep a connection without a
//! request.
//!
//! ```text
//!        first byte of a head        head complete        answer's body ended
//!   idle ────────────────────▶ head ───────────────▶ served ─────────────────▶ idle
//!    └── idle_timeout: close     └── head_timeout: close
//! ```
//!
//! [`TimedStream`] keeps these timeouts, below hyper. Hyper's own timeout of heads runs on idle connections too, so
//! both timeouts would have to be equal. No timeout runs here while a request is served: bodies have their own timeout,
//! and a response may be long.

use std::{
    convert::Infallible,
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body as RouterBody};
use bytes::Bytes;
use hyper::{
    Request,
    body::{Body, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use metrics::gauge;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, Sleep, sleep, sleep_until},
};
use weir_api::RemoteAddress;

use crate::engine::stopped;

/// The metric of open client connections.
pub(crate) const CONNECTIONS: &str = "weir_http_connections";
/// The pause of accepting when the process has no free file descriptors: until some are closed, every accept fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// The limits of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// The maximum number of open connections. Further clients wait in the kernel's backlog until a connection ends.
    pub(crate) max_connections: usize,
    /// From the first byte of a head to its last byte, and from the accept to the end of the first head. Heads are a
    /// few hundred bytes that clients send at once.
    pub(crate) head_timeout: Duration,
    /// From the end of a response to the first byte of the next head. Most clients close an idle connection after 90 s.
    /// This timeout is longer, so that the client closes first and sends no request on a connection that the server is
    /// closing.
    pub(crate) idle_timeout: Duration,
}

impl ConnectionLimits {
    pub(crate) const fn new(max_connections: usize) -> Self {
        Self { max_connections, head_timeout: Duration::from_secs(10), idle_timeout: Duration::from_secs(120) }
    }
}

/// Serves until it is stopped, and then until the open requests are answered.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    stops: watch::Receiver<bool>,
) {
    let free_connections = Arc::new(Semaphore::new(limits.max_connections));
    let mut stop = pin!(stopped(stops.clone()));
    loop {
        // A connection is accepted only when the limit allows one more. Further clients wait in the kernel's backlog.
        let (stream, address, reservation) = tokio::select! {
            accepted = accept(&listener, &free_connections) => accepted,
            () = &mut stop => break,
        };
        let (router, stops) = (router.clone(), stops.clone());
        tokio::spawn(async move {
            let open = gauge!(CONNECTIONS);
            open.increment(1.0);
            serve_client(stream, address, router, limits, stops).await;
            open.decrement(1.0);
            drop(reservation);
        });
    }
    // New clients are refused instead of waiting in the kernel's backlog.
    drop(listener);
    // Wait until all connections have ended: only then can all reservations be acquired at once.
    let all = u32::try_from(limits.max_connections).unwrap_or(u32::MAX);
    let _ = free_connections.acquire_many(all).await;
}

/// Accepts the next connection once the limit of connections allows one.
async fn accept(
    listener: &TcpListener,
    free_connections: &Arc<Semaphore>,
) -> (TcpStream, RemoteAddress, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let reservation = Arc::clone(free_connections).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, address)) => return (stream, RemoteAddress(address.ip()), reservation),
            // The client closed the connection before it was accepted.
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept connections; trying again in half a second");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves one connection, from its accept to its end.
async fn serve_client(
    stream: TcpStream,
    address: RemoteAddress,
    router: Router,
    limits: ConnectionLimits,
    stops: watch::Receiver<bool>,
) {
    // A response in several writes must not wait for the client's acknowledgements. An error here only costs latency.
    let _ = stream.set_nodelay(true);
    // The stream and the responses share the phase: it decides which timeout runs.
    let phases = Arc::new(PhaseTracker::new());
    let router = TowerToHyperService::new(router);
    let exchange = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(address);
        // The guard is in the response's body: until the body is written, no timeout runs.
        let guard = PhaseTracker::begin_request(&phases);
        let response = router.call(request);
        async move {
            let response = response.await?;
            Ok::<_, Infallible>(response.map(|body| GuardedBody { body, _guard: guard }))
        }
    });
    let stream = TokioIo::new(TimedStream::new(stream, Arc::clone(&phases), limits));
    // Hyper's timeout is off, because `TimedStream` keeps the timeouts.
    let mut connection = pin!(http1::Builder::new().header_read_timeout(None).serve_connection(stream, exchange));
    // When the listener stops, a request in progress is answered before the connection closes.
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(stops) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, "a connection ended");
    }
}

/// The phase of a connection: idle or reading a head, or serving a request.
#[derive(Debug, Clone, Copy)]
struct Phase {
    /// Increases when a request begins to be served and when it ends, so it is odd while a request is served.
    number: u64,
    since: Instant,
}

impl Phase {
    fn is_serving(self) -> bool {
        self.number % 2 == 1
    }
}

/// The phase of a connection, shared between its stream and its responses.
#[derive(Debug)]
struct PhaseTracker(Mutex<Phase>);

impl PhaseTracker {
    fn new() -> Self {
        Self(Mutex::new(Phase { number: 0, since: Instant::now() }))
    }

    fn current(&self) -> Phase {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self) {
        let mut phase = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *phase = Phase { number: phase.number + 1, since: Instant::now() };
    }

    fn begin_request(this: &Arc<Self>) -> RequestGuard {
        this.advance();
        RequestGuard(Arc::clone(this))
    }
}

/// Lives from the end of a request's head to the end of the response body. Its drop ends the serving phase.
struct RequestGuard(Arc<PhaseTracker>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.advance();
    }
}

/// The body of a response. Hyper drops it when its last byte is written.
struct GuardedBody {
    body: RouterBody,
    _guard: RequestGuard,
}

impl Body for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream whose reads fail when the head of a request does not arrive in time.
struct TimedStream {
    stream: TcpStream,
    phases: Arc<PhaseTracker>,
    limits: ConnectionLimits,
    /// The phase in which a head is being read, and since when.
    head: Option<(u64, Instant)>,
    /// Fires at the deadline or before it. Only then it is set to the new deadline: a reset for each request would cost
    /// more than a wake-up. It is polled while a request is served too, because hyper may not read again after the
    /// response.
    timer: Pin<Box<Sleep>>,
}

impl TimedStream {
    fn new(stream: TcpStream, phases: Arc<PhaseTracker>, limits: ConnectionLimits) -> Self {
        let Phase { number, since } = phases.current();
        let timer = Box::pin(sleep_until(since + limits.head_timeout.min(limits.idle_timeout)));
        Self { stream, phases, limits, head: Some((number, since)), timer }
    }

    /// The deadline of the head that is being read, if one is.
    fn head_deadline(&self, phase: Phase) -> Option<Instant> {
        let (_, since) = self.head.filter(|(number, _)| *number == phase.number)?;
        Some(since + self.limits.head_timeout)
    }

    fn has_timed_out(&mut self, phase: Phase, cx: &mut Context<'_>) -> bool {
        let head = self.head_deadline(phase);
        if let Some(deadline) = head.filter(|deadline| *deadline < self.timer.deadline()) {
            self.timer.as_mut().reset(deadline);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let idle_since = if phase.is_serving() { now } else { phase.since };
            let deadline = head.unwrap_or(idle_since + self.limits.idle_timeout);
            if now >= deadline {
                return true;
            }
            self.timer.as_mut().reset(deadline);
        }
        false
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let phase = this.phases.current();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if read.is_pending() && this.has_timed_out(phase, cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        // Bytes that arrive while a request is served belong to its body. Otherwise they begin a head.
        if buffer.filled().len() > before && !phase.is_serving() && this.head_deadline(phase).is_none() {
            this.head = Some((phase.number, Instant::now()));
        }
        read
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests;
