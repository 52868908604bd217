//! The chart: it passes Helm's own checks, refuses wrong values, and makes the same objects as `k8s/`.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use serde_json::{Value, json};
use weir_deploy_checks::{
    manifests::{self, CHART, Composition, id, kind},
    project, read, run, tool, yaml,
};

/// The values with which the chart makes the same objects as a composition of kustomize.
const SAME: [(&str, &str); 3] = [
    ("chart: production", "production"),
    ("chart: embedded", "minimal + backup-embedded + ingress + restored-embedded"),
    ("chart: everything", "production + backup + gateway + grafana + migrate-job + restored + scale-to-zero + traces"),
];

/// What says who made an object, and how it is brought into the cluster.
const OF_THE_TOOL: [&str; 5] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
    "weir/service",
];
const HOOKS: [&str; 3] = ["helm.sh/", "argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/"];

fn helm(arguments: &[&str]) -> Command {
    let mut helm = Command::new(tool("WEIR_TEST_HELM").unwrap());
    helm.args(arguments).arg(project().join(CHART));
    helm
}

/// The objects without what differs between the tools: variables are in one list, and each object names its part.
fn comparable(composition: &Composition) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    // Settings are compared where they are used.
    let is_settings = |object: &Value| kind(object) == "ConfigMap" && id(object).contains("/weir-config");
    let compared = composition.objects.iter().filter(|object| kind(object) != "Namespace" && !is_settings(object));
    for object in compared {
        let mut object = object.clone();
        let about = object["metadata"].as_object_mut().unwrap();
        for field in ["labels", "annotations"] {
            let Some(values) = about.get_mut(field).and_then(Value::as_object_mut) else { continue };
            values.retain(|name, _| {
                !OF_THE_TOOL.contains(&&**name)
                    && !HOOKS.iter().any(|hook| name.starts_with(hook))
                    && name != "app.kubernetes.io/part-of"
            });
            if values.is_empty() {
                about.remove(field);
            }
        }
        if let Some((_, template)) = composition.workloads().find(|(workload, _)| id(workload) == id(&object)) {
            let path = if kind(&object) == "CronJob" { "/spec/jobTemplate/spec/template" } else { "/spec/template" };
            let container = object.pointer_mut(&format!("{path}/spec/containers/0")).unwrap().as_object_mut().unwrap();
            container.remove("envFrom");
            let secrets: Vec<_> = manifests::list(template, "/spec/containers/0/env")
                .iter()
                .filter_map(|one| one.pointer("/valueFrom"))
                .cloned()
                .collect();
            container.insert("env".to_owned(), json!({"values": composition.variables(template), "secrets": secrets}));
        }
        all.insert(id(&object), object);
    }
    all
}

#[test]
fn helm_accepts_the_chart_with_every_file_of_values() {
    for composition in manifests::all().iter().filter(|composition| composition.is_of_chart()) {
        let values = format!("{CHART}/ci/{}.yaml", composition.name.trim_start_matches("chart: "));
        let values = project().join(values);
        run(&mut helm(&["lint", "--strict", "--quiet", "--values", values.to_str().unwrap()])).unwrap();
    }
}

#[test]
fn the_chart_makes_the_same_objects_as_the_overlays() {
    for (chart, overlay) in SAME {
        let (of_chart, of_overlay) = (comparable(manifests::named(chart)), comparable(manifests::named(overlay)));
        let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(names(&of_chart), names(&of_overlay), "{chart} on the left, {overlay} on the right");
        for (name, object) in of_chart {
            assert_eq!(object, of_overlay[&name], "{name}: {chart} on the left, {overlay} on the right");
        }
    }
    for by in ["hpa-cpu", "hpa-external"] {
        let (chart, base) = (manifests::named(&format!("chart: {by}")), manifests::named(&format!("base + {by}")));
        let name = "HorizontalPodAutoscaler/weir-worker";
        assert_eq!(comparable(chart)[name], comparable(base)[name], "{by}");
    }
}

#[test]
fn a_value_that_is_misspelled_or_does_not_fit_is_refused_with_the_reason() {
    for (value, reason) in [
        ("mdoe=embedded", "additional properties 'mdoe' not allowed"),
        ("worker.autoscaling.by=vpa", "value must be one of 'keda', 'hpa-external', 'hpa-cpu', 'none'"),
        ("config.WEIR_API_KEYS=secret", "invalid propertyName 'WEIR_API_KEYS'"),
        ("config.weir_log=debug", "invalid propertyName 'weir_log'"),
        ("ingress.enabled=true", "ingress and gateway need publicUrl"),
        ("publicUrl=hooks.example.com", "publicUrl"),
        ("image.digest=latest", "digest"),
        ("mode=embedded,migrate.enabled=true", "migrate is for mode scaled"),
    ] {
        let output = helm(&["template", "weir", "--set", value]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(reason), "{value}: {error}");
    }
}

#[test]
fn every_value_is_in_the_schema_and_has_a_default() {
    fn compare(path: &str, schema: &Value, values: &Value) {
        let Some(properties) = schema["properties"].as_object() else { return };
        assert_eq!(schema["additionalProperties"], false, "{path} would accept a misspelled name");
        for (name, schema) in properties.iter().filter(|(name, _)| *name != "global") {
            let default = values.get(name).unwrap_or_else(|| panic!("{path}/{name} has no default"));
            compare(&format!("{path}/{name}"), schema, default);
        }
    }
    let schema: Value = serde_json::from_str(&read(&format!("{CHART}/values.schema.json")).unwrap()).unwrap();
    compare("", &schema, &yaml(&format!("{CHART}/values.yaml")).unwrap());
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = yaml(&format!("{CHART}/Chart.yaml")).unwrap();
    assert_eq!(
        (&chart["version"], &chart["appVersion"]),
        (&env!("CARGO_PKG_VERSION").into(), &env!("CARGO_PKG_VERSION").into())
    );
    // No ConfigMap of settings: an upgrade would change it under the pods of the last version.
    for composition in manifests::all().iter().filter(|composition| composition.is_of_chart()) {
        assert!(composition.of_kind("ConfigMap").all(|config| id(config) == "ConfigMap/weir-dashboard"));
    }
}
