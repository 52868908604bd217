//! The cluster's configuration for scaling workers, read from the deployed files: a KEDA `ScaledObject`, or an
//! `autoscaling/v2` HPA together with the rules of prometheus-adapter that define its metrics.

mod documents;
#[cfg(test)]
mod tests;

use std::{path::Path, time::Duration};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::hpa::{Amount, Bounds, Milli, Policy, Rules, Select, TOLERANCE, Target};
use documents::{AdapterRules, Behavior, Hpa, PolicyKind, ScaledObject, ScalingRules, SelectPolicy};

/// The Deployment of the workers.
const WORKERS: &str = "weir-worker";
/// The period of the HPA controller (`--horizontal-pod-autoscaler-sync-period`). At each sync it reads the metrics
/// again, also through KEDA. `pollingInterval` is only KEDA's own period, for scaling from zero.
const SYNC: Duration = Duration::from_secs(15);

/// The configuration for scaling workers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scaling {
    /// The kind of the manifest.
    pub(crate) kind: &'static str,
    pub(crate) bounds: Bounds,
    pub(crate) metrics: Vec<Metric>,
    pub(crate) fallback: Option<Fallback>,
    pub(crate) sync: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Metric {
    pub(crate) name: String,
    /// In PromQL.
    pub(crate) query: String,
    pub(crate) target: Target,
    /// Whether an empty result or NaN counts as 0 instead of a failure.
    pub(crate) is_null_zero: bool,
}

/// After more than `failures` failures in a row, KEDA reports a value that makes the HPA ask for this many replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fallback {
    pub(crate) failures: u32,
    pub(crate) replicas: u32,
    pub(crate) behavior: FallbackBehavior,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum FallbackBehavior {
    #[default]
    Static,
    CurrentReplicas,
    CurrentReplicasIfHigher,
    CurrentReplicasIfLower,
}

impl Scaling {
    /// Reads a file with this manifest alone or with all manifests of an overlay. The rules of the adapter are also
    /// searched in the other files of the folder.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let in_file = || path.display().to_string();
        let mut documents = parse(&text).with_context(in_file)?;
        for beside in path.parent().into_iter().flat_map(beside) {
            // Files that are not valid YAML are ignored.
            documents
                .extend(std::fs::read_to_string(&beside).ok().and_then(|text| parse(&text).ok()).unwrap_or_default());
        }
        Self::of(&documents).with_context(in_file)
    }

    /// From the first document that scales the workers.
    pub(crate) fn of(documents: &[Value]) -> anyhow::Result<Self> {
        let of_workers = |document: &&Value| document["spec"]["scaleTargetRef"]["name"] == WORKERS;
        for document in documents.iter().filter(of_workers) {
            let spec = document["spec"].clone();
            match document["kind"].as_str() {
                Some("ScaledObject") => return serde_json::from_value::<ScaledObject>(spec)?.scaling(),
                Some("HorizontalPodAutoscaler") => {
                    return serde_json::from_value::<Hpa>(spec)?.scaling(&AdapterRules::of(documents)?);
                }
                _ => {}
            }
        }
        bail!("there is no ScaledObject and no HorizontalPodAutoscaler of {WORKERS}")
    }

    /// The same configuration for time that runs `times` as fast: windows, periods, the sync and the ranges within
    /// queries are divided.
    pub(crate) fn sped_up(mut self, times: f64) -> Self {
        let speed_up = |time: &mut Duration| *time = time.div_f64(times);
        for rules in [&mut self.bounds.up, &mut self.bounds.down] {
            speed_up(&mut rules.window);
            rules.policies.iter_mut().for_each(|policy| speed_up(&mut policy.period));
        }
        speed_up(&mut self.sync);
        for metric in &mut self.metrics {
            metric.query = super::promql::sped_up(&metric.query, times);
        }
        self
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<Value>> {
    Ok(serde_saphyr::from_multiple(text)?)
}

fn beside(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    paths
}

impl ScaledObject {
    fn scaling(self) -> anyhow::Result<Scaling> {
        let behavior = self.advanced.and_then(|advanced| advanced.horizontal_pod_autoscaler_config);
        let behavior = behavior.and_then(|config| config.behavior);
        ensure!(!self.triggers.is_empty(), "there is no trigger");
        // Each trigger becomes a metric. An unsupported setting is an error: ignored, it would make the test differ
        // from the cluster.
        let metric = |(number, trigger): (usize, documents::Trigger)| {
            let name = trigger.name.unwrap_or_else(|| format!("s{number}-{}", trigger.kind));
            ensure!(
                trigger.kind == "prometheus",
                "trigger {name} is of type {}; only prometheus is supported",
                trigger.kind
            );
            let threshold =
                quantity(&trigger.metadata.threshold).with_context(|| format!("trigger {name}: threshold"))?;
            let target = match trigger.metric_type.as_deref() {
                None | Some("AverageValue") => Target::AverageValue(threshold),
                Some("Value") => Target::Value(threshold),
                Some(other) => bail!("trigger {name}: metricType {other} is not supported"),
            };
            // KEDA's own default is true.
            let is_null_zero = trigger.metadata.ignore_null_values.is_none_or(|value| value != "false");
            Ok(Metric { name, query: trigger.metadata.query, target, is_null_zero })
        };
        Ok(Scaling {
            kind: "ScaledObject",
            bounds: bounds(self.min_replica_count, self.max_replica_count, behavior)?,
            metrics: self.triggers.into_iter().enumerate().map(metric).collect::<anyhow::Result<_>>()?,
            fallback: self.fallback.map(|fallback| Fallback {
                failures: fallback.failure_threshold,
                replicas: fallback.replicas,
                behavior: fallback.behavior,
            }),
            sync: SYNC,
        })
    }
}

impl Hpa {
    fn scaling(self, rules: &AdapterRules) -> anyhow::Result<Scaling> {
        ensure!(!self.metrics.is_empty(), "there is no metric");
        // Each external metric gets its query from the rules of the adapter.
        let metric = |metric: documents::HpaMetric| {
            let external = metric.external.context("only metrics of type External are supported")?;
            let name = external.metric.name;
            let target = match (external.target.average_value, external.target.value) {
                (Some(average), None) => Target::AverageValue(quantity(&average)?),
                (None, Some(value)) => Target::Value(quantity(&value)?),
                _ => bail!("metric {name}: exactly one of value and averageValue must be given"),
            };
            let query = rules.query(&name).with_context(|| format!("no rule of prometheus-adapter makes {name}"))?;
            // The adapter does not list a metric without a value, so the metric fails.
            Ok(Metric { name, query, target, is_null_zero: false })
        };
        Ok(Scaling {
            kind: "HorizontalPodAutoscaler",
            bounds: bounds(self.min_replicas, self.max_replicas, self.behavior)?,
            metrics: self.metrics.into_iter().map(metric).collect::<anyhow::Result<_>>()?,
            // Only KEDA has a fallback.
            fallback: None,
            sync: SYNC,
        })
    }
}

fn bounds(min: u32, max: u32, behavior: Option<Behavior>) -> anyhow::Result<Bounds> {
    ensure!((1..=max).contains(&min), "a minimum of {min} and a maximum of {max} replicas are not valid bounds");
    let Behavior { scale_up, scale_down } = behavior.unwrap_or_default();
    Ok(Bounds { min, max, up: rules(scale_up, Rules::default_up())?, down: rules(scale_down, Rules::default_down())? })
}

/// Missing fields have the defaults of Kubernetes.
fn rules(written: Option<ScalingRules>, default: Rules) -> anyhow::Result<Rules> {
    let Some(written) = written else { return Ok(default) };
    // A policy limits the change within a period, in pods or in per cent.
    let policy = |policy: documents::PolicyDocument| Policy {
        amount: match policy.kind {
            PolicyKind::Pods => Amount::Pods(policy.value),
            PolicyKind::Percent => Amount::Percent(policy.value),
        },
        period: Duration::from_secs(policy.period_seconds),
    };
    Ok(Rules {
        window: written.stabilization_window_seconds.map_or(default.window, Duration::from_secs),
        select: match written.select_policy {
            None | Some(SelectPolicy::Max) => Select::Max,
            Some(SelectPolicy::Min) => Select::Min,
            Some(SelectPolicy::Disabled) => Select::Disabled,
        },
        policies: written.policies.map_or(default.policies, |policies| policies.into_iter().map(policy).collect()),
        tolerance: match written.tolerance {
            // `quantity` answers in thousandths.
            Some(tolerance) => quantity(&tolerance)? as f64 / 1_000.0,
            None => TOLERANCE,
        },
    })
}

/// A quantity of Kubernetes in thousandths: `0.7`, `700m`, `1000`, `1k`.
fn quantity(text: &documents::Quantity) -> anyhow::Result<Milli> {
    let text = text.to_string();
    let (number, times) = match text.char_indices().last() {
        Some((at, 'm')) => (&text[..at], 1.0),
        Some((at, 'k')) => (&text[..at], 1e6),
        Some((at, 'M')) => (&text[..at], 1e9),
        _ => (text.as_str(), 1e3),
    };
    let number: f64 = number.parse().with_context(|| format!("{text} is not a quantity"))?;
    ensure!(number.is_finite() && number > 0.0, "{text} is not a valid target");
    Ok((number * times).round() as Milli)
}
