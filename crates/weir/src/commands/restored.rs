//! `weir restored`: tells a restored store that sends may have started after its backup. Every limit then goes on as if the last of
//! them had started now.

use std::time::Duration;

use weir_core::{Clock as _, Timestamp};
use weir_queue_redis::{RedisConfig, RedisQueue};
use weir_store::Outbox as _;
use weir_store_postgres::PostgresStore;
use weir_store_sqlite::SqliteStore;

use crate::{
    cli::{Exit, SettingFlags},
    clock::SystemClock,
    config::{Backing, Role, Settings},
};

/// The clock by which the old system sent may have been ahead of this one. This margin makes nobody wait longer: a last start that
/// lies in the future counts as now.
const CLOCKS_DIFFER_BY: Duration = Duration::from_secs(2);

pub(super) async fn run(flags: &SettingFlags) -> anyhow::Result<Exit> {
    // No role is started, so what only the API needs is not asked for; both set-ups can be meant.
    let settings = Settings::load(flags, Role::Worker)?;
    let sends_until = match settings.backing(Role::Serve)? {
        Backing::Embedded { database } => {
            // While a process sends, it holds the file, and this is refused.
            let store = SqliteStore::open(&database).await?;
            let sends_until = SystemClock::start().now() + CLOCKS_DIFFER_BY;
            store.mark_restored(sends_until).await?;
            store.close().await;
            sends_until
        }
        Backing::Scaled { postgres, redis } => {
            // The processes that share Redis go by its clock.
            let queue = RedisQueue::open(RedisConfig::from_urls(redis.as_ref())).await?;
            let now = queue.clock().now();
            queue.close().await;
            let store = PostgresStore::open(postgres.as_ref(), now).await?;
            let sends_until = now + CLOCKS_DIFFER_BY;
            store.mark_restored(sends_until).await?;
            store.close().await;
            sends_until
        }
    };
    report(sends_until);
    Ok(Exit::Done)
}

fn report(sends_until: Timestamp) {
    println!("marked as restored: sends may have started until {sends_until}; every limit goes on from there");
}
