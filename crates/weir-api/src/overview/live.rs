//! Takes samples when somebody looks, and shares them.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use weir_core::{Clock, shed::Class, stall::StallReport};
use weir_queue::SharedQueue;
use weir_store::{SharedStore, StoreResult};

use super::{
    broadcast::{Broadcasts, Samples},
    recent::Recent,
    sample::Sample,
    sampler::{SHARED_AT_MOST, Sampler},
};
use crate::{
    auth::Sharer,
    fair_share::{FairShare, Seat},
};

/// The open streams of a process. A page has one, and each sends up to 200 rows a second, so this is more than the
/// people of one installation need, and costs at most about 20 MB/s.
const MAX_STREAMS: usize = 100;

/// A sample is shared for ten times as long as it took, so that requests spend at most a tenth of the time with
/// sampling.
const SHARED_FOR_COSTS: u32 = 10;
/// A sample that took longer than this is too slow for a request to wait for. The request gets the last sample, up to
/// [`STALE`] old, while the next one is taken.
const SLOW: Duration = Duration::from_millis(20);
const STALE: Duration = Duration::from_secs(2);

/// The samples of a process, and the streams that show them.
pub struct LiveOverview {
    sampler: Arc<Sampler>,
    broadcasts: Broadcasts,
    seats: FairShare,
    /// When people last changed something through this process.
    changed: watch::Sender<Option<Instant>>,
    stops: watch::Receiver<bool>,
    /// What happened in the last half hour.
    pub(crate) recent: Recent,
}

impl LiveOverview {
    /// Takes no sample until somebody looks. Streams end when `stops` becomes true: an open stream would otherwise
    /// delay the end of the process.
    pub fn new(
        store: SharedStore,
        queue: SharedQueue,
        clock: Arc<dyn Clock>,
        stalls: watch::Receiver<Arc<StallReport>>,
        stops: watch::Receiver<bool>,
    ) -> Self {
        Self {
            sampler: Arc::new(Sampler::new(store, queue, clock, stalls)),
            broadcasts: Broadcasts::default(),
            seats: FairShare::new("streams", Class::Read, MAX_STREAMS),
            changed: watch::Sender::new(None),
            stops,
            recent: Recent::default(),
        }
    }

    /// A sample for a request. It shows every change that people made through this process before the request.
    pub(crate) async fn sample(&self) -> StoreResult<Arc<Sample>> {
        let changed = *self.changed.borrow();
        let shows_changes = |sample: &Sample| Some(sample.began) > changed;
        let Some(latest) = self.sampler.latest() else { return self.new_sample().await };
        if !shows_changes(&latest) {
            return self.sampler.renewed(shows_changes).await;
        }
        let shared_for = (latest.took * SHARED_FOR_COSTS).min(SHARED_AT_MOST);
        let is_shared = move |sample: &Sample| sample.age() <= shared_for;
        match latest.age() {
            age if age <= shared_for => Ok(latest),
            age if latest.took > SLOW && age <= STALE => {
                let sampler = Arc::clone(&self.sampler);
                // If it fails, the next request waits for a sample and gets the error.
                tokio::spawn(async move { sampler.renewed(is_shared).await });
                Ok(latest)
            }
            _ => self.sampler.renewed(is_shared).await,
        }
    }

    /// A sample that begins after this call.
    pub(crate) async fn new_sample(&self) -> StoreResult<Arc<Sample>> {
        self.sampler.renewed(|_| false).await
    }

    /// People changed something through this process: the next request shows the change, and the streams show it soon,
    /// not only at the next second.
    pub(crate) fn changed(&self) {
        self.changed.send_replace(Some(Instant::now()));
    }

    /// Opens a stream. `None`: too many are open, of all keys or of this one.
    pub(crate) fn open_stream(&self, sharer: Sharer) -> Option<(Seat, Samples)> {
        let seat = self.seats.take_now(sharer)?;
        Some((seat, self.broadcasts.join(&self.sampler, &self.changed)))
    }

    /// What the watch over stalls of this process found last.
    pub(crate) fn stalls(&self) -> Arc<StallReport> {
        self.sampler.stalls()
    }

    /// Resolves when streams must end.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stops = self.stops.clone();
        async move {
            // The sender is dropped with the process's engine: end then, too.
            let _ = stops.wait_for(|stop| *stop).await;
        }
    }
}
