//! A running process of Weir, killed when dropped.

use std::{
    net::SocketAddr,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use weir_test_support::{Listening, weir_command, weir_listens};

use super::eventually;

/// A request without an answer for this long fails.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The server in its own process.
pub(crate) struct App {
    child: Child,
    pub(crate) url: String,
    /// The URL of its metrics, when these have their own listener.
    pub(crate) metrics_url: Option<String>,
    pub(crate) http: reqwest::Client,
}

/// A client without a proxy. Each test is a process, and the first client of a process needs a provider for TLS.
pub(crate) fn http_client() -> reqwest::ClientBuilder {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy()
}

impl App {
    /// Serves on a free port from a database in `folder`; loopback receivers are allowed.
    pub(crate) async fn start(folder: &Path) -> Self {
        Self::start_with(folder, &[]).await
    }

    pub(crate) async fn start_with(folder: &Path, environment: &[(&str, &str)]) -> Self {
        let mut command = Self::command(folder);
        command.arg("serve").envs(environment.iter().copied());
        Self::launch(command).await.unwrap_or_else(|status| panic!("the server exited before it listened: {status}"))
    }

    /// Runs the binary until it listens. Returns the exit status if it exits before.
    pub(crate) async fn launch(mut command: Command) -> Result<Self, ExitStatus> {
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("the binary starts");
        let Some(Listening { url, metrics_url }) = weir_listens(&mut child).await.expect("the server listens") else {
            return Err(child.wait().await.expect("a status"));
        };
        let http = http_client().timeout(TIMEOUT).build().expect("a client");
        Ok(Self { child, url, metrics_url, http })
    }

    /// The binary, with the settings of the tests.
    pub(crate) fn command(folder: &Path) -> Command {
        let mut command = weir_command(Path::new(env!("CARGO_BIN_EXE_weir")), folder);
        command.env("WEIR_DATABASE_URL", format!("sqlite://{}", folder.join("weir.db").display()));
        command
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.url.trim_start_matches("http://").parse().expect("an address")
    }

    /// The most memory that the process has used so far, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let pid = self.child.id().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("Linux");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1_024
    }

    /// Sends SIGKILL and waits for the exit.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("killed");
    }

    /// Sends SIGTERM and returns the exit status.
    pub(crate) async fn terminate(mut self) -> ExitStatus {
        self.signal("TERM").await;
        tokio::time::timeout(Duration::from_secs(60), self.child.wait()).await.expect("it ends").expect("a status")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Sends a signal by name.
    pub(crate) async fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &pid]).status().await.expect("kill runs");
        assert!(status.success());
    }

    /// Takes the processor from the process for 8 ms of every 24 ms, as long as the slices of a busy machine, for about
    /// this many seconds. It ends when it is dropped, perhaps with the process suspended.
    pub(crate) fn stutter(&self, seconds: u32) -> Child {
        let pid = self.child.id().expect("it runs");
        let slices = seconds * 1_000 / 24;
        let script = format!(
            "for slice in $(seq {slices}); do kill -STOP {pid}; sleep 0.008; kill -CONT {pid}; sleep 0.016; done"
        );
        Command::new("sh").args(["-c", &script]).kill_on_drop(true).spawn().expect("a shell")
    }

    /// Sends a request with a JSON body. Returns the status and the JSON answer.
    pub(crate) async fn request(&self, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.expect("an answer");
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or(Value::Null))
    }

    /// The status of a GET, which may be an error.
    pub(crate) async fn status(&self, path: &str) -> u16 {
        self.request(Method::GET, path, None).await.0
    }

    /// The sum of a metric over its labels; 0 if there is no series.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.http.get(format!("{}/metrics", self.url)).send().await.expect("an answer").text().await;
        let text = text.expect("metrics are text");
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with(['{', ' ']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        values.sum()
    }

    /// Like [`Self::get`]; `None` while the store is unreachable.
    pub(crate) async fn try_get(&self, path: &str) -> Option<Value> {
        let (status, body) = self.request(Method::GET, path, None).await;
        assert!(matches!(status, 200 | 503), "GET {path}: {body}");
        (status == 200).then_some(body)
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.request(Method::GET, path, None).await;
        assert_eq!(status, 200, "GET {path}: {body}");
        body
    }

    /// Creates a destination and returns its id.
    pub(crate) async fn destination(&self, settings: Value) -> String {
        let (status, body) = self.request(Method::POST, "/v1/destinations", Some(settings)).await;
        assert_eq!(status, 201, "{body}");
        body["id"].as_str().expect("an id").to_owned()
    }

    pub(crate) async fn patch(&self, destination: &str, edit: Value) {
        let (status, body) = self.request(Method::PATCH, &format!("/v1/destinations/{destination}"), Some(edit)).await;
        assert_eq!(status, 200, "{body}");
    }

    /// Posts one event of a type and returns its id.
    pub(crate) async fn event(&self, event_type: &str) -> String {
        let body = json!({"type": event_type, "data": {"n": 1}});
        let (status, body) = self.request(Method::POST, "/v1/events", Some(body)).await;
        assert_eq!(status, 202, "{body}");
        body["id"].as_str().expect("an id").to_owned()
    }

    /// Posts many events of a type, in batches.
    pub(crate) async fn events(&self, event_type: &str, count: usize) {
        let mut left = count;
        while left > 0 {
            let size = left.min(1000);
            let events: Vec<_> = (0..size).map(|n| json!({"type": event_type, "data": {"n": n}})).collect();
            let (status, body) =
                self.request(Method::POST, "/v1/events/batch", Some(json!({ "events": events }))).await;
            assert_eq!(status, 202, "{body}");
            left -= size;
        }
    }

    /// Waits until a destination has no delivery waiting or in flight.
    pub(crate) async fn drained(&self, destination: &str, within: Duration) {
        eventually("the backlog is drained", within, async || {
            let backlog = self.get(&format!("/v1/destinations/{destination}/backlog")).await;
            backlog["pending"] == 0 && backlog["retrying"] == 0 && backlog["delivering"] == 0
        })
        .await;
    }

    pub(crate) async fn audit(&self, destination: &str) -> Value {
        self.get(&format!("/v1/destinations/{destination}/audit")).await
    }

    /// Asserts that the recorded send starts keep every limit.
    pub(crate) async fn assert_audit_clean(&self, destination: &str) {
        let audit = self.audit(destination).await;
        let rows = ["rate_limits", "min_intervals"].map(|kind| audit[kind].as_array().expect("limits"));
        for limit in rows.into_iter().flatten() {
            assert_eq!(limit["violations"], 0, "{audit}");
        }
    }
}
