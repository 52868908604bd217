//! Every object is valid for Kubernetes or for its operator.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

use serde_json::Value;

use weir_deploy_checks::{
    manifests::{self, OVERLAYS, id, kind, text},
    project, tool,
};

use crate::custom_resources;

/// The oldest version with `preStop.sleep` enabled by default, and the newest version with a schema in the tool.
const VERSIONS: [&str; 2] = ["1.30", "1.37"];

fn folders(under: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(project().join(under)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_overlay_and_every_component_is_tested() {
    assert_eq!(folders("k8s/overlays"), OVERLAYS.map(str::to_owned).into());
    assert_eq!(folders("k8s/components"), manifests::components().into_iter().map(str::to_owned).collect());
}

#[test]
fn every_object_is_valid_and_of_a_known_kind() {
    // Most objects are the same in many compositions.
    let objects: BTreeMap<String, &Value> =
        manifests::all().iter().flat_map(|of| &of.objects).map(|object| (object.to_string(), object)).collect();
    for version in VERSIONS {
        let unknown = without_schema(objects.keys(), version);
        for object in objects.values() {
            let kind = format!("{} with api version {}", kind(object), text(object, "/apiVersion"));
            if unknown.contains(&kind) {
                custom_resources::check(object).unwrap_or_else(|error| panic!("{}: {error}", id(object)));
            }
        }
    }
}

/// Validates the objects with a schema and returns the kinds without one, which the tool does not treat as failures.
fn without_schema<'o>(objects: impl ExactSizeIterator<Item = &'o String>, version: &str) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rendered.yaml");
    let count = objects.len();
    // JSON is YAML.
    fs::write(&file, objects.map(String::as_str).collect::<Vec<_>>().join("\n---\n")).unwrap();
    let mut validate = Command::new(tool("WEIR_TEST_KUBERNETES_VALIDATE").unwrap());
    let output = validate.args(["--strict", "--kubernetes-version", version]).arg(&file).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    let no_schema = "Couldn't find schema for kind ";
    let unknown: Vec<_> = printed.lines().filter_map(|line| line.split_once(no_schema)).collect();
    let passed = printed.lines().filter(|line| line.contains(" passed for resource ")).count();
    // Another message of a later version of the tool must not count as valid.
    assert_eq!(passed + unknown.len(), count, "{printed}");
    unknown.iter().filter_map(|(_, kind)| Some(kind.split_once(" for kubernetes version")?.0.to_owned())).collect()
}

#[test]
fn every_object_is_unique_and_in_the_namespace() {
    for composition in manifests::all() {
        let ids: BTreeSet<_> = composition.objects.iter().map(id).collect();
        assert_eq!(ids.len(), composition.objects.len(), "{}", composition.name);
        for object in composition.objects.iter().filter(|object| kind(object) != "Namespace") {
            let namespace = composition.namespace();
            assert_eq!(object["metadata"]["namespace"], namespace, "{} of {}", id(object), composition.name);
        }
    }
}

#[test]
fn only_the_local_overlay_contains_secrets() {
    for composition in manifests::all().iter().filter(|composition| !composition.name.starts_with("local")) {
        assert_eq!(composition.of_kind("Secret").count(), 0, "{}", composition.name);
    }
}
