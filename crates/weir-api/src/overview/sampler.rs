//! Takes samples one at a time, and keeps the latest.

use std::{sync::Arc, time::Duration};

use parking_lot::RwLock;
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep_until},
};
use weir_core::{Clock, stall::StallReport};
use weir_queue::SharedQueue;
use weir_store::{SharedStore, StoreResult};

use super::sample::Sample;

/// The longest time for which requests share a sample.
pub(super) const SHARED_AT_MOST: Duration = Duration::from_secs(1);

/// Takes samples, and keeps the latest.
pub(super) struct Sampler {
    store: SharedStore,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    stalls: watch::Receiver<Arc<StallReport>>,
    latest: RwLock<Option<Arc<Sample>>>,
    /// Held while a sample is taken.
    taking: Mutex<()>,
}

impl Sampler {
    pub(super) fn new(
        store: SharedStore,
        queue: SharedQueue,
        clock: Arc<dyn Clock>,
        stalls: watch::Receiver<Arc<StallReport>>,
    ) -> Self {
        Self { store, queue, clock, stalls, latest: RwLock::default(), taking: Mutex::default() }
    }

    pub(super) fn latest(&self) -> Option<Arc<Sample>> {
        self.latest.read().clone()
    }

    /// What the watch over stalls found last.
    pub(super) fn stalls(&self) -> Arc<StallReport> {
        Arc::clone(&self.stalls.borrow())
    }

    /// The latest sample if it began after this call or serves the caller, otherwise a new one. Of calls at the same
    /// time one takes the sample, and the others wait for it.
    pub(super) async fn renewed(&self, serves: impl Fn(&Sample) -> bool) -> StoreResult<Arc<Sample>> {
        let asked = Instant::now();
        let _taking = self.taking.lock().await;
        let last = self.latest();
        if let Some(last) = &last {
            if last.began > asked || serves(last) {
                return Ok(Arc::clone(last));
            }
            // Whoever changes and looks without pause spends about half of the time with sampling.
            sleep_until(last.began + last.took + last.took.min(SHARED_AT_MOST)).await;
        }
        let sources = (&*self.store, &self.queue);
        let sample = Arc::new(Sample::take(sources, self.clock.now(), &self.stalls(), last.as_deref()).await?);
        *self.latest.write() = Some(Arc::clone(&sample));
        Ok(sample)
    }
}
