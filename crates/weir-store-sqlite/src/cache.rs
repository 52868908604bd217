//! The live destinations, in memory: the truth while the engine runs (the file is open in one engine only).
//!
//! Changed by the writer alone, after the commit that changed the table. While a group is under way its changes are in
//! [`Staged`], which the writer reads through, and which is dropped when the group fails.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use weir_core::{Destination, DestinationId};

/// How many event types a tenant's remembered matches hold before they are forgotten.
const MAX_REMEMBERED: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct DestinationCache {
    inner: RwLock<Live>,
}

#[derive(Debug, Default)]
struct Live {
    by_id: BTreeMap<DestinationId, Arc<Destination>>,
    tenants: HashMap<String, Tenant>,
}

#[derive(Debug, Default)]
struct Tenant {
    by_id: BTreeMap<DestinationId, Arc<Destination>>,
    /// The destinations whose patterns match a type; forgotten whenever the tenant changes.
    matches: HashMap<String, Arc<[DestinationId]>>,
}

impl DestinationCache {
    pub(crate) fn new(destinations: Vec<Destination>) -> Self {
        let this = Self::default();
        this.apply(destinations.into_iter().map(|destination| (destination.id, Some(Arc::new(destination)))));
        this
    }

    // No code path panics while it holds the lock; a poisoned one is as good as ever.
    fn read(&self) -> RwLockReadGuard<'_, Live> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, id: DestinationId) -> Option<Arc<Destination>> {
        self.read().by_id.get(&id).cloned()
    }

    pub(crate) fn get_many(&self, ids: &[DestinationId]) -> Vec<Option<Arc<Destination>>> {
        let live = self.read();
        ids.iter().map(|id| live.by_id.get(id).cloned()).collect()
    }

    /// Those of which `which` is true, in the order of their ids.
    pub(crate) fn filter(&self, which: impl Fn(&Destination) -> bool) -> Vec<DestinationId> {
        self.read().by_id.values().filter(|destination| which(destination)).map(|destination| destination.id).collect()
    }

    /// At most `limit` destinations below `before`, newest first.
    pub(crate) fn page(
        &self,
        tenant: Option<&str>,
        before: Option<DestinationId>,
        limit: usize,
    ) -> Vec<Arc<Destination>> {
        let live = self.read();
        let all = match tenant {
            None => &live.by_id,
            Some(tenant) => match live.tenants.get(tenant) {
                Some(tenant) => &tenant.by_id,
                None => return Vec::new(),
            },
        };
        let end = before.map_or(Bound::Unbounded, Bound::Excluded);
        all.range((Bound::Unbounded, end)).rev().take(limit).map(|(_, destination)| Arc::clone(destination)).collect()
    }

    /// The destinations of a tenant whose patterns match a type.
    fn matching(&self, tenant: &str, event_type: &str) -> Arc<[DestinationId]> {
        match self.read().tenants.get(tenant) {
            None => return Arc::new([]),
            Some(tenant) => {
                if let Some(matches) = tenant.matches.get(event_type) {
                    return Arc::clone(matches);
                }
            }
        }
        let mut live = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let Some(found) = live.tenants.get_mut(tenant) else {
            return Arc::new([]);
        };
        let accepting = found.by_id.values().filter(|destination| destination.accepts(tenant, event_type));
        let matches: Arc<[DestinationId]> = accepting.map(|destination| destination.id).collect();
        if found.matches.len() >= MAX_REMEMBERED {
            found.matches.clear();
        }
        found.matches.insert(event_type.to_owned(), Arc::clone(&matches));
        matches
    }

    /// Puts committed changes in force; `None` for a deleted destination.
    fn apply(&self, changes: impl IntoIterator<Item = (DestinationId, Option<Arc<Destination>>)>) {
        let mut live = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        for (id, destination) in changes {
            if let Some(old) = live.by_id.remove(&id)
                && let Some(tenant) = live.tenants.get_mut(&old.settings.tenant)
            {
                tenant.by_id.remove(&id);
                tenant.matches.clear();
                if tenant.by_id.is_empty() {
                    live.tenants.remove(&old.settings.tenant);
                }
            }
            if let Some(destination) = destination {
                let tenant = live.tenants.entry(destination.settings.tenant.clone()).or_default();
                tenant.by_id.insert(id, Arc::clone(&destination));
                tenant.matches.clear();
                live.by_id.insert(id, destination);
            }
        }
    }
}

/// Destinations as the transaction under way sees them.
pub(crate) struct Staged<'a> {
    cache: &'a DestinationCache,
    changes: HashMap<DestinationId, Option<Arc<Destination>>>,
}

impl<'a> Staged<'a> {
    pub(crate) fn new(cache: &'a DestinationCache) -> Self {
        Self { cache, changes: HashMap::new() }
    }

    pub(crate) fn get(&self, id: DestinationId) -> Option<Arc<Destination>> {
        match self.changes.get(&id) {
            Some(changed) => changed.clone(),
            None => self.cache.get(id),
        }
    }

    pub(crate) fn is_deleted(&self, id: DestinationId) -> bool {
        self.get(id).is_none()
    }

    pub(crate) fn set(&mut self, id: DestinationId, destination: Option<Arc<Destination>>) {
        self.changes.insert(id, destination);
    }

    /// The destinations that take an event which names none.
    pub(crate) fn matching(&self, tenant: &str, event_type: &str) -> Arc<[DestinationId]> {
        let committed = self.cache.matching(tenant, event_type);
        if self.changes.is_empty() {
            return committed;
        }
        let unchanged = committed.iter().filter(|id| !self.changes.contains_key(id)).copied();
        let accepting = |destination: &&Arc<Destination>| destination.accepts(tenant, event_type);
        unchanged.chain(self.changes.values().flatten().filter(accepting).map(|destination| destination.id)).collect()
    }

    /// The transaction has committed.
    pub(crate) fn commit(self) {
        if !self.changes.is_empty() {
            self.cache.apply(self.changes);
        }
    }
}
