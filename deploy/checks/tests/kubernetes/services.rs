//! Names that must agree: selectors and labels, ports, configuration and secrets, hosts.

use serde_json::Value;
use weir_deploy_checks::manifests::{self, id, list, runs, text};

fn selects(selector: &Value, labels: &Value) -> bool {
    selector.as_object().unwrap().iter().all(|(key, value)| labels[key] == *value)
}

fn has_port(template: &Value, name: &str) -> bool {
    list(template, "/spec/containers/0/ports").iter().any(|port| port["name"] == name)
}

#[test]
fn workloads_select_their_own_pods_and_no_others() {
    for composition in manifests::all() {
        for (workload, _) in composition.workloads().filter(|(workload, _)| runs(workload)) {
            let selector = &workload["spec"]["selector"]["matchLabels"];
            let selected = composition.workloads().filter(|(_, other)| selects(selector, &other["metadata"]["labels"]));
            let selected: Vec<_> = selected.map(|(other, _)| id(other)).collect();
            assert_eq!(selected, [id(workload)], "{}", composition.name);
        }
    }
}

#[test]
fn every_service_leads_to_ports_that_its_pods_have_and_none_to_metrics() {
    for composition in manifests::all() {
        for service in composition.of_kind("Service") {
            let selector = &service["spec"]["selector"];
            let pods: Vec<_> = composition
                .workloads()
                .filter(|(_, template)| selects(selector, &template["metadata"]["labels"]))
                .collect();
            assert_eq!(pods.len(), 1, "{} of {}", id(service), composition.name);
            for port in list(service, "/spec/ports") {
                let target = text(port, "/targetPort");
                assert!(has_port(pods[0].1, target), "{}: {target}", id(service));
                assert_ne!(target, "metrics", "{}", id(service));
            }
        }
    }
}

#[test]
fn weir_accepts_the_host_names_of_its_services() {
    for composition in manifests::all() {
        let (hosts, namespace) = (composition.hosts(), composition.namespace());
        for name in composition.of_kind("Service").map(|service| text(service, "/metadata/name")) {
            if name.starts_with("weir") {
                for host in [
                    name.to_owned(),
                    format!("{name}.{namespace}"),
                    format!("{name}.{namespace}.svc"),
                    format!("{name}.{namespace}.svc.cluster.local"),
                ] {
                    assert!(hosts.contains(&host), "{}: {host}", composition.name);
                }
            }
        }
    }
}

#[test]
fn objects_that_pods_refer_to_exist_or_are_created_by_the_guide() {
    let guide = weir_deploy_checks::read("k8s/README.md").unwrap();
    for composition in manifests::all() {
        let has =
            |wanted: &str, name: &str| composition.of_kind(wanted).any(|object| text(object, "/metadata/name") == name);
        for (workload, template) in composition.workloads() {
            let container = &template["spec"]["containers"][0];
            for from in list(container, "/envFrom") {
                assert!(has("ConfigMap", text(from, "/configMapRef/name")), "{} of {}", id(workload), composition.name);
            }
            for variable in
                list(container, "/env").iter().filter_map(|variable| variable.pointer("/valueFrom/secretKeyRef"))
            {
                let (name, key) = (text(variable, "/name"), text(variable, "/key"));
                let in_guide =
                    guide.contains(&format!("generic {name}")) && guide.contains(&format!("--from-literal={key}="));
                assert!(has("Secret", name) || in_guide, "{}: {key} of {name}", id(workload));
                // What a pod can do without may be missing there.
                if variable["optional"] == true {
                    continue;
                }
                // If External Secrets makes the secret, it makes every key.
                for made in composition.of_kind("ExternalSecret").filter(|made| text(made, "/metadata/name") == name) {
                    assert!(list(made, "/spec/data").iter().any(|one| text(one, "/secretKey") == key), "{key}");
                }
            }
            let made = composition.of_kind("StatefulSet").flat_map(|set| {
                let claims = list(set, "/spec/volumeClaimTemplates").iter();
                claims.map(move |claim| format!("{}-{}-0", text(claim, "/metadata/name"), text(set, "/metadata/name")))
            });
            let made: Vec<_> = made.collect();
            for volume in list(template, "/spec/volumes") {
                if let Some(claim) = volume.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str) {
                    let exists = has("PersistentVolumeClaim", claim) || made.iter().any(|made| made == claim);
                    assert!(exists, "{} of {}: {claim}", id(workload), composition.name);
                }
            }
            if let Some(account) = template["spec"]["serviceAccountName"].as_str() {
                assert!(has("ServiceAccount", account), "{}", id(workload));
            }
        }
    }
}
