//! A budget: cursors, and the permits that are published under them. A job has one of its own, and a group one that its
//! members share.

use std::time::Duration;

use weir_core::{
    IdMap, Limiter, Timestamp,
    plan::{self, MOST_AHEAD},
    stall::Progress,
};

use crate::{LONGEST_PREPARATION, LONGEST_RUN};

/// A permit that is not settled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outstanding {
    /// When its claim expires.
    pub(super) expires: Timestamp,
    /// Whether it has a slot.
    pub(super) is_in_flight: bool,
}

#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Where the next slots may begin. Unknown until the first run recovers the cursors from the store.
    pub(super) cursors: Option<Limiter>,
    /// The permits that are published and not settled. One map, because a slot moves a permit in each of its budgets.
    permits: IdMap<u64, Outstanding>,
    /// How many of them have a slot.
    in_flight: u32,
    /// Room reserved for permits that will be admitted without a run.
    pub(super) reserved: u32,
    /// How long workers take to be ready. A longer time counts at once; shorter times reduce the value step by step.
    pub(super) preparation: Duration,
    /// How long runs take, from their due time to their publication. Smoothed in the same way.
    pub(super) run_time: Duration,
    /// No permit expires before this time.
    first_expiry: Timestamp,
    /// Permits issued so far.
    issued: u64,
    /// When the slot of the last queued permit is expected, which another budget may delay.
    pub(super) last_expected: Timestamp,
    /// The last claim: its time, and the permits that had been issued and were no longer outstanding.
    claimed: Option<(Timestamp, u64)>,
}

impl Budget {
    /// Drops permits whose claims have expired. Otherwise they would use up the room permanently.
    pub(super) fn drop_expired(&mut self, now: Timestamp) {
        if now < self.first_expiry {
            return;
        }
        self.permits.retain(|_, permit| permit.expires > now);
        self.in_flight = self.permits.values().filter(|permit| permit.is_in_flight).count() as u32;
        let expiries = self.permits.values().map(|permit| permit.expires);
        self.first_expiry = expiries.min().unwrap_or(Timestamp::MAX);
    }

    /// Adds a published permit whose claim expires at `expires`.
    pub(super) fn queue(&mut self, serial: u64, expires: Timestamp) {
        self.issued += 1;
        self.permits.insert(serial, Outstanding { expires, is_in_flight: false });
        self.first_expiry = self.first_expiry.min(expires);
    }

    /// The permit, if it is not settled.
    pub(super) fn permit(&self, serial: u64) -> Option<Outstanding> {
        self.permits.get(&serial).copied()
    }

    /// A slot was granted for this permit.
    pub(super) fn start(&mut self, serial: u64, expires: Timestamp) {
        let permit = self.permits.entry(serial).or_insert(Outstanding { expires, is_in_flight: false });
        if !std::mem::replace(&mut permit.is_in_flight, true) {
            self.in_flight += 1;
        }
    }

    /// Removes a permit that has ended. Returns whether it was known.
    pub(super) fn end(&mut self, serial: u64) -> bool {
        let ended = self.permits.remove(&serial);
        self.in_flight -= u32::from(ended.is_some_and(|permit| permit.is_in_flight));
        ended.is_some()
    }

    /// Takes the permits of a member that joins.
    pub(super) fn join(&mut self, member: &Self) {
        self.issued += member.permits.len() as u64;
        for (&serial, permit) in &member.permits {
            // Counted once, if it is known already.
            self.end(serial);
            self.permits.insert(serial, *permit);
            self.in_flight += u32::from(permit.is_in_flight);
        }
        self.reserved += member.reserved;
        self.first_expiry = self.first_expiry.min(member.first_expiry);
    }

    /// Forgets the permits of a member that leaves.
    pub(super) fn leave(&mut self, member: &Self) {
        self.issued -= member.permits.keys().filter(|serial| self.end(**serial)).count() as u64;
        self.reserved = self.reserved.saturating_sub(member.reserved);
    }

    /// Permits without a slot.
    pub(super) fn published(&self) -> u32 {
        self.permits.len() as u32 - self.in_flight
    }

    pub(super) fn queued(&self) -> u32 {
        self.published() + self.reserved
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Permits that are queued, reserved or in flight.
    pub(super) fn outstanding(&self) -> u32 {
        self.permits.len() as u32 + self.reserved
    }

    /// The expected start of a slot that is taken after `others` further slots.
    pub(super) fn start_after(&self, others: u32, now: Timestamp) -> Timestamp {
        self.cursors.as_ref().map_or(now, |cursors| cursors.start_after(others, now))
    }

    /// The same behind queued permits, if the last of them has its slot when it is expected.
    pub(super) fn start_behind(&self, others: u32, now: Timestamp) -> Timestamp {
        let start = self.start_after(others, now);
        match others.checked_sub(1) {
            Some(before) => start.max(self.last_expected + start.since(self.start_after(before, now))),
            None => start,
        }
    }

    /// How long before a slot the run for it begins.
    pub(super) fn ahead(&self) -> Duration {
        self.preparation + self.run_time
    }

    /// How many permits end in the time of two runs and of the preparation, as measured since the last claim.
    pub(super) fn ended_meanwhile(&mut self, now: Timestamp, max_in_flight: u32) -> u32 {
        let ended = self.issued - self.permits.len() as u64;
        let (since, before) = self.claimed.replace((now, ended)).unwrap_or((now, ended));
        let of = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let ahead = ended.saturating_sub(before).saturating_mul(of(self.preparation + 2 * self.run_time))
            / of(now.since(since)).max(1);
        let most = MOST_AHEAD.saturating_mul(max_in_flight);
        u32::try_from(ahead).map_or(most, |ahead| ahead.min(most))
    }

    /// Later permits are published earlier by the time that a worker took to be ready.
    pub(super) fn prepared_in(&mut self, time: Duration) {
        self.preparation = smoothed(self.preparation, time.min(LONGEST_PREPARATION));
    }

    /// Later runs begin earlier by the time that one took that was due at `since`.
    pub(super) fn run_ended(&mut self, since: Timestamp, now: Timestamp) {
        self.run_time = smoothed(self.run_time, now.since(since).min(LONGEST_RUN));
    }

    /// When a run begins for the slot behind those of `queued` permits.
    pub(super) fn due_for_next_slot(&self, queued: u32, now: Timestamp) -> Timestamp {
        self.cursors
            .as_ref()
            .map_or(now, |cursors| plan::due_for_next_slot(cursors.start_after(queued, now), self.ahead(), now))
    }

    /// How far its sends have come. Permits that have expired do not count. No slot starts before `earliest`.
    pub(super) fn progress(&self, now: Timestamp, earliest: Timestamp) -> Progress {
        let valid = |in_flight: bool| {
            let permits = self.permits.values();
            permits.filter(|permit| permit.expires > now && permit.is_in_flight == in_flight).count() as u32
        };
        Progress {
            queued: valid(false),
            in_flight: valid(true),
            lowered_maximum: None,
            last_start: self.cursors.as_ref().and_then(Limiter::last_start),
            next_start: self.cursors.as_ref().map(|cursors| cursors.owed_start(earliest, now)),
        }
    }

    /// Whether nothing is outstanding, and the cursors can be recovered from the store.
    pub(super) fn is_forgettable(&self, now: Timestamp) -> bool {
        self.outstanding() == 0
            && self.cursors.as_ref().is_none_or(|cursors| cursors.is_fresh(now - cursors.slot_width()))
    }
}

/// A longer time counts at once; a shorter one reduces the known time by an eighth of the difference.
fn smoothed(known: Duration, new: Duration) -> Duration {
    if new >= known { new } else { known - (known - new) / 8 }
}
