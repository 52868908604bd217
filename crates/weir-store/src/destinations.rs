//! Destinations: created, read, edited, deleted, counted.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use weir_core::{Destination, DestinationId, RateLimits, Timestamp, breaker::Breaker, destination::Settings};

use crate::{Page, PageRequest, StoreResult};

/// An edit: the new settings in full, applied only if the destination still has `expected_updated_at`.
#[derive(Debug, Clone)]
pub struct DestinationPatch {
    pub id: DestinationId,
    pub expected_updated_at: Timestamp,
    pub settings: Settings,
    /// When the edit is made: the new `updated_at`, later than the expected one.
    pub now: Timestamp,
}

impl DestinationPatch {
    /// The destination as edited; `None` when it has been edited meanwhile. Its breaker closes by an edit that may have mended
    /// what was wrong: another URL, another breaker, or being resumed.
    pub fn applied_to(&self, current: &Destination) -> Option<Destination> {
        if current.updated_at != self.expected_updated_at {
            return None;
        }
        let mut edited = Destination { settings: self.settings.clone(), updated_at: self.now, ..current.clone() };
        edited.settings.tenant.clone_from(&current.settings.tenant);
        let (before, after) = (&current.settings, &edited.settings);
        if before.url != after.url || before.breaker != after.breaker || (before.paused && !after.paused) {
            edited.breaker = Breaker::default();
        }
        if !edited.settings.paused {
            edited.paused_reason = None;
        }
        Some(edited)
    }
}

/// Another state of a destination's breaker, set only if it is still in the expected one.
#[derive(Debug, Clone)]
pub struct BreakerChange {
    pub id: DestinationId,
    pub expected: Breaker,
    pub changed: Breaker,
    pub now: Timestamp,
}

impl BreakerChange {
    /// The destination with the breaker changed; `None` when it is in another state. Its `updated_at` rises, for those who keep
    /// what they know of it.
    pub fn applied_to(&self, current: &Destination) -> Option<Destination> {
        if current.breaker != self.expected {
            return None;
        }
        let updated_at = later_than(current, self.now);
        Some(Destination { breaker: self.changed.clone(), updated_at, ..current.clone() })
    }
}

/// When an edit counts as made: later than the one before, whatever the clocks of two processes say. The queue goes by it, and takes
/// no older terms for newer ones.
pub fn later_than(current: &Destination, now: Timestamp) -> Timestamp {
    now.max(current.updated_at + Duration::from_micros(1))
}

/// The destination paused by Weir itself, with the reason; `None` when it is paused already.
pub fn paused_by_weir(current: &Destination, reason: &str, now: Timestamp) -> Option<Destination> {
    if current.settings.paused {
        return None;
    }
    let mut paused = current.clone();
    paused.settings.paused = true;
    paused.paused_reason = Some(reason.to_owned());
    paused.updated_at = later_than(current, now);
    Some(paused)
}

/// The backlog of one destination, by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DestinationCounts {
    pub pending: u64,
    pub retrying: u64,
    pub delivering: u64,
    /// When the oldest of them was created.
    pub oldest_created_at: Option<Timestamp>,
}

/// Limits that came into force at an instant and stayed until the next change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitChange {
    pub at: Timestamp,
    pub limits: RateLimits,
}

/// A destination as its last edit left it.
#[derive(Debug, Clone)]
pub struct Edited {
    pub place: EditPlace,
    /// `None` when it was deleted.
    pub destination: Option<Arc<Destination>>,
}

/// Where an edit stands among all, in the order of their times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EditPlace {
    pub updated_at: Timestamp,
    pub id: DestinationId,
}

impl EditPlace {
    /// Before all edits of an instant and after.
    pub fn at(time: Timestamp) -> Self {
        Self { updated_at: time, id: DestinationId::from_bytes([0; 16]) }
    }
}

#[async_trait]
pub trait Destinations {
    /// Stores a new destination and the limits it begins with.
    async fn create_destination(&self, destination: Destination) -> StoreResult<Arc<Destination>>;

    /// The destination, unless it was never made or was deleted.
    async fn destination(&self, id: DestinationId) -> StoreResult<Option<Arc<Destination>>>;

    /// The current values of these destinations, in the same order; `None` for a deleted one. Cheap: the scheduler asks
    /// before each run, so an edit made a moment ago must be seen.
    async fn destinations(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<Arc<Destination>>>>;

    /// Newest first, optionally of one tenant.
    async fn list_destinations(&self, tenant: Option<&str>, page: PageRequest) -> StoreResult<Page<Arc<Destination>>>;

    /// Applies an edit and records changed limits. Resuming a paused destination clears `paused_reason`. `None` when the
    /// destination is gone or was edited meanwhile.
    async fn patch_destination(&self, patch: DestinationPatch) -> StoreResult<Option<Arc<Destination>>>;

    /// Pauses a destination on Weir's own account, with the reason. `false` when it is gone or paused already.
    async fn pause_destination(&self, id: DestinationId, reason: &str, now: Timestamp) -> StoreResult<bool>;

    /// Records that no send may start before `until`; only ever extends a hold. Does not touch `updated_at`.
    async fn hold_destination(&self, id: DestinationId, until: Timestamp, reason: &str) -> StoreResult<()>;

    /// Opens or closes a destination's breaker. `false` when it is gone, or its breaker is in another state than expected.
    async fn change_breaker(&self, change: BreakerChange) -> StoreResult<bool>;

    /// Deletes a destination: what waits becomes `cancelled`, history stays. `false` when there is none. What is being
    /// delivered ends by itself; a failure then cancels it instead of retrying.
    async fn delete_destination(&self, id: DestinationId, now: Timestamp) -> StoreResult<bool>;

    /// How many deliveries of a destination wait or are under way.
    async fn destination_counts(&self, id: DestinationId) -> StoreResult<DestinationCounts>;

    /// How many attempts of a destination started in the `window` before `now`.
    async fn recent_sends(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<u64>;

    /// How many deliveries a destination was given in the `window` before `now`.
    async fn recent_arrivals(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<u64>;

    /// The destinations that were edited last after this place, at most `limit`, in the order of their edits.
    async fn edited_after(&self, place: EditPlace, limit: u32) -> StoreResult<Vec<Edited>>;

    /// Every change of a destination's limits, oldest first, the ones it was created with included. Kept after deletion.
    async fn limit_changes(&self, id: DestinationId) -> StoreResult<Vec<LimitChange>>;
}
