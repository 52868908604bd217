//! Network policies by their meaning: each connection that Weir needs is let through, and some that it must not make are
//! not. The rules are evaluated as a cluster does, also as one (Cilium) in which an address block never means a pod.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};
use weir_deploy_checks::manifests::{self, Composition, id, list, text};

/// The other end of a connection.
enum Peer<'p> {
    /// A pod, by its namespace and labels.
    Pod {
        namespace: &'p str,
        labels: Value,
    },
    Address(IpAddr),
}

fn selects(selector: &Value, labels: &Value) -> bool {
    let of_labels = selector["matchLabels"].as_object().into_iter().flatten().all(|(key, value)| labels[key] == *value);
    let of_expressions = list(selector, "/matchExpressions").iter().all(|expression| {
        assert_eq!(expression["operator"], "In", "the tests know no other");
        list(expression, "/values").contains(&labels[text(expression, "/key")])
    });
    of_labels && of_expressions
}

fn is_peer(rule: &Value, own_namespace: &str, peer: &Peer<'_>) -> bool {
    match peer {
        Peer::Address(address) => rule.get("ipBlock").is_some_and(|block| {
            let within = |net: &Value| net.as_str().unwrap().parse::<IpNet>().unwrap().contains(address);
            within(&block["cidr"]) && !list(block, "/except").iter().any(within)
        }),
        Peer::Pod { namespace, labels } => {
            let namespace_labels = json!({"kubernetes.io/metadata.name": namespace});
            let in_namespace = match rule.get("namespaceSelector") {
                Some(selector) => selects(selector, &namespace_labels),
                None => rule.get("podSelector").is_some() && *namespace == own_namespace,
            };
            in_namespace && rule.get("podSelector").is_none_or(|selector| selects(selector, labels))
        }
    }
}

/// Whether a policy of this direction (`egress` or `ingress`) lets a pod connect to, or be reached by, the peer.
fn lets_through(composition: &Composition, pod: &Value, direction: &str, peer: &Peer<'_>, port: &Value) -> bool {
    let ends = if direction == "egress" { "to" } else { "from" };
    composition.of_kind("NetworkPolicy").any(|policy| {
        selects(&policy["spec"]["podSelector"], pod)
            && list(policy, &format!("/spec/{direction}")).iter().any(|rule| {
                let peers = rule.get(ends).and_then(Value::as_array);
                let ports = rule.get("ports").and_then(Value::as_array);
                peers.is_none_or(|peers| peers.iter().any(|one| is_peer(one, composition.namespace(), peer)))
                    && ports.is_none_or(|ports| ports.iter().any(|one| one["port"] == *port))
            })
    })
}

/// Each pod of a composition: what it is called in messages, its labels, its command, and its variables.
fn pods(composition: &Composition) -> Vec<(String, &Value, &Value)> {
    let workloads = composition.workloads();
    workloads
        .map(|(workload, template)| {
            (format!("{} of {}", id(workload), composition.name), &template["metadata"]["labels"], template)
        })
        .collect()
}

const ROUTER: &str = "203.0.114.9";

#[test]
fn every_connection_that_weir_needs_is_let_through() {
    let mut collectors = 0;
    for composition in manifests::all() {
        // In `chart: fixed` the servers are in a namespace of their own; in `local` they are beside Weir.
        let databases = ["databases", composition.namespace()];
        let dns = Peer::Pod { namespace: "kube-system", labels: json!({"k8s-app": "kube-dns"}) };
        for (name, labels, template) in pods(composition) {
            if labels["app.kubernetes.io/name"] == "postgres" || labels["app.kubernetes.io/name"] == "redis" {
                continue;
            }
            assert!(lets_through(composition, labels, "egress", &dns, &json!(53)), "{name}: DNS");
            let variables = composition.variables(template);
            for (setting, server, port) in [("WEIR_DATABASE_URL", "postgres", 5432), ("WEIR_REDIS_URL", "redis", 6379)]
            {
                // A value that is not from a secret is that of SQLite.
                if variables.get(setting).is_none_or(Option::is_some) {
                    continue;
                }
                let shared = composition.name == "chart: fixed";
                let labels_of = json!({"app.kubernetes.io/name": server, "app.kubernetes.io/part-of": "weir"});
                let namespace = if shared { databases[0] } else { databases[1] };
                let pod = Peer::Pod { namespace, labels: labels_of };
                assert!(lets_through(composition, labels, "egress", &pod, &json!(port)), "{name}: the pod of {server}");
                if !shared {
                    let elsewhere = Peer::Address("10.20.30.40".parse().unwrap());
                    assert!(lets_through(composition, labels, "egress", &elsewhere, &json!(port)), "{name}: {server}");
                }
            }
            let command = text(template, "/spec/containers/0/args/0");
            if ["serve", "worker"].contains(&command) {
                let receiver = Peer::Address(ROUTER.parse().unwrap());
                assert!(lets_through(composition, labels, "egress", &receiver, &json!(443)), "{name}: receivers");
            }
            if ["serve", "api"].contains(&command) {
                let controller = Peer::Pod { namespace: "ingress-nginx", labels: json!({}) };
                for client in [controller, Peer::Address(ROUTER.parse().unwrap())] {
                    assert!(lets_through(composition, labels, "ingress", &client, &json!("http")), "{name}: clients");
                }
            }
            if ["serve", "api", "scheduler", "worker"].contains(&command) {
                let namespace = if composition.name == "custom" { "observability" } else { "monitoring" };
                let prometheus = Peer::Pod { namespace, labels: json!({}) };
                assert!(lets_through(composition, labels, "ingress", &prometheus, &json!("metrics")), "{name}");
            }
            if variables.contains_key("OTEL_EXPORTER_OTLP_ENDPOINT") && ["serve", "api", "worker"].contains(&command) {
                let collector = Peer::Pod { namespace: "monitoring", labels: json!({}) };
                assert!(lets_through(composition, labels, "egress", &collector, &json!(4318)), "{name}: OTLP");
                collectors += 1;
            }
        }
    }
    assert!(collectors >= 6, "{collectors}");
}

#[test]
fn connections_that_nobody_needs_are_not_let_through() {
    for composition in manifests::all() {
        for (name, labels, template) in pods(composition) {
            let command = text(template, "/spec/containers/0/args/0");
            let metadata = Peer::Address("169.254.169.254".parse().unwrap());
            assert!(!lets_through(composition, labels, "egress", &metadata, &json!(80)), "{name}: metadata");
            let neighbour = Peer::Pod { namespace: "shop", labels: json!({}) };
            assert!(!lets_through(composition, labels, "egress", &neighbour, &json!(8080)), "{name}: other pods");
            assert!(!lets_through(composition, labels, "ingress", &neighbour, &json!("metrics")), "{name}: metrics");
            if !["serve", "worker"].contains(&command) {
                let receiver = Peer::Address(ROUTER.parse().unwrap());
                assert!(!lets_through(composition, labels, "egress", &receiver, &json!(443)), "{name}: receivers");
            }
        }
    }
}

#[test]
fn servers_of_the_local_overlay_accept_every_pod_that_connects_to_them() {
    for composition in manifests::all().iter().filter(|composition| composition.name.starts_with("local")) {
        let server =
            |name: &str| pods(composition).into_iter().find(|(_, labels, _)| labels["app.kubernetes.io/name"] == name);
        for (name, labels, template) in pods(composition) {
            let variables = composition.variables(template);
            for (setting, of, port) in
                [("WEIR_DATABASE_URL", "postgres", "postgres"), ("WEIR_REDIS_URL", "redis", "redis")]
            {
                if variables.contains_key(setting) {
                    let client = Peer::Pod { namespace: composition.namespace(), labels: labels.clone() };
                    let (_, server, _) = server(of).unwrap();
                    assert!(lets_through(composition, server, "ingress", &client, &json!(port)), "{name}: {of}");
                }
            }
        }
    }
}
