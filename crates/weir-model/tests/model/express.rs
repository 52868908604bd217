//! Deliveries that are claimed as they are stored: nothing is violated, and without each remedy the expected property is.

use weir_model::{
    Action, AfterLoss, Connections, Express, Faults, Remedies, Scenario,
    properties::{AT_MOST_R_SENDS, DELIVERED, DUPLICATES, HAS_A_JOB, IN_FORCE},
};

use crate::checked::{breaks_by, holds, needs};

const GUESSES: Scenario = Scenario { deliveries: 2, express: Express::Guesses, ..Scenario::SMALL };
const KEEPS_ROOM: Scenario = Scenario { express: Express::KeepsRoom, ..GUESSES };

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
fn two_schedulers_that_stall_break_nothing_where_room_is_kept() {
    holds(Scenario { deliveries: 3, schedulers: 2, faults: Faults { stalls: 2, ..Faults::default() }, ..KEEPS_ROOM });
}

#[test]
fn crashes_anywhere_between_commit_and_admission_lose_nothing() {
    holds(faults(Faults { crashes: 2, ..Faults::default() }));
}

#[test]
fn a_loss_of_the_queue_and_a_crash_between_commit_and_admission_break_nothing() {
    holds(Scenario {
        connections: Connections::Any,
        faults: Faults { crashes: 1, losses: 1, stalls: 1, ..Faults::default() },
        ..GUESSES
    });
}

#[test]
fn a_second_loss_before_the_admission_breaks_nothing() {
    holds(faults(Faults { losses: 2, ..Faults::default() }));
}

#[test]
fn admissions_go_on_after_the_last_slot_granted_before_a_loss() {
    holds(Scenario {
        connections: Connections::Any,
        remedies: Remedies { after_loss: AfterLoss::GoesOn, ..Remedies::ALL },
        ..faults(Faults { losses: 1, ..Faults::default() })
    });
}

#[test]
fn a_stale_restore_between_commit_and_admission_breaks_nothing() {
    holds(Scenario { faults: Faults { restores: 1, stalls: 1, ..Faults::default() }, ..GUESSES });
}

#[test]
fn restarts_of_the_embedded_build_between_commit_and_admission_break_nothing() {
    holds(Scenario {
        connections: Connections::Any,
        faults: Faults { restarts: 2, stalls: 2, ..Faults::default() },
        remedies: Remedies { after_loss: AfterLoss::CountsAsNow, ..Remedies::ALL },
        ..KEEPS_ROOM
    });
}

#[test]
fn refusals_and_lost_answers_break_nothing() {
    holds(Scenario {
        connections: Connections::Any,
        ..faults(Faults { refusals: 1, lost_replies: 1, ..Faults::default() })
    });
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
fn without_pacing_an_admission_follows_a_send_of_a_run_too_closely() {
    needs(|remedies| remedies.admit_paces = false, stalls(), AT_MOST_R_SENDS);
}

#[test]
fn admitting_what_room_was_kept_for_without_pacing_exceeds_the_rate_too() {
    needs(|remedies| remedies.admit_paces = false, KEEPS_ROOM, AT_MOST_R_SENDS);
}

#[test]
fn admitting_with_unknown_cursors_exceeds_the_rate_after_a_loss() {
    let scenario = faults(Faults { losses: 1, ..Faults::default() });
    needs(|remedies| remedies.admit_knows = false, scenario, AT_MOST_R_SENDS);
}

#[test]
fn an_edit_that_is_not_announced_is_not_in_force_while_each_delivery_is_admitted() {
    needs(|remedies| remedies.admit_in_force = false, edited(Express::Guesses), IN_FORCE);
}

#[test]
fn an_edit_that_is_not_announced_is_not_in_force_where_room_is_kept_either() {
    needs(|remedies| remedies.admit_in_force = false, edited(Express::KeepsRoom), IN_FORCE);
}

#[test]
fn a_declined_delivery_without_a_wake_waits_for_the_sweep() {
    needs(|remedies| remedies.decline_wakes = false, stalls(), HAS_A_JOB);
}

#[test]
fn a_declined_delivery_without_a_wake_is_never_claimed_where_nobody_sweeps() {
    let scenario = Scenario { remedies: Remedies { sweep: false, ..Remedies::ALL }, ..stalls() };
    needs(|remedies| remedies.decline_wakes = false, scenario, DELIVERED);
}

#[test]
fn a_declined_delivery_without_a_release_stays_claimed_by_nobody() {
    needs(|remedies| remedies.decline_releases = false, stalls(), HAS_A_JOB);
}

#[test]
fn giving_back_an_admission_that_others_may_take_sends_it_twice() {
    let scenario = faults(Faults { lost_replies: 1, ..Faults::default() });
    needs(|remedies| remedies.admit_sole = false, scenario, DUPLICATES);
}

#[test]
fn without_claim_expiry_what_a_dead_producer_had_claimed_is_never_sent() {
    let scenario = Scenario { deliveries: 1, ..faults(Faults { crashes: 1, ..Faults::default() }) };
    holds(scenario.clone());
    let remedies = Remedies { claim_expiry: false, ..Remedies::ALL };
    let dies = [Action::ProducerCommitsClaimed, Action::ExpressCrashes(0)];
    breaks_by(&dies, Scenario { remedies, ..scenario }, DELIVERED);
}

/// To a lower rate, and who edits may die before the queue hears of it.
fn edited(express: Express) -> Scenario {
    Scenario {
        window: 3,
        start_within: 6,
        rate: 2,
        edited_rate: Some(1),
        express,
        faults: Faults { crashes: 1, stalls: 1, ..Faults::default() },
        ..GUESSES
    }
}
