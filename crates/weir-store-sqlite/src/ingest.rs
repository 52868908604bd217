//! Events come in: deduplicated, fanned out, and stored with their deliveries in a few statements per group.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use rusqlite::Row;
use weir_core::{DeliveryId, DestinationId, event::Event};
use weir_store::{Ingest, IngestRefusal, Ingested, NewEvent, StoreResult};

use crate::{
    SqliteStore,
    error::{Error, Result},
    rows,
    sql::{Batch, MAX_ROWS, Values, execute, padded, query},
    writer::{self, Operation, Transaction},
};

#[async_trait]
impl Ingest for SqliteStore {
    async fn ingest(&self, events: Vec<NewEvent>) -> StoreResult<Vec<Outcome>> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        self.ask(events, Operation::Ingest).await
    }
}

pub(crate) static INSERT_EVENTS: Batch = Batch::new(
    "INSERT OR ROLLBACK INTO events (id, tenant, event_type, created_at, idempotency_key, data_offset, deliveries, body)
    SELECT * FROM (VALUES ",
    "(?,?,?,?,?,?,?,?)",
    ",",
    ") AS r WHERE r.column1 IS NOT NULL",
);

/// Due at once: a delivery begins with the time of its event as its due time.
pub(crate) static INSERT_DELIVERIES: Batch = Batch::new(
    "INSERT OR ROLLBACK INTO deliveries (id, event_id, destination_id, next_attempt_at, created_at, updated_at,
        state, attempts)
    SELECT r.column1, r.column2, r.column3, r.column4, r.column4, r.column4, 0, 0 FROM (VALUES ",
    "(?,?,?,?)",
    ",",
    ") AS r WHERE r.column1 IS NOT NULL",
);

/// Which of some idempotency keys are known, with their events and how many deliveries those have.
pub(crate) static KNOWN_KEYS: Batch = Batch::new(
    "SELECT e.id, e.tenant, e.event_type, e.created_at, e.idempotency_key, e.data_offset, e.body, e.deliveries
    FROM (VALUES ",
    "(?,?)",
    ",",
    ") AS k CROSS JOIN events e INDEXED BY events_idempotency ON e.tenant = k.column1 AND e.idempotency_key = k.column2",
);

/// What becomes of one event.
type Outcome = std::result::Result<Ingested, IngestRefusal>;

/// A tenant and an idempotency key.
type Key<'e> = (&'e str, &'e str);

fn key(event: &Event) -> Option<Key<'_>> {
    event.idempotency_key.as_deref().map(|key| (event.tenant.as_str(), key))
}

/// A row of deliveries before it is stored.
struct NewDelivery<'e> {
    id: DeliveryId,
    event: &'e Event,
    destination_id: DestinationId,
}

impl Transaction<'_, '_> {
    pub(crate) fn ingest(&mut self, ingests: &mut [writer::Ingest]) -> Result<()> {
        if ingests.is_empty() {
            return Ok(());
        }
        let all: Vec<&NewEvent> = ingests.iter().flat_map(|ingest| &ingest.input).collect();
        let answers = self.store(&all)?;
        let mut answers = answers.into_iter();
        for ingest in ingests {
            ingest.answer = Some(answers.by_ref().take(ingest.input.len()).collect());
        }
        Ok(())
    }

    fn store(&mut self, new: &[&NewEvent]) -> Result<Vec<Outcome>> {
        let known = self.known_keys(new)?;
        let mut answers = Vec::with_capacity(new.len());
        let mut events: Vec<(&Event, usize)> = Vec::with_capacity(new.len());
        let mut deliveries: Vec<NewDelivery<'_>> = Vec::with_capacity(new.len());
        // Where the answer to the first event with a key is, among the events of this group.
        let mut first: HashMap<Key<'_>, usize> = HashMap::new();
        for NewEvent { event, destinations, random } in new.iter().copied() {
            let key = key(event);
            let stored = key.filter(|_| !known.is_empty());
            if let Some(stored) = stored.and_then(|(tenant, key)| known.get(&(tenant.to_owned(), key.to_owned()))) {
                answers.push(Ok(stored.clone()));
                continue;
            }
            if let Some(&at) = key.and_then(|key| first.get(&key)) {
                answers.push(answers_of_first(&answers, at));
                continue;
            }
            let fan_out = match self.fan_out(event, destinations.as_deref()) {
                Ok(fan_out) => fan_out,
                Err(refusal) => {
                    answers.push(Err(refusal));
                    continue;
                }
            };
            first.extend(key.map(|key| (key, answers.len())));
            events.push((event, fan_out.len()));
            deliveries.extend(fan_out.iter().enumerate().map(|(index, &destination_id)| NewDelivery {
                id: delivery_id(event, *random, index),
                event,
                destination_id,
            }));
            answers.push(Ok(Ingested {
                event: event.clone(),
                deliveries: fan_out.len() as u32,
                duplicate: false,
                wake: self.awake(fan_out),
            }));
        }
        self.insert_events(&events)?;
        self.insert_deliveries(&deliveries)?;
        for delivery in &deliveries {
            self.claims.lower_floor(delivery.destination_id, delivery.event.created_at);
        }
        for (event, _) in events {
            self.bodies.insert(event.id, &event.body);
        }
        Ok(answers)
    }

    /// The stored events whose keys are used again.
    fn known_keys(&mut self, new: &[&NewEvent]) -> Result<HashMap<(String, String), Ingested>> {
        let keys: HashSet<Key<'_>> = new.iter().filter_map(|new| key(&new.event)).collect();
        let keys: Vec<Key<'_>> = keys.into_iter().collect();
        let mut known = HashMap::new();
        for part in keys.chunks(MAX_ROWS) {
            let size = padded(part.len());
            let mut values = Values::with_capacity(2 * size);
            for (tenant, key) in part {
                values.text(tenant).text(key);
            }
            values.nulls(2 * (size - part.len()));
            known.extend(query(self.connection, &KNOWN_KEYS.sql(size), &values, read_known)?);
        }
        Ok(known)
    }

    /// Where an event goes: to the named destinations, or to every one of the tenant whose patterns match.
    fn fan_out(
        &self,
        event: &Event,
        named: Option<&[DestinationId]>,
    ) -> std::result::Result<Vec<DestinationId>, IngestRefusal> {
        let Some(named) = named else {
            return Ok(self.destinations.matching(&event.tenant, &event.event_type).to_vec());
        };
        let foreign = |&id: &DestinationId| {
            self.destinations.get(id).is_none_or(|destination| destination.settings.tenant != event.tenant)
        };
        if let Some(index) = named.iter().position(foreign) {
            return Err(IngestRefusal::UnknownDestination { index });
        }
        let mut seen = HashSet::new();
        Ok(named.iter().copied().filter(|&id| named.len() == 1 || seen.insert(id)).collect())
    }

    /// A paused destination holds what it gets; waking it would be for nothing.
    fn awake(&self, mut destinations: Vec<DestinationId>) -> Vec<DestinationId> {
        destinations.retain(|&id| self.destinations.get(id).is_some_and(|destination| !destination.settings.paused));
        destinations
    }

    fn insert_events(&mut self, events: &[(&Event, usize)]) -> Result<()> {
        for part in events.chunks(MAX_ROWS) {
            let size = padded(part.len());
            let mut values = Values::with_capacity(8 * size);
            for (event, deliveries) in part {
                values
                    .blob(event.id.as_bytes())
                    .text(&event.tenant)
                    .text(&event.event_type)
                    .int(event.created_at.as_nanos())
                    .optional_text(event.idempotency_key.as_deref())
                    .int(event.body.data_offset().into())
                    .int(*deliveries as i64)
                    .blob(event.body.bytes());
            }
            values.nulls(8 * (size - part.len()));
            execute(self.connection, &INSERT_EVENTS.sql(size), &values)?;
        }
        Ok(())
    }

    fn insert_deliveries(&mut self, deliveries: &[NewDelivery<'_>]) -> Result<()> {
        for part in deliveries.chunks(MAX_ROWS) {
            let size = padded(part.len());
            let mut values = Values::with_capacity(4 * size);
            for delivery in part {
                values
                    .blob(delivery.id.as_bytes())
                    .blob(delivery.event.id.as_bytes())
                    .blob(delivery.destination_id.as_bytes())
                    .int(delivery.event.created_at.as_nanos());
            }
            values.nulls(4 * (size - part.len()));
            execute(self.connection, &INSERT_DELIVERIES.sql(size), &values)?;
        }
        Ok(())
    }
}

fn read_known(row: &Row<'_>) -> Result<((String, String), Ingested)> {
    let event = rows::event(row)?;
    let key = event.idempotency_key.clone().ok_or(Error::Corrupt("an idempotency key"))?;
    let deliveries = rows::small(row, 7)?;
    Ok(((event.tenant.clone(), key), Ingested { event, deliveries, duplicate: true, wake: Vec::new() }))
}

/// The answer to a later event of the group with the key of an earlier one.
fn answers_of_first(answers: &[Outcome], at: usize) -> Outcome {
    let first = answers[at].clone()?;
    Ok(Ingested { duplicate: true, wake: Vec::new(), ..first })
}

/// The id of an event's `index`-th delivery: the time in the event's id, by which the deliveries of an event are found, and
/// random bits. Exclusive or with the index keeps them different within the event and next to each other in the table.
fn delivery_id(event: &Event, random: u128, index: usize) -> DeliveryId {
    let mut id = *DeliveryId::new(event.created_at, random ^ index as u128).as_bytes();
    id[..6].copy_from_slice(&event.id.as_bytes()[..6]);
    DeliveryId::from_bytes(id)
}
