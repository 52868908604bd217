//! One private server: its process, its folder and its ports.
//!
//! The check whether a server is ready uses a socket in the server's own folder. So another process that took its port
//! first cannot answer in its place.

use std::{
    fs::{File, Permissions},
    os::unix::fs::{FileExt, PermissionsExt},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use tempfile::TempDir;
use weir_test_support::HeldPort;

use super::guarded::Guarded;

/// Where a port cannot be held, another process may take it before the server listens on it. The server then ends, and
/// is started with other ports.
const TRIES: usize = 3;
const ASK_EVERY: Duration = Duration::from_millis(20);
const ASK_TIMES: usize = 3000;
/// How many bytes from the end of its log are shown: enough for the error of a server.
const LOG_SHOWN: u64 = 4096;

/// How to start a server in its own folder, with two ports.
pub(crate) struct Plan {
    /// Made by [`Guarded::command`].
    pub(crate) command: Command,
    /// Succeeds once the server answers.
    pub(crate) ready: Command,
    pub(crate) url: String,
}

/// A running server. Dropping this value stops the server and removes its folder.
#[derive(Debug)]
pub(crate) struct Server {
    // In drop order: the folder is removed last.
    process: Guarded,
    log: File,
    folder: TempDir,
    ports: [HeldPort; 2],
    url: String,
}

impl Server {
    /// Starts a server and waits until it answers.
    pub(crate) fn start(name: &str, plan: impl Fn(&Path, [u16; 2]) -> anyhow::Result<Plan>) -> anyhow::Result<Self> {
        let mut log_tail = String::new();
        for _ in 0..TRIES {
            let folder = private_folder()?;
            let ports = [hold_port()?, hold_port()?];
            let Plan { command, mut ready, url } = plan(folder.path(), ports.each_ref().map(HeldPort::number))?;
            let mut server = Self::spawn(command, folder, ports, url)?;
            if server.answers(name, ready.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))? {
                return Ok(server);
            }
            log_tail = server.log_tail();
        }
        bail!("{name} ended before it was ready:\n{log_tail}")
    }

    fn spawn(mut command: Command, folder: TempDir, ports: [HeldPort; 2], url: String) -> anyhow::Result<Self> {
        let log = tempfile::tempfile().context("could not make a file for the log of a server")?;
        command.current_dir(folder.path()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        Ok(Self { process: Guarded::spawn(command)?, log, folder, ports, url })
    }

    /// Waits until the server answers (`true`) or has ended (`false`).
    fn answers(&mut self, name: &str, ready: &mut Command) -> anyhow::Result<bool> {
        let process = &mut self.process;
        let settled = until(name, || {
            let ended = process.has_ended()?;
            Ok(ended || ready.status().with_context(|| format!("could not start {ready:?}"))?.success())
        });
        settled.with_context(|| self.log_tail())?;
        Ok(!self.process.has_ended()?)
    }

    fn log_tail(&self) -> String {
        let length = self.log.metadata().map_or(0, |metadata| metadata.len());
        let mut buffer = vec![0; usize::try_from(length.min(LOG_SHOWN)).unwrap_or_default()];
        // The server shares the position of the file; reading at an offset does not change it.
        match self.log.read_exact_at(&mut buffer, length.saturating_sub(LOG_SHOWN)) {
            Ok(()) => String::from_utf8_lossy(&buffer).into_owned(),
            Err(error) => format!("(its log could not be read: {error})"),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn ports(&self) -> [u16; 2] {
        self.ports.each_ref().map(HeldPort::number)
    }
}

/// Repeats a check for a minute, until it succeeds.
pub(super) fn until(name: &str, mut is_so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    for _ in 0..ASK_TIMES {
        if is_so()? {
            return Ok(());
        }
        thread::sleep(ASK_EVERY);
    }
    bail!("{name} was not ready in time")
}

pub(crate) fn hold_port() -> anyhow::Result<HeldPort> {
    HeldPort::hold().context("could not find a free port")
}

/// A folder in `/tmp` instead of the user's temporary folder: PostgreSQL may run as another user, and the path of a
/// socket is limited to about 100 bytes.
fn private_folder() -> anyhow::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("weir-").permissions(Permissions::from_mode(0o700));
    builder.tempdir_in("/tmp").context("could not make a folder in /tmp")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(folder: &Path, script: &str, ready: &str) -> Plan {
        let mut command = Guarded::command("KILL", Some(folder));
        command.args(["sh", "-c", script]);
        Plan { command, ready: Command::new(ready), url: String::new() }
    }

    #[test]
    fn a_server_that_ends_at_once_is_retried_and_its_log_is_in_the_error() {
        let tries = std::cell::Cell::new(0);
        let error = Server::start("Nonsense", |folder, _| {
            tries.set(tries.get() + 1);
            Ok(shell(folder, "echo Address already in use >&2; exit 1", "false"))
        });
        let error = error.unwrap_err().to_string();
        assert_eq!(error, "Nonsense ended before it was ready:\nAddress already in use\n");
        assert_eq!(tries.get(), TRIES);
    }

    #[test]
    fn a_server_that_ends_at_its_first_start_is_started_again() {
        let tries = std::cell::Cell::new(0);
        let server = Server::start("Unlucky", |folder, _| {
            tries.set(tries.get() + 1);
            Ok(match tries.get() {
                1 => shell(folder, "exit 1", "false"),
                _ => shell(folder, "exec sleep 600", "true"),
            })
        });
        server.unwrap();
        assert_eq!(tries.get(), 2);
    }
}
