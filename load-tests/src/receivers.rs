//! The command `receivers`: sends to real rate limiters at their nominal limits, and judges how much they refuse and how
//! much of the limit is used.
//!
//! nginx, HAProxy and libraries of Node and Python are started as they are deployed ([servers]); the harness plays the
//! limiters that are no package ([limiters]). A [relay] in front of each counts the answers. The [cases](case) are played
//! in [rounds](round): slow ones together, fast ones a few at a time, because a machine that is busy makes sends late.

mod case;
mod imitation;
mod limiters;
mod page;
mod relay;
mod round;
mod servers;
mod verdict;

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use clap::Args;

use crate::{
    engine, pages,
    run::{self, api::Api, fleet::Fleet},
    scenario::{Roles, SetUp},
};
use case::{Case, Kind};
use verdict::Played;

/// Fast cases of one round: 300 requests a second.
const FAST_AT_ONCE: usize = 3;

/// One worker, so that the few requests of a case are not sent in turn by two.
const ROLES: Roles = Roles { scheduler: 1, worker: 1 };

#[derive(Debug, Clone, Args)]
pub(crate) struct ReceiversArgs {
    /// Receivers by name, such as nginx or haproxy [default: all]
    receivers: Vec<String>,
    /// Play each case for a shorter time: two minutes instead of eleven
    #[arg(long)]
    quick: bool,
    /// Start Weir as one process, or as one for each role
    #[arg(long, value_name = "SET-UP", value_enum, default_value = "embedded")]
    spawn: SetUp,
    /// The binary to start [default: `weir` in the folder of this program]
    #[arg(long, value_name = "PATH")]
    weir: Option<PathBuf>,
    /// Write the table and the logs to this folder [default: target/load/receivers]
    #[arg(long, value_name = "FOLDER")]
    report: Option<PathBuf>,
    /// Write the table to docs/guides/limits.md; only the whole one
    #[arg(long, conflicts_with_all = ["quick", "receivers"])]
    results: bool,
}

/// The seconds of the slow and of the fast rounds.
const FULL_S: (u64, u64) = (240, 45);
const QUICK_S: (u64, u64) = (40, 12);

/// Returns whether every wanted figure was reached.
pub(crate) async fn run(args: &ReceiversArgs) -> anyhow::Result<bool> {
    let cases = choose(&args.receivers)?;
    let folder = pages::report_folder(args.report.as_deref(), "receivers")?;
    let weir = engine::program(args.weir.as_deref())?;
    let (played, unplayed) = play(&cases, args, &weir, &folder).await?;
    std::fs::write(folder.join(format!("{}.md", args.spawn.as_str())), page::table(&played))?;
    if args.results {
        page::write(Path::new("docs/guides/limits.md"), args.spawn, &played)?;
    }
    let failed = played.iter().filter(|played| !played.breaches().is_empty()).count();
    println!("\n{} of {} reached the wanted figures; {}", played.len() - failed, played.len(), folder.display());
    ensure!(unplayed == 0, "{unplayed} could not be played");
    Ok(failed == 0)
}

/// The cases of the named receivers.
fn choose(names: &[String]) -> anyhow::Result<Vec<Case>> {
    let known = |name: &String| Kind::ALL.iter().any(|kind| kind.name() == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        bail!("there is no receiver {unknown}; there are {}", Kind::ALL.map(Kind::name).join(", "));
    }
    let is_wanted = |case: &Case| names.is_empty() || names.iter().any(|name| name == case.kind.name());
    Ok(Case::all().into_iter().filter(is_wanted).collect())
}

/// The rounds with their seconds.
fn rounds(cases: &[Case], (slow_s, fast_s): (u64, u64)) -> Vec<(Vec<Case>, u64)> {
    let (fast, slow): (Vec<Case>, Vec<Case>) = cases.iter().partition(|case| case.is_fast());
    let fast = fast.chunks(FAST_AT_ONCE).map(|round| (round.to_vec(), fast_s));
    std::iter::once((slow, slow_s)).filter(|(slow, _)| !slow.is_empty()).chain(fast).collect()
}

/// Plays all rounds on one Weir. Returns the cases in their order, and how many could not be played.
async fn play(
    cases: &[Case],
    args: &ReceiversArgs,
    weir: &Path,
    folder: &Path,
) -> anyhow::Result<(Vec<Played>, usize)> {
    let log = run::log_file(folder, &format!("weir-{}", args.spawn.as_str()))?;
    let fleet = Fleet::start(args.spawn, weir, ROLES, log).await?;
    let api = Api::new(fleet.address(), None);
    let log = run::log_file(folder, "receivers")?;
    let (mut all, mut unplayed) = (Vec::new(), 0);
    let rounds = rounds(cases, if args.quick { QUICK_S } else { FULL_S });
    for (number, (cases, seconds)) in rounds.iter().enumerate() {
        eprintln!("· round {} of {}: {} cases, {seconds} s", number + 1, rounds.len(), cases.len());
        for (case, played) in cases.iter().zip(round::play(cases, *seconds, &api, &log).await?) {
            match played {
                Ok(played) => {
                    print!("{}", page::line(&played));
                    all.push(played);
                }
                // A case that cannot be played does not stop the others.
                Err(error) => {
                    eprintln!("  {case} could not be played: {error:#}");
                    unplayed += 1;
                }
            }
        }
    }
    fleet.stop().await?;
    all.sort_by_key(|played| cases.iter().position(|case| *case == played.case));
    Ok((all, unplayed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_played_once_and_few_fast_ones_at_a_time() {
        let rounds = rounds(&Case::all(), QUICK_S);
        assert_eq!(rounds.iter().map(|(cases, _)| cases.len()).sum::<usize>(), Case::all().len());
        for (cases, seconds) in &rounds {
            let fast = cases.iter().filter(|case| case.is_fast()).count();
            assert!(fast == 0 && *seconds == 40 || fast == cases.len() && fast <= FAST_AT_ONCE && *seconds == 12);
        }
    }

    #[test]
    fn receivers_are_chosen_by_name() {
        let chosen = choose(&["haproxy".to_owned()]).unwrap();
        assert!(!chosen.is_empty() && chosen.iter().all(|case| case.kind == Kind::Haproxy));
        assert!(choose(&["apache".to_owned()]).unwrap_err().to_string().contains("nginx-burst"));
    }
}
