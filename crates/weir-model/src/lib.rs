//! Weir's distributed protocol, checked in every interleaving of a small world.

mod actions;
mod drained;
pub mod properties;
mod queue;
mod scenario;
mod scheduler;
mod state;
mod store;
mod surroundings;
mod time;
mod worker;

pub use actions::{Action, Protocol};
pub use scenario::{Connections, Faults, Remedies, Scenario};
pub use state::{State, Ticks};
