//! Twice as much as goes: throughput meanwhile, the cap of a neighbour, and whether all of it drains.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use hyper::Method;
use serde_json::Value;

use super::{
    figure::{Figure, Unit},
    recorded::Recorder,
    results::Measured,
    rig::{BATCH, BATCH_CONNECTIONS, CONNECTIONS, Rig, Running, requests},
};
use crate::{
    client::{MakeBody, Until, closed_loop, open_loop},
    clock::now,
    figures::event,
};

/// One by itself says little: which of the two finds the machine slower is chance.
const REPEATS: usize = 3;
const SECONDS: u64 = 8;
const MOST_SECONDS: u64 = 4;
const CAP_PER_S: u32 = 50;
const DRAINED_WITHIN: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(100);

/// What one repeat found.
struct Run {
    most_per_s: f64,
    offered_per_s: f64,
    accepted_per_s: f64,
    /// While more was offered.
    meanwhile_per_s: f64,
    /// Until the last arrival.
    whole_per_s: f64,
    /// Sends above the neighbour's limit.
    above: u64,
    /// The neighbour's fullest window, as recorded.
    fullest: u64,
    /// Neither delivered nor recorded in the end.
    left: u64,
    breaches: Vec<String>,
}

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let mut runs = Vec::new();
    for _ in 0..rig.repeats(REPEATS) {
        runs.push(run(rig).await?);
    }
    let figure = |id: &str, what: &str, unit: Unit, of: fn(&Run) -> f64| {
        Figure::of(id, what, unit, &runs.iter().map(of).collect::<Vec<_>>())
    };
    let sum = |of: fn(&Run) -> u64| runs.iter().map(of).sum::<u64>() as f64;
    let fullest = runs.iter().map(|run| run.fullest).max().unwrap_or_default();
    let rates = [
        figure("most", "the most: batches as fast as they are answered, delivered", Unit::PerSecond, |run| {
            run.most_per_s
        }),
        figure("offered", "overloaded: offered", Unit::PerSecond, |run| run.offered_per_s),
        figure("accepted", "overloaded: accepted", Unit::PerSecond, |run| run.accepted_per_s),
        figure("meanwhile", "overloaded: delivered while more was offered", Unit::PerSecond, |run| run.meanwhile_per_s),
        figure("whole", "overloaded: delivered until the last arrival", Unit::PerSecond, |run| run.whole_per_s),
        // Each by the most of its own repeat.
        figure("of_most.meanwhile", "delivered while more was offered ÷ the most", Unit::Share, |run| {
            run.meanwhile_per_s / run.most_per_s
        }),
        figure("of_most.whole", "delivered until the last arrival ÷ the most", Unit::Share, |run| {
            run.whole_per_s / run.most_per_s
        }),
    ];
    let counts = [
        Figure::new("above", "sends above the neighbour's limit", Unit::Count, sum(|run| run.above))
            .remark(format!("fullest window {fullest}")),
        Figure::new("left", "not delivered in the end", Unit::Count, sum(|run| run.left)),
    ];
    let measured = Measured::of(rates.into_iter().flatten().chain(counts));
    Ok(measured.judged(runs.into_iter().flat_map(|run| run.breaches).collect()))
}

async fn run(rig: &Rig) -> anyhow::Result<Run> {
    let most_per_s = most(rig).await.context("the most")?;
    let running = rig.engine().await?;
    let unlimited = running.engine.create_destination(rig.unlimited()).await?;
    let mut recorder = Recorder::start().await?;
    let capped_type = recorder.destination(&running, CAP_PER_S).await?;
    recorder.pause(&running, false).await?;
    rig.receiver.reset(false);

    let (to, seconds) = (running.engine.address(), rig.seconds(SECONDS));
    let batches_per_s = (2.0 * most_per_s / BATCH as f64).max(1.0);
    let (batches, every) = ((batches_per_s * seconds as f64) as u32, Duration::from_secs_f64(1.0 / batches_per_s));
    let capped = CAP_PER_S * 2 * seconds as u32;
    let capped_body: MakeBody = Arc::new(move |number| event(&capped_type, number).into());
    let capped_every = Duration::from_secs(1) / (CAP_PER_S * 2);
    let beside = tokio::spawn(open_loop(to, 8, capped_every, capped, "/v1/events", capped_body));
    let (path, body) = requests(BATCH);
    let started = now();
    open_loop(to, BATCH_CONNECTIONS, every, batches, path, body).await?;
    let (offered_s, arrived) = (now().duration_since(started).as_secs_f64(), rig.receiver.arrived());
    beside.await?.context("beside")?;
    let events = u64::from(batches) * BATCH;
    let last = rig.receiver.all_arrived(events).await?;
    let left = left(&running, &recorder, &unlimited, capped).await?;
    let (judged, breaches) = recorder.finish(&running).await?.judge(0)?;
    running.end().await?;
    Ok(Run {
        most_per_s,
        offered_per_s: batches_per_s * BATCH as f64,
        accepted_per_s: events as f64 / offered_s,
        meanwhile_per_s: arrived as f64 / offered_s,
        whole_per_s: events as f64 / last.duration_since(started).as_secs_f64(),
        above: judged.violations + judged.recorded_violations,
        fullest: judged.recorded_worst_sliding.unwrap_or_default(),
        left,
        breaches,
    })
}

/// What is delivered of batches that come as fast as they are answered.
async fn most(rig: &Rig) -> anyhow::Result<f64> {
    let running = rig.engine().await?;
    running.engine.create_destination(rig.unlimited()).await?;
    rig.receiver.reset(false);
    let (path, body) = requests(BATCH);
    let until = Until::Elapsed(rig.span(MOST_SECONDS));
    let driven = closed_loop(running.engine.address(), CONNECTIONS.min(BATCH_CONNECTIONS), until, path, body).await?;
    let last = rig.receiver.all_arrived(driven.answered * BATCH).await?;
    running.end().await?;
    Ok((driven.answered * BATCH) as f64 / last.duration_since(driven.started).as_secs_f64())
}

/// Waits for the capped neighbour, and answers what is neither delivered nor recorded in the end.
async fn left(running: &Running<'_>, recorder: &Recorder, unlimited: &str, capped: u32) -> anyhow::Result<u64> {
    let deadline = now() + DRAINED_WITHIN;
    while recorder.arrived() < capped as usize && now() < deadline {
        tokio::time::sleep(POLL_EVERY).await;
    }
    let path = format!("/v1/destinations/{unlimited}/backlog");
    let mut waiting = 0;
    while now() < deadline {
        let backlog: Value = running.engine.ask(Method::GET, &path, Value::Null).await?;
        waiting = ["pending", "retrying", "delivering"].iter().filter_map(|state| backlog[state].as_u64()).sum();
        if waiting == 0 {
            break;
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    let arrived = recorder.arrived() as u64;
    ensure!(arrived <= u64::from(capped), "{arrived} arrivals for {capped} events");
    Ok(waiting + u64::from(capped) - arrived)
}
