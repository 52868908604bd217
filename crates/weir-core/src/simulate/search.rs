//! The smallest limit that would have been enough.

use std::time::Duration;

use super::{Observer, Past, Trial, in_order, run};
use crate::{RateLimit, RateLimits, Timestamp, limit::MAX_LIMIT};

/// The search plays the past so often at most.
const MAX_RUNS: u32 = 20;

/// Counts latencies above the target, and stops when they are too many.
struct Judge {
    target: Duration,
    late: u64,
    most_late: u64,
}

impl Observer for Judge {
    fn expired(&mut self, _at: Timestamp) {
        self.late += 1;
    }

    fn delivered(&mut self, latency: Duration) -> bool {
        self.late += u64::from(latency > self.target);
        self.late <= self.most_late
    }
}

/// The smallest limit of this period with which 99 of 100 deliveries are delivered within `target`; `None` if none is
/// enough.
///
/// A run takes a tenth of a second with a million deliveries, so the search begins at an estimate that takes a hundredth.
pub fn smallest_limit(past: &Past, trial: &Trial, limit: RateLimit, target: Duration) -> Option<RateLimit> {
    let order = in_order(past);
    let most_late = (past.len() as f64 * trial.scale / 100.0) as u64;
    let with = |number: u32| {
        RateLimit::with_burst(number, limit.period, limit.burst.get().min(number))?
            .with_margin(limit.margin_ms())?
            .with_shape(limit.shape())
            .and_then(|shaped| if limit.is_in_costs() { shaped.in_costs() } else { Some(shaped) })
    };
    let mut runs = 0;
    let mut is_enough = |number: u32| {
        runs += 1;
        let limits = with(number).and_then(|limit| RateLimits::new(vec![limit]).ok());
        let is_enough = limits.is_some_and(|limits| {
            let mut judge = Judge { target, late: 0, most_late };
            run(past, &order, trial, &limits, &mut judge);
            judge.late <= judge.most_late
        });
        (is_enough, runs)
    };
    // From the estimate in growing steps to the other side of the smallest limit.
    let spacing_ns = |number| with(number).map_or(0.0, |limit| limit.spacing().as_nanos() as f64);
    let mut middle = estimate(past, &order, trial, spacing_ns, target, most_late);
    let (mut too_small, mut enough, mut step) = (0, None, 1);
    loop {
        let (is_middle_enough, runs) = is_enough(middle);
        if is_middle_enough {
            enough = Some(middle);
        } else if middle == MAX_LIMIT {
            return None;
        } else {
            too_small = middle;
        }
        match enough {
            // The last run is for the largest limit, if none was enough.
            None if runs + 1 >= MAX_RUNS => middle = MAX_LIMIT,
            None => middle = middle.saturating_add(step).min(MAX_LIMIT),
            Some(enough) if enough - too_small <= 1 || runs >= MAX_RUNS => return with(enough),
            Some(enough) if too_small == 0 => middle = enough.saturating_sub(step).max(1),
            Some(enough) => middle = too_small + (enough - too_small) / 2,
        }
        step = step.saturating_mul(4);
    }
}

/// The smallest limit if each delivery were one send and there were places in flight for all.
fn estimate(
    past: &Past,
    order: &[u32],
    trial: &Trial,
    spacing_ns: impl Fn(u32) -> f64,
    target: Duration,
    most_late: u64,
) -> u32 {
    let target_ns = target.as_nanos() as i64;
    let is_enough = |number: u32| {
        // Each delivery is as many sends as the traffic is multiplied with.
        let spacing_ns = (spacing_ns(number) * trial.scale) as i64;
        let most_late = most_late as f64 / trial.scale;
        let (mut next_ns, mut late) = (trial.from.as_nanos(), 0.0);
        for &index in order {
            let delivery = &past.deliveries[index as usize];
            let duration_ms = past.attempts_of(delivery).last().map_or(0, |last| last.duration_ms);
            let due_ns = delivery.due_at.as_nanos();
            let start_ns = next_ns.max(due_ns);
            next_ns = start_ns.saturating_add(spacing_ns);
            if start_ns - due_ns > target_ns - i64::from(duration_ms) * 1_000_000 {
                late += 1.0;
                if late > most_late {
                    return false;
                }
            }
        }
        true
    };
    let (mut too_small, mut enough) = (0, MAX_LIMIT);
    while enough - too_small > 1 {
        // First by powers of two, because most limits are small and one that is too small is soon known to be.
        let middle = if too_small == 0 { (enough / 32).max(1) } else { too_small + (enough - too_small) / 2 };
        *(if is_enough(middle) { &mut enough } else { &mut too_small }) = middle;
    }
    enough
}
