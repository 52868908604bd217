//! How far each destination's due deliveries are claimed, so that the next claim need not step over what the last ones left.
//!
//! An entry of the due index stays where it was until a vacuum takes it away, and a claim that begins at the oldest walks over
//! all that were claimed before it: in a long drain that becomes a third of a claim's cost, and more between two vacuums of a
//! long backlog. So a claim begins where the last one ended, if that found all it asked for.
//!
//! What comes due before that place, because it was given back or its turn in a line has come, is found by the next look from
//! the beginning: ten times a second, or as soon as a claim finds less than it asked for.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use weir_core::DestinationId;

/// Live deliveries or the lane of a destination.
pub(crate) type Queue = (DestinationId, bool);

const LOOK_FROM_THE_BEGINNING_EVERY: Duration = Duration::from_millis(100);
/// Above this, places that are too old to be used are forgotten.
const MANY: usize = 4_096;

/// Before everything that is due.
pub(crate) const BEGINNING: i64 = i64::MIN;

#[derive(Debug)]
struct Place {
    /// As stored.
    due: i64,
    began: Instant,
}

impl Place {
    fn is_fresh(&self, now: Instant) -> bool {
        now.duration_since(self.began) < LOOK_FROM_THE_BEGINNING_EVERY
    }
}

#[derive(Debug, Default)]
pub(crate) struct Reached(Mutex<HashMap<Queue, Place>>);

impl Reached {
    /// From which due time on a claim is to look.
    pub(crate) fn start(&self, queue: Queue, now: Instant) -> i64 {
        self.places().get(&queue).filter(|place| place.is_fresh(now)).map_or(BEGINNING, |place| place.due)
    }

    /// A claim that looked from `start` found all it asked for, the last of it due at `due`.
    pub(crate) fn filled(&self, queue: Queue, start: i64, due: i64, now: Instant) {
        let mut places = self.places();
        if places.len() > MANY {
            places.retain(|_, place| place.is_fresh(now));
        }
        let place = places.entry(queue).or_insert(Place { due, began: now });
        place.due = due;
        if start == BEGINNING {
            place.began = now;
        }
    }

    /// A claim found less than it asked for.
    pub(crate) fn forget(&self, queue: Queue) {
        self.places().remove(&queue);
    }

    fn places(&self) -> std::sync::MutexGuard<'_, HashMap<Queue, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: Queue = (DestinationId::from_bytes([1; 16]), false);

    #[test]
    fn a_claim_begins_where_the_last_ended() {
        let (reached, now) = (Reached::default(), Instant::now());
        assert_eq!(reached.start(QUEUE, now), BEGINNING);
        reached.filled(QUEUE, BEGINNING, 7, now);
        assert_eq!(reached.start(QUEUE, now), 7);
        assert_eq!(reached.start((QUEUE.0, true), now), BEGINNING, "the lane is by itself");
        reached.forget(QUEUE);
        assert_eq!(reached.start(QUEUE, now), BEGINNING);
    }

    #[test]
    fn the_beginning_is_looked_at_now_and_then_however_long_a_drain_lasts() {
        let (reached, began) = (Reached::default(), Instant::now());
        reached.filled(QUEUE, BEGINNING, 7, began);
        let later = began + LOOK_FROM_THE_BEGINNING_EVERY - Duration::from_millis(1);
        reached.filled(QUEUE, 7, 9, later);
        assert_eq!(reached.start(QUEUE, later), 9);
        assert_eq!(reached.start(QUEUE, began + LOOK_FROM_THE_BEGINNING_EVERY), BEGINNING);
    }
}
