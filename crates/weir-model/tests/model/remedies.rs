//! One race after another: with its remedy nothing is violated, without it the expected property is.

use weir_model::{
    AfterLoss, Connections, Faults, Remedies, Scenario,
    properties::{AT_MOST_R_SENDS, DELIVERED, DUPLICATES, EMPTY, HAS_A_JOB, STALE_EPOCH, USED_ONCE},
};

use crate::checked::{breaks, needs};

const TWO_EVENTS: Scenario = Scenario { deliveries: 2, ..Scenario::SMALL };

fn faults(faults: Faults) -> Scenario {
    Scenario { faults, ..TWO_EVENTS }
}

#[test]
fn without_wake_versions_a_stop_removes_a_job_that_was_just_woken() {
    needs(|remedies| remedies.wake_version = false, TWO_EVENTS, HAS_A_JOB);
}

#[test]
fn without_pulling_forward_a_new_event_waits_for_the_retry_of_another() {
    let scenario = faults(Faults { refusals: 1, stalls: 2, ..Faults::default() });
    needs(|remedies| remedies.wake_pulls_forward = false, scenario, HAS_A_JOB);
}

#[test]
fn without_the_sweep_an_event_whose_producer_died_before_the_wake_is_never_sent() {
    let scenario = faults(Faults { crashes: 1, stalls: 2, ..Faults::default() });
    needs(|remedies| remedies.sweep = false, scenario, DELIVERED);
}

#[test]
fn without_epochs_a_run_that_stalled_publishes_after_its_job_was_claimed_again() {
    let scenario = Scenario { schedulers: 2, ..TWO_EVENTS };
    needs(|remedies| remedies.publish_epoch = false, scenario, STALE_EPOCH);
}

#[test]
fn without_claim_expiry_what_a_dead_scheduler_had_claimed_is_never_sent() {
    let scenario = faults(Faults { crashes: 1, stalls: 2, ..Faults::default() });
    needs(|remedies| remedies.claim_expiry = false, scenario, DELIVERED);
}

#[test]
fn without_claim_epochs_a_late_release_frees_the_claim_of_another() {
    needs(|remedies| remedies.claim_epoch = false, faults(Faults { stalls: 6, ..Faults::default() }), DUPLICATES);
}

#[test]
fn after_a_lost_reply_unclaiming_sends_what_was_published_twice() {
    let scenario = faults(Faults { lost_replies: 1, stalls: 2, ..Faults::default() });
    needs(|remedies| remedies.never_unclaim = false, scenario, DUPLICATES);
}

#[test]
fn a_stale_run_that_gives_its_claims_back_without_a_wake_leaves_them_to_the_sweep() {
    let scenario = Scenario { schedulers: 2, ..TWO_EVENTS };
    needs(|remedies| remedies.release_wakes = false, scenario, HAS_A_JOB);
}

#[test]
fn a_job_that_forgets_its_cursors_when_it_stops_exceeds_the_rate_when_it_is_woken() {
    needs(|remedies| remedies.cursors_outlive_stop = false, TWO_EVENTS, AT_MOST_R_SENDS);
}

#[test]
fn without_deadlines_the_permit_of_a_dead_worker_holds_its_room_for_good() {
    let scenario = faults(Faults { crashes: 1, stalls: 2, ..Faults::default() });
    needs(|remedies| remedies.permit_deadlines = false, scenario, DELIVERED);
}

#[test]
fn without_deadlines_the_permit_of_a_dead_worker_is_counted_when_everything_is_delivered() {
    let scenario = Scenario { rate: 2, ..faults(Faults { crashes: 1, stalls: 2, ..Faults::default() }) };
    needs(|remedies| remedies.permit_deadlines = false, scenario, EMPTY);
}

#[test]
fn without_the_gate_a_worker_that_stalls_at_the_wire_exceeds_the_rate() {
    needs(|remedies| remedies.slot_gate = false, TWO_EVENTS, AT_MOST_R_SENDS);
}

#[test]
fn an_entry_of_a_dead_worker_that_another_sends_is_sent_twice() {
    let scenario = faults(Faults { crashes: 1, stalls: 2, ..Faults::default() });
    needs(|remedies| remedies.at_most_once = false, scenario, USED_ONCE);
}

#[test]
fn without_generations_a_lease_from_before_a_loss_publishes() {
    let scenario = Scenario { schedulers: 2, ..faults(Faults { losses: 1, stalls: 2, ..Faults::default() }) };
    needs(|remedies| remedies.generation = false, scenario, STALE_EPOCH);
}

#[test]
fn without_generations_a_stale_restore_brings_back_entries_that_were_sent() {
    let scenario = faults(Faults { restores: 1, stalls: 0, ..Faults::default() });
    needs(|remedies| remedies.generation = false, scenario, USED_ONCE);
}

#[test]
fn counting_lost_permits_as_sent_now_lets_new_slots_follow_slots_granted_before_a_loss_too_closely() {
    let scenario = faults(Faults { losses: 1, stalls: 2, ..Faults::default() });
    needs(|remedies| remedies.after_loss = AfterLoss::CountsAsNow, scenario, AT_MOST_R_SENDS);
}

#[test]
fn a_horizon_kept_by_workers_alone_wastes_each_slot_that_they_decline_and_nothing_is_sent_any_more() {
    let scenario = Scenario { connections: Connections::Cold, ..faults(Faults { stalls: 2, ..Faults::default() }) };
    needs(|remedies| remedies.slot_horizon = false, scenario, DELIVERED);
}

#[test]
fn a_horizon_kept_by_workers_alone_lets_a_slot_outlive_the_quarantine() {
    needs(|remedies| remedies.slot_horizon = false, far_slots(AfterLoss::Waits), AT_MOST_R_SENDS);
}

#[test]
fn a_horizon_kept_by_workers_alone_lets_old_slots_lie_beyond_where_new_ones_go_on() {
    needs(|remedies| remedies.slot_horizon = false, far_slots(AfterLoss::GoesOn), AT_MOST_R_SENDS);
}

#[test]
fn exchanging_a_slot_that_another_follows_exceeds_the_rate() {
    let scenario = Scenario { deliveries: 3, rate: 2, window: 3, ..faults(Faults { stalls: 3, ..Faults::default() }) };
    needs(|remedies| remedies.exchange_last = false, scenario, AT_MOST_R_SENDS);
}

#[test]
fn a_quarantine_that_is_a_tick_shorter_is_too_short() {
    breaks(Scenario { haste: 1, ..far_slots(AfterLoss::Waits) }, AT_MOST_R_SENDS);
}

#[test]
fn going_on_a_tick_sooner_after_a_loss_is_too_soon() {
    breaks(Scenario { haste: 1, ..far_slots(AfterLoss::GoesOn) }, AT_MOST_R_SENDS);
}

/// Slots far ahead: a permit that misses its slot at the wire takes one behind those published meanwhile. Claims outlast
/// the quarantine.
fn far_slots(after_loss: AfterLoss) -> Scenario {
    Scenario {
        deliveries: 3,
        permits: 4,
        start_within: 7,
        connections: Connections::Any,
        remedies: Remedies { after_loss, ..Remedies::ALL },
        ..faults(Faults { losses: 1, stalls: 2, ..Faults::default() })
    }
}
