//! Deliveries that the retention deletes a second while events are posted as fast as they are answered, on two processes,
//! against the events that are accepted at the same time; and what the deletion costs the others.

use std::{sync::Arc, time::Duration};

use anyhow::Context;

use super::{
    figure::{Figure, Unit},
    latency::percentiles,
    results::Measured,
    rig::{BATCH, BATCH_CONNECTIONS, RECORDED_WITHIN, Rig, Running, requests},
    weir::{ONE, Weir},
};
use crate::{
    client::{Driven, Until, closed_loop},
    clock::{Timeline, now},
    figures::Percentiles,
};

const TWO: &[&str] = &["serve", "serve"];
/// More than can be deleted while they are measured.
const OLD: u64 = 600_000;
const REPEATS: usize = 3;
const SECONDS: u64 = 5;
const OFFERED_PER_S: u32 = 500;
/// Older than the retention of 14 days, but on the day on which it ends: such days are not dropped as a whole yet.
const AGE: Duration = Duration::from_secs(14 * 86_400 + 3_600);

/// Copies of the only event, its delivery and its attempt, twenty in each millisecond.
fn old_rows(count: u64, first_ms: i64) -> String {
    let id = |part: u8| {
        format!(
            "(lpad(to_hex({first_ms} + n / 20), 12, '0') || '70008000' || lpad(to_hex(n * 4 + {part}), 12, '0'))::uuid"
        )
    };
    let (event, delivery, attempt) = (id(0), id(1), id(2));
    let at = format!("({first_ms} + n / 20) * 1000000");
    let copies = |table: &str, columns: String| {
        format!(
            "INSERT INTO {table} SELECT copy.* FROM {table} one, generate_series(1, {count}::bigint) AS n,
                LATERAL jsonb_populate_record(one, jsonb_build_object({columns})) AS copy;"
        )
    };
    [
        format!("SELECT make_partitions(ARRAY[{first_ms} / 86400000, {first_ms} / 86400000 + 1]::integer[]);"),
        copies("events", format!("'id', {event}, 'created_at', {at}")),
        copies(
            "deliveries",
            format!(
                "'id', {delivery}, 'event_id', {event}, 'created_at', {at}, 'next_attempt_at', {at}, 'updated_at', {at}"
            ),
        ),
        copies("attempts", format!("'id', {attempt}, 'delivery_id', {delivery}, 'sent_at', {at}, 'signed_at', {at}")),
    ]
    .concat()
}

/// Rows that the retention has to delete: each delivery and each event. Its attempts go with the delivery.
const LEFT: &str = "
SELECT (SELECT count(*) FROM deliveries WHERE created_at < limit_at) + (SELECT count(*) FROM events WHERE created_at < limit_at)
FROM (SELECT (extract(epoch FROM now() - interval '1 day') * 1000000000)::bigint AS limit_at) AS old";

/// What was seen in one run.
struct Run {
    accepted_per_s: f64,
    deleted_per_s: f64,
    p99_ms: f64,
}

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    // In turn, so that a slow phase of the machine affects both.
    for _ in 0..rig.repeats(REPEATS) {
        without.push(run(rig, 0).await.context("without old deliveries")?);
        with.push(run(rig, rig.count(OLD)).await.context("with old deliveries")?);
    }
    let all = |runs: &[Run], of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<_>>();
    let against: Vec<_> = with.iter().map(|run| run.deleted_per_s / run.accepted_per_s).collect();
    let figures = [
        Figure::of(
            "deleted",
            "deliveries deleted, with their attempts and events, while batches of 100 were posted",
            Unit::PerSecond,
            &all(&with, |run| run.deleted_per_s),
        ),
        Figure::of("accepted", "events accepted meanwhile", Unit::PerSecond, &all(&with, |run| run.accepted_per_s)),
        Figure::of("against_accepted", "the first against the second", Unit::Times, &against),
        Figure::of(
            "accepted_alone",
            "events accepted without anything to delete",
            Unit::PerSecond,
            &all(&without, |run| run.accepted_per_s),
        ),
        Figure::of("p99", "p99 of 500/s, single posts, while it deletes", Unit::Ms, &all(&with, |run| run.p99_ms)),
        Figure::of("p99_alone", "p99 of 500/s without anything to delete", Unit::Ms, &all(&without, |run| run.p99_ms)),
    ];
    Ok(Measured::of(figures.into_iter().flatten()))
}

async fn run(rig: &Rig, old: u64) -> anyhow::Result<Run> {
    let running = start(rig, old).await?;
    let (driven, deleted_per_s) = flood(rig, &running).await?;
    running.end().await?;
    let running = start(rig, old).await?;
    let (path, body) = requests(1);
    let seconds = rig.seconds(SECONDS);
    let Percentiles { p99_ms, .. } =
        percentiles(rig, running.engine.address(), OFFERED_PER_S, seconds, path, body).await?;
    running.end().await?;
    Ok(Run { accepted_per_s: driven.per_second() * BATCH as f64, deleted_per_s, p99_ms })
}

/// Two processes on a database with so many old deliveries. They delete them from their start.
async fn start(rig: &Rig, old: u64) -> anyhow::Result<Running<'_>> {
    let servers = rig.servers.as_ref().context("needs PostgreSQL")?;
    let (settings, database) = servers.renew().await?;
    // One delivery as Weir stores it, to copy.
    rig.receiver.reset(false);
    let first = Weir::start(&rig.weir, ONE, rig.folder.as_deref(), &settings).await?;
    first.create_destination(rig.unlimited()).await?;
    let (path, body) = requests(1);
    closed_loop(first.address(), 1, Until::Sent(1), path, Arc::clone(&body)).await?;
    rig.receiver.all_arrived(1).await?;
    tokio::time::sleep(RECORDED_WITHIN).await;
    first.kill().await?;
    if old > 0 {
        let first_ms = Timeline::begin().now().before(AGE).as_millis();
        servers.run_in(&database, &old_rows(old, first_ms)).await?;
    }
    servers.tidy(&database).await?;
    rig.receiver.reset(false);
    let engine = Weir::start(&rig.weir, TWO, rig.folder.as_deref(), &settings).await?;
    Ok(Running { engine, on: Some((servers, database)) })
}

/// Posts for some seconds. Returns also the deliveries that were deleted meanwhile, a second.
async fn flood(rig: &Rig, running: &Running<'_>) -> anyhow::Result<(Driven, f64)> {
    let left = || async {
        let (servers, database) = running.on.as_ref().context("needs PostgreSQL")?;
        anyhow::Ok((servers.number_in(database, LEFT).await? as f64, now()))
    };
    let (path, body) = requests(BATCH);
    let (before, began) = left().await?;
    let until = Until::Elapsed(rig.span(SECONDS));
    let driven = closed_loop(running.engine.address(), BATCH_CONNECTIONS, until, path, body).await?;
    let (after, ended) = left().await?;
    // Two rows each: the delivery and its event.
    Ok((driven, (before - after) / 2.0 / ended.duration_since(began).as_secs_f64()))
}
