//! Whether a connection waits for a request, reads a head, or serves a request.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body as RouterBody;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The phase of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Phase {
    /// Increases when a request begins to be served and when it ends, so it is odd while a request is served.
    number: u64,
    pub(super) since: Instant,
    /// Since when a head has been read. The first head counts from the accept of its connection.
    pub(super) head_since: Option<Instant>,
    /// Whether the client has to take more bytes of an answer. Hyper buffers the end of a response, so this may last
    /// longer than the request is served.
    is_stalled: bool,
}

impl Phase {
    pub(super) fn is_serving(self) -> bool {
        self.number % 2 == 1
    }

    /// Whether a request is served, or its answer is under way.
    pub(super) fn is_busy(self) -> bool {
        self.is_serving() || self.is_stalled
    }
}

/// The phase of a connection, shared between its stream, its responses, and the list of all connections.
#[derive(Debug)]
pub(super) struct PhaseTracker(Mutex<Phase>);

impl PhaseTracker {
    pub(super) fn new() -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self(Mutex::new(Phase { number: 0, since: now, head_since: Some(now), is_stalled: false })))
    }

    pub(super) fn current(&self) -> Phase {
        *self.0.lock()
    }

    /// The first bytes of a head have arrived.
    pub(super) fn begin_head(&self) {
        self.0.lock().head_since = Some(Instant::now());
    }

    pub(super) fn set_stalled(&self, is_stalled: bool) {
        self.0.lock().is_stalled = is_stalled;
    }

    fn advance(&self) {
        let mut phase = self.0.lock();
        *phase = Phase { number: phase.number + 1, since: Instant::now(), head_since: None, ..*phase };
    }

    pub(super) fn begin_request(this: &Arc<Self>) -> RequestGuard {
        this.advance();
        RequestGuard(Arc::clone(this))
    }
}

/// Lives from the end of a request's head to the end of the response body. Its drop ends the serving phase.
pub(super) struct RequestGuard(Arc<PhaseTracker>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.advance();
    }
}

/// The body of a response. Hyper drops it when its last byte is written.
pub(super) struct GuardedBody {
    pub(super) body: RouterBody,
    pub(super) _guard: RequestGuard,
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
