//! One step of a command: a run of cargo or of a program with a heading, or tests that cargo-nextest builds and runs.

use std::{
    ffi::OsStr,
    fmt, fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

use crate::{results::Results, servers::given, tools};

/// The title of a step that only builds.
pub(crate) const BUILD: &str = "Build";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Cargo,
    Nextest,
    /// A file in the folder of the workspace, which an earlier step has built.
    Built(&'static str),
}

#[derive(Debug)]
pub(crate) struct Step {
    title: &'static str,
    program: Program,
    arguments: Vec<String>,
    env: Option<(&'static str, &'static str)>,
}

impl Step {
    pub(crate) fn new(title: &'static str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().copied().map(str::to_owned).collect();
        Self { title, program: Program::Cargo, arguments, env: None }
    }

    /// Runs a program that an earlier step has built. `cargo run` would build it again for itself, with other features
    /// of half of the dependencies.
    pub(crate) fn built(title: &'static str, program: &'static str, arguments: &[&str]) -> Self {
        Self { program: Program::Built(program), ..Self::new(title, arguments) }
    }

    /// Builds the tests of `packages`, then runs those in `groups` of `.config/nextest.toml`. To name fewer packages
    /// to cargo would change the features of dependencies, and so build them again.
    pub(crate) fn tests(title: &'static str, packages: &[&str], groups: &[&str]) -> Self {
        let groups: Vec<_> = groups.iter().map(|group| format!("group({group})")).collect();
        let run = Self::new(title, &["nextest", "run", "--profile", "ci", "--color", "never"]);
        let chosen = ["-E".to_owned(), groups.join(" + ")];
        let arguments = packages.iter().copied().map(str::to_owned).chain(chosen).collect::<Vec<_>>();
        Self { program: Program::Nextest, ..run.with_arguments(&arguments) }
    }

    pub(crate) fn with_env(self, name: &'static str, value: &'static str) -> Self {
        Self { env: Some((name, value)), ..self }
    }

    pub(crate) fn with_arguments(mut self, more: &[String]) -> Self {
        self.arguments.extend_from_slice(more);
        self
    }

    fn is_tests(&self) -> bool {
        self.program == Program::Nextest
    }

    /// Runs the step with the variables in `env`. Returns the time without the build of tests.
    fn run(&self, env: &[(&'static str, String)], results: &mut Results) -> anyhow::Result<Duration> {
        let started = || format!("could not start `{self}`");
        if !self.is_tests() {
            // A run that prints its output itself.
            let began = now();
            let status = self.command(env)?.status().with_context(started)?;
            ensure!(status.success(), "`{self}` failed ({status})");
            return Ok(now() - began);
        }
        // Build first, so that the time is that of the tests.
        let status = self.command(env)?.arg("--no-run").status().with_context(started)?;
        ensure!(status.success(), "the build of `{self}` failed ({status})");

        let began = now();
        let mut nextest = self.command(env)?.stderr(Stdio::piped()).spawn().with_context(started)?;
        for line in BufReader::new(nextest.stderr.take().context("nextest has no output")?).split(b'\n') {
            let line = line.context("could not read the output of nextest")?;
            let line = String::from_utf8_lossy(&line);
            eprintln!("{line}");
            results.read(self.title, &line);
        }
        let status = nextest.wait().context("could not wait for nextest")?;
        // Each step writes the same report, in JUnit's format. It is missing if no test ran.
        let report = workspace("target/nextest/ci/junit.xml");
        let _ = fs::rename(&report, report.with_file_name(format!("{}.xml", self.title.replace('/', ""))));
        ensure!(status.success(), "`{self}` failed ({status})");
        Ok(now() - began)
    }

    fn command(&self, env: &[(&'static str, String)]) -> anyhow::Result<Command> {
        let mut command = Command::new(match self.program {
            Program::Built(program) => workspace(program),
            // Cargo sets CARGO to itself, so the chosen toolchain is used here too.
            Program::Cargo => std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()).into(),
            Program::Nextest => given("WEIR_TEST_NEXTEST").map_or_else(tools::nextest, |path| Ok(path.into()))?,
        });
        command.args(&self.arguments).envs(env.iter().cloned()).envs(self.env);
        for name in std::env::vars_os().map(|(name, _)| name).filter(|name| describes_a_package(name)) {
            command.env_remove(name);
        }
        Ok(command)
    }
}

fn workspace(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(path)
}

#[expect(clippy::disallowed_methods, reason = "xtask measures how long tests run")]
fn now() -> Instant {
    Instant::now()
}

/// Whether Cargo sets the variable to describe the package that it runs, here xtask. Build scripts, such as that of
/// ring, run again when such a variable changes: `cargo xtask` and plain `cargo build` in turn would compile half of
/// the dependencies each time.
fn describes_a_package(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, value)) = self.env {
            write!(f, "{name}=\"{value}\" ")?;
        }
        let program = if let Program::Built(program) = self.program { program } else { "cargo" };
        write!(f, "{program}")?;
        self.arguments.iter().try_for_each(|argument| {
            if argument.contains(' ') { write!(f, " '{argument}'") } else { write!(f, " {argument}") }
        })
    }
}

/// Runs steps in order, each with the variables in `env`, until one fails.
pub(crate) fn run_all(steps: &[Step], env: &[(&'static str, String)]) -> anyhow::Result<()> {
    let (mut results, mut times) = (Results::default(), Vec::new());
    for (n, step) in steps.iter().enumerate() {
        eprintln!("\n=== {}/{}  {}\n    {step}\n", n + 1, steps.len(), step.title);
        let time = step.run(env, &mut results).with_context(|| format!("{} failed", step.title))?;
        times.push((step.title, time));
    }

    // Print the results at the end, after the output of all steps.
    for (title, line) in &results.summaries {
        eprintln!("\n=== {title}\n{line}");
    }
    print("How long the tests of each crate took, added up", &results.crates());
    print("The slowest tests", &results.slowest());
    // Only commands that run tests show the times of their steps.
    if steps.iter().any(Step::is_tests) {
        let all: Duration = times.iter().filter(|(title, _)| *title != BUILD).map(|(_, time)| *time).sum();
        let rows = times.iter().copied().chain([("all steps, without the builds", all)]);
        let rows: Vec<_> = rows.map(|(title, time)| format!("{:>8.1} s  {title}", time.as_secs_f64())).collect();
        print("How long each step took; a step of tests without its build", &rows);
    }
    eprintln!("\n=== done: {} of {} steps", steps.len(), steps.len());
    Ok(())
}

fn print(title: &str, lines: &[String]) {
    if !lines.is_empty() {
        eprintln!("\n=== {title}");
        lines.iter().for_each(|line| eprintln!("{line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_shown_as_a_command_line() {
        let step = Step::new("Documentation", &["doc", "--no-deps"]).with_env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(step.to_string(), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps");
        let tests = Step::tests("Tests", &["--package", "weir"], &["timed", "alone"]);
        assert_eq!(
            tests.to_string(),
            "cargo nextest run --profile ci --color never --package weir -E 'group(timed) + group(alone)'"
        );
        let play = Step::built("Play", "target/release/weir-load-tests", &["run"]);
        assert_eq!(play.to_string(), "target/release/weir-load-tests run");
    }

    #[test]
    fn the_first_failed_step_ends_the_run_and_is_named() {
        let steps = [Step::new("Nonsense", &["no-such-command-of-cargo"]), Step::new("Never", &["--version"])];
        let error = format!("{:#}", run_all(&steps, &[]).unwrap_err());
        assert!(error.starts_with("Nonsense failed: `cargo no-such-command-of-cargo` failed"), "{error}");
    }
}
