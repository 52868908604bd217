//! One HTTP/1.1 connection, driven by whoever holds it.
//!
//! An exchange goes through these steps; only the last two are an attempt:
//!
//! ```text
//! stands? ──no──▶ not sent      next slot ◀──missed: nothing left, the connection stands──┐
//!    └─yes─▶ request ready ────────▶│──none──▶ withdrawn                                  │
//!                                   └──wait for its start──▶ gate ───outside the slot─────┘
//!                                                             └──passed──▶ answer, failure or timeout
//! ```
//!
//! hyper writes the request and reads the answer; it is polled here, in the task of the exchange, and nowhere else. That the first
//! write falls into the slot is the gate's (`gate`).

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    task::unconstrained,
    time::{Instant, sleep, timeout},
};
use weir_core::{Clock, Slot, Timestamp, outcome::Failure};

use super::{
    ExchangeResult, Sent, SlotSource,
    answer::Answer,
    fault::{Broken, Unreachable},
    gate::{Gate, GatedStream, Passage},
    stream::Stream,
    target::Origin,
};

/// The most that is read of an answer's head.
const MAX_HEAD: usize = 32 * 1024;
/// How long a connection may stand unused, unless the server names less. Below the idle timeouts of most servers and balancers.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// So long before the end that a server names for an idle connection, or that was learned, nothing is sent on it: a request must not meet the close.
pub(super) const BEFORE_CLOSE: Duration = Duration::from_secs(1);
/// How old a connection may grow, however busy: a name that points elsewhere is followed within this and its TTL.
const MAX_AGE: Duration = Duration::from_secs(300);
/// By how much of it at random that may be less: connections made together are not all made anew together.
const AGE_JITTER: f64 = 0.2;

/// A connection to one origin.
pub struct Connection {
    origin: Arc<Origin>,
    gate: Arc<Gate>,
    /// Boxed: connections are moved about.
    http: Box<Http>,
    /// Between requests: nothing of an exchange is left on it, and the gate is shut.
    between: bool,
    /// It has carried a request.
    used: bool,
    /// Since when it stands unused.
    idle_since: Instant,
    /// Not to be used from then on, unless it is used before.
    idle_until: Instant,
    /// Not to be used from then on.
    old_at: Instant,
    counted: Option<Counted>,
}

/// One of the open connections, as long as it lives.
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(super) fn among(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// hyper's two ends of a connection.
struct Http {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: http1::Connection<TokioIo<GatedStream>, Full<Bytes>>,
    /// The driver has come to its end, and is not to be polled again.
    ended: bool,
}

impl Http {
    /// Whether the connection goes on.
    fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        // What hyper has to say of its end it says to whoever waits for the answer.
        self.ended = self.ended || Pin::new(&mut self.driver).poll(cx).is_ready();
        !self.ended
    }
}

/// What became of a request at the gate.
enum Left {
    At(Timestamp),
    /// The slot did not hold the moment. Nothing left.
    Missed,
    /// The connection takes nothing. Nothing left.
    Dead,
}

impl Connection {
    pub(super) async fn new(stream: Stream, origin: Arc<Origin>, clock: Arc<dyn Clock>) -> hyper::Result<Self> {
        let gate = Gate::new(clock);
        let stream = TokioIo::new(GatedStream::new(stream, gate.clone()));
        let (sender, driver) = http1::Builder::new().max_header_size(MAX_HEAD).handshake(stream).await?;
        let http = Box::new(Http { sender, driver, ended: false });
        let now = Instant::now();
        let old_at = now + MAX_AGE.mul_f64(1.0 - AGE_JITTER * rand::random::<f64>());
        Ok(Self {
            origin,
            gate,
            http,
            between: true,
            used: false,
            idle_since: now,
            idle_until: now + MAX_IDLE,
            old_at,
            counted: None,
        })
    }

    /// Counts it as open from now on.
    pub(super) fn count(&mut self, counted: Counted) {
        self.counted = Some(counted);
    }

    pub(super) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// Whether a request can be sent: the server has neither closed the connection nor said anything unasked, as far as has
    /// been heard by now. Never waits.
    pub fn is_open(&mut self) -> bool {
        let http = &mut self.http;
        self.between = self.between && now(|cx| http.drive(cx)) && self.gate.has_flushed();
        self.between
    }

    /// Whether the last exchange, if any, left the connection fit for another, and it has stood for neither too long nor unused
    /// for too long.
    pub(super) fn is_reusable(&self, now: Instant) -> bool {
        self.between && now < self.idle_until && now < self.old_at
    }

    /// How long it has stood unused.
    pub(super) fn stood_for(&self, now: Instant) -> Duration {
        now.duration_since(self.idle_since)
    }

    /// Sends one request in the first slot that is not missed, and reads its answer. The limit runs from the moment the request
    /// leaves.
    pub(super) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
        slots: &mut impl SlotSource,
        limit: Duration,
        clock: &dyn Clock,
    ) -> ExchangeResult {
        if !self.is_open() {
            return ExchangeResult::NotSent(Unreachable::closed_before_send());
        }
        let Some(mut slot) = begun(slots, clock).await else { return ExchangeResult::Withdrawn };
        // From here on the request is in hyper's buffer, which gives nothing back: withdrawn after a miss, it costs the connection.
        self.between = false;
        let mut response = pin!(self.http.sender.send_request(request));
        let sent_at = loop {
            match self.leave(slot).await {
                Left::At(sent_at) => break sent_at,
                Left::Dead => return ExchangeResult::NotSent(Unreachable::closed_before_send()),
                Left::Missed => match begun(slots, clock).await {
                    Some(next) => slot = next,
                    None => return ExchangeResult::Withdrawn,
                },
            }
        };
        let mut answer = Answer::default();
        let reused = std::mem::replace(&mut self.used, true);
        let end = match timeout(limit, self.answered(response.as_mut(), &mut answer)).await {
            Ok(Ok(())) => None,
            Ok(Err(broken)) => Some((Failure::Broken, broken.to_string())),
            Err(_) => Some((Failure::Timeout, answer.lateness(limit))),
        };
        let max_idle = answer.keep_alive().map_or(MAX_IDLE, |named| named.saturating_sub(BEFORE_CLOSE).min(MAX_IDLE));
        self.idle_since = Instant::now();
        self.idle_until = self.idle_since + max_idle;
        let cut_on_reuse = reused && matches!(end, Some((Failure::Broken, _))) && !self.gate.has_heard();
        self.between = end.is_none() && answer.leaves_nothing() && self.is_idle();
        if self.between {
            self.gate.shut();
        }
        let (failure, error) = end.map_or((Failure::Broken, None), |(failure, error)| (failure, Some(error)));
        ExchangeResult::Sent(Sent {
            sent_at: Some(sent_at),
            ended_at: clock.now(),
            result: answer.send_result(failure, clock.wall()),
            response_body: answer.into_text(),
            error,
            cut_on_reuse,
        })
    }

    /// Opens the gate for the slot, and lets hyper write.
    async fn leave(&mut self, slot: Slot) -> Left {
        self.gate.open(slot);
        let http = &mut self.http;
        // Whatever the task has used up of its budget: without any it would find every connection silent and full.
        let goes_on = unconstrained(poll_fn(|cx| Poll::Ready(http.drive(cx)))).await;
        match self.gate.passage() {
            Passage::Passed(at) => Left::At(at),
            Passage::Missed if goes_on => Left::Missed,
            _ => Left::Dead,
        }
    }

    /// Drives the connection to the end of the answer: it may come before all of the request has been read, and a server that has
    /// answered need not read on.
    async fn answered(
        &mut self,
        mut response: Pin<&mut impl Future<Output = hyper::Result<Response<Incoming>>>>,
        answer: &mut Answer,
    ) -> Result<(), Broken> {
        let http = &mut self.http;
        let read = poll_fn(|cx| {
            let goes_on = http.drive(cx);
            if !answer.has_begun() {
                match response.as_mut().poll(cx) {
                    Poll::Ready(Ok(response)) => answer.begin(response),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(Broken::from(&error))),
                    Poll::Pending => return if goes_on { Poll::Pending } else { Poll::Ready(Err(Broken::Closed)) },
                }
            }
            match answer.poll_body(cx) {
                // What is left may be the end alone, and no more of the body.
                Poll::Pending if answer.is_full() => {
                    http.drive(cx);
                    match answer.poll_body(cx) {
                        Poll::Pending => Poll::Ready(Ok(())),
                        end => end,
                    }
                }
                Poll::Pending if !goes_on => Poll::Ready(Err(Broken::Closed)),
                end => end,
            }
        });
        read.await.map_err(|broken| match self.gate.unwritable() {
            // What stopped the writing says more than that nothing came.
            Some(error) if broken == Broken::Closed => error.into(),
            _ => broken,
        })
    }

    /// Whether hyper is done with the exchange, and everything has left.
    fn is_idle(&mut self) -> bool {
        let http = &mut self.http;
        // hyper may have ended the answer in this poll, and find itself idle in the next.
        (http.sender.is_ready() || now(|cx| http.drive(cx)) && http.sender.is_ready())
            && !http.ended
            && self.gate.has_flushed()
    }
}

/// The next slot whose start has come and that is not over.
async fn begun(slots: &mut impl SlotSource, clock: &dyn Clock) -> Option<Slot> {
    loop {
        let slot = slots.next().await?;
        let mut now = clock.now();
        while now < slot.start {
            sleep(slot.start.since(now)).await;
            now = clock.now();
        }
        if !slot.is_over(now) {
            return Some(slot);
        }
    }
}

/// Polls once, whatever the task has used up of its budget. Wake-ups are not asked for; whoever waits polls anew.
fn now(mut poll: impl FnMut(&mut Context<'_>) -> bool) -> bool {
    let once = unconstrained(poll_fn(|cx| Poll::Ready(poll(cx))));
    matches!(pin!(once).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(true))
}
