//! Events come in: deduplicated, fanned out, and stored with their deliveries in a few statements per group.
//!
//! What holds when a destination is edited meanwhile, by whichever process: ingest holds the tenant's lock, shared, from
//! before it reads what changed until its commit. An edit that was answered before an event came in is therefore seen, and
//! one that is answered later finds the event's deliveries committed: a deletion cancels them, and none is left behind or
//! goes astray.
//!
//! Idempotency keys are unique across processes by their table's primary key. Of two groups with the same new key one waits
//! for the other's commit, fails, and runs again, which finds the event stored.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};
use weir_core::{DeliveryId, DestinationId, event::Event};
use weir_store::{Ingest, IngestRefusal, Ingested, NewEvent, StoreResult};

use crate::{
    PostgresStore, Shared,
    cache::Tenants,
    destinations::{CHANGED, read_change},
    errors::lacks_partition,
    locks::begin_beside_edits,
    partitions::day_of_id,
    rows::{self, uuid},
    writer::Operation,
};

#[async_trait]
impl Ingest for PostgresStore {
    async fn ingest(&self, events: Vec<NewEvent>) -> StoreResult<Vec<Result<Ingested, IngestRefusal>>> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        self.posts.ask(Posting(events)).await
    }
}

/// A body of this size counts as one row more, so that a group of large events is a small group.
const BYTES_PER_ROW: usize = 4 * 1024;
/// The most deliveries in one statement: an event may go to many destinations.
const MAX_DELIVERIES: usize = 8_192;

/// Which of some idempotency keys are known, with their events and how many deliveries those had.
pub(crate) const KNOWN_KEYS: &str = "
SELECT e.id, e.tenant, e.event_type, e.created_at, e.idempotency_key, e.data_offset, e.body, k.deliveries
FROM unnest($1::text[], $2::text[]) AS r (tenant, idempotency_key)
JOIN idempotency_keys k ON k.tenant = r.tenant AND k.idempotency_key = r.idempotency_key
JOIN events e ON e.id = k.event_id";

/// Events, their keys, and their deliveries, which are due at once: a delivery begins with the time of its event as its due
/// time.
pub(crate) const STORE: &str = "
WITH stored AS (
    INSERT INTO events (id, tenant, event_type, created_at, idempotency_key, data_offset, body)
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::integer[], $7::bytea[])
), keyed AS (
    INSERT INTO idempotency_keys (event_id, tenant, idempotency_key, deliveries)
    SELECT * FROM unnest($1::uuid[], $2::text[], $5::text[], $8::integer[]) AS r (id, tenant, idempotency_key, deliveries)
    WHERE idempotency_key IS NOT NULL ORDER BY tenant, idempotency_key
)
INSERT INTO deliveries (id, event_id, destination_id, next_attempt_at, created_at, updated_at)
SELECT id, event_id, destination_id, created_at, created_at, created_at
FROM unnest($9::uuid[], $10::uuid[], $11::uuid[], $12::bigint[]) AS r (id, event_id, destination_id, created_at)";

/// A tenant and an idempotency key.
type Key<'e> = (&'e str, &'e str);
/// The stored events whose keys are used again.
type KnownKeys = HashMap<(String, String), Ingested>;
type Answers = Vec<Result<Ingested, IngestRefusal>>;

fn key(event: &Event) -> Option<Key<'_>> {
    event.idempotency_key.as_deref().map(|key| (event.tenant.as_str(), key))
}

/// Events that one caller posted.
pub(crate) struct Posting(Vec<NewEvent>);

#[async_trait]
impl Operation for Posting {
    type Answer = Answers;

    /// A producer waits, and is better told to come again.
    const TIMEOUT: Duration = Duration::from_secs(10);

    fn rows(&self) -> usize {
        self.0.iter().map(|new| 1 + new.event.body.bytes().len() / BYTES_PER_ROW).sum()
    }

    async fn run(
        group: &[&Self],
        connection: &mut PgConnection,
        shared: &Shared,
    ) -> Result<Vec<Self::Answer>, sqlx::Error> {
        let all: Vec<&NewEvent> = group.iter().flat_map(|posting| &posting.0).collect();
        let days = all.iter().map(|new| day_of_id(new.event.id.as_bytes()));
        shared.partitions.ensure(&mut *connection, days).await?;
        let answers = store(&all, connection, shared).await;
        if answers.as_ref().is_err_and(lacks_partition) {
            shared.partitions.forget();
        }
        let mut answers = answers?.into_iter();
        Ok(group.iter().map(|posting| answers.by_ref().take(posting.0.len()).collect()).collect())
    }
}

async fn store(new: &[&NewEvent], connection: &mut PgConnection, shared: &Shared) -> Result<Answers, sqlx::Error> {
    let tenants: BTreeSet<&str> = new.iter().map(|new| new.event.tenant.as_str()).collect();
    let mut transaction = connection.begin_with(begin_beside_edits(tenants.iter().copied())).await?;
    let known = known_keys(new, &mut transaction).await?;
    learn_changes(tenants, &mut transaction, shared).await?;
    let decided = Decided::of(new, &known, &mut shared.destinations.tenants());
    decided.insert(&mut transaction).await?;
    transaction.commit().await?;
    Ok(decided.answers)
}

async fn known_keys(new: &[&NewEvent], connection: &mut PgConnection) -> Result<KnownKeys, sqlx::Error> {
    let keys: HashSet<Key<'_>> = new.iter().filter_map(|new| key(&new.event)).collect();
    if keys.is_empty() {
        return Ok(KnownKeys::new());
    }
    let (tenants, keys): (Vec<&str>, Vec<&str>) = keys.into_iter().unzip();
    let rows = sqlx::query(KNOWN_KEYS).bind(tenants).bind(keys).fetch_all(connection).await?;
    let known = rows.iter().map(|row| {
        let event = rows::event(row)?;
        let key = event.idempotency_key.clone().ok_or_else(|| rows::corrupt("an idempotency key"))?;
        let deliveries = rows::small(row, 7)?;
        Ok(((event.tenant.clone(), key), Ingested { event, deliveries, duplicate: true, wake: Vec::new() }))
    });
    known.collect()
}

/// Brings the destinations of these tenants in memory up to date; under their locks they stay so.
async fn learn_changes(
    tenants: BTreeSet<&str>,
    connection: &mut PgConnection,
    shared: &Shared,
) -> Result<(), sqlx::Error> {
    let tenants: Vec<&str> = tenants.into_iter().collect();
    let versions: Vec<i64> = {
        let seen = shared.destinations.tenants();
        tenants.iter().map(|tenant| seen.version(tenant)).collect()
    };
    let changed = sqlx::query(CHANGED).bind(tenants).bind(versions).fetch_all(connection).await?;
    shared.destinations.tenants().learn(changed.iter().map(read_change).collect::<Result<_, _>>()?);
    Ok(())
}

/// A row of deliveries before it is stored.
struct NewDelivery<'e> {
    id: DeliveryId,
    event: &'e Event,
    destination_id: DestinationId,
}

/// What a group comes to: the answers, and what is stored.
struct Decided<'e> {
    answers: Answers,
    /// With the number of their deliveries.
    events: Vec<(&'e Event, i32)>,
    deliveries: Vec<NewDelivery<'e>>,
}

impl<'e> Decided<'e> {
    fn of(new: &[&'e NewEvent], known: &KnownKeys, tenants: &mut Tenants) -> Self {
        let mut answers = Answers::with_capacity(new.len());
        let mut events = Vec::with_capacity(new.len());
        let mut deliveries = Vec::with_capacity(new.len());
        // Where the answer to the first event with a key is, among the events of this group.
        let mut first: HashMap<Key<'_>, usize> = HashMap::new();
        for &NewEvent { event, destinations, random } in new {
            let key = key(event);
            let stored = key.filter(|_| !known.is_empty());
            if let Some(stored) = stored.and_then(|(tenant, key)| known.get(&(tenant.to_owned(), key.to_owned()))) {
                answers.push(Ok(stored.clone()));
                continue;
            }
            if let Some(&at) = key.and_then(|key| first.get(&key)) {
                answers.push(answer_of_first(&answers, at));
                continue;
            }
            let fan_out = match fan_out(event, destinations.as_deref(), tenants) {
                Ok(fan_out) => fan_out,
                Err(refusal) => {
                    answers.push(Err(refusal));
                    continue;
                }
            };
            first.extend(key.map(|key| (key, answers.len())));
            events.push((event, fan_out.len() as i32));
            deliveries.extend(fan_out.iter().enumerate().map(|(index, &destination_id)| NewDelivery {
                id: delivery_id(event, *random, index),
                event,
                destination_id,
            }));
            answers.push(Ok(Ingested {
                event: event.clone(),
                deliveries: fan_out.len() as u32,
                duplicate: false,
                wake: awake(event, fan_out, tenants),
            }));
        }
        Self { answers, events, deliveries }
    }

    async fn insert(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        if self.events.is_empty() {
            return Ok(());
        }
        let (first, rest) = self.deliveries.split_at(self.deliveries.len().min(MAX_DELIVERIES));
        insert(&self.events, first, connection).await?;
        for part in rest.chunks(MAX_DELIVERIES) {
            insert(&[], part, connection).await?;
        }
        Ok(())
    }
}

async fn insert(
    events: &[(&Event, i32)],
    deliveries: &[NewDelivery<'_>],
    connection: &mut PgConnection,
) -> Result<(), sqlx::Error> {
    sqlx::query(STORE)
        .bind(column(events, |(event, _)| uuid(event.id.as_bytes())))
        .bind(column(events, |(event, _)| event.tenant.as_str()))
        .bind(column(events, |(event, _)| event.event_type.as_str()))
        .bind(column(events, |(event, _)| event.created_at.as_nanos()))
        .bind(column(events, |(event, _)| event.idempotency_key.as_deref()))
        .bind(column(events, |(event, _)| event.body.data_offset() as i32))
        .bind(column(events, |(event, _)| &event.body.bytes()[..]))
        .bind(column(events, |&(_, deliveries)| deliveries))
        .bind(column(deliveries, |delivery| uuid(delivery.id.as_bytes())))
        .bind(column(deliveries, |delivery| uuid(delivery.event.id.as_bytes())))
        .bind(column(deliveries, |delivery| uuid(delivery.destination_id.as_bytes())))
        .bind(column(deliveries, |delivery| delivery.event.created_at.as_nanos()))
        .execute(connection)
        .await
        .map(drop)
}

/// One parameter of a statement over many rows.
pub(crate) fn column<'r, R, T>(rows: &'r [R], value: impl Fn(&'r R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

/// Where an event goes: to the named destinations, or to every one of the tenant whose patterns match.
fn fan_out(
    event: &Event,
    named: Option<&[DestinationId]>,
    tenants: &mut Tenants,
) -> Result<Vec<DestinationId>, IngestRefusal> {
    let Some(named) = named else {
        return Ok(tenants.matching(&event.tenant, &event.event_type).to_vec());
    };
    let unknown = |&id: &DestinationId| tenants.get(&event.tenant, id).is_none();
    if let Some(index) = named.iter().position(unknown) {
        return Err(IngestRefusal::UnknownDestination { index });
    }
    let mut seen = HashSet::new();
    Ok(named.iter().copied().filter(|&id| named.len() == 1 || seen.insert(id)).collect())
}

/// A paused destination holds what it gets; waking it would be for nothing.
fn awake(event: &Event, mut destinations: Vec<DestinationId>, tenants: &Tenants) -> Vec<DestinationId> {
    let awake = |&id: &DestinationId| tenants.get(&event.tenant, id).is_some_and(|found| !found.settings.paused);
    destinations.retain(awake);
    destinations
}

/// The answer to a later event of the group with the key of an earlier one.
fn answer_of_first(answers: &Answers, at: usize) -> Result<Ingested, IngestRefusal> {
    let first = answers[at].clone()?;
    Ok(Ingested { duplicate: true, wake: Vec::new(), ..first })
}

/// The id of an event's `index`-th delivery: the time in the event's id, so that the deliveries of an event and their
/// attempts are found by it, and random bits. Exclusive or with the index keeps them different within the event.
fn delivery_id(event: &Event, random: u128, index: usize) -> DeliveryId {
    let mut id = *DeliveryId::new(event.created_at, random ^ index as u128).as_bytes();
    id[..6].copy_from_slice(&event.id.as_bytes()[..6]);
    DeliveryId::from_bytes(id)
}
