//! The windows of one period, send by send: the fullest window of each limit, and the sends that exceeded a bound.
//!
//! A window may begin anywhere. Among the windows that a limit judges and that end with a given send, the earliest one
//! holds the most sends. So each send is checked once for each limit that may judge such a window. Only the sends of
//! the longest window are kept ([`Recent`]); all periods share them.

use super::{
    in_force::{InForce, WindowLimit, Windows},
    recent::Recent,
    windows::{Window, calendar_start},
};
use crate::{
    limit::{Period, RateLimit},
    time::Timestamp,
};

/// The findings on one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) limit: RateLimit,
    pub(super) sliding: Option<Window>,
    pub(super) calendar: Option<Window>,
    /// Sends that certainly exceeded a bound.
    pub(super) violations: u64,
    /// Further sends that exceeded a bound if the sends of unknown outcome started at their latest instant.
    pub(super) possible_violations: u64,
}

impl Findings {
    fn of(limit: RateLimit) -> Self {
        Self { limit, sliding: None, calendar: None, violations: 0, possible_violations: 0 }
    }
}

/// The judgement on a send. A send counts once, however many windows it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Judgement {
    #[default]
    Fits,
    MayBreak,
    Breaks,
}

/// The windows of one period.
#[derive(Debug)]
pub(super) struct Sliding {
    windows: Windows,
    /// Each with the index of its limit in `findings`.
    window_limits: Vec<(WindowLimit, usize)>,
    /// How many of the first window limits judge no further window.
    over: usize,
    findings: Vec<Findings>,
    /// The judgement on the current send, by each limit.
    judgements: Vec<Judgement>,
}

impl Sliding {
    pub(super) fn new(period: Period, in_force: &InForce, from: Timestamp, to: Timestamp) -> Self {
        let windows = Windows { from, to, ..Windows::of(period) };
        // Every limit that was in force in the range, the latest one first.
        let mut findings: Vec<Findings> = Vec::new();
        for interval in
            in_force.intervals().iter().rev().filter(|interval| interval.from < to && interval.counts_until() > from)
        {
            if let Some(limit) = interval.limit.filter(|limit| findings.iter().all(|found| found.limit != *limit)) {
                findings.push(Findings::of(limit));
            }
        }
        let index_of = |limit: RateLimit| findings.iter().position(|found| found.limit == limit);
        let window_limits = in_force.window_limits(&windows);
        let window_limits =
            window_limits.into_iter().filter_map(|judge| Some((judge, index_of(judge.limit)?))).collect();
        let judgements = vec![Judgement::Fits; findings.len()];
        Self { windows, window_limits, over: 0, findings, judgements }
    }

    /// Judges a send, which is the last of `recent`. Sends are judged earliest first. Returns the instant from which on
    /// sends are still needed.
    pub(super) fn send(&mut self, at: Timestamp, is_unknown: bool, recent: &Recent) -> Option<Timestamp> {
        let (windows, earliest) = (&self.windows, self.windows.earliest(at));
        // The limits that judge a window which ends with this send.
        self.over += self.window_limits[self.over..].iter().take_while(|(judge, _)| judge.is_over(at, windows)).count();
        let judges = &self.window_limits[self.over..];
        let judges = &judges[..judges.partition_point(|(judge, _)| judge.from <= at)];
        for (judge, index) in judges {
            // The earliest window that this limit judges and that ends with the send: it holds the most sends.
            let begin = judge.from.max(earliest);
            let (Some(held), found) = (recent.since(begin), &mut self.findings[*index]) else { continue };
            // The calendar window counts from its beginning, or from the first window that this limit judges.
            let calendar = calendar_start(at, windows.length);
            let inside = recent.since(begin.max(calendar)).map_or(0, |inside| inside.window.sends);
            larger(&mut found.sliding, held.window);
            larger(&mut found.calendar, Window { start: calendar, sends: inside });
            // Certain only when the sends with a known outcome alone exceed the bound, and this send is one of them.
            let judgement = match judge.limit.bound() {
                bound if held.known > bound && !is_unknown => Judgement::Breaks,
                bound if held.window.sends > bound => Judgement::MayBreak,
                _ => Judgement::Fits,
            };
            self.judgements[*index] = self.judgements[*index].max(judgement);
        }
        // Each limit counts the send once.
        for (_, index) in judges {
            match std::mem::take(&mut self.judgements[*index]) {
                Judgement::Fits => {}
                Judgement::MayBreak => self.findings[*index].possible_violations += 1,
                Judgement::Breaks => self.findings[*index].violations += 1,
            }
        }
        // The windows of later sends begin no earlier than these, so older sends are not needed any more.
        judges.first().map(|(judge, _)| judge.from.max(earliest))
    }

    pub(super) fn findings(&self) -> &[Findings] {
        &self.findings
    }
}

/// Replaces `worst` by a larger window. Of equal windows the first is kept.
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
        RateLimit::with_burst(limit, Period::SECOND, burst).unwrap()
    }

    fn limits(limit: Option<RateLimit>) -> RateLimits {
        RateLimits::new(limit.into_iter().collect()).unwrap()
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn in_force(changes: &[(i64, Option<RateLimit>)]) -> InForce {
        let changes: Vec<_> = changes.iter().map(|(ms, limit)| (at(*ms), limits(*limit))).collect();
        InForce::new(&changes, Period::SECOND)
    }

    fn judge(sends_ms: &[i64], in_force: &InForce, from: Timestamp, to: Timestamp) -> Sliding {
        let (mut sliding, mut recent) = (Sliding::new(Period::SECOND, in_force, from, to), Recent::default());
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
            "the window of a second that ends with the ninth send began under the limit of 10"
        );
        let within_the_grace: Vec<_> = (0..9).map(|n| 5_010 + n * 10).collect();
        assert_eq!(violations(&within_the_grace, &lowered), [(1, 0), (10, 0)]);
    }

    #[test]
    fn a_removed_limit_judges_windows_until_its_removal() {
        let removed = [(0, Some(limit(2, 1))), (5_000, None)];
        assert_eq!(violations(&[4_700, 4_800, 5_001, 5_002, 5_003], &removed), [(2, 0)]);
        assert_eq!(violations(&[4_700, 4_800, 4_999, 5_002, 5_003], &removed), [(2, 1)]);
    }

    #[test]
    fn sends_of_unknown_outcome_count_in_windows_and_cause_only_possible_violations() {
        let in_force = in_force(&[(0, Some(limit(2, 1)))]);
        let judge = |sends: &[(i64, bool)]| {
            let mut sliding = Sliding::new(Period::SECOND, &in_force, Timestamp::MIN, Timestamp::MAX);
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
        assert_eq!(judged.findings().len(), 1, "the earlier limit was not in force in the range");
        assert_eq!(judged.findings()[0].violations, 1);
    }

    /// Counts the sends of one window for every 5 ms, and finds the limit that judges the window. No send and no edit
    /// is at the beginning or the end of such a window. So every set of sends that a window can hold is the set of one
    /// of these windows, or of a window that begins at an edge that an edit makes.
    fn brute(sends: &[i64], changes: &[(i64, Option<RateLimit>)], until: i64) -> HashMap<RateLimit, (u64, Vec<i64>)> {
        let mut found: HashMap<RateLimit, (u64, Vec<i64>)> = HashMap::new();
        let replaced = |n: usize| changes.get(n + 1).map_or(i64::MAX, |(next, _)| *next);
        let edges = changes.iter().flat_map(|(edit, _)| [edit + GRACE_MS, edit - WINDOW_MS]).filter(|edge| *edge > 0);
        for begin in (8_004..until).step_by(5).chain(edges) {
            // A removal ends the window. No limit judges a window that begins in a time without a limit.
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

    /// Changes at different instants; the first is long before all sends.
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
        fn observed_sends_at_known_instants_are_judged_as_sends(
            mut sends in proptest::collection::vec(10_000_i64..16_000, 0..80),
            changes in any_changes(),
        ) {
            sends.sort_unstable();
            let in_force = in_force(&changes);
            let observed: Vec<_> = sends.iter().map(|ms| ObservedSend { seen: at(*ms), earliest: at(*ms) }).collect();
            let seen = windows::certain_violations(&observed, &Windows::of(Period::SECOND), &in_force);
            let sliding = judge(&sends, &in_force, Timestamp::MIN, Timestamp::MAX);
            // A send may break two limits, each in another window.
            let most = sliding.findings().iter().map(|found| found.violations).max().unwrap_or(0);
            let sum: u64 = sliding.findings().iter().map(|found| found.violations).sum();
            prop_assert!((most..=sum).contains(&seen), "{seen} is not from {most} to {sum}");
        }

        #[test]
        fn a_single_limit_agrees_with_send_distances_and_the_calendar(
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
