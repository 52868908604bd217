//! Events a second from the first POST to the last arrival.

use anyhow::Context;

use super::{
    figure::{Figure, Unit},
    results::Measured,
    rig::{BATCH, BATCH_CONNECTIONS, CONNECTIONS, Rig},
};

const REPEATS: usize = 5;
const SECONDS: u64 = 3;

/// The result of one repeat.
struct Run {
    ceiling_per_s: f64,
    accepted_per_s: f64,
    arrived_per_s: f64,
    peak_mib: f64,
}

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let (mut single, mut batch) = (Vec::new(), Vec::new());
    // In turn, so that a slow phase of the machine affects both.
    for _ in 0..rig.repeats(REPEATS) {
        single.push(run(rig, 1, CONNECTIONS).await.context("single posts")?);
        batch.push(run(rig, BATCH, BATCH_CONNECTIONS).await.context("batches")?);
    }
    let mut figures = Vec::new();
    for (id, what, runs) in [("single", "single posts", &single), ("batch", "batches of 100", &batch)] {
        let all = |of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<_>>();
        let (ceilings, arrived) = (all(|run| run.ceiling_per_s), all(|run| run.arrived_per_s));
        let accepted = all(|run| run.accepted_per_s);
        // A repeat is compared with the ceiling that was measured right before it.
        let figure = |id: &str, what: String, repeats: &[f64]| {
            Some(Figure::of(id, what, Unit::PerSecond, repeats)?.beside(repeats, &ceilings))
        };
        figures.extend(figure(id, format!("{what}, delivered"), &arrived));
        figures.extend(figure("accepted", format!("{what}, accepted while they were posted"), &accepted));
        let peak = all(|run| run.peak_mib);
        figures.extend(Figure::of("memory", format!("{what}, resident memory of weir at most"), Unit::MiB, &peak));
    }
    Ok(Measured::of(figures))
}

async fn run(rig: &Rig, size: u64, connections: usize) -> anyhow::Result<Run> {
    let ceiling_per_s = rig.ceiling().await?.per_s;
    let running = rig.engine().await?;
    running.engine.create_destination(rig.unlimited()).await?;
    rig.receiver.reset(false);
    let (driven, arrived_per_s) = rig.post(&running, size, connections, rig.span(SECONDS)).await?;
    let peak_mib = running.engine.peak_mib()?;
    running.end().await?;
    Ok(Run { ceiling_per_s, accepted_per_s: driven.per_second() * size as f64, arrived_per_s, peak_mib })
}
