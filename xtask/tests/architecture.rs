//! The arrows between the crates point one way: core ← store, queue ← scheduler, worker, api ← weir. Every behaviour of a
//! conformance suite is listed, so that it runs on every backend.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use serde_json::Value;

/// The crates of the workspace that each crate may use. A new edge needs a sentence in ARCHITECTURE.md.
const ALLOWED: [(&str, &[&str]); 18] = [
    ("weir-core", &[]),
    ("weir-api-types", &["weir-core"]),
    ("weir-chart", &["weir-core"]),
    ("weir-sealing", &[]),
    ("weir-store", &["weir-core", "weir-sealing"]),
    ("weir-queue", &["weir-core"]),
    ("weir-store-postgres", &["weir-core", "weir-sealing", "weir-store"]),
    ("weir-queue-redis", &["weir-core", "weir-queue", "weir-sealing"]),
    ("weir-store-sqlite", &["weir-core", "weir-sealing", "weir-store"]),
    ("weir-scheduler", &["weir-api-types", "weir-core", "weir-queue", "weir-store"]),
    ("weir-worker", &["weir-core", "weir-queue", "weir-store"]),
    ("weir-api", &["weir-api-types", "weir-core", "weir-queue", "weir-store"]),
    ("weir-cli", &["weir-api-types", "weir-chart", "weir-core"]),
    ("weir-dashboard", &["weir-api-types", "weir-chart", "weir-core"]),
    ("weir-load-tests", &["weir-api-types", "weir-chart", "weir-core", "weir-pace-trials", "weir-test-support"]),
    ("weir-model", &[]),
    ("weir-pace-trials", &["weir-core"]),
    ("weir-test-support", &[]),
];

/// The dependencies of a crate of the workspace, as `cargo metadata` describes them.
fn dependencies(name: &str) -> Vec<Value> {
    let cargo = Command::new(env!("CARGO")).args(["metadata", "--no-deps", "--format-version=1"]).output().unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let metadata: Value = serde_json::from_slice(&cargo.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == name).unwrap();
    package["dependencies"].as_array().unwrap().clone()
}

#[test]
fn crates_depend_only_in_the_direction_of_the_arrows() {
    for (name, allowed) in ALLOWED {
        let dependencies = dependencies(name);
        let used: BTreeSet<_> = dependencies
            .iter()
            // Dependencies of tests and of build scripts have a kind.
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["name"].as_str().filter(|name| name.starts_with("weir-")))
            .collect();
        assert_eq!(used, allowed.iter().copied().collect(), "{name}");
    }
}

#[test]
fn the_domain_has_no_io_and_no_runtime() {
    let dependencies = dependencies("weir-core");
    assert!(!dependencies.is_empty());
    for forbidden in ["tokio", "sqlx", "hyper", "reqwest", "axum", "rand", "tracing", "metrics"] {
        assert!(dependencies.iter().all(|dependency| dependency["name"] != forbidden), "{forbidden}");
    }
}

#[test]
fn every_behaviour_of_a_conformance_suite_is_listed() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("crates");
    for (suite, list) in
        [("weir-store/src/conformance", "behaviours.rs"), ("weir-queue/src/conformance", "../conformance.rs")]
    {
        let list = fs::read_to_string(crates.join(suite).join(list)).unwrap();
        let listed: BTreeSet<&str> = list.lines().map(|line| line.trim().trim_end_matches(',')).collect();
        let mut behaviours = BTreeSet::new();
        for file in fs::read_dir(crates.join(suite)).unwrap() {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            let functions = text.lines().filter_map(|line| line.strip_prefix("pub async fn "));
            behaviours
                .extend(functions.filter_map(|line| line.split_once("(subject: Subject)")).map(|one| one.0.to_owned()));
        }
        behaviours.retain(|behaviour| !listed.contains(&**behaviour));
        assert!(behaviours.is_empty(), "behaviours of {suite} that run on no backend: {behaviours:?}");
    }
}
