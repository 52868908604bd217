//! The destinations of tenants in memory, and which of them take an event.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use weir_core::{
    Destination, DestinationId, LimitGroupId, filter::Filter, limit_key::KeyLimits, pattern::EventPattern,
};

use crate::Looks;

/// The destinations of the tenants, without deleted ones.
pub trait Directory {
    fn find(&self, tenant: &str, id: DestinationId) -> Option<Arc<Destination>>;

    /// The destinations of a tenant whose patterns match an event type, without regard to their filters.
    fn matching(&mut self, tenant: &str, event_type: &str) -> Arc<[DestinationId]>;
}

/// The destinations that an event type has, without regard to filters, and what they look for in the data of an event.
#[derive(Debug, Clone, Default)]
pub struct Matches {
    pub ids: Arc<[DestinationId]>,
    pub looks: Looks,
}

/// The limit groups of these destinations, each once.
fn limit_groups<'d>(destinations: impl Iterator<Item = &'d Arc<Destination>>) -> Arc<[LimitGroupId]> {
    let all: BTreeSet<_> = destinations.filter_map(limit_group).collect();
    all.into_iter().collect()
}

fn limit_group(destination: &Arc<Destination>) -> Option<LimitGroupId> {
    destination.settings.limit_group
}

/// The limit keys of these destinations, one for each pointer.
pub(crate) fn key_limits<'d>(destinations: impl Iterator<Item = &'d Arc<Destination>>) -> Vec<Arc<KeyLimits>> {
    let mut seen = HashSet::new();
    let all = destinations.filter_map(|destination| destination.settings.key_limits.as_ref());
    all.filter(|of| seen.insert(of.pointer.as_str())).cloned().collect()
}

fn pointer(destination: &Arc<Destination>) -> Option<&str> {
    Some(&destination.settings.key_limits.as_ref()?.pointer)
}

fn filter(destination: &Arc<Destination>) -> Option<&Arc<Filter>> {
    destination.settings.filter.as_ref()
}

fn patterns(destination: &Arc<Destination>) -> &[EventPattern] {
    &destination.settings.event_types
}

/// The most event types for which the matches of a tenant are remembered. Above this number all are forgotten.
const MAX_REMEMBERED: usize = 1_024;

/// The cached destinations of one tenant. They are found by the patterns that match an event type, so an event costs as
/// many look-ups as its type has parts, however many destinations there are. The matches of a type are remembered,
/// because most events have one of a few types, and a type may have thousands of destinations.
#[derive(Debug, Default)]
pub struct TenantDestinations {
    by_id: BTreeMap<DestinationId, Arc<Destination>>,
    by_pattern: HashMap<EventPattern, BTreeSet<DestinationId>>,
    /// Forgotten when a destination is added or removed, or its patterns, its filter, its limit group or the pointer to its
    /// limit key change.
    matches: HashMap<String, Matches>,
}

impl TenantDestinations {
    pub fn by_id(&self) -> &BTreeMap<DestinationId, Arc<Destination>> {
        &self.by_id
    }

    /// Adds, replaces or (`None`) removes a destination.
    pub fn set(&mut self, id: DestinationId, destination: Option<Arc<Destination>>) {
        let before = match &destination {
            Some(destination) => self.by_id.insert(id, Arc::clone(destination)),
            None => self.by_id.remove(&id),
        };
        // Thousands of holds and breakers may change in a second, and none of them changes what matches.
        let (old, new) = (before.as_ref(), destination.as_ref());
        let other_looks =
            old.and_then(filter) != new.and_then(filter) || old.and_then(pointer) != new.and_then(pointer);
        if other_looks || old.and_then(limit_group) != new.and_then(limit_group) {
            self.matches.clear();
        }
        let (before, after) = (before.as_ref().map(patterns), destination.as_ref().map(patterns));
        if before == after {
            return;
        }
        self.matches.clear();
        for pattern in before.unwrap_or_default() {
            if let Some(ids) = self.by_pattern.get_mut(pattern) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_pattern.remove(pattern);
                }
            }
        }
        for pattern in after.unwrap_or_default() {
            self.by_pattern.entry(pattern.clone()).or_default().insert(id);
        }
    }

    /// The matches of an event type, if they are remembered.
    pub fn remembered(&self, event_type: &str) -> Option<Matches> {
        self.matches.get(event_type).cloned()
    }

    /// What destinations that an event names look for in its data. They do not filter it.
    pub fn named(&self, ids: &[DestinationId]) -> Matches {
        let named = || ids.iter().filter_map(|id| self.by_id.get(id));
        let (key_limits, limit_groups) = (key_limits(named()).into(), limit_groups(named()));
        Matches { looks: Looks { key_limits, limit_groups, ..Looks::default() }, ..Matches::default() }
    }

    /// The destinations that take an event of this type, in the order of their ids.
    pub fn matching(&mut self, event_type: &str) -> Matches {
        if let Some(matches) = self.remembered(event_type) {
            return matches;
        }
        // A destination may have several patterns that match.
        let found = EventPattern::that_match(event_type).filter_map(|pattern| self.by_pattern.get(&pattern));
        let mut ids: Vec<DestinationId> = found.flatten().copied().collect();
        ids.sort_unstable();
        ids.dedup();
        let filters = ids.iter().filter_map(|id| self.by_id.get(id).and_then(filter));
        let mut seen = HashSet::new();
        let filters = filters.filter(|filter| seen.insert(filter.fingerprint())).cloned().collect();
        let all = || ids.iter().filter_map(|id| self.by_id.get(id));
        let (key_limits, limit_groups) = (key_limits(all()).into(), limit_groups(all()));
        let matches = Matches { ids: ids.into(), looks: Looks { filters, key_limits, limit_groups } };
        if self.matches.len() >= MAX_REMEMBERED {
            self.matches.clear();
        }
        self.matches.insert(event_type.to_owned(), matches.clone());
        matches
    }
}
