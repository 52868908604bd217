//! Records what ended, in batches: the store first, then the queue.
//!
//! While one batch commits, the next gathers. What is finished is kept and recorded when a failed store is back; nothing
//! that was sent is forgotten while the process lives.

use std::{sync::Arc, time::Duration};

use metrics::counter;
use tokio::sync::mpsc;
use weir_core::{
    Clock, Timestamp,
    outcome::{Effect, Verdict},
};
use weir_queue::{Edit, PermitId, SharedQueue, Wake};
use weir_store::{Settlement, SharedStore};

use crate::attempt::{Finished, Unsent};

/// Recorded in one commit.
const BATCH: usize = 1_024;
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

enum Ending {
    Finished(Finished),
    Unsent(Unsent),
    /// Nothing that comes after is recorded.
    Last,
}

/// Where attempts report how they ended.
#[derive(Clone)]
pub(crate) struct Recording(mpsc::UnboundedSender<Ending>);

impl Recording {
    // The channel is bounded by the number of attempts under way, and closed only after the last of them was recorded or
    // given up as unknown: a failed send needs no handling.
    pub(crate) fn finished(&self, finished: Finished) {
        let _ = self.0.send(Ending::Finished(finished));
    }

    pub(crate) fn unsent(&self, unsent: impl IntoIterator<Item = Unsent>) {
        for unsent in unsent {
            let _ = self.0.send(Ending::Unsent(unsent));
        }
    }

    pub(crate) fn finish(&self) {
        let _ = self.0.send(Ending::Last);
    }
}

/// Settles attempts and releases unused permits.
pub(crate) struct Recorder {
    store: SharedStore,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    endings: mpsc::UnboundedReceiver<Ending>,
}

impl Recorder {
    pub(crate) fn new(store: SharedStore, queue: SharedQueue, clock: Arc<dyn Clock>) -> (Recording, Self) {
        let (sender, endings) = mpsc::unbounded_channel();
        (
            Recording(sender),
            Self {
                store,
                queue,
                clock,
                endings,
            },
        )
    }

    pub(crate) async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        while self.endings.recv_many(&mut batch, BATCH).await > 0 {
            let (mut finished, mut unsent, mut last) = (Vec::new(), Vec::new(), false);
            for ending in batch.drain(..) {
                match ending {
                    Ending::Finished(ended) => finished.push(ended),
                    Ending::Unsent(ended) => unsent.push(ended),
                    Ending::Last => last = true,
                }
            }
            self.settle(finished).await;
            self.release(unsent).await;
            if last {
                return;
            }
        }
    }

    async fn settle(&self, finished: Vec<Finished>) {
        if finished.is_empty() {
            return;
        }
        self.restrain(&finished).await;
        let results: Vec<_> = finished.iter().map(|ended| ended.result.clone()).collect();
        let settlements = persist("record attempts", || self.store.settle(results.clone())).await;
        let lost = settlements
            .iter()
            .filter(|settlement| **settlement == Settlement::ClaimLost)
            .count();
        if lost > 0 {
            counter!("weir_claims_lost_total").increment(lost as u64);
            tracing::warn!(lost, "attempts ended after their claims had been recovered");
        }
        let ids: Vec<_> = finished.iter().map(|ended| ended.permit).collect();
        let retries: Vec<_> = finished.iter().filter_map(retry_wake).collect();
        self.tell_queue(&ids, &retries).await;
    }

    async fn release(&self, unsent: Vec<Unsent>) {
        if unsent.is_empty() {
            return;
        }
        let now = self.clock.now();
        let claims: Vec<_> = unsent.iter().map(|ended| ended.claim).collect();
        persist("release claims", || self.store.release(claims.clone(), now)).await;
        let ids: Vec<_> = unsent.iter().map(|ended| ended.permit).collect();
        let wakes: Vec<_> = unsent
            .iter()
            .map(|ended| Wake {
                destination_id: ended.claim.destination_id,
                due: now,
            })
            .collect();
        self.tell_queue(&ids, &wakes).await;
    }

    /// Permits leave the queue after the store knows; the queue is a cache, so a failure here is mended by expiry and sweep.
    async fn tell_queue(&self, ids: &[PermitId], wakes: &[Wake]) {
        let told = match self.queue.settle(ids).await {
            Ok(()) if wakes.is_empty() => Ok(()),
            Ok(()) => self.queue.wake(wakes).await,
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            tracing::warn!(%error, "could not tell the queue what ended; permits expire and the sweep wakes");
        }
    }

    /// Holds and pauses at once, before anything is recorded: the next send must not slip through.
    async fn restrain(&self, finished: &[Finished]) {
        for ended in finished {
            let id = ended.result.claim.destination_id;
            match ended.effect {
                Effect::None => {}
                Effect::HoldUntil(until) => {
                    if let Err(error) = self.queue.hold(id, until).await {
                        tracing::warn!(destination = %id, %error, "could not hold the destination in the queue");
                    }
                    persist("hold a destination", || {
                        self.store.hold_destination(id, until, &ended.reason)
                    })
                    .await;
                }
                Effect::Pause => {
                    let now = self.clock.now();
                    persist("pause a destination", || {
                        self.store.pause_destination(id, &ended.reason, now)
                    })
                    .await;
                    tracing::warn!(destination = %id, reason = ended.reason, "paused a destination");
                    if let Err(error) = self
                        .queue
                        .edited(&[Edit {
                            destination_id: id,
                            suspended: true,
                        }])
                        .await
                    {
                        tracing::warn!(destination = %id, %error, "could not withdraw the destination's permits");
                    }
                }
            }
        }
    }
}

fn retry_wake(ended: &Finished) -> Option<Wake> {
    let due: Timestamp = match ended.result.verdict {
        Verdict::Retry { at } => at,
        Verdict::Delivered | Verdict::Failed | Verdict::Dead => return None,
    };
    Some(Wake {
        destination_id: ended.result.claim.destination_id,
        due,
    })
}

/// Repeats a write until the store takes it. Each of these writes names the claim it expects, so repeating one whose outcome
/// is unknown changes nothing twice.
async fn persist<T, F, Fut>(what: &'static str, mut write: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = weir_store::StoreResult<T>>,
{
    let mut delay = FIRST_RETRY;
    loop {
        match write().await {
            Ok(answer) => return answer,
            Err(error) => tracing::error!(%error, what, "the store failed; trying again"),
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(LONGEST_RETRY);
    }
}
