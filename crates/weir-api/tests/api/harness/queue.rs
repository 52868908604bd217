//! The queue of the tested server: it records what the API tells it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use weir_core::{Destination, DestinationId, LimitGroup, Timestamp, adaptive::Status, claim::ClaimedDelivery};
use weir_queue::{
    DueJobs, HandedBack, Hold, Leases, Permit, PermitId, Permits, Publication, Published, QueueError, QueueProgress,
    QueueResult, Schedule, Settled, SlotAnswer, SlotRequest, TermsChange, Wake,
};

/// A queue that records its calls, and fails or hangs if a test demands it.
#[derive(Default)]
pub(crate) struct RecordingQueue {
    wakes: Mutex<Vec<Wake>>,
    edits: Mutex<Vec<TermsChange>>,
    group_edits: Mutex<Vec<Arc<LimitGroup>>>,
    condition: Mutex<Condition>,
    paces: Mutex<HashMap<DestinationId, Status>>,
}

#[derive(Default, Clone, Copy)]
enum Condition {
    #[default]
    Sound,
    Broken,
    Hanging,
}

impl RecordingQueue {
    /// The destinations woken since the last call.
    pub(crate) fn woken(&self) -> Vec<DestinationId> {
        std::mem::take(&mut *self.wakes.lock().unwrap()).into_iter().map(|wake| wake.destination_id).collect()
    }

    /// The destinations woken since the last call, with their due times.
    pub(crate) fn wakes(&self) -> Vec<(DestinationId, Timestamp)> {
        let wakes = std::mem::take(&mut *self.wakes.lock().unwrap());
        wakes.into_iter().map(|wake| (wake.destination_id, wake.due)).collect()
    }

    /// The edits announced since the last call.
    pub(crate) fn edited(&self) -> Vec<TermsChange> {
        std::mem::take(&mut self.edits.lock().unwrap())
    }

    /// The edits of limit groups announced since the last call.
    pub(crate) fn edited_groups(&self) -> Vec<Arc<LimitGroup>> {
        std::mem::take(&mut self.group_edits.lock().unwrap())
    }

    /// Lets a destination have this pace.
    pub(crate) fn pace(&self, id: DestinationId, pace: Status) {
        self.paces.lock().unwrap().insert(id, pace);
    }

    pub(crate) fn break_down(&self) {
        *self.condition.lock().unwrap() = Condition::Broken;
    }

    pub(crate) fn hang(&self) {
        *self.condition.lock().unwrap() = Condition::Hanging;
    }

    async fn answer(&self) -> QueueResult<()> {
        let condition = *self.condition.lock().unwrap();
        match condition {
            Condition::Sound => Ok(()),
            Condition::Broken => Err(QueueError::NotSent("broken".to_owned())),
            Condition::Hanging => std::future::pending().await,
        }
    }
}

fn not_used<T>() -> QueueResult<T> {
    Err(QueueError::Refused("the API does not use this".to_owned()))
}

#[async_trait]
impl Schedule for RecordingQueue {
    async fn check(&self) -> QueueResult<()> {
        Ok(())
    }

    async fn progress(&self, _: &[DestinationId]) -> QueueResult<QueueProgress> {
        not_used()
    }

    async fn paces(&self, ids: &[DestinationId]) -> QueueResult<Vec<Option<Status>>> {
        self.answer().await?;
        let paces = self.paces.lock().unwrap();
        Ok(ids.iter().map(|id| paces.get(id).cloned()).collect())
    }

    async fn wake(&self, wakes: &[Wake]) -> QueueResult<()> {
        self.wakes.lock().unwrap().extend_from_slice(wakes);
        self.answer().await
    }

    async fn edited(&self, edits: &[TermsChange]) -> QueueResult<()> {
        self.edits.lock().unwrap().extend_from_slice(edits);
        self.answer().await
    }

    async fn edited_groups(&self, edits: &[Arc<LimitGroup>]) -> QueueResult<()> {
        self.group_edits.lock().unwrap().extend_from_slice(edits);
        self.answer().await
    }

    async fn hold(&self, _: &[Hold]) -> QueueResult<()> {
        not_used()
    }

    async fn claim_due(&self, _: usize, _: Duration) -> QueueResult<DueJobs> {
        not_used()
    }

    async fn publish(&self, _: Vec<Publication>) -> QueueResult<Vec<Published>> {
        not_used()
    }

    fn reserve(&self, _: &Destination, _: DestinationId) -> bool {
        false
    }

    fn unreserve(&self, _: DestinationId) {}

    fn admit(&self, _: Vec<ClaimedDelivery>) {}

    async fn declined(&self) -> Vec<ClaimedDelivery> {
        std::future::pending().await
    }
}

#[async_trait]
impl Permits for RecordingQueue {
    async fn take(&self, _: usize) -> QueueResult<Vec<Permit>> {
        not_used()
    }

    async fn stop_taking(&self) -> Vec<Permit> {
        Vec::new()
    }

    async fn take_slot(&self, _: SlotRequest) -> QueueResult<SlotAnswer> {
        not_used()
    }

    async fn settle(&self, _: &[Settled]) -> QueueResult<()> {
        not_used()
    }

    fn recorded(&self, _: &[PermitId]) {}

    async fn hand_back(&self, _: &[HandedBack]) -> QueueResult<()> {
        not_used()
    }
}

impl Leases for RecordingQueue {}
