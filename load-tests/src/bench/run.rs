//! A run of the bench: every topic on each set-up. The page names a failed topic, and the others are still measured.

use std::{path::PathBuf, time::Duration};

use anyhow::ensure;
use clap::{Args, ValueEnum};

use super::{
    SetUp, Topic, backlog, destinations, edit, fan_out, idle, keys, latency, limits,
    machine::Machine,
    markdown, overload, picture,
    results::{Measured, Results, Section, write},
    retention,
    rig::Rig,
    statements, throughput, viewers,
};
use crate::{
    clock::{Timeline, now},
    sections,
};

/// A topic takes at most three minutes. The timeout keeps a hanging topic from blocking the others.
const TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Args)]
pub(crate) struct BenchArgs {
    /// The binary to measure
    #[arg(long, value_name = "PATH", default_value = "target/release/weir")]
    weir: PathBuf,
    /// Make databases in this folder [default: the system's for temporary files]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Measure only these topics; the others keep their last figures
    #[arg(long, value_name = "TOPIC", value_delimiter = ',')]
    only: Vec<Topic>,
    /// Measure only this set-up [default: all]
    #[arg(long, value_name = "SET-UP")]
    set_up: Option<SetUp>,
    /// Run a short version of each topic, to check that it works; the page is written beside the JSON
    #[arg(long)]
    brief: bool,
    /// Write the page to this file, and the chart beside it
    #[arg(long, value_name = "FILE", default_value = "load-tests/RESULTS.md")]
    page: PathBuf,
    /// Keep the figures in this file
    #[arg(long, value_name = "FILE", default_value = "target/bench/results.json")]
    json: PathBuf,
}

impl BenchArgs {
    /// The selected set-ups that have a selected topic.
    fn set_ups(&self) -> impl Iterator<Item = SetUp> {
        let is_selected = |set_up: &SetUp| self.set_up.is_none_or(|only| only == *set_up);
        SetUp::ALL.into_iter().filter(is_selected).filter(|set_up| self.topics(*set_up).next().is_some())
    }

    fn topics(&self, set_up: SetUp) -> impl Iterator<Item = Topic> {
        let is_selected = |topic: &Topic| self.only.is_empty() || self.only.contains(topic);
        Topic::value_variants().iter().copied().filter(move |topic| set_up.has(*topic)).filter(is_selected)
    }
}

/// Returns whether every topic could be measured. The page says whether targets are met; a missed target is not a
/// failure, because the machine may be slower.
pub(crate) async fn run(args: &BenchArgs) -> anyhow::Result<bool> {
    ensure!(args.set_ups().next().is_some(), "no topic of --only is measured on this set-up");
    // A brief run has its own files, so that it does not replace real figures.
    let (json, page) = match args.brief {
        true => (args.json.with_file_name("brief.json"), args.json.with_file_name("BRIEF.md")),
        false => (args.json.clone(), args.page.clone()),
    };
    // Topics that are not measured now keep their last figures.
    let mut results = Results::read(&json)?;
    results.brief = args.brief;
    // Look at the machine again, and keep the known versions of the servers. The first two are those of Weir and the
    // compiler.
    results.machine =
        Machine::look(&args.weir).with_versions(std::mem::take(&mut results.machine.versions).into_iter().skip(2));
    let mut is_whole = true;
    for set_up in args.set_ups() {
        // If a set-up cannot be started, each of its topics has this failure.
        let rig = Rig::start(set_up, args.weir.clone(), args.folder.clone(), args.brief).await;
        if let Ok(rig) = &rig {
            results.machine = results.machine.with_versions(rig.versions().await.unwrap_or_default());
        }
        for topic in args.topics(set_up) {
            eprintln!("\n· {}: {}", set_up.title(), topic.title());
            let section = Box::pin(section(topic, set_up, rig.as_ref())).await;
            print(&section);
            is_whole &= section.failure.is_none();
            // Written after each topic, so figures are kept if a later topic fails.
            results.put(section);
            results.write(&json)?;
            publish(&results, &page)?;
        }
    }
    eprintln!("\n{}", page.display());
    Ok(is_whole)
}

/// Measures a topic. A failure becomes part of the section.
async fn section(topic: Topic, set_up: SetUp, rig: Result<&Rig, &anyhow::Error>) -> Section {
    let (began, started) = (Timeline::begin().now().to_string(), now());
    let (ceiling, measured) = match rig {
        Ok(rig) => {
            let ceiling = rig.ceiling().await.ok();
            let measured = tokio::time::timeout(TIMEOUT, Box::pin(measure(topic, rig))).await;
            let hangs = || format!("the measurement did not end within {} minutes", TIMEOUT.as_secs() / 60);
            (ceiling, measured.map_err(|_| hangs()).and_then(|measured| measured.map_err(|error| format!("{error:#}"))))
        }
        Err(error) => (None, Err(format!("{error:#}"))),
    };
    let took_s = now().duration_since(started).as_secs_f64();
    let (measured, failure) = match measured {
        Ok(measured) => (measured, None),
        Err(failure) => (Measured::default(), Some(failure)),
    };
    Section { topic, set_up, began, took_s, ceiling, measured, failure }
}

async fn measure(topic: Topic, rig: &Rig) -> anyhow::Result<Measured> {
    match topic {
        Topic::Throughput => Box::pin(throughput::measure(rig)).await,
        Topic::Latency => Box::pin(latency::measure(rig)).await,
        Topic::Destinations => Box::pin(destinations::measure(rig)).await,
        Topic::Keys => Box::pin(keys::measure(rig)).await,
        Topic::FanOut => Box::pin(fan_out::measure(rig)).await,
        Topic::Backlog => Box::pin(backlog::measure(rig)).await,
        Topic::Idle => Box::pin(idle::measure(rig)).await,
        Topic::Statements => Box::pin(statements::measure(rig)).await,
        Topic::Edit => Box::pin(edit::measure(rig)).await,
        Topic::Limits => Box::pin(limits::measure(rig)).await,
        Topic::Overload => Box::pin(overload::measure(rig)).await,
        Topic::Viewers => Box::pin(viewers::measure(rig)).await,
        Topic::Retention => Box::pin(retention::measure(rig)).await,
    }
}

/// Prints a section to the terminal.
fn print(section: &Section) {
    if let Some(failure) = &section.failure {
        eprintln!("  not measured: {failure}");
    }
    for figure in &section.measured.figures {
        let ratio = figure.ceiling.map_or(String::new(), |ceiling| format!("{:>9.3} of ceiling", ceiling.ratio));
        eprintln!("  {:<64} {:>14}{ratio}", figure.what, figure.unit.write(figure.value));
    }
    eprintln!("  {:.0} s", section.took_s);
}

fn publish(results: &Results, page: &std::path::Path) -> anyhow::Result<()> {
    if let Some(sends) = results.sections.iter().find_map(|section| section.measured.sends.as_ref()) {
        write(&page.with_file_name("results.svg"), &picture::draw(sends))?;
    }
    // Keeps the sections that other commands write.
    let old = std::fs::read_to_string(page).unwrap_or_default();
    write(page, &sections::keep(&old, &markdown::page(results)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn set_ups(arguments: &[&str]) -> Vec<SetUp> {
        let cli = Cli::try_parse_from([&["bench"], arguments].concat()).unwrap();
        cli.args.set_ups().collect()
    }

    #[test]
    fn servers_are_started_only_for_set_ups_with_a_selected_topic() {
        assert_eq!(set_ups(&[]), SetUp::ALL);
        assert_eq!(set_ups(&["--only", "edit"]), [SetUp::Embedded, SetUp::Scaled]);
        assert_eq!(set_ups(&["--only", "edit,latency", "--set-up", "roles"]), [SetUp::Roles]);
        assert_eq!(set_ups(&["--only", "edit", "--set-up", "roles"]), []);
    }
}
