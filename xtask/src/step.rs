//! One run of cargo with a heading, and the summary lines of its test runners.

use std::{
    ffi::OsStr,
    fmt,
    io::{self, BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};

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

    /// Runs the step with the variables in `env`, prints its output, and returns the summary lines of the test runners
    /// that ran a test.
    fn run(&self, env: &[(&'static str, String)]) -> anyhow::Result<Vec<String>> {
        // Cargo sets CARGO to itself, so the chosen toolchain is used here too.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(&self.arguments).envs(env.iter().cloned()).envs(self.env).stdout(Stdio::piped());
        for name in std::env::vars_os().map(|(name, _)| name).filter(|name| describes_a_package(name)) {
            command.env_remove(name);
        }
        let mut child = command.spawn().with_context(|| format!("could not start `{self}`"))?;
        let mut summary = Vec::new();
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).split(b'\n') {
                let line = line.context("could not read the output")?;
                let line = String::from_utf8_lossy(&line);
                writeln!(io::stdout(), "{line}")?;
                if is_summary(&line) {
                    summary.push(line.into_owned());
                }
            }
        }
        let status = child.wait().with_context(|| format!("could not wait for `{self}`"))?;
        ensure!(status.success(), "`{self}` failed ({status})");
        Ok(summary)
    }
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
    let mut summaries = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        eprintln!("\n=== {}/{}  {}\n    {step}\n", n + 1, steps.len(), step.title);
        let lines = step.run(env).with_context(|| format!("{} failed", step.title))?;
        if !lines.is_empty() {
            summaries.push((step.title, lines));
        }
    }
    for (title, lines) in summaries {
        eprintln!("\n=== {title}");
        for line in lines {
            eprintln!("{line}");
        }
    }
    eprintln!("\n=== done: {} of {} steps", steps.len(), steps.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
