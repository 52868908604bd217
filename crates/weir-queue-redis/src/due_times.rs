//! When each shard has a due job, as far as this process knows.
//!
//! Due times come from claims, publications, wakes and notifications. Because a notification may be lost, every shard
//! is checked at least once a second.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified};
use weir_core::Timestamp;

use crate::keys::{SHARDS, Shard};

/// How often a shard without a known due job is checked. A lost notification delays a job by this time; an idle
/// scheduler makes one call to each shard in it.
const CHECK_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct DueTimes {
    dues: Mutex<[Timestamp; SHARDS]>,
    sooner: Notify,
    /// Permits that no worker has read, for each shard.
    unread: [AtomicUsize; SHARDS],
    /// Which shard comes first in the next claim, so that none is always last.
    rotation: AtomicUsize,
}

impl DueTimes {
    pub(crate) fn new() -> Self {
        Self {
            dues: Mutex::new([Timestamp::MIN; SHARDS]),
            sooner: Notify::new(),
            unread: Default::default(),
            rotation: AtomicUsize::new(0),
        }
    }

    /// A job of the shard is due at this instant.
    pub(crate) fn learn(&self, shard: Shard, due: Timestamp) {
        let mut dues = self.dues.lock();
        if due < dues[shard.index()] {
            dues[shard.index()] = due;
            drop(dues);
            self.sooner.notify_waiters();
        }
    }

    /// Takes the shards to check now, at most `max`. Each is due again after [`CHECK_EVERY`], or earlier when an
    /// earlier due time is learned.
    pub(crate) fn take_due(&self, now: Timestamp, max: usize) -> Vec<Shard> {
        let first = self.rotation.fetch_add(1, Ordering::Relaxed);
        let mut dues = self.dues.lock();
        let mut shards: Vec<Shard> = Shard::all().filter(|shard| dues[shard.index()] <= now).collect();
        // Another shard comes first each time. Otherwise `max` could always cut off the same ones.
        if !shards.is_empty() {
            let first = first % shards.len();
            shards.rotate_left(first);
            shards.truncate(max);
        }
        for shard in &shards {
            dues[shard.index()] = now + CHECK_EVERY;
        }
        shards
    }

    /// When the next shard is to be checked.
    pub(crate) fn next(&self) -> Timestamp {
        self.dues.lock().iter().copied().min().unwrap_or(Timestamp::MAX)
    }

    /// Resolves when an earlier due time is learned. Create it before calling [`Self::next`]; otherwise a due time can
    /// be missed.
    pub(crate) fn sooner(&self) -> Notified<'_> {
        self.sooner.notified()
    }

    pub(crate) fn set_unread(&self, shard: Shard, permits: usize) {
        self.unread[shard.index()].store(permits, Ordering::Relaxed);
    }

    /// Permits that no worker has read, as of the last check of each shard.
    pub(crate) fn unread(&self) -> usize {
        self.unread.iter().map(|permits| permits.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_shard_is_checked_when_a_job_is_due_and_once_a_second() {
        let due_times = DueTimes::new();
        assert_eq!(due_times.take_due(at(1_000), SHARDS).len(), SHARDS);
        assert_eq!(due_times.take_due(at(1_500), SHARDS), []);
        let shard = Shard::parse("3").unwrap();
        due_times.learn(shard, at(1_600));
        due_times.learn(shard, at(1_700));
        assert_eq!(due_times.next(), at(1_600));
        assert_eq!(due_times.take_due(at(1_600), SHARDS), [shard]);
        assert_eq!(due_times.take_due(at(2_000), SHARDS).len(), SHARDS - 1);
    }

    #[test]
    fn no_shard_is_always_first() {
        let due_times = DueTimes::new();
        let mut firsts: Vec<Shard> =
            (0..SHARDS as i64).map(|second| due_times.take_due(at(second * 2_000), 1)[0]).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert!(firsts.len() > 1, "{firsts:?}");
    }
}
