//! Destinations: cached lookups, lists and counts. The edits of destinations are in edits.rs.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlx::{
    PgConnection,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use weir_core::{
    Destination, DestinationId, Timestamp, destination::Settings, order::DeliveryOrder, pattern::EventPattern,
    signing::Signing,
};
use weir_store::{
    BreakerChange, DestinationCounts, DestinationPatch, Destinations, EditPlace, EditedDestination, LimitChange, Page,
    PageRequest, StoreResult, stored::limits_json,
};

use crate::{
    PostgresStore, Shared,
    cache::Change,
    edits::{ChangeBreaker, Create, Delete, Hold, Patch, Pause},
    history::{first_id, into_page},
    rows::{
        self, corrupt, count, destination_id, flag, int, limits, optional_int, optional_text, optional_time, small,
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
        Ok(into_page(rows, page, |destination| *destination.id.as_bytes()))
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

    async fn change_breaker(&self, change: BreakerChange) -> StoreResult<bool> {
        self.edit(ChangeBreaker(change)).await
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

    async fn recent_arrivals(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<u64> {
        let query = sqlx::query(RECENT_ARRIVALS)
            .bind(uuid(id.as_bytes()))
            .bind(uuid(&first_id(now.before(window).as_millis())))
            .bind(uuid(&first_id(now.as_millis() + 1)));
        Ok(self.read(query, |row| count(row, 0)).await?.pop().unwrap_or_default())
    }

    async fn edited_after(&self, place: EditPlace, limit: u32) -> StoreResult<Vec<EditedDestination>> {
        let query = sqlx::query(EDITED)
            .bind(place.updated_at.as_nanos())
            .bind(uuid(place.id.as_bytes()))
            .bind(i64::from(limit));
        let read = |row: &PgRow| {
            let Change { id, destination, .. } = read_change(row)?;
            Ok(EditedDestination { place: EditPlace { updated_at: time(row, 14)?, id }, destination })
        };
        self.read(query, read).await
    }

    async fn limit_changes(&self, id: DestinationId) -> StoreResult<Vec<LimitChange>> {
        let change = |row: &PgRow| Ok(LimitChange { at: time(row, 0)?, limits: limits(&text(row, 1)?)? });
        self.read(sqlx::query(LIMIT_CHANGES).bind(uuid(id.as_bytes())), change).await
    }
}

/// Both parts are index-only scans, on pages that vacuum has marked all-visible.
pub(crate) const COUNTS: &str = "
SELECT state, count(*), min(created_at) FROM deliveries WHERE destination_id = $1 AND state IN (0, 2) GROUP BY state
UNION ALL
SELECT 1::smallint, count(*), min(created_at) FROM deliveries WHERE destination_id = $1 AND state = 1";

pub(crate) const RECENT_SENDS: &str =
    "SELECT count(*) FROM attempts WHERE destination_id = $1 AND sent_at > $2 AND sent_at <= $3";

/// Ids begin with the time of the event.
pub(crate) const RECENT_ARRIVALS: &str =
    "SELECT count(*) FROM deliveries WHERE destination_id = $1 AND id >= $2 AND id < $3";

const LIMIT_CHANGES: &str = "SELECT at, rate_limits FROM limit_changes WHERE destination_id = $1 ORDER BY at";

/// Reads one row of [`COUNTS`]: the count is in the field of its state.
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

/// The columns for [`read_destination`] and [`read_change`].
macro_rules! select {
    ($from:literal) => {
        concat!(
            "SELECT t.tenant, t.name, t.url, t.event_types, t.rate_limits, t.max_in_flight, t.timeout_ms, t.retry, t.headers,
                t.signing, t.paused, t.paused_reason, t.held_until, t.held_reason, t.updated_at, t.created_at, t.id,
                t.version, t.deleted_at, t.breaker, t.breaker_state, t.alerts, t.ordered, t.skip_after_attempts ",
            $from
        )
    };
}

/// The named destinations whose versions differ from the cached versions.
const LOOK_UP: &str = select!(
    "FROM unnest($1::uuid[], $2::bigint[]) AS r (id, version)
    JOIN destinations t ON t.id = r.id AND t.version <> r.version"
);

/// The destinations of some tenants that have changed since the cached versions. For a tenant that is not cached,
/// deleted destinations are left out.
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

pub(crate) const EDITED: &str =
    select!("FROM destinations t WHERE (t.updated_at, t.id) > ($1, $2) ORDER BY t.updated_at, t.id LIMIT $3");

/// Reads and locks a destination for an edit.
pub(crate) const LOCK_LIVE: &str =
    select!("FROM destinations t WHERE t.id = $1 AND t.deleted_at IS NULL FOR NO KEY UPDATE");

pub(crate) const INSERT: &str = "
INSERT INTO destinations (name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers, signing,
    paused, paused_reason, held_until, held_reason, updated_at, breaker, breaker_state, alerts, takes_alerts, ordered,
    skip_after_attempts, id, tenant, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)";

/// Writes every column except the tenant, which never changes.
pub(crate) const UPDATE: &str = "
UPDATE destinations SET (name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers, signing,
    paused, paused_reason, held_until, held_reason, updated_at, breaker, breaker_state, alerts, takes_alerts, ordered,
    skip_after_attempts, version)
    = ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, DEFAULT)
WHERE id = $21";

pub(crate) fn unwritable(error: serde_json::Error) -> sqlx::Error {
    sqlx::Error::Encode(error.into())
}

/// The first 21 parameters of [`INSERT`] and [`UPDATE`].
pub(crate) fn write_destination(
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
        .bind(settings.signing.to_stored().map_err(unwritable)?)
        .bind(settings.paused)
        .bind(destination.paused_reason.clone())
        .bind(destination.held_until.map(Timestamp::as_nanos))
        .bind(destination.held_reason.clone())
        .bind(destination.updated_at.as_nanos())
        .bind(serde_json::to_string(&settings.breaker).map_err(unwritable)?)
        .bind(serde_json::to_string(&destination.breaker).map_err(unwritable)?)
        .bind(serde_json::to_string(&settings.alerts).map_err(unwritable)?)
        .bind(settings.takes_alerts())
        .bind(settings.order.is_by_key())
        .bind(settings.order.skip_after_attempts().map(|most| i64::from(most.get())))
        .bind(uuid(destination.id.as_bytes())))
}

pub(crate) fn read_destination(row: &PgRow) -> Result<Destination, sqlx::Error> {
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
        signing: Signing::from_stored(&text(row, 9)?).ok_or_else(|| corrupt("a signing key"))?,
        paused: flag(row, 10)?,
        breaker: serde_json::from_str(&text(row, 19)?).map_err(|_| corrupt("a breaker"))?,
        alerts: serde_json::from_str(&text(row, 21)?).map_err(|_| corrupt("alerts"))?,
        order: DeliveryOrder::new(flag(row, 22)?, skip_after_attempts(row)?),
    };
    Ok(Destination {
        settings,
        paused_reason: optional_text(row, 11)?,
        held_until: optional_time(row, 12)?,
        held_reason: optional_text(row, 13)?,
        updated_at: time(row, 14)?,
        created_at: time(row, 15)?,
        id: destination_id(row, 16)?,
        breaker: serde_json::from_str(&text(row, 20)?).map_err(|_| corrupt("a breaker's state"))?,
    })
}

fn skip_after_attempts(row: &PgRow) -> Result<Option<NonZeroU32>, sqlx::Error> {
    let Some(most) = optional_int(row, 23)? else { return Ok(None) };
    let most = u32::try_from(most).ok().and_then(NonZeroU32::new);
    most.map(Some).ok_or_else(|| corrupt("a number of attempts"))
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

    const NAME: &'static str = "look_up";

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
