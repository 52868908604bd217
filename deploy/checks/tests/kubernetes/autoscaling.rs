//! Autoscalers: at most one per Deployment, on the chosen signals, with the same settings in both forms.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir_deploy_checks::manifests::{self, Composition, adapter_rules, id, list, text};

/// The Deployment that each autoscaler scales.
fn targets(composition: &Composition) -> Vec<&str> {
    let scalers = ["HorizontalPodAutoscaler", "ScaledObject"].into_iter().flat_map(|kind| composition.of_kind(kind));
    scalers.map(|scaler| text(scaler, "/spec/scaleTargetRef/name")).collect()
}

fn scaled_object() -> &'static Value {
    manifests::named("base + keda").of_kind("ScaledObject").next().unwrap()
}

#[test]
fn a_deployment_has_at_most_one_autoscaler_and_then_no_replica_count() {
    for composition in manifests::all() {
        let targets = targets(composition);
        for target in &targets {
            assert_eq!(targets.iter().filter(|other| *other == target).count(), 1, "{target} of {}", composition.name);
            let deployment = composition.of_kind("Deployment").find(|object| text(object, "/metadata/name") == *target);
            assert!(deployment.unwrap()["spec"]["replicas"].is_null(), "{target} of {}", composition.name);
        }
    }
}

#[test]
fn production_scales_workers_and_api() {
    for name in ["production", "custom", "chart: production", "chart: hpa-cpu"] {
        assert_eq!(targets(manifests::named(name)), ["weir-api", "weir-worker"], "{name}");
    }
}

#[test]
fn scaling_behaviour_is_as_specified() {
    let spec = &scaled_object()["spec"];
    assert_eq!(
        (&spec["minReplicaCount"], &spec["maxReplicaCount"], &spec["pollingInterval"]),
        (&json!(2), &json!(20), &json!(15))
    );
    assert_eq!(spec["fallback"]["behavior"], "currentReplicasIfHigher");
    let behavior = json!({
        "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
            {"type": "Percent", "value": 50, "periodSeconds": 60}, {"type": "Pods", "value": 4, "periodSeconds": 60}
        ]},
        "scaleDown": {"stabilizationWindowSeconds": 300, "selectPolicy": "Max", "policies": [
            {"type": "Percent", "value": 25, "periodSeconds": 60}
        ]}
    });
    assert_eq!(spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"], behavior);
    for trigger in list(spec, "/triggers") {
        assert_eq!(trigger["metadata"]["ignoreNullValues"], "false", "{trigger}");
    }
}

#[test]
fn both_forms_have_the_same_queries_and_targets() {
    let hpa = manifests::named("base + hpa-external").of_kind("HorizontalPodAutoscaler").next().unwrap();
    let keda = &scaled_object()["spec"];
    assert_eq!(hpa["spec"]["minReplicas"], keda["minReplicaCount"]);
    assert_eq!(hpa["spec"]["maxReplicas"], keda["maxReplicaCount"]);
    assert_eq!(hpa["spec"]["behavior"], keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]);

    let rules = adapter_rules().unwrap();
    let queries: BTreeMap<_, _> = list(&rules, "/externalRules")
        .iter()
        .map(|rule| (text(rule, "/name/as"), text(rule, "/metricsQuery")))
        .collect();
    let metrics = list(hpa, "/spec/metrics");
    assert_eq!(metrics.len(), list(keda, "/triggers").len());
    for (metric, trigger) in metrics.iter().zip(list(keda, "/triggers")) {
        let (target, metadata) = (&metric["external"]["target"], &trigger["metadata"]);
        assert_eq!(target["type"], trigger["metricType"]);
        let value = target["averageValue"].as_str().or(target["value"].as_str()).unwrap();
        assert_eq!(quantity(value), metadata["threshold"].as_str().unwrap().parse::<f64>().unwrap());
        assert_eq!(queries[text(metric, "/external/metric/name")], text(metadata, "/query"));
    }
}

/// Parses a quantity of Kubernetes. Only the suffix `m` (1/1000) is used.
fn quantity(text: &str) -> f64 {
    match text.strip_suffix('m') {
        Some(thousandths) => thousandths.parse::<f64>().unwrap() / 1000.0,
        None => text.parse().unwrap(),
    }
}

#[test]
fn scaling_from_zero_is_started_only_by_waiting_work() {
    let scaled = manifests::named("base + keda + scale-to-zero").of_kind("ScaledObject").next().unwrap();
    assert_eq!(scaled["spec"]["idleReplicaCount"], 0, "{}", id(scaled));
    // A fallback starts workers whenever a query fails. The query about the workers fails whenever there are none, so
    // with a fallback there would always be workers.
    assert!(scaled["spec"]["fallback"].is_null());
    let most = scaled["spec"]["maxReplicaCount"].as_f64().unwrap();
    for trigger in list(scaled, "/spec/triggers") {
        let activates = trigger["metadata"]["activationThreshold"].as_str().map_or(0.0, |text| text.parse().unwrap());
        // The busy ratio of an idle worker is slightly above 0.
        let never = activates > 2.0 * most;
        assert_eq!(never, ["busy", "lag"].contains(&text(trigger, "/name")), "{trigger}");
    }
}
