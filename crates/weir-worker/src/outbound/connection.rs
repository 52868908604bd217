//! One HTTP/1.1 connection, driven by the task that holds it.
//!
//! The steps of an exchange; only the last two are an attempt:
//!
//! ```text
//! open? ──no──▶ not sent        next slot ◀──missed: no byte was sent, the connection is open──┐
//!    └─yes─▶ request ready ────────▶│──none──▶ withdrawn                                       │
//!                                   └──wait for its start──▶ gate ───outside the slot──────────┘
//!                                                             └──passed──▶ answer, failure or timeout
//! ```
//!
//! hyper writes the request and reads the answer. It is polled only here, in the task of the exchange. The gate
//! (`gate`) makes sure that the first write happens inside the slot.

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
use hyper::{body::Incoming, client::conn::http1, ext::on_informational};
use hyper_util::rt::TokioIo;
use tokio::{
    task::unconstrained,
    time::{Instant, sleep, timeout},
};
use weir_core::{
    Clock, Slot, Timestamp,
    delivery::{AttemptDetails, ConnectionDetails},
    outcome::Failure,
};

use super::{
    ExchangeResult, Sent, SlotSource, TimeLimit,
    answer::Answer,
    fault::{Broken, Unreachable, tls_refusal},
    gate::{Gate, GateState, GatedStream, MAX_HEAD},
    origin::Origin,
    slot_timer::{self, SlotTimer},
    stream::Dialled,
};

/// How long a connection may be idle, unless the server names a shorter time. Below the idle timeouts of most servers
/// and load balancers.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// How long before the idle timeout of a server, named or learned, a connection to it is no longer used: a request must
/// not collide with the close. Servers name whole seconds, and a request may be under way for a part of one.
pub(super) const BEFORE_CLOSE: Duration = Duration::from_secs(1);
/// The maximum age of a connection, even a busy one: a changed DNS record takes effect within this time and its TTL. It
/// equals the longest TTL that is used, so a connection delays a change by at most as much as DNS does.
const MAX_AGE: Duration = Duration::from_secs(300);
/// The random part of [`MAX_AGE`]. Connections that were dialled together are replaced within a minute, not all at
/// once.
const AGE_JITTER: f64 = 0.2;

/// A connection to one origin.
pub struct Connection {
    origin: Arc<Origin>,
    gate: Arc<Gate>,
    /// With the times of the dial.
    details: ConnectionDetails,
    /// Boxed, because connections are moved often.
    http: Box<Http>,
    /// No exchange is under way, none has left data on the connection, and the gate is shut.
    between_requests: bool,
    /// A request has been sent on it.
    used: bool,
    idle_since: Instant,
    /// The end of the idle timeout. Each exchange moves it.
    idle_until: Instant,
    /// The end of [`MAX_AGE`].
    old_at: Instant,
    open_guard: Option<OpenConnectionGuard>,
}

/// Counts a connection as open until it is dropped.
pub(super) struct OpenConnectionGuard(Arc<AtomicUsize>);

impl OpenConnectionGuard {
    pub(super) fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open.clone())
    }
}

impl Drop for OpenConnectionGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// hyper's two ends of a connection.
struct Http {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: http1::Connection<TokioIo<GatedStream>, Full<Bytes>>,
    /// The driver has completed and must not be polled again.
    ended: bool,
    /// The server has refused the connection by TLS.
    refused: Option<Unreachable>,
}

impl Http {
    /// Polls the driver. Returns whether the connection is still open.
    fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        // hyper reports an error of the driver to the future that waits for the answer.
        if !self.ended
            && let Poll::Ready(end) = Pin::new(&mut self.driver).poll(cx)
        {
            self.ended = true;
            self.refused = end.err().and_then(|error| tls_refusal(&error));
        }
        !self.ended
    }

    /// Why no request could be sent.
    fn closed_before_send(&mut self) -> ExchangeResult {
        ExchangeResult::NotSent(self.refused.take().unwrap_or_else(Unreachable::closed_before_send))
    }
}

/// The result of one try to write a request through the gate.
enum WriteResult {
    /// The first bytes were written at this time: the send start.
    Started(Timestamp),
    /// The write was outside the slot. No byte was sent.
    Missed,
    /// The connection cannot be written to. No byte was sent.
    Dead,
}

impl Connection {
    pub(super) async fn new(dialled: Dialled, origin: Arc<Origin>, clock: Arc<dyn Clock>) -> hyper::Result<Self> {
        let gate = Gate::new(clock);
        let stream = TokioIo::new(GatedStream::new(dialled.stream, gate.clone()));
        let (sender, driver) = http1::Builder::new().max_header_size(MAX_HEAD).handshake(stream).await?;
        let http = Box::new(Http { sender, driver, ended: false, refused: None });
        let now = Instant::now();
        let old_at = now + MAX_AGE.mul_f64(1.0 - AGE_JITTER * rand::random::<f64>());
        Ok(Self {
            origin,
            gate,
            details: dialled.details,
            http,
            between_requests: true,
            used: false,
            idle_since: now,
            idle_until: now + MAX_IDLE,
            old_at,
            open_guard: None,
        })
    }

    /// Counts the connection as open until it is dropped.
    pub(super) fn set_open_guard(&mut self, guard: OpenConnectionGuard) {
        self.open_guard = Some(guard);
    }

    pub(super) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// Whether a request can be sent: as far as is known now, the server has neither closed the connection nor sent
    /// unrequested data. Never waits.
    pub fn is_open(&mut self) -> bool {
        let http = &mut self.http;
        self.between_requests = self.between_requests && poll_once(|cx| http.drive(cx)) && self.gate.has_flushed();
        self.between_requests
    }

    /// Whether the connection can carry another request: the last exchange, if any, ended cleanly, and the connection
    /// is neither too old nor idle for too long.
    pub(super) fn is_reusable(&self, now: Instant) -> bool {
        self.between_requests && now < self.idle_until && now < self.old_at
    }

    /// How long the connection has been idle.
    pub(super) fn idle_for(&self, now: Instant) -> Duration {
        now.duration_since(self.idle_since)
    }

    /// Sends one request in the first slot that is not missed, and reads its answer. What is left of the time limit
    /// starts with the send start.
    pub(super) async fn exchange(
        &mut self,
        mut request: Request<Full<Bytes>>,
        slots: &mut impl SlotSource,
        limit: TimeLimit,
        waits: Waits<'_>,
    ) -> ExchangeResult {
        // A closed connection is found before it costs a slot.
        if !self.is_open() {
            return self.http.closed_before_send();
        }
        let Some(mut slot) = waits.next_started_slot(slots).await else { return ExchangeResult::Withdrawn };
        // From here on the request is in hyper's buffer and cannot be removed: a withdrawal after a missed slot closes
        // the connection.
        self.between_requests = false;
        let gate = Arc::clone(&self.gate);
        on_informational(&mut request, move |_| gate.count_interim());
        // Hand the request to hyper, and let it write in the first slot that is not missed.
        let mut response = pin!(self.http.sender.send_request(request));
        let sent_at = loop {
            match self.write_in_slot(slot).await {
                WriteResult::Started(sent_at) => break sent_at,
                WriteResult::Dead => return self.http.closed_before_send(),
                WriteResult::Missed => match waits.next_started_slot(slots).await {
                    Some(next) => slot = next,
                    None => return ExchangeResult::Withdrawn,
                },
            }
        };
        // The request is on its way: read the answer within the time limit.
        let mut answer = Answer::default();
        let reused = std::mem::replace(&mut self.used, true);
        let end = match timeout(limit.left(), self.read_answer(response.as_mut(), &mut answer)).await {
            Ok(Ok(())) => None,
            Ok(Err(broken)) => {
                if broken == Broken::TooLarge {
                    answer.set_status_alone(self.gate.status());
                }
                Some((broken.failure(), broken.to_string()))
            }
            Err(_) => Some((Failure::Timeout, answer.timeout_error(limit))),
        };
        // Decide whether the connection can carry another request, and for how long it may be idle.
        let max_idle = answer.keep_alive().map_or(MAX_IDLE, |named| named.saturating_sub(BEFORE_CLOSE).min(MAX_IDLE));
        self.idle_since = Instant::now();
        self.idle_until = self.idle_since + max_idle;
        // A reused connection that ended without a byte of answer: the server had most likely closed it before.
        let cut_on_reuse = reused && matches!(end, Some((Failure::Broken, _))) && !self.gate.has_received();
        self.between_requests = end.is_none() && answer.allows_reuse() && self.is_idle();
        if self.between_requests {
            self.gate.shut();
        }
        // Once its head has arrived, the answer counts, however the rest of it ended.
        let (failure, error) =
            end.map_or_else(|| (Failure::Broken, answer.redirect()), |(failure, error)| (failure, Some(error)));
        let ended_at = waits.clock.now();
        ExchangeResult::Sent(Box::new(Sent {
            sent_at: Some(sent_at),
            ended_at,
            took: ended_at.since(sent_at),
            result: answer.send_result(failure, waits.clock.wall()),
            details: AttemptDetails {
                signed_at: None,
                connection: Some(self.details_of_attempt(reused)),
                response_headers: answer.kept_headers(),
            },
            response_body: answer.into_text(),
            error,
            cut_on_reuse,
        }))
    }

    /// The times of the dial belong to the first request alone.
    fn details_of_attempt(&self, reused: bool) -> ConnectionDetails {
        if reused { ConnectionDetails { connect_ms: None, tls_ms: None, ..self.details } } else { self.details }
    }

    /// Opens the gate for the slot and lets hyper write.
    async fn write_in_slot(&mut self, slot: Slot) -> WriteResult {
        self.gate.open(slot);
        let http = &mut self.http;
        // `unconstrained`: a task that has used up its tokio budget would find every socket pending.
        let is_alive = unconstrained(poll_fn(|cx| Poll::Ready(http.drive(cx)))).await;
        match self.gate.state() {
            GateState::Passed(at) => WriteResult::Started(at),
            GateState::Missed if is_alive => WriteResult::Missed,
            _ => WriteResult::Dead,
        }
    }

    /// Drives the connection to the end of the answer. The answer may arrive before the server has read the whole
    /// request, and the server need not read the rest.
    async fn read_answer(
        &mut self,
        mut response: Pin<&mut impl Future<Output = hyper::Result<Response<Incoming>>>>,
        answer: &mut Answer,
    ) -> Result<(), Broken> {
        let (http, gate) = (&mut self.http, &self.gate);
        let read = poll_fn(|cx| {
            // hyper reads, and writes the rest of the request, only while it is driven.
            let is_alive = http.drive(cx);
            // First the head, which ends the future of the response.
            if !answer.has_head() {
                match response.as_mut().poll(cx) {
                    Poll::Ready(Ok(response)) => {
                        if let Some(excess) = gate.excess() {
                            return Poll::Ready(Err(excess));
                        }
                        gate.head_arrived();
                        answer.set_head(response);
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(Broken::from(&error))),
                    Poll::Pending => return if is_alive { Poll::Pending } else { Poll::Ready(Err(Broken::Closed)) },
                }
            }
            // Then the body.
            match answer.poll_body(cx) {
                // Only the end of the body may be missing: poll once more for it.
                Poll::Pending if answer.is_full() => {
                    http.drive(cx);
                    match answer.poll_body(cx) {
                        Poll::Pending => Poll::Ready(Ok(())),
                        end => end,
                    }
                }
                Poll::Pending if !is_alive => Poll::Ready(Err(Broken::Closed)),
                end => end,
            }
        });
        read.await.map_err(|broken| match (self.gate.excess(), self.gate.unwritable()) {
            (Some(excess), _) => excess,
            // The error of the write says more than "no answer".
            (None, Some(error)) if broken == Broken::Closed => error.into(),
            _ => broken,
        })
    }

    /// Whether hyper has finished the exchange and everything is flushed.
    fn is_idle(&mut self) -> bool {
        let http = &mut self.http;
        // hyper may complete the answer in one poll and become ready only in the next.
        (http.sender.is_ready() || poll_once(|cx| http.drive(cx)) && http.sender.is_ready())
            && !http.ended
            && self.gate.has_flushed()
    }
}

/// How an exchange waits for its slot.
#[derive(Clone, Copy)]
pub(super) struct Waits<'a> {
    pub(super) clock: &'a dyn Clock,
    pub(super) timer: &'a SlotTimer,
}

impl Waits<'_> {
    /// Waits for the start of the next slot. Skips slots that are over.
    async fn next_started_slot(self, slots: &mut impl SlotSource) -> Option<Slot> {
        loop {
            let slot = slots.next().await?;
            let mut now = self.clock.now();
            while now < slot.start {
                let wait = slot.start.since(now);
                match slots.is_exact() || slot.end.since(slot.start) < slot_timer::NARROW {
                    true => self.timer.wait_until(Instant::now() + wait).await,
                    false => sleep(wait).await,
                }
                now = self.clock.now();
            }
            if !slot.is_over(now) {
                return Some(slot);
            }
        }
    }
}

/// Polls once, outside of the task's tokio budget, without registering for a wake-up: a caller that waits polls again.
fn poll_once(mut poll: impl FnMut(&mut Context<'_>) -> bool) -> bool {
    let once = unconstrained(poll_fn(|cx| Poll::Ready(poll(cx))));
    matches!(pin!(once).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(true))
}
