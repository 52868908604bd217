//! One run of cargo with a heading, and the summary lines of its test runners.

use std::{
    ffi::OsStr,
    fmt,
    io::{self, BufRead, BufReader, IsTerminal as _, Read, Write},
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context, ensure};

use crate::timing::Timing;

/// A run of cargo.
#[derive(Debug)]
pub(crate) struct Step {
    title: &'static str,
    arguments: Vec<String>,
    env: Option<(&'static str, &'static str)>,
}

impl Step {
    pub(crate) fn new(title: &'static str, arguments: &[&str]) -> Self {
        Self { title, arguments: arguments.iter().copied().map(str::to_owned).collect(), env: None }
    }

    pub(crate) fn with_env(self, name: &'static str, value: &'static str) -> Self {
        Self { env: Some((name, value)), ..self }
    }

    pub(crate) fn with_arguments(mut self, more: &[String]) -> Self {
        self.arguments.extend_from_slice(more);
        self
    }

    /// The package of the step, if it names one.
    fn package(&self) -> Option<&str> {
        let at = self.arguments.iter().position(|argument| argument == "--package")?;
        self.arguments.get(at + 1).map(String::as_str)
    }

    /// Runs the step with the variables in `env` and prints its output.
    fn run(&self, env: &[(&'static str, String)]) -> anyhow::Result<Outcome> {
        // Cargo sets CARGO to itself, so the chosen toolchain is used here too.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(&self.arguments).envs(env.iter().cloned()).envs(self.env);
        for name in std::env::vars_os().map(|(name, _)| name).filter(|name| describes_a_package(name)) {
            command.env_remove(name);
        }
        // Cargo's own output goes through a pipe, in which it would leave the colours out.
        if io::stderr().is_terminal() && std::env::var_os("CARGO_TERM_COLOR").is_none() {
            command.env("CARGO_TERM_COLOR", "always");
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("could not start `{self}`"))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (mut summary, mut timing) = (Vec::new(), Timing::of(self.package()));
        thread::scope(|scope| {
            let headings = scope.spawn(|| pass_on(stderr, io::stderr(), |line| timing.read(&plain(line), now())));
            let lines = pass_on(stdout, io::stdout(), |line| {
                if is_summary(line) {
                    summary.push(line.to_owned());
                }
            });
            lines.and(headings.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
        .context("could not read the output")?;
        let status = child.wait().with_context(|| format!("could not wait for `{self}`"))?;
        timing.stop(now());
        ensure!(status.success(), "`{self}` failed ({status})");
        Ok(Outcome { summary, timing })
    }
}

/// The output of a step about its tests.
struct Outcome {
    /// The last lines of the test runners that ran a test.
    summary: Vec<String>,
    timing: Timing,
}

/// Prints each line of `from`, and shows it to `read`.
fn pass_on(from: Option<impl Read>, mut to: impl Write, mut read: impl FnMut(&str)) -> io::Result<()> {
    let Some(from) = from else { return Ok(()) };
    for line in BufReader::new(from).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        writeln!(to, "{line}")?;
        read(&line);
    }
    Ok(())
}

/// A line without the escape sequences of colours.
fn plain(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
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
        if let Some((name, value)) = self.env {
            write!(f, "{name}=\"{value}\" ")?;
        }
        write!(f, "cargo {}", self.arguments.join(" "))
    }
}

/// Whether this is the last line of a test runner that ran a test.
fn is_summary(line: &str) -> bool {
    line.starts_with("test result:") && !line.contains(" 0 passed; 0 failed; 0 ignored;")
}

/// Runs steps in order, each with the variables in `env`, until one fails.
pub(crate) fn run_all(steps: &[Step], env: &[(&'static str, String)]) -> anyhow::Result<()> {
    let (mut summaries, mut timing) = (Vec::new(), Timing::default());
    for (n, step) in steps.iter().enumerate() {
        eprintln!("\n=== {}/{}  {}\n    {step}\n", n + 1, steps.len(), step.title);
        let outcome = step.run(env).with_context(|| format!("{} failed", step.title))?;
        if !outcome.summary.is_empty() {
            summaries.push((step.title, outcome.summary));
        }
        timing.add(outcome.timing);
    }
    for (title, lines) in summaries {
        eprintln!("\n=== {title}");
        for line in lines {
            eprintln!("{line}");
        }
    }
    if !timing.is_empty() {
        eprintln!("\n=== How long the tests of each crate ran, without the build");
        timing.table().iter().for_each(|row| eprintln!("{row}"));
    }
    eprintln!("\n=== done: {} of {} steps", steps.len(), steps.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_removed_from_a_line() {
        assert_eq!(plain("\u{1b}[1m\u{1b}[92m     Running\u{1b}[0m tests/a.rs"), "     Running tests/a.rs");
    }

    #[test]
    fn a_step_is_shown_as_a_command_line() {
        let step = Step::new("Documentation", &["doc", "--no-deps"]).with_env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(step.to_string(), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps");
    }

    #[test]
    fn summary_lines_of_runners_without_tests_are_left_out() {
        assert!(is_summary(
            "test result: ok. 29 passed; 0 failed; 0 ignored; 0 measured; 44 filtered out; finished in 0.03s"
        ));
        assert!(is_summary(
            "test result: ok. 0 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s"
        ));
        assert!(!is_summary(
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.00s"
        ));
        assert!(!is_summary("test audit::tests::nothing ... ok"));
    }

    #[test]
    fn the_first_failed_step_ends_the_run_and_is_named() {
        let steps = [Step::new("Nonsense", &["no-such-command-of-cargo"]), Step::new("Never", &["--version"])];
        let error = format!("{:#}", run_all(&steps, &[]).unwrap_err());
        assert!(error.starts_with("Nonsense failed: `cargo no-such-command-of-cargo` failed"), "{error}");
    }
}
