//! Destinations: looked up beside what is in memory, edited under their tenant's lock, counted by index.
//!
//! An edit that changes who gets which events (creation, patch, pause, deletion) holds the lock of its tenant exclusively
//! until its commit; ingest holds it shared, from before it reads the tenant's destinations until its own commit. So an
//! event is fanned out either as before an edit and committed before it, or as after it; see ingest.rs for what follows.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use weir_core::{Destination, DestinationId, Timestamp, destination::Settings, pattern::EventPattern};
use weir_store::{DestinationCounts, DestinationPatch, Destinations, LimitChange, Page, PageRequest, StoreResult};

use crate::{
    PostgresStore, Shared,
    cache::Change,
    edits::Edit,
    rows::{
        self, corrupt, count, destination_id, flag, int, limits, limits_json, optional_text, optional_time, small,
        text, time, uuid,
    },
    writer::Operation,
};

#[async_trait]
impl Destinations for PostgresStore {
    async fn create_destination(&self, destination: Destination) -> StoreResult<Arc<Destination>> {
        self.edit(Create(destination)).await
    }

    async fn destination(&self, id: DestinationId) -> StoreResult<Option<Arc<Destination>>> {
        Ok(self.destinations(&[id]).await?.pop().flatten())
    }

    async fn destinations(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<Arc<Destination>>>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.lookups.ask(Lookup(ids.to_vec())).await
    }

    async fn list_destinations(&self, tenant: Option<&str>, page: PageRequest) -> StoreResult<Page<Arc<Destination>>> {
        let query = sqlx::query(LIST).bind(tenant).bind(page.before.as_ref().map(uuid)).bind(i64::from(page.limit) + 1);
        let rows = self.read(query, |row| Ok(Arc::new(read_destination(row)?))).await?;
        Ok(crate::history::cut(rows, page, |destination| *destination.id.as_bytes()))
    }

    async fn patch_destination(&self, patch: DestinationPatch) -> StoreResult<Option<Arc<Destination>>> {
        self.edit(Patch(patch)).await
    }

    async fn pause_destination(&self, id: DestinationId, reason: &str, now: Timestamp) -> StoreResult<bool> {
        self.edit(Pause { id, reason: reason.to_owned(), now }).await
    }

    async fn hold_destination(&self, id: DestinationId, until: Timestamp, reason: &str) -> StoreResult<()> {
        self.edit(Hold { id, until, reason: reason.to_owned() }).await
    }

    async fn delete_destination(&self, id: DestinationId, now: Timestamp) -> StoreResult<bool> {
        self.edit(Delete { id, now }).await
    }

    async fn destination_counts(&self, id: DestinationId) -> StoreResult<DestinationCounts> {
        let counted = self.read(sqlx::query(COUNTS).bind(uuid(id.as_bytes())), read_count).await?;
        Ok(counted.into_iter().fold(DestinationCounts::default(), |sum, of_state| DestinationCounts {
            pending: sum.pending + of_state.pending,
            retrying: sum.retrying + of_state.retrying,
            delivering: sum.delivering + of_state.delivering,
            oldest_created_at: [sum.oldest_created_at, of_state.oldest_created_at].into_iter().flatten().min(),
        }))
    }

    async fn recent_sends(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<u64> {
        let query = sqlx::query(RECENT_SENDS)
            .bind(uuid(id.as_bytes()))
            .bind(now.before(window).as_nanos())
            .bind(now.as_nanos());
        Ok(self.read(query, |row| count(row, 0)).await?.pop().unwrap_or_default())
    }

    async fn limit_changes(&self, id: DestinationId) -> StoreResult<Vec<LimitChange>> {
        let change = |row: &PgRow| Ok(LimitChange { at: time(row, 0)?, limits: limits(&text(row, 1)?)? });
        self.read(sqlx::query(LIMIT_CHANGES).bind(uuid(id.as_bytes())), change).await
    }
}

/// Both parts are read from their index alone, as far as vacuum keeps up.
pub(crate) const COUNTS: &str = "
SELECT state, count(*), min(created_at) FROM deliveries WHERE destination_id = $1 AND state IN (0, 2) GROUP BY state
UNION ALL
SELECT 1::smallint, count(*), min(created_at) FROM deliveries WHERE destination_id = $1 AND state = 1";

pub(crate) const RECENT_SENDS: &str =
    "SELECT count(*) FROM attempts WHERE destination_id = $1 AND sent_at > $2 AND sent_at <= $3";

const LIMIT_CHANGES: &str = "SELECT at, rate_limits FROM limit_changes WHERE destination_id = $1 ORDER BY at";

/// A count with its state in its field.
fn read_count(row: &PgRow) -> Result<DestinationCounts, sqlx::Error> {
    use weir_core::DeliveryState::{Delivering, Pending, Retrying};
    let oldest_created_at = optional_time(row, 2)?;
    let mut counts = DestinationCounts { oldest_created_at, ..DestinationCounts::default() };
    let field = match rows::state(row, 0)? {
        Pending => &mut counts.pending,
        Retrying => &mut counts.retrying,
        Delivering => &mut counts.delivering,
        _ => return Err(corrupt("a state")),
    };
    *field = count(row, 1)?;
    Ok(counts)
}

/// What [`read_destination`] reads, and after it what [`read_change`] does.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT t.tenant, t.name, t.url, t.event_types, t.rate_limits, t.max_in_flight, t.timeout_ms, t.retry, t.headers,
                t.secret, t.paused, t.paused_reason, t.held_until, t.held_reason, t.updated_at, t.created_at, t.id,
                t.version, t.deleted_at ",
            $rest
        )
    };
}

/// Of some destinations, those whose versions are not the known ones.
const LOOK_UP: &str = select!(
    "FROM unnest($1::uuid[], $2::bigint[]) AS r (id, version)
    JOIN destinations t ON t.id = r.id AND t.version <> r.version"
);

/// Of some tenants, what changed since the versions seen. What was deleted before anything was seen is left out.
pub(crate) const CHANGED: &str = select!(
    "FROM unnest($1::text[], $2::bigint[]) AS r (tenant, version)
    JOIN destinations t ON t.tenant = r.tenant AND t.version > r.version
    WHERE r.version > 0 OR t.deleted_at IS NULL"
);

const LIST: &str = select!(
    "FROM destinations t
    WHERE t.deleted_at IS NULL AND ($1::text IS NULL OR t.tenant = $1) AND ($2::uuid IS NULL OR t.id < $2)
    ORDER BY t.id DESC LIMIT $3"
);

const LOCK_LIVE: &str = select!("FROM destinations t WHERE t.id = $1 AND t.deleted_at IS NULL FOR NO KEY UPDATE");

const TENANT: &str = "SELECT tenant FROM destinations WHERE id = $1 AND deleted_at IS NULL";

const INSERT: &str = "
INSERT INTO destinations (name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers, secret,
    paused, paused_reason, held_until, held_reason, updated_at, id, tenant, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)";

/// All but the tenant, which a destination keeps for life.
const UPDATE: &str = "
UPDATE destinations SET (name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers, secret,
    paused, paused_reason, held_until, held_reason, updated_at, version)
    = ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, DEFAULT)
WHERE id = $15";

const INSERT_LIMIT_CHANGE: &str = "INSERT INTO limit_changes (destination_id, at, rate_limits) VALUES ($1, $2, $3)";

const HOLD: &str = "
UPDATE destinations SET held_until = $1, held_reason = $2, version = DEFAULT
WHERE id = $3 AND deleted_at IS NULL AND (held_until IS NULL OR held_until < $1)";

/// Those who decide by a destination's being live lock its row FOR KEY SHARE, which this keeps out and is kept out by; an
/// update by itself would pass beside it.
const LOCK_TO_DELETE: &str = "SELECT 1 FROM destinations WHERE id = $1 AND deleted_at IS NULL FOR UPDATE";

const TOMBSTONE: &str = "UPDATE destinations SET deleted_at = $1, updated_at = $1, version = DEFAULT WHERE id = $2";

/// Part of a backlog, without waiting for anyone.
pub(crate) const CANCEL_SOME: &str = "
WITH waiting AS MATERIALIZED (
    SELECT id FROM deliveries WHERE destination_id = $2 AND state IN (0, 2)
    ORDER BY next_attempt_at, id LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE deliveries d SET state = 6, updated_at = $1 FROM waiting WHERE d.id = waiting.id";

/// Bounds how long a row, and what is dead of the table, is held by one transaction.
const CANCELLED_AT_ONCE: i64 = 5_000;

const CANCEL_WAITING: &str =
    "UPDATE deliveries SET state = 6, updated_at = $1 WHERE destination_id = $2 AND state IN (0, 2)";

fn unwritable(error: serde_json::Error) -> sqlx::Error {
    sqlx::Error::Encode(error.into())
}

/// The first 15 parameters of [`INSERT`] and [`UPDATE`].
fn write_destination(
    sql: &'static str,
    destination: &Destination,
) -> Result<Query<'static, sqlx::Postgres, PgArguments>, sqlx::Error> {
    let settings = &destination.settings;
    let patterns: Vec<String> = settings.event_types.iter().map(ToString::to_string).collect();
    Ok(sqlx::query(sql)
        .bind(settings.name.clone())
        .bind(settings.url.to_string())
        .bind(serde_json::to_string(&patterns).map_err(unwritable)?)
        .bind(limits_json(&settings.rate_limits))
        .bind(i64::from(settings.max_in_flight))
        .bind(i64::from(settings.timeout_ms))
        .bind(serde_json::to_string(&settings.retry).map_err(unwritable)?)
        .bind(serde_json::to_string(&settings.headers).map_err(unwritable)?)
        .bind(settings.secret.reveal())
        .bind(settings.paused)
        .bind(destination.paused_reason.clone())
        .bind(destination.held_until.map(Timestamp::as_nanos))
        .bind(destination.held_reason.clone())
        .bind(destination.updated_at.as_nanos())
        .bind(uuid(destination.id.as_bytes())))
}

fn read_destination(row: &PgRow) -> Result<Destination, sqlx::Error> {
    let patterns: Vec<String> = serde_json::from_str(&text(row, 3)?).map_err(|_| corrupt("event types"))?;
    let event_types: Result<Vec<EventPattern>, _> = patterns.iter().map(|pattern| pattern.parse()).collect();
    let settings = Settings {
        tenant: text(row, 0)?,
        name: text(row, 1)?,
        url: text(row, 2)?.parse().map_err(|_| corrupt("a url"))?,
        event_types: event_types.map_err(|_| corrupt("event types"))?,
        rate_limits: limits(&text(row, 4)?)?,
        max_in_flight: small(row, 5)?,
        timeout_ms: small(row, 6)?,
        retry: serde_json::from_str(&text(row, 7)?).map_err(|_| corrupt("a retry policy"))?,
        headers: serde_json::from_str(&text(row, 8)?).map_err(|_| corrupt("headers"))?,
        secret: text(row, 9)?.parse().map_err(|_| corrupt("a secret"))?,
        paused: flag(row, 10)?,
    };
    Ok(Destination {
        settings,
        paused_reason: optional_text(row, 11)?,
        held_until: optional_time(row, 12)?,
        held_reason: optional_text(row, 13)?,
        updated_at: time(row, 14)?,
        created_at: time(row, 15)?,
        id: destination_id(row, 16)?,
    })
}

pub(crate) fn read_change(row: &PgRow) -> Result<Change, sqlx::Error> {
    let live = rows::is_null(row, 18)?;
    Ok(Change {
        id: destination_id(row, 16)?,
        tenant: text(row, 0)?,
        version: int(row, 17)?,
        destination: live.then(|| read_destination(row).map(Arc::new)).transpose()?,
    })
}

/// The current values of some destinations.
pub(crate) struct Lookup(Vec<DestinationId>);

#[async_trait]
impl Operation for Lookup {
    type Answer = Vec<Option<Arc<Destination>>>;

    fn rows(&self) -> usize {
        self.0.len()
    }

    async fn run(
        group: &[&Self],
        connection: &mut PgConnection,
        shared: &Shared,
    ) -> Result<Vec<Self::Answer>, sqlx::Error> {
        let mut ids: Vec<DestinationId> = group.iter().flat_map(|lookup| &lookup.0).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        let versions = shared.destinations.versions(&ids);
        let ids: Vec<_> = ids.iter().map(|id| uuid(id.as_bytes())).collect();
        let changed = sqlx::query(LOOK_UP).bind(ids).bind(versions).fetch_all(connection).await?;
        shared.destinations.learn(changed.iter().map(read_change).collect::<Result<_, _>>()?);
        Ok(group.iter().map(|lookup| shared.destinations.get_many(&lookup.0)).collect())
    }
}

/// How many locks the tenants share: a group of events for ever so many tenants takes no more.
const LOCKS: u64 = 256;
/// Tells these advisory locks from others in the database: "weir" in ASCII.
const LOCK_SPACE: u32 = 0x7765_6972;

/// Tenants of one lock wait for each other's edits, which is no harm. FNV-1a, because every process must choose alike.
fn lock_of(tenant: &str) -> u64 {
    let hash = tenant
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    hash % LOCKS
}

/// Begins a transaction under the locks of some tenants, shared with other writers of events. Sent as one text, so that the
/// locks cost no round trip, and each statement after it sees what was committed before the locks were given.
pub(crate) fn begin_beside_edits<'t>(tenants: impl Iterator<Item = &'t str>) -> AssertSqlSafe<String> {
    let mut locks: Vec<u64> = tenants.map(lock_of).collect();
    locks.sort_unstable();
    locks.dedup();
    let taken = locks.iter().map(|lock| format!("; SELECT pg_advisory_xact_lock_shared({LOCK_SPACE}, {lock})"));
    AssertSqlSafe(format!("BEGIN{}", taken.collect::<String>()))
}

/// Begins a transaction that no event of the tenant is fanned out beside.
fn begin_to_edit(tenant: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK_SPACE}, {})", lock_of(tenant)))
}

async fn record_limits(
    connection: &mut PgConnection,
    destination: &Destination,
    at: Timestamp,
) -> Result<(), sqlx::Error> {
    sqlx::query(INSERT_LIMIT_CHANGE)
        .bind(uuid(destination.id.as_bytes()))
        .bind(at.as_nanos())
        .bind(limits_json(&destination.settings.rate_limits))
        .execute(connection)
        .await
        .map(drop)
}

async fn tenant_of(connection: &mut PgConnection, id: DestinationId) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar(TENANT).bind(uuid(id.as_bytes())).fetch_optional(connection).await
}

/// Changes a live destination as `change` says, or not at all when that answers `None`.
async fn change_destination(
    connection: &mut PgConnection,
    id: DestinationId,
    change: impl Fn(&Destination) -> Option<Destination> + Send,
) -> Result<Option<Arc<Destination>>, sqlx::Error> {
    let Some(tenant) = tenant_of(connection, id).await? else { return Ok(None) };
    let mut transaction = connection.begin_with(begin_to_edit(&tenant)).await?;
    let current = sqlx::query(LOCK_LIVE).bind(uuid(id.as_bytes())).fetch_optional(&mut *transaction).await?;
    let Some(current) = current.as_ref().map(read_destination).transpose()? else { return Ok(None) };
    let Some(changed) = change(&current) else { return Ok(None) };
    if changed.settings.rate_limits != current.settings.rate_limits {
        record_limits(&mut transaction, &changed, changed.updated_at).await?;
    }
    write_destination(UPDATE, &changed)?.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(Some(Arc::new(changed)))
}

struct Create(Destination);

#[async_trait]
impl Edit for Create {
    type Answer = Arc<Destination>;

    async fn run(&self, connection: &mut PgConnection) -> Result<Self::Answer, sqlx::Error> {
        let Self(destination) = self;
        let tenant = &destination.settings.tenant;
        let mut transaction = connection.begin_with(begin_to_edit(tenant)).await?;
        write_destination(INSERT, destination)?
            .bind(tenant.clone())
            .bind(destination.created_at.as_nanos())
            .execute(&mut *transaction)
            .await?;
        record_limits(&mut transaction, destination, destination.created_at).await?;
        transaction.commit().await?;
        Ok(Arc::new(destination.clone()))
    }
}

struct Patch(DestinationPatch);

#[async_trait]
impl Edit for Patch {
    type Answer = Option<Arc<Destination>>;

    async fn run(&self, connection: &mut PgConnection) -> Result<Self::Answer, sqlx::Error> {
        let Self(patch) = self;
        change_destination(connection, patch.id, |current| {
            let mut edited = current.clone();
            let tenant = std::mem::take(&mut edited.settings.tenant);
            edited.settings = Settings { tenant, ..patch.settings.clone() };
            edited.updated_at = patch.now;
            if !edited.settings.paused {
                edited.paused_reason = None;
            }
            (current.updated_at == patch.expected_updated_at).then_some(edited)
        })
        .await
    }
}

struct Pause {
    id: DestinationId,
    reason: String,
    now: Timestamp,
}

#[async_trait]
impl Edit for Pause {
    type Answer = bool;

    async fn run(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let paused = change_destination(connection, self.id, |current| {
            let mut paused = current.clone();
            paused.settings.paused = true;
            paused.paused_reason = Some(self.reason.clone());
            paused.updated_at = self.now;
            (!current.settings.paused).then_some(paused)
        });
        Ok(paused.await?.is_some())
    }
}

/// Changes nothing that ingest decides by, so it needs no lock of the tenant.
struct Hold {
    id: DestinationId,
    until: Timestamp,
    reason: String,
}

#[async_trait]
impl Edit for Hold {
    type Answer = ();

    async fn run(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let query = sqlx::query(HOLD).bind(self.until.as_nanos()).bind(&self.reason).bind(uuid(self.id.as_bytes()));
        query.execute(connection).await.map(drop)
    }
}

struct Delete {
    id: DestinationId,
    now: Timestamp,
}

#[async_trait]
impl Edit for Delete {
    type Answer = bool;

    async fn run(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let Some(tenant) = tenant_of(connection, self.id).await? else { return Ok(false) };
        self.cancel_backlog(connection).await?;
        let id = uuid(self.id.as_bytes());
        let mut transaction = connection.begin_with(begin_to_edit(&tenant)).await?;
        // Before any delivery is touched: an update that comes too late for a row keeps it locked all the same, and who
        // settles it may hold the destination.
        if sqlx::query(LOCK_TO_DELETE).bind(id).fetch_optional(&mut *transaction).await?.is_none() {
            return Ok(false);
        }
        sqlx::query(TOMBSTONE).bind(self.now.as_nanos()).bind(id).execute(&mut *transaction).await?;
        sqlx::query(CANCEL_WAITING).bind(self.now.as_nanos()).bind(id).execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(true)
    }
}

impl Delete {
    /// Cancels the backlog bit by bit beforehand, however long it is, so that under the tenant's lock only what came
    /// meanwhile is left. Should the deletion not follow, the destination lives on without what was cancelled; who asked for
    /// it was not told that it is done, and asks again.
    async fn cancel_backlog(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        loop {
            let cancel = sqlx::query(CANCEL_SOME)
                .bind(self.now.as_nanos())
                .bind(uuid(self.id.as_bytes()))
                .bind(CANCELLED_AT_ONCE);
            if cancel.execute(&mut *connection).await?.rows_affected() < CANCELLED_AT_ONCE.unsigned_abs() {
                return Ok(());
            }
        }
    }
}
