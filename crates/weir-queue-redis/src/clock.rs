//! The queue's clock in this process: Redis `TIME`, carried by the process's monotonic clock.
//!
//! Each exchange with a server bounds how far its clock is ahead of ours: it read `TIME` after we asked and before we heard. The
//! bounds of several exchanges intersect in an interval no wider than the fastest round trip; its middle is the offset, half
//! its width the error. Slots are narrowed by the error before they are handed out, so a send inside one is inside the
//! server's. In a Cluster every shard has the clock of its node, and its slots are moved by the difference.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, Instant},
};

use weir_core::{Clock, Slot, Timestamp};

use crate::keys::{SHARDS, Shard};

/// How far two quartz clocks drift apart between two refreshes, generously.
const DRIFT: Duration = Duration::from_micros(100);
/// What was known widens by this part of the time since: 500 ppm, as fast as a clock is usually slewed.
const SLEW: i64 = 2_000;
/// A server's clock that is so far ahead of what is known of it was set.
const STEP: i64 = 20_000_000;
/// An error that costs so much of every slot is worth telling.
const POOR: Duration = Duration::from_millis(2);
/// And so often.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Engine time by Redis. Never goes backwards; where the wall clock of this process stands does not matter.
pub struct RedisClock {
    started: Instant,
    shards: [Offset; SHARDS],
    latest: AtomicI64,
    /// When a poor error may be told again, by the monotonic clock.
    tell_from: AtomicI64,
}

/// How far a server is ahead of `started`, in nanoseconds.
#[derive(Default)]
struct Offset {
    nanos: AtomicI64,
    error: AtomicI64,
    /// By the monotonic clock; 0 before the first time.
    set_at: AtomicI64,
}

/// What exchanges with one server tell about its offset: at least `low`, at most `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    low: i64,
    high: i64,
}

impl Bounds {
    /// From one exchange: asked and heard by our clock, the server's microseconds in between.
    pub(crate) fn of(asked: i64, server_micros: i64, heard: i64) -> Self {
        let server = server_micros.saturating_mul(1_000);
        Self { low: server - heard, high: server + 1_000 - asked }
    }

    /// What both know. Where they contradict each other the server's clock was set in between, and the later one is right.
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
            tell_from: AtomicI64::new(0),
        }
    }
}

impl RedisClock {
    /// Nanoseconds by the process's monotonic clock.
    pub(crate) fn monotonic(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX)
    }

    /// Takes in what exchanges told. What was known before still counts, so that exchanges which a busy process or a busy
    /// Redis made slow do not widen the error beyond what a slot can be narrowed by.
    ///
    /// A server that is further ahead than can be was set forward, and is not believed unless `believes` says so: slots follow each
    /// other by this clock, and must not come early because another one jumps. Answers whether that is so.
    pub(crate) fn set(&self, shard: Shard, bounds: Bounds, believes: bool) -> bool {
        let offset = &self.shards[shard.index()];
        let now = self.monotonic().max(1);
        let bounds = match offset.set_at.load(Ordering::Relaxed) {
            0 => bounds,
            before => {
                let (nanos, error) = (offset.nanos.load(Ordering::Relaxed), offset.error.load(Ordering::Relaxed));
                let within = error + (now - before) / SLEW;
                let known = Bounds { low: nanos - within, high: nanos + within };
                if bounds.low - known.high > STEP && !believes {
                    return true;
                }
                known.and(bounds)
            }
        };
        offset.set_at.store(now, Ordering::Relaxed);
        let error = (bounds.high - bounds.low) / 2;
        offset.nanos.store(bounds.low + error, Ordering::Relaxed);
        offset.error.store(error, Ordering::Relaxed);
        if error > POOR.as_nanos() as i64 && self.tell_from.load(Ordering::Relaxed) <= now {
            self.tell_from.store(now + TOLD_EVERY.as_nanos() as i64, Ordering::Relaxed);
            tracing::warn!(error_us = error / 1_000, "the way to Redis is slow; slots are narrowed by as much");
        }
        false
    }

    /// The time by the server's clock in microseconds, at least; 0 before the first exchange.
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

    /// The part of a slot, given by the server's clock in microseconds, that lies within it whatever the error.
    pub(crate) fn narrowed(&self, shard: Shard, (start, end): (i64, i64)) -> Slot {
        let width = (end - start).saturating_mul(1_000);
        // A slot always keeps a quarter: with a Redis further away than that, exactness has this bound.
        let error = self.shards[shard.index()].error.load(Ordering::Relaxed);
        let margin = (error + DRIFT.as_nanos() as i64).min(width * 3 / 8);
        Slot {
            start: Timestamp::from_nanos(self.placed(shard, start).as_nanos() + margin),
            end: Timestamp::from_nanos(self.placed(shard, end).as_nanos() - margin),
        }
    }

    /// A time by the server's clock, in microseconds, give or take the error.
    pub(crate) fn placed(&self, shard: Shard, micros: i64) -> Timestamp {
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

    /// Redis's time as well: one wall clock for all processes.
    fn wall(&self) -> Timestamp {
        self.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_narrow_the_offset() {
        // The server is 5 ms ahead; one exchange was slow on the way there, the other on the way back.
        let slow_there = Bounds::of(0, 5_000 + 900, 1_000_000);
        let slow_back = Bounds::of(2_000_000, 5_000 + 2_100, 3_000_000);
        assert_eq!(slow_there.and(slow_back), Bounds { low: 4_900_000, high: 5_101_000 });
    }

    #[test]
    fn a_server_whose_clock_was_set_is_believed() {
        let before = Bounds::of(0, 1_000_000, 1_000);
        let after = Bounds::of(2_000, 9_000_000, 3_000);
        assert_eq!(before.and(after), after);
    }

    #[test]
    fn a_server_that_is_suddenly_ahead_is_not_believed_at_once() {
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
