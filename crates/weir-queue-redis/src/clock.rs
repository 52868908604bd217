//! The queue's clock in this process: the time of the shards, continued by the process's monotonic clock.
//!
//! Each exchange with a server bounds the offset of a shard's time: the server read its clock after the request was sent
//! and before the answer arrived. The bounds of several exchanges intersect in an interval no wider than the fastest
//! round trip; its middle is the offset, half its width the error. Slots are narrowed by the error before workers get
//! them, so a send inside a narrowed slot is inside the slot by the shard's time. In a Cluster every shard has the clock
//! of its node, and its slots are moved by the difference.
//!
//! The time of a shard is the clock of its server plus a shift. If it runs ahead of this process, the server's clock was
//! set forward, and the process corrects the shift. Only if another process has stated a time that is ahead, too, this
//! process follows: its machine was suspended.

use std::{
    sync::atomic::{AtomicBool, AtomicI64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use weir_core::{Clock, Slot, Timestamp};

use crate::keys::{SHARDS, Shard};

/// An upper bound of the drift between two quartz clocks from one refresh to the next.
const DRIFT: Duration = Duration::from_micros(100);
/// Earlier bounds widen by the time since their exchange, divided by this number: 500 ppm, the usual maximum rate of a
/// slewed clock.
const SLEW: i64 = 2_000;
/// A clock that is this many nanoseconds ahead of its bounds was set forward. Smaller differences come from clocks that
/// are slewed faster than [`SLEW`], and are followed: a tenth of the distance by which narrow slots are more apart than
/// the limit requires.
const STEP: i64 = 1_000_000;
/// A shard whose time is this many nanoseconds ahead of the others on its server is corrected. Smaller differences come
/// from the exchanges by which the shards were set.
const SHARD_AHEAD: i64 = 20_000_000;
/// A shard whose time is this many nanoseconds behind has lost it. At its start a process waits until a clock that was set
/// forward is corrected, so its own time is right by then.
const BEHIND: i64 = 1_000_000_000;
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
    /// Whether the start of the process is over.
    is_started: AtomicBool,
    /// Whether calls state the time.
    is_stated: AtomicBool,
    /// When a large error may be reported again, by the monotonic clock.
    warn_from: AtomicI64,
}

#[derive(Default)]
struct ShardClock {
    time: Offset,
    /// The clock of the shard's server, without the shift.
    server: Offset,
}

/// The offset of another clock from the monotonic clock, in nanoseconds.
#[derive(Default)]
struct Offset {
    nanos: AtomicI64,
    error: AtomicI64,
    /// When the offset was set, by the monotonic clock; 0 before the first time.
    set_at: AtomicI64,
}

impl Offset {
    /// The bounds at `now`: the last ones, widened by as much as the clock may have been slewed since then. `None` before
    /// the first exchange.
    fn bounds(&self, now: i64) -> Option<Bounds> {
        match self.set_at.load(Ordering::Relaxed) {
            0 => None,
            set_at => {
                let (nanos, error) = (self.nanos.load(Ordering::Relaxed), self.error.load(Ordering::Relaxed));
                let margin = error + (now - set_at) / SLEW;
                Some(Bounds { low: nanos - margin, high: nanos + margin })
            }
        }
    }

    /// Whether a clock with these bounds is ahead of the known bounds by more than `step`.
    fn is_behind(&self, bounds: Bounds, step: i64, now: i64) -> bool {
        self.bounds(now).is_some_and(|known| bounds.low - known.high > step)
    }

    /// Whether a clock with these bounds is behind the known bounds by more than `step`.
    fn is_ahead(&self, bounds: Bounds, step: i64, now: i64) -> bool {
        self.bounds(now).is_some_and(|known| known.low - bounds.high > step)
    }

    /// Sets the offset from the bounds of new exchanges, and returns its error. Earlier bounds still count, so that slow
    /// exchanges of a busy process or a busy Redis do not make the error larger than the amount by which a slot can be
    /// narrowed.
    fn follow(&self, bounds: Bounds, now: i64) -> i64 {
        let Bounds { low, high } = self.bounds(now).map_or(bounds, |known| known.and(bounds));
        // The middle of the bounds is the offset, and half their width is the error.
        let error = (high - low) / 2;
        self.set_at.store(now, Ordering::Relaxed);
        self.nanos.store(low + error, Ordering::Relaxed);
        self.error.store(error, Ordering::Relaxed);
        error
    }
}

/// The bounds of a clock's offset, from exchanges with its server: at least `low`, at most `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    low: i64,
    high: i64,
}

impl Bounds {
    /// The bounds from one exchange, with the times of request and answer by the monotonic clock.
    fn of(asked_at: i64, micros: i64, answered_at: i64) -> Self {
        let nanos = micros.saturating_mul(1_000);
        Self { low: nanos - answered_at, high: nanos + 1_000 - asked_at }
    }

    /// The intersection of both. If they contradict each other, the clock was set in between, and the later bounds hold.
    fn and(self, later: Self) -> Self {
        let both = Self { low: self.low.max(later.low), high: self.high.min(later.high) };
        if both.low <= both.high { both } else { later }
    }
}

/// What exchanges with a shard have shown: the time of the shard, and the clock of its server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    time: Bounds,
    server: Bounds,
}

impl Measured {
    /// From one exchange, with the times of request and answer by the monotonic clock.
    pub(crate) fn of(asked_at: i64, (time, server): (i64, i64), answered_at: i64) -> Self {
        Self { time: Bounds::of(asked_at, time, answered_at), server: Bounds::of(asked_at, server, answered_at) }
    }

    pub(crate) fn and(self, later: Self) -> Self {
        Self { time: self.time.and(later.time), server: self.server.and(later.server) }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
impl RedisClock {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            shards: Default::default(),
            latest: AtomicI64::new(0),
            is_started: AtomicBool::new(false),
            is_stated: AtomicBool::new(false),
            warn_from: AtomicI64::new(0),
        }
    }
}

impl RedisClock {
    /// The process's monotonic clock, in nanoseconds.
    pub(crate) fn monotonic(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX)
    }

    /// How far the clocks of the servers are ahead of this process's wall clock, in nanoseconds; negative when they are
    /// behind. The largest difference; `None` before the first exchange.
    pub fn servers_ahead_of_wall(&self) -> Option<i64> {
        self.ahead_of_wall(|shard| &shard.server).max_by_key(|ahead| ahead.abs())
    }

    /// How far the times of the shards are ahead of this process's wall clock, in nanoseconds: the largest difference.
    pub(crate) fn time_ahead_of_wall(&self) -> Option<i64> {
        self.ahead_of_wall(|shard| &shard.time).max()
    }

    fn ahead_of_wall(&self, offset: impl Fn(&ShardClock) -> &Offset) -> impl Iterator<Item = i64> {
        let wall = self.wall().as_nanos() - self.monotonic();
        let known = self.shards.iter().map(offset).filter(|offset| offset.set_at.load(Ordering::Relaxed) > 0);
        known.map(move |offset| offset.nanos.load(Ordering::Relaxed) - wall)
    }

    /// Sets the offset of a shard from new exchanges.
    ///
    /// Slots must not start early when a clock jumps. So if the time of the shard is ahead, the offset stays, and the
    /// answer is `true`: the caller must correct the shard. The offset also stays if the shard has lost its time, because
    /// this process would then stand still: from now on its calls state the time, which corrects the shard.
    pub(crate) fn set(&self, shard: Shard, measured: Measured) -> bool {
        let now = self.now_for_offsets();
        let ShardClock { time, server } = &self.shards[shard.index()];
        server.follow(measured.server, now);
        if time.is_behind(measured.time, STEP, now) {
            return true;
        }
        if self.is_started.load(Ordering::Relaxed) && time.is_ahead(measured.time, BEHIND, now) {
            self.state_time();
            return false;
        }
        let error = time.follow(measured.time, now);
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

    /// Whether the time of a single shard is ahead, although that of its server is known: its correction was lost.
    pub(crate) fn is_ahead(&self, shard: Shard, measured: Measured) -> bool {
        self.shards[shard.index()].time.is_behind(measured.time, SHARD_AHEAD, self.now_for_offsets())
    }

    /// Another process has stated a time of the shard, in microseconds, before an answer that came at `answered_at`. If it
    /// is ahead of this process, this process is behind: its machine was suspended. Then it continues from that time.
    pub(crate) fn hear(&self, shard: Shard, micros: i64, answered_at: i64) {
        let now = self.now_for_offsets();
        let time = &self.shards[shard.index()].time;
        let stated = Bounds { low: micros.saturating_mul(1_000) - answered_at, high: i64::MAX };
        if time.is_behind(stated, STEP, now) {
            time.nanos.store(stated.low + time.error.load(Ordering::Relaxed), Ordering::Relaxed);
            time.set_at.store(now, Ordering::Relaxed);
        }
    }

    /// At least 1, because 0 stands for "not set yet".
    fn now_for_offsets(&self) -> i64 {
        self.monotonic().max(1)
    }

    /// A lower bound of the shard's time, in microseconds; 0 before the first exchange.
    pub(crate) fn lower_bound(&self, shard: Shard) -> i64 {
        self.bounds(shard).0
    }

    /// A lower and an upper bound of the shard's time, in microseconds; 0 before the first exchange.
    pub(crate) fn bounds(&self, shard: Shard) -> (i64, i64) {
        let now = self.monotonic();
        let known = self.shards[shard.index()].time.bounds(now);
        known.map_or((0, 0), |bounds| ((now + bounds.low) / 1_000, (now + bounds.high) / 1_000 + 1))
    }

    /// The time that calls state: [`Self::lower_bound`], or 0 before [`Self::state_time`].
    pub(crate) fn stated_time(&self, shard: Shard) -> i64 {
        if self.is_stated.load(Ordering::Relaxed) { self.lower_bound(shard) } else { 0 }
    }

    /// The start of the process is over: its time is right.
    pub(crate) fn finish_start(&self) {
        self.is_started.store(true, Ordering::Relaxed);
    }

    /// From now on calls state the time, and every process follows it. A process that has just started must not: it may
    /// have read a clock that was set forward, before the other processes have corrected it.
    pub(crate) fn state_time(&self) {
        self.is_stated.store(true, Ordering::Relaxed);
    }

    /// How wide a slot must be, in microseconds, so that it can be narrowed by the error, and is still usable.
    pub(crate) fn needed_width(&self, shard: Shard) -> i64 {
        let margin = self.margin(shard);
        (2 * margin + USABLE.as_nanos() as i64).max(margin * 8 / 3) / 1_000 + 1
    }

    /// The error of a shard's time, in nanoseconds, with the drift until the next exchange.
    fn margin(&self, shard: Shard) -> i64 {
        self.shards[shard.index()].time.error.load(Ordering::Relaxed) + DRIFT.as_nanos() as i64
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
        let ahead = self.offset() - self.shards[shard.index()].time.nanos.load(Ordering::Relaxed);
        Timestamp::from_nanos(micros.saturating_mul(1_000) + ahead)
    }

    fn offset(&self) -> i64 {
        self.shards[Shard::REFERENCE.index()].time.nanos.load(Ordering::Relaxed)
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

    /// The bounds of clocks that are this many nanoseconds ahead of the monotonic clock.
    fn ahead(time: i64, server: i64) -> Measured {
        let bounds = |nanos| Bounds { low: nanos, high: nanos + 1_000 };
        Measured { time: bounds(time), server: bounds(server) }
    }

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn a_shard_that_is_set_forward_is_not_followed_however_often() {
        let clock = RedisClock::new();
        let reference = Shard::REFERENCE;
        assert!(!clock.set(reference, ahead(SECOND, SECOND)));
        for step in 1..10 {
            let stepped = SECOND + step * 3 * SECOND / 10;
            assert!(clock.set(reference, ahead(stepped, stepped)), "the shard must be corrected");
            assert!(clock.set(reference, ahead(stepped, stepped)), "the correction has failed");
            assert!(!clock.set(reference, ahead(SECOND, stepped)), "the shard is corrected");
            assert!(clock.set(reference, ahead(stepped, SECOND)), "the server was set back, and forward again");
        }
        assert!(clock.now() < Timestamp::from_nanos(3 * SECOND / 2));
    }

    #[test]
    fn other_processes_that_are_ahead_are_followed_and_no_further() {
        let clock = RedisClock::new();
        let reference = Shard::REFERENCE;
        assert!(!clock.set(reference, ahead(SECOND, SECOND)));
        clock.hear(reference, 61_000_000, 0);
        assert!(clock.set(reference, ahead(90 * SECOND, SECOND)), "the server was set, too");
        clock.hear(reference, 50_000_000, 0);
        let now = clock.now();
        assert!(now > Timestamp::from_secs(60) && now < Timestamp::from_secs(62), "{now}");
    }

    #[test]
    fn a_process_that_has_just_started_states_no_time() {
        let clock = RedisClock::new();
        let reference = Shard::REFERENCE;
        clock.set(reference, ahead(SECOND, SECOND));
        assert_eq!(clock.stated_time(reference), 0);
        clock.state_time();
        assert!(clock.stated_time(reference) >= 1_000_000);
    }

    #[test]
    fn a_shard_that_has_lost_its_time_is_not_followed_and_is_told_the_time() {
        let clock = RedisClock::new();
        let reference = Shard::REFERENCE;
        clock.set(reference, ahead(90 * SECOND, 90 * SECOND));
        assert!(!clock.set(reference, ahead(60 * SECOND, 60 * SECOND)), "a start follows the others' correction");
        clock.finish_start();
        let before = clock.now();
        assert!(!clock.set(reference, ahead(SECOND, SECOND)));
        assert!(clock.stated_time(reference) >= 60_000_000);
        assert!(clock.now() > before);
    }

    #[test]
    fn time_never_goes_backwards() {
        let clock = RedisClock::new();
        let reference = Shard::REFERENCE;
        clock.set(reference, ahead(SECOND, SECOND));
        let before = clock.now();
        clock.set(reference, ahead(0, 0));
        assert!(clock.now() >= before);
    }

    #[test]
    fn a_slot_is_narrowed_by_the_error_and_moved_by_the_difference_of_two_nodes() {
        let clock = RedisClock::new();
        let (reference, other) = (Shard::REFERENCE, Shard::parse("1").unwrap());
        let measured = |low, high| Measured { time: Bounds { low, high }, server: Bounds { low, high } };
        clock.set(reference, measured(0, 0));
        clock.set(other, measured(3_000_000, 3_400_000));
        let slot = clock.narrowed(other, (10_000, 20_000));
        assert_eq!(slot.start.as_nanos(), 10_000_000 - 3_200_000 + 300_000);
        assert_eq!(slot.end.as_nanos(), 20_000_000 - 3_200_000 - 300_000);
    }
}
