//! Traffic: what happened at each destination, in buckets of time.
//!
//! It is recorded with the changes that it counts: in the transaction that stores new deliveries or settles attempts.
//! Buckets of 10 s are kept for two hours. Then they are added up to minutes, which are kept for a day, and these to
//! hours, which are kept for a year.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use async_trait::async_trait;
use weir_core::{DestinationId, Timestamp};

use crate::StoreResult;

/// The length of a bucket as it is recorded.
pub const TRAFFIC_BUCKET: Duration = Duration::from_secs(10);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3_600);

/// How long buckets of 10 s, of a minute and of an hour are kept: for a chart of an hour, and for one of a day, and an hour
/// more. A destination that is always active has 8,640 buckets of 10 s a day, which is too much to keep.
pub const TRAFFIC_KEPT: [Duration; 3] =
    [Duration::from_secs(2 * 3_600), Duration::from_secs(25 * 3_600), Duration::from_secs(365 * 86_400)];
/// How long histograms of a minute are kept: for a chart of six hours, and an hour more.
pub const HISTOGRAM_MINUTES_KEPT: Duration = Duration::from_secs(7 * 3_600);
/// How long histograms are kept: the longest window of [`TrafficLog::health`] and a day more.
pub(crate) const HISTOGRAMS_KEPT: Duration = Duration::from_secs(8 * 86_400);

/// What happened at a destination in an interval. An attempt belongs to the instant at which it started; one that could
/// not connect belongs to the instant at which it was judged, and is not a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub sends: u64,
    /// Attempts that succeeded, each of a delivery that is delivered now.
    pub delivered: u64,
    /// Attempts that did not succeed, with those of unknown outcome.
    pub failed: u64,
    /// Deliveries that became `dead` or `failed`.
    pub dead: u64,
    /// New deliveries.
    pub arrivals: u64,
    /// By how many deliveries the backlog grew. Negative if it shrank.
    pub backlog_change: i64,
    /// Attempts that the receiver answered with 429; part of `failed`.
    pub throttled: u64,
}

/// The traffic of one destination from an instant until now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecentTraffic {
    pub sum: Traffic,
    /// The beginning of the first bucket with new deliveries.
    pub arriving_since: Option<Timestamp>,
}

/// The traffic of one destination in an interval.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrafficHistory {
    /// The beginnings of the buckets in which something happened, oldest first.
    pub buckets: Vec<(Timestamp, Traffic)>,
    /// The backlog at the end of the interval.
    pub backlog: u64,
}

impl TrafficHistory {
    /// From rows that end with the backlog, which has no time.
    pub fn of_rows(rows: impl IntoIterator<Item = (Option<Timestamp>, Traffic)>) -> Self {
        let mut history = Self::default();
        for (at, traffic) in rows {
            match at {
                Some(at) => history.buckets.push((at, traffic)),
                // A change may be recorded with a time that is a moment too late, so the difference may be below zero.
                None => history.backlog = u64::try_from(traffic.backlog_change).unwrap_or_default(),
            }
        }
        history.buckets.sort_unstable_by_key(|(at, _)| *at);
        history
    }
}

/// How the attempts of a destination went.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    pub traffic: Traffic,
    pub latencies: Latencies,
    /// How many delivered deliveries needed each number of attempts.
    pub attempts: BTreeMap<u32, u64>,
    /// When the last successful attempt was judged, also before the interval.
    pub last_success_at: Option<Timestamp>,
}

/// What a row of a histogram counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Histogram {
    /// Sends by their [`latency_bucket`].
    Latencies = 0,
    /// Delivered deliveries by the number of attempts that they needed.
    Attempts = 1,
}

impl Health {
    /// From the traffic of the whole interval with the time of the last success, and from rows of histograms, each with
    /// its kind, its value and its number.
    pub fn of_rows(
        summed: Option<(Traffic, Option<Timestamp>)>,
        histograms: impl IntoIterator<Item = (i64, u32, u64)>,
    ) -> Self {
        let (traffic, last_success_at) = summed.unwrap_or_default();
        let mut health = Self { traffic, last_success_at, ..Self::default() };
        for (kind, value, n) in histograms {
            if kind == Histogram::Latencies as i64 {
                *health.latencies.0.entry(value).or_default() += n;
            } else {
                *health.attempts.entry(value).or_default() += n;
            }
        }
        health
    }
}

/// The ratio of the ends of a bucket of latencies. A value is known to within (1.2 - 1) / (1.2 + 1) = 9.1 %.
const GROWTH: f64 = 1.2;

/// The bucket of a latency. The first has latencies up to 1 ms, each other those up to 1.2 times the bucket before.
pub fn latency_bucket(ms: u32) -> u16 {
    // The largest latency has bucket 122, so the number fits.
    if ms <= 1 { 0 } else { (f64::from(ms).ln() / GROWTH.ln()).ceil() as u16 }
}

/// Latencies, counted by [`latency_bucket`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Latencies(pub BTreeMap<u32, u64>);

impl Latencies {
    /// From rows with the beginning of a bucket, a [`latency_bucket`] and a number of sends.
    pub fn of_rows(rows: impl IntoIterator<Item = (Timestamp, u32, u64)>) -> Vec<(Timestamp, Self)> {
        let mut buckets: BTreeMap<Timestamp, Self> = BTreeMap::new();
        for (at, value, n) in rows {
            *buckets.entry(at).or_default().0.entry(value).or_default() += n;
        }
        buckets.into_iter().collect()
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The average in milliseconds, within 10 %; `None` without sends.
    pub fn mean(&self) -> Option<f64> {
        let sum: f64 = self.0.iter().map(|(&bucket, &n)| middle(bucket) * n as f64).sum();
        (self.total() > 0).then(|| sum / self.total() as f64)
    }

    /// The latency in milliseconds that `share` of the sends did not exceed, within 10 %; `None` without sends.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        let wanted = (share * self.total() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.0.iter().find_map(|(&bucket, &n)| {
            seen += n;
            (seen >= wanted).then(|| middle(bucket))
        })
    }
}

/// The value that stands for a bucket: equally far from both ends, relative to them.
fn middle(bucket: u32) -> f64 {
    let upper = GROWTH.powi(bucket as i32);
    if bucket == 0 { 1.0 } else { 2.0 * upper / (GROWTH + 1.0) }
}

#[async_trait]
pub trait TrafficLog: Send + Sync {
    /// The traffic of a destination in `[from, to)`, in buckets of `step`. All three are multiples of
    /// [`TRAFFIC_BUCKET`]; the step must be kept for the whole interval. One statement reads traffic and backlog.
    async fn traffic(
        &self,
        id: DestinationId,
        from: Timestamp,
        to: Timestamp,
        step: Duration,
    ) -> StoreResult<TrafficHistory>;

    /// The traffic since `from`, rounded down to [`TRAFFIC_BUCKET`], of every destination that had any. One statement,
    /// which reads a row for each destination and bucket.
    async fn recent_traffic(&self, from: Timestamp) -> StoreResult<HashMap<DestinationId, RecentTraffic>>;

    /// The latencies of the sends of a destination in `[from, to)`, in buckets of `step`, which is [`MINUTE`] or [`HOUR`] and
    /// divides `from`; earliest first, without the buckets in which nothing was sent. Rows that are added up to hours count
    /// in the bucket in which their hour begins.
    async fn latencies(
        &self,
        id: DestinationId,
        from: Timestamp,
        to: Timestamp,
        step: Duration,
    ) -> StoreResult<Vec<(Timestamp, Latencies)>>;

    /// The traffic of some destinations since `from`, in buckets of `step`, oldest first: of those that had any. `from` and
    /// `step` are multiples of [`TRAFFIC_BUCKET`]. One statement, which reads no rows of other destinations.
    async fn traffic_of(
        &self,
        ids: &[DestinationId],
        from: Timestamp,
        step: Duration,
    ) -> StoreResult<HashMap<DestinationId, Vec<(Timestamp, Traffic)>>>;

    /// The traffic of all destinations in `[from, to)`, in buckets of `step`, added up for each tenant, also of deleted
    /// destinations. All three are multiples of [`TRAFFIC_BUCKET`]. One statement, which reads a row for each
    /// destination and bucket, so ask for a few minutes only.
    async fn traffic_by_tenant(
        &self,
        from: Timestamp,
        to: Timestamp,
        step: Duration,
    ) -> StoreResult<Vec<(Timestamp, String, Traffic)>>;

    /// How the attempts of a destination went since `from`, rounded down to a minute.
    async fn health(&self, id: DestinationId, from: Timestamp) -> StoreResult<Health>;

    /// One step of the retention of traffic: adds up old buckets to longer ones, or deletes very old ones. Returns
    /// whether more is to do. Each step is a short transaction.
    async fn roll_up_traffic(&self, now: Timestamp) -> StoreResult<bool>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_within_a_tenth_of_the_value_of_its_bucket() {
        for ms in (1..2_000).chain((2_000..4_000_000).step_by(997)).chain([u32::MAX]) {
            let shown = middle(latency_bucket(ms).into());
            let error = (shown - f64::from(ms)).abs() / f64::from(ms);
            assert!(error < 0.1, "{ms} ms is shown as {shown} ms");
        }
        assert_eq!(latency_bucket(0), 0);
    }

    #[test]
    fn percentiles_count_sends_from_the_fastest() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(0.5), None);
        for ms in 1..=100_u32 {
            *latencies.0.entry(latency_bucket(ms * 10).into()).or_default() += 1;
        }
        for (share, expected) in [(0.5, 500.0), (0.95, 950.0), (0.99, 990.0), (0.0, 10.0), (1.0, 1_000.0)] {
            let shown = latencies.percentile(share).unwrap();
            assert!((shown - expected).abs() / expected < 0.1, "{share}: {shown}");
        }
    }

    #[test]
    fn the_row_without_a_time_is_the_backlog() {
        let sent = |sends| Traffic { sends, ..Traffic::default() };
        let left = |backlog_change| Traffic { backlog_change, ..Traffic::default() };
        let [early, late] = [10, 20].map(Timestamp::from_secs);
        let history = TrafficHistory::of_rows([(Some(late), sent(2)), (None, left(7)), (Some(early), sent(1))]);
        assert_eq!(history, TrafficHistory { buckets: vec![(early, sent(1)), (late, sent(2))], backlog: 7 });
        assert_eq!(TrafficHistory::of_rows([(None, left(-1))]).backlog, 0);
    }
}
