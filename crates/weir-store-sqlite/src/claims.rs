//! Claims: the deliveries of many destinations in two statements, with their bodies.

use std::collections::{HashMap, HashSet};

use weir_core::{
    DeliveryId, DestinationId, EventId, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::EventBody,
};
use weir_store::{ClaimRequest, Claims};

use crate::{
    rows::{self, destination_id, event_id, optional_time},
    sql::{Batch, MAX_ROWS, Values, execute, fetch, padded},
    writer::{Claiming, Transaction},
};

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
                body: body.cloned().map(ClaimedBody::Inline).ok_or_else(|| rows::corrupt("a body"))?,
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
}
