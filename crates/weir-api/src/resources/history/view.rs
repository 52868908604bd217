//! The JSON view of a history.

use weir_api_types as types;
use weir_core::{
    Timestamp,
    limit::{MinInterval, Unit},
};
use weir_store::{LimitChange, Traffic, TrafficHistory};

use super::{
    Buckets,
    windows::{Errors, Fullest},
};
use crate::resources::destinations::rates;

pub(super) fn view(
    step: &'static str,
    buckets: Buckets,
    history: &TrafficHistory,
    (fullest, errors): (Fullest, &Errors),
    latencies: Vec<types::HistoryLatency>,
    changes: &[LimitChange],
) -> types::History {
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
        let max_window = fullest.in_bucket(index).map(|((period, unit), sends, limit)| types::MaxWindow {
            period: period.to_string(),
            unit: (unit == Unit::Cost).then(|| unit.as_str().to_owned()),
            sends,
            limit,
        });
        types::HistoryBucket {
            at,
            sends,
            delivered,
            failed,
            arrivals,
            backlog: backlogs[index],
            max_window: max_window.collect(),
            errors: errors.in_bucket(index),
        }
    };
    types::History {
        step: step.to_owned(),
        from: buckets.from,
        to: buckets.to,
        data: buckets.starts().enumerate().map(buckets_of).collect(),
        windows_left_out: fullest.left_out.iter().map(|period| period.to_string()).collect(),
        errors_left_out: errors.are_left_out(),
        latencies,
        limit_changes: changes_in(changes, buckets),
    }
}

/// The changes of a range, after the limits at its beginning.
pub(crate) fn changes_in(changes: &[LimitChange], buckets: Buckets) -> Vec<types::LimitChange> {
    let first = changes.partition_point(|change| change.at <= buckets.from).saturating_sub(1);
    let in_range = changes[first..].iter().take_while(|change| change.at < buckets.to);
    let view = |change: &LimitChange| types::LimitChange {
        at: change.at,
        rate_limits: change.limits.as_slice().iter().map(rates::view).collect(),
        min_interval_ms: change.limits.min_interval().map(MinInterval::as_millis),
    };
    in_range.map(view).collect()
}
