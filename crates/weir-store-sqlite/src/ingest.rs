//! Ingest: events are deduplicated, fanned out, and stored with their deliveries in a few statements per commit batch.
//! [`weir_store::intake`] decides, and has the rules of idempotency, coalescing and order.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use rusqlite::Row;
use weir_core::{DeliveryId, DeliveryState, LimitKey, order::BEHIND};
use weir_sealing::BODY;
use weir_store::{
    FastPath, Ingest, NewEvent, Part, StoreResult, event_columns,
    intake::{IngestResult, Intake, Key, KnownKeys, NewDelivery, StoredEvent, key},
    rows::{self, Row as _, state_code},
    sql,
};

use crate::{
    SqliteStore,
    commit_batch::{self, Operation},
    error::Result,
    message_groups::GroupPosition,
    sql::{Batch, MAX_ROWS, Values, execute, query, values},
    transaction::Transaction,
};

#[async_trait]
impl Ingest for SqliteStore {
    async fn ingest_part(&self, events: &Arc<[NewEvent]>, from: usize) -> StoreResult<Vec<IngestResult>> {
        loop {
            let part = Part::of(events, from, self.limits.get(), |new| self.destinations.matches(new));
            part.judge(self).await?;
            let answers = self.ask(part, Operation::Ingest).await?;
            // Without an answer, destinations were created meanwhile, and nothing of the part fitted in the commit.
            if !answers.is_empty() {
                return Ok(answers);
            }
        }
    }

    fn connect(&self, fast_path: Arc<dyn FastPath>) {
        self.fast_path.connect(fast_path);
    }
}

/// The epoch of a delivery that is claimed as it is stored.
const FIRST_EPOCH: i64 = 1;

pub(crate) static INSERT_EVENTS: Batch = Batch::new(
    "INSERT OR ROLLBACK INTO events (id, tenant, event_type, created_at, idempotency_key, data_offset, deliveries, body,
        traceparent, deliver_at, expires_at, coalesce_key, ordering_key, filtered, cost, limit_key)
    SELECT * FROM (VALUES ",
    "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    ") AS r WHERE r.column1 IS NOT NULL",
);

/// A delivery is due at the time of its event, unless it is delayed. A delivery that is claimed as it is stored is
/// `delivering`, so it never enters the due index. An ordered delivery always waits for a run.
pub(crate) static INSERT_DELIVERIES: Batch = Batch::new(
    "INSERT OR ROLLBACK INTO deliveries (id, event_id, destination_id, next_attempt_at, created_at, updated_at,
        state, attempts, deliver_at, expires_at, coalesce_key, cost, flow_id, limit_key, claim_epoch,
        claim_expires_at)
    SELECT r.column1, r.column2, r.column3, coalesce(r.column6, r.column4), r.column4, r.column4, r.column5, 0,
        r.column6, r.column7, r.column8, r.column9, r.column10, r.column11, r.column12 IS NOT NULL, r.column12
        FROM (VALUES ",
    "(?,?,?,?,?,?,?,?,?,?,?,?)",
    ") AS r WHERE r.column1 IS NOT NULL",
);

/// Inserts deliveries with a position in a message group. A separate statement, so that other deliveries pay nothing
/// for order.
pub(crate) static INSERT_INTO_GROUPS: Batch = Batch::new(
    "INSERT OR ROLLBACK INTO deliveries (id, event_id, destination_id, next_attempt_at, created_at, updated_at,
        state, attempts, deliver_at, expires_at, coalesce_key, cost, flow_id, limit_key, ordering_key,
        group_position)
    SELECT r.column1, r.column2, r.column3, coalesce(r.column14, r.column6, r.column4), r.column4, r.column4, r.column5, 0,
        r.column6, r.column7, r.column8, r.column9, r.column10, r.column11, r.column12, r.column13 FROM (VALUES ",
    "(?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    ") AS r WHERE r.column1 IS NOT NULL",
);

/// Finds which of the given idempotency keys are stored, with the event of each and the number of its deliveries.
pub(crate) static KNOWN_KEYS: Batch = Batch::new(
    concat!("SELECT ", event_columns!("e.body"), ", e.deliveries FROM (VALUES "),
    "(?,?)",
    ") AS k CROSS JOIN events e INDEXED BY events_idempotency ON e.tenant = k.column1 AND e.idempotency_key = k.column2",
);

/// The deliveries that coalesce with a new one.
pub(crate) const COALESCING: &str = sql! {"
SELECT id, event_id, state, ordering_key IS NOT NULL FROM deliveries INDEXED BY deliveries_coalescing
WHERE destination_id = ? AND coalesce_key = ? AND coalesce_key IS NOT NULL AND state < {delivered}"};

const SUPERSEDE: &str =
    sql!("UPDATE deliveries SET state = {superseded}, updated_at = ? WHERE id = ? AND state IN ({waiting})");

/// Marks a delivery in flight as replaced.
const REPLACE: &str = "UPDATE deliveries SET replaced = 1, updated_at = ? WHERE id = ?";

impl Transaction<'_, '_> {
    pub(crate) fn ingest(&mut self, ingests: &mut [commit_batch::Ingest]) -> Result<()> {
        if ingests.is_empty() {
            return Ok(());
        }
        let all: Vec<&NewEvent> = ingests.iter().flat_map(|ingest| ingest.input.events()).collect();
        let answers = self.store(&all)?;
        let mut answers = answers.into_iter();
        for ingest in ingests {
            ingest.answer = Some(answers.by_ref().take(ingest.input.events().len()).collect());
        }
        Ok(())
    }

    fn store(&mut self, new: &[&NewEvent]) -> Result<Vec<IngestResult>> {
        // Decide about duplicates, fan-out and the fast path.
        let known = self.known_keys(new)?;
        let Intake { answers, events, deliveries, .. } =
            Intake::of(new, &known, self.destinations, self.limits.of_event, FIRST_EPOCH, self.fast_path_batch);
        self.insert_events(&events)?;
        // Before the new deliveries are stored, so that they do not supersede themselves.
        for delivery in deliveries.iter().filter(|delivery| !delivery.superseded) {
            self.supersede(delivery)?;
        }
        // After the superseded deliveries have left their groups: a new one may be the head instead of behind one.
        let group_positions = self.group_positions(&deliveries)?;
        let (ordered, others): (Vec<NewDelivery<'_>>, _) = match group_positions.is_empty() {
            true => (Vec::new(), deliveries),
            false => deliveries.into_iter().partition(|delivery| group_positions.contains_key(&delivery.id)),
        };
        // Store the deliveries: those without an order, and those with a position in a message group.
        self.insert_deliveries(&INSERT_DELIVERIES, &others, &group_positions)?;
        self.insert_deliveries(&INSERT_INTO_GROUPS, &ordered, &group_positions)?;
        // Keep the bodies for the next runs. Deliveries of the fast path carry theirs.
        for delivery in others.iter().chain(&ordered).filter(|delivery| delivery.is_due_soon()) {
            self.bodies.add(delivery.event.id, &delivery.event.body);
        }
        Ok(answers)
    }

    /// Supersedes the waiting deliveries of the same coalesce key, and marks those in flight as replaced.
    fn supersede(&mut self, newer: &NewDelivery<'_>) -> Result<()> {
        let Some(key) = newer.coalesces_by() else { return Ok(()) };
        let values = values![newer.destination_id.as_bytes(), &key];
        let read = |row: &Row<'_>| Ok((row.delivery_id(0)?, row.event_id(1)?, row.state(2)?, row.flag(3)?));
        for (id, event_id, state, in_message_group) in query(self.connection, COALESCING, &values, read)? {
            // A delivery in flight continues, but does not wait again. A waiting one ends, and needs its body no more.
            let sql = if state == DeliveryState::Delivering {
                REPLACE
            } else {
                self.bodies.take(event_id);
                SUPERSEDE
            };
            execute(self.connection, sql, &values![newer.event.created_at, id.as_bytes()])?;
            if state != DeliveryState::Delivering {
                let at = newer.event.created_at;
                self.changes.moved(newer.destination_id, state, DeliveryState::Superseded, at);
            }
            // If the head of a message group has ended, the next delivery becomes the head.
            if in_message_group && let Some(message_group) = self.message_group_of(id)? {
                self.advance_message_group(&message_group)?;
            }
        }
        Ok(())
    }

    /// The stored events whose idempotency keys the new events use again.
    fn known_keys(&mut self, new: &[&NewEvent]) -> Result<KnownKeys> {
        // Each key once, in as few statements as possible. Events without keys cost nothing.
        let keys: HashSet<Key<'_>> = new.iter().filter_map(|new| key(&new.event)).collect();
        let keys: Vec<Key<'_>> = keys.into_iter().collect();
        let mut known = KnownKeys::new();
        for part in keys.chunks(MAX_ROWS) {
            let (sql, values) = KNOWN_KEYS.of(Values::default(), part, |values, (tenant, key)| {
                values.bind(*tenant).bind(*key);
            });
            known.extend(query(self.connection, &sql, &values, |row| rows::known_event(row, self.keyring))?);
        }
        Ok(known)
    }

    fn insert_events(&mut self, events: &[StoredEvent<'_>]) -> Result<()> {
        for part in events.chunks(MAX_ROWS) {
            let (sql, values) = INSERT_EVENTS.of(Values::default(), part, |values, stored| {
                let StoredEvent { event, deliveries, filtered } = stored;
                values
                    .bind(event.id.as_bytes())
                    .bind(&event.tenant)
                    .bind(&event.event_type)
                    .bind(event.created_at)
                    .bind(event.idempotency_key.as_deref())
                    .bind(event.body.data_offset())
                    .bind(*deliveries)
                    .bind(self.keyring.seal_bytes(&BODY, event.id.as_bytes(), event.body.bytes()))
                    .bind(event.body.trace().map(|trace| trace.to_bytes().to_vec()))
                    .bind(event.options.deliver_at)
                    .bind(event.options.expires_at)
                    .bind(event.options.coalesce_key.as_deref())
                    .bind(event.options.ordering_key.as_deref())
                    .bind(filtered.map(|filtered| filtered.get()))
                    .bind(event.options.cost.map(|cost| cost.get()))
                    .bind(event.options.limit_key.as_ref().map(LimitKey::as_str));
            });
            execute(self.connection, &sql, &values)?;
        }
        Ok(())
    }

    /// `insert` is [`INSERT_INTO_GROUPS`] for deliveries with group positions, and [`INSERT_DELIVERIES`] for the
    /// others.
    fn insert_deliveries(
        &mut self,
        insert: &Batch,
        deliveries: &[NewDelivery<'_>],
        group_positions: &HashMap<DeliveryId, GroupPosition>,
    ) -> Result<()> {
        for part in deliveries.chunks(MAX_ROWS) {
            let (sql, values) = insert.of(Values::default(), part, |values, delivery| {
                // Its first state: superseded by a later event of the commit batch, claimed for the fast path, or
                // waiting.
                let state = match delivery.claimed_until {
                    _ if delivery.superseded => DeliveryState::Superseded,
                    Some(_) => DeliveryState::Delivering,
                    None => DeliveryState::Pending,
                };
                self.changes.arrived(delivery.destination_id, state, delivery.event.created_at);
                values
                    .bind(delivery.id.as_bytes())
                    .bind(delivery.event.id.as_bytes())
                    .bind(delivery.destination_id.as_bytes())
                    .bind(delivery.event.created_at)
                    .bind(state_code(state))
                    .bind(delivery.event.delayed_until())
                    .bind(delivery.event.options.expires_at);
                values.bind(delivery.coalesces_by());
                values.bind(delivery.event.options.cost.map(|cost| cost.get()));
                values.bind(delivery.flow_id().map(|flow| flow.as_bytes().to_vec()));
                values.bind(delivery.limit_key.as_ref().map(LimitKey::as_str));
                // The last columns are the position in the message group, or the expiry of the fast path's claim.
                match group_positions.get(&delivery.id) {
                    Some(position) => {
                        values.bind(delivery.ordering_key).bind(position.position);
                        values.bind(position.is_behind.then_some(BEHIND.as_nanos()));
                    }
                    None => {
                        values.bind(delivery.claimed_until);
                    }
                }
            });
            execute(self.connection, &sql, &values)?;
        }
        Ok(())
    }
}
