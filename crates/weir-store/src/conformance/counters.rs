//! Counters equal a count of the deliveries themselves: after every test of the suite, and in the cases here.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::Mutex;
use weir_core::{DeliveryState, DestinationId};

use super::*;
use crate::StateCounts;

/// The store of a test, to check after the test.
pub struct CountedStore {
    pub(super) latest: Arc<Mutex<SharedStore>>,
    /// Keeps the database until the check is done.
    pub(super) _backend: Arc<dyn Backend>,
}

impl CountedStore {
    /// Compares the counters with a scan, before and after the recorded changes are folded into the totals.
    pub async fn check(&self) {
        let store = self.latest.lock().await;
        assert_counted(&store).await;
        while store.fold_changes().await.expect("fold") > 0 {}
        assert_counted(&store).await;
    }
}

async fn assert_counted(store: &SharedStore) {
    let scanned = store.count_by_scan().await.expect("scan");
    assert_eq!(store.all_counts().await.expect("counts"), scanned, "the counters differ from the deliveries");
    let ids: Vec<DestinationId> = scanned.keys().copied().chain([destination_id(0xffff)]).collect();
    let counts = store.counts(&ids).await.expect("counts");
    let expected: Vec<StateCounts> = ids.iter().map(|id| scanned.get(id).copied().unwrap_or_default()).collect();
    assert_eq!(counts, expected);
}

pub async fn counters_follow_deliveries_through_their_states(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=4).await;
    subject.post(2, [5]).await;
    let claimed = subject.claim(1, 3).await;
    subject.settle(result(&claimed[0], Verdict::Delivered)).await;
    subject.settle(result(&claimed[1], Verdict::Retry { at: NOW + seconds(60) })).await;
    let expected: HashMap<DestinationId, StateCounts> =
        [(destination_id(1), [1, 1, 1, 1, 0, 0, 0, 0, 0]), (destination_id(2), [1, 0, 0, 0, 0, 0, 0, 0, 0])]
            .map(|(id, counts)| (id, StateCounts::new(counts)))
            .into();
    assert_eq!(subject.store.all_counts().await.expect("counts"), expected);
    let ids = [2, 3, 1].map(destination_id);
    let counts = subject.store.counts(&ids).await.expect("counts");
    assert_eq!(counts, ids.map(|id| expected.get(&id).copied().unwrap_or_default()), "in the order of the request");
    assert_eq!(subject.store.counts(&[]).await.expect("counts"), []);
}

pub async fn counters_survive_a_fold_and_a_restart(mut subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=4).await;
    let counts = async |subject: &Subject| subject.store.counts(&[destination_id(1)]).await.expect("counts").remove(0);
    let four = StateCounts::new([4, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(counts(&subject).await, four, "before the first fold");
    assert!(subject.store.fold_changes().await.expect("fold") > 0);
    assert_eq!(subject.store.fold_changes().await.expect("fold"), 0, "nothing is left");
    assert_eq!(counts(&subject).await, four, "after it");
    subject.claim(1, 1).await;
    subject.reopen().await;
    assert_eq!(counts(&subject).await, StateCounts::new([3, 1, 0, 0, 0, 0, 0, 0, 0]), "partly folded");
}

pub async fn the_oldest_waiting_delivery_of_each_destination_is_found(subject: Subject) {
    subject.create_many(4).await;
    subject.post(1, [1, 2, 3]).await;
    subject.post(2, [4, 5]).await;
    subject.post(3, [6]).await;
    // The first delivery to destination 1 is retried later. That to destination 2 is in flight, and that to destination
    // 3 is delivered.
    let claimed = subject.claim(1, 1).await.remove(0);
    subject.settle(result(&claimed, Verdict::Retry { at: NOW + seconds(600) })).await;
    subject.claim(2, 1).await;
    let claimed = subject.claim(3, 1).await.remove(0);
    subject.settle(result(&claimed, Verdict::Delivered)).await;
    let ids = [4, 3, 2, 1].map(destination_id);
    let oldest = subject.store.oldest_waiting(&ids).await.expect("oldest");
    assert_eq!(oldest, [None, None, Some(event(5).created_at), Some(event(1).created_at)]);
    let counts = subject.store.destination_counts(destination_id(2)).await.expect("counts");
    assert_eq!(counts.oldest_created_at, Some(event(4).created_at), "with the one in flight");
}

pub async fn the_places_of_waiting_deliveries_follow_the_order_of_claims(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=6).await;
    subject.post(2, [7]).await;
    // The first is retried after all others, the second is in flight, and the third is delivered.
    let claimed = subject.claim(1, 3).await;
    subject.settle(result(&claimed[0], Verdict::Retry { at: NOW + seconds(600) })).await;
    subject.settle(result(&claimed[2], Verdict::Delivered)).await;
    let filter = DeliveryFilter { order: crate::ListOrder::Oldest, ..DeliveryFilter::default() };
    let ids: Vec<_> = subject.deliveries(filter).await.iter().map(|delivery| delivery.id).collect();
    let positions = async |most| {
        let positions =
            subject.store.due_positions(destination_id(1), &ids, most, NOW + seconds(10)).await.expect("positions");
        assert_eq!(positions.live_due, 0, "nothing is of a replay");
        ids.iter().map(|id| positions.found.get(id).map(|position| position.ahead)).collect::<Vec<_>>()
    };
    let [first, second, third, last] = [0, 1, 2, 3].map(Some);
    assert_eq!(
        positions(9).await,
        [last, None, None, first, second, third, None],
        "the last is of another destination"
    );
    assert_eq!(positions(2).await, [None, None, None, first, second, None, None], "no further than asked");
    let none = subject.store.due_positions(destination_id(1), &[], 9, NOW).await.expect("positions");
    assert!(none.found.is_empty());
}

pub async fn the_places_of_a_replay_are_apart_from_live_ones(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, [1, 2]).await;
    let claimed = subject.claim(1, 2).await;
    for claimed in &claimed {
        subject.settle(result(claimed, Verdict::Dead)).await;
    }
    subject.begin(1, all_dead()).await;
    subject.steps(1).await;
    subject.post(1, [3, 4, 5]).await;
    let replayed: Vec<_> = claimed.iter().map(|claimed| claimed.claim.delivery_id).collect();
    let now = event(4).created_at;
    let positions = subject.store.due_positions(destination_id(1), &replayed, 9, now).await.expect("positions");
    let ahead: Vec<_> = replayed.iter().map(|id| positions.found[id]).collect();
    assert_eq!(ahead, [0, 1].map(|ahead| crate::DuePosition { is_replay: true, ahead }));
    assert_eq!(positions.live_due, 2, "the last is due later");
}

pub async fn changes_of_several_callers_are_all_counted(subject: Subject) {
    subject.create_many(3).await;
    let store = &subject.store;
    let one = async |caller: u64| {
        for round in 0..5 {
            let numbers = (0..8).map(|number| caller * 1_000 + round * 10 + number);
            let events = numbers.map(|number| named(event(number), &[1 + u128::from(number % 3)])).collect();
            store.ingest(events).await.expect("ingest");
            store.fold_changes().await.expect("fold");
        }
    };
    tokio::join!(one(1), one(2), one(3), one(4));
    let counts = store.all_counts().await.expect("counts");
    assert_eq!(counts.values().map(|counts| counts.of(DeliveryState::Pending)).sum::<u64>(), 160);
}
