//! Runs due jobs, a batch at a time.
//!
//! Any number of schedulers may run side by side: a lease carries an epoch, and a publish with a stale one changes nothing.
//! Whatever was claimed in the store and not published goes back unsent.
//!
//! A batch has two stages. What was claimed ahead is published at once; then the store is asked for what is missing, and that is
//! published.

use std::{sync::Arc, time::Duration};

use metrics::{counter, histogram};
use weir_core::{
    Clock, Timestamp,
    claim::ClaimedDelivery,
    plan::{self, NextRun},
};
use weir_queue::{DueJobs, Publication, Published, QueueError, SharedQueue, Wake};
use weir_store::{ClaimRequest, Claims, SharedStore, StoreError};

use crate::{
    Backoff,
    ahead::{Ahead, Claiming},
    lanes::Lanes,
    returns::{Failure, Returner},
    run::Run,
};

/// Jobs claimed in one call.
const BATCH: usize = 256;
/// At shutdown, how long a claim that may be under way is waited for.
const LAST_CLAIM: Duration = Duration::from_millis(100);
/// At shutdown, how long claims that are made ahead are waited for: what they bring goes back.
const LAST_CLAIMS_AHEAD: Duration = Duration::from_secs(2);
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
    ahead: Arc<Ahead>,
    pub(crate) lanes: Arc<Lanes>,
}

impl Scheduler {
    pub fn new(store: SharedStore, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        let returner = Returner::new(store.clone(), queue.clone(), clock.clone());
        Self { store, queue, clock, returner, ahead: Arc::default(), lanes: Arc::default() }
    }

    /// Where it learns of the lanes of replays.
    pub(crate) fn lanes(&self) -> Arc<Lanes> {
        self.lanes.clone()
    }

    /// Where new deliveries may wait for its runs.
    pub(crate) fn ahead(&self) -> Arc<Ahead> {
        self.ahead.clone()
    }

    /// Runs jobs until `shutdown` resolves. A batch that has begun is finished. Several may run side by side.
    pub async fn run(self: &Arc<Self>, shutdown: impl Future<Output = ()>) {
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
                    self.give_back(self.ahead.close()).await;
                    if tokio::time::timeout(LAST_CLAIMS_AHEAD, self.ahead.claims_ended()).await.is_err() {
                        tracing::warn!("the store did not answer a claim in time; what it claimed counts as unknown");
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

    /// Gives back what was claimed ahead and no run has taken, until `shutdown` resolves.
    pub async fn tidy(&self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            let expired = tokio::select! {
                biased;
                () = &mut shutdown => return,
                expired = self.ahead.expired(|| self.clock.now()) => expired,
            };
            self.give_back(expired).await;
        }
    }

    /// Has the jobs run of destinations that got new deliveries to keep, until `shutdown` resolves.
    pub async fn wake_fed(&self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            let fed = tokio::select! {
                biased;
                () = &mut shutdown => return,
                fed = self.ahead.fed() => fed,
            };
            let due = self.clock.now();
            let wakes: Vec<_> = fed.into_iter().map(|destination_id| Wake { destination_id, due }).collect();
            if let Err(error) = self.queue.wake(&wakes).await {
                tracing::warn!(%error, "could not wake destinations; what no run takes goes back to the store");
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

    async fn give_back(&self, deliveries: Vec<ClaimedDelivery>) {
        if deliveries.is_empty() {
            return;
        }
        if let Err(error) = self.returner.give_back(deliveries).await {
            tracing::warn!(%error, "could not give back what was claimed ahead; the sweep finds it");
        }
    }

    async fn run_batch(self: &Arc<Self>, jobs: DueJobs) -> Result<(), Failure> {
        let now = self.clock.now();
        counter!("weir_scheduler_runs_total").increment(jobs.leases.len() as u64);
        if let Some(earliest) = jobs.leases.iter().map(|lease| lease.due).filter(|due| *due > Timestamp::MIN).min() {
            histogram!("weir_scheduler_lateness_seconds").record(now.since(earliest).as_secs_f64());
        }
        let mut runs = self.decide(jobs, now).await?;
        for run in &mut runs {
            self.take_ahead(run, now).await;
        }
        let runs = self.publish_ahead(runs, now).await?;
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
        self.publish_claimed(plain, now).await?;
        if laned.is_empty() { Ok(()) } else { self.publish_with_lanes(laned, now).await }
    }

    /// Begins a run with what was claimed ahead for it.
    async fn take_ahead(&self, run: &mut Run, now: Timestamp) {
        let id = run.lease.destination_id;
        match &run.destination {
            Some(destination) if !run.allowance.is_suspended() => {
                let max_in_flight = destination.settings.max_in_flight;
                let mut allowance = run.allowance;
                if let Some(credit) = self.lanes.credit(id).filter(|_| allowance.allow > 0) {
                    run.split_with_lane(credit, now);
                    allowance.allow = run.split.map_or(allowance.allow, |split| split.live);
                }
                (run.deliveries, run.in_hand) = self.ahead.take(id, allowance.allow, now);
                // Beside a lane nothing is claimed ahead: it would be published at once, whatever its share.
                run.in_hand.brisk &= run.split.is_none();
                run.wanted = plan::wanted(allowance, run.in_hand, max_in_flight);
            }
            _ => self.give_back(self.ahead.drop_all(id)).await,
        }
    }

    /// Publishes what is in hand, and ends the runs that need nothing more now. Answers the others.
    async fn publish_ahead(self: &Arc<Self>, runs: Vec<Run>, now: Timestamp) -> Result<Vec<Run>, Failure> {
        let mut publications = Vec::new();
        let mut going_on = Vec::new();
        for mut run in runs {
            if run.wanted.now == 0 && run.split.is_none() {
                if run.wanted.ahead > 0 {
                    self.claim_ahead(run.claim_request(now));
                }
                let next = run.next();
                publications.push(run.into_publication(next));
                continue;
            }
            if !run.deliveries.is_empty() {
                run.published += run.deliveries.len() as u32;
                publications.push(run.publication(NextRun::Continue));
            }
            going_on.push(run);
        }
        self.publish(publications).await?;
        Ok(going_on)
    }

    /// Claims more of a destination beside its runs, for the next of them.
    fn claim_ahead(self: &Arc<Self>, request: ClaimRequest) {
        if let Some(claiming) = self.ahead.begin_claim(request.destination_id) {
            let scheduler = self.clone();
            tokio::spawn(async move { scheduler.fetch_ahead(request, claiming).await });
        }
    }

    async fn fetch_ahead(&self, request: ClaimRequest, claiming: Claiming) {
        let (destination_id, now) = (request.destination_id, self.clock.now());
        let wanted = request.limit as usize;
        match self.store.claim(vec![request], now).await {
            Ok(claimed) => {
                let deliveries: Vec<_> = claimed.into_iter().flat_map(|claims| claims.deliveries).collect();
                self.ahead.looked(destination_id, now, deliveries.len() < wanted);
                let refused = self.ahead.keep(destination_id, deliveries);
                self.give_back(refused).await;
            }
            Err(error) => tracing::warn!(%error, "could not claim ahead"),
        }
        drop(claiming);
        // A run that found less because of this claim may have stopped the job.
        if let Err(error) = self.queue.wake(&[Wake { destination_id, due: now }]).await {
            tracing::warn!(%error, "could not wake a destination after a claim; the sweep will");
        }
    }

    /// Publishes what was claimed for now, keeps what was claimed ahead, and ends the runs.
    async fn publish_claimed(&self, runs: Vec<(Run, Claims)>, now: Timestamp) -> Result<(), Failure> {
        let mut publications = Vec::with_capacity(runs.len());
        let mut refused = Vec::new();
        for (mut run, Claims { mut deliveries, next_due }) in runs {
            let is_short = deliveries.len() < run.wanted.sum() as usize;
            self.ahead.looked(run.lease.destination_id, now, is_short);
            let ahead = deliveries.split_off(deliveries.len().min(run.wanted.now as usize));
            let is_empty_handed = ahead.is_empty() && run.in_hand.left == 0;
            if !ahead.is_empty() {
                refused.extend(self.ahead.keep(run.lease.destination_id, ahead));
            }
            run.deliveries = deliveries;
            let next = plan::next_run(run.allowance, is_short && is_empty_handed, next_due);
            publications.push(run.into_publication(next));
        }
        self.give_back(refused).await;
        self.publish(publications).await
    }

    /// Reads the destinations as they are now, and decides how many attempts each may publish.
    async fn decide(&self, jobs: DueJobs, now: Timestamp) -> Result<Vec<Run>, Failure> {
        let ids: Vec<_> = jobs.leases.iter().map(|lease| lease.destination_id).collect();
        let destinations = self.store.destinations(&ids).await?;
        let mut runs: Vec<_> = jobs
            .leases
            .into_iter()
            .zip(destinations)
            .map(|(lease, destination)| Run::new(lease, destination))
            .collect();
        self.recover_cursors(&mut runs, now).await?;
        let lagging = jobs.depth > plan::LAG_DEPTH;
        for run in &mut runs {
            run.allowance = run.allow(now, lagging);
        }
        Ok(runs)
    }

    /// Continues lost cursors from the last sends the store knows of.
    async fn recover_cursors(&self, runs: &mut [Run], now: Timestamp) -> Result<(), Failure> {
        let mut lost: Vec<_> = runs.iter_mut().filter(|run| run.lease.issued.is_none()).collect();
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
        self.store.claim(runs.iter().map(|run| run.claim_request(now)).collect(), now).await
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
