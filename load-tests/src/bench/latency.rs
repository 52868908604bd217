//! Milliseconds from POST to arrival at a steady rate, compared with the bare client and receiver.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;

use super::{
    SetUp,
    cost::{Cost, figures_of},
    figure::{Figure, Unit},
    results::Measured,
    rig::{CONNECTIONS, RECORDED_WITHIN, Rig, requests},
};
use crate::{
    client::{MakeBody, Until, closed_loop, open_loop},
    figures::{Percentiles, data},
};

const OFFERED_PER_S: [u32; 4] = [200, 500, 1_000, 3_000];
/// The rate with targets, at which set-ups are compared.
const COMPARED_PER_S: u32 = 500;
const REPEATS: usize = 3;
const BARE_SECONDS: u64 = 2;
const SECONDS: u64 = 5;
const WARMING: u64 = 1_000;

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let running = rig.engine().await?;
    running.engine.create_destination(rig.unlimited()).await?;
    let (path, body) = requests(1);
    // Warms up connections, caches and the database file.
    rig.receiver.reset(false);
    closed_loop(running.engine.address(), CONNECTIONS, Until::Sent(WARMING), path, Arc::clone(&body)).await?;
    rig.receiver.all_arrived(WARMING).await?;

    let mut figures = Vec::new();
    for &offered in offered_on(rig.set_up) {
        let (mut bare, mut weir, mut costs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rig.repeats(REPEATS) {
            // Measure the bare receiver and Weir in turn, at the same rate.
            let bare_body: MakeBody = Arc::new(|number| data(number).into());
            let seconds = rig.seconds(BARE_SECONDS);
            bare.push(percentiles(rig, rig.receiver.address(), offered, seconds, "/hook", bare_body).await?);
            let (to, seconds) = (running.engine.address(), rig.seconds(SECONDS));
            let before = running.cpu()?;
            weir.push(percentiles(rig, to, offered, seconds, path, Arc::clone(&body)).await?);
            // The recording of the last results is part of the cost.
            tokio::time::sleep(RECORDED_WITHIN).await;
            costs.push(Cost::between(before, running.cpu()?, u64::from(offered) * seconds));
        }
        // Each percentile stands beside that of the bare receiver.
        for (name, of) in PERCENTILES {
            let [bare, weir] = [&bare, &weir].map(|runs| runs.iter().map(of).collect::<Vec<_>>());
            let what = format!("{offered}/s offered, {name}");
            let figure = Figure::of(format!("{name}.{offered}"), what, Unit::Ms, &weir);
            figures.extend(figure.map(|figure| figure.beside(&weir, &bare)));
        }
        // The set-ups are compared by their CPU time at one rate.
        if offered == COMPARED_PER_S {
            figures.extend(figures_of(rig, u64::from(offered), "a second, CPU for each delivery", &costs));
        }
    }
    running.end().await?;
    Ok(Measured::of(figures))
}

fn offered_on(set_up: SetUp) -> &'static [u32] {
    match set_up {
        SetUp::Embedded | SetUp::Scaled => &OFFERED_PER_S,
        SetUp::Roles => &[COMPARED_PER_S],
    }
}

type Percentile = fn(&Percentiles) -> f64;
const PERCENTILES: [(&str, Percentile); 3] =
    [("p50", |of| of.p50_ms), ("p99", |of| of.p99_ms), ("max", |of| of.max_ms)];

pub(super) async fn percentiles(
    rig: &Rig,
    to: SocketAddr,
    offered: u32,
    seconds: u64,
    path: &'static str,
    body: MakeBody,
) -> anyhow::Result<Percentiles> {
    rig.receiver.reset(true);
    let (every, events) = (Duration::from_secs(1) / offered, offered * seconds as u32);
    let meant = open_loop(to, CONNECTIONS, every, events, path, body).await?;
    rig.receiver.all_arrived(u64::from(events)).await?;
    let arrivals = rig.receiver.noted().into_iter();
    let taken = arrivals.filter_map(|(number, at)| Some(at.saturating_duration_since(*meant.get(number as usize)?)));
    Percentiles::of(taken.collect()).context("no arrivals were noted")
}
