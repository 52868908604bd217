//! The in-process queue: the embedded default.
//!
//! All state is one [`JobTable`] behind a mutex that is held for microseconds and never across an await. After a
//! restart the state comes back from the store: jobs from the sweep, cursors from the recorded sends.

mod budget;
mod group;
mod held;
mod job;
mod table;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
pub use table::{Depths, JobTable};
use tokio::sync::Notify;
use weir_core::{
    Clock, Destination, DestinationId, LimitGroup, LimitGroupId, Timestamp, adaptive::Status, claim::ClaimedDelivery,
};

use crate::{
    DueJobs, GroupRun, HandedBack, Hold, Leases, Mailbox, Permit, PermitId, Permits, Publication, Published,
    QueueProgress, QueueResult, Report, ReservedSlots, Schedule, Settled, SlotAnswer, SlotRequest, TermsChange, Wake,
    WantedSlot,
};

/// The schedule, permits and delivery queue of one process.
pub struct MemoryQueue {
    table: Mutex<JobTable>,
    clock: Arc<dyn Clock>,
    /// A job may be due earlier than the scheduler expects.
    rescheduled: Notify,
    /// Permits were published.
    published: Notify,
    /// Deliveries that could not be admitted.
    declined: Mailbox<ClaimedDelivery>,
}

impl MemoryQueue {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let table = Mutex::new(JobTable::new(clock.now()));
        Self { table, clock, rescheduled: Notify::new(), published: Notify::new(), declined: Mailbox::default() }
    }

    /// Changes the table, and notifies the scheduler when the earliest due time is earlier than before.
    fn change<T>(&self, change: impl FnOnce(&mut JobTable, Timestamp) -> T) -> T {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let before = table.next_due();
        let answer = change(&mut table, now);
        let sooner = match (before, table.next_due()) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(before), Some(after)) => after < before,
        };
        // Before the notification, because the scheduler then takes the lock at once.
        drop(table);
        if sooner {
            self.rescheduled.notify_one();
        }
        answer
    }

    /// Counts for gauges.
    pub fn depths(&self) -> Depths {
        self.table.lock().depths()
    }
}

#[async_trait]
impl Schedule for MemoryQueue {
    async fn wake(&self, wakes: &[Wake]) -> QueueResult<()> {
        self.change(|table, _| wakes.iter().for_each(|&wake| table.wake(wake)));
        Ok(())
    }

    async fn edited(&self, edits: &[TermsChange]) -> QueueResult<()> {
        self.change(|table, now| edits.iter().for_each(|edit| table.edited(now, edit)));
        Ok(())
    }

    async fn edited_groups(&self, edits: &[Arc<LimitGroup>]) -> QueueResult<()> {
        self.change(|table, now| edits.iter().for_each(|edit| table.edited_group(now, edit)));
        Ok(())
    }

    async fn hold(&self, holds: &[Hold]) -> QueueResult<()> {
        self.change(|table, now| holds.iter().for_each(|&hold| table.hold(now, hold)));
        Ok(())
    }

    async fn claim_due(&self, max: usize, lease_for: Duration) -> QueueResult<DueJobs> {
        loop {
            let now = self.clock.now();
            let next_due = {
                let mut table = self.table.lock();
                let leases = table.claim_due(now, max, lease_for);
                if !leases.is_empty() {
                    return Ok(DueJobs { leases, depth: table.depth() });
                }
                table.next_due()
            };
            match next_due {
                Some(due) => {
                    // Wait for the due time, or until an earlier job is scheduled. The table is checked again in either
                    // case.
                    let _ = tokio::time::timeout(due.since(now), self.rescheduled.notified()).await;
                }
                None => self.rescheduled.notified().await,
            }
        }
    }

    async fn check(&self) -> QueueResult<()> {
        Ok(())
    }

    async fn progress(&self, ids: &[DestinationId]) -> QueueResult<QueueProgress> {
        let now = self.clock.now();
        let table = self.table.lock();
        let untaken_for = table.oldest_untaken().map_or(Duration::ZERO, |at| now.since(at));
        Ok(QueueProgress { untaken_for, of: ids.iter().map(|id| table.progress(*id, now)).collect() })
    }

    async fn paces(&self, ids: &[DestinationId]) -> QueueResult<Vec<Option<Status>>> {
        let (now, table) = (self.clock.now(), self.table.lock());
        Ok(ids.iter().map(|id| table.pace(*id, now)).collect())
    }

    async fn publish(&self, publications: Vec<Publication>) -> QueueResult<Vec<Published>> {
        let answers = self
            .change(|table, now| publications.into_iter().map(|publication| table.publish(now, publication)).collect());
        if self.table.lock().depth() > 0 {
            self.published.notify_one();
        }
        Ok(answers)
    }

    fn reserve(&self, destination: &Destination, flow: DestinationId) -> bool {
        let now = self.clock.now();
        self.table.lock().reserve(now, destination, flow)
    }

    fn unreserve(&self, flow: DestinationId) {
        self.change(|table, now| table.unreserve(now, flow));
    }

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        let declined: Vec<ClaimedDelivery> = self
            .change(|table, now| deliveries.into_iter().filter_map(|delivery| table.admit(now, delivery)).collect());
        self.published.notify_one();
        self.declined.add(declined);
    }

    async fn reserve_slots(&self, group: &GroupRun, wanted: &[WantedSlot]) -> QueueResult<ReservedSlots> {
        Ok(self.change(|table, now| table.reserve_slots(now, group, wanted)))
    }

    async fn give_back_reserved(&self, group: LimitGroupId, cost: u32, start: Timestamp) -> QueueResult<()> {
        self.change(|table, now| table.give_back_reserved(now, group, cost, start));
        Ok(())
    }

    async fn declined(&self) -> Vec<ClaimedDelivery> {
        self.declined.take().await
    }
}

#[async_trait]
impl Permits for MemoryQueue {
    async fn take(&self, max: usize) -> QueueResult<Vec<Permit>> {
        loop {
            let permits = self.table.lock().take(max);
            if !permits.is_empty() {
                return Ok(permits);
            }
            self.published.notified().await;
        }
    }

    async fn stop_taking(&self) -> Vec<Permit> {
        self.table.lock().close()
    }

    async fn take_slot(&self, request: SlotRequest) -> QueueResult<SlotAnswer> {
        Ok(self.change(|table, now| table.take_slot(now, request)))
    }

    async fn settle(&self, settled: &[Settled]) -> QueueResult<()> {
        self.change(|table, now| settled.iter().for_each(|&settled| table.settle(now, settled)));
        Ok(())
    }

    async fn report(&self, reports: &[Report]) -> QueueResult<()> {
        self.change(|table, now| reports.iter().for_each(|report| table.report(now, report)));
        Ok(())
    }

    fn recorded(&self, _: &[PermitId]) {}

    async fn hand_back(&self, permits: &[HandedBack]) -> QueueResult<()> {
        self.change(|table, now| permits.iter().for_each(|&permit| table.hand_back(now, permit)));
        Ok(())
    }
}

impl Leases for MemoryQueue {}
