//! Others' limiters, written anew from their published descriptions and sources. Each sees the same late reports as
//! Weir's pace; the requests in flight are known at once, as they are in a process.
//!
//! What they do not have is not added: none of them waits for a `Retry-After` by itself, but the engine holds the
//! destination for all.

mod concurrency;
mod rate;

pub use concurrency::{Arc, Failsafe, Gradient2};
pub use rate::{Aimd, Atb, Cubic, Oracle};

use crate::{ours::Ours, world::Pacer};

/// A name, and how a new pacer is made.
pub type Opponent = (&'static str, fn() -> Box<dyn Pacer>);

/// Everybody who plays; Weir first.
pub const ALL: [Opponent; 8] = [
    ("Weir", || Box::new(Ours::default())),
    ("ATB", || Box::new(Atb::default())),
    ("failsafe-go", || Box::new(Failsafe::default())),
    ("ARC (Vector)", || Box::new(Arc::default())),
    ("CUBIC (AWS)", || Box::new(Cubic::default())),
    ("gradient2", || Box::new(Gradient2::default())),
    ("AIMD", || Box::new(Aimd::default())),
    ("oracle", || Box::new(Oracle::default())),
];
