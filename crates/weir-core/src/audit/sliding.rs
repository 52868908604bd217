//! The windows of one period, send by send: the fullest of each limit, and the sends that did not fit.
//!
//! A window begins anywhere; of those that a limit judges and that hold a send as their last, the earliest holds most. So each
//! send is looked at once for each limit that may judge a window up to it, and what is kept are the sends of the longest window,
//! [`Recent`], for the periods together.

use std::collections::VecDeque;

use super::{
    in_force::{Binding, InForce, Windows},
    windows::{Window, calendar_start},
};
use crate::{
    limit::{MAX_LIMIT, Period, RateLimit},
    time::Timestamp,
};

/// The most sends that are kept. No bound is as large, so that a send that is one too many is found whatever else there is; a
/// count of a window ends here.
pub(super) const MAX_RECENT: usize = 2 * MAX_LIMIT as usize;

/// The last sends, earliest first, as far as a window may still hold them.
#[derive(Debug, Default)]
pub(super) struct Recent {
    sends: VecDeque<Timestamp>,
    /// Those of them whose outcome is unknown: few, but after a crash.
    unknown: VecDeque<Timestamp>,
}

/// What is held from some instant on.
struct Held {
    window: Window,
    /// How many of the sends are of known outcome, so that they did start, and at their instant.
    known: u64,
}

impl Recent {
    /// Sends come earliest first.
    pub(super) fn push(&mut self, at: Timestamp, is_unknown: bool) {
        if self.sends.len() == MAX_RECENT {
            self.sends.pop_front();
            self.keep_from(self.sends.front().copied());
        }
        self.sends.push_back(at);
        if is_unknown {
            self.unknown.push_back(at);
        }
    }

    /// Forgets what lies before this instant; everything without one.
    pub(super) fn keep_from(&mut self, earliest: Option<Timestamp>) {
        for sends in [&mut self.sends, &mut self.unknown] {
            match earliest {
                Some(earliest) => {
                    while sends.front().is_some_and(|first| *first < earliest) {
                        sends.pop_front();
                    }
                }
                None => sends.clear(),
            }
        }
    }

    /// From the first send at or after `begin` on.
    fn since(&self, begin: Timestamp) -> Option<Held> {
        let held = |sends: &VecDeque<Timestamp>| (sends.len() - sends.partition_point(|send| *send < begin)) as u64;
        let sends = held(&self.sends);
        let start = *self.sends.get(self.sends.len() - sends as usize)?;
        Some(Held { window: Window { start, sends }, known: sends.saturating_sub(held(&self.unknown)) })
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.sends.len() + self.unknown.len()
    }
}

/// What is found of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) limit: RateLimit,
    pub(super) sliding: Option<Window>,
    pub(super) calendar: Option<Window>,
    /// Sends that were one too many, whatever became of those of unknown outcome.
    pub(super) violations: u64,
    /// Further ones that were, if those of unknown outcome started at their latest instant.
    pub(super) possible_violations: u64,
}

impl Findings {
    fn of(limit: RateLimit) -> Self {
        Self { limit, sliding: None, calendar: None, violations: 0, possible_violations: 0 }
    }
}

/// What is said of a send: it counts once, however many windows it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Verdict {
    #[default]
    Fits,
    MayBreak,
    Breaks,
}

/// The windows of one period.
#[derive(Debug)]
pub(super) struct Sliding {
    windows: Windows,
    /// Each with the place of its limit in `findings`.
    bindings: Vec<(Binding, usize)>,
    /// How many of them are over.
    over: usize,
    findings: Vec<Findings>,
    /// On the send that is looked at, by each limit.
    verdicts: Vec<Verdict>,
}

impl Sliding {
    pub(super) fn new(period: Period, in_force: &InForce, from: Timestamp, to: Timestamp) -> Self {
        let windows = Windows { from, to, ..Windows::of(period) };
        // Every limit that was in force in the range, the last one first.
        let mut findings: Vec<Findings> = Vec::new();
        for stretch in in_force.stretches().iter().rev().filter(|s| s.from < to && s.counts_until() > from) {
            if let Some(limit) = stretch.limit.filter(|limit| findings.iter().all(|found| found.limit != *limit)) {
                findings.push(Findings::of(limit));
            }
        }
        let place = |limit: RateLimit| findings.iter().position(|found| found.limit == limit);
        let bindings = in_force.bindings(&windows);
        let bindings = bindings.into_iter().filter_map(|binding| Some((binding, place(binding.limit)?))).collect();
        let verdicts = vec![Verdict::Fits; findings.len()];
        Self { windows, bindings, over: 0, findings, verdicts }
    }

    /// The last of `recent` is the send; sends come earliest first. Answers from when on sends are still needed.
    pub(super) fn send(&mut self, at: Timestamp, is_unknown: bool, recent: &Recent) -> Option<Timestamp> {
        let (windows, earliest) = (&self.windows, self.windows.earliest(at));
        self.over += self.bindings[self.over..].iter().take_while(|(b, _)| b.is_over(at, windows)).count();
        let bindings = &self.bindings[self.over..];
        let judging = bindings.partition_point(|(binding, _)| binding.from <= at);
        for (binding, place) in &bindings[..judging] {
            let begin = binding.from.max(earliest);
            let (Some(held), found) = (recent.since(begin), &mut self.findings[*place]) else { continue };
            let calendar = calendar_start(at, windows.length);
            let inside = recent.since(begin.max(calendar)).map_or(0, |inside| inside.window.sends);
            larger(&mut found.sliding, held.window);
            larger(&mut found.calendar, Window { start: calendar, sends: inside });
            let verdict = match binding.limit.bound() {
                bound if held.known > bound && !is_unknown => Verdict::Breaks,
                bound if held.window.sends > bound => Verdict::MayBreak,
                _ => Verdict::Fits,
            };
            self.verdicts[*place] = self.verdicts[*place].max(verdict);
        }
        for (_, place) in &bindings[..judging] {
            match std::mem::take(&mut self.verdicts[*place]) {
                Verdict::Fits => {}
                Verdict::MayBreak => self.findings[*place].possible_violations += 1,
                Verdict::Breaks => self.findings[*place].violations += 1,
            }
        }
        bindings[..judging].first().map(|(binding, _)| binding.from.max(earliest))
    }

    pub(super) fn findings(&self) -> &[Findings] {
        &self.findings
    }
}

/// The larger of both, the first of equals.
fn larger(worst: &mut Option<Window>, window: Window) {
    if worst.is_none_or(|worst| worst.sends < window.sends) {
        *worst = Some(window);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, time::Duration};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        audit::windows::{self, ObservedSend},
        limit::RateLimits,
    };

    const WINDOW_MS: i64 = 1_000;
    const GRACE_MS: i64 = 100;

    fn limit(limit: u32, burst: u32) -> RateLimit {
        RateLimit::with_burst(limit, Period::Second, burst).unwrap()
    }

    fn limits(limit: Option<RateLimit>) -> RateLimits {
        RateLimits::new(limit.into_iter().collect()).unwrap()
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn in_force(changes: &[(i64, Option<RateLimit>)]) -> InForce {
        let changes: Vec<_> = changes.iter().map(|(ms, limit)| (at(*ms), limits(*limit))).collect();
        InForce::new(&changes, Period::Second)
    }

    fn judge(sends_ms: &[i64], in_force: &InForce, from: Timestamp, to: Timestamp) -> Sliding {
        let (mut sliding, mut recent) = (Sliding::new(Period::Second, in_force, from, to), Recent::default());
        for send in sends_ms.iter().map(|ms| at(*ms)) {
            recent.push(send, false);
            let needed = sliding.send(send, false, &recent);
            recent.keep_from(needed);
        }
        sliding
    }

    /// The violations of each limit.
    fn violations(sends_ms: &[i64], changes: &[(i64, Option<RateLimit>)]) -> Vec<(u32, u64)> {
        let sliding = judge(sends_ms, &in_force(changes), Timestamp::MIN, Timestamp::MAX);
        sliding.findings().iter().map(|found| (found.limit.limit.get(), found.violations)).collect()
    }

    #[test]
    fn a_window_is_half_open() {
        let twice = [(0, Some(limit(2, 1)))];
        assert_eq!(violations(&[0, 500, 1_000], &twice), [(2, 0)]);
        assert_eq!(violations(&[0, 500, 999], &twice), [(2, 1)]);
        let kept = judge(&[0, 500, 1_000], &in_force(&twice), Timestamp::MIN, Timestamp::MAX);
        assert_eq!(kept.findings()[0].sliding, Some(Window { start: at(0), sends: 2 }));
    }

    #[test]
    fn a_burst_may_fill_a_window_beyond_the_limit() {
        let sends = [0, 0, 0, 0, 0, 500];
        assert_eq!(violations(&sends, &[(0, Some(limit(2, 5)))]), [(2, 0)]);
        assert_eq!(violations(&sends, &[(0, Some(limit(2, 4)))]), [(2, 1)]);
    }

    #[test]
    fn a_window_across_an_edit_is_held_to_the_larger_limit() {
        let lowered = [(0, Some(limit(4, 1))), (5_000, Some(limit(1, 1)))];
        assert_eq!(violations(&[4_200, 4_400, 4_600, 5_050], &lowered), [(1, 0), (4, 0)]);
        assert_eq!(violations(&[4_200, 4_400, 4_600, 4_700, 5_050], &lowered), [(1, 0), (4, 1)]);
        assert_eq!(violations(&[7_000, 7_400], &lowered), [(1, 1), (4, 0)]);
        let raised = [(0, Some(limit(1, 1))), (5_000, Some(limit(4, 1)))];
        assert_eq!(violations(&[4_200, 5_001, 5_002, 5_003], &raised), [(4, 0), (1, 0)]);
        assert_eq!(violations(&[4_200, 4_900, 5_001], &raised), [(4, 0), (1, 1)]);
    }

    #[test]
    fn nine_sends_in_the_second_after_a_limit_was_lowered_break_it_as_soon_as_it_binds() {
        let lowered = [(0, Some(limit(10, 1))), (5_000, Some(limit(1, 1)))];
        let nine: Vec<_> = (0..9).map(|n| 5_150 + n * 100).collect();
        assert_eq!(
            violations(&nine, &lowered),
            [(1, 8), (10, 0)],
            "the window that ends with the ninth began with the 10"
        );
        let within_the_grace: Vec<_> = (0..9).map(|n| 5_010 + n * 10).collect();
        assert_eq!(violations(&within_the_grace, &lowered), [(1, 0), (10, 0)]);
    }

    #[test]
    fn a_removed_limit_is_judged_to_its_end() {
        let removed = [(0, Some(limit(2, 1))), (5_000, None)];
        assert_eq!(violations(&[4_700, 4_800, 5_001, 5_002, 5_003], &removed), [(2, 0)]);
        assert_eq!(violations(&[4_700, 4_800, 4_999, 5_002, 5_003], &removed), [(2, 1)]);
    }

    #[test]
    fn sends_of_unknown_outcome_fill_windows_and_accuse_nobody_for_certain() {
        let in_force = in_force(&[(0, Some(limit(2, 1)))]);
        let judge = |sends: &[(i64, bool)]| {
            let mut sliding = Sliding::new(Period::Second, &in_force, Timestamp::MIN, Timestamp::MAX);
            let mut recent = Recent::default();
            for (send, is_unknown) in sends.iter().map(|(ms, is_unknown)| (at(*ms), *is_unknown)) {
                recent.push(send, is_unknown);
                let needed = sliding.send(send, is_unknown, &recent);
                recent.keep_from(needed);
            }
            let found = sliding.findings()[0];
            (found.sliding.unwrap().sends, found.violations, found.possible_violations)
        };
        assert_eq!(judge(&[(0, false), (100, true), (200, true), (300, false)]), (4, 0, 2));
        assert_eq!(judge(&[(0, false), (100, true), (200, false), (300, false), (301, true)]), (5, 1, 2));
        assert_eq!(judge(&[(0, true), (999, false), (1_000, false), (1_998, true)]), (3, 0, 1));
    }

    #[test]
    fn the_windows_of_a_range_lie_inside_it() {
        let lowered = [(0, Some(limit(4, 1))), (5_000, Some(limit(1, 1)))];
        let judged = judge(&[6_000, 6_400], &in_force(&lowered), at(5_100), Timestamp::MAX);
        assert_eq!(judged.findings().len(), 1, "the limit before is not of the range");
        assert_eq!(judged.findings()[0].violations, 1);
    }

    /// Every window that begins in steps of 5 ms, without cleverness: how many sends it holds and which limit judges it. Sends
    /// and edits lie where no step does, so that with the edges that edits make each set of sends that a window can hold is
    /// among these.
    fn brute(sends: &[i64], changes: &[(i64, Option<RateLimit>)], until: i64) -> HashMap<RateLimit, (u64, Vec<i64>)> {
        let mut found: HashMap<RateLimit, (u64, Vec<i64>)> = HashMap::new();
        let replaced = |n: usize| changes.get(n + 1).map_or(i64::MAX, |(next, _)| *next);
        let edges = changes.iter().flat_map(|(edit, _)| [edit + GRACE_MS, edit - WINDOW_MS]).filter(|edge| *edge > 0);
        for begin in (8_004..until).step_by(5).chain(edges) {
            // A removal ends the window; a time without a limit at or before its beginning leaves it without a judge.
            let removed = changes.iter().find(|(from, limit)| *from > begin && limit.is_none()).map(|(from, _)| *from);
            let end = (begin + WINDOW_MS).min(removed.unwrap_or(i64::MAX));
            let touches = |(n, (from, _)): &(usize, &(i64, _))| *from < end && replaced(*n) > begin - GRACE_MS;
            let judges: Vec<_> = changes.iter().enumerate().filter(touches).map(|(_, (_, limit))| *limit).collect();
            let Some(judge) = judges.iter().try_fold(None, |largest: Option<RateLimit>, next| {
                let next = (*next)?;
                Some(Some(largest.filter(|largest| largest.bound() > next.bound()).unwrap_or(next)))
            }) else {
                continue;
            };
            let Some(judge) = judge else { continue };
            let inside: Vec<_> = sends.iter().enumerate().filter(|(_, send)| (begin..end).contains(send)).collect();
            let (most, too_many) = found.entry(judge).or_default();
            *most = (*most).max(inside.len() as u64);
            too_many.extend(inside.iter().skip(judge.bound() as usize).map(|(index, _)| *index as i64));
        }
        for (_, too_many) in found.values_mut() {
            too_many.sort_unstable();
            too_many.dedup();
        }
        found
    }

    fn any_limit() -> impl Strategy<Value = Option<RateLimit>> {
        prop_oneof![1 => Just(None), 6 => (1_u32..8, 1_u32..4).prop_map(|(rate, burst)| Some(limit(rate, burst)))]
    }

    /// No two at once, the first of them long ago.
    fn any_changes() -> impl Strategy<Value = Vec<(i64, Option<RateLimit>)>> {
        proptest::collection::btree_map((1_000_i64..1_600).prop_map(|n| n * 10 + 6), any_limit(), 1..6).prop_map(
            |changes| {
                let mut changes: Vec<_> = changes.into_iter().collect();
                changes[0].0 = 0;
                changes
            },
        )
    }

    proptest! {
        #[test]
        fn the_judge_agrees_with_brute_force(
            mut sends in proptest::collection::vec((1_000_i64..1_600).prop_map(|n| n * 10 + 2), 0..120),
            changes in any_changes(),
        ) {
            sends.sort_unstable();
            let sliding = judge(&sends, &in_force(&changes), Timestamp::MIN, Timestamp::MAX);
            let brute = brute(&sends, &changes, 17_000);
            for found in sliding.findings() {
                let (most, too_many) = brute.get(&found.limit).cloned().unwrap_or_default();
                prop_assert_eq!(found.sliding.map_or(0, |window| window.sends), most, "{:?}", found);
                prop_assert_eq!(found.violations, too_many.len() as u64, "{:?}", found);
                prop_assert_eq!(found.possible_violations, 0);
                prop_assert!(found.calendar.map(|w| w.sends) <= found.sliding.map(|w| w.sends), "{:?}", found);
                prop_assert_eq!(found.violations > 0, most > found.limit.bound(), "{:?}", found);
            }
        }

        #[test]
        fn sightings_without_a_doubt_are_judged_as_sends(
            mut sends in proptest::collection::vec(10_000_i64..16_000, 0..80),
            changes in any_changes(),
        ) {
            sends.sort_unstable();
            let in_force = in_force(&changes);
            let sightings: Vec<_> = sends.iter().map(|ms| ObservedSend { seen: at(*ms), earliest: at(*ms) }).collect();
            let seen = windows::certain_violations(&sightings, &Windows::of(Period::Second), &in_force);
            let sliding = judge(&sends, &in_force, Timestamp::MIN, Timestamp::MAX);
            // A send may break two limits, each in a window of its own.
            let most = sliding.findings().iter().map(|found| found.violations).max().unwrap_or(0);
            let sum: u64 = sliding.findings().iter().map(|found| found.violations).sum();
            prop_assert!((most..=sum).contains(&seen), "{seen} is not from {most} to {sum}");
        }

        #[test]
        fn a_single_limit_is_judged_by_the_distance_over_its_bound_and_by_the_calendar(
            mut sends in proptest::collection::vec(0_i64..3_000, 0..60),
            rate in 1_u32..10,
        ) {
            sends.sort_unstable();
            let bound = rate as usize;
            let too_close = (bound..sends.len()).filter(|i| sends[*i] - sends[i - bound] < WINDOW_MS).count() as u64;
            let sliding = judge(&sends, &in_force(&[(0, Some(limit(rate, 1)))]), Timestamp::MIN, Timestamp::MAX);
            let found = sliding.findings()[0];
            let starts: Vec<_> = sends.iter().map(|ms| at(*ms)).collect();
            prop_assert_eq!(found.violations, too_close);
            prop_assert_eq!(found.sliding, windows::worst_sliding(&starts, Duration::from_secs(1)));
            prop_assert_eq!(found.calendar, windows::worst_calendar(&starts, Duration::from_secs(1)));
        }
    }
}
