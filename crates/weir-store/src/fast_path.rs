//! The fast path: deliveries claimed as they are stored.
//!
//! A separate claim right after the ingest would cost a delivery to an idle destination a second commit. So the store
//! asks for each new delivery whether it may be sent at once. If so, the delivery is stored as claimed (`delivering`)
//! and admitted to the queue after the commit. All other deliveries wait for a run of their destination's job.
//!
//! ```text
//! reserve ──▶ stored as claimed ──commit──▶ admit ──▶ a permit, or the claim is released
//!    └──────── not stored ────────────────▶ cancel
//! ```
//!
//! The commit is durable before the deliveries are admitted, so a receiver never gets an event that the store could
//! lose.
//!
//! A crash between the commit and [`FastPath::admit`] leaves a claim that expires, like a crash of a scheduler between
//! claim and publish.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use weir_core::{Destination, DestinationId, Timestamp, claim::ClaimedDelivery};

/// Decides which new deliveries are claimed as they are stored, and admits them to the queue. No method may block.
pub trait FastPath: Send + Sync + 'static {
    /// Reserves room for one delivery of this flow that is to be sent at once. Returns when its claim expires; `None` if
    /// the delivery must wait for a run.
    fn reserve(&self, destination: &Destination, flow: DestinationId) -> Option<Timestamp>;

    /// Takes note of the destination of a flow that will be woken.
    fn note_flow(&self, _flow: DestinationId, _destination: &Destination) {}

    /// Frees the room of a delivery that was not stored, or may not have been stored.
    fn cancel(&self, flow: DestinationId);

    /// Admits deliveries that have reserved room and are now stored as claimed.
    fn admit(&self, deliveries: Vec<ClaimedDelivery>);
}

/// A store's handle of the fast path, which is connected after the store is opened.
#[derive(Clone, Default)]
pub struct FastPathHandle(Arc<OnceLock<Arc<dyn FastPath>>>);

impl fmt::Debug for FastPathHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FastPathHandle").field(&self.0.get().is_some()).finish()
    }
}

impl FastPathHandle {
    /// Later calls have no effect, because a process has one queue.
    pub fn connect(&self, fast_path: Arc<dyn FastPath>) {
        let _ = self.0.set(fast_path);
    }

    /// An empty batch for one transaction.
    pub fn batch(&self) -> FastPathBatch {
        FastPathBatch { fast_path: self.0.get().cloned(), deliveries: Vec::new() }
    }
}

/// The deliveries of one transaction that go over the fast path. Dropping the batch cancels those that were not
/// admitted.
pub struct FastPathBatch {
    fast_path: Option<Arc<dyn FastPath>>,
    deliveries: Vec<ClaimedDelivery>,
}

impl FastPathBatch {
    /// Adds a delivery if the fast path has room. Returns when its claim expires; the delivery must then be stored as
    /// claimed until that instant. `claimed` makes the delivery from that instant.
    pub fn try_add(
        &mut self,
        destination: &Destination,
        flow: DestinationId,
        claimed: impl FnOnce(Timestamp) -> ClaimedDelivery,
    ) -> Option<Timestamp> {
        let expires_at = self.fast_path.as_ref()?.reserve(destination, flow)?;
        self.deliveries.push(claimed(expires_at));
        Some(expires_at)
    }

    /// [`FastPath::note_flow`].
    pub fn note_flow(&self, flow: DestinationId, destination: &Destination) {
        if let Some(fast_path) = &self.fast_path {
            fast_path.note_flow(flow, destination);
        }
    }

    /// Admits the deliveries. To be called once the commit of their transaction is durable.
    pub fn admit(mut self) {
        let deliveries = std::mem::take(&mut self.deliveries);
        if let Some(fast_path) = self.fast_path.as_ref().filter(|_| !deliveries.is_empty()) {
            fast_path.admit(deliveries);
        }
    }
}

impl Drop for FastPathBatch {
    fn drop(&mut self) {
        let Some(fast_path) = &self.fast_path else { return };
        for delivery in self.deliveries.drain(..) {
            fast_path.cancel(delivery.flow_id);
        }
    }
}
