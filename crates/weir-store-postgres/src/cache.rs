//! Destinations in memory, beside the versions they were read at.
//!
//! Another process may edit a destination at any time, so nothing here is believed by itself: a reader asks the database
//! what changed since the version it knows, takes that in, and then reads here. That costs one look into an index and, most
//! of the time, not one row.
//!
//! Two readers ask in two ways. A lookup names destinations and compares the version of each. Ingest needs every
//! destination of a tenant and asks for versions above the highest it has seen; that is complete because edits that matter
//! to it hold the tenant's lock, so their versions become visible in order (locks.rs).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use weir_core::{Destination, DestinationId};
use weir_store::intake::Directory;

/// How many event types a tenant's matches are kept for.
const MAX_REMEMBERED: usize = 1_024;

/// A destination as some version left it; `None` when that deleted it.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) id: DestinationId,
    pub(crate) tenant: String,
    pub(crate) version: i64,
    pub(crate) destination: Option<Arc<Destination>>,
}

#[derive(Debug, Default)]
pub(crate) struct DestinationCache {
    looked_up: Mutex<HashMap<DestinationId, Change>>,
    tenants: Mutex<Tenants>,
}

impl DestinationCache {
    /// The version each of these was read at; 0, which none has, for what is not known.
    pub(crate) fn versions(&self, ids: &[DestinationId]) -> Vec<i64> {
        let looked_up = lock(&self.looked_up);
        ids.iter().map(|id| looked_up.get(id).map_or(0, |known| known.version)).collect()
    }

    /// Takes in what was read by id.
    pub(crate) fn learn(&self, changes: Vec<Change>) {
        let mut looked_up = lock(&self.looked_up);
        for change in changes {
            if looked_up.get(&change.id).is_none_or(|known| known.version < change.version) {
                looked_up.insert(change.id, change);
            }
        }
    }

    pub(crate) fn get_many(&self, ids: &[DestinationId]) -> Vec<Option<Arc<Destination>>> {
        let looked_up = lock(&self.looked_up);
        ids.iter().map(|id| looked_up.get(id)?.destination.clone()).collect()
    }

    /// What ingest decides by.
    pub(crate) fn tenants(&self) -> MutexGuard<'_, Tenants> {
        lock(&self.tenants)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The live destinations of the tenants that events came for.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    by_name: HashMap<String, Tenant>,
}

#[derive(Debug, Default)]
struct Tenant {
    /// Every change up to this version is taken in.
    version: i64,
    live: BTreeMap<DestinationId, Arc<Destination>>,
    /// The destinations that take a type, for types seen since the last change.
    matches: HashMap<String, Arc<[DestinationId]>>,
}

impl Tenants {
    /// The highest version seen of a tenant; 0 when nothing is known of it.
    pub(crate) fn version(&self, tenant: &str) -> i64 {
        self.by_name.get(tenant).map_or(0, |tenant| tenant.version)
    }

    /// Takes in every change of some tenants since the versions seen. Another writer may have taken some in already.
    pub(crate) fn learn(&mut self, mut changes: Vec<Change>) {
        changes.sort_by_key(|change| change.version);
        for Change { id, tenant, version, destination } in changes {
            let tenant = self.by_name.entry(tenant).or_default();
            if version <= tenant.version {
                continue;
            }
            tenant.version = version;
            tenant.matches.clear();
            match destination {
                Some(destination) => tenant.live.insert(id, destination),
                None => tenant.live.remove(&id),
            };
        }
    }
}

impl Directory for Tenants {
    fn find(&self, tenant: &str, id: DestinationId) -> Option<Arc<Destination>> {
        self.by_name.get(tenant)?.live.get(&id).cloned()
    }

    fn matching(&mut self, tenant: &str, event_type: &str) -> Arc<[DestinationId]> {
        let Some(found) = self.by_name.get_mut(tenant) else {
            return Arc::new([]);
        };
        if let Some(matches) = found.matches.get(event_type) {
            return Arc::clone(matches);
        }
        let accepting = found.live.values().filter(|destination| destination.accepts(tenant, event_type));
        let matches: Arc<[DestinationId]> = accepting.map(|destination| destination.id).collect();
        if found.matches.len() >= MAX_REMEMBERED {
            found.matches.clear();
        }
        found.matches.insert(event_type.to_owned(), Arc::clone(&matches));
        matches
    }
}
