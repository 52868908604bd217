//! The manifests as they are written. Only fields that affect the number of replicas are read; other fields are not
//! checked here.

use std::fmt;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

use super::FallbackBehavior;

/// `keda.sh/v1alpha1`, `spec`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ScaledObject {
    pub(super) min_replica_count: u32,
    pub(super) max_replica_count: u32,
    pub(super) fallback: Option<FallbackDocument>,
    pub(super) advanced: Option<Advanced>,
    pub(super) triggers: Vec<Trigger>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FallbackDocument {
    pub(super) failure_threshold: u32,
    pub(super) replicas: u32,
    #[serde(default)]
    pub(super) behavior: FallbackBehavior,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Advanced {
    pub(super) horizontal_pod_autoscaler_config: Option<HpaConfig>,
}

#[derive(Debug, Deserialize)]
pub(super) struct HpaConfig {
    pub(super) behavior: Option<Behavior>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Trigger {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) name: Option<String>,
    pub(super) metric_type: Option<String>,
    pub(super) metadata: TriggerMetadata,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TriggerMetadata {
    pub(super) query: String,
    pub(super) threshold: Quantity,
    pub(super) ignore_null_values: Option<String>,
}

/// `autoscaling/v2`, `spec`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Hpa {
    #[serde(default = "one")]
    pub(super) min_replicas: u32,
    pub(super) max_replicas: u32,
    pub(super) metrics: Vec<HpaMetric>,
    pub(super) behavior: Option<Behavior>,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Deserialize)]
pub(super) struct HpaMetric {
    pub(super) external: Option<External>,
}

#[derive(Debug, Deserialize)]
pub(super) struct External {
    pub(super) metric: Named,
    pub(super) target: TargetDocument,
}

#[derive(Debug, Deserialize)]
pub(super) struct Named {
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TargetDocument {
    pub(super) average_value: Option<Quantity>,
    pub(super) value: Option<Quantity>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Behavior {
    pub(super) scale_up: Option<ScalingRules>,
    pub(super) scale_down: Option<ScalingRules>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ScalingRules {
    pub(super) stabilization_window_seconds: Option<u64>,
    pub(super) select_policy: Option<SelectPolicy>,
    pub(super) policies: Option<Vec<PolicyDocument>>,
    pub(super) tolerance: Option<Quantity>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) enum SelectPolicy {
    Max,
    Min,
    Disabled,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PolicyDocument {
    #[serde(rename = "type")]
    pub(super) kind: PolicyKind,
    pub(super) value: u32,
    pub(super) period_seconds: u64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) enum PolicyKind {
    Pods,
    Percent,
}

/// A number, or a number in a string.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Quantity {
    Number(f64),
    Text(String),
}

impl fmt::Display for Quantity {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(to),
            Self::Text(text) => text.trim().fmt(to),
        }
    }
}

/// The rules of prometheus-adapter for external metrics.
#[derive(Debug, Default)]
pub(super) struct AdapterRules(Vec<AdapterRule>);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdapterRule {
    name: AdapterName,
    metrics_query: String,
}

#[derive(Debug, Deserialize)]
struct AdapterName {
    #[serde(rename = "as")]
    becomes: Option<String>,
}

impl AdapterRules {
    /// From every document with `externalRules`, as in the adapter's configuration, or `rules.external`, as in the
    /// values of its chart.
    pub(super) fn of(documents: &[Value]) -> anyhow::Result<Self> {
        let lists = documents.iter().flat_map(|document| [&document["externalRules"], &document["rules"]["external"]]);
        let rules = lists.filter_map(Value::as_array).flatten();
        let rules = rules.map(|rule| serde_json::from_value(rule.clone()).context("a rule of prometheus-adapter"));
        Ok(Self(rules.collect::<anyhow::Result<_>>()?))
    }

    pub(super) fn query(&self, metric: &str) -> Option<String> {
        let makes = |rule: &&AdapterRule| rule.name.becomes.as_deref() == Some(metric);
        self.0.iter().find(makes).map(|rule| rule.metrics_query.clone())
    }
}
