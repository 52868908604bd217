//! Tests that need the machine for themselves. Other files have a module of the same name for such tests of theirs.

mod caps;
mod degrade;
mod neighbours;
mod restore;
mod rolling;
mod scaled;
mod survival;
mod tls;
