//! The PostgreSQL store against a real server.

#![expect(clippy::unwrap_used, reason = "a test may stop anywhere, in its helpers too")]

mod claims;
mod compaction;
mod conformance;
mod counters;
mod database;
mod durability;
mod failures;
mod fixtures;
mod heads;
mod leases;
mod limit_keys;
mod message_groups;
mod moves;
mod open;
mod partitions;
mod poolers;
mod processes;
mod replicas;

use weir_store_postgres::PostgresStore;
