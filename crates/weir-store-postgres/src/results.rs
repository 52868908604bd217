//! Results of attempts, recorded in batches, and actions of a person on one delivery.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, types::Uuid};
use weir_core::{DeliveryId, DeliveryState, DestinationId, Timestamp, activity::Activity, claim::Claim, order::BEHIND};
use weir_sealing::Keyring;
use weir_store::{
    AttemptResult, DeliveryAction, MessageGroup, Purge, PurgePosition, PurgeStep, Results, Settlement, StoreResult,
    rows::{self, Row as _, connection_json, failure_code, outcome_code, response_headers_json, state_code},
    sql,
};

use crate::{
    PostgresStore, Shared,
    activity::record,
    discard::discard,
    edit::change,
    message_groups::advance,
    purge::{count_sql, purge_some},
    rows::{column, named, uuid},
    writer::Operation,
};

#[async_trait]
impl Results for PostgresStore {
    async fn settle(&self, results: Vec<Arc<AttemptResult>>) -> StoreResult<Vec<Settlement>> {
        if results.is_empty() {
            return Ok(Vec::new());
        }
        self.settles.ask(Settling(results)).await
    }

    async fn retry_delivery(&self, id: DeliveryId, now: Timestamp, activity: Activity) -> StoreResult<DeliveryAction> {
        self.edit(|connection| change(retry_delivery(connection, id, now, &activity))).await
    }

    async fn cancel_delivery(&self, id: DeliveryId, now: Timestamp, activity: Activity) -> StoreResult<DeliveryAction> {
        self.edit(|connection| change(cancel_delivery(connection, id, now, &activity))).await
    }

    async fn discard_deliveries(
        &self,
        ids: Vec<DeliveryId>,
        now: Timestamp,
        activity: &Activity,
        before: u64,
    ) -> StoreResult<u64> {
        self.edit(|connection| change(discard(connection, &ids, now, activity, before))).await
    }

    async fn purge_some(
        &self,
        purge: &Purge,
        after: Option<PurgePosition>,
        activity: &Activity,
        before: u64,
    ) -> StoreResult<PurgeStep> {
        self.edit(|connection| change(purge_some(connection, purge, after, activity, before))).await
    }

    async fn count_purge(&self, purge: &Purge) -> StoreResult<u64> {
        let (sql, arguments) = count_sql(purge).into_parts();
        let rows = self.read(sqlx::query_with(AssertSqlSafe(sql), arguments?), |row| row.count(0)).await?;
        Ok(rows.into_iter().sum())
    }
}

/// Moves the deliveries whose claims are still valid to their next states ([`AttemptResult::next_state`]), and records
/// the attempts of only these. The rows of the destinations of retries are locked, so that a deletion cannot commit
/// between this read and this commit (destination_edits.rs). `state + 0` makes the planner look up the given deliveries;
/// with `state` it could scan all claims. Returns the ordering key of each delivery that must leave its message group
/// (`DeliveryOrder::leaves_message_group`).
pub(crate) const SETTLE: &str = sql!(
    "WITH result AS MATERIALIZED (
    -- The results, one row for each.
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::smallint[], $5::bigint[], $6::bigint[], $7::integer[],
            $8::uuid[], $9::bigint[], $10::bigint[], $11::smallint[], $12::integer[], $13::text[], $14::smallint[], $15::bytea[],
            $16::bigint[], $17::text[], $18::text[], $19::smallint[], $20::boolean[])
        WITH ORDINALITY AS r (id, epoch, destination_id, state, due, now, number,
            attempt_id, sent_at, duration_ms, outcome, status_code, error, failure, response_body,
            signed_at, connection, response_headers, latency, is_counted, result)
), live AS MATERIALIZED (
    -- The destinations of retries, unless they are deleted.
    SELECT id, skip_after_attempts FROM destinations
    WHERE id IN (SELECT destination_id FROM result WHERE state = {retrying}) AND deleted_at IS NULL FOR KEY SHARE
), settled AS (
    -- Only claims that still hold. A delivery that would be retried is cancelled if its destination is deleted, and
    -- superseded if it was replaced.
    UPDATE deliveries d SET attempts = r.number, claim_expires_at = NULL, claimed_by = NULL,
        state = CASE WHEN r.state <> {retrying} THEN r.state WHEN r.destination_id NOT IN (SELECT id FROM live) THEN {cancelled}
            WHEN d.replaced THEN {superseded} ELSE r.state END,
        attempts_before = CASE WHEN r.is_counted THEN d.attempts_before ELSE coalesce(d.attempts_before, 0) + 1 END,
        next_attempt_at = coalesce(r.due, d.next_attempt_at), updated_at = r.now
    FROM result r WHERE d.id = r.id AND d.claim_epoch = r.epoch AND d.state + 0 = {delivering}
    RETURNING r.result, d.state, r.id, r.number, r.attempt_id, r.destination_id, r.sent_at, r.duration_ms, r.outcome,
        r.status_code, r.error, r.failure, r.response_body, r.signed_at, r.connection, r.response_headers, r.latency,
        r.now, d.flow_id,
        CASE WHEN d.ordering_key IS NOT NULL AND (d.state <> {retrying}
            OR r.is_counted AND r.number >= (SELECT live.skip_after_attempts FROM live WHERE live.id = r.destination_id))
            THEN d.ordering_key END
            AS freed_key
), recorded AS (
    -- The attempts of these. A result of a lost claim leaves no trace.
    INSERT INTO attempts (delivery_id, number, id, destination_id, sent_at, duration_ms, outcome, status_code, error,
        failure, response_body, signed_at, connection, response_headers, flow_id)
    SELECT id, number, attempt_id, destination_id, sent_at, duration_ms, outcome, status_code, error,
        failure, response_body, signed_at, connection, response_headers, flow_id
    FROM settled
), counted AS (
    -- Their traffic, by the bucket of 10 s in which they started.
    INSERT INTO traffic_changes (destination_id, at, sends, delivered, failed, dead, throttled, last_success_at, latencies,
        attempts)
    SELECT destination_id, at, count(sent_at), count(*) FILTER (WHERE outcome = {outcome_delivered}), count(*) FILTER (WHERE outcome <> {outcome_delivered}),
        count(*) FILTER (WHERE state IN ({failed}, {dead})), count(*) FILTER (WHERE outcome <> {outcome_delivered} AND status_code = 429),
        max(now) FILTER (WHERE outcome = {outcome_delivered}),
        array_agg(latency) FILTER (WHERE latency IS NOT NULL), array_agg(number) FILTER (WHERE outcome = {outcome_delivered})
    FROM (
        SELECT *, coalesce(sent_at, now) - coalesce(sent_at, now) % 10000000000 AS at FROM settled
    ) attempt GROUP BY destination_id, at
)
SELECT result, state, freed_key FROM settled");

const DESTINATION_OF: &str = "SELECT destination_id FROM deliveries WHERE id = $1";

const LOCK_DESTINATION: &str = "SELECT ordered FROM destinations WHERE id = $1 AND deleted_at IS NULL FOR KEY SHARE";

const LOCK_DELIVERY: &str =
    "SELECT destination_id, state, expires_at, ordering_key FROM deliveries WHERE id = $1 FOR UPDATE";

const RETRY_ENDED: &str = sql! {"
UPDATE deliveries SET state = {pending}, is_replay = false, replaced = NULL, next_attempt_at = $3, updated_at = $2,
    ordering_key = CASE WHEN $4 THEN ordering_key END
WHERE id = $1"};

/// A delivery behind the head of its message group stays there. A delivery of a replay becomes live, because a person
/// asked for it.
const PULL_FORWARD: &str = sql! {"
UPDATE deliveries SET is_replay = false, next_attempt_at = least(next_attempt_at, $2), updated_at = $2
WHERE id = $1 AND state + 0 IN ({waiting}) AND next_attempt_at < {end_of_time}"};

const CANCEL: &str = sql!("UPDATE deliveries SET state = {cancelled}, updated_at = $2 WHERE id = $1");

/// The results that one caller records.
pub(crate) struct Settling(Vec<Arc<AttemptResult>>);

#[async_trait]
impl Operation for Settling {
    type Answer = Vec<Settlement>;

    const NAME: &'static str = "settle";

    fn rows(&self) -> usize {
        self.0.len()
    }

    async fn run(
        batch: &[&Self],
        connection: &mut PgConnection,
        shared: &Shared,
    ) -> Result<Vec<Self::Answer>, sqlx::Error> {
        let all: Vec<&AttemptResult> = batch.iter().flat_map(|settling| &settling.0).map(Arc::as_ref).collect();
        let settled = settle_all(&all, connection, &shared.keyring).await?;
        let mut settlements = settled.advance(connection).await.into_iter();
        Ok(batch.iter().map(|settling| settlements.by_ref().take(settling.0.len()).collect()).collect())
    }
}

/// Settles claimed deliveries by their results, in one statement. The answers are in the order of the results.
pub(crate) async fn settle_all(
    results: &[&AttemptResult],
    connection: &mut PgConnection,
    keyring: &Keyring,
) -> Result<Settled, sqlx::Error> {
    // If two results name one claim, the first one counts.
    let mut claims: HashSet<Claim> = HashSet::with_capacity(results.len());
    let mut indexes: Vec<usize> = (0..results.len()).filter(|&at| claims.insert(results[at].claim)).collect();
    // Every process updates rows in the order of their ids, which prevents deadlocks.
    indexes.sort_by_key(|&at| results[at].claim.delivery_id);
    let all: Vec<&AttemptResult> = indexes.iter().map(|&at| results[at]).collect();
    let response_bodies = column(&all, |result| rows::response_body(&result.attempt, keyring));
    // One column for each property. One statement moves the deliveries and records the attempts.
    let rows = sqlx::query(SETTLE)
        .bind(column(&all, |result| uuid(result.claim.delivery_id.as_bytes())))
        .bind(column(&all, |result| result.claim.epoch))
        .bind(column(&all, |result| uuid(result.claim.destination_id.as_bytes())))
        .bind(column(&all, |result| state_code(result.next_state().0)))
        .bind(column(&all, |result| result.next_state().1.map(Timestamp::as_nanos)))
        .bind(column(&all, |result| result.now.as_nanos()))
        .bind(column(&all, |result| result.attempt.number as i32))
        .bind(column(&all, |result| uuid(result.attempt.id.as_bytes())))
        .bind(column(&all, |result| result.attempt.sent_at.map(Timestamp::as_nanos)))
        .bind(column(&all, |result| i64::from(result.attempt.duration_ms)))
        .bind(column(&all, |result| outcome_code(result.attempt.outcome)))
        .bind(column(&all, |result| result.attempt.status_code.map(i32::from)))
        .bind(column(&all, |result| result.attempt.error.as_deref().map(storable)))
        .bind(column(&all, |result| result.attempt.failure.map(failure_code)))
        .bind(column(&response_bodies, |body| body.as_ref().map(|body| body.as_bytes())))
        .bind(column(&all, |result| result.attempt.details.signed_at.map(Timestamp::as_nanos)))
        .bind(column(&all, |result| connection_json(&result.attempt.details)))
        .bind(column(&all, |result| response_headers_json(&result.attempt.details)))
        .bind(column(&all, |result| result.latency_bucket().map(|bucket| bucket as i16)))
        .bind(column(&all, |result| result.is_counted))
        .fetch_all(connection)
        .await?;
    // A result without a row belongs to a claim that is no longer valid.
    let mut settled = Settled { settlements: vec![Settlement::ClaimLost; results.len()], leaving: Vec::new() };
    for row in &rows {
        let (_, &at) = named(row, 0, &indexes)?;
        settled.settlements[at] = Settlement::Settled(row.state(1)?);
        let Claim { delivery_id, destination_id, .. } = results[at].claim;
        if let Some(ordering_key) = row.optional_text(2)? {
            let message_group = MessageGroup { destination_id, ordering_key };
            settled.leaving.push(Leaving { at, delivery_id, message_group });
        }
    }
    Ok(settled)
}

/// The settlements of a statement, and the deliveries that must leave their message groups.
pub(crate) struct Settled {
    pub(crate) settlements: Vec<Settlement>,
    leaving: Vec<Leaving>,
}

/// A delivery that must leave its message group.
struct Leaving {
    /// The index of its settlement.
    at: usize,
    delivery_id: DeliveryId,
    message_group: MessageGroup,
}

impl Settled {
    /// Advances the message groups. Called after the commit. Returns the settlements.
    pub(crate) async fn advance(mut self, connection: &mut PgConnection) -> Vec<Settlement> {
        let message_groups: BTreeSet<MessageGroup> =
            self.leaving.iter().map(|leaving| leaving.message_group.clone()).collect();
        // A delivery that is skipped waits again. Unlike an ended one, it must be taken out of its group.
        let skipped = |leaving: &&Leaving| self.settlements[leaving.at].state().is_some_and(DeliveryState::is_waiting);
        let skipped: Vec<DeliveryId> = self.leaving.iter().filter(skipped).map(|leaving| leaving.delivery_id).collect();
        let dues = advance(&message_groups, &skipped, connection).await;
        // Tell each caller when the new head is due, so that it wakes the destination.
        let dues: BTreeMap<&MessageGroup, Timestamp> =
            message_groups.iter().zip(dues).filter_map(|(message_group, due)| Some((message_group, due?))).collect();
        for leaving in &self.leaving {
            let state = self.settlements[leaving.at].state();
            if let (Some(state), Some(&next_due)) = (state, dues.get(&leaving.message_group)) {
                self.settlements[leaving.at] = Settlement::Advanced { state, next_due };
            }
        }
        self.settlements
    }
}

/// PostgreSQL's text type cannot hold the character U+0000, so it is replaced.
fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// The current values of a locked delivery.
struct LockedDelivery {
    destination_id: DestinationId,
    state: DeliveryState,
    expires_at: Option<Timestamp>,
    message_group: Option<MessageGroup>,
}

/// Locks a delivery until the end of the transaction.
async fn lock_delivery(connection: &mut PgConnection, id: DeliveryId) -> Result<Option<LockedDelivery>, sqlx::Error> {
    let row = sqlx::query(LOCK_DELIVERY).bind(uuid(id.as_bytes())).fetch_optional(connection).await?;
    let Some(row) = &row else { return Ok(None) };
    let destination_id = row.destination_id(0)?;
    let message_group = row.optional_text(3)?.map(|ordering_key| MessageGroup { destination_id, ordering_key });
    Ok(Some(LockedDelivery { destination_id, state: row.state(1)?, expires_at: row.optional_time(2)?, message_group }))
}

async fn update_delivery(
    connection: &mut PgConnection,
    sql: &'static str,
    id: DeliveryId,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    sqlx::query(sql).bind(uuid(id.as_bytes())).bind(now.as_nanos()).execute(connection).await.map(drop)
}

/// Makes an ended delivery wait again: due now, or in its message group, if it has one and its destination is still
/// ordered. In the group it is first behind the head; [`advance`], after the commit, makes it the head if there is
/// none.
pub(crate) async fn make_waiting(
    connection: &mut PgConnection,
    id: DeliveryId,
    message_group: Option<&MessageGroup>,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let due = if message_group.is_some() { BEHIND } else { now };
    let waiting = sqlx::query(RETRY_ENDED).bind(uuid(id.as_bytes())).bind(now.as_nanos()).bind(due.as_nanos());
    waiting.bind(message_group.is_some()).execute(connection).await.map(drop)
}

async fn retry_delivery(
    connection: &mut PgConnection,
    id: DeliveryId,
    now: Timestamp,
    activity: &Activity,
) -> Result<DeliveryAction, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let of = sqlx::query_scalar(DESTINATION_OF).bind(uuid(id.as_bytes()));
    let Some(destination) = of.fetch_optional(&mut *transaction).await? else {
        return Ok(DeliveryAction::NotFound);
    };
    // The destination is locked first, as in a deletion.
    let live = sqlx::query(LOCK_DESTINATION).bind::<Uuid>(destination).fetch_optional(&mut *transaction).await?;
    // Under its own lock the delivery stays as it is now until the commit.
    let Some(LockedDelivery { destination_id, state, expires_at, message_group }) =
        lock_delivery(&mut transaction, id).await?
    else {
        return Ok(DeliveryAction::NotFound);
    };
    // Cases in which the retry is refused. Nothing has been changed before, so the transaction needs no commit.
    let Some(live) = live else {
        return Ok(DeliveryAction::DestinationGone);
    };
    if state == DeliveryState::Delivering {
        return Ok(DeliveryAction::Refused(state));
    }
    if expires_at.is_some_and(|at| at <= now) {
        // Release the lock now, not at the next use of the connection: the sweep skips locked rows.
        transaction.rollback().await?;
        return Ok(DeliveryAction::Expired);
    }
    record(&mut transaction, activity).await?;
    // The key counts only while the destination is ordered.
    let message_group = message_group.filter(|_| live.flag(0).is_ok_and(|ordered| ordered));
    // A waiting delivery is due now, unless it is behind a head. An ended one waits again.
    if state.is_waiting() {
        update_delivery(&mut transaction, PULL_FORWARD, id, now).await?;
        transaction.commit().await?;
        return Ok(DeliveryAction::Done { destination_id });
    }
    make_waiting(&mut transaction, id, message_group.as_ref(), now).await?;
    transaction.commit().await?;
    // After the commit the advance may make it the head. As the head it is due now.
    if message_group.is_some() {
        advance(&message_group.into_iter().collect(), &[], connection).await;
        update_delivery(connection, PULL_FORWARD, id, now).await?;
    }
    Ok(DeliveryAction::Done { destination_id })
}

async fn cancel_delivery(
    connection: &mut PgConnection,
    id: DeliveryId,
    now: Timestamp,
    activity: &Activity,
) -> Result<DeliveryAction, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let Some(LockedDelivery { destination_id, state, message_group, .. }) = lock_delivery(&mut transaction, id).await?
    else {
        return Ok(DeliveryAction::NotFound);
    };
    if !state.is_waiting() {
        return Ok(DeliveryAction::Refused(state));
    }
    update_delivery(&mut transaction, CANCEL, id, now).await?;
    record(&mut transaction, activity).await?;
    transaction.commit().await?;
    advance(&message_group.into_iter().collect(), &[], connection).await;
    Ok(DeliveryAction::Done { destination_id })
}
