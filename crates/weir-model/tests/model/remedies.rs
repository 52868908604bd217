//! Each race: with its remedy no property is violated, and without it the expected property is violated.

use weir_model::{
    Action, Faults, Remedy, Scenario, Terms,
    properties::{AT_MOST_R_SENDS, DELIVERED, DUPLICATES, EDITS_BIND, EMPTY, HAS_A_JOB, STALE_EPOCH, USED_ONCE},
};

use crate::checked::{breaks, breaks_by, needs};

const TWO_EVENTS: Scenario = Scenario { deliveries: 2, ..Scenario::SMALL };

fn faults(faults: Faults) -> Scenario {
    Scenario { faults, ..TWO_EVENTS }
}

#[test]
fn without_wake_versions_a_stop_removes_a_job_that_was_just_woken() {
    needs(Remedy::WakeVersion, TWO_EVENTS, HAS_A_JOB);
}

#[test]
fn without_pulling_forward_a_new_event_waits_for_the_retry_of_another() {
    let scenario = faults(Faults { refusals: 1, stalls: 2, ..Faults::default() });
    needs(Remedy::WakePullsForward, scenario, HAS_A_JOB);
}

#[test]
fn without_the_sweep_an_event_whose_producer_died_before_the_wake_is_never_sent() {
    let scenario = faults(Faults { crashes: 1, stalls: 2, ..Faults::default() });
    needs(Remedy::Sweep, scenario, DELIVERED);
}

#[test]
fn without_epochs_a_run_that_stalled_publishes_after_its_job_was_claimed_again() {
    let scenario = Scenario { schedulers: 2, ..TWO_EVENTS };
    needs(Remedy::PublishEpoch, scenario, STALE_EPOCH);
}

#[test]
fn without_claim_expiry_deliveries_claimed_by_a_dead_scheduler_are_never_sent() {
    let scenario = faults(Faults { crashes: 1, stalls: 2, ..Faults::default() });
    needs(Remedy::ClaimExpiry, scenario, DELIVERED);
}

#[test]
fn without_claim_epochs_a_late_release_ends_a_newer_claim() {
    needs(Remedy::ClaimEpoch, faults(Faults { stalls: 6, ..Faults::default() }), DUPLICATES);
}

#[test]
fn after_a_lost_reply_giving_claims_back_sends_published_deliveries_twice() {
    let scenario = faults(Faults { lost_replies: 1, stalls: 2, ..Faults::default() });
    needs(Remedy::NeverUnclaim, scenario, DUPLICATES);
}

#[test]
fn a_publication_that_is_repeated_without_a_name_is_sent_twice() {
    let scenario = faults(Faults { lost_replies: 1, stalls: 2, ..Faults::default() });
    needs(Remedy::PublishOnce, scenario, DUPLICATES);
}

#[test]
fn a_stale_run_that_gives_its_claims_back_without_a_wake_leaves_them_to_the_sweep() {
    let scenario = Scenario { schedulers: 2, ..TWO_EVENTS };
    needs(Remedy::ReleaseWakes, scenario, HAS_A_JOB);
}

#[test]
fn a_job_that_forgets_its_cursor_when_it_stops_exceeds_the_rate_when_it_is_woken() {
    needs(Remedy::CursorOutlivesStop, TWO_EVENTS, AT_MOST_R_SENDS);
}

#[test]
fn without_deadlines_the_permit_of_a_dead_worker_holds_its_room_forever() {
    let scenario = faults(Faults { crashes: 1, stalls: 2, ..Faults::default() });
    needs(Remedy::PermitDeadlines, scenario, DELIVERED);
}

#[test]
fn without_deadlines_the_permit_of_a_dead_worker_is_counted_when_everything_is_delivered() {
    let scenario = Scenario { rate: 2, ..faults(Faults { crashes: 1, stalls: 2, ..Faults::default() }) };
    needs(Remedy::PermitDeadlines, scenario, EMPTY);
}

#[test]
fn without_the_gate_a_worker_that_stalls_before_the_write_exceeds_the_rate() {
    needs(Remedy::SlotGate, TWO_EVENTS, AT_MOST_R_SENDS);
}

#[test]
fn a_missed_slot_that_is_given_back_after_another_was_granted_exceeds_the_rate() {
    needs(Remedy::GiveBackLast, TWO_EVENTS, AT_MOST_R_SENDS);
}

#[test]
fn an_entry_of_a_dead_worker_that_another_worker_takes_over_is_sent_twice() {
    let scenario = faults(Faults { crashes: 1, stalls: 2, ..Faults::default() });
    needs(Remedy::AtMostOnce, scenario, USED_ONCE);
}

#[test]
fn without_generations_a_lease_from_before_a_loss_publishes() {
    let scenario = Scenario { schedulers: 2, ..faults(Faults { losses: 1, stalls: 2, ..Faults::default() }) };
    needs(Remedy::Generation, scenario, STALE_EPOCH);
}

#[test]
fn without_generations_a_stale_restore_brings_back_entries_that_were_sent() {
    let scenario = faults(Faults { restores: 1, stalls: 0, ..Faults::default() });
    needs(Remedy::Generation, scenario, USED_ONCE);
}

#[test]
fn counting_lost_permits_as_sent_now_puts_new_slots_too_close_to_slots_granted_before_a_loss() {
    needs(Remedy::LastOldStart, loss(), AT_MOST_R_SENDS);
}

#[test]
fn continuing_one_tick_earlier_after_a_loss_is_too_early() {
    breaks(Scenario { resume_early: 1, ..loss() }, AT_MOST_R_SENDS);
}

#[test]
fn slots_granted_far_ahead_overlap_the_slots_that_continue_after_a_loss() {
    needs(Remedy::GrantAhead, loss(), AT_MOST_R_SENDS);
}

#[test]
fn slots_granted_far_ahead_are_used_after_a_pause() {
    needs(Remedy::GrantAhead, PAUSED, EDITS_BIND);
}

#[test]
fn permits_that_are_out_exceed_a_lowered_limit_if_only_runs_follow_it() {
    needs(Remedy::GrantLimits, LOWERED, EDITS_BIND);
}

/// One worker missed its slot and asks again, and another asks for its first slot. Both get slots under the old limit,
/// because the run after the edit is slow.
#[test]
fn permits_that_are_out_exceed_a_lowered_limit_without_any_run_after_the_edit() {
    let is_published = |run: [Action; 3]| [Action::ProducerCommits, Action::ProducerWakes].into_iter().chain(run);
    let run = [
        Action::SchedulerClaimsJob,
        Action::SchedulerDecides(1),
        Action::SchedulerPublishes { scheduler: 1, reply_lost: false },
    ];
    let first = is_published(run).chain([Action::WorkerTakes(0), Action::WorkerTakesSlot(0), Action::Tick]);
    let second = is_published(run).chain([Action::WorkerTakes(0)]);
    let after_the_edit = [
        Action::TermsAreEdited,
        Action::EditIsAnnounced(1),
        Action::Tick,
        Action::Tick,
        Action::WorkerTakesSlot(0),
        Action::WorkerSends(0),
        Action::WorkerIsAnswered { permit: 1, refused: false },
        Action::WorkerRecords(1),
        Action::Tick,
        Action::WorkerTakesSlot(0),
        Action::Tick,
        Action::WorkerSends(0),
    ];
    let steps: Vec<_> = first.chain(second).chain(after_the_edit).collect();
    let faults = Faults { stalls: 5, ..NO_FAULTS };
    let without = [Some(Remedy::GrantLimits), None];
    breaks_by(&steps, Scenario { deliveries: 2, faults, without, ..LOWERED }, EDITS_BIND);
}

#[test]
fn permits_that_are_out_are_sent_to_a_paused_destination_if_only_runs_see_the_pause() {
    needs(Remedy::GrantSuspension, PAUSED, EDITS_BIND);
}

#[test]
fn a_run_that_read_older_terms_than_the_queue_knows_undoes_an_edit() {
    needs(Remedy::PublishVersion, LOWERED, EDITS_BIND);
}

#[test]
fn an_edit_that_is_announced_after_a_later_one_undoes_it() {
    let edits = &[Terms { rate: 2, suspended: false }, Terms { rate: 1, suspended: false }];
    needs(Remedy::EditVersion, Scenario { edits, ..LOWERED }, EDITS_BIND);
}

#[test]
fn an_edit_whose_version_does_not_rise_does_not_bind() {
    needs(Remedy::VersionsRise, PAUSED, EDITS_BIND);
}

#[test]
fn an_edit_whose_version_does_not_rise_makes_each_run_stale_for_good() {
    let scenario = Scenario { deliveries: 1, faults: NO_FAULTS, ..LOWERED };
    needs(Remedy::VersionsRise, scenario, DELIVERED);
}

const LOWERED: Scenario = Scenario {
    window: 3,
    start_within: 6,
    rate: 2,
    edits: &[Terms { rate: 1, suspended: false }],
    deliveries: 3,
    faults: Faults { stalls: 3, ..NO_FAULTS },
    ..Scenario::SMALL
};

const PAUSED: Scenario = Scenario {
    edits: &[Terms { rate: 1, suspended: true }, Terms { rate: 1, suspended: false }],
    faults: Faults { stalls: 2, ..NO_FAULTS },
    ..TWO_EVENTS
};

const NO_FAULTS: Faults = Faults { stalls: 0, ..Scenario::SMALL.faults };

fn loss() -> Scenario {
    faults(Faults { losses: 1, stalls: 2, ..Faults::default() })
}
