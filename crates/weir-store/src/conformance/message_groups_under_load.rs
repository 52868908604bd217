//! Message groups that many producers and consumers use at once, and the repair of groups without a head.

use std::{
    collections::HashMap,
    sync::{Mutex, Weak},
};

use tokio::sync::RwLock;

use super::{
    message_groups::{in_order, ordered},
    *,
};
use crate::{MessageGroupsRepaired, sql};

pub async fn a_repair_does_not_change_message_groups_with_heads(subject: Subject) {
    let subject = Subject::with_message_groups(&[(1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "c")], subject).await;
    subject.claim(1, 1).await;
    let (mut calls, mut after) = (0, None);
    loop {
        let repaired = subject.store.repair_message_groups(after, 2).await.expect("repair");
        assert_eq!(repaired.advanced, 0);
        (calls, after) = (calls + 1, repaired.next);
        if after.is_none() {
            break;
        }
    }
    assert_eq!(calls, 2, "three groups, two in each call");
    assert_eq!(subject.claimable().await, [3, 5]);
}

/// A process that dies after the end of a head leaves a message group without a head. `run` makes such groups by a
/// statement that does not go through the store.
pub async fn message_groups_without_a_head_are_repaired(subject: Subject, run: impl AsyncFnOnce(&'static str)) {
    let events = [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "b"), (6, "c")];
    let subject = Subject::with_message_groups(&events, subject).await;
    run(sql!(
        "UPDATE deliveries SET state = {delivered} WHERE ordering_key IN ('a', 'b') AND next_attempt_at < {end_of_time}"
    ))
    .await;
    let repair = async |after, limit| subject.store.repair_message_groups(after, limit).await.expect("repair");
    assert_eq!(subject.claim(1, 9).await.len(), 1, "only the third group has a head");
    let first = repair(None, 2).await;
    assert_eq!(first.advanced, 2);
    assert_eq!(repair(first.next, 2).await, MessageGroupsRepaired { advanced: 0, next: None });
    assert_eq!(subject.claim(1, 9).await.len(), 2);
    assert_eq!(repair(None, 9).await.advanced, 0, "each group has a head");
}

/// Runs several producers and consumers at once, with one store per process. Every message group is delivered to its
/// end, and the events of each key end in the order of storage.
///
/// A group is stuck if all events are stored, no consumer works, and nothing can be claimed, but not all deliveries
/// have ended. The test does not depend on the speed of the machine.
pub async fn message_groups_under_load(stores: Vec<SharedStore>, keys: u64, calls: u64) {
    stores[0].create_destination(ordered(1, Some(3)), creation()).await.expect("create");
    let load = Arc::new(Load { wanted: (2 * keys * calls) as usize, ended: Mutex::default(), work: RwLock::new(()) });
    let storing = Arc::new(());
    let producers = (0..keys).map(|key| {
        let (store, storing) = (stores[key as usize % stores.len()].clone(), Arc::clone(&storing));
        tokio::spawn(async move {
            for at in 0..calls {
                // Two events in one call, the second behind the first.
                let event = |at: u64| named(in_order(key * 10_000 + at, &format!("key {key}")), &[1]);
                store.ingest(vec![event(2 * at), event(2 * at + 1)]).await.expect("ingest");
            }
            drop(storing);
        })
    });
    let producers: Vec<_> = producers.collect();
    let consumers = (0..4).map(|consumer| {
        let consumer =
            Consumer { store: stores[consumer % stores.len()].clone(), load: Arc::clone(&load), round: consumer };
        tokio::spawn(consumer.run(Arc::downgrade(&storing)))
    });
    let consumers: Vec<_> = consumers.collect();
    drop(storing);
    for task in producers.into_iter().chain(consumers) {
        task.await.expect("joined");
    }
    let ended = std::mem::take(&mut *load.ended.lock().expect("a lock"));
    let mut last: HashMap<u64, u64> = HashMap::new();
    for number in &ended {
        let before = last.insert(number / 10_000, *number);
        assert!(before.is_none_or(|before| before + 1 == *number), "{before:?} before {number}");
    }
    assert_eq!(ended.len(), load.wanted, "a message group is stuck");
}

/// The state that the consumers of [`message_groups_under_load`] share.
struct Load {
    wanted: usize,
    /// The numbers of the ended events, in the order of their ends.
    ended: Mutex<Vec<u64>>,
    /// Read-locked by a consumer from a claim until all its deliveries are settled.
    work: RwLock<()>,
}

impl Load {
    fn is_over(&self) -> bool {
        self.ended.lock().expect("a lock").len() >= self.wanted
    }
}

struct Consumer {
    store: SharedStore,
    load: Arc<Load>,
    round: usize,
}

impl Consumer {
    async fn run(mut self, storing: Weak<()>) {
        let load = Arc::clone(&self.load);
        while !load.is_over() {
            let all_stored = storing.strong_count() == 0;
            let working = load.work.read().await;
            let worked = self.work().await;
            drop(working);
            if worked {
                continue;
            }
            if all_stored {
                // With the write lock no other consumer holds deliveries, so each group that has not ended has a due
                // head.
                let _alone = load.work.write().await;
                if !self.work().await {
                    return;
                }
            } else {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Claims some deliveries and settles or releases them. Returns whether there were any.
    async fn work(&mut self) -> bool {
        let store = &self.store;
        let claimed = store.claim(vec![request(1, 7)], NOW + seconds(3_600)).await.expect("claim").remove(0).deliveries;
        let any = !claimed.is_empty();
        for delivery in claimed {
            self.round += 1;
            let verdict = match self.round % 7 {
                0 => {
                    store.release(vec![delivery.claim], NOW).await.expect("release");
                    continue;
                }
                1 | 2 if delivery.attempts == 0 => Verdict::Retry { at: NOW },
                3 => Verdict::Failed,
                _ => Verdict::Delivered,
            };
            if !matches!(verdict, Verdict::Retry { .. }) {
                // Recorded before the settlement, because another consumer may claim the next delivery right after it.
                self.load.ended.lock().expect("a lock").push(number_of(&delivery));
            }
            store.settle(vec![result(&delivery, verdict).into()]).await.expect("settle");
        }
        any
    }
}

pub async fn message_groups_keep_moving_in_order_under_load(subject: Subject) {
    message_groups_under_load(vec![subject.store.clone()], 8, 20).await;
}
