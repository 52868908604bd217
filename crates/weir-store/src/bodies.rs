//! The bodies of events whose deliveries wait for their first claim, kept in memory.
//!
//! Most deliveries are claimed within milliseconds of their ingest; this spares them the way back through the database.
//! Bounded in bytes. When it is full the new ones stay away: claims take the oldest first, so those that are here are the next
//! to be used, unless they are [`STALE`]. Only ever a copy: what is missing is read from the table.

use std::{
    collections::{VecDeque, hash_map::Entry},
    time::Duration,
};

use weir_core::{EventId, IdMap, event::EventBody};

/// Bodies above this are not kept, so that a few large ones do not crowd out the rest.
const LARGEST: usize = 64 * 1024;
/// What an entry costs besides its bytes, roughly.
const OVERHEAD: usize = 160;
/// What has waited so long waits for something else than its turn (a limit, a pause), and gives way to what is new.
const STALE: Duration = Duration::from_secs(5);
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

    /// A delivery of this event waits. Kept if there is room, or what is stale makes room.
    pub fn add(&mut self, id: EventId, body: &EventBody) {
        if body.bytes().len() > LARGEST {
            return;
        }
        if let Some(waiting) = self.bodies.get_mut(&id) {
            waiting.deliveries += 1;
        } else if self.make_room(id, cost(body)) {
            self.bodies.insert(id, Waiting { body: body.clone(), deliveries: 1 });
            self.bytes += cost(body);
            self.order.push_back(id);
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

    /// Whether `bytes` more fit, for an event as new as `id`.
    fn make_room(&mut self, id: EventId, bytes: usize) -> bool {
        if self.order.len() > 2 * self.bodies.len() + SLACK {
            self.order.retain(|id| self.bodies.contains_key(id));
        }
        let Self { bodies, order, bytes: used, max_bytes } = self;
        while *used + bytes > *max_bytes {
            let may_go =
                |oldest: &mut EventId| !bodies.contains_key(oldest) || id.made_at().since(oldest.made_at()) >= STALE;
            let Some(oldest) = order.pop_front_if(may_go) else { return false };
            *used -= bodies.remove(&oldest).map_or(0, |gone| cost(&gone.body));
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
    fn the_next_to_be_claimed_stay_and_the_new_stay_away() {
        let mut waiting = WaitingBodies::new(4 * (100 + OVERHEAD));
        for n in 0..10 {
            waiting.add(id(n), &body(100));
        }
        assert!(waiting.bytes <= waiting.max_bytes);
        assert!((4..10).all(|n| waiting.take(id(n)).is_none()));
        assert!(waiting.take(id(0)).is_some());
        // There is room again, and what has gone is not counted.
        waiting.add(id(10), &body(100));
        assert!([1, 2, 3, 10].into_iter().all(|n| waiting.take(id(n)).is_some()));
        assert_eq!(waiting.bytes, 0);
    }

    #[test]
    fn stale_bodies_give_way() {
        let mut waiting = WaitingBodies::new(4 * (100 + OVERHEAD));
        for n in 0..4 {
            waiting.add(made_in(1 + n, n as u128), &body(100));
        }
        waiting.add(made_in(7, 4), &body(100));
        waiting.add(made_in(7, 5), &body(100));
        assert!(waiting.take(made_in(1, 0)).is_none() && waiting.take(made_in(2, 1)).is_none());
        assert!(waiting.take(made_in(3, 2)).is_some() && waiting.take(made_in(7, 5)).is_some());
        waiting.add(made_in(8, 6), &body(100));
        waiting.add(made_in(8, 7), &body(100));
        waiting.add(made_in(8, 8), &body(100));
        assert!(waiting.take(made_in(4, 3)).is_some() && waiting.take(made_in(8, 8)).is_none());
        assert!(waiting.bytes <= waiting.max_bytes);
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
