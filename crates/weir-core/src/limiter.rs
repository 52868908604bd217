//! Slots and cursors: the arithmetic behind the guarantee.
//!
//! A limit of R per window W hands out slots of width J whose starts are at least T = (W + J) / R apart. A send starts
//! inside its slot, so the R-th send after `i` starts no earlier than `start_i + R·T = start_i + W + J ≥ send_i + W`: no
//! half-open window of length W, wherever it begins, holds more than R sends. The utilisation is W / (W + J).
//!
//! With a burst B the starts may run ahead of the cursor by (B − 1)·T, which bounds every window by R + B − 1. This is the
//! generic cell rate algorithm (ITU-T I.371; the cursor is its theoretical arrival time) with an interval instead of an
//! instant for each cell. Several limits apply together: a slot starts where the strictest cursor allows.
//!
//! ```text
//!   start_i     end_i              start_{i+1}                       start_{i+R}
//!   |--- J -----|                  |--- J -----|          ...        |--- J -----|
//!   |<------------ T ------------->|
//!   |<--------------------------- R·T = W + J ---------------------->|
//! ```

use std::time::Duration;

use crate::{
    limit::{RateLimit, RateLimits},
    time::Timestamp,
};

/// How long a permit of an unlimited destination stays good. It bounds how late a pause can be noticed.
pub const UNLIMITED_SLOT_WIDTH: Duration = Duration::from_millis(100);

/// A half-open interval `[start, end)` in which one send may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub start: Timestamp,
    pub end: Timestamp,
}

impl Slot {
    /// Whether a send may start at `now`.
    pub fn contains(&self, now: Timestamp) -> bool {
        self.start <= now && now < self.end
    }

    /// Whether the slot has passed unused.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.end <= now
    }
}

/// One limit and where its next slot may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lane {
    limit: RateLimit,
    spacing: Duration,
    cursor: Timestamp,
}

impl Lane {
    fn new(limit: RateLimit, cursor: Timestamp) -> Self {
        Self { limit, spacing: limit.spacing(), cursor }
    }

    /// How far starts may run ahead of the cursor: (B − 1)·T.
    fn lead(&self) -> Duration {
        self.spacing * (self.limit.burst.get() - 1)
    }

    fn earliest(&self) -> Timestamp {
        self.cursor - self.lead()
    }

    fn advance(&mut self, start: Timestamp) {
        self.cursor = self.cursor.max(start) + self.spacing;
    }

    /// To where the last advance began: the cursor, or the start if that was later.
    fn retreat(&mut self) {
        self.cursor = self.cursor - self.spacing;
    }
}

/// The cursors of one destination. Cheap to clone, so that a plan can be tried on a copy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limiter {
    lanes: Vec<Lane>,
    last_start: Option<Timestamp>,
    held_until: Timestamp,
}

/// A [`Limiter`] taken apart, for a queue that keeps cursors elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimiterParts {
    /// Each limit and its cursor, the shortest period first.
    pub lanes: Vec<(RateLimit, Timestamp)>,
    pub last_start: Option<Timestamp>,
    pub held_until: Timestamp,
}

impl From<LimiterParts> for Limiter {
    fn from(parts: LimiterParts) -> Self {
        let lanes = parts.lanes.into_iter().map(|(limit, cursor)| Lane::new(limit, cursor)).collect();
        Self { lanes, last_start: parts.last_start, held_until: parts.held_until }
    }
}

impl From<&Limiter> for LimiterParts {
    fn from(limiter: &Limiter) -> Self {
        Self {
            lanes: limiter.lanes.iter().map(|lane| (lane.limit, lane.cursor)).collect(),
            last_start: limiter.last_start,
            held_until: limiter.held_until,
        }
    }
}

impl Limiter {
    /// The limiter of a destination that has never sent: the first slot starts at once.
    pub fn new(limits: &RateLimits) -> Self {
        Self::recovered(limits, None)
    }

    /// The limiter of a destination of which only the start of its last send is known, at most `last_start`.
    ///
    /// Slot starts are T apart, so one spacing after the last of them continues the sequence as if nothing had been
    /// forgotten; any burst counts as spent.
    pub fn recovered(limits: &RateLimits, last_start: Option<Timestamp>) -> Self {
        let lane = |&limit: &RateLimit| Self::spent_lane(limit, last_start);
        Self { lanes: limits.as_slice().iter().map(lane).collect(), last_start, held_until: Timestamp::MIN }
    }

    fn spent_lane(limit: RateLimit, last_start: Option<Timestamp>) -> Lane {
        let mut lane = Lane::new(limit, Timestamp::MIN);
        if let Some(last_start) = last_start {
            lane.cursor = last_start + lane.spacing * limit.burst.get();
        }
        lane
    }

    /// Whether slots follow exactly these limits.
    pub fn follows(&self, limits: &RateLimits) -> bool {
        self.lanes.iter().map(|lane| &lane.limit).eq(limits.as_slice())
    }

    /// Whether a new limiter would hand out the same slots from `now` on, so that this one may be forgotten.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        self.held_until <= now && self.lanes.iter().all(|lane| lane.cursor <= now)
    }

    /// Holds the destination: no slot starts before `until`. A hold is only ever extended.
    pub fn hold(&mut self, until: Timestamp) {
        self.held_until = self.held_until.max(until);
    }

    /// Where the next slot would start, were it taken at `now`.
    pub fn next_start(&self, now: Timestamp) -> Timestamp {
        self.lanes.iter().map(Lane::earliest).fold(now.max(self.held_until), Timestamp::max)
    }

    /// Hands out the next slot. It starts at `now` when the destination was idle, later under backlog.
    pub fn take(&mut self, now: Timestamp) -> Slot {
        let start = self.next_start(now);
        for lane in &mut self.lanes {
            lane.advance(start);
        }
        self.last_start = self.last_start.max(Some(start));
        let width = self.lanes.iter().map(|lane| lane.limit.period.slot_width()).min().unwrap_or(UNLIMITED_SLOT_WIDTH);
        Slot { start, end: start + width }
    }

    /// As if the slot that was handed out last had not been, in which nothing was or will be sent. Each may be given back once, and
    /// none after an edit of the limits. One that another follows cannot be: the other starts T after it.
    pub fn give_back_last(&mut self) {
        self.lanes.iter_mut().for_each(Lane::retreat);
    }

    /// How many slots, taken now, would start before `until`; counted up to `max`.
    pub fn slots_before(&self, now: Timestamp, until: Timestamp, max: u32) -> u32 {
        if self.lanes.is_empty() {
            return if self.next_start(now) < until { max } else { 0 };
        }
        let mut trial = self.clone();
        (0..max).take_while(|_| trial.take(now).start < until).count() as u32
    }

    /// Moves every cursor at least as far as `other`'s. Both must follow the same limits.
    pub fn catch_up(&mut self, other: &Self) {
        debug_assert!(self.lanes.iter().map(|lane| lane.limit).eq(other.lanes.iter().map(|lane| lane.limit)));
        for (lane, ahead) in self.lanes.iter_mut().zip(&other.lanes) {
            lane.cursor = lane.cursor.max(ahead.cursor);
        }
        self.last_start = self.last_start.max(other.last_start);
        self.hold(other.held_until);
    }

    /// Follows new limits without resetting any window.
    ///
    /// A limit that keeps its period keeps its debt, measured in sends since the last start, at the new spacing; a window
    /// that spans the edit is thus bounded by the larger of the two rates. A limit of a new period starts with its burst
    /// spent, one spacing after the last start.
    pub fn reconfigure(&mut self, limits: &RateLimits) {
        if self.follows(limits) {
            return;
        }
        let last_start = self.last_start;
        let lane = |&limit: &RateLimit| {
            let same_period = self.lanes.iter().find(|lane| lane.limit.period == limit.period);
            match (same_period, last_start) {
                (Some(lane), _) if lane.limit == limit => *lane,
                (Some(lane), Some(last_start)) => {
                    let mut edited = Lane::new(limit, Timestamp::MIN);
                    edited.cursor = last_start + rescaled(lane.cursor.since(last_start), lane.spacing, edited.spacing);
                    edited
                }
                _ => Self::spent_lane(limit, last_start),
            }
        };
        self.lanes = limits.as_slice().iter().map(lane).collect();
    }
}

/// `debt · to / from`, rounded up to the nanosecond.
fn rescaled(debt: Duration, from: Duration, to: Duration) -> Duration {
    let nanos = (debt.as_nanos() * to.as_nanos()).div_ceil(from.as_nanos());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limit::Period;

    fn limits(of: &[(u32, Period, u32)]) -> RateLimits {
        RateLimits::new(of.iter().map(|&(r, w, b)| RateLimit::with_burst(r, w, b).unwrap()).collect()).unwrap()
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_secs(1_000_000) + Duration::from_millis(millis as u64)
    }

    #[test]
    fn an_idle_destination_gets_a_slot_that_starts_now() {
        let mut limiter = Limiter::new(&limits(&[(10, Period::Second, 1)]));
        assert_eq!(limiter.take(at(0)), Slot { start: at(0), end: at(10) });
        assert_eq!(limiter.take(at(0)).start, at(101));
        assert_eq!(limiter.take(at(5_000)).start, at(5_000));
    }

    #[test]
    fn the_strictest_of_several_limits_binds() {
        let mut limiter = Limiter::new(&limits(&[(10, Period::Second, 1), (30, Period::Minute, 1)]));
        limiter.take(at(0));
        assert_eq!(limiter.take(at(0)).start, at(2_003) + Duration::from_nanos(333_334));
    }

    #[test]
    fn a_burst_runs_ahead_of_the_cursor_once() {
        let mut limiter = Limiter::new(&limits(&[(10, Period::Second, 3)]));
        let starts: Vec<_> = (0..5).map(|_| limiter.take(at(0)).start).collect();
        assert_eq!(starts, [at(0), at(0), at(0), at(101), at(202)]);
    }

    #[test]
    fn a_raised_limit_takes_effect_from_the_last_start() {
        let mut limiter = Limiter::new(&limits(&[(1, Period::Second, 1)]));
        limiter.take(at(0));
        limiter.reconfigure(&limits(&[(100, Period::Second, 1)]));
        assert_eq!(limiter.next_start(at(0)), at(10) + Duration::from_micros(100));
    }

    #[test]
    fn a_limit_removed_and_put_back_is_not_reset() {
        let ten = limits(&[(10, Period::Second, 1)]);
        let mut limiter = Limiter::new(&ten);
        limiter.take(at(0));
        limiter.reconfigure(&RateLimits::UNLIMITED);
        limiter.reconfigure(&ten);
        assert_eq!(limiter.next_start(at(1)), at(101));
    }

    #[test]
    fn a_recovered_limiter_counts_the_burst_as_spent() {
        let limiter = Limiter::recovered(&limits(&[(10, Period::Second, 5)]), Some(at(0)));
        assert_eq!(limiter.next_start(at(1)), at(101));
    }

    #[test]
    fn a_slot_that_is_given_back_costs_its_time_alone() {
        let mut limiter = Limiter::new(&limits(&[(1, Period::Minute, 1)]));
        limiter.take(at(0));
        let missed = limiter.take(at(0));
        let late = missed.end + Duration::from_millis(40);
        limiter.give_back_last();
        assert_eq!(limiter.next_start(late), late, "not a minute later");
        assert_eq!(limiter.next_start(at(0)), missed.start, "and not earlier than it was");
    }

    #[test]
    fn one_of_a_burst_that_is_given_back_can_be_had_again() {
        let mut limiter = Limiter::new(&limits(&[(10, Period::Second, 2)]));
        limiter.take(at(0));
        limiter.take(at(0));
        limiter.give_back_last();
        assert_eq!(limiter.take(at(20)).start, at(20));
        assert_eq!(limiter.take(at(20)).start, at(101));
    }

    #[test]
    fn a_hold_moves_the_next_slot_and_bunches_nothing_after_it() {
        let mut limiter = Limiter::new(&limits(&[(10, Period::Second, 1)]));
        limiter.hold(at(3_000));
        limiter.hold(at(1_000));
        assert_eq!(limiter.take(at(0)).start, at(3_000));
        assert_eq!(limiter.take(at(3_000)).start, at(3_101));
    }

    /// The guarantee, over sends placed adversarially: each at the very end or the very start of its slot.
    fn assert_bounded(sends: &mut [Timestamp], window: Duration, bound: u64) {
        sends.sort();
        let bound = bound as usize;
        for (first, last) in sends.iter().zip(sends.iter().skip(bound)) {
            assert!(last.since(*first) >= window, "{bound} + 1 sends within {:?}", last.since(*first));
        }
    }

    fn any_limits() -> impl Strategy<Value = RateLimits> {
        (1u32..300, 1u32..2_000, 1u32..6, any::<bool>()).prop_map(|(second, minute, burst, both)| {
            let mut of = vec![(second, Period::Second, burst)];
            if both {
                of.push((minute, Period::Minute, 1));
            }
            limits(&of)
        })
    }

    proptest! {
        #[test]
        fn no_sliding_window_exceeds_its_bound(limits in any_limits(), gaps in prop::collection::vec((0u64..400, any::<bool>()), 1..800)) {
            let mut limiter = Limiter::new(&limits);
            let mut now = at(0);
            let mut sends = Vec::new();
            for (gap, late) in gaps {
                now = now + Duration::from_millis(gap / 8);
                let slot = limiter.take(now);
                sends.push(if late { slot.end - Duration::from_nanos(1) } else { slot.start });
            }
            for limit in limits.as_slice() {
                assert_bounded(&mut sends, limit.period.window(), limit.bound());
            }
        }

        /// As of a sender that stands still in one slot of two: what it loses is the time, not the slots.
        #[test]
        fn slots_that_were_missed_and_given_back_keep_the_bound(limits in any_limits(), stills in prop::collection::vec((0u64..300, any::<bool>()), 1..400)) {
            let mut limiter = Limiter::new(&limits);
            let mut now = at(0);
            let mut sends = Vec::new();
            for (still, late) in stills {
                let slot = limiter.take(now);
                now = now.max(slot.start) + Duration::from_millis(still / 4);
                if slot.is_over(now) {
                    limiter.give_back_last();
                } else {
                    sends.push(if late { slot.end - Duration::from_nanos(1) } else { now });
                }
            }
            for limit in limits.as_slice() {
                assert_bounded(&mut sends, limit.period.window(), limit.bound());
            }
        }

        #[test]
        fn a_window_that_spans_edits_is_bounded_by_the_largest_rate(rates in prop::collection::vec((1u32..200, 1u32..4), 2..6), takes in 1usize..60, gap in 0u64..30) {
            let all: Vec<_> = rates.iter().map(|&(r, b)| limits(&[(r, Period::Second, b)])).collect();
            let mut limiter = Limiter::new(&all[0]);
            let mut now = at(0);
            let mut sends = Vec::new();
            for limits in &all {
                limiter.reconfigure(limits);
                for take in 0..takes {
                    now = now + Duration::from_millis(gap);
                    let slot = limiter.take(now);
                    sends.push(if take % 2 == 0 { slot.end - Duration::from_nanos(1) } else { slot.start });
                }
            }
            let rate = rates.iter().map(|&(r, _)| r).max().unwrap();
            let burst = rates.iter().map(|&(_, b)| b).max().unwrap();
            assert_bounded(&mut sends, Duration::from_secs(1), u64::from(rate + burst - 1));
        }

        #[test]
        fn a_restart_that_knows_only_the_last_start_keeps_the_bound(limits in any_limits(), before in 1usize..200, after in 1usize..200) {
            let mut limiter = Limiter::new(&limits);
            let mut sends: Vec<_> = (0..before).map(|_| limiter.take(at(0)).end - Duration::from_nanos(1)).collect();
            let last = *sends.iter().max().unwrap();
            let mut limiter = Limiter::recovered(&limits, Some(last));
            sends.extend((0..after).map(|_| limiter.take(at(0)).start));
            for limit in limits.as_slice() {
                assert_bounded(&mut sends, limit.period.window(), limit.bound());
            }
        }

        #[test]
        fn a_saturated_limit_is_used(rate in 1u32..2_000) {
            let mut limiter = Limiter::new(&limits(&[(rate, Period::Second, 1)]));
            let last = (0..rate * 10).map(|_| limiter.take(at(0)).start).last().unwrap();
            let utilisation = f64::from(rate * 10 - 1) / f64::from(rate) / last.since(at(0)).as_secs_f64();
            prop_assert!(rate == 1 || utilisation >= 0.985, "{utilisation}");
        }
    }
}
