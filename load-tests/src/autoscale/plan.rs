//! Scenarios of autoscaling: a load like in the other scenarios, outages of servers, and promises. TOML files in
//! `autoscale/`, built into the program. Times are those of the real-time form.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::{
    hpa::Target,
    manifest::{Metric, Scaling},
    promise::Promise,
    trace::Server,
};
use crate::scenario::Scenario;

const PLANS: [(&str, &str); 7] = [
    ("steps", include_str!("../../autoscale/steps.toml")),
    ("hot-destination", include_str!("../../autoscale/hot-destination.toml")),
    ("capped", include_str!("../../autoscale/capped.toml")),
    ("slow-receivers", include_str!("../../autoscale/slow-receivers.toml")),
    ("prometheus-away", include_str!("../../autoscale/prometheus-away.toml")),
    ("redis-away", include_str!("../../autoscale/redis-away.toml")),
    ("backlog-as-signal", include_str!("../../autoscale/backlog-as-signal.toml")),
];

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// The name of the file.
    #[serde(skip)]
    pub(crate) name: String,
    /// The maximum of sends in flight of each worker (`WEIR_WORKER_CAPACITY`): the size of a pod.
    pub(crate) capacity: u32,
    /// A signal that replaces the manifest's metrics.
    pub(crate) signal: Option<Signal>,
    /// For a negative control: the kind of the promise that must be broken.
    pub(crate) must_break: Option<String>,
    #[serde(default)]
    pub(crate) outages: Vec<Outage>,
    pub(crate) promises: Vec<Promise>,
    pub(crate) load: Scenario,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Signal {
    pub(crate) query: String,
    pub(crate) average_value: f64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outage {
    pub(crate) of: Server,
    pub(crate) at_s: f64,
    pub(crate) for_s: f64,
}

impl Plan {
    pub(crate) fn all() -> anyhow::Result<Vec<Self>> {
        PLANS.iter().map(|(name, text)| Self::parse(name, text)).collect()
    }

    /// A scenario of the folder, or a file of the caller's own.
    pub(crate) fn named(name: &str) -> anyhow::Result<Self> {
        if name.ends_with(".toml") {
            let text = std::fs::read_to_string(name).with_context(|| format!("cannot read {name}"))?;
            let stem = Path::new(name).file_stem().and_then(|stem| stem.to_str());
            return Self::parse(stem.unwrap_or(name), &text);
        }
        let known = || PLANS.map(|(name, _)| name).join(", ");
        let found = PLANS.iter().find(|(plan, _)| *plan == name);
        let (name, text) = found.with_context(|| format!("there is no scenario {name}; there are {}", known()))?;
        Self::parse(name, text)
    }

    fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let mut plan: Self = toml::from_str(text).with_context(|| format!("scenario {name}"))?;
        plan.load = plan.load.named_as(name)?;
        name.clone_into(&mut plan.name);
        ensure!(plan.capacity > 0, "scenario {name}: a worker needs a capacity");
        if let Some(kind) = &plan.must_break {
            let is_promised = plan.promises.iter().any(|promise| promise.kind() == kind);
            ensure!(is_promised, "scenario {name}: must_break names {kind}, which is not among the promises");
        }
        Ok(plan)
    }

    /// The same plan for time that runs `times` as fast. Rates are unchanged, so a pod does the same work; there are
    /// fewer events.
    pub(crate) fn sped_up(mut self, times: f64) -> Self {
        let load = &mut self.load;
        load.publish_s /= times;
        for publish in &mut load.publish {
            publish.from_s /= times;
            publish.until_s = publish.until_s.map(|until_s| until_s / times);
            // A burst is a number of events. It is divided like the number of events of a rate.
            publish.burst = publish.burst.map(|events| (events as f64 / times).ceil() as u64);
        }
        for step in &mut load.steps {
            step.at_s /= times;
        }
        for outage in &mut self.outages {
            outage.at_s /= times;
            outage.for_s /= times;
        }
        for promise in &mut self.promises {
            promise.speed_up(times);
        }
        // A tenth of the time is too short to measure the use of limits.
        if times > 1.0 {
            self.load = self.load.without_figures();
        }
        self
    }

    /// The controller's configuration: the manifest, with `signal` in place of its metrics if there is one.
    pub(crate) fn scaling(&self, manifest: &Scaling) -> Scaling {
        let mut scaling = manifest.clone();
        if let Some(Signal { query, average_value }) = &self.signal {
            let target = Target::AverageValue((average_value * 1_000.0).round() as i64);
            let metric = Metric { name: "signal".to_owned(), query: query.clone(), target, is_null_zero: false };
            scaling.metrics = vec![metric];
        }
        scaling
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_scenario_of_the_folder_is_valid_and_in_the_table() {
        let names: HashSet<String> = Plan::all().unwrap().into_iter().map(|plan| plan.name).collect();
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/autoscale")).unwrap();
        let files: HashSet<String> =
            folder.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        assert_eq!(names, files);
    }

    #[test]
    fn the_short_form_takes_a_tenth_of_the_time_at_the_same_rates() {
        let real = Plan::named("steps").unwrap();
        let short = real.clone().sped_up(10.0);
        assert!((short.load.publish_s - real.load.publish_s / 10.0).abs() < 1e-9);
        assert_eq!(short.load.publish[0].per_s, real.load.publish[0].per_s);
        let capped = Plan::named("capped").unwrap();
        assert_eq!(capped.load.publish[0].until_s, Some(250.0));
        assert_eq!(capped.load.destinations[0].expect.utilisation_min, Some(0.98));
        let short = capped.sped_up(10.0);
        assert_eq!(
            (short.load.publish[0].until_s, short.load.destinations[0].expect.utilisation_min),
            (Some(25.0), None)
        );
    }
}
