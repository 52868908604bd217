//! The worker: prepares a send, takes a slot, sends, judges the answer, and settles.
//!
//! [`Worker`] takes permits from the delivery queue and makes an attempt with each. [`outbound`] is the HTTP client;
//! its gate keeps each send inside its slot. A recorder settles ended attempts in group commits.
//!
//! `targets` keeps destinations as they are needed for sends, `spans` is the interface to a tracer.

mod attempt;
mod breakers;
mod held_claims;
mod meters;
pub mod outbound;
mod pipeline;
mod places;
mod recorder;
mod spans;
mod targets;

pub use pipeline::{DEFAULT_CAPACITY, Worker, WorkerLoad};
pub use recorder::Recorded;
pub use spans::{AttemptSpan, AttemptSpans, StartedSpan};
