//! The command `run`: plays scenarios one after the other, judges each, and writes the report.

mod budgets;
mod summary;

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use anyhow::{bail, ensure};
use clap::Args;

use crate::{
    clock::Timeline,
    engine,
    judge::{self, Judgement},
    pages::{self, Machine, Report, Run},
    run::{self, Target, api::Api, capacity, fleet::Fleet},
    scenario::{Scenario, SetUp},
    sections,
};

#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Scenarios by name, or files of your own (FILE.toml) [default: all except long ones]
    scenarios: Vec<String>,
    /// Play only the quick set, and judge only promises that hold on a busy machine: limits, loss, order, drain
    #[arg(long, conflicts_with = "scenarios")]
    quick: bool,
    /// Use a running Weir: http://HOST:PORT. It must be allowed to send plain HTTP to this machine
    #[arg(long, value_name = "URL", conflicts_with = "spawn")]
    target: Option<String>,
    /// Its API key
    #[arg(long, value_name = "KEY", env = "WEIR_API_KEY", hide_env_values = true, requires = "target")]
    api_key: Option<String>,
    /// The address of this machine in the URLs of destinations
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    host: String,
    /// Start a Weir on a fresh store for each scenario
    #[arg(long, value_name = "SET-UP", value_enum, default_value = "embedded")]
    spawn: SetUp,
    /// The binary to start [default: `weir` in the folder of this program]
    #[arg(long, value_name = "PATH")]
    weir: Option<PathBuf>,
    /// Write report.json, report.html and Weir's logs to this folder [default: target/load/SET-UP]
    #[arg(long, value_name = "FOLDER")]
    report: Option<PathBuf>,
    /// Write the figures to the section on budgets of load-tests/RESULTS.md, too. For scenarios of limit groups, limit keys,
    /// costs, reservations and overrides
    #[arg(long, requires = "scenarios")]
    results: bool,
}

/// Returns whether every promise was kept.
pub(crate) async fn run(args: &RunArgs) -> anyhow::Result<bool> {
    let chosen = choose(args)?;
    let folder = pages::report_folder(args.report.as_deref(), set_up_name(args))?;
    let mut report = Report { machine: Machine::this(), began: Timeline::begin().now(), runs: Vec::new() };
    let mut unplayed = Vec::new();
    for (number, scenario) in chosen.iter().enumerate() {
        eprintln!("· {} ({}/{})", scenario.name, number + 1, chosen.len());
        let judgement = match prove(args, scenario, &folder).await {
            Ok(judgement) => judgement,
            // A scenario that cannot be played does not stop the others.
            Err(error) => {
                eprintln!("  could not be played: {error:#}");
                unplayed.push(scenario.name.as_str());
                continue;
            }
        };
        print!("{}", summary::of(&scenario.name, &judgement));
        report.runs.push(Run {
            scenario: scenario.name.clone(),
            about: scenario.about.clone(),
            set_up: set_up_name(args).to_owned(),
            passed: judgement.is_passed(),
            judgement,
        });
        // Written after each scenario, so an interrupted series leaves a report.
        report.write(&folder)?;
    }

    if args.results {
        let section = |old: Option<&str>| budgets::section(old, &report.runs);
        sections::rewrite(Path::new("load-tests"), sections::BUDGETS, section)?;
    }
    // A broken promise makes the result false. A scenario that could not be played is an error.
    let failed: Vec<_> = report.runs.iter().filter(|run| !run.passed).map(|run| run.scenario.as_str()).collect();
    println!(
        "\n{} of {} passed; {}",
        report.runs.len() - failed.len(),
        report.runs.len(),
        folder.join("report.html").display()
    );
    if !failed.is_empty() {
        println!("failed: {}", failed.join(", "));
    }
    ensure!(unplayed.is_empty(), "could not be played: {}", unplayed.join(", "));
    Ok(failed.is_empty())
}

fn set_up_name(args: &RunArgs) -> &str {
    if args.target.is_some() { "target" } else { args.spawn.as_str() }
}

/// The scenarios to play. A named scenario that cannot be played is an error; others that cannot be played are left
/// out.
fn choose(args: &RunArgs) -> anyhow::Result<Vec<Scenario>> {
    if args.scenarios.is_empty() {
        let is_wanted = |scenario: &Scenario| {
            scenario.reserved().is_none() && (!args.quick || scenario.quick.contains(&args.spawn))
        };
        let all = Scenario::all()?.into_iter();
        let all = all.filter(|scenario| is_wanted(scenario) && unplayable(args, scenario).is_none());
        return Ok(all.map(|scenario| if args.quick { scenario.without_figures() } else { scenario }).collect());
    }
    let named = |name: &String| {
        let scenario = Scenario::named(name)?;
        match unplayable(args, &scenario) {
            Some(reason) => bail!("{name} {reason}"),
            None => Ok(scenario),
        }
    };
    args.scenarios.iter().map(named).collect()
}

fn unplayable(args: &RunArgs, scenario: &Scenario) -> Option<String> {
    if args.target.is_some() {
        let needs = scenario.steps.iter().any(|step| step.action.needs_spawned());
        return needs.then(|| "needs processes that the harness starts: --spawn".to_owned());
    }
    (!scenario.set_ups.contains(&args.spawn)).then(|| {
        let can: Vec<_> = scenario.set_ups.iter().map(|set_up| set_up.as_str()).collect();
        format!("is for --spawn {}", can.join(" or "))
    })
}

async fn prove(args: &RunArgs, scenario: &Scenario, folder: &Path) -> anyhow::Result<Judgement> {
    let mut scenario = scenario.clone();
    let mut capacity_per_s = None;
    if let Some(publish) = scenario.publish.iter().position(|publish| publish.overload.is_some()) {
        let measured = capacity::scenario(&scenario, &scenario.publish[publish]);
        let recording = run::record(&measured, target(args, &measured, folder).await?, &args.host).await?;
        let per_s = capacity::per_second(&recording)?;
        let publish = &mut scenario.publish[publish];
        publish.per_s = publish.overload.map(|times| times * per_s);
        capacity_per_s = Some(per_s);
    }
    let mut recording = run::record(&scenario, target(args, &scenario, folder).await?, &args.host).await?;
    recording.capacity_per_s = capacity_per_s;
    Ok(judge::judge(&recording))
}

/// The running Weir of `--target`, or a new one.
async fn target(args: &RunArgs, scenario: &Scenario, folder: &Path) -> anyhow::Result<Target> {
    if let Some(url) = &args.target {
        return Ok(Target::Running(Api::at(url, args.api_key.clone()).await?));
    }
    let log = run::log_file(folder, &format!("{}-{}", scenario.name, args.spawn.as_str()))?;
    let weir = engine::program(args.weir.as_deref())?;
    Ok(Target::Spawned(Box::new(Fleet::start(args.spawn, &weir, scenario.fleet, log).await?)))
}

/// One line for each scenario.
pub(crate) fn list() -> anyhow::Result<String> {
    let mut out = String::new();
    for scenario in Scenario::all()? {
        let set_ups: Vec<_> = scenario.set_ups.iter().map(|set_up| set_up.as_str()).collect();
        let _ = writeln!(out, "{:<20} {} [{}]", scenario.name, scenario.about, set_ups.join(", "));
        if let Some(reason) = scenario.reserved() {
            let _ = writeln!(out, "{:<20} runs only when it is named: {reason}", "");
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: RunArgs,
    }

    fn chosen(arguments: &str) -> anyhow::Result<Vec<String>> {
        let cli = Cli::try_parse_from(std::iter::once("run").chain(arguments.split_whitespace()))?;
        Ok(choose(&cli.args)?.into_iter().map(|scenario| scenario.name).collect())
    }

    fn refused(arguments: &str) -> String {
        format!("{:#}", chosen(arguments).unwrap_err())
    }

    #[test]
    fn without_names_every_playable_scenario_is_chosen() {
        let (embedded, scaled) = (chosen("").unwrap(), chosen("--spawn scaled").unwrap());
        let has = |chosen: &[String], name: &str| chosen.iter().any(|scenario| scenario == name);
        assert!(has(&embedded, "kill-all") && !has(&embedded, "kill-worker"));
        assert!(!has(&scaled, "kill-all") && has(&scaled, "kill-worker"));
        let elsewhere = chosen("--target http://127.0.0.1:1").unwrap();
        assert!(has(&elsewhere, "steady") && !has(&elsewhere, "kill-all"));
    }

    #[test]
    fn a_reserved_scenario_is_played_only_when_it_is_named() {
        let all = Scenario::all().unwrap().into_iter();
        for scenario in all.filter(|scenario| scenario.reserved().is_some()) {
            assert!(!chosen("").unwrap().contains(&scenario.name));
            assert_eq!(chosen(&scenario.name).unwrap(), [scenario.name]);
        }
    }

    #[test]
    fn both_set_ups_have_a_quick_set() {
        for set_up in ["embedded", "scaled"] {
            let quick = chosen(&format!("--quick --spawn {set_up}")).unwrap();
            assert!((1..chosen(&format!("--spawn {set_up}")).unwrap().len()).contains(&quick.len()), "{quick:?}");
        }
    }

    #[test]
    fn a_named_scenario_that_cannot_be_played_is_refused() {
        assert!(refused("stedy").contains("there is no scenario stedy"));
        assert!(refused("kill-worker").contains("kill-worker is for --spawn scaled"));
        assert!(refused("kill-all --target http://127.0.0.1:1").contains("--spawn"));
    }
}
