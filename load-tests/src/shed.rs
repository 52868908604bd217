//! The command `shed`: what load shedding costs, and whom it protects, on both set-ups.

mod cores;
mod decisions;
mod floods;
mod producer;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{Args, ValueEnum};

use self::{
    cores::Cores,
    floods::{Bed, Row},
};
use crate::{bench::SetUp, sections};

#[derive(Debug, Args)]
pub(crate) struct ShedArgs {
    /// The binary to measure
    #[arg(long, value_name = "PATH", default_value = "target/release/weir")]
    weir: PathBuf,
    /// Flood only this set-up
    #[arg(long, value_name = "SET-UP")]
    set_up: Option<SetUp>,
    /// Decisions a second of each design
    #[arg(long, default_value_t = 10_000)]
    rate: u32,
    /// How long a part of a measurement lasts
    #[arg(long, default_value_t = 6)]
    seconds: u32,
    /// Measure only this part of the floods
    #[arg(long, value_name = "PART", conflicts_with = "results")]
    only: Option<Part>,
    /// Write the section of load-tests/RESULTS.md
    #[arg(long)]
    results: bool,
}

/// A part of the floods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    Flood,
    Neighbour,
    Cost,
    SlowStore,
    HangingRedis,
    KilledApi,
}

/// Returns true: a missed target is not a failure, because the machine may be slower.
pub(crate) async fn run(args: &ShedArgs) -> anyhow::Result<bool> {
    let mut page = "## Load shedding\n\n".to_owned();
    if args.only.is_none() {
        page += "What a decision costs, of three designs at the same rate. Those of others are written from their \
                 descriptions.\n\n";
        page += &decisions::table(args.rate, args.seconds).await?;
    }
    let cores = Arc::new(Cores::divided()?);
    page += "\nFloods of a running Weir. ";
    page += if cores.are_apart() {
        "The engine and its servers have one half of the cores, the client and the receiver the other"
    } else {
        "Client, receiver, engine and servers share one core"
    };
    page += ", and most figures are ratios to one of the same run. A refused post is not repeated.\n";
    for set_up in [SetUp::Embedded, SetUp::Scaled] {
        if args.set_up.is_none_or(|only| only == set_up) {
            let part = Duration::from_secs(args.seconds.into());
            let bed = Bed::start(set_up, args.weir.clone(), part, Arc::clone(&cores)).await?;
            page += &format!("\n**{}**\n\n{}", set_up.title(), table(&bed.measure(args.only).await?));
        }
    }
    print!("{page}");
    if args.results {
        sections::rewrite(Path::new("load-tests"), sections::SHEDDING, |_| page)?;
    }
    Ok(true)
}

fn table(rows: &[Row]) -> String {
    let mut table = "| | asked | seen | |\n|---|---|---|---|\n".to_owned();
    for (figure, asked) in rows {
        let verdict = |asked: bool| if asked { "met" } else { "**not met**" };
        let (asked, verdict) =
            asked.map_or_else(Default::default, |asked| (asked.write(figure), verdict(asked.is_met_by(figure))));
        table += &format!("| {} | {asked} | {} | {verdict} |\n", figure.what, figure.unit.write(figure.value));
    }
    table
}
