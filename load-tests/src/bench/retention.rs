//! Deliveries that the retention deletes a second while events are posted as fast as they are answered, on two processes,
//! against the events that are accepted at the same time; and what the deletion costs the others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};

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
/// So many that most of them are left when the posts begin, about a second after the start of the processes.
const OLD: u64 = 2_000_000;
/// One old delivery in so many is a dead letter, which is kept with its event and attempt.
const DEAD: u64 = 200;
const REPEATS: usize = 3;
const SECONDS: u64 = 5;
const OFFERED_PER_S: u32 = 500;
/// On the day before the one on which the retention of 14 days ends, so that the whole day is old.
const AGE: Duration = Duration::from_secs(15 * 86_400 + 3_600);
/// How often the bench looks whether all is deleted, and how long it waits for it.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const DELETED_WITHIN: Duration = Duration::from_secs(120);

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
                "'id', {delivery}, 'event_id', {event}, 'created_at', {at}, 'next_attempt_at', {at}, 'updated_at', {at},
                    'state', CASE WHEN n % {DEAD} = 0 THEN 5 ELSE 3 END"
            ),
        ),
        copies("attempts", format!("'id', {attempt}, 'delivery_id', {delivery}, 'sent_at', {at}, 'signed_at', {at}")),
    ]
    .concat()
}

/// Deliveries that the retention still has to delete.
const DELIVERIES_LEFT: &str = "SELECT count(*) FROM deliveries WHERE id < first_id_of_day((extract(epoch FROM now()) / 86400)::integer - 2) AND state = 3";
/// The events of old deliveries, counted up to a limit. They are deleted last, after the deliveries and attempts.
const EVENTS_LEFT: &str = "SELECT count(*) FROM (
    SELECT FROM events WHERE id < first_id_of_day((extract(epoch FROM now()) / 86400)::integer - 2) LIMIT";

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
    let (driven, deleted_per_s) = flood(rig, &running, old).await?;
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

/// Posts for some seconds, and until all old deliveries are deleted with their attempts and events. Returns also how many
/// that were in a second.
async fn flood(rig: &Rig, running: &Running<'_>, old: u64) -> anyhow::Result<(Driven, f64)> {
    let (servers, database) = running.on.as_ref().context("needs PostgreSQL")?;
    let kept = old / DEAD;
    let is_gone = async || {
        let count = format!("{EVENTS_LEFT} {}) few", kept + 1);
        anyhow::Ok(servers.number_in(database, &count).await? <= kept)
    };
    let (left, began) = (servers.number_in(database, DELIVERIES_LEFT).await? as f64, now());
    let done = Arc::new(AtomicBool::new(false));
    let (path, body) = requests(BATCH);
    let post = async {
        let (started, mut answered) = (now(), 0);
        loop {
            let until = Until::Elapsed(rig.span(SECONDS));
            let driven =
                closed_loop(running.engine.address(), BATCH_CONNECTIONS, until, path, Arc::clone(&body)).await?;
            answered += driven.answered;
            if done.load(Ordering::Relaxed) {
                return anyhow::Ok(Driven { started, answered, ..driven });
            }
        }
    };
    let watch = async {
        while !is_gone().await? {
            ensure!(now().duration_since(began) < DELETED_WITHIN, "the retention has not deleted all in time");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        done.store(true, Ordering::Relaxed);
        anyhow::Ok(now().duration_since(began).as_secs_f64())
    };
    let (driven, took) = tokio::try_join!(post, watch)?;
    Ok((driven, left / took))
}
