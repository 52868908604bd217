//! Latency of events, and fairness between destinations of a group.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::reconcile::Reconciled;
use crate::recording::Recording;

/// Longer latencies are recorded as this value.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

/// With fewer arrivals than this, fairness is left to chance and not judged.
const MIN_ARRIVALS: usize = 5;

/// From the instant at which an event was meant to be posted to its first arrival. So a publisher or a server that
/// falls behind is charged for the events that it kept waiting (no coordinated omission).
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

/// The latencies of a group in microseconds; `None` without arrivals.
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

/// For each stream the longest time from when an event was meant to be posted to its first arrival, at the slowest of its
/// destinations; `None` if an event did not arrive.
pub(super) fn streams_done(
    recording: &Recording,
    reconciled: &Reconciled,
    breaches: &mut Vec<String>,
) -> Vec<Option<f64>> {
    let took = |number: u64| {
        let event = recording.events.get(number as usize)?;
        let is_for = |destination: &u32| match event.destination {
            Some(only) => only == *destination,
            None => event.groups.contains(&recording.destinations[*destination as usize].group),
        };
        let seen = |destination: u32| reconciled.seen[destination as usize].get(&number);
        let destinations = (0..recording.destinations.len() as u32).filter(is_for);
        let firsts = destinations.map(|destination| seen(destination).map(|seen| seen.first));
        firsts.collect::<Option<Vec<_>>>()?.into_iter().max().map(|last| last.since(event.meant))
    };
    let mut done = Vec::new();
    for (number, stream) in recording.streams.iter().enumerate() {
        let events = stream.first..stream.first + stream.count;
        let longest = events.map(took).collect::<Option<Vec<_>>>().and_then(|took| took.into_iter().max());
        let longest = longest.map(|longest| longest.as_secs_f64());
        if let Some(most) = stream.done_within_s
            && longest.is_none_or(|longest| longest > most)
        {
            let shown = super::shown(longest);
            breaches
                .push(format!("publish {}: the last event took {shown} s, where {most} s was expected", number + 1));
        }
        done.push(longest);
    }
    done
}

/// Jain's index over the destinations' arrivals, each divided by the rate that its limits allow. Only the time in which
/// all had a backlog counts: it ends with the last arrival at the destination that finished first. 1 means equal
/// shares, 1/n that one destination got everything. `None` for a single destination, and when a destination got almost
/// nothing.
pub(crate) fn fairness(recording: &Recording, group: usize) -> Option<f64> {
    let members: Vec<u32> = recording.of_group(group).collect();
    if members.len() < 2 {
        return None;
    }
    let last_of = |number: &u32| recording.at(*number).last().map(|arrival| (arrival.at, recording.at(*number).len()));
    let (end, count) = members.iter().map(last_of).min()??;
    if count < MIN_ARRIVALS {
        return None;
    }
    let share = |number: &u32| {
        let until = recording.at(*number).partition_point(|arrival| arrival.at <= end);
        let limits = &recording.destinations[*number as usize].limits;
        let allowed = limits.last().and_then(|change| change.limits.per_second()).unwrap_or(1.0);
        until as f64 / allowed
    };
    Some(jain(&members.iter().map(share).collect::<Vec<_>>()))
}

pub(super) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_fair_and_one_share_of_everything_is_not() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain(&[4.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[0.0, 0.0]), 1.0);
    }
}
