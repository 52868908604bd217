//! The processes of Weir that the harness starts.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::Context;
use tokio::process::{Child, Command};
use weir_test_support::{weir_command, weir_listens};

/// The absolute path of the binary that is given, or of the one beside this program. Absolute, because the processes run
/// in another folder.
pub(crate) fn program(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let weir = given
        .map_or_else(|| Ok(std::env::current_exe()?.with_file_name("weir")), |given| anyhow::Ok(given.to_owned()))?;
    weir.canonicalize().with_context(|| {
        format!(
            "there is no {}; build it with `cargo build --release -p weir`, or name another with --weir",
            weir.display()
        )
    })
}

/// Waits until a process of Weir listens and returns its address.
pub(crate) async fn listening(process: &mut Child) -> anyhow::Result<SocketAddr> {
    let listening = weir_listens(process).await?.context("the engine exited before it listened")?;
    Ok(listening.url.trim_start_matches("http://").parse()?)
}

/// A command that starts a role of Weir with the settings of the harness.
pub(crate) fn command(weir: &Path, role: &str, folder: &Path, backing: &[(&str, String)]) -> Command {
    let mut command = weir_command(weir, folder);
    // One tenant has all destinations, more than the default of the setting in some measurements.
    command
        .env("WEIR_MAX_DESTINATIONS", "1000000")
        .arg(role)
        .envs(backing.iter().map(|(name, value)| (*name, value)))
        .stdout(Stdio::piped());
    command
}
