//! Message groups with several processes, and groups without a head, which a process leaves if it dies between the end
//! of a head and the advance.

use std::{sync::Arc, time::Duration};

use sqlx::raw_sql;
use weir_core::{order::DeliveryOrder, outcome::Verdict};
use weir_store::{
    Destinations as _, Ingest as _, NewEvent, Outbox as _, Results as _, SharedStore,
    conformance::{Subject, message_groups_under_load, message_groups_without_a_head_are_repaired},
};
use weir_store_postgres::PostgresStore;

use crate::{
    conformance::postgres,
    database::Database,
    fixtures::{NOW, creation, destination, event, request, result},
};

pub(crate) fn in_order(number: u64, key: &str) -> NewEvent {
    let mut new = event(number);
    new.event.options.ordering_key = Some(key.to_owned());
    new
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_groups_of_three_processes_keep_their_order_and_do_not_stop() {
    let database = Database::migrated().await;
    let mut stores: Vec<SharedStore> = Vec::new();
    for _ in 0..3 {
        stores.push(Arc::new(PostgresStore::open(&database.url(), NOW).await.unwrap()));
    }
    message_groups_under_load(stores, 8, 25).await;
}

/// One key, so that every ingest runs at the same time as the end of a head.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_that_is_stored_while_the_head_ends_becomes_the_head() {
    let database = Database::migrated().await;
    let open = async || Arc::new(PostgresStore::open(&database.url(), NOW).await.unwrap());
    let stores = [open().await, open().await];
    let mut ordered = destination(1);
    ordered.settings.order = DeliveryOrder::new(true, None);
    stores[0].create_destination(ordered, creation()).await.unwrap();
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

/// Like a process that dies right after the commit.
#[tokio::test]
async fn a_message_group_without_a_head_is_repaired() {
    let backend = postgres().await;
    let mut connection = backend.database.connect().await;
    let run = async |sql: &'static str| {
        raw_sql(sql).execute(&mut connection).await.unwrap();
    };
    message_groups_without_a_head_are_repaired(Subject::new(backend).await, run).await;
}
