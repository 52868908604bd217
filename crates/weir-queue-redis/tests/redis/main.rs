//! The Redis queue against real servers.
//!
//! Most tests share the servers named by `WEIR_TEST_REDIS_URL` and `WEIR_TEST_REDIS_CLUSTER_URL`, each with keys of its own.
//! Those that must kill, flush or secure a server start one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod connecting;
mod generations;
mod leases;
mod lost_answers;
mod pacing;
mod sharing;
mod support;
mod workers;
