//! Tests of the API through its router, with the SQLite store and a queue that records its calls.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod activity;
mod alerts;
mod audit;
mod bad_destinations;
mod bad_input;
mod by_name;
mod deliveries;
mod destinations;
mod events;
mod harness;
mod history;
mod idempotency;
mod lists;
mod ordering;
mod overviews;
mod previews;
mod purges;
mod replays;
mod secrets;
mod serving;
mod sessions;
mod status;
mod streams;
mod timing;
mod verify;
