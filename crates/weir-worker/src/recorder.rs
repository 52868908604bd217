//! Records ended attempts and releases unused permits, in batches.
//!
//! An ended attempt frees its room below `max_in_flight` at once: the time of a commit must not count against it. While
//! one batch commits, the next one gathers. If the store fails, the recorder keeps the attempts and records them when
//! the store is back: no attempt is forgotten while the process lives.

use std::{collections::HashMap, sync::Arc, time::Duration};

use metrics::counter;
use tokio::sync::mpsc;
use weir_core::{
    Backoff, Clock, DestinationId, Timestamp,
    outcome::{Effect, Verdict},
};
use weir_queue::{Edit, HandedBack, RUN_FALLBACK, SharedQueue, Terms, Wake};
use weir_store::{BreakerChange, Settlement, SharedStore};

use crate::{
    attempt::{FinishedAttempt, UnusedPermit},
    breakers::{BreakerUpdate, Breakers},
    held_claims::HeldClaims,
    meters::{self, DeliveryMeters},
};

/// Reports recorded in one commit, as many as [`Worker`](crate::Worker) takes permits in one call.
const BATCH: usize = 1_024;
/// How long the first report of a batch waits for others: at a thousand attempts a second five share a commit. No
/// delivery waits for the commit of a report, unless its destination is ordered.
const GATHER: Duration = Duration::from_millis(5);

/// A report to the recorder.
enum Report {
    Finished(FinishedAttempt),
    Unused(UnusedPermit),
    /// The last report.
    Stop,
}

impl Report {
    /// Whether the next delivery of the message group waits for this commit.
    fn blocks_its_message_group(&self) -> bool {
        matches!(self, Self::Finished(finished) if finished.destination.settings.order.is_by_key())
    }
}

/// Sends reports to the recorder.
#[derive(Clone)]
pub(crate) struct RecorderHandle(mpsc::UnboundedSender<Report>);

impl RecorderHandle {
    // The number of attempts under way bounds the channel. It is closed only after the last of them was recorded or
    // given up as unknown, so a failed send needs no handling.
    pub(crate) fn finished(&self, finished: FinishedAttempt) {
        let _ = self.0.send(Report::Finished(finished));
    }

    pub(crate) fn unused(&self, unused: impl IntoIterator<Item = UnusedPermit>) {
        for permit in unused {
            let _ = self.0.send(Report::Unused(permit));
        }
    }

    pub(crate) fn finish(&self) {
        let _ = self.0.send(Report::Stop);
    }
}

/// Settles attempts and releases unused permits, in two stages: the queue learns of an ended attempt at once; the store
/// gets all reports that gathered during its last commit.
pub(crate) struct Recorder {
    stages: Stages,
    reports: mpsc::UnboundedReceiver<Report>,
}

impl Recorder {
    pub(crate) fn new(
        store: SharedStore,
        queue: SharedQueue,
        clock: Arc<dyn Clock>,
        held_claims: Arc<HeldClaims>,
    ) -> (RecorderHandle, Self) {
        let (sender, reports) = mpsc::unbounded_channel();
        (
            RecorderHandle(sender),
            Self { stages: Stages { store, queue, clock, held_claims, meters: DeliveryMeters::new() }, reports },
        )
    }

    /// Records until [`RecorderHandle::finish`]. When this returns, every earlier report is recorded.
    pub(crate) async fn run(mut self) {
        let (to_store, for_store) = mpsc::unbounded_channel();
        // The first stage owns the sender. It drops the sender at its end, which ends the second stage.
        tokio::join!(self.stages.settle_in_queue(&mut self.reports, to_store), self.stages.record_in_store(for_store));
    }
}

/// The two stages of the recorder.
struct Stages {
    store: SharedStore,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    held_claims: Arc<HeldClaims>,
    meters: DeliveryMeters,
}

impl Stages {
    /// The first stage: settles ended attempts in the queue, and passes every report on.
    async fn settle_in_queue(
        &self,
        reports: &mut mpsc::UnboundedReceiver<Report>,
        to_store: mpsc::UnboundedSender<Report>,
    ) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut breakers = Breakers::default();
        while reports.recv_many(&mut batch, BATCH).await > 0 {
            // The queue first: the time of a commit must not count against `max_in_flight`.
            self.free_room(&batch, &mut breakers).await;
            for report in batch.drain(..) {
                if matches!(report, Report::Stop) {
                    return;
                }
                // Cannot fail: the second stage ends after this one.
                let _ = to_store.send(report);
            }
        }
    }

    /// The second stage: records attempts and releases claims in the store.
    async fn record_in_store(&self, mut reports: mpsc::UnboundedReceiver<Report>) {
        let mut batch = Vec::with_capacity(BATCH);
        while reports.recv_many(&mut batch, BATCH).await > 0 {
            // Gather more reports for the same commit. At the end of the channel no more will come.
            if batch.len() < BATCH && !reports.is_closed() {
                if !batch.iter().any(Report::blocks_its_message_group) {
                    tokio::time::sleep(GATHER).await;
                }
                while batch.len() < BATCH
                    && let Ok(report) = reports.try_recv()
                {
                    batch.push(report);
                }
            }
            // Attempts are recorded, unused permits are released.
            let (mut finished, mut unused) = (Vec::with_capacity(batch.len()), Vec::new());
            for report in batch.drain(..) {
                match report {
                    Report::Finished(ended) => finished.push(ended),
                    Report::Unused(ended) => unused.push(ended),
                    Report::Stop => {}
                }
            }
            self.settle(finished).await;
            self.release(unused).await;
        }
    }

    /// Applies holds, pauses and breaker changes, and then frees the room of the ended attempts. The attempts are
    /// recorded later: if the process dies before, their claims remain and resolve as unknown.
    async fn free_room(&self, reports: &[Report], breakers: &mut Breakers) {
        let finished = || {
            reports.iter().filter_map(|report| match report {
                Report::Finished(finished) => Some(finished),
                Report::Unused(_) | Report::Stop => None,
            })
        };
        // First stop what must not be sent: freed room could start the next send at once.
        self.hold_and_pause(finished()).await;
        // Attempts that ended because the server closed a reused connection do not count for its breaker.
        for BreakerUpdate { change, pauses } in
            finished().filter(|ended| !ended.ignored_by_breaker).filter_map(|ended| breakers.observe(ended))
        {
            let id = change.id;
            self.change_breaker(change).await;
            if pauses {
                self.pause(id, "every attempt has failed for days").await;
            }
        }
        breakers.tidy(self.clock.now());
        // Then free the room of all ended attempts in one call.
        let ids: Vec<_> = finished().map(|ended| ended.permit).collect();
        if ids.is_empty() {
            return;
        }
        if let Err(error) = self.queue.settle(&ids).await {
            tracing::warn!(%error, "could not settle permits in the queue; they expire by themselves");
        }
    }

    /// Records attempts in the store, and wakes destinations for retries and advanced message groups.
    async fn settle(&self, finished: Vec<FinishedAttempt>) {
        if finished.is_empty() {
            return;
        }
        let retries: Vec<_> = finished.iter().filter_map(retry_wake).collect();
        let destinations: Vec<_> = finished.iter().map(|ended| ended.result.claim.destination_id).collect();
        let permits: Vec<_> = finished.iter().map(|ended| ended.permit).collect();
        let results: Vec<_> = finished.into_iter().map(|ended| ended.result).collect();
        // Record, however long the store takes. Until then the entries stay in the delivery queue, in case of a crash.
        let settlements = persist("record attempts", || self.store.settle(results.clone())).await;
        self.held_claims.remove(results.iter().map(|result| result.claim));
        self.queue.recorded(&permits);
        settlements.iter().filter_map(|settlement| settlement.state()).for_each(|state| self.meters.count(state));
        let lost = settlements.iter().filter(|settlement| **settlement == Settlement::ClaimLost).count();
        if lost > 0 {
            counter!("weir_claims_lost_total").increment(lost as u64);
            tracing::warn!(lost, "attempts ended after their claims had been recovered");
        }
        // After the commit, so that the runs find these deliveries due.
        self.wake(&retries).await;
        self.wake(&wakes_of_advanced_groups(&destinations, &settlements)).await;
    }

    /// Releases the claims of unused permits, hands the permits back, and wakes their destinations.
    async fn release(&self, unused: Vec<UnusedPermit>) {
        if unused.is_empty() {
            return;
        }
        let now = self.clock.now();
        let claims: Vec<_> = unused.iter().map(|ended| ended.claim).collect();
        // Release the claims first, so that a run that the freed room allows finds the deliveries waiting.
        persist("release claims", || self.store.release(claims.clone(), now)).await;
        self.held_claims.remove(claims);
        let permits: Vec<_> =
            unused.iter().map(|&UnusedPermit { permit: id, crowded, .. }| HandedBack { id, crowded }).collect();
        if let Err(error) = self.queue.hand_back(&permits).await {
            tracing::warn!(%error, "could not hand permits back; they expire by themselves");
        }
        // A crowded permit is tried again later, when a place may be free.
        let due = |crowded| if crowded { now + RUN_FALLBACK } else { now };
        let wakes: Vec<_> = unused
            .iter()
            .map(|ended| Wake { destination_id: ended.claim.destination_id, due: due(ended.crowded) })
            .collect();
        self.wake(&wakes).await;
    }

    async fn wake(&self, wakes: &[Wake]) {
        if wakes.is_empty() {
            return;
        }
        if let Err(error) = self.queue.wake(wakes).await {
            tracing::warn!(%error, "could not wake destinations; the sweep will");
        }
    }

    async fn pause(&self, id: DestinationId, reason: &str) {
        let now = self.clock.now();
        persist("pause a destination", || self.store.pause_destination(id, reason, now)).await;
        tracing::warn!(destination = %id, reason, "paused a destination");
        self.announce(id).await;
    }

    /// Sends the destination's current terms to the queue, so that no slot is granted under older terms.
    async fn announce(&self, id: DestinationId) {
        let Ok(Some(destination)) = self.store.destination(id).await else {
            // The next run reads the destination.
            return;
        };
        let terms = Terms::of(&destination, self.clock.now());
        if let Err(error) = self.queue.edited(&[Edit { destination_id: id, terms }]).await {
            tracing::warn!(destination = %id, %error, "could not announce a destination's change to the queue");
        }
    }

    /// Opens or closes a breaker, before the room of the attempts is freed. If the store fails, later attempts cause
    /// the change again.
    async fn change_breaker(&self, change: BreakerChange) {
        match self.store.change_breaker(change.clone()).await {
            Ok(true) => log_breaker_change(&change),
            // Another worker has changed the breaker.
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(destination = %change.id, %error, "could not record a breaker's change");
                return;
            }
        }
        self.announce(change.id).await;
    }

    /// Holds and pauses destinations at once, before the attempts are recorded, so that no further send starts.
    async fn hold_and_pause<'f>(&self, finished: impl Iterator<Item = &'f FinishedAttempt>) {
        // Answers in one batch ask for similar holds: apply only the longest one of each destination.
        let mut holds: HashMap<DestinationId, (Timestamp, &str)> = HashMap::new();
        for ended in finished {
            let id = ended.result.claim.destination_id;
            match ended.effect {
                Effect::None => {}
                Effect::HoldUntil(until, _) => {
                    let hold = holds.entry(id).or_insert((until, &ended.reason));
                    if hold.0 < until {
                        *hold = (until, &ended.reason);
                    }
                }
                Effect::Pause => self.pause(id, &ended.reason).await,
            }
        }
        // The queue first, because it grants the slots. The store keeps the hold for the runs.
        for (id, (until, reason)) in holds {
            if let Err(error) = self.queue.hold(id, until).await {
                tracing::warn!(destination = %id, %error, "could not hold the destination in the queue");
            }
            let now = self.clock.now();
            persist("hold a destination", || self.store.hold_destination(id, until, reason, now)).await;
        }
    }
}

/// Counts and logs a change of a breaker.
fn log_breaker_change(change: &BreakerChange) {
    let (id, state) = (change.id, change.changed.state(change.now).as_str());
    meters::breaker_changes(state).increment(1);
    match change.changed.reason() {
        Some(reason) if change.expected.reason().is_none() => {
            tracing::warn!(destination = %id, reason, "a breaker has opened");
        }
        Some(_) => tracing::debug!(destination = %id, "a probe has failed, and the breaker stays open"),
        None => tracing::info!(destination = %id, "a breaker has closed"),
    }
}

fn retry_wake(ended: &FinishedAttempt) -> Option<Wake> {
    let due: Timestamp = match ended.result.verdict {
        Verdict::Retry { at } => at,
        Verdict::Delivered | Verdict::Failed | Verdict::Dead => return None,
    };
    Some(Wake { destination_id: ended.result.claim.destination_id, due })
}

/// One wake for each destination whose message groups have a new head, at the earliest due time of those heads.
fn wakes_of_advanced_groups(destinations: &[DestinationId], settlements: &[Settlement]) -> Vec<Wake> {
    let mut dues: HashMap<DestinationId, Timestamp> = HashMap::new();
    for (&id, settlement) in destinations.iter().zip(settlements) {
        if let &Settlement::Advanced { next_due, .. } = settlement {
            dues.entry(id).and_modify(|due| *due = next_due.min(*due)).or_insert(next_due);
        }
    }
    dues.into_iter().map(|(destination_id, due)| Wake { destination_id, due }).collect()
}

/// Repeats a write until it succeeds. Each write names the claim that it expects, so a repeated write changes nothing
/// twice.
async fn persist<T, F, Fut>(what: &'static str, mut write: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = weir_store::StoreResult<T>>,
{
    let mut backoff = Backoff::default();
    loop {
        match write().await {
            Ok(answer) => return answer,
            Err(error) => tracing::error!(%error, what, "the store failed; trying again"),
        }
        tokio::time::sleep(backoff.fail()).await;
    }
}
