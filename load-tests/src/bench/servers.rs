//! The private PostgreSQL and Redis of the bench, and their counts of statements and commands.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, ensure};
use tokio::process::Command;
use weir_test_support::{Postgres, Redis, postgres_programs};

use crate::process::{cpu_s_of, cpu_s_of_family};

pub(crate) struct Servers {
    postgres: Postgres,
    redis: Redis,
    psql: PathBuf,
    postmaster: u32,
    redis_process: u32,
    /// Whether PostgreSQL has `pg_stat_statements`.
    counts_statements: bool,
    databases: AtomicU32,
}

/// Counts since [`Servers::begin_count`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Executed {
    /// Without `BEGIN`, `COMMIT` and statements inside functions.
    pub(crate) statements: u64,
    pub(crate) transactions: u64,
    /// Scripts called.
    pub(crate) scripts: u64,
    /// All commands, including those inside scripts.
    pub(crate) commands: u64,
}

impl Servers {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let mut postgres = Postgres::start().await?;
        let redis = Redis::start().await?;
        let psql = postgres_programs()?.join("psql");
        let query = |statement| sql(&psql, postgres.url(), statement);
        // Statements can be counted only with the extension.
        let counts_statements =
            query("SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_stat_statements'").await? == "1";
        if counts_statements {
            // The server loads a library only when it starts.
            query("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'").await?;
            postgres.stop().await?;
            postgres.start_again().await?;
            let query = |statement| sql(&psql, postgres.url(), statement);
            // Off by default, because counting costs CPU time.
            query("ALTER SYSTEM SET pg_stat_statements.track = 'none'").await?;
            query("SELECT pg_reload_conf()").await?;
            query("CREATE EXTENSION pg_stat_statements").await?;
        }
        // The CPU time is read by process id.
        let postmaster =
            sql(&psql, postgres.url(), r"SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1)").await?;
        let postmaster = postmaster.parse().context("postmaster.pid")?;
        let redis_process = number_in(&redis.ask("INFO server").await?, "process_id:");
        let redis_process = redis_process.context("INFO of Redis lacks process_id")? as u32;
        let databases = AtomicU32::new(0);
        Ok(Self { postgres, redis, psql, postmaster, redis_process, counts_statements, databases })
    }

    /// Prepares empty servers for the next engine. Returns its settings and the name of its database.
    pub(crate) async fn renew(&self) -> anyhow::Result<([(&'static str, String); 2], String)> {
        let database = format!("bench{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql(&format!("CREATE DATABASE {database}")).await?;
        self.redis.ask("FLUSHALL").await?;
        Ok(([("WEIR_DATABASE_URL", self.url_of(&database)), ("WEIR_REDIS_URL", self.redis.url())], database))
    }

    pub(crate) async fn drop_database(&self, database: &str) -> anyhow::Result<()> {
        self.sql(&format!("DROP DATABASE {database} WITH (FORCE)")).await?;
        Ok(())
    }

    /// Runs maintenance after a large load, so it does not run during the measurement.
    pub(crate) async fn tidy(&self, database: &str) -> anyhow::Result<()> {
        self.run_in(database, "VACUUM (ANALYZE)").await?;
        self.sql("CHECKPOINT").await?;
        Ok(())
    }

    pub(crate) async fn run_in(&self, database: &str, statement: &str) -> anyhow::Result<()> {
        sql(&self.psql, self.url_of(database), statement).await.map(drop)
    }

    /// The answer to a query for one whole number.
    pub(crate) async fn number_in(&self, database: &str, query: &str) -> anyhow::Result<u64> {
        let answer = sql(&self.psql, self.url_of(database), query).await?;
        answer.parse().with_context(|| format!("not a number: {answer}"))
    }

    pub(crate) fn postgres_port(&self) -> u16 {
        self.postgres.port()
    }

    pub(crate) fn redis(&self) -> &Redis {
        &self.redis
    }

    /// The CPU time of Redis and of all processes of PostgreSQL so far.
    pub(crate) fn cpu_s(&self) -> anyhow::Result<f64> {
        Ok(cpu_s_of_family(self.postmaster)? + cpu_s_of(self.redis_process)?)
    }

    pub(crate) fn counts_statements(&self) -> bool {
        self.counts_statements
    }

    /// Counts the statements of connections that are opened to this database from now on.
    pub(crate) async fn track(&self, database: &str) -> anyhow::Result<()> {
        self.sql(&format!("ALTER DATABASE {database} SET pg_stat_statements.track = 'top'")).await?;
        Ok(())
    }

    pub(crate) async fn begin_count(&self, database: &str) -> anyhow::Result<u64> {
        self.sql("SELECT pg_stat_statements_reset()").await?;
        self.redis.ask("CONFIG RESETSTAT").await?;
        self.transactions(database).await
    }

    /// `before` is the result of [`begin_count`](Self::begin_count). The counts are complete only after the sessions
    /// have ended.
    pub(crate) async fn executed(&self, database: &str, before: u64) -> anyhow::Result<Executed> {
        let transactions = self.transactions(database).await? - before;
        let statements = self
            .sql(&format!(
                "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
                 WHERE d.datname = '{database}' AND query !~* '^(begin|commit|rollback|start transaction)'"
            ))
            .await?;
        let redis = self.redis.ask("INFO commandstats").await?;
        let calls = calls_in(&redis);
        let is_script = |name: &str| ["evalsha", "eval", "fcall"].contains(&name);
        Ok(Executed {
            statements: statements.parse()?,
            transactions,
            scripts: calls.iter().filter(|(name, _)| is_script(name)).map(|(_, calls)| calls).sum(),
            // The harness's own INFO is left out.
            commands: calls.iter().filter(|(name, _)| name != "info").map(|(_, calls)| calls).sum(),
        })
    }

    /// The transactions that sessions have reported so far.
    async fn transactions(&self, database: &str) -> anyhow::Result<u64> {
        let answer =
            self.sql(&format!("SELECT xact_commit FROM pg_stat_database WHERE datname = '{database}'")).await?;
        Ok(answer.parse()?)
    }

    /// For example `PostgreSQL 15.8` and `Redis 7.0.15`.
    pub(crate) async fn versions(&self) -> anyhow::Result<[String; 2]> {
        let postgres = self.sql("SHOW server_version").await?;
        let redis = self.redis.ask("INFO server").await?;
        let redis = redis.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("?").trim().to_owned();
        Ok([format!("PostgreSQL {}", postgres.split(' ').next().unwrap_or_default()), format!("Redis {redis}")])
    }

    /// The memory used by Redis, in MiB.
    pub(crate) async fn redis_mib(&self) -> anyhow::Result<f64> {
        let bytes = number_in(&self.redis.ask("INFO memory").await?, "used_memory:");
        Ok(bytes.context("INFO of Redis lacks used_memory")? as f64 / 1_048_576.0)
    }

    fn url_of(&self, database: &str) -> String {
        let url = self.postgres.url();
        format!("{}/{database}", url.rsplit_once('/').map_or(url.as_str(), |(server, _)| server))
    }

    async fn sql(&self, statement: &str) -> anyhow::Result<String> {
        sql(&self.psql, self.postgres.url(), statement).await
    }
}

async fn sql(psql: &PathBuf, url: String, statement: &str) -> anyhow::Result<String> {
    let mut command = Command::new(psql);
    command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--dbname", &url, "--command", statement]);
    let output = command.output().await.with_context(|| format!("cannot start {}", psql.display()))?;
    ensure!(output.status.success(), "{statement}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn number_in(info: &str, name: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// The commands of `INFO commandstats` with their numbers of calls.
fn calls_in(info: &str) -> Vec<(String, u64)> {
    let of = |line: &str| {
        let (name, figures) = line.trim().strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = figures.split(',').find_map(|figure| figure.strip_prefix("calls="))?;
        Some((name.to_owned(), calls.parse().ok()?))
    };
    info.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_from_info_commandstats() {
        let info = "# Commandstats\r\ncmdstat_evalsha:calls=12,usec=80,usec_per_call=6.67,rejected_calls=0\r\n\
                    cmdstat_config|resetstat:calls=1,usec=3\r\n";
        assert_eq!(calls_in(info), [("evalsha".to_owned(), 12), ("config|resetstat".to_owned(), 1)]);
        assert_eq!(number_in("process_id:77\r\ntcp_port:1\r\n", "process_id:"), Some(77));
    }
}
