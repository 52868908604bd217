//! Automation that needs an `if`: `cargo xtask test`, `prove`, `lint`, `ci`, `dev`, `bench`, `load`, `client-types`.
//!
//! Each command is a list of steps, and each step is one run of cargo or of a program that cargo has built. The first
//! step that fails ends the list, and its heading names it. The servers of the tests are started before the first step
//! and stopped after the last.
//!
//! # Files
//!
//! `servers` starts private servers (`guarded`, `server`, `programs`, `postgres`, `redis`, `prometheus`), `tools`
//! installs the tools of the checks. `step` runs one step of a command, `results` reads what the tests print, and
//! `judgements` counts what they did not judge.

mod dev;
mod judgements;
mod results;
mod servers;
mod step;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use judgements::Judgements;
use servers::Servers;
use step::{BUILD, Step};

/// Every crate except the binary.
const LIBRARIES: [&str; 4] = ["--workspace", "--exclude", "weir", "--tests"];

/// The end-to-end tests are optimised, because they send over real sockets in real time.
const WHOLE_PROGRAM: [&str; 4] = ["--release", "--package", "weir", "--tests"];

/// The program that [`build_for_load`] builds beside Weir.
const LOAD_TESTS: &str = "target/release/weir-load-tests";

/// Automation for the workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run every test, with the servers and tools that it needs. The order: the libraries, deploy/ and k8s/; the whole
    /// program on real sockets and in real time, first the tests that mostly wait, side by side, then those that judge
    /// times.
    Test,
    /// Prove the promises that need minutes or the whole machine: the model of the protocol, many faults at once, times
    /// under load, the quick set of the load tests on both set-ups, and the short form of autoscaling. Takes about
    /// twenty minutes.
    Prove,
    /// Check formatting, lints and documentation; a warning is an error.
    Lint,
    /// Run every check that a change must pass: lint, then test, then prove.
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
    /// Make the types of both clients again, from the OpenAPI document.
    ClientTypes,
    /// Check Weir's guarantees under load: play all scenarios, or the named ones, and judge the received requests.
    Load {
        /// Run one process per role, over private PostgreSQL and Redis servers, instead of a single process.
        #[arg(long)]
        scaled: bool,
        /// Check the autoscaling of workers with the settings of k8s/, real processes and a real Prometheus.
        #[arg(long, conflicts_with = "scaled")]
        autoscale: bool,
        /// Send to real rate limiters (nginx, HAProxy, libraries of npm and PyPI) at their limits; takes eleven minutes,
        /// or two with `--quick`.
        #[arg(long, conflicts_with = "autoscale")]
        receivers: bool,
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
        Command::Prove => run_with_servers(&proof_steps()),
        Command::Ci => {
            run_with_servers(&lint_steps().into_iter().chain(test_steps()).collect::<Vec<_>>())?;
            run(Command::Prove)
        }
        Command::Dev => dev::run(),
        Command::ClientTypes => {
            let generators = Servers::client_types(servers::given)?;
            step::run_all(&[make_client_types()], generators.env())
        }
        Command::Bench { arguments } => {
            let programs = Servers::programs(servers::given)?;
            step::run_all(&bench_steps(&arguments), programs.env())
        }
        Command::Load { autoscale: true, arguments, .. } => {
            let steps = [build_for_load(), prove_autoscaling(&arguments)];
            let proof = ProofEnv::find()?;
            step::run_all(&steps, &proof.env())
        }
        Command::Load { receivers: true, scaled, arguments, .. } => {
            let set_up = if scaled { "scaled" } else { "embedded" };
            let receivers = Servers::receivers(servers::given, scaled)?;
            step::run_all(&[build_for_load(), play_receivers(set_up, &arguments)], receivers.env())
        }
        Command::Load { scaled: false, arguments, .. } => step::run_all(&load_steps("embedded", &arguments), &[]),
        Command::Load { scaled: true, arguments, .. } => {
            let programs = Servers::programs(servers::given)?;
            step::run_all(&load_steps("scaled", &arguments), programs.env())
        }
    }
}

/// The programs that the load tests start themselves.
struct ProofEnv {
    programs: Servers,
    prometheus: String,
}

impl ProofEnv {
    fn find() -> anyhow::Result<Self> {
        let programs = Servers::programs(servers::given)?;
        Ok(Self { programs, prometheus: servers::utf8(&tools::PROMETHEUS.find()?.join("prometheus"))? })
    }

    fn env(&self) -> Vec<(&'static str, String)> {
        let prometheus = ("WEIR_TEST_PROMETHEUS", self.prometheus.clone());
        self.programs.env().iter().cloned().chain([prometheus]).collect()
    }
}

fn run_with_servers(steps: &[Step]) -> anyhow::Result<()> {
    let servers = Servers::for_tests(servers::given)?;
    let judgements = Judgements::new()?;
    let env: Vec<_> = servers.env().iter().cloned().chain([judgements.env()?]).collect();
    step::run_all(steps, &env)?;
    judgements.report()
}

/// `.config/nextest.toml` says which tests are in which group, and how many of a group run side by side.
fn test_steps() -> Vec<Step> {
    vec![
        // The tests of deploy/, which are in the group `beside`, start the program.
        build_for_load(),
        Step::tests(
            "Tests of the store on PostgreSQL, which wait; beside them, tests that compute",
            &LIBRARIES,
            &["waiting", "computing"],
        ),
        Step::tests(
            "Tests of the other libraries, which use servers or real time, and of deploy/ and k8s/",
            &LIBRARIES,
            &["timed", "conformance", "beside"],
        ),
        // The binary has no library, so it has no examples. With it, cargo would build most dependencies again.
        Step::new("Examples in the documentation", &["test", "--workspace", "--exclude", "weir", "--doc"]),
        Step::tests("Tests of the whole program that mostly wait", &WHOLE_PROGRAM, &["waiting"]),
        Step::tests("Tests of the whole program that judge times, two at a time", &WHOLE_PROGRAM, &["timed"]),
    ]
}

/// These take long and most of the machine, so they are a command of their own. The model proves the protocol; the
/// others judge the running program from outside.
fn proof_steps() -> Vec<Step> {
    let quick = ["--quick".to_owned()];
    vec![
        build_for_load(),
        Step::tests("Prove the protocol in every state of its model", &LIBRARIES, &["model"]),
        Step::tests("Prove that faults break no promise", &WHOLE_PROGRAM, &["proofs"]),
        // One at a time, because another test could make requests late.
        Step::tests("Prove that the times hold under load, one test at a time", &WHOLE_PROGRAM, &["alone"]),
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
    let measure = Step::built("Measure", LOAD_TESTS, &["bench"]);
    vec![build_for_load(), measure.with_arguments(arguments)]
}

fn load_steps(set_up: &str, arguments: &[String]) -> Vec<Step> {
    vec![build_for_load(), prove_under_load(set_up, arguments)]
}

/// The test that compares the types with the document writes them instead.
fn make_client_types() -> Step {
    let test =
        ["test", "--package", "weir-api", "--test", "api", "the_types_of_the_clients_are_made_from_the_document"];
    Step::new("Make the types of the clients", &test).with_env("RENEW_CLIENT_TYPES", "1")
}

fn build_for_load() -> Step {
    Step::new(BUILD, &["build", "--release", "--package", "weir", "--package", "weir-load-tests"])
}

fn prove_under_load(set_up: &str, arguments: &[String]) -> Step {
    Step::built("Prove it under load", LOAD_TESTS, &["run", "--spawn", set_up]).with_arguments(arguments)
}

fn play_receivers(set_up: &str, arguments: &[String]) -> Step {
    Step::built("Send to real rate limiters", LOAD_TESTS, &["receivers", "--spawn", set_up]).with_arguments(arguments)
}

fn prove_autoscaling(arguments: &[String]) -> Step {
    Step::built("Prove autoscaling", LOAD_TESTS, &["autoscale"]).with_arguments(arguments)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

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
    fn receivers_are_played_on_both_set_ups() {
        let cli = Cli::try_parse_from(["xtask", "load", "--receivers", "--scaled", "--quick", "nginx"]).unwrap();
        let Command::Load { receivers: true, scaled: true, arguments, .. } = cli.command else { panic!("{cli:?}") };
        let step = play_receivers("scaled", &arguments).to_string();
        assert!(step.ends_with("receivers --spawn scaled --quick nginx"), "{step}");
    }

    #[test]
    fn the_proofs_include_a_load_test_on_both_set_ups_and_autoscaling() {
        let steps: Vec<_> = proof_steps().iter().map(Step::to_string).collect();
        for set_up in ["embedded", "scaled"] {
            let proof = format!("run --spawn {set_up} --quick");
            assert!(steps.iter().any(|step| step.ends_with(&proof)), "{steps:?}");
        }
        assert!(steps.iter().any(|step| step.contains("autoscale --short capped")), "{steps:?}");
    }

    /// Each test is in one group: of the overrides that match a test, the first that names a group counts, and the
    /// last matches every test.
    #[test]
    fn every_test_runs_once() {
        let config = include_str!("../../.config/nextest.toml");
        let values =
            |key| config.lines().filter_map(move |line| line.strip_prefix(key)?.trim_start().strip_prefix("= "));
        assert_eq!(values("filter").filter(|filter| *filter == "'all()'").count(), 1);
        let groups: BTreeSet<_> = values("test-group").map(|group| group.trim_matches('\'')).collect();
        let mut run = BTreeMap::<_, Vec<_>>::new();
        for step in test_steps().iter().chain(&proof_steps()).map(Step::to_string) {
            for packages in [LIBRARIES, WHOLE_PROGRAM].map(|packages| packages.join(" ")) {
                let groups = step.split("group(").skip(1).map(|rest| rest.split(')').next().unwrap().to_owned());
                let is_of = step.contains(&packages);
                run.entry(packages).or_default().extend(groups.filter(|_| is_of));
            }
        }
        // The filters of the other groups name no test of the whole program, or only such tests.
        let expected = [
            (LIBRARIES.join(" "), vec!["waiting", "computing", "timed", "conformance", "beside", "model"]),
            (WHOLE_PROGRAM.join(" "), vec!["waiting", "timed", "proofs", "alone"]),
        ];
        assert_eq!(groups, expected.iter().flat_map(|(_, groups)| groups).copied().collect());
        assert!(expected.iter().all(|(packages, groups)| run[packages] == *groups), "{run:?}");
    }

    #[test]
    fn manifests_are_checked_after_the_program_was_built() {
        let steps: Vec<_> = test_steps().iter().map(Step::to_string).collect();
        let at = |text: &str| steps.iter().position(|step| step.contains(text)).unwrap();
        assert!(at("build --release --package weir --package weir-load-tests") < at("group(beside)"));
    }

    #[test]
    fn scenarios_are_passed_on_with_their_set_up() {
        let cli = Cli::try_parse_from(["xtask", "load", "--scaled", "steady", "--report", "out"]).unwrap();
        let Command::Load { arguments, scaled: true, .. } = cli.command else { panic!("{cli:?}") };
        let steps = load_steps("scaled", &arguments);
        assert!(steps[1].to_string().ends_with("run --spawn scaled steady --report out"), "{}", steps[1]);
    }
}
