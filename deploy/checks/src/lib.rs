//! Shared code of the tests of `deploy/` and `k8s/`: the paths of the files, the tools that check them, and the
//! manifests that kustomize and Helm render.
//!
//! `manifests` renders the manifests of `k8s/` and the chart; `queries` reads those of the rules and of the dashboard.

pub mod manifests;
pub mod queries;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use serde_json::Value;

/// The folder of the whole project.
pub fn project() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// The path of a tool, from its variable. `cargo xtask test` finds or installs the tool and sets the variable.
pub fn tool(variable: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os(variable);
    Ok(path.with_context(|| format!("{variable} is not set: run `cargo xtask test`, which sets it"))?.into())
}

/// The program that the manifests run: WEIR_TEST_WEIR, or the result of the release build.
pub fn weir() -> anyhow::Result<PathBuf> {
    let built = || project().join("target/release/weir");
    let path = std::env::var_os("WEIR_TEST_WEIR").map_or_else(built, PathBuf::from);
    ensure!(path.is_file(), "{} does not exist: run `cargo build --release --package weir`", path.display());
    Ok(path)
}

/// Runs a command and returns its output. The error of a failed command contains its output.
pub fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("could not start {command:?}"))?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?} failed ({}):\n{stdout}{stderr}", output.status);
    Ok(stdout.into_owned())
}

/// A file of the project.
pub fn read(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(project().join(path)).with_context(|| format!("could not read {path}"))
}

/// A YAML file of the project.
pub fn yaml(path: &str) -> anyhow::Result<Value> {
    serde_saphyr::from_str(&read(path)?).with_context(|| format!("{path} is not valid YAML"))
}

/// The documents of a YAML file.
pub fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).context("it is not valid YAML")?;
    // A document of comments alone is null.
    Ok(all.into_iter().filter(|document| !document.is_null()).collect())
}

/// The settings of the program, from its help: `WEIR_LISTEN` and so on.
pub fn known_settings() -> anyhow::Result<Vec<String>> {
    let help = run(Command::new(weir()?).args(["serve", "--help"]))?;
    // The help is wrapped to a width, also between the words below.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let names = help.split("[env: ").skip(1).filter_map(|rest| rest.split([']', '=']).next());
    Ok(names.map(str::to_owned).collect())
}

/// How long a process may take to end, from the constants of the program: sends in flight, recording, the listener, and
/// the return of permits.
pub fn drain_seconds() -> anyhow::Result<u64> {
    let (engine, settings) = (read("crates/weir/src/engine.rs")?, read("docs/reference/configuration.md")?);
    let recording = number_after(&engine, "const RECORDING_GRACE: Duration = Duration::from_secs(")?;
    let api = number_after(&engine, "const API_GRACE: Duration = Duration::from_secs(")?;
    let in_flight = number_after(&settings, "| `WEIR_SHUTDOWN_GRACE_S` | `")?;
    Ok(in_flight + recording + api + recording)
}

fn number_after(text: &str, start: &str) -> anyhow::Result<u64> {
    let (_, rest) = text
        .split_once(start)
        .with_context(|| format!("`{start}…` was not found; update this test if the constant has moved"))?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().with_context(|| format!("there is no number after `{start}`"))
}
