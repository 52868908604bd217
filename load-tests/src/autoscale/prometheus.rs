//! The harness's own Prometheus on a loopback port. Files list the pods that it scrapes. It is queried over its API, as
//! KEDA and prometheus-adapter do.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use weir_core::Timestamp;
use weir_test_support::HeldPort;

use super::relay::{self, NAMESPACE, targets_file};
use crate::{client::Connection, clock::now};

const STARTS_WITHIN: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(50);
/// Longer than any query takes here, and equal to KEDA's timeout.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long a sample is valid without a newer one (`--query.lookback-delta`).
const LOOKBACK: Duration = Duration::from_secs(300);

/// The pod name and the port of a process's `/metrics`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScrapeTarget {
    pub(crate) pod: String,
    pub(crate) port: u16,
}

pub(crate) struct Prometheus {
    process: Child,
    program: PathBuf,
    port: HeldPort,
    scrape_every: Duration,
    lookback: Duration,
    folder: TempDir,
}

impl Prometheus {
    /// Starts a Prometheus with these jobs and no pods. Its clock is real; its lookback is divided by `times`.
    pub(crate) async fn start(jobs: &[&str], scrape_every: Duration, times: f64) -> anyhow::Result<Self> {
        let program = std::env::var_os("WEIR_TEST_PROMETHEUS").map_or_else(|| "prometheus".into(), PathBuf::from);
        let folder = tempfile::tempdir().context("cannot make a folder for Prometheus")?;
        for job in jobs {
            write_targets(folder.path(), job, &[])?;
        }
        let relay = if times > 1.0 { Some(relay::start(folder.path().to_owned(), scrape_every).await?) } else { None };
        std::fs::write(folder.path().join("prometheus.yml"), config(jobs, scrape_every, relay))?;
        let (port, lookback) = (HeldPort::hold()?, LOOKBACK.div_f64(times));
        let process = spawn(&program, folder.path(), port.number(), lookback)?;
        let mut prometheus = Self { process, program, port, scrape_every, lookback, folder };
        prometheus.wait_until_ready().await?;
        Ok(prometheus)
    }

    pub(crate) fn scrape_every(&self) -> Duration {
        self.scrape_every
    }

    /// A client that queries and sets targets, also while this Prometheus is stopped.
    pub(crate) fn client(&self) -> Client {
        Client { port: self.port.number(), folder: self.folder.path().to_owned() }
    }

    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Restarts it with its stored data.
    pub(crate) async fn start_again(&mut self) -> anyhow::Result<()> {
        self.process = spawn(&self.program, self.folder.path(), self.port.number(), self.lookback)?;
        self.wait_until_ready().await
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = now() + STARTS_WITHIN;
        let address = ([127, 0, 0, 1], self.port.number()).into();
        loop {
            if let Ok(mut connection) = Connection::open(address).await
                && connection.send(Method::GET, "/-/ready", bytes::Bytes::new()).await.is_ok()
            {
                return Ok(());
            }
            ensure!(self.process.try_wait()?.is_none(), "Prometheus exited by itself");
            ensure!(now() < deadline, "Prometheus did not start in time");
            tokio::time::sleep(POLL_EVERY).await;
        }
    }
}

fn spawn(program: &Path, folder: &Path, port: u16, lookback: Duration) -> anyhow::Result<Child> {
    let mut command = Command::new(program);
    command
        .current_dir(folder)
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=error"])
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .arg(format!("--query.lookback-delta={}ms", lookback.as_millis()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command.spawn().with_context(|| {
        format!(
            "cannot start {}; install Debian's package `prometheus`, or name the program in WEIR_TEST_PROMETHEUS",
            program.display()
        )
    })
}

/// With a relay, Prometheus scrapes only the relay and keeps the pods' labels from it.
fn config(jobs: &[&str], scrape_every: Duration, relay: Option<u16>) -> String {
    let ms = scrape_every.as_millis();
    let job = |job: &&str| match relay {
        Some(port) => json!({
            "job_name": job, "honor_labels": true, "metrics_path": format!("/{job}"),
            "static_configs": [{"targets": [format!("127.0.0.1:{port}")]}],
        }),
        // Prometheus watches the files; it also re-reads them in case it misses a change.
        None => json!({
            "job_name": job, "file_sd_configs": [{"files": [targets_file(job)], "refresh_interval": "1s"}],
        }),
    };
    let jobs: Vec<_> = jobs.iter().map(job).collect();
    // JSON is YAML.
    json!({
        "global": {"scrape_interval": format!("{ms}ms"), "scrape_timeout": format!("{ms}ms")},
        "scrape_configs": jobs,
    })
    .to_string()
}

/// Replaces the file atomically, because Prometheus may read it at any time.
fn write_targets(folder: &Path, job: &str, pods: &[ScrapeTarget]) -> anyhow::Result<()> {
    let target = |pod: &ScrapeTarget| {
        json!({
            "targets": [format!("127.0.0.1:{}", pod.port)],
            "labels": {"namespace": NAMESPACE, "pod": pod.pod},
        })
    };
    let targets: Vec<_> = pods.iter().map(target).collect();
    let (temporary, path) = (folder.join(format!("{job}.tmp")), folder.join(targets_file(job)));
    std::fs::write(&temporary, json!(targets).to_string())?;
    Ok(std::fs::rename(temporary, path)?)
}

#[derive(Debug, Clone)]
pub(crate) struct Client {
    port: u16,
    folder: PathBuf,
}

impl Client {
    #[cfg(test)]
    pub(crate) fn of_port(port: u16) -> Self {
        Self { port, folder: PathBuf::new() }
    }

    pub(crate) fn set_targets(&self, job: &str, pods: &[ScrapeTarget]) -> anyhow::Result<()> {
        write_targets(&self.folder, job, pods)
    }

    /// The single value of a query now, by KEDA's rules: no result or a value that is not finite is `None`, several
    /// results are an error.
    pub(crate) async fn value(&self, query: &str) -> anyhow::Result<Option<f64>> {
        let result: Vector = self.ask("query", &[("query", query.to_owned())]).await?;
        match result.0.as_slice() {
            [] => Ok(None),
            [one] => Ok(one.number().filter(|number| number.is_finite())),
            several => bail!("the query has {} results, where one is needed", several.len()),
        }
    }

    /// The values of a query over a time range. Samples that are not finite numbers are left out.
    pub(crate) async fn series(
        &self,
        query: &str,
        from: Timestamp,
        until: Timestamp,
        step: Duration,
    ) -> anyhow::Result<Vec<(Timestamp, f64)>> {
        // The API of Prometheus takes times in seconds, and answers with texts as values.
        let seconds = |at: Timestamp| format!("{:.3}", at.as_millis() as f64 / 1_000.0);
        let arguments = [
            ("query", query.to_owned()),
            ("start", seconds(from)),
            ("end", seconds(until)),
            ("step", format!("{:.3}", step.as_secs_f64())),
        ];
        let result: Matrix = self.ask("query_range", &arguments).await?;
        // The queries aggregate, so they have at most one series.
        let first = result.0.into_iter().next().map(|series| series.values).unwrap_or_default();
        let sample = |(at, value): (f64, String)| {
            let value: f64 = value.parse().ok()?;
            value.is_finite().then(|| (Timestamp::from_millis((at * 1_000.0) as i64), value))
        };
        Ok(first.into_iter().filter_map(sample).collect())
    }

    async fn ask<T: for<'de> Deserialize<'de>>(&self, what: &str, arguments: &[(&str, String)]) -> anyhow::Result<T> {
        let arguments: Vec<_> = arguments.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let path = format!("/api/v1/{what}?{}", arguments.join("&"));
        let exchange = async {
            let mut connection = Connection::open(([127, 0, 0, 1], self.port).into()).await?;
            connection.exchange(Method::GET, &path, bytes::Bytes::new()).await
        };
        let (_, answer) =
            tokio::time::timeout(TIMEOUT, exchange).await.context("Prometheus did not answer in time")??;
        let mut answer: Value = serde_json::from_slice(&answer).context("the answer of Prometheus is not JSON")?;
        ensure!(answer["status"] == "success", "Prometheus answered: {}", answer["error"]);
        Ok(serde_json::from_value(answer["data"]["result"].take())?)
    }
}

#[derive(Deserialize)]
struct Vector(Vec<Instant>);

#[derive(Deserialize)]
struct Instant {
    value: (f64, String),
}

impl Instant {
    fn number(&self) -> Option<f64> {
        self.value.1.parse().ok()
    }
}

#[derive(Deserialize)]
struct Matrix(Vec<Series>);

#[derive(Deserialize)]
struct Series {
    values: Vec<(f64, String)>,
}

/// Percent-encoded for the query of a URL.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn the_configuration_names_every_job_and_the_files_of_its_pods() {
        let config: Value =
            serde_json::from_str(&config(&["weir-api", "weir-worker"], Duration::from_millis(500), None)).unwrap();
        assert_eq!(config["global"]["scrape_interval"], "500ms");
        assert_eq!(config["scrape_configs"][1]["job_name"], "weir-worker");
        assert_eq!(config["scrape_configs"][1]["file_sd_configs"][0]["files"][0], "weir-worker.json");
    }

    /// A server that answers each request with the next of these bodies.
    async fn stub(bodies: &'static [&'static str]) -> Client {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            for body in bodies {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4_096];
                let _ = stream.read(&mut request).await.unwrap();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all((head + body).as_bytes()).await.unwrap();
            }
        });
        Client::of_port(port)
    }

    #[tokio::test]
    async fn a_query_has_one_value_or_none_and_several_are_an_error() {
        let client = stub(&[
            r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1.5,"2.25"]}]}}"#,
            r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#,
            r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1.5,"NaN"]}]}}"#,
            r#"{"status":"success","data":{"result":[{"value":[1,"1"]},{"value":[1,"2"]}]}}"#,
            r#"{"status":"error","errorType":"bad_data","error":"no such function"}"#,
        ])
        .await;
        assert_eq!(client.value("busy").await.unwrap(), Some(2.25));
        assert_eq!(client.value("nothing").await.unwrap(), None);
        assert_eq!(client.value("0 / 0").await.unwrap(), None);
        assert!(client.value("many").await.unwrap_err().to_string().contains("2 results"));
        assert!(client.value("odd()").await.unwrap_err().to_string().contains("no such function"));
        assert!(client.value("gone").await.is_err());
    }

    #[tokio::test]
    async fn a_series_leaves_out_samples_that_are_not_numbers() {
        let client =
            stub(&[r#"{"status":"success","data":{"result":[{"values":[[1,"5"],[2,"NaN"],[3.5,"7"]]}]}}"#]).await;
        let (from, until) = (Timestamp::from_secs(1), Timestamp::from_secs(4));
        let series = client.series("lag", from, until, Duration::from_secs(1)).await.unwrap();
        assert_eq!(series, [(Timestamp::from_secs(1), 5.0), (Timestamp::from_millis(3_500), 7.0)]);
    }

    #[test]
    fn queries_are_percent_encoded() {
        assert_eq!(encoded("sum(a{b=\"c\"}) + 1"), "sum%28a%7Bb%3D%22c%22%7D%29%20%2B%201");
    }
}
