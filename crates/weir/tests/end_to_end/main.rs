//! The whole program on real sockets and in real time: the binary as a process, its servers, and receivers that keep
//! every arrival.
//!
//! Most tests wait for most of their time, so they run side by side. The tests in modules named `alone` judge the times
//! of requests or the speed of Weir. They run after the others and one at a time, so a limit that is exceeded cannot be
//! the effect of another test. `cargo xtask test` runs both groups, and `cargo xtask prove` the tests in `proofs`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

mod alerts;
mod alone;
mod backlog;
mod breaker;
mod cli;
mod cli_api;
mod clients;
mod dashboard;
mod edges;
mod folds;
mod journeys;
mod keys;
mod logs;
mod metrics;
mod openapi_fuzzed;
mod ordered;
mod overviews;
#[cfg(target_os = "linux")]
mod ports;
mod processes;
mod prometheus;
mod proofs;
mod readme;
mod receivers;
mod replays;
mod requests;
mod retries;
mod shutdown;
mod signatures;
mod timing;
mod traces;
