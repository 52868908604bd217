//! Deliveries on the fast path: no property is violated, and without a remedy the expected property is violated.

use weir_model::{
    Action, FastPath, Faults, Remedy, Scenario, Terms,
    properties::{AT_MOST_R_SENDS, DELIVERED, DUPLICATES, HAS_A_JOB, NEWER_TERMS_HOLD},
};

use crate::checked::{breaks_by, holds, needs};

const GUESSES: Scenario = Scenario { deliveries: 2, fast_path: FastPath::Guesses, ..Scenario::SMALL };
const KEEPS_ROOM: Scenario = Scenario { fast_path: FastPath::KeepsRoom, ..GUESSES };

fn faults(faults: Faults) -> Scenario {
    Scenario { faults: Faults { stalls: 2, ..faults }, ..GUESSES }
}

fn stalls() -> Scenario {
    faults(Faults::default())
}

#[test]
fn two_schedulers_and_producers_that_stall_break_nothing() {
    holds(Scenario { deliveries: 3, schedulers: 2, faults: Faults { stalls: 2, ..Faults::default() }, ..GUESSES });
}

#[test]
fn two_schedulers_that_stall_break_nothing_with_reserved_room() {
    holds(Scenario { deliveries: 3, schedulers: 2, faults: Faults { stalls: 2, ..Faults::default() }, ..KEEPS_ROOM });
}

#[test]
fn crashes_anywhere_between_commit_and_admission_lose_nothing() {
    holds(faults(Faults { crashes: 2, ..Faults::default() }));
}

#[test]
fn a_loss_of_the_queue_and_a_crash_between_commit_and_admission_break_nothing() {
    holds(Scenario { faults: Faults { crashes: 1, losses: 1, stalls: 1, ..Faults::default() }, ..GUESSES });
}

#[test]
fn a_second_loss_before_the_admission_breaks_nothing() {
    holds(faults(Faults { losses: 2, ..Faults::default() }));
}

#[test]
fn a_stale_restore_between_commit_and_admission_breaks_nothing() {
    holds(Scenario { faults: Faults { restores: 1, stalls: 1, ..Faults::default() }, ..GUESSES });
}

#[test]
fn restarts_of_the_embedded_build_between_commit_and_admission_break_nothing() {
    holds(Scenario { faults: Faults { restarts: 2, stalls: 2, ..Faults::default() }, ..KEEPS_ROOM });
}

#[test]
fn refusals_and_lost_answers_break_nothing() {
    holds(Scenario { ..faults(Faults { refusals: 1, lost_replies: 1, ..Faults::default() }) });
}

#[test]
fn a_pause_between_commit_and_admission_binds() {
    holds(paused(FastPath::Guesses));
}

#[test]
fn a_pause_between_commit_and_admission_binds_with_reserved_room_too() {
    holds(paused(FastPath::KeepsRoom));
}

#[test]
fn a_window_of_two_sends_is_never_exceeded() {
    holds(Scenario {
        window: 3,
        start_within: 6,
        rate: 2,
        deliveries: 3,
        faults: Faults { losses: 1, stalls: 0, ..Faults::default() },
        ..GUESSES
    });
}

#[test]
fn admitting_with_an_unknown_cursor_exceeds_the_rate_after_a_loss() {
    let scenario = faults(Faults { losses: 1, ..Faults::default() });
    needs(Remedy::AdmitNeedsCursor, scenario, AT_MOST_R_SENDS);
}

#[test]
fn an_edit_that_is_not_announced_is_ignored_while_each_delivery_is_admitted() {
    needs(Remedy::AdmitChecksVersion, edited(FastPath::Guesses), NEWER_TERMS_HOLD);
}

#[test]
fn an_edit_that_is_not_announced_is_ignored_with_reserved_room_too() {
    needs(Remedy::AdmitChecksVersion, edited(FastPath::KeepsRoom), NEWER_TERMS_HOLD);
}

#[test]
fn a_declined_delivery_without_a_wake_waits_for_the_sweep() {
    needs(Remedy::DeclineWakes, stalls(), HAS_A_JOB);
}

#[test]
fn a_declined_delivery_without_a_wake_and_without_the_sweep_is_never_claimed() {
    let scenario = Scenario { without: [Some(Remedy::Sweep), None], ..stalls() };
    needs(Remedy::DeclineWakes, scenario, DELIVERED);
}

#[test]
fn a_declined_delivery_without_a_release_stays_claimed_without_a_holder() {
    needs(Remedy::DeclineReleases, stalls(), HAS_A_JOB);
}

#[test]
fn an_admission_that_is_repeated_without_a_name_is_sent_twice() {
    let scenario = faults(Faults { lost_replies: 1, ..Faults::default() });
    needs(Remedy::AdmitOnce, scenario, DUPLICATES);
}

#[test]
fn without_claim_expiry_deliveries_claimed_by_a_dead_producer_are_never_sent() {
    let scenario = Scenario { deliveries: 1, ..faults(Faults { crashes: 1, ..Faults::default() }) };
    holds(scenario.clone());
    let without = [Some(Remedy::ClaimExpiry), None];
    let dies = [Action::ProducerCommitsClaimed, Action::FastPathCrashes(0)];
    breaks_by(&dies, Scenario { without, ..scenario }, DELIVERED);
}

/// An edit to a lower rate. The editor may die before the announcement.
fn edited(fast_path: FastPath) -> Scenario {
    Scenario {
        window: 3,
        start_within: 6,
        rate: 2,
        edits: &[Terms { rate: 1, suspended: false }],
        fast_path,
        faults: Faults { crashes: 1, stalls: 1, ..Faults::default() },
        ..GUESSES
    }
}

fn paused(fast_path: FastPath) -> Scenario {
    Scenario {
        edits: &[Terms { rate: 1, suspended: true }, Terms { rate: 1, suspended: false }],
        fast_path,
        faults: Faults { stalls: 1, ..Faults::default() },
        ..GUESSES
    }
}
