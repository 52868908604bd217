//! The engine under test: `weir serve` as a child process on a fresh database, with its CPU time and memory.

use std::{net::SocketAddr, path::Path, process::Stdio};

use anyhow::Context;
use bytes::Bytes;
use hyper::Method;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use weir_test_support::{weir_command, weir_listens};

use crate::{client::Connection, process};

/// A running server. Dropping it kills the process and removes the database.
pub(crate) struct Engine {
    process: Child,
    pid: u32,
    address: SocketAddr,
    folder: TempDir,
}

impl Engine {
    /// Starts `weir` with the environment variables of `backing`, in a new folder inside `folder`.
    pub(crate) async fn start(weir: &Path, folder: Option<&Path>, backing: &[(&str, String)]) -> anyhow::Result<Self> {
        let folder = match folder {
            Some(parent) => tempfile::tempdir_in(parent),
            None => tempfile::tempdir(),
        };
        let folder = folder.context("cannot make a folder for the database")?;
        let weir = weir.canonicalize().with_context(|| {
            format!(
                "there is no {}; build it with `cargo build --release -p weir`, or name another with --weir",
                weir.display()
            )
        })?;
        let mut process = command(&weir, "serve", folder.path(), backing).spawn().context("cannot start the engine")?;
        let pid = process.id().context("the engine exited at once")?;
        let address = listening(&mut process).await?;
        Ok(Self { process, pid, address, folder })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Creates a destination and returns its id.
    pub(crate) async fn create_destination(&self, settings: Value) -> anyhow::Result<String> {
        let answer = self.ask(Method::POST, "/v1/destinations", settings).await?;
        Ok(answer["id"].as_str().context("a destination without an id")?.to_owned())
    }

    pub(crate) async fn ask(&self, method: Method, path: &str, body: Value) -> anyhow::Result<Value> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let answer = Connection::open(self.address).await?.send(method, path, body).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    /// The CPU time it has used so far, in seconds.
    pub(crate) fn cpu_s(&self) -> anyhow::Result<f64> {
        process::cpu_s_of(self.pid)
    }

    /// Its resident memory, in MiB.
    pub(crate) fn rss_mib(&self) -> anyhow::Result<f64> {
        process::rss_mib_of(self.pid)
    }

    /// Its peak resident memory so far, in MiB.
    pub(crate) fn peak_mib(&self) -> anyhow::Result<f64> {
        process::peak_mib_of(self.pid)
    }

    /// The folder of its SQLite database.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends SIGKILL.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.process.kill().await?)
    }
}

/// Waits until a process of Weir listens and returns its address.
pub(crate) async fn listening(process: &mut Child) -> anyhow::Result<SocketAddr> {
    let listening = weir_listens(process).await?.context("the engine exited before it listened")?;
    Ok(listening.url.trim_start_matches("http://").parse()?)
}

/// A command that starts a role of Weir with the settings of the harness.
pub(crate) fn command(weir: &Path, role: &str, folder: &Path, backing: &[(&str, String)]) -> Command {
    let mut command = weir_command(weir, folder);
    command.arg(role).envs(backing.iter().map(|(name, value)| (*name, value))).stdout(Stdio::piped());
    command
}
