//! The worker: stands ready, takes the slot, sends, judges, settles.
//!
//! [`Worker`] takes permitted attempts from the delivery queue and makes each one; [`outbound`] is the way out, with the gate
//! at the wire; a recorder settles what ended in group commits.

mod attempt;
mod breakers;
mod meters;
pub mod outbound;
mod pipeline;
mod places;
mod recorder;
mod spans;
mod targets;

pub use pipeline::{DEFAULT_CAPACITY, Load, Worker};
pub use spans::{AttemptSpan, AttemptSpans, StartedSpan};
