//! Counters and recorded changes of them.

use weir_core::{DeliveryState, DestinationId};

use super::{Corrupt, Row};
use crate::{StateCounts, sql};

/// The columns with a number of deliveries in each state, in the order of the codes of the states; in statements as
/// `state_columns`.
pub(crate) const STATE_COLUMNS: &str =
    "pending, delivering, retrying, delivered, failed, dead, cancelled, superseded, expired";

/// The sums of `STATE_COLUMNS`, in statements as `summed_states`. On PostgreSQL the sum of `bigint` is of another type.
pub(crate) const SUMMED_STATES: &str = "CAST(coalesce(sum(pending), 0) AS bigint),
        CAST(coalesce(sum(delivering), 0) AS bigint),
        CAST(coalesce(sum(retrying), 0) AS bigint),
        CAST(coalesce(sum(delivered), 0) AS bigint),
        CAST(coalesce(sum(failed), 0) AS bigint),
        CAST(coalesce(sum(dead), 0) AS bigint),
        CAST(coalesce(sum(cancelled), 0) AS bigint),
        CAST(coalesce(sum(superseded), 0) AS bigint),
        CAST(coalesce(sum(expired), 0) AS bigint)";

/// Adds the inserted `STATE_COLUMNS` to those of the stored row `t`, in statements as `added_states`.
pub(crate) const ADDED_STATES: &str = "pending = t.pending + excluded.pending,
        delivering = t.delivering + excluded.delivering,
        retrying = t.retrying + excluded.retrying, delivered = t.delivered + excluded.delivered,
        failed = t.failed + excluded.failed, dead = t.dead + excluded.dead,
        cancelled = t.cancelled + excluded.cancelled, superseded = t.superseded + excluded.superseded,
        expired = t.expired + excluded.expired";

/// The waiting deliveries and the dead letters (`dead` or `failed`) of each destination; in statements as
/// `waiting_and_undelivered`. The totals of most destinations have neither, so they are left out before the sums.
pub(crate) const WAITING_AND_UNDELIVERED: &str = "SELECT destination_id,
        CAST(coalesce(sum(pending), 0) + coalesce(sum(retrying), 0) AS bigint) AS waiting,
        CAST(coalesce(sum(dead), 0) + coalesce(sum(failed), 0) AS bigint) AS undelivered
    FROM (
        SELECT destination_id, pending, retrying, dead, failed FROM destination_totals
        WHERE pending <> 0 OR retrying <> 0 OR dead <> 0 OR failed <> 0
        UNION ALL
        SELECT destination_id, pending, retrying, dead, failed FROM count_changes
    ) changes GROUP BY destination_id";

/// The statement that counts the waiting deliveries of all destinations.
pub const ALL_WAITING: &str =
    sql!("SELECT CAST(coalesce(sum(waiting), 0) AS bigint) FROM ({waiting_and_undelivered}) counted");

/// From a destination and its `STATE_COLUMNS`.
pub fn state_counts<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(DestinationId, StateCounts), E> {
    let mut counts = StateCounts::default();
    for (index, state) in DeliveryState::ALL.into_iter().enumerate() {
        // NULL: no recorded change concerns the state.
        let deliveries = row.optional_int(index + 1)?.unwrap_or_default();
        counts.add(state, u64::try_from(deliveries).map_err(|_| Corrupt("a counter"))?);
    }
    Ok((row.destination_id(0)?, counts))
}

/// From three columns: a destination, a state, and the number of its deliveries in this state.
pub fn counted_state<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(DestinationId, DeliveryState, u64), E> {
    Ok((row.destination_id(0)?, row.state(1)?, row.count(2)?))
}
