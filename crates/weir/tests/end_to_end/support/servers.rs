//! Servers for the scaled set-up: a database on the shared PostgreSQL for each test, and separate servers for tests
//! that stop them. The environment names the programs and the shared server, as `cargo xtask test` sets it.

use std::{
    fs::Permissions,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tempfile::TempDir;
use tokio::process::{Child, Command};
use weir_test_support::HeldPort;

use super::eventually;

const START: Duration = Duration::from_secs(30);

pub(crate) fn provided(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("these tests need servers: run them with `cargo xtask test`, which provides them, or set {variable}")
    })
}

fn postgres_program(name: &str) -> PathBuf {
    Path::new(&provided("WEIR_TEST_POSTGRES_BIN")).join(name)
}

/// Runs a program, which must succeed, and returns its output.
async fn run(command: &mut Command) -> String {
    let output = command.output().await.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

async fn send_signal(process: &Child, name: &str) {
    let pid = process.id().expect("it runs").to_string();
    run(Command::new("kill").args([&format!("-{name}"), &pid])).await;
}

async fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().await.expect("it starts").success()
}

/// Creates an empty database on the shared PostgreSQL. It is removed with the server.
pub(crate) async fn database() -> String {
    static CREATED: AtomicU32 = AtomicU32::new(0);
    let server = provided("WEIR_TEST_POSTGRES_URL");
    let name = format!("weir_e2e_{}_{}", std::process::id(), CREATED.fetch_add(1, Ordering::Relaxed));
    run(Command::new(postgres_program("createdb")).args(["--maintenance-db", &server, &name])).await;
    let (base, _) = server.rsplit_once('/').expect("the URL names a database");
    format!("{base}/{name}")
}

/// Dumps a database into a file, as a backup does.
pub(crate) async fn dump(database_url: &str, file: &Path) {
    run(Command::new(postgres_program("pg_dump")).args(["--format=custom", "--file"]).arg(file).arg(database_url))
        .await;
}

/// A new database restored from a dump.
pub(crate) async fn restored(file: &Path) -> String {
    let database_url = database().await;
    let mut restore = Command::new(postgres_program("pg_restore"));
    run(restore.args(["--no-owner", "--exit-on-error", "--dbname", &database_url]).arg(file)).await;
    database_url
}

/// Runs SQL on a database.
pub(crate) async fn sql(database_url: &str, text: &str) {
    run(Command::new(postgres_program("psql")).args([
        "--quiet",
        "--set=ON_ERROR_STOP=1",
        "--command",
        text,
        database_url,
    ]))
    .await;
}

/// A Redis without persistence: it is empty after each start.
pub(crate) struct Redis {
    process: Child,
    port: HeldPort,
    arguments: Vec<String>,
}

impl Redis {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub(crate) async fn start_with(arguments: &[&str]) -> Self {
        let port = HeldPort::hold().expect("a free port");
        let arguments = arguments.iter().copied().map(str::to_owned).collect();
        let redis = Self { process: Self::spawn(&port, &arguments), port, arguments };
        redis.wait_until_listening().await;
        redis
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port.number())
    }

    /// Sends SIGKILL.
    pub(crate) async fn kill(&mut self) {
        self.process.kill().await.expect("killed");
    }

    /// Suspends it (STOP) or lets it continue (CONT).
    pub(crate) async fn signal(&self, name: &str) {
        send_signal(&self.process, name).await;
    }

    /// Starts a new, empty process on the same port.
    pub(crate) async fn start_again(&mut self) {
        self.process = Self::spawn(&self.port, &self.arguments);
        self.wait_until_listening().await;
    }

    /// The number of permits in the delivery queue, and how many of them a worker has read and not acknowledged.
    pub(crate) async fn entries(&self) -> String {
        let count = "local entries, pending = 0, 0 for _, queue in ipairs(redis.call('KEYS', '*:queue')) do \
             entries = entries + redis.call('XLEN', queue) \
             pending = pending + redis.call('XPENDING', queue, 'workers')[1] end return entries .. ' ' .. pending";
        run(self.client().args(["eval", count, "0"])).await
    }

    fn client(&self) -> Command {
        let mut command = Command::new(Path::new(&provided("WEIR_TEST_REDIS_SERVER")).with_file_name("redis-cli"));
        command.args(["-p", &self.port.number().to_string()]);
        command
    }

    fn spawn(port: &HeldPort, arguments: &Vec<String>) -> Child {
        let mut command = Command::new(provided("WEIR_TEST_REDIS_SERVER"));
        command.args(["--bind", "127.0.0.1", "--port", &port.number().to_string(), "--save", "", "--appendonly", "no"]);
        command.args(arguments).stdout(Stdio::null()).kill_on_drop(true).spawn().expect("redis-server starts")
    }

    async fn wait_until_listening(&self) {
        eventually("Redis listens", START, async || {
            tokio::net::TcpStream::connect(("127.0.0.1", self.port.number())).await.is_ok()
        })
        .await;
    }
}

/// The settings of the shared PostgreSQL that `cargo xtask test` starts.
const SETTINGS: [&str; 4] =
    ["listen_addresses=127.0.0.1", "max_connections=300", "wal_level=minimal", "max_wal_senders=0"];

/// A PostgreSQL with a database and a user `weir`, as `cargo xtask` starts it.
pub(crate) struct Postgres {
    process: Child,
    port: HeldPort,
    folder: TempDir,
}

impl Postgres {
    pub(crate) async fn start() -> Self {
        Self::init("trust", None).await
    }

    /// A PostgreSQL that requires a password.
    pub(crate) async fn start_with_password(password: &str) -> Self {
        Self::init("scram-sha-256", Some(password)).await
    }

    async fn init(auth: &str, password: Option<&str>) -> Self {
        // When the tests run as root, PostgreSQL runs as another user, which must be able to read its folder.
        let folder = TempDir::with_prefix_in("weir-", "/tmp").expect("a folder");
        let port = HeldPort::hold().expect("a free port");
        if let Some((user, group)) = unprivileged().await {
            chown(folder.path(), Some(user), Some(group)).expect("the folder gets its owner");
        }
        let data = folder.path().join("data");
        let mut initdb = program("initdb", folder.path()).await;
        initdb.args(["--username=weir", "--auth", auth, "--encoding=UTF8", "--locale=C", "--no-sync"]);
        let file = folder.path().join("password");
        if let Some(password) = password {
            std::fs::write(&file, password).expect("a file");
            // Readable by the user of PostgreSQL.
            std::fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("permissions");
            initdb.arg("--pwfile").arg(&file);
        }
        run(initdb.arg("--pgdata").arg(&data)).await;
        let process = Self::spawn(folder.path(), &port).await;
        let postgres = Self { process, port, folder };
        postgres.wait_until_ready().await;
        run(postgres.client("createdb").env("PGPASSWORD", password.unwrap_or_default()).arg("weir")).await;
        postgres
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://weir@127.0.0.1:{}/weir", self.port.number())
    }

    pub(crate) fn url_with(&self, password: &str) -> String {
        format!("postgres://weir:{password}@127.0.0.1:{}/weir", self.port.number())
    }

    /// A fast shutdown: all connections are cut, committed data is kept.
    pub(crate) async fn stop(&mut self) {
        self.end("INT").await;
    }

    /// An immediate shutdown: commits of the last second that did not wait for the disk may be lost.
    pub(crate) async fn crash(&mut self) {
        self.end("QUIT").await;
    }

    async fn end(&mut self, signal: &str) {
        send_signal(&self.process, signal).await;
        self.process.wait().await.expect("a status");
    }

    pub(crate) async fn start_again(&mut self) {
        self.process = Self::spawn(self.folder.path(), &self.port).await;
        self.wait_until_ready().await;
    }

    async fn spawn(folder: &Path, port: &HeldPort) -> Child {
        let mut command = program("postgres", folder).await;
        command.args(["-D", "data", "-p", &port.number().to_string(), "-c", "unix_socket_directories="]);
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().expect("postgres starts")
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(postgres_program(program));
        command.args(["--host", "127.0.0.1", "--port", &self.port.number().to_string(), "--username", "weir"]);
        command
    }

    async fn wait_until_ready(&self) {
        let ready = async || succeeds(&mut self.client("pg_isready")).await;
        eventually("PostgreSQL accepts connections", START, ready).await;
    }
}

/// A command for one of PostgreSQL's programs in its folder, as a user that it accepts.
async fn program(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(postgres_program(name));
    command.current_dir(folder);
    if let Some((user, group)) = unprivileged().await {
        command.uid(user).gid(group);
    }
    command
}

/// The user and group for PostgreSQL when the tests run as root.
async fn unprivileged() -> Option<(u32, u32)> {
    let id = async |arguments: &[&str]| run(Command::new("id").args(arguments)).await.parse().expect("a number");
    if id(&["-u"]).await != 0 {
        return None;
    }
    let user = if succeeds(Command::new("id").arg("postgres")).await { "postgres" } else { "nobody" };
    Some((id(&["-u", user]).await, id(&["-g", user]).await))
}

/// The path of the faketime library, which shifts the wall clock of a process, from the program that comes with it.
pub(crate) async fn fake_time() -> String {
    run(Command::new(provided("WEIR_TEST_FAKETIME")).args(["-m", "-f", "+0s", "printenv", "LD_PRELOAD"])).await
}
