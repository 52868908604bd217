//! Message groups with several processes, and groups without a head, which a process leaves if it dies between the end
//! of a head and the advance.

use std::{sync::Arc, time::Duration};

use sqlx::raw_sql;
use weir_core::{order::DeliveryOrder, outcome::Verdict};
use weir_store::{
    Destinations as _, Ingest as _, MessageGroups as _, MessageGroupsRepaired, NewEvent, Outbox as _, Results as _,
    SharedStore, conformance::message_groups_under_load,
};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    fixtures::{NOW, destination, event, request, result},
};

pub(crate) fn in_order(number: u64, key: &str) -> NewEvent {
    let mut new = event(number);
    new.event.options.ordering_key = Some(key.to_owned());
    new
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_groups_of_three_processes_keep_their_order_and_do_not_stop() {
    let database = Database::create().await;
    let mut stores: Vec<SharedStore> = Vec::new();
    for _ in 0..3 {
        stores.push(Arc::new(PostgresStore::open(&database.url(), NOW).await.unwrap()));
    }
    message_groups_under_load(stores, 8, 25).await;
}

/// One key, so that every ingest runs at the same time as the end of a head.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_that_is_stored_while_the_head_ends_becomes_the_head() {
    let database = Database::create().await;
    let open = async || Arc::new(PostgresStore::open(&database.url(), NOW).await.unwrap());
    let stores = [open().await, open().await];
    let mut ordered = destination(1);
    ordered.settings.order = DeliveryOrder::new(true, None);
    stores[0].create_destination(ordered).await.unwrap();
    let mut claimed = Vec::new();
    for number in 1..=150 {
        // The previous delivery ends while this one is stored.
        let ending = async {
            match claimed.pop() {
                Some(head) => drop(stores[1].settle(vec![result(&head, Verdict::Delivered).into()]).await.unwrap()),
                None => assert_eq!(number, 1),
            }
        };
        let (stored, ()) = tokio::join!(stores[0].ingest(vec![in_order(number, "a")]), ending);
        stored.unwrap();
        claimed =
            stores[1].claim(vec![request(1, 9)], NOW + Duration::from_secs(10)).await.unwrap().remove(0).deliveries;
        assert_eq!(claimed.len(), 1, "delivery {number} is the head");
    }
}

#[tokio::test]
async fn a_message_group_without_a_head_is_repaired() {
    let database = Database::create().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let mut ordered = destination(1);
    ordered.settings.order = DeliveryOrder::new(true, None);
    store.create_destination(ordered).await.unwrap();
    let events = [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "b"), (6, "c")];
    store.ingest(events.map(|(number, key)| in_order(number, key)).into()).await.unwrap();
    let claim = async || store.claim(vec![request(1, 9)], NOW + Duration::from_secs(10)).await.unwrap().remove(0);
    // Like a process that dies right after the commit.
    let ended =
        "UPDATE deliveries SET state = 3 WHERE ordering_key IN ('a', 'b') AND next_attempt_at < 9223372036854775807";
    raw_sql(ended).execute(&mut database.connect().await).await.unwrap();
    assert_eq!(claim().await.deliveries.len(), 1, "only the third key has a head");
    let first = store.repair_message_groups(None, 2).await.unwrap();
    assert_eq!(first.advanced, 2);
    let rest = store.repair_message_groups(first.next, 2).await.unwrap();
    assert_eq!(rest, MessageGroupsRepaired { advanced: 0, next: None });
    assert_eq!(claim().await.deliveries.len(), 2);
    assert_eq!(store.repair_message_groups(None, 9).await.unwrap().advanced, 0, "each has a head");
}
