//! The full bench: every topic on both set-ups. One that fails is told in its place, and the others go on.

use std::path::PathBuf;

use clap::Args;

use super::{
    SetUp, Topic, backlog, destinations, edit, idle, latency, limits,
    machine::Machine,
    markdown, overload, picture,
    results::{Measured, Results, Section, write},
    rig::Rig,
    statements, throughput,
};
use crate::clock::{Timeline, now};

#[derive(Debug, Clone, Args)]
pub(crate) struct FullArgs {
    /// The binary to measure
    #[arg(long, value_name = "PATH", default_value = "target/release/weir")]
    weir: PathBuf,
    /// Make databases in this folder [default: the system's for temporary files]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Measure only these; the others stay as they were measured last
    #[arg(long, value_name = "TOPIC", value_delimiter = ',')]
    only: Vec<Topic>,
    /// Measure only this set-up [default: both]
    #[arg(long, value_name = "SET-UP")]
    set_up: Option<SetUp>,
    /// A little of everything, to see that it works; the page goes beside the JSON
    #[arg(long)]
    brief: bool,
    /// Write the page to this file, and the picture beside it
    #[arg(long, value_name = "FILE", default_value = "load-tests/RESULTS.md")]
    page: PathBuf,
    /// Keep the figures in this file
    #[arg(long, value_name = "FILE", default_value = "target/bench/results.json")]
    json: PathBuf,
}

/// Answers whether every topic could be measured. What is asked of the figures is told on the page and is no matter of success:
/// the machine may be another.
pub(crate) async fn full(args: &FullArgs) -> anyhow::Result<bool> {
    let (json, page) = match args.brief {
        true => (args.json.with_file_name("brief.json"), args.json.with_file_name("BRIEF.md")),
        false => (args.json.clone(), args.page.clone()),
    };
    let mut results = Results::read(&json)?;
    results.machine =
        Machine::look(&args.weir).with_versions(std::mem::take(&mut results.machine.versions).into_iter().skip(2));
    let mut is_whole = true;
    for set_up in SetUp::ALL.into_iter().filter(|set_up| args.set_up.is_none_or(|only| only == *set_up)) {
        let rig = Rig::start(set_up, args.weir.clone(), args.folder.clone(), args.brief).await?;
        results.machine = results.machine.with_versions(rig.versions().await?);
        for topic in <Topic as clap::ValueEnum>::value_variants() {
            if !args.only.is_empty() && !args.only.contains(topic) {
                continue;
            }
            eprintln!("\n· {}: {}", set_up.title(), topic.title());
            let section = Box::pin(measure(*topic, set_up, &rig)).await;
            if let Some(failure) = &section.failure {
                eprintln!("  failed: {failure}");
                is_whole = false;
            }
            for figure in &section.measured.figures {
                eprintln!("  {:<60} {:>14}", figure.what, figure.unit.write(figure.value));
            }
            // After each: what was measured is kept, whatever becomes of the rest.
            results.put(section);
            results.write(&json)?;
            publish(&results, &page)?;
        }
    }
    eprintln!("\n{}", page.display());
    Ok(is_whole)
}

async fn measure(topic: Topic, set_up: SetUp, rig: &Rig) -> Section {
    let (began, started) = (Timeline::begin().now().to_string(), now());
    let ceiling = rig.ceiling().await;
    let measured = match topic {
        Topic::Throughput => Box::pin(throughput::measure(rig)).await,
        Topic::Latency => Box::pin(latency::measure(rig)).await,
        Topic::Destinations => Box::pin(destinations::measure(rig)).await,
        Topic::Backlog => Box::pin(backlog::measure(rig)).await,
        Topic::Idle => Box::pin(idle::measure(rig)).await,
        Topic::Statements => Box::pin(statements::measure(rig)).await,
        Topic::Edit => Box::pin(edit::measure(rig)).await,
        Topic::Limits => Box::pin(limits::measure(rig)).await,
        Topic::Overload => Box::pin(overload::measure(rig)).await,
    };
    let (measured, failure) = match measured {
        Ok(measured) => (measured, None),
        Err(error) => (Measured::default(), Some(format!("{error:#}"))),
    };
    let took_s = now().duration_since(started).as_secs_f64();
    Section { topic, set_up, began, took_s, ceiling: ceiling.ok(), measured, failure }
}

fn publish(results: &Results, page: &std::path::Path) -> anyhow::Result<()> {
    if let Some(sends) = results.sections.iter().find_map(|section| section.measured.sends.as_ref()) {
        write(&page.with_file_name("results.svg"), &picture::draw(sends)?)?;
    }
    write(page, &markdown::page(results))
}
