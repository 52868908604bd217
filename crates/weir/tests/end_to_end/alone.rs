//! Tests that judge times under load, and need the machine for themselves. `cargo xtask prove` runs them. Other files have
//! a module of the same name for such tests of theirs.

mod neighbours;
mod refusing;
mod rolling;
mod scaled;
mod thousand;
mod unrecorded;
