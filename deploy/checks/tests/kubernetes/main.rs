//! The manifests of `k8s/` that kustomize renders, and those of the chart: valid, confined, and consistent with each
//! other and with the program.
//!
//! The tests use no API server: they render, validate and compare the manifests, and do not apply them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod autoscaling;
mod chart;
mod connections;
mod custom_resources;
mod monitoring;
mod network;
mod pods;
mod program;
mod rollout;
mod schema;
mod services;
