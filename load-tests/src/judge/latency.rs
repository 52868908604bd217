//! How long events took, and whether destinations that are alike were served alike.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::reconcile::Reconciled;
use crate::recording::Recording;

/// Beyond this, only that it took long is of interest.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

/// Of fewer arrivals than this, who was first says nothing.
const FEW: usize = 5;

/// From the instant an event was meant to be posted to its first arrival. A publisher or a server that falls behind is so
/// charged for those that it kept waiting (no coordinated omission).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
    pub(crate) max: f64,
}

pub(crate) fn latency(recording: &Recording, reconciled: &Reconciled, group: usize) -> Option<Latency> {
    let histogram = histogram(recording, reconciled, group)?;
    let ms = |quantile| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
    Some(Latency { p50: ms(0.5), p90: ms(0.9), p99: ms(0.99), p99_9: ms(0.999), max: ms(1.0) })
}

/// Of a group, in microseconds; `None` of nothing.
pub(super) fn histogram(recording: &Recording, reconciled: &Reconciled, group: usize) -> Option<Histogram<u64>> {
    let mut histogram = Histogram::new_with_bounds(1, LONGEST.as_micros() as u64, 3).ok()?;
    for number in recording.of_group(group) {
        for (event, seen) in &reconciled.seen[number as usize] {
            let meant = recording.events.get(*event as usize)?.meant;
            histogram.saturating_record((seen.first.since(meant).as_micros() as u64).max(1));
        }
    }
    (!histogram.is_empty()).then_some(histogram)
}

/// Jain's index of what each destination got, divided by what its limits would have let it have, up to the last arrival of
/// the one that was first to end: while all had a backlog. 1 is equal shares; 1/n is everything for one. `None` of one
/// destination, and where one got next to nothing.
pub(crate) fn fairness(recording: &Recording, group: usize) -> Option<f64> {
    let members: Vec<u32> = recording.of_group(group).collect();
    if members.len() < 2 {
        return None;
    }
    let last_of = |number: &u32| recording.at(*number).last().map(|arrival| (arrival.at, recording.at(*number).len()));
    let (first_to_end, count) = members.iter().map(last_of).min()??;
    if count < FEW {
        return None;
    }
    let share = |number: &u32| {
        let until = recording.at(*number).partition_point(|arrival| arrival.at <= first_to_end);
        let limits = &recording.destinations[*number as usize].limits;
        let allowed = limits.last().and_then(|change| change.limits.per_second()).unwrap_or(1.0);
        until as f64 / allowed
    };
    Some(jain(&members.iter().map(share).collect::<Vec<_>>()))
}

fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_fair_and_everything_for_one_is_not() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain(&[4.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[0.0, 0.0]), 1.0);
    }
}
