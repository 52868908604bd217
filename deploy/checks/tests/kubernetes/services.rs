//! Names that must agree: selectors and labels, ports, configuration and secrets, hosts.

use serde_json::Value;
use weir_deploy_checks::manifests::{self, Composition, id, kind, list, text};

fn selects(selector: &Value, labels: &Value) -> bool {
    selector.as_object().unwrap().iter().all(|(key, value)| labels[key] == *value)
}

fn has_port(template: &Value, name: &str) -> bool {
    list(template, "/spec/containers/0/ports").iter().any(|port| port["name"] == name)
}

#[test]
fn workloads_select_their_own_pods_and_no_others() {
    for composition in manifests::all() {
        for (workload, _) in composition.workloads().filter(|(workload, _)| kind(workload) != "Job") {
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
fn ingress_and_gateway_lead_to_a_service_and_to_a_host_that_weir_accepts() {
    let ingress = manifests::named("base + ingress");
    let rule = &ingress.of_kind("Ingress").next().unwrap()["spec"]["rules"][0];
    let backend = &rule["http"]["paths"][0]["backend"]["service"];
    assert_eq!((&backend["name"], &backend["port"]["name"]), (&"weir-api".into(), &"http".into()));
    assert!(hosts(ingress).contains(&text(rule, "/host")));

    let gateway = manifests::named("base + gateway");
    let route = gateway.of_kind("HTTPRoute").next().unwrap();
    let backend = &route["spec"]["rules"][0]["backendRefs"][0];
    let service = gateway.of_kind("Service").find(|service| service["metadata"]["name"] == backend["name"]).unwrap();
    assert_eq!(backend["port"], service["spec"]["ports"][0]["port"]);
    assert!(hosts(gateway).contains(&text(route, "/spec/hostnames/0")));
}

#[test]
fn weir_accepts_the_host_names_of_its_services() {
    for composition in manifests::all() {
        let hosts = hosts(composition);
        for name in composition.of_kind("Service").map(|service| text(service, "/metadata/name")) {
            if name.starts_with("weir") {
                for host in [
                    name.to_owned(),
                    format!("{name}.weir"),
                    format!("{name}.weir.svc"),
                    format!("{name}.weir.svc.cluster.local"),
                ] {
                    assert!(hosts.contains(&host.as_str()), "{}: {host}", composition.name);
                }
            }
        }
    }
}

fn hosts(composition: &Composition) -> Vec<&str> {
    configured(composition, "WEIR_HOSTS").unwrap().split(',').collect()
}

fn configured<'c>(composition: &'c Composition, setting: &str) -> Option<&'c str> {
    composition.of_kind("ConfigMap").find_map(|config| config["data"][setting].as_str())
}

#[test]
fn where_browsers_reach_weir_over_https_its_cookie_and_links_are_for_that_host() {
    let mut reached = 0;
    for composition in manifests::all() {
        let ingresses = composition.of_kind("Ingress").map(|ingress| text(ingress, "/spec/rules/0/host"));
        let routes = composition.of_kind("HTTPRoute").map(|route| text(route, "/spec/hostnames/0"));
        for host in ingresses.chain(routes) {
            let expected = format!("https://{host}");
            assert_eq!(configured(composition, "WEIR_PUBLIC_URL"), Some(&*expected), "{}", composition.name);
            assert!(hosts(composition).contains(&host), "{}: {host}", composition.name);
            reached += 1;
        }
    }
    assert!(reached >= 2, "an Ingress and an HTTPRoute");
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
            }
            if let Some(account) = template["spec"]["serviceAccountName"].as_str() {
                assert!(has("ServiceAccount", account), "{}", id(workload));
            }
        }
    }
}
