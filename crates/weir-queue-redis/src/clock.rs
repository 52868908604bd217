//! The queue's clock in this process: the time of the shards, continued by the process's monotonic clock.
//!
//! Each exchange with a server bounds the offset of its clock: the server read it after the request was sent and before
//! the answer arrived. The bounds of several exchanges intersect in an interval no wider than the fastest round trip; its
//! middle is the offset, half its width the error. Slots are narrowed by the error before workers get them, so a send
//! inside a narrowed slot is inside the slot by the shard's time. In a Cluster every shard has the clock of its node, and
//! its slots are moved by the difference.
//!
//! The time of a shard is the clock of its server plus a shift. A process takes the time only once it is verified
//! (`timekeeping.rs`). From then on the process carries the time: it never follows a shard that is ahead or behind, and
//! corrects its shift instead. So all processes use a slot at the same moment, whatever a server's clock does.

mod offset;

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::sync::{Notify, watch};
use weir_core::{Clock, Slot, Timestamp};

pub(crate) use self::offset::{Bounds, Offset};
use crate::keys::{SHARDS, Shard};

/// An upper bound of the drift between two quartz clocks from one refresh to the next.
const DRIFT: Duration = Duration::from_micros(100);
/// A process that is this many nanoseconds behind the time that another one has stated was suspended. Smaller differences
/// pass: a process whose bounds contradict the time of the shards widens them until they agree.
const BEHIND: i64 = 5_000_000;
/// A larger error is reported, because it is taken from both ends of every slot: two of the 10 ms of a narrow slot at
/// each end.
const LARGE_ERROR: Duration = Duration::from_millis(2);
/// What a narrowed slot is to be wide, where it costs little: a worker wakes and writes within this time.
const USABLE: Duration = Duration::from_millis(1);
/// How often a large error is reported at most. The clock is set every second, and a slow connection stays slow.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Engine time by the clock of Redis. Never goes backwards, and does not depend on the wall clock of this process.
pub struct RedisClock {
    started: Instant,
    shards: [ShardClock; SHARDS],
    latest: AtomicI64,
    /// Whether the time of this process is that of all processes. Only then it gets slots and its calls state the time.
    is_verified: watch::Sender<bool>,
    /// Notified when an answer of Redis suggests that its clock was changed.
    pub(crate) doubt: Notify,
    /// When a large error may be reported again, by the monotonic clock.
    warn_from: AtomicI64,
}

#[derive(Default)]
struct ShardClock {
    time: Offset,
    /// The clock of the shard's server, without the shift.
    server: Offset,
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
impl RedisClock {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            shards: Default::default(),
            latest: AtomicI64::new(0),
            is_verified: watch::Sender::new(false),
            doubt: Notify::new(),
            warn_from: AtomicI64::new(0),
        }
    }
}

impl RedisClock {
    /// The process's monotonic clock, in nanoseconds. At least 1, because 0 stands for "not set yet".
    pub(crate) fn monotonic(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX).max(1)
    }

    /// How far the clocks of the servers are ahead of this process's wall clock, in nanoseconds; negative when they are
    /// behind. The largest difference; `None` before the first exchange.
    pub fn servers_ahead_of_wall(&self) -> Option<i64> {
        let wall = self.wall().as_nanos() - self.monotonic();
        let known = self.shards.iter().map(|shard| &shard.server).filter(|server| server.is_set());
        known.map(|server| server.nanos() - wall).max_by_key(|ahead| ahead.abs())
    }

    /// The clock of the shard's server, from new exchanges with it.
    pub(crate) fn set_server(&self, shard: Shard, measured: Bounds) {
        self.shards[shard.index()].server.follow(measured, self.monotonic());
    }

    /// Takes the time of a shard, which is verified.
    pub(crate) fn take(&self, shard: Shard, measured: Bounds) {
        self.shards[shard.index()].time.set(measured, self.monotonic());
    }

    /// Compares the time of a shard with that of this process. Returns by how many microseconds the shard is ahead,
    /// negative when it is behind, and must be corrected. If they agree, the bounds become narrower.
    ///
    /// No difference is too small: each process would follow it at another moment, and many small ones add up.
    pub(crate) fn check(&self, shard: Shard, measured: Bounds) -> Option<i64> {
        let now = self.monotonic();
        let time = &self.shards[shard.index()].time;
        let ahead = time.contradiction(measured, now);
        if ahead.is_none() {
            time.follow(measured, now);
            self.report_error(time.error(), now);
        }
        ahead.map(|nanos| nanos / 1_000)
    }

    /// A large error is reported, but not with every setting of a slow connection.
    fn report_error(&self, error: i64, now: i64) {
        if error > LARGE_ERROR.as_nanos() as i64 && self.warn_from.load(Ordering::Relaxed) <= now {
            self.warn_from.store(now + WARN_EVERY.as_nanos() as i64, Ordering::Relaxed);
            tracing::warn!(
                error_us = error / 1_000,
                "the connection to Redis is slow; slots are narrowed by this error"
            );
        }
    }

    /// Another process has stated a time of the shard, in microseconds, before an answer that came at `answered_at`. If it
    /// is ahead of this process, this process is behind: its machine was suspended. Then its time must be verified again.
    pub(crate) fn hear(&self, shard: Shard, micros: i64, answered_at: i64) {
        let known = self.shards[shard.index()].time.bounds(answered_at);
        if known.is_some_and(|known| micros.saturating_mul(1_000) - answered_at - known.high > BEHIND) {
            self.is_verified.send_replace(false);
        }
    }

    /// The time that calls state, in microseconds: a lower bound of the shard's time; 0 while it is not verified.
    pub(crate) fn stated_time(&self, shard: Shard) -> i64 {
        let now = self.monotonic();
        let known = self.shards[shard.index()].time.bounds(now).filter(|_| self.is_verified());
        known.map_or(0, |bounds| (now + bounds.low) / 1_000)
    }

    pub(crate) fn is_verified(&self) -> bool {
        *self.is_verified.borrow()
    }

    /// Waits until the time is verified.
    pub(crate) async fn verified(&self) {
        // The sender is in `self`, so the channel stays open.
        let _ = self.is_verified.subscribe().wait_for(|verified| *verified).await;
    }

    /// The time of this process is that of all processes, unless it stands still: this process was ahead, and its time
    /// never goes backwards. Then slots would be used too early.
    pub(crate) fn finish_verification(&self) -> bool {
        let is_verified = self.latest.load(Ordering::Relaxed) <= self.monotonic() + self.offset();
        self.is_verified.send_replace(is_verified);
        is_verified
    }

    /// How wide a slot must be, in microseconds, so that it can be narrowed by the error, and is still usable.
    pub(crate) fn needed_width(&self, shard: Shard) -> i64 {
        let margin = self.margin(shard);
        (2 * margin + USABLE.as_nanos() as i64).max(margin * 8 / 3) / 1_000 + 1
    }

    /// The error of a shard's time, in nanoseconds, with the drift until the next exchange.
    fn margin(&self, shard: Shard) -> i64 {
        self.shards[shard.index()].time.error() + DRIFT.as_nanos() as i64
    }

    /// Narrows a slot, given by the shard's time in microseconds, by the error at both ends.
    pub(crate) fn narrowed(&self, shard: Shard, (start, end): (i64, i64)) -> Slot {
        let width = (end - start).saturating_mul(1_000);
        // A slot keeps at least a quarter of its width. If the error is larger than this allows, a send may be outside
        // the slot by the difference.
        let margin = self.margin(shard).min(width * 3 / 8);
        Slot {
            start: Timestamp::from_nanos(self.engine_time(shard, start).as_nanos() + margin),
            end: Timestamp::from_nanos(self.engine_time(shard, end).as_nanos() - margin),
        }
    }

    /// Converts a time of the shard, in microseconds, to engine time. The result is off by the error at most.
    pub(crate) fn engine_time(&self, shard: Shard, micros: i64) -> Timestamp {
        let ahead = self.offset() - self.shards[shard.index()].time.nanos();
        Timestamp::from_nanos(micros.saturating_mul(1_000) + ahead)
    }

    fn offset(&self) -> i64 {
        self.shards[Shard::REFERENCE.index()].time.nanos()
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

    const SECOND: i64 = 1_000_000_000;

    /// The bounds of a clock that is this many nanoseconds ahead of the monotonic clock.
    fn ahead(nanos: i64) -> Bounds {
        Bounds { low: nanos, high: nanos + 1_000 }
    }

    fn verified(nanos: i64) -> RedisClock {
        let clock = RedisClock::new();
        clock.take(Shard::REFERENCE, ahead(nanos));
        assert!(clock.finish_verification());
        clock
    }

    #[test]
    fn a_shard_that_is_set_is_not_followed_and_its_correction_is_exact() {
        let clock = verified(90 * SECOND);
        let before = clock.now();
        for step in [3 * SECOND / 10, -SECOND, 3_600 * SECOND, -89 * SECOND, 700_000, -700_000] {
            let off = clock.check(Shard::REFERENCE, ahead(90 * SECOND + step)).unwrap();
            assert!((off - step / 1_000).abs() <= 1, "{off} {step}");
            assert_eq!(clock.check(Shard::REFERENCE, ahead(90 * SECOND)), None, "the shard is corrected");
        }
        assert!(clock.now().since(before) < Duration::from_secs(1));
    }

    #[test]
    fn a_process_that_is_behind_another_one_states_no_time_until_it_is_verified_again() {
        let clock = verified(SECOND);
        clock.hear(Shard::REFERENCE, 1_000_000, clock.monotonic());
        assert!(clock.stated_time(Shard::REFERENCE) >= 1_000_000);
        clock.hear(Shard::REFERENCE, 61_000_000, clock.monotonic());
        assert_eq!(clock.stated_time(Shard::REFERENCE), 0);
        let before = clock.now();
        assert!(before < Timestamp::from_secs(10), "what was stated is up to a second old, so it is not the time");
        clock.take(Shard::REFERENCE, ahead(62 * SECOND));
        assert!(clock.finish_verification());
        assert!(clock.stated_time(Shard::REFERENCE) >= 62_000_000 && clock.now() > before);
    }

    #[test]
    fn a_process_that_was_ahead_is_not_verified_before_the_time_has_reached_it() {
        let clock = verified(SECOND);
        let before = clock.now();
        clock.take(Shard::REFERENCE, ahead(0));
        assert!(!clock.finish_verification());
        assert!(clock.now() >= before, "time never goes backwards");
    }

    #[test]
    fn a_slot_is_narrowed_by_the_error_and_moved_by_the_difference_of_two_nodes() {
        let clock = RedisClock::new();
        let (reference, other) = (Shard::REFERENCE, Shard::parse("1").unwrap());
        clock.take(reference, Bounds { low: 0, high: 0 });
        clock.take(other, Bounds { low: 3_000_000, high: 3_400_000 });
        let slot = clock.narrowed(other, (10_000, 20_000));
        assert_eq!(slot.start.as_nanos(), 10_000_000 - 3_200_000 + 300_000);
        assert_eq!(slot.end.as_nanos(), 20_000_000 - 3_200_000 - 300_000);
    }
}
