//! The sweep: the store is the outbox, and whatever it holds that no job looks after gets one.
//!
//! It mends a crash between the store's commit and the wake, a queue that came back empty, and claims whose holder died. At
//! start it is how jobs come into being. What expires while nobody may claim it, expires here, and a line that has lost its head gets
//! the next.

use std::{sync::Arc, time::Duration};

use metrics::counter;
use weir_core::{Clock, Timestamp};
use weir_queue::{SharedQueue, Wake};
use weir_store::{MessageGroup, MessageGroupsRepaired, Recovered, SharedStore, Store, StoreError};

/// The time between two sweeps.
const INTERVAL: Duration = Duration::from_secs(5);
/// Sweeps that leave claims alone after one that failed, and at the start. A store that was away may have kept its workers
/// from recording until their claims expired. What they kept they record within ten seconds of its return, and only what
/// nobody records may be resolved as unknown, or it would be sent again.
const LENIENT_SWEEPS: u32 = 3;
/// Rows handled in one statement.
const PAGE: u32 = 1_000;

/// Wakes what is due and has no job; recovers claims whose holder died.
pub struct Sweeper {
    store: SharedStore,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    interval: Duration,
}

impl Sweeper {
    pub fn new(store: SharedStore, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        Self { store, queue, clock, interval: INTERVAL }
    }

    /// Sweeps at once and then every five seconds until `shutdown` resolves.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        let mut lenient = LENIENT_SWEEPS;
        let mut tended = None;
        loop {
            lenient = match self.sweep(lenient == 0, &mut tended).await {
                Ok(()) => lenient.saturating_sub(1),
                Err(error) => {
                    tracing::warn!(%error, "a sweep failed; the next one tries again");
                    LENIENT_SWEEPS
                }
            };
            tokio::select! {
                () = &mut shutdown => return,
                () = tokio::time::sleep(self.interval) => {}
            }
        }
    }

    /// `tended`: up to where lines have been looked at.
    async fn sweep(&self, recovers: bool, tended: &mut Option<MessageGroup>) -> Result<(), StoreError> {
        let now = self.clock.now();
        if let Err(error) = self.store.maintain(now).await {
            tracing::warn!(%error, "could not prepare the store for the days to come; the next sweep tries again");
        }
        if recovers {
            self.recover_expired(now).await?;
        }
        self.expire(now).await?;
        self.repair_message_groups(tended).await?;
        self.wake_due(now).await
    }

    /// Some lines in each sweep, and all of them in turn. What is not ordered any more goes at once.
    async fn repair_message_groups(&self, tended: &mut Option<MessageGroup>) -> Result<(), StoreError> {
        while self.store.dissolve_message_groups(PAGE).await? == u64::from(PAGE) {}
        let MessageGroupsRepaired { advanced, next } = self.store.repair_message_groups(tended.take(), PAGE).await?;
        *tended = next;
        if advanced > 0 {
            tracing::warn!(lines = advanced, "found lines without a head, and let the next come forward");
        }
        Ok(())
    }

    /// Before anything is woken: a destination with nothing else to send need not run for this.
    async fn expire(&self, now: Timestamp) -> Result<(), StoreError> {
        while self.store.expire_deliveries(now, PAGE).await? == u64::from(PAGE) {}
        Ok(())
    }

    async fn recover_expired(&self, now: Timestamp) -> Result<(), StoreError> {
        let recovered = recover(&*self.store, now, false).await?;
        if recovered != Recovered::default() {
            tracing::warn!(
                retried = recovered.retried,
                dead = recovered.dead,
                "recovered claims whose sender was lost"
            );
        }
        Ok(())
    }

    /// Wakes every destination with a delivery that falls due before the sweep after the next.
    async fn wake_due(&self, now: Timestamp) -> Result<(), StoreError> {
        let before = now + self.interval * 2;
        let mut after = None;
        loop {
            let page = self.store.due_destinations(before, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.destination_id);
            let wakes: Vec<_> =
                page.iter().map(|due| Wake { destination_id: due.destination_id, due: due.due }).collect();
            if let Err(error) = self.queue.wake(&wakes).await {
                tracing::warn!(%error, "could not wake destinations; the next sweep tries again");
                return Ok(());
            }
        }
    }
}

/// Resolves every claim as of unknown outcome: at start, when no other process can hold one.
pub async fn recover_all(store: &dyn Store, now: Timestamp) -> Result<Recovered, StoreError> {
    recover(store, now, true).await
}

async fn recover(store: &dyn Store, now: Timestamp, all: bool) -> Result<Recovered, StoreError> {
    let mut total = Recovered::default();
    loop {
        let recovered = store.recover_claims(now, all, PAGE).await?;
        if recovered == Recovered::default() {
            counter!("weir_claims_recovered_total").increment(total.total());
            return Ok(total);
        }
        total.retried += recovered.retried;
        total.dead += recovered.dead;
        total.cancelled += recovered.cancelled;
        total.superseded += recovered.superseded;
    }
}
