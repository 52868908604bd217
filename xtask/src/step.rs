//! One step of a command: a run of cargo or of a program with a heading, or tests that cargo builds and that run side by
//! side.

use std::{
    ffi::OsStr,
    fmt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

use crate::{
    test_programs::{self, How, Outcome},
    timing::Timing,
};

/// The title of a step that only builds.
pub(crate) const BUILD: &str = "Build";

/// Test programs that `cargo test` builds with `arguments`.
#[derive(Debug)]
pub(crate) struct Programs {
    arguments: Vec<String>,
    /// Whether the program of a package and target runs.
    is_wanted: fn(&str, &str) -> bool,
    how: How,
}

impl Programs {
    /// The programs of all packages that `arguments` name, which run with the arguments `run`.
    pub(crate) fn of(arguments: &[&str], run: &[&str]) -> Self {
        let arguments = owned(&[&["test"], arguments].concat());
        Self { arguments, is_wanted: |_, _| true, how: How { arguments: owned(run), yields: false } }
    }

    /// Only some of the programs. To name fewer packages to cargo would change the features of dependencies, and so
    /// build them again.
    pub(crate) fn only(self, is_wanted: fn(&str, &str) -> bool) -> Self {
        Self { is_wanted, ..self }
    }

    /// Runs these programs at a low priority: they get only the processor time that other programs do not use.
    pub(crate) fn yielding(mut self) -> Self {
        self.how.yields = true;
        self
    }
}

impl fmt::Display for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cargo {}", self.arguments.join(" "))?;
        if !self.how.arguments.is_empty() {
            write!(f, " -- {}", self.how.arguments.join(" "))?;
        }
        Ok(())
    }
}

/// A run of cargo, or of a program that an earlier step has built.
#[derive(Debug)]
pub(crate) struct Step {
    title: &'static str,
    /// A file in the folder of the workspace. `None`: cargo.
    program: Option<&'static str>,
    arguments: Vec<String>,
    env: Option<(&'static str, &'static str)>,
    /// For a step of tests: the programs, and how many of them run at one time.
    tests: Option<(Vec<Programs>, usize)>,
}

impl Step {
    pub(crate) fn new(title: &'static str, arguments: &[&str]) -> Self {
        Self { title, program: None, arguments: owned(arguments), env: None, tests: None }
    }

    /// Runs a program that an earlier step has built. `cargo run` would build it again for itself, with other features
    /// of half of the dependencies.
    pub(crate) fn built(title: &'static str, program: &'static str, arguments: &[&str]) -> Self {
        Self { program: Some(program), ..Self::new(title, arguments) }
    }

    /// Builds all programs, then runs them in order, `at_once` of them at one time.
    pub(crate) fn tests(title: &'static str, programs: Vec<Programs>, at_once: usize) -> Self {
        Self { tests: Some((programs, at_once)), ..Self::new(title, &[]) }
    }

    pub(crate) fn with_env(self, name: &'static str, value: &'static str) -> Self {
        Self { env: Some((name, value)), ..self }
    }

    pub(crate) fn with_arguments(mut self, more: &[String]) -> Self {
        self.arguments.extend_from_slice(more);
        self
    }

    /// Runs the step with the variables in `env`. Returns what its tests have shown, and the time without the build.
    fn run(&self, env: &[(&'static str, String)]) -> anyhow::Result<(Outcome, Duration)> {
        let Some((programs, at_once)) = &self.tests else {
            // A step without tests is one run, which prints its output itself.
            let began = now();
            let status = self.command(&self.arguments, env).status();
            let status = status.with_context(|| format!("could not start `{self}`"))?;
            ensure!(status.success(), "`{self}` failed ({status})");
            return Ok((Outcome::default(), now() - began));
        };
        // Build all programs first: a build beside tests would disturb them and their times.
        let mut built = Vec::new();
        for programs in programs {
            let mut cargo = self.command(&programs.arguments, env);
            // Standard output holds JSON that names the programs. Readable messages go to standard error.
            cargo.args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
            let output = cargo.output().with_context(|| format!("could not start `{programs}`"))?;
            ensure!(output.status.success(), "the build of `{programs}` failed ({})", output.status);
            let messages = String::from_utf8_lossy(&output.stdout);
            let found = test_programs::built(&messages, programs.is_wanted, &programs.how)?;
            // A filter that matches nothing would otherwise pass unnoticed.
            ensure!(!found.is_empty(), "`{programs}` has no tests");
            built.extend(found);
        }

        // Run the programs. The time counts from here, without the builds.
        let began = now();
        let outcome = test_programs::run(built, *at_once, env).with_context(|| format!("`{self}` failed"))?;
        Ok((outcome, now() - began))
    }

    fn command(&self, arguments: &[String], env: &[(&'static str, String)]) -> Command {
        let mut command = Command::new(match self.program {
            Some(program) => Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(program).into(),
            // Cargo sets CARGO to itself, so the chosen toolchain is used here too.
            None => std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
        });
        command.args(arguments).envs(env.iter().cloned()).envs(self.env);
        for name in std::env::vars_os().map(|(name, _)| name).filter(|name| describes_a_package(name)) {
            command.env_remove(name);
        }
        command
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().copied().map(str::to_owned).collect()
}

#[expect(clippy::disallowed_methods, reason = "xtask measures how long tests run")]
pub(crate) fn now() -> Instant {
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
        if let Some((programs, _)) = &self.tests {
            let commands: Vec<_> = programs.iter().map(Programs::to_string).collect();
            return f.write_str(&commands.join("\n    "));
        }
        if let Some((name, value)) = self.env {
            write!(f, "{name}=\"{value}\" ")?;
        }
        write!(f, "{} {}", self.program.unwrap_or("cargo"), self.arguments.join(" "))
    }
}

/// Runs steps in order, each with the variables in `env`, until one fails.
pub(crate) fn run_all(steps: &[Step], env: &[(&'static str, String)]) -> anyhow::Result<()> {
    let (mut summaries, mut timing, mut times) = (Vec::new(), Timing::default(), Vec::new());
    for (n, step) in steps.iter().enumerate() {
        eprintln!("\n=== {}/{}  {}\n    {step}\n", n + 1, steps.len(), step.title);
        let (outcome, time) = step.run(env).with_context(|| format!("{} failed", step.title))?;
        times.push((step.title, time));
        if !outcome.summary.is_empty() {
            summaries.push((step.title, outcome.summary));
        }
        timing.join(outcome.timing);
    }

    // Print the results at the end, after the output of all steps.
    for (title, lines) in summaries {
        print(title, &lines);
    }
    print("How long the test programs of each crate ran", &timing.crates());
    print("The slowest of the tests that ran one at a time", &timing.slowest_tests());
    // Only commands that run tests show the times of their steps.
    if steps.iter().any(|step| step.tests.is_some()) {
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
        let programs = Programs::of(&["--package", "weir"], &["--test-threads=1"]);
        let tests = Step::tests("Tests", vec![programs], 1);
        assert_eq!(tests.to_string(), "cargo test --package weir -- --test-threads=1");
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
