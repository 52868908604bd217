//! The API from the outside: requests through the router, over the SQLite store and a queue that records what it is told.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod alerts;
mod audit;
mod bad_destinations;
mod bad_input;
mod deliveries;
mod destinations;
mod events;
mod harness;
mod lists;
mod ordering;
mod purges;
mod replays;
mod secrets;
mod serving;
mod timing;
