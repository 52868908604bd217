//! The store of the scheduler: claims of many destinations in one statement, releases, recovery, and the reads of the
//! sweep.

use std::collections::{BTreeSet, HashMap, HashSet};

use async_trait::async_trait;
use sqlx::{PgConnection, types::Uuid};
use weir_core::{DestinationId, RateLimit, Timestamp, claim::Claim, limit_key::is_of_key};
use weir_store::{
    ClaimRequest, ClaimedFlow, Claims, DueDestination, KEYLESS_LOOKED_AT, MessageGroup, Outbox, Recovered, SendHistory,
    SentCounts, StoreResult,
    rows::{self, Row as _},
    sql,
};

use crate::{
    PostgresStore, Shared,
    claims::Claiming,
    edit::change,
    errors::store_error,
    flow_statements::{
        DUE_DESTINATIONS, SEND_HISTORY, SEND_HISTORY_OF_FLOWS, SENT_COSTS, SENT_COSTS_OF_FLOWS, SENT_COUNTS,
        SENT_COUNTS_OF_FLOWS,
    },
    message_groups::advance,
    recovery::{Abandoned, recover},
    rows::{column, named, uuid},
    writer::{Operation, Writers},
};

#[async_trait]
impl Outbox for PostgresStore {
    async fn claim(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> StoreResult<Vec<Claims>> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        self.claim_all(requests, now, false).await
    }

    async fn release(&self, claims: Vec<Claim>, now: Timestamp) -> StoreResult<u64> {
        if claims.is_empty() {
            return Ok(0);
        }
        self.releases.ask(Releasing { claims, now }).await
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
        let until = Recovered::latest_expiry(now, all);
        let expired = Abandoned::Expired { until, limit };
        self.edit(|connection| change(recover(connection, &expired, now))).await
    }

    async fn expire_deliveries(&self, now: Timestamp, limit: u32) -> StoreResult<u64> {
        self.edit(|connection| change(expire(connection, now, limit))).await
    }

    async fn send_history(&self, ids: &[DestinationId]) -> StoreResult<Vec<SendHistory>> {
        let mut found: HashMap<_, _> = HashMap::with_capacity(ids.len());
        for (ids, sql) in of_destinations_and_flows(ids, [SEND_HISTORY, SEND_HISTORY_OF_FLOWS]) {
            found.extend(self.read(sqlx::query(sql).bind(ids), rows::send_history).await?);
        }
        Ok(ids.iter().map(|id| found.get(id).copied().unwrap_or_default()).collect())
    }

    async fn sent_counts(&self, ids: &[DestinationId], since: Timestamp, limit: RateLimit) -> StoreResult<SentCounts> {
        let statements = match limit.is_in_costs() {
            false => [SENT_COUNTS, SENT_COUNTS_OF_FLOWS],
            true => [SENT_COSTS, SENT_COSTS_OF_FLOWS],
        };
        let mut found = Vec::new();
        for (ids, sql) in of_destinations_and_flows(ids, statements) {
            let query = sqlx::query(sql).bind(ids).bind(limit.bucket().as_nanos() as i64).bind(since.as_nanos());
            found.extend(self.read(query, |row| Ok((row.int(0)?, row.optional_int(1)?))).await?);
        }
        Ok(rows::sent_counts(found))
    }

    async fn mark_restored(&self, sends_until: Timestamp) -> StoreResult<()> {
        self.edit(|connection| change(mark_restored(connection, sends_until))).await
    }

    async fn maintain(&self, now: Timestamp) -> StoreResult<()> {
        self.make_partitions(now).await.map_err(|error| store_error(&error))
    }
}

/// The destinations and the flows among the ids, each with its statement, if there are any.
fn of_destinations_and_flows(
    ids: &[DestinationId],
    [of_destinations, of_flows]: [&'static str; 2],
) -> impl Iterator<Item = (Vec<Uuid>, &'static str)> {
    let (flows, destinations): (Vec<DestinationId>, Vec<_>) = ids.iter().partition(|id| is_of_key(**id));
    let statements = [(destinations, of_destinations), (flows, of_flows)];
    let statements = statements.map(|(ids, sql)| (column(&ids, |id| uuid(id.as_bytes())), sql));
    statements.into_iter().filter(|(ids, _)| !ids.is_empty())
}

impl PostgresStore {
    /// The destinations or flows with a delivery that is due before a time, after a given one.
    pub(crate) async fn due(
        &self,
        statement: &'static str,
        before: Timestamp,
        after: Option<DestinationId>,
        limit: u32,
    ) -> StoreResult<Vec<DueDestination>> {
        // The id of zeros sorts before every other id.
        let after = after.map_or([0; 16], |id| *id.as_bytes());
        let query = sqlx::query(statement).bind(uuid(&after)).bind(before.as_nanos()).bind(i64::from(limit));
        self.read(query, rows::due_destination).await
    }

    /// The destinations of requests for deliveries without a limit key where none waits. A reader finds out: to look
    /// through a backlog takes long, other claims would wait for it, and the sweep asks for it every few seconds. A delivery
    /// that is stored meanwhile wakes its flow itself.
    async fn idle_destinations(
        &self,
        requests: &[ClaimRequest],
        of_replays: bool,
    ) -> StoreResult<HashSet<DestinationId>> {
        let keyless = requests.iter().filter(|one| one.flow == ClaimedFlow::Keyless);
        let ids: Vec<Uuid> = keyless.map(|one| uuid(one.destination_id.as_bytes())).collect();
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let query = sqlx::query(WITHOUT_KEYLESS).bind(ids).bind(of_replays).bind(i64::from(KEYLESS_LOOKED_AT));
        Ok(self.read(query, |row| row.destination_id(0)).await?.into_iter().collect())
    }

    /// Claims live deliveries, or deliveries of replays.
    pub(crate) async fn claim_all(
        &self,
        requests: Vec<ClaimRequest>,
        now: Timestamp,
        of_replays: bool,
    ) -> StoreResult<Vec<Claims>> {
        let (count, idle) = (requests.len(), self.idle_destinations(&requests, of_replays).await?);
        let is_idle = |one: &ClaimRequest| one.flow == ClaimedFlow::Keyless && idle.contains(&one.destination_id);
        let asked = requests.into_iter().enumerate().filter(|(_, one)| !is_idle(one));
        // Only durable claims wait for the disk.
        let (durable, others): (Vec<_>, Vec<_>) = asked.partition(|(_, one)| one.durable);
        let (durable, others) = tokio::join!(
            claim_through(&self.durable_claims, durable, now, of_replays),
            claim_through(&self.claims, others, now, of_replays)
        );
        let mut answers = vec![Claims::default(); count];
        // If one half fails, the claims of the other half expire, like every claim whose answer is lost.
        for (index, claims) in durable?.into_iter().chain(others?) {
            answers[index] = claims;
        }
        Ok(answers)
    }
}

/// The answers to some requests of a call, each with its index in the call.
async fn claim_through(
    writers: &Writers<Claiming>,
    requests: Vec<(usize, ClaimRequest)>,
    now: Timestamp,
    of_replays: bool,
) -> StoreResult<Vec<(usize, Claims)>> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let (indexes, requests): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
    let claims = writers.ask(Claiming { requests, now, of_replays }).await?;
    Ok(indexes.into_iter().zip(claims).collect())
}

/// Releases claims, as [`Outbox::release`] says. The row of the destination is locked, so that a deletion cannot commit
/// between this read and this commit (destination_edits.rs). `state + 0` makes the planner look up the given deliveries;
/// with `state` it could scan all claims.
pub(crate) const RELEASE: &str = sql! {"
WITH released AS MATERIALIZED (
    -- The claims to release.
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::bigint[]) WITH ORDINALITY
        AS r (id, epoch, destination_id, now, claim)
), live AS MATERIALIZED (
    -- Their destinations that are not deleted.
    SELECT id FROM destinations WHERE id IN (SELECT destination_id FROM released) AND deleted_at IS NULL FOR KEY SHARE
)
-- 6 cancelled, 7 superseded; otherwise as before the claim: 0 pending, 2 retrying. A delivery has been attempted if it
-- has attempts; in a replay, if it has some that count.
UPDATE deliveries d SET claim_expires_at = NULL, claimed_by = NULL, updated_at = r.now,
    state = CASE WHEN r.destination_id NOT IN (SELECT id FROM live) THEN {cancelled} WHEN d.replaced THEN {superseded}
        WHEN d.attempts = CASE WHEN d.replay_id IS NULL THEN 0 ELSE coalesce(d.attempts_before, 0) END
            THEN {pending} ELSE {retrying} END
FROM released r WHERE d.id = r.id AND d.claim_epoch = r.epoch AND d.state + 0 = {delivering}
RETURNING r.claim, CASE WHEN d.state = {superseded} THEN d.ordering_key END"};

/// Of these destinations those where no delivery without a limit key is among the first that wait.
pub(crate) const WITHOUT_KEYLESS: &str = sql! {"
SELECT r.id FROM unnest($1::uuid[]) AS r (id) WHERE NOT EXISTS (
    SELECT FROM (
        SELECT flow_id FROM deliveries WHERE destination_id = r.id AND state IN ({waiting}) AND is_replay = $2
        ORDER BY next_attempt_at, id LIMIT $3
    ) looked WHERE flow_id IS NULL
)"};

const MARK_RESTORED: &str = "
INSERT INTO restored (sends_until) VALUES ($1) ON CONFLICT (single) DO UPDATE SET sends_until = excluded.sends_until";

/// Expires waiting deliveries. Rows that another process has locked are skipped.
pub(crate) const EXPIRE: &str = sql! {"
WITH expired AS MATERIALIZED (
    SELECT id FROM deliveries WHERE expires_at IS NOT NULL AND state IN ({waiting}) AND expires_at <= $1
    ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE deliveries d SET state = {expired}, updated_at = $1 FROM expired WHERE d.id = expired.id
RETURNING d.destination_id, d.ordering_key"};

/// The claims that one caller releases.
pub(crate) struct Releasing {
    claims: Vec<Claim>,
    now: Timestamp,
}

#[async_trait]
impl Operation for Releasing {
    type Answer = u64;

    const NAME: &'static str = "release";

    fn rows(&self) -> usize {
        self.claims.len()
    }

    async fn run(batch: &[&Self], connection: &mut PgConnection, _: &Shared) -> Result<Vec<u64>, sqlx::Error> {
        // The claims of all callers, each with the index of its caller.
        let mut all: Vec<(usize, Claim, Timestamp)> = Vec::new();
        for (operation, releasing) in batch.iter().enumerate() {
            all.extend(releasing.claims.iter().map(|&claim| (operation, claim, releasing.now)));
        }
        // Every process updates rows in the order of their ids, which prevents deadlocks.
        all.sort_by_key(|(_, claim, _)| claim.delivery_id);
        let rows = sqlx::query(RELEASE)
            .bind(column(&all, |(_, claim, _)| uuid(claim.delivery_id.as_bytes())))
            .bind(column(&all, |(_, claim, _)| claim.epoch))
            .bind(column(&all, |(_, claim, _)| uuid(claim.destination_id.as_bytes())))
            .bind(column(&all, |(_, _, now)| now.as_nanos()))
            .fetch_all(&mut *connection)
            .await?;
        // A claim without a row no longer held, and is not counted. A head that its release superseded frees its group.
        let (mut released, mut freed) = (vec![0; batch.len()], BTreeSet::new());
        for row in &rows {
            let (_, &(operation, Claim { destination_id, .. }, _)) = named(row, 0, &all)?;
            released[operation] += 1;
            freed.extend(row.optional_text(1)?.map(|ordering_key| MessageGroup { destination_id, ordering_key }));
        }
        advance(&freed, &[], connection).await;
        Ok(released)
    }
}

async fn expire(connection: &mut PgConnection, now: Timestamp, limit: u32) -> Result<u64, sqlx::Error> {
    let expire = sqlx::query(EXPIRE).bind(now.as_nanos()).bind(i64::from(limit));
    let rows = expire.fetch_all(&mut *connection).await?;
    let mut freed = BTreeSet::new();
    for row in &rows {
        let destination_id = row.destination_id(0)?;
        freed.extend(row.optional_text(1)?.map(|ordering_key| MessageGroup { destination_id, ordering_key }));
    }
    advance(&freed, &[], connection).await;
    Ok(rows.len() as u64)
}

async fn mark_restored(connection: &mut PgConnection, sends_until: Timestamp) -> Result<(), sqlx::Error> {
    sqlx::query(MARK_RESTORED).bind(sends_until.as_nanos()).execute(connection).await.map(drop)
}
