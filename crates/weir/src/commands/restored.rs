//! `weir restored`: marks a restored store, because sends may have started after its backup. Every limit then continues
//! as if the last of them had started now.

use std::time::Duration;

use weir_core::{Clock as _, Timestamp};
use weir_queue_redis::RedisQueue;
use weir_store::Outbox as _;
use weir_store_postgres::PostgresStore;
use weir_store_sqlite::SqliteStore;

use crate::{
    backends::{application_name, redis_config},
    clock::SystemClock,
    config::{Backing, ProcessRole, SettingFlags, Settings},
    exit::Exit,
};

/// The clock of the old system may have been ahead of this clock. The margin delays no send: a last start in the future
/// counts as now.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(2);

pub(super) async fn run(flags: &SettingFlags) -> anyhow::Result<Exit> {
    // No role is started. The settings are read like those of a worker, which need no API key. The backends are chosen
    // as for `serve`, which accepts both kinds.
    let settings = Settings::load(flags, ProcessRole::Worker)?;
    let sends_until = match settings.backing(ProcessRole::Serve)? {
        Backing::Embedded { database } => {
            // This fails while another process has the file open.
            let store = SqliteStore::open(&database).await?;
            let sends_until = SystemClock::start().now() + CLOCK_DIFFERENCE;
            store.mark_restored(sends_until).await?;
            store.close().await;
            sends_until
        }
        Backing::Scaled { postgres, redis } => {
            let url = postgres.url_for(&application_name("restored"));
            let installation = PostgresStore::installation(&url).await?;
            // Processes that share Redis use its clock.
            let queue = RedisQueue::open(redis_config(&redis, installation)?).await?;
            let now = queue.clock().now();
            queue.close().await;
            let store = PostgresStore::open(&url, now).await?;
            let sends_until = now + CLOCK_DIFFERENCE;
            store.mark_restored(sends_until).await?;
            store.close().await;
            sends_until
        }
    };
    report(sends_until);
    Ok(Exit::Done)
}

fn report(sends_until: Timestamp) {
    println!("marked as restored: sends may have started until {sends_until}; every limit continues from then");
}
