//! The manifests of `k8s/` that kustomize renders: valid, confined, and consistent with each other and with the
//! program.
//!
//! The tests use no API server: they render, validate and compare the manifests, and do not apply them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod autoscaling;
mod custom_resources;
mod monitoring;
mod network;
mod pods;
mod program;
mod schema;
mod services;
