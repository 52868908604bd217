//! A server's process and its log.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    process::Stdio,
    time::Duration,
};

use tokio::process::{Child, Command};

const STARTS_WITHIN: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(20);
/// How many bytes from the end of its log an error shows.
const LOG_SHOWN: u64 = 4096;

/// Killed when dropped.
pub(super) struct Process {
    child: Child,
    log: File,
}

impl Process {
    pub(super) fn spawn(command: &mut Command) -> io::Result<Self> {
        let log = tempfile::tempfile()?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?).kill_on_drop(true);
        Ok(Self { child: command.spawn().map_err(|error| failed(command, &error))?, log })
    }

    /// Waits until a check succeeds. Fails with the end of the log if the process ends before, or takes too long.
    pub(super) async fn wait_until(&mut self, is_ready: impl AsyncFn() -> bool) -> io::Result<()> {
        let waited = tokio::time::timeout(STARTS_WITHIN, async {
            while !is_ready().await {
                if let Some(status) = self.child.try_wait()? {
                    return Err(io::Error::other(format!("the server ended with {status}")));
                }
                tokio::time::sleep(POLL_EVERY).await;
            }
            Ok(())
        });
        let outcome = waited.await.unwrap_or_else(|_| Err(io::Error::other("the server did not start in time")));
        outcome.map_err(|error| io::Error::other(format!("{error}:\n{}", self.log_tail())))
    }

    /// Sends a signal by name.
    pub(super) async fn signal(&self, name: &str) -> io::Result<()> {
        let pid = self.child.id().ok_or_else(|| io::Error::other("the server has ended"))?.to_string();
        run(Command::new("kill").args([&format!("-{name}"), &pid])).await.map(drop)
    }

    /// Sends SIGKILL and waits for the end.
    pub(super) async fn kill(&mut self) -> io::Result<()> {
        self.child.kill().await
    }

    pub(super) async fn wait(&mut self) -> io::Result<()> {
        self.child.wait().await.map(drop)
    }

    fn log_tail(&mut self) -> String {
        let length = self.log.metadata().map_or(0, |log| log.len());
        let (mut end, from) = (Vec::new(), SeekFrom::Start(length.saturating_sub(LOG_SHOWN)));
        match self.log.seek(from).and_then(|_| self.log.read_to_end(&mut end)) {
            Ok(_) => String::from_utf8_lossy(&end).into_owned(),
            Err(error) => format!("(its log could not be read: {error})"),
        }
    }
}

/// Runs a program, which must succeed, and returns its output.
pub(super) async fn run(command: &mut Command) -> io::Result<String> {
    let output = command.output().await.map_err(|error| failed(command, &error))?;
    if !output.status.success() {
        return Err(failed(command, &String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn failed(command: &Command, why: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{:?} failed: {why}", command.as_std()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_ends_is_an_error_with_its_log() {
        let mut process = Process::spawn(Command::new("sh").args(["-c", "echo Address in use >&2; exit 3"])).unwrap();
        let error = process.wait_until(async || false).await.unwrap_err().to_string();
        assert_eq!(error, "the server ended with exit status: 3:\nAddress in use\n");
    }

    #[tokio::test]
    async fn a_program_that_does_not_exist_is_named() {
        let error = Process::spawn(&mut Command::new("no-such-server-here")).err().unwrap().to_string();
        assert!(error.contains("no-such-server-here"), "{error}");
    }
}
