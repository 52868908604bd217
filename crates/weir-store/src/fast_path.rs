//! The fast path: deliveries claimed as they are stored.
//!
//! A delivery of an idle destination would be claimed a moment after its event has been stored: a second commit, and a wait
//! for it. So for each new delivery the store asks whether it may be sent at once. If so it is stored as `delivering`, claimed,
//! and handed over after the commit. The rest wait for a run of their destination's job, as does everything without an
//! fast path.
//!
//! ```text
//! reserve ──▶ stored as claimed ──commit──▶ admit ──▶ a permit, or the claim is given back
//!    └──────── not stored after all ──────▶ cancel
//! ```
//!
//! The commit is durable before anything is handed over: a receiver never knows an event that the store could forget.
//!
//! A crash between the commit and [`FastPath::admit`] leaves a claim that expires, as a crash of a scheduler between claim and
//! publish does.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use weir_core::{Destination, DestinationId, Timestamp, claim::ClaimedDelivery};

/// Decides which new deliveries are claimed as they are stored, and takes them over. Nothing here may wait.
pub trait FastPath: Send + Sync + 'static {
    /// Keeps room for one delivery that would be sent at once; answers when its claim expires. `None`: it waits for a run.
    fn reserve(&self, destination: &Destination) -> Option<Timestamp>;

    /// The delivery for which room was kept has not been stored, or nobody knows whether it has.
    fn cancel(&self, destination_id: DestinationId);

    /// These deliveries, for each of which room was kept, are stored and claimed.
    fn admit(&self, deliveries: Vec<ClaimedDelivery>);
}

/// Where a store's fast path leaves from, once there is one.
#[derive(Clone, Default)]
pub struct FastPathHandle(Arc<OnceLock<Arc<dyn FastPath>>>);

impl fmt::Debug for FastPathHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FastPathHandle").field(&self.0.get().is_some()).finish()
    }
}

impl FastPathHandle {
    /// The first one stays: a process has one queue.
    pub fn connect(&self, fast_path: Arc<dyn FastPath>) {
        let _ = self.0.set(fast_path);
    }

    /// For one transaction.
    pub fn boarding(&self) -> FastPathBatch {
        FastPathBatch { fast_path: self.0.get().cloned(), boarded: Vec::new() }
    }
}

/// The deliveries of one transaction that go over the fast path. Dropped before they have left, it cancels them.
pub struct FastPathBatch {
    fast_path: Option<Arc<dyn FastPath>>,
    boarded: Vec<ClaimedDelivery>,
}

impl FastPathBatch {
    /// Takes a delivery along if there is room; it is stored as claimed then, until the instant answered. `claimed` makes the
    /// delivery from that instant.
    pub fn board(
        &mut self,
        destination: &Destination,
        claimed: impl FnOnce(Timestamp) -> ClaimedDelivery,
    ) -> Option<Timestamp> {
        let expires_at = self.fast_path.as_ref()?.reserve(destination)?;
        self.boarded.push(claimed(expires_at));
        Some(expires_at)
    }

    /// The transaction has committed, and is on disk.
    pub fn depart(mut self) {
        let boarded = std::mem::take(&mut self.boarded);
        if let Some(fast_path) = self.fast_path.as_ref().filter(|_| !boarded.is_empty()) {
            fast_path.admit(boarded);
        }
    }
}

impl Drop for FastPathBatch {
    fn drop(&mut self) {
        let Some(fast_path) = &self.fast_path else { return };
        for delivery in self.boarded.drain(..) {
            fast_path.cancel(delivery.claim.destination_id);
        }
    }
}
