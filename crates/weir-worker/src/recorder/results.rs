//! The results of attempts and the releases of unused permits go to the store, in group commits.

use std::{collections::HashMap, sync::Arc, time::Duration};

use metrics::counter;
use tokio::sync::mpsc;
use weir_core::{Clock, DestinationId, Timestamp, outcome::Verdict};
use weir_queue::{HandedBack, PermitId, RUN_FALLBACK, SharedQueue, Wake};
use weir_store::{Settlement, WorkerStore};

use super::{BATCH, EndedAttempt, Recorded, Report, persist};
use crate::{
    attempt::{FinishedAttempt, UnusedPermit},
    held_claims::HeldClaims,
    meters::DeliveryMeters,
    places::Unrecorded,
};

/// How long the first report of a batch waits for others: at a thousand attempts a second five share a commit. No
/// delivery waits for the commit of a report, unless its destination is ordered.
const GATHER: Duration = Duration::from_millis(5);

impl Report {
    /// Whether the next delivery of the message group waits for this commit.
    fn blocks_its_message_group(&self) -> bool {
        matches!(self, Self::Finished(ended) if ended.attempt.destination.settings.order.is_by_key())
    }
}

/// The last stage: records attempts and releases claims in the store.
pub(super) struct ResultStage {
    store: Arc<dyn WorkerStore>,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    held_claims: Arc<HeldClaims>,
    meters: DeliveryMeters,
    pub(super) recorded: Option<Recorded>,
    reports: mpsc::UnboundedReceiver<Report>,
}

impl ResultStage {
    pub(super) fn new(
        store: Arc<dyn WorkerStore>,
        queue: SharedQueue,
        clock: Arc<dyn Clock>,
        held_claims: Arc<HeldClaims>,
        reports: mpsc::UnboundedReceiver<Report>,
    ) -> Self {
        Self { store, queue, clock, held_claims, meters: DeliveryMeters::new(), recorded: None, reports }
    }

    pub(super) async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        while self.reports.recv_many(&mut batch, BATCH).await > 0 {
            // Gather more reports for the same commit. At the end of the channel no more will come.
            if batch.len() < BATCH && !self.reports.is_closed() {
                if !batch.iter().any(Report::blocks_its_message_group) {
                    tokio::time::sleep(GATHER).await;
                }
                while batch.len() < BATCH
                    && let Ok(report) = self.reports.try_recv()
                {
                    batch.push(report);
                }
            }
            // Attempts are recorded, unused permits are released.
            let (mut finished, mut unused) = (Vec::with_capacity(batch.len()), Vec::new());
            for report in batch.drain(..) {
                match report {
                    Report::Finished(ended) => finished.push(ended),
                    Report::Unused(permit, unrecorded) => unused.push((permit, unrecorded)),
                }
            }
            self.settle(finished).await;
            self.release(unused).await;
        }
    }

    /// Records attempts in the store, and wakes destinations for retries and advanced message groups.
    async fn settle(&self, finished: Vec<EndedAttempt>) {
        if finished.is_empty() {
            return;
        }
        let retries: Vec<_> = finished.iter().filter_map(|ended| retry_wake(&ended.attempt)).collect();
        let permits: Vec<_> = finished.iter().map(|ended| ended.attempt.permit).collect();
        let results: Vec<_> = finished.iter().map(|ended| ended.attempt.result.clone()).collect();
        // Record, however long the store takes. Until then the entries stay in the delivery queue, in case of a crash.
        let settlements = persist("record attempts", || self.store.settle(results.clone())).await;
        self.held_claims.remove(results.iter().map(|result| result.claim));
        self.queue.recorded(&permits);
        if let (Some(recorded), Some(last)) = (&self.recorded, results.iter().map(|result| result.now).max()) {
            recorded(self.clock.now().since(last));
        }
        drop((finished, results));
        settlements.iter().filter_map(|settlement| settlement.state()).for_each(|state| self.meters.count(state));
        let lost = settlements.iter().filter(|settlement| **settlement == Settlement::ClaimLost).count();
        if lost > 0 {
            counter!("weir_claims_lost_total").increment(lost as u64);
            tracing::warn!(lost, "attempts ended after their claims had been recovered");
        }
        // After the commit, so that the runs find these deliveries due.
        self.wake(&retries).await;
        self.wake(&wakes_of_advanced_groups(&permits, &settlements)).await;
    }

    /// Releases the claims of unused permits, hands the permits back, and wakes their destinations.
    async fn release(&self, unused: Vec<(UnusedPermit, Unrecorded)>) {
        if unused.is_empty() {
            return;
        }
        let now = self.clock.now();
        let claims: Vec<_> = unused.iter().map(|(ended, _)| ended.claim).collect();
        // Release the claims first, so that a run that the freed room allows finds the deliveries waiting.
        persist("release claims", || self.store.release(claims.clone(), now)).await;
        self.held_claims.remove(claims);
        let permits: Vec<_> =
            unused.iter().map(|&(UnusedPermit { permit: id, crowded, .. }, _)| HandedBack { id, crowded }).collect();
        if let Err(error) = self.queue.hand_back(&permits).await {
            tracing::warn!(%error, "could not hand permits back; they expire by themselves");
        }
        // A crowded permit is tried again later, when a place may be free.
        let due = |crowded| if crowded { now + RUN_FALLBACK } else { now };
        let wakes: Vec<_> = unused
            .iter()
            .map(|(ended, _)| Wake { destination_id: ended.permit.destination_id, due: due(ended.crowded) })
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
}

fn retry_wake(ended: &FinishedAttempt) -> Option<Wake> {
    let due: Timestamp = match ended.result.verdict {
        Verdict::Retry { at } => at,
        Verdict::Delivered | Verdict::Failed | Verdict::Dead => return None,
    };
    Some(Wake { destination_id: ended.permit.destination_id, due })
}

/// One wake for each destination whose message groups have a new head, at the earliest due time of those heads.
fn wakes_of_advanced_groups(permits: &[PermitId], settlements: &[Settlement]) -> Vec<Wake> {
    let mut dues: HashMap<DestinationId, Timestamp> = HashMap::new();
    for (id, settlement) in permits.iter().map(|permit| permit.destination_id).zip(settlements) {
        if let &Settlement::Advanced { next_due, .. } = settlement {
            dues.entry(id).and_modify(|due| *due = next_due.min(*due)).or_insert(next_due);
        }
    }
    dues.into_iter().map(|(destination_id, due)| Wake { destination_id, due }).collect()
}
