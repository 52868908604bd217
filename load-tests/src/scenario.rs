//! Scenarios: the load and the faults for a Weir, and the expected result. TOML files in `scenarios/`, built into the
//! program.

mod behavior;
mod callers;
mod group;
mod key_limits;
mod limit_group;
mod publish;
mod step;
mod table;

use std::{collections::HashSet, path::Path, time::Duration};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub(crate) use behavior::ReceiverBehavior;
pub(crate) use callers::Callers;
pub(crate) use group::{Expect, Group};
pub(crate) use key_limits::{KeyLimits, key_limits_in, limits_in, merge};
pub(crate) use limit_group::{ExpectShared, LimitGroup};
pub(crate) use publish::Publish;
pub(crate) use step::{Action, Step};
pub(crate) use table::SCENARIOS;

/// How Weir runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SetUp {
    /// One process with SQLite and a queue of its own
    Embedded,
    /// A process for each role, over PostgreSQL and Redis
    Scaled,
}

impl SetUp {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Scaled => "scaled",
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// The name of the file.
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) about: String,
    /// The set-ups whose quick set contains it.
    #[serde(default)]
    pub(crate) quick: Vec<SetUp>,
    #[serde(default = "both")]
    pub(crate) set_ups: Vec<SetUp>,
    /// A feature that Weir may lack. The scenario then runs only when it is named.
    pub(crate) awaits: Option<String>,
    /// Takes so long that it runs only when it is named.
    #[serde(default)]
    pub(crate) long: bool,
    pub(crate) publish_s: f64,
    pub(crate) drain_within_s: f64,
    #[serde(default)]
    pub(crate) fleet: Roles,
    #[serde(default)]
    pub(crate) limit_groups: Vec<LimitGroup>,
    pub(crate) destinations: Vec<Group>,
    pub(crate) publish: Vec<Publish>,
    #[serde(default)]
    pub(crate) callers: Vec<Callers>,
    #[serde(default)]
    pub(crate) steps: Vec<Step>,
}

fn both() -> Vec<SetUp> {
    vec![SetUp::Embedded, SetUp::Scaled]
}

/// How many processes of each role the scaled set-up begins with.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Roles {
    pub(crate) scheduler: u32,
    pub(crate) worker: u32,
}

impl Default for Roles {
    fn default() -> Self {
        Self { scheduler: 1, worker: 2 }
    }
}

impl Scenario {
    pub(crate) fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        toml::from_str::<Self>(text).with_context(|| format!("scenario {name}"))?.named_as(name)
    }

    /// Sets the name and checks the scenario. It may be a whole file or a part of one.
    pub(crate) fn named_as(mut self, name: &str) -> anyhow::Result<Self> {
        name.clone_into(&mut self.name);
        self.check().with_context(|| format!("scenario {name}"))?;
        Ok(self)
    }

    /// Every scenario of the folder, in the order of the table.
    pub(crate) fn all() -> anyhow::Result<Vec<Self>> {
        SCENARIOS.iter().map(|(name, text)| Self::parse(name, text)).collect()
    }

    /// Why it runs only when it is named; `None` when it runs by default.
    pub(crate) fn reserved(&self) -> Option<String> {
        match &self.awaits {
            Some(awaited) => Some(format!("it needs {awaited}")),
            None if self.long => Some(format!("it takes {} minutes", (self.publish_s / 60.0).ceil())),
            None => None,
        }
    }

    /// A scenario of the folder, or a file of the caller's own.
    pub(crate) fn named(name: &str) -> anyhow::Result<Self> {
        if name.ends_with(".toml") {
            let text = std::fs::read_to_string(name).with_context(|| format!("cannot read {name}"))?;
            let stem = Path::new(name).file_stem().and_then(|stem| stem.to_str());
            return Self::parse(stem.unwrap_or(name), &text);
        }
        let (name, text) = SCENARIOS
            .iter()
            .find(|(known, _)| *known == name)
            .with_context(|| format!("there is no scenario {name}; `list` shows them"))?;
        Self::parse(name, text)
    }

    /// Removes the expectations that a busy machine can break: use, fairness, latency. Limits, loss, order and the
    /// drain are still judged.
    pub(crate) fn without_figures(mut self) -> Self {
        for group in &mut self.destinations {
            let Expect { delivered, in_order, .. } = group.expect;
            group.expect = Expect { delivered, in_order, ..Expect::default() };
        }
        for group in &mut self.limit_groups {
            group.expect = ExpectShared::default();
        }
        for publish in &mut self.publish {
            publish.done_within_s = None;
        }
        self
    }

    pub(crate) fn group(&self, name: &str) -> Option<usize> {
        self.destinations.iter().position(|group| group.name == name)
    }

    pub(crate) fn limit_group(&self, name: &str) -> Option<usize> {
        self.limit_groups.iter().position(|group| group.name == name)
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            is_time(self.publish_s) && is_time(self.drain_within_s),
            "publish_s and drain_within_s must be 0 to 1000000 seconds"
        );
        ensure!(!self.destinations.is_empty() && !self.publish.is_empty(), "there is nothing to send");

        // The groups: unique names, and readable limits.
        let mut names = HashSet::new();
        for group in &self.limit_groups {
            ensure!(names.insert(&group.name), "limit_groups: two groups are named {}", group.name);
            group.limits().with_context(|| format!("limit_groups {}", group.name))?;
        }
        let is_known = |name: &str| self.limit_group(name).is_some();
        for group in &self.destinations {
            if let Some(name) = &group.limit_group {
                ensure!(is_known(name), "destinations {}: no limit group is named {name}", group.name);
            }
            ensure!(names.insert(&group.name), "destinations: two groups are named {}", group.name);
            group.check().with_context(|| format!("destinations {}", group.name))?;
        }

        // The streams: known groups, and a valid rate.
        for (n, publish) in self.publish.iter().enumerate() {
            for name in &publish.to {
                ensure!(self.group(name).is_some(), "publish {}: no destinations are named {name}", n + 1);
            }
            publish.check(self.publish_s).with_context(|| format!("publish {}", n + 1))?;
        }

        for (n, callers) in self.callers.iter().enumerate() {
            let name = &callers.limit_group;
            ensure!(is_known(name), "callers {}: no limit group is named {name}", n + 1);
            callers.check(self.publish_s).with_context(|| format!("callers {}", n + 1))?;
        }

        // A group without a stream would test nothing.
        for group in &self.destinations {
            let is_target = self.publish.iter().any(|publish| publish.to.contains(&group.name));
            ensure!(is_target, "destinations {}: nothing is published to them", group.name);
        }

        // The steps: in order, with known groups, and possible in the set-ups.
        let mut last_s = 0.0;
        for (n, step) in self.steps.iter().enumerate() {
            ensure!(is_time(step.at_s) && step.at_s >= last_s, "step {}: steps must be in the order of at_s", n + 1);
            last_s = step.at_s;
            if let Some(name) = step.action.group() {
                ensure!(self.group(name).is_some(), "step {}: no destinations are named {name}", n + 1);
            }
            if let Some(name) = step.action.limit_group() {
                ensure!(is_known(name), "step {}: no limit group is named {name}", n + 1);
            }
            match &step.action {
                Action::Edit { settings, .. } => limits_in(settings).and_then(|_| key_limits_in(settings)).map(drop),
                Action::EditLimitGroup { rate_limits, .. } => {
                    limits_in(&json!({ "rate_limits": rate_limits })).map(drop)
                }
                _ => Ok(()),
            }
            .with_context(|| format!("step {}", n + 1))?;
            ensure!(
                !step.action.needs_roles() || self.set_ups == [SetUp::Scaled],
                "step {}: this step needs set_ups = [\"scaled\"]",
                n + 1
            );
        }
        Ok(())
    }
}

/// The default of counts.
fn one() -> u32 {
    1
}

/// Whether this is a time in a scenario. The bound also keeps the conversion to a `Duration` from panicking.
fn is_time(seconds: f64) -> bool {
    seconds.is_finite() && (0.0..=1e6).contains(&seconds)
}

pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        about = "small"
        publish_s = 2
        drain_within_s = 5
        [[destinations]]
        name = "a"
        settings = { rate_limits = [{ limit = 10, period = "second" }] }
        [[publish]]
        to = "a"
        per_s = 5
    "#;

    fn refused(text: &str) -> String {
        format!("{:#}", Scenario::parse("x", text).unwrap_err())
    }

    #[test]
    fn every_scenario_of_the_folder_is_valid_and_in_the_table() {
        let names: HashSet<String> = Scenario::all().unwrap().into_iter().map(|scenario| scenario.name).collect();
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")).unwrap();
        let files: HashSet<String> =
            folder.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        assert_eq!(names, files);
    }

    #[test]
    fn an_unknown_key_or_name_is_refused_by_name() {
        assert!(Scenario::parse("x", SMALL).is_ok());
        let misspelt = refused(&SMALL.replace("per_s = 5", "per_s = 5\nbacth = 2"));
        assert!(misspelt.contains("bacth"), "{misspelt}");
        let unknown_group = refused(&SMALL.replace("to = \"a\"", "to = \"b\""));
        assert!(unknown_group.contains("publish 1: no destinations are named b"), "{unknown_group}");
        let zero = refused(&SMALL.replace("limit = 10", "limit = 0"));
        assert!(zero.contains("destinations a: rate_limits"), "{zero}");
        let both = refused(&format!("{SMALL}\nburst = 4"));
        assert!(both.contains("one of per_s, burst and overload"), "{both}");
    }

    #[test]
    fn a_stream_may_have_several_groups_and_every_group_needs_a_stream() {
        let two = SMALL.replace("[[publish]]", "[[destinations]]\nname = \"b\"\n[[publish]]");
        assert!(refused(&two).contains("destinations b: nothing is published to them"), "{}", refused(&two));
        let scenario = Scenario::parse("x", &two.replace("to = \"a\"", "to = [\"a\", \"b\"]")).unwrap();
        assert_eq!(scenario.publish[0].to, ["a", "b"]);
    }

    #[test]
    fn without_figures_keeps_only_expectations_that_a_busy_machine_meets() {
        for scenario in Scenario::all().unwrap() {
            let kept = |scenario: &Scenario| {
                let kept = |group: &Group| (group.expect.delivered, group.expect.in_order);
                scenario.destinations.iter().map(kept).collect::<Vec<_>>()
            };
            let without = scenario.clone().without_figures();
            assert_eq!(kept(&without), kept(&scenario));
            for Group { expect, .. } in &without.destinations {
                let figures =
                    [expect.utilisation_min, expect.fairness_min, expect.p50_ms, expect.p99_ms, expect.overload_min];
                assert_eq!(figures, [None; 5], "{}", scenario.name);
            }
        }
    }

    #[test]
    fn a_step_that_needs_servers_needs_the_scaled_set_up() {
        let text = format!("{SMALL}\n[[steps]]\nat_s = 1\ndo = \"flush_redis\"");
        assert!(refused(&text).contains("set_ups"), "{}", refused(&text));
        assert!(Scenario::parse("x", &format!("set_ups = [\"scaled\"]\n{text}")).is_ok());
    }
}
