//! Tests that take minutes of load and need the machine for themselves. `cargo xtask prove` runs them, with the load
//! tests.

mod chaos;
