//! The scheduler's side: claims of many destinations in one statement, releases, recovery, and what the sweep asks.

use std::collections::HashMap;

use async_trait::async_trait;
use rusqlite::Row;
use sqlx::sqlite::SqliteRow;
use weir_core::{
    AttemptId, DeliveryId, DestinationId, Timestamp,
    claim::Claim,
    delivery::{Attempt, AttemptOutcome},
    order::BEHIND,
    outcome::Verdict,
};
use weir_store::{
    AttemptResult, ClaimRequest, Claims, DueDestination, Outbox, Recovered, SendHistory, StoreResult, lane,
};

use crate::{
    SqliteStore,
    claims::WAITING,
    edits::Edit,
    error::Result,
    group::{Operation, Recovery, Release},
    live::{FIRST, LiveClaim},
    rows::{delivery_id, destination_id, int, optional_time, time},
    sql::{Batch, MAX_ROWS, Values, execute, fetch, padded, query},
    writer::Transaction,
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
        let mut after = after;
        loop {
            let mut values = Values::default();
            // The empty blob sorts before every id.
            let beyond = after.as_ref().map_or(&[][..], |id| id.as_bytes());
            values.blob(beyond).int(before.as_nanos()).int(limit.into());
            let read =
                |row: &SqliteRow| Ok(DueDestination { destination_id: destination_id(row, 0)?, due: time(row, 1)? });
            let page = fetch(&self.readers, DUE_DESTINATIONS, values, read).await?;
            let Some(last) = page.last() else { return Ok(page) };
            after = Some(last.destination_id);
            let mut unclaimed = Vec::with_capacity(page.len());
            for due in page {
                unclaimed.extend(self.first_unclaimed(due).await?.filter(|due| due.due < before));
            }
            // An empty page would mean that there are no more.
            if !unclaimed.is_empty() {
                return Ok(unclaimed);
            }
        }
    }

    async fn recover_claims(&self, now: Timestamp, all: bool, limit: u32) -> StoreResult<Recovered> {
        self.ask(Recovery { now, all, limit }, Operation::Recover).await
    }

    async fn expire_deliveries(&self, now: Timestamp, limit: u32) -> StoreResult<u64> {
        self.ask((now, limit), |edit| Edit::operation(Edit::Expire(edit))).await
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
            // Before the sends are read: a claim that ends in between is then among them.
            let unsettled: Vec<bool> = part.iter().map(|&id| self.claims.count(Some(id)) > 0).collect();
            let found = fetch(&self.readers, LAST_SENDS.sql(size), values, read_last_send).await?;
            let found: HashMap<DestinationId, Option<Timestamp>> = found.into_iter().collect();
            histories.extend(
                part.iter()
                    .zip(unsettled)
                    .map(|(id, unsettled)| SendHistory { last_sent_at: found.get(id).copied().flatten(), unsettled }),
            );
        }
        Ok(histories)
    }
}

impl SqliteStore {
    /// The same destination with the due time of what is not claimed, if there is any.
    async fn first_unclaimed(&self, due: DueDestination) -> Result<Option<DueDestination>> {
        let id = due.destination_id;
        let claimed = self.claims.count(Some(id));
        if claimed == 0 {
            return Ok(Some(due));
        }
        let mut values = Values::default();
        values.blob(id.as_bytes()).int(FIRST.0.as_nanos()).blob(FIRST.1.as_bytes()).int(claimed as i64 + 1);
        let read = |row: &SqliteRow| Ok((delivery_id(row, 0)?, time(row, 1)?));
        let waiting = fetch(&self.readers, WAITING, values, read).await?;
        let first = waiting.into_iter().find(|&(id, _)| !self.claims.is_claimed(id));
        let first = first.filter(|&(_, due)| due < BEHIND);
        Ok(first.map(|(_, due)| DueDestination { destination_id: id, due: lane::due(due) }))
    }
}

fn read_last_send(row: &SqliteRow) -> Result<(DestinationId, Option<Timestamp>)> {
    Ok((destination_id(row, 0)?, optional_time(row, 1)?))
}

/// A claim given back, of a destination that is deleted.
const CANCEL_RELEASED: &str = "UPDATE deliveries SET state = 6, updated_at = ? WHERE id = ? AND state < 3";

/// A claim given back, of a delivery of whose coalesce key a newer one has come. Any other waits in the table as before.
const SUPERSEDE_RELEASED: &str =
    "UPDATE deliveries SET state = 7, updated_at = ? WHERE id = ? AND replaced = 1 AND state IN (0, 2)";

/// A claim given back that was made as its delivery was stored.
const WAIT_RELEASED: &str = "UPDATE deliveries SET state = 0, updated_at = ? WHERE id = ? AND state = 1";

/// What waits and whose time is over. What is claimed is among them.
pub(crate) const EXPIRING: &str = "
SELECT id, ordering_key IS NOT NULL FROM deliveries INDEXED BY deliveries_expiring
WHERE expires_at IS NOT NULL AND state IN (0, 2) AND expires_at <= ? ORDER BY expires_at LIMIT +?";

const EXPIRE: &str = "UPDATE deliveries SET state = 8, updated_at = ? WHERE id = ? AND state IN (0, 2)";

/// A loose index scan: from one destination straight to the next, however long their backlogs are. The first due of a destination
/// that has only its lane is the lane's; who waits behind in a line is never due.
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
SELECT first.id, first.due FROM (
    SELECT id, CASE WHEN due >= 4611686018427387904 THEN due - 4611686018427387904 ELSE due END AS due FROM first
    WHERE due < 9223372036854775807
) first CROSS JOIN destinations t ON t.id = first.id
WHERE first.due < ? AND t.paused = 0 AND t.deleted_at IS NULL LIMIT +?";

pub(crate) static LAST_SENDS: Batch = Batch::new(
    "SELECT r.column1,
        (SELECT max(sent_at) FROM attempts INDEXED BY attempts_of_destination
            WHERE destination_id = r.column1 AND sent_at IS NOT NULL)
    FROM (VALUES ",
    "(?)",
    ",",
    ") AS r WHERE r.column1 IS NOT NULL",
);

impl Transaction<'_, '_> {
    pub(crate) fn release(&mut self, operations: &mut [Release]) -> Result<()> {
        for operation in operations {
            let (claims, now) = &operation.input;
            let mut released = 0;
            for &claim in claims {
                let Some(LiveClaim { at_birth, in_line, .. }) = self.claims.held(claim) else { continue };
                let deleted = self.destinations.is_deleted(claim.destination_id);
                self.claims.release(claim);
                released += 1;
                let sql = match (deleted, at_birth) {
                    (true, _) => CANCEL_RELEASED,
                    (false, true) => WAIT_RELEASED,
                    (false, false) => SUPERSEDE_RELEASED,
                };
                let mut values = Values::default();
                values.int(now.as_nanos()).blob(claim.delivery_id.as_bytes());
                let ended = execute(self.connection, sql, &values)? > 0 && !at_birth;
                if ended
                    && in_line
                    && let Some(line) = self.line_of(claim.delivery_id)?
                {
                    self.advance_line(&line)?;
                }
            }
            operation.answer = Some(released);
        }
        Ok(())
    }

    /// What is under way ends by itself; should it wait again after, the next sweep finds it.
    pub(crate) fn expire_deliveries(&mut self, now: Timestamp, limit: u32) -> Result<u64> {
        let most = i64::from(limit) + self.claims.count_all() as i64;
        let mut values = Values::default();
        values.int(now.as_nanos()).int(most);
        let read = |row: &Row<'_>| Ok((delivery_id(row, 0)?, int(row, 1)? == 1));
        let mut expired = query(self.connection, EXPIRING, &values, read)?;
        expired.retain(|&(id, _)| !self.claims.is_claimed(id));
        expired.truncate(limit as usize);
        for &(id, in_line) in &expired {
            self.expire(id, in_line, now)?;
        }
        Ok(expired.len() as u64)
    }

    pub(crate) fn expire(&mut self, id: DeliveryId, in_line: bool, now: Timestamp) -> Result<()> {
        let mut values = Values::default();
        values.int(now.as_nanos()).blob(id.as_bytes());
        execute(self.connection, EXPIRE, &values)?;
        if in_line && let Some(line) = self.line_of(id)? {
            self.advance_line(&line)?;
        }
        Ok(())
    }

    pub(crate) fn recover(&mut self, recovery: Recovery) -> Result<Recovered> {
        let abandoned = self.claims.abandoned(recovery.now, recovery.all, recovery.limit as usize);
        let results: Vec<AttemptResult> =
            abandoned.iter().map(|live| self.unknown_outcome(live, recovery.now)).collect();
        let settlements = self.settle_all(&results.iter().collect::<Vec<_>>())?;
        let count = |state| settlements.iter().filter(|settled| settled.state() == Some(state)).count() as u64;
        Ok(Recovered {
            retried: count(weir_core::DeliveryState::Retrying),
            dead: count(weir_core::DeliveryState::Dead),
            cancelled: count(weir_core::DeliveryState::Cancelled),
            superseded: count(weir_core::DeliveryState::Superseded),
        })
    }

    /// The attempt of a claim whose holder is gone: it may have been sent, up to this moment, and it counts.
    fn unknown_outcome(&self, live: &LiveClaim, now: Timestamp) -> AttemptResult {
        let claim = live.claim;
        let number = live.attempts + 1;
        let destination = self.destinations.get(claim.destination_id);
        let of_series = number.saturating_sub(live.attempts_before);
        let exhausted = destination.is_some_and(|destination| of_series >= destination.settings.retry.max_attempts);
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
            failure: None,
            response_body: None,
        };
        let verdict = if exhausted { Verdict::Dead } else { Verdict::Retry { at: now } };
        AttemptResult { claim, attempt, verdict, now }
    }
}
