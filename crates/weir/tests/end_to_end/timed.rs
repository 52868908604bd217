//! Tests that judge times and cause little load, so two of them may run at one time. Other files have a module of the same
//! name for such tests of theirs.

mod caps;
mod distant;
mod pasts;
mod survival;
mod tls;
