//! A child process that cannot outlive this one, even if this process ends by panic, Ctrl-C, SIGTERM or SIGKILL.
//!
//! Between the two processes is a small shell, `guarded.sh`, which reads from a pipe. Only this process holds the other
//! end of the pipe. The kernel closes that end when this process ends, and dropping the guard closes it too: one
//! mechanism for every end, without signal handlers and without code for one operating system.

use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use anyhow::Context;

const SCRIPT: &str = include_str!("guarded.sh");

/// A running process. Dropping this value stops the process and waits until it has ended.
#[derive(Debug)]
pub(crate) struct Guarded {
    shell: Child,
}

impl Guarded {
    /// A command to which the caller adds the program and its arguments. `signals` stop the program, and `folder` is
    /// removed afterwards.
    pub(crate) fn command(signals: &str, folder: Option<&Path>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "guarded", signals]);
        command.arg(folder.unwrap_or(Path::new("")));
        command.stdin(Stdio::piped()).process_group(0);
        command
    }

    pub(crate) fn spawn(mut command: Command) -> anyhow::Result<Self> {
        let shell = command.spawn().context("could not start a shell")?;
        Ok(Self { shell })
    }

    pub(crate) fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.shell.try_wait().context("could not get the status of a process")?.is_some())
    }

    /// Tells the process to stop, without waiting for it.
    pub(crate) fn release(&mut self) {
        drop(self.shell.stdin.take());
    }

    /// Tells the process to stop, waits until it has ended, and returns its status.
    pub(crate) fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        self.release();
        self.shell.wait().context("could not wait for a process")
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("xtask: {error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn shell(signals: &str, folder: Option<&Path>, script: &str) -> Guarded {
        let mut command = Guarded::command(signals, folder);
        command.args(["sh", "-c", script]).stdout(Stdio::piped());
        Guarded::spawn(command).unwrap()
    }

    /// The first line of its output, which shows that the process runs.
    fn first_line(guarded: &mut Guarded) -> String {
        let mut line = String::new();
        BufReader::new(guarded.shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn is_alive(pid: &str) -> bool {
        Command::new("kill").args(["-0", pid]).stderr(Stdio::null()).status().unwrap().success()
    }

    #[test]
    fn a_dropped_process_ends_and_its_folder_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut guarded = shell("KILL", Some(folder.path()), "echo $$; exec sleep 600");
        let pid = first_line(&mut guarded);
        assert!(is_alive(&pid) && folder.path().exists());
        drop(guarded);
        assert!(!is_alive(&pid) && !folder.path().exists());
    }

    #[test]
    fn a_later_process_does_not_keep_an_earlier_one_alive() {
        let mut earlier = shell("TERM", None, "echo $$; exec sleep 600");
        let pid = first_line(&mut earlier);
        let later = shell("TERM", None, "exec sleep 600");
        drop(earlier);
        assert!(!is_alive(&pid));
        drop(later);
    }

    #[test]
    fn a_process_that_ends_by_itself_is_noticed_with_its_status() {
        let mut guarded = shell("TERM", None, "exit 3");
        while !guarded.has_ended().unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(guarded.stop().unwrap().code(), Some(3));
    }

    #[test]
    fn the_second_signal_stops_a_process_that_ignores_the_first() {
        let mut guarded = shell("TERM KILL", None, "trap '' TERM; echo $$; while :; do sleep 1; done");
        let pid = first_line(&mut guarded);
        drop(guarded);
        assert!(!is_alive(&pid));
    }
}
