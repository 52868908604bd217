//! The bodies of the latest events, kept in memory until they are claimed or crowded out.
//!
//! Most deliveries are claimed within milliseconds of their ingest; this spares them the way back through the database.
//! Bounded in bytes; the oldest go first. Only ever a copy: what is missing is read from the table.

use std::collections::{HashMap, VecDeque};

use weir_core::{EventId, event::EventBody};

/// Bodies above this are not kept, so that a few large ones do not crowd out the rest.
const LARGEST: usize = 64 * 1024;
/// What an entry costs besides its bytes, roughly.
const OVERHEAD: usize = 160;

/// Bodies of recent events, as many as fit.
#[derive(Debug)]
pub struct RecentBodies {
    bodies: HashMap<EventId, EventBody>,
    order: VecDeque<EventId>,
    bytes: usize,
    max_bytes: usize,
}

impl RecentBodies {
    pub fn new(max_bytes: usize) -> Self {
        Self { bodies: HashMap::new(), order: VecDeque::new(), bytes: 0, max_bytes }
    }

    /// Keeps a body, and lets go of the oldest that no longer fit.
    pub fn insert(&mut self, id: EventId, body: &EventBody) {
        if body.bytes().len() > LARGEST || self.bodies.insert(id, body.clone()).is_some() {
            return;
        }
        self.bytes += body.bytes().len() + OVERHEAD;
        self.order.push_back(id);
        while self.bytes > self.max_bytes {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(gone) = self.bodies.remove(&oldest) {
                self.bytes -= gone.bytes().len() + OVERHEAD;
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// The body of an event, if it is still here.
    pub fn get(&self, id: EventId) -> Option<&EventBody> {
        self.bodies.get(&id)
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

    #[test]
    fn the_oldest_bodies_are_crowded_out() {
        let mut recent = RecentBodies::new(4 * (100 + OVERHEAD));
        for n in 0..10 {
            recent.insert(id(n), &body(100));
        }
        assert!((0..6).all(|n| recent.get(id(n)).is_none()));
        assert!((6..10).all(|n| recent.get(id(n)).is_some()));
        assert!(recent.bytes <= recent.max_bytes);
    }

    #[test]
    fn large_bodies_are_not_kept() {
        let mut recent = RecentBodies::new(usize::MAX);
        recent.insert(id(1), &body(LARGEST + 1));
        assert!(recent.get(id(1)).is_none());
        assert_eq!(recent.bytes, 0);
    }
}
