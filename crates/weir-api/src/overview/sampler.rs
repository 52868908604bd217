//! Takes samples when somebody looks, and shares them.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::{
    sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};
use weir_core::{ApiKeyId, Clock};
use weir_store::{SharedStore, StoreResult};

use super::sample::Sample;

/// How often a stream shows a new sample. The instants are the whole seconds since the first one.
const STREAM_INTERVAL: Duration = Duration::from_secs(1);
/// A stream shares a sample up to this age: half of the interval, so that a stream that is a little late shares, too.
const SHARED_FOR: Duration = Duration::from_millis(500);
/// A sample is shared for ten times as long as it took, so that requests spend at most a tenth of the time with
/// sampling.
const SHARED_FOR_COSTS: u32 = 10;
/// Streams take the next sample no sooner than after this many times the time of one. So those that look cost less than
/// a tenth of one core, and 10,000 destinations with backlogs are still shown every one or two seconds.
const STREAMS_PAUSE_COSTS: u32 = 10;
/// A sample that took longer than this is too slow for a request to wait for. The request gets the last sample, up to
/// [`STALE`] old, while the next one is taken.
const SLOW: Duration = Duration::from_millis(20);
const STALE: Duration = Duration::from_secs(2);
/// The open streams of a process. A page has one, and each sends up to 200 rows a second, so this is more than the
/// people of one installation need, and costs at most about 20 MB/s.
const MAX_STREAMS: usize = 100;
/// The open streams of one stored key, so that a key of one tenant cannot take the places of all others. The people
/// behind one key share them.
const MAX_STREAMS_OF_KEY: usize = 25;

/// The samples of a process, and the streams that show them.
pub struct LiveOverview {
    sampler: Arc<Sampler>,
    streams: Arc<Semaphore>,
    streams_by_key: StreamsByKey,
    stops: watch::Receiver<bool>,
    /// Streams show samples at this instant and each second after it.
    first_instant: Instant,
}

struct Sampler {
    store: SharedStore,
    clock: Arc<dyn Clock>,
    latest: RwLock<Option<Arc<Sample>>>,
    /// Held while a sample is taken.
    taking: Mutex<()>,
}

impl LiveOverview {
    /// Takes no sample until somebody looks. Streams end when `stops` becomes true: an open stream would otherwise
    /// delay the end of the process.
    pub fn new(store: SharedStore, clock: Arc<dyn Clock>, stops: watch::Receiver<bool>) -> Self {
        let sampler = Sampler { store, clock, latest: RwLock::default(), taking: Mutex::default() };
        Self {
            sampler: Arc::new(sampler),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            streams_by_key: StreamsByKey::default(),
            stops,
            first_instant: Instant::now(),
        }
    }

    /// A sample for a request.
    pub(crate) async fn sample(&self) -> StoreResult<Arc<Sample>> {
        let Some(latest) = self.sampler.latest() else { return self.sampler.renewed(Duration::ZERO).await };
        let shared_for = (latest.took * SHARED_FOR_COSTS).min(STREAM_INTERVAL);
        match latest.age() {
            age if age <= shared_for => Ok(latest),
            age if latest.took > SLOW && age <= STALE => {
                let sampler = Arc::clone(&self.sampler);
                // If it fails, the next request waits for a sample and gets the error.
                tokio::spawn(async move { sampler.renewed(shared_for).await });
                Ok(latest)
            }
            _ => self.sampler.renewed(shared_for).await,
        }
    }

    /// A sample that begins after this call.
    pub(crate) async fn new_sample(&self) -> StoreResult<Arc<Sample>> {
        self.sampler.renewed(Duration::ZERO).await
    }

    /// A sample for a stream.
    pub(crate) async fn shared_sample(&self) -> StoreResult<Arc<Sample>> {
        self.sampler.renewed(SHARED_FOR).await
    }

    /// When a stream that has shown a sample shows the next one: at the same instants as all others, a second apart,
    /// whoever takes samples between them.
    pub(crate) fn next_after(&self, sample: &Sample, shown_at: Instant) -> Instant {
        let earliest = (sample.began + sample.cost * STREAMS_PAUSE_COSTS).max(shown_at + STREAM_INTERVAL / 2);
        let after_an_instant = earliest.saturating_duration_since(self.first_instant).subsec_nanos();
        earliest + STREAM_INTERVAL - Duration::from_nanos(after_an_instant.into())
    }

    /// The place of a stream, until it is dropped. The error says why there is none. `key`: the stored key that opens
    /// it; keys of the settings, which cannot be told apart, may open all.
    pub(crate) fn open_stream(&self, key: Option<ApiKeyId>) -> Result<StreamPlace, String> {
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        let permit = permit.map_err(|_| "too many streams are open; close one, or try again".to_owned())?;
        let Some(key) = key else { return Ok(StreamPlace { of_key: None, _permit: permit }) };
        let mut open = self.streams_by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let of_key = open.entry(key).or_default();
        if *of_key >= MAX_STREAMS_OF_KEY {
            return Err(format!("this key has {MAX_STREAMS_OF_KEY} open streams, the most for one key; close one"));
        }
        *of_key += 1;
        Ok(StreamPlace { of_key: Some((key, Arc::clone(&self.streams_by_key))), _permit: permit })
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

/// How many streams each stored key has open; no entry without one.
type StreamsByKey = Arc<std::sync::Mutex<HashMap<ApiKeyId, usize>>>;

/// The place of an open stream.
pub(crate) struct StreamPlace {
    of_key: Option<(ApiKeyId, StreamsByKey)>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let Some((key, open)) = &self.of_key else { return };
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_key) = open.get_mut(key) {
            *of_key -= 1;
            if *of_key == 0 {
                open.remove(key);
            }
        }
    }
}

impl Sampler {
    fn latest(&self) -> Option<Arc<Sample>> {
        self.latest.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The latest sample if it began after this call or is at most this old, otherwise a new one. Of calls at the same
    /// time one takes the sample, and the others wait for it.
    async fn renewed(&self, at_most: Duration) -> StoreResult<Arc<Sample>> {
        let asked = Instant::now();
        let _taking = self.taking.lock().await;
        let last = self.latest();
        if let Some(last) = last.as_ref().filter(|last| last.began > asked || last.age() <= at_most) {
            return Ok(Arc::clone(last));
        }
        let sample = Arc::new(Sample::take(&*self.store, self.clock.now(), last.as_deref()).await?);
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&sample));
        Ok(sample)
    }
}
