//! Slots and cursors: the arithmetic behind the guarantee.
//!
//! A limit of R per window W hands out slots of width J whose starts are at least T = (W + J) / R apart. A send starts
//! inside its slot, so the R-th send after `i` starts no earlier than `start_i + R·T = start_i + W + J ≥ send_i + W`: no
//! half-open window of length W, wherever it begins, holds more than R sends. The utilisation is W / (W + J).
//!
//! With a burst B up to B slots may start at once, which bounds every window by R + B − 1. This is the generic cell rate
//! algorithm (ITU-T I.371) with an interval instead of an instant for each cell, kept as a token bucket: `spent` tokens, one
//! of which comes back every T after `since`. In this form no number grows with B·T, which can be centuries. Several limits
//! apply together: a slot starts where the strictest cursor allows.
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

/// How long a slot of an unlimited destination stays good. It bounds how late a pause can be noticed.
pub const UNLIMITED_SLOT_WIDTH: Duration = Duration::from_millis(50);
/// A slot is granted only when it starts within this time from now. With the width of a narrow slot it bounds how long what was
/// granted before an edit can be in use: less than 100 ms.
pub const GRANT_AHEAD: Duration = Duration::from_millis(40);
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
pub struct LimitCursor {
    pub limit: RateLimit,
    spacing: Duration,
    /// From when the spent tokens come back, one every T.
    pub since: Timestamp,
    /// Tokens spent at `since`, at most the burst.
    pub spent: u32,
}

impl LimitCursor {
    pub fn new(limit: RateLimit, since: Timestamp, spent: u32) -> Self {
        Self { limit, spacing: limit.spacing(), since, spent }
    }

    /// Of a destination whose last send is known, if there was one: the burst counts as spent.
    fn after(limit: RateLimit, last_start: Option<Timestamp>) -> Self {
        last_start.map_or(Self::new(limit, Timestamp::MIN, 0), |at| Self::new(limit, at, limit.burst.get()))
    }

    /// The same cursor with the tokens back that have come back by `now`.
    fn at(self, now: Timestamp) -> Self {
        let back = times(now.since(self.since), self.spacing);
        if back < self.spent {
            Self { since: self.since + self.spacing * back, spent: self.spent - back, ..self }
        } else {
            Self { since: now.max(self.since), spent: 0, ..self }
        }
    }

    /// Where the slot may start that follows `others` more; [`Timestamp::MIN`] when tokens are left for all of them.
    fn earliest(&self, others: u32) -> Timestamp {
        let lacking = (u64::from(self.spent) + u64::from(others) + 1).saturating_sub(self.limit.burst.get().into());
        match u32::try_from(lacking) {
            Ok(0) => Timestamp::MIN,
            Ok(lacking) => self.since + self.spacing.saturating_mul(lacking),
            Err(_) => Timestamp::MAX,
        }
    }

    /// Spends one token at `start`.
    fn advance(&mut self, start: Timestamp) {
        let back = self.at(start);
        *self = Self { spent: back.spent + 1, ..back };
    }

    /// The cursor under another limit of the same period. The debt, measured in sends since the last start, stays, at the new
    /// spacing; so a window that spans the edit is bounded by the larger of the two limits. Once a whole window has passed since
    /// the last start there is nothing left that such a window could hold.
    ///
    /// No edit adds a token: those of a raised burst begin spent. Otherwise a burst that is lowered and raised would be had
    /// again and again.
    fn under(&self, limit: RateLimit, last_start: Timestamp) -> Self {
        let (spacing, burst) = (limit.spacing(), limit.burst.get());
        let raised = burst.saturating_sub(self.limit.burst.get());
        let spent = self.spent.saturating_add(raised);
        // Both rounded away from the next start.
        let on_the_way = rescaled(last_start.since(self.since), self.spacing, spacing);
        let owed = rescaled(self.since.since(last_start), self.spacing, spacing);
        let owed = if owed.is_zero() { owed } else { owed + Duration::from_nanos(1) };
        let over = spacing.saturating_mul(spent.saturating_sub(burst));
        let latest = last_start + limit.span() - spacing;
        let since = last_start - on_the_way + owed + over;
        Self::new(limit, since.min(latest), spent.min(burst))
    }
}

/// The cursors of one destination. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limiter {
    cursors: Vec<LimitCursor>,
    last_start: Option<Timestamp>,
    held_until: Timestamp,
}

/// A [`Limiter`] taken apart, for a queue that keeps cursors elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimiterParts {
    /// The shortest period first.
    pub cursors: Vec<LimitCursor>,
    pub last_start: Option<Timestamp>,
    pub held_until: Timestamp,
}

impl From<LimiterParts> for Limiter {
    fn from(LimiterParts { cursors, last_start, held_until }: LimiterParts) -> Self {
        Self { cursors, last_start, held_until }
    }
}

impl From<&Limiter> for LimiterParts {
    fn from(limiter: &Limiter) -> Self {
        let Limiter { cursors, last_start, held_until } = limiter.clone();
        Self { cursors, last_start, held_until }
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
        let cursors = limits.as_slice().iter().map(|&limit| LimitCursor::after(limit, last_start)).collect();
        Self { cursors, last_start, held_until: Timestamp::MIN }
    }

    /// Whether slots follow exactly these limits.
    pub fn follows(&self, limits: &RateLimits) -> bool {
        self.cursors.iter().map(|cursor| &cursor.limit).eq(limits.as_slice())
    }

    /// Whether a new limiter would hand out the same slots from `now` on, so that this one may be forgotten.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        self.held_until <= now && self.cursors.iter().all(|cursor| cursor.at(now).spent == 0)
    }

    /// Holds the destination: no slot starts before `until`. A hold is only ever extended.
    pub fn hold(&mut self, until: Timestamp) {
        self.held_until = self.held_until.max(until);
    }

    /// Until when the destination is held.
    pub fn held_until(&self) -> Timestamp {
        self.held_until
    }

    /// How wide the slots are.
    pub fn slot_width(&self) -> Duration {
        self.cursors.iter().map(|cursor| cursor.limit.slot_width()).min().unwrap_or(UNLIMITED_SLOT_WIDTH)
    }

    /// Where the next slot would start, were it taken at `now`.
    pub fn next_start(&self, now: Timestamp) -> Timestamp {
        self.cursors.iter().map(|cursor| cursor.earliest(0)).fold(now.max(self.held_until), Timestamp::max)
    }

    /// Where the slot would start that is taken after `others` more: an estimate where several limits bind in turn.
    pub fn start_after(&self, others: u32, now: Timestamp) -> Timestamp {
        let next = self.next_start(now);
        self.cursors.iter().map(|cursor| cursor.at(next).earliest(others)).fold(next, Timestamp::max)
    }

    /// How many slots, taken now, would start before `until`; counted up to `max`. As [`Self::start_after`], an estimate.
    pub fn slots_before(&self, now: Timestamp, until: Timestamp, max: u32) -> u32 {
        let next = self.next_start(now);
        if next >= until {
            return 0;
        }
        let of = |cursor: &LimitCursor| {
            let cursor = cursor.at(next);
            let left = cursor.limit.burst.get().saturating_sub(cursor.spent);
            let last = until.since(cursor.since).saturating_sub(Duration::from_nanos(1));
            times(last, cursor.spacing).saturating_add(left)
        };
        self.cursors.iter().map(of).fold(max, u32::min)
    }

    /// Hands out the next slot. It starts at `now` when the destination was idle, later under backlog.
    pub fn take(&mut self, now: Timestamp) -> Slot {
        let start = self.next_start(now);
        for cursor in &mut self.cursors {
            cursor.advance(start);
        }
        self.last_start = self.last_start.max(Some(start));
        Slot { start, end: start + self.slot_width() }
    }

    /// Follows new limits without resetting any window.
    ///
    /// A limit that keeps its period keeps its debt. A limit of a new period starts with its burst spent, one spacing after the
    /// last start. The last slot may still be used at its end, so where the new slots are narrower the last start counts as
    /// so much later.
    pub fn reconfigure(&mut self, limits: &RateLimits) {
        if self.follows(limits) {
            return;
        }
        let old_width = self.slot_width();
        let unmoved = self.last_start;
        let cursor = |&limit: &RateLimit| {
            let same_period = self.cursors.iter().find(|cursor| cursor.limit.period == limit.period);
            match (same_period, unmoved) {
                (Some(cursor), _) if cursor.limit == limit => *cursor,
                (Some(cursor), Some(last_start)) => cursor.under(limit, last_start),
                _ => LimitCursor::after(limit, unmoved),
            }
        };
        let mut edited = Self { cursors: limits.as_slice().iter().map(cursor).collect(), ..self.clone() };
        let later = old_width.saturating_sub(edited.slot_width());
        if let Some(last_start) = edited.last_start.filter(|_| !later.is_zero()) {
            edited.last_start = Some(last_start + later);
            for cursor in &mut edited.cursors {
                let is_kept = self.cursors.iter().any(|old| old.limit == cursor.limit);
                if !is_kept {
                    cursor.since = cursor.since + later;
                }
            }
        }
        *self = edited;
    }
}

/// How often `spacing` goes into `time`.
fn times(time: Duration, spacing: Duration) -> u32 {
    let nanos = |of: Duration| u64::try_from(of.as_nanos()).unwrap_or(u64::MAX);
    u32::try_from(nanos(time) / nanos(spacing)).unwrap_or(u32::MAX)
}

/// `time · to / from`, rounded down to the nanosecond.
fn rescaled(time: Duration, from: Duration, to: Duration) -> Duration {
    let nanos = time.as_nanos() * to.as_nanos() / from.as_nanos();
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
        // The last slot may have been as wide as one without a limit.
        let wider = UNLIMITED_SLOT_WIDTH - crate::limit::NARROW_SLOT;
        assert_eq!(limiter.next_start(at(1)), at(101) + wider);
    }

    #[test]
    fn a_recovered_limiter_counts_the_burst_as_spent() {
        let limiter = Limiter::recovered(&limits(&[(10, Period::Second, 5)]), Some(at(0)));
        assert_eq!(limiter.next_start(at(1)), at(101));
    }

    #[test]
    fn bursts_at_the_bounds_of_the_range_saturate_nothing() {
        let mut limiter = Limiter::new(&limits(&[(1, Period::Day, 86_000)]));
        assert!((0..86_000).all(|_| limiter.take(at(0)).start == at(0)));
        let day = Duration::from_secs(86_400) + crate::limit::NARROW_SLOT;
        assert_eq!(limiter.take(at(0)).start, at(0) + day);
        assert_eq!(limiter.take(at(0)).start, at(0) + day * 2);
        assert_eq!(limiter.slots_before(at(0), at(0) + day * 10, 100), 7);
    }

    #[test]
    fn a_lowered_burst_waits_no_longer_than_a_window() {
        let mut limiter = Limiter::new(&limits(&[(1, Period::Day, 1_000_000)]));
        for _ in 0..1_000_000 {
            limiter.take(at(0));
        }
        limiter.reconfigure(&limits(&[(2, Period::Day, 1)]));
        let two_days = RateLimit::new(2, Period::Day).unwrap();
        assert_eq!(limiter.next_start(at(0)), at(0) + two_days.span());
        limiter.take(at(0));
        assert_eq!(limiter.next_start(at(0)), at(0) + two_days.span() + two_days.spacing());
    }

    #[test]
    fn a_burst_that_is_lowered_and_raised_is_had_once() {
        for (low, high) in
            [((1, Period::Second, 1), (1, Period::Second, 2)), ((1, Period::Second, 1), (3, Period::Second, 100))]
        {
            let mut limiter = Limiter::new(&limits(&[high]));
            let at_once = |limiter: &mut Limiter| {
                std::iter::repeat_with(|| limiter.take(at(0)).start).take_while(|start| *start == at(0)).count()
            };
            assert_eq!(at_once(&mut limiter), high.2 as usize);
            for _ in 0..3 {
                limiter.reconfigure(&limits(&[low]));
                limiter.reconfigure(&limits(&[high]));
                assert!(limiter.next_start(at(0)) > at(0), "{low:?} and {high:?}");
            }
        }
    }

    #[test]
    fn a_raised_burst_comes_with_time() {
        let mut limiter = Limiter::new(&limits(&[(10, Period::Second, 1)]));
        limiter.take(at(0));
        limiter.reconfigure(&limits(&[(10, Period::Second, 3)]));
        assert_eq!(limiter.next_start(at(0)), at(101));
        let starts: Vec<_> = (0..4).map(|_| limiter.take(at(303)).start).collect();
        assert_eq!(starts, [at(303), at(303), at(303), at(404)]);
    }

    #[test]
    fn a_wide_slot_that_an_edit_makes_narrow_counts_from_its_end() {
        let mut limiter = Limiter::new(&limits(&[(1, Period::Day, 1)]));
        let wide = limiter.take(at(0));
        limiter.reconfigure(&limits(&[(1, Period::Second, 1)]));
        assert!(
            limiter.next_start(at(0)) >= wide.end + Duration::from_secs(1),
            "the send may leave at the end of its slot"
        );
    }

    #[test]
    fn slots_and_starts_ahead_are_those_that_are_taken() {
        for of in [(10, Period::Second, 1), (10, Period::Second, 4), (7, Period::Hour, 3)] {
            let mut limiter = Limiter::new(&limits(&[of]));
            for _ in 0..2 {
                limiter.take(at(0));
            }
            let mut taken = limiter.clone();
            let starts: Vec<_> = (0..9).map(|_| taken.take(at(5)).start).collect();
            for (others, start) in (0..).zip(&starts) {
                assert_eq!(limiter.start_after(others, at(5)), *start, "{of:?}");
                let after = *start + Duration::from_nanos(1);
                let before = starts.iter().filter(|start| **start < after).count() as u32;
                assert_eq!(limiter.slots_before(at(5), after, 9), before, "{of:?}");
            }
        }
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

        /// Every edit is followed by sends at the very ends of the slots that were granted before it.
        #[test]
        fn after_an_edit_no_window_exceeds_the_new_limit(edits in prop::collection::vec((1u32..200, 0usize..4, 1u32..5), 2..6), takes in 1usize..40) {
            let all: Vec<_> = edits.iter().map(|&(r, p, b)| limits(&[(r, Period::ALL[p], b)])).collect();
            let mut limiter = Limiter::new(&all[0]);
            let mut now = at(0);
            for limits in &all {
                limiter.reconfigure(limits);
                let edited_at = now;
                let mut sends = Vec::new();
                for take in 0..takes {
                    now = now.max(limiter.next_start(now) - GRANT_AHEAD);
                    let slot = limiter.take(now);
                    sends.push(if take % 2 == 0 { slot.end - Duration::from_nanos(1) } else { slot.start });
                }
                sends.retain(|send| *send >= edited_at + Duration::from_millis(100));
                for limit in limits.as_slice() {
                    assert_bounded(&mut sends, limit.period.window(), limit.bound());
                }
            }
        }

        #[test]
        fn no_window_exceeds_its_bound_over_the_whole_range(limit in 1u32..=crate::limit::MAX_LIMIT, burst in 1u32..=crate::limit::MAX_LIMIT, period in 0usize..4, gaps in prop::collection::vec(0u64..200_000_000, 1..200)) {
            let limit = RateLimit::with_burst(limit, Period::ALL[period], burst).unwrap();
            // What was spent before counts as a burst at once: so a few slots show the bound.
            let mut limiter = Limiter::recovered(&RateLimits::new(vec![limit]).unwrap(), Some(at(0)));
            let (mut now, mut taken, mut first) = (at(0), 0u64, None);
            for gap in gaps {
                now = now + Duration::from_millis(gap);
                let start = limiter.take(now).start;
                prop_assert!(start >= now && start < Timestamp::MAX);
                taken += 1;
                let first = *first.get_or_insert(start);
                // Tokens come back one every T: never more sends than the burst and what came back since.
                let back = (start + limit.slot_width()).since(at(0)).as_nanos() / limit.spacing().as_nanos();
                prop_assert!(u128::from(taken) <= back.max(1) + 1, "{taken} since {first:?}");
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
