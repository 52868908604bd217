//! One destination's job: where it stands in the schedule, its cursors, and its permits.

use std::time::Duration;

use weir_core::{
    Destination, IdMap, Limiter, Slot, Timestamp,
    limiter::GRANT_AHEAD,
    plan::{self, SHARES},
};

use crate::{LONGEST_PREPARATION, SLOT_HORIZON, SlotAnswer, Terms};

/// Where a job stands.
///
/// ```text
/// Idle ──wake, edit──▶ Scheduled ──claim──▶ Leased ──publish──▶ Scheduled | Idle
///                          ▲                  │
///                          └──lease expired───┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing waits. Cursors and permits remain.
    Idle,
    /// Runs at `due`; a wake pulls it forward, but not below `floor`.
    Scheduled { due: Timestamp, floor: Timestamp, on_settle: bool },
    /// A scheduler runs it; due again when the lease expires.
    Leased { expires: Timestamp },
}

/// What happened while the job was leased.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Meanwhile {
    /// The earliest due time of the wakes.
    pub(super) wake: Option<Timestamp>,
    pub(super) settled: bool,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) phase: Phase,
    pub(super) epoch: u64,
    pub(super) version: u64,
    pub(super) meanwhile: Meanwhile,
    /// Unknown until the first edit or run.
    pub(super) terms: Option<Terms>,
    /// Where the next slots may begin. Unknown until the first run brings it from the store.
    pub(super) cursors: Option<Limiter>,
    /// A hold asked for before the cursors were known.
    pub(super) held_until: Timestamp,
    /// How long workers take to stand ready: the longest of late, and less with each that was quicker.
    pub(super) preparation: Duration,
    /// What may be out while workers have no places for more.
    pub(super) window: Option<u32>,
    /// Permits published that have no slot, with the instants their claims expire.
    pub(super) queued: IdMap<u64, Timestamp>,
    /// Sends started and not settled, likewise.
    pub(super) in_flight: IdMap<u64, Timestamp>,
    /// No permit expires before.
    first_expiry: Timestamp,
    /// Room kept for permits that are to be admitted without a run.
    pub(super) reserved: u32,
    /// What [`weir_core::plan::NextRun::fast_path_ahead`] says of the last run.
    pub(super) fast_path_ahead: Option<Duration>,
}

impl Job {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Idle,
            epoch: 0,
            version: 0,
            meanwhile: Meanwhile::default(),
            terms: None,
            cursors: None,
            held_until: Timestamp::MIN,
            preparation: Duration::ZERO,
            window: None,
            queued: IdMap::default(),
            in_flight: IdMap::default(),
            first_expiry: Timestamp::MAX,
            reserved: 0,
            fast_path_ahead: None,
        }
    }

    /// Permits whose claims have expired are nobody's any more; counting them would leak the destination's room.
    pub(super) fn drop_expired(&mut self, now: Timestamp) {
        if now < self.first_expiry {
            return;
        }
        self.queued.retain(|_, expires| *expires > now);
        self.in_flight.retain(|_, expires| *expires > now);
        let left = self.queued.values().chain(self.in_flight.values());
        self.first_expiry = left.min().copied().unwrap_or(Timestamp::MAX);
    }

    /// A permit is published whose claim expires then.
    pub(super) fn queue(&mut self, serial: u64, expires: Timestamp) {
        self.queued.insert(serial, expires);
        self.first_expiry = self.first_expiry.min(expires);
    }

    /// Follows these terms, unless newer ones are known.
    pub(super) fn follow(&mut self, terms: &Terms) {
        if let Some(cursors) = &mut self.cursors {
            cursors.reconfigure(&terms.limits);
        }
        self.terms = Some(terms.clone());
    }

    /// Whether these terms or newer ones are known.
    pub(super) fn knows(&self, terms: &Terms) -> bool {
        self.terms.as_ref().is_some_and(|known| known.version >= terms.version)
    }

    /// Whether newer terms are known than these.
    pub(super) fn is_newer_than(&self, terms: &Terms) -> bool {
        self.terms.as_ref().is_some_and(|known| known.version > terms.version)
    }

    /// A slot for one of the job's permits, if everything allows it.
    pub(super) fn take_slot(&mut self, now: Timestamp, serial: u64, preparation: Option<Duration>) -> SlotAnswer {
        let in_flight = self.in_flight.get(&serial).copied();
        let Some(expires) = in_flight.or_else(|| self.queued.get(&serial).copied()).filter(|expires| *expires > now)
        else {
            return SlotAnswer::Withdrawn;
        };
        let has_room = in_flight.is_some() || (self.in_flight.len() as u32) < self.most_out();
        let (Some(cursors), true, false) =
            (&mut self.cursors, has_room, self.terms.as_ref().is_none_or(|t| t.suspended))
        else {
            return SlotAnswer::Withdrawn;
        };
        self.preparation = preparation.map_or(self.preparation, |new| blended(self.preparation, new));
        match grant(cursors, now) {
            SlotAnswer::Granted(slot) => {
                self.queued.remove(&serial);
                self.in_flight.insert(serial, expires);
                SlotAnswer::Granted(slot)
            }
            refused => refused,
        }
    }

    /// Published or about to be.
    pub(super) fn has_permits(&self) -> bool {
        self.permits() > 0
    }

    pub(super) fn queued(&self) -> u32 {
        self.queued.len() as u32 + self.reserved
    }

    fn permits(&self) -> u32 {
        self.queued() + self.in_flight.len() as u32
    }

    /// How many permits may be out.
    fn most_out(&self) -> u32 {
        let max_in_flight = self.terms.as_ref().map_or(0, |terms| terms.max_in_flight);
        self.window.map_or(max_in_flight, |window| window.min(max_in_flight))
    }

    /// The worker had no place for one of the job's permits, which is gone by now: what is still out is as much as there may be.
    pub(super) fn narrow_window(&mut self) {
        self.window = Some(self.permits().max(1));
    }

    /// An attempt ended, so there is a place for one more.
    pub(super) fn widen_window(&mut self) {
        let max_in_flight = self.terms.as_ref().map_or(u32::MAX, |terms| terms.max_in_flight);
        self.window = self.window.map(|window| window + 1).filter(|window| *window < max_in_flight);
    }

    /// Whether a new delivery can go without a run: if the last one found less than it was allowed to take, so that at most a
    /// handful waits, the terms are those of its destination, a slot is free now, or near beside a lane, and there is room.
    pub(super) fn has_room(&self, now: Timestamp, destination: &Destination) -> bool {
        let (Some(ahead), Some(terms), Some(cursors)) = (self.fast_path_ahead, &self.terms, &self.cursors) else {
            return false;
        };
        // A run that is under way may publish its share of what may be out.
        let promised = match self.phase {
            Phase::Leased { .. } => terms.max_in_flight.div_ceil(SHARES),
            Phase::Idle | Phase::Scheduled { .. } => 0,
        };
        let taken = self.queued() + 1;
        !terms.suspended
            && terms.version == destination.updated_at
            && cursors.slots_before(now, now + ahead + Duration::from_nanos(1), taken) == taken
            && self.permits() + promised < self.most_out()
    }

    /// When a run that waits for time comes.
    pub(super) fn paced_due(&self, now: Timestamp) -> Timestamp {
        self.cursors.as_ref().map_or(now, |cursors| plan::paced_due(cursors, self.queued(), self.preparation, now))
    }

    /// Whether forgetting the job changes nothing: the store can bring its cursors back.
    pub(super) fn is_forgettable(&self, now: Timestamp) -> bool {
        self.phase == Phase::Idle
            && !self.has_permits()
            && self.held_until <= now
            && self.cursors.as_ref().is_none_or(|cursors| cursors.is_fresh(now - cursors.slot_width()))
    }

    pub(super) fn hold(&mut self, until: Timestamp) {
        self.held_until = self.held_until.max(until);
        if let Some(cursors) = &mut self.cursors {
            cursors.hold(until);
        }
    }
}

/// The next slot, unless it lies too far ahead: then no cursor moves.
fn grant(cursors: &mut Limiter, now: Timestamp) -> SlotAnswer {
    let start = cursors.next_start(now);
    if start <= now + GRANT_AHEAD {
        let slot: Slot = cursors.take(now);
        SlotAnswer::Granted(slot)
    } else if start <= now + SLOT_HORIZON {
        SlotAnswer::Later(start)
    } else {
        SlotAnswer::Withdrawn
    }
}

/// Up at once, down by an eighth each time.
fn blended(known: Duration, new: Duration) -> Duration {
    let new = new.min(LONGEST_PREPARATION);
    if new >= known { new } else { known - (known - new) / 8 }
}
