//! Cached destinations, with the versions they were read at.
//!
//! Another process may edit a destination at any time. So a reader first asks the database for changes since the cached
//! version, stores them in the cache, and then reads the cache. This costs one index lookup, which usually returns no
//! row.
//!
//! There are two kinds of readers. A lookup names destinations and compares the version and the hold of each. Ingest needs
//! every destination of a tenant and asks for versions above the highest cached one. This finds every change, because
//! edits that affect ingest hold the tenant's lock, so their versions become visible in order (locks.rs).
//!
//! Ingest reads few changes inside a batch, because other producers and edits of the tenant wait for it. If there are
//! more, as at the first event of a tenant with many destinations, the producers of this tenant read them first, page by
//! page and without its lock: by the order of the versions, a page leaves no gap.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use weir_core::{Destination, DestinationId, Timestamp};
use weir_store::{Directory, Matches, NewEvent, TenantDestinations};

/// A destination at one version; `None` if that version deleted it.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) id: DestinationId,
    pub(crate) tenant: String,
    pub(crate) version: i64,
    pub(crate) destination: Option<Arc<Destination>>,
}

impl Change {
    /// In the order of changes: a hold keeps the version and is only extended.
    fn version_and_hold(&self) -> (i64, Option<Timestamp>) {
        (self.version, self.destination.as_ref().and_then(|destination| destination.held_until))
    }
}

#[derive(Debug, Default)]
pub(crate) struct DestinationCache {
    looked_up: Mutex<HashMap<DestinationId, Change>>,
    tenants: Mutex<Tenants>,
}

impl DestinationCache {
    /// The cached version of each destination, and the end of its hold; version 0, which no destination has, if it is not
    /// cached.
    pub(crate) fn versions(&self, ids: &[DestinationId]) -> (Vec<i64>, Vec<Option<i64>>) {
        let looked_up = self.looked_up.lock();
        let known = |id| looked_up.get(id).map_or((0, None), Change::version_and_hold);
        ids.iter().map(known).map(|(version, held)| (version, held.map(Timestamp::as_nanos))).unzip()
    }

    /// Stores changes that were read by id.
    pub(crate) fn learn(&self, changes: Vec<Change>) {
        let mut looked_up = self.looked_up.lock();
        for change in changes {
            if looked_up.get(&change.id).is_none_or(|known| known.version_and_hold() < change.version_and_hold()) {
                looked_up.insert(change.id, change);
            }
        }
    }

    pub(crate) fn get_many(&self, ids: &[DestinationId]) -> Vec<Option<Arc<Destination>>> {
        let looked_up = self.looked_up.lock();
        ids.iter().map(|id| looked_up.get(id)?.destination.clone()).collect()
    }

    /// The destinations by tenant, as ingest needs them.
    pub(crate) fn tenants(&self) -> MutexGuard<'_, Tenants> {
        self.tenants.lock()
    }
}

/// The destinations that are not deleted, of each tenant that has received events.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    by_name: HashMap<String, Tenant>,
    /// The tenants of which more has changed than ingest reads at once, and the turn to read the rest.
    behind: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
}

#[derive(Debug, Default)]
struct Tenant {
    /// Every change up to this version is cached.
    version: i64,
    destinations: TenantDestinations,
}

impl Tenants {
    /// The highest cached version of a tenant; 0 if the tenant is not cached.
    pub(crate) fn version(&self, tenant: &str) -> i64 {
        self.by_name.get(tenant).map_or(0, |tenant| tenant.version)
    }

    /// The tenants of these events of which many changes are not cached.
    pub(crate) fn behind(&self, events: &[NewEvent]) -> Vec<(String, Arc<tokio::sync::Mutex<()>>)> {
        if self.behind.is_empty() {
            return Vec::new();
        }
        let tenants: HashSet<&str> = events.iter().map(|new| new.event.tenant.as_str()).collect();
        let behind = tenants.into_iter().filter_map(|tenant| self.behind.get_key_value(tenant));
        behind.map(|(tenant, turn)| (tenant.clone(), Arc::clone(turn))).collect()
    }

    pub(crate) fn is_behind(&self, tenant: &str) -> bool {
        self.behind.contains_key(tenant)
    }

    /// Notes whether changes of the tenant are left that are not cached.
    pub(crate) fn set_behind(&mut self, tenant: &str, is_behind: bool) {
        if is_behind {
            self.behind.entry(tenant.to_owned()).or_default();
        } else if !self.behind.is_empty() {
            self.behind.remove(tenant);
        }
    }

    /// The destinations that an event has, as far as they are cached.
    pub(crate) fn matches(&mut self, new: &NewEvent) -> Matches {
        let Some(tenant) = self.by_name.get_mut(&new.event.tenant) else { return Matches::default() };
        match &new.destinations {
            Some(ids) => tenant.destinations.named(ids),
            None => tenant.destinations.matching(&new.event.event_type),
        }
    }

    /// Stores every change of some tenants since the cached versions. Another writer may have stored some of them
    /// already.
    pub(crate) fn learn(&mut self, mut changes: Vec<Change>) {
        changes.sort_by_key(|change| change.version);
        for Change { id, tenant, version, destination } in changes {
            let tenant = self.by_name.entry(tenant).or_default();
            if version <= tenant.version {
                continue;
            }
            tenant.version = version;
            tenant.destinations.set(id, destination);
        }
    }
}

impl Directory for Tenants {
    fn find(&self, tenant: &str, id: DestinationId) -> Option<Arc<Destination>> {
        self.by_name.get(tenant)?.destinations.by_id().get(&id).cloned()
    }

    fn matching(&mut self, tenant: &str, event_type: &str) -> Arc<[DestinationId]> {
        self.by_name.get_mut(tenant).map(|found| found.destinations.matching(event_type).ids).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use sqlx::raw_sql;
    use weir_store::{Destinations as _, History as _, Ingest as _};

    use crate::{
        PostgresStore,
        database::Database,
        fixtures::{NOW, creation, destination, event},
    };

    /// Copies of the only destination, which take other event types.
    const COPIES: &str = "
    INSERT INTO destinations SELECT copy.* FROM destinations one, generate_series(1, 2500) AS number,
        LATERAL jsonb_populate_record(one, jsonb_build_object('id', gen_random_uuid(),
            'version', nextval('destination_versions'), 'event_types', format('[\"other.%s\"]', number))) AS copy";

    /// How many are cached, by the version up to which they are.
    const READS: &str = "SELECT count(*) FROM destinations WHERE version <= $1";

    #[tokio::test]
    async fn many_changes_are_read_before_the_batch_and_once_for_all_producers() {
        let database = Database::migrated().await;
        let store = Box::pin(PostgresStore::open(&database.url(), NOW)).await.unwrap();
        store.create_destination(destination(1), creation()).await.unwrap();
        raw_sql(COPIES).execute(&mut database.connect().await).await.unwrap();
        let cached = async || {
            let version = store.shared.destinations.tenants().version(&event(1).event.tenant);
            sqlx::query_scalar::<_, i64>(READS).bind(version).fetch_one(&store.pool).await.unwrap()
        };
        // A batch reads at most a thousand, because others wait for it, and stores nothing.
        let mut connection = database.connect().await;
        let answers = crate::ingest::store(&[&event(1)], &mut connection, &store.shared).await.unwrap();
        assert_eq!((answers.len(), cached().await), (0, 1_000));
        assert!(store.event(event(1).event.id).await.unwrap().is_none());
        // The producers read the rest, and each event is stored.
        let (first, second) = tokio::join!(store.ingest(vec![event(1)]), store.ingest(vec![event(2)]));
        for answers in [first, second] {
            assert_eq!(answers.unwrap()[0].as_ref().unwrap().deliveries, 1);
        }
        assert_eq!(cached().await, 2_501);
        assert!(!store.shared.destinations.tenants().is_behind(&event(1).event.tenant));
        // An edit of one is read alone, in the batch.
        raw_sql("UPDATE destinations SET version = nextval('destination_versions'), name = 'edited' WHERE id = (SELECT min(id::text)::uuid FROM destinations)")
            .execute(&mut connection)
            .await
            .unwrap();
        let answers = crate::ingest::store(&[&event(3)], &mut connection, &store.shared).await.unwrap();
        assert_eq!((answers.len(), cached().await), (1, 2_501));
    }
}
