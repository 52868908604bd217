//! What tests, load tests and xtask share: held ports, accounts, and, with the feature `servers`, private servers and
//! processes of Weir.
//!
//! `held_port` holds a port, `account` is the user of a process, `weir` starts a process of Weir that a test may
//! kill.

pub mod account;
mod held_port;
#[cfg(feature = "servers")]
mod servers;
#[cfg(feature = "servers")]
mod weir;

pub use account::Account;
pub use held_port::HeldPort;
#[cfg(feature = "servers")]
pub use servers::{FAKE_TIME, Postgres, Redis, ServerClock, SlowLink, postgres_programs};
#[cfg(feature = "servers")]
pub use weir::{Listening, weir_command, weir_listens};
