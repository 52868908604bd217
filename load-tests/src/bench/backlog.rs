//! CPU time for each delivery depending on the backlog. Events are posted at the rate of the sends, so the backlog
//! keeps its size. And the time of a simulation, which reads and plays the whole backlog.

use std::time::Duration;

use anyhow::{Context, ensure};
use hyper::Method;
use serde_json::{Value, json};

use super::{
    cost::{Cost, compared, figures_of, median_all, thousands},
    figure::{Figure, Unit},
    results::Measured,
    rig::{CONNECTIONS, MAX_IN_FLIGHT, Rig, SETTLE},
};
use crate::{
    client::{MakeBody, open_loop},
    clock::now,
    figures::batch,
};

const WAITING: [u64; 3] = [SMALL, 100_000, LARGE];
/// The two sizes whose costs are compared.
const SMALL: u64 = 1_000;
const LARGE: u64 = 1_000_000;
const LIMIT_PER_S: u32 = 2_000;
const BATCH: u64 = 20;
const REPEATS: usize = 3;
const SECONDS: u64 = 4;
/// The time from the resume of a destination until it sends steadily.
const WARM_UP: Duration = Duration::from_secs(1);

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let mut figures = Vec::new();
    let mut medians = Vec::new();
    for waiting in WAITING {
        let waiting = if rig.brief { waiting.min(20_000) } else { waiting };
        let run = run(rig, waiting).await.with_context(|| format!("{waiting} waiting"))?;
        medians.extend(median_all(&run.costs).map(|cost| (waiting, cost)));
        let what = format!("{} waiting", thousands(waiting));
        let remark = format!("{} at the end", thousands(run.left));
        let costs = figures_of(rig, waiting, "waiting", &run.costs);
        figures.extend(costs.into_iter().map(|figure| figure.remark(remark.clone())));
        figures.push(Figure::new("memory", format!("{what}, resident memory of weir"), Unit::MiB, run.rss_mib));
        let simulated = format!("{what}: a limit tried on them, read and played");
        figures.push(Figure::new(format!("simulated.{waiting}"), simulated, Unit::Ms, run.simulated_ms));
        figures.push(Figure::new("loaded", format!("{what}, accepted"), Unit::PerSecond, run.loaded_per_s));
    }
    figures.extend(compared("large_against_small", "1,000,000 waiting against 1,000", &medians, [LARGE, SMALL]));
    Ok(Measured::of(figures))
}

struct Run {
    costs: Vec<Cost>,
    rss_mib: f64,
    loaded_per_s: f64,
    simulated_ms: f64,
    /// The backlog at the end, which should be about the same.
    left: u64,
}

async fn run(rig: &Rig, waiting: u64) -> anyhow::Result<Run> {
    let running = rig.engine().await?;
    let settings = json!({
        "url": rig.receiver.url(), "event_types": ["bench"], "max_in_flight": MAX_IN_FLIGHT, "paused": true,
        "rate_limits": [{"limit": LIMIT_PER_S, "period": "second"}],
    });
    let id = running.engine.create_destination(settings).await?;
    // Build the backlog of a paused destination.
    let started = now();
    running.load("bench", waiting).await.context("loading")?;
    let loaded_per_s = waiting as f64 / now().duration_since(started).as_secs_f64();
    // Background work of the load must not be part of the measurement.
    running.tidy().await?;
    tokio::time::sleep(SETTLE).await;
    let rss_mib = running.engine.rss_mib()?;

    // It also finds the smallest limit, in at most twenty runs.
    let started = now();
    let path = format!("/v1/destinations/{id}/simulate");
    let tried = running.engine.ask(Method::POST, &path, json!({})).await.context("a simulation")?;
    let simulated_ms = now().duration_since(started).as_secs_f64() * 1_000.0;
    ensure!(tried["deliveries"] == waiting, "{} of {waiting} deliveries were played", tried["deliveries"]);

    // Post at the rate of the limit and measure the CPU time of each span.
    rig.receiver.reset(false);
    let (span, repeats) = (rig.span(SECONDS), rig.repeats(REPEATS));
    // The posts last for the warm-up, all spans and one more second.
    let posting_s = (WARM_UP + span * repeats as u32).as_secs_f64().ceil() as u32 + 1;
    let per_s = LIMIT_PER_S / BATCH as u32;
    let body: MakeBody = std::sync::Arc::new(|number| batch("bench", number, BATCH));
    let (to, every) = (running.engine.address(), Duration::from_secs(1) / per_s);
    let posting = tokio::spawn(open_loop(to, CONNECTIONS, every, per_s * posting_s, "/v1/events/batch", body));
    // Resume the destination, and wait until it sends steadily.
    running.patch(&id, json!({"paused": false})).await?;
    tokio::time::sleep(WARM_UP).await;
    let mut costs = Vec::new();
    // Each span begins where the last one ended.
    let (mut before, mut arrived) = (running.cpu()?, rig.receiver.arrived());
    for _ in 0..repeats {
        tokio::time::sleep(span).await;
        let (after, arrived_now) = (running.cpu()?, rig.receiver.arrived());
        ensure!(arrived_now > arrived, "nothing arrived for {} s", span.as_secs());
        costs.push(Cost::between(before, after, arrived_now - arrived));
        (before, arrived) = (after, arrived_now);
    }
    // The page shows whether the backlog kept its size.
    let backlog = running.engine.ask(Method::GET, &format!("/v1/destinations/{id}/backlog"), Value::Null).await?;
    let left = backlog["pending"].as_u64().unwrap_or_default();
    posting.await?.context("posting during the measurement")?;
    running.end().await?;
    Ok(Run { costs, rss_mib, loaded_per_s, simulated_ms, left })
}
