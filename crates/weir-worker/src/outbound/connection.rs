//! One HTTP/1.1 connection, driven by whoever holds it.
//!
//! An exchange goes through these steps; only the last two are an attempt:
//!
//! ```text
//! stands? ──no──▶ not sent        gate ──outside the slot──▶ slot missed (nothing left, the connection stands)
//!    └─yes─▶ head and body ready ──┴──passed, written──▶ answer, failure or timeout
//! ```
//!
//! The **gate** is the look at the clock in [`Connection::leave`]: the write follows at once, in the same call, with nothing
//! awaited in between. Not a byte leaves before it or without it.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    mem::MaybeUninit,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::unconstrained,
    time::timeout,
};
use weir_core::{
    Clock, Slot, Timestamp,
    outcome::{Failure, Met},
};

use super::{
    SendResult, Sent,
    answer::Answer,
    fault::{Broken, Unreachable},
    stream::Stream,
    target::{Origin, RequestHead},
};

/// Read at one time. Most answers are smaller.
const READ: usize = 8 * 1024;

/// A connection to one origin.
pub struct Connection {
    origin: Arc<Origin>,
    stream: Stream,
    /// Between requests: nothing of an exchange is left on it.
    between: bool,
}

/// What became of a request at the gate.
enum Left {
    At(Timestamp),
    /// The slot does not hold this moment. Nothing left.
    Missed,
    /// The connection takes nothing. Nothing left.
    Dead,
}

impl Connection {
    pub(super) fn new(stream: Stream, origin: Arc<Origin>) -> Self {
        Self { origin, stream, between: true }
    }

    pub(super) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// Whether a request can be sent: the server has neither closed the connection nor said anything unasked, as far as has
    /// been heard by now. Never waits.
    pub fn stands(&mut self) -> bool {
        let stream = &mut self.stream;
        let heard = now(|cx| {
            let mut space = [MaybeUninit::uninit(); 1];
            Pin::new(&mut *stream).poll_read(cx, &mut ReadBuf::uninit(&mut space))
        });
        self.between &= heard.is_pending();
        self.between
    }

    /// Whether the last exchange, if any, left the connection fit for another.
    pub(super) fn is_reusable(&self) -> bool {
        self.between
    }

    /// Sends one request and reads its answer. The limit runs from the moment the request leaves.
    pub(super) async fn exchange(
        &mut self,
        head: RequestHead,
        body: Bytes,
        slot: Slot,
        limit: Duration,
        clock: &dyn Clock,
    ) -> SendResult {
        if !self.stands() {
            return SendResult::NotSent(Unreachable::closed_before_send());
        }
        let head = head.framing(body.len());
        let mut request = head.chain(body);
        let sent_at = match self.leave(&mut request, slot, clock) {
            Left::At(sent_at) => sent_at,
            Left::Missed => return SendResult::SlotMissed,
            Left::Dead => return SendResult::NotSent(Unreachable::closed_before_send()),
        };
        let mut answer = Answer::new(clock);
        let end = match timeout(limit, self.answered(&mut request, &mut answer)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(broken)) => Err((Failure::Broken, broken.to_string())),
            Err(_) => Err((Failure::Timeout, answer.lateness(limit))),
        };
        SendResult::Sent(sent(answer, end, sent_at, clock.now()))
    }

    /// The gate, and the first write. A connection between requests takes it at once, or is of no use.
    fn leave(&mut self, request: &mut impl Buf, slot: Slot, clock: &dyn Clock) -> Left {
        let at = clock.now();
        if !slot.contains(at) {
            return Left::Missed;
        }
        let stream = &mut self.stream;
        self.between = false;
        match now(|cx| poll_write(stream, request, cx)) {
            // With TLS an error does not tell that nothing has left; the next write meets it again.
            Poll::Ready(_) => Left::At(at),
            Poll::Pending => Left::Dead,
        }
    }

    /// Writes what is left of the request and reads the answer, side by side: an answer may come before the request has been
    /// read, and a server that has answered need not read on.
    async fn answered(&mut self, request: &mut impl Buf, answer: &mut Answer<'_>) -> Result<(), Broken> {
        let stream = &mut self.stream;
        let (mut flushed, mut unwritable) = (false, None);
        let end = poll_fn(|cx| {
            while !flushed && unwritable.is_none() {
                let written = if request.has_remaining() {
                    poll_write(stream, request, cx)
                } else {
                    Pin::new(&mut *stream).poll_flush(cx).map_ok(|()| flushed = true)
                };
                match written {
                    Poll::Ready(Ok(())) => {}
                    // What was answered before is still there to be read.
                    Poll::Ready(Err(error)) => unwritable = Some(error),
                    Poll::Pending => break,
                }
            }
            poll_read(stream, answer, cx)
        })
        .await;
        self.between = end.is_ok() && flushed && answer.leaves_nothing();
        end.map_err(|broken| unwritable.map_or(broken, |error| Broken::from(&error)))
    }
}

/// Polls once, whatever the task has used up of its budget: a task without any would find every connection silent and full.
/// Wake-ups are not asked for; whoever waits polls anew.
fn now<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    pin!(unconstrained(poll_fn(|cx| poll(cx)))).poll(&mut Context::from_waker(Waker::noop()))
}

/// Writes once, as much as is taken.
fn poll_write(stream: &mut Stream, request: &mut impl Buf, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    let mut slices = [IoSlice::new(&[]); 2];
    let filled = request.chunks_vectored(&mut slices);
    match ready!(Pin::new(stream).poll_write_vectored(cx, &slices[..filled]))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        written => {
            request.advance(written);
            Poll::Ready(Ok(()))
        }
    }
}

/// Reads to the end of the answer.
fn poll_read(stream: &mut Stream, answer: &mut Answer<'_>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
    let mut space = [MaybeUninit::uninit(); READ];
    while !answer.is_over() {
        let mut read = ReadBuf::uninit(&mut space);
        match ready!(Pin::new(&mut *stream).poll_read(cx, &mut read)) {
            Ok(()) if read.filled().is_empty() => answer.close()?,
            Ok(()) => answer.take(read.filled())?,
            Err(error) => return Poll::Ready(Err(Broken::from(&error))),
        }
    }
    Poll::Ready(Ok(()))
}

fn sent(answer: Answer<'_>, end: Result<(), (Failure, String)>, sent_at: Timestamp, ended_at: Timestamp) -> Sent {
    let (met, error) = match end {
        Ok(()) => (answer.met(), None),
        Err((failure, error)) => (Met::Failure(failure), Some(error)),
    };
    Sent { sent_at: Some(sent_at), ended_at, met, response_body: answer.into_text(), error }
}
