//! Retention, in this order: old deliveries, some thousands at a time; then day by day what they have left behind, their
//! attempts and events ([`prune_days`](crate::prune_days)).
//!
//! Attempts and events cost most when they are deleted row by row: an index lookup, a write and the work of vacuum for
//! each. They are partitioned by day, so they stay until their whole day is old and go with it.
//!
//! One connection does all steps and holds an advisory lock until it ends. So one process prunes at a time, and another
//! takes over when that connection has ended.

use async_trait::async_trait;
use sqlx::PgConnection;
use tokio::sync::Mutex;
use weir_core::{DeliveryState, retention::Cutoffs};
use weir_store::{
    Prune, PrunePosition, PruneStep, Pruned, StoreResult, first_id,
    rows::{Row as _, state_code},
};

use crate::{
    PostgresStore,
    compact::compact,
    errors::store_error,
    prune_days::{find_day, prune_attempts, prune_events, prune_keys},
    rows::uuid,
    writer::{COMMIT_TIMEOUT, connect, recoverable, within},
};

/// The most deliveries that one step reads. It deletes some or all of them. A step takes about 5 ms in the server, and no
/// other statement waits for it. On a busy machine each step also waits for its turn on a processor, twice: with shorter
/// steps that is most of its time.
const STEP: i64 = 5_000;

/// The connection that prunes, if this process holds the lock.
pub(crate) type Pruning = Mutex<Option<PgConnection>>;

const TAKE_LOCK: &str = "SELECT pg_try_advisory_lock(hashtext('weir.prune'))";

/// The deliveries of a step are a range of ids, so one scan of the index finds them. The state is checked under the row
/// lock, so a delivery that is sent again meanwhile stays.
pub(crate) const DELETE_DELIVERIES: &str = "
WITH last AS MATERIALIZED (
    -- The last delivery of a full step; none if fewer are left. They may still wait, or have ended lately.
    SELECT id FROM deliveries WHERE id > $1 AND id < $2 ORDER BY id LIMIT 1 OFFSET $3 - 1
), deleted AS (
    -- Delete those that entered their state before its cutoff. For a state without one the cutoff is NULL.
    DELETE FROM deliveries d WHERE d.id > $1 AND d.id < $2 AND d.id <= coalesce((SELECT id FROM last), $2)
        AND d.updated_at < ($4::bigint[])[d.state + 1]
    RETURNING 1
)
SELECT (SELECT count(*) FROM deleted), (SELECT id FROM last)";

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
                PrunePosition::Days(after) => find_day(&mut connection, cutoffs, after, &self.shared).await,
                PrunePosition::Keys(after) => prune_keys(&mut connection, cutoffs, after, &self.shared).await,
                PrunePosition::Events(after) => prune_events(&mut connection, after).await,
                PrunePosition::Attempts(after) => prune_attempts(&mut connection, after, &self.shared).await,
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
}

async fn prune_deliveries(
    connection: &mut PgConnection,
    cutoffs: &Cutoffs,
    after: [u8; 16],
) -> Result<PruneStep, sqlx::Error> {
    let Some(before) = cutoffs.deliveries() else { return Ok(PruneStep::of(Pruned::NOTHING, None)) };
    let row = sqlx::query(DELETE_DELIVERIES)
        .bind(uuid(&after))
        .bind(uuid(&first_id(before.as_millis())))
        .bind(STEP)
        .bind(by_state_code(cutoffs))
        .fetch_one(connection)
        .await?;
    let pruned = Pruned { deliveries: row.count(0)?, ..Pruned::NOTHING };
    Ok(PruneStep::of(pruned, row.optional_id(1)?.map_or(PrunePosition::Days(-1), PrunePosition::Deliveries)))
}

/// The cutoff of each state, at the index of its code; none for a state from which nothing is deleted.
fn by_state_code(cutoffs: &Cutoffs) -> Vec<Option<i64>> {
    let mut times = vec![None; DeliveryState::ALL.len()];
    for state in DeliveryState::ALL {
        times[state_code(state) as usize] = cutoffs.of(state).map(|cutoff| cutoff.as_nanos());
    }
    times
}
