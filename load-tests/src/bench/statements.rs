//! SQL statements and Redis commands for each delivery, counted by the servers.

use std::{sync::Arc, time::Duration};

use super::{
    figure::{Figure, Unit},
    results::Measured,
    rig::{BATCH, BATCH_CONNECTIONS, CONNECTIONS, RECORDED_WITHIN, Rig, requests},
    servers::{Executed, Servers},
};
use crate::client::{Until, closed_loop, open_loop};

const SECONDS: u64 = 6;
const STEADY_PER_S: u32 = 500;
/// Sessions of PostgreSQL report their transactions with a delay of up to ten seconds, or when they end. The
/// transactions of the start must be reported before the count begins.
const REPORTED_WITHIN: Duration = Duration::from_millis(10_500);
const ENDED_WITHIN: Duration = Duration::from_secs(1);

/// How events are posted.
#[derive(Debug, Clone, Copy)]
enum Posting {
    Steady,
    Single,
    Batches,
}

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let Some(servers) = &rig.servers else {
        return Ok(Measured::default()
            .remark("SQLite runs inside Weir, which does not count statements, so there is no figure."));
    };
    let mut figures = Vec::new();
    for (posting, what) in [
        (Posting::Steady, "500/s"),
        (Posting::Single, "single posts, as fast as they are answered"),
        (Posting::Batches, "batches of 100, as fast as they are answered"),
    ] {
        let (executed, deliveries) = count(rig, servers, posting).await?;
        // Each figure is the count for one delivery. The remark shows both numbers.
        let each = |what: String, count: u64| {
            Figure::new("each", what, Unit::Count, count as f64 / deliveries as f64)
                .remark(format!("{count} for {deliveries}"))
        };
        // Without the extension there is no figure for statements.
        if servers.counts_statements() {
            figures.push(each(format!("{what}: SQL statements"), executed.statements));
        }
        figures.push(each(format!("{what}: transactions"), executed.transactions));
        figures.push(each(format!("{what}: Redis scripts"), executed.scripts));
        figures.push(each(format!("{what}: Redis commands"), executed.commands));
    }
    let measured = Measured::of(figures).remark(
        "Statements are those that `pg_stat_statements` counts at the top level, without statements inside functions and without \
         `BEGIN` and `COMMIT`. Transactions are those of `pg_stat_database`. Redis commands are those of `INFO commandstats`: the calls of \
         scripts and the commands inside them. A script is one round trip.",
    );
    Ok(match servers.counts_statements() {
        true => measured,
        false => measured.remark("This PostgreSQL has no `pg_stat_statements`, so statements are not counted."),
    })
}

async fn count(rig: &Rig, servers: &Servers, posting: Posting) -> anyhow::Result<(Executed, u64)> {
    let running = rig.counted_engine().await?;
    let database = running.on.as_ref().map(|(_, database)| database.clone()).unwrap_or_default();
    running.engine.create_destination(rig.unlimited()).await?;
    // Wait until the transactions of the start are reported, so that they are not counted.
    tokio::time::sleep(REPORTED_WITHIN).await;
    rig.receiver.reset(false);
    let before = servers.begin_count(&database).await?;

    // Post for some seconds, and wait until everything has arrived and is recorded.
    let (to, seconds) = (running.engine.address(), rig.seconds(SECONDS));
    let until = Until::Elapsed(Duration::from_secs(seconds));
    let deliveries = match posting {
        Posting::Steady => {
            let ((path, body), events) = (requests(1), STEADY_PER_S * seconds as u32);
            open_loop(to, CONNECTIONS, Duration::from_secs(1) / STEADY_PER_S, events, path, body).await?;
            u64::from(events)
        }
        Posting::Single => {
            let (path, body) = requests(1);
            closed_loop(to, CONNECTIONS, until, path, Arc::clone(&body)).await?.answered
        }
        Posting::Batches => {
            let (path, body) = requests(BATCH);
            closed_loop(to, BATCH_CONNECTIONS, until, path, Arc::clone(&body)).await?.answered * BATCH
        }
    };
    rig.receiver.all_arrived(deliveries).await?;
    tokio::time::sleep(RECORDED_WITHIN).await;

    // Sessions report their last transactions when they end.
    running.engine.kill().await?;
    tokio::time::sleep(ENDED_WITHIN).await;
    let executed = servers.executed(&database, before).await?;
    servers.drop_database(&database).await?;
    Ok((executed, deliveries))
}
