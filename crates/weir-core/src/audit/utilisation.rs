//! Utilisation: the ratio of sends to the sends that a limit allowed.

use std::time::Duration;

use super::in_force::{InForce, LimitInterval};
use crate::{
    limit::{Period, RateLimit},
    time::Timestamp,
};

/// Sends ÷ (limit × span ÷ period). The span runs from the first send to the last, without gaps longer than one period:
/// during such a gap there was no backlog. `None` when there is no span. Sends are ordered earliest first.
///
/// Special cases:
/// - With edits, `limit × span` is the sum over the limits in force, and sends at times without a limit do not count.
/// - n sends make n − 1 gaps, and isolated sends make none, so the plain ratio is too high when there are few sends. It
///   is therefore capped at 1 + 1/n. Overuse appears in the violations, not here.
/// - At one send per period the regular gap is a period and a slot. A gap is left out only when it is longer than a
///   period and ten slot widths.
pub fn utilisation(sends: &[Timestamp], period: Period, in_force: &InForce) -> Option<f64> {
    let mut of_period = Utilisation::new(period, in_force);
    sends.iter().for_each(|send| of_period.send(*send));
    of_period.ratio(|limit| limit.is_some())
}

/// The utilisation of the limits of one period, send by send.
#[derive(Debug)]
pub(super) struct Utilisation {
    longest_gap: Duration,
    window: Duration,
    intervals: Vec<(LimitInterval, Used)>,
    /// The index of the interval of the previous send.
    current: usize,
    previous: Option<Timestamp>,
}

/// The sends in an interval, and the sends that its sustained rate allowed, without the gaps that are left out.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    sends: u64,
    allowed: f64,
}

impl Utilisation {
    pub(super) fn new(period: Period, in_force: &InForce) -> Self {
        Self {
            longest_gap: period.window() + period.widest_slot() * 10,
            window: period.window(),
            intervals: in_force.intervals().iter().map(|interval| (*interval, Used::default())).collect(),
            current: 0,
            previous: None,
        }
    }

    /// Adds a send. Sends are added earliest first.
    pub(super) fn send(&mut self, at: Timestamp) {
        if let Some(previous) = self.previous.replace(at)
            && at.since(previous) <= self.longest_gap
        {
            // The gap since the previous send may span several intervals.
            let spanned = self.intervals[self.current..].iter_mut().take_while(|(interval, _)| interval.from < at);
            for (interval, used) in spanned {
                let Some(limit) = interval.limit else { continue };
                let overlap = interval.until.min(at).since(interval.from.max(previous));
                used.allowed += f64::from(limit.limit.get()) * overlap.as_secs_f64() / self.window.as_secs_f64();
            }
        }
        // The send counts in the interval in which it starts.
        while self.intervals.get(self.current + 1).is_some_and(|(next, _)| next.from <= at) {
            self.current += 1;
        }
        if let Some((_, used)) = self.intervals.get_mut(self.current) {
            used.sends += 1;
        }
    }

    /// The utilisation of the limits that `wanted` selects, over the time in which they were in force.
    pub(super) fn ratio(&self, wanted: impl Fn(Option<RateLimit>) -> bool) -> Option<f64> {
        let (mut sends, mut allowed) = (0, 0.0);
        for (_, used) in self.intervals.iter().filter(|(interval, _)| wanted(interval.limit)) {
            sends += used.sends;
            allowed += used.allowed;
        }
        let sends = sends as f64;
        (sends > 0.0 && allowed > 0.0).then(|| (sends / allowed).min(1.0 + 1.0 / sends))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::RateLimits;

    fn limits(limit: u32) -> RateLimits {
        RateLimits::new(vec![RateLimit::new(limit, Period::SECOND).unwrap()]).unwrap()
    }

    fn always(limit: u32) -> InForce {
        InForce::new(&[(Timestamp::MIN, limits(limit))], Period::SECOND)
    }

    fn paced(from_ms: i64, every_ms: i64, count: i64) -> Vec<Timestamp> {
        (0..count).map(|n| Timestamp::from_millis(from_ms + n * every_ms)).collect()
    }

    fn close(actual: Option<f64>, expected: f64) {
        let actual = actual.unwrap();
        assert!((actual - expected).abs() < 1e-9, "{actual} is not {expected}");
    }

    #[test]
    fn utilisation_is_sends_over_limit_times_span() {
        close(utilisation(&paced(0, 200, 101), Period::SECOND, &always(10)), 101.0 / 200.0);
    }

    #[test]
    fn gaps_longer_than_a_period_are_left_out() {
        let mut sends = paced(0, 200, 51);
        sends.extend(paced(60_000, 200, 51));
        close(utilisation(&sends, Period::SECOND, &always(10)), 102.0 / 200.0);
    }

    #[test]
    fn one_send_has_no_span() {
        assert_eq!(utilisation(&paced(0, 1, 1), Period::SECOND, &always(10)), None);
        assert_eq!(utilisation(&paced(0, 60_000, 5), Period::SECOND, &always(10)), None);
    }

    #[test]
    fn the_utilisation_of_n_sends_is_at_most_one_plus_one_over_n() {
        close(utilisation(&paced(0, 100, 2), Period::SECOND, &always(10)), 1.5);
        close(utilisation(&paced(0, 100, 20), Period::SECOND, &always(10)), 1.05);
        let mut lone = paced(0, 60_000, 99);
        lone.push(Timestamp::from_millis(98 * 60_000 + 100));
        close(utilisation(&lone, Period::SECOND, &always(10)), 1.01);
    }

    #[test]
    fn gaps_at_a_pace_of_one_send_per_period_are_not_left_out() {
        close(utilisation(&paced(0, 1_010, 101), Period::SECOND, &always(1)), 1.0);
    }

    #[test]
    fn an_edit_changes_the_allowed_sends() {
        let changes = [(Timestamp::MIN, limits(10)), (Timestamp::from_secs(10), limits(20))];
        let in_force = InForce::new(&changes, Period::SECOND);
        close(utilisation(&paced(0, 100, 201), Period::SECOND, &in_force), 201.0 / 300.0);
    }

    #[test]
    fn sends_without_a_limit_do_not_count() {
        let changes = [(Timestamp::MIN, RateLimits::UNLIMITED), (Timestamp::from_secs(10), limits(10))];
        let in_force = InForce::new(&changes, Period::SECOND);
        close(utilisation(&paced(0, 200, 101), Period::SECOND, &in_force), 51.0 / 100.0);
    }

    #[test]
    fn each_limit_has_its_own_utilisation_over_the_time_in_which_it_was_in_force() {
        let changes = [
            (Timestamp::MIN, limits(10)),
            (Timestamp::from_secs(10), limits(20)),
            (Timestamp::from_secs(15), limits(10)),
        ];
        let mut of_period = Utilisation::new(Period::SECOND, &InForce::new(&changes, Period::SECOND));
        paced(0, 200, 101).into_iter().for_each(|send| of_period.send(send));
        let of = |limit: u32| of_period.ratio(|wanted| wanted.is_some_and(|wanted| wanted.limit.get() == limit));
        close(of(10), 76.0 / 150.0);
        close(of(20), 25.0 / 100.0);
        assert_eq!(of(30), None);
    }
}
