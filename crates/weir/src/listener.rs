//! The HTTP listener: how many connections there may be, and how long a client may keep one without asking for anything.
//!
//! ```text
//!        first byte of a head        head complete        answer's body ended
//!   idle ────────────────────▶ head ───────────────▶ served ─────────────────▶ idle
//!    └── idle_timeout: close     └── head_timeout: close
//! ```
//!
//! The times are kept in [`Watched`], below hyper: its own timer of heads runs while a connection is idle too, so that the two could
//! not differ. While a request is served no time runs here: bodies have their own, and an answer may be a long one.

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

use crate::engine::stopped;

/// The metric of what clients have open.
pub(crate) const CONNECTIONS: &str = "weir_http_connections";
/// How long accepting pauses when the process has no files left: until others are closed, every try fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// What a listener bears with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// The most connections. Whoever comes then waits in the kernel's backlog until one of them ends.
    pub(crate) max_connections: usize,
    /// From the first byte of a head to its last, and from the accept to the end of the first head. Heads are a few hundred bytes
    /// that clients send at once.
    pub(crate) head_timeout: Duration,
    /// From the end of an answer to the first byte of the next head. Longer than the 90 s after which most clients' pools give up an
    /// idle connection, so that it is they who close it, and no request meets a closing one.
    pub(crate) idle_timeout: Duration,
}

impl Patience {
    pub(crate) const fn new(max_connections: usize) -> Self {
        Self { max_connections, head_timeout: Duration::from_secs(10), idle_timeout: Duration::from_secs(120) }
    }
}

/// Serves until it is stopped, and then until the requests under way are answered.
pub(crate) async fn serve(listener: TcpListener, router: Router, patience: Patience, stops: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(patience.max_connections));
    let mut stop = pin!(stopped(stops.clone()));
    loop {
        let (stream, place) = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = &mut stop => break,
        };
        let (router, stops) = (router.clone(), stops.clone());
        tokio::spawn(async move {
            let open = gauge!(CONNECTIONS);
            open.increment(1.0);
            converse(stream, router, patience, stops).await;
            open.decrement(1.0);
            drop(place);
        });
    }
    // Whoever comes now is refused rather than left to wait.
    drop(listener);
    let all = u32::try_from(patience.max_connections).unwrap_or(u32::MAX);
    let _ = places.acquire_many(all).await;
}

/// The next connection, once there is a place for it.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // Nobody closes the semaphore.
    let place = Arc::clone(places).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            // It was given up before it was accepted.
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept connections for the moment");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// One connection, from its accept to its end.
async fn converse(stream: TcpStream, router: Router, patience: Patience, stops: watch::Receiver<bool>) {
    // An answer in several writes must not wait for the client's acknowledgement. Should it fail, it waits.
    let _ = stream.set_nodelay(true);
    let turns = Arc::new(Turns::new());
    let router = TowerToHyperService::new(router);
    let exchange = service_fn(|request: Request<Incoming>| {
        let served = Turns::begin(&turns);
        let answer = router.call(request);
        async move {
            let answer = answer.await?;
            Ok::<_, Infallible>(answer.map(|body| Answer { body, _served: served }))
        }
    });
    let watched = TokioIo::new(Watched::new(stream, Arc::clone(&turns), patience));
    let mut connection = pin!(http1::Builder::new().header_read_timeout(None).serve_connection(watched, exchange));
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

/// How far the conversation on a connection is.
#[derive(Debug, Clone, Copy)]
struct Turn {
    /// How often a request has begun to be served, or has ended: odd while one is served.
    number: u64,
    since: Instant,
}

impl Turn {
    fn is_served(self) -> bool {
        self.number % 2 == 1
    }
}

/// The turn of a connection, shared between its stream and its answers.
#[derive(Debug)]
struct Turns(Mutex<Turn>);

impl Turns {
    fn new() -> Self {
        Self(Mutex::new(Turn { number: 0, since: Instant::now() }))
    }

    fn current(&self) -> Turn {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) {
        let mut turn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *turn = Turn { number: turn.number + 1, since: Instant::now() };
    }

    fn begin(this: &Arc<Self>) -> Served {
        this.next();
        Served(Arc::clone(this))
    }
}

/// Kept from the end of a request's head to the end of its answer's body.
struct Served(Arc<Turns>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.next();
    }
}

/// The body of an answer, which hyper drops when the last of it is written.
struct Answer {
    body: RouterBody,
    _served: Served,
}

impl Body for Answer {
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

/// A stream whose reads fail when a client keeps it too long without asking for anything.
struct Watched {
    stream: TcpStream,
    turns: Arc<Turns>,
    patience: Patience,
    /// Since when a head is being read, and in which turn.
    head: Option<(u64, Instant)>,
    /// Goes off at the deadline or before it, and is only then set anew: doing so for each request would cost more than to look
    /// again. It is polled while a request is served too, since hyper may not read again when that has ended.
    alarm: Pin<Box<Sleep>>,
}

impl Watched {
    fn new(stream: TcpStream, turns: Arc<Turns>, patience: Patience) -> Self {
        let Turn { number, since } = turns.current();
        let alarm = Box::pin(sleep_until(since + patience.head_timeout.min(patience.idle_timeout)));
        Self { stream, turns, patience, head: Some((number, since)), alarm }
    }

    /// When the head that is being read must have ended.
    fn head_deadline(&self, turn: Turn) -> Option<Instant> {
        let (_, since) = self.head.filter(|(number, _)| *number == turn.number)?;
        Some(since + self.patience.head_timeout)
    }

    fn is_late(&mut self, turn: Turn, cx: &mut Context<'_>) -> bool {
        let head = self.head_deadline(turn);
        if let Some(deadline) = head.filter(|deadline| *deadline < self.alarm.deadline()) {
            self.alarm.as_mut().reset(deadline);
        }
        while self.alarm.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let idle_since = if turn.is_served() { now } else { turn.since };
            let deadline = head.unwrap_or(idle_since + self.patience.idle_timeout);
            if now >= deadline {
                return true;
            }
            self.alarm.as_mut().reset(deadline);
        }
        false
    }
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let turn = this.turns.current();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if read.is_pending() && this.is_late(turn, cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        // While a request is served, this is its body.
        if buffer.filled().len() > before && !turn.is_served() && this.head_deadline(turn).is_none() {
            this.head = Some((turn.number, Instant::now()));
        }
        read
    }
}

impl AsyncWrite for Watched {
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
