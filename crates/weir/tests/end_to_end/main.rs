//! The whole program on real sockets and in real time: the binary as a process, its servers, and receivers that keep
//! every arrival.
//!
//! Most tests wait for most of their time, so they run side by side. Two kinds of tests judge the times of requests or
//! the speed of Weir. They run after the others, because other tests could make requests late:
//!
//! - The tests in modules named `timed` cause little load, so two of them run at one time.
//! - The tests in modules named `alone` load the machine, so they run one at a time.
//!
//! `cargo xtask test` runs all these groups, and `cargo xtask prove` the tests in `proofs`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

mod adaptive;
mod alerts;
mod alone;
mod backlog;
mod backups;
mod bodies;
mod breaker;
mod cli;
mod cli_api;
mod clients;
mod clocks;
mod costs;
mod dashboard;
mod edges;
mod egress;
mod encryption;
mod event_filters;
mod floods;
mod folds;
mod holds;
mod journeys;
mod keys;
mod limit_groups;
mod limit_keys;
mod logs;
mod metrics;
mod openapi_fuzzed;
mod ordered;
mod overrides;
mod overviews;
#[cfg(target_os = "linux")]
mod ports;
mod processes;
mod prometheus;
mod proofs;
mod readme;
mod receivers;
mod refusals;
mod reloads;
mod replays;
mod requests;
mod reservations;
mod retries;
mod shared_redis;
mod shedding;
mod shutdown;
mod signatures;
mod spacing;
mod stalls;
#[cfg(target_os = "linux")]
mod store_faults;
mod terminal;
mod timed;
mod timing;
mod traces;
mod windows;
