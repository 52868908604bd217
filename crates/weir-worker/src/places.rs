//! The places of a worker: how many attempts it makes at one time, and how many of them one destination may have.
//!
//! Requests that hang must not take the last place. So a destination may hold no more places than are free (a dynamic threshold,
//! as switches share their buffers: Choudhury and Hahne, 1998): one that hangs takes a half at most, and hundreds together leave
//! as many free as each of them holds. Some places are kept for destinations that have answered quickly of late, so that
//! thousands of new ones that hang do not stand in the way either.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Notify, futures::Notified};
use weir_core::{DestinationId, Timestamp};

/// An attempt that ends within this time is quick.
const QUICK: Duration = Duration::from_secs(1);
/// How long a quick answer counts.
const RECENT: Duration = Duration::from_secs(300);
/// One place in so many is kept for destinations that answer quickly.
const KEPT_FOR_QUICK: usize = 8;
/// Destinations that hold nothing are forgotten above this number.
const MOST_KNOWN: usize = 50_000;

#[derive(Debug)]
pub(crate) struct Places {
    capacity: usize,
    state: Mutex<State>,
    /// A place has become free.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    destinations: HashMap<DestinationId, Held>,
}

#[derive(Debug, Default)]
struct Held {
    places: usize,
    quick_at: Option<Timestamp>,
}

impl Held {
    fn is_quick(&self, now: Timestamp) -> bool {
        self.quick_at.is_some_and(|at| now.since(at) < RECENT)
    }

    /// Its attempts end quickly at this time, so that its places are soon free again.
    fn is_moving(&self, now: Timestamp) -> bool {
        self.quick_at.is_some_and(|at| now.since(at) < QUICK)
    }
}

/// Why there is no place for an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// Wait for one: every place is taken, or the destination holds its share and will soon have a place free.
    Soon,
    /// The destination holds its share, and its attempts take long.
    Crowded,
}

/// One attempt's place; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: DestinationId,
}

impl Places {
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { capacity: capacity.max(1), state: Mutex::default(), freed: Notify::new() })
    }

    // A panic while the lock is held is a bug already reported; counts are whole between two calls.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for an attempt at this destination, unless it holds its share.
    pub(crate) fn take(self: &Arc<Self>, id: DestinationId, now: Timestamp) -> Result<Place, NoPlace> {
        let mut state = self.state();
        if state.destinations.len() > MOST_KNOWN {
            state.destinations.retain(|_, held| held.places > 0);
        }
        let free = self.capacity - state.taken;
        if free == 0 {
            return Err(NoPlace::Soon);
        }
        let held = state.destinations.entry(id).or_default();
        let kept = if held.is_quick(now) { 0 } else { self.capacity / KEPT_FOR_QUICK };
        if held.places >= free.saturating_sub(kept) {
            return Err(if held.is_moving(now) { NoPlace::Soon } else { NoPlace::Crowded });
        }
        held.places += 1;
        state.taken += 1;
        Ok(Place { places: self.clone(), id })
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many places are free.
    pub(crate) fn free(&self) -> usize {
        self.capacity - self.state().taken
    }

    pub(crate) fn taken(&self) -> usize {
        self.state().taken
    }

    /// Waits until a place is free, and answers how many are.
    pub(crate) async fn wait_for_one(&self) -> usize {
        self.wait_until(|places| places.free() > 0).await;
        self.free()
    }

    /// Waits until a place becomes free after this was called.
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
    /// The attempt has ended; whether it was quick counts for those that follow.
    pub(crate) fn ended(&self, began: Timestamp, now: Timestamp) {
        if let Some(held) = self.places.state().destinations.get_mut(&self.id) {
            held.quick_at = (now.since(began) < QUICK).then_some(now);
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

    /// A destination that has answered quickly.
    fn prove(places: &Arc<Places>, of: u16) {
        places.take(id(of), NOW).expect("a place").ended(NOW, NOW);
    }

    #[test]
    fn one_that_hangs_takes_half_of_the_places_at_most() {
        let places = Places::new(800);
        prove(&places, 1);
        assert_eq!(take_all(&places, 1).len(), 400);
        assert_eq!(take_all(&places, 2).len(), 350, "one that is not known leaves some to those that answer quickly");
    }

    #[test]
    fn hundreds_that_hang_leave_places_for_one_that_answers() {
        let places = Places::new(800);
        prove(&places, 1_000);
        let hanging: Vec<_> = (0..500).flat_map(|of| take_all(&places, of)).collect();
        assert!(hanging.len() <= 700, "{} of 800", hanging.len());
        assert!(take_all(&places, 1_000).len() >= 50);
        assert_eq!(places.take(id(999), NOW).err(), Some(NoPlace::Crowded));
    }

    #[test]
    fn an_answer_that_takes_long_ends_the_preference() {
        let places = Places::new(8);
        prove(&places, 1);
        let later = NOW + QUICK;
        places.take(id(1), NOW).expect("a place").ended(NOW, later);
        let others: Vec<_> = (10..17).filter_map(|of| places.take(id(of), NOW).ok()).collect();
        assert_eq!(others.len(), 7);
        assert_eq!(places.take(id(1), later).err(), Some(NoPlace::Crowded));
    }

    #[test]
    fn one_whose_answers_come_quickly_waits_for_its_own_places() {
        let places = Places::new(8);
        prove(&places, 1);
        let held = take_all(&places, 1);
        assert_eq!((held.len(), places.take(id(1), NOW).err()), (4, Some(NoPlace::Soon)));
        assert_eq!(
            places.take(id(1), NOW + QUICK).err(),
            Some(NoPlace::Crowded),
            "unless nothing has ended for a second"
        );
    }

    #[tokio::test]
    async fn who_waits_for_a_place_is_told_when_one_is_free() {
        let places = Places::new(1);
        prove(&places, 1);
        let place = places.take(id(1), NOW).expect("a place");
        assert_eq!(places.take(id(1), NOW).err(), Some(NoPlace::Soon));
        let (free, ()) = tokio::join!(places.wait_for_one(), async { drop(place) });
        assert_eq!(free, 1);
        places.wait_for_all().await;
    }
}
