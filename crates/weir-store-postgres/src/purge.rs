//! A purge in steps: each step reads a part of the waiting deliveries of one destination and cancels those that match.
//! The order of the steps is that of [`weir_store::PurgeScan`].

use sqlx::{Connection as _, PgConnection, Row as _};
use weir_core::{activity::Activity, order::BEHIND, pattern::EventPattern};
use weir_store::{MessageGroup, Purge, PurgePosition, PurgeScan, PurgeStep, rows::Row as _, sql, state_names::Names};

use crate::{activity::record, history::Select, message_groups::advance, rows::uuid};

/// How many deliveries a step reads. Claims of the destination wait for the commit of a step.
const STEP: i64 = 1_000;

/// One step. It reads the waiting deliveries after a position, in due order. Live deliveries and those of replays have
/// a LIMIT each before they are merged, so that the planner cannot sort all of them. It locks the matching ones, skips
/// rows that are already locked, and cancels the locked ones. The lock checks the state again. `d.state + 0` makes the
/// planner look up the deliveries that were read; with `d.state` it could scan all waiting deliveries. The event type
/// is a scalar subquery for the same reason.
const PURGE: &str = "
WITH waiting AS MATERIALIZED (
    -- The next deliveries in due order: live ones and those of replays, each from its section of the index.
    SELECT * FROM (
        (SELECT id, event_id, next_attempt_at FROM deliveries
        WHERE {flow} = $1 AND state IN ({waiting}) AND NOT is_replay
            AND (next_attempt_at, id) > ($2, $3) AND next_attempt_at <= $8
        ORDER BY next_attempt_at, id LIMIT $4)
        UNION ALL
        (SELECT id, event_id, next_attempt_at FROM deliveries
        WHERE {flow} = $1 AND state IN ({waiting}) AND is_replay
            AND (next_attempt_at, id) > ($2, $3) AND next_attempt_at <= $8
        ORDER BY next_attempt_at, id LIMIT $4)
    ) w ORDER BY next_attempt_at, id LIMIT $4
), chosen AS MATERIALIZED (
    -- Lock those that match.
    SELECT d.id FROM waiting w JOIN deliveries d ON d.id = w.id
    WHERE d.state + 0 = ANY($5) AND d.created_at < $6 {of_type}
    FOR UPDATE OF d SKIP LOCKED
), cancelled AS (
    -- Cancel them.
    UPDATE deliveries d SET state = {cancelled}, updated_at = $7 FROM chosen WHERE d.id = chosen.id RETURNING d.ordering_key
)
-- The numbers read and cancelled, the position of the last one read, and the keys of cancelled ones. No row: none waits.
SELECT (SELECT count(*) FROM waiting), (SELECT count(*) FROM cancelled), w.next_attempt_at, w.id,
    (SELECT array_agg(ordering_key) FROM cancelled WHERE ordering_key IS NOT NULL)
FROM waiting w ORDER BY w.next_attempt_at DESC, w.id DESC LIMIT 1";

/// Of any type, of any but the operational types, of one type, and of a prefix.
const OF_ANY_TYPE: Names = &[("of_type", "")];
const NOT_OPERATIONAL: Names = &[("of_type", "AND NOT starts_with({event_type}, 'weir.')"), EVENT_TYPE];
const OF_TYPE: Names = &[("of_type", "AND {event_type} = $9"), EVENT_TYPE];
const OF_PREFIX: Names = &[("of_type", "AND starts_with({event_type}, $9)"), EVENT_TYPE];
const EVENT_TYPE: (&str, &str) = ("event_type", "(SELECT e.event_type FROM events e WHERE e.id = w.event_id)");

macro_rules! purges {
    ($flow:literal) => {
        [
            sql!(PURGE, &[("flow", $flow)], OF_ANY_TYPE),
            sql!(PURGE, &[("flow", $flow)], NOT_OPERATIONAL),
            sql!(PURGE, &[("flow", $flow)], OF_TYPE),
            sql!(PURGE, &[("flow", $flow)], OF_PREFIX),
        ]
    };
}

pub(crate) const PURGES: [&str; 4] = purges!("destination_id");
/// Of the flow of a limit key.
pub(crate) const PURGES_OF_FLOW: [&str; 4] = purges!("flow_id");

/// Counts the deliveries that a purge would cancel. OFFSET 0 makes the event type a lookup per row: otherwise the
/// planner could join all events.
pub(crate) fn count_sql(purge: &Purge) -> Select {
    let of_type = "CROSS JOIN LATERAL (SELECT event_type FROM events WHERE id = d.event_id OFFSET 0) e";
    let events = if purge.event_type.is_some() { of_type } else { "" };
    let mut select = Select::new(format!("SELECT count(*) FROM deliveries d {events}"));
    match purge.flow_id() {
        None => select.compare("d.destination_id =", uuid(purge.destination_id.as_bytes())),
        Some(flow) => select.compare("d.flow_id =", uuid(flow.as_bytes())),
    }
    select.condition(sql!("d.state IN ({waiting})"));
    select.compare("d.state + 0 = ANY(", purge.state_codes());
    select.sql.push(')');
    select.compare("d.created_at <", purge.before.as_nanos());
    if let Some(pattern) = &purge.event_type {
        select.of_type(pattern);
    }
    select
}

/// Makes one step, and records the purge with the number of deliveries that it has cancelled. Earlier steps have
/// cancelled `before`.
pub(crate) async fn purge_some(
    connection: &mut PgConnection,
    purge: &Purge,
    after: Option<PurgePosition>,
    activity: &Activity,
    before: u64,
) -> Result<PurgeStep, sqlx::Error> {
    let mut after = after.unwrap_or(PurgePosition::FIRST_BEHIND);
    let mut transaction = connection.begin().await?;
    let mut scan = scan_some(&mut transaction, purge, after).await?;
    if scan.found_none_behind(after) {
        after = PurgePosition::FIRST_DUE;
        scan = scan_some(&mut transaction, purge, after).await?;
    }
    if scan.cancelled > 0 {
        record(&mut transaction, &activity.clone().with_cancelled(before + scan.cancelled)).await?;
    }
    transaction.commit().await?;
    advance(&scan.freed, &[], connection).await;
    Ok(scan.step(after))
}

async fn scan_some(
    connection: &mut PgConnection,
    purge: &Purge,
    after: PurgePosition,
) -> Result<PurgeScan, sqlx::Error> {
    let &Purge { destination_id, ref event_type, before, now, .. } = purge;
    // A purge of every type looks up no events.
    let flow_id = purge.flow_id();
    let [any, not_operational, exactly, prefixed] = if flow_id.is_some() { PURGES_OF_FLOW } else { PURGES };
    let (sql, of_type) = match event_type {
        None => (any, None),
        Some(EventPattern::Any) => (not_operational, None),
        Some(EventPattern::Exact(exact)) => (exactly, Some(exact)),
        Some(EventPattern::Prefix(prefix)) => (prefixed, Some(prefix)),
    };
    // Deliveries behind heads are read first, and alone. The scan of due deliveries ends before them.
    let last_due = if after.is_behind() { BEHIND.as_nanos() } else { BEHIND.as_nanos() - 1 };
    let mut query = sqlx::query(sql)
        .bind(uuid(flow_id.unwrap_or(destination_id).as_bytes()))
        .bind(after.due.as_nanos())
        .bind(uuid(after.id.as_bytes()))
        .bind(STEP)
        .bind(purge.state_codes())
        .bind(before.as_nanos())
        .bind(now.as_nanos())
        .bind(last_due);
    if let Some(text) = of_type {
        query = query.bind(text);
    }
    // Without a row no delivery waits after the position.
    let Some(row) = query.fetch_optional(connection).await? else { return Ok(PurgeScan::default()) };
    let keys: Option<Vec<String>> = row.try_get_unchecked(4)?;
    let message_groups = keys.into_iter().flatten().map(|ordering_key| MessageGroup { destination_id, ordering_key });
    Ok(PurgeScan {
        last: Some(PurgePosition { due: row.time(2)?, id: row.delivery_id(3)? }),
        is_full: row.int(0)? == STEP,
        cancelled: row.count(1)?,
        // The groups of deliveries that were behind still have their heads.
        freed: message_groups.filter(|_| !after.is_behind()).collect(),
    })
}
