//! The conformance suite: one function per behaviour, which [`store_conformance!`] runs on each backend.
//!
//! Times are fixed values, so the suite never waits. Each behaviour has its own database.

mod activity_log;
mod alerting;
mod api_keys;
mod coalescing;
mod counters;
mod destinations;
mod fast_path;
mod filters;
mod history;
mod ingest;
mod lists;
mod message_groups;
mod message_groups_under_load;
mod ordered_replays;
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
mod traffic;

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::Mutex;
use weir_core::{
    AttemptId, DeliveryId, DeliveryState, Destination, DestinationId, EventId, Period, RateLimit, RateLimits,
    Timestamp, TraceParent,
    access::TenantScope,
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
    activity_log::*, alerting::*, api_keys::*, coalescing::*, counters::*, destinations::*, fast_path::*, filters::*,
    history::*, ingest::*, lists::*, message_groups::*, message_groups_under_load::*, ordered_replays::*, outbox::*,
    processes::*, prune::*, purge::*, recovery::*, replays::*, results::*, rows::*, timing::*, traces::*, traffic::*,
};
use crate::{
    AttemptResult, ClaimRequest, Claims, Deletion, DeliveryFilter, DestinationFilter, Ingested, NewEvent, PageRequest,
    Settlement, SharedStore,
};

/// The database of one test.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Opens the database, which is empty the first time. First closes the store that is open, as a process does at its
    /// end.
    async fn open(&self) -> SharedStore;
}

/// One test's store.
pub struct Subject {
    pub store: SharedStore,
    /// The same store, for [`CountedStore`].
    latest: Arc<Mutex<SharedStore>>,
    backend: Arc<dyn Backend>,
}

impl Subject {
    pub async fn new(backend: impl Backend + 'static) -> Self {
        let store = backend.open().await;
        Self { latest: Arc::new(Mutex::new(Arc::clone(&store))), store, backend: Arc::new(backend) }
    }

    /// Its store, whose counters are checked when the test is over.
    pub fn counted(&self) -> CountedStore {
        CountedStore { latest: Arc::clone(&self.latest), _backend: Arc::clone(&self.backend) }
    }

    /// Simulates a restart of the process.
    async fn reopen(&mut self) {
        self.store = self.backend.open().await;
        *self.latest.lock().await = Arc::clone(&self.store);
    }

    async fn create(&self, destination: Destination) -> Arc<Destination> {
        let created = self.store.create_destination(destination, creation()).await.expect("create");
        created.into_new().expect("a new destination")
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

    /// Claims the deliveries of destination `number` that are due ten seconds after [`NOW`].
    async fn claim(&self, number: u128, limit: u32) -> Vec<ClaimedDelivery> {
        self.claims(vec![request(number, limit)], NOW + seconds(10)).await.remove(0).deliveries
    }

    async fn claims(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> Vec<Claims> {
        self.store.claim(requests, now).await.expect("claim")
    }

    /// Creates destination 1 with one event, and claims its delivery.
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
        let (id, expected_updated_at) = (current.id, current.updated_at);
        let patch = crate::DestinationPatch { id, expected_updated_at, settings, closes_breaker: false, now };
        self.store.patch_destination(patch, activity()).await.expect("patch")
    }

    async fn pause(&self, number: u128) {
        let paused = self.store.pause_destination(destination_id(number), "gone", NOW + seconds(1)).await;
        assert!(paused.expect("pause"));
    }

    async fn delete(&self, number: u128) {
        let deleted = self.store.delete_destination(deletion(number, seconds(1)), activity()).await;
        assert_eq!(deleted.expect("delete"), Deletion::Deleted);
    }
}

fn non_zero(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

/// Runs every behaviour as a separate test on the backend that the async function `$backend` creates.
#[macro_export]
macro_rules! store_conformance {
    ($backend:path) => {
        $crate::store_conformance!(@each $backend,
            an_event_keeps_its_trace,
            a_repeated_idempotency_key_keeps_the_first_trace,
            a_replay_keeps_the_trace,
            a_created_destination_is_read_back,
            destinations_are_returned_in_the_requested_order,
            destinations_are_listed_newest_first_and_by_tenant,
            an_edit_applies_only_to_the_version_it_names,
            edits_are_read_in_the_order_of_their_times,
            a_deleted_destination_cannot_be_edited,
            changed_limits_are_recorded_and_unchanged_ones_are_not,
            resuming_clears_the_reason_of_the_pause,
            a_breaker_changes_only_from_its_expected_state,
            an_edit_that_may_fix_a_destination_closes_its_breaker,
            a_destination_is_paused_once,
            a_pause_is_later_than_the_previous_edit,
            a_hold_is_only_ever_extended,
            deleting_a_destination_cancels_its_waiting_deliveries_and_keeps_its_history,
            counts_follow_the_backlog,
            counters_follow_deliveries_through_their_states,
            counters_survive_a_fold_and_a_restart,
            the_oldest_waiting_delivery_of_each_destination_is_found,
            changes_of_several_callers_are_all_counted,
            traffic_is_counted_by_bucket,
            buckets_are_added_up_to_longer_steps,
            old_buckets_are_added_up_to_minutes_and_hours_and_then_deleted,
            recent_traffic_is_summed_for_every_destination,
            health_has_latencies_attempts_and_the_last_success,
            old_histograms_are_added_up_to_hours_and_then_deleted,
            a_recovered_attempt_has_no_latency,
            recent_sends_are_counted_in_a_window,
            recent_arrivals_are_counted_in_a_window,
            destinations_survive_a_restart,
            api_keys_are_kept_until_they_are_deleted,
            every_role_of_an_api_key_is_stored,
            changes_are_recorded_with_their_activities,
            every_kind_of_change_is_an_activity,
            a_change_that_is_refused_is_no_activity,
            what_weir_changes_by_itself_is_recorded,
            a_purge_is_one_activity_that_counts,
            activities_are_filtered_by_destination_actor_tenant_and_time,
            activities_are_listed_newest_first_page_by_page,
            a_repeated_creation_returns_the_first_answer_and_creates_nothing,
            twenty_concurrent_creations_with_one_key_create_once,
            an_answer_is_kept_for_a_day,
            old_activities_and_answers_are_pruned,
            a_deletion_names_the_version_that_it_deletes,
            a_name_is_taken_once_by_concurrent_creations,
            destinations_are_found_by_their_names,
            the_alert_policy_is_the_default_until_one_is_set,
            a_destination_keeps_its_own_alerts,
            alert_subscribers_are_destinations_that_name_operational_events,
            conditions_count_waiting_and_dead_deliveries,
            conditions_include_impaired_destinations_of_the_given_tenants,
            an_alert_state_is_recorded_only_over_the_expected_version,
            a_rotation_keeps_the_previous_secret_until_its_expiry,
            a_rotation_of_a_changed_destination_is_refused,
            every_signature_style_is_read_back,
            an_event_goes_to_the_destinations_of_its_tenant_that_match,
            an_event_without_destinations_is_stored,
            an_edited_pattern_applies_to_the_next_event,
            a_destination_named_twice_gets_one_delivery,
            an_unknown_destination_refuses_only_its_own_event,
            foreign_and_deleted_destinations_are_unknown,
            a_repeated_idempotency_key_returns_the_first_event,
            an_idempotency_key_belongs_to_its_tenant,
            a_key_used_twice_in_one_call_is_one_event,
            fifty_concurrent_posts_with_one_key_are_one_event,
            a_refused_event_does_not_keep_its_key,
            a_known_key_returns_its_event_even_if_the_destination_is_deleted,
            a_paused_destination_gets_deliveries_and_no_wake,
            bodies_are_kept_byte_for_byte,
            many_events_in_one_call_are_all_stored,
            one_event_for_many_destinations_is_delivered_to_each,
            concurrent_calls_get_their_own_events,
            an_event_that_cannot_be_stored_does_not_fail_its_neighbours,
            accepted_events_survive_a_restart,
            a_claim_takes_the_oldest_due_first,
            a_retry_that_is_due_later_is_claimed_later,
            a_claim_has_the_data_that_a_worker_needs,
            claims_are_returned_in_the_order_of_the_requests,
            a_flooded_destination_does_not_starve_another,
            a_delivery_that_is_not_due_is_not_claimed,
            a_claim_below_its_limit_returns_the_next_due_time,
            a_claim_with_limit_zero_returns_only_the_next_due_time,
            two_requests_for_one_destination_share_its_due_deliveries,
            concurrent_claims_never_share_a_delivery,
            nothing_is_claimed_for_paused_and_deleted_destinations,
            a_released_delivery_is_due_as_before_and_not_counted,
            a_claim_is_released_once,
            a_delivery_of_a_deleted_destination_is_cancelled_when_released,
            due_destinations_are_listed_in_the_order_of_ids,
            paused_and_deleted_destinations_are_not_due,
            old_bodies_are_claimed_as_well_as_recent_ones,
            every_claim_is_recovered_at_start,
            a_claim_that_never_expires_is_recovered_at_start,
            only_expired_claims_are_recovered_later,
            a_recovered_attempt_is_unknown_and_counted,
            a_recovered_delivery_without_attempts_left_is_dead,
            a_recovered_delivery_of_a_deleted_destination_is_cancelled,
            recovery_takes_at_most_its_limit,
            the_last_sends_survive_a_restart,
            a_failed_connection_is_not_a_send,
            outstanding_claims_make_the_history_unsettled,
            a_restored_store_accounts_for_unknown_sends,
            later_sends_overtake_the_mark_of_a_restore,
            a_destination_made_after_a_restore_has_no_unknown_sends,
            every_verdict_leads_to_its_state,
            an_attempt_is_recorded_in_full,
            settlements_are_returned_in_the_order_of_the_results,
            a_lost_claim_settles_nothing,
            only_the_first_of_two_results_for_one_claim_counts,
            a_retry_of_a_deleted_destination_is_cancelled,
            a_retried_delivery_is_claimed_again_when_due,
            an_ended_delivery_is_retried_by_hand,
            a_waiting_delivery_retried_by_hand_is_due_at_once,
            a_delivery_in_flight_is_not_retried_by_hand,
            a_delivery_of_a_deleted_destination_is_not_retried_by_hand,
            only_waiting_deliveries_are_cancelled_by_hand,
            unknown_deliveries_are_not_found,
            a_purge_cancels_only_waiting_deliveries,
            a_purge_cancels_only_the_given_states_types_and_times,
            counting_a_purge_changes_nothing,
            a_long_purge_runs_in_steps_and_counts_all_deliveries,
            a_purge_beside_claims_loses_nothing_and_cancels_no_claimed_delivery,
            a_purge_works_while_the_destination_is_paused,
            delivered_deliveries_are_pruned_with_their_events_and_dead_letters_stay,
            each_final_state_has_its_own_retention,
            an_event_stays_as_long_as_one_of_its_deliveries,
            the_age_of_a_delivery_counts_from_its_end,
            idempotency_keys_are_pruned_with_their_events,
            an_old_event_without_deliveries_is_pruned,
            a_long_history_is_pruned_in_small_steps_beside_deliveries,
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
            a_count_examines_a_bounded_number_of_deliveries,
            failures_are_grouped,
            an_event_is_found_by_its_idempotency_key,
            a_page_of_filtered_events_reads_a_bounded_number_of_events,
            destinations_are_filtered_by_name_url_condition_and_text,
            a_replay_takes_the_deliveries_of_several_tenants,
            a_page_of_a_filtered_list_reads_a_bounded_number_of_deliveries,
            sends_are_listed_with_their_results,
            sends_at_the_same_instant_are_each_on_one_page,
            a_deleted_destination_is_known_to_have_existed,
            a_working_store_passes_its_check,
            a_fast_path_delivery_is_stored_as_claimed,
            a_delivery_without_room_on_the_fast_path_waits,
            a_fast_path_claim_is_settled_like_any_other,
            a_released_fast_path_claim_waits_like_any_other,
            a_fast_path_claim_survives_the_process,
            a_fast_path_claim_of_a_deleted_destination_is_cancelled_when_released,
            deliveries_to_a_paused_destination_do_not_take_the_fast_path,
            reserved_room_is_freed_when_the_delivery_is_not_stored,
            a_delayed_event_does_not_take_the_fast_path,
            an_event_with_a_coalesce_key_does_not_take_the_fast_path,
            a_waiting_delivery_is_superseded_by_a_newer_event_of_its_key,
            only_the_last_event_of_a_coalesce_key_in_one_call_waits,
            an_event_that_is_not_stored_supersedes_nothing,
            a_retrying_delivery_is_superseded_and_keeps_its_history,
            a_replaced_delivery_in_flight_continues_and_does_not_wait_again,
            a_superseded_delivery_can_be_retried_by_hand,
            a_burst_of_one_key_leaves_only_the_last_delivery_waiting,
            a_delayed_event_is_due_at_its_time_and_not_before,
            a_deliver_at_in_the_past_has_no_effect,
            the_age_of_a_delayed_delivery_counts_from_deliver_at,
            a_repeated_key_returns_the_options_of_the_first_event,
            an_expired_delivery_is_not_claimed,
            deliveries_that_cannot_be_sent_expire_too,
            an_expired_delivery_is_not_retried_by_hand,
            one_delivery_of_a_key_is_claimed_at_a_time_in_the_order_of_storage,
            a_delivery_behind_a_head_is_shown_as_pending_without_a_due_time,
            deliveries_without_a_key_or_an_ordered_destination_have_no_order,
            a_delivered_head_makes_the_next_delivery_the_head,
            a_failed_head_makes_the_next_delivery_the_head,
            a_dead_head_makes_the_next_delivery_the_head,
            a_cancelled_head_makes_the_next_delivery_the_head,
            a_purged_head_makes_the_next_delivery_the_head,
            a_head_expired_by_a_claim_makes_the_next_delivery_the_head,
            a_head_expired_by_the_sweep_makes_the_next_delivery_the_head,
            a_superseded_head_makes_the_next_delivery_the_head,
            a_replaced_head_that_fails_makes_the_next_delivery_the_head,
            a_replaced_head_that_is_released_makes_the_next_delivery_the_head,
            a_head_recovered_without_attempts_left_makes_the_next_delivery_the_head,
            a_retried_released_or_recovered_head_stays_the_head,
            a_head_that_fails_too_often_is_skipped_and_continues_without_order,
            deliveries_behind_a_head_can_end_without_breaking_the_group,
            a_purge_cancels_long_and_many_message_groups_completely,
            message_groups_of_a_destination_that_is_no_longer_ordered_are_dissolved,
            a_delivery_retried_by_hand_joins_its_message_group,
            a_delayed_head_that_is_retried_by_hand_is_due_at_once,
            a_message_group_ends_with_its_deleted_destination,
            a_repair_does_not_change_message_groups_with_heads,
            message_groups_keep_moving_in_order_under_load,
            an_ordered_delivery_does_not_take_the_fast_path,
            a_released_delivery_of_a_replay_is_pending,
            ended_deliveries_are_replayed_apart_from_live_ones,
            a_replayed_ordered_delivery_joins_its_message_group,
            a_cancelled_replay_restores_its_message_groups,
            a_retry_of_a_replay_waits_among_the_replays,
            a_due_replay_is_found_beside_a_live_retry_that_is_due_later,
            a_long_replay_continues_after_a_crash_and_moves_nothing_twice,
            a_cancelled_replay_puts_its_unsent_deliveries_back,
            a_replay_cancelled_before_its_first_step_changes_nothing,
            a_replay_leaves_out_unsendable_deliveries_and_those_of_other_replays,
            a_replay_takes_the_deliveries_that_match_its_filter,
            counts_lists_and_purges_include_waiting_replays,
            unknown_attempts_of_a_replay_count_from_its_start,
            replays_are_listed_newest_first,
            claims_of_a_running_process_or_without_an_owner_are_not_orphaned,
            a_registered_process_is_listed_with_what_it_says_of_itself,
            resolved_claims_have_an_unknown_outcome_and_are_counted,
            claims_that_ended_meanwhile_are_not_resolved,
            a_resolved_claim_ends_like_a_recovered_one,
        );
    };
    (@each $backend:path, $($behaviour:ident),+ $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $behaviour() {
            let subject = $crate::conformance::Subject::new($backend().await).await;
            let counted = subject.counted();
            $crate::conformance::$behaviour(subject).await;
            counted.check().await;
        }
    )+};
}
