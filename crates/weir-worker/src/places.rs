//! The places of a worker: its concurrency slots. Each attempt under way holds one place. (A *slot* is the time
//! interval of a send, so a concurrency slot is called a place.)
//!
//! Requests that hang must not take the last place. Therefore a destination may hold no more places than are free, a
//! dynamic threshold as in switches with a shared buffer (Choudhury and Hahne, 1998). One destination that hangs takes
//! at most half of the places. Hundreds of them leave as many places free as each of them holds. A part of the places
//! is reserved for destinations that have answered quickly in the last minutes, so that thousands of new destinations
//! that hang do not block them either.
//!
//! An ended attempt frees its place at once, so the time of a commit never makes a destination look slow. It counts as
//! unrecorded until the store has its result. At most as many attempts as there are places may be unrecorded when
//! another begins, so a store that is slow or down stops the sends: in flight and unrecorded together are at most twice
//! the places.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Notify, futures::Notified};
use weir_core::{DestinationId, Timestamp};

/// An attempt that ends within this time is quick: a permit can wait for the place that it leaves.
const QUICK: Duration = Duration::from_secs(1);
/// How long a destination counts as quick after a quick attempt. So a destination whose events are minutes apart still
/// counts as quick. A destination that begins to hang stops counting as quick with its next attempt.
const RECENT: Duration = Duration::from_secs(300);
/// One place in this many is reserved for quick destinations: a thousand of the default 8,192, enough for ten thousand
/// attempts of 100 ms a second.
const RESERVED_FOR_QUICK: usize = 8;
/// Above this number, destinations that hold no place are forgotten. An entry takes less than 100 bytes.
const MOST_KNOWN: usize = 50_000;

/// The concurrency slots of a worker, shared by its destinations.
#[derive(Debug)]
pub(crate) struct Places {
    capacity: usize,
    state: Mutex<State>,
    /// Notified when a place becomes free.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    unrecorded: usize,
    destinations: HashMap<DestinationId, DestinationPlaces>,
}

#[derive(Debug, Default)]
struct DestinationPlaces {
    places: usize,
    quick_at: Option<Timestamp>,
}

impl DestinationPlaces {
    fn is_quick(&self, now: Timestamp) -> bool {
        self.quick_at.is_some_and(|at| now.since(at) < RECENT)
    }

    /// Whether a quick attempt ended within the last second: the places of the destination will soon be free again.
    fn is_moving(&self, now: Timestamp) -> bool {
        self.quick_at.is_some_and(|at| now.since(at) < QUICK)
    }
}

/// Why there is no place for an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// Every place is taken, or as many attempts are unrecorded, or the destination holds its share and one of its
    /// places will soon be free: wait for a place.
    Wait,
    /// The destination holds its share, and its attempts take long.
    Crowded,
}

/// The place of one attempt. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: DestinationId,
}

/// An ended attempt, or an unused permit, that the store does not have yet. Dropping it means that the store has it.
#[derive(Debug)]
pub(crate) struct Unrecorded(Arc<Places>);

impl Places {
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { capacity: capacity.max(1), state: Mutex::default(), freed: Notify::new() })
    }

    // A panic while the lock is held is reported elsewhere. The counts are consistent between two calls.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for an attempt at this destination, unless none is free or the destination holds its share.
    pub(crate) fn take(self: &Arc<Self>, id: DestinationId, now: Timestamp) -> Result<Place, NoPlace> {
        let mut state = self.state();
        // Forget destinations that hold no place, when there are too many.
        if state.destinations.len() > MOST_KNOWN {
            state.destinations.retain(|_, held| held.places > 0);
        }
        let free = self.capacity - state.taken;
        if free == 0 || state.unrecorded >= self.capacity {
            return Err(NoPlace::Wait);
        }
        // A destination may hold as many places as are free. Places reserved for quick destinations count as free only
        // for them.
        let held = state.destinations.entry(id).or_default();
        let reserved = if held.is_quick(now) { 0 } else { self.capacity / RESERVED_FOR_QUICK };
        if held.places >= free.saturating_sub(reserved) {
            return Err(if held.is_moving(now) { NoPlace::Wait } else { NoPlace::Crowded });
        }
        held.places += 1;
        state.taken += 1;
        Ok(Place { places: self.clone(), id })
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many attempts may begin now.
    pub(crate) fn free(&self) -> usize {
        let state = self.state();
        self.capacity.saturating_sub(state.taken.max(state.unrecorded))
    }

    /// Counts an unused permit until the store has released its claim.
    pub(crate) fn unused(self: &Arc<Self>) -> Unrecorded {
        self.state().unrecorded += 1;
        Unrecorded(self.clone())
    }

    pub(crate) fn taken(&self) -> usize {
        self.state().taken
    }

    /// Ended attempts and unused permits that the store does not have yet.
    pub(crate) fn unrecorded(&self) -> usize {
        self.state().unrecorded
    }

    /// Waits until an attempt may begin. Returns how many may.
    pub(crate) async fn wait_for_one(&self) -> usize {
        self.wait_until(|places| places.free() > 0).await;
        self.free()
    }

    /// Waits for a place to become free after this call.
    pub(crate) fn next_freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    /// Waits until every attempt has ended.
    pub(crate) async fn wait_for_all(&self) {
        self.wait_until(|places| places.taken() == 0).await;
    }

    async fn wait_until(&self, is_so: impl Fn(&Self) -> bool) {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if is_so(self) {
                return;
            }
            freed.await;
        }
    }
}

impl Place {
    /// Frees the place of an attempt that has ended, and remembers whether it was quick.
    pub(crate) fn ended(self, began: Timestamp, now: Timestamp) -> Unrecorded {
        if let Some(held) = self.places.state().destinations.get_mut(&self.id) {
            held.quick_at = (now.since(began) < QUICK).then_some(now);
        }
        self.unused()
    }

    /// Frees the place of an attempt that was not made.
    pub(crate) fn unused(self) -> Unrecorded {
        self.places.unused()
    }
}

impl Drop for Unrecorded {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.unrecorded -= 1;
        // Attempts may begin again. One notification, because a commit records many at a time.
        let frees = state.unrecorded + 1 == self.0.capacity;
        drop(state);
        if frees {
            self.0.freed.notify_waiters();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state();
        state.taken -= 1;
        if let Some(held) = state.destinations.get_mut(&self.id) {
            held.places -= 1;
        }
        drop(state);
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn id(number: u16) -> DestinationId {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        DestinationId::from_bytes(bytes)
    }

    fn take_all(places: &Arc<Places>, of: u16) -> Vec<Place> {
        std::iter::from_fn(|| places.take(id(of), NOW).ok()).collect()
    }

    /// Makes the destination quick.
    fn answer_quickly(places: &Arc<Places>, of: u16) {
        places.take(id(of), NOW).expect("a place").ended(NOW, NOW);
    }

    #[test]
    fn a_destination_that_hangs_takes_at_most_half_of_the_places() {
        let places = Places::new(800);
        answer_quickly(&places, 1);
        assert_eq!(take_all(&places, 1).len(), 400);
        assert_eq!(take_all(&places, 2).len(), 350, "an unknown destination leaves the reserved places free");
    }

    #[test]
    fn hundreds_of_destinations_that_hang_leave_places_for_a_quick_one() {
        let places = Places::new(800);
        answer_quickly(&places, 1_000);
        let hanging: Vec<_> = (0..500).flat_map(|of| take_all(&places, of)).collect();
        assert!(hanging.len() <= 700, "{} of 800", hanging.len());
        assert!(take_all(&places, 1_000).len() >= 50);
        assert_eq!(places.take(id(999), NOW).err(), Some(NoPlace::Crowded));
    }

    #[test]
    fn a_slow_attempt_ends_the_preference() {
        let places = Places::new(8);
        answer_quickly(&places, 1);
        let later = NOW + QUICK;
        places.take(id(1), NOW).expect("a place").ended(NOW, later);
        let others: Vec<_> = (10..17).filter_map(|of| places.take(id(of), NOW).ok()).collect();
        assert_eq!(others.len(), 7);
        assert_eq!(places.take(id(1), later).err(), Some(NoPlace::Crowded));
    }

    #[test]
    fn a_quick_destination_waits_for_its_own_places() {
        let places = Places::new(8);
        answer_quickly(&places, 1);
        let held = take_all(&places, 1);
        assert_eq!((held.len(), places.take(id(1), NOW).err()), (4, Some(NoPlace::Wait)));
        assert_eq!(
            places.take(id(1), NOW + QUICK).err(),
            Some(NoPlace::Crowded),
            "no quick attempt has ended for a second"
        );
    }

    #[test]
    fn no_attempt_begins_while_as_many_are_unrecorded_as_there_are_places() {
        let places = Places::new(8);
        answer_quickly(&places, 1);
        let mut unrecorded: Vec<_> =
            (0..8).map(|_| places.take(id(1), NOW).expect("a place").ended(NOW, NOW)).collect();
        assert_eq!((places.taken(), places.unrecorded(), places.free()), (0, 8, 0));
        for of in [1, 2] {
            assert_eq!(places.take(id(of), NOW + QUICK).err(), Some(NoPlace::Wait), "it is the store that is slow");
        }
        unrecorded.pop();
        assert_eq!(places.free(), 1);
        places.take(id(1), NOW).expect("a place");
    }

    #[test]
    fn unrecorded_attempts_do_not_count_against_the_share_of_a_destination() {
        let places = Places::new(800);
        answer_quickly(&places, 1);
        let _unrecorded: Vec<_> = (0..790).map(|_| places.unused()).collect();
        assert_eq!(take_all(&places, 1).len(), 400);
    }

    #[tokio::test]
    async fn a_waiter_is_notified_when_a_place_is_free() {
        let places = Places::new(1);
        answer_quickly(&places, 1);
        let place = places.take(id(1), NOW).expect("a place");
        assert_eq!(places.take(id(1), NOW).err(), Some(NoPlace::Wait));
        let (free, ()) = tokio::join!(places.wait_for_one(), async { drop(place) });
        assert_eq!(free, 1);
        places.wait_for_all().await;
    }
}
