//! The fields of custom resources that the components use. Any other field is refused: add it here if the definition of
//! the resource has it.
//!
//! They follow the definitions of KEDA 2.17, the Prometheus operator 0.80, Gateway API 1.2 and External Secrets 0.17. There are crates with
//! the complete definitions (`kcr_keda_sh`, `kcr_monitoring_coreos_com`), but they take two minutes to compile.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Checks an object against its definition.
pub(crate) fn check(object: &Value) -> Result<(), String> {
    let name = (object["apiVersion"].as_str().unwrap_or_default(), object["kind"].as_str().unwrap_or_default());
    match name {
        ("keda.sh/v1alpha1", "ScaledObject") => of::<ScaledObject>(object),
        ("monitoring.coreos.com/v1", "PodMonitor") => of::<PodMonitor>(object),
        ("monitoring.coreos.com/v1", "PrometheusRule") => of::<PrometheusRule>(object),
        ("gateway.networking.k8s.io/v1", "HTTPRoute") => of::<HttpRoute>(object),
        ("external-secrets.io/v1", "ExternalSecret") => of::<ExternalSecret>(object),
        (version, kind) => Err(format!("there is no definition of {kind} of {version} here")),
    }
}

fn of<Spec: for<'a> Deserialize<'a>>(object: &Value) -> Result<(), String> {
    Resource::<Spec>::deserialize(object).map(drop).map_err(|error| error.to_string())
}

macro_rules! strict {
    ($($name:ident$(<$parameter:ident>)? { $($(#[$attribute:meta])? $field:ident: $type:ty,)* })*) => {$(
        #[expect(dead_code, reason = "only deserialized, to check the fields")]
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct $name$(<$parameter>)? { $($(#[$attribute])? $field: $type,)* }
    )*};
}

macro_rules! words {
    ($($name:ident: $case:literal { $($word:ident,)* })*) => {$(
        #[derive(Deserialize)]
        #[serde(rename_all = $case)]
        enum $name { $($word,)* }
    )*};
}

type Text = BTreeMap<String, String>;

strict! {
    Resource<Spec> { api_version: String, kind: String, metadata: Metadata, spec: Spec, }
    Metadata { name: String, namespace: String, labels: Option<Text>, annotations: Option<Text>, }

    ScaledObject {
        scale_target_ref: ScaleTarget,
        min_replica_count: Option<u32>,
        max_replica_count: Option<u32>,
        idle_replica_count: Option<u32>,
        polling_interval: Option<u32>,
        cooldown_period: Option<u32>,
        fallback: Option<Fallback>,
        advanced: Option<Advanced>,
        triggers: Vec<Trigger>,
    }
    ScaleTarget { api_version: Option<String>, kind: Option<String>, name: String, }
    Fallback { failure_threshold: u32, replicas: u32, behavior: Option<FallbackBehavior>, }
    Advanced { horizontal_pod_autoscaler_config: Option<AutoscalerConfig>, restore_to_original_replica_count: Option<bool>, }
    AutoscalerConfig { name: Option<String>, behavior: Option<Behavior>, }
    Behavior { scale_up: Option<ScalingRules>, scale_down: Option<ScalingRules>, }
    ScalingRules { stabilization_window_seconds: Option<u32>, select_policy: Option<SelectPolicy>, policies: Vec<Policy>, }
    Policy { r#type: PolicyType, value: u32, period_seconds: u32, }
    Trigger { r#type: TriggerType, name: Option<String>, metric_type: Option<MetricType>, metadata: PrometheusTrigger, }
    // Every value is text: KEDA's metadata is a map from text to text.
    PrometheusTrigger {
        server_address: String,
        query: String,
        threshold: String,
        activation_threshold: Option<String>,
        ignore_null_values: Option<String>,
    }

    PodMonitor { selector: Selector, job_label: Option<String>, pod_metrics_endpoints: Vec<Endpoint>, }
    Selector { match_labels: Text, }
    Endpoint { port: String, path: Option<String>, interval: Option<String>, scrape_timeout: Option<String>, }

    PrometheusRule { groups: Vec<Group>, }
    Group { name: String, interval: Option<String>, rules: Vec<Rule>, }
    Rule {
        alert: Option<String>,
        record: Option<String>,
        expr: String,
        #[serde(rename = "keep_firing_for")]
        keep_firing_for: Option<String>,
        r#for: Option<String>,
        labels: Option<Text>,
        annotations: Option<Text>,
    }

    HttpRoute { parent_refs: Vec<Parent>, hostnames: Vec<String>, rules: Vec<RouteRule>, }
    Parent { name: String, namespace: Option<String>, }
    RouteRule { matches: Vec<Match>, timeouts: Option<Timeouts>, backend_refs: Vec<Backend>, }
    Timeouts { request: String, backend_request: String, }
    Match { path: PathMatch, }
    PathMatch { r#type: PathMatchType, value: String, }
    Backend { name: String, port: u16, }

    ExternalSecret { refresh_interval: String, secret_store_ref: Store, target: Target, data: Vec<Datum>, }
    Store { name: String, kind: StoreKind, }
    Target { name: String, creation_policy: CreationPolicy, }
    Datum { secret_key: String, remote_ref: Remote, }
    Remote { key: String, property: String, }
}

words! {
    FallbackBehavior: "camelCase" { Static, CurrentReplicas, CurrentReplicasIfHigher, CurrentReplicasIfLower, }
    SelectPolicy: "PascalCase" { Max, Min, Disabled, }
    PolicyType: "PascalCase" { Percent, Pods, }
    TriggerType: "kebab-case" { Prometheus, }
    MetricType: "PascalCase" { AverageValue, Value, }
    PathMatchType: "PascalCase" { Exact, PathPrefix, RegularExpression, }
    StoreKind: "PascalCase" { SecretStore, ClusterSecretStore, }
    CreationPolicy: "PascalCase" { Owner, Orphan, Merge, None, }
}

#[test]
fn an_unknown_field_or_kind_is_refused() {
    let route = |field: &str| {
        serde_json::json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "a", "namespace": "b"},
            "spec": {"parentRefs": [], "rules": [], field: []}
        })
    };
    assert_eq!(check(&route("hostnames")), Ok(()));
    assert!(check(&route("hostNames")).is_err());
    assert!(check(&serde_json::json!({"apiVersion": "example.com/v1", "kind": "Unknown"})).is_err());
}
