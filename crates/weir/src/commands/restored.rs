//! `weir restored`: marks a restored store, because sends may have started after its backup. Every limit then continues
//! as if the last of them had started now. Refused while processes run, because they would go on sending.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep};
use weir_core::{Clock as _, Timestamp, claim::ProcessId};
use weir_queue_redis::RedisQueue;
use weir_store::{DEAD_AFTER, Outbox as _, Processes as _, RunningProcess, StoreResult};
use weir_store_postgres::{Connections, PostgresStore};
use weir_store_sqlite::SqliteStore;

use crate::{
    backends::{application_name, redis_config},
    clock::SystemClock,
    config::{Backing, ProcessRole, SettingFlags, Settings},
    exit::{Exit, Misuse},
};

/// The clock of the old system may have been ahead of this clock. The margin delays no send: a last start in the future
/// counts as now.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(2);
/// How often the beats of processes are read while they are observed.
const OBSERVED_EVERY: Duration = Duration::from_millis(250);

pub(super) async fn run(flags: &SettingFlags) -> anyhow::Result<Exit> {
    // No role is started. The settings are read like those of a worker, which need no API key. The backends are chosen
    // as for `serve`, which accepts both kinds.
    let settings = Settings::load(flags, ProcessRole::Worker)?;
    let sends_until = match settings.backing(ProcessRole::Serve)? {
        Backing::Embedded { database } => {
            // This fails while another process has the file open.
            let store = SqliteStore::open_with_keys(&database, settings.keyring()).await?;
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
            let store = PostgresStore::open_with(
                &url,
                Connections { pool: postgres.pool, ..Connections::default() },
                queue.clock().now(),
                settings.keyring(),
            )
            .await?;
            let running = running_processes(&store).await?;
            // The time of now, because processes were observed meanwhile.
            let sends_until = queue.clock().now() + CLOCK_DIFFERENCE;
            if running.is_empty() {
                store.mark_restored(sends_until).await?;
            }
            queue.close().await;
            store.close().await;
            if !running.is_empty() {
                return Err(Misuse(refusal(&running)).into());
            }
            sends_until
        }
    };
    report(sends_until);
    Ok(Exit::Done)
}

fn report(sends_until: Timestamp) {
    println!("marked as restored: sends may have started until {sends_until}; every limit continues from then");
}

/// The processes whose beats change. The rows of others come from the backup, or from processes that were killed. A
/// process that runs and has no row in the restored database makes one with its next beat, so the observation lasts
/// until every process would count as dead.
async fn running_processes(store: &PostgresStore) -> StoreResult<Vec<RunningProcess>> {
    let beats = async || -> StoreResult<BTreeMap<ProcessId, i64>> {
        Ok(store.processes().await?.into_iter().map(|process| (process.id, process.beat)).collect())
    };
    let first = beats().await?;
    let until = Instant::now() + DEAD_AFTER;
    loop {
        let later = beats().await?;
        if later.iter().any(|(id, beat)| first.get(id) != Some(beat)) {
            // The others beat within the next second as well: all of them are named.
            sleep(weir_store::BEAT_EVERY).await;
            let now = beats().await?;
            let runs = |process: &RunningProcess| {
                now.get(&process.id).is_some_and(|beat| first.get(&process.id) != Some(beat))
            };
            return Ok(store.running_processes().await?.into_iter().filter(runs).collect());
        }
        if Instant::now() >= until {
            return Ok(Vec::new());
        }
        sleep(OBSERVED_EVERY).await;
    }
}

fn refusal(running: &[RunningProcess]) -> String {
    let mut roles = BTreeMap::<_, usize>::new();
    for process in running {
        let profile = process.profile.as_ref();
        *roles.entry(profile.map_or("of an unknown role", |profile| &*profile.role)).or_default() += 1;
    }
    let roles: Vec<_> = roles.into_iter().map(|(role, count)| format!("{count} {role}")).collect();
    format!(
        "{} on this database ({}); stop all of them, and run this command again before any starts",
        if running.len() == 1 {
            "1 process of Weir runs".to_owned()
        } else {
            format!("{} processes of Weir run", running.len())
        },
        roles.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use weir_store::ProcessProfile;

    use super::*;

    #[test]
    fn the_refusal_names_what_runs() {
        let process = |id, role: &str| RunningProcess {
            id: ProcessId(id),
            profile: Some(ProcessProfile {
                role: role.to_owned(),
                host: "node-1".to_owned(),
                version: "0.1.0".to_owned(),
                started_at: Timestamp::MIN,
            }),
            clock_ahead_us: None,
        };
        let text = refusal(&[process(1, "worker"), process(2, "api"), process(3, "worker")]);
        assert!(refusal(&[process(1, "api")]).starts_with("1 process of Weir runs on this database (1 api);"));
        assert!(text.starts_with("3 processes of Weir run on this database (1 api, 2 worker);"), "{text}");
    }
}
