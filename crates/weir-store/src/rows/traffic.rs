//! Traffic and its histograms.

use weir_core::{DestinationId, Timestamp};

use super::{Corrupt, Row};
use crate::{RecentTraffic, Traffic};

/// The columns of a [`Traffic`], in statements as `traffic_columns`.
pub(crate) const TRAFFIC_COLUMNS: &str = "sends, delivered, failed, dead, arrivals, backlog_change, throttled";

/// The sums of `TRAFFIC_COLUMNS`, in statements as `summed_traffic`. On PostgreSQL the sum of `bigint` is of another type.
pub(crate) const SUMMED_TRAFFIC: &str = "CAST(coalesce(sum(sends), 0) AS bigint),
        CAST(coalesce(sum(delivered), 0) AS bigint), CAST(coalesce(sum(failed), 0) AS bigint),
        CAST(coalesce(sum(dead), 0) AS bigint), CAST(coalesce(sum(arrivals), 0) AS bigint),
        CAST(coalesce(sum(backlog_change), 0) AS bigint), CAST(coalesce(sum(throttled), 0) AS bigint)";

/// Adds the inserted `TRAFFIC_COLUMNS` to those of the stored row `t`, in statements as `added_traffic`.
pub(crate) const ADDED_TRAFFIC: &str = "sends = t.sends + excluded.sends, delivered = t.delivered + excluded.delivered,
        failed = t.failed + excluded.failed, dead = t.dead + excluded.dead, arrivals = t.arrivals + excluded.arrivals,
        backlog_change = t.backlog_change + excluded.backlog_change, throttled = t.throttled + excluded.throttled";

/// The recorded traffic, folded or not, in statements as `all_traffic`: the columns `of`, and `TRAFFIC_COLUMNS`.
/// `buckets` is the FROM clause for the buckets, and `which` the WHERE clause for the changes that are not folded yet.
pub(crate) const ALL_TRAFFIC: &str = "SELECT {of}, {traffic_columns} FROM {buckets}
        UNION ALL
        SELECT {of}, sends, delivered, failed, dead, 0 AS arrivals, 0 AS backlog_change, throttled FROM traffic_changes {which}
        UNION ALL
        SELECT {of}, 0, 0, 0, 0, coalesce(arrivals, 0), coalesce(pending, 0) + coalesce(retrying, 0), 0
        FROM count_changes {which}";

/// From the `TRAFFIC_COLUMNS`, beginning with `column`.
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

/// From the beginning of a bucket, or NULL, and the `TRAFFIC_COLUMNS`.
pub fn traffic_at<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(Option<Timestamp>, Traffic), E> {
    Ok((row.optional_time(0)?, traffic(row, 1)?))
}

/// From a destination, the `TRAFFIC_COLUMNS`, and the beginning of the first bucket with arrivals, or NULL.
pub fn recent_traffic<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(DestinationId, RecentTraffic), E> {
    Ok((row.destination_id(0)?, RecentTraffic { sum: traffic(row, 1)?, arriving_since: row.optional_time(8)? }))
}

/// From the beginning of a bucket, a latency and a number of sends.
pub fn latency<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(Timestamp, u32, u64), E> {
    Ok((row.time(0)?, row.small(1)?, row.count(2)?))
}

/// From a destination, the beginning of a bucket and the `TRAFFIC_COLUMNS`.
pub fn traffic_of_destination_at<E: From<Corrupt>>(
    row: &impl Row<E>,
) -> Result<(DestinationId, Timestamp, Traffic), E> {
    Ok((row.destination_id(0)?, row.time(1)?, traffic(row, 2)?))
}

/// From the beginning of a bucket, a tenant and the `TRAFFIC_COLUMNS`.
pub fn traffic_of_tenant<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(Timestamp, String, Traffic), E> {
    Ok((row.time(0)?, row.text(1)?, traffic(row, 2)?))
}

/// From the `TRAFFIC_COLUMNS` and the time of the last success, or NULL.
pub fn traffic_and_last_success<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(Traffic, Option<Timestamp>), E> {
    Ok((traffic(row, 0)?, row.optional_time(7)?))
}

/// From three columns: the kind of a histogram, a value, and how often it occurred.
pub fn histogram<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(i64, u32, u64), E> {
    Ok((row.int(0)?, row.small(1)?, row.count(2)?))
}
