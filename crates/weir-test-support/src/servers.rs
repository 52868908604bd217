//! Servers that a test may kill, suspend and start again, each on a held loopback port of its own. They are killed when
//! they are dropped.
//!
//! The environment names the programs (`WEIR_TEST_REDIS_SERVER`, `WEIR_TEST_POSTGRES_BIN`), as `cargo xtask` sets it;
//! otherwise the usual folders are searched.

mod clock;
mod postgres;
mod process;
mod redis;
mod slow_link;

pub use clock::{FAKE_TIME, ServerClock};
pub use postgres::{Postgres, postgres_programs};
pub use redis::Redis;
pub use slow_link::SlowLink;
