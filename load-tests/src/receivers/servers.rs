//! The real receivers of a round: nginx, HAProxy, and libraries in Node and Python, each a process of its own on a
//! loopback port, with one limiter for each case. The path of the URL names the case.
//!
//! The environment names the programs, as `cargo xtask load --receivers` sets it.

mod configuration;

use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};
use weir_test_support::HeldPort;

use super::{
    case::{Case, Kind},
    imitation::{Imitation, Limiters},
    limiters::{Gcra, Limiter, MovingWindow, Pool, Traefik},
};
use crate::clock::now;

const STARTS_WITHIN: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(20);

/// A case and the path of its limiter.
type Limited = (String, Case);

/// The receivers of these cases. They end when this value is dropped.
pub(super) struct Receivers {
    addresses: Vec<SocketAddr>,
    _programs: Vec<Program>,
    _imitation: Imitation,
    _folder: TempDir,
}

impl Receivers {
    /// Starts the receivers that the cases need. Their output goes to `log`.
    pub(super) async fn start(cases: &[Case], log: &File) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the receivers")?;
        let limited = |kinds: &[Kind]| -> Vec<Limited> {
            let all = cases.iter().enumerate().map(|(number, case)| (path(number), *case));
            all.filter(|(_, case)| kinds.contains(&case.kind)).collect()
        };
        let imitation = Imitation::start(limiters(&limited(&IMITATED))).await?;
        let mut addresses = vec![imitation.address(); cases.len()];
        let mut programs = Vec::new();
        for server in Server::ALL {
            let limited = limited(server.kinds());
            if limited.is_empty() {
                continue;
            }
            let program = Program::start(server, &limited, folder.path(), log).await;
            let program = program.with_context(|| format!("cannot start {server:?}"))?;
            for (address, case) in addresses.iter_mut().zip(cases) {
                if server.kinds().contains(&case.kind) {
                    *address = program.address();
                }
            }
            programs.push(program);
        }
        Ok(Self { addresses, _programs: programs, _imitation: imitation, _folder: folder })
    }

    pub(super) fn address(&self, case: usize) -> SocketAddr {
        self.addresses[case]
    }
}

/// The path of the URL of a case.
pub(super) fn path(case: usize) -> String {
    format!("/{case}")
}

fn limiters(limited: &[Limited]) -> Limiters {
    let limiter = |case: &Case| -> Box<dyn Limiter> {
        match case.kind {
            Kind::Traefik => Box::new(Traefik::new(case.limit)),
            Kind::MovingWindow => Box::new(MovingWindow::new(case.limit)),
            Kind::Pool => Box::new(Pool::new(case.limit)),
            _ => Box::new(Gcra::new(case.limit)),
        }
    };
    limited.iter().map(|(path, case)| (path.clone(), limiter(case))).collect()
}

/// What no server plays.
const IMITATED: [Kind; 4] = [Kind::Gcra, Kind::MovingWindow, Kind::Traefik, Kind::Pool];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Nginx,
    Haproxy,
    ExpressRateLimit,
    RateLimiterFlexible,
    FlaskLimiter,
    Slowapi,
}

impl Server {
    const ALL: [Self; 6] = [
        Self::Nginx,
        Self::Haproxy,
        Self::ExpressRateLimit,
        Self::RateLimiterFlexible,
        Self::FlaskLimiter,
        Self::Slowapi,
    ];

    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Nginx => &[Kind::Nginx, Kind::NginxBurst],
            Self::Haproxy => &[Kind::Haproxy],
            Self::ExpressRateLimit => &[Kind::ExpressRateLimit],
            Self::RateLimiterFlexible => &[Kind::RateLimiterFlexible],
            Self::FlaskLimiter => &[Kind::FlaskLimiter],
            Self::Slowapi => &[Kind::Slowapi],
        }
    }

    /// The command that starts it. Its files are written to `folder`.
    fn command(self, limited: &[Limited], port: u16, folder: &Path) -> anyhow::Result<Command> {
        const EXPRESS: &str = include_str!("../../receivers/express_rate_limit.js");
        const FLEXIBLE: &str = include_str!("../../receivers/rate_limiter_flexible.js");
        const FLASK: &str = include_str!("../../receivers/flask_limiter_receiver.py");
        const SLOWAPI: &str = include_str!("../../receivers/slowapi_receiver.py");
        let write = |name: &str, text: &str| -> anyhow::Result<PathBuf> {
            let file = folder.join(name);
            std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
            Ok(file)
        };
        let script = |interpreter: &str, name: &str, text: &str| -> anyhow::Result<Command> {
            let mut command = Command::new(program(interpreter)?);
            command.arg(write(name, text)?).arg(configuration::of_script(limited, port));
            Ok(command)
        };
        Ok(match self {
            Self::Nginx => {
                let file = write("nginx.conf", &configuration::of_nginx(limited, port, folder))?;
                let mut command = Command::new(program("WEIR_TEST_NGINX")?);
                command.arg("-p").arg(folder).arg("-c").arg(file).args(["-e", "stderr"]);
                command
            }
            Self::Haproxy => {
                let file = write("haproxy.cfg", &configuration::of_haproxy(limited, port))?;
                let mut command = Command::new(program("WEIR_TEST_HAPROXY")?);
                command.args(["-db", "-f"]).arg(file);
                command
            }
            Self::ExpressRateLimit | Self::RateLimiterFlexible => {
                let is_express = self == Self::ExpressRateLimit;
                let (name, text) = if is_express { ("express.js", EXPRESS) } else { ("flexible.js", FLEXIBLE) };
                let mut command = script("WEIR_TEST_NODE", name, text)?;
                // The folder whose packages the scripts need.
                let manifest = program("WEIR_TEST_LIMITERS_NODE")?;
                command.env("NODE_PATH", manifest.with_file_name("node_modules"));
                command
            }
            Self::FlaskLimiter => script("WEIR_TEST_LIMITERS_PYTHON", "flask_receiver.py", FLASK)?,
            Self::Slowapi => script("WEIR_TEST_LIMITERS_PYTHON", "slowapi_receiver.py", SLOWAPI)?,
        })
    }
}

fn program(variable: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty());
    path.map(PathBuf::from).with_context(|| format!("{variable} is not set; run `cargo xtask load --receivers`"))
}

/// Killed when dropped.
struct Program {
    _process: Child,
    port: HeldPort,
}

impl Program {
    async fn start(server: Server, limited: &[Limited], folder: &Path, log: &File) -> anyhow::Result<Self> {
        let port = HeldPort::hold()?;
        let mut command = server.command(limited, port.number(), folder)?;
        command.current_dir(folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        let mut process = command.kill_on_drop(true).spawn().with_context(|| format!("{:?}", command.as_std()))?;
        let deadline = now() + STARTS_WITHIN;
        while TcpStream::connect(("127.0.0.1", port.number())).await.is_err() {
            if let Some(status) = process.try_wait()? {
                bail!("it ended with {status}; see receivers.log");
            }
            if now() >= deadline {
                bail!("it does not listen; see receivers.log");
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        Ok(Self { _process: process, port })
    }

    fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port.number()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_played_by_one_receiver() {
        for kind in Kind::ALL {
            let servers = Server::ALL.iter().filter(|server| server.kinds().contains(&kind)).count();
            assert_eq!(servers + usize::from(IMITATED.contains(&kind)), 1, "{kind:?}");
        }
    }
}
