//! The worker: waits for the slot, signs, sends, judges, settles.
//!
//! [`Worker`] takes permitted attempts from the delivery queue and makes each one; [`outbound`] is the way out, with the gate
//! at the wire; a recorder settles what ended in group commits.

mod attempt;
mod breakers;
mod lane;
mod meters;
pub mod outbound;
mod pipeline;
mod recorder;
mod targets;

pub use pipeline::Worker;
