//! Replays: moves ended deliveries back to the backlog in small steps, and wakes their destinations.
//!
//! A step is one short transaction of the store that saves its progress, so any process may take the next step, and a
//! process may die at any time. Every scheduler process runs this loop, because each must know which destinations have
//! replays.

use std::{sync::Arc, time::Duration};

use weir_core::{Backoff, Clock, DestinationId, Timestamp};
use weir_queue::{SharedQueue, Wake};
use weir_store::{RunStore, StoreError};

use crate::{
    replay_shares::ReplayShares,
    run_every::{Agent, run_every},
    scheduler::Scheduler,
};

/// The time between two checks while there is nothing to move. A replay begins within this time.
const INTERVAL: Duration = Duration::from_millis(250);
/// The pause between two steps, so that most of the store's time is left for deliveries. Shorter than the pause of the
/// retention, because a person waits for a replay.
const PAUSE: Duration = Duration::from_millis(20);
/// The time after which every process knows that a destination has a replay: two of its checks. The run of a flow that
/// another process makes before may claim live deliveries only, so these flows are woken once more then.
const OTHERS_KNOW: Duration = Duration::from_millis(500);
/// The most flows that are woken once more. The sweep finds the others.
const WOKEN_AGAIN: usize = 10_000;
/// How often every destination with replays is woken, in case earlier wakes were lost. As often as the sweep wakes the
/// others.
const WAKE_ALL: Duration = Duration::from_secs(5);

/// Takes the steps of replays.
pub struct Replayer {
    store: Arc<dyn RunStore>,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    replay_shares: Arc<ReplayShares>,
    backoff: Backoff,
    /// When all destinations with replays were last woken.
    woken: Timestamp,
    /// The flows to wake once more, and when.
    again: (Timestamp, Vec<DestinationId>),
}

impl Replayer {
    /// The runs of `scheduler` learn from this replayer which destinations have replays.
    pub fn new(store: Arc<dyn RunStore>, queue: SharedQueue, clock: Arc<dyn Clock>, scheduler: &Scheduler) -> Self {
        let woken = clock.now();
        let (replay_shares, backoff) = (scheduler.replay_shares(), Backoff::default());
        Self { store, queue, clock, replay_shares, backoff, woken, again: (woken, Vec::new()) }
    }

    /// Takes steps until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run_every(INTERVAL, shutdown, self).await;
    }

    /// Takes one step of each replay. Returns whether there is more to move at once.
    async fn step(&mut self, wake_all: bool) -> Result<bool, StoreError> {
        let open = self.store.open_replays().await?;
        let now = self.clock.now();
        let mut more = false;
        let mut failed = None;
        for id in &open {
            // A failing replay must not stop the others.
            let step = match self.store.step_replay(*id, now).await {
                Ok(step) => step,
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            // Tell the runs of the replay before the wake: a run that does not know of it claims live deliveries only.
            if self.replay_shares.add(&step.wake) {
                self.again.0 = now + OTHERS_KNOW;
            }
            self.wake(&step.wake, now).await;
            // The wake of a destination does not reach the flows of its limit keys.
            self.wake(&step.flows, now).await;
            let (until, again) = &mut self.again;
            if now < *until {
                again.extend(step.flows.into_iter().take(WOKEN_AGAIN.saturating_sub(again.len())));
            }
            more |= step.more;
        }
        if self.again.0 <= now {
            let again = std::mem::take(&mut self.again.1);
            self.wake(&again, now).await;
        }
        // The list from the store also has the replays that other processes move, and no longer those that have ended.
        let destinations = if open.is_empty() { Vec::new() } else { self.store.replay_destinations().await? };
        let new = self.replay_shares.replace(&destinations);
        // Destinations that this process did not know are woken at once.
        self.wake(if wake_all { &destinations } else { &new }, now).await;
        // A failure is reported after every replay has had its step.
        failed.map_or(Ok(more), Err)
    }

    async fn wake(&self, ids: &[DestinationId], due: Timestamp) {
        if ids.is_empty() {
            return;
        }
        let wakes: Vec<_> = ids.iter().map(|&destination_id| Wake { destination_id, due }).collect();
        if let Err(error) = self.queue.wake(&wakes).await {
            tracing::warn!(%error, "could not wake destinations with replays; they are woken again within seconds");
        }
    }
}

impl Agent for Replayer {
    async fn make_pass(&mut self) {
        loop {
            // Any wake may be lost, so all destinations with replays are woken from time to time.
            let now = self.clock.now();
            let wake_all = now.since(self.woken) >= WAKE_ALL;
            if wake_all {
                self.woken = now;
            }
            match self.step(wake_all).await {
                Ok(more) => {
                    self.backoff.reset();
                    if !more {
                        return;
                    }
                    // A short pause, which leaves the store to deliveries.
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => {
                    let delay = self.backoff.fail();
                    tracing::warn!(%error, retry_in_ms = delay.as_millis(), "a step of a replay failed");
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }
}
