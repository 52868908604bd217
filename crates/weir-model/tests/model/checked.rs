//! Checks one scenario and reports the violations.

use std::collections::BTreeMap;

use stateright::{Checker, HasDiscoveries, Model, Path};
use weir_model::{Action, Protocol, Remedy, Scenario, State};

type Violations = BTreeMap<&'static str, Path<State, Action>>;

/// Asserts that no property is violated in any reachable state.
#[track_caller]
pub(crate) fn holds(scenario: Scenario) {
    let violations = check(scenario, HasDiscoveries::AnyFailures);
    assert!(violations.is_empty(), "{}", report(&violations));
}

/// Asserts that no property is violated with the remedy, and that this property is violated without it.
#[track_caller]
pub(crate) fn needs(remedy: Remedy, scenario: Scenario, property: &'static str) {
    holds(scenario.clone());
    let mut reduced = scenario;
    reduced.without[1] = Some(remedy);
    breaks(reduced, property);
}

/// Asserts that the property is violated.
#[track_caller]
pub(crate) fn breaks(scenario: Scenario, property: &'static str) {
    let violations = check(scenario, HasDiscoveries::AllOf([property].into()));
    println!("{}", report(&violations));
    assert!(violations.contains_key(property), "not violated: {property}\n{}", report(&violations));
}

/// Asserts that these steps violate the property.
#[track_caller]
pub(crate) fn breaks_by(steps: &[Action], scenario: Scenario, property: &'static str) {
    walk(scenario, HasDiscoveries::AllOf([property].into())).assert_discovery(property, steps.to_vec());
}

fn check(scenario: Scenario, until: HasDiscoveries) -> Violations {
    let checker = walk(scenario, until);
    println!("{} states, {} deep", checker.unique_state_count(), checker.max_depth());
    checker.discoveries().into_iter().collect()
}

fn walk(scenario: Scenario, until: HasDiscoveries) -> impl Checker<Protocol> {
    Protocol::new(scenario).checker().finish_when(until).spawn_bfs().join()
}

/// Each violation with the shortest path to it.
fn report(violations: &Violations) -> String {
    let one = |(property, path): (&&str, &Path<State, Action>)| {
        format!("violated: {property}\n{path}in {:?}\n", path.last_state())
    };
    violations.iter().map(one).collect()
}
