//! Prometheus in the cluster: its targets, the queries of autoscalers, and the rules and dashboard of `deploy/`.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::Value;
use weir_deploy_checks::{
    manifests::{self, list, runs, text},
    project, read, run, tool, yaml,
};

const RULES: &str = "deploy/prometheus/rules.yaml";
const RESOURCE: &str = "k8s/components/prometheus-operator/prometheusrule.yaml";
const HEAD: &str = "\
# Generated from deploy/prometheus/rules.yaml. Edit that file, then run: WEIR_WRITE=1 cargo test -p weir-deploy-checks rules_of
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: weir
  labels:
    app.kubernetes.io/part-of: weir
spec:
";

#[test]
fn rules_of_the_operator_are_the_rules_of_deploy() {
    let rules = read(RULES).unwrap();
    let indented = rules.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") });
    let resource = HEAD.to_owned() + &indented.collect::<String>();
    if std::env::var_os("WEIR_WRITE").is_some() {
        fs::write(project().join(RESOURCE), &resource).unwrap();
    }
    assert!(
        read(RESOURCE).unwrap() == resource,
        "{RESOURCE} differs from {RULES}: its first line says how to generate it"
    );
    // The indentation must not change the parsed rules.
    let rendered = manifests::named("production").of_kind("PrometheusRule").next().unwrap();
    assert_eq!(rendered["spec"], yaml(RULES).unwrap());
}

#[test]
fn the_dashboard_of_the_cluster_is_the_dashboard_of_deploy() {
    let dashboards = manifests::named("base + grafana");
    let config =
        dashboards.of_kind("ConfigMap").find(|config| text(config, "/metadata/name") == "weir-dashboard").unwrap();
    assert_eq!(config["metadata"]["labels"]["grafana_dashboard"], "1");
    let dashboard: Value = serde_json::from_str(config["data"]["weir.json"].as_str().unwrap()).unwrap();
    assert_eq!(dashboard, serde_json::from_str::<Value>(&read("deploy/grafana/weir.json").unwrap()).unwrap());
}

#[test]
fn every_pod_is_scraped_on_the_metrics_port_with_its_role_as_job() {
    let monitor = manifests::named("production").of_kind("PodMonitor").next().unwrap();
    assert_eq!(monitor["spec"]["jobLabel"], "app.kubernetes.io/name");
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["port"], "metrics");
    for composition in manifests::all() {
        let running = composition.roles().filter(|(workload, _)| runs(workload));
        let mut jobs: Vec<_> = running
            .map(|(_, template)| {
                assert_eq!(template["metadata"]["labels"]["app.kubernetes.io/part-of"], "weir");
                text(template, "/metadata/labels/app.kubernetes.io~1name")
            })
            .collect();
        jobs.sort_unstable();
        let expected: &[&str] =
            if composition.is_embedded() { &["weir"] } else { &["weir-api", "weir-scheduler", "weir-worker"] };
        assert_eq!(jobs, expected, "{}", composition.name);
    }
}

#[test]
fn queries_of_autoscalers_are_valid_and_select_this_namespace_and_existing_jobs() {
    let mut queries = BTreeSet::new();
    for composition in manifests::all() {
        let namespace = composition.namespace();
        for trigger in composition.of_kind("ScaledObject").flat_map(|scaled| list(scaled, "/spec/triggers")) {
            let query = text(trigger, "/metadata/query");
            queries.insert(query);
            let selectors: Vec<_> = query.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()).collect();
            assert!(!selectors.is_empty());
            for selector in selectors {
                let of = |job: &str| selector == format!("namespace=\"{namespace}\", job=\"{job}\"");
                assert!(of("weir-worker") || of("weir-scheduler"), "{query} of {}", composition.name);
            }
        }
    }
    // Those of the two namespaces, and those of scale-to-zero.
    assert_eq!(queries.len(), 3 + 3 + 2);
    let mut rules = "groups:\n  - name: queries\n    rules:\n".to_owned();
    for (n, query) in queries.iter().enumerate() {
        rules += &format!("      - record: query{n}\n        expr: {}\n", serde_json::to_string(query).unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("queries.yaml");
    fs::write(&file, rules).unwrap();
    run(Command::new(tool("WEIR_TEST_PROMTOOL").unwrap()).args(["check", "rules"]).arg(file)).unwrap();
}
