//! The scheduler's side: claims of many destinations in one statement, releases, recovery, and what the sweep asks.

use std::collections::HashMap;

use async_trait::async_trait;
use rusqlite::Row;
use sqlx::sqlite::SqliteRow;
use weir_core::{
    AttemptId, DestinationId, Timestamp,
    claim::Claim,
    delivery::{Attempt, AttemptOutcome},
    outcome::Verdict,
};
use weir_store::{
    AttemptResult, ClaimRequest, Claims, DueDestination, Outbox, Recovered, SendHistory, Settlement, StoreResult,
};

use crate::{
    SqliteStore,
    error::Result,
    rows::{count, delivery_id, destination_id, int, optional_time, small, time},
    sql::{Batch, MAX_ROWS, Values, execute, fetch, padded, query},
    writer::{Operation, Recovery, Release, Transaction},
};

#[async_trait]
impl Outbox for SqliteStore {
    async fn claim(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> StoreResult<Vec<Claims>> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        self.ask((requests, now), Operation::Claim).await
    }

    async fn release(&self, claims: Vec<Claim>, now: Timestamp) -> StoreResult<u64> {
        if claims.is_empty() {
            return Ok(0);
        }
        self.ask((claims, now), Operation::Release).await
    }

    async fn due_destinations(
        &self,
        before: Timestamp,
        after: Option<DestinationId>,
        limit: u32,
    ) -> StoreResult<Vec<DueDestination>> {
        let mut values = Values::default();
        // The empty blob sorts before every id.
        let after = after.as_ref().map_or(&[][..], |id| id.as_bytes());
        values.blob(after).int(before.as_nanos()).int(limit.into());
        let due = |row: &SqliteRow| Ok(DueDestination { destination_id: destination_id(row, 0)?, due: time(row, 1)? });
        Ok(fetch(&self.readers, DUE_DESTINATIONS, values, due).await?)
    }

    async fn recover_claims(&self, now: Timestamp, all: bool, limit: u32) -> StoreResult<Recovered> {
        self.ask(Recovery { now, all, limit }, Operation::Recover).await
    }

    async fn send_history(&self, ids: &[DestinationId]) -> StoreResult<Vec<SendHistory>> {
        let mut histories = Vec::with_capacity(ids.len());
        for part in ids.chunks(MAX_ROWS) {
            let size = padded(part.len());
            let mut values = Values::with_capacity(size);
            for id in part {
                values.blob(id.as_bytes());
            }
            values.nulls(size - part.len());
            let found = fetch(&self.readers, SEND_HISTORY.sql(size), values, read_history).await?;
            let found: HashMap<DestinationId, SendHistory> = found.into_iter().collect();
            histories.extend(part.iter().map(|id| found.get(id).copied().unwrap_or_default()));
        }
        Ok(histories)
    }
}

fn read_history(row: &SqliteRow) -> Result<(DestinationId, SendHistory)> {
    let history = SendHistory { last_sent_at: optional_time(row, 1)?, unsettled: count(row, 2)? != 0 };
    Ok((destination_id(row, 0)?, history))
}

/// Back to the state a delivery with its attempts waits in; to `cancelled` when its destination is deleted (column 4).
/// The plus keeps the planner from walking all claims instead of looking up these.
pub(crate) static RELEASE: Batch = Batch::new(
    "UPDATE OR ROLLBACK deliveries SET claim_expires_at = NULL, updated_at = r.column3,
        state = CASE WHEN r.column4 THEN 6 WHEN attempts = 0 THEN 0 ELSE 2 END
    FROM (VALUES ",
    "(?,?,?,?)",
    ",",
    ") AS r WHERE deliveries.id = r.column1 AND claim_epoch = r.column2 AND +state = 1",
);

/// A loose index scan: from one destination straight to the next, however long their backlogs are.
pub(crate) const DUE_DESTINATIONS: &str = "
WITH RECURSIVE waiting (id) AS (
    SELECT (SELECT destination_id FROM deliveries INDEXED BY deliveries_due
        WHERE state IN (0, 2) AND destination_id > ? ORDER BY destination_id LIMIT 1)
    UNION ALL
    SELECT (SELECT destination_id FROM deliveries INDEXED BY deliveries_due
        WHERE state IN (0, 2) AND destination_id > waiting.id ORDER BY destination_id LIMIT 1)
    FROM waiting WHERE waiting.id IS NOT NULL
), first (id, due) AS (
    SELECT id, (SELECT next_attempt_at FROM deliveries INDEXED BY deliveries_due
        WHERE destination_id = waiting.id AND state IN (0, 2) ORDER BY next_attempt_at LIMIT 1)
    FROM waiting WHERE id IS NOT NULL
)
SELECT first.id, first.due FROM first CROSS JOIN destinations t ON t.id = first.id
WHERE first.due < ? AND t.paused = 0 AND t.deleted_at IS NULL LIMIT +?";

pub(crate) static SEND_HISTORY: Batch = Batch::new(
    "SELECT r.column1,
        (SELECT max(sent_at) FROM attempts INDEXED BY attempts_of_destination
            WHERE destination_id = r.column1 AND sent_at IS NOT NULL),
        EXISTS (SELECT 1 FROM deliveries INDEXED BY deliveries_claimed WHERE destination_id = r.column1 AND state = 1)
    FROM (VALUES ",
    "(?)",
    ",",
    ") AS r WHERE r.column1 IS NOT NULL",
);

/// Live claims are as many as sends in flight, so all of them may be looked at.
pub(crate) const ABANDONED: &str = "
SELECT id, destination_id, claim_epoch, attempts FROM deliveries INDEXED BY deliveries_claimed
WHERE state = 1 AND (? OR claim_expires_at < ?) LIMIT +?";

impl Transaction<'_, '_> {
    pub(crate) fn release(&mut self, operations: &mut [Release]) -> Result<()> {
        if operations.is_empty() {
            return Ok(());
        }
        let all: Vec<(Claim, Timestamp)> = operations
            .iter()
            .flat_map(|release| release.input.0.iter().map(|&claim| (claim, release.input.1)))
            .collect();
        let mut held = self.held(all.iter().map(|&(claim, _)| claim))?;
        let mut changed = 0;
        for part in all.chunks(MAX_ROWS) {
            let size = padded(part.len());
            let mut values = Values::with_capacity(4 * size);
            for (claim, now) in part {
                let deleted = self.destinations.is_deleted(claim.destination_id);
                values.blob(claim.delivery_id.as_bytes()).int(claim.epoch).int(now.as_nanos()).int(deleted.into());
            }
            values.nulls(4 * (size - part.len()));
            changed += execute(self.connection, &RELEASE.sql(size), &values)?;
        }
        self.expect_held(held.len(), changed)?;
        for operation in operations {
            // Taken out as they are counted, so that a claim given back twice counts once.
            operation.answer = Some(operation.input.0.iter().filter(|claim| held.remove(claim)).count() as u64);
        }
        Ok(())
    }

    pub(crate) fn recover(&mut self, recovery: Recovery) -> Result<Recovered> {
        let mut values = Values::default();
        values.int(recovery.all.into()).int(recovery.now.as_nanos()).int(recovery.limit.into());
        let results = query(self.connection, ABANDONED, &values, |row| self.unknown_outcome(row, recovery.now))?;
        let settlements = self.settle_all(&results.iter().collect::<Vec<_>>())?;
        let count = |state| settlements.iter().filter(|&&settled| settled == Settlement::Settled(state)).count() as u64;
        Ok(Recovered {
            retried: count(weir_core::DeliveryState::Retrying),
            dead: count(weir_core::DeliveryState::Dead),
            cancelled: count(weir_core::DeliveryState::Cancelled),
        })
    }

    /// The attempt of a claim whose holder is gone: it may have been sent, up to this moment, and it counts.
    fn unknown_outcome(&self, row: &Row<'_>, now: Timestamp) -> Result<AttemptResult> {
        let claim =
            Claim { delivery_id: delivery_id(row, 0)?, destination_id: destination_id(row, 1)?, epoch: int(row, 2)? };
        let number = small(row, 3)? + 1;
        let destination = self.destinations.get(claim.destination_id);
        let exhausted = destination.is_some_and(|destination| number >= destination.settings.retry.max_attempts);
        let attempt = Attempt {
            // No fresh randomness here; the delivery's own and the number make it unique.
            id: AttemptId::new(now, u128::from_be_bytes(*claim.delivery_id.as_bytes()).wrapping_add(number.into())),
            delivery_id: claim.delivery_id,
            number,
            sent_at: Some(now),
            duration_ms: 0,
            outcome: AttemptOutcome::Unknown,
            status_code: None,
            error: Some(
                "the sender stopped before it could record the outcome; the request may have arrived".to_owned(),
            ),
            response_body: None,
        };
        let verdict = if exhausted { Verdict::Dead } else { Verdict::Retry { at: now } };
        Ok(AttemptResult { claim, attempt, verdict, now })
    }
}
