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
//! What has committed outlives the process, but the machine only once it is on disk. A store whose commits do not wait for the
//! disk lets go what may go before it ([`Boarding::depart_committed`]).
//!
//! A crash between the commit and [`Express::admit`] leaves a claim that expires, as a crash of a scheduler between claim and
//! publish does.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use weir_core::{Destination, DestinationId, Timestamp, claim::ClaimedDelivery, event::Event};

/// Decides which new deliveries are claimed as they are stored, and takes them over. Nothing here may wait.
pub trait Express: Send + Sync + 'static {
    /// Keeps room for one delivery that would be sent at once; answers when its claim expires. `None`: it waits for a run.
    fn reserve(&self, destination: &Destination) -> Option<Timestamp>;

    /// The delivery for which room was kept has not been stored, or nobody knows whether it has.
    fn cancel(&self, destination_id: DestinationId);

    /// These deliveries, for each of which room was kept, are stored and claimed.
    fn admit(&self, deliveries: Vec<ClaimedDelivery>);

    /// New deliveries for which there was no room, by their destinations, are stored by now, or will never be: a claim that begins
    /// later finds them.
    fn left_behind(&self, destinations: &[DestinationId]) {
        let _ = destinations;
    }

    /// Whether so many more would have to wait for a run, but perhaps not a little later. Intake of a flood does well to rest, but
    /// not for long: a slow destination must not hold up the others.
    fn is_pressed(&self, deliveries: usize) -> bool {
        let _ = deliveries;
        false
    }
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

    /// See [`Express::is_pressed`].
    pub fn is_pressed(&self, deliveries: usize) -> bool {
        self.0.get().is_some_and(|express| express.is_pressed(deliveries))
    }

    /// For one transaction.
    pub fn boarding(&self) -> Boarding {
        Boarding { express: self.0.get().cloned(), boarded: Vec::new(), behind: Vec::new() }
    }
}

/// What a delivery by the express waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaves {
    /// The commit of its event. Should the machine lose its power before that is on disk, the receiver knows an event that the
    /// store does not, and of which its producer was told nothing.
    Committed,
    /// Its event is on disk, because what has been sent must not be forgotten: a limit would not count it any more, or its
    /// producer, who posts it again under the same key, would have it sent under another id.
    OnDisk,
}

impl Leaves {
    fn of(event: &Event, destination: &Destination) -> Self {
        let waits = event.idempotency_key.is_some() || destination.settings.rate_limits.outlast_a_restart();
        if waits { Self::OnDisk } else { Self::Committed }
    }
}

/// The deliveries of one transaction that go by the express. Dropped before they have left, it cancels them.
pub struct Boarding {
    express: Option<Arc<dyn Express>>,
    boarded: Vec<(Leaves, ClaimedDelivery)>,
    /// The destinations of those for which there was no room.
    behind: Vec<DestinationId>,
}

impl Boarding {
    /// Takes a delivery along if there is room; it is stored as claimed then, until the instant answered. `claimed` makes the
    /// delivery from that instant.
    pub fn board(
        &mut self,
        event: &Event,
        destination: &Destination,
        claimed: impl FnOnce(Timestamp) -> ClaimedDelivery,
    ) -> Option<Timestamp> {
        let Some(expires_at) = self.express.as_ref()?.reserve(destination) else {
            self.behind.push(destination.id);
            return None;
        };
        self.boarded.push((Leaves::of(event, destination), claimed(expires_at)));
        Some(expires_at)
    }

    /// What goes by the express and has not left.
    pub fn boarded(&self) -> impl Iterator<Item = &ClaimedDelivery> {
        self.boarded.iter().map(|(_, delivery)| delivery)
    }

    /// Whether some of it may leave before the transaction is on disk.
    pub fn leaves_early(&self) -> bool {
        self.boarded.iter().any(|(leaves, _)| *leaves == Leaves::Committed)
    }

    /// The transaction has committed, and is perhaps not on disk.
    pub fn depart_committed(&mut self) {
        self.admit(|leaves| leaves == Leaves::Committed);
    }

    /// The transaction has committed, and is on disk where that matters.
    pub fn depart(mut self) {
        self.admit(|_| true);
    }

    fn admit(&mut self, may_leave: impl Fn(Leaves) -> bool) {
        self.leave_behind();
        let leaving: Vec<_> = self.boarded.extract_if(.., |(leaves, _)| may_leave(*leaves)).collect();
        if let Some(express) = self.express.as_ref().filter(|_| !leaving.is_empty()) {
            express.admit(leaving.into_iter().map(|(_, delivery)| delivery).collect());
        }
    }

    fn leave_behind(&mut self) {
        if let Some(express) = self.express.as_ref().filter(|_| !self.behind.is_empty()) {
            express.left_behind(&std::mem::take(&mut self.behind));
        }
    }
}

impl Drop for Boarding {
    fn drop(&mut self) {
        self.leave_behind();
        let Some(express) = &self.express else { return };
        for (_, delivery) in self.boarded.drain(..) {
            express.cancel(delivery.claim.destination_id);
        }
    }
}
