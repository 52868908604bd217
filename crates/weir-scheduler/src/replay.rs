//! Replays, step by step: what had ended is moved into its lane a little at a time, and the lanes are woken.
//!
//! A step is one short transaction of the store that writes down where it has got to, so it matters neither which process takes
//! it nor where one dies. Every scheduler process runs this, because each must know which destinations have a lane.

use std::{sync::Arc, time::Duration};

use weir_core::{Clock, DestinationId, Timestamp};
use weir_queue::{SharedQueue, Wake};
use weir_store::{SharedStore, StoreError};

use crate::{Backoff, replay_shares::ReplayShares, scheduler::Scheduler};

/// The time between two looks while there is nothing to move.
const INTERVAL: Duration = Duration::from_millis(250);
/// Between two steps. Deliveries have the store for themselves most of the time.
const PAUSE: Duration = Duration::from_millis(20);
/// How often every lane is woken, whatever became of the wakes before.
const WAKE_ALL: Duration = Duration::from_secs(5);

/// Takes the steps of replays.
pub struct Replayer {
    store: SharedStore,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    replay_shares: Arc<ReplayShares>,
}

impl Replayer {
    /// For the runs of this scheduler, which learn from it what lanes there are.
    pub fn new(store: SharedStore, queue: SharedQueue, clock: Arc<dyn Clock>, scheduler: &Scheduler) -> Self {
        Self { store, queue, clock, replay_shares: scheduler.replay_shares() }
    }

    /// Until `shutdown` resolves. May be broken off anywhere.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        let mut backoff = Backoff::default();
        let mut woken = self.clock.now();
        loop {
            let now = self.clock.now();
            let wake_all = now.since(woken) >= WAKE_ALL;
            if wake_all {
                woken = now;
            }
            let pause = tokio::select! {
                () = &mut shutdown => return,
                stepped = self.step(wake_all) => match stepped {
                    Ok(more) => {
                        backoff.reset();
                        if more { PAUSE } else { INTERVAL }
                    }
                    Err(error) => {
                        let delay = backoff.fail();
                        tracing::warn!(%error, retry_in_ms = delay.as_millis(), "a step of a replay failed");
                        delay
                    }
                },
            };
            tokio::select! {
                () = &mut shutdown => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One step of each replay. Answers whether there is more to do at once.
    async fn step(&self, wake_all: bool) -> Result<bool, StoreError> {
        let open = self.store.open_replays().await?;
        let now = self.clock.now();
        let mut more = false;
        let mut failed = None;
        for id in &open {
            // One that fails must not keep the others from going on.
            let step = match self.store.step_replay(*id, now).await {
                Ok(step) => step,
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            self.replay_shares.add(&step.wake);
            self.wake(&step.wake, now).await;
            more |= step.more;
        }
        let lanes = if open.is_empty() { Vec::new() } else { self.store.replay_destinations().await? };
        let new = self.replay_shares.replace(&lanes);
        self.wake(if wake_all { &lanes } else { &new }, now).await;
        failed.map_or(Ok(more), Err)
    }

    async fn wake(&self, ids: &[DestinationId], due: Timestamp) {
        if ids.is_empty() {
            return;
        }
        let wakes: Vec<_> = ids.iter().map(|&destination_id| Wake { destination_id, due }).collect();
        if let Err(error) = self.queue.wake(&wakes).await {
            tracing::warn!(%error, "could not wake the lanes of replays; they are woken again");
        }
    }
}
