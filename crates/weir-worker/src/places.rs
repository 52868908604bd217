//! The places of a worker: its concurrency slots. Each attempt under way holds one place. (A *slot* is the time
//! interval of a send, so a concurrency slot is called a place.)
//!
//! Requests that hang must not take the last place. Therefore a destination may hold no more places than are free to
//! its tenant, a dynamic threshold as in switches with a shared buffer (Choudhury and Hahne, 1998). One destination that
//! hangs takes at most half of the places. Hundreds of them leave as many places free as each of them holds. While
//! several tenants are active, the same threshold bounds each tenant: thousands of destinations of one tenant leave
//! places for every other.
//!
//! A part of the places is reserved for destinations whose attempts are quick, so that thousands of others that hang do
//! not block them. A quarter of that part is also open to the first attempts of new destinations, of which nothing is
//! known, and another quarter to tenants beside others, within their thresholds.
//!
//! An ended attempt frees its place at once, so the time of a commit never makes a destination look slow. It counts as
//! unrecorded until the store has its result. At most as many attempts as there are places may be unrecorded when
//! another begins, so a store that is slow or down stops the sends: in flight and unrecorded together are at most twice
//! the places.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};
use weir_core::{DestinationId, Timestamp};

/// An attempt that ends within this time is quick: a permit can wait for the place that it leaves.
const QUICK: Duration = Duration::from_secs(1);
/// This many slow attempts in a row, none with a quick one beside it, and a destination no longer counts as quick. One
/// alone may be the receiver's deployment, or this machine.
const SLOW_IN_A_ROW: u8 = 2;
/// One place in this many is reserved for quick destinations: a thousand of the default 8,192, enough for ten thousand
/// attempts of 100 ms a second.
const RESERVED_FOR_QUICK: usize = 8;
/// Beside other tenants, a tenant may hold this many times the places that are free to it. A tenant whose requests hang
/// leaves a fifth of the places; four such tenants leave a seventeenth, as much as each may take at first.
const SHARE_OF_TENANT: usize = 4;
/// The same for the quick destinations of a tenant, whose places are soon free again.
const SHARE_OF_QUICK: usize = 8;
/// A tenant counts as active for this long after it took a place: a tenant whose events are minutes apart finds places.
const ACTIVE: Duration = Duration::from_secs(300);
/// Above this number, besides those that hold places, the half of the destinations that was not used for the longest
/// time is forgotten. What is known of a destination is kept until then, whatever the rhythm of its events. An entry
/// takes less than 150 bytes.
const MOST_KNOWN: usize = 50_000;

/// The concurrency slots of a worker, shared by its tenants and their destinations.
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
    /// The total time for which places were held, until they last changed.
    held: Duration,
    changed_at: Option<Instant>,
    unrecorded: usize,
    tenants: HashMap<Arc<str>, TenantPlaces>,
    destinations: HashMap<DestinationId, DestinationPlaces>,
    /// When inactive tenants were last forgotten.
    swept_at: Option<Timestamp>,
}

#[derive(Debug)]
struct TenantPlaces {
    places: usize,
    used_at: Timestamp,
}

#[derive(Debug, Default)]
struct DestinationPlaces {
    places: usize,
    used_at: Option<Timestamp>,
    /// When its last quick attempt ended.
    quick_at: Option<Timestamp>,
    slow_in_a_row: u8,
}

impl DestinationPlaces {
    fn is_quick(&self) -> bool {
        self.quick_at.is_some() && self.slow_in_a_row < SLOW_IN_A_ROW
    }

    /// Whether nothing is known of it: it has its first attempt before it.
    fn is_new(&self) -> bool {
        self.places == 0 && self.quick_at.is_none() && self.slow_in_a_row == 0
    }

    /// Remembers whether an attempt that has ended was quick.
    fn ended(&mut self, began: Timestamp, now: Timestamp) {
        if now.since(began) < QUICK {
            (self.quick_at, self.slow_in_a_row) = (Some(now), 0);
        } else if self.quick_at.is_none_or(|at| at < began) {
            // No other attempt was quick meanwhile.
            self.slow_in_a_row = self.slow_in_a_row.saturating_add(1);
        }
    }

    /// Whether a quick attempt ended within the last second: the places of the destination will soon be free again.
    fn is_moving(&self, now: Timestamp) -> bool {
        self.is_quick() && self.quick_at.is_some_and(|at| now.since(at) < QUICK)
    }
}

impl State {
    /// The total time for which places were held until now.
    fn held(&self, now: Instant) -> Duration {
        let since = self.changed_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.held + since * self.taken as u32
    }

    /// Counts the time with this many places. Call it before the number changes.
    fn count_held(&mut self) {
        let now = Instant::now();
        self.held = self.held(now);
        self.changed_at = Some(now);
    }

    /// Forgets the tenants that are no longer active, from time to time, and the destinations that were not used for
    /// the longest time, when there are too many.
    fn forget(&mut self, now: Timestamp) {
        if self.swept_at.is_none_or(|at| now.since(at) >= ACTIVE / 5) {
            self.swept_at = Some(now);
            self.tenants.retain(|_, tenant| tenant.places > 0 || now.since(tenant.used_at) < ACTIVE);
        }
        if self.destinations.len() > MOST_KNOWN + self.taken {
            let mut used: Vec<_> = self.destinations.values().map(|held| held.used_at).collect();
            let (_, &mut median, _) = used.select_nth_unstable(MOST_KNOWN / 2 + self.taken);
            self.destinations.retain(|_, held| held.places > 0 || held.used_at > median);
        }
    }
}

/// How many places are free to a destination.
fn free_to(
    destination: &DestinationPlaces,
    tenant: &str,
    tenants: &HashMap<Arc<str>, TenantPlaces>,
    capacity: usize,
    taken: usize,
) -> usize {
    let of_tenant = tenants.get(tenant).map(|tenant| tenant.places);
    let is_alone = tenants.len() == usize::from(of_tenant.is_some());
    let reserved = match capacity / RESERVED_FOR_QUICK {
        _ if destination.is_quick() => 0,
        reserved if !is_alone => reserved / 2,
        reserved if destination.is_new() => reserved - reserved / 4,
        reserved => reserved,
    };
    let free = (capacity - taken).saturating_sub(reserved);
    if is_alone {
        return free;
    }
    let share = if destination.is_quick() { SHARE_OF_QUICK } else { SHARE_OF_TENANT };
    free.min((free * share).saturating_sub(of_tenant.unwrap_or_default()))
}

/// Why there is no place for an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// Every place is taken, or as many attempts are unrecorded, or the destination or its tenant holds its share and one
    /// of the destination's places will soon be free: wait for a place.
    Wait,
    /// The destination or its tenant holds its share, and its attempts take long.
    Crowded,
}

/// The place of one attempt. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: DestinationId,
    tenant: Arc<str>,
}

/// An ended attempt, or an unused permit, that the store does not have yet. Dropping it means that the store has it.
#[derive(Debug)]
pub(crate) struct Unrecorded(Arc<Places>);

impl Places {
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { capacity: capacity.max(1), state: Mutex::default(), freed: Notify::new() })
    }

    /// Takes a place for an attempt at this destination of a tenant, unless none is free or one of them holds its
    /// share.
    pub(crate) fn take(self: &Arc<Self>, id: DestinationId, tenant: &str, now: Timestamp) -> Result<Place, NoPlace> {
        let mut state = self.state.lock();
        if state.taken == self.capacity || state.unrecorded >= self.capacity {
            return Err(NoPlace::Wait);
        }
        state.forget(now);
        state.count_held();
        let State { taken, tenants, destinations, .. } = &mut *state;
        let held = destinations.entry(id).or_default();
        held.used_at = Some(now);
        if held.places >= free_to(held, tenant, tenants, self.capacity, *taken) {
            return Err(if held.is_moving(now) { NoPlace::Wait } else { NoPlace::Crowded });
        }
        held.places += 1;
        *taken += 1;
        let known = tenants.get_key_value(tenant).map(|(tenant, _)| Arc::clone(tenant));
        let tenant = known.unwrap_or_else(|| tenant.into());
        let of_tenant = tenants.entry(Arc::clone(&tenant)).or_insert(TenantPlaces { places: 0, used_at: now });
        of_tenant.places += 1;
        of_tenant.used_at = now;
        Ok(Place { places: self.clone(), id, tenant })
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many attempts may begin now.
    pub(crate) fn free(&self) -> usize {
        let state = self.state.lock();
        self.capacity.saturating_sub(state.taken.max(state.unrecorded))
    }

    /// Counts an unused permit until the store has released its claim.
    pub(crate) fn unused(self: &Arc<Self>) -> Unrecorded {
        self.state.lock().unrecorded += 1;
        Unrecorded(self.clone())
    }

    pub(crate) fn taken(&self) -> usize {
        self.state.lock().taken
    }

    /// How long all places together were held since the worker began.
    pub(crate) fn held(&self) -> Duration {
        self.state.lock().held(Instant::now())
    }

    /// Ended attempts and unused permits that the store does not have yet.
    pub(crate) fn unrecorded(&self) -> usize {
        self.state.lock().unrecorded
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
        if let Some(held) = self.places.state.lock().destinations.get_mut(&self.id) {
            held.ended(began, now);
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
        let mut state = self.0.state.lock();
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
        let mut state = self.places.state.lock();
        state.count_held();
        state.taken -= 1;
        if let Some(held) = state.destinations.get_mut(&self.id) {
            held.places -= 1;
        }
        if let Some(of_tenant) = state.tenants.get_mut(&self.tenant) {
            of_tenant.places -= 1;
        }
        drop(state);
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
