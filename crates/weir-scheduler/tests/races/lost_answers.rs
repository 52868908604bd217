//! A queue that loses the answers to publications.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use weir_core::{Destination, DestinationId, LimitGroup, claim::ClaimedDelivery};
use weir_queue::{
    DueJobs, HandedBack, Hold, Leases, Permit, PermitId, Permits, Publication, Published, QueueError, QueueProgress,
    QueueResult, Schedule, Settled, SlotAnswer, SlotRequest, TermsChange, Wake, memory::MemoryQueue,
};

/// The result that the caller gets instead of the answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Loss {
    /// The answer `Published::Unknown`.
    Unknown,
    /// A failed call.
    Error,
}

/// Publishes, and loses the answer.
pub(crate) struct LostAnswers {
    pub(crate) queue: Arc<MemoryQueue>,
    pub(crate) loss: Loss,
}

#[async_trait]
impl Schedule for LostAnswers {
    async fn publish(&self, publications: Vec<Publication>) -> QueueResult<Vec<Published>> {
        let answers = self.queue.publish(publications).await?;
        match self.loss {
            Loss::Unknown => Ok(answers.iter().map(|_| Published::Unknown).collect()),
            Loss::Error => Err(QueueError::Unknown("the answer was lost".to_owned())),
        }
    }

    async fn wake(&self, wakes: &[Wake]) -> QueueResult<()> {
        self.queue.wake(wakes).await
    }

    async fn edited(&self, edits: &[TermsChange]) -> QueueResult<()> {
        self.queue.edited(edits).await
    }

    async fn edited_groups(&self, edits: &[Arc<LimitGroup>]) -> QueueResult<()> {
        self.queue.edited_groups(edits).await
    }

    async fn hold(&self, holds: &[Hold]) -> QueueResult<()> {
        self.queue.hold(holds).await
    }

    async fn claim_due(&self, max: usize, lease_for: Duration) -> QueueResult<DueJobs> {
        self.queue.claim_due(max, lease_for).await
    }

    async fn progress(&self, ids: &[DestinationId]) -> QueueResult<QueueProgress> {
        self.queue.progress(ids).await
    }

    async fn check(&self) -> QueueResult<()> {
        self.queue.check().await
    }

    fn reserve(&self, destination: &Destination, flow: DestinationId) -> bool {
        self.queue.reserve(destination, flow)
    }

    fn unreserve(&self, destination_id: DestinationId) {
        self.queue.unreserve(destination_id);
    }

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        self.queue.admit(deliveries);
    }

    async fn declined(&self) -> Vec<ClaimedDelivery> {
        self.queue.declined().await
    }
}

#[async_trait]
impl Permits for LostAnswers {
    async fn take(&self, max: usize) -> QueueResult<Vec<Permit>> {
        self.queue.take(max).await
    }

    async fn stop_taking(&self) -> Vec<Permit> {
        self.queue.stop_taking().await
    }

    async fn take_slot(&self, request: SlotRequest) -> QueueResult<SlotAnswer> {
        self.queue.take_slot(request).await
    }

    async fn settle(&self, settled: &[Settled]) -> QueueResult<()> {
        self.queue.settle(settled).await
    }

    fn recorded(&self, ids: &[PermitId]) {
        self.queue.recorded(ids);
    }

    async fn hand_back(&self, permits: &[HandedBack]) -> QueueResult<()> {
        self.queue.hand_back(permits).await
    }
}

impl Leases for LostAnswers {}
