//! Traffic and its histograms.

use weir_core::{DestinationId, Timestamp};

use super::{Corrupt, Row};
use crate::{RecentTraffic, Traffic};

/// The columns of a [`Traffic`].
#[macro_export]
macro_rules! traffic_columns {
    () => {
        "sends, delivered, failed, dead, arrivals, backlog_change, throttled"
    };
}

/// The sums of [`traffic_columns!`]. On PostgreSQL the sum of `bigint` is of another type.
#[macro_export]
macro_rules! summed_traffic {
    () => {
        "CAST(coalesce(sum(sends), 0) AS bigint), CAST(coalesce(sum(delivered), 0) AS bigint),
        CAST(coalesce(sum(failed), 0) AS bigint), CAST(coalesce(sum(dead), 0) AS bigint),
        CAST(coalesce(sum(arrivals), 0) AS bigint), CAST(coalesce(sum(backlog_change), 0) AS bigint),
        CAST(coalesce(sum(throttled), 0) AS bigint)"
    };
}

/// Adds the inserted [`traffic_columns!`] to those of the stored row `t`.
#[macro_export]
macro_rules! added_traffic {
    () => {
        "sends = t.sends + excluded.sends, delivered = t.delivered + excluded.delivered,
        failed = t.failed + excluded.failed, dead = t.dead + excluded.dead, arrivals = t.arrivals + excluded.arrivals,
        backlog_change = t.backlog_change + excluded.backlog_change, throttled = t.throttled + excluded.throttled"
    };
}

/// The traffic in the changes that are not folded yet: some columns and [`traffic_columns!`]. `$attempts` is the WHERE
/// clause for `traffic_changes`, and `$counts` that for `count_changes`.
#[macro_export]
macro_rules! traffic_of_changes {
    ($columns:literal, $attempts:literal, $counts:literal) => {
        concat!(
            "SELECT ",
            $columns,
            ", sends, delivered, failed, dead, 0 AS arrivals, 0 AS backlog_change, throttled FROM traffic_changes ",
            $attempts,
            " UNION ALL SELECT ",
            $columns,
            ", 0, 0, 0, 0, coalesce(arrivals, 0), coalesce(pending, 0) + coalesce(retrying, 0), 0
            FROM count_changes ",
            $counts
        )
    };
}

/// From the [`traffic_columns!`], beginning with `column`.
fn traffic<E: From<Corrupt>>(row: &impl Row<E>, column: usize) -> Result<Traffic, E> {
    Ok(Traffic {
        sends: row.count(column)?,
        delivered: row.count(column + 1)?,
        failed: row.count(column + 2)?,
        dead: row.count(column + 3)?,
        arrivals: row.count(column + 4)?,
        backlog_change: row.int(column + 5)?,
        throttled: row.count(column + 6)?,
    })
}

/// From the beginning of a bucket, or NULL, and the [`traffic_columns!`].
pub fn traffic_at<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(Option<Timestamp>, Traffic), E> {
    Ok((row.optional_time(0)?, traffic(row, 1)?))
}

/// From a destination, the [`traffic_columns!`], and the beginning of the first bucket with arrivals, or NULL.
pub fn recent_traffic<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(DestinationId, RecentTraffic), E> {
    Ok((row.destination_id(0)?, RecentTraffic { sum: traffic(row, 1)?, arriving_since: row.optional_time(8)? }))
}

/// From the beginning of a bucket, a latency and a number of sends.
pub fn latency<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(Timestamp, u32, u64), E> {
    Ok((row.time(0)?, row.small(1)?, row.count(2)?))
}

/// From a destination, the beginning of a bucket and the [`traffic_columns!`].
pub fn traffic_of_destination_at<E: From<Corrupt>>(
    row: &impl Row<E>,
) -> Result<(DestinationId, Timestamp, Traffic), E> {
    Ok((row.destination_id(0)?, row.time(1)?, traffic(row, 2)?))
}

/// From the beginning of a bucket, a tenant and the [`traffic_columns!`].
pub fn traffic_of_tenant<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(Timestamp, String, Traffic), E> {
    Ok((row.time(0)?, row.text(1)?, traffic(row, 2)?))
}

/// From the [`traffic_columns!`] and the time of the last success, or NULL.
pub fn traffic_and_last_success<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(Traffic, Option<Timestamp>), E> {
    Ok((traffic(row, 0)?, row.optional_time(7)?))
}

/// From three columns: the kind of a histogram, a value, and how often it occurred.
pub fn histogram<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(i64, u32, u64), E> {
    Ok((row.int(0)?, row.small(1)?, row.count(2)?))
}
