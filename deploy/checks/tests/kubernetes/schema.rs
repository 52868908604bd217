//! Every object is one that Kubernetes, or the operator that it is for, takes as it stands.

use std::{collections::BTreeSet, fs, process::Command};

use weir_deploy_checks::{
    manifests::{self, COMPONENTS, OVERLAYS, id, kind, text},
    project, tool,
};

use crate::custom_resources;

/// The oldest version that has `preStop.sleep` without a feature gate turned on by hand, and the newest with a schema here.
const VERSIONS: [&str; 2] = ["1.30", "1.37"];

fn folders(under: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(project().join(under)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_overlay_and_every_component_is_looked_at() {
    assert_eq!(folders("k8s/overlays"), OVERLAYS.map(str::to_owned).into());
    assert_eq!(
        folders("k8s/components"),
        COMPONENTS.iter().copied().flatten().map(|name| (*name).to_owned()).collect()
    );
}

#[test]
fn every_object_is_valid_and_of_a_known_kind() {
    for version in VERSIONS {
        for composition in manifests::all() {
            let unknown = without_schema(&composition.text, version);
            for object in &composition.objects {
                let kind = format!("{} with api version {}", kind(object), text(object, "/apiVersion"));
                if unknown.contains(&kind) {
                    custom_resources::check(object).unwrap_or_else(|error| panic!("{}: {error}", id(object)));
                }
            }
        }
    }
}

/// Validates what has a schema, and answers the kinds that have none: they are no failure to the tool.
fn without_schema(manifests: &str, version: &str) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rendered.yaml");
    fs::write(&file, manifests).unwrap();
    let mut validate = Command::new(tool("WEIR_TEST_KUBERNETES_VALIDATE").unwrap());
    let output = validate.args(["--strict", "--kubernetes-version", version]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let unknown: Vec<_> = said.lines().filter_map(|line| line.split_once("Couldn't find schema for kind ")).collect();
    let passed = said.lines().filter(|line| line.contains(" passed for resource ")).count();
    // Whatever else it may say one day must not pass for valid.
    assert_eq!(passed + unknown.len(), manifests.split("\n---\n").count(), "{said}");
    unknown.iter().filter_map(|(_, kind)| Some(kind.split_once(" for kubernetes version")?.0.to_owned())).collect()
}

#[test]
fn no_object_is_there_twice_and_each_is_in_the_namespace() {
    for composition in manifests::all() {
        let ids: BTreeSet<_> = composition.objects.iter().map(id).collect();
        assert_eq!(ids.len(), composition.objects.len(), "{}", composition.name);
        for object in composition.objects.iter().filter(|object| kind(object) != "Namespace") {
            assert_eq!(object["metadata"]["namespace"], "weir", "{} of {}", id(object), composition.name);
        }
    }
}

#[test]
fn no_secret_has_a_value_but_those_of_the_local_overlay() {
    for composition in manifests::all().iter().filter(|composition| composition.name != "local") {
        assert_eq!(composition.of_kind("Secret").count(), 0, "{}", composition.name);
    }
}
