//! When each shard has something due, as far as this process knows.
//!
//! Claims, publishes and notices tell. Because a notice may be lost, every shard is looked at once a second whatever is known.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, futures::Notified};
use weir_core::Timestamp;

use crate::keys::{SHARDS, Shard};

const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct DueTimes {
    dues: Mutex<[Timestamp; SHARDS]>,
    sooner: Notify,
    unread: [AtomicUsize; SHARDS],
    /// Which shard comes first, so that none is always last.
    turn: AtomicUsize,
}

impl DueTimes {
    pub(crate) fn new() -> Self {
        Self {
            dues: Mutex::new([Timestamp::MIN; SHARDS]),
            sooner: Notify::new(),
            unread: Default::default(),
            turn: AtomicUsize::new(0),
        }
    }

    // A panic while the lock is held is a bug already reported; the next look mends what it left.
    fn dues(&self) -> MutexGuard<'_, [Timestamp; SHARDS]> {
        self.dues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is due in the shard at this instant.
    pub(crate) fn learn(&self, shard: Shard, due: Timestamp) {
        let mut dues = self.dues();
        if due < dues[shard.index()] {
            dues[shard.index()] = due;
            drop(dues);
            self.sooner.notify_waiters();
        }
    }

    /// The shards to look at now, at most `max`; each is then left alone until something is learnt of it, or for a second.
    pub(crate) fn take_due(&self, now: Timestamp, max: usize) -> Vec<Shard> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut dues = self.dues();
        let mut shards: Vec<Shard> = Shard::all().filter(|shard| dues[shard.index()] <= now).collect();
        if !shards.is_empty() {
            let first = first % shards.len();
            shards.rotate_left(first);
            shards.truncate(max);
        }
        for shard in &shards {
            dues[shard.index()] = now + LOOK_EVERY;
        }
        shards
    }

    pub(crate) fn next(&self) -> Timestamp {
        self.dues().iter().copied().min().unwrap_or(Timestamp::MAX)
    }

    /// Resolves when something is learnt; made before [`Self::next`] is asked, it misses nothing.
    pub(crate) fn sooner(&self) -> Notified<'_> {
        self.sooner.notified()
    }

    pub(crate) fn set_unread(&self, shard: Shard, permits: usize) {
        self.unread[shard.index()].store(permits, Ordering::Relaxed);
    }

    /// Permits that no worker has read, as of the last look at each shard.
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
    fn a_shard_is_looked_at_when_something_is_due_and_once_a_second() {
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
