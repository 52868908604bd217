//! The sweep: the store is the outbox, and every due delivery in it gets a job.
//!
//! The sweep repairs the effects of a crash between the store's commit and the wake, of a queue that lost its data, and
//! of claims whose holder died. At the start of the process it creates the jobs. It ends deliveries that expire while
//! their destinations cannot claim them, and gives a new head to message groups that have lost theirs.

use std::{sync::Arc, time::Duration};

use metrics::counter;
use tokio::time::Instant;
use weir_core::{Clock, DestinationId, Timestamp};
use weir_queue::{SharedQueue, Wake};
use weir_store::{DueDestination, MessageGroup, MessageGroupsRepaired, Recovered, StoreError, SweepStore};

use crate::run_every::{Agent, run_every};

/// The time between two sweeps. What only a sweep finds must be under way within ten seconds of a crash, also when it
/// has just missed one sweep.
const INTERVAL: Duration = Duration::from_secs(5);
/// How many sweeps recover no claims at the start and after a failed sweep. While the store is unavailable, workers
/// cannot record their attempts, and the claims expire. The workers record their attempts within ten seconds after the
/// store is available again. Only claims whose attempts no worker will record may be resolved as unknown. The other
/// deliveries would be sent twice.
const LENIENT_SWEEPS: u32 = 3;
/// If the engine's time has passed by so much more than this process has waited, a clock has jumped. The workers then
/// need a sweep or two to renew their claims.
const CLOCK_JUMP: Duration = Duration::from_secs(5);
/// Rows handled in one statement, so that none holds its locks for long.
const PAGE: u32 = 1_000;

/// Wakes destinations with due deliveries; recovers claims whose holder died.
pub struct Sweeper {
    store: Arc<dyn SweepStore>,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    /// How many sweeps will recover no claims.
    lenient_sweeps: u32,
    /// Where the next check of message groups begins.
    next_group: Option<MessageGroup>,
    /// When the last sweep began, by the engine's time and by that of this process.
    swept_at: (Timestamp, Instant),
}

impl Sweeper {
    pub fn new(store: Arc<dyn SweepStore>, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        let swept_at = (clock.now(), Instant::now());
        Self { store, queue, clock, lenient_sweeps: LENIENT_SWEEPS, next_group: None, swept_at }
    }

    /// Sweeps at once and then every five seconds until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run_every(INTERVAL, shutdown, self).await;
    }

    async fn sweep(&mut self) -> Result<(), StoreError> {
        let now = self.clock.now();
        if let Err(error) = self.store.maintain(now).await {
            tracing::warn!(%error, "could not prepare the store for the days to come; the next sweep tries again");
        }
        if self.lenient_sweeps == 0 {
            self.recover_expired(now).await?;
        }
        self.expire(now).await?;
        self.repair_message_groups().await?;
        self.wake_due(now).await
    }

    /// Checks some message groups in each sweep, all of them in turn. Dissolves those of destinations that are no
    /// longer ordered.
    async fn repair_message_groups(&mut self) -> Result<(), StoreError> {
        while self.store.dissolve_message_groups(PAGE).await? == u64::from(PAGE) {}
        let MessageGroupsRepaired { advanced, next } =
            self.store.repair_message_groups(self.next_group.take(), PAGE).await?;
        self.next_group = next;
        if advanced > 0 {
            tracing::warn!(message_groups = advanced, "found message groups without a head, and advanced them");
        }
        Ok(())
    }

    /// Ends expired deliveries. Called before the wakes, so that a destination without other deliveries is not woken.
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

    /// Wakes every destination, and every flow of a limit key, with a delivery that becomes due before the sweep after the
    /// next.
    async fn wake_due(&self, now: Timestamp) -> Result<(), StoreError> {
        // Wakes for the near future too, so that those jobs run on time and not with a sweep.
        let before = now + INTERVAL * 2;
        let mut after = None;
        while let Some(last) = self.wake_all(self.store.due_destinations(before, after, PAGE).await?).await {
            after = Some(last);
        }
        let mut after = None;
        while let Some(last) = self.wake_all(self.store.due_flows(before, after, PAGE).await?).await {
            after = Some(last);
        }
        Ok(())
    }

    /// Wakes a page. Returns its last id; `None` if it is empty or could not be woken.
    async fn wake_all(&self, page: Vec<DueDestination>) -> Option<DestinationId> {
        let last = page.last()?.destination_id;
        for due in &page {
            self.queue.learn_group(due.destination_id, due.limit_group);
        }
        let wakes: Vec<_> = page.iter().map(|due| Wake { destination_id: due.destination_id, due: due.due }).collect();
        match self.queue.wake(&wakes).await {
            Ok(()) => Some(last),
            Err(error) => {
                tracing::warn!(%error, "could not wake destinations; the next sweep tries again");
                None
            }
        }
    }
}

impl Agent for Sweeper {
    async fn make_pass(&mut self) {
        // Claims expire by elapsed time: a clock that jumps recovers none.
        let (before, waited_since) = std::mem::replace(&mut self.swept_at, (self.clock.now(), Instant::now()));
        if self.swept_at.0.since(before) > waited_since.elapsed() + CLOCK_JUMP {
            self.lenient_sweeps = LENIENT_SWEEPS;
        }
        // After a failed sweep the store may have been unavailable, so the next sweeps recover no claims.
        self.lenient_sweeps = match self.sweep().await {
            Ok(()) => self.lenient_sweeps.saturating_sub(1),
            Err(error) => {
                tracing::warn!(%error, "a sweep failed; the next one tries again");
                LENIENT_SWEEPS
            }
        };
    }
}

/// Resolves every claim as an attempt of unknown outcome. Call it at the start, when no other process can hold a claim.
pub async fn recover_all(store: &dyn SweepStore, now: Timestamp) -> Result<Recovered, StoreError> {
    recover(store, now, true).await
}

async fn recover(store: &dyn SweepStore, now: Timestamp, all: bool) -> Result<Recovered, StoreError> {
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
