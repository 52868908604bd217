//! Claims: the oldest due deliveries of each destination, with their bodies.

use std::ops::ControlFlow;

use rusqlite::Row;
use weir_core::{
    DeliveryId, DeliveryState, DestinationId, EventId, ReplayId, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    order::BEHIND,
};
use weir_store::{
    ClaimRequest, ClaimedFlow, Claims, KEYLESS_LOOKED_AT,
    rows::{self, Corrupt, Row as _},
    sql,
};

use crate::{
    SqliteStore,
    commit_batch::Claiming,
    error::Result,
    sql::{Batch, MAX_ROWS, fetch, query, values, visit_rows},
    transaction::Transaction,
};

/// The oldest waiting deliveries from a part of a due index, either live or of replays. The cost does not depend on the
/// backlog. The rows come in the order of the index; the subquery's LIMIT keeps the planner from folding it into the join.
macro_rules! oldest_due {
    ($index:literal, $whose:literal, $only:literal) => {
        concat!(
            "
SELECT d.id, due.next_attempt_at, d.event_id, d.attempts, coalesce(d.attempts_before, 0), d.claim_epoch,
    coalesce(d.deliver_at, d.created_at), d.expires_at, d.replay_id, d.ordering_key IS NOT NULL, d.state, d.cost FROM (
    SELECT id, next_attempt_at FROM deliveries INDEXED BY ",
            $index,
            " WHERE ",
            $whose,
            " = ? AND is_replay = ? AND state IN ({waiting}) ORDER BY next_attempt_at, id LIMIT +?
) due CROSS JOIN deliveries d ON d.id = due.id",
            $only
        )
    };
}

/// Of one destination, so that no destination delays another.
pub(crate) const OLDEST_DUE: &str = sql!(oldest_due!("deliveries_due", "destination_id", ""));
/// Of the flow of one limit key.
pub(crate) const OLDEST_DUE_OF_FLOW: &str = sql!(oldest_due!("deliveries_due_of_flow", "flow_id", ""));
/// Of one destination, those without a limit key among the first.
pub(crate) const OLDEST_DUE_KEYLESS: &str =
    sql!(oldest_due!("deliveries_due", "destination_id", " AND d.flow_id IS NULL"));

/// Whether there is one.
pub(crate) const HAS_KEYLESS: &str =
    sql!(oldest_due!("deliveries_due", "destination_id", " AND d.flow_id IS NULL LIMIT 1"));

/// Claims the deliveries of one request. `+state` makes the planner look up the given ids; with `state` it could scan
/// all waiting deliveries.
pub(crate) static CLAIM: Batch = Batch::new(
    sql! {"UPDATE OR ROLLBACK deliveries SET state = {delivering}, claim_epoch = claim_epoch + 1, claim_expires_at = ?1, updated_at = ?2
    WHERE +state IN ({waiting}) AND id IN ("},
    "?",
    ")",
);

pub(crate) const BODY: &str = "SELECT data_offset, body, traceparent FROM events INDEXED BY events_id WHERE id = ?";

/// A waiting delivery whose `expires_at` has passed. Its state is that before it becomes `expired`.
pub(crate) struct ExpiredDelivery {
    pub(crate) id: DeliveryId,
    pub(crate) destination_id: DestinationId,
    pub(crate) state: DeliveryState,
    pub(crate) in_message_group: bool,
}

/// A waiting delivery without its body.
struct DueDelivery {
    id: DeliveryId,
    event_id: EventId,
    attempts: u32,
    attempts_before: u32,
    /// The epoch of its last claim.
    epoch: i64,
    /// The start of its age: the time of its replay, else `deliver_at`, else the time of its event.
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    in_message_group: bool,
    state: DeliveryState,
    cost: u32,
}

impl DueDelivery {
    fn read(row: &Row<'_>) -> Result<Self> {
        let replayed_at = row.optional_id(8)?.map(|id| ReplayId::from_bytes(id).made_at());
        Ok(Self {
            id: row.delivery_id(0)?,
            event_id: row.event_id(2)?,
            attempts: row.small(3)?,
            attempts_before: row.small(4)?,
            epoch: row.int(5)?,
            created_at: replayed_at.map_or_else(|| row.time(6), Ok)?,
            expires_at: row.optional_time(7)?,
            in_message_group: row.flag(9)?,
            state: row.state(10)?,
            cost: rows::cost(row, 11)?,
        })
    }
}

impl SqliteStore {
    /// For each request, whether the writer can skip it: it asks for deliveries without a limit key, and none waits. A
    /// reader finds that out, because a look through a backlog takes up to 30 ms, which the writer needs for claims and
    /// events, and the sweep makes such requests every few seconds. A delivery that is stored meanwhile wakes its flow.
    pub(crate) async fn idle_requests(&self, requests: &[ClaimRequest], is_replay: bool) -> Result<Vec<bool>> {
        let mut idle = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            if request.flow != ClaimedFlow::Keyless {
                continue;
            }
            let values = values![request.destination_id.as_bytes(), is_replay, KEYLESS_LOOKED_AT];
            if fetch(&self.readers, HAS_KEYLESS, values, |_| Ok(())).await?.is_empty() {
                idle.resize(requests.len(), false);
                idle[index] = true;
            }
        }
        Ok(idle)
    }
}

/// The requests that are not idle.
pub(crate) fn without_idle(requests: Vec<ClaimRequest>, idle: &[bool]) -> Vec<ClaimRequest> {
    if idle.is_empty() {
        return requests;
    }
    requests.into_iter().zip(idle).filter_map(|(request, idle)| (!idle).then_some(request)).collect()
}

/// The claims of all requests: none for those that are idle.
pub(crate) fn with_idle(claims: Vec<Claims>, idle: &[bool]) -> Vec<Claims> {
    if idle.is_empty() {
        return claims;
    }
    let mut claims = claims.into_iter();
    idle.iter().map(|idle| if *idle { None } else { claims.next() }.unwrap_or_default()).collect()
}

impl Transaction<'_, '_> {
    pub(crate) fn claim(&mut self, operations: &mut [Claiming]) -> Result<()> {
        for operation in operations {
            let (requests, now) = &operation.input;
            operation.answer = Some(self.claim_all(requests, *now, false)?);
        }
        Ok(())
    }

    /// Claims live deliveries, or with `is_replay` those of replays.
    pub(crate) fn claim_all(
        &mut self,
        requests: &[ClaimRequest],
        now: Timestamp,
        is_replay: bool,
    ) -> Result<Vec<Claims>> {
        requests.iter().map(|request| self.claim_one(request, now, is_replay)).collect()
    }

    /// Claims nothing for paused and deleted destinations.
    fn claim_one(&mut self, request: &ClaimRequest, now: Timestamp, is_replay: bool) -> Result<Claims> {
        let mut claims = Claims::default();
        let id = request.destination_id;
        if self.destinations.get(id).is_none_or(|destination| destination.settings.paused) {
            return Ok(claims);
        }
        let wanted = request.limit as usize;
        let flow_id = request.flow_id();
        // One more row, for the due time of the next delivery.
        let (oldest_due, rows) = match request.flow {
            ClaimedFlow::All => (OLDEST_DUE, wanted as i64 + 1),
            ClaimedFlow::Key(_) => (OLDEST_DUE_OF_FLOW, wanted as i64 + 1),
            ClaimedFlow::Keyless => (OLDEST_DUE_KEYLESS, KEYLESS_LOOKED_AT.into()),
        };
        // Read in the order of due times, up to the limit or to the first delivery that is not due yet.
        let (mut taken, mut expired) = (Vec::with_capacity(wanted), Vec::new());
        visit_rows(self.connection, oldest_due, &values![flow_id.as_bytes(), is_replay, rows], |row| {
            let due = row.time(1)?;
            let scanned = taken.len() + expired.len();
            if scanned == wanted || due > now {
                // A claim that has reached its limit returns no next due time, except with a limit of 0: such a request
                // asks only for the next due time. Deliveries behind heads are never due.
                let is_asked_for = wanted == 0 || scanned < wanted;
                claims.next_due = Some(due).filter(|due| is_asked_for && *due < BEHIND);
                return Ok(ControlFlow::Break(()));
            }
            let delivery = DueDelivery::read(row)?;
            // An expired delivery is not sent. It counts towards the limit, so that a claim stays bounded.
            let is_expired = delivery.expires_at.is_some_and(|at| at <= now);
            (if is_expired { &mut expired } else { &mut taken }).push(delivery);
            Ok(ControlFlow::Continue(()))
        })?;
        // Make the claims, then read the bodies.
        self.take(&taken, request.expires_at, now)?;
        for delivery in taken {
            self.changes.moved(id, delivery.state, DeliveryState::Delivering, now);
            claims.deliveries.push(self.claimed(&delivery, request, is_replay)?);
        }
        // Expired deliveries used up a part of the limit, so more may be due now.
        for delivery in expired {
            claims.next_due = Some(now);
            self.bodies.take(delivery.event_id);
            let DueDelivery { id: delivery_id, state, in_message_group, .. } = delivery;
            self.expire(&ExpiredDelivery { id: delivery_id, destination_id: id, state, in_message_group }, now)?;
        }
        Ok(claims)
    }

    fn take(&self, taken: &[DueDelivery], expires_at: Timestamp, now: Timestamp) -> Result<()> {
        for part in taken.chunks(MAX_ROWS) {
            let (sql, values) = CLAIM.of(values![expires_at, now], part, |values, delivery| {
                values.bind(delivery.id.as_bytes());
            });
            self.move_on(&sql, &values, part.len())?;
        }
        Ok(())
    }

    fn claimed(&mut self, delivery: &DueDelivery, request: &ClaimRequest, is_replay: bool) -> Result<ClaimedDelivery> {
        let &DueDelivery { attempts, attempts_before, event_id, cost, .. } = delivery;
        let &ClaimRequest { destination_id, expires_at, .. } = request;
        Ok(ClaimedDelivery {
            flow_id: request.flow_id(),
            claim: Claim { delivery_id: delivery.id, destination_id, epoch: delivery.epoch + 1 },
            event_id,
            event_created_at: delivery.created_at,
            attempts,
            attempts_before,
            is_replay,
            cost,
            body: self.body(event_id)?,
            expires_at,
            destination: None,
        })
    }

    fn body(&mut self, id: EventId) -> Result<ClaimedBody> {
        if let Some(body) = self.bodies.take(id) {
            return Ok(ClaimedBody::Inline(body));
        }
        Ok(query(self.connection, BODY, &values![id.as_bytes()], |row| rows::claimed_body(row, 0, id, self.keyring))?
            .pop()
            .ok_or(Corrupt("a body"))?)
    }
}
