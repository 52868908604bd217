//! Runs due jobs, a batch at a time.
//!
//! Any number of schedulers may run concurrently: a lease has an epoch, and a publication with a stale epoch changes
//! nothing. Deliveries that were claimed in the store and not published are released unsent.

use std::{sync::Arc, time::Duration};

use metrics::{counter, histogram};
use parking_lot::Mutex;
use weir_core::{
    Backoff, Clock, DestinationId, IdMap, RateLimit, Timestamp,
    limit::Shape,
    limit_group::Home,
    plan::{self, NextRun},
};
use weir_queue::{DueJobs, JobLease, LAST_OLD_START, Publication, Published, QueueError, SharedQueue};
use weir_store::{Claims, FlowKey, LimitChange, PaceRecord, RunStore, StoreError};

use crate::{
    flows::KnownFlows,
    release::{ClaimReleaser, Failure},
    replay_shares::ReplayShares,
    run::{RETRY_RUN, Run},
};

/// Jobs claimed in one call. With more in a batch the last of them would wait longer for the claims of the others; with
/// fewer, each commit would serve fewer destinations.
const BATCH: usize = 256;
/// How long the shutdown waits for a claim of jobs that is under way. A claim that finds jobs is answered at once; one
/// that finds none waits for the next due job.
const LAST_CLAIM: Duration = Duration::from_millis(100);
/// How long a run may take before another scheduler can claim its jobs. Long enough for a commit on a slow disk and a
/// second try of the publication; the jobs of a dead scheduler run again within ten seconds of its death.
const LEASE: Duration = Duration::from_secs(4);

/// Homes that are closed, and the version of the destination whose run has closed them.
type ClosedHomes = IdMap<DestinationId, (Timestamp, Vec<Home>)>;

/// Executes the rate-limiter jobs.
pub struct Scheduler {
    pub(crate) store: Arc<dyn RunStore>,
    pub(crate) queue: SharedQueue,
    pub(crate) clock: Arc<dyn Clock>,
    releaser: ClaimReleaser,
    flows: KnownFlows,
    pub(crate) replay_shares: Arc<ReplayShares>,
    /// The homes that runs under way have closed.
    pub(crate) closed: Mutex<ClosedHomes>,
}

impl Scheduler {
    pub fn new(store: Arc<dyn RunStore>, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        let releaser = ClaimReleaser::new(store.clone(), queue.clone(), clock.clone());
        let flows = KnownFlows::default();
        Self { store, queue, clock, releaser, flows, replay_shares: Arc::default(), closed: Mutex::default() }
    }

    /// The destinations with replays, which the [`Replayer`](crate::Replayer) keeps current.
    pub(crate) fn replay_shares(&self) -> Arc<ReplayShares> {
        self.replay_shares.clone()
    }

    /// Runs jobs until `shutdown` resolves. A batch that has begun is finished. Several calls may run concurrently.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        let mut backoff = Backoff::default();
        loop {
            // Wait for due jobs, or for the shutdown.
            let claiming = self.queue.claim_due(BATCH, LEASE);
            tokio::pin!(claiming);
            let due = tokio::select! {
                biased;
                () = &mut shutdown => {
                    // Wait for the claim that is under way. If it were dropped after it succeeded, no scheduler would
                    // run its jobs until their leases end.
                    if let Ok(Ok(jobs)) = tokio::time::timeout(LAST_CLAIM, claiming).await {
                        self.return_jobs(jobs).await;
                    }
                    return;
                }
                due = &mut claiming => due,
            };
            // A failure slows the loop down. Leases of a batch that was not finished end by themselves.
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

    /// Ends the leases of jobs without running them, so that another scheduler can run them.
    async fn return_jobs(&self, jobs: DueJobs) {
        let now = self.clock.now();
        let returned = async { Ok::<_, Failure>(self.end_runs(self.decide(jobs, now).await?.0, now).await?) };
        if let Err(error) = returned.await {
            tracing::warn!(%error, "could not return jobs; their leases will expire");
        }
    }

    async fn run_batch(&self, jobs: DueJobs) -> Result<(), Failure> {
        let now = self.clock.now();
        counter!("weir_scheduler_runs_total").increment(jobs.leases.len() as u64);
        let (runs, records) = self.decide(jobs, now).await?;
        let ran = self.run_decided(runs, now).await;
        self.record_paces(&records).await;
        ran
    }

    async fn run_decided(&self, runs: Vec<Run>, now: Timestamp) -> Result<(), Failure> {
        // End the runs that may publish nothing.
        let (empty, runs): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run.allowance.allow == 0);
        // Runs that may publish nothing are left out: jobs of paused destinations, or with an open breaker, may be long
        // overdue.
        if let Some(earliest) = runs.iter().map(|run| run.lease.due).filter(|due| *due > Timestamp::MIN).min() {
            histogram!("weir_scheduler_lateness_seconds").record(now.since(earliest).as_secs_f64());
        }
        let end = |run: Run| {
            let next = plan::next_run(run.allowance, false, None);
            run.into_publication(next)
        };
        self.publish(empty.into_iter().map(end).collect()).await?;
        if runs.is_empty() {
            return Ok(());
        }
        // Claim the live deliveries of the other runs.
        let claims = match self.claim(&runs, now).await {
            Ok(claims) => claims,
            Err(error) => {
                // The claims may have been made. Publish nothing: they expire by themselves.
                self.end_runs(runs, now + RETRY_RUN).await?;
                return Err(error.into());
            }
        };
        // Publish the claims. Runs with replays claim once more, so the others do not wait for them.
        let (with_replays, without_replays): (Vec<_>, Vec<_>) =
            runs.into_iter().zip(claims).partition(|(run, _)| run.split.is_some());
        self.publish_claimed(without_replays).await?;
        if with_replays.is_empty() { Ok(()) } else { self.publish_with_replays(with_replays, now).await }
    }

    /// Publishes the claimed deliveries, and ends the runs.
    async fn publish_claimed(&self, runs: Vec<(Run, Claims)>) -> Result<(), Failure> {
        let end = |(mut run, Claims { deliveries, next_due }): (Run, Claims)| {
            let is_short = deliveries.len() < run.wanted() as usize;
            run.deliveries = deliveries;
            let next = plan::next_run(run.allowance, is_short, next_due);
            run.into_publication(next)
        };
        self.publish(runs.into_iter().map(end).collect()).await
    }

    /// Reads the current destinations, and decides how many attempts each may publish. Returns what the store is to record
    /// of their paces, too.
    async fn decide(&self, jobs: DueJobs, now: Timestamp) -> Result<(Vec<Run>, Vec<PaceRecord>), Failure> {
        let mut flows = self.flows.find(&*self.store, jobs.leases.iter().map(|lease| lease.destination_id)).await?;
        // Many flows may have one destination.
        let of = |id: DestinationId| flows.get(&id).map_or(id, |flow| flow.destination_id);
        let mut ids: Vec<_> = jobs.leases.iter().map(|lease| of(lease.destination_id)).collect();
        if !flows.is_empty() {
            ids.sort_unstable();
            ids.dedup();
        }
        let destinations: IdMap<_, _> = ids.iter().copied().zip(self.store.destinations(&ids).await?).collect();
        let run = |lease: JobLease| {
            let (id, key) = match flows.remove(&lease.destination_id) {
                Some(FlowKey { destination_id, key }) => (destination_id, Some(key)),
                None => (lease.destination_id, None),
            };
            // There is no destination with the id of a flow that has ended.
            Run::new(lease, destinations.get(&id).cloned().flatten(), key, now)
        };
        let mut runs: Vec<_> = jobs.leases.into_iter().map(run).collect();
        self.read_groups(&mut runs, now).await?;
        self.close_left_homes(&mut runs, now).await?;
        self.recover_cursors(&mut runs, now).await?;
        self.recover_groups(&mut runs, now).await?;
        let records = self.learn_paces(&mut runs, now).await?;
        let lagging = jobs.depth > plan::LAG_DEPTH;
        for run in &mut runs {
            run.decide(lagging, self.replay_shares.credit(run.destination_id()));
        }
        Ok((runs, records))
    }

    /// Recovers lost cursors from the last sends in the store.
    async fn recover_cursors(&self, runs: &mut [Run], now: Timestamp) -> Result<(), Failure> {
        let mut lost: Vec<_> = runs.iter_mut().filter(|run| run.lease.cursors.is_none()).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = lost.iter().map(|run| run.lease.destination_id).collect();
        for (run, history) in lost.iter_mut().zip(self.store.send_history(&ids).await?) {
            run.recover_cursors(history, now);
            for limit in run.windows() {
                let since = now - (limit.span() + limit.bucket());
                let sent = self.store.sent_counts(&[run.lease.destination_id], since, limit).await?;
                run.recall(limit, &sent, now);
            }
            for limit in run.replaced_windows() {
                let since = now - (limit.span() + limit.bucket());
                let sent = self.store.sent_counts(&[run.lease.destination_id], since, limit).await?;
                run.recall_dormant(limit, &sent, now);
            }
            for limit in self.former_windows(run, now).await? {
                let since = now - (limit.span() + limit.bucket());
                let sent = self.store.sent_counts(&[run.lease.destination_id], since, limit).await?;
                run.recall_even(limit, &sent, now);
            }
        }
        Ok(())
    }

    /// The even limits of a run that had the window shape within their window. Their sends lie anywhere in it.
    async fn former_windows(&self, run: &Run, now: Timestamp) -> Result<Vec<RateLimit>, Failure> {
        let changed = run.changed_limits();
        if changed.is_empty() {
            return Ok(changed);
        }
        // Changes of key limits are not recorded: each may have had the window shape.
        if run.is_of_key() {
            return Ok(changed);
        }
        let changes = self.store.limit_changes(run.lease.destination_id).await?;
        Ok(changed.into_iter().filter(|limit| was_window(&changes, limit, now)).collect())
    }

    /// Claims the live deliveries of all runs in one call.
    async fn claim(&self, runs: &[Run], now: Timestamp) -> Result<Vec<Claims>, StoreError> {
        self.store.claim(runs.iter().map(|run| run.claim_request(run.wanted())).collect(), now).await
    }

    pub(crate) async fn publish(&self, publications: Vec<Publication>) -> Result<(), Failure> {
        if publications.is_empty() {
            return Ok(());
        }
        let published: usize = publications.iter().map(|publication| publication.deliveries.len()).sum();
        counter!("weir_permits_published_total").increment(published as u64);
        let closed = !self.closed.lock().is_empty();
        let destination = |of: &Publication| {
            let keys_of = of.groups.first().and_then(|group| group.terms.keys_of);
            keys_of.map_or(of.lease.destination_id, |keys_of| keys_of.destination_id)
        };
        let ids = publications.iter().filter(|_| closed).map(destination).collect();
        let answers = self.queue.publish(publications).await?;
        self.forget_left_homes(ids, &answers).await;
        self.release_stale(answers).await
    }

    /// Releases the claims of runs whose publications were stale.
    async fn release_stale(&self, answers: Vec<Published>) -> Result<(), Failure> {
        let stale: Vec<_> = answers
            .into_iter()
            .flat_map(|answer| match answer {
                Published::Done | Published::Unknown => Vec::new(),
                Published::Stale(deliveries) => deliveries,
            })
            .collect();
        if !stale.is_empty() {
            counter!("weir_stale_publishes_total").increment(1);
            self.releaser.release_and_wake(stale).await?;
        }
        Ok(())
    }

    pub(crate) async fn end_runs(&self, runs: Vec<Run>, next: Timestamp) -> Result<(), QueueError> {
        let publications = runs.into_iter().map(|run| run.into_publication(NextRun::At(next))).collect();
        self.queue.publish(publications).await.map(drop)
    }
}

/// Whether a limit of this period had the window shape in the window before `now`.
pub(crate) fn was_window(changes: &[LimitChange], limit: &RateLimit, now: Timestamp) -> bool {
    let since = now.before(limit.span() + LAST_OLD_START);
    let ended = changes.iter().skip(1).map(|change| change.at).chain([Timestamp::MAX]);
    changes.iter().zip(ended).any(|(change, ended)| {
        change.at <= now && ended > since && change.limits.of_shape(Shape::Window).any(|of| of.period == limit.period)
    })
}
