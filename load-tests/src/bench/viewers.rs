//! The dashboard with many destinations: how fast the overview answers, and what the people who look at it cost.
//!
//! A *viewer* does what a browser with the overview does: it follows the live stream, and fetches the table at each
//! snapshot.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Method;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, timeout_at},
};

use super::{
    cost::thousands,
    figure::{Figure, Unit},
    results::Measured,
    rig::{BATCH, BATCH_CONNECTIONS, Rig, Running, SETTLE},
};
use crate::{
    client::{Connection, MakeBody, Until, closed_loop},
    clock::now,
    figures::Percentiles,
};

const DESTINATIONS: u64 = 10_000;
/// Weir creates the destinations of one tenant one after the other, and those of different tenants in parallel.
const TENANTS: u64 = 50;
/// Waiting deliveries at each destination: a million in all.
const WAITING_EACH: u64 = 100;
/// Events for each destination. The first is sent at once: the limit allows it.
const EVENTS_EACH: u64 = WAITING_EACH + LOAD_BATCH;
/// Events in one request of the load. Each event waits at all destinations of its tenant.
const LOAD_BATCH: u64 = 10;
const MANY: usize = 10;
/// The time between two requests of one client for the overview. People do not ask more often than ten times a second.
const ASK_EVERY: Duration = Duration::from_millis(100);
const ASKING_S: u64 = 20;
const LOOKING_S: u64 = 10;
/// Pairs of measurements of throughput, one without viewers and one with viewers.
const PAIRS: usize = 6;
const POSTING_S: u64 = 4;

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let running = rig.engine().await?;
    let (destinations, waiting) = fill(rig, &running).await.context("the destinations and their backlogs")?;
    let of = format!("{} destinations, {} waiting", thousands(destinations), thousands(waiting));
    let mut figures = Vec::new();

    // The answer of the API, for one client and for many.
    for clients in [1, MANY] {
        let times = ask(&running, clients, rig.span(ASKING_S)).await.context("GET /v1/overview")?;
        let who = if clients == 1 { "one client".to_owned() } else { format!("{clients} clients") };
        figures.push(Figure::new(format!("p50.{clients}"), format!("{of}, {who}, p50"), Unit::Ms, times.p50_ms));
        figures.push(Figure::new(format!("p99.{clients}"), format!("{who}, p99"), Unit::Ms, times.p99_ms));
    }

    // The CPU time for viewers while nothing else happens.
    for viewers in [0, 1, MANY] {
        let span = rig.span(LOOKING_S);
        let before = running.cpu()?;
        let tables = look(&running, viewers, span).await?;
        let used_s = running.cpu()?.all_s - before.all_s;
        let what = format!("{viewers} viewers, CPU time in a second");
        figures.push(Figure::new(format!("cpu.{viewers}"), what, Unit::CpuUs, used_s * 1e6 / span.as_secs_f64()));
        if let Some(tables) = Percentiles::of(tables) {
            let what = format!("{viewers} viewers, the table of a snapshot, p99");
            figures.push(Figure::new(format!("table.{viewers}"), what, Unit::Ms, tables.p99_ms));
        }
    }

    // How much throughput of deliveries is lost to viewers.
    running.engine.create_destination(rig.unlimited()).await?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for pair in 0..rig.repeats(PAIRS) {
        // The second of a pair finds a larger database, so the order changes from pair to pair.
        if pair % 2 == 0 {
            without.push(throughput(rig, &running, 0).await?);
            with.push(throughput(rig, &running, MANY).await?);
        } else {
            with.push(throughput(rig, &running, MANY).await?);
            without.push(throughput(rig, &running, 0).await?);
        }
    }
    let ratios: Vec<_> = with.iter().zip(&without).map(|(with, without)| with / without).collect();
    figures.extend(Figure::of("without", "delivered without viewers", Unit::PerSecond, &without));
    figures.extend(Figure::of("with", format!("delivered with {MANY} viewers"), Unit::PerSecond, &with));
    figures.extend(Figure::of("share", format!("delivered with {MANY} viewers ÷ without"), Unit::Share, &ratios));
    running.end().await?;
    Ok(Measured::of(figures))
}

/// Creates the destinations and their backlogs, and returns how many there are of both.
async fn fill(rig: &Rig, running: &Running<'_>) -> anyhow::Result<(u64, u64)> {
    let (count, url) = (rig.count(DESTINATIONS).max(TENANTS), rig.receiver.url());
    rig.receiver.reset(false);
    let settings = move |number: u64| {
        json!({
            "url": url, "name": format!("Partner {number}"), "tenant": format!("t{}", number % TENANTS),
            "event_types": ["standing"], "rate_limits": [{"limit": 1, "period": "day"}],
        })
    };
    running.create_many(count, settings).await?;
    // Each event waits at all destinations of its tenant.
    let body: MakeBody = Arc::new(|number| {
        let event = json!({"type": "standing", "tenant": format!("t{}", number % TENANTS), "data": number});
        json!({"events": vec![event; LOAD_BATCH as usize]}).to_string().into()
    });
    let requests = TENANTS * EVENTS_EACH / LOAD_BATCH;
    closed_loop(running.engine.address(), 4, Until::Sent(requests), "/v1/events/batch", body).await?;
    rig.receiver.all_arrived(count).await?;
    running.tidy().await?;
    tokio::time::sleep(SETTLE).await;
    let overview = running.engine.ask(Method::GET, "/v1/overview?limit=1", Value::Null).await?;
    let waiting = overview["totals"]["backlog"].as_u64().unwrap_or_default();
    ensure!(waiting >= count * WAITING_EACH, "only {waiting} deliveries wait at {count} destinations");
    Ok((count, waiting))
}

/// Asks for a page of the overview at fixed times, on as many connections as there are clients.
async fn ask(running: &Running<'_>, clients: usize, span: Duration) -> anyhow::Result<Percentiles> {
    let mut asking = JoinSet::new();
    let until = now() + span;
    for client in 0..clients {
        let mut connection = Connection::open(running.engine.address()).await?;
        asking.spawn(async move {
            let mut times = Vec::new();
            // The clients do not ask all at once.
            let first = tokio::time::Instant::now() + ASK_EVERY * client as u32 / clients as u32;
            let mut ticks = tokio::time::interval_at(first, ASK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            while now() < until {
                // From the instant at which the request was meant to be sent.
                let meant = ticks.tick().await.into_std();
                connection.send(Method::GET, "/v1/overview?limit=50", Bytes::new()).await?;
                times.push(now().duration_since(meant));
            }
            anyhow::Ok(times)
        });
    }
    Percentiles::of(join(asking).await?).context("nobody asked")
}

/// Lets viewers look for a while, and returns how long each table took.
async fn look(running: &Running<'_>, viewers: usize, span: Duration) -> anyhow::Result<Vec<Duration>> {
    let mut looking = JoinSet::new();
    for _ in 0..viewers {
        let stream = Connection::open(running.engine.address()).await?;
        looking.spawn(view(stream, Connection::open(running.engine.address()).await?, span));
    }
    tokio::time::sleep(span).await;
    join(looking).await.context("a viewer")
}

/// One viewer.
async fn view(mut stream: Connection, mut page: Connection, span: Duration) -> anyhow::Result<Vec<Duration>> {
    let until = tokio::time::Instant::now() + span;
    let mut events = stream.follow("/live").await?;
    let mut times = Vec::new();
    while let Ok(frame) = timeout_at(until, events.frame()).await {
        let Some(frame) = frame.transpose()? else { bail!("the live stream ended") };
        let is_snapshot = frame.data_ref().is_some_and(|data| data.windows(8).any(|part| part == b"snapshot"));
        if is_snapshot {
            let asked = now();
            page.send(Method::GET, "/fragments/overview", Bytes::new()).await?;
            times.push(now().duration_since(asked));
        }
    }
    ensure!(!times.is_empty(), "there was no snapshot within {} s", span.as_secs());
    Ok(times)
}

/// Events a second, from the first POST to the last arrival, with viewers.
async fn throughput(rig: &Rig, running: &Running<'_>, viewers: usize) -> anyhow::Result<f64> {
    rig.receiver.reset(false);
    let span = rig.span(POSTING_S);
    let (posted, tables) =
        tokio::join!(rig.post(running, BATCH, BATCH_CONNECTIONS, span), look(running, viewers, span));
    tables?;
    let (_, per_s) = posted?;
    // Background work after the burst must not be part of the next measurement.
    tokio::time::sleep(SETTLE).await;
    Ok(per_s)
}

async fn join(mut tasks: JoinSet<anyhow::Result<Vec<Duration>>>) -> anyhow::Result<Vec<Duration>> {
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.extend(done??);
    }
    Ok(all)
}
