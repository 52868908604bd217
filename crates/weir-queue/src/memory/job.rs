//! One destination's job: where it stands in the schedule, its cursors, and its permits.

use std::time::Duration;

use weir_core::{IdMap, Limiter, RateLimits, Slot, Timestamp, destination::Settings, limiter, plan::SHARES};

use crate::{Room, SLOT_HORIZON, WARM_FOR};

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
    pub(super) edited: bool,
    pub(super) settled: bool,
}

/// The two sets of cursors; see the crate's documentation.
#[derive(Debug)]
pub(super) struct Cursors {
    pub(super) issued: Limiter,
    pub(super) slots: Limiter,
    /// The permit that was given the last slot, while that can be given back.
    last_taker: Option<u64>,
}

impl Cursors {
    pub(super) fn new(limiter: Limiter) -> Self {
        Self { issued: limiter.clone(), slots: limiter, last_taker: None }
    }

    pub(super) fn follow(&mut self, limits: &RateLimits) {
        if !self.slots.follows(limits) {
            self.last_taker = None;
        }
        self.issued.reconfigure(limits);
        self.slots.reconfigure(limits);
    }

    /// Paces one more permit; a warm one gets its slot, and the pace follows slots that were missed and replaced. A cold
    /// one takes its slot a connect time later, which must not slow the pace of those behind it.
    pub(super) fn issue(&mut self, now: Timestamp, serial: u64, warm: bool) -> Option<Slot> {
        self.issued.take(now);
        if !warm {
            return None;
        }
        let slot = self.take_slot(now, serial);
        self.issued.catch_up(&self.slots);
        slot
    }

    /// The next slot, unless it lies beyond the horizon. Then no cursor moves but the pace, which has run ahead of the slots:
    /// the next permit is published when its slot is near.
    pub(super) fn take_slot(&mut self, now: Timestamp, serial: u64) -> Option<Slot> {
        if self.slots.next_start(now) > now + SLOT_HORIZON {
            self.issued.catch_up(&self.slots);
            return None;
        }
        self.last_taker = Some(serial);
        Some(self.slots.take(now))
    }

    /// As if a permit had not been issued that found no slot.
    pub(super) fn take_back_issued(&mut self) {
        self.issued.give_back_last();
        self.issued.catch_up(&self.slots);
    }

    /// The slot that a permit was given stays unused. If it is the last, it is as if it had not been; but only if the next can be
    /// taken in its place.
    pub(super) fn give_back(&mut self, now: Timestamp, serial: u64) {
        if self.last_taker == Some(serial) {
            let mut slots = self.slots.clone();
            slots.give_back_last();
            if slots.next_start(now) <= now + SLOT_HORIZON {
                self.slots = slots;
            }
        }
    }

    pub(super) fn hold(&mut self, until: Timestamp) {
        self.issued.hold(until);
        self.slots.hold(until);
    }
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) phase: Phase,
    pub(super) epoch: u64,
    pub(super) version: u64,
    pub(super) meanwhile: Meanwhile,
    /// Unknown until the first run brings them from the store.
    pub(super) cursors: Option<Cursors>,
    /// A hold asked for before the cursors were known.
    pub(super) held_until: Timestamp,
    /// A worker is likely to hold a standing connection until then; before the first send, and after one that had to
    /// connect, it is not.
    pub(super) warm_until: Timestamp,
    /// Paused or deleted, as of this version.
    pub(super) suspended_at: Option<u64>,
    /// Permits published and not started, with the instants their claims expire.
    pub(super) queued: IdMap<u64, Timestamp>,
    /// Sends started and not settled, likewise.
    pub(super) in_flight: IdMap<u64, Timestamp>,
    /// No permit expires before.
    first_expiry: Timestamp,
    /// Room kept for permits that are to be admitted without a run.
    pub(super) reserved: u32,
    /// What [`weir_core::plan::NextRun::express_ahead`] says of the last run.
    pub(super) express_ahead: Option<Duration>,
}

impl Job {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Idle,
            epoch: 0,
            version: 0,
            meanwhile: Meanwhile::default(),
            cursors: None,
            held_until: Timestamp::MIN,
            warm_until: Timestamp::MIN,
            suspended_at: None,
            queued: IdMap::default(),
            in_flight: IdMap::default(),
            first_expiry: Timestamp::MAX,
            reserved: 0,
            express_ahead: None,
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

    pub(super) fn is_warm(&self, now: Timestamp) -> bool {
        now < self.warm_until
    }

    pub(super) fn set_warm(&mut self, now: Timestamp, warm: bool) {
        self.warm_until = if warm { now + WARM_FOR } else { Timestamp::MIN };
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

    /// Whether a new delivery can go without a run: if the last one found less than it was allowed to take, so that at most a
    /// handful waits, the cursors follow these limits, and a slot is free now, or near beside a lane.
    pub(super) fn room(&self, now: Timestamp, settings: &Settings) -> Room {
        let &Settings { max_in_flight, ref rate_limits, .. } = settings;
        // A run that is under way may publish its share of what may be out.
        let promised = match self.phase {
            Phase::Leased { .. } => max_in_flight.div_ceil(SHARES),
            Phase::Idle | Phase::Scheduled { .. } => 0,
        };
        let Some(ahead) = self.express_ahead else { return Room::Closed };
        let one_more = self.reserved + 1;
        let slot_is_free = |cursors: &Cursors| {
            let after = now + ahead + Duration::from_nanos(1);
            cursors.issued.follows(rate_limits)
                && cursors.issued.slots_before(now, after, one_more) == one_more
                && cursors.slots.next_start(now) <= now + ahead
        };
        if self.suspended_at.is_some() || !self.cursors.as_ref().is_some_and(slot_is_free) {
            return Room::Closed;
        }
        if self.permits() + promised < max_in_flight { Room::Kept } else { Room::Full }
    }

    /// Whether forgetting the job changes nothing: the store can bring its cursors back.
    pub(super) fn is_forgettable(&self, now: Timestamp) -> bool {
        self.phase == Phase::Idle
            && !self.has_permits()
            && self.held_until <= now
            && self.cursors.as_ref().is_none_or(|cursors| {
                cursors.issued.is_fresh(now) && cursors.slots.is_fresh(now - limiter::UNLIMITED_SLOT_WIDTH)
            })
    }

    pub(super) fn hold(&mut self, until: Timestamp) {
        self.held_until = self.held_until.max(until);
        if let Some(cursors) = &mut self.cursors {
            cursors.hold(until);
        }
    }
}
