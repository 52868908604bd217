//! Collects the items of one kind of call. What arrives during a call goes together in the next one.
//!
//! Each shard has a queue of its own and one task that sends it, so that no shard waits for another, and no caller that
//! is cancelled takes items with it. A batch that failed is sent again before anything else: a repetition must change
//! nothing. Callers that wait for it learn of the failure.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
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
    /// A caller waits.
    awaited: Notify,
}

struct Items<T> {
    /// In the order of sending.
    unsent: VecDeque<T>,
    /// How many items have been taken for a call, and how many of these Redis has received.
    taken: u64,
    sent: u64,
    /// Callers, each with the number of items that it waits for.
    waiters: Vec<(u64, oneshot::Sender<QueueResult<()>>)>,
}

impl<T> Items<T> {
    /// The number of all items so far.
    fn end(&self) -> u64 {
        self.taken + self.unsent.len() as u64
    }
}

impl<T> Batcher<T> {
    pub(crate) fn new(most: usize, delay: Duration) -> Self {
        let items = || Items { unsent: VecDeque::new(), taken: 0, sent: 0, waiters: Vec::new() };
        let queue = |_| Queue { items: Mutex::new(items()), added: Notify::new(), awaited: Notify::new() };
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
        let waits = |items: &Items<T>| items.waiters.is_empty() && items.unsent.len() < self.most;
        if !self.delay.is_zero() && waits(&queue.items.lock()) {
            let _ = tokio::time::timeout(self.delay, queue.awaited.notified()).await;
        }
        let mut items = queue.items.lock();
        let count = items.unsent.len().min(self.most);
        items.taken += count as u64;
        items.unsent.drain(..count).collect()
    }

    /// Ends the call of a batch. Waits a little after a failure.
    pub(crate) async fn finish(&self, shard: Shard, batch: Vec<T>, sent: QueueResult<()>) {
        let failed = sent.is_err();
        self.queues[shard.index()].items.lock().finish(batch, sent);
        if failed {
            tokio::time::sleep(RETRY).await;
        }
    }
}

impl<T> Queue<T> {
    async fn flush(&self) -> QueueResult<()> {
        let answered = {
            let mut items = self.items.lock();
            let end = items.end();
            if items.sent == end {
                return Ok(());
            }
            let (waiter, answered) = oneshot::channel();
            items.waiters.push((end, waiter));
            answered
        };
        self.awaited.notify_one();
        answered.await.unwrap_or_else(|_| Err(QueueError::Unknown("the queue was closed".to_owned())))
    }
}

impl<T> Items<T> {
    fn finish(&mut self, batch: Vec<T>, sent: QueueResult<()>) {
        // Whoever waits learns of a failure at once, and decides how to go on.
        let answered = match &sent {
            Ok(()) => {
                self.sent = self.taken;
                let sent = self.sent;
                self.waiters.extract_if(.., |(end, _)| *end <= sent).collect()
            }
            Err(_) => {
                self.taken -= batch.len() as u64;
                batch.into_iter().rev().for_each(|item| self.unsent.push_front(item));
                std::mem::take(&mut self.waiters)
            }
        };
        for (_, waiter) in answered {
            // The caller may have been cancelled.
            let _ = waiter.send(sent.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const SHARD: Shard = Shard::REFERENCE;

    fn batcher(items: impl IntoIterator<Item = u32>) -> Batcher<u32> {
        let batcher = Batcher::new(3, Duration::ZERO);
        assert!(items.into_iter().all(|item| batcher.add(SHARD, item).is_none()));
        batcher
    }

    #[tokio::test]
    async fn items_go_in_order_and_a_caller_waits_for_those_before_it() {
        let batcher = batcher(1..=4);
        let flushed = batcher.flush([SHARD]);
        tokio::pin!(flushed);
        assert!(flushed.as_mut().now_or_never().is_none());
        assert_eq!(batcher.add(SHARD, 5), None);
        for (batch, is_flushed) in [(vec![1, 2, 3], false), (vec![4, 5], true)] {
            assert_eq!(batcher.next(SHARD).await, batch);
            batcher.finish(SHARD, batch, Ok(())).await;
            assert_eq!(flushed.as_mut().now_or_never().is_some(), is_flushed);
        }
        batcher.flush([SHARD]).await.expect("everything is sent");
    }

    #[tokio::test]
    async fn a_failure_is_told_to_all_who_wait_and_its_batch_goes_first_again() {
        let batcher = batcher(1..=4);
        let flushed = batcher.flush([SHARD]);
        tokio::pin!(flushed);
        assert!(flushed.as_mut().now_or_never().is_none());
        let batch = batcher.next(SHARD).await;
        let finished = batcher.finish(SHARD, batch, Err(QueueError::Refused("full".to_owned())));
        assert!(finished.now_or_never().is_none(), "it waits before the next call");
        assert!(flushed.await.is_err());
        assert_eq!(batcher.next(SHARD).await, [1, 2, 3]);
    }

    #[tokio::test]
    async fn a_batch_whose_items_are_answered_one_by_one_is_sent_without_them() {
        let batcher = batcher([1]);
        let batch = batcher.next(SHARD).await;
        assert_eq!(batch, [1]);
        batcher.finish(SHARD, Vec::new(), Ok(())).await;
        batcher.flush([SHARD]).await.expect("it is sent");
    }

    #[tokio::test]
    async fn items_that_nobody_waits_for_stay_for_others_until_somebody_does() {
        let batcher = Batcher::new(3, Duration::from_secs(9));
        assert_eq!(batcher.add(SHARD, 1), None);
        let next = batcher.next(SHARD);
        tokio::pin!(next);
        assert!(next.as_mut().now_or_never().is_none());
        assert_eq!(batcher.add(SHARD, 2), None);
        assert!(next.as_mut().now_or_never().is_none());
        let flushed = batcher.flush([SHARD]);
        tokio::pin!(flushed);
        assert!(flushed.as_mut().now_or_never().is_none());
        assert_eq!(next.now_or_never(), Some(vec![1, 2]));
    }

    #[tokio::test]
    async fn no_more_items_are_kept_than_the_maximum() {
        let batcher = batcher(0..MAX_KEPT as u32);
        assert_eq!(batcher.add(SHARD, 7), Some(7));
    }
}
