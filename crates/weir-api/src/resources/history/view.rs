//! The JSON view of a history.

use serde::Serialize;
use utoipa::ToSchema;
use weir_core::{Period, Timestamp, limit::MinInterval};
use weir_store::{LimitChange, Traffic, TrafficHistory};

use super::{Buckets, windows::Fullest};
use crate::{readers::texts::PeriodText, resources::destinations::rates::RateLimitView};

/// What happened at a destination in each bucket of a range.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = History)]
pub(crate) struct HistoryView {
    /// The length of a bucket.
    step: &'static str,
    /// The beginning of the first bucket.
    #[schema(value_type = String, format = DateTime)]
    from: Timestamp,
    /// The end of the last bucket.
    #[schema(value_type = String, format = DateTime)]
    to: Timestamp,
    data: Vec<Bucket>,
    /// The periods whose fullest windows are not computed, because the range and the window before it have more than
    /// 200,000 sends, or because retention has deleted some of them. `max_window` has no entries of them. A shorter
    /// range, or the audit, shows them.
    #[schema(value_type = Vec<PeriodText>)]
    windows_left_out: Vec<&'static str>,
    /// The limits at the beginning of the range, if there were any, and each change of them in the range.
    limit_changes: Vec<LimitChangeView>,
}

/// One bucket.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HistoryBucket)]
struct Bucket {
    /// The beginning of the bucket.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Sends that started.
    sends: u64,
    /// Attempts that succeeded.
    delivered: u64,
    /// Attempts that did not succeed, including those of unknown outcome and those that could not connect.
    failed: u64,
    /// New deliveries.
    arrivals: u64,
    /// Deliveries that wait at the end of the bucket.
    backlog: u64,
    /// The fullest window of each limit that is in force in the bucket, the shortest period first.
    max_window: Vec<MaxWindow>,
}

/// The fullest window of one period that ends in a bucket.
#[derive(Debug, Serialize, ToSchema)]
struct MaxWindow {
    #[schema(value_type = PeriodText)]
    period: &'static str,
    /// The most sends in a window of this length, wherever it begins, that ends in the bucket.
    sends: u64,
    /// The most sends that the limits allow in such a window: `limit + burst − 1` of the largest limit in force in it.
    limit: u64,
}

/// Limits that apply from an instant on.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LimitChange)]
struct LimitChangeView {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    rate_limits: Vec<RateLimitView>,
    /// Null: none.
    #[schema(minimum = 1, maximum = 60_000)]
    min_interval_ms: Option<u32>,
}

impl HistoryView {
    pub(super) fn new(
        step: &'static str,
        buckets: Buckets,
        history: &TrafficHistory,
        fullest: Fullest,
        changes: &[LimitChange],
    ) -> Self {
        let mut traffic = vec![Traffic::default(); buckets.count()];
        for (at, recorded) in &history.buckets {
            traffic[buckets.index_of(*at)] = *recorded;
        }
        // The backlog at the end is known. Going back, each bucket undoes its change.
        let mut backlogs = vec![0; traffic.len()];
        let mut backlog = i64::try_from(history.backlog).unwrap_or(i64::MAX);
        for (at_end, traffic) in backlogs.iter_mut().zip(&traffic).rev() {
            *at_end = u64::try_from(backlog).unwrap_or_default();
            backlog -= traffic.backlog_change;
        }
        let buckets_of = |(index, at): (usize, Timestamp)| {
            let Traffic { sends, delivered, failed, arrivals, .. } = traffic[index];
            let max_window = fullest.in_bucket(index).map(|(period, sends, limit)| MaxWindow {
                period: period.as_str(),
                sends,
                limit,
            });
            Bucket {
                at,
                sends,
                delivered,
                failed,
                arrivals,
                backlog: backlogs[index],
                max_window: max_window.collect(),
            }
        };
        Self {
            step,
            from: buckets.from,
            to: buckets.to,
            data: buckets.starts().enumerate().map(buckets_of).collect(),
            windows_left_out: fullest.left_out.iter().copied().map(Period::as_str).collect(),
            limit_changes: changes_in(changes, buckets),
        }
    }
}

/// The changes of a range, after the limits at its beginning.
fn changes_in(changes: &[LimitChange], buckets: Buckets) -> Vec<LimitChangeView> {
    let first = changes.partition_point(|change| change.at <= buckets.from).saturating_sub(1);
    let in_range = changes[first..].iter().take_while(|change| change.at < buckets.to);
    let view = |change: &LimitChange| LimitChangeView {
        at: change.at,
        rate_limits: change.limits.as_slice().iter().map(RateLimitView::from).collect(),
        min_interval_ms: change.limits.min_interval().map(MinInterval::as_millis),
    };
    in_range.map(view).collect()
}
