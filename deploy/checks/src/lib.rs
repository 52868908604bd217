//! What the tests of `deploy/` and `k8s/` share: where the files are, and the tools that read them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

/// The folder of the whole project.
pub fn project() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// The tool that this variable names; `cargo xtask test` finds or installs it and sets the variable.
pub fn tool(variable: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os(variable);
    Ok(path.with_context(|| format!("{variable} is not set: run `cargo xtask test`, which sets it"))?.into())
}

/// Runs a command to its end and answers what it printed; a failure says what it said.
pub fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("could not start {command:?}"))?;
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?} failed ({}):\n{printed}{said}", output.status);
    Ok(printed.into_owned())
}
