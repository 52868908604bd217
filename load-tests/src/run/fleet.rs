//! A Weir that the harness starts: one process, or one for each role on the harness's own servers.
//!
//! Every process keeps its port, so its replacement is reached at the same address.

use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, ensure};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use weir_test_support::{HeldPort, Postgres, Redis};

use crate::{
    engine,
    scenario::{Roles, SetUp},
};

/// The pause after the start of an empty Redis. If claims are outstanding at that time, Weir continues only after this
/// pause, because an earlier Redis may have granted slots. A run that began within this time would measure this wait.
const REDIS_WAIT: Duration = Duration::from_secs(3);

pub(crate) struct Fleet {
    weir: PathBuf,
    set_up: SetUp,
    backing: Vec<(&'static str, String)>,
    members: Vec<Member>,
    redis: Option<Redis>,
    postgres: Option<Postgres>,
    log: File,
    folder: TempDir,
}

struct Member {
    role: &'static str,
    port: HeldPort,
    process: Child,
}

impl Fleet {
    /// Starts the processes on a fresh store. Their log is written to `log`.
    pub(crate) async fn start(set_up: SetUp, weir: &Path, roles: Roles, log: File) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the database")?;
        // The scaled set-up gets servers of its own.
        let (mut redis, mut postgres) = (None, None);
        let backing = match set_up {
            SetUp::Embedded => vec![("WEIR_DATABASE_URL", "sqlite://weir.db".to_owned())],
            SetUp::Scaled => {
                let postgres = postgres.insert(Postgres::start().await?);
                let redis = redis.insert(Redis::start().await?);
                vec![("WEIR_DATABASE_URL", postgres.url()), ("WEIR_REDIS_URL", redis.url())]
            }
        };
        let mut fleet =
            Self { weir: weir.to_owned(), set_up, backing, members: Vec::new(), redis, postgres, log, folder };

        // Start the API first: its address is that of the first member.
        match set_up {
            SetUp::Embedded => fleet.add("serve").await?,
            SetUp::Scaled => {
                fleet.add("api").await?;
                for _ in 0..roles.scheduler.max(1) {
                    fleet.add("scheduler").await?;
                }
                for _ in 0..roles.worker {
                    fleet.add("worker").await?;
                }
                tokio::time::sleep(REDIS_WAIT).await;
            }
        }
        Ok(fleet)
    }

    /// The environment variables that name the servers.
    pub(crate) fn backing(&self) -> &[(&'static str, String)] {
        &self.backing
    }

    /// The ports of a role's processes, in the order of their start.
    pub(crate) fn ports<'a>(&'a self, role: &'a str) -> impl Iterator<Item = u16> + 'a {
        self.members.iter().filter(move |member| member.role == role).map(|member| member.port.number())
    }

    /// The address of the API.
    pub(crate) fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.members[0].port.number()).into()
    }

    /// The address of a scheduler: only schedulers report the depths of the queue.
    pub(crate) fn scheduler_address(&self) -> anyhow::Result<SocketAddr> {
        Ok(([127, 0, 0, 1], self.members[self.member("scheduler")?].port.number()).into())
    }

    async fn add(&mut self, role: &'static str) -> anyhow::Result<()> {
        let port = HeldPort::hold()?;
        let process = self.launch(role, port.number()).await?;
        self.members.push(Member { role, port, process });
        Ok(())
    }

    async fn launch(&self, role: &str, port: u16) -> anyhow::Result<Child> {
        let mut command = engine::command(&self.weir, role, self.folder.path(), &self.backing);
        command.env("WEIR_LISTEN", format!("127.0.0.1:{port}")).stderr(Stdio::from(self.log.try_clone()?));
        let mut process = command.spawn().with_context(|| format!("cannot start {role}"))?;
        engine::listening(&mut process).await.with_context(|| role.to_owned())?;
        Ok(process)
    }

    /// The first process of a role; in the embedded set-up the single process.
    fn member(&self, role: &str) -> anyhow::Result<usize> {
        if self.set_up == SetUp::Embedded {
            return Ok(0);
        }
        self.members.iter().position(|member| member.role == role).with_context(|| format!("there is no {role}"))
    }

    /// Sends SIGKILL to the first process of a role and returns its number.
    pub(crate) async fn kill(&mut self, role: &str) -> anyhow::Result<usize> {
        let member = self.member(role)?;
        self.members[member].process.kill().await?;
        Ok(member)
    }

    pub(crate) async fn start_again(&mut self, member: usize) -> anyhow::Result<()> {
        let (role, port) = (self.members[member].role, self.members[member].port.number());
        self.members[member].process = self.launch(role, port).await?;
        Ok(())
    }

    /// Sends STOP or CONT to the first process of a role.
    pub(crate) async fn signal(&self, role: &str, name: &str) -> anyhow::Result<()> {
        signal(&self.members[self.member(role)?].process, name).await
    }

    /// Starts or stops workers until there are `workers`. A worker is stopped by SIGTERM and finishes its sends in
    /// flight.
    pub(crate) async fn scale_workers(&mut self, workers: usize) -> anyhow::Result<()> {
        let count = |fleet: &Self| fleet.members.iter().filter(|member| member.role == "worker").count();
        while count(self) < workers {
            self.add("worker").await?;
        }
        while count(self) > workers {
            let last = self.members.iter().rposition(|member| member.role == "worker").unwrap_or_default();
            let mut member = self.members.remove(last);
            signal(&member.process, "TERM").await?;
            let status = member.process.wait().await?;
            ensure!(status.success(), "a worker exited with {status} after SIGTERM");
        }
        Ok(())
    }

    pub(crate) fn redis(&mut self) -> anyhow::Result<&mut Redis> {
        self.redis.as_mut().context("there is no Redis in this set-up")
    }

    pub(crate) fn postgres(&mut self) -> anyhow::Result<&mut Postgres> {
        self.postgres.as_mut().context("there is no PostgreSQL in this set-up")
    }

    /// The roles of processes that have exited by themselves.
    pub(crate) fn ended(&mut self) -> anyhow::Result<Vec<&'static str>> {
        let mut ended = Vec::new();
        for member in &mut self.members {
            if member.process.try_wait()?.is_some() {
                ended.push(member.role);
            }
        }
        Ok(ended)
    }

    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        for member in &mut self.members {
            member.process.kill().await?;
        }
        Ok(())
    }
}

async fn signal(process: &Child, name: &str) -> anyhow::Result<()> {
    let pid = process.id().context("the process has exited")?.to_string();
    let status = Command::new("kill").args([&format!("-{name}"), &pid]).status().await?;
    ensure!(status.success(), "could not send SIG{name}");
    Ok(())
}
