//! The scheduler's side: claims of many destinations in one statement, releases, recovery, and what the sweep asks.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use weir_core::{
    AttemptId, DeliveryId, DestinationId, EventId, Timestamp,
    claim::{Claim, ClaimedDelivery},
    delivery::{Attempt, AttemptOutcome},
    event::EventBody,
    outcome::Verdict,
};
use weir_store::{
    AttemptResult, ClaimRequest, Claims, DueDestination, Outbox, Recovered, SendHistory, Settlement, StoreResult,
};

use crate::{
    SqliteStore,
    rows::{self, count, delivery_id, destination_id, event_id, int, optional_time, small, time},
    sql::{Batch, MAX_ROWS, Values, execute, fetch, padded},
    store_error,
    writer::{Claiming, Operation, Recovery, Release, Transaction},
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
        let rows = fetch(&self.readers, DUE_DESTINATIONS, values).await.map_err(|error| store_error(&error))?;
        let due = |row: &SqliteRow| Ok(DueDestination { destination_id: destination_id(row, 0)?, due: time(row, 1)? });
        rows.iter().map(due).collect::<Result<_, sqlx::Error>>().map_err(|error| store_error(&error))
    }

    async fn recover_claims(&self, now: Timestamp, all: bool, limit: u32) -> StoreResult<Recovered> {
        self.ask(Recovery { now, all, limit }, Operation::Recover).await
    }

    async fn send_history(&self, ids: &[DestinationId]) -> StoreResult<Vec<SendHistory>> {
        let history = async {
            let mut histories = Vec::with_capacity(ids.len());
            for part in ids.chunks(MAX_ROWS) {
                let size = padded(part.len());
                let mut values = Values::with_capacity(size);
                for id in part {
                    values.blob(id.as_bytes());
                }
                values.nulls(size - part.len());
                let rows = fetch(&self.readers, SEND_HISTORY.sql(size), values).await?;
                let found: Result<HashMap<DestinationId, SendHistory>, sqlx::Error> =
                    rows.iter().map(read_history).collect();
                let found = found?;
                histories.extend(part.iter().map(|id| found.get(id).copied().unwrap_or_default()));
            }
            Ok(histories)
        };
        history.await.map_err(|error: sqlx::Error| store_error(&error))
    }
}

fn read_history(row: &SqliteRow) -> Result<(DestinationId, SendHistory), sqlx::Error> {
    let history = SendHistory { last_sent_at: optional_time(row, 1)?, unsettled: count(row, 2)? != 0 };
    Ok((destination_id(row, 0)?, history))
}

/// One arm for each destination: its oldest due deliveries, found by its part of the due index and bounded by LIMIT, so a
/// long backlog costs no more than a short one and no destination stands in the way of another. The arms are asked twice
/// in one transaction, which finds the same rows twice: once to read them, once to claim them.
macro_rules! due_arm {
    ($columns:literal) => {
        concat!(
            "SELECT * FROM (SELECT id, ",
            $columns,
            " FROM deliveries INDEXED BY deliveries_due
            WHERE destination_id = ? AND state IN (0, 2) AND next_attempt_at <= ? ORDER BY next_attempt_at, id LIMIT +?)"
        )
    };
}

/// What is due, as one value: sqlx passes each row through a channel between threads, which costs several times what the
/// row does. Read by [`Taken::read_all`]. The join is in the order of the arms.
pub(crate) static DUE: Batch = Batch::new(
    "WITH due (id, arm) AS MATERIALIZED (",
    due_arm!("?"),
    " UNION ALL ",
    ") SELECT CAST(group_concat(d.id || d.event_id || due.arm || ',' || d.claim_epoch || ',' || d.attempts || ',' ||
        d.created_at || ',' || d.next_attempt_at || ';', '') AS BLOB)
    FROM due CROSS JOIN deliveries d ON d.id = due.id",
);

/// Materialized, or the planner would multiply the update by the arms.
pub(crate) static CLAIM: Batch = Batch::new(
    "WITH due (id, expires_at, now) AS MATERIALIZED (",
    due_arm!("?, ?"),
    " UNION ALL ",
    ") UPDATE OR ROLLBACK deliveries SET state = 1, claim_epoch = claim_epoch + 1, claim_expires_at = due.expires_at, updated_at = due.now
    FROM due WHERE deliveries.id = due.id",
);
/// SQLite allows 500 arms; a statement of that many would be slow to prepare.
const MAX_ARMS: usize = 64;

/// The earliest due time of each destination, NULL when nothing waits there.
pub(crate) static NEXT_DUE: Batch = Batch::new(
    "SELECT r.column1, (SELECT next_attempt_at FROM deliveries INDEXED BY deliveries_due
        WHERE destination_id = r.column1 AND state IN (0, 2) ORDER BY next_attempt_at LIMIT 1)
    FROM (VALUES ",
    "(?)",
    ",",
    ") AS r WHERE r.column1 IS NOT NULL",
);

pub(crate) static BODIES: Batch = Batch::new(
    "SELECT e.id, e.data_offset, e.body FROM (VALUES ",
    "(?)",
    ",",
    ") AS r CROSS JOIN events e INDEXED BY events_id ON e.id = r.column1",
);

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

/// A request of the group under way: where its answer belongs.
struct Asked<'r> {
    operation: usize,
    index: usize,
    request: &'r ClaimRequest,
    now: Timestamp,
}

/// A claimed row, without its body.
struct Taken {
    delivery_id: DeliveryId,
    event_id: EventId,
    arm: usize,
    epoch: i64,
    attempts: u32,
    created_at: Timestamp,
    due: Timestamp,
}

impl Taken {
    /// Reads the value of [`DUE`]: two ids as bytes, five numbers with commas between them, and a semicolon, for each row.
    fn read_all(mut rows: &[u8]) -> Option<Vec<Self>> {
        let mut all = Vec::with_capacity(rows.len() / 64);
        while !rows.is_empty() {
            let (delivery_id, rest) = rows.split_first_chunk()?;
            let (event_id, rest) = rest.split_first_chunk()?;
            let end = rest.iter().position(|&byte| byte == b';')?;
            let mut numbers = std::str::from_utf8(&rest[..end]).ok()?.split(',').map(str::parse::<i64>);
            let mut number = || numbers.next()?.ok();
            all.push(Self {
                delivery_id: DeliveryId::from_bytes(*delivery_id),
                event_id: EventId::from_bytes(*event_id),
                arm: usize::try_from(number()?).ok()?,
                // The claim that follows counts one more.
                epoch: number()? + 1,
                attempts: u32::try_from(number()?).ok()?,
                created_at: Timestamp::from_nanos(number()?),
                due: Timestamp::from_nanos(number()?),
            });
            rows = &rest[end + 1..];
        }
        Some(all)
    }
}

impl Values {
    /// The values of an arm after its own columns.
    fn due(&mut self, one: &Asked<'_>) -> &mut Self {
        self.blob(one.request.destination_id.as_bytes()).int(one.now.as_nanos()).int(one.request.limit.into())
    }

    /// Arms that find nothing: NULLs and a limit of 0, where SQLite takes no NULL.
    fn empty_arms(&mut self, columns: usize, count: usize) {
        for _ in 0..count {
            self.nulls(columns).int(0);
        }
    }
}

impl Transaction<'_, '_> {
    pub(crate) async fn claim(&mut self, operations: &mut [Claiming]) -> Result<(), sqlx::Error> {
        if operations.is_empty() {
            return Ok(());
        }
        let mut answers: Vec<Vec<Claims>> =
            operations.iter().map(|operation| vec![Claims::default(); operation.input.0.len()]).collect();
        for wave in self.waves(operations) {
            for part in wave.chunks(MAX_ARMS) {
                self.claim_part(part, &mut answers).await?;
            }
        }
        for (operation, answer) in operations.iter_mut().zip(answers) {
            operation.answer = Some(answer);
        }
        Ok(())
    }

    /// The requests of all operations, in waves that name a destination once: two requests in one statement would find
    /// the same rows. Paused and deleted destinations are left out.
    fn waves<'r>(&self, operations: &'r [Claiming]) -> Vec<Vec<Asked<'r>>> {
        let mut waves: Vec<Vec<Asked<'r>>> = Vec::new();
        let mut times_named: HashMap<DestinationId, usize> = HashMap::new();
        for (operation, claiming) in operations.iter().enumerate() {
            let (requests, now) = &claiming.input;
            for (index, request) in requests.iter().enumerate() {
                let destination = self.destinations.get(request.destination_id);
                if destination.is_none_or(|destination| destination.settings.paused) {
                    continue;
                }
                let wave = times_named.entry(request.destination_id).or_default();
                if waves.len() == *wave {
                    waves.push(Vec::new());
                }
                waves[*wave].push(Asked { operation, index, request, now: *now });
                *wave += 1;
            }
        }
        waves
    }

    async fn claim_part(&mut self, asked: &[Asked<'_>], answers: &mut [Vec<Claims>]) -> Result<(), sqlx::Error> {
        let taken = self.take(asked).await?;
        let bodies = self.bodies_of(&taken).await?;
        for row in taken {
            let one = asked.get(row.arm).ok_or_else(|| rows::corrupt("a claim"))?;
            let body = self.bodies.get(row.event_id).or_else(|| bodies.get(&row.event_id));
            answers[one.operation][one.index].deliveries.push(ClaimedDelivery {
                claim: Claim {
                    delivery_id: row.delivery_id,
                    destination_id: one.request.destination_id,
                    epoch: row.epoch,
                },
                event_id: row.event_id,
                event_created_at: row.created_at,
                attempts: row.attempts,
                body: body.cloned().ok_or_else(|| rows::corrupt("a body"))?,
                expires_at: one.request.expires_at,
            });
        }
        let short = |one: &&Asked<'_>| {
            let brought = answers[one.operation][one.index].deliveries.len();
            brought < one.request.limit as usize || one.request.limit == 0
        };
        let short: Vec<&Asked<'_>> = asked.iter().filter(short).collect();
        let next_due = self.next_due(&short).await?;
        for one in short {
            answers[one.operation][one.index].next_due = next_due.get(&one.request.destination_id).copied().flatten();
        }
        Ok(())
    }

    /// Claims what is due, each destination's oldest first.
    async fn take(&mut self, asked: &[Asked<'_>]) -> Result<Vec<Taken>, sqlx::Error> {
        let arms: Vec<(usize, &Asked<'_>)> =
            asked.iter().enumerate().filter(|(_, one)| one.request.limit > 0).collect();
        if arms.is_empty() {
            return Ok(Vec::new());
        }
        let size = padded(arms.len());
        let mut values = Values::with_capacity(4 * size);
        for (arm, one) in &arms {
            values.int(*arm as i64).due(one);
        }
        values.empty_arms(3, size - arms.len());
        let found = fetch(&mut *self.connection, DUE.sql(size), values).await?;
        let found = found.first().map(|row| rows::optional_blob(row, 0)).transpose()?.flatten().unwrap_or_default();
        let mut taken = Taken::read_all(found).ok_or_else(|| rows::corrupt("a claim"))?;
        if taken.is_empty() {
            return Ok(taken);
        }
        let mut values = Values::with_capacity(5 * size);
        for (_, one) in &arms {
            values.int(one.request.expires_at.as_nanos()).int(one.now.as_nanos()).due(one);
        }
        values.empty_arms(4, size - arms.len());
        if execute(self.connection, CLAIM.sql(size), values).await? != taken.len() as u64 {
            return Err(rows::corrupt("a claim"));
        }
        // Already so in practice; the order of a join is not promised.
        taken.sort_by_key(|row| (row.arm, row.due, row.delivery_id));
        Ok(taken)
    }

    /// The bodies that are not in memory any more.
    async fn bodies_of(&mut self, taken: &[Taken]) -> Result<HashMap<EventId, EventBody>, sqlx::Error> {
        let missing: HashSet<EventId> =
            taken.iter().map(|taken| taken.event_id).filter(|&id| self.bodies.get(id).is_none()).collect();
        let missing: Vec<EventId> = missing.into_iter().collect();
        let mut bodies = HashMap::with_capacity(missing.len());
        for part in missing.chunks(MAX_ROWS) {
            let size = padded(part.len());
            let mut values = Values::with_capacity(size);
            for id in part {
                values.blob(id.as_bytes());
            }
            values.nulls(size - part.len());
            for row in fetch(&mut *self.connection, BODIES.sql(size), values).await? {
                bodies.insert(event_id(&row, 0)?, rows::body(&row, 1)?);
            }
        }
        Ok(bodies)
    }

    async fn next_due(
        &mut self,
        asked: &[&Asked<'_>],
    ) -> Result<HashMap<DestinationId, Option<Timestamp>>, sqlx::Error> {
        let mut next_due = HashMap::with_capacity(asked.len());
        if asked.is_empty() {
            return Ok(next_due);
        }
        let size = padded(asked.len());
        let mut values = Values::with_capacity(size);
        for one in asked {
            values.blob(one.request.destination_id.as_bytes());
        }
        values.nulls(size - asked.len());
        for row in fetch(&mut *self.connection, NEXT_DUE.sql(size), values).await? {
            next_due.insert(destination_id(&row, 0)?, optional_time(&row, 1)?);
        }
        Ok(next_due)
    }

    pub(crate) async fn release(&mut self, operations: &mut [Release]) -> Result<(), sqlx::Error> {
        if operations.is_empty() {
            return Ok(());
        }
        let all: Vec<(Claim, Timestamp)> = operations
            .iter()
            .flat_map(|release| release.input.0.iter().map(|&claim| (claim, release.input.1)))
            .collect();
        let mut held = self.held(all.iter().map(|&(claim, _)| claim)).await?;
        let mut changed = 0;
        for part in all.chunks(MAX_ROWS) {
            let size = padded(part.len());
            let mut values = Values::with_capacity(4 * size);
            for (claim, now) in part {
                let deleted = self.destinations.is_deleted(claim.destination_id);
                values.blob(claim.delivery_id.as_bytes()).int(claim.epoch).int(now.as_nanos()).int(deleted.into());
            }
            values.nulls(4 * (size - part.len()));
            changed += execute(self.connection, RELEASE.sql(size), values).await?;
        }
        self.expect_held(held.len(), changed)?;
        for operation in operations {
            // Taken out as they are counted, so that a claim given back twice counts once.
            operation.answer = Some(operation.input.0.iter().filter(|claim| held.remove(claim)).count() as u64);
        }
        Ok(())
    }

    pub(crate) async fn recover(&mut self, recovery: Recovery) -> Result<Recovered, sqlx::Error> {
        let mut values = Values::default();
        values.int(recovery.all.into()).int(recovery.now.as_nanos()).int(recovery.limit.into());
        let rows = fetch(&mut *self.connection, ABANDONED, values).await?;
        let results: Result<Vec<AttemptResult>, sqlx::Error> =
            rows.iter().map(|row| self.unknown_outcome(row, recovery.now)).collect();
        let settlements = self.settle_all(&results?.iter().collect::<Vec<_>>()).await?;
        let count = |state| settlements.iter().filter(|&&settled| settled == Settlement::Settled(state)).count() as u64;
        Ok(Recovered {
            retried: count(weir_core::DeliveryState::Retrying),
            dead: count(weir_core::DeliveryState::Dead),
            cancelled: count(weir_core::DeliveryState::Cancelled),
        })
    }

    /// The attempt of a claim whose holder is gone: it may have been sent, up to this moment, and it counts.
    fn unknown_outcome(&self, row: &SqliteRow, now: Timestamp) -> Result<AttemptResult, sqlx::Error> {
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
