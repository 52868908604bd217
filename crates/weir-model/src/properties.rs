//! The properties that must hold in every reachable state.

use stateright::Property;

use crate::{
    actions::Protocol,
    permit::{Entry, Permit, Set, Stage},
    scenario::{Faults, GRANT_AHEAD, Remedy},
    state::{Delivery, Phase, Scheduler, State, Witness},
};

pub const AT_MOST_R_SENDS: &str = "at most R sends start in any window";
pub const EDITS_BIND: &str = "a window that begins after an edit is in force holds no more sends than the edit allows";
pub const DELIVERED: &str = "if nothing more fails, everything is delivered in the end";
pub const HAS_A_JOB: &str = "without faults no due delivery and no claim has to wait for the sweep";
pub const USED_ONCE: &str = "a permit is used at most once";
pub const DUPLICATES: &str = "duplicates are at most the crashes between send and record";
pub const STALE_EPOCH: &str = "a stale epoch publishes nothing";
pub const NEWER_TERMS_HOLD: &str = "a delivery that is stored after an edit is not admitted under older terms";
pub const EMPTY: &str = "at rest, queued, in flight and the delivery queue are empty";

pub(crate) fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(AT_MOST_R_SENDS, at_most_r_sends),
        Property::always(EDITS_BIND, edits_bind),
        Property::always(DELIVERED, Protocol::drains),
        Property::always(HAS_A_JOB, has_a_job),
        Property::always(USED_ONCE, |_, state: &State| !state.witness.permit_used_twice),
        Property::always(DUPLICATES, duplicates_are_explained),
        Property::always(STALE_EPOCH, |_, state: &State| !state.witness.stale_published),
        Property::always(NEWER_TERMS_HOLD, |_, state: &State| !state.witness.admitted_under_old_terms),
        Property::always(EMPTY, is_empty_at_rest),
    ]
}

/// Two sends in ticks that are `d` apart may start between `d - 1` and `d + 1` ticks apart. So a window of W can hold
/// all sends of W + 1 successive ticks, and no more.
fn at_most_r_sends(protocol: &Protocol, state: &State) -> bool {
    let sends: u8 = state.witness.sends.iter().sum();
    let versions = 0..=protocol.scenario.edits.len() as u8;
    sends <= versions.map(|version| protocol.scenario.limit(version)).max().unwrap_or(0)
}

/// A slot that was granted before an edit starts within [`GRANT_AHEAD`].
fn edits_bind(_: &Protocol, state: &State) -> bool {
    let Witness { sends, limits, .. } = &state.witness;
    let is_bound = |ticks: usize| {
        let spanned = limits.len().min(ticks + GRANT_AHEAD as usize);
        sends[..ticks].iter().sum::<u8>() <= limits[..spanned].iter().copied().max().unwrap_or(0)
    };
    (1..=sends.len()).all(is_bound)
}

fn has_a_job(protocol: &Protocol, state: &State) -> bool {
    // After a crash or a loss only the sweep may know of the delivery, so nothing is claimed here.
    let failures = |faults: Faults| (faults.crashes, faults.losses, faults.restores, faults.restarts);
    if failures(state.faults) != failures(protocol.scenario.faults) {
        return true;
    }
    // A process still has to wake the job, or no delivery may be sent before an edit.
    let wake_owed = state.wake_owed
        || state.edits_owed != 0
        || protocol.scenario.terms(state.store.version).suspended
        || state.schedulers.contains(&Scheduler::Stale)
        || state.permits.iter().any(|permit| matches!(permit.stage, Stage::Waking | Stage::Released));
    // When the job runs, and before which instant it does not. A leased job is running.
    let runs_by = match state.queue.phase {
        Phase::Idle => None,
        Phase::Scheduled { due, floor } => Some((due, floor)),
        Phase::Leased { .. } => Some((0, 0)),
    };
    // The job runs when the first delivery is due, or at its floor if that is later.
    let has_a_run = || {
        state.store.deliveries.iter().all(|delivery| match delivery {
            Delivery::Waiting { due } => runs_by.is_some_and(|(runs, floor)| runs <= *due.max(&floor)),
            Delivery::Absent | Delivery::Claimed { .. } | Delivery::Delivered => true,
        })
    };
    claims_are_held(state) && (wake_owed || has_a_run())
}

/// Whether a process holds each claim. The sweep recovers other claims after they have expired.
fn claims_are_held(state: &State) -> bool {
    let held = |delivery: usize| {
        let holds = |permit: &Permit| permit.holds_claim && usize::from(permit.delivery) == delivery;
        state.permits.iter().any(|permit| holds(permit) && permit.stage != Stage::Gone)
    };
    let claimed = |(_, delivery): &(usize, &Delivery)| matches!(delivery, Delivery::Claimed { .. });
    state.store.deliveries.iter().enumerate().filter(claimed).all(|(delivery, _)| held(delivery))
}

fn duplicates_are_explained(_: &Protocol, state: &State) -> bool {
    let duplicates: u8 = state.witness.accepted.iter().map(|accepted| accepted.saturating_sub(1)).sum();
    duplicates <= state.witness.crashed_after_send
}

/// Permits after their deadlines do not count: the deadlines exist for this.
fn is_empty_at_rest(protocol: &Protocol, state: &State) -> bool {
    let at_rest = || protocol.quiet_step(state).is_none();
    let counts = |expires: i8| expires >= 0 || !protocol.scenario.has(Remedy::PermitDeadlines);
    let remains = |permit: &Permit| {
        permit.in_queue.entry != Entry::None || (permit.in_queue.set != Set::None && counts(permit.expires))
    };
    (state.queue.phase == Phase::Idle && !state.permits.iter().any(remains)) || !at_rest()
}
