//! Access from outside: what an Ingress or an HTTPRoute leads to exists, and Weir knows its own address.

use serde_json::{Value, json};
use weir_deploy_checks::{
    manifests::{self, Composition, id, list, text},
    read,
};

/// Every way in: its object, its host, and the name and port of its Service.
fn ways_in(composition: &Composition) -> Vec<(&Value, &str, &str, &Value)> {
    let ingresses = composition.of_kind("Ingress").map(|ingress| {
        let service = &ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"];
        (ingress, text(ingress, "/spec/rules/0/host"), text(service, "/name"), &service["port"]["name"])
    });
    let routes = composition.of_kind("HTTPRoute").map(|route| {
        let backend = &route["spec"]["rules"][0]["backendRefs"][0];
        (route, text(route, "/spec/hostnames/0"), text(backend, "/name"), &backend["port"])
    });
    ingresses.chain(routes).collect()
}

#[test]
fn a_way_in_leads_to_a_service_whose_pods_have_the_api() {
    let mut seen = 0;
    for composition in manifests::all() {
        for (way, _, name, port) in ways_in(composition) {
            let service = composition.of_kind("Service").find(|service| text(service, "/metadata/name") == name);
            let service = service.unwrap_or_else(|| panic!("{} of {}: no Service {name}", id(way), composition.name));
            let ports = list(service, "/spec/ports");
            assert!(ports.iter().any(|of| of["name"] == *port || of["port"] == *port), "{}", id(way));
            let selected = &service["spec"]["selector"]["app.kubernetes.io/name"];
            let leads = composition
                .serving()
                .any(|(_, template)| template["metadata"]["labels"]["app.kubernetes.io/name"] == *selected);
            assert!(leads, "{} of {}", id(way), composition.name);
            seen += 1;
        }
    }
    assert!(seen >= 12, "{seen}");
}

#[test]
fn where_browsers_reach_weir_over_https_its_cookie_links_and_hosts_are_for_that_host() {
    for composition in manifests::all() {
        for (way, host, ..) in ways_in(composition) {
            let expected = format!("https://{host}");
            let name = format!("{} of {}", id(way), composition.name);
            assert_eq!(composition.setting("WEIR_PUBLIC_URL").as_deref(), Some(&*expected), "{name}");
            assert!(composition.hosts().iter().any(|accepted| accepted == host), "{name}");
            if way["kind"] == "Ingress" {
                assert_eq!(way["spec"]["tls"][0]["hosts"], json!([host]), "{name}");
            }
        }
    }
}

#[test]
fn proxies_pass_batches_and_streams_and_ask_for_health_where_weir_answers() {
    // The program refuses larger bodies itself.
    let ingest = read("crates/weir-api/src/resources/ingest.rs").unwrap();
    assert!(ingest.contains("const MAX_BATCH_BYTES: usize = 32 * 1024 * 1024;"), "the annotations say 32m");
    for composition in manifests::all() {
        for ingress in composition.of_kind("Ingress") {
            let annotations = &ingress["metadata"]["annotations"];
            assert_eq!(annotations["nginx.ingress.kubernetes.io/proxy-body-size"], "32m", "{}", composition.name);
            assert_eq!(annotations["nginx.ingress.kubernetes.io/proxy-buffering"], "off");
            assert_eq!(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"], "3600");
            assert_eq!(annotations["alb.ingress.kubernetes.io/healthcheck-path"], "/healthz");
        }
        for route in composition.of_kind("HTTPRoute") {
            assert_eq!(route["spec"]["rules"][0]["timeouts"], json!({"request": "0s", "backendRequest": "0s"}));
        }
    }
}

#[test]
fn one_place_says_what_differs_between_clusters() {
    let custom = manifests::named("custom");
    assert_eq!(custom.namespace(), "webhooks");
    let all = serde_json::to_string(&custom.objects).unwrap();
    // The values of the other overlays are left nowhere.
    for default in ["weir.example.com", "prometheus-operated", "\"monitoring\"", "namespace=\\\"weir\\\"", ".weir.svc"]
    {
        assert!(!all.contains(default), "{default}");
    }
    let namespace = custom.of_kind("Namespace").next().unwrap();
    assert_eq!(namespace["metadata"]["name"], "webhooks");
    assert_eq!(ways_in(custom)[0].1, "hooks.example.com");
    let scaled = custom.of_kind("ScaledObject").next().unwrap();
    for trigger in list(scaled, "/spec/triggers") {
        assert_eq!(trigger["metadata"]["serverAddress"], "http://prometheus.observability.svc:9090");
    }
    assert!(!all.contains("weir-cluster") && !all.contains("weir-host-names"), "they are only read by kustomize");
}
