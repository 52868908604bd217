//! The bodies of events whose deliveries wait for their first claim, kept in memory.
//!
//! Most deliveries are claimed within milliseconds of their ingest; this spares them the way back through the database.
//! Bounded in bytes; the oldest go first. Only ever a copy: what is missing is read from the table.

use std::collections::{VecDeque, hash_map::Entry};

use weir_core::{EventId, IdMap, event::EventBody};

/// Bodies above this are not kept, so that a few large ones do not crowd out the rest.
const LARGEST: usize = 64 * 1024;
/// What an entry costs besides its bytes, roughly.
const OVERHEAD: usize = 160;
/// So many ids of bodies that have gone may stand in the order besides as many as there are bodies.
const SLACK: usize = 1_024;

/// Bodies of events that wait to be claimed, as many as fit.
#[derive(Debug)]
pub struct WaitingBodies {
    bodies: IdMap<EventId, Waiting>,
    /// The oldest first, with some that have gone.
    order: VecDeque<EventId>,
    bytes: usize,
    max_bytes: usize,
}

#[derive(Debug)]
struct Waiting {
    body: EventBody,
    deliveries: u32,
}

fn cost(body: &EventBody) -> usize {
    body.bytes().len() + OVERHEAD
}

impl WaitingBodies {
    pub fn new(max_bytes: usize) -> Self {
        Self { bodies: IdMap::default(), order: VecDeque::new(), bytes: 0, max_bytes }
    }

    /// A delivery of this event waits. Lets go of the oldest that no longer fit.
    pub fn add(&mut self, id: EventId, body: &EventBody) {
        if body.bytes().len() > LARGEST {
            return;
        }
        match self.bodies.entry(id) {
            Entry::Occupied(mut waiting) => waiting.get_mut().deliveries += 1,
            Entry::Vacant(place) => {
                place.insert(Waiting { body: body.clone(), deliveries: 1 });
                self.bytes += cost(body);
                self.order.push_back(id);
                self.make_room();
            }
        }
    }

    /// The body of an event, if it is here, for one of its deliveries. It goes with the last of them.
    pub fn take(&mut self, id: EventId) -> Option<EventBody> {
        let Entry::Occupied(mut waiting) = self.bodies.entry(id) else { return None };
        if waiting.get().deliveries > 1 {
            waiting.get_mut().deliveries -= 1;
            return Some(waiting.get().body.clone());
        }
        let body = waiting.remove().body;
        self.bytes -= cost(&body);
        Some(body)
    }

    pub fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    fn make_room(&mut self) {
        while self.bytes > self.max_bytes {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(gone) = self.bodies.remove(&oldest) {
                self.bytes -= cost(&gone.body);
            }
        }
        if self.order.len() > 2 * self.bodies.len() + SLACK {
            self.order.retain(|id| self.bodies.contains_key(id));
        }
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
        let mut waiting = WaitingBodies::new(4 * (100 + OVERHEAD));
        for n in 0..10 {
            waiting.add(id(n), &body(100));
        }
        assert!(waiting.bytes <= waiting.max_bytes);
        assert!((0..6).all(|n| waiting.take(id(n)).is_none()));
        assert!((6..10).all(|n| waiting.take(id(n)).is_some()));
        assert_eq!(waiting.bytes, 0);
    }

    #[test]
    fn a_body_goes_with_the_last_delivery_that_waits_for_it() {
        let mut waiting = WaitingBodies::new(usize::MAX);
        waiting.add(id(1), &body(100));
        waiting.add(id(1), &body(100));
        assert!(waiting.take(id(1)).is_some() && waiting.take(id(1)).is_some());
        assert!(waiting.take(id(1)).is_none() && waiting.is_empty());
    }

    #[test]
    fn what_is_claimed_soon_leaves_nothing_behind() {
        let mut waiting = WaitingBodies::new(usize::MAX);
        waiting.add(id(0), &body(100));
        for n in 1..10_000 {
            waiting.add(id(n), &body(100));
            waiting.take(id(n));
        }
        assert!(waiting.order.len() <= SLACK + 3);
        assert!(waiting.take(id(0)).is_some());
    }

    #[test]
    fn large_bodies_are_not_kept() {
        let mut waiting = WaitingBodies::new(usize::MAX);
        waiting.add(id(1), &body(LARGEST + 1));
        assert!(waiting.is_empty());
        assert_eq!(waiting.bytes, 0);
    }
}
