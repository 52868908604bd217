//! The answer to one request under each behaviour.

use std::{
    collections::HashMap,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, combinators::BoxBody};
use hyper::body::{Body, Frame};
use parking_lot::Mutex;
use tokio::time::{Interval, interval};
use weir_core::Timestamp;

use crate::scenario::ReceiverBehavior;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) after: Duration,
    pub(super) status: u16,
    pub(super) retry_after_s: Option<u64>,
    /// Requests that remain, and the seconds until they are as many as before.
    pub(super) quota: Option<(u32, u64)>,
    pub(super) drip: Option<Duration>,
}

/// The answer of a receiver with this behaviour, `elapsed` after its start. `has_room` tells whether it may take one
/// more this second.
pub(super) fn answer(behavior: ReceiverBehavior, elapsed: Duration, has_room: impl FnOnce(u32) -> bool) -> Answer {
    let with = |status| Answer { after: Duration::ZERO, status, retry_after_s: None, quota: None, drip: None };
    match behavior {
        ReceiverBehavior::Ok => with(200),
        ReceiverBehavior::Slow { ms } => Answer { after: Duration::from_millis(ms), ..with(200) },
        ReceiverBehavior::Status { code } => with(code),
        // For a request that was read before the connection was cut.
        ReceiverBehavior::Refuse => with(503),
        ReceiverBehavior::Flap { up_ms, down_ms, code } => {
            let phase = elapsed.as_millis() % u128::from((up_ms + down_ms).max(1));
            with(if phase < u128::from(up_ms) { 200 } else { code })
        }
        ReceiverBehavior::Drip { every_ms } => {
            Answer { drip: Some(Duration::from_millis(every_ms.max(1))), ..with(200) }
        }
        ReceiverBehavior::RateLimit { per_s, .. } if has_room(per_s) => with(200),
        ReceiverBehavior::RateLimit { retry_after_s, .. } => Answer { retry_after_s: Some(retry_after_s), ..with(429) },
    }
}

/// A fixed-window limiter, as many receivers have one: a maximum for each destination in each second of its own clock.
#[derive(Default)]
pub(super) struct RateLimiter(Mutex<HashMap<u32, (i64, u32)>>);

impl RateLimiter {
    pub(super) fn has_room(&self, destination: u32, at: Timestamp, per_s: u32) -> bool {
        let mut taken = self.0.lock();
        let (second, count) = taken.entry(destination).or_default();
        if *second != at.as_secs() {
            (*second, *count) = (at.as_secs(), 0);
        }
        *count += 1;
        *count <= per_s
    }
}

/// A byte every interval, without end.
pub(super) fn drip(every: Duration) -> BoxBody<Bytes, Infallible> {
    Drip(interval(every)).boxed()
}

struct Drip(Interval);

impl Body for Drip {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_tick(context).map(|_| Some(Ok(Frame::data(Bytes::from_static(b".")))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flapping_receiver_is_up_and_down_in_turn() {
        let behavior = ReceiverBehavior::Flap { up_ms: 100, down_ms: 50, code: 503 };
        let status = |ms| answer(behavior, Duration::from_millis(ms), |_| true).status;
        assert_eq!([0, 99, 100, 149, 150, 251].map(status), [200, 200, 503, 503, 200, 503]);
    }

    #[test]
    fn the_limit_of_a_receiver_counts_by_destination_and_second() {
        let limiter = RateLimiter::default();
        let room = |destination, ms| limiter.has_room(destination, Timestamp::from_millis(ms), 2);
        assert_eq!(
            [room(1, 0), room(1, 999), room(1, 999), room(2, 999), room(1, 1_000)],
            [true, true, false, true, true]
        );
        let refused = answer(ReceiverBehavior::RateLimit { per_s: 2, retry_after_s: 3 }, Duration::ZERO, |_| false);
        assert_eq!((refused.status, refused.retry_after_s), (429, Some(3)));
    }
}
