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

mod insert;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};
use weir_core::{claim::ProcessId, shed::ClientId};
use weir_sealing::Keyring;
use weir_store::{
    FastPath, FastPathBatch, FastPathHandle, Ingest, MOST_DELIVERIES_OF_COMMIT, MessageGroup, NewEvent, Part,
    StoreResult, event_columns,
    intake::{IngestResult, Intake, Key, KnownKeys, StoredEvent, key},
    rows,
};

use self::insert::{Guards, insert, record_costs, record_filtered};
use crate::{
    PostgresStore, Shared,
    cache::Change,
    destination_rows::{CHANGED, read_change},
    edit::change,
    errors::{ATTEMPTS, lacks_partition},
    locks::{begin_beside_edits, locks_of},
    message_groups::advance,
    partitions::day_of_id,
    processes::IS_REGISTERED,
    rows::Read,
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
