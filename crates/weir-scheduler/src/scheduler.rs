//! Runs due jobs, a batch at a time.
//!
//! Any number of schedulers may run side by side: a lease carries an epoch, and a publish with a stale one changes nothing.
//! Whatever was claimed in the store and not published goes back unsent.

use std::{sync::Arc, time::Duration};

use metrics::{counter, histogram};
use weir_core::{
    Clock, Timestamp,
    plan::{self, NextRun},
};
use weir_queue::{DueJobs, Publication, Published, QueueError, SharedQueue};
use weir_store::{Claims, SharedStore, StoreError};

use crate::{
    Backoff,
    replay_shares::ReplayShares,
    returns::{Failure, Returner},
    run::Run,
};

/// Jobs claimed in one call.
const BATCH: usize = 256;
/// At shutdown, how long a claim that may be under way is waited for.
const LAST_CLAIM: Duration = Duration::from_millis(100);
/// How long a run may take before its jobs are claimed by another.
const LEASE: Duration = Duration::from_secs(4);
/// When to try a destination again whose run failed.
pub(crate) const RETRY_RUN: Duration = Duration::from_millis(250);

/// Executes the rate-limiter jobs.
pub struct Scheduler {
    pub(crate) store: SharedStore,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    returner: Returner,
    pub(crate) replay_shares: Arc<ReplayShares>,
}

impl Scheduler {
    pub fn new(store: SharedStore, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        let returner = Returner::new(store.clone(), queue.clone(), clock.clone());
        Self { store, queue, clock, returner, replay_shares: Arc::default() }
    }

    /// Where it learns of the lanes of replays.
    pub(crate) fn replay_shares(&self) -> Arc<ReplayShares> {
        self.replay_shares.clone()
    }

    /// Runs jobs until `shutdown` resolves. A batch that has begun is finished. Several may run side by side.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        let mut backoff = Backoff::default();
        loop {
            let claiming = self.queue.claim_due(BATCH, LEASE);
            tokio::pin!(claiming);
            let due = tokio::select! {
                biased;
                () = &mut shutdown => {
                    // Dropped in the middle of a call, it would take jobs along that nobody runs until their leases end.
                    if let Ok(Ok(jobs)) = tokio::time::timeout(LAST_CLAIM, claiming).await {
                        self.hand_back(jobs).await;
                    }
                    return;
                }
                due = &mut claiming => due,
            };
            let ran = match due {
                Ok(jobs) => self.run_batch(jobs).await,
                Err(error) => Err(error.into()),
            };
            match ran {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    let delay = backoff.fail();
                    tracing::warn!(%error, retry_in_ms = delay.as_millis(), "a scheduler run failed");
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }

    /// Leaves jobs to whoever runs them next.
    async fn hand_back(&self, jobs: DueJobs) {
        let now = self.clock.now();
        let handed_back = async { Ok::<_, Failure>(self.end_runs(self.decide(jobs, now).await?, now).await?) };
        if let Err(error) = handed_back.await {
            tracing::warn!(%error, "could not hand jobs back; their leases end by themselves");
        }
    }

    async fn run_batch(&self, jobs: DueJobs) -> Result<(), Failure> {
        let now = self.clock.now();
        counter!("weir_scheduler_runs_total").increment(jobs.leases.len() as u64);
        if let Some(earliest) = jobs.leases.iter().map(|lease| lease.due).filter(|due| *due > Timestamp::MIN).min() {
            histogram!("weir_scheduler_lateness_seconds").record(now.since(earliest).as_secs_f64());
        }
        let runs = self.decide(jobs, now).await?;
        let (empty, runs): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run.allowance.allow == 0);
        let end = |run: Run| {
            let next = plan::next_run(run.allowance, false, None);
            run.into_publication(next)
        };
        self.publish(empty.into_iter().map(end).collect()).await?;
        if runs.is_empty() {
            return Ok(());
        }
        let claims = match self.claim(&runs, now).await {
            Ok(claims) => claims,
            Err(error) => {
                // Nothing may be published on a claim whose outcome is unknown; one that was made expires by itself.
                self.end_runs(runs, now + RETRY_RUN).await?;
                return Err(error.into());
            }
        };
        let (laned, plain): (Vec<_>, Vec<_>) = runs.into_iter().zip(claims).partition(|(run, _)| run.split.is_some());
        self.publish_claimed(plain).await?;
        if laned.is_empty() { Ok(()) } else { self.publish_with_replays(laned, now).await }
    }

    /// Publishes what was claimed, and ends the runs.
    async fn publish_claimed(&self, runs: Vec<(Run, Claims)>) -> Result<(), Failure> {
        let end = |(mut run, Claims { deliveries, next_due }): (Run, Claims)| {
            let is_short = deliveries.len() < run.wanted() as usize;
            run.deliveries = deliveries;
            let next = plan::next_run(run.allowance, is_short, next_due);
            run.into_publication(next)
        };
        self.publish(runs.into_iter().map(end).collect()).await
    }

    /// Reads the destinations as they are now, and decides how many attempts each may publish.
    async fn decide(&self, jobs: DueJobs, now: Timestamp) -> Result<Vec<Run>, Failure> {
        let ids: Vec<_> = jobs.leases.iter().map(|lease| lease.destination_id).collect();
        let destinations = self.store.destinations(&ids).await?;
        let mut runs: Vec<_> = jobs
            .leases
            .into_iter()
            .zip(destinations)
            .map(|(lease, destination)| Run::new(lease, destination, now))
            .collect();
        self.recover_cursors(&mut runs, now).await?;
        let lagging = jobs.depth > plan::LAG_DEPTH;
        for run in &mut runs {
            run.decide(lagging, self.replay_shares.credit(run.lease.destination_id));
        }
        Ok(runs)
    }

    /// Continues lost cursors from the last sends the store knows of.
    async fn recover_cursors(&self, runs: &mut [Run], now: Timestamp) -> Result<(), Failure> {
        let mut lost: Vec<_> = runs.iter_mut().filter(|run| run.lease.cursors.is_none()).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = lost.iter().map(|run| run.lease.destination_id).collect();
        for (run, history) in lost.iter_mut().zip(self.store.send_history(&ids).await?) {
            run.recover_cursors(history, now);
        }
        Ok(())
    }

    /// Claims what every run wants, in one statement.
    async fn claim(&self, runs: &[Run], now: Timestamp) -> Result<Vec<Claims>, StoreError> {
        self.store.claim(runs.iter().map(|run| run.claim_request(run.wanted())).collect(), now).await
    }

    pub(crate) async fn publish(&self, publications: Vec<Publication>) -> Result<(), Failure> {
        if publications.is_empty() {
            return Ok(());
        }
        let published: usize = publications.iter().map(|publication| publication.deliveries.len()).sum();
        counter!("weir_permits_published_total").increment(published as u64);
        let answers = self.queue.publish(publications).await?;
        self.release(answers).await
    }

    /// Gives back what was claimed by a run that came too late.
    async fn release(&self, answers: Vec<Published>) -> Result<(), Failure> {
        let stale: Vec<_> = answers
            .into_iter()
            .flat_map(|answer| match answer {
                Published::Done | Published::Unknown => Vec::new(),
                Published::Stale(deliveries) => deliveries,
            })
            .collect();
        if !stale.is_empty() {
            counter!("weir_stale_publishes_total").increment(1);
            self.returner.give_back(stale).await?;
        }
        Ok(())
    }

    pub(crate) async fn end_runs(&self, runs: Vec<Run>, next: Timestamp) -> Result<(), QueueError> {
        let publications = runs.into_iter().map(|run| run.into_publication(NextRun::At(next))).collect();
        self.queue.publish(publications).await.map(drop)
    }
}
