//! Reports to systemd, for units with `Type=notify`: when the process is ready, reloads and stops, and, for the watchdog,
//! that it still runs. Without the variable `NOTIFY_SOCKET`, which systemd sets, nothing is reported.
//!
//! A report is one datagram. It never waits and never fails the process: a full or missing socket loses a report, which
//! the next ping makes up for.

use std::{
    env,
    os::unix::net::{SocketAddr, UnixDatagram},
    time::Duration,
};

use tokio::task::JoinHandle;

const SOCKET: &str = "NOTIFY_SOCKET";
/// The interval within which systemd expects a ping, in microseconds, and the process that it expects it from.
const WATCHDOG: &str = "WATCHDOG_USEC";
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// The connection to systemd, if there is one.
#[derive(Debug)]
pub(crate) struct SdNotify {
    socket: Option<UnixDatagram>,
}

impl SdNotify {
    /// Connects to the socket that the environment names.
    pub(crate) fn from_environment() -> Self {
        let socket = env::var(SOCKET).ok().and_then(|name| {
            connect(&name).inspect_err(|error| tracing::warn!(%error, "cannot report to systemd")).ok()
        });
        Self { socket }
    }

    pub(crate) fn ready(&self) {
        self.send("READY=1\nSTATUS=running");
    }

    pub(crate) fn reloading(&self) {
        self.send("RELOADING=1\nSTATUS=reading the settings again");
    }

    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=attempts in flight may finish");
    }

    /// Pings the watchdog from a task, so that systemd restarts a process whose tasks do not run any more. Store and queue
    /// are not asked: a restart would not bring them back. The task ends with the process.
    pub(crate) fn watch(&self) -> Option<JoinHandle<()>> {
        let every =
            interval(env::var(WATCHDOG).ok()?.as_str(), env::var(WATCHDOG_PID).ok().as_deref(), std::process::id())?;
        let socket = self.socket.as_ref()?.try_clone().ok()?;
        let pinging = Self { socket: Some(socket) };
        Some(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(every);
            loop {
                ticks.tick().await;
                pinging.send("WATCHDOG=1");
            }
        }))
    }

    fn send(&self, report: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(report.as_bytes());
        }
    }
}

/// A name that begins with @ is in Linux's abstract namespace, which has no files.
fn connect(name: &str) -> std::io::Result<UnixDatagram> {
    let address = match name.strip_prefix('@') {
        Some(name) => abstract_address(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &str) -> std::io::Result<SocketAddr> {
    <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_: &str) -> std::io::Result<SocketAddr> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// A third of the time in which systemd expects a ping, so that two may be late or lost. `None`: it expects none from this
/// process.
fn interval(micros: &str, of_process: Option<&str>, process: u32) -> Option<Duration> {
    let is_mine = of_process.is_none_or(|id| id.parse() == Ok(process));
    let micros = micros.parse().ok().filter(|micros| *micros > 0 && is_mine)?;
    Some((Duration::from_micros(micros) / 3).max(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_come_three_times_as_often_as_systemd_expects_them() {
        assert_eq!(interval("30000000", None, 7), Some(Duration::from_secs(10)));
        assert_eq!(interval("30000000", Some("7"), 7), Some(Duration::from_secs(10)));
        assert_eq!(interval("30000000", Some("8"), 7), None);
        assert_eq!(interval("0", None, 7), None);
        assert_eq!(interval("soon", None, 7), None);
    }

    #[test]
    fn reports_arrive_over_a_file_and_over_the_abstract_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let mut names = vec![(path.to_str().unwrap().to_owned(), UnixDatagram::bind(&path).unwrap())];
        if cfg!(target_os = "linux") {
            let name = format!("weir-test-{}", std::process::id());
            names.push((format!("@{name}"), UnixDatagram::bind_addr(&abstract_address(&name).unwrap()).unwrap()));
        }
        for (name, systemd) in names {
            SdNotify { socket: Some(connect(&name).unwrap()) }.ready();
            let mut report = [0; 64];
            let length = systemd.recv(&mut report).unwrap();
            assert_eq!(&report[..length], b"READY=1\nSTATUS=running");
        }
        // Without systemd nothing is reported, and nothing fails.
        SdNotify { socket: None }.stopping();
    }
}
