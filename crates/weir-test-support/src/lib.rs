//! What tests, load tests and xtask share.

mod held_port;

pub use held_port::HeldPort;
