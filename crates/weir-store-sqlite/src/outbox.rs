//! The scheduler's side: claims, releases, recovery, and the queries of the sweep.

use std::collections::HashMap;

use async_trait::async_trait;
use rusqlite::Row;
use sqlx::sqlite::SqliteRow;
use weir_core::{DeliveryState, DestinationId, RateLimit, Timestamp, claim::Claim, limit_key::is_of_key};
use weir_store::{
    AbandonedClaim, AttemptResult, ClaimRequest, Claims, DueDestination, Outbox, Recovered, SendHistory, SentCounts,
    StoreResult,
    rows::{self, Row as _},
    sql,
};

use crate::{
    SqliteStore,
    claims::{ExpiredDelivery, with_idle, without_idle},
    commit_batch::{Operation, Recovery, Release},
    edit::Durable,
    error::Result,
    flow_statements::{
        DUE_DESTINATIONS, SAMPLE, SEND_HISTORY, SEND_HISTORY_OF_FLOWS, SENT_COSTS, SENT_COSTS_OF_FLOWS, SENT_COUNTS,
        SENT_COUNTS_OF_FLOWS,
    },
    sql::{Batch, MAX_ROWS, execute, fetch, padded, query, values},
    transaction::Transaction,
};

#[async_trait]
impl Outbox for SqliteStore {
    async fn claim(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> StoreResult<Vec<Claims>> {
        let idle = self.idle_requests(&requests, false).await?;
        let requests = without_idle(requests, &idle);
        if requests.is_empty() {
            return Ok(with_idle(Vec::new(), &idle));
        }
        Ok(with_idle(self.ask((requests, now), Operation::Claim).await?, &idle))
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
        self.due(DUE_DESTINATIONS, before, after, limit).await
    }

    async fn recover_claims(&self, now: Timestamp, all: bool, limit: u32) -> StoreResult<Recovered> {
        self.ask(Recovery { now, all, limit }, Operation::Recover).await
    }

    async fn expire_deliveries(&self, now: Timestamp, limit: u32) -> StoreResult<u64> {
        self.edit(Durable::No, move |transaction| transaction.expire_deliveries(now, limit)).await
    }

    async fn send_history(&self, ids: &[DestinationId]) -> StoreResult<Vec<SendHistory>> {
        let mut found: HashMap<DestinationId, SendHistory> = HashMap::with_capacity(ids.len());
        for (ids, statement) in of_destinations_and_flows(ids, [&SEND_HISTORY, &SEND_HISTORY_OF_FLOWS]) {
            for part in ids.chunks(MAX_ROWS) {
                let (sql, values) = statement.of_destinations(part);
                found.extend(fetch(&self.readers, sql, values, rows::send_history).await?);
            }
        }
        Ok(ids.iter().map(|id| found.get(id).copied().unwrap_or_default()).collect())
    }

    async fn sent_counts(&self, ids: &[DestinationId], since: Timestamp, limit: RateLimit) -> StoreResult<SentCounts> {
        let statements = match limit.is_in_costs() {
            false => [&SENT_COUNTS, &SENT_COUNTS_OF_FLOWS],
            true => [&SENT_COSTS, &SENT_COSTS_OF_FLOWS],
        };
        let mut counts = Vec::new();
        for (ids, statement) in of_destinations_and_flows(ids, statements) {
            for part in ids.chunks(MAX_ROWS) {
                let (sql, mut values) = statement.of_destinations(part);
                values.bind(limit.bucket().as_nanos() as i64).bind(since).bind(since);
                if limit.is_in_costs() {
                    values.bind((SAMPLE / padded(part.len())).max(1) as i64);
                }
                let read = |row: &SqliteRow| Ok((row.int(0)?, row.optional_int(1)?));
                counts.extend(fetch(&self.readers, sql, values, read).await?);
            }
        }
        Ok(rows::sent_counts(counts))
    }

    async fn mark_restored(&self, sends_until: Timestamp) -> StoreResult<()> {
        self.edit(Durable::Yes, move |transaction| transaction.mark_restored(sends_until)).await
    }
}

impl SqliteStore {
    /// The destinations or flows with a delivery that is due before a time, after a given one.
    pub(crate) async fn due(
        &self,
        statement: &'static str,
        before: Timestamp,
        after: Option<DestinationId>,
        limit: u32,
    ) -> StoreResult<Vec<DueDestination>> {
        // The empty blob sorts before every id.
        let beyond = after.as_ref().map_or(&[][..], |id| id.as_bytes());
        Ok(fetch(&self.readers, statement, values![beyond, before, limit], rows::due_destination).await?)
    }
}

/// The destinations and the flows among the ids, each with its statement. Without flows there is only the first.
fn of_destinations_and_flows(
    ids: &[DestinationId],
    [of_destinations, of_flows]: [&'static Batch; 2],
) -> [(Vec<DestinationId>, &'static Batch); 2] {
    let (flows, destinations) = ids.iter().partition(|id| is_of_key(**id));
    [(destinations, of_destinations), (flows, of_flows)]
}

/// Releases one claim, as [`Outbox::release`] says. `?2`: the destination is deleted. A delivery has been attempted if
/// it has attempts; in a replay, if it has some that count.
const RELEASE: &str = sql! {"
UPDATE deliveries SET claim_expires_at = NULL, updated_at = ?1,
    state = CASE WHEN ?2 THEN {cancelled} WHEN replaced = 1 THEN {superseded}
        WHEN attempts = iif(replay_id IS NULL, 0, coalesce(attempts_before, 0)) THEN {pending} ELSE {retrying} END
WHERE id = ?3 AND claim_epoch = ?4 AND +state = {delivering}
RETURNING state, ordering_key IS NOT NULL"};

/// The waiting deliveries that have expired.
pub(crate) const EXPIRING: &str = sql! {"
SELECT id, destination_id, state, ordering_key IS NOT NULL FROM deliveries INDEXED BY deliveries_expiring
WHERE expires_at IS NOT NULL AND state IN ({waiting}) AND expires_at <= ? ORDER BY expires_at LIMIT +?"};

const EXPIRE: &str =
    sql!("UPDATE deliveries SET state = {expired}, updated_at = ? WHERE id = ? AND state IN ({waiting})");

const MARK_RESTORED: &str = "INSERT OR REPLACE INTO restored (single, sends_until) VALUES (1, ?)";

/// There are only as many claims as sends in flight, so the statement may read all of them.
pub(crate) const ABANDONED: &str = sql! {"
SELECT id, destination_id, claim_epoch, attempts, coalesce(attempts_before, 0)
FROM deliveries INDEXED BY deliveries_claimed WHERE state = {delivering} AND claim_expires_at <= ? LIMIT +?"};

/// The caller fills in `max_attempts` from the destination.
fn read_abandoned(row: &Row<'_>) -> Result<AbandonedClaim> {
    Ok(AbandonedClaim {
        claim: rows::claim(row)?,
        attempts: row.small(3)?,
        attempts_before: row.small(4)?,
        max_attempts: None,
    })
}

impl Transaction<'_, '_> {
    pub(crate) fn release(&mut self, operations: &mut [Release]) -> Result<()> {
        for operation in operations {
            let (claims, now) = &operation.input;
            let mut released = 0;
            for &claim in claims {
                // A delivery of a deleted destination does not wait again: its release cancels it.
                let deleted = self.destinations.is_deleted(claim.destination_id);
                let values = values![now, deleted, claim.delivery_id.as_bytes(), claim.epoch];
                let read = |row: &Row<'_>| Ok((row.state(0)?, row.flag(1)?));
                // Without a row the claim no longer holds: it was settled, recovered or claimed again.
                let Some((state, in_message_group)) = query(self.connection, RELEASE, &values, read)?.pop() else {
                    continue;
                };
                released += 1;
                self.changes.moved(claim.destination_id, DeliveryState::Delivering, state, *now);
                // A head that has ended leaves its message group. One that waits again keeps its place.
                if in_message_group
                    && !state.is_waiting()
                    && let Some(message_group) = self.message_group_of(claim.delivery_id)?
                {
                    self.advance_message_group(&message_group)?;
                }
            }
            operation.answer = Some(released);
        }
        Ok(())
    }

    /// Deliveries in flight are not changed. If one waits again later, the next sweep expires it.
    pub(crate) fn expire_deliveries(&mut self, now: Timestamp, limit: u32) -> Result<u64> {
        let values = values![now, limit];
        let read = |row: &Row<'_>| {
            Ok(ExpiredDelivery {
                id: row.delivery_id(0)?,
                destination_id: row.destination_id(1)?,
                state: row.state(2)?,
                in_message_group: row.flag(3)?,
            })
        };
        let expired = query(self.connection, EXPIRING, &values, read)?;
        for delivery in &expired {
            self.expire(delivery, now)?;
        }
        Ok(expired.len() as u64)
    }

    pub(crate) fn expire(&mut self, expired: &ExpiredDelivery, now: Timestamp) -> Result<()> {
        let &ExpiredDelivery { id, destination_id, state, in_message_group } = expired;
        self.changes.moved(destination_id, state, DeliveryState::Expired, now);
        execute(self.connection, EXPIRE, &values![now, id.as_bytes()])?;
        if in_message_group && let Some(message_group) = self.message_group_of(id)? {
            self.advance_message_group(&message_group)?;
        }
        Ok(())
    }

    pub(crate) fn mark_restored(&mut self, sends_until: Timestamp) -> Result<()> {
        execute(self.connection, MARK_RESTORED, &values![sends_until])?;
        Ok(())
    }

    pub(crate) fn recover(&mut self, recovery: Recovery) -> Result<Recovered> {
        let Recovery { now, all, limit } = recovery;
        let values = values![Recovered::latest_expiry(now, all), limit];
        // Read the claims that have expired, or at the start all of them.
        let abandoned = query(self.connection, ABANDONED, &values, read_abandoned)?;
        let max_attempts = |claim: Claim| {
            self.destinations.get(claim.destination_id).map(|destination| destination.settings.retry.max_attempts)
        };
        // Each was an attempt of unknown outcome: the request may have been sent, so it counts.
        let results: Vec<AttemptResult> = abandoned
            .into_iter()
            .map(|one| AbandonedClaim { max_attempts: max_attempts(one.claim), ..one }.unknown_outcome(now))
            .collect();
        let settlements = self.settle_all(&results.iter().collect::<Vec<_>>())?;
        Ok(Recovered::of(&settlements))
    }
}
