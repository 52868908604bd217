//! With all remedies no property is violated, under every fault and with slow processes.

use weir_model::{Faults, Scenario, Terms};

use crate::checked::holds;

const TWO_SCHEDULERS: Scenario = Scenario { deliveries: 2, schedulers: 2, ..Scenario::SMALL };

#[test]
fn two_schedulers_that_stall_break_nothing() {
    holds(Scenario { deliveries: 3, permits: 4, faults: Faults { stalls: 4, ..Faults::default() }, ..TWO_SCHEDULERS });
}

#[test]
fn crashes_anywhere_lose_nothing_and_send_no_more_than_allowed() {
    holds(Scenario { permits: 4, faults: Faults { crashes: 2, stalls: 3, ..Faults::default() }, ..TWO_SCHEDULERS });
}

#[test]
fn a_loss_of_the_queue_and_a_crash_break_nothing() {
    holds(Scenario {
        permits: 4,
        faults: Faults { crashes: 1, losses: 1, stalls: 2, ..Faults::default() },
        ..TWO_SCHEDULERS
    });
}

#[test]
fn a_second_loss_during_the_recovery_from_the_first_breaks_nothing() {
    holds(Scenario { permits: 4, faults: Faults { losses: 2, stalls: 2, ..Faults::default() }, ..TWO_SCHEDULERS });
}

#[test]
fn a_stale_restore_breaks_nothing() {
    holds(Scenario { faults: Faults { restores: 1, stalls: 2, ..Faults::default() }, ..TWO_SCHEDULERS });
}

#[test]
fn restarts_of_the_embedded_build_break_nothing() {
    holds(Scenario { faults: Faults { restarts: 2, stalls: 2, ..Faults::default() }, ..TWO_SCHEDULERS });
}

#[test]
fn refusals_and_lost_replies_break_nothing() {
    holds(Scenario {
        permits: 4,
        faults: Faults { refusals: 2, lost_replies: 1, stalls: 2, ..Faults::default() },
        ..TWO_SCHEDULERS
    });
}

#[test]
fn a_window_of_two_sends_is_never_exceeded() {
    holds(Scenario {
        window: 3,
        start_within: 6,
        rate: 2,
        deliveries: 3,
        permits: 4,
        faults: Faults { losses: 1, stalls: 2, ..Faults::default() },
        ..Scenario::SMALL
    });
}

#[test]
fn an_edit_to_a_lower_rate_binds_permits_that_are_out() {
    holds(Scenario {
        window: 3,
        start_within: 6,
        rate: 2,
        edits: &[Terms { rate: 1, suspended: false }],
        deliveries: 3,
        permits: 4,
        faults: Faults { stalls: 2, ..Faults::default() },
        ..Scenario::SMALL
    });
}

#[test]
fn an_edit_to_a_higher_rate_with_a_loss_is_bounded_by_the_higher() {
    holds(Scenario {
        window: 3,
        start_within: 6,
        rate: 1,
        edits: &[Terms { rate: 2, suspended: false }],
        deliveries: 3,
        permits: 4,
        faults: Faults { losses: 1, stalls: 2, ..Faults::default() },
        ..Scenario::SMALL
    });
}

#[test]
fn a_pause_binds_permits_that_are_out_and_a_resume_delivers_them() {
    holds(Scenario {
        edits: &[Terms { rate: 1, suspended: true }, Terms { rate: 1, suspended: false }],
        permits: 4,
        faults: Faults { crashes: 1, stalls: 2, ..Faults::default() },
        ..TWO_SCHEDULERS
    });
}
