//! Results: attempts recorded in batches, and manual retries and cancellations of single deliveries.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use rusqlite::Row;
use weir_core::{DeliveryId, DeliveryState, DestinationId, Timestamp, activity::Activity, order::BEHIND};
use weir_store::{
    AttemptResult, DeliveryAction, Purge, PurgePosition, PurgeStep, Results, Settlement, StoreResult,
    rows::{self, Corrupt, Row as _, connection_json, failure_code, outcome_code, response_headers_json, state_code},
    sql,
};

use crate::{
    SqliteStore,
    commit_batch::{Operation, Settle},
    edit::Durable,
    error::Result,
    purge::count_sql,
    sql::{Batch, MAX_ROWS, Values, execute, query, values},
    transaction::Transaction,
};

/// A long list of results is split into operations of this size, so that claims can run between them.
const PER_OPERATION: usize = 64;

#[async_trait]
impl Results for SqliteStore {
    async fn settle(&self, results: Vec<Arc<AttemptResult>>) -> StoreResult<Vec<Settlement>> {
        let mut settlements = Vec::with_capacity(results.len());
        let mut parts = Vec::with_capacity(results.len() / PER_OPERATION + 1);
        for part in results.chunks(PER_OPERATION) {
            parts.push(self.post(part.to_vec(), Operation::Settle).await?);
        }
        for part in parts {
            settlements.extend(part.get().await?);
        }
        Ok(settlements)
    }

    async fn retry_delivery(&self, id: DeliveryId, now: Timestamp, activity: Activity) -> StoreResult<DeliveryAction> {
        self.edit(Durable::Yes, move |transaction| {
            let retried = transaction.retry_delivery(id, now)?;
            transaction.recorded(retried, DeliveryAction::is_done, &activity)
        })
        .await
    }

    async fn cancel_delivery(&self, id: DeliveryId, now: Timestamp, activity: Activity) -> StoreResult<DeliveryAction> {
        self.edit(Durable::Yes, move |transaction| {
            let cancelled = transaction.cancel_delivery(id, now)?;
            transaction.recorded(cancelled, DeliveryAction::is_done, &activity)
        })
        .await
    }

    async fn discard_deliveries(
        &self,
        ids: Vec<DeliveryId>,
        now: Timestamp,
        activity: &Activity,
        before: u64,
    ) -> StoreResult<u64> {
        let activity = activity.clone();
        self.edit(Durable::Yes, move |transaction| {
            let discarded = transaction.discard(&ids, now)?;
            let counted = activity.clone().with_discarded(before + discarded);
            transaction.recorded(discarded, |discarded| *discarded > 0, &counted)
        })
        .await
    }

    async fn purge_some(
        &self,
        purge: &Purge,
        after: Option<PurgePosition>,
        activity: &Activity,
        before: u64,
    ) -> StoreResult<PurgeStep> {
        let (purge, activity) = (purge.clone(), activity.clone());
        self.edit(Durable::Yes, move |transaction| {
            let step = transaction.purge(&purge, after)?;
            let counted = activity.clone().with_cancelled(before + step.cancelled);
            transaction.recorded(step, |step| step.cancelled > 0, &counted)
        })
        .await
    }

    async fn count_purge(&self, purge: &Purge) -> StoreResult<u64> {
        let (sql, values) = count_sql(purge);
        Ok(self.read(sql, values, |row| row.count(0)).await?.into_iter().sum())
    }
}

/// The claims that still hold, with the data that decides how they end. Columns: id, epoch.
pub(crate) static HELD_CLAIMS: Batch = Batch::new(
    "SELECT d.id, d.claim_epoch, d.replaced IS NOT NULL, d.ordering_key IS NOT NULL, d.flow_id FROM (VALUES ",
    "(?,?)",
    sql!(
        ") AS r CROSS JOIN deliveries d ON d.id = r.column1 AND d.claim_epoch = r.column2 AND +d.state = {delivering}"
    ),
);

/// Ends deliveries with the same final state and number of attempts; nearly all share both. SQLite changes each row
/// where it finds it; from a join it would collect the changes in a table first and look up each row twice, which takes
/// 1.5 times as long. `+state` makes the planner look up the given ids; with `state` it could scan all claims.
pub(crate) static END: Batch = Batch::new(
    sql! {"UPDATE OR ROLLBACK deliveries SET state = ?1, attempts = ?2, claim_expires_at = NULL, updated_at = ?3
    WHERE +state = {delivering} AND id IN ("},
    "?",
    ")",
);

/// Makes deliveries wait for a retry. Columns: id, new state, attempts, due, now, how many of them do not count (0 or
/// 1).
pub(crate) static RETRY: Batch = Batch::new(
    "UPDATE OR ROLLBACK deliveries SET state = r.column2, attempts = r.column3, claim_expires_at = NULL,
        next_attempt_at = r.column4, updated_at = r.column5,
        attempts_before = CASE WHEN r.column6 > 0 THEN coalesce(attempts_before, 0) + r.column6 ELSE attempts_before END
    FROM (VALUES ",
    "(?,?,?,?,?,?)",
    sql!(") AS r WHERE deliveries.id = r.column1 AND +state = {delivering}"),
);

static INSERT_ATTEMPTS: Batch = Batch::new(
    "INSERT OR ROLLBACK INTO attempts (delivery_id, number, id, destination_id, sent_at, duration_ms, outcome, status_code,
        error, failure, response_body, signed_at, connection, response_headers,
        flow_id)
    SELECT * FROM (VALUES ",
    "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    ") AS r WHERE r.column1 IS NOT NULL",
);

const SELECT_ONE: &str = "SELECT destination_id, state, expires_at FROM deliveries WHERE id = ?";

const RETRY_ENDED: &str = sql! {"
UPDATE deliveries SET state = {pending}, replaced = NULL, is_replay = 0, next_attempt_at = ?, updated_at = ?
WHERE id = ? AND state > {retrying}"};

/// Makes a waiting delivery live and due now, unless it is behind the head of a message group.
const PULL_FORWARD: &str = sql! {"
UPDATE deliveries SET is_replay = 0, next_attempt_at = min(next_attempt_at, ?), updated_at = ?
WHERE id = ? AND state IN ({waiting}) AND next_attempt_at < {end_of_time}"};

const CANCEL: &str =
    sql!("UPDATE deliveries SET state = {cancelled}, updated_at = ? WHERE id = ? AND state IN ({waiting})");

/// A claim that still holds.
struct HeldClaim {
    /// A newer delivery with its coalesce key was stored.
    replaced: bool,
    in_message_group: bool,
    /// The flow of its limit key.
    flow_id: Option<DestinationId>,
}

impl Transaction<'_, '_> {
    pub(crate) fn settle(&mut self, operations: &mut [Settle]) -> Result<()> {
        if operations.is_empty() {
            return Ok(());
        }
        let all: Vec<&AttemptResult> = operations.iter().flat_map(|settle| &settle.input).map(Arc::as_ref).collect();
        let mut settlements = self.settle_all(&all)?.into_iter();
        for operation in operations {
            operation.answer = Some(settlements.by_ref().take(operation.input.len()).collect());
        }
        Ok(())
    }

    /// Updates the deliveries whose claims still hold, then records their attempts. Results of lost claims change
    /// nothing.
    pub(crate) fn settle_all(&mut self, results: &[&AttemptResult]) -> Result<Vec<Settlement>> {
        // Read which claims still hold.
        let mut held = self.held_claims(results)?;
        let mut settled = Vec::with_capacity(results.len());
        let mut ended: BTreeMap<(i64, u32), Vec<&AttemptResult>> = BTreeMap::new();
        let mut retried = Vec::new();
        let mut answers = Vec::with_capacity(results.len());
        let mut leaving = Vec::new();
        for &result in results {
            // Removed from the map, so that only the first of two results for one claim counts.
            let Some(held) = held.remove(&(result.claim.delivery_id, result.claim.epoch)) else {
                answers.push(Settlement::ClaimLost);
                continue;
            };
            let (state, due) = self.next_state(result, &held);
            // Deliveries that end with the same state and number of attempts share a statement.
            match due {
                Some(due) => retried.push((result, state, due)),
                None => ended.entry((i64::from(state_code(state)), result.attempt.number)).or_default().push(result),
            }
            // Its message group advances after the writes, when the new states can be read.
            if held.in_message_group && self.leaves_message_group(result, state) {
                leaving.push((answers.len(), result.claim.delivery_id, state));
            }
            answers.push(Settlement::Settled(state));
            self.changes.moved(result.claim.destination_id, DeliveryState::Delivering, state, result.now);
            self.changes.attempted(result, state);
            settled.push((result, held.flow_id));
        }
        // Write the new states first, in as few statements as possible, then the attempts.
        for ((state, attempts), results) in ended {
            self.end(state, attempts, &results)?;
        }
        self.retry(&retried)?;
        self.insert_attempts(&settled)?;
        // Give the message groups of ended and skipped heads a new head.
        for (at, id, state) in leaving {
            let Some(message_group) = self.message_group_of(id)? else { continue };
            if state.is_waiting() {
                self.leave_message_group(id)?;
            }
            if let Some(next_due) = self.advance_message_group(&message_group)? {
                answers[at] = Settlement::Advanced { state, next_due };
            }
        }
        Ok(answers)
    }

    fn held_claims(&self, results: &[&AttemptResult]) -> Result<HashMap<(DeliveryId, i64), HeldClaim>> {
        let mut held = HashMap::with_capacity(results.len());
        let read = |row: &Row<'_>| {
            let claim = (row.delivery_id(0)?, row.int(1)?);
            Ok((
                claim,
                HeldClaim {
                    replaced: row.flag(2)?,
                    in_message_group: row.flag(3)?,
                    flow_id: row.optional_id(4)?.map(DestinationId::from_bytes),
                },
            ))
        };
        for part in results.chunks(MAX_ROWS) {
            let (sql, values) = HELD_CLAIMS.of(Values::default(), part, |values, result| {
                values.bind(result.claim.delivery_id.as_bytes()).bind(result.claim.epoch);
            });
            held.extend(query(self.connection, &sql, &values, read)?);
        }
        Ok(held)
    }

    /// The deliveries are written together, with the latest of their times as `updated_at`.
    fn end(&self, state: i64, attempts: u32, results: &[&AttemptResult]) -> Result<()> {
        for part in results.chunks(MAX_ROWS) {
            let now = part.iter().map(|result| result.now).max().unwrap_or(Timestamp::MIN);
            let (sql, values) = END.of(values![state, attempts, now], part, |values, result| {
                values.bind(result.claim.delivery_id.as_bytes());
            });
            self.move_on(&sql, &values, part.len())?;
        }
        Ok(())
    }

    fn retry(&self, results: &[(&AttemptResult, DeliveryState, Timestamp)]) -> Result<()> {
        for part in results.chunks(MAX_ROWS) {
            let (sql, values) = RETRY.of(Values::default(), part, |values, (result, state, due)| {
                values
                    .bind(result.claim.delivery_id.as_bytes())
                    .bind(state_code(*state))
                    .bind(result.attempt.number)
                    .bind(due)
                    .bind(result.now)
                    .bind(!result.is_counted);
            });
            self.move_on(&sql, &values, part.len())?;
        }
        Ok(())
    }

    /// Changes exactly this many deliveries. There is only one writer, so no delivery has changed since it was read.
    pub(crate) fn move_on(&self, sql: &str, values: &Values<'_>, deliveries: usize) -> Result<()> {
        let moved = execute(self.connection, sql, values)?;
        if moved == deliveries as u64 { Ok(()) } else { Err(Corrupt("a claim").into()) }
    }

    fn leaves_message_group(&self, result: &AttemptResult, state: DeliveryState) -> bool {
        let destination = self.destinations.get(result.claim.destination_id);
        let order = destination.map(|destination| destination.settings.order).unwrap_or_default();
        // A refusal is no failed attempt.
        (result.is_counted || state.is_terminal()) && order.leaves_message_group(state, result.attempt.number)
    }

    /// The new state, and when the delivery is due again.
    fn next_state(&self, result: &AttemptResult, held: &HeldClaim) -> (DeliveryState, Option<Timestamp>) {
        match result.next_state() {
            (_, Some(_)) if self.destinations.is_deleted(result.claim.destination_id) => {
                (DeliveryState::Cancelled, None)
            }
            (_, Some(_)) if held.replaced => (DeliveryState::Superseded, None),
            next => next,
        }
    }

    fn insert_attempts(&mut self, results: &[(&AttemptResult, Option<DestinationId>)]) -> Result<()> {
        for part in results.chunks(MAX_ROWS) {
            let (sql, values) = INSERT_ATTEMPTS.of(Values::default(), part, |values, (result, flow_id)| {
                let AttemptResult { claim, attempt, .. } = *result;
                values
                    .bind(claim.delivery_id.as_bytes())
                    .bind(attempt.number)
                    .bind(attempt.id.as_bytes())
                    .bind(claim.destination_id.as_bytes())
                    .bind(attempt.sent_at)
                    .bind(attempt.duration_ms)
                    .bind(outcome_code(attempt.outcome))
                    .bind(attempt.status_code.map(i64::from))
                    .bind(attempt.error.as_deref())
                    .bind(attempt.failure.map(failure_code))
                    .bind(rows::response_body(attempt, self.keyring))
                    .bind(attempt.details.signed_at)
                    .bind(connection_json(&attempt.details))
                    .bind(response_headers_json(&attempt.details))
                    .bind(flow_id.map(|flow| flow.as_bytes().to_vec()));
            });
            execute(self.connection, &sql, &values)?;
        }
        Ok(())
    }

    pub(crate) fn retry_delivery(&mut self, id: DeliveryId, now: Timestamp) -> Result<DeliveryAction> {
        let Some((destination_id, state, expires_at)) = self.find(id)? else {
            return Ok(DeliveryAction::NotFound);
        };
        // The refusals, in the same order as on PostgreSQL.
        if self.destinations.is_deleted(destination_id) {
            return Ok(DeliveryAction::DestinationGone);
        }
        if state == DeliveryState::Delivering {
            return Ok(DeliveryAction::Refused(state));
        }
        if expires_at.is_some_and(|at| at <= now) {
            return Ok(DeliveryAction::Expired);
        }
        // A waiting delivery is due now, unless it is behind a head. An ended one waits again.
        if state.is_waiting() {
            self.pull_forward(id, now)?;
        } else {
            self.make_waiting(id, destination_id, now)?;
            self.changes.moved(destination_id, state, DeliveryState::Pending, now);
        }
        Ok(DeliveryAction::Done { destination_id })
    }

    /// A delivery behind the head of its message group stays there.
    fn pull_forward(&self, id: DeliveryId, now: Timestamp) -> Result<()> {
        execute(self.connection, PULL_FORWARD, &values![now, now, id.as_bytes()]).map(drop)
    }

    /// Makes an ended delivery wait again. It is due now, or joins its message group if it has one and its destination
    /// is still ordered.
    pub(crate) fn make_waiting(&mut self, id: DeliveryId, destination_id: DestinationId, now: Timestamp) -> Result<()> {
        let message_group = self.message_group_of(id)?;
        let ordered = self.destinations.get(destination_id).is_some_and(|found| found.settings.order.is_by_key());
        // In its group it is first behind the head, even if the group is empty.
        let due = if ordered && message_group.is_some() { BEHIND } else { now };
        execute(self.connection, RETRY_ENDED, &values![due, now, id.as_bytes()])?;
        // If the group has no head and this delivery is its first, the advance makes it the head, and it is due now. If
        // the destination is no longer ordered, the delivery leaves the group.
        match message_group {
            Some(message_group) if ordered => {
                self.advance_message_group(&message_group)?;
                self.pull_forward(id, now)?;
            }
            Some(_) => self.leave_message_group(id)?,
            None => {}
        }
        Ok(())
    }

    pub(crate) fn cancel_delivery(&mut self, id: DeliveryId, now: Timestamp) -> Result<DeliveryAction> {
        let Some((destination_id, state, _)) = self.find(id)? else {
            return Ok(DeliveryAction::NotFound);
        };
        if !state.is_waiting() {
            return Ok(DeliveryAction::Refused(state));
        }
        execute(self.connection, CANCEL, &values![now, id.as_bytes()])?;
        self.changes.moved(destination_id, state, DeliveryState::Cancelled, now);
        // If it was the head, the next delivery becomes the head.
        if let Some(message_group) = self.message_group_of(id)? {
            self.advance_message_group(&message_group)?;
        }
        Ok(DeliveryAction::Done { destination_id })
    }

    /// There is only one writer, so the values stay valid until it writes.
    fn find(&mut self, id: DeliveryId) -> Result<Option<(DestinationId, DeliveryState, Option<Timestamp>)>> {
        let read = |row: &Row<'_>| Ok((row.destination_id(0)?, row.state(1)?, row.optional_time(2)?));
        Ok(query(self.connection, SELECT_ONE, &values![id.as_bytes()], read)?.pop())
    }
}
