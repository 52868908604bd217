//! The Weir that is measured: one process, or one for each role, as in production.

use std::{net::SocketAddr, path::Path};

use anyhow::{Context, ensure};
use hyper::Method;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Child;

use crate::{engine, process, run::api::Api};

/// The processes of a small deployment, as `cargo xtask dev` starts them. The API is first, because requests go to it.
pub(crate) const ROLES: &[&str] = &["api", "scheduler", "worker", "worker"];
/// All roles in one process.
pub(crate) const ONE: &[&str] = &["serve"];

/// On a fresh database in a folder of its own. Its processes are killed and its folder is removed when it is dropped.
pub(crate) struct Weir {
    processes: Vec<Process>,
    address: SocketAddr,
    folder: TempDir,
}

struct Process {
    role: &'static str,
    child: Child,
    pid: u32,
}

impl Weir {
    /// Starts `weir` once for each role with the environment variables of `backing`, in a new folder inside `parent`.
    pub(crate) async fn start(
        weir: &Path,
        roles: &[&'static str],
        parent: Option<&Path>,
        backing: &[(&str, String)],
    ) -> anyhow::Result<Self> {
        let weir = engine::program(Some(weir))?;
        let folder = parent.map_or_else(tempfile::tempdir, tempfile::tempdir_in);
        let folder = folder.context("cannot make a folder for the database")?;
        Self::start_in(&weir, roles, folder, backing).await
    }

    async fn start_in(
        weir: &Path,
        roles: &[&'static str],
        folder: TempDir,
        backing: &[(&str, String)],
    ) -> anyhow::Result<Self> {
        let (mut processes, mut addresses) = (Vec::new(), Vec::new());
        for &role in roles {
            let starting = engine::command(weir, role, folder.path(), backing).spawn();
            let mut child = starting.with_context(|| format!("cannot start {role}"))?;
            let pid = child.id().with_context(|| format!("{role} exited at once"))?;
            addresses.push(engine::listening(&mut child).await.with_context(|| role.to_owned())?);
            processes.push(Process { role, child, pid });
        }
        Ok(Self { processes, address: addresses[0], folder })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Creates a destination and returns its id.
    pub(crate) async fn create_destination(&self, settings: Value) -> anyhow::Result<String> {
        Api::new(self.address, None).create_destination(&settings).await
    }

    pub(crate) async fn ask(&self, method: Method, path: &str, body: Value) -> anyhow::Result<Value> {
        Api::new(self.address, None).ask(method, path, &body).await
    }

    /// The number of deliveries that are waiting or in flight.
    pub(crate) async fn backlog(&self, destination: &str) -> anyhow::Result<u64> {
        Api::new(self.address, None).backlog(destination).await
    }

    /// The CPU time that all its processes have used so far, in seconds.
    pub(crate) fn cpu_s(&self) -> anyhow::Result<f64> {
        self.sum(process::cpu_s_of)
    }

    /// The resident memory of all its processes, in MiB. Shared memory counts for each process.
    pub(crate) fn rss_mib(&self) -> anyhow::Result<f64> {
        self.sum(process::rss_mib_of)
    }

    /// The sum of the peak resident memory of its processes so far, in MiB.
    pub(crate) fn peak_mib(&self) -> anyhow::Result<f64> {
        self.sum(process::peak_mib_of)
    }

    /// The folder of the SQLite database in the embedded set-up.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn sum(&self, of: fn(u32) -> anyhow::Result<f64>) -> anyhow::Result<f64> {
        self.processes.iter().map(|process| of(process.pid)).sum()
    }

    /// Kills the process of the last role.
    pub(crate) async fn kill_last(&mut self) -> anyhow::Result<()> {
        if let Some(mut last) = self.processes.pop() {
            last.child.kill().await?;
        }
        Ok(())
    }

    /// Sends SIGKILL. Fails when a process had exited by itself, because the others were measured without it.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        for Process { role, child, .. } in &mut self.processes {
            let ended = child.try_wait()?;
            ensure!(ended.is_none(), "{role} exited by itself during the measurement");
        }
        for Process { child, .. } in &mut self.processes {
            child.kill().await?;
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
    async fn roles(worker: &str) -> Weir {
        let folder = tempfile::tempdir().unwrap();
        for (port, role) in ["api", "scheduler", "worker"].into_iter().enumerate() {
            let then = if role == "worker" { worker } else { WAITS };
            let script = format!("echo 'weir 0.1.0 {role} is listening on http://127.0.0.1:{}'\n{then}\n", port + 1);
            std::fs::write(folder.path().join(role), script).unwrap();
        }
        Weir::start_in(Path::new("/bin/sh"), ROLES, folder, &[]).await.unwrap()
    }

    #[tokio::test]
    async fn requests_go_to_the_api_and_figures_cover_all_four_processes() {
        let weir = roles(WAITS).await;
        assert_eq!((weir.processes.len(), weir.sum(|_| Ok(1.5)).unwrap()), (4, 6.0));
        assert_eq!(weir.address(), ([127, 0, 0, 1], 1).into());
        assert!(weir.cpu_s().unwrap() >= 0.0);
        let resident_mib = weir.rss_mib().unwrap();
        assert!(weir.peak_mib().unwrap() >= resident_mib);
        weir.kill().await.unwrap();
    }

    #[tokio::test]
    async fn a_role_that_exits_by_itself_fails_the_measurement() {
        let mut weir = roles("exit 1").await;
        weir.processes[3].child.wait().await.unwrap();
        let error = weir.kill().await.unwrap_err();
        assert_eq!(error.to_string(), "worker exited by itself during the measurement");
    }
}
