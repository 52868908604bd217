//! Two destinations of a limit group: each budget holds through crashes, losses and edits, and needs its remedies.

use stateright::{Checker, HasDiscoveries, Model};
use weir_model::shared::{GROUP_EDITS_BIND, GROUP_HOLDS, SharedBudget, SharedFaults, SharedRemedy};

const WORLD: SharedBudget = SharedBudget { backlog: 2, faults: NO_FAULTS, without: None };
const NO_FAULTS: SharedFaults = SharedFaults { crashes: 0, losses: 0, edits: 0, stalls: 2 };

fn violated(model: SharedBudget, until: HasDiscoveries) -> Vec<&'static str> {
    let checker = model.checker().finish_when(until).spawn_bfs().join();
    println!("{} states, {} deep", checker.unique_state_count(), checker.max_depth());
    let discoveries = checker.discoveries();
    discoveries.iter().for_each(|(property, path)| println!("violated: {property}\n{path}"));
    discoveries.into_keys().collect()
}

#[track_caller]
fn holds(faults: SharedFaults) {
    let model = SharedBudget { faults, ..WORLD };
    assert_eq!(violated(model, HasDiscoveries::AnyFailures), Vec::<&str>::new());
}

#[track_caller]
fn needs(remedy: SharedRemedy, faults: SharedFaults, property: &'static str) {
    holds(faults);
    let model = SharedBudget { faults, without: Some(remedy), ..WORLD };
    assert!(violated(model, HasDiscoveries::AllOf([property].into())).contains(&property));
}

#[test]
fn crashes_losses_and_an_edit_break_no_budget() {
    holds(SharedFaults { crashes: 1, losses: 1, edits: 1, stalls: 1 });
}

#[test]
fn a_second_loss_and_a_second_crash_break_no_budget() {
    holds(SharedFaults { crashes: 2, losses: 2, edits: 0, stalls: 1 });
}

#[test]
fn a_slot_that_is_taken_from_one_budget_only_exceeds_the_other() {
    needs(SharedRemedy::TakeFromAll, NO_FAULTS, GROUP_HOLDS);
}

#[test]
fn a_group_that_is_recovered_from_the_sends_of_one_member_exceeds_its_limit() {
    needs(SharedRemedy::RecoverFromAll, SharedFaults { losses: 1, ..NO_FAULTS }, GROUP_HOLDS);
}

#[test]
fn a_group_that_is_recovered_from_the_claims_of_one_member_exceeds_its_limit() {
    needs(SharedRemedy::ClaimsOfAll, SharedFaults { losses: 1, ..NO_FAULTS }, GROUP_HOLDS);
}

#[test]
fn an_edit_of_a_group_that_grants_ignore_does_not_bind() {
    needs(SharedRemedy::GrantLimits, SharedFaults { edits: 1, ..NO_FAULTS }, GROUP_EDITS_BIND);
}
