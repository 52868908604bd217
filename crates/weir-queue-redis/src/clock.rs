//! The queue's clock in this process: Redis `TIME`, continued by the process's monotonic clock.
//!
//! Each exchange with a server bounds the offset of its clock: the server read `TIME` after the request was sent and
//! before the answer arrived. The bounds of several exchanges intersect in an interval no wider than the fastest round
//! trip; its middle is the offset, half its width the error. Slots are narrowed by the error before workers get them,
//! so a send inside a narrowed slot is inside the slot by the server's clock. In a Cluster every shard has the clock of
//! its node, and its slots are moved by the difference.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use weir_core::{Clock, Slot, Timestamp};

use crate::keys::{SHARDS, Shard};

/// An upper bound of the drift between two quartz clocks from one refresh to the next.
const DRIFT: Duration = Duration::from_micros(100);
/// Earlier bounds widen by the time since their exchange, divided by this number: 500 ppm, the usual maximum rate of a
/// slewed clock.
const SLEW: i64 = 2_000;
/// A server's clock that is this many nanoseconds ahead of its bounds was set forward. Smaller differences come from
/// clocks that are slewed faster than [`SLEW`], and are followed.
const STEP: i64 = 20_000_000;
/// A larger error is reported, because it is taken from both ends of every slot: two of the 10 ms of a narrow slot at
/// each end.
const LARGE_ERROR: Duration = Duration::from_millis(2);
/// How often a large error is reported at most. The clock is set every second, and a slow connection stays slow.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Engine time by the clock of Redis. Never goes backwards, and does not depend on the wall clock of this process.
pub struct RedisClock {
    started: Instant,
    shards: [Offset; SHARDS],
    latest: AtomicI64,
    /// When a large error may be reported again, by the monotonic clock.
    warn_from: AtomicI64,
}

/// The offset of a server's clock from the monotonic clock, in nanoseconds.
#[derive(Default)]
struct Offset {
    nanos: AtomicI64,
    error: AtomicI64,
    /// When the offset was set, by the monotonic clock; 0 before the first time.
    set_at: AtomicI64,
}

/// The bounds of a server's offset, from exchanges with it: at least `low`, at most `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    low: i64,
    high: i64,
}

impl Bounds {
    /// The bounds from one exchange, with the times of request and answer by the monotonic clock.
    pub(crate) fn of(asked_at: i64, server_micros: i64, answered_at: i64) -> Self {
        let server = server_micros.saturating_mul(1_000);
        Self { low: server - answered_at, high: server + 1_000 - asked_at }
    }

    /// The intersection of both. If they contradict each other, the server's clock was set in between, and the later
    /// bounds hold.
    pub(crate) fn and(self, later: Self) -> Self {
        let both = Self { low: self.low.max(later.low), high: self.high.min(later.high) };
        if both.low <= both.high { both } else { later }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
impl RedisClock {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            shards: Default::default(),
            latest: AtomicI64::new(0),
            warn_from: AtomicI64::new(0),
        }
    }
}

impl RedisClock {
    /// The process's monotonic clock, in nanoseconds.
    pub(crate) fn monotonic(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX)
    }

    /// Sets the offset from the bounds of new exchanges. Earlier bounds still count, so that slow exchanges of a busy
    /// process or a busy Redis do not make the error larger than the amount by which a slot can be narrowed.
    ///
    /// If the server's clock is more than [`STEP`] ahead of its bounds, it was set forward. Then the offset stays,
    /// unless `trusts_server` is set, because slots must not start early when a clock jumps. Returns whether the offset
    /// stayed.
    pub(crate) fn set(&self, shard: Shard, bounds: Bounds, trusts_server: bool) -> bool {
        let offset = &self.shards[shard.index()];
        // At least 1, because 0 stands for "not set yet".
        let now = self.monotonic().max(1);
        let bounds = match offset.set_at.load(Ordering::Relaxed) {
            0 => bounds,
            set_at => {
                // The earlier bounds, widened by as much as the server's clock may have been slewed since then.
                let (nanos, error) = (offset.nanos.load(Ordering::Relaxed), offset.error.load(Ordering::Relaxed));
                let margin = error + (now - set_at) / SLEW;
                let known = Bounds { low: nanos - margin, high: nanos + margin };
                // The server's clock was set forward. The offset stays, and the caller corrects the server.
                if bounds.low - known.high > STEP && !trusts_server {
                    return true;
                }
                known.and(bounds)
            }
        };
        // The middle of the bounds is the offset, and half their width is the error.
        offset.set_at.store(now, Ordering::Relaxed);
        let error = (bounds.high - bounds.low) / 2;
        offset.nanos.store(bounds.low + error, Ordering::Relaxed);
        offset.error.store(error, Ordering::Relaxed);
        // A large error is reported, but not with every setting of a slow connection.
        if error > LARGE_ERROR.as_nanos() as i64 && self.warn_from.load(Ordering::Relaxed) <= now {
            self.warn_from.store(now + WARN_EVERY.as_nanos() as i64, Ordering::Relaxed);
            tracing::warn!(
                error_us = error / 1_000,
                "the connection to Redis is slow; slots are narrowed by this error"
            );
        }
        false
    }

    /// A lower bound of the time by the server's clock, in microseconds; 0 before the first exchange.
    pub(crate) fn lower_bound(&self, shard: Shard) -> i64 {
        let offset = &self.shards[shard.index()];
        match offset.set_at.load(Ordering::Relaxed) {
            0 => 0,
            set_at => {
                let now = self.monotonic();
                let error = offset.error.load(Ordering::Relaxed) + (now - set_at) / SLEW;
                (now + offset.nanos.load(Ordering::Relaxed) - error) / 1_000
            }
        }
    }

    /// Narrows a slot, given by the server's clock in microseconds, by the error at both ends.
    pub(crate) fn narrowed(&self, shard: Shard, (start, end): (i64, i64)) -> Slot {
        let width = (end - start).saturating_mul(1_000);
        // A slot keeps at least a quarter of its width. If the error is larger than this allows, a send may be outside
        // the slot by the difference.
        let error = self.shards[shard.index()].error.load(Ordering::Relaxed);
        let margin = (error + DRIFT.as_nanos() as i64).min(width * 3 / 8);
        Slot {
            start: Timestamp::from_nanos(self.engine_time(shard, start).as_nanos() + margin),
            end: Timestamp::from_nanos(self.engine_time(shard, end).as_nanos() - margin),
        }
    }

    /// Converts a time by the server's clock, in microseconds, to engine time. The result is off by the error at most.
    pub(crate) fn engine_time(&self, shard: Shard, micros: i64) -> Timestamp {
        let ahead = self.offset() - self.shards[shard.index()].nanos.load(Ordering::Relaxed);
        Timestamp::from_nanos(micros.saturating_mul(1_000) + ahead)
    }

    fn offset(&self) -> i64 {
        self.shards[Shard::REFERENCE.index()].nanos.load(Ordering::Relaxed)
    }
}

impl Clock for RedisClock {
    fn now(&self) -> Timestamp {
        let now = self.monotonic() + self.offset();
        Timestamp::from_nanos(self.latest.fetch_max(now, Ordering::Relaxed).max(now))
    }

    /// The wall clock of this process: receivers compare signatures with their own clocks, and a clock of Redis that is
    /// wrong must not make them refuse.
    fn wall(&self) -> Timestamp {
        wall()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall() -> Timestamp {
    // A clock that is set before 1970 counts as 1970.
    Timestamp::MIN + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_narrow_the_offset() {
        // The server is 5 ms ahead. In one exchange the request was slow, in the other the answer.
        let slow_request = Bounds::of(0, 5_000 + 900, 1_000_000);
        let slow_answer = Bounds::of(2_000_000, 5_000 + 2_100, 3_000_000);
        assert_eq!(slow_request.and(slow_answer), Bounds { low: 4_900_000, high: 5_101_000 });
    }

    #[test]
    fn later_bounds_replace_bounds_that_contradict_them() {
        let before = Bounds::of(0, 1_000_000, 1_000);
        let after = Bounds::of(2_000, 9_000_000, 3_000);
        assert_eq!(before.and(after), after);
    }

    #[test]
    fn a_clock_that_jumps_ahead_is_not_trusted_at_once() {
        let clock = RedisClock::new();
        let reference = Shard::REFERENCE;
        let at = |nanos| Bounds { low: nanos, high: nanos + 1_000 };
        assert!(!clock.set(reference, at(1_000_000_000), false));
        assert!(clock.set(reference, at(61_000_000_000), false));
        assert!(clock.now() < Timestamp::from_secs(30));
        assert!(!clock.set(reference, at(61_000_000_000), true));
        assert!(clock.now() > Timestamp::from_secs(60));
    }

    #[test]
    fn time_never_goes_backwards() {
        let clock = RedisClock::new();
        let reference = Shard::REFERENCE;
        clock.set(reference, Bounds { low: 1_000_000_000, high: 1_000_000_000 }, false);
        let before = clock.now();
        clock.set(reference, Bounds { low: 0, high: 0 }, false);
        assert!(clock.now() >= before);
    }

    #[test]
    fn a_slot_is_narrowed_by_the_error_and_moved_by_the_difference_of_two_nodes() {
        let clock = RedisClock::new();
        let (reference, other) = (Shard::REFERENCE, Shard::parse("1").unwrap());
        clock.set(reference, Bounds { low: 0, high: 0 }, false);
        clock.set(other, Bounds { low: 3_000_000, high: 3_400_000 }, false);
        let slot = clock.narrowed(other, (10_000, 20_000));
        assert_eq!(slot.start.as_nanos(), 10_000_000 - 3_200_000 + 300_000);
        assert_eq!(slot.end.as_nanos(), 20_000_000 - 3_200_000 - 300_000);
    }
}
