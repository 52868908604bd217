use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use tokio::process::Command;

use super::process::{Process, run};
use crate::{Account, HeldPort, account};

const PROGRAMS: [&str; 4] = ["initdb", "postgres", "pg_isready", "createdb"];
/// Commits reach the disk as in production, because this server is also used for measurements.
const SETTINGS: [&str; 6] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "shared_buffers=256MB",
    "max_connections=300",
    "wal_level=minimal",
    "max_wal_senders=0",
];
const REPLICATION: [&str; 2] = ["wal_level=replica", "max_wal_senders=4"];

/// A PostgreSQL with a user and an empty database `weir`.
pub struct Postgres {
    process: Process,
    programs: PathBuf,
    /// PostgreSQL refuses to run as root.
    account: Option<Account>,
    port: HeldPort,
    folder: TempDir,
    /// Writes a log that replicas can follow, or follows one.
    is_replicated: bool,
}

impl Postgres {
    /// Starts a PostgreSQL that asks for no password, and waits until it answers.
    ///
    /// # Errors
    ///
    /// PostgreSQL is not installed, or ends; the error holds its log.
    pub async fn start() -> io::Result<Self> {
        Self::init(None, false).await
    }

    /// Starts a PostgreSQL that replicas can follow.
    pub async fn start_primary() -> io::Result<Self> {
        Self::init(None, true).await
    }

    /// Starts a streaming replica of this server, which must be a primary.
    pub async fn start_replica(&self) -> io::Result<Self> {
        let folder = data_folder(self.account)?;
        let mut copy = program(&self.programs, "pg_basebackup", folder.path(), self.account);
        copy.args(["--host", "127.0.0.1", "--port", &self.port.number().to_string(), "--username", "weir"]);
        copy.args(["--pgdata", "data", "--write-recovery-conf", "--checkpoint", "fast", "--no-sync"]);
        run(&mut copy).await?;
        let port = HeldPort::hold()?;
        let process = spawn(&self.programs, folder.path(), self.account, &port, true)?;
        let (programs, account) = (self.programs.clone(), self.account);
        let mut replica = Self { process, programs, account, port, folder, is_replicated: true };
        replica.wait_until_ready().await?;
        Ok(replica)
    }

    /// Starts a PostgreSQL that requires this password.
    pub async fn start_with_password(password: &str) -> io::Result<Self> {
        Self::init(Some(password), false).await
    }

    /// Starts a PostgreSQL that takes only TLS, and clients with a certificate of this authority whose name is `weir`.
    /// All of them are in PEM.
    pub async fn start_with_tls(authority: &str, certificate: &str, key: &str) -> io::Result<Self> {
        let mut postgres = Self::init(None, false).await?;
        let data = postgres.folder.path().join("data");
        for (name, text) in [("ca.pem", authority), ("cert.pem", certificate), ("key.pem", key)] {
            let file = data.join(name);
            fs::write(&file, text)?;
            fs::set_permissions(&file, Permissions::from_mode(0o600))?;
            if let Some(Account { user, group }) = postgres.account {
                chown(&file, Some(user), Some(group))?;
            }
        }
        let settings = "\nssl = on\nssl_ca_file = 'ca.pem'\nssl_cert_file = 'cert.pem'\nssl_key_file = 'key.pem'\n";
        let configuration = data.join("postgresql.conf");
        fs::write(&configuration, fs::read_to_string(&configuration)? + settings)?;
        // The programs of PostgreSQL ask on the socket of loopback whether it is ready.
        fs::write(data.join("pg_hba.conf"), "hostssl all all all cert\nhostnossl all all all reject\n")?;
        postgres.stop().await?;
        postgres.start_again().await?;
        Ok(postgres)
    }

    async fn init(password: Option<&str>, is_replicated: bool) -> io::Result<Self> {
        let programs = postgres_programs()?;
        // PostgreSQL refuses to run as root.
        let account = if account::is_root() { Account::unprivileged("postgres") } else { None };
        let folder = data_folder(account)?;

        // Make the data folder. It is removed with this value, so the files need not reach the disk here.
        let mut initdb = program(&programs, "initdb", folder.path(), account);
        initdb.args(["--username=weir", "--encoding=UTF8", "--locale=C", "--no-sync", "--pgdata", "data"]);
        initdb.args(["--auth", if password.is_some() { "scram-sha-256" } else { "trust" }]);
        if let Some(password) = password {
            // `initdb` reads the password from a file. It may run under another account than the owner of the file.
            let file = folder.path().join("password");
            fs::write(&file, password)?;
            fs::set_permissions(&file, Permissions::from_mode(0o644))?;
            initdb.arg("--pwfile").arg(&file);
        }
        run(&mut initdb).await?;

        // Start the server on a port that no other process takes.
        let port = HeldPort::hold()?;
        let process = spawn(&programs, folder.path(), account, &port, is_replicated)?;
        let mut postgres = Self { process, programs, account, port, folder, is_replicated };
        postgres.wait_until_ready().await?;

        // `initdb` makes no database `weir`.
        let mut createdb = client(&postgres.programs, "createdb", &postgres.port);
        run(createdb.env("PGPASSWORD", password.unwrap_or_default()).arg("weir")).await?;
        Ok(postgres)
    }

    pub fn url(&self) -> String {
        format!("postgres://weir@127.0.0.1:{}/weir", self.port.number())
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn url_with(&self, password: &str) -> String {
        format!("postgres://weir:{password}@127.0.0.1:{}/weir", self.port.number())
    }

    /// A fast shutdown: all connections are cut, committed data is kept.
    pub async fn stop(&mut self) -> io::Result<()> {
        self.process.signal("INT").await?;
        self.process.wait().await
    }

    /// An immediate shutdown: commits of the last second that did not wait for the disk may be lost.
    pub async fn crash(&mut self) -> io::Result<()> {
        self.process.signal("QUIT").await?;
        self.process.wait().await
    }

    /// Starts it with the same data on the same port.
    pub async fn start_again(&mut self) -> io::Result<()> {
        self.process = spawn(&self.programs, self.folder.path(), self.account, &self.port, self.is_replicated)?;
        self.wait_until_ready().await
    }

    async fn wait_until_ready(&mut self) -> io::Result<()> {
        let (programs, port) = (&self.programs, &self.port);
        let is_ready = async || {
            // `template1` always exists; a database with the user's name may not.
            run(client(programs, "pg_isready", port).args(["--dbname", "template1"])).await.is_ok()
        };
        self.process.wait_until(is_ready).await
    }
}

/// The folder of PostgreSQL's programs.
///
/// # Errors
///
/// PostgreSQL is not installed in a usual place.
pub fn postgres_programs() -> io::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("WEIR_TEST_POSTGRES_BIN") {
        return Ok(folder.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    places.extend(versions.map(|version| version.path().join("bin")));
    // A folder may link to only some of the programs, so all of them are required here.
    let has_all = |folder: &PathBuf| PROGRAMS.iter().all(|program| folder.join(program).is_file());
    let missing = || io::Error::other("PostgreSQL is not installed here; `cargo xtask test` says how to get it");
    places.into_iter().find(has_all).ok_or_else(missing)
}

/// A folder that the user of PostgreSQL can read.
fn data_folder(account: Option<Account>) -> io::Result<TempDir> {
    let folder = TempDir::with_prefix_in("weir-", "/tmp")?;
    if let Some(Account { user, group }) = account {
        chown(folder.path(), Some(user), Some(group))?;
    }
    Ok(folder)
}

fn spawn(
    programs: &Path,
    folder: &Path,
    account: Option<Account>,
    port: &HeldPort,
    is_replicated: bool,
) -> io::Result<Process> {
    let mut command = program(programs, "postgres", folder, account);
    command.args(["-D", "data", "-p", &port.number().to_string()]);
    // Of two values, the later one counts.
    for setting in SETTINGS.into_iter().chain(REPLICATION.into_iter().filter(|_| is_replicated)) {
        command.args(["-c", setting]);
    }
    Process::spawn(&mut command)
}

/// A program that runs in its folder, as a user that it accepts.
fn program(programs: &Path, name: &str, folder: &Path, account: Option<Account>) -> Command {
    let mut command = Command::new(programs.join(name));
    command.current_dir(folder);
    if let Some(Account { user, group }) = account {
        command.uid(user).gid(group);
    }
    command
}

fn client(programs: &Path, name: &str, port: &HeldPort) -> Command {
    let mut command = Command::new(programs.join(name));
    command.args(["--host", "127.0.0.1", "--port", &port.number().to_string(), "--username", "weir"]);
    command
}
