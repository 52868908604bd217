//! Utilisation: how much of what a limit allowed was sent.

use std::time::Duration;

use super::in_force::InForce;
use crate::{limit::Period, time::Timestamp};

/// Sends ÷ (limit × span ÷ period). The span runs from the first send to the last and leaves out gaps longer than one
/// period: nothing waited then. `None` while there is no span. Sends come earliest first.
///
/// Edges:
/// - With edits, `limit × span` is the sum over the limits in force, and sends at times without a limit do not count.
/// - n sends make n − 1 intervals, and sends on their own make none, so that the bare quotient overshoots when there are few.
///   It is therefore held at 1 + 1/n. Overuse shows in the violations, not here.
/// - At one send per period the pace itself is a period and a slot. A gap is left out when it is longer than a period and
///   ten slot widths.
pub fn utilisation(sends: &[Timestamp], period: Period, in_force: &InForce) -> Option<f64> {
    let longest_gap = period.window() + period.widest_slot() * 10;
    let mut allowed = 0.0;
    for pair in sends.windows(2) {
        if pair[1].since(pair[0]) <= longest_gap {
            allowed += allowance(pair[0], pair[1], period.window(), in_force);
        }
    }
    let counted = sends.iter().filter(|send| in_force.limit_at(**send).is_some()).count() as f64;
    (allowed > 0.0).then(|| (counted / allowed).min(1.0 + 1.0 / counted))
}

/// How many sends the limits in force allow between two instants, at the sustained rate.
fn allowance(from: Timestamp, until: Timestamp, window: Duration, in_force: &InForce) -> f64 {
    let stretches = in_force.stretches();
    let first = stretches.partition_point(|stretch| stretch.until <= from);
    stretches[first..]
        .iter()
        .take_while(|stretch| stretch.from < until)
        .filter_map(|stretch| {
            let common = stretch.until.min(until).since(stretch.from.max(from));
            Some(f64::from(stretch.limit?.limit.get()) * common.as_secs_f64() / window.as_secs_f64())
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{RateLimit, RateLimits};

    fn limits(limit: u32) -> RateLimits {
        RateLimits::new(vec![RateLimit::new(limit, Period::Second).unwrap()]).unwrap()
    }

    fn always(limit: u32) -> InForce {
        InForce::new(&[(Timestamp::MIN, limits(limit))], Period::Second)
    }

    fn paced(from_ms: i64, every_ms: i64, count: i64) -> Vec<Timestamp> {
        (0..count).map(|n| Timestamp::from_millis(from_ms + n * every_ms)).collect()
    }

    fn close(actual: Option<f64>, expected: f64) {
        let actual = actual.unwrap();
        assert!((actual - expected).abs() < 1e-9, "{actual} is not {expected}");
    }

    #[test]
    fn it_is_sends_over_limit_times_span() {
        close(utilisation(&paced(0, 200, 101), Period::Second, &always(10)), 101.0 / 200.0);
    }

    #[test]
    fn gaps_longer_than_a_period_are_left_out() {
        let mut sends = paced(0, 200, 51);
        sends.extend(paced(60_000, 200, 51));
        close(utilisation(&sends, Period::Second, &always(10)), 102.0 / 200.0);
    }

    #[test]
    fn one_send_has_no_span() {
        assert_eq!(utilisation(&paced(0, 1, 1), Period::Second, &always(10)), None);
        assert_eq!(utilisation(&paced(0, 60_000, 5), Period::Second, &always(10)), None);
    }

    #[test]
    fn few_sends_do_not_overshoot_by_more_than_one_in_n() {
        close(utilisation(&paced(0, 100, 2), Period::Second, &always(10)), 1.5);
        close(utilisation(&paced(0, 100, 20), Period::Second, &always(10)), 1.05);
        let mut lone = paced(0, 60_000, 99);
        lone.push(Timestamp::from_millis(98 * 60_000 + 100));
        close(utilisation(&lone, Period::Second, &always(10)), 1.01);
    }

    #[test]
    fn the_pace_of_one_per_period_counts() {
        close(utilisation(&paced(0, 1_010, 101), Period::Second, &always(1)), 1.0);
    }

    #[test]
    fn an_edit_changes_what_was_allowed() {
        let changes = [(Timestamp::MIN, limits(10)), (Timestamp::from_secs(10), limits(20))];
        let in_force = InForce::new(&changes, Period::Second);
        close(utilisation(&paced(0, 100, 201), Period::Second, &in_force), 201.0 / 300.0);
    }

    #[test]
    fn sends_without_a_limit_do_not_count() {
        let changes = [(Timestamp::MIN, RateLimits::UNLIMITED), (Timestamp::from_secs(10), limits(10))];
        let in_force = InForce::new(&changes, Period::Second);
        close(utilisation(&paced(0, 200, 101), Period::Second, &in_force), 51.0 / 100.0);
    }
}
