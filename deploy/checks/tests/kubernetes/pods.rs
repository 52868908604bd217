//! The pods: confinement, time to stop, probes and disruption budgets.

use serde_json::{Value, json};
use weir_deploy_checks::{
    drain_seconds,
    manifests::{self, Composition, id, kind, list, runs, text},
};

/// Every pod of every composition, with its name for messages.
fn pods() -> impl Iterator<Item = (String, &'static Value)> {
    manifests::all().iter().flat_map(|composition| named(composition, composition.workloads()))
}

fn role_pods() -> impl Iterator<Item = (String, &'static Value)> {
    manifests::all().iter().flat_map(|composition| named(composition, composition.roles()))
}

fn named<'a>(
    composition: &'a Composition,
    workloads: impl Iterator<Item = (&'a Value, &'a Value)>,
) -> impl Iterator<Item = (String, &'a Value)> {
    workloads.map(|(workload, template)| (format!("{} of {}", id(workload), composition.name), &template["spec"]))
}

#[test]
fn every_pod_is_restricted() {
    for (name, pod) in pods() {
        let about = &pod["securityContext"];
        assert_eq!(about["runAsNonRoot"], true, "{name}");
        assert!(about["runAsUser"].as_u64().is_some_and(|user| user > 0), "{name}");
        assert_eq!(about["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        for forbidden in ["hostNetwork", "hostPID", "hostIPC", "initContainers", "ephemeralContainers"] {
            assert!(pod[forbidden].is_null(), "{name}: {forbidden}");
        }
        for volume in list(pod, "/volumes") {
            let allowed = ["name", "emptyDir", "configMap", "secret", "persistentVolumeClaim", "projected"];
            assert!(volume.as_object().unwrap().keys().all(|key| allowed.contains(&key.as_str())), "{name}: {volume}");
        }
        for container in list(pod, "/containers") {
            // The complete object, so that no other field can weaken it.
            let expected = json!({
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}
            });
            assert_eq!(container["securityContext"], expected, "{name}");
            assert!(list(container, "/ports").iter().all(|port| port["hostPort"].is_null()), "{name}");
        }
    }
}

#[test]
fn the_namespace_refuses_unrestricted_pods() {
    for composition in manifests::of_kustomize() {
        let namespaces: Vec<_> = composition.of_kind("Namespace").collect();
        assert_eq!(namespaces.len(), 1, "{}", composition.name);
        assert_eq!(namespaces[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    }
}

#[test]
fn no_pod_has_a_token_or_variables_of_services() {
    for (name, pod) in pods() {
        assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
        // Kubernetes would set WEIR_API_PORT and similar variables for the Service, which look like settings of Weir.
        assert_eq!(pod["enableServiceLinks"], false, "{name}");
    }
}

#[test]
fn every_container_has_resource_requests_and_a_memory_limit() {
    for (name, pod) in pods() {
        for container in list(pod, "/containers") {
            for pointer in ["/resources/requests/cpu", "/resources/requests/memory", "/resources/limits/memory"] {
                assert!(container.pointer(pointer).is_some(), "{name}: {pointer}");
            }
            // Also that of a Job which a component adds: the base alone leaves it to the overlay.
            let image = text(container, "/image");
            let is_named = image.contains(':') && !image.ends_with(":latest");
            assert!(is_named || (image == "weir" && name.contains(" of base")), "{name}: {image}");
        }
    }
}

#[test]
fn pods_have_enough_time_to_drain() {
    let drain = drain_seconds().unwrap();
    for (name, pod) in role_pods() {
        let before = pod.pointer("/containers/0/lifecycle/preStop/sleep/seconds").and_then(Value::as_u64).unwrap_or(0);
        let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert!(grace >= drain + before + 5, "{name} has {grace} s for {before} + {drain} s");
    }
}

#[test]
fn the_configured_shutdown_grace_is_the_default() {
    for composition in manifests::all() {
        for (workload, template) in composition.roles().filter(|(workload, _)| runs(workload)) {
            // `drain_seconds` uses the default.
            let grace = &composition.variables(template)["WEIR_SHUTDOWN_GRACE_S"];
            assert_eq!(grace.as_deref(), Some("25"), "{} of {}", id(workload), composition.name);
        }
    }
}

#[test]
fn load_balancers_have_time_to_remove_an_api_pod_before_it_stops() {
    for (name, pod) in role_pods() {
        if ["api", "serve"].contains(&text(pod, "/containers/0/args/0")) {
            assert_eq!(pod.pointer("/containers/0/lifecycle/preStop/sleep/seconds"), Some(&json!(10)), "{name}");
        }
    }
}

#[test]
fn liveness_asks_no_store_and_readiness_does() {
    for (name, pod) in role_pods() {
        let container = &pod["containers"][0];
        if ["backup", "migrate", "restored"].contains(&text(container, "/args/0")) {
            continue;
        }
        for (probe, path) in
            [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]
        {
            // On the metrics listener: the API listener may be saturated, which must not cause a restart.
            assert_eq!(container[probe]["httpGet"], json!({"path": path, "port": "metrics"}), "{name}: {probe}");
        }
    }
}

#[test]
fn a_migration_of_six_hours_is_not_killed() {
    for composition in manifests::all() {
        for (workload, template) in composition.roles().filter(|(workload, _)| runs(workload)) {
            let probe = &template["spec"]["containers"][0]["startupProbe"];
            let seconds = probe["periodSeconds"].as_u64().unwrap() * probe["failureThreshold"].as_u64().unwrap();
            assert!(seconds >= 6 * 3_600, "{} of {}: {seconds} s", id(workload), composition.name);
        }
        // A Job that migrates has no deadline.
        for job in composition.of_kind("Job") {
            assert!(job["spec"]["activeDeadlineSeconds"].is_null(), "{}", composition.name);
        }
    }
}

#[test]
fn roles_are_spread_over_zones_and_nodes() {
    for composition in manifests::all() {
        for (deployment, template) in composition.roles().filter(|(workload, _)| kind(workload) == "Deployment") {
            let constraints = list(template, "/spec/topologySpreadConstraints");
            let keys: Vec<_> = constraints.iter().map(|constraint| text(constraint, "/topologyKey")).collect();
            assert_eq!(keys, ["topology.kubernetes.io/zone", "kubernetes.io/hostname"], "{}", id(deployment));
            for constraint in constraints {
                assert_eq!(constraint["labelSelector"], deployment["spec"]["selector"], "{}", id(deployment));
            }
        }
    }
}

#[test]
fn there_are_two_schedulers() {
    for composition in manifests::all().iter().filter(|composition| !composition.is_embedded()) {
        let schedulers =
            composition.of_kind("Deployment").find(|object| text(object, "/metadata/name") == "weir-scheduler");
        assert_eq!(schedulers.unwrap()["spec"]["replicas"], 2, "{}", composition.name);
    }
}

#[test]
fn every_role_has_a_disruption_budget() {
    for composition in manifests::all() {
        let budgets: Vec<_> = composition.of_kind("PodDisruptionBudget").collect();
        for (workload, _) in composition.roles().filter(|(workload, _)| runs(workload)) {
            let selector = &workload["spec"]["selector"];
            let matching: Vec<_> = budgets.iter().filter(|budget| budget["spec"]["selector"] == *selector).collect();
            assert_eq!(matching.len(), 1, "{} of {}", id(workload), composition.name);
            assert_eq!(matching[0]["spec"]["maxUnavailable"], "25%");
        }
        assert_eq!(budgets.len(), composition.roles().filter(|(workload, _)| runs(workload)).count());
    }
}
