//! Runs due jobs, a batch at a time.
//!
//! Any number of schedulers may run side by side: a lease carries an epoch, and a publish with a stale one changes nothing.
//! Whatever was claimed in the store and not published goes back unsent.

use std::{sync::Arc, time::Duration};

use metrics::{counter, histogram};
use weir_core::{
    Clock, Destination, Limiter, Period, Timestamp,
    claim::ClaimedDelivery,
    plan::{self, Allowance, NextRun, Observed},
};
use weir_queue::{DueJobs, Lease, Publication, Published, QueueError, SharedQueue};
use weir_store::{ClaimRequest, Claims, SendHistory, SharedStore, StoreError};

use crate::{
    Backoff,
    returns::{Failure, Returner, START_WITHIN},
};

/// Jobs claimed in one call.
const BATCH: usize = 256;
/// At shutdown, how long a claim that may be under way is waited for.
const LAST_CLAIM: Duration = Duration::from_millis(100);
/// How long a run may take before its jobs are claimed by another.
const LEASE: Duration = Duration::from_secs(4);
/// This long after the queue lost what it knew, no permit of before starts any more: a worker starts none without having heard
/// of the queue in the 2.5 seconds before, and then sends within its slot.
const LAST_OLD_START: Duration = Duration::from_secs(3);
/// When to try a destination again whose run failed.
const RETRY_RUN: Duration = Duration::from_millis(250);

/// Executes the rate-limiter jobs.
pub struct Scheduler {
    store: SharedStore,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    returner: Returner,
}

/// One job of a batch, between reading its destination and publishing.
struct Run {
    lease: Lease,
    destination: Option<Arc<Destination>>,
    recovered: Option<Limiter>,
    allowance: Allowance,
}

impl Scheduler {
    pub fn new(store: SharedStore, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        let returner = Returner::new(store.clone(), queue.clone(), clock.clone());
        Self { store, queue, clock, returner }
    }

    /// Runs jobs until `shutdown` resolves. A batch that has begun is finished.
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
        let claims = match self.claim(&runs, now).await {
            Ok(claims) => claims,
            Err(error) => {
                // Nothing may be published on a claim whose outcome is unknown; one that was made expires by itself.
                self.end_runs(runs, now + RETRY_RUN).await?;
                return Err(error.into());
            }
        };
        self.publish(runs, claims).await
    }

    /// Reads the destinations as they are now, and decides how many attempts each may publish.
    async fn decide(&self, jobs: DueJobs, now: Timestamp) -> Result<Vec<Run>, Failure> {
        let ids: Vec<_> = jobs.leases.iter().map(|lease| lease.destination_id).collect();
        let destinations = self.store.destinations(&ids).await?;
        let mut runs: Vec<_> = jobs
            .leases
            .into_iter()
            .zip(destinations)
            .map(|(lease, destination)| Run { lease, destination, recovered: None, allowance: Allowance::NOTHING })
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
            let Some(destination) = &run.destination else { continue };
            let last_start = latest_start(history, run.lease.known_since, now);
            let mut limiter = Limiter::recovered(&destination.settings.rate_limits, last_start);
            limiter.hold(destination.held_until.unwrap_or(Timestamp::MIN));
            run.recovered = Some(limiter);
        }
        Ok(())
    }

    /// Claims what every run is allowed, in one statement.
    async fn claim(&self, runs: &[Run], now: Timestamp) -> Result<Vec<Claims>, StoreError> {
        let requests: Vec<_> = runs.iter().filter_map(|run| run.claim_request(now)).collect();
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        self.store.claim(requests, now).await
    }

    async fn publish(&self, runs: Vec<Run>, claims: Vec<Claims>) -> Result<(), Failure> {
        let mut claims = claims.into_iter();
        let mut published = 0;
        let publications: Vec<_> = runs
            .into_iter()
            .map(|run| {
                let Claims { deliveries, next_due } =
                    if run.wants_claim() { claims.next().unwrap_or_default() } else { Claims::default() };
                published += deliveries.len();
                let next = plan::next_run(run.allowance, deliveries.len() as u32, next_due);
                run.into_publication(deliveries, next)
            })
            .collect();
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

    async fn end_runs(&self, runs: Vec<Run>, next: Timestamp) -> Result<(), QueueError> {
        let publications = runs.into_iter().map(|run| run.into_publication(Vec::new(), NextRun::At(next))).collect();
        self.queue.publish(publications).await.map(drop)
    }
}

/// The latest instant at which a send can have started, or will yet, that the queue does not know of.
fn latest_start(history: SendHistory, known_since: Timestamp, now: Timestamp) -> Option<Timestamp> {
    // No send lies in the future, whatever the clock of the process that recorded it said.
    let recorded = history.last_sent_at.map(|at| at.min(now));
    // Claims that are out may belong to permits the queue has lost.
    let unrecorded = history.unsettled.then_some(known_since + LAST_OLD_START);
    recorded.max(unrecorded)
}

impl Run {
    fn allow(&self, now: Timestamp, lagging: bool) -> Allowance {
        let (Some(destination), Some(known)) =
            (&self.destination, self.lease.issued.as_ref().or(self.recovered.as_ref()))
        else {
            return Allowance::NOTHING;
        };
        let settings = &destination.settings;
        let mut issued = known.clone();
        issued.reconfigure(&settings.rate_limits);
        plan::allowance(&Observed {
            now,
            issued: &issued,
            queued: self.lease.queued,
            in_flight: self.lease.in_flight,
            max_in_flight: settings.max_in_flight,
            max_queued: settings.rate_limits.max_queued(),
            suspended: settings.paused,
            lagging,
        })
    }

    /// A run that may publish nothing still asks when the next delivery is due, unless time or an edit brings the next run.
    fn wants_claim(&self) -> bool {
        self.allowance.allow > 0
    }

    fn claim_request(&self, now: Timestamp) -> Option<ClaimRequest> {
        let destination = self.destination.as_ref().filter(|_| self.wants_claim())?;
        let settings = &destination.settings;
        Some(ClaimRequest {
            destination_id: self.lease.destination_id,
            limit: self.allowance.allow,
            expires_at: now + START_WITHIN + Duration::from_millis(settings.timeout_ms.into()),
            durable: settings.rate_limits.as_slice().iter().any(|limit| limit.period > Period::Second),
        })
    }

    fn into_publication(self, mut deliveries: Vec<ClaimedDelivery>, next: NextRun) -> Publication {
        for delivery in &mut deliveries {
            delivery.destination.clone_from(&self.destination);
        }
        let limits = self.destination.map(|destination| destination.settings.rate_limits.clone()).unwrap_or_default();
        Publication { lease: self.lease, limits, recovered: self.recovered, deliveries, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn sent(seconds_ago: u64, unsettled: bool) -> SendHistory {
        SendHistory { last_sent_at: Some(NOW - Duration::from_secs(seconds_ago)), unsettled }
    }

    #[test]
    fn cursors_continue_from_the_last_recorded_send() {
        assert_eq!(latest_start(SendHistory::default(), NOW, NOW), None);
        assert_eq!(latest_start(sent(7, false), NOW, NOW), Some(NOW - Duration::from_secs(7)));
        let ahead = SendHistory { last_sent_at: Some(NOW + Duration::from_secs(7)), unsettled: false };
        assert_eq!(latest_start(ahead, NOW, NOW), Some(NOW), "no send lies in the future");
    }

    #[test]
    fn permits_of_a_lost_queue_are_let_pass_before_anything_new_starts() {
        assert_eq!(latest_start(sent(7, true), NOW, NOW), Some(NOW + LAST_OLD_START));
    }

    #[test]
    fn unsettled_claims_hold_nothing_up_long_after_the_queue_was_lost() {
        let since = NOW - Duration::from_secs(60);
        assert_eq!(latest_start(sent(7, true), since, NOW), Some(NOW - Duration::from_secs(7)));
        assert_eq!(latest_start(sent(70, true), since, NOW), Some(since + LAST_OLD_START));
    }
}
