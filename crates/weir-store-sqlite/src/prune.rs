//! Retention: readers find the rows that are too old, and the writer deletes them, a few hundred at a time.
//!
//! The file does not shrink; SQLite reuses the free pages.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use weir_core::{DeliveryId, DeliveryState, DestinationId, EventId, Timestamp, retention::Cutoffs};
use weir_store::{
    Prune, PrunePosition, PruneStep, Pruned, StoreResult, delivery_ids_of, first_id,
    rows::{Row as _, state_code},
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::Result,
    sql::{Values, execute, values},
    transaction::Transaction,
};

/// The rows that one step reads and may delete: about 10 ms of the writer's time.
const STEP: usize = 500;

/// A delivery that is too old, with its state when it was read.
#[derive(Debug, Clone, Copy)]
struct OldDelivery {
    id: DeliveryId,
    state: DeliveryState,
    ended_at: Timestamp,
    destination_id: DestinationId,
}

/// The rows that the writer is to delete.
#[derive(Debug, Clone)]
enum PruneBatch {
    Deliveries(Vec<OldDelivery>),
    Events(Vec<EventId>),
}

pub(crate) const DELIVERIES: &str = "
SELECT id, state, updated_at, destination_id FROM deliveries NOT INDEXED WHERE id > ? AND id < ? ORDER BY id LIMIT +?";

pub(crate) const EVENTS: &str = "
SELECT id FROM events INDEXED BY events_id WHERE id > ? AND id < ? ORDER BY id LIMIT +?";

/// Deletes a delivery only if it is unchanged; a replay or a retry may have changed it meanwhile.
pub(crate) const DELETE_DELIVERY: &str = "DELETE FROM deliveries WHERE id = ? AND +state = ? AND updated_at = ?";
pub(crate) const DELETE_ATTEMPTS: &str = "DELETE FROM attempts WHERE delivery_id = ?";
/// Deletes an event that has no deliveries. Delivery ids begin with the millisecond of the event's id.
pub(crate) const DELETE_EVENT: &str = "
DELETE FROM events WHERE id = ?1 AND NOT EXISTS (
    SELECT 1 FROM deliveries d NOT INDEXED WHERE d.id >= ?2 AND d.id < ?3 AND d.event_id = ?1
)";

#[async_trait]
impl Prune for SqliteStore {
    async fn prune_some(&self, cutoffs: &Cutoffs, position: PrunePosition) -> StoreResult<PruneStep> {
        match position {
            PrunePosition::Deliveries(after) => self.prune_deliveries(cutoffs, after).await,
            // Events are in one table, and attempts go with their deliveries.
            PrunePosition::Days(_) | PrunePosition::Keys(_) | PrunePosition::Attempts(_) => {
                Ok(PruneStep::of(Pruned::NOTHING, PrunePosition::Events([0; 16])))
            }
            PrunePosition::Events(after) => self.prune_events(cutoffs, after).await,
        }
    }
}

impl SqliteStore {
    async fn prune_deliveries(&self, cutoffs: &Cutoffs, after: [u8; 16]) -> StoreResult<PruneStep> {
        let Some(before) = cutoffs.deliveries() else { return Ok(PruneStep::of(Pruned::NOTHING, None)) };
        let read = |row: &SqliteRow| {
            Ok(OldDelivery {
                id: row.delivery_id(0)?,
                state: row.state(1)?,
                ended_at: row.time(2)?,
                destination_id: row.destination_id(3)?,
            })
        };
        let found = self.read(DELIVERIES.to_owned(), range(&after, before), read).await?;
        // A full step continues after the last row that it read, whether or not the row is old enough to delete.
        let next = match found.last() {
            Some(last) if found.len() == STEP => PrunePosition::Deliveries(*last.id.as_bytes()),
            _ => PrunePosition::Events([0; 16]),
        };
        // The age counts from the end of a delivery, not from its id. Waiting deliveries have no cutoff.
        let too_old = |old: &OldDelivery| cutoffs.of(old.state).is_some_and(|cutoff| old.ended_at < cutoff);
        let old: Vec<OldDelivery> = found.into_iter().filter(too_old).collect();
        let pruned = if old.is_empty() { Pruned::NOTHING } else { self.delete(PruneBatch::Deliveries(old)).await? };
        Ok(PruneStep::of(pruned, next))
    }

    async fn prune_events(&self, cutoffs: &Cutoffs, after: [u8; 16]) -> StoreResult<PruneStep> {
        let Some(before) = cutoffs.events() else { return Ok(PruneStep::of(Pruned::NOTHING, None)) };
        let found = self.read(EVENTS.to_owned(), range(&after, before), |row| row.event_id(0)).await?;
        let last = found.last().filter(|_| found.len() == STEP);
        let next = last.map(|last| PrunePosition::Events(*last.as_bytes()));
        let pruned = if found.is_empty() { Pruned::NOTHING } else { self.delete(PruneBatch::Events(found)).await? };
        Ok(PruneStep::of(pruned, next))
    }

    async fn delete(&self, batch: PruneBatch) -> StoreResult<Pruned> {
        self.edit(Durable::No, move |transaction| transaction.prune(&batch)).await
    }
}

/// The ids after a given one and before an instant, limited to one step.
fn range(after: &[u8; 16], before: Timestamp) -> Values<'_> {
    values![after, first_id(before.as_millis()), STEP as i64]
}

impl Transaction<'_, '_> {
    fn prune(&mut self, batch: &PruneBatch) -> Result<Pruned> {
        let mut pruned = Pruned::default();
        match batch {
            PruneBatch::Deliveries(old) => {
                for old in old {
                    let values = values![old.id.as_bytes(), state_code(old.state), old.ended_at];
                    // A delivery that has changed since it was read stays, together with its attempts.
                    if execute(self.connection, DELETE_DELIVERY, &values)? == 1 {
                        pruned.deliveries += 1;
                        self.changes.deleted(old.destination_id, old.state, old.ended_at);
                        pruned.attempts += execute(self.connection, DELETE_ATTEMPTS, &values![old.id.as_bytes()])?;
                    }
                }
            }
            PruneBatch::Events(ids) => {
                for id in ids {
                    let (first, beyond) = delivery_ids_of(*id);
                    // An event with deliveries that are not old yet stays.
                    pruned.events += execute(self.connection, DELETE_EVENT, &values![id.as_bytes(), first, beyond])?;
                }
            }
        }
        Ok(pruned)
    }
}
