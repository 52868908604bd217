//! The inhibition rules: they name alerts that exist, and one cause leaves one alert.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use serde_json::Value;
use weir_deploy_checks::{queries, yaml};

/// An alert with its labels, except for the namespace, which is the same for all.
type Firing = (&'static str, &'static str);

/// The alerts that each cause raises within ten minutes, and the one that is left.
const CAUSES: [(&str, &[Firing], Firing); 8] = [
    (
        "the workers are away",
        &[
            ("WeirDestinationsStalled", "no_worker"),
            ("WeirNoWorker", ""),
            ("WeirProcessDown", ""),
            ("WeirProcessesLost", ""),
        ],
        ("WeirDestinationsStalled", "no_worker"),
    ),
    (
        "Redis is away",
        &[
            ("WeirDestinationsStalled", "queue_away"),
            ("WeirRedisAway", ""),
            ("WeirProcessCutOff", ""),
            ("WeirStartsLate", ""),
        ],
        ("WeirDestinationsStalled", "queue_away"),
    ),
    (
        "the schedulers are away",
        &[("WeirDestinationsStalled", "no_scheduler"), ("WeirNoScheduler", ""), ("WeirProcessDown", "")],
        ("WeirDestinationsStalled", "no_scheduler"),
    ),
    (
        "the store is away",
        &[
            ("WeirStoreAway", ""),
            ("WeirDestinationsStalled", "store_slow"),
            ("WeirIngestErrors", ""),
            ("WeirProcessCutOff", ""),
            ("WeirProcessesLost", ""),
        ],
        ("WeirStoreAway", ""),
    ),
    (
        "the store is slow",
        &[
            ("WeirDestinationsBehind", "store_slow"),
            ("WeirCommitsSlow", ""),
            ("WeirScheduleLate", ""),
            ("WeirStartsLate", ""),
            ("WeirSlotsMissed", ""),
        ],
        ("WeirDestinationsBehind", "store_slow"),
    ),
    (
        "receivers hang and hold all places",
        &[
            ("WeirDestinationsStalled", "workers_full"),
            ("WeirDestinationsBehind", "workers_full"),
            ("WeirPlacesFull", ""),
            ("WeirAtMaximum", ""),
            ("WeirStartsLate", ""),
        ],
        ("WeirDestinationsStalled", "workers_full"),
    ),
    ("no process answers", &[("WeirDown", ""), ("WeirNoApi", ""), ("WeirWatchBlind", "")], ("WeirDown", "")),
    ("the API is full", &[("WeirShedding", ""), ("WeirIngestErrors", "")], ("WeirShedding", "")),
];

/// One matcher: `label="value"`, `label!="value"` or `label=~"expression"`.
fn matches(matcher: &str, (name, cause): Firing) -> bool {
    let (label, rest) = matcher.split_at(matcher.find(['=', '!']).unwrap());
    let (operator, value) = rest.split_at(rest.find('"').unwrap());
    let (value, actual) = (value.trim_matches('"'), if label == "cause" { cause } else { name });
    match operator {
        "=" => actual == value,
        "!=" => actual != value,
        "=~" => value.split('|').any(|one| fits(one, actual)),
        _ => panic!("{matcher}"),
    }
}

/// Whether a name is this one, or begins like it: the expressions use nothing else.
fn fits(expression: &str, name: &str) -> bool {
    let beginning = expression.strip_suffix(".*").or_else(|| expression.strip_suffix(".+"));
    beginning.map_or(name == expression, |beginning| name.starts_with(beginning))
}

fn matchers<'v>(rule: &'v Value, of: &str) -> Vec<&'v str> {
    rule[of].as_array().unwrap().iter().map(|matcher| matcher.as_str().unwrap()).collect()
}

fn inhibits(rule: &Value, source: Firing, target: Firing) -> bool {
    let all = |of: &str, alert| matchers(rule, of).iter().all(|matcher| matches(matcher, alert));
    source != target && all("source_matchers", source) && all("target_matchers", target)
}

#[test]
fn one_cause_leaves_one_alert() {
    let config = yaml("deploy/prometheus/alertmanager.yaml").unwrap();
    let rules = config["inhibit_rules"].as_array().unwrap();
    for (cause, firing, left) in CAUSES {
        let is_inhibited =
            |target: Firing| firing.iter().any(|source| rules.iter().any(|rule| inhibits(rule, *source, target)));
        let notified: Vec<Firing> = firing.iter().copied().filter(|alert| !is_inhibited(*alert)).collect();
        assert_eq!(notified, [left], "{cause}");
    }
}

#[test]
fn no_two_alerts_silence_each_other() {
    let config = yaml("deploy/prometheus/alertmanager.yaml").unwrap();
    let rules = config["inhibit_rules"].as_array().unwrap();
    let firing: BTreeSet<Firing> = CAUSES.iter().flat_map(|(_, firing, _)| firing.iter().copied()).collect();
    let silences = |source, target| rules.iter().any(|rule| inhibits(rule, source, target));
    for one in &firing {
        for other in &firing {
            assert!(!(silences(*one, *other) && silences(*other, *one)), "{one:?} and {other:?}");
        }
    }
}

#[test]
fn the_rules_name_alerts_that_exist() {
    let alerts: BTreeSet<String> = queries::alerts().unwrap().into_iter().map(|alert| alert.name).collect();
    let config = yaml("deploy/prometheus/alertmanager.yaml").unwrap();
    for rule in config["inhibit_rules"].as_array().unwrap() {
        for matcher in matchers(rule, "source_matchers").into_iter().chain(matchers(rule, "target_matchers")) {
            let names = matcher.split('"').nth(1).unwrap().split('|').filter(|_| matcher.starts_with("alertname"));
            for name in names {
                assert!(alerts.iter().any(|alert| fits(name, alert)), "{name}");
            }
        }
    }
}
