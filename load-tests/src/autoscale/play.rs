//! One run: fixed servers, schedulers and API, a changing number of workers, a Prometheus that scrapes them, the
//! controller, and the load, which is played and judged like any other scenario.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use serde::Serialize;
use tokio::sync::{Mutex, watch};
use weir_core::Timestamp;

use super::{
    controller::{Controller, Tick, first_sync_delay},
    hpa::Target,
    manifest::Scaling,
    plan::{Outage, Plan},
    pods::{self, Deployment, Template},
    prometheus::{Prometheus, ScrapeTarget},
    promise::Verdict,
    trace::{Server, Trace, lateness, rates},
};
use crate::{
    clock::{Timeline, now},
    judge::{self, Judgement},
    recording::Recording,
    run::{self, Target as Weir, api::Api, fleet::Fleet},
    scenario::{SetUp, seconds},
};

/// The time from the decision to add a worker until the worker is ready.
const START_DELAY: Duration = Duration::from_secs(5);
/// The part of this delay that the process itself needs. The short form does not shorten it.
const OWN_START: Duration = Duration::from_millis(500);
/// The scrape interval of Prometheus. A test compares it with the PodMonitor in `k8s/`.
const SCRAPE_EVERY: Duration = Duration::from_secs(10);
const READY_WITHIN: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(50);

/// The 99th percentile of the start lag.
const LAG: &str =
    "1000 * histogram_quantile(0.99, sum by (le) (rate(weir_start_lag_seconds_bucket{job=\"weir-worker\"}[1m])))";
const QUEUED: &str = "max(weir_delivery_queue_depth{job=\"weir-scheduler\"})";
const STORED: &str = "max(weir_backlog_deliveries{job=\"weir-scheduler\"})";
/// The metric in the manifest's query for the busy ratio of workers.
const BUSY: &str = "weir_worker_busy_ratio";

/// The settings of a run.
pub(crate) struct Settings<'a> {
    pub(crate) weir: &'a Path,
    /// The manifest's configuration in real time.
    pub(crate) scaling: &'a Scaling,
    /// How many times faster than real time the run is.
    pub(crate) times: f64,
    /// The folder for the logs of the processes.
    pub(crate) folder: &'a Path,
}

/// The result of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Played {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) verdicts: Vec<Verdict>,
    /// Loss, duplicates, limits, order, and processes that exited by themselves.
    pub(crate) breaches: Vec<String>,
    pub(crate) trace: Trace,
    pub(crate) ticks: Vec<Tick>,
    pub(crate) judgement: Judgement,
}

impl Played {
    pub(crate) fn is_passed(&self) -> bool {
        self.breaches.is_empty() && self.verdicts.iter().all(|verdict| verdict.is_kept)
    }
}

/// Plays a plan, which is in real time.
pub(crate) async fn play(plan: &Plan, settings: &Settings<'_>) -> anyhow::Result<Played> {
    let times = settings.times;
    // In the short form, divide the times of the plan and of the configuration.
    let plan = plan.clone().sped_up(times);
    let scaling = plan.scaling(settings.scaling).sped_up(times);

    // Start the servers, the API and the schedulers.
    let log = run::log_file(settings.folder, &plan.name)?;
    let mut fleet = Fleet::start(SetUp::Scaled, settings.weir, plan.load.fleet, log).await?;

    // Start Prometheus. The targets of the API and the schedulers do not change; the Deployment sets those of the
    // workers.
    let mut prometheus =
        Prometheus::start(&["weir-api", "weir-scheduler", pods::JOB], SCRAPE_EVERY.div_f64(times), times).await?;
    let client = prometheus.client();
    for role in ["api", "scheduler"] {
        let pods = fleet.ports(role).enumerate();
        let pods: Vec<_> =
            pods.map(|(number, port)| ScrapeTarget { pod: format!("weir-{role}-{number}"), port }).collect();
        client.set_targets(&format!("weir-{role}"), &pods)?;
    }

    // Start the minimum of workers. The first sync needs samples of all of them.
    let mut deployment = Deployment::new(template(&plan, &fleet, settings)?, client.clone());
    deployment.scale(scaling.bounds.min)?;
    all_ready(&mut deployment).await?;
    tokio::time::sleep(first_sync_delay(prometheus.scrape_every())).await;

    // Run the controller, the load and the outages at the same time.
    let timeline = Timeline::begin();
    let deployment = Arc::new(Mutex::new(deployment));
    let (stop, stopped) = watch::channel(false);
    let controller = Controller {
        scaling: scaling.clone(),
        prometheus: client.clone(),
        deployment: Arc::clone(&deployment),
        timeline,
    };
    let controlling = tokio::spawn(controller.run(stopped.clone()));
    let api = Api::new(fleet.address(), None);
    let load = async {
        let recording = run::record(&plan.load, Weir::Running(api), "127.0.0.1").await;
        // The end of the load, even by an error, ends the controller and the outages.
        stop.send_replace(true);
        recording
    };
    let causing_outages = cause_outages(&plan.outages, &mut fleet, &mut prometheus, timeline, stopped);
    let (recording, outages) = tokio::join!(load, causing_outages);
    let (recording, outages) = (recording?, outages?);
    let ticks = controlling.await??;

    // Stop every process and judge the run.
    let deployment = Arc::into_inner(deployment).context("the controller still holds the Deployment")?.into_inner();
    let mut failures = deployment.end().await;
    // A process that exited by itself is a failure of the run.
    failures.extend(fleet.ended()?.into_iter().map(|role| format!("{role} exited by itself")));
    fleet.stop().await?;
    // Prometheus still runs, so its series can be read after the run.
    let trace = trace(&plan, &scaling, &recording, &ticks, &outages);
    let trace = with_series(trace, &prometheus, &recording, times).await?;
    Ok(judged(&plan, recording, trace, ticks, failures))
}

fn template(plan: &Plan, fleet: &Fleet, settings: &Settings<'_>) -> anyhow::Result<Template> {
    let mut environment = fleet.backing().to_vec();
    environment.push(("WEIR_WORKER_CAPACITY", plan.capacity.to_string()));
    Ok(Template {
        weir: settings.weir.to_owned(),
        folder: settings.folder.to_owned(),
        settings: environment,
        start_delay: START_DELAY.div_f64(settings.times).saturating_sub(OWN_START),
        log: settings.folder.join(format!("{}-workers.log", plan.name)),
    })
}

async fn all_ready(deployment: &mut Deployment) -> anyhow::Result<()> {
    let deadline = now() + READY_WITHIN;
    while deployment.ready() < deployment.wanted() {
        if let Some(failure) = deployment.failures().pop() {
            anyhow::bail!("{failure}");
        }
        ensure!(now() < deadline, "the first workers were not ready in time");
        tokio::time::sleep(POLL_EVERY).await;
    }
    Ok(())
}

/// Kills servers and restarts them. Returns the beginning and end of each outage.
async fn cause_outages(
    outages: &[Outage],
    fleet: &mut Fleet,
    prometheus: &mut Prometheus,
    timeline: Timeline,
    mut stopped: watch::Receiver<bool>,
) -> anyhow::Result<Vec<(Server, Timestamp, Timestamp)>> {
    let mut done = Vec::new();
    for outage in outages {
        let begins = timeline.began() + seconds(outage.at_s);
        tokio::select! {
            () = tokio::time::sleep(begins.saturating_duration_since(now())) => {}
            // The load has ended or could not be played.
            _ = stopped.wait_for(|stopped| *stopped) => break,
        }
        let from = timeline.now();
        match outage.of {
            Server::Prometheus => prometheus.kill().await?,
            Server::Redis => fleet.redis()?.kill().await?,
        }
        // The load continues while the server is down.
        tokio::time::sleep(seconds(outage.for_s)).await;
        match outage.of {
            Server::Prometheus => prometheus.start_again().await?,
            Server::Redis => fleet.redis()?.start_again().await?,
        }
        done.push((outage.of, from, timeline.now()));
    }
    Ok(done)
}

/// The trace without the series of Prometheus.
fn trace(
    plan: &Plan,
    scaling: &Scaling,
    recording: &Recording,
    ticks: &[Tick],
    outages: &[(Server, Timestamp, Timestamp)],
) -> Trace {
    // The recording begins after the destinations are created; earlier syncs do not belong to it.
    let seconds = |at: Timestamp| at.since(recording.began).as_secs_f64();
    let during = || ticks.iter().filter(|tick| tick.at >= recording.began);
    // The promises compute the needed workers with the target of the busy ratio.
    let busy = scaling.metrics.iter().find(|metric| metric.query.contains(BUSY)).map(|metric| metric.target);
    let sync_s = scaling.sync.as_secs_f64();
    // One value for each sync.
    let [offered, started] = rates(recording, sync_s);
    Trace {
        min: scaling.bounds.min,
        max: scaling.bounds.max,
        capacity: plan.capacity,
        busy_target: match busy {
            Some(Target::AverageValue(target)) => target as f64 / 1_000.0,
            _ => 1.0,
        },
        sync_s,
        down: scaling.bounds.down.clone(),
        replicas: during().map(|tick| (seconds(tick.at), tick.replicas)).collect(),
        ready: during().map(|tick| (seconds(tick.at), tick.ready)).collect(),
        offered,
        started,
        late_ms: lateness(recording, sync_s),
        outages: outages.iter().map(|(server, from, until)| (*server, seconds(*from), seconds(*until))).collect(),
        ..Trace::default()
    }
}

async fn with_series(
    trace: Trace,
    prometheus: &Prometheus,
    recording: &Recording,
    times: f64,
) -> anyhow::Result<Trace> {
    let (client, step) = (prometheus.client(), prometheus.scrape_every());
    let series = async |query: &str| {
        let query = super::promql::sped_up(query, times);
        let series = client.series(&query, recording.began, recording.ended, step).await?;
        let seconds = |at: Timestamp| at.since(recording.began).as_secs_f64();
        anyhow::Ok(series.into_iter().map(|(at, value)| (seconds(at), value)).collect())
    };
    let [lag_ms, queued, stored] = [series(LAG).await?, series(QUEUED).await?, series(STORED).await?];
    Ok(Trace { lag_ms, queued, stored, step_s: step.as_secs_f64(), ..trace })
}

fn judged(plan: &Plan, recording: Recording, trace: Trace, ticks: Vec<Tick>, failures: Vec<String>) -> Played {
    let judgement = judge::judge(&recording);
    // In a negative control one promise must be broken: it passes if it is broken.
    let verdict = |promise: &super::promise::Promise| {
        let verdict = promise.judge(&trace);
        match &plan.must_break {
            Some(kind) if promise.kind() == kind => Verdict {
                promise: format!("must be broken: {}", verdict.promise),
                is_kept: !verdict.is_kept,
                ..verdict
            },
            _ => verdict,
        }
    };
    Played {
        name: plan.name.clone(),
        about: plan.load.about.clone(),
        verdicts: plan.promises.iter().map(verdict).collect(),
        // Processes that exited by themselves are breaches too.
        breaches: judgement.breaches.iter().cloned().chain(failures).collect(),
        trace,
        ticks,
        judgement,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_scrapes_as_often_as_the_pod_monitor_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../k8s/components/prometheus-operator/podmonitor.yaml");
        let monitor: serde_json::Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let endpoints = monitor["spec"]["podMetricsEndpoints"].as_array().unwrap();
        for endpoint in endpoints {
            assert_eq!(endpoint["interval"], format!("{}s", SCRAPE_EVERY.as_secs()));
        }
    }
}
