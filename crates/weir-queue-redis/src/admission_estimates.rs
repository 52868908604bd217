//! Which destinations' new deliveries may be admitted without a run, as far as this process knows.
//!
//! The truth is in Redis and is not asked for each delivery; the script decides. A wrong guess costs two writes of the store
//! and a wait, so a gate that turned out to be closed stays closed for a while, twice as long each time. Runs of this
//! process that find nothing more to do open it at once.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use weir_core::{DestinationId, Timestamp};
use weir_queue::LAST_OLD_START;

/// How long after a wake its run has probably ended, and how long a gate stays closed at first.
const FIRST_TRY: Duration = Duration::from_millis(20);
const LAST_TRY: Duration = Duration::from_secs(2);
/// What nobody asked about for so long is not worth a guess: Redis may have forgotten the job.
const REMEMBERED: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Gate {
    open_from: Timestamp,
    /// Permits it may be opened for before the next answer.
    room: u32,
    reserved: u32,
    /// How long it stays closed when it is found closed again.
    patience: Duration,
    learnt_at: Timestamp,
}

#[derive(Default)]
pub(crate) struct AdmissionEstimates(Mutex<HashMap<DestinationId, Gate>>);

impl AdmissionEstimates {
    // A panic while the lock is held is a bug already reported; a guess is whole at any time.
    fn gates(&self) -> MutexGuard<'_, HashMap<DestinationId, Gate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run of the destination is asked for: after it, one delivery may try. In a generation that has just begun the run may come
    /// late, and would take the claim of that delivery for one that the generation before has left.
    pub(crate) fn woken(&self, id: DestinationId, generation_began: Timestamp, now: Timestamp) {
        let open_from = (now + FIRST_TRY).max(generation_began + LAST_OLD_START);
        let mut gates = self.gates();
        let gate =
            gates.entry(id).or_insert(Gate { open_from, room: 1, reserved: 0, patience: FIRST_TRY, learnt_at: now });
        gate.learnt_at = now;
        if gate.open_from <= now {
            gate.open_from = open_from;
            gate.room = gate.room.max(1);
        }
    }

    /// A run found less than it was allowed to take. How much room there is the next answer tells.
    pub(crate) fn rested(&self, id: DestinationId, now: Timestamp) {
        if let Some(gate) = self.gates().get_mut(&id) {
            *gate = Gate {
                open_from: now,
                room: gate.room.max(1),
                reserved: gate.reserved,
                patience: FIRST_TRY,
                learnt_at: now,
            };
        }
    }

    /// Some were admitted, for which room had been kept. There is room for more, from an instant on.
    pub(crate) fn admitted(&self, id: DestinationId, count: u32, room: u32, open_from: Timestamp, now: Timestamp) {
        if let Some(gate) = self.gates().get_mut(&id) {
            let reserved = gate.reserved.saturating_sub(count);
            *gate = Gate { open_from, room, reserved, patience: FIRST_TRY, learnt_at: now };
        }
    }

    /// Some could not be admitted.
    pub(crate) fn declined(&self, id: DestinationId, count: u32, now: Timestamp) {
        if let Some(gate) = self.gates().get_mut(&id) {
            let (open_from, patience) = (now + gate.patience, (gate.patience * 2).min(LAST_TRY));
            let reserved = gate.reserved.saturating_sub(count);
            *gate = Gate { open_from, room: 1, reserved, patience, learnt_at: now };
        }
    }

    /// Keeps room for one.
    pub(crate) fn reserve(&self, id: DestinationId, now: Timestamp, max_in_flight: u32) -> bool {
        let mut gates = self.gates();
        let Some(gate) = gates.get_mut(&id).filter(|gate| gate.open_from <= now) else { return false };
        let has_room = gate.reserved < gate.room.min(max_in_flight);
        gate.reserved += u32::from(has_room);
        has_room
    }

    /// Gives up the room of one.
    pub(crate) fn unreserve(&self, id: DestinationId) {
        if let Some(gate) = self.gates().get_mut(&id) {
            gate.reserved = gate.reserved.saturating_sub(1);
        }
    }

    /// Forgets what nobody has asked about.
    pub(crate) fn tidy(&self, now: Timestamp) {
        let before = now - REMEMBERED;
        self.gates().retain(|_, gate| gate.reserved > 0 || gate.learnt_at > before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);
    const LONG_AGO: Timestamp = Timestamp::from_secs(10);

    fn id() -> DestinationId {
        DestinationId::from_bytes([1; 16])
    }

    #[test]
    fn nothing_is_admitted_to_a_destination_of_which_nothing_is_known() {
        assert!(!AdmissionEstimates::default().reserve(id(), NOW, 10));
    }

    #[test]
    fn one_delivery_tries_after_a_wake_and_more_when_it_was_admitted() {
        let gates = AdmissionEstimates::default();
        gates.woken(id(), LONG_AGO, NOW);
        assert!(!gates.reserve(id(), NOW, 10));
        let later = NOW + FIRST_TRY;
        assert!(gates.reserve(id(), later, 10) && !gates.reserve(id(), later, 10));
        gates.admitted(id(), 1, 7, later, later);
        let taken = (0..9).take_while(|_| gates.reserve(id(), later, 3)).count();
        assert_eq!(taken, 3, "no more than the destination allows");
        gates.unreserve(id());
        assert!(gates.reserve(id(), later, 3));
    }

    #[test]
    fn in_a_new_generation_nothing_tries_before_a_run_has_ended() {
        let gates = AdmissionEstimates::default();
        gates.woken(id(), NOW, NOW);
        let guessed = NOW + FIRST_TRY * 2;
        assert!(!gates.reserve(id(), guessed, 10));
        assert!(gates.reserve(id(), NOW + LAST_OLD_START, 10), "a guess, and one only");
        gates.rested(id(), guessed);
        gates.unreserve(id());
        assert!(gates.reserve(id(), guessed, 10));
    }

    #[test]
    fn a_gate_found_closed_stays_so_twice_as_long_each_time_until_a_run_ends() {
        let gates = AdmissionEstimates::default();
        gates.woken(id(), LONG_AGO, NOW);
        let mut now = NOW + FIRST_TRY;
        for wait in [FIRST_TRY, FIRST_TRY * 2, FIRST_TRY * 4] {
            assert!(gates.reserve(id(), now, 10));
            gates.declined(id(), 1, now);
            assert!(!gates.reserve(id(), now + wait - Duration::from_nanos(1), 10));
            now = now + wait;
        }
        gates.declined(id(), 0, now);
        gates.rested(id(), now);
        assert!(gates.reserve(id(), now, 10));
    }

    #[test]
    fn a_limit_keeps_the_gate_closed_until_its_next_slot() {
        let gates = AdmissionEstimates::default();
        gates.woken(id(), LONG_AGO, NOW);
        gates.admitted(id(), 0, 10, NOW + Duration::from_millis(100), NOW);
        assert!(!gates.reserve(id(), NOW + Duration::from_millis(99), 10));
        assert!(gates.reserve(id(), NOW + Duration::from_millis(100), 10));
    }

    #[test]
    fn what_nobody_asks_about_is_forgotten() {
        let gates = AdmissionEstimates::default();
        gates.woken(id(), LONG_AGO, NOW);
        gates.tidy(NOW + REMEMBERED);
        assert!(gates.gates().is_empty());
    }
}
