//! A Deployment of workers. Each pod is a `weir worker` with a small capacity. It starts some time after it was asked
//! for and is stopped by SIGTERM. A pod may finish its sends in flight; any other exit is a breach.

use std::{collections::BTreeMap, path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use parking_lot::Mutex;
use tokio::{
    process::{Child, Command},
    sync::oneshot,
    task::JoinSet,
};
use weir_test_support::HeldPort;

use super::prometheus::{Client, ScrapeTarget};
use crate::engine;

/// The name of the workers' job in the manifests.
pub(crate) const JOB: &str = "weir-worker";
/// A little more than the grace period after SIGTERM in the manifests.
const ENDS_WITHIN: Duration = Duration::from_secs(100);

/// The template of the pods.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub(crate) weir: PathBuf,
    pub(crate) folder: PathBuf,
    /// Environment variables: the servers and the capacity.
    pub(crate) settings: Vec<(&'static str, String)>,
    /// From the decision to the start of the process. It stands for scheduling and pulling the image.
    pub(crate) start_delay: Duration,
    pub(crate) log: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Asked for, without a process yet.
    Pending,
    /// The process is not ready yet.
    Starting,
    Ready,
    /// After SIGTERM. It is no longer counted as a replica, but scraped as long as it lives.
    Ending,
}

/// The phases of all pods.
struct PodStates {
    phases: Mutex<BTreeMap<u32, (Phase, u16)>>,
    prometheus: Client,
}

impl PodStates {
    fn set(&self, number: u32, port: u16, phase: Option<Phase>) -> anyhow::Result<()> {
        let mut phases = self.phases.lock();
        match phase {
            Some(phase) => phases.insert(number, (phase, port)),
            None => phases.remove(&number),
        };
        let has_process = phases.iter().filter(|(_, (phase, _))| *phase != Phase::Pending);
        let scraped =
            has_process.map(|(number, (_, port))| ScrapeTarget { pod: format!("{JOB}-{number}"), port: *port });
        self.prometheus.set_targets(JOB, &scraped.collect::<Vec<_>>())
    }

    fn phase(&self, number: u32) -> Option<Phase> {
        self.phases.lock().get(&number).map(|(phase, _)| *phase)
    }

    fn count(&self, is: fn(Phase) -> bool) -> u32 {
        let phases = self.phases.lock();
        phases.values().filter(|(phase, _)| is(*phase)).count() as u32
    }
}

pub(crate) struct Deployment {
    template: Arc<Template>,
    pods: Arc<PodStates>,
    /// The pods that should run, by number. Dropping a sender stops its pod.
    wanted: BTreeMap<u32, oneshot::Sender<()>>,
    tasks: JoinSet<anyhow::Result<()>>,
    next: u32,
}

impl Deployment {
    pub(crate) fn new(template: Template, prometheus: Client) -> Self {
        let pods = Arc::new(PodStates { phases: Mutex::default(), prometheus });
        Self { template: Arc::new(template), pods, wanted: BTreeMap::new(), tasks: JoinSet::new(), next: 0 }
    }

    pub(crate) fn wanted(&self) -> u32 {
        self.wanted.len() as u32
    }

    pub(crate) fn ready(&self) -> u32 {
        self.pods.count(|phase| phase == Phase::Ready)
    }

    /// Sets the number of replicas. Like a ReplicaSet, it first stops pods that are not ready, then the youngest.
    pub(crate) fn scale(&mut self, replicas: u32) -> anyhow::Result<()> {
        while self.wanted() < replicas {
            self.add()?;
        }
        while self.wanted() > replicas {
            let rank = |number: &u32| (self.pods.phase(*number) != Some(Phase::Ready), *number);
            let Some(last) = self.wanted.keys().copied().max_by_key(rank) else { break };
            self.wanted.remove(&last);
        }
        Ok(())
    }

    fn add(&mut self) -> anyhow::Result<()> {
        let number = self.next;
        self.next += 1;
        let port = HeldPort::hold()?;
        self.pods.set(number, port.number(), Some(Phase::Pending))?;
        let (stay, end) = oneshot::channel();
        self.wanted.insert(number, stay);
        let pod = Pod { number, port, template: Arc::clone(&self.template), pods: Arc::clone(&self.pods) };
        self.tasks.spawn(pod.live(end));
        Ok(())
    }

    /// The failures of the pods that have ended so far.
    pub(crate) fn failures(&mut self) -> Vec<String> {
        let mut failures = Vec::new();
        while let Some(ended) = self.tasks.try_join_next() {
            failures.extend(failure(ended));
        }
        failures
    }

    /// Stops all pods and returns their failures.
    pub(crate) async fn end(mut self) -> Vec<String> {
        self.wanted.clear();
        let mut failures = Vec::new();
        while let Some(ended) = self.tasks.join_next().await {
            failures.extend(failure(ended));
        }
        failures
    }
}

fn failure(ended: Result<anyhow::Result<()>, tokio::task::JoinError>) -> Option<String> {
    match ended {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(error) => Some(error.to_string()),
    }
}

struct Pod {
    number: u32,
    port: HeldPort,
    template: Arc<Template>,
    pods: Arc<PodStates>,
}

impl Pod {
    /// The life of a pod, until it is stopped.
    async fn live(self, mut end: oneshot::Receiver<()>) -> anyhow::Result<()> {
        let outcome = self.until_ended(&mut end).await.with_context(|| format!("{JOB}-{}", self.number));
        self.pods.set(self.number, self.port.number(), None)?;
        outcome
    }

    async fn until_ended(&self, end: &mut oneshot::Receiver<()>) -> anyhow::Result<()> {
        tokio::select! {
            () = tokio::time::sleep(self.template.start_delay) => {}
            _ = &mut *end => return Ok(()),
        }
        let mut process = self.spawn()?;
        self.set(Phase::Starting)?;
        tokio::select! {
            listens = engine::listening(&mut process) => { listens?; }
            _ = &mut *end => return self.terminate(process).await,
        }
        self.set(Phase::Ready)?;
        tokio::select! {
            status = process.wait() => anyhow::bail!("the worker exited by itself with {}", status?),
            _ = &mut *end => self.terminate(process).await,
        }
    }

    fn set(&self, phase: Phase) -> anyhow::Result<()> {
        self.pods.set(self.number, self.port.number(), Some(phase))
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let Template { weir, folder, settings, log, .. } = &*self.template;
        let log =
            std::fs::OpenOptions::new().create(true).append(true).open(log).context("cannot write the worker's log")?;
        let mut command = engine::command(weir, "worker", folder, settings);
        command.env("WEIR_LISTEN", format!("127.0.0.1:{}", self.port.number())).stderr(Stdio::from(log));
        command.spawn().context("cannot start the worker")
    }

    /// Sends SIGTERM and waits for the exit, which must be successful.
    async fn terminate(&self, mut process: Child) -> anyhow::Result<()> {
        self.set(Phase::Ending)?;
        let pid = process.id().context("the worker had exited before SIGTERM")?.to_string();
        Command::new("kill").args(["-TERM", &pid]).status().await?;
        let status = tokio::time::timeout(ENDS_WITHIN, process.wait())
            .await
            .context("the worker did not exit in time after SIGTERM")??;
        ensure!(status.success(), "the worker exited with {status} after SIGTERM");
        Ok(())
    }
}
