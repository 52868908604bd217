//! One HTTP/1.1 connection, driven by whoever holds it.
//!
//! An exchange goes through these steps; only the last two are an attempt:
//!
//! ```text
//! stands? ──no──▶ not sent            gate ──slot over──▶ slot missed (the connection is lost, nothing left)
//!    └─yes─▶ hand the request to hyper ──┴──passed──▶ timeout starts ──▶ answer, failure or timeout
//! ```

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{task::unconstrained, time::timeout};
use weir_core::{
    Clock, Slot, Timestamp,
    outcome::{Failure, Met},
};

use super::{
    SendResult, Sent,
    answer::Answer,
    fault::{Unreachable, answer_error},
    gate::{Decision, Gate, GatedBody},
    stream::Stream,
    target::{MAX_HEAD, Origin},
};

/// hyper flushes when it has buffered this much; a head must fit, or it would leave before the gate is asked.
const MAX_BUFFER: usize = 256 * 1024;
const _: () = assert!(MAX_HEAD < MAX_BUFFER);
/// The most that is read of an answer's head.
const MAX_ANSWER_HEAD: usize = 32 * 1024;
const MAX_ANSWER_HEADERS: usize = 128;

/// A connection to one origin.
pub struct Connection {
    origin: Arc<Origin>,
    /// Boxed: a connection is moved in and out of the pool.
    standing: Box<Standing>,
}

struct Standing {
    sender: http1::SendRequest<GatedBody>,
    driver: Driver,
    gate: Arc<Gate>,
    /// Between requests: nothing of an exchange is left on it.
    between: bool,
}

/// The half of a connection that reads and writes.
pub(super) struct Driver {
    io: http1::Connection<TokioIo<Stream>, GatedBody>,
    finished: bool,
}

impl Driver {
    /// Reads and writes what can be. How the connection ended is told by the request's own future.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        self.finished = self.finished || Pin::new(&mut self.io).poll(cx).is_ready();
    }
}

impl Connection {
    pub(super) async fn establish(
        stream: Stream,
        origin: Arc<Origin>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Unreachable> {
        let (sender, io) = http1::Builder::new()
            .max_buf_size(MAX_BUFFER)
            .max_header_size(MAX_ANSWER_HEAD)
            .max_headers(MAX_ANSWER_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|_| Unreachable::closed_before_send())?;
        let driver = Driver { io, finished: false };
        Ok(Self { origin, standing: Box::new(Standing { sender, driver, gate: Gate::new(clock), between: true }) })
    }

    pub(super) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// Whether a request can be sent: the server has neither closed the connection nor said anything unasked, as far as has
    /// been heard by now. Never waits.
    pub fn stands(&mut self) -> bool {
        let Standing { sender, driver, between, .. } = &mut *self.standing;
        // The wake-ups that the look costs are not missed: every exchange drives the connection anew. Without a budget, as a
        // task that has used up its own would find every connection silent.
        let mut look = unconstrained(poll_fn(|cx| {
            driver.drive(cx);
            Poll::Ready(())
        }));
        let _ = Pin::new(&mut look).poll(&mut Context::from_waker(Waker::noop()));
        *between && !driver.finished && sender.is_ready()
    }

    /// Whether the last exchange, if any, left the connection fit for another.
    pub(super) fn is_reusable(&self) -> bool {
        self.standing.between && !self.standing.driver.finished
    }

    pub(super) async fn exchange(
        &mut self,
        request: Request<()>,
        body: Bytes,
        slot: Slot,
        limit: Duration,
        clock: &dyn Clock,
    ) -> SendResult {
        if !self.stands() {
            self.standing.between = false;
            return SendResult::NotSent(Unreachable::closed_before_send());
        }
        let Standing { sender, driver, gate, between } = &mut *self.standing;
        *between = false;
        let mut sending = pin!(sender.send_request(request.map(|()| gate.guard(body, slot))));
        let asked = poll_fn(|cx| {
            driver.drive(cx);
            match gate.decision() {
                // An end before the gate was asked is an error, and says that nothing has left.
                Decision::Waiting => sending.as_mut().poll(cx).map(|_| ()),
                _ => Poll::Ready(()),
            }
        });
        // hyper asks at once; the limit is there so that no change in hyper could hold an attempt for ever.
        let _ = timeout(limit, asked).await;
        let sent_at = match gate.decision() {
            Decision::Waiting => return SendResult::NotSent(Unreachable::closed_before_send()),
            Decision::Missed => return SendResult::SlotMissed,
            Decision::Passed(sent_at) => sent_at,
        };
        let mut answer = Answer::default();
        let end = match timeout(limit, answer.read(sending, driver, clock)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err((Failure::Broken, answer_error(&error).to_owned())),
            Err(_) => Err((Failure::Timeout, answer.lateness(limit))),
        };
        *between = end.is_ok() && answer.is_whole();
        SendResult::Sent(sent(answer, end, sent_at, clock.now()))
    }
}

fn sent(answer: Answer, end: Result<(), (Failure, String)>, sent_at: Timestamp, ended_at: Timestamp) -> Sent {
    let (met, error) = match end {
        Ok(()) => (answer.met(), None),
        Err((failure, error)) => (Met::Failure(failure), Some(error)),
    };
    Sent { sent_at: Some(sent_at), ended_at, met, response_body: answer.into_text(), error }
}
