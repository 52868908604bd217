//! A real Prometheus scrapes every role under load: every rule can be evaluated, every query of the dashboard has an
//! answer, and no series has a destination as a label.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::process::{Child, Command};
use weir_deploy_checks::queries::{self, Query};
use weir_test_support::HeldPort;

use crate::support::{Answer, App, Fleet, Receiver, eventually, servers::provided};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The queries of the dashboard look back so far: several scrapes.
const RATE_INTERVAL: &str = "15s";

/// A Prometheus that scrapes the processes of a fleet twice a second.
struct Prometheus {
    _process: Child,
    _port: HeldPort,
    url: String,
    http: reqwest::Client,
}

impl Prometheus {
    async fn start(folder: &Path, targets: &[(&str, &App)]) -> Self {
        let rules = std::fs::read_to_string(deploy().join("prometheus/rules.yaml")).unwrap();
        std::fs::write(folder.join("rules.yaml"), rules.replace("interval: 30s", "interval: 1s")).unwrap();
        let job = |(job, app): &(&str, &App)| {
            let metrics = app.metrics_url.clone().unwrap();
            let target = metrics.trim_start_matches("http://").trim_end_matches("/metrics");
            json!({"targets": [target], "labels": {"job": job, "namespace": "weir"}})
        };
        let config = json!({
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "weir", "static_configs": targets.iter().map(job).collect::<Vec<_>>()}],
        });
        // JSON is YAML.
        std::fs::write(folder.join("prometheus.yml"), config.to_string()).unwrap();
        let port = HeldPort::hold().unwrap();
        let address = format!("127.0.0.1:{}", port.number());
        let mut command = Command::new(provided("WEIR_TEST_PROMETHEUS"));
        command.current_dir(folder).args([
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            "--log.level=warn",
        ]);
        command.arg(format!("--web.listen-address={address}")).stdout(Stdio::null()).kill_on_drop(true);
        let prometheus = Self {
            _process: command.spawn().unwrap(),
            _port: port,
            url: format!("http://{address}"),
            http: crate::support::http_client().build().unwrap(),
        };
        eventually("Prometheus is ready", TIMEOUT, async || {
            let ready = prometheus.http.get(format!("{}/-/ready", prometheus.url)).send().await;
            ready.is_ok_and(|answer| answer.status().is_success())
        })
        .await;
        prometheus
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let url = reqwest::Url::parse_with_params(&format!("{}{path}", self.url), query).unwrap();
        let answer: Value = self.http.get(url).send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["status"], "success", "{query:?}: {answer}");
        answer["data"].clone()
    }

    /// The values of an instant query.
    async fn values(&self, query: &str) -> Vec<f64> {
        let answer = self.get("/api/v1/query", &[("query", query)]).await;
        let series = answer["result"].as_array().unwrap();
        series.iter().map(|of| of["value"][1].as_str().unwrap().parse().unwrap()).collect()
    }

    /// Whether a query has a result of finite numbers only.
    async fn is_answered(&self, query: &str) -> bool {
        let values = self.values(query).await;
        !values.is_empty() && values.iter().all(|value| value.is_finite())
    }
}

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// Weir's own metrics in a query.
fn own_metrics(query: &str) -> impl Iterator<Item = String> {
    queries::metrics_in(query).into_iter().filter(|name| name.starts_with("weir_"))
}

/// Creates destinations whose deliveries change every metric.
async fn create_destinations(api: &App, receiver: &Receiver) {
    receiver.script("/bad", [Answer::status(500)]);
    receiver.script("/refuses", [Answer::status(404)]);
    receiver.script("/slow", [Answer::status(200).after(Duration::from_millis(100))]);
    for (path, limits) in [
        ("/plain", json!([])),
        ("/limited", json!([{"limit": 20, "period": "second"}])),
        ("/bad", json!([])),
        ("/refuses", json!([])),
        ("/slow", json!([])),
    ] {
        let settings = json!({
            "url": receiver.url(path), "event_types": ["load"], "rate_limits": limits, "breaker": {"consecutive": 5},
        });
        api.destination(settings).await;
    }
}

async fn keep_posting(api: &App) {
    loop {
        api.events("load", 20).await;
        api.event("load").await;
        api.get("/v1/destinations").await;
        assert_eq!(api.status("/v1/destinations/none").await / 100, 4);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn every_query_is_answered(prometheus: &Prometheus, without: &[&str]) {
    let rules = prometheus.get("/api/v1/rules", &[]).await;
    let rules: Vec<&Value> =
        rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert!(rules.len() > 10, "{rules:?}");
    for rule in &rules {
        eventually(&format!("{} is evaluated", rule["name"]), TIMEOUT, async || {
            let rules = prometheus.get("/api/v1/rules", &[]).await.to_string();
            assert!(!rules.contains("\"health\":\"err\""), "{rules}");
            !rules.contains("\"health\":\"unknown\"")
        })
        .await;
    }
    let is_left_out = |query: &str| without.iter().any(|name| query.contains(name));
    for rule in rules {
        let (query, is_recorded) = (rule["query"].as_str().unwrap(), rule["type"] == "recording");
        if is_recorded {
            let what = format!("an answer to {}", rule["name"]);
            eventually(&what, TIMEOUT, async || prometheus.is_answered(query).await).await;
        }
        // The result of an alert is empty while there is no fault, but its metrics must exist.
        for metric in own_metrics(query).filter(|metric| !is_left_out(metric)) {
            eventually(&metric, TIMEOUT, async || prometheus.is_answered(&metric).await).await;
        }
    }
    for Query { name, expr } in queries::of_dashboard(RATE_INTERVAL).unwrap() {
        if !is_left_out(&expr) {
            eventually(&name, TIMEOUT, async || prometheus.is_answered(&expr).await).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_and_every_query_of_the_dashboard_has_an_answer_from_roles_under_load() {
    let (fleet, receiver, folder) = (Fleet::new().await, Receiver::start().await, tempfile::tempdir().unwrap());
    let metrics = [("WEIR_METRICS_LISTEN", "127.0.0.1:0")];
    let api = fleet.launch_with("api", &metrics).await;
    let scheduler = fleet.launch_with("scheduler", &metrics).await;
    let workers = [fleet.launch_with("worker", &metrics).await, fleet.launch_with("worker", &metrics).await];
    let prometheus = Prometheus::start(
        folder.path(),
        &[
            ("weir-api", &api),
            ("weir-scheduler", &scheduler),
            ("weir-worker", &workers[0]),
            ("weir-worker", &workers[1]),
        ],
    )
    .await;
    create_destinations(&api, &receiver).await;
    tokio::select! {
        () = every_query_is_answered(&prometheus, &["weir_sqlite_wal_bytes", "weir_disk_", "weir_replica_"]) => {}
        () = keep_posting(&api) => {}
    }
    let names = prometheus.get("/api/v1/label/__name__/values", &[]).await;
    assert!(names.as_array().unwrap().len() > 50, "{names}");
    let series = prometheus.get("/api/v1/series", &[("match[]", "{__name__=~\"weir_.*\"}")]).await;
    assert!(!series.to_string().contains("dst_"), "no series has a destination as a label");
    let most = prometheus.values("max(count by (instance) ({__name__=~\"weir_.*\"}))").await;
    assert!(most[0] < 1_500.0, "{most:?} series of one process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_has_an_answer_from_one_process_under_load() {
    let (receiver, folder) = (Receiver::start().await, tempfile::tempdir().unwrap());
    let app = App::start_with(folder.path(), &[("WEIR_METRICS_LISTEN", "127.0.0.1:0")]).await;
    let prometheus = Prometheus::start(folder.path(), &[("weir", &app)]).await;
    create_destinations(&app, &receiver).await;
    tokio::select! {
        () = every_query_is_answered(&prometheus, &["weir_postgres_", "weir_clock_offset_seconds", "weir_replica_"]) => {}
        () = keep_posting(&app) => {}
    }
}
