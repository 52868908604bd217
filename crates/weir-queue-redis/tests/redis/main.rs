//! The Redis queue against real servers.
//!
//! Most tests share the servers of `WEIR_TEST_REDIS_URL` and `WEIR_TEST_REDIS_CLUSTER_URL`, each with its own keys.
//! Tests that kill, flush or secure a server start their own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clocks;
mod conformance;
mod connecting;
mod damage;
mod generations;
mod group_pacing;
mod groups;
mod installations;
mod keyed_members;
mod leases;
mod limit_keys;
mod lost_answers;
mod paces;
mod pacing;
mod sharing;
mod support;
mod workers;
