//! Tests that judge times under load, and need the machine for themselves. Other files have a module of the same name for
//! such tests of theirs.

mod neighbours;
mod rolling;
mod scaled;
mod thousand;
