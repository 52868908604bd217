//! The gate at the wire: a request body that decides, at its first poll, whether the request leaves.
//!
//! hyper buffers the head of a request and polls its body before it flushes. A body that fails at that poll ends the
//! connection with the head still in the buffer: not a byte leaves. Two things would open a way around the gate, and are
//! closed here or in [`super::target`]:
//! - a body known to be empty is never polled: an empty one is given no known length, and goes chunked;
//! - a head larger than hyper's buffer is flushed before the body is polled: targets with such heads are refused.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use weir_core::{Clock, Slot, Timestamp};

const WAITING: i64 = i64::MIN;
const MISSED: i64 = i64::MIN + 1;

/// What the gate decided, shared between the body inside the connection and the sender outside of it.
pub(super) struct Gate {
    clock: Arc<dyn Clock>,
    /// [`WAITING`], [`MISSED`], or the send start in nanoseconds.
    decision: AtomicI64,
}

/// What the gate decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Not asked yet: nothing has left.
    Waiting,
    /// The slot did not hold the moment: nothing has left and nothing will.
    Missed,
    /// The request leaves, from this moment.
    Passed(Timestamp),
}

impl Gate {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, decision: AtomicI64::new(WAITING) })
    }

    /// Closes the gate for another request and makes its body.
    pub(super) fn guard(self: &Arc<Self>, body: Bytes, slot: Slot) -> GatedBody {
        self.decision.store(WAITING, Ordering::Release);
        GatedBody { gate: self.clone(), slot, body: Some(body) }
    }

    pub(super) fn decision(&self) -> Decision {
        match self.decision.load(Ordering::Acquire) {
            WAITING => Decision::Waiting,
            MISSED => Decision::Missed,
            nanos => Decision::Passed(Timestamp::from_nanos(nanos)),
        }
    }

    fn passes(&self, slot: Slot) -> bool {
        let now = self.clock.now();
        let passes = slot.contains(now);
        self.decision.store(if passes { now.as_nanos() } else { MISSED }, Ordering::Release);
        passes
    }
}

/// A body behind the gate.
pub(super) struct GatedBody {
    gate: Arc<Gate>,
    slot: Slot,
    /// Until the gate is passed.
    body: Option<Bytes>,
}

/// The slot does not hold this moment.
#[derive(Debug, thiserror::Error)]
#[error("outside its slot")]
pub(super) struct OutsideSlot;

impl Body for GatedBody {
    type Data = Bytes;
    type Error = OutsideSlot;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, OutsideSlot>>> {
        let this = self.get_mut();
        let Some(body) = this.body.take() else {
            return Poll::Ready(None);
        };
        // Never pending: the head would leave while the body waits.
        Poll::Ready(Some(if this.gate.passes(this.slot) { Ok(Frame::data(body)) } else { Err(OutsideSlot) }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) if body.is_empty() => SizeHint::default(),
            Some(body) => SizeHint::with_exact(body.len() as u64),
            None => SizeHint::with_exact(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicI64, task::Waker, time::Duration};

    use super::*;

    struct At(AtomicI64);

    impl Clock for At {
        fn now(&self) -> Timestamp {
            Timestamp::from_nanos(self.0.load(Ordering::Relaxed))
        }
        fn wall(&self) -> Timestamp {
            self.now()
        }
    }

    const SLOT: Slot = Slot { start: Timestamp::from_secs(100), end: Timestamp::from_nanos(100_010_000_000) };

    fn polled_at(now: Timestamp) -> (bool, Decision) {
        let gate = Gate::new(Arc::new(At(AtomicI64::new(now.as_nanos()))));
        let mut body = gate.guard(Bytes::from_static(b"{}"), SLOT);
        assert_eq!(gate.decision(), Decision::Waiting);
        let frame = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
        (matches!(frame, Poll::Ready(Some(Ok(_)))), gate.decision())
    }

    #[test]
    fn the_gate_is_open_from_the_start_of_the_slot_to_just_before_its_end() {
        let just = Duration::from_nanos(1);
        assert_eq!(polled_at(SLOT.start - just), (false, Decision::Missed));
        assert_eq!(polled_at(SLOT.start), (true, Decision::Passed(SLOT.start)));
        assert_eq!(polled_at(SLOT.end - just), (true, Decision::Passed(SLOT.end - just)));
        assert_eq!(polled_at(SLOT.end), (false, Decision::Missed));
    }

    #[test]
    fn an_empty_body_has_no_known_length_so_that_it_is_polled() {
        let gate = Gate::new(Arc::new(At(AtomicI64::new(0))));
        let body = gate.guard(Bytes::new(), SLOT);
        assert_eq!(body.size_hint().exact(), None);
        assert!(!body.is_end_stream());
        assert_eq!(gate.guard(Bytes::from_static(b"abc"), SLOT).size_hint().exact(), Some(3));
    }
}
