//! The data of a run's charts. Its size is bounded, however long the run was.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use weir_core::{
    Period, RateLimits, Timestamp,
    audit::{in_force::InForce, windows},
    limit::Unit,
};

use super::{caps, latency, reconcile::Reconciled};
use crate::{
    recording::{Destination, Outcome, Recording},
    run::SLACK,
};

/// The most points along the time axis.
const MAX_BUCKETS: u64 = 300;
/// The fullness of windows is counted in steps of this many per cent.
const STEP_PERCENT: u64 = 5;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Pictures {
    pub(crate) bucket_s: f64,
    /// Owed and not yet delivered at the end of each bucket.
    pub(crate) backlog: Vec<u64>,
    /// The steps of the scenario: seconds after the beginning, and a label.
    pub(crate) marks: Vec<(f64, String)>,
    pub(crate) groups: Vec<GroupPictures>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct GroupPictures {
    pub(crate) name: String,
    /// For each bucket: arrivals a second, the most that the limits allow in the bucket, and the long-term rate that
    /// they allow. The last two are equal for limits per second, and `None` while a destination has no limit.
    pub(crate) sends_per_s: Vec<f64>,
    pub(crate) cap_per_s: Vec<Option<f64>>,
    pub(crate) pace_per_s: Vec<Option<f64>>,
    /// Fullness in per cent of the limit, rounded up to steps, and the number of windows with it. A window ends at each
    /// send.
    pub(crate) fullness: Vec<(u64, u64)>,
    /// Milliseconds, and the share of events with at most this latency.
    pub(crate) latency: Vec<(f64, f64)>,
}

pub(super) fn pictures(recording: &Recording, reconciled: &Reconciled) -> Pictures {
    let length_s = recording.ended.since(recording.began).as_secs() + 1;
    let bucket_s = length_s.div_ceil(MAX_BUCKETS).max(1);
    let buckets = Buckets { began: recording.began, bucket_s, count: length_s.div_ceil(bucket_s) as usize };
    let after_s = |at: Timestamp| at.since(recording.began).as_secs_f64();
    Pictures {
        bucket_s: bucket_s as f64,
        backlog: backlog(recording, reconciled, &buckets),
        marks: recording.marks.iter().map(|mark| (after_s(mark.at), mark.what.clone())).collect(),
        groups: (0..recording.groups.len()).map(|group| of_group(recording, reconciled, group, &buckets)).collect(),
    }
}

struct Buckets {
    began: Timestamp,
    bucket_s: u64,
    count: usize,
}

impl Buckets {
    fn of(&self, at: Timestamp) -> usize {
        ((at.since(self.began).as_secs() / self.bucket_s) as usize).min(self.count - 1)
    }

    fn start(&self, bucket: usize) -> Timestamp {
        self.began + Duration::from_secs(self.bucket_s * bucket as u64)
    }
}

fn backlog(recording: &Recording, reconciled: &Reconciled, buckets: &Buckets) -> Vec<u64> {
    let mut change = vec![0_i64; buckets.count];
    for event in &recording.events {
        if let Outcome::Accepted { deliveries, at, .. } = event.outcome {
            change[buckets.of(at)] += i64::from(deliveries);
        }
    }
    for success in reconciled.seen.iter().flat_map(|seen| seen.values()).filter_map(|seen| seen.success) {
        change[buckets.of(success)] -= 1;
    }
    let sums = change.iter().scan(0, |sum, change| {
        *sum += change;
        Some((*sum).max(0).unsigned_abs())
    });
    sums.collect()
}

fn of_group(recording: &Recording, reconciled: &Reconciled, group: usize, buckets: &Buckets) -> GroupPictures {
    // For each bucket the sum over the destinations of the group.
    let mut sends = vec![0_u64; buckets.count];
    let (mut caps, mut paces) = (vec![Some(0.0); buckets.count], vec![Some(0.0); buckets.count]);
    let mut full: BTreeMap<u64, u64> = BTreeMap::new();
    let length = Duration::from_secs(buckets.bucket_s);
    for number in recording.of_group(group) {
        let destination = &recording.destinations[number as usize];
        let seen: Vec<_> = recording.at(number).iter().map(|arrival| arrival.at).collect();
        seen.iter().for_each(|at| sends[buckets.of(*at)] += 1);
        let limits = limits_of(destination);
        for bucket in 0..buckets.count {
            let start = buckets.start(bucket);
            // A bucket may be longer than a window and then contains several.
            let most = |(period, in_force): &(Period, InForce)| {
                let windows = length.as_nanos().div_ceil(period.window().as_nanos()) as u64;
                Some((in_force.bound(start + length, length)? * windows) as f64 / length.as_secs_f64())
            };
            let pace = |(_, in_force): &(Period, InForce)| Some(in_force.limit_at(start)?.per_second());
            let (most, pace) = (least(limits.iter().filter_map(most)), least(limits.iter().filter_map(pace)));
            // If one destination has no limit, the group has none.
            caps[bucket] = caps[bucket].zip(most).map(|(all, most): (f64, f64)| all + most);
            paces[bucket] = paces[bucket].zip(pace).map(|(all, pace): (f64, f64)| all + pace);
        }
        // The fullness of the window that ends at each send. The window is shorter by the slack.
        for (period, in_force) in &limits {
            let window = period.window() - SLACK;
            for (at, held) in seen.iter().zip(windows::counts(&seen, window)) {
                if let Some(bound) = in_force.bound(*at, window) {
                    *full.entry((held * 100).div_ceil(bound).next_multiple_of(STEP_PERCENT)).or_default() += 1;
                }
            }
        }
    }
    GroupPictures {
        name: recording.groups[group].name.clone(),
        sends_per_s: sends.into_iter().map(|count| count as f64 / length.as_secs_f64()).collect(),
        cap_per_s: caps,
        pace_per_s: paces,
        fullness: full.into_iter().collect(),
        latency: distribution(recording, reconciled, group),
    }
}

/// For each period that ever had a limit, the limits in force over time.
fn limits_of(destination: &Destination) -> Vec<(Period, InForce)> {
    let in_force = |period| {
        let changes = caps::changes(&destination.limits, caps::Counted::requests(period));
        (period, InForce::new(&changes, period))
    };
    RateLimits::periods(destination.limits.iter().map(|change| &change.limits), Unit::Request)
        .into_iter()
        .map(in_force)
        .collect()
}

fn least(figures: impl Iterator<Item = f64>) -> Option<f64> {
    figures.reduce(f64::min)
}

fn distribution(recording: &Recording, reconciled: &Reconciled, group: usize) -> Vec<(f64, f64)> {
    let Some(histogram) = latency::histogram(recording, reconciled, group) else { return Vec::new() };
    let quantiles = (0..100).map(|n| f64::from(n) / 100.0).chain([0.995, 0.999, 0.9999, 1.0]);
    quantiles.map(|quantile| (histogram.value_at_quantile(quantile) as f64 / 1_000.0, quantile)).collect()
}
