//! What a pass of the watch over stalls reads of the store, and what follows from it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use weir_core::{
    DeliveryState, Destination, DestinationId, Timestamp,
    stall::{self, FULL_USE, Fault, Progress},
};
use weir_queue::QueueProgress;
use weir_store::{RecentTraffic, StateCounts};

use super::waits_for_keys;

/// The rate of a destination is measured over this time at least, and up to a bucket longer.
pub(super) const MEASURED: Duration = Duration::from_secs(10);
/// The time between two sweeps, which give lost jobs back.
const REPAIRED: Duration = Duration::from_secs(5);
/// Permits that no worker has taken for this long wait for a place.
const UNTAKEN: Duration = Duration::from_secs(3);

/// What is recorded of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Recorded {
    /// Deliveries that have been attempted.
    pub(super) attempted: u64,
    /// Attempts of the last half minute.
    pub(super) attempts: u64,
}

/// What a pass reads of the store.
pub(super) struct Read {
    pub(super) now: Timestamp,
    pub(super) is_slow: bool,
    /// It was slow in the last pass, too.
    pub(super) stays_slow: bool,
    pub(super) works: bool,
    pub(super) schedules: bool,
    pub(super) counts: HashMap<DestinationId, StateCounts>,
    pub(super) traffic: HashMap<DestinationId, RecentTraffic>,
    pub(super) measured_from: Timestamp,
    /// When the watch began.
    pub(super) began: Timestamp,
    /// The destinations that owe something.
    pub(super) destinations: HashMap<DestinationId, Arc<Destination>>,
    /// Since when the oldest delivery of each destination has been due.
    pub(super) due: HashMap<DestinationId, Timestamp>,
}

/// Whether deliveries wait or are claimed.
pub(super) fn owes(counts: &StateCounts) -> bool {
    counts.waiting() > 0 || counts.of(DeliveryState::Delivering) > 0
}

/// Deliveries that have been attempted.
fn attempted(counts: &StateCounts) -> u64 {
    counts.of(DeliveryState::Delivered) + counts.of(DeliveryState::Retrying) + counts.dead_letters()
}

impl Read {
    pub(super) fn recorded(&self, id: DestinationId) -> Recorded {
        let attempted = self.counts.get(&id).map_or(0, attempted);
        Recorded { attempted, attempts: self.attempts(id) }
    }

    /// The attempts of the last half minute, also those that could not connect.
    fn attempts(&self, id: DestinationId) -> u64 {
        self.traffic.get(&id).map_or(0, |recent| recent.sum.sends.max(recent.sum.failed))
    }

    /// What is wrong with the installation. `None` for the progress: the queue does not answer.
    pub(super) fn fault(&self, progress: Option<&QueueProgress>) -> Option<Fault> {
        match progress {
            None => Some(Fault::QueueAway),
            _ if self.is_slow => Some(Fault::StoreSlow),
            _ if !self.works => Some(Fault::NoWorker),
            _ if !self.schedules => Some(Fault::NoScheduler),
            Some(progress) if progress.untaken_for >= UNTAKEN => Some(Fault::WorkersFull),
            Some(_) => None,
        }
    }

    pub(super) fn may_be_behind(&self, destination: &Destination) -> bool {
        let measured = self.now.since(self.measured_from);
        let is_below = |used| used < FULL_USE;
        !waits_for_keys(destination)
            && stall::used(destination, self.attempts(destination.id), measured).is_some_and(is_below)
    }

    /// From when the rate of a destination is measured: deliveries have been due since then, and the watch has run. Attempts
    /// may be counted from a little earlier, which only makes the rate seem higher. `None`: not for long enough.
    pub(super) fn measured(&self, id: DestinationId) -> Option<Timestamp> {
        let from = self.measured_from.max(self.began).max(*self.due.get(&id)?);
        (from + MEASURED <= self.now).then_some(from)
    }

    /// How much of its limit a destination with due deliveries has used, and since when it has sent no more than a repair
    /// every few seconds causes. `None`: not known, or not only Weir keeps it from more.
    pub(super) fn used(&self, destination: &Destination, of: Progress) -> Option<(f64, Option<Timestamp>)> {
        let from = self.measured(destination.id)?;
        // Started and not yet recorded.
        let begun = self.attempts(destination.id) + u64::from(of.in_flight);
        // A hold, an edit, an override or a breaker allowed less for a part of the time.
        let ended = destination.temporary.overridden.as_ref().map(|of| of.until).filter(|at| *at <= self.now);
        let changes = [destination.held_until, destination.released_at, Some(destination.updated_at), ended];
        let is_settled = changes.into_iter().flatten().all(|at| at <= from);
        let is_open = !destination.settings.paused && destination.breaker.allows_full_rate(self.now);
        // What waits behind the heads of message groups is not due.
        let is_free = !destination.settings.order.is_by_key();
        // Slow answers hold all its room. So do attempts that a slow store has not recorded yet.
        let max_in_flight = destination.settings.max_in_flight;
        let most = of.lowered_maximum.map_or(max_in_flight, |most| most.min(max_in_flight));
        let has_room = of.in_flight < most || self.stays_slow;
        let measured = self.now.since(from);
        let used = stall::used(destination, begun, measured)?;
        let is_seldom = begun <= 1 + measured.as_secs() / REPAIRED.as_secs();
        (is_settled && is_open && is_free && has_room).then_some((used, is_seldom.then_some(from)))
    }
}

/// Why nothing is sent to one destination while the installation works: its permits found no free place in a worker, no
/// worker uses them, or it has no permits.
pub(super) fn unused(of: Progress) -> Fault {
    match of {
        Progress { lowered_maximum: Some(_), .. } => Fault::WorkersFull,
        Progress { queued: 0, in_flight: 0, .. } => Fault::NotPublished,
        _ => Fault::NotStarted,
    }
}
