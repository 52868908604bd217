//! Tests of the API through its router, with the SQLite store and a queue that records its calls.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod activity;
mod adaptive;
mod alerts;
mod api_keys;
mod audit;
mod bad_destinations;
mod bad_input;
mod bounds;
mod breakers;
mod browsers;
mod by_name;
mod deliveries;
mod destinations;
mod egress;
mod event_filters;
mod event_types;
mod events;
mod extremes;
mod fan_out;
mod generators;
mod harness;
mod history;
mod holds;
mod idempotency;
mod limit_groups;
mod lists;
mod ordering;
mod overrides;
mod overviews;
mod previews;
mod purges;
mod replays;
mod secrets;
mod serving;
mod sessions;
mod shedding;
mod simulations;
mod status;
mod streams;
mod tenants;
mod timing;
mod verify;
mod waits;
