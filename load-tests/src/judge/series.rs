//! What the pictures of a run show, counted: small enough for the report, whatever the run.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use weir_core::{Period, RateLimits, Timestamp, audit::windows};

use super::{latency, reconcile::Reconciled};
use crate::recording::{Outcome, Recording};

/// The most points along the time axis.
const MAX_BUCKETS: u64 = 600;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Pictures {
    pub(crate) bucket_s: f64,
    /// Owed and not yet delivered at the end of each bucket.
    pub(crate) backlog: Vec<u64>,
    /// What was done to the engine: seconds after the beginning, and what.
    pub(crate) marks: Vec<(f64, String)>,
    pub(crate) groups: Vec<GroupPictures>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct GroupPictures {
    pub(crate) name: String,
    /// Arrivals a second in each bucket, and the sum of the caps there.
    pub(crate) sends_per_s: Vec<f64>,
    pub(crate) cap_per_s: Vec<Option<f64>>,
    /// How many windows of the shortest limit's period held how many sends, and the bound of one.
    pub(crate) windows: Vec<(u64, u64)>,
    pub(crate) window_bound: Option<u64>,
    /// Milliseconds, and the share of events that took no longer.
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
    let mut sends = vec![0_u64; buckets.count];
    let mut caps = vec![Some(0.0); buckets.count];
    let mut held: BTreeMap<u64, u64> = BTreeMap::new();
    let mut window_bound = None;
    for number in recording.of_group(group) {
        let arrivals = recording.at(number);
        arrivals.iter().for_each(|arrival| sends[buckets.of(arrival.at)] += 1);
        let changes = &recording.destinations[number as usize].limits;
        let in_force = |at| changes.iter().rev().find(|change| change.sent <= at).or(changes.first());
        for (bucket, cap) in caps.iter_mut().enumerate() {
            let allowed = in_force(buckets.start(bucket)).and_then(|change| change.limits.per_second());
            *cap = cap.zip(allowed).map(|(cap, allowed)| cap + allowed);
        }
        if let Some(last) = changes.last()
            && let Some((period, bound)) = shortest(&last.limits)
        {
            window_bound = window_bound.max(Some(bound));
            let seen: Vec<_> = arrivals.iter().map(|arrival| arrival.at).collect();
            windows::counts(&seen, period.window()).for_each(|count| *held.entry(count).or_default() += 1);
        }
    }
    GroupPictures {
        name: recording.groups[group].name.clone(),
        sends_per_s: sends.into_iter().map(|count| count as f64 / buckets.bucket_s as f64).collect(),
        cap_per_s: caps,
        windows: held.into_iter().collect(),
        window_bound,
        latency: distribution(recording, reconciled, group),
    }
}

fn shortest(limits: &RateLimits) -> Option<(Period, u64)> {
    limits.as_slice().iter().min_by_key(|limit| limit.period).map(|limit| (limit.period, limit.bound()))
}

fn distribution(recording: &Recording, reconciled: &Reconciled, group: usize) -> Vec<(f64, f64)> {
    let Some(histogram) = latency::histogram(recording, reconciled, group) else { return Vec::new() };
    let quantiles = (0..100).map(|n| f64::from(n) / 100.0).chain([0.995, 0.999, 0.9999, 1.0]);
    quantiles.map(|quantile| (histogram.value_at_quantile(quantile) as f64 / 1_000.0, quantile)).collect()
}
