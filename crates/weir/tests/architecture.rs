//! The arrows between the crates point one way: core ← store, queue ← scheduler, worker, api ← weir.

use std::collections::BTreeSet;

use cargo_metadata::{DependencyKind, MetadataCommand};

/// The crates of the workspace that each crate may use. A new edge needs a sentence in ARCHITECTURE.md.
const ALLOWED: [(&str, &[&str]); 11] = [
    ("weir-core", &[]),
    ("weir-store", &["weir-core"]),
    ("weir-queue", &["weir-core"]),
    ("weir-store-postgres", &["weir-core", "weir-store"]),
    ("weir-queue-redis", &["weir-core", "weir-queue"]),
    ("weir-store-sqlite", &["weir-core", "weir-store"]),
    ("weir-scheduler", &["weir-core", "weir-queue", "weir-store"]),
    ("weir-worker", &["weir-core", "weir-queue", "weir-store"]),
    ("weir-api", &["weir-core", "weir-queue", "weir-store"]),
    ("weir-load-tests", &["weir-core"]),
    ("weir-model", &[]),
];

#[test]
fn crates_depend_only_in_the_direction_of_the_arrows() {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    for (name, allowed) in ALLOWED {
        let package = metadata.packages.iter().find(|package| package.name.as_str() == name).unwrap();
        let used: BTreeSet<_> = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind == DependencyKind::Normal && dependency.name.starts_with("weir-"))
            .map(|dependency| dependency.name.as_str())
            .collect();
        assert_eq!(used, allowed.iter().copied().collect(), "{name}");
    }
}

#[test]
fn the_domain_has_no_io_and_no_runtime() {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    let core = metadata.packages.iter().find(|package| package.name.as_str() == "weir-core").unwrap();
    for forbidden in ["tokio", "sqlx", "hyper", "reqwest", "axum", "rand", "tracing", "metrics"] {
        assert!(core.dependencies.iter().all(|dependency| dependency.name != forbidden), "{forbidden}");
    }
}
