//! The time series of a run, in seconds since its beginning, for the judge and the chart.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use weir_core::Timestamp;

use super::hpa::Rules;
use crate::{figures::Percentiles, recording::Recording};

/// A server that can be away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Server {
    Prometheus,
    Redis,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Trace {
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) capacity: u32,
    /// The target busy ratio of a worker.
    pub(crate) busy_target: f64,
    pub(crate) sync_s: f64,
    /// Seconds between two samples of the lag.
    pub(crate) step_s: f64,
    #[serde(skip)]
    pub(crate) down: Rules,
    /// The decision of each sync.
    pub(crate) replicas: Vec<(f64, u32)>,
    pub(crate) ready: Vec<(f64, u32)>,
    /// The 99th percentile of the start lag.
    pub(crate) lag_ms: Vec<(f64, f64)>,
    /// The same at the receivers: the lag of the events that were meant to be posted at this time, until their first
    /// arrival.
    pub(crate) late_ms: Vec<(f64, f64)>,
    pub(crate) queued: Vec<(f64, f64)>,
    /// All waiting deliveries in the store.
    pub(crate) stored: Vec<(f64, f64)>,
    /// Events a second that were meant to be posted, and sends a second that arrived.
    pub(crate) offered: Vec<(f64, f64)>,
    pub(crate) started: Vec<(f64, f64)>,
    /// The outages: server, beginning and end.
    pub(crate) outages: Vec<(Server, f64, f64)>,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            min: 0,
            max: 0,
            capacity: 0,
            busy_target: 1.0,
            sync_s: 0.0,
            step_s: 0.0,
            down: Rules::default_down(),
            replicas: Vec::new(),
            ready: Vec::new(),
            lag_ms: Vec::new(),
            late_ms: Vec::new(),
            queued: Vec::new(),
            stored: Vec::new(),
            offered: Vec::new(),
            started: Vec::new(),
            outages: Vec::new(),
        }
    }
}

impl Trace {
    /// The decisions within a time range. The first item is the number in force at its beginning.
    pub(crate) fn replicas(&self, from_s: f64, until_s: f64) -> impl Iterator<Item = (f64, u32)> + '_ {
        let before = self.replicas.iter().rfind(|(at, _)| *at <= from_s).map(|(_, replicas)| (from_s, *replicas));
        let within = self.replicas.iter().copied().filter(move |(at, _)| from_s < *at && *at < until_s);
        before.into_iter().chain(within)
    }

    /// The beginning and end of a server's outage.
    pub(crate) fn outage(&self, of: Server) -> Option<(f64, f64)> {
        self.outages.iter().find(|(server, ..)| *server == of).map(|(_, from_s, until_s)| (*from_s, *until_s))
    }
}

/// Events a second offered and arrived, counted in buckets.
pub(crate) fn rates(recording: &Recording, bucket_s: f64) -> [Vec<(f64, f64)>; 2] {
    let seconds = |at: Timestamp| at.since(recording.began).as_secs_f64();
    let offered = recording.events.iter().map(|event| seconds(event.meant));
    let started = recording.arrivals.iter().flatten().map(|arrival| seconds(arrival.at));
    [counted(offered, bucket_s), counted(started, bucket_s)]
}

/// The 99th percentile of the delay until the first arrival, in buckets of the intended posting time. Only groups that
/// expect every event are included.
pub(crate) fn lateness(recording: &Recording, bucket_s: f64) -> Vec<(f64, f64)> {
    let mut first: HashMap<u64, Timestamp> = HashMap::new();
    for arrival in recording.arrivals.iter().flatten() {
        let group = recording.destinations[arrival.destination as usize].group;
        if recording.groups[group].expect.delivered {
            let at = first.entry(arrival.event).or_insert(arrival.at);
            *at = (*at).min(arrival.at);
        }
    }
    let mut buckets: BTreeMap<u64, Vec<Duration>> = BTreeMap::new();
    for (event, at) in first {
        let Some(meant) = recording.events.get(event as usize).map(|event| event.meant) else { continue };
        let bucket = meant.since(recording.began).as_secs_f64() / bucket_s;
        buckets.entry(bucket as u64).or_default().push(at.since(meant));
    }
    let of = |(bucket, late): (u64, Vec<Duration>)| Some((bucket as f64 * bucket_s, Percentiles::of(late)?.p99_ms));
    buckets.into_iter().filter_map(of).collect()
}

fn counted(times: impl Iterator<Item = f64>, bucket_s: f64) -> Vec<(f64, f64)> {
    let mut counts: Vec<u64> = Vec::new();
    for time in times {
        let bucket = (time.max(0.0) / bucket_s) as usize;
        if counts.len() <= bucket {
            counts.resize(bucket + 1, 0);
        }
        counts[bucket] += 1;
    }
    counts.iter().enumerate().map(|(number, count)| (number as f64 * bucket_s, *count as f64 / bucket_s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_in_force_at_the_beginning_is_the_first_of_a_range() {
        let trace = Trace { replicas: vec![(0.0, 2), (1.0, 4), (2.0, 8)], ..Trace::default() };
        assert_eq!(trace.replicas(1.5, 2.5).collect::<Vec<_>>(), [(1.5, 4), (2.0, 8)]);
        assert_eq!(trace.replicas(0.0, 1.0).collect::<Vec<_>>(), [(0.0, 2)]);
    }

    #[test]
    fn rates_are_counted_in_buckets() {
        assert_eq!(counted([0.1, 0.2, 0.6, 1.9].into_iter(), 0.5), [(0.0, 4.0), (0.5, 2.0), (1.0, 0.0), (1.5, 2.0)]);
    }
}
