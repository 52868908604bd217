//! Claims: the deliveries of many destinations in one statement, with their bodies.

use std::collections::{HashMap, HashSet};

use rusqlite::Row;
use weir_core::{
    DestinationId, EventId, Timestamp,
    claim::{Claim, ClaimedDelivery},
    event::EventBody,
};
use weir_store::{ClaimRequest, Claims};

use crate::{
    error::{Error, Result},
    rows::{self, delivery_id, destination_id, event_id, int, small, time},
    sql::{Batch, Values, padded, query},
    writer::{Claiming, Transaction},
};

/// One arm for each destination: its oldest due deliveries, found by its part of the due index and bounded by LIMIT, so a
/// long backlog costs no more than a short one and no destination stands in the way of another. Materialized, or the
/// planner would multiply the update by the arms.
pub(crate) static CLAIM: Batch = Batch::new(
    "WITH due (id, expires_at, now) AS MATERIALIZED (",
    "SELECT * FROM (SELECT id, ?, ? FROM deliveries INDEXED BY deliveries_due
        WHERE destination_id = ? AND state IN (0, 2) AND next_attempt_at <= ? ORDER BY next_attempt_at, id LIMIT +?)",
    " UNION ALL ",
    ") UPDATE OR ROLLBACK deliveries SET state = 1, claim_epoch = claim_epoch + 1, claim_expires_at = due.expires_at, updated_at = due.now
    FROM due WHERE deliveries.id = due.id
    RETURNING id, event_id, destination_id, claim_epoch, attempts, created_at, next_attempt_at",
);
/// SQLite allows 500 arms; a statement of that many would be slow to prepare.
const MAX_ARMS: usize = 64;

pub(crate) const NEXT_DUE: &str = "
SELECT next_attempt_at FROM deliveries INDEXED BY deliveries_due
WHERE destination_id = ? AND state IN (0, 2) ORDER BY next_attempt_at LIMIT 1";

pub(crate) const BODY: &str = "SELECT data_offset, body FROM events INDEXED BY events_id WHERE id = ?";

/// A request of the group under way: where its answer belongs.
struct Asked<'r> {
    operation: usize,
    index: usize,
    request: &'r ClaimRequest,
    now: Timestamp,
}

/// A claimed row, without its body.
struct Taken {
    claim: Claim,
    event_id: EventId,
    attempts: u32,
    created_at: Timestamp,
    due: Timestamp,
}

impl Taken {
    fn read(row: &Row<'_>) -> Result<Self> {
        Ok(Self {
            claim: Claim {
                delivery_id: delivery_id(row, 0)?,
                destination_id: destination_id(row, 2)?,
                epoch: int(row, 3)?,
            },
            event_id: event_id(row, 1)?,
            attempts: small(row, 4)?,
            created_at: time(row, 5)?,
            due: time(row, 6)?,
        })
    }
}

impl Transaction<'_, '_> {
    pub(crate) fn claim(&mut self, operations: &mut [Claiming]) -> Result<()> {
        if operations.is_empty() {
            return Ok(());
        }
        let mut answers: Vec<Vec<Claims>> =
            operations.iter().map(|operation| vec![Claims::default(); operation.input.0.len()]).collect();
        for wave in self.waves(operations) {
            for part in wave.chunks(MAX_ARMS) {
                self.claim_part(part, &mut answers)?;
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

    fn claim_part(&mut self, asked: &[Asked<'_>], answers: &mut [Vec<Claims>]) -> Result<()> {
        let taken = self.take(asked)?;
        let bodies = self.bodies_of(&taken)?;
        let arms: HashMap<DestinationId, &Asked<'_>> =
            asked.iter().map(|one| (one.request.destination_id, one)).collect();
        for row in taken {
            let one = arms.get(&row.claim.destination_id).ok_or(Error::Corrupt("a claim"))?;
            let body = self.bodies.get(row.event_id).or_else(|| bodies.get(&row.event_id));
            answers[one.operation][one.index].deliveries.push(ClaimedDelivery {
                claim: row.claim,
                event_id: row.event_id,
                event_created_at: row.created_at,
                attempts: row.attempts,
                body: body.cloned().ok_or(Error::Corrupt("a body"))?,
                expires_at: one.request.expires_at,
            });
        }
        let short = |one: &&Asked<'_>| {
            let brought = answers[one.operation][one.index].deliveries.len();
            brought < one.request.limit as usize || one.request.limit == 0
        };
        let short: Vec<&Asked<'_>> = asked.iter().filter(short).collect();
        let next_due = self.next_due(&short)?;
        for one in short {
            answers[one.operation][one.index].next_due = next_due.get(&one.request.destination_id).copied().flatten();
        }
        Ok(())
    }

    /// Claims what is due, each destination's oldest first.
    fn take(&mut self, asked: &[Asked<'_>]) -> Result<Vec<Taken>> {
        let arms: Vec<&Asked<'_>> = asked.iter().filter(|one| one.request.limit > 0).collect();
        if arms.is_empty() {
            return Ok(Vec::new());
        }
        let size = padded(arms.len());
        let mut values = Values::with_capacity(5 * size);
        for one in &arms {
            values
                .int(one.request.expires_at.as_nanos())
                .int(one.now.as_nanos())
                .blob(one.request.destination_id.as_bytes())
                .int(one.now.as_nanos())
                .int(one.request.limit.into());
        }
        for _ in arms.len()..size {
            // An arm that finds nothing; SQLite takes no NULL for a limit.
            values.nulls(4).int(0);
        }
        let mut taken = query(self.connection, &CLAIM.sql(size), &values, Taken::read)?;
        // The rows come in no promised order.
        taken.sort_unstable_by_key(|row| (row.due, row.claim.delivery_id));
        Ok(taken)
    }

    /// The bodies that are not in memory any more.
    fn bodies_of(&mut self, taken: &[Taken]) -> Result<HashMap<EventId, EventBody>> {
        let missing: HashSet<EventId> =
            taken.iter().map(|taken| taken.event_id).filter(|&id| self.bodies.get(id).is_none()).collect();
        let mut bodies = HashMap::with_capacity(missing.len());
        for id in missing {
            let mut values = Values::default();
            values.blob(id.as_bytes());
            let body = query(self.connection, BODY, &values, |row| rows::body(row, 0))?.pop();
            bodies.insert(id, body.ok_or(Error::Corrupt("a body"))?);
        }
        Ok(bodies)
    }

    fn next_due(&mut self, asked: &[&Asked<'_>]) -> Result<HashMap<DestinationId, Option<Timestamp>>> {
        let next_due = |one: &&Asked<'_>| {
            let id = one.request.destination_id;
            let mut values = Values::default();
            values.blob(id.as_bytes());
            let due = query(self.connection, NEXT_DUE, &values, |row| time(row, 0))?;
            Ok((id, due.first().copied()))
        };
        asked.iter().map(next_due).collect()
    }
}
