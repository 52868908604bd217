//! Weir as it runs at scale: each role a process of its own, on a database and a Redis of the test's own.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    process::{ExitStatus, Output, Stdio},
};

use tempfile::TempDir;
use tokio::process::Command;

use super::{
    App,
    servers::{self, Redis},
};

/// Enough of the log to see what happened, when a test fails.
const LOG_SHOWN: i64 = 16 * 1024;

/// What the processes of a test share.
pub(crate) struct Fleet {
    pub(crate) redis: Redis,
    database_url: String,
    folder: TempDir,
    log: File,
}

impl Fleet {
    /// On a new database of the shared PostgreSQL.
    pub(crate) async fn new() -> Self {
        Self::on(servers::database().await).await
    }

    pub(crate) async fn on(database_url: String) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let log = File::options().create(true).append(true).read(true).open(log).expect("a log");
        Self { redis: Redis::start().await, database_url, folder, log }
    }

    /// A process of this role, which is `serve` for all of them.
    pub(crate) async fn launch(&self, role: &str) -> App {
        self.launch_with(role, &[]).await
    }

    pub(crate) async fn launch_with(&self, role: &str, environment: &[(&str, &str)]) -> App {
        let launched = App::launch(self.command(role, environment)).await;
        launched.unwrap_or_else(|status| panic!("{role} ended before it listened: {status}"))
    }

    /// As [`Self::launch`], while the servers may be away.
    pub(crate) async fn try_launch(&self, role: &str) -> Result<App, ExitStatus> {
        App::launch(self.command(role, &[])).await
    }

    /// Where the database server listens.
    pub(crate) fn database_address(&self) -> String {
        let (_, server) = self.database_url.rsplit_once('@').expect("the URL names a user");
        server.split('/').next().unwrap_or_default().to_owned()
    }

    /// The database by another port of loopback.
    pub(crate) fn database_url_at(&self, port: u16) -> String {
        self.database_url.replace(&self.database_address(), &format!("127.0.0.1:{port}"))
    }

    /// Runs SQL on the database, as nobody should.
    pub(crate) async fn sql(&self, text: &str) {
        servers::sql(&self.database_url, text).await;
    }

    /// Dumps the database into a file.
    pub(crate) async fn back_up(&self) -> PathBuf {
        let file = self.folder.path().join("weir.dump");
        servers::dump(&self.database_url, &file).await;
        file
    }

    /// Goes on with a new database, as it was dumped, and a Redis that knows nothing. No process may run.
    pub(crate) async fn restore(&mut self, backup: &Path) {
        self.database_url = servers::restored(backup).await;
        self.redis.kill().await;
        self.redis.start_again().await;
    }

    /// Runs a command of the program to its end.
    pub(crate) async fn run(&self, command: &str) -> Output {
        self.command(command, &[]).stderr(Stdio::piped()).output().await.expect("it runs")
    }

    fn command(&self, role: &str, environment: &[(&str, &str)]) -> Command {
        let mut command = App::command(self.folder.path());
        command.arg(role).env("WEIR_DATABASE_URL", &self.database_url).env("WEIR_REDIS_URL", self.redis.url());
        command.envs(environment.iter().copied()).stderr(self.log.try_clone().expect("the log"));
        command
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let length = self.log.metadata().map_or(0, |log| log.len()).cast_signed();
        let mut end = Vec::new();
        let read = self.log.seek(SeekFrom::End(-length.min(LOG_SHOWN))).and_then(|_| self.log.read_to_end(&mut end));
        eprintln!("the end of the processes' log ({read:?}):\n{}", String::from_utf8_lossy(&end));
    }
}
