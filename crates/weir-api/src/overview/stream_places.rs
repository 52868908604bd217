//! How many streams may be open: in all, and of one key.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_core::ApiKeyId;

/// The open streams of a process. A page has one, and each sends up to 200 rows a second, so this is more than the
/// people of one installation need, and costs at most about 20 MB/s.
const MAX_STREAMS: usize = 100;
/// The open streams of one stored key, so that a key of one tenant cannot take the places of all others. The people
/// behind one key share them.
const MAX_STREAMS_OF_KEY: usize = 25;

/// The places for the streams of a process.
pub(super) struct StreamPlaces {
    all: Arc<Semaphore>,
    by_key: ByKey,
}

/// How many streams each stored key has open; no entry without one.
type ByKey = Arc<Mutex<HashMap<ApiKeyId, usize>>>;

/// The place of an open stream, until it is dropped.
pub(crate) struct StreamPlace {
    of_key: Option<(ApiKeyId, ByKey)>,
    _permit: OwnedSemaphorePermit,
}

impl Default for StreamPlaces {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_STREAMS)), by_key: ByKey::default() }
    }
}

impl StreamPlaces {
    /// The error says why there is no place. `key`: the stored key that opens the stream; keys of the settings, which
    /// cannot be told apart, may open all.
    pub(super) fn take(&self, key: Option<ApiKeyId>) -> Result<StreamPlace, String> {
        let permit = Arc::clone(&self.all).try_acquire_owned();
        let permit = permit.map_err(|_| "too many streams are open; close one, or try again".to_owned())?;
        let Some(key) = key else { return Ok(StreamPlace { of_key: None, _permit: permit }) };
        let mut open = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let of_key = open.entry(key).or_default();
        if *of_key >= MAX_STREAMS_OF_KEY {
            return Err(format!("this key has {MAX_STREAMS_OF_KEY} open streams, the most for one key; close one"));
        }
        *of_key += 1;
        Ok(StreamPlace { of_key: Some((key, Arc::clone(&self.by_key))), _permit: permit })
    }
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
