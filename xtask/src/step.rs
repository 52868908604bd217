//! One run of cargo under a heading, and the closing lines of the test runners it started.

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

    /// Runs it with more variables, passing its output through, and answers the closing lines of the test runners that
    /// ran a test.
    fn run(&self, env: &[(&'static str, String)]) -> anyhow::Result<Vec<String>> {
        // Cargo names itself to what it runs, so that a chosen toolchain stays chosen.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(&self.arguments).envs(env.iter().cloned()).envs(self.env).stdout(Stdio::piped());
        for name in std::env::vars_os().map(|(name, _)| name).filter(|name| describes_a_package(name)) {
            command.env_remove(name);
        }
        let mut child = command.spawn().with_context(|| format!("could not start `{self}`"))?;
        let mut closing = Vec::new();
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).split(b'\n') {
                let line = line.context("could not read the output")?;
                let line = String::from_utf8_lossy(&line);
                writeln!(io::stdout(), "{line}")?;
                if is_closing(&line) {
                    closing.push(line.into_owned());
                }
            }
        }
        let status = child.wait().with_context(|| format!("could not wait for `{self}`"))?;
        ensure!(status.success(), "`{self}` failed ({status})");
        Ok(closing)
    }
}

/// Whether Cargo sets the variable to describe the package that it runs, here xtask. Build scripts (that of ring) run again when such a
/// variable changes. With these variables each `cargo xtask` and each plain `cargo build` would compile half of the tree anew.
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

/// A test runner's last line, unless it had nothing to run.
fn is_closing(line: &str) -> bool {
    line.starts_with("test result:") && !line.contains(" 0 passed; 0 failed; 0 ignored;")
}

/// Runs steps in order, each with the variables in `env`, up to the first that fails.
pub(crate) fn run_all(steps: &[Step], env: &[(&'static str, String)]) -> anyhow::Result<()> {
    let mut closing = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        eprintln!("\n=== {}/{}  {}\n    {step}\n", n + 1, steps.len(), step.title);
        let lines = step.run(env).with_context(|| format!("{} failed", step.title))?;
        if !lines.is_empty() {
            closing.push((step.title, lines));
        }
    }
    for (title, lines) in closing {
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
    fn a_step_shows_the_command_one_could_type() {
        let step = Step::new("Documentation", &["doc", "--no-deps"]).with_env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(step.to_string(), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps");
    }

    #[test]
    fn closing_lines_of_runners_that_ran_nothing_are_left_out() {
        assert!(is_closing(
            "test result: ok. 29 passed; 0 failed; 0 ignored; 0 measured; 44 filtered out; finished in 0.03s"
        ));
        assert!(is_closing(
            "test result: ok. 0 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s"
        ));
        assert!(!is_closing(
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.00s"
        ));
        assert!(!is_closing("test audit::tests::nothing ... ok"));
    }

    #[test]
    fn the_first_step_that_fails_ends_the_run_and_is_named() {
        let steps = [Step::new("Nonsense", &["no-such-command-of-cargo"]), Step::new("Never", &["--version"])];
        let error = format!("{:#}", run_all(&steps, &[]).unwrap_err());
        assert!(error.starts_with("Nonsense failed: `cargo no-such-command-of-cargo` failed"), "{error}");
    }
}
