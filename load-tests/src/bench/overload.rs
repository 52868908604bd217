//! Twice the peak rate is offered: throughput during it, the limit of a second destination ("neighbour"), and whether
//! everything drains.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};

use super::{
    figure::{Figure, Unit},
    recorded::Recorder,
    results::Measured,
    rig::{BATCH, BATCH_CONNECTIONS, CONNECTIONS, Rig, Running, requests},
};
use crate::{
    client::{MakeBody, open_loop},
    clock::now,
    figures::event,
};

/// A single repeat is unreliable: by chance the machine may be slower in one of its two measurements.
const REPEATS: usize = 3;
const SECONDS: u64 = 8;
const PEAK_SECONDS: u64 = 4;
const CAP_PER_S: u32 = 50;
const DRAINED_WITHIN: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(100);

/// The result of one repeat.
struct Run {
    peak_per_s: f64,
    offered_per_s: f64,
    accepted_per_s: f64,
    /// Delivered while more was offered.
    during_per_s: f64,
    /// Delivered until the last arrival.
    whole_per_s: f64,
    /// Sends above the neighbour's limit.
    above: u64,
    /// The neighbour's fullest window, from Weir's record.
    fullest: u64,
    /// Deliveries that were not delivered or not recorded in the end.
    left: u64,
    breaches: Vec<String>,
}

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let mut runs = Vec::new();
    for _ in 0..rig.repeats(REPEATS) {
        runs.push(run(rig).await?);
    }
    // Rates are medians of the repeats. Errors are summed, because no repeat may have any.
    let figure = |id: &str, what: &str, unit: Unit, of: fn(&Run) -> f64| {
        Figure::of(id, what, unit, &runs.iter().map(of).collect::<Vec<_>>())
    };
    let sum = |of: fn(&Run) -> u64| runs.iter().map(of).sum::<u64>() as f64;
    let fullest = runs.iter().map(|run| run.fullest).max().unwrap_or_default();
    let rates = [
        figure("most", "peak: batches as fast as they are answered, delivered", Unit::PerSecond, |run| run.peak_per_s),
        figure("offered", "overloaded: offered", Unit::PerSecond, |run| run.offered_per_s),
        figure("accepted", "overloaded: accepted", Unit::PerSecond, |run| run.accepted_per_s),
        figure("meanwhile", "overloaded: delivered while more was offered", Unit::PerSecond, |run| run.during_per_s),
        figure("whole", "overloaded: delivered until the last arrival", Unit::PerSecond, |run| run.whole_per_s),
        // Each relative to the peak of its own repeat.
        figure("of_most.meanwhile", "delivered while more was offered ÷ the peak", Unit::Share, |run| {
            run.during_per_s / run.peak_per_s
        }),
        figure("of_most.whole", "delivered until the last arrival ÷ the peak", Unit::Share, |run| {
            run.whole_per_s / run.peak_per_s
        }),
    ];
    // The limit of the neighbour must hold, and every event must arrive.
    let counts = [
        Figure::new("above", "sends above the neighbour's limit", Unit::Count, sum(|run| run.above))
            .remark(format!("fullest window {fullest}")),
        Figure::new("left", "not delivered in the end", Unit::Count, sum(|run| run.left)),
    ];
    let measured = Measured::of(rates.into_iter().flatten().chain(counts));
    Ok(measured.judged(runs.into_iter().flat_map(|run| run.breaches).collect()))
}

async fn run(rig: &Rig) -> anyhow::Result<Run> {
    // The peak is measured right before the overload, because the speed of the machine changes.
    let peak_per_s = peak(rig).await.context("the peak rate")?;
    let running = rig.engine().await?;
    let unlimited = running.engine.create_destination(rig.unlimited()).await?;
    // The neighbour has a limit, and all its arrivals are recorded.
    let mut recorder = Recorder::start().await?;
    let capped_type = recorder.destination(&running, CAP_PER_S).await?;
    recorder.pause(&running, false).await?;
    rig.receiver.reset(false);

    // Offer twice the peak rate, and twice its limit to the neighbour.
    let (to, seconds) = (running.engine.address(), rig.seconds(SECONDS));
    let batches_per_s = (2.0 * peak_per_s / BATCH as f64).max(1.0);
    let (batches, every) = ((batches_per_s * seconds as f64) as u32, Duration::from_secs_f64(1.0 / batches_per_s));
    let capped = CAP_PER_S * 2 * seconds as u32;
    let capped_body: MakeBody = Arc::new(move |number| event(&capped_type, number).into());
    let capped_every = Duration::from_secs(1) / (CAP_PER_S * 2);
    let neighbour = tokio::spawn(open_loop(to, 8, capped_every, capped, "/v1/events", capped_body));
    let (path, body) = requests(BATCH);
    let started = now();
    open_loop(to, BATCH_CONNECTIONS, every, batches, path, body).await?;
    // What has arrived by now was delivered while more was offered.
    let (offered_s, arrived) = (now().duration_since(started).as_secs_f64(), rig.receiver.arrived());
    neighbour.await?.context("the neighbour")?;
    // Wait until everything is delivered.
    let events = u64::from(batches) * BATCH;
    let last = rig.receiver.all_arrived(events).await?;
    let left = left(&running, &recorder, &unlimited, capped).await?;
    let (judged, breaches) = recorder.finish(&running).await?.judge(0)?;
    running.end().await?;
    Ok(Run {
        peak_per_s,
        offered_per_s: batches_per_s * BATCH as f64,
        accepted_per_s: events as f64 / offered_s,
        during_per_s: arrived as f64 / offered_s,
        whole_per_s: events as f64 / last.duration_since(started).as_secs_f64(),
        above: judged.violations + judged.recorded_violations,
        fullest: judged.recorded_worst_sliding.unwrap_or_default(),
        left,
        breaches,
    })
}

/// The rate delivered when batches are posted as fast as they are answered.
async fn peak(rig: &Rig) -> anyhow::Result<f64> {
    let running = rig.engine().await?;
    running.engine.create_destination(rig.unlimited()).await?;
    rig.receiver.reset(false);
    let connections = CONNECTIONS.min(BATCH_CONNECTIONS);
    let (_, per_s) = rig.post(&running, BATCH, connections, rig.span(PEAK_SECONDS)).await?;
    running.end().await?;
    Ok(per_s)
}

/// Waits until the limited destination has got its deliveries and the backlog of the other one is sent. Returns the
/// number of deliveries that were not delivered or not recorded by then.
async fn left(running: &Running<'_>, recorder: &Recorder, unlimited: &str, capped: u32) -> anyhow::Result<u64> {
    let deadline = now() + DRAINED_WITHIN;
    while recorder.arrived() < capped as usize && now() < deadline {
        tokio::time::sleep(POLL_EVERY).await;
    }
    let mut waiting = 0;
    while now() < deadline {
        waiting = running.engine.backlog(unlimited).await?;
        if waiting == 0 {
            break;
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    let arrived = recorder.arrived() as u64;
    ensure!(arrived <= u64::from(capped), "{arrived} arrivals for {capped} events");
    Ok(waiting + u64::from(capped) - arrived)
}
