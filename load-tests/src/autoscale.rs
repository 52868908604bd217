//! The command `autoscale`: tests the autoscaling of workers with real processes.
//!
//! Queries, targets and behaviour are read [from the manifests](manifest), so the tested configuration is the deployed
//! one. A real [Prometheus](prometheus) scrapes real [workers](pods). A [controller] queries it at each sync and
//! decides [as the HPA does](hpa). The load is an ordinary scenario, played and judged by the same code: nothing may be
//! lost, doubled or sent above a limit while the number of workers changes. Each [promise] is judged on the [trace] of
//! the run.
//!
//! The short form runs ten times as fast: every time of the manifest and of the scenario is divided, rates are
//! unchanged. It shows that the algorithm and the signals work together; only the real-time form gives figures.

mod controller;
mod hpa;
mod manifest;
mod picture;
mod plan;
mod play;
mod pods;
mod prometheus;
mod promise;
mod promql;
mod relay;
mod results;
mod summary;
mod trace;

use std::path::{Path, PathBuf};

use anyhow::ensure;
use clap::Args;

use crate::{engine, pages};
use manifest::Scaling;
use plan::Plan;
use play::{Played, Settings};

/// The speed-up of the short form.
const SHORT: f64 = 10.0;

#[derive(Debug, Clone, Args)]
pub(crate) struct AutoscaleArgs {
    /// Scenarios by name, or files of your own (FILE.toml) [default: all]
    scenarios: Vec<String>,
    /// Run ten times as fast: eleven minutes instead of one and a half hours
    #[arg(long)]
    short: bool,
    /// The file with the ScaledObject or the HPA; it may hold other manifests too (`kubectl kustomize … > FILE`)
    #[arg(long, value_name = "FILE", default_value = "k8s/components/keda/scaledobject.yaml")]
    manifest: PathBuf,
    /// The binary to start [default: `weir` in the folder of this program]
    #[arg(long, value_name = "PATH")]
    weir: Option<PathBuf>,
    /// Write results, charts and Weir's logs to this folder [default: target/load/autoscale]
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Write load-tests/autoscale.svg and the autoscaling section of load-tests/RESULTS.md; only in real time
    #[arg(long, conflicts_with = "short")]
    results: bool,
}

/// Returns whether every promise was kept.
pub(crate) async fn run(args: &AutoscaleArgs) -> anyhow::Result<bool> {
    let plans: Vec<Plan> = if args.scenarios.is_empty() {
        Plan::all()?
    } else {
        args.scenarios.iter().map(|name| Plan::named(name)).collect::<anyhow::Result<_>>()?
    };
    // The configuration is read from the manifests, so the tested one is the deployed one.
    let scaling = Scaling::read(&args.manifest)?;
    let folder = pages::report_folder(args.report.as_deref(), "autoscale")?;
    let weir = engine::program(args.weir.as_deref())?;
    let times = if args.short { SHORT } else { 1.0 };
    let settings = Settings { weir: &weir, scaling: &scaling, times, folder: &folder };
    let (played, unplayed) = play_all(&plans, &settings).await?;
    if args.results {
        results::write(Path::new("load-tests"), &played, scaling.kind)?;
    }
    let failed: Vec<_> =
        played.iter().filter(|played| !played.is_passed()).map(|played| played.name.as_str()).collect();
    println!("\n{} of {} passed; {}", played.len() - failed.len(), played.len(), folder.display());
    if !failed.is_empty() {
        println!("failed: {}", failed.join(", "));
    }
    // A broken promise makes the result false. A plan that could not be played is an error.
    ensure!(unplayed.is_empty(), "could not be played: {}", unplayed.join(", "));
    Ok(failed.is_empty())
}

/// Plays the plans one after the other. Also returns the names of the plans that could not be played.
async fn play_all<'a>(plans: &'a [Plan], settings: &Settings<'_>) -> anyhow::Result<(Vec<Played>, Vec<&'a str>)> {
    let (mut all, mut unplayed) = (Vec::new(), Vec::new());
    for (number, plan) in plans.iter().enumerate() {
        eprintln!("· {} ({}/{})", plan.name, number + 1, plans.len());
        match play::play(plan, settings).await {
            Ok(played) => {
                // Report each run at once, so that an interruption later does not lose it.
                print!("{}", summary::of(&played));
                report(&played, settings.folder)?;
                all.push(played);
            }
            // A plan that cannot be played does not stop the others.
            Err(error) => {
                eprintln!("  could not be played: {error:#}");
                unplayed.push(plan.name.as_str());
            }
        }
    }
    Ok((all, unplayed))
}

fn report(played: &Played, folder: &Path) -> anyhow::Result<()> {
    std::fs::write(folder.join(format!("{}.json", played.name)), serde_json::to_string(played)? + "\n")?;
    std::fs::write(folder.join(format!("{}.svg", played.name)), picture::draw(&played.trace))?;
    Ok(())
}
