//! The Weir that is measured: one process, or one for each role, as in production.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use hyper::Method;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Child;

use crate::{
    engine::{self, Engine},
    process,
    run::api::Api,
};

/// The processes of a small deployment, as `cargo xtask dev` starts them. The API is first, because requests go to it.
const ROLES: [&str; 4] = ["api", "scheduler", "worker", "worker"];

/// Killed when dropped.
pub(crate) enum Weir {
    One(Engine),
    Roles(Roles),
}

impl Weir {
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::One(engine) => engine.address(),
            Self::Roles(roles) => roles.address,
        }
    }

    /// Creates a destination and returns its id.
    pub(crate) async fn create_destination(&self, settings: Value) -> anyhow::Result<String> {
        match self {
            Self::One(engine) => engine.create_destination(settings).await,
            Self::Roles(roles) => Api::new(roles.address, None).create_destination(&settings).await,
        }
    }

    pub(crate) async fn ask(&self, method: Method, path: &str, body: Value) -> anyhow::Result<Value> {
        match self {
            Self::One(engine) => engine.ask(method, path, body).await,
            Self::Roles(roles) => Api::new(roles.address, None).ask(method, path, &body).await,
        }
    }

    /// The CPU time that all its processes have used so far, in seconds.
    pub(crate) fn cpu_s(&self) -> anyhow::Result<f64> {
        match self {
            Self::One(engine) => engine.cpu_s(),
            Self::Roles(roles) => roles.sum(process::cpu_s_of),
        }
    }

    /// The resident memory of all its processes, in MiB. Shared memory counts for each process.
    pub(crate) fn rss_mib(&self) -> anyhow::Result<f64> {
        match self {
            Self::One(engine) => engine.rss_mib(),
            Self::Roles(roles) => roles.sum(process::rss_mib_of),
        }
    }

    /// The sum of the peak resident memory of its processes so far, in MiB.
    pub(crate) fn peak_mib(&self) -> anyhow::Result<f64> {
        match self {
            Self::One(engine) => engine.peak_mib(),
            Self::Roles(roles) => roles.sum(process::peak_mib_of),
        }
    }

    /// The folder of the SQLite database in the embedded set-up.
    pub(crate) fn folder(&self) -> &Path {
        match self {
            Self::One(engine) => engine.folder(),
            Self::Roles(roles) => roles.folder.path(),
        }
    }

    /// Sends SIGKILL.
    pub(crate) async fn kill(self) -> anyhow::Result<()> {
        match self {
            Self::One(engine) => engine.kill().await,
            Self::Roles(roles) => roles.kill().await,
        }
    }
}

pub(crate) struct Roles {
    /// In the order of [`ROLES`].
    processes: Vec<Child>,
    pids: Vec<u32>,
    address: SocketAddr,
    folder: TempDir,
}

impl Roles {
    /// Starts `weir` once for each role with the environment variables of `backing`, in a new folder inside `folder`.
    pub(crate) async fn start(weir: &Path, folder: &Path, backing: &[(&str, String)]) -> anyhow::Result<Self> {
        let weir = weir.canonicalize().with_context(|| {
            format!("there is no {}; build it with `cargo build --release -p weir`", weir.display())
        })?;
        let folder = tempfile::tempdir_in(folder).context("cannot make a folder for the roles")?;
        Self::start_in(weir, folder, backing).await
    }

    async fn start_in(weir: PathBuf, folder: TempDir, backing: &[(&str, String)]) -> anyhow::Result<Self> {
        let (mut processes, mut pids, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
        for role in ROLES {
            let starting = engine::command(&weir, role, folder.path(), backing).spawn();
            let mut process = starting.with_context(|| format!("cannot start {role}"))?;
            pids.push(process.id().with_context(|| format!("{role} exited at once"))?);
            addresses.push(engine::listening(&mut process).await.with_context(|| role.to_owned())?);
            processes.push(process);
        }
        Ok(Self { processes, pids, address: addresses[0], folder })
    }

    fn sum(&self, of: fn(u32) -> anyhow::Result<f64>) -> anyhow::Result<f64> {
        self.pids.iter().map(|pid| of(*pid)).sum()
    }

    /// Fails when a process had exited by itself, because the others were measured without it.
    async fn kill(mut self) -> anyhow::Result<()> {
        for (role, process) in ROLES.iter().zip(&mut self.processes) {
            let ended = process.try_wait()?;
            ensure!(ended.is_none(), "{role} exited by itself during the measurement");
        }
        for process in &mut self.processes {
            process.kill().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a role waits. `kill` is a builtin of the shell: a program that replaces the shell would have another peak of
    /// memory.
    const WAITS: &str = "kill -STOP $$";

    /// Starts `sh` in place of `weir`: with the name of a role as its argument, it runs the file of that name.
    async fn roles(worker: &str) -> Roles {
        let folder = tempfile::tempdir().unwrap();
        for (port, role) in ["api", "scheduler", "worker"].into_iter().enumerate() {
            let then = if role == "worker" { worker } else { WAITS };
            let script = format!("echo 'weir 0.1.0 {role} is listening on http://127.0.0.1:{}'\n{then}\n", port + 1);
            std::fs::write(folder.path().join(role), script).unwrap();
        }
        Roles::start_in("/bin/sh".into(), folder, &[]).await.unwrap()
    }

    #[tokio::test]
    async fn requests_go_to_the_api_and_figures_cover_all_four_processes() {
        let roles = roles(WAITS).await;
        assert_eq!((roles.pids.len(), roles.sum(|_| Ok(1.5)).unwrap()), (4, 6.0));
        let weir = Weir::Roles(roles);
        assert_eq!(weir.address(), ([127, 0, 0, 1], 1).into());
        assert!(weir.cpu_s().unwrap() >= 0.0);
        let resident_mib = weir.rss_mib().unwrap();
        assert!(weir.peak_mib().unwrap() >= resident_mib);
        weir.kill().await.unwrap();
    }

    #[tokio::test]
    async fn a_role_that_exits_by_itself_fails_the_measurement() {
        let mut roles = roles("exit 1").await;
        roles.processes[3].wait().await.unwrap();
        let error = Weir::Roles(roles).kill().await.unwrap_err();
        assert_eq!(error.to_string(), "worker exited by itself during the measurement");
    }
}
