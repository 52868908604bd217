//! The manifests of `k8s/` as kustomize renders them: valid, confined, consistent with each other and with the program.
//!
//! No API server sees them here: they are rendered, validated and compared, not applied.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod autoscaling;
mod custom_resources;
mod monitoring;
mod network;
mod pods;
mod program;
mod schema;
mod services;
