//! The harness's own PostgreSQL and Redis, which it may kill and restart. The environment names the programs
//! (`WEIR_TEST_REDIS_SERVER`, `WEIR_TEST_POSTGRES_BIN`, as `cargo xtask load` sets them); otherwise the usual folders
//! are searched.

use std::{
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
};
use weir_test_support::HeldPort;

use crate::clock::now;

const STARTS_WITHIN: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(20);
/// As `cargo xtask` starts PostgreSQL: commits reach the disk as in production.
const SETTINGS: [&str; 6] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "shared_buffers=256MB",
    "max_connections=300",
    "wal_level=minimal",
    "max_wal_senders=0",
];

const POSTGRES_PROGRAMS: [&str; 4] = ["initdb", "postgres", "pg_isready", "createdb"];

/// A Redis without persistence: it is empty after each start.
pub(crate) struct Redis {
    process: Child,
    program: PathBuf,
    port: HeldPort,
}

impl Redis {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let program = std::env::var_os("WEIR_TEST_REDIS_SERVER").map_or_else(|| "redis-server".into(), PathBuf::from);
        let port = HeldPort::hold()?;
        let redis = Self { process: Self::spawn(&program, port.number())?, program, port };
        redis.wait_until_listening().await?;
        Ok(redis)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port.number())
    }

    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.process.kill().await?)
    }

    pub(crate) async fn start_again(&mut self) -> anyhow::Result<()> {
        self.process = Self::spawn(&self.program, self.port.number())?;
        self.wait_until_listening().await
    }

    pub(crate) async fn flush(&self) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port.number())).await?;
        stream.write_all(b"FLUSHALL\r\n").await?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await?;
        ensure!(&answer == b"+OK\r\n", "Redis was not flushed: {}", String::from_utf8_lossy(&answer));
        Ok(())
    }

    fn spawn(program: &Path, port: u16) -> anyhow::Result<Child> {
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
        quiet(&mut command).spawn().with_context(|| format!("cannot start {}", program.display()))
    }

    async fn wait_until_listening(&self) -> anyhow::Result<()> {
        let deadline = now() + STARTS_WITHIN;
        while TcpStream::connect(("127.0.0.1", self.port.number())).await.is_err() {
            ensure!(now() < deadline, "Redis did not start in time");
            tokio::time::sleep(POLL_EVERY).await;
        }
        Ok(())
    }
}

/// A PostgreSQL with a user and an empty database `weir`.
pub(crate) struct Postgres {
    process: Child,
    programs: PathBuf,
    /// The user and group to run as, because PostgreSQL refuses to run as root.
    account: Option<(u32, u32)>,
    port: HeldPort,
    folder: TempDir,
}

impl Postgres {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let programs = postgres_programs()?;
        let account = unprivileged().await?;
        let folder = TempDir::with_prefix_in("weir-", "/tmp")?;
        if let Some((user, group)) = account {
            chown(folder.path(), Some(user), Some(group))?;
        }
        let port = HeldPort::hold()?;
        let mut initdb = program(&programs, "initdb", folder.path(), account);
        initdb.args(["--username=weir", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]);
        run(initdb.args(["--pgdata", "data"])).await?;
        let process = Self::spawn(&programs, folder.path(), account, port.number())?;
        let postgres = Self { process, programs, account, port, folder };
        postgres.wait_until_ready().await?;
        run(postgres.client("createdb").arg("weir")).await?;
        Ok(postgres)
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://weir@127.0.0.1:{}/weir", self.port.number())
    }

    /// A fast shutdown: all connections are cut, committed data is kept.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        let pid = self.process.id().context("PostgreSQL exited by itself")?.to_string();
        run(Command::new("kill").args(["-INT", &pid])).await?;
        self.process.wait().await?;
        Ok(())
    }

    pub(crate) async fn start_again(&mut self) -> anyhow::Result<()> {
        self.process = Self::spawn(&self.programs, self.folder.path(), self.account, self.port.number())?;
        self.wait_until_ready().await
    }

    fn spawn(programs: &Path, folder: &Path, account: Option<(u32, u32)>, port: u16) -> anyhow::Result<Child> {
        let mut command = program(programs, "postgres", folder, account);
        command.args(["-D", "data", "-p", &port.to_string()]);
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        quiet(&mut command).spawn().context("cannot start PostgreSQL")
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.args(["--host", "127.0.0.1", "--port", &self.port.number().to_string(), "--username", "weir"]);
        command
    }

    async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let deadline = now() + STARTS_WITHIN;
        loop {
            // `template1` always exists; a database with the user's name may not.
            let mut ready = self.client("pg_isready");
            let ready = quiet(ready.args(["--dbname", "template1"])).status().await;
            if ready.context("cannot start pg_isready")?.success() {
                return Ok(());
            }
            ensure!(now() < deadline, "PostgreSQL did not start in time");
            tokio::time::sleep(POLL_EVERY).await;
        }
    }
}

pub(crate) fn postgres_programs() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("WEIR_TEST_POSTGRES_BIN") {
        return Ok(folder.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    places.extend(versions.map(|version| version.path().join("bin")));
    // A folder may link to only some of the programs, so all of them are required here.
    let has_all = |folder: &PathBuf| POSTGRES_PROGRAMS.iter().all(|program| folder.join(program).is_file());
    let found = places.into_iter().find(has_all);
    found.context("PostgreSQL is not installed here; `cargo xtask load --scaled` says how to get it")
}

fn program(programs: &Path, name: &str, folder: &Path, account: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(programs.join(name));
    command.current_dir(folder);
    if let Some((user, group)) = account {
        command.uid(user).gid(group);
    }
    command
}

async fn unprivileged() -> anyhow::Result<Option<(u32, u32)>> {
    let id = async |arguments: &[&str]| anyhow::Ok(run(Command::new("id").args(arguments)).await?.parse::<u32>()?);
    if id(&["-u"]).await? != 0 {
        return Ok(None);
    }
    let has_own = quiet(Command::new("id").arg("postgres")).status().await?.success();
    let user = if has_own { "postgres" } else { "nobody" };
    Ok(Some((id(&["-u", user]).await?, id(&["-g", user]).await?)))
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true)
}

/// Runs a program, which must succeed, and returns its output.
async fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().await.with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
