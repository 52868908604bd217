//! Tests of faults that take long and need the machine for themselves. `cargo xtask prove` runs them, with the load tests.
//! Other files have a module of the same name for such tests of theirs.

mod chaos;
mod degrade;
mod restore;
