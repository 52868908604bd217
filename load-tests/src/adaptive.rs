//! The command `adaptive`: adaptive rate and its opponents in virtual time, or Weir's adaptive rate on real sockets.
//!
//! On sockets the receivers are those of [`weir_pace_trials::real`]: the same code decides, on the kernel's times of
//! arrival. All are [played](play) at once at one Weir, each at a destination of its own, beside neighbours with a fixed
//! limit. Near the end the queue loses its state. Each is [judged](verdict) by the judge of the trials and by that of the
//! scenarios' limits. Two controls are judged wrongly on purpose, and must be found.

mod page;
mod play;
mod verdict;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::{engine, pages, scenario::SetUp, sections};

#[derive(Debug, Clone, Args)]
pub(crate) struct AdaptiveArgs {
    /// How often each trial is played in virtual time, each time with another seed
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Play Weir on real sockets and in real time, beside neighbours with a fixed limit; about five minutes
    #[arg(long)]
    real: bool,
    /// Start Weir as one process, or as one for each role with two workers
    #[arg(long, value_name = "SET-UP", value_enum, default_value = "embedded", requires = "real")]
    spawn: SetUp,
    /// The binary to start [default: `weir` in the folder of this program]
    #[arg(long, value_name = "PATH", requires = "real")]
    weir: Option<PathBuf>,
    /// Write the table and the logs to this folder [default: target/load/adaptive]
    #[arg(long, value_name = "FOLDER", requires = "real")]
    report: Option<PathBuf>,
    /// Write the section of load-tests/RESULTS.md, too
    #[arg(long, requires = "real")]
    results: bool,
}

/// Returns whether everything wanted was reached.
pub(crate) async fn run(args: &AdaptiveArgs) -> anyhow::Result<bool> {
    let results = Path::new("load-tests");
    if !args.real {
        let section = weir_pace_trials::table::markdown(args.seeds);
        sections::rewrite(results, sections::ADAPTIVE, |_| section)?;
        return Ok(true);
    }
    let folder = pages::report_folder(args.report.as_deref(), "adaptive")?;
    let weir = engine::program(args.weir.as_deref())?;
    let played = play::play(args.spawn, &weir, &folder).await?;
    let verdict = verdict::judge(&played);
    print!("{}", page::lines(&verdict));
    let section = page::section(args.spawn, &verdict, args.seeds);
    std::fs::write(folder.join(format!("{}.md", args.spawn.as_str())), &section)?;
    if args.results {
        let name = match args.spawn {
            SetUp::Embedded => sections::ADAPTIVE_EMBEDDED,
            SetUp::Scaled => sections::ADAPTIVE_SCALED,
        };
        sections::rewrite(results, name, |_| section)?;
    }
    Ok(verdict.is_met())
}
