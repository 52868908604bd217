//! One private server: its process, its folder, its ports.
//!
//! A server is asked whether it is ready over a socket inside its own folder. Another process that took its port first
//! can therefore not answer in its place.

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

use super::{guarded::Guarded, ports};

/// A free port may be taken before it is listened at; the server ends then, and others are chosen.
const TRIES: usize = 3;
const ASK_EVERY: Duration = Duration::from_millis(20);
const ASK_TIMES: usize = 3000;
/// Enough for a server's last words.
const LOG_SHOWN: u64 = 4096;

/// What to start in a folder of its own at the two ports.
pub(crate) struct Plan {
    /// From [`Guarded::command`].
    pub(crate) command: Command,
    /// Succeeds once the server answers.
    pub(crate) ready: Command,
    pub(crate) url: String,
}

/// A running server. Dropping it stops the server and removes its folder.
#[derive(Debug)]
pub(crate) struct Server {
    // In the order of their ends: the folder goes last.
    process: Guarded,
    log: File,
    folder: TempDir,
    ports: [u16; 2],
    url: String,
}

impl Server {
    /// Starts a server and waits until it answers.
    pub(crate) fn start(name: &str, plan: impl Fn(&Path, [u16; 2]) -> anyhow::Result<Plan>) -> anyhow::Result<Self> {
        let mut last_words = String::new();
        for _ in 0..TRIES {
            let folder = private_folder()?;
            let ports = ports::free()?;
            let Plan { command, mut ready, url } = plan(folder.path(), ports)?;
            let mut server = Self::spawn(command, folder, ports, url)?;
            if server.answers(name, ready.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))? {
                return Ok(server);
            }
            last_words = server.last_words();
        }
        bail!("{name} ended before it was ready:\n{last_words}")
    }

    fn spawn(mut command: Command, folder: TempDir, ports: [u16; 2], url: String) -> anyhow::Result<Self> {
        let log = tempfile::tempfile().context("no file for a server's log")?;
        command.current_dir(folder.path()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        Ok(Self { process: Guarded::spawn(command)?, log, folder, ports, url })
    }

    /// Asks until the server answers (`true`) or has ended (`false`).
    fn answers(&mut self, name: &str, ready: &mut Command) -> anyhow::Result<bool> {
        let process = &mut self.process;
        let settled = until(name, || {
            let ended = process.has_ended()?;
            Ok(ended || ready.status().with_context(|| format!("could not start {ready:?}"))?.success())
        });
        settled.with_context(|| self.last_words())?;
        Ok(!self.process.has_ended()?)
    }

    fn last_words(&self) -> String {
        let length = self.log.metadata().map_or(0, |metadata| metadata.len());
        let mut buffer = vec![0; usize::try_from(length.min(LOG_SHOWN)).unwrap_or_default()];
        // The position of the file is shared with the server; reading at an offset leaves it alone.
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
        self.ports
    }
}

/// Asks again and again, for a minute, until something is so.
pub(super) fn until(name: &str, mut is_so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    for _ in 0..ASK_TIMES {
        if is_so()? {
            return Ok(());
        }
        thread::sleep(ASK_EVERY);
    }
    bail!("{name} was not ready in time")
}

/// Not in the user's own temporary folder: PostgreSQL may run as another user, and a socket's path has room for about a
/// hundred bytes.
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
    fn a_server_that_ends_at_once_is_tried_again_and_then_quoted() {
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
    fn a_server_that_lost_its_port_gets_another() {
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
