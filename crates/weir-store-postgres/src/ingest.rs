//! Ingest: events are deduplicated, fanned out, and stored with their deliveries. [`weir_store::intake`] decides, and
//! has the rules of idempotency, coalescing and order.
//!
//! Concurrent edits of a destination, by any process: ingest holds the tenant's lock, shared, from before it reads the
//! changed destinations until its commit. Therefore ingest sees every edit that was answered before the event came. An
//! edit that is answered later finds the deliveries of the event committed: a deletion cancels all of them.
//!
//! In nearly every call no destination has changed and no idempotency key is known. So a batch is first decided by the
//! cached destinations. One call of the function `store_events` takes the locks, checks that the cache is current, and
//! stores the batch: one round trip and one commit. If the check fails, nothing is stored, and the batch is decided
//! again in a transaction that first reads the changes.
//!
//! Idempotency keys are unique across processes by the primary key of their table. If two batches have the same new key,
//! one waits for the other's commit, fails, and runs again; the second run finds the stored event.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection, Row as _, postgres::PgRow, types::Uuid};
use weir_core::{LimitKey, Timestamp, TraceParent, claim::ProcessId, event::Event, shed::ClientId};
use weir_sealing::{BODY, Keyring};
use weir_store::{
    FastPath, FastPathBatch, FastPathHandle, Ingest, MOST_DELIVERIES_OF_COMMIT, MessageGroup, NewEvent, Part,
    StoreResult, event_columns,
    intake::{IngestResult, Intake, Key, KnownKeys, NewDelivery, StoredEvent, key},
    rows::{self, Row as _},
};

use crate::{
    PostgresStore, Shared,
    cache::Change,
    destination_rows::{CHANGED, read_change},
    edit::change,
    errors::{ATTEMPTS, lacks_partition},
    locks::{KEY_LOCK_SPACE, LOCK_SPACE, begin_beside_edits, locks_of},
    message_groups::{self, advance, lock_name},
    partitions::day_of_id,
    processes::IS_REGISTERED,
    rows::{Read, column, uuid},
    writer::Operation,
};

#[async_trait]
impl Ingest for PostgresStore {
    async fn ingest_part(&self, events: &Arc<[NewEvent]>, from: usize) -> StoreResult<Vec<IngestResult>> {
        loop {
            self.catch_up(&events[from..]).await?;
            let part = {
                let mut cached = self.shared.destinations.tenants();
                Part::of(events, from, self.shared.limits.get(), |new| cached.matches(new))
            };
            part.judge(self).await?;
            let answers = self.posts.ask(Posting(part)).await?;
            // Without an answer, destinations were created meanwhile, and nothing of the part fitted in the commit; or
            // too many changes are not cached.
            if !answers.is_empty() {
                return Ok(answers);
            }
        }
    }

    fn connect(&self, fast_path: Arc<dyn FastPath>) {
        self.shared.fast_path.connect(fast_path);
    }
}

/// A large body counts as one more row for each 4 KiB, so that a batch holds fewer large events.
const BYTES_PER_ROW: usize = 4 * 1024;
/// The most deliveries in one statement. Only a single event may have more.
const MAX_DELIVERIES: usize = MOST_DELIVERIES_OF_COMMIT;

/// Finds which of the given idempotency keys are stored, with the event of each and the number of its deliveries.
pub(crate) const KNOWN_KEYS: &str = concat!(
    "SELECT ",
    event_columns!("e.body"),
    ", k.deliveries FROM unnest($1::text[], $2::text[]) AS r (tenant, idempotency_key)
    JOIN idempotency_keys k ON k.tenant = r.tenant AND k.idempotency_key = r.idempotency_key
    JOIN events e ON e.id = k.event_id"
);

/// Stores a batch in one call; see `migrations/postgres/functions/store_events_with_limit_keys.sql`.
const STORE: &str = "
SELECT stored, freed_destinations, freed_keys
FROM store_events(
    lock_space => $1, locks => $2, key_space => $3, key_locks => $4, tenants => $5, versions => $6, owner => $7,
    event_ids => $8, event_tenants => $9, event_types => $10, event_times => $11, event_keys => $12,
    data_offsets => $13, bodies => $14, event_starts => $15, event_ends => $16, coalesce_keys => $17,
    ordering_keys => $18, traceparents => $19, delivery_counts => $20, delivery_ids => $21, delivery_events => $22,
    delivery_destinations => $23, delivery_times => $24, claimed_until => $25, delayed_until => $26,
    delivery_ends => $27, delivery_coalesce_keys => $28, delivery_superseded => $29, delivery_ordering_keys => $30,
    delivery_follows => $31, event_limit_keys => $32, delivery_flows => $33, delivery_limit_keys => $34
)";

/// The second condition leaves out the partitions of other days.
pub(crate) const RECORD_FILTERED: &str = "
UPDATE events e SET filtered = r.filtered FROM unnest($1::uuid[], $2::integer[]) AS r (id, filtered)
WHERE e.id = r.id AND e.id = ANY($1)";

/// Those of other days are left out as above.
pub(crate) const RECORD_COSTS: &str = "
WITH of_events AS (
    UPDATE events e SET cost = r.cost FROM unnest($1::uuid[], $2::integer[]) AS r (id, cost)
    WHERE e.id = r.id AND e.id = ANY($1)
)
UPDATE deliveries d SET cost = r.cost FROM unnest($3::uuid[], $4::integer[]) AS r (id, cost)
WHERE d.id = r.id AND d.id = ANY($3)";

/// A delivery that is stored as claimed has its first claim.
const FIRST_EPOCH: i64 = 1;

/// The most changes of a tenant's destinations that are read in one statement. They are read and parsed in 15 ms. More are
/// read before the batch, for which others wait.
const CHANGES_AT_ONCE: usize = 1_000;

impl PostgresStore {
    /// Reads the changes of tenants of which the cache lacks many. One caller reads, and the others of the tenant wait
    /// for it.
    async fn catch_up(&self, events: &[NewEvent]) -> StoreResult<()> {
        let cache = &self.shared.destinations;
        let behind = cache.tenants().behind(events);
        for (tenant, turn) in &behind {
            let (_turn, tenant) = (turn.lock().await, [tenant.as_str()]);
            while cache.tenants().is_behind(tenant[0]) {
                self.edit(|connection| change(learn_changes(&tenant, connection, &self.shared))).await?;
            }
        }
        Ok(())
    }
}

/// Events that one caller posted.
pub(crate) struct Posting(Part);

#[async_trait]
impl Operation for Posting {
    type Answer = Vec<IngestResult>;

    const NAME: &'static str = "ingest";

    /// A producer waits for the answer. An early error lets it retry.
    const TIMEOUT: Duration = Duration::from_secs(10);

    fn rows(&self) -> usize {
        let for_bodies = |new: &NewEvent| new.event.body.bytes().len() / BYTES_PER_ROW;
        self.0.rows() + self.0.events().iter().map(for_bodies).sum::<usize>()
    }

    fn turn(&self) -> (&str, ClientId) {
        self.0.turn()
    }

    async fn run(
        batch: &[&Self],
        connection: &mut PgConnection,
        shared: &Shared,
    ) -> Result<Vec<Self::Answer>, sqlx::Error> {
        let all: Vec<&NewEvent> = batch.iter().flat_map(|posting| posting.0.events()).collect();
        // A row without a partition of its day could not be stored.
        let days = all.iter().map(|new| day_of_id(new.event.id.as_bytes()));
        shared.partitions.ensure(&mut *connection, days).await?;
        let answers = store(&all, connection, shared).await;
        // Another process has dropped a partition: the next run makes it again.
        if answers.as_ref().is_err_and(lacks_partition) {
            shared.partitions.forget();
        }
        let mut answers = answers?.into_iter();
        Ok(batch.iter().map(|posting| answers.by_ref().take(posting.0.events().len()).collect()).collect())
    }
}

pub(crate) async fn store(
    new: &[&NewEvent],
    connection: &mut PgConnection,
    shared: &Shared,
) -> Result<Vec<IngestResult>, sqlx::Error> {
    let tenants: BTreeSet<&str> = new.iter().map(|new| new.event.tenant.as_str()).collect();
    let tenants: Vec<&str> = tenants.into_iter().collect();
    // By the cache first. If a guard fails, or the cache does not suffice, after a refresh.
    for _ in 0..ATTEMPTS {
        if let Some(answers) = store_by_cache(new, &tenants, connection, shared).await? {
            return Ok(answers);
        }
        if let Some(answers) = store_after_refresh(new, &tenants, connection, shared).await? {
            return Ok(answers);
        }
    }
    Err(sqlx::Error::Protocol("other processes keep storing events under the same idempotency keys".to_owned()))
}

/// Reads the changes, then decides and stores the batch. `None`: another process has stored one of the keys meanwhile.
/// Without an answer, nothing is stored, because too many changes are not cached.
async fn store_after_refresh(
    new: &[&NewEvent],
    tenants: &[&str],
    connection: &mut PgConnection,
    shared: &Shared,
) -> Result<Option<Vec<IngestResult>>, sqlx::Error> {
    // Take the tenants' locks first: what is read about their destinations then stays current until the commit.
    let mut transaction = connection.begin_with(begin_beside_edits(tenants.iter().copied())).await?;
    // Read what the cache lacks: idempotency keys that are in use, and changed destinations.
    let known = known_keys(new, &mut transaction, &shared.keyring).await?;
    if !learn_changes(tenants, &mut transaction, shared).await? {
        // Nothing is stored, and the callers read the rest.
        transaction.rollback().await?;
        return Ok(Some(Vec::new()));
    }
    let guards = Guards { owner: shared.process.id(), ..Guards::default() };
    // A process that was declared dead still stores events, but makes no claims.
    let may_claim = is_registered(guards.owner, &mut transaction).await?;
    let mut fast_path_batch = if may_claim { shared.fast_path.batch() } else { FastPathHandle::default().batch() };
    // Decide again, with this knowledge.
    let most = shared.limits.get().of_event;
    let intake = Intake::of(new, &known, &mut *shared.destinations.tenants(), most, FIRST_EPOCH, &mut fast_path_batch);
    // Store the events with the first deliveries, then the other deliveries in parts.
    let (first, rest) = intake.deliveries.split_at(intake.deliveries.len().min(MAX_DELIVERIES));
    let mut freed = insert(&guards, &intake.events, first, &mut transaction, shared).await?;
    for part in rest.chunks(MAX_DELIVERIES) {
        let Some(all) = &mut freed else { break };
        match insert(&guards, &[], part, &mut transaction, shared).await? {
            Some(more) => all.extend(more),
            None => freed = None,
        }
    }
    record_filtered(&intake.events, &mut transaction).await?;
    record_costs(&intake, &mut transaction).await?;
    // A guard failed: another process stored a key, or this one was declared dead. Without a commit nothing is stored.
    let Some(freed) = freed else {
        transaction.rollback().await?;
        return Ok(None);
    };
    transaction.commit().await?;
    after_commit(&intake, fast_path_batch, &freed, connection, shared).await;
    Ok(Some(intake.answers))
}

/// Decides the batch by the cached destinations and stores it. `None`: the cache is out of date, or may be.
async fn store_by_cache(
    new: &[&NewEvent],
    tenants: &[&str],
    connection: &mut PgConnection,
    shared: &Shared,
) -> Result<Option<Vec<IngestResult>>, sqlx::Error> {
    let mut fast_path_batch = shared.fast_path.batch();
    // Decide under the lock of the cache, so that the guards have the versions by which the batch was decided.
    let (guards, intake) = {
        let mut cached = shared.destinations.tenants();
        let guards = Guards {
            owner: shared.process.id(),
            locks: locks_of(tenants.iter().copied()),
            tenants: tenants.to_vec(),
            versions: tenants.iter().map(|tenant| cached.version(tenant)).collect(),
        };
        let most = shared.limits.get().of_event;
        (guards, Intake::of(new, &KnownKeys::new(), &mut *cached, most, FIRST_EPOCH, &mut fast_path_batch))
    };
    // After a refusal the changes are read first, because an unknown destination may be new. Many deliveries need
    // several statements, and so a transaction.
    if intake.answers.iter().any(Result::is_err) || intake.deliveries.len() > MAX_DELIVERIES {
        return Ok(None);
    }
    // One call takes the locks, checks the guards, and stores all or nothing. If nothing, the fast path's room is
    // freed.
    // Events that filters kept from a destination, and those with a cost, get a second statement, and so a transaction.
    let is_rare = |stored: &StoredEvent<'_>| stored.filtered.is_some() || stored.event.options.cost.is_some();
    let stored = if intake.events.iter().any(is_rare) {
        let mut transaction = connection.begin().await?;
        let stored = insert(&guards, &intake.events, &intake.deliveries, &mut transaction, shared).await?;
        record_filtered(&intake.events, &mut transaction).await?;
        record_costs(&intake, &mut transaction).await?;
        transaction.commit().await?;
        stored
    } else {
        insert(&guards, &intake.events, &intake.deliveries, connection, shared).await?
    };
    let Some(freed) = stored else {
        return Ok(None);
    };
    after_commit(&intake, fast_path_batch, &freed, connection, shared).await;
    Ok(Some(intake.answers))
}

/// After the events are on disk: admits the fast-path deliveries, and advances the message groups whose heads were
/// superseded.
async fn after_commit(
    intake: &Intake<'_>,
    fast_path_batch: FastPathBatch,
    freed: &BTreeSet<MessageGroup>,
    connection: &mut PgConnection,
    shared: &Shared,
) {
    cache_bodies(intake, shared);
    fast_path_batch.admit();
    advance(freed, &[], connection).await;
}

/// Caches the bodies of stored deliveries that will be claimed soon. Deliveries of the fast path carry their bodies.
fn cache_bodies(intake: &Intake<'_>, shared: &Shared) {
    let mut waiting = intake.deliveries.iter().filter(|delivery| delivery.is_due_soon()).peekable();
    if waiting.peek().is_some() {
        let mut bodies = shared.bodies.lock();
        waiting.for_each(|delivery| bodies.add(delivery.event.id, &delivery.event.body));
    }
}

async fn known_keys(
    new: &[&NewEvent],
    connection: &mut PgConnection,
    keyring: &Keyring,
) -> Result<KnownKeys, sqlx::Error> {
    let keys: HashSet<Key<'_>> = new.iter().filter_map(|new| key(&new.event)).collect();
    if keys.is_empty() {
        return Ok(KnownKeys::new());
    }
    let (tenants, keys): (Vec<&str>, Vec<&str>) = keys.into_iter().unzip();
    let rows = sqlx::query(KNOWN_KEYS).bind(tenants).bind(keys).fetch_all(connection).await?;
    Ok(rows.iter().map(|row| rows::known_event(row, keyring)).collect::<Read<_>>()?)
}

/// Reads the changes of the tenants' destinations beside no edit, so that the cache lacks none of an edit.
pub(crate) async fn read_changes(
    tenants: &[&str],
    connection: &mut PgConnection,
    shared: &Shared,
) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin_with(begin_beside_edits(tenants.iter().copied())).await?;
    learn_changes(tenants, &mut transaction, shared).await?;
    transaction.commit().await
}

/// Updates the cached destinations of these tenants. Under the tenants' locks they stay current. `false`: more has
/// changed, and the first changes of some tenant were read.
async fn learn_changes(tenants: &[&str], connection: &mut PgConnection, shared: &Shared) -> Result<bool, sqlx::Error> {
    let versions: Vec<i64> = {
        let seen = shared.destinations.tenants();
        tenants.iter().map(|tenant| seen.version(tenant)).collect()
    };
    let most = CHANGES_AT_ONCE as i64;
    let changed = sqlx::query(CHANGED).bind(tenants).bind(versions).bind(most).fetch_all(connection).await?;
    let changed: Vec<Change> = changed.iter().map(|row| read_change(row, &shared.keyring)).collect::<Read<_>>()?;
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for change in &changed {
        *counts.entry(&change.tenant).or_default() += 1;
    }
    let is_behind = |tenant: &&&str| counts.get(**tenant) == Some(&CHANGES_AT_ONCE);
    let behind: Vec<&str> = tenants.iter().filter(is_behind).copied().collect();
    let mut cached = shared.destinations.tenants();
    tenants.iter().for_each(|tenant| cached.set_behind(tenant, behind.contains(tenant)));
    cached.learn(changed);
    Ok(behind.is_empty())
}

async fn is_registered(process: Option<ProcessId>, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    match process {
        Some(ProcessId(id)) => sqlx::query_scalar(IS_REGISTERED).bind(id).fetch_one(connection).await,
        None => Ok(true),
    }
}

/// The conditions under which a batch is stored: the process that owns the claims, the locks to take, and the versions
/// up to which the tenants' destinations are cached. There are no locks and versions if the transaction has already
/// taken and checked them.
#[derive(Default)]
struct Guards<'e> {
    owner: Option<ProcessId>,
    locks: Vec<i32>,
    tenants: Vec<&'e str>,
    versions: Vec<i64>,
}

/// Returns the message groups whose heads may have been superseded; `None` if a guard failed and nothing was stored.
async fn insert(
    guards: &Guards<'_>,
    events: &[StoredEvent<'_>],
    deliveries: &[NewDelivery<'_>],
    connection: &mut PgConnection,
    shared: &Shared,
) -> Result<Option<BTreeSet<MessageGroup>>, sqlx::Error> {
    // A column that no row uses is NULL as a whole. Most batches use neither coalesce keys nor ordering keys.
    let coalescing = rare_column(deliveries, NewDelivery::coalesces_by);
    let message_groups = rare_column(deliveries, |delivery| delivery.message_group());
    // Each key has a lock. Two transactions that use the same key take the same lock, so one waits for the other.
    let names: Vec<String> = message_groups.iter().flatten().flatten().map(lock_name).collect();
    let key_locks = locks_of(coalescing.iter().flatten().flatten().chain(&names).map(String::as_str));
    // The other columns that only such batches use.
    let superseded = coalescing.as_ref().map(|_| column(deliveries, |delivery| delivery.superseded));
    let follows = message_groups.as_ref().map(|_| column(deliveries, |delivery| delivery.follows));
    let ordering_keys: Option<Vec<Option<String>>> =
        message_groups.map(|groups| groups.into_iter().map(|group| group.map(|group| group.ordering_key)).collect());
    // The owner matters only if there are claims. A process that was declared dead may store events without any.
    let claims = deliveries.iter().any(|delivery| delivery.claimed_until.is_some());
    let owner = guards.owner.filter(|_| claims);
    let bodies = column(events, |stored| shared.heads.stored_body(stored.event));
    let sealed: Vec<Cow<'_, [u8]>> = events
        .iter()
        .zip(&bodies)
        .map(|(stored, (_, body))| shared.keyring.seal_bytes(&BODY, stored.event.id.as_bytes(), body))
        .collect();
    let row = sqlx::query(STORE)
        // The guards.
        .bind(LOCK_SPACE)
        .bind(&guards.locks)
        .bind(KEY_LOCK_SPACE)
        .bind(key_locks)
        .bind(&guards.tenants)
        .bind(&guards.versions)
        .bind(owner.map(|owner| owner.0))
        // The events.
        .bind(column(events, |stored| uuid(stored.event.id.as_bytes())))
        .bind(column(events, |stored| stored.event.tenant.as_str()))
        .bind(column(events, |stored| stored.event.event_type.as_str()))
        .bind(column(events, |stored| stored.event.created_at.as_nanos()))
        .bind(column(events, |stored| stored.event.idempotency_key.as_deref()))
        .bind(column(&bodies, |(offset, _)| *offset as i32))
        .bind(column(&sealed, |body| &body[..]))
        .bind(rare_column(events, |stored| stored.event.options.deliver_at.map(Timestamp::as_nanos)))
        .bind(rare_column(events, |stored| stored.event.options.expires_at.map(Timestamp::as_nanos)))
        .bind(rare_column(events, |stored| stored.event.options.coalesce_key.as_deref()))
        .bind(rare_column(events, |stored| stored.event.options.ordering_key.as_deref()))
        .bind(rare_column(events, |stored| stored.event.body.trace().map(TraceParent::to_bytes)))
        .bind(column(events, |stored| stored.deliveries as i32))
        // The deliveries.
        .bind(column(deliveries, |delivery| uuid(delivery.id.as_bytes())))
        .bind(column(deliveries, |delivery| uuid(delivery.event.id.as_bytes())))
        .bind(column(deliveries, |delivery| uuid(delivery.destination_id.as_bytes())))
        .bind(column(deliveries, |delivery| delivery.event.created_at.as_nanos()))
        .bind(column(deliveries, |delivery| delivery.claimed_until.map(Timestamp::as_nanos)))
        .bind(rare_column(deliveries, |delivery| delivery.event.delayed_until().map(Timestamp::as_nanos)))
        .bind(rare_column(deliveries, |delivery| delivery.event.options.expires_at.map(Timestamp::as_nanos)))
        .bind(coalescing)
        .bind(superseded)
        .bind(ordering_keys)
        .bind(follows)
        // The limit keys.
        .bind(rare_column(events, |stored| stored.event.options.limit_key.as_ref().map(LimitKey::as_str)))
        .bind(rare_column(deliveries, |delivery| delivery.flow_id().map(|flow| uuid(flow.as_bytes()))))
        .bind(rare_column(deliveries, |delivery| delivery.limit_key.as_ref().map(LimitKey::as_str)))
        .fetch_one(connection)
        .await?;
    // `false`: a guard failed, and nothing was stored.
    row.flag(0)?.then(|| freed_groups(&row)).transpose()
}

/// Records how many destinations did not get an event because of their filters. Nothing is recorded of events that a
/// failed guard kept out of the table.
async fn record_filtered(events: &[StoredEvent<'_>], connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let filtered =
        events.iter().filter_map(|stored| Some((uuid(stored.event.id.as_bytes()), stored.filtered?.get() as i32)));
    let (ids, counts): (Vec<Uuid>, Vec<i32>) = filtered.unzip();
    if !ids.is_empty() {
        sqlx::query(RECORD_FILTERED).bind(ids).bind(counts).execute(connection).await?;
    }
    Ok(())
}

/// Records the costs of events and their deliveries. Most have none.
async fn record_costs(intake: &Intake<'_>, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let cost = |event: &Event| Some(event.options.cost?.get() as i32);
    let events = intake.events.iter().filter_map(|one| Some((uuid(one.event.id.as_bytes()), cost(one.event)?)));
    let deliveries = intake.deliveries.iter().filter_map(|one| Some((uuid(one.id.as_bytes()), cost(one.event)?)));
    let (events, of_events): (Vec<Uuid>, Vec<i32>) = events.unzip();
    let (deliveries, of_deliveries): (Vec<Uuid>, Vec<i32>) = deliveries.unzip();
    if !events.is_empty() {
        let record = sqlx::query(RECORD_COSTS).bind(events).bind(of_events).bind(deliveries).bind(of_deliveries);
        record.execute(connection).await?;
    }
    Ok(())
}

fn freed_groups(row: &PgRow) -> Result<BTreeSet<MessageGroup>, sqlx::Error> {
    let destinations: Option<Vec<Uuid>> = row.try_get_unchecked(1)?;
    let keys: Option<Vec<String>> = row.try_get_unchecked(2)?;
    Ok(message_groups::of_columns(destinations.unwrap_or_default(), keys.unwrap_or_default()).collect())
}

/// Like [`column()`]; `None` if no row has a value.
fn rare_column<'r, R, T>(rows: &'r [R], value: impl Fn(&'r R) -> Option<T>) -> Option<Vec<Option<T>>> {
    rows.iter().any(|row| value(row).is_some()).then(|| column(rows, value))
}
