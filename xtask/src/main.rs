//! Automation that needs an `if`: `cargo xtask test`, `lint`, `ci`, `dev`, `bench`, `load`.
//!
//! Each command is a list of steps, and each step is one run of cargo. The first step that fails ends the list, and its
//! heading names it. The servers of the tests are started before the first step and stopped after the last.

mod dev;
mod judgements;
mod servers;
mod step;
mod timing;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use judgements::Judgements;
use servers::Servers;
use step::Step;

/// The modules of the end-to-end tests that need the machine for themselves.
const ALONE: &str = "alone::";

/// Automation for the workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run every test, with the servers and tools that it needs. The order: the libraries; the whole program on real
    /// sockets and in real time, first the tests that mostly wait, side by side, then those that judge times, one at a
    /// time; deploy/ and k8s/; the quick set of the load tests on both set-ups; the short form of autoscaling.
    Test,
    /// Check formatting, lints and documentation; a warning is an error.
    Lint,
    /// Run every check that a change must pass: lint, then test.
    Ci,
    /// Run Weir's roles as separate processes over private servers, until Ctrl-C.
    Dev,
    /// Measure this machine: a bare client and receiver as the ceiling, and Weir on each set-up, into
    /// load-tests/RESULTS.md; takes 20 to 25 minutes.
    Bench {
        /// Passed on to `weir-load-tests bench`; `-- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Check Weir's guarantees under load: play all scenarios, or the named ones, and judge the received requests.
    Load {
        /// Run one process per role, over private PostgreSQL and Redis servers, instead of a single process.
        #[arg(long)]
        scaled: bool,
        /// Check the autoscaling of workers with the settings of k8s/, real processes and a real Prometheus.
        #[arg(long, conflicts_with = "scaled")]
        autoscale: bool,
        /// Passed on to `weir-load-tests run`; `-- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nxtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Test => run_with_servers(&test_steps()),
        Command::Lint => step::run_all(&lint_steps(), &[]),
        Command::Ci => run_with_servers(&lint_steps().into_iter().chain(test_steps()).collect::<Vec<_>>()),
        Command::Dev => dev::run(),
        Command::Bench { arguments } => {
            let programs = Servers::programs(servers::given)?;
            step::run_all(&bench_steps(&arguments), programs.env())
        }
        Command::Load { autoscale: true, arguments, .. } => {
            let programs = Servers::programs(servers::given)?;
            let steps = [build_for_load(), prove_autoscaling(&arguments)];
            let prometheus = ("WEIR_TEST_PROMETHEUS", servers::utf8(&tools::PROMETHEUS.find()?.join("prometheus"))?);
            let env: Vec<_> = programs.env().iter().cloned().chain([prometheus]).collect();
            step::run_all(&steps, &env)
        }
        Command::Load { scaled: false, arguments, .. } => step::run_all(&load_steps("embedded", &arguments), &[]),
        Command::Load { scaled: true, arguments, .. } => {
            let programs = Servers::programs(servers::given)?;
            step::run_all(&load_steps("scaled", &arguments), programs.env())
        }
    }
}

fn run_with_servers(steps: &[Step]) -> anyhow::Result<()> {
    let servers = Servers::for_tests(servers::given)?;
    let judgements = Judgements::new()?;
    let env: Vec<_> = servers.env().iter().cloned().chain([judgements.env()?]).collect();
    step::run_all(steps, &env)?;
    judgements.report()
}

fn test_steps() -> Vec<Step> {
    let quick = ["--quick".to_owned()];
    vec![
        Step::new(
            "Tests of every crate except the binary",
            &["test", "--workspace", "--exclude", "weir", "--exclude", "weir-deploy-checks"],
        ),
        // Optimised, because the tests send over real sockets in real time. These tests wait for most of their time.
        Step::new(
            "Tests of the whole program, side by side",
            &["test", "--release", "--package", "weir", "--tests", "--", "--test-threads=6", "--skip", ALONE],
        ),
        // One at a time, so that a limit that is exceeded cannot be the effect of another test.
        Step::new(
            "Tests of the whole program that judge times, one at a time",
            &["test", "--release", "--package", "weir", "--test", "end_to_end", "--", "--test-threads=1", ALONE],
        ),
        build_for_load(),
        // After the build, because they start the program with the arguments of the manifests.
        Step::new(
            "Tests of deploy/ and k8s/, with the tools that read them",
            &["test", "--package", "weir-deploy-checks"],
        ),
        prove_under_load("embedded", &quick),
        prove_under_load("scaled", &quick),
        // The short form, in which time runs ten times as fast. `cargo xtask load --autoscale` plays the other
        // scenarios too; some of them need an idle machine.
        prove_autoscaling(
            &["--short", "capped", "slow-receivers", "backlog-as-signal", "prometheus-away"].map(str::to_owned),
        ),
    ]
}

fn lint_steps() -> Vec<Step> {
    vec![
        Step::new("Formatting", &["fmt", "--all", "--check"]),
        Step::new("Lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        Step::new("Documentation", &["doc", "--workspace", "--no-deps", "--document-private-items"])
            .with_env("RUSTDOCFLAGS", "-D warnings"),
    ]
}

fn bench_steps(arguments: &[String]) -> Vec<Step> {
    let measure = Step::new("Measure", &["run", "--release", "--quiet", "--package", "weir-load-tests", "--", "bench"]);
    vec![build_for_load(), measure.with_arguments(arguments)]
}

fn load_steps(set_up: &str, arguments: &[String]) -> Vec<Step> {
    vec![build_for_load(), prove_under_load(set_up, arguments)]
}

fn build_for_load() -> Step {
    Step::new("Build", &["build", "--release", "--package", "weir", "--package", "weir-load-tests"])
}

fn prove_under_load(set_up: &str, arguments: &[String]) -> Step {
    let run = ["run", "--release", "--quiet", "--package", "weir-load-tests", "--", "run", "--spawn", set_up];
    Step::new("Prove it under load", &run).with_arguments(arguments)
}

fn prove_autoscaling(arguments: &[String]) -> Step {
    let play = ["run", "--release", "--quiet", "--package", "weir-load-tests", "--", "autoscale"];
    Step::new("Prove autoscaling", &play).with_arguments(arguments)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_of_the_bench_are_passed_on() {
        let cli = Cli::try_parse_from(["xtask", "bench", "--only", "latency"]).unwrap();
        let Command::Bench { arguments } = cli.command else { panic!("{cli:?}") };
        let steps = bench_steps(&arguments);
        assert!(steps[1].to_string().ends_with("bench --only latency"), "{}", steps[1]);
    }

    #[test]
    fn the_tests_include_a_load_test_on_both_set_ups() {
        let steps: Vec<_> = test_steps().iter().map(Step::to_string).collect();
        for set_up in ["embedded", "scaled"] {
            let proof = format!("run --spawn {set_up} --quick");
            assert!(steps.iter().any(|step| step.ends_with(&proof)), "{steps:?}");
        }
    }

    #[test]
    fn every_end_to_end_test_is_in_one_of_the_two_steps() {
        let steps: Vec<_> = test_steps().iter().map(Step::to_string).collect();
        let of_the_program = |step: &&String| step.contains("--package weir --test");
        let ends: Vec<_> = steps.iter().filter(of_the_program).filter_map(|step| step.split_once(" -- ")).collect();
        let filters: Vec<_> = ends.iter().map(|(_, arguments)| *arguments).collect();
        assert_eq!(filters, ["--test-threads=6 --skip alone::", "--test-threads=1 alone::"]);
    }

    #[test]
    fn manifests_are_checked_once_after_the_program_was_built() {
        let steps: Vec<_> = test_steps().iter().map(Step::to_string).collect();
        let at = |ending: &str| steps.iter().position(|step| step.ends_with(ending)).unwrap();
        assert!(at("--exclude weir-deploy-checks") < at("build --release --package weir --package weir-load-tests"));
        assert!(at("--package weir-load-tests") < at("test --package weir-deploy-checks"));
    }

    #[test]
    fn scenarios_are_passed_on_with_their_set_up() {
        let cli = Cli::try_parse_from(["xtask", "load", "--scaled", "steady", "--report", "out"]).unwrap();
        let Command::Load { arguments, scaled: true, .. } = cli.command else { panic!("{cli:?}") };
        let steps = load_steps("scaled", &arguments);
        assert!(steps[1].to_string().ends_with("run --spawn scaled steady --report out"), "{}", steps[1]);
    }
}
