//! Retention, in this order: old deliveries with their attempts, two thousand at a time; whole days without
//! deliveries; and on the remaining days, the events without deliveries.
//!
//! One connection does all steps and holds an advisory lock until it ends. So one process prunes at a time, and another
//! takes over when that connection has ended.

use async_trait::async_trait;
use sqlx::{PgConnection, postgres::PgRow};
use tokio::sync::Mutex;
use weir_core::{DeliveryState, retention::Cutoffs};
use weir_store::{
    Prune, PrunePosition, PruneStep, Pruned, StoreResult, first_id,
    rows::{Row as _, state_code},
};

use crate::{
    PostgresStore,
    compact::compact,
    errors::{is_in_use, store_error},
    partitions::{Day, MILLIS_PER_DAY, day_of, day_of_id},
    rows::{Read, uuid},
    writer::{COMMIT_TIMEOUT, connect, recoverable, within},
};

/// The most rows that one step reads. It deletes some or all of them. A step takes about 9 ms in the server, and no other
/// statement waits for it. On a busy machine each step also waits for its turn on a processor, twice: with 500 rows in a
/// step that was most of its time.
const STEP: i64 = 2_000;

/// The connection that prunes, if this process holds the lock.
pub(crate) type Pruning = Mutex<Option<PgConnection>>;

const TAKE_LOCK: &str = "SELECT pg_try_advisory_lock(hashtext('weir.prune'))";

/// The state is checked under the row lock, so a delivery that is sent again meanwhile stays.
pub(crate) const DELETE_DELIVERIES: &str = "
WITH old AS MATERIALIZED (
    -- The next deliveries by id. They may still wait, or have ended lately.
    SELECT id FROM deliveries WHERE id > $1 AND id < $2 ORDER BY id LIMIT $3
), deleted AS (
    -- Delete those that entered their state before its cutoff. For a state without one the cutoff is NULL.
    DELETE FROM deliveries d USING old WHERE d.id = old.id AND d.updated_at < (
        SELECT c.cutoff FROM unnest($4::smallint[], $5::bigint[]) AS c (state, cutoff) WHERE c.state = d.state
    )
    RETURNING d.id
), attempts AS (
    -- The attempts of exactly these.
    DELETE FROM attempts a USING deleted WHERE a.delivery_id = deleted.id RETURNING 1
)
SELECT (SELECT count(*) FROM old), (SELECT count(*) FROM deleted), (SELECT count(*) FROM attempts),
    (SELECT id FROM old ORDER BY id DESC LIMIT 1)";

/// The remaining deliveries of an event have ids of its millisecond.
pub(crate) const DELETE_EVENTS: &str = "
WITH old AS MATERIALIZED (
    -- The next events, with the first and the last id that their deliveries can have.
    SELECT id, (left(id::text, 13) || '-0000-0000-000000000000')::uuid AS first,
        (left(id::text, 13) || '-ffff-ffff-ffffffffffff')::uuid AS last
    FROM events WHERE id > $1 AND id < $2 ORDER BY id LIMIT $3
), childless AS MATERIALIZED (
    -- Those of which no delivery is left.
    SELECT id FROM old WHERE NOT EXISTS (
        SELECT FROM deliveries d WHERE d.id >= old.first AND d.id <= old.last AND d.event_id = old.id
    )
), deleted AS (
    -- Delete them, with their idempotency keys.
    DELETE FROM events e USING childless WHERE e.id = childless.id
    RETURNING e.id, e.tenant, e.idempotency_key
), keys AS (
    DELETE FROM idempotency_keys k USING deleted
    WHERE k.tenant = deleted.tenant AND k.idempotency_key = deleted.idempotency_key AND k.event_id = deleted.id
)
SELECT (SELECT count(*) FROM old), (SELECT count(*) FROM deleted), (SELECT id FROM old ORDER BY id DESC LIMIT 1)";

/// Deletes the idempotency keys of a day before its partitions are dropped.
pub(crate) const DELETE_KEYS: &str = "
WITH old AS MATERIALIZED (
    SELECT id, tenant, idempotency_key FROM events
    WHERE id > $1 AND id < $2 AND idempotency_key IS NOT NULL ORDER BY id LIMIT $3
), keys AS (
    DELETE FROM idempotency_keys k USING old
    WHERE k.tenant = old.tenant AND k.idempotency_key = old.idempotency_key AND k.event_id = old.id
)
SELECT (SELECT count(*) FROM old), (SELECT id FROM old ORDER BY id DESC LIMIT 1)";

/// The first day between two days that has a partition.
const NEXT_DAY: &str = "
SELECT min(day) FROM (
    SELECT to_date(right(c.relname, 8), 'YYYYMMDD') - DATE '1970-01-01' AS day
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent IN ('events'::regclass, 'attempts'::regclass)
) days WHERE day > $1 AND day < $2";

const DAY_HAS_DELIVERIES: &str =
    "SELECT EXISTS (SELECT FROM deliveries WHERE id >= first_id_of_day($1) AND id < first_id_of_day($1 + 1))";

const DROP_DAY: &str = "SELECT drop_partitions($1)";

#[async_trait]
impl Prune for PostgresStore {
    async fn prune_some(&self, cutoffs: &Cutoffs, position: PrunePosition) -> StoreResult<PruneStep> {
        self.try_prune(cutoffs, position).await.map_err(|error| store_error(&error))
    }

    async fn compact(&self) -> StoreResult<u64> {
        // Only the process that prunes has the connection. It is closed afterwards, because its settings have changed;
        // the next pass takes the lock again.
        let Some(mut connection) = self.pruning.lock().await.take() else { return Ok(0) };
        compact(&mut connection).await.map_err(|error| store_error(&error))
    }
}

impl PostgresStore {
    async fn try_prune(&self, cutoffs: &Cutoffs, position: PrunePosition) -> Result<PruneStep, sqlx::Error> {
        let mut pruning = self.pruning.lock().await;
        // The connection is taken out, so that a step that fails or is dropped closes it and so releases the lock.
        let mut connection = match pruning.take() {
            Some(connection) => connection,
            None => connect(&recoverable(&self.pool.connect_options())).await?,
        };
        let done = within(COMMIT_TIMEOUT, async {
            // The session that holds the lock gets it again, so this also checks that the connection still works.
            let is_holder = sqlx::query(TAKE_LOCK).fetch_one(&mut connection).await?.flag(0)?;
            if !is_holder {
                return Ok(None);
            }
            // Make one step of the phase that the position names.
            let step = match position {
                PrunePosition::Deliveries(after) => prune_deliveries(&mut connection, cutoffs, after).await,
                PrunePosition::Days(after) => find_day(&mut connection, cutoffs, after).await,
                PrunePosition::Keys(after) => self.drop_day(&mut connection, after).await,
                PrunePosition::Events(after) => prune_events(&mut connection, cutoffs, after).await,
            };
            step.map(Some)
        })
        .await?;
        // Another process holds the lock and prunes. This connection is closed.
        let Some(done) = done else { return Ok(PruneStep::of(Pruned::NOTHING, None)) };
        // Keep the connection, and with it the lock, for the next step.
        *pruning = Some(connection);
        Ok(done)
    }

    /// Deletes the idempotency keys of a day without deliveries, step by step, and then drops the day.
    async fn drop_day(&self, connection: &mut PgConnection, after: [u8; 16]) -> Result<PruneStep, sqlx::Error> {
        let day = day_of_id(&after);
        let row = sqlx::query(DELETE_KEYS)
            .bind(uuid(&after))
            .bind(uuid(&first_id_of(day + 1)))
            .bind(STEP)
            .fetch_one(&mut *connection)
            .await?;
        // A full step: more keys may follow.
        if let Some(last) = last_of(&row, 1)? {
            return Ok(PruneStep::of(Pruned::NOTHING, PrunePosition::Keys(last)));
        }
        // No key names the day any more. If an event of that day still comes, ingest makes its partitions again.
        let dropped = sqlx::query(DROP_DAY).bind(day).execute(connection).await;
        self.shared.partitions.forget();
        match dropped {
            Ok(_) => Ok(PruneStep::of(Pruned { days: 1, ..Pruned::NOTHING }, PrunePosition::Days(day))),
            // Another session uses the tables. A later pass drops the day.
            Err(error) if is_in_use(&error) => Ok(PruneStep::of(Pruned::NOTHING, PrunePosition::Days(day))),
            Err(error) => Err(error),
        }
    }
}

/// Finds the next day that is old as a whole, and whether it still has deliveries.
async fn find_day(connection: &mut PgConnection, cutoffs: &Cutoffs, after: Day) -> Result<PruneStep, sqlx::Error> {
    let Some(before) = cutoffs.events() else { return Ok(PruneStep::of(Pruned::NOTHING, None)) };
    let row = sqlx::query(NEXT_DAY).bind(after).bind(day_of(before)).fetch_one(&mut *connection).await?;
    let day: Option<Day> = sqlx::Row::try_get_unchecked(&row, 0)?;
    // No such day is left: the events of the other days are deleted row by row.
    let Some(day) = day else { return Ok(PruneStep::of(Pruned::NOTHING, PrunePosition::Events([0; 16]))) };
    let has_deliveries = sqlx::query(DAY_HAS_DELIVERIES).bind(day).fetch_one(connection).await?.flag(0)?;
    // A day that still has deliveries is skipped. For any other day the idempotency keys are deleted first.
    let next = if has_deliveries { PrunePosition::Days(day) } else { PrunePosition::Keys(first_id_of(day)) };
    Ok(PruneStep::of(Pruned::NOTHING, next))
}

async fn prune_deliveries(
    connection: &mut PgConnection,
    cutoffs: &Cutoffs,
    after: [u8; 16],
) -> Result<PruneStep, sqlx::Error> {
    let Some(before) = cutoffs.deliveries() else { return Ok(PruneStep::of(Pruned::NOTHING, None)) };
    // The cutoffs of the states from which deliveries are deleted.
    let of_states = DeliveryState::ALL.into_iter().filter_map(|state| Some((state_code(state), cutoffs.of(state)?)));
    let (states, times): (Vec<i16>, Vec<i64>) = of_states.map(|(state, cutoff)| (state, cutoff.as_nanos())).unzip();
    let row = sqlx::query(DELETE_DELIVERIES)
        .bind(uuid(&after))
        .bind(uuid(&first_id(before.as_millis())))
        .bind(STEP)
        .bind(states)
        .bind(times)
        .fetch_one(connection)
        .await?;
    let pruned = Pruned { deliveries: row.count(1)?, attempts: row.count(2)?, ..Pruned::NOTHING };
    Ok(PruneStep::of(pruned, last_of(&row, 3)?.map_or(PrunePosition::Days(-1), PrunePosition::Deliveries)))
}

async fn prune_events(
    connection: &mut PgConnection,
    cutoffs: &Cutoffs,
    after: [u8; 16],
) -> Result<PruneStep, sqlx::Error> {
    let Some(before) = cutoffs.events() else { return Ok(PruneStep::of(Pruned::NOTHING, None)) };
    let query = sqlx::query(DELETE_EVENTS).bind(uuid(&after)).bind(uuid(&first_id(before.as_millis()))).bind(STEP);
    let row = query.fetch_one(connection).await?;
    Ok(PruneStep::of(Pruned { events: row.count(1)?, ..Pruned::NOTHING }, last_of(&row, 2)?.map(PrunePosition::Events)))
}

/// The last id that a step has read; `None` if it read fewer rows than its limit, so that nothing remains.
fn last_of(row: &PgRow, column: usize) -> Read<Option<[u8; 16]>> {
    if row.int(0)? < STEP { Ok(None) } else { row.optional_id(column) }
}

fn first_id_of(day: Day) -> [u8; 16] {
    first_id(i64::from(day) * MILLIS_PER_DAY)
}
