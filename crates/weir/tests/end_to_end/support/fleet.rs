//! The scaled set-up: one process for each role, on the test's own database and Redis.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    process::{ExitStatus, Output, Stdio},
};

use tempfile::TempDir;
use tokio::process::Command;
use weir_test_support::Redis;

use super::{App, servers};

/// How much of the log is shown when a test fails.
const LOG_SHOWN: i64 = 16 * 1024;

/// The servers and the log that the processes of a test share.
pub(crate) struct Fleet {
    pub(crate) redis: Redis,
    database_url: String,
    folder: TempDir,
    log: File,
}

impl Fleet {
    /// A fleet on a new database of the shared PostgreSQL.
    pub(crate) async fn new() -> Self {
        Self::on(servers::database().await).await
    }

    /// A fleet whose Redis has a clock that the test sets.
    pub(crate) async fn with_clock() -> Self {
        let mut fleet = Self::new().await;
        fleet.redis = Redis::start_with_clock().await.unwrap();
        fleet
    }

    pub(crate) async fn on(database_url: String) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let log = File::options().create(true).append(true).read(true).open(log).expect("a log");
        Self { redis: Redis::start().await.unwrap(), database_url, folder, log }
    }

    /// Starts a process of this role; `serve` has all roles.
    pub(crate) async fn launch(&self, role: &str) -> App {
        self.launch_with(role, &[]).await
    }

    pub(crate) async fn launch_with(&self, role: &str, environment: &[(&str, &str)]) -> App {
        let launched = App::launch(self.command(role, environment)).await;
        launched.unwrap_or_else(|status| panic!("{role} exited before it listened: {status}"))
    }

    /// Like [`Self::launch`], while the servers may be down.
    pub(crate) async fn try_launch(&self, role: &str) -> Result<App, ExitStatus> {
        self.try_launch_with(role, &[]).await
    }

    pub(crate) async fn try_launch_with(&self, role: &str, environment: &[(&str, &str)]) -> Result<App, ExitStatus> {
        App::launch(self.command(role, environment)).await
    }

    /// The address of the database server.
    pub(crate) fn database_address(&self) -> String {
        let (_, server) = self.database_url.rsplit_once('@').expect("the URL names a user");
        server.split('/').next().unwrap_or_default().to_owned()
    }

    /// The URL of the database through another loopback port.
    pub(crate) fn database_url_at(&self, port: u16) -> String {
        self.database_url.replace(&self.database_address(), &format!("127.0.0.1:{port}"))
    }

    /// Runs SQL on the database, which only tests may do.
    pub(crate) async fn sql(&self, text: &str) {
        servers::sql(&self.database_url, text).await;
    }

    /// The same, with SQL that another session may end.
    pub(crate) async fn sql_that_ends(&self, text: &str) {
        servers::psql(&self.database_url, text).output().await.expect("psql runs");
    }

    /// Dumps the database into a file.
    pub(crate) async fn back_up(&self) -> PathBuf {
        let file = self.folder.path().join("weir.dump");
        servers::dump(&self.database_url, &file).await;
        file
    }

    /// Every row of every table, as text; bytes as hexadecimal digits.
    pub(crate) async fn dump_text(&self) -> String {
        servers::dump_text(&self.database_url).await
    }

    /// Every value in Redis, one after the other.
    pub(crate) async fn redis_values(&self) -> String {
        let all = "EVAL \"local all = {} local function add(value) if type(value) == 'table' then for _, one in ipairs(value) \
             do add(one) end else all[#all + 1] = tostring(value) end end \
             local reads = {string = {'GET'}, hash = {'HGETALL'}, list = {'LRANGE', 0, -1}, set = {'SMEMBERS'}, \
             zset = {'ZRANGE', 0, -1}, stream = {'XRANGE', '-', '+'}} \
             for _, key in ipairs(redis.call('KEYS', '*')) do local read = reads[redis.call('TYPE', key).ok] \
             local command = {read[1], key} for n = 2, #read do command[#command + 1] = read[n] end \
             add(redis.call(unpack(command))) end return table.concat(all, ' ')\" 0";
        self.redis.ask(all).await.expect("Redis answers")
    }

    /// Replaces the database with a restored dump and Redis with an empty one. No process of Weir may be running.
    pub(crate) async fn restore(&mut self, backup: &Path) {
        self.database_url = servers::restored(backup).await;
        self.redis.kill().await.unwrap();
        self.redis.start_again().await.unwrap();
    }

    /// The number of permits in the delivery queue, and how many of them a worker has read and not acknowledged.
    pub(crate) async fn entries(&self) -> String {
        let count = "EVAL \"local entries, pending = 0, 0 for _, queue in ipairs(redis.call('KEYS', '*:queue')) do \
             entries = entries + redis.call('XLEN', queue) \
             pending = pending + redis.call('XPENDING', queue, 'workers')[1] end return entries .. ' ' .. pending\" 0";
        self.redis.ask(count).await.expect("Redis answers")
    }

    /// What all processes have logged so far.
    pub(crate) fn log(&mut self) -> String {
        let mut log = String::new();
        self.log.seek(SeekFrom::Start(0)).and_then(|_| self.log.read_to_string(&mut log)).expect("the log");
        log
    }

    /// Runs a command of the program and waits for its exit.
    pub(crate) async fn run(&self, command: &str) -> Output {
        self.command(command, &[]).stderr(Stdio::piped()).output().await.expect("it runs")
    }

    pub(crate) fn command(&self, role: &str, environment: &[(&str, &str)]) -> Command {
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
