//! The behaviour that all queues have in common: one function per behaviour, run on each backend by
//! [`queue_conformance!`](crate::queue_conformance).
//!
//! The suite runs in real time, because a queue may have its own clock. Tests wait for signals; they sleep only to show
//! that nothing happens.

mod edits;
mod fast_path;
mod groups;
mod holds;
mod keyed_members;
mod limit_keys;
mod paces;
mod progress;
mod reservations;
mod room;
mod schedule;
mod slots;
mod spacing;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use weir_core::{
    Clock, DeliveryId, Destination, DestinationId, EventId, Limiter, Period, RateLimit, RateLimits, Slot, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    destination::Settings,
    event::EventBody,
    limiter::GRANT_AHEAD,
    plan::NextRun,
    signing::{Secret, Signing},
};

pub use self::{
    edits::*, fast_path::*, groups::*, holds::*, keyed_members::*, limit_keys::*, paces::*, progress::*,
    reservations::*, room::*, schedule::*, slots::*, spacing::*,
};
use crate::{
    DueJobs, HandedBack, Hold, JobLease, Permit, Publication, Published, Settled, SharedQueue, SlotAnswer, SlotRequest,
    Terms, TermsChange, Wake,
};

const LEASE: Duration = Duration::from_secs(10);
/// A due job is claimed within this time.
const SOON: Duration = Duration::from_secs(5);
/// If nothing was claimed for this long, no job is due.
const ABSENCE: Duration = Duration::from_millis(60);

/// A fresh queue and its clock.
pub struct Subject {
    pub queue: SharedQueue,
    pub clock: Arc<dyn Clock>,
    /// How much later a slot may start, and how much earlier it may end, than calculated, because the queue has another
    /// clock than this process.
    pub precision: Duration,
    /// The number of edits so far. The destination's terms have this number, as a time in seconds, as their version.
    edits: AtomicI64,
}

fn destination(number: u8) -> DestinationId {
    DestinationId::from_bytes([number; 16])
}

fn per_second(limit: u32) -> RateLimits {
    per(limit, Period::SECOND)
}

fn per_minute(limit: u32) -> RateLimits {
    per(limit, Period::MINUTE)
}

fn per(limit: u32, period: Period) -> RateLimits {
    RateLimits::new(RateLimit::new(limit, period).into_iter().collect()).unwrap_or_default()
}

/// Destination 1 with these settings.
pub fn settings(limits: &RateLimits, max_in_flight: u32) -> Destination {
    let url = "https://example.com/".parse().expect("a url");
    let signing = Signing::new(Secret::from_bytes(vec![7; 32]).expect("a secret"));
    let settings = Settings { rate_limits: limits.clone(), max_in_flight, ..Settings::new(url, signing) };
    Destination::new(destination(1), settings, Timestamp::MIN)
}

fn granted(answer: SlotAnswer) -> Slot {
    match answer {
        SlotAnswer::Granted(slot, _) => slot,
        refused => panic!("a slot should be granted: {refused:?}"),
    }
}

impl Subject {
    pub fn new(queue: SharedQueue, clock: Arc<dyn Clock>, precision: Duration) -> Self {
        Self { queue, clock, precision, edits: AtomicI64::new(1) }
    }

    /// The destination after the last edit.
    fn destination(&self, limits: &RateLimits, max_in_flight: u32) -> Destination {
        let updated_at = Timestamp::from_secs(self.edits.load(Ordering::Relaxed));
        Destination { updated_at, ..settings(limits, max_in_flight) }
    }

    fn terms(&self, limits: &RateLimits) -> Terms {
        Terms::of(&self.destination(limits, 64), self.clock.now())
    }

    fn delivery(&self, number: u8, expires_in: Duration) -> ClaimedDelivery {
        let now = self.clock.now();
        ClaimedDelivery {
            flow_id: destination(1),
            claim: Claim {
                delivery_id: DeliveryId::from_bytes([number; 16]),
                destination_id: destination(1),
                epoch: 1,
            },
            event_id: EventId::from_bytes([number; 16]),
            event_created_at: now,
            attempts: 0,
            attempts_before: 0,
            is_replay: false,
            cost: 1,
            body: ClaimedBody::Inline(EventBody::stored(Bytes::from_static(b"{}"), 0)),
            expires_at: now + expires_in,
            destination: None,
        }
    }

    async fn wake(&self, due: Timestamp) {
        self.queue.wake(&[Wake { destination_id: destination(1), due }]).await.expect("wake");
    }

    async fn edit(&self, limits: &RateLimits, suspended: bool) {
        self.edits.fetch_add(1, Ordering::Relaxed);
        let terms = Terms { suspended, ..self.terms(limits) };
        self.queue.edited(&[TermsChange { destination_id: destination(1), terms }]).await.expect("edit");
    }

    /// Holds this destination together with others, in all shards.
    async fn hold_many(&self, until: Timestamp) {
        let sent_at = self.clock.now();
        let holds = (1..=255).map(|number| Hold { destination_id: destination(number), until, sent_at });
        self.queue.hold(&holds.collect::<Vec<_>>()).await.expect("hold");
    }

    /// Holds destination 1 on behalf of a send that started at this instant.
    async fn hold(&self, until: Timestamp, sent_at: Timestamp) {
        self.queue.hold(&[Hold { destination_id: destination(1), until, sent_at }]).await.expect("hold");
    }

    /// An edit that lifts the hold at this instant. `held_until`: what the store knows of holds since.
    async fn release(&self, limits: &RateLimits, released_at: Timestamp, held_until: Timestamp) {
        self.edits.fetch_add(1, Ordering::Relaxed);
        let terms = Terms { released_at, held_until, ..self.terms(limits) };
        self.queue.edited(&[TermsChange { destination_id: destination(1), terms }]).await.expect("edit");
    }

    async fn claim_for(&self, lease_for: Duration) -> Vec<JobLease> {
        let claimed = tokio::time::timeout(SOON, self.queue.claim_due(16, lease_for)).await;
        let DueJobs { leases, .. } = claimed.expect("a job is due").expect("claim");
        leases
    }

    async fn claim(&self) -> JobLease {
        self.claim_for(LEASE).await.remove(0)
    }

    /// Wakes the job and claims its lease.
    async fn begin_run(&self) -> JobLease {
        self.wake(self.clock.now()).await;
        self.claim().await
    }

    async fn assert_nothing_due(&self) {
        let claimed = tokio::time::timeout(ABSENCE, self.queue.claim_due(16, LEASE)).await;
        assert!(claimed.is_err(), "nothing should be due: {claimed:?}");
    }

    async fn publish(&self, lease: JobLease, limits: RateLimits, count: u8, next: NextRun) -> Published {
        let deliveries = (0..count).map(|number| self.delivery(number, SOON)).collect();
        self.publish_these(lease, limits, deliveries, next).await
    }

    async fn publish_these(
        &self,
        lease: JobLease,
        limits: RateLimits,
        deliveries: Vec<ClaimedDelivery>,
        next: NextRun,
    ) -> Published {
        let terms = self.terms(&limits);
        self.publish_under(lease, terms, deliveries, next).await
    }

    async fn publish_under(
        &self,
        lease: JobLease,
        terms: Terms,
        deliveries: Vec<ClaimedDelivery>,
        next: NextRun,
    ) -> Published {
        let recovered = lease.cursors.is_none().then(|| Limiter::new(&terms.limits));
        let publication =
            Publication { lease, terms: Some(terms), recovered, groups: Vec::new(), pace: None, deliveries, next };
        self.queue.publish(vec![publication]).await.expect("publish").remove(0)
    }

    /// Wakes, claims, publishes and takes `count` permits under `limits`.
    async fn permits(&self, limits: RateLimits, count: u8, next: NextRun) -> Vec<Permit> {
        let lease = self.begin_run().await;
        assert!(matches!(self.publish(lease, limits, count, next).await, Published::Done));
        self.take(usize::from(count)).await
    }

    async fn take(&self, count: usize) -> Vec<Permit> {
        let mut permits = Vec::new();
        while permits.len() < count {
            let more = tokio::time::timeout(SOON, self.queue.take(count - permits.len())).await;
            permits.extend(more.expect("permits are published").expect("take"));
        }
        permits
    }

    /// Asserts that a slot starts at the expected instant, or at once if the request for it came later than that: a test
    /// in real time may have been suspended. Call it right after the request.
    fn assert_starts(&self, start: Timestamp, expected: Timestamp) {
        assert!(
            start + self.precision >= expected && start <= expected.max(self.clock.now()) + self.precision,
            "a slot at {start:?} where {expected:?} was expected"
        );
    }

    fn assert_wide(&self, slot: Slot, width: Duration) {
        let actual = slot.end.since(slot.start);
        assert!(actual <= width && actual + self.precision * 2 >= width, "a slot {actual:?} wide instead of {width:?}");
    }

    async fn ask_for_slot(&self, permit: &Permit) -> SlotAnswer {
        self.ask_prepared_in(permit, None).await
    }

    async fn ask_prepared_in(&self, permit: &Permit, preparation: Option<Duration>) -> SlotAnswer {
        let request = SlotRequest { preparation, cost: permit.delivery.cost, ..SlotRequest::new(permit.id) };
        self.queue.take_slot(request).await.expect("take a slot")
    }

    /// Asks for another slot after `missed` is over.
    async fn ask_after_miss(&self, permit: &Permit, missed: Slot) -> SlotAnswer {
        self.until(missed.end + self.precision).await;
        let request = SlotRequest { missed: true, cost: permit.delivery.cost, ..SlotRequest::new(permit.id) };
        self.queue.take_slot(request).await.expect("take a slot")
    }

    /// Asks for a slot as workers do: again shortly before the slot, when it is too far ahead.
    async fn slot(&self, permit: &Permit) -> Slot {
        loop {
            match self.ask_for_slot(permit).await {
                SlotAnswer::Later(start) => self.until(start - GRANT_AHEAD / 2).await,
                answer => return granted(answer),
            }
        }
    }

    async fn until(&self, at: Timestamp) {
        tokio::time::sleep(at.since(self.clock.now())).await;
    }

    async fn hand_back(&self, permit: &Permit, crowded: bool) {
        self.queue.hand_back(&[HandedBack { id: permit.id, crowded }]).await.expect("hand back");
    }

    async fn settle(&self, permit: &Permit) {
        self.queue.settle(&[permit.id.into()]).await.expect("settle");
    }

    /// Settles the permit of a send that started at this instant and was answered.
    async fn settle_answered(&self, permit: &Permit, sent_at: Timestamp) {
        self.queue.settle(&[Settled { id: permit.id, answered: Some(sent_at) }]).await.expect("settle");
    }
}

/// Runs every behaviour as a separate test on a queue from `$subject`, an async function.
#[macro_export]
macro_rules! queue_conformance {
    ($subject:path) => {
        $crate::queue_conformance!(@each $subject,
            the_progress_says_what_is_queued_in_flight_and_when_the_next_slot_opens,
            an_unknown_destination_has_made_no_progress,
            a_hold_and_a_permit_that_nobody_takes_show_in_the_progress,
            a_woken_job_is_claimed_once,
            a_claim_waits_for_a_wake,
            a_wake_pulls_a_parked_job_forward,
            a_job_with_only_replayed_deliveries_runs_soon_or_at_a_wake,
            a_later_wake_does_not_push_a_job_back,
            a_later_wake_does_not_push_a_known_idle_job_back,
            a_wake_does_not_run_a_paced_job_early,
            a_stop_removes_the_job,
            a_wake_during_a_run_survives_its_stop,
            a_wake_during_a_run_pulls_the_parked_job_forward,
            an_ended_lease_is_claimed_again_and_its_stale_epoch_publishes_nothing,
            a_publish_after_a_publish_of_the_same_lease_is_stale,
            a_run_that_continues_keeps_its_lease_and_publishes_again,
            permits_are_taken_in_the_order_of_publication,
            permits_carry_the_time_at_which_their_slots_are_expected,
            slots_of_a_backlog_are_one_spacing_apart,
            a_slot_is_granted_at_most_40_ms_ahead,
            the_first_request_gets_the_first_slot,
            a_missed_slot_is_replaced_by_a_later_one,
            a_missed_slot_that_is_still_the_last_gives_its_spacing_back,
            a_missed_slot_gives_nothing_back_after_another_was_granted,
            a_slot_is_not_given_back_after_an_edit,
            cursors_survive_a_stop,
            unknown_cursors_continue_from_the_recovered_ones,
            an_unlimited_permit_has_a_slot_that_starts_now,
            a_slot_of_a_long_window_is_wide,
            a_lease_reports_how_long_workers_prepare,
            a_window_may_be_any_number_of_seconds,
            slots_of_a_minimum_interval_are_never_closer_than_it,
            permits_of_a_minimum_interval_carry_the_times_of_its_slots,
            a_minimum_interval_counts_from_the_last_slot_across_edits,
            a_missed_slot_of_a_minimum_interval_gives_its_time_back,
            a_minimum_interval_counts_after_a_recovered_send_and_after_a_hold,
            a_minimum_interval_survives_a_stop,
            a_lease_has_the_margins_and_the_minimum_interval,
            a_margin_makes_the_spacing_longer,
            a_window_lets_its_sends_start_at_once_and_keeps_them_across_edits,
            a_slot_under_a_limit_in_costs_takes_the_cost_of_its_event,
            a_window_continues_from_what_is_recorded,
            an_edit_runs_a_parked_job_at_once,
            an_edit_during_a_run_causes_another_run,
            an_edit_with_older_terms_changes_nothing,
            a_raised_limit_applies_to_outstanding_permits,
            a_lowered_limit_applies_to_outstanding_permits,
            a_lowered_max_in_flight_applies_to_outstanding_permits,
            terms_that_are_over_grant_no_slot_and_run_the_job,
            a_suspended_destination_withdraws_its_permits,
            a_suspension_during_a_run_makes_its_publish_stale,
            a_resumed_destination_publishes_again,
            a_run_under_the_same_terms_ends_a_suspension,
            a_hold_moves_the_next_slot_of_outstanding_permits,
            a_release_frees_the_next_slot_at_once,
            a_hold_of_a_send_from_before_the_release_is_ignored_and_a_later_one_counts,
            terms_bring_the_hold_that_the_store_knows_unless_it_was_released_since,
            after_a_hold_one_send_is_in_flight_until_it_is_answered,
            sends_from_before_the_end_of_a_hold_and_refused_ones_do_not_end_its_slow_start,
            a_slow_start_does_not_stop_at_a_probe_that_ends_without_an_answer,
            another_hold_begins_the_slow_start_again,
            a_lease_reports_the_slow_start,
            a_permit_handed_back_before_its_slot_costs_no_slot,
            a_lease_counts_what_is_queued_and_in_flight,
            a_settle_runs_a_job_that_waits_for_room,
            a_settle_runs_a_job_when_its_next_slot_opens,
            a_settle_during_a_run_is_not_missed,
            a_permit_without_room_waits_for_the_end_of_an_attempt,
            a_lease_reports_how_many_attempts_end_until_new_permits_are_ready,
            a_crowded_destination_gets_fewer_permits_until_attempts_end,
            a_crowded_permit_starts_no_run,
            a_crowded_paced_permit_starts_no_run,
            an_expired_permit_is_withdrawn_and_no_longer_counted,
            permits_whose_workers_died_are_no_longer_counted_once_their_claims_expire,
            one_destination_does_not_delay_another,
            a_delivery_is_admitted_without_a_run,
            nothing_is_admitted_to_a_destination_that_never_ran,
            an_admitted_delivery_takes_its_slot_from_the_same_cursor,
            admissions_stop_at_max_in_flight,
            nothing_is_admitted_while_there_is_a_backlog,
            a_live_delivery_is_admitted_during_a_replay_and_goes_first,
            a_delivery_admitted_after_a_suspension_is_declined,
            deliveries_are_admitted_one_at_a_time_within_a_minimum_interval,
            released_room_can_be_reserved_again,
            nothing_is_admitted_under_terms_that_the_job_does_not_know,
            a_pace_delays_slots_below_the_limit_and_never_hurries_them,
            a_pace_counts_on_from_the_last_slot_of_the_pace_before,
            a_grant_names_its_pace_and_how_many_are_in_flight,
            a_full_window_waits_for_an_answer_and_the_next_run_learns_of_it,
            a_report_of_a_refusal_runs_the_job_and_others_wait,
            a_slow_pace_learns_from_each_report_and_a_quick_one_from_a_few,
            a_pace_is_shown_until_an_edit_turns_it_off,
            a_delivery_beyond_the_pace_is_not_admitted,
            a_probe_of_a_held_receiver_goes_alone_and_at_its_time,
            a_missed_slot_gives_the_spacing_of_its_pace_back,
            a_destination_without_a_group_has_no_turn,
            slots_of_all_members_are_one_spacing_of_their_group_apart,
            a_member_keeps_its_own_limits,
            a_slot_that_the_group_refuses_costs_a_member_nothing,
            a_group_in_costs_counts_the_costs_of_all_members,
            a_lowered_limit_of_a_group_applies_to_outstanding_permits,
            an_override_of_a_group_ends_by_itself_and_resets_no_window,
            a_member_that_comes_after_an_override_of_its_group_does_not_wait_for_its_limits,
            a_held_group_grants_no_slot_to_any_member,
            a_run_that_has_read_old_terms_of_its_group_publishes_nothing,
            the_sends_of_all_members_count_in_the_max_in_flight_of_their_group,
            lost_cursors_of_a_group_continue_from_the_recovered_ones,
            a_missed_slot_is_given_back_to_all_budgets_or_to_none,
            turns_are_divided_by_weight,
            no_more_permits_are_queued_under_a_group_than_its_rate,
            a_destination_that_leaves_its_group_has_only_its_own_budget,
            a_queue_without_the_cursors_of_a_group_says_so_and_reserves_nothing,
            reserved_slots_continue_from_the_recovered_cursors,
            callers_alone_get_all_slots_one_spacing_apart,
            a_reserved_slot_is_as_wide_as_its_caller_wants_and_counts_until_its_end,
            a_reservation_above_a_limit_in_costs_is_never_granted,
            reserved_slots_and_slots_of_members_come_from_one_budget,
            a_reservation_does_not_overtake_a_queued_permit,
            callers_have_turns_like_a_member_with_weight_1,
            what_is_promised_to_callers_who_have_gone_goes_to_the_members,
            a_reserved_slot_is_given_back_if_it_is_the_last_one,
            a_limit_key_has_slots_from_its_own_budget_and_that_of_its_destination,
            an_edit_of_a_destination_binds_the_outstanding_permits_of_all_its_limit_keys,
            an_edit_of_a_destination_runs_a_limit_key_that_waits_for_a_slot_of_its_own,
            a_paused_destination_grants_no_slot_to_its_limit_keys_and_their_runs_end,
            the_limit_keys_of_a_resumed_destination_run_at_once,
            a_hold_of_a_destination_holds_all_its_limit_keys_until_its_release,
            a_hold_of_limit_keys_that_the_queue_does_not_know_is_kept,
            after_a_hold_one_send_of_all_limit_keys_is_in_flight_until_it_is_answered,
            the_budget_of_limit_keys_has_the_progress_of_all_of_them,
            a_raised_max_in_flight_of_a_destination_counts_for_its_limit_keys_at_once,
            limit_keys_without_limits_take_turns,
            a_delivery_of_a_limit_key_is_admitted_under_the_budget_of_its_destination,
            limit_keys_are_admitted_up_to_the_max_in_flight_of_their_destination,
            nothing_is_admitted_to_a_limit_key_after_an_edit_or_while_it_is_behind,
            a_limit_key_is_not_admitted_before_others_that_wait_for_their_turns,
            what_a_limit_key_has_sent_alone_on_the_fast_path_costs_no_turns,
            slots_of_the_keys_of_all_members_are_one_spacing_of_their_limit_group_apart,
            each_of_three_budgets_may_be_the_one_that_delays_a_slot,
            a_key_is_admitted_if_each_of_three_budgets_has_a_slot,
            a_slot_that_the_limit_group_refuses_costs_a_key_and_its_destination_nothing,
            the_sends_of_all_keys_count_in_the_max_in_flight_of_their_limit_group,
            unused_permits_of_keys_leave_every_budget,
            an_edit_of_the_limit_group_binds_the_outstanding_permits_of_keys,
            an_override_of_the_limit_group_ends_for_keys_too,
            turns_of_a_limit_group_are_divided_among_destinations_and_then_among_keys,
            a_key_that_waits_keeps_its_turn_when_it_is_woken,
            a_destination_with_keys_that_leaves_its_limit_group_has_two_budgets,
        );
    };
    (@each $subject:path, $($behaviour:ident),+ $(,)?) => {$(
        #[tokio::test]
        async fn $behaviour() {
            $crate::conformance::$behaviour($subject().await).await;
        }
    )+};
}
