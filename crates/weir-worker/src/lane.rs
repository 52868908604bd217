//! Slots that replays wait for, which live attempts change theirs for.
//!
//! A replay fills the slots of the next milliseconds, so a live attempt that comes then gets a later one. Here it takes the
//! earliest that an attempt of the lane still waits for, and leaves it its own. The slots in use stay the same, each used once, so
//! no window has more sends than before. A slot changes hands once: without that bound steady live traffic could push the same
//! attempt of the lane away for ever.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use weir_core::{DestinationId, Slot, Timestamp};
use weir_queue::PermitId;

struct Waiting {
    slot: Slot,
    changed: bool,
}

/// The attempts of lanes that wait for their slots, by destination and serial.
#[derive(Default)]
pub(crate) struct LaneSlots(Mutex<HashMap<DestinationId, HashMap<u64, Waiting>>>);

impl LaneSlots {
    // No code path panics while it holds the lock; a poisoned one is as good as ever.
    fn waiting(&self) -> MutexGuard<'_, HashMap<DestinationId, HashMap<u64, Waiting>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt of the lane waits for its slot; to be followed by [`Self::reach`].
    pub(crate) fn wait(&self, permit: PermitId, slot: Slot) {
        let waiting = Waiting { slot, changed: false };
        self.waiting().entry(permit.destination_id).or_default().insert(permit.serial, waiting);
    }

    /// The slot that an attempt of the lane has at present. Once its time has come nobody else gets it.
    pub(crate) fn reach(&self, permit: PermitId, slot: Slot, now: Timestamp) -> Slot {
        let mut waiting = self.waiting();
        let Some(of_destination) = waiting.get_mut(&permit.destination_id) else { return slot };
        let slot = of_destination.get(&permit.serial).map_or(slot, |one| one.slot);
        if slot.start <= now {
            of_destination.remove(&permit.serial);
            if of_destination.is_empty() {
                waiting.remove(&permit.destination_id);
            }
        }
        slot
    }

    /// The earliest slot that a live attempt can have for its own.
    pub(crate) fn change(&self, id: DestinationId, own: Slot, now: Timestamp) -> Slot {
        let mut waiting = self.waiting();
        let Some(of_destination) = waiting.get_mut(&id) else { return own };
        let earlier = |one: &&mut Waiting| !one.changed && now <= one.slot.start && one.slot.start < own.start;
        match of_destination.values_mut().filter(earlier).min_by_key(|one| one.slot.start) {
            None => own,
            Some(one) => {
                one.changed = true;
                std::mem::replace(&mut one.slot, own)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn at(ms: u64) -> Slot {
        let start = NOW + Duration::from_millis(ms);
        Slot { start, end: start + Duration::from_millis(1) }
    }

    fn destination(number: u8) -> DestinationId {
        DestinationId::from_bytes([number; 16])
    }

    fn permit(serial: u64) -> PermitId {
        PermitId { destination_id: destination(1), serial }
    }

    /// Attempts of the lane that wait for these slots, numbered from 0.
    fn waiting<const N: usize>(slots: [u64; N]) -> LaneSlots {
        let lane = LaneSlots::default();
        for (serial, slot) in (0..).zip(slots) {
            lane.wait(permit(serial), at(slot));
        }
        lane
    }

    #[test]
    fn a_live_attempt_has_the_earliest_slot_and_leaves_its_own() {
        let lane = waiting([4, 2, 3]);
        assert_eq!(lane.change(destination(1), at(20), NOW), at(2));
        let times_up = |ms| NOW + Duration::from_millis(ms);
        assert_eq!(lane.reach(permit(1), at(2), times_up(2)), at(20), "it waits again");
        assert_eq!(lane.reach(permit(2), at(3), times_up(3)), at(3));
        assert_eq!(lane.reach(permit(0), at(4), times_up(4)), at(4));
        assert_eq!(lane.reach(permit(1), at(20), times_up(20)), at(20));
        assert!(lane.waiting().is_empty(), "nothing is kept of what goes on its way");
    }

    #[test]
    fn what_has_its_time_cannot_be_had_any_more() {
        let lane = waiting([0, 2]);
        let now = NOW + Duration::from_millis(1);
        assert_eq!(lane.change(destination(1), at(20), now), at(2), "the first may be on its way");
        assert_eq!(lane.reach(permit(0), at(0), now), at(0));
    }

    #[test]
    fn no_slot_is_changed_for_an_earlier_one_or_for_one_of_another_destination() {
        let lane = waiting([5]);
        assert_eq!(lane.change(destination(1), at(3), NOW), at(3));
        assert_eq!(lane.change(destination(2), at(20), NOW), at(20));
    }

    #[test]
    fn steady_live_traffic_pushes_an_attempt_of_the_lane_away_once() {
        let lane = waiting([2]);
        assert_eq!(lane.change(destination(1), at(10), NOW), at(2));
        assert_eq!(lane.change(destination(1), at(20), NOW), at(20), "the lane keeps what it got");
        assert_eq!(lane.reach(permit(0), at(2), NOW + Duration::from_millis(12)), at(10));
    }
}
