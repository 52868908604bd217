//! The quick bench: six measurements one after the other, each on a fresh engine, the ceiling first.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use crate::{
    BenchArgs,
    client::{MakeBody, Until, closed_loop, open_loop},
    clock,
    engine::{Engine, backing},
    figures::{BODY_BYTES, Percentiles, batch, event},
    receiver::Receiver,
    report::{Backlog, Idle, Latency, Report, Throughput},
};

pub(super) const CONNECTIONS: usize = 64;
/// Fewer, since each carries a hundred events at once.
pub(super) const BATCH_CONNECTIONS: usize = 16;
pub(super) const BATCH: u64 = 100;
pub(super) const MAX_IN_FLIGHT: u32 = 512;
const OFFERED_PER_S: u32 = 500;
const LATENCY_SECONDS: u32 = 10;
const IDLE_SECONDS: u64 = 10;
/// For what a burst of work leaves behind (commits, checkpoints, freed memory) to come to rest.
pub(super) const SETTLE: Duration = Duration::from_secs(2);

pub(crate) async fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let bench = Bench { args, receiver: Receiver::start().await? };
    let ceiling_per_s = bench.ceiling().await.context("ceiling")?;
    let single = bench.throughput(1, CONNECTIONS, ceiling_per_s).await.context("single posts")?;
    let batch = bench.throughput(BATCH, BATCH_CONNECTIONS, ceiling_per_s).await.context("batches")?;
    let latency = bench.latency().await.context("latency")?;
    let idle = bench.idle().await.context("idle destinations")?;
    let backlog = bench.backlog(ceiling_per_s).await.context("backlog")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let report = Report { cores, ceiling_per_s, single, batch, latency, idle, backlog };
    println!("{cores} cores, shared by client, receiver and engine\n\n{}", report.table());
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

struct Bench<'a> {
    args: &'a BenchArgs,
    receiver: Arc<Receiver>,
}

impl Bench<'_> {
    fn span(&self) -> Duration {
        Duration::from_secs(self.args.seconds)
    }

    /// An engine with one unlimited destination, the receiver, for events of type `bench`.
    async fn engine(&self, doing: &str, paused: bool) -> anyhow::Result<(Engine, String)> {
        eprintln!("· {doing}");
        let args = self.args;
        let engine = Engine::start(&args.weir, args.folder.as_deref(), &backing(args.scaled)?).await?;
        let settings = json!({
            "url": self.receiver.url(), "name": "bench", "event_types": ["bench"], "max_in_flight": MAX_IN_FLIGHT, "paused": paused,
        });
        let id = engine.create_destination(settings).await?;
        Ok((engine, id))
    }

    /// What this machine can do at most: the same client straight to the same receiver.
    async fn ceiling(&self) -> anyhow::Result<f64> {
        eprintln!("· ceiling");
        self.receiver.reset(false);
        let body: MakeBody = Arc::new(|_| Bytes::from_static(&[b'x'; BODY_BYTES]));
        let driven =
            closed_loop(self.receiver.address(), CONNECTIONS, Until::Elapsed(self.span()), "/hook", body).await?;
        Ok(driven.per_second())
    }

    /// As many events as the engine takes, `size` in each request, until the last has arrived.
    async fn throughput(&self, size: u64, connections: usize, ceiling_per_s: f64) -> anyhow::Result<Throughput> {
        let (engine, id) = self.engine(if size == 1 { "single posts" } else { "batches" }, false).await?;
        self.receiver.reset(false);
        let (path, body) = requests(size);
        let driven = closed_loop(engine.address(), connections, Until::Elapsed(self.span()), path, body).await?;
        let events = driven.answered * size;
        let last = self.receiver.all_arrived(events).await?;
        engine.stop(&id).await?;
        let arrived_per_s = events as f64 / last.duration_since(driven.started).as_secs_f64();
        Ok(Throughput {
            events,
            accepted_per_s: driven.per_second() * size as f64,
            arrived_per_s,
            of_ceiling: arrived_per_s / ceiling_per_s,
        })
    }

    /// Events at a steady rate far below what the engine can do.
    async fn latency(&self) -> anyhow::Result<Latency> {
        let (engine, id) = self.engine("latency", false).await?;
        let (path, body) = requests(1);
        // Connections, caches and the database's file are warm in a server that has run for more than a moment.
        self.receiver.reset(false);
        closed_loop(engine.address(), CONNECTIONS, Until::Sent(1_000), path, Arc::clone(&body)).await?;
        self.receiver.all_arrived(1_000).await?;

        self.receiver.reset(true);
        let (every, events) = (Duration::from_secs(1) / OFFERED_PER_S, OFFERED_PER_S * LATENCY_SECONDS);
        let meant = open_loop(engine.address(), CONNECTIONS, every, events, path, body).await?;
        self.receiver.all_arrived(u64::from(events)).await?;
        engine.stop(&id).await?;
        let arrivals = self.receiver.noted().into_iter();
        let taken =
            arrivals.filter_map(|(number, at)| Some(at.saturating_duration_since(*meant.get(number as usize)?)));
        let percentiles = Percentiles::of(taken.collect()).context("nothing was noted")?;
        Ok(Latency { offered_per_s: OFFERED_PER_S, events, percentiles })
    }

    /// Many destinations that have each had one event and now have nothing to do.
    async fn idle(&self) -> anyhow::Result<Idle> {
        let (engine, id) = self.engine("idle destinations", false).await?;
        let destinations = self.args.idle;
        let settings = json!({
            "url": self.receiver.url(), "event_types": ["idle"], "rate_limits": [{"limit": 10, "period": "second"}],
        });
        let settings = Bytes::from(settings.to_string());
        let body: MakeBody = Arc::new(move |_| settings.clone());
        closed_loop(engine.address(), CONNECTIONS, Until::Sent(destinations), "/v1/destinations", body).await?;
        self.receiver.reset(false);
        engine.ask(Method::POST, "/v1/events", json!({"type": "idle", "data": null})).await?;
        self.receiver.all_arrived(destinations).await?;
        tokio::time::sleep(SETTLE).await;

        let (before_s, started) = (engine.cpu_s()?, clock::now());
        tokio::time::sleep(Duration::from_secs(IDLE_SECONDS)).await;
        let (cpu_s, seconds) = (engine.cpu_s()? - before_s, clock::now().duration_since(started).as_secs_f64());
        let rss_mib = engine.rss_mib()?;
        engine.stop(&id).await?;
        Ok(Idle { destinations, seconds, cpu_s, rss_mib })
    }

    /// A backlog that grows while its destination is paused, then is sent as fast as the engine claims.
    async fn backlog(&self, ceiling_per_s: f64) -> anyhow::Result<Backlog> {
        let (engine, id) = self.engine("backlog", true).await?;
        let rss_before_mib = engine.rss_mib()?;
        let (path, body) = requests(BATCH);
        let batches = self.args.backlog.div_ceil(BATCH);
        let deliveries = batches * BATCH;
        closed_loop(engine.address(), BATCH_CONNECTIONS, Until::Sent(batches), path, body).await?;
        tokio::time::sleep(SETTLE).await;
        let rss_mib = engine.rss_mib()?;

        self.receiver.reset(false);
        let resumed = clock::now();
        let answer: Value =
            engine.ask(Method::PATCH, &format!("/v1/destinations/{id}"), json!({"paused": false})).await?;
        anyhow::ensure!(answer["paused"] == false, "the destination stays paused: {answer}");
        let last = self.receiver.all_arrived(deliveries).await?;
        engine.stop(&id).await?;
        let drained_per_s = deliveries as f64 / last.duration_since(resumed).as_secs_f64();
        Ok(Backlog { deliveries, rss_before_mib, rss_mib, drained_per_s, of_ceiling: drained_per_s / ceiling_per_s })
    }
}

/// The path and the bodies of requests with `size` events each.
pub(super) fn requests(size: u64) -> (&'static str, MakeBody) {
    match size {
        1 => ("/v1/events", Arc::new(|number| event("bench", number).into())),
        size => ("/v1/events/batch", Arc::new(move |number| batch("bench", number, size))),
    }
}
