//! The express way: deliveries claimed as they are stored.
//!
//! A delivery of an idle destination would be claimed a moment after its event has been stored: a second commit, and a wait
//! for it. So for each new delivery the store asks whether it may be sent at once. If so it is stored as `delivering`, claimed,
//! and handed over after the commit. The rest wait for a run of their destination's job, as does everything without an
//! express.
//!
//! ```text
//! reserve ──▶ stored as claimed ──commit──▶ admit ──▶ a permit, or the claim is given back
//!    └──────── not stored after all ──────▶ cancel
//! ```
//!
//! The commit is durable before anything is handed over: a receiver never knows an event that the store could forget.
//!
//! A crash between the commit and [`Express::admit`] leaves a claim that expires, as a crash of a scheduler between claim and
//! publish does.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use weir_core::{Destination, DestinationId, Timestamp, claim::ClaimedDelivery};

/// Decides which new deliveries are claimed as they are stored, and takes them over. Nothing here may wait.
pub trait Express: Send + Sync + 'static {
    /// Keeps room for one delivery that would be sent at once; answers when its claim expires. `None`: it waits for a run.
    fn reserve(&self, destination: &Destination) -> Option<Timestamp>;

    /// The delivery for which room was kept has not been stored, or nobody knows whether it has.
    fn cancel(&self, destination_id: DestinationId);

    /// These deliveries, for each of which room was kept, are stored and claimed.
    fn admit(&self, deliveries: Vec<ClaimedDelivery>);
}

/// Where a store's express leaves from, once there is one.
#[derive(Clone, Default)]
pub struct Station(Arc<OnceLock<Arc<dyn Express>>>);

impl fmt::Debug for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Station").field(&self.0.get().is_some()).finish()
    }
}

impl Station {
    /// The first one stays: a process has one queue.
    pub fn connect(&self, express: Arc<dyn Express>) {
        let _ = self.0.set(express);
    }

    /// For one transaction.
    pub fn boarding(&self) -> Boarding {
        Boarding { express: self.0.get().cloned(), boarded: Vec::new() }
    }
}

/// The deliveries of one transaction that go by the express. Dropped before they have left, it cancels them.
pub struct Boarding {
    express: Option<Arc<dyn Express>>,
    boarded: Vec<ClaimedDelivery>,
}

impl Boarding {
    /// Takes a delivery along if there is room; it is stored as claimed then, until the instant answered. `claimed` makes the
    /// delivery from that instant.
    pub fn board(
        &mut self,
        destination: &Destination,
        claimed: impl FnOnce(Timestamp) -> ClaimedDelivery,
    ) -> Option<Timestamp> {
        let expires_at = self.express.as_ref()?.reserve(destination)?;
        self.boarded.push(claimed(expires_at));
        Some(expires_at)
    }

    /// The transaction has committed, and is on disk.
    pub fn depart(mut self) {
        let boarded = std::mem::take(&mut self.boarded);
        if let Some(express) = self.express.as_ref().filter(|_| !boarded.is_empty()) {
            express.admit(boarded);
        }
    }
}

impl Drop for Boarding {
    fn drop(&mut self) {
        let Some(express) = &self.express else { return };
        for delivery in self.boarded.drain(..) {
            express.cancel(delivery.claim.destination_id);
        }
    }
}
