//! Collects the items of one kind of call. What arrives during a call goes together in the next one.
//!
//! Each shard has a queue of its own and one task that sends it, so that no shard waits for another, and no caller that
//! is cancelled takes items with it. Callers that wait for a call learn of its failure. Items whose repetition changes
//! nothing go first in the next call after a failure.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use weir_queue::{QueueError, QueueResult};

use crate::keys::{SHARDS, Shard};

/// How long to wait after a failed call. Constant: a settlement that comes late holds room below `max_in_flight`, and
/// while there is no connection a call fails without reaching Redis.
const RETRY: Duration = Duration::from_millis(100);
/// Items kept for a shard while Redis is unavailable; for all shards a hundred times as many as a worker has places.
/// Further items are not kept: permits expire, and the sweep finds destinations that were not woken.
const MAX_KEPT: usize = 50_000;

pub(crate) struct Batcher<T> {
    queues: [Queue<T>; SHARDS],
    /// The items of one call.
    most: usize,
    /// How long items that no caller waits for stay for others to join them.
    delay: Duration,
}

struct Queue<T> {
    items: Mutex<Items<T>>,
    added: Notify,
    /// A caller waits for items.
    awaited: Notify,
    progress: watch::Sender<Progress>,
}

struct Items<T> {
    /// In the order of sending.
    unsent: VecDeque<T>,
    /// How many items have been taken for a call.
    taken: u64,
}

#[derive(Default)]
struct Progress {
    /// How many items need not be sent any more, and the same after the last call that did not fail.
    done: u64,
    received: u64,
    failures: u64,
    last_failure: Option<QueueError>,
}

impl<T> Batcher<T> {
    pub(crate) fn new(most: usize, delay: Duration) -> Self {
        let queue = |_| Queue {
            items: Mutex::new(Items { unsent: VecDeque::new(), taken: 0 }),
            added: Notify::new(),
            awaited: Notify::new(),
            progress: watch::Sender::default(),
        };
        Self { queues: std::array::from_fn(queue), most, delay }
    }

    /// Returns an item that is not kept.
    pub(crate) fn add(&self, shard: Shard, item: T) -> Option<T> {
        let queue = &self.queues[shard.index()];
        let mut items = queue.items.lock();
        if items.unsent.len() >= MAX_KEPT {
            return Some(item);
        }
        items.unsent.push_back(item);
        drop(items);
        queue.added.notify_one();
        None
    }

    /// Returns once Redis has received all items that were added for these shards before, or a call has failed.
    pub(crate) async fn flush(&self, shards: impl IntoIterator<Item = Shard>) -> QueueResult<()> {
        let shards: BTreeSet<Shard> = shards.into_iter().collect();
        join_all(shards.iter().map(|shard| self.queues[shard.index()].flush())).await.into_iter().collect()
    }

    /// Waits for the items of the next call. For the one task that sends those of the shard.
    pub(crate) async fn next(&self, shard: Shard) -> Vec<T> {
        let queue = &self.queues[shard.index()];
        while queue.items.lock().unsent.is_empty() {
            queue.added.notified().await;
        }
        // Listen before looking whether a caller waits, so that none is missed in between.
        let awaited = queue.awaited.notified();
        tokio::pin!(awaited);
        awaited.as_mut().enable();
        let is_alone = queue.progress.receiver_count() == 0 && queue.items.lock().unsent.len() < self.most;
        if is_alone && !self.delay.is_zero() {
            let _ = tokio::time::timeout(self.delay, awaited).await;
        }
        let mut items = queue.items.lock();
        let count = items.unsent.len().min(self.most);
        items.taken += count as u64;
        items.unsent.drain(..count).collect()
    }

    /// Ends a call. After a failure `again` is sent again, after a little while.
    pub(crate) async fn finish(&self, shard: Shard, sent: QueueResult<()>, again: Vec<T>) {
        let queue = &self.queues[shard.index()];
        let done = {
            let mut items = queue.items.lock();
            if sent.is_err() {
                items.taken -= again.len() as u64;
                again.into_iter().rev().for_each(|item| items.unsent.push_front(item));
            }
            items.taken
        };
        let has_failed = sent.is_err();
        queue.progress.send_modify(|progress| {
            progress.done = done;
            match sent {
                Ok(()) => progress.received = done,
                Err(failure) => {
                    progress.failures += 1;
                    progress.last_failure = Some(failure);
                }
            }
        });
        if has_failed {
            tokio::time::sleep(RETRY).await;
        }
    }
}

impl<T> Queue<T> {
    async fn flush(&self) -> QueueResult<()> {
        let mut progress = self.progress.subscribe();
        let end = {
            let items = self.items.lock();
            items.taken + items.unsent.len() as u64
        };
        let earlier = match &*progress.borrow() {
            Progress { done, .. } if *done >= end => return Ok(()),
            Progress { failures, .. } => *failures,
        };
        self.awaited.notify_waiters();
        // Whoever waits learns of a failure at once, and decides how to go on. The sender is in `self`, so the channel
        // stays open.
        let has_ended = |progress: &Progress| progress.received >= end || progress.failures > earlier;
        match progress.wait_for(has_ended).await {
            Ok(progress) if progress.received < end => progress.last_failure.clone().map_or(Ok(()), Err),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const SHARD: Shard = Shard::REFERENCE;

    fn batcher(delay: Duration, items: impl IntoIterator<Item = u32>) -> Batcher<u32> {
        let batcher = Batcher::new(3, delay);
        assert!(items.into_iter().all(|item| batcher.add(SHARD, item).is_none()));
        batcher
    }

    fn failed() -> QueueResult<()> {
        Err(QueueError::Refused("full".to_owned()))
    }

    #[tokio::test]
    async fn items_go_in_order_and_a_caller_waits_for_those_before_it() {
        let batcher = batcher(Duration::ZERO, 1..=4);
        let mut flushed = Box::pin(batcher.flush([SHARD]));
        assert!(flushed.as_mut().now_or_never().is_none());
        assert_eq!(batcher.add(SHARD, 5), None);
        for (batch, is_flushed) in [(vec![1, 2, 3], false), (vec![4, 5], true)] {
            assert_eq!(batcher.next(SHARD).await, batch);
            batcher.finish(SHARD, Ok(()), batch).await;
            assert_eq!(flushed.as_mut().now_or_never().is_some(), is_flushed);
        }
        batcher.flush([SHARD]).await.expect("everything is sent");
    }

    #[tokio::test]
    async fn a_failure_is_told_to_all_who_wait_and_its_batch_goes_first_again() {
        let batcher = batcher(Duration::ZERO, 1..=4);
        let mut flushed = Box::pin(batcher.flush([SHARD]));
        assert!(flushed.as_mut().now_or_never().is_none());
        let batch = batcher.next(SHARD).await;
        assert!(batcher.finish(SHARD, failed(), batch).now_or_never().is_none(), "it waits before the next call");
        assert!(flushed.await.is_err());
        assert_eq!(batcher.next(SHARD).await, [1, 2, 3]);
    }

    #[tokio::test]
    async fn items_that_are_not_sent_again_are_done_and_their_failure_is_told() {
        for sent in [Ok(()), failed()] {
            let batcher = batcher(Duration::ZERO, [1]);
            let mut flushed = Box::pin(batcher.flush([SHARD]));
            assert!(flushed.as_mut().now_or_never().is_none());
            assert_eq!(batcher.next(SHARD).await, [1]);
            batcher.finish(SHARD, sent.clone(), Vec::new()).await;
            assert_eq!(flushed.await.is_ok(), sent.is_ok());
            batcher.flush([SHARD]).await.expect("nothing is left to send");
        }
    }

    #[tokio::test]
    async fn items_that_nobody_waits_for_stay_for_others_until_somebody_does() {
        let batcher = batcher(Duration::from_secs(60), [1]);
        let mut next = Box::pin(batcher.next(SHARD));
        assert!(next.as_mut().now_or_never().is_none());
        assert_eq!(batcher.add(SHARD, 2), None);
        assert!(next.as_mut().now_or_never().is_none());
        let mut flushed = Box::pin(batcher.flush([SHARD]));
        assert!(flushed.as_mut().now_or_never().is_none());
        assert_eq!(next.now_or_never(), Some(vec![1, 2]));
    }

    #[tokio::test]
    async fn no_more_items_are_kept_than_the_maximum() {
        assert_eq!(batcher(Duration::ZERO, 0..MAX_KEPT as u32).add(SHARD, 7), Some(7));
    }
}
