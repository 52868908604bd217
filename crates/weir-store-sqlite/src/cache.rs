//! The cached destinations: all that are not deleted. The cache is authoritative, because only one engine has the file
//! open.
//!
//! Only the writer changes the cache, after the commit that changed the table. While a batch runs, its changes are in
//! [`StagedDestinations`], through which the writer reads. They are dropped if the batch fails.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::Arc,
};

use parking_lot::RwLock;
use weir_core::{Destination, DestinationId};
use weir_store::{DestinationFilter, Directory, Matches, NewEvent, TenantDestinations};

#[derive(Debug, Default)]
pub(crate) struct DestinationCache {
    inner: RwLock<CachedDestinations>,
}

#[derive(Debug, Default)]
struct CachedDestinations {
    by_id: BTreeMap<DestinationId, Arc<Destination>>,
    tenants: HashMap<String, TenantDestinations>,
}

impl DestinationCache {
    pub(crate) fn new(destinations: Vec<Destination>) -> Self {
        let this = Self::default();
        this.apply(destinations.into_iter().map(|destination| (destination.id, Some(Arc::new(destination)))));
        this
    }

    pub(crate) fn get(&self, id: DestinationId) -> Option<Arc<Destination>> {
        self.inner.read().by_id.get(&id).cloned()
    }

    pub(crate) fn get_many(&self, ids: &[DestinationId]) -> Vec<Option<Arc<Destination>>> {
        let cached = self.inner.read();
        ids.iter().map(|id| cached.by_id.get(id).cloned()).collect()
    }

    /// The destinations for which `which` is true, in the order of their ids.
    pub(crate) fn filter(&self, which: impl Fn(&Destination) -> bool) -> Vec<DestinationId> {
        let cached = self.inner.read();
        cached.by_id.values().filter(|destination| which(destination)).map(|destination| destination.id).collect()
    }

    /// At most `limit` destinations that match, with ids below `before`, newest first.
    pub(crate) fn page(
        &self,
        filter: &DestinationFilter,
        before: Option<DestinationId>,
        limit: usize,
    ) -> Vec<Arc<Destination>> {
        let cached = self.inner.read();
        let all = match filter.tenants.only() {
            None => &cached.by_id,
            Some(tenant) => match cached.tenants.get(tenant) {
                Some(tenant) => tenant.by_id(),
                None => return Vec::new(),
            },
        };
        let end = before.map_or(Bound::Unbounded, Bound::Excluded);
        let older = all.range((Bound::Unbounded, end)).rev().map(|(_, destination)| destination);
        older.filter(|destination| filter.matches(destination)).take(limit).cloned().collect()
    }

    /// The destinations that an event has by the committed state.
    pub(crate) fn matches(&self, new: &NewEvent) -> Matches {
        let tenant = &new.event.tenant;
        let named = |ids: &[DestinationId]| self.inner.read().tenants.get(tenant).map(|found| found.named(ids));
        match &new.destinations {
            Some(ids) => named(ids).unwrap_or_default(),
            None => self.matching(tenant, &new.event.event_type),
        }
    }

    /// The destinations of a tenant whose patterns match a type.
    fn matching(&self, tenant: &str, event_type: &str) -> Matches {
        // Most types were matched before: a read lock is enough.
        match self.inner.read().tenants.get(tenant).map(|found| found.remembered(event_type)) {
            None => return Matches::default(),
            Some(Some(matches)) => return matches,
            Some(None) => {}
        }
        // The first event of a type is matched against the patterns, and the result is remembered.
        let mut cached = self.inner.write();
        cached.tenants.get_mut(tenant).map(|found| found.matching(event_type)).unwrap_or_default()
    }

    /// Applies committed changes; `None` for a deleted destination.
    fn apply(&self, changes: impl IntoIterator<Item = (DestinationId, Option<Arc<Destination>>)>) {
        let mut cached = self.inner.write();
        for (id, destination) in changes {
            // Remove a deleted destination, and its tenant if it has no other. No destination changes its tenant.
            if destination.is_none()
                && let Some(old) = cached.by_id.remove(&id)
                && let Some(tenant) = cached.tenants.get_mut(&old.settings.tenant)
            {
                tenant.set(id, None);
                if tenant.by_id().is_empty() {
                    cached.tenants.remove(&old.settings.tenant);
                }
            }
            if let Some(destination) = destination {
                let tenant = cached.tenants.entry(destination.settings.tenant.clone()).or_default();
                tenant.set(id, Some(Arc::clone(&destination)));
                cached.by_id.insert(id, destination);
            }
        }
    }
}

/// Destinations as the running transaction sees them.
pub(crate) struct StagedDestinations<'a> {
    cache: &'a DestinationCache,
    changes: HashMap<DestinationId, Option<Arc<Destination>>>,
}

impl<'a> StagedDestinations<'a> {
    pub(crate) fn new(cache: &'a DestinationCache) -> Self {
        Self { cache, changes: HashMap::new() }
    }

    pub(crate) fn get(&self, id: DestinationId) -> Option<Arc<Destination>> {
        match self.changes.get(&id) {
            Some(changed) => changed.clone(),
            None => self.cache.get(id),
        }
    }

    /// How many destinations a tenant has.
    pub(crate) fn of_tenant(&self, tenant: &str) -> usize {
        let cached = self.cache.inner.read();
        let has = |destination: &&Arc<Destination>| destination.settings.tenant == tenant;
        let committed = cached.tenants.get(tenant).map_or(0, |found| found.by_id().len());
        let replaced = self.changes.keys().filter_map(|id| cached.by_id.get(id)).filter(has).count();
        committed - replaced + self.changes.values().flatten().filter(has).count()
    }

    pub(crate) fn is_deleted(&self, id: DestinationId) -> bool {
        self.get(id).is_none()
    }

    pub(crate) fn set(&mut self, id: DestinationId, destination: Option<Arc<Destination>>) {
        self.changes.insert(id, destination);
    }

    /// Applies the changes to the cache after the transaction has committed.
    pub(crate) fn commit(self) {
        if !self.changes.is_empty() {
            self.cache.apply(self.changes);
        }
    }
}

impl Directory for StagedDestinations<'_> {
    fn find(&self, tenant: &str, id: DestinationId) -> Option<Arc<Destination>> {
        self.get(id).filter(|destination| destination.settings.tenant == tenant)
    }

    fn matching(&mut self, tenant: &str, event_type: &str) -> Arc<[DestinationId]> {
        let committed = self.cache.matching(tenant, event_type).ids;
        if self.changes.is_empty() {
            return committed;
        }
        // A destination that this transaction has changed counts as it is now.
        let unchanged = committed.iter().filter(|id| !self.changes.contains_key(id)).copied();
        let accepting = |destination: &&Arc<Destination>| destination.accepts(tenant, event_type);
        unchanged.chain(self.changes.values().flatten().filter(accepting).map(|destination| destination.id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use weir_core::filter::Filter;
    use weir_store::conformance::{NOW, destination, destination_id};

    use super::*;

    /// By a scan of all destinations twenty times as many would take twenty times as long.
    #[test]
    fn destinations_with_a_type_each_are_found_without_looking_at_the_others() {
        const LOOKUPS: usize = 1_000;
        let of_type = |number: usize| {
            let mut made = destination(number as u128);
            made.settings.event_types = vec![format!("order.n{number}").parse().unwrap()];
            made
        };
        let took_among = |destinations: usize| {
            let cache = DestinationCache::new((0..destinations).map(of_type).collect());
            let began = tokio::time::Instant::now();
            for number in 0..LOOKUPS {
                let found = cache.matching("acme", &format!("order.n{number}"));
                assert_eq!(*found.ids, [destination_id(number as u128)]);
            }
            began.elapsed()
        };
        let (few, many) = (took_among(LOOKUPS), took_among(20 * LOOKUPS));
        assert!(many < few * 8, "{few:?} among {LOOKUPS}, {many:?} among twenty times as many");
    }

    #[test]
    fn a_destination_with_several_patterns_that_match_is_found_once_and_by_each() {
        let mut many = destination(1);
        many.settings.event_types = ["*", "order.*", "order.paid"].map(|pattern| pattern.parse().unwrap()).into();
        let mut narrow = destination(2);
        narrow.settings.event_types = vec!["order.paid.*".parse().unwrap()];
        let cache = DestinationCache::new(vec![narrow.clone(), many.clone()]);
        for (event_type, expected) in [
            ("order.paid", vec![many.id]),
            ("order.paid.late", vec![many.id, narrow.id]),
            ("weir.backlog.high", vec![]),
        ] {
            assert_eq!(*cache.matching("acme", event_type).ids, expected, "{event_type}");
        }
        cache.apply([(many.id, None)]);
        assert_eq!(*cache.matching("acme", "order.paid.late").ids, [narrow.id]);
        assert_eq!(*cache.matching("acme", "order.paid").ids, []);
    }

    #[test]
    fn matches_are_forgotten_only_when_patterns_change() {
        let cache = DestinationCache::new(vec![destination(1), destination(2)]);
        let set = |changed: Destination| cache.apply([(changed.id, Some(Arc::new(changed)))]);
        let remembered =
            || cache.inner.read().tenants["acme"].remembered("order.paid").map(|matches| matches.ids.len());
        assert_eq!(cache.matching("acme", "order.paid").ids.len(), 2);
        set(Destination { held_until: Some(NOW), ..destination(1) });
        assert_eq!(remembered(), Some(2), "a hold changes no match");
        let mut edited = destination(1);
        edited.settings.event_types = vec!["invoice.*".parse().unwrap()];
        set(edited);
        assert_eq!(remembered(), None);
        let mut filtering = destination(2);
        filtering.settings.filter = Some(Arc::new(Filter::parse(&serde_json::json!({"/a": 1})).unwrap()));
        assert_eq!(cache.matching("acme", "order.paid").looks.filters.len(), 0);
        set(filtering);
        assert_eq!(cache.matching("acme", "order.paid").looks.filters.len(), 1);
        assert_eq!(*cache.matching("acme", "order.paid").ids, [destination(2).id]);
        cache.apply([(destination(2).id, None)]);
        assert_eq!(*cache.matching("acme", "order.paid").ids, []);
        assert!(cache.get(destination(2).id).is_none());
    }
}
