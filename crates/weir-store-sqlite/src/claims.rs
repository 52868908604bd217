//! Claims: each destination's oldest due deliveries, with their bodies, and the journal of what is out.

use std::ops::ControlFlow;

use rusqlite::{Connection, Row};
use weir_core::{
    DeliveryId, DeliveryState, EventId, ReplayId, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::EventBody,
    order::BEHIND,
};
use weir_store::{ClaimRequest, Claims, lane};

use crate::{
    error::{Error, Result},
    group::Claiming,
    live::{BatchId, Journal, LiveClaim},
    rows::{self, Columns as _, delivery_id, destination_id, event_id, int, optional_time, small, time},
    sql::{Values, execute, query, walk},
    writer::Transaction,
};

/// The oldest waiting deliveries of one destination after a place, by its part of the due index: a long backlog costs no
/// more than a short one, and no destination stands in the way of another. They come in the order of the index; the
/// subquery's LIMIT keeps the planner from folding it into the join.
pub(crate) const WAITING: &str = "
SELECT d.id, due.next_attempt_at, d.event_id, d.attempts, coalesce(d.deliver_at, d.created_at), d.expires_at,
    d.attempts_before, d.replay_id, d.ordering_key IS NOT NULL FROM (
    SELECT id, next_attempt_at FROM deliveries INDEXED BY deliveries_due
    WHERE destination_id = ? AND state IN (0, 2) AND (next_attempt_at, id) > (?, ?) ORDER BY next_attempt_at, id LIMIT +?
) due CROSS JOIN deliveries d ON d.id = due.id";

pub(crate) const BODY: &str = "SELECT data_offset, body FROM events INDEXED BY events_id WHERE id = ?";

const INSERT_JOURNAL: &str = "INSERT INTO claims (id, deliveries) VALUES (?, ?)";
const REWRITE_JOURNAL: &str = "UPDATE claims SET deliveries = ?2 WHERE id = ?1";
const DELETE_JOURNAL: &str = "DELETE FROM claims WHERE id = ?";
const SELECT_JOURNAL: &str = "SELECT id, deliveries FROM claims ORDER BY id";
const SELECT_CLAIMED: &str = "SELECT destination_id, attempts, state, attempts_before, next_attempt_at,
    ordering_key IS NOT NULL FROM deliveries WHERE id = ? AND state < 3";

/// A waiting delivery without its body.
struct Waiting {
    id: DeliveryId,
    event_id: EventId,
    attempts: u32,
    attempts_before: u32,
    /// From when its age counts.
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    in_line: bool,
}

impl Waiting {
    fn read(row: &Row<'_>) -> Result<Self> {
        let replayed_at = row.optional_blob(7)?.map(|_| rows::id(row, 7).map(|id| ReplayId::from_bytes(id).made_at()));
        Ok(Self {
            id: delivery_id(row, 0)?,
            event_id: event_id(row, 2)?,
            attempts: small(row, 3)?,
            attempts_before: row.optional_int(6)?.map(|_| small(row, 6)).transpose()?.unwrap_or(0),
            created_at: replayed_at.transpose()?.map_or_else(|| time(row, 4), Ok)?,
            expires_at: optional_time(row, 5)?,
            in_line: int(row, 8)? == 1,
        })
    }
}

impl Transaction<'_, '_> {
    pub(crate) fn claim(&mut self, operations: &mut [Claiming]) -> Result<()> {
        for operation in operations {
            let (requests, now) = &operation.input;
            let claims: Result<Vec<Claims>> = requests.iter().map(|request| self.claim_one(request, *now)).collect();
            operation.answer = Some(claims?);
        }
        Ok(())
    }

    fn claim_one(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<Claims> {
        self.claim_part(request, now, false)
    }

    pub(crate) fn claim_of_lane(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<Claims> {
        self.claim_part(request, now, true)
    }

    /// Nothing for paused and deleted destinations. What is live ends where the lane begins.
    fn claim_part(&mut self, request: &ClaimRequest, now: Timestamp, in_lane: bool) -> Result<Claims> {
        let mut claims = Claims::default();
        let id = request.destination_id;
        if self.destinations.get(id).is_none_or(|destination| destination.settings.paused) {
            return Ok(claims);
        }
        let wanted = request.limit as usize;
        let floor = self.claims.floor(id, in_lane);
        // One more than may be passed over and taken, for the due time of what remains.
        let most = wanted + self.claims.count(id) + 1;
        let mut values = Values::with_capacity(4);
        values.blob(id.as_bytes()).int(floor.0.as_nanos()).blob(floor.1.as_bytes()).int(most as i64);
        let mut up_to = floor;
        let mut expired = Vec::new();
        walk(self.connection, WAITING, &values, |row| {
            let place = (time(row, 1)?, delivery_id(row, 0)?);
            if lane::is_in_lane(place.0) != in_lane {
                return Ok(ControlFlow::Break(()));
            }
            if !self.claims.is_claimed(place.1) {
                let looked_at = claims.deliveries.len() + expired.len();
                let due = lane::due(place.0);
                if looked_at == wanted || due > now {
                    let is_due_ever = place.0 < BEHIND;
                    claims.next_due = Some(due).filter(|_| is_due_ever && (wanted == 0 || looked_at < wanted));
                    return Ok(ControlFlow::Break(()));
                }
                let waiting = Waiting::read(row)?;
                if waiting.expires_at.is_some_and(|at| at <= now) {
                    expired.push(waiting);
                } else {
                    let taken = self.take(&waiting, request, now, in_lane)?;
                    claims.deliveries.push(taken);
                }
            }
            up_to = place;
            Ok(ControlFlow::Continue(()))
        })?;
        if up_to != floor {
            self.claims.raise_floor(id, up_to);
        }
        if !expired.is_empty() {
            claims.next_due = Some(now);
            for waiting in expired {
                self.bodies.take(waiting.event_id);
                self.expire(waiting.id, waiting.in_line, now)?;
            }
        }
        Ok(claims)
    }

    fn take(
        &mut self,
        waiting: &Waiting,
        request: &ClaimRequest,
        now: Timestamp,
        in_lane: bool,
    ) -> Result<ClaimedDelivery> {
        let claim = Claim { delivery_id: waiting.id, destination_id: request.destination_id, epoch: self.batch };
        let &Waiting { attempts, attempts_before, event_id, in_line, .. } = waiting;
        let &ClaimRequest { expires_at, .. } = request;
        self.claims.make(LiveClaim {
            claim,
            expires_at,
            attempts,
            attempts_before,
            in_lane,
            in_line,
            made_at: now,
            at_birth: false,
        });
        Ok(ClaimedDelivery {
            claim,
            event_id,
            event_created_at: waiting.created_at,
            attempts,
            attempts_before,
            in_lane,
            body: ClaimedBody::Inline(self.body(event_id)?),
            expires_at: request.expires_at,
            destination: None,
        })
    }

    fn body(&mut self, id: EventId) -> Result<EventBody> {
        if let Some(body) = self.bodies.take(id) {
            return Ok(body);
        }
        let mut values = Values::default();
        values.blob(id.as_bytes());
        query(self.connection, BODY, &values, |row| rows::body(row, 0))?.pop().ok_or(Error::Corrupt("a body"))
    }

    /// Writes down what is claimed, and strikes out what is not any more.
    pub(crate) fn keep_journal(&mut self) -> Result<()> {
        let Journal { over, rewritten } = self.claims.journal();
        for batch in over {
            strike_out(self.connection, batch)?;
        }
        for (batch, left) in rewritten {
            self.write_journal(REWRITE_JOURNAL, batch, left.iter())?;
        }
        if self.claims.made().next().is_some() {
            self.write_journal(INSERT_JOURNAL, self.batch, self.claims.made())?;
        }
        Ok(())
    }

    fn write_journal<'l>(&self, sql: &str, batch: BatchId, claims: impl Iterator<Item = &'l LiveClaim>) -> Result<()> {
        let mut values = Values::default();
        values.int(batch).owned_blob(claims.flat_map(Entry::bytes_of).collect());
        execute(self.connection, sql, &values).map(drop)
    }
}

/// What the journal keeps of a claim: the delivery's id, when the claim expires, and the attempts counted before it.
struct Entry {
    delivery_id: DeliveryId,
    expires_at: Timestamp,
    attempts: u32,
}

impl Entry {
    const SIZE: usize = 28;

    fn bytes_of(live: &LiveClaim) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..16].copy_from_slice(live.claim.delivery_id.as_bytes());
        bytes[16..24].copy_from_slice(&live.expires_at.as_nanos().to_be_bytes());
        bytes[24..].copy_from_slice(&live.attempts.to_be_bytes());
        bytes
    }

    fn read_all(mut bytes: &[u8]) -> Result<Vec<Self>> {
        let mut entries = Vec::with_capacity(bytes.len() / Self::SIZE);
        while let Some((id, rest)) = bytes.split_first_chunk() {
            let (expires_at, rest) = rest.split_first_chunk().ok_or(Error::Corrupt("a claim"))?;
            let (attempts, rest) = rest.split_first_chunk().ok_or(Error::Corrupt("a claim"))?;
            entries.push(Self {
                delivery_id: DeliveryId::from_bytes(*id),
                expires_at: Timestamp::from_nanos(i64::from_be_bytes(*expires_at)),
                attempts: u32::from_be_bytes(*attempts),
            });
            bytes = rest;
        }
        Ok(entries)
    }
}

/// The claims that an engine before this one left, and the last batch it wrote.
pub(crate) fn load(connection: &Connection) -> Result<(Vec<LiveClaim>, BatchId)> {
    let batch = |row: &Row<'_>| Ok((int(row, 0)?, Entry::read_all(row.optional_blob(1)?.unwrap_or_default())?));
    let mut left = Vec::new();
    let mut last = 0;
    for (batch, entries) in query(connection, SELECT_JOURNAL, &Values::default(), batch)? {
        last = batch;
        let before = left.len();
        for entry in entries {
            left.extend(still_claimed(connection, batch, &entry)?);
        }
        if left.len() == before {
            strike_out(connection, batch)?;
        }
    }
    Ok((left, last))
}

fn strike_out(connection: &Connection, batch: BatchId) -> Result<()> {
    let mut values = Values::default();
    values.int(batch);
    execute(connection, DELETE_JOURNAL, &values).map(drop)
}

/// Whether the delivery waits with as many attempts as when it was claimed: then the claim has not ended.
fn still_claimed(connection: &Connection, batch: BatchId, entry: &Entry) -> Result<Option<LiveClaim>> {
    let &Entry { delivery_id, expires_at, attempts } = entry;
    let mut values = Values::default();
    values.blob(delivery_id.as_bytes());
    let read = |row: &Row<'_>| {
        Ok(LiveClaim {
            claim: Claim { delivery_id, destination_id: destination_id(row, 0)?, epoch: batch },
            expires_at,
            attempts: small(row, 1)?,
            attempts_before: row.optional_int(3)?.map(|_| small(row, 3)).transpose()?.unwrap_or(0),
            in_lane: lane::is_in_lane(time(row, 4)?),
            in_line: int(row, 5)? == 1,
            // When it was made is not known any more; the delivery's last change stands for it.
            made_at: Timestamp::MIN,
            at_birth: rows::state(row, 2)? == DeliveryState::Delivering,
        })
    };
    let found = query(connection, SELECT_CLAIMED, &values, read)?.pop();
    Ok(found.filter(|live| live.attempts == attempts))
}
