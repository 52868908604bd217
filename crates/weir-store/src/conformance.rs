//! What every store does alike: one function per behaviour, run on each backend by [`store_conformance!`].
//!
//! Times are invented: the suite never waits for one. Each behaviour has a database of its own.

mod alerting;
mod coalescing;
mod destinations;
mod fast_path;
mod filters;
mod history;
mod ingest;
mod message_groups;
mod outbox;
mod processes;
mod prune;
mod purge;
mod recovery;
mod replays;
mod results;
mod rows;
mod timing;
mod traces;

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use async_trait::async_trait;
use weir_core::{
    AttemptId, DeliveryId, DeliveryState, Destination, DestinationId, EventId, Period, RateLimit, RateLimits,
    Timestamp, TraceParent,
    alert::AlertOverrides,
    breaker::{Breaker, BreakerPolicy},
    claim::{ClaimedBody, ClaimedDelivery},
    delivery::{Attempt, AttemptOutcome, Delivery},
    destination::Settings,
    event::{DeliveryOptions, Event, EventBody},
    order::DeliveryOrder,
    outcome::Verdict,
    pattern::EventPattern,
    retry::RetryPolicy,
    signing::{Secret, Signing},
};

pub use self::{
    coalescing::*, destinations::*, fast_path::*, filters::*, history::*, ingest::*, message_groups::*, outbox::*,
    processes::*, prune::*, purge::*, recovery::*, replays::*, results::*, rows::*, timing::*, traces::*, watch::*,
};
use crate::{
    AttemptResult, ClaimRequest, Claims, DeliveryFilter, Ingested, NewEvent, PageRequest, Settlement, SharedStore,
};

/// The database of one test.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Opens the database, empty the first time. What was opened before is closed first, as at the end of a process.
    async fn open(&self) -> SharedStore;
}

/// One test's store.
pub struct Subject {
    pub store: SharedStore,
    backend: Box<dyn Backend>,
}

impl Subject {
    pub async fn new(backend: impl Backend + 'static) -> Self {
        Self { store: backend.open().await, backend: Box::new(backend) }
    }

    /// As if the process had ended and begun again.
    async fn reopen(&mut self) {
        self.store = self.backend.open().await;
    }

    async fn create(&self, destination: Destination) -> Arc<Destination> {
        self.store.create_destination(destination).await.expect("create")
    }

    /// Creates destinations 1 to `count`.
    async fn create_many(&self, count: u128) {
        for number in 1..=count {
            self.create(destination(number)).await;
        }
    }

    async fn ingest(&self, events: Vec<NewEvent>) -> Vec<Ingested> {
        let answers = self.store.ingest(events).await.expect("ingest");
        answers.into_iter().map(|answer| answer.expect("an accepted event")).collect()
    }

    /// Stores events with these numbers for destination `to`.
    async fn post(&self, to: u128, numbers: impl IntoIterator<Item = u64>) {
        self.ingest(numbers.into_iter().map(|number| named(event(number), &[to])).collect()).await;
    }

    /// Claims of destination `number` what is due ten seconds after [`NOW`].
    async fn claim(&self, number: u128, limit: u32) -> Vec<ClaimedDelivery> {
        self.claims(vec![request(number, limit)], NOW + seconds(10)).await.remove(0).deliveries
    }

    async fn claims(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> Vec<Claims> {
        self.store.claim(requests, now).await.expect("claim")
    }

    /// Destination 1 with one event, claimed.
    async fn one_claimed(&self) -> ClaimedDelivery {
        self.create_many(1).await;
        self.post(1, [1]).await;
        self.claim(1, 1).await.remove(0)
    }

    async fn settle(&self, result: impl Into<Arc<AttemptResult>>) -> Settlement {
        self.store.settle(vec![result.into()]).await.expect("settle").remove(0)
    }

    async fn delivery(&self, id: DeliveryId) -> Delivery {
        self.store.delivery(id).await.expect("read").expect("a delivery").delivery
    }

    async fn attempts(&self, id: DeliveryId) -> Vec<Attempt> {
        self.store.delivery(id).await.expect("read").expect("a delivery").attempts
    }

    async fn state(&self, id: DeliveryId) -> DeliveryState {
        self.delivery(id).await.state
    }

    async fn deliveries(&self, filter: DeliveryFilter) -> Vec<Delivery> {
        self.store.list_deliveries(&filter, page(200)).await.expect("list").rows
    }

    async fn patch(
        &self,
        current: &Destination,
        now: Timestamp,
        edit: impl FnOnce(&mut Settings),
    ) -> Option<Arc<Destination>> {
        let mut settings = current.settings.clone();
        edit(&mut settings);
        let patch = crate::DestinationPatch { id: current.id, expected_updated_at: current.updated_at, settings, now };
        self.store.patch_destination(patch).await.expect("patch")
    }

    async fn pause(&self, number: u128) {
        let paused = self.store.pause_destination(destination_id(number), "gone", NOW + seconds(1)).await;
        assert!(paused.expect("pause"));
    }

    async fn delete(&self, number: u128) {
        let deleted = self.store.delete_destination(destination_id(number), NOW + seconds(1)).await;
        assert!(deleted.expect("delete"));
    }
}

fn non_zero(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

/// Runs every behaviour as a test of its own on the backend that `$backend`, an async function, makes.
#[macro_export]
macro_rules! store_conformance {
    ($backend:path) => {
        $crate::store_conformance!(@each $backend,
            an_event_keeps_its_trace,
            an_idempotency_key_used_again_keeps_the_first_trace,
            a_replay_keeps_the_trace,
            a_created_destination_is_read_back,
            destinations_are_answered_in_the_order_asked,
            destinations_are_listed_newest_first_and_by_tenant,
            an_edit_applies_to_the_version_it_names_only,
            edits_are_read_in_the_order_of_their_times,
            a_deleted_destination_cannot_be_edited,
            changed_limits_are_recorded_and_unchanged_ones_are_not,
            resuming_clears_the_reason_of_the_pause,
            a_breaker_changes_from_the_state_it_is_expected_in_only,
            an_edit_that_may_mend_a_destination_closes_its_breaker,
            a_destination_is_paused_once,
            a_pause_counts_as_later_than_the_edit_before,
            a_hold_is_only_ever_extended,
            deleting_a_destination_cancels_what_waits_and_keeps_its_history,
            counts_follow_the_backlog,
            recent_sends_are_counted_in_a_window,
            recent_arrivals_are_counted_in_a_window,
            destinations_survive_a_restart,
            the_policy_of_alerts_is_the_default_until_one_is_set,
            a_destination_keeps_its_own_alerts,
            watchers_are_those_that_name_operational_events,
            conditions_count_what_waits_and_what_is_dead,
            conditions_name_troubled_destinations_of_the_tenants_asked_for,
            what_has_been_told_is_recorded_by_the_first_only,
            a_rotation_keeps_the_secret_before_until_its_instant,
            a_rotation_of_a_destination_that_has_changed_is_refused,
            every_way_to_sign_is_read_back,
            an_event_goes_to_the_destinations_of_its_tenant_that_match,
            an_event_that_nobody_takes_is_stored,
            an_edited_pattern_applies_to_the_next_event,
            a_destination_named_twice_gets_one_delivery,
            an_unknown_destination_refuses_its_event_alone,
            foreign_and_deleted_destinations_are_unknown,
            an_idempotency_key_used_again_answers_the_first_event,
            an_idempotency_key_belongs_to_its_tenant,
            a_key_used_twice_in_one_call_is_one_event,
            fifty_concurrent_posts_with_one_key_are_one_event,
            a_refused_event_does_not_keep_its_key,
            a_known_key_answers_even_when_its_destination_is_gone,
            a_paused_destination_gets_deliveries_and_no_wake,
            bodies_are_kept_byte_for_byte,
            many_events_in_one_call_are_all_stored,
            one_event_for_many_destinations_is_delivered_to_each,
            concurrent_calls_are_answered_with_their_own_events,
            an_event_that_cannot_be_stored_does_not_fail_its_neighbours,
            accepted_events_survive_a_restart,
            a_claim_takes_the_oldest_due_first,
            a_retry_that_is_due_later_is_claimed_later,
            a_claim_names_what_a_worker_needs,
            claims_are_answered_in_the_order_of_the_requests,
            a_flooded_destination_does_not_starve_another,
            what_is_not_due_is_not_claimed,
            a_claim_that_comes_short_names_the_next_due_time,
            a_claim_of_none_names_the_next_due_time_only,
            two_requests_for_one_destination_share_what_is_due,
            concurrent_claims_never_share_a_delivery,
            nothing_is_claimed_for_paused_and_deleted_destinations,
            a_released_delivery_is_due_as_before_and_not_counted,
            a_claim_is_released_once,
            a_delivery_of_a_deleted_destination_is_cancelled_when_released,
            due_destinations_are_listed_in_the_order_of_ids,
            paused_and_deleted_destinations_are_not_due,
            old_bodies_are_claimed_as_well_as_recent_ones,
            every_claim_is_recovered_at_start,
            only_expired_claims_are_recovered_later,
            a_recovered_attempt_is_unknown_and_counted,
            a_recovered_delivery_without_attempts_left_is_dead,
            a_recovered_delivery_of_a_deleted_destination_is_cancelled,
            recovery_takes_at_most_its_limit,
            the_last_sends_are_known,
            a_connection_that_failed_is_no_send,
            claims_out_are_unsettled_history,
            a_restored_store_takes_unknown_sends_into_account,
            later_sends_overtake_the_mark_of_a_restore,
            a_destination_made_after_a_restore_has_no_unknown_sends,
            every_verdict_leads_to_its_state,
            an_attempt_is_recorded_in_full,
            results_are_answered_in_their_order,
            a_lost_claim_settles_nothing,
            of_two_results_for_one_claim_the_first_counts,
            a_retry_of_a_deleted_destination_is_cancelled,
            a_retried_delivery_is_claimed_again_when_due,
            an_ended_delivery_is_retried_by_hand,
            a_waiting_delivery_is_pulled_forward,
            a_delivery_under_way_is_not_retried_by_hand,
            a_delivery_of_a_deleted_destination_is_not_retried_by_hand,
            only_waiting_deliveries_are_cancelled_by_hand,
            unknown_deliveries_are_not_found,
            a_purge_cancels_what_waits_and_nothing_else,
            a_purge_takes_the_states_types_and_times_it_is_given,
            a_purge_that_is_only_counted_changes_nothing,
            a_long_purge_goes_step_by_step_and_counts_all,
            a_purge_beside_claims_loses_nothing_and_touches_no_claim,
            a_purge_works_while_the_destination_is_paused,
            what_was_delivered_goes_with_its_event_and_dead_letters_stay,
            each_end_has_its_own_age,
            an_event_stays_as_long_as_one_of_its_deliveries,
            the_age_of_a_delivery_counts_from_its_end,
            idempotency_keys_go_with_their_events,
            an_event_that_nobody_took_goes_when_it_is_old,
            a_long_history_goes_in_small_steps_beside_deliveries,
            ingested_equals_the_sum_over_the_states,
            an_event_is_read_back,
            the_deliveries_of_an_event_are_listed,
            events_are_listed_newest_first_page_by_page,
            events_are_listed_with_their_bodies_or_without,
            events_are_filtered_by_type_tenant_and_time,
            deliveries_are_listed_newest_first_page_by_page,
            deliveries_are_filtered_by_every_criterion,
            the_last_error_of_a_delivery_is_shown,
            deliveries_are_filtered_by_tenant_type_and_error,
            a_page_of_a_filtered_list_looks_at_a_bounded_number_of_deliveries,
            sends_are_listed_with_what_was_delivered,
            sends_of_one_instant_are_each_on_one_page,
            a_destination_that_ever_was_existed,
            a_working_store_passes_its_check,
            a_delivery_that_goes_by_the_fast_path_is_stored_as_claimed,
            what_the_fast_path_has_no_room_for_waits,
            an_fast_path_claim_is_settled_like_any_other,
            an_fast_path_claim_given_back_waits_like_any_other,
            an_fast_path_claim_survives_the_process,
            an_fast_path_claim_of_a_deleted_destination_ends_with_it,
            nothing_goes_to_a_paused_destination_by_the_fast_path,
            room_kept_for_what_is_not_stored_is_given_up,
            a_delayed_event_does_not_go_by_the_fast_path,
            what_coalesces_does_not_go_by_the_fast_path,
            what_waits_gives_way_to_a_newer_event_of_its_key,
            of_a_key_used_often_in_one_call_the_last_waits,
            an_event_that_is_not_stored_supersedes_nothing,
            a_retry_gives_way_too_and_keeps_its_history,
            what_is_under_way_goes_on_and_does_not_wait_again,
            what_was_superseded_is_retried_by_hand,
            a_burst_of_one_key_leaves_the_last_and_what_was_claimed,
            a_delayed_event_is_due_at_its_time_and_not_before,
            a_delay_that_is_over_changes_nothing,
            a_delayed_delivery_is_as_old_as_the_time_since,
            a_key_used_again_answers_the_terms_of_the_first_event,
            what_has_expired_is_not_claimed,
            what_cannot_be_sent_expires_all_the_same,
            what_has_expired_is_not_retried_by_hand,
            of_a_key_one_is_claimed_at_a_time_in_the_order_of_storing,
            who_waits_behind_is_shown_as_pending_without_a_time,
            what_has_no_key_or_no_ordered_destination_goes_without_order,
            a_head_that_is_delivered_lets_the_next_come_forward,
            a_head_that_fails_for_good_lets_the_next_come_forward,
            a_head_that_dies_lets_the_next_come_forward,
            a_head_that_is_cancelled_lets_the_next_come_forward,
            a_head_that_is_purged_lets_the_next_come_forward,
            a_head_that_a_claim_finds_expired_lets_the_next_come_forward,
            a_head_that_the_sweep_finds_expired_lets_the_next_come_forward,
            a_head_that_gives_way_to_a_newer_event_lets_the_next_come_forward,
            a_head_that_was_replaced_and_fails_lets_the_next_come_forward,
            a_head_that_was_replaced_and_is_given_back_lets_the_next_come_forward,
            a_head_whose_worker_died_with_the_last_attempt_lets_the_next_come_forward,
            a_head_that_is_retried_given_back_or_recovered_keeps_its_place,
            a_head_that_fails_too_often_is_skipped_and_goes_on_without_order,
            who_waits_behind_ends_like_any_other_and_the_line_closes_up,
            a_purge_takes_long_lines_and_many_lines_whole,
            an_order_that_is_given_up_holds_nobody_back,
            what_is_tried_again_by_hand_joins_its_line,
            a_delayed_head_that_is_tried_by_hand_waits_no_longer,
            a_line_of_a_deleted_destination_ends_with_it,
            lines_that_have_heads_are_left_alone,
            no_line_stands_still_or_turns_round_under_load,
            what_has_a_place_in_a_line_does_not_go_by_the_fast_path,
            what_has_ended_is_replayed_in_the_lane,
            what_has_a_place_in_an_order_is_replayed_in_its_turn,
            a_replay_that_is_cancelled_leaves_lines_as_they_were,
            a_retry_of_the_lane_waits_in_the_lane,
            a_due_replay_is_found_beside_a_live_retry_that_is_due_later,
            a_long_replay_goes_on_after_a_crash_and_moves_nothing_twice,
            a_cancelled_replay_puts_back_what_it_has_not_sent,
            a_replay_cancelled_before_its_first_step_changes_nothing,
            a_replay_leaves_out_what_cannot_be_sent_or_is_in_hand,
            a_replay_takes_what_its_filter_lets_through,
            whoever_looks_for_what_waits_sees_the_lane,
            an_unknown_attempt_of_the_lane_counts_from_the_replay_on,
            replays_are_listed_newest_first,
            claims_of_a_living_process_and_of_none_are_not_orphaned,
            resolved_claims_are_of_unknown_outcome_and_counted,
            claims_that_have_ended_meanwhile_are_not_resolved,
            a_resolved_claim_ends_its_delivery_where_a_recovered_one_does,
        );
    };
    (@each $backend:path, $($behaviour:ident),+ $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $behaviour() {
            let subject = $crate::conformance::Subject::new($backend().await).await;
            $crate::conformance::$behaviour(subject).await;
        }
    )+};
}
