//! Destinations: cached lookups, lists and counts. The edits of destinations are in destination_edits.rs and own_changes.rs.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlx::{PgConnection, postgres::PgRow};
use weir_core::{Destination, DestinationId, Timestamp, activity::Activity, limit_key::is_of_key};
use weir_store::{
    Arrivals, BreakerChange, Counters as _, Created, Creation, Deletion, DestinationCounts, DestinationDeletion,
    DestinationFilter, DestinationLimits, DestinationPatch, Destinations, EditPosition, EditedDestination, Hold,
    LimitChange, NamedCreation, Page, PageRequest, Pause, RunDestinations, SCANNED_AT_MOST, StoreResult, first_id,
    rows::{self, Row as _},
};

use crate::{
    PostgresStore, Shared,
    cache::Change,
    counters::OLDEST_IN_FLIGHT,
    destination_edits::{DELETION_TIMEOUT, create, create_named, delete, patch},
    destination_rows::{EDITED, LIST, LOOK_UP, NAMED, read_change},
    edit::change,
    ingest::read_changes,
    own_changes::{change_breakers, hold_all, pause_all},
    rows::{Read, uuid},
    writer::Operation,
};

#[async_trait]
impl RunDestinations for PostgresStore {
    async fn destinations(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<Arc<Destination>>>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.lookups.ask(Lookup(ids.to_vec())).await
    }

    async fn change_breakers(&self, changes: Vec<BreakerChange>) -> StoreResult<Vec<bool>> {
        let changed =
            self.edit(|connection| change(change_breakers(connection, &changes, &self.shared.keyring))).await?;
        self.read_changes_for_ingest(changes.iter().map(|change| change.id)).await;
        Ok(changed)
    }

    async fn limit_changes(&self, id: DestinationId) -> StoreResult<Vec<LimitChange>> {
        self.read(sqlx::query(LIMIT_CHANGES).bind(uuid(id.as_bytes())), rows::limit_change).await
    }
}

#[async_trait]
impl Destinations for PostgresStore {
    fn limit_destinations(&self, limits: DestinationLimits) {
        self.shared.limits.set(limits);
    }

    async fn create_destination(
        &self,
        destination: Destination,
        creation: Creation,
    ) -> StoreResult<Created<Arc<Destination>>> {
        let most = self.most_of_tenant();
        self.edit(|connection| change(create(connection, &destination, &creation, most, &self.shared.keyring))).await
    }

    async fn create_named_destination(
        &self,
        destination: Destination,
        activity: Activity,
    ) -> StoreResult<NamedCreation> {
        let most = self.most_of_tenant();
        self.edit(|connection| change(create_named(connection, &destination, &activity, most, &self.shared.keyring)))
            .await
    }

    async fn named_destinations(&self, tenant: &str, name: &str) -> StoreResult<Vec<Arc<Destination>>> {
        self.read(sqlx::query(NAMED).bind(tenant).bind(name), |row| {
            Ok(Arc::new(rows::destination(row, &self.shared.keyring)?))
        })
        .await
    }

    async fn destination(&self, id: DestinationId) -> StoreResult<Option<Arc<Destination>>> {
        Ok(self.destinations(&[id]).await?.pop().flatten())
    }

    async fn list_destinations(
        &self,
        filter: &DestinationFilter,
        page: PageRequest,
    ) -> StoreResult<Page<Arc<Destination>>> {
        let id = |destination: &Arc<Destination>| *destination.id.as_bytes();
        // The statement has no conditions for these: they are applied here to a window of rows, and the page ends
        // with the window.
        let windowed = filter.condition.is_some() || filter.text.is_some() || filter.event_type.is_some();
        let limit = if windowed { SCANNED_AT_MOST } else { page.limit + 1 };
        let tenants: Option<Vec<&String>> = filter.tenants.tenants().map(|tenants| tenants.iter().collect());
        let query = sqlx::query(LIST)
            .bind(tenants)
            .bind(page.before.as_ref().map(uuid))
            .bind(filter.name.as_deref())
            .bind(filter.url.as_deref())
            .bind(i64::from(limit));
        let mut rows = self.read(query, |row| Ok(Arc::new(rows::destination(row, &self.shared.keyring)?))).await?;
        let end = rows.last().filter(|_| windowed && rows.len() == limit as usize).map(id);
        rows.retain(|destination| filter.matches(destination));
        let mut page = Page::of(rows, page, id);
        page.next = page.next.or(end);
        Ok(page)
    }

    async fn patch_destination(
        &self,
        edit: DestinationPatch,
        creation: Creation,
    ) -> StoreResult<Created<Option<Arc<Destination>>>> {
        self.edit(|connection| change(patch(connection, &edit, &creation, &self.shared.keyring))).await
    }

    async fn pause_destinations(&self, pauses: Vec<Pause>) -> StoreResult<Vec<bool>> {
        self.edit(|connection| change(pause_all(connection, &pauses, &self.shared.keyring))).await
    }

    async fn hold_destinations(&self, holds: Vec<Hold>) -> StoreResult<()> {
        self.edit(|connection| change(hold_all(connection, &holds))).await
    }

    async fn delete_destination(&self, deletion: DestinationDeletion, activity: Activity) -> StoreResult<Deletion> {
        self.edit_within(DELETION_TIMEOUT, |connection| change(delete(connection, &deletion, &activity))).await
    }

    async fn destination_counts(&self, id: DestinationId) -> StoreResult<DestinationCounts> {
        let counts = self.counts(&[id]).await?.pop().unwrap_or_default();
        let query = sqlx::query(OLDEST_IN_FLIGHT).bind(uuid(id.as_bytes()));
        let in_flight = self.read(query, |row| row.optional_time(0)).await?;
        let waiting = if counts.waiting() > 0 { self.oldest_waiting(&[id]).await? } else { Vec::new() };
        let oldest = in_flight.into_iter().chain(waiting).flatten().min();
        Ok(DestinationCounts::new(counts, oldest))
    }

    async fn recent_sends(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<u64> {
        let query = sqlx::query(RECENT_SENDS)
            .bind(uuid(id.as_bytes()))
            .bind(now.before(window).as_nanos())
            .bind(now.as_nanos());
        Ok(self.read(query, |row| row.count(0)).await?.pop().unwrap_or_default())
    }

    async fn recent_arrivals(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<Arrivals> {
        let sql = if is_of_key(id) { RECENT_ARRIVALS_OF_FLOW } else { RECENT_ARRIVALS };
        let query = sqlx::query(sql)
            .bind(uuid(id.as_bytes()))
            .bind(uuid(&first_id(now.before(window).as_millis())))
            .bind(uuid(&first_id(now.as_millis() + 1)));
        Ok(self.read(query, rows::arrivals).await?.pop().unwrap_or_default())
    }

    async fn edited_after(&self, position: EditPosition, limit: u32) -> StoreResult<Vec<EditedDestination>> {
        let query = sqlx::query(EDITED)
            .bind(position.updated_at.as_nanos())
            .bind(uuid(position.id.as_bytes()))
            .bind(i64::from(limit));
        let read = |row: &PgRow| {
            let Change { id, destination, .. } = read_change(row, &self.shared.keyring)?;
            Ok(EditedDestination { position: EditPosition { updated_at: row.time(3)?, id }, destination })
        };
        self.read(query, read).await
    }
}

impl PostgresStore {
    /// Reads the changes of destinations of the same tenants, as ingest does when it finds that it lacks some. With
    /// thousands of breakers that open and close, nearly every event would find that, and need six round trips instead
    /// of one. A failure costs nothing more than that.
    async fn read_changes_for_ingest(&self, ids: impl Iterator<Item = DestinationId>) {
        let cache = &self.shared.destinations;
        let looked_up = cache.get_many(&ids.collect::<Vec<_>>());
        let tenants: BTreeSet<&str> = looked_up.iter().flatten().map(|found| found.settings.tenant.as_str()).collect();
        let known: Vec<&str> = {
            let cached = cache.tenants();
            tenants.into_iter().filter(|tenant| cached.version(tenant) > 0).collect()
        };
        if known.is_empty() {
            return;
        }
        if let Err(error) = self.edit(|connection| change(read_changes(&known, connection, &self.shared))).await {
            tracing::debug!(%error, "could not read changes of destinations; the next event does");
        }
    }

    /// The most destinations of a tenant.
    fn most_of_tenant(&self) -> usize {
        self.shared.limits.get().of_tenant
    }
}

pub(crate) const RECENT_SENDS: &str =
    "SELECT count(*) FROM attempts WHERE destination_id = $1 AND sent_at > $2 AND sent_at <= $3";

/// Ids begin with the time of the event.
pub(crate) const RECENT_ARRIVALS: &str = "SELECT count(*), (
        SELECT id FROM deliveries WHERE destination_id = $1 AND id >= $2 AND id < $3 ORDER BY id LIMIT 1
    ) FROM deliveries WHERE destination_id = $1 AND id >= $2 AND id < $3";

pub(crate) const RECENT_ARRIVALS_OF_FLOW: &str = "SELECT count(*), (
        SELECT id FROM deliveries WHERE flow_id = $1 AND id >= $2 AND id < $3 ORDER BY id LIMIT 1
    ) FROM deliveries WHERE flow_id = $1 AND id >= $2 AND id < $3";

pub(crate) const LIMIT_CHANGES: &str =
    "SELECT at, rate_limits, min_interval_ms FROM limit_changes WHERE destination_id = $1 ORDER BY at";

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
        batch: &[&Self],
        connection: &mut PgConnection,
        shared: &Shared,
    ) -> Result<Vec<Self::Answer>, sqlx::Error> {
        let mut ids: Vec<DestinationId> = batch.iter().flat_map(|lookup| &lookup.0).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        // With the cached versions the statement returns only the destinations that have changed.
        let (versions, holds) = shared.destinations.versions(&ids);
        let ids: Vec<_> = ids.iter().map(|id| uuid(id.as_bytes())).collect();
        let changed = sqlx::query(LOOK_UP).bind(ids).bind(versions).bind(holds).fetch_all(connection).await?;
        shared.destinations.learn(changed.iter().map(|row| read_change(row, &shared.keyring)).collect::<Read<_>>()?);
        Ok(batch.iter().map(|lookup| shared.destinations.get_many(&lookup.0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use weir_core::{
        breaker::{AttemptWindow, Breaker, BreakerPolicy, EndedAttempt},
        delivery::AttemptOutcome,
        outcome::Effect,
    };
    use weir_store::Ingest as _;

    use super::*;
    use crate::{
        database::Database,
        fixtures::{NOW, creation, destination, event},
    };

    #[tokio::test]
    async fn after_a_breaker_has_changed_ingest_lacks_no_change() {
        let database = Database::migrated().await;
        let store = Box::pin(PostgresStore::open(&database.url(), NOW)).await.unwrap();
        let Created::New(created) = store.create_destination(destination(1), creation()).await.unwrap() else {
            panic!("it was created before");
        };
        store.ingest(vec![event(1)]).await.unwrap();
        store.destination(created.id).await.unwrap();
        let (mut window, policy) = (AttemptWindow::default(), BreakerPolicy::default());
        let (outcome, effect) = (AttemptOutcome::Retryable, Effect::None);
        let failure = EndedAttempt { outcome, effect, refusal: None, began: NOW, now: NOW };
        let opened = (0..10).find_map(|_| window.observe(&Breaker::default(), &policy, &failure)).unwrap();
        let expected = Breaker::default();
        let changed = store
            .change_breakers(vec![BreakerChange { id: created.id, expected, changed: opened, now: NOW }])
            .await
            .unwrap();
        assert_eq!(changed, [true]);
        let latest: i64 =
            sqlx::query_scalar("SELECT max(version) FROM destinations").fetch_one(&store.pool).await.unwrap();
        assert_eq!(store.shared.destinations.tenants().version(&created.settings.tenant), latest);
    }
}
