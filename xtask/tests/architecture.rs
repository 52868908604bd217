//! The arrows between the crates point one way: core ← store, queue ← scheduler, worker, api ← weir.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// The crates of the workspace that each crate may use. A new edge needs a sentence in ARCHITECTURE.md.
const ALLOWED: [(&str, &[&str]); 14] = [
    ("weir-core", &[]),
    ("weir-chart", &["weir-core"]),
    ("weir-store", &["weir-core"]),
    ("weir-queue", &["weir-core"]),
    ("weir-store-postgres", &["weir-core", "weir-store"]),
    ("weir-queue-redis", &["weir-core", "weir-queue"]),
    ("weir-store-sqlite", &["weir-core", "weir-store"]),
    ("weir-scheduler", &["weir-core", "weir-queue", "weir-store"]),
    ("weir-worker", &["weir-core", "weir-queue", "weir-store"]),
    ("weir-api", &["weir-core", "weir-queue", "weir-store"]),
    ("weir-dashboard", &["weir-chart", "weir-core"]),
    ("weir-load-tests", &["weir-chart", "weir-core", "weir-test-support"]),
    ("weir-model", &[]),
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

/// The short paths of ARCHITECTURE.md.
const FOLDERS: [(&str, &[&str]); 14] = [
    ("core/", &["crates/weir-core/src/"]),
    ("chart/", &["crates/weir-chart/src/"]),
    ("store/", &["crates/weir-store/src/"]),
    ("sqlite/", &["crates/weir-store-sqlite/src/"]),
    ("postgres/", &["crates/weir-store-postgres/src/"]),
    ("stores/", &["crates/weir-store-sqlite/src/", "crates/weir-store-postgres/src/"]),
    ("queue/", &["crates/weir-queue/src/"]),
    ("redis/", &["crates/weir-queue-redis/src/"]),
    ("scheduler/", &["crates/weir-scheduler/src/"]),
    ("worker/", &["crates/weir-worker/src/"]),
    ("api/", &["crates/weir-api/src/"]),
    ("dashboard/", &["crates/weir-dashboard/src/"]),
    ("bin/", &["crates/weir/src/"]),
    ("", &[""]),
];

#[test]
fn architecture_names_files_and_tests_that_exist() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let mut sources = Vec::new();
    for folder in ["crates", "load-tests", "deploy/checks", "xtask"] {
        collect(&root.join(folder), &mut sources);
    }
    let code: String = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let named = page.split('`').skip(1).step_by(2);
    let missing: Vec<&str> = named
        .filter(|name| {
            if name.starts_with('.') {
                false
            } else if name.ends_with(".rs") || name.ends_with(".lua") {
                !is_a_file(root, name, &sources)
            } else {
                // A test: a sentence in snake case.
                name.matches('_').count() >= 4
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                    && !code.contains(name)
            }
        })
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names what does not exist: {missing:#?}");
    assert!(page.lines().count() <= 300, "ARCHITECTURE.md has at most 300 lines");
    let (_, glossary) = page.split_once("## Glossary").unwrap();
    assert!(glossary.matches("\n| ").count() <= 1 + 40, "the glossary has at most 40 words");
}

fn is_a_file(root: &Path, name: &str, sources: &[PathBuf]) -> bool {
    if !name.contains('/') {
        return sources.iter().any(|path| path.file_name().is_some_and(|file| file == name));
    }
    let (short, folders) = FOLDERS.iter().find(|(short, _)| name.starts_with(short)).unwrap();
    folders.iter().all(|folder| root.join(folder).join(&name[short.len()..]).is_file())
}

/// The sources below a folder.
fn collect(folder: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "lua") {
            sources.push(path);
        }
    }
}
