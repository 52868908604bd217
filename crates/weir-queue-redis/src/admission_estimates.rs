//! Estimates which destinations admit new deliveries without a run.
//!
//! Only Redis knows, and it is not asked for each delivery: the process estimates and the script decides. A wrong
//! estimate costs two writes of the store and a delay. So after a refusal the estimate admits nothing for a pause,
//! which doubles with each further refusal. A run of this process that finds no backlog ends the pause at once.
//!
//! A budget that a job shares with others has an estimate of its own: thousands of limit keys without a backlog are not
//! tried one after the other while their destination lets nothing be sent. It begins with one try.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use weir_core::{Backoff, DestinationId, LimitGroupId, Timestamp};
use weir_queue::LAST_OLD_START;

use crate::{
    codec::{Admitted, Room},
    keys::group_job,
};

/// The first pause: the time after a wake in which its run has probably ended, and the pause after the first refusal.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause. This process does not see that a run of another process ended the backlog. So for up to this time
/// deliveries may wait for a run although the fast path is open. One wrong estimate in this time costs little.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const PAUSES: Backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
/// An estimate that was not updated for this long is not used, and then dropped: Redis may have forgotten the job, which
/// it keeps for a minute.
const KEPT_FOR: Duration = Duration::from_secs(50);

#[derive(Debug)]
struct Estimate {
    admits_from: Timestamp,
    /// How many permits may be admitted before the next answer of the script.
    room: u32,
    /// Permits that room is reserved for.
    reserved: u32,
    /// `admits_from` was set by a wake, and no delivery was tried since.
    is_untried: bool,
    /// The pauses after refusals.
    pauses: Backoff,
    updated_at: Timestamp,
    /// The budget that the job shares, by its job.
    shared: Option<DestinationId>,
}

impl Estimate {
    /// One delivery may be tried at this time.
    fn one_from(admits_from: Timestamp, now: Timestamp) -> Self {
        Self { admits_from, room: 1, reserved: 0, is_untried: true, pauses: PAUSES, updated_at: now, shared: None }
    }

    fn has_room(&self, now: Timestamp, most: u32) -> bool {
        self.admits_from <= now && self.is_recent(now) && self.reserved < self.room.min(most)
    }

    fn reserve(&mut self) {
        self.reserved += 1;
        self.is_untried = false;
    }

    fn unreserve(&mut self, count: u32) {
        self.reserved = self.reserved.saturating_sub(count);
    }

    fn admitted(&mut self, room: Room, now: Timestamp) {
        (self.admits_from, self.room) = (room.from, room.permits);
        (self.is_untried, self.pauses, self.updated_at) = (false, PAUSES, now);
    }

    fn declined(&mut self, now: Timestamp) {
        self.admits_from = now + self.pauses.fail();
        (self.is_untried, self.room, self.updated_at) = (false, 1, now);
    }

    /// Redis still has the job.
    fn is_recent(&self, now: Timestamp) -> bool {
        self.updated_at > now - KEPT_FOR
    }
}

#[derive(Default)]
pub(crate) struct AdmissionEstimates(Mutex<HashMap<DestinationId, Estimate>>);

impl AdmissionEstimates {
    /// A run of the destination was requested. After it, one delivery may be tried. In a generation that has just begun,
    /// and for a job that Redis may not have yet, the run may be late. It would treat the claim of that delivery as a
    /// claim whose permit was lost. So there is no try before a run of such a claim would not be held up any more.
    ///
    /// Another wake does not put a try off that is due: where a commit takes longer than the pause, one comes before each
    /// try.
    pub(crate) fn woken(&self, id: DestinationId, generation_began: Timestamp, now: Timestamp) {
        let mut estimates = self.0.lock();
        let has_job = estimates.get(&id).is_some_and(|estimate| estimate.is_recent(now));
        let run_is_in_time = if has_job { generation_began + LAST_OLD_START } else { now + LAST_OLD_START };
        let admits_from = (now + FIRST_PAUSE).max(run_is_in_time);
        let estimate = estimates.entry(id).or_insert_with(|| Estimate::one_from(admits_from, now));
        estimate.updated_at = now;
        let try_is_due = estimate.is_untried && run_is_in_time <= now;
        // A pause that is not over, for example after a refusal, stays as it is.
        if estimate.admits_from <= now && !try_is_due {
            estimate.admits_from = admits_from;
            estimate.is_untried = true;
            estimate.room = estimate.room.max(1);
        }
    }

    /// Called when a run found less than it was allowed to claim, so there is no backlog. One delivery may be admitted
    /// at once; the answer of the script then says how much room there is.
    pub(crate) fn backlog_ended(&self, id: DestinationId, now: Timestamp) {
        if let Some(estimate) = self.0.lock().get_mut(&id) {
            estimate.admitted(Room { permits: estimate.room.max(1), from: now }, now);
        }
    }

    /// Redis admitted some deliveries with reserved room, and refused others.
    pub(crate) fn answered(&self, id: DestinationId, refused: u32, answer: &Admitted, now: Timestamp) {
        let mut estimates = self.0.lock();
        let of_all = answer.count as u32 + refused;
        let Some(estimate) = estimates.get_mut(&id) else { return };
        estimate.unreserve(of_all);
        if answer.count > 0 || refused == 0 {
            estimate.admitted(answer.room, now);
        }
        if refused > 0 {
            estimate.declined(now);
        }
        let shared = estimate.shared.and_then(|shared| estimates.get_mut(&shared));
        let Some(estimate) = shared else { return };
        estimate.unreserve(of_all);
        match answer.shared {
            Some(room) if room.permits > 0 => estimate.admitted(room, now),
            // It is full: tried again soon after deliveries were admitted, later after each refusal.
            Some(_) => {
                if answer.count > 0 {
                    estimate.pauses = PAUSES;
                }
                estimate.declined(now);
            }
            // The job itself has refused them.
            None => {}
        }
    }

    /// `count` deliveries could not be admitted.
    pub(crate) fn declined(&self, id: DestinationId, count: u32, now: Timestamp) {
        Self::of_each(&mut self.0.lock(), id, |estimate| {
            estimate.unreserve(count);
            estimate.declined(now);
        });
    }

    /// Reserves room for one permit, if there is any in the job and in the budget that it shares.
    pub(crate) fn reserve(
        &self,
        id: DestinationId,
        shared: Option<LimitGroupId>,
        now: Timestamp,
        max_in_flight: u32,
    ) -> bool {
        let mut estimates = self.0.lock();
        let Some(estimate) = estimates.get_mut(&id).filter(|estimate| estimate.has_room(now, max_in_flight)) else {
            return false;
        };
        // Nothing is reserved in the one that it may have shared before.
        if estimate.reserved == 0 {
            estimate.shared = shared.map(group_job);
        }
        if let Some(shared) = estimate.shared {
            let estimate = estimates.entry(shared).or_insert_with(|| Estimate::one_from(now, now));
            if estimate.reserved == 0 && !estimate.is_recent(now) {
                *estimate = Estimate::one_from(now, now);
            }
            if !estimate.has_room(now, u32::MAX) {
                return false;
            }
        }
        Self::of_each(&mut estimates, id, Estimate::reserve);
        true
    }

    /// Releases the room of one permit.
    pub(crate) fn unreserve(&self, id: DestinationId) {
        Self::of_each(&mut self.0.lock(), id, |estimate| estimate.unreserve(1));
    }

    /// Changes the estimate of a job, and that of the budget that it shares.
    fn of_each(estimates: &mut HashMap<DestinationId, Estimate>, id: DestinationId, change: impl Fn(&mut Estimate)) {
        let Some(estimate) = estimates.get_mut(&id) else { return };
        change(estimate);
        if let Some(estimate) = estimate.shared.and_then(|shared| estimates.get_mut(&shared)) {
            change(estimate);
        }
    }

    /// Drops estimates that are out of date.
    pub(crate) fn tidy(&self, now: Timestamp) {
        self.0.lock().retain(|_, estimate| estimate.reserved > 0 || estimate.is_recent(now));
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

    fn admitted(count: usize, permits: u32, from: Timestamp) -> Admitted {
        Admitted { count, room: Room { permits, from }, shared: None }
    }

    #[test]
    fn nothing_is_admitted_to_an_unknown_destination() {
        assert!(!AdmissionEstimates::default().reserve(id(), None, NOW, 10));
    }

    #[test]
    fn one_delivery_is_tried_after_a_wake_and_more_after_an_admission() {
        let estimates = AdmissionEstimates::default();
        estimates.woken(id(), LONG_AGO, NOW);
        let first = NOW + LAST_OLD_START;
        assert!(!estimates.reserve(id(), None, NOW + FIRST_PAUSE, 10), "Redis may not have the job yet");
        assert!(estimates.reserve(id(), None, first, 10) && !estimates.reserve(id(), None, first, 10));
        let later = first + FIRST_PAUSE;
        estimates.answered(id(), 0, &admitted(1, 7, later), later);
        let taken = (0..9).take_while(|_| estimates.reserve(id(), None, later, 3)).count();
        assert_eq!(taken, 3, "no more than `max_in_flight`");
        estimates.unreserve(id());
        assert!(estimates.reserve(id(), None, later, 3));
    }

    #[test]
    fn wakes_do_not_put_off_a_try_that_is_due() {
        let estimates = AdmissionEstimates::default();
        estimates.woken(id(), LONG_AGO, NOW);
        // Each commit takes longer than the pause, and wakes the destination just before the next event is stored.
        let due = NOW + LAST_OLD_START + FIRST_PAUSE;
        estimates.woken(id(), LONG_AGO, due);
        assert!(estimates.reserve(id(), None, due, 10));
        estimates.declined(id(), 1, due);
        let again = due + FIRST_PAUSE * 2;
        estimates.woken(id(), LONG_AGO, again);
        assert!(!estimates.reserve(id(), None, again, 10), "its run is not over");
        estimates.woken(id(), LONG_AGO, again + FIRST_PAUSE);
        assert!(estimates.reserve(id(), None, again + FIRST_PAUSE, 10));
        // The run of the first wake in a new generation may be late.
        estimates.answered(id(), 0, &admitted(1, 1, again), again);
        let later = again + FIRST_PAUSE * 2;
        estimates.woken(id(), LONG_AGO, again + FIRST_PAUSE);
        estimates.woken(id(), later, later);
        assert!(!estimates.reserve(id(), None, later + FIRST_PAUSE, 10));
    }

    #[test]
    fn nothing_is_tried_in_a_new_generation_before_a_run_has_ended() {
        let estimates = AdmissionEstimates::default();
        estimates.woken(id(), NOW, NOW);
        let early = NOW + FIRST_PAUSE * 2;
        assert!(!estimates.reserve(id(), None, early, 10));
        assert!(estimates.reserve(id(), None, NOW + LAST_OLD_START, 10), "one delivery is tried");
        estimates.backlog_ended(id(), early);
        estimates.unreserve(id());
        assert!(estimates.reserve(id(), None, early, 10));
    }

    #[test]
    fn the_pause_doubles_with_each_refusal_until_a_run_ends() {
        let estimates = AdmissionEstimates::default();
        estimates.woken(id(), LONG_AGO, NOW);
        let mut now = NOW + LAST_OLD_START;
        for wait in [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4] {
            assert!(estimates.reserve(id(), None, now, 10));
            estimates.declined(id(), 1, now);
            assert!(!estimates.reserve(id(), None, now + wait - Duration::from_nanos(1), 10));
            now = now + wait;
        }
        estimates.declined(id(), 0, now);
        estimates.backlog_ended(id(), now);
        assert!(estimates.reserve(id(), None, now, 10));
    }

    #[test]
    fn nothing_is_admitted_before_the_next_slot_of_a_limit() {
        let estimates = AdmissionEstimates::default();
        estimates.woken(id(), LONG_AGO, NOW);
        estimates.answered(id(), 0, &admitted(0, 10, NOW + Duration::from_millis(100)), NOW);
        assert!(!estimates.reserve(id(), None, NOW + Duration::from_millis(99), 10));
        assert!(estimates.reserve(id(), None, NOW + Duration::from_millis(100), 10));
    }

    #[test]
    fn nothing_is_tried_when_redis_may_have_forgotten_the_job() {
        let estimates = AdmissionEstimates::default();
        estimates.woken(id(), LONG_AGO, NOW);
        let late = NOW + KEPT_FOR;
        assert!(estimates.reserve(id(), None, late - Duration::from_secs(1), 10));
        assert!(!estimates.reserve(id(), None, late, 10));
        estimates.woken(id(), LONG_AGO, late);
        assert!(!estimates.reserve(id(), None, late + FIRST_PAUSE, 10));
    }

    #[test]
    fn jobs_without_a_backlog_are_not_tried_one_after_the_other_while_a_budget_that_they_share_is_full() {
        let estimates = AdmissionEstimates::default();
        let (group, later) = (Some(LimitGroupId::from_bytes([9; 16])), NOW + LAST_OLD_START);
        let [one, other] = [1, 2].map(|number| DestinationId::from_bytes([number; 16]));
        for id in [one, other] {
            estimates.woken(id, LONG_AGO, NOW);
        }
        let reserve = |id, now| estimates.reserve(id, group, now, 10);
        assert!(reserve(one, later) && !reserve(other, later), "the first try");
        let full = Room { permits: 0, from: Timestamp::MIN };
        estimates.answered(one, 1, &Admitted { count: 0, room: full, shared: Some(full) }, later);
        assert!(!reserve(other, later) && reserve(other, later + FIRST_PAUSE));
        // The job refused this delivery before any shared budget was looked at.
        estimates.answered(other, 1, &admitted(0, 0, Timestamp::MIN), later + FIRST_PAUSE);
        assert!(reserve(one, later + FIRST_PAUSE));
        let (now, room) = (later + FIRST_PAUSE * 2, |permits| Room { permits, from: later });
        estimates.answered(one, 0, &Admitted { count: 1, room: room(9), shared: Some(room(2)) }, now);
        let taken = (0..9).take_while(|_| reserve(one, now)).count();
        assert_eq!(taken, 2, "no more than both have room for");
        estimates.unreserve(one);
        assert!(reserve(other, now));
    }

    #[test]
    fn unused_estimates_are_forgotten() {
        let estimates = AdmissionEstimates::default();
        estimates.woken(id(), LONG_AGO, NOW);
        estimates.tidy(NOW + KEPT_FOR);
        assert!(estimates.0.lock().is_empty());
    }
}
