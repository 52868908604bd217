//! A memory cache of the bodies of events whose deliveries wait for their first claim.
//!
//! Most deliveries are claimed within milliseconds of their ingest, so their claims need no read of the body. The cache
//! is bounded in bytes. When it is full, new bodies are not added: claims take the oldest deliveries first, so the
//! cached bodies are the next to be used, unless they are [`STALE`]. The cache has only copies; a missing body is read
//! from the table.

use std::{
    collections::{VecDeque, hash_map::Entry},
    time::Duration,
};

use weir_core::{EventId, IdMap, event::EventBody};

/// Larger bodies are not cached, so that a few of them do not displace many small ones.
const LARGEST: usize = 64 * 1024;
/// The approximate cost of an entry besides its bytes.
const OVERHEAD: usize = 160;
/// A body older than this waits for a limit or a pause, and makes room for new bodies.
const STALE: Duration = Duration::from_secs(5);
/// `oldest_first` may hold this many ids of removed bodies, and one more for each cached body.
const SLACK: usize = 1_024;

/// Cached bodies of events whose deliveries wait to be claimed.
#[derive(Debug)]
pub struct BodyCache {
    bodies: IdMap<EventId, CachedBody>,
    /// The ids in the order of insertion, also of some removed bodies.
    oldest_first: VecDeque<EventId>,
    bytes: usize,
    max_bytes: usize,
}

#[derive(Debug)]
struct CachedBody {
    body: EventBody,
    /// How many deliveries still wait for it.
    deliveries: u32,
}

fn cost(body: &EventBody) -> usize {
    body.bytes().len() + OVERHEAD
}

impl BodyCache {
    pub fn new(max_bytes: usize) -> Self {
        Self { bodies: IdMap::default(), oldest_first: VecDeque::new(), bytes: 0, max_bytes }
    }

    /// Adds the body for one waiting delivery, if there is room or stale bodies make room.
    pub fn add(&mut self, id: EventId, body: &EventBody) {
        if body.bytes().len() > LARGEST {
            return;
        }
        if let Some(cached) = self.bodies.get_mut(&id) {
            cached.deliveries += 1;
        } else if self.make_room(id, cost(body)) {
            self.bodies.insert(id, CachedBody { body: body.clone(), deliveries: 1 });
            self.bytes += cost(body);
            self.oldest_first.push_back(id);
        }
    }

    /// The body of an event for one of its deliveries, if it is cached. The last delivery removes it.
    pub fn take(&mut self, id: EventId) -> Option<EventBody> {
        let Entry::Occupied(mut cached) = self.bodies.entry(id) else { return None };
        if cached.get().deliveries > 1 {
            cached.get_mut().deliveries -= 1;
            return Some(cached.get().body.clone());
        }
        let body = cached.remove().body;
        self.bytes -= cost(&body);
        Some(body)
    }

    pub fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// Removes stale bodies until `bytes` more fit. `id` is the new event; its time counts as now. `false` if they do
    /// not fit.
    fn make_room(&mut self, id: EventId, bytes: usize) -> bool {
        if self.oldest_first.len() > 2 * self.bodies.len() + SLACK {
            self.oldest_first.retain(|id| self.bodies.contains_key(id));
        }
        let Self { bodies, oldest_first, bytes: used, max_bytes } = self;
        while *used + bytes > *max_bytes {
            let is_removable =
                |oldest: &mut EventId| !bodies.contains_key(oldest) || id.made_at().since(oldest.made_at()) >= STALE;
            let Some(oldest) = oldest_first.pop_front_if(is_removable) else { return false };
            *used -= bodies.remove(&oldest).map_or(0, |removed| cost(&removed.body));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use weir_core::Timestamp;

    use super::*;

    fn body(size: usize) -> EventBody {
        EventBody::stored(Bytes::from(vec![b'x'; size]), 0)
    }

    fn id(n: u128) -> EventId {
        EventId::new(Timestamp::from_secs(1), n)
    }

    fn made_in(second: i64, n: u128) -> EventId {
        EventId::new(Timestamp::from_secs(second), n)
    }

    #[test]
    fn a_full_cache_keeps_the_oldest_bodies() {
        let mut cache = BodyCache::new(4 * (100 + OVERHEAD));
        for n in 0..10 {
            cache.add(id(n), &body(100));
        }
        assert!(cache.bytes <= cache.max_bytes);
        assert!((4..10).all(|n| cache.take(id(n)).is_none()));
        assert!(cache.take(id(0)).is_some());
        // There is room again, because removed bodies are not counted.
        cache.add(id(10), &body(100));
        assert!([1, 2, 3, 10].into_iter().all(|n| cache.take(id(n)).is_some()));
        assert_eq!(cache.bytes, 0);
    }

    #[test]
    fn stale_bodies_make_room_for_new_ones() {
        let mut cache = BodyCache::new(4 * (100 + OVERHEAD));
        for n in 0..4 {
            cache.add(made_in(1 + n, n as u128), &body(100));
        }
        cache.add(made_in(7, 4), &body(100));
        cache.add(made_in(7, 5), &body(100));
        assert!(cache.take(made_in(1, 0)).is_none() && cache.take(made_in(2, 1)).is_none());
        assert!(cache.take(made_in(3, 2)).is_some() && cache.take(made_in(7, 5)).is_some());
        cache.add(made_in(8, 6), &body(100));
        cache.add(made_in(8, 7), &body(100));
        cache.add(made_in(8, 8), &body(100));
        assert!(cache.take(made_in(4, 3)).is_some() && cache.take(made_in(8, 8)).is_none());
        assert!(cache.bytes <= cache.max_bytes);
    }

    #[test]
    fn a_body_is_removed_with_its_last_waiting_delivery() {
        let mut cache = BodyCache::new(usize::MAX);
        cache.add(id(1), &body(100));
        cache.add(id(1), &body(100));
        assert!(cache.take(id(1)).is_some() && cache.take(id(1)).is_some());
        assert!(cache.take(id(1)).is_none() && cache.is_empty());
    }

    #[test]
    fn ids_of_removed_bodies_do_not_accumulate() {
        let mut cache = BodyCache::new(usize::MAX);
        cache.add(id(0), &body(100));
        for n in 1..10_000 {
            cache.add(id(n), &body(100));
            cache.take(id(n));
        }
        assert!(cache.oldest_first.len() <= SLACK + 3);
        assert!(cache.take(id(0)).is_some());
    }

    #[test]
    fn large_bodies_are_not_cached() {
        let mut cache = BodyCache::new(usize::MAX);
        cache.add(id(1), &body(LARGEST + 1));
        assert!(cache.is_empty());
        assert_eq!(cache.bytes, 0);
    }
}
