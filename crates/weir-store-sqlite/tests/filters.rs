//! A tenant with the most expensive filters delays its own events, and not those of others.

#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that prints durations")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use serde_json::{Value, json};
use weir_core::{
    event::{Event, EventBody},
    filter::Filter,
};
use weir_store::{
    Destinations as _, Ingest as _, NewEvent,
    conformance::{creation, destination, event, matched},
};
use weir_store_sqlite::SqliteStore;

const FILTERS: u128 = 300;
/// With `not` and `or` as many as a filter may have.
const CONDITIONS: usize = 62;
const BODY_BYTES: usize = 256 * 1024;

/// Conditions that all must be evaluated, deep in the data, each on as many elements of an array as are compared.
fn hostile_filter(number: u128) -> Arc<Filter> {
    let path = "/a".repeat(14);
    let condition = |index: usize| json!({format!("{path}/{index}"): {"lt": number as u64}});
    let conditions: Vec<Value> = (0..CONDITIONS).map(condition).collect();
    Arc::new(Filter::parse(&json!({"not": {"or": conditions}})).unwrap())
}

/// Numbers of which none of those that are compared is below the number of a filter.
fn hostile_data() -> String {
    let array = format!("[{}0]", "1000,".repeat(BODY_BYTES / CONDITIONS / 5));
    let arrays = vec![array; CONDITIONS].join(",");
    format!("{}[{arrays}]{}", "{\"a\":".repeat(14), "}".repeat(14))
}

fn posted(tenant: &str, number: u64, data: &str) -> NewEvent {
    let event = event(number);
    let body = EventBody::freeze(event.id, &event.event_type, event.created_at, data);
    matched(Event { tenant: tenant.to_owned(), body, ..event })
}

/// On one thread, which the evaluation would keep from all others if it did not yield.
#[tokio::test]
async fn the_events_of_others_do_not_wait_for_the_filters_of_a_tenant() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&directory.path().join("weir.db")).await.unwrap();
    for number in 1..=FILTERS {
        let mut hostile = destination(number);
        hostile.settings.tenant = "hostile".to_owned();
        hostile.settings.filter = Some(hostile_filter(number));
        store.create_destination(hostile, creation()).await.unwrap();
    }
    store.create_destination(destination(FILTERS + 1), creation()).await.unwrap();
    let data = hostile_data();
    assert!(data.len() > BODY_BYTES * 9 / 10, "{} bytes", data.len());
    let is_decided = AtomicBool::new(false);
    let flood = async {
        let began = Instant::now();
        let answer = store.ingest(vec![posted("hostile", 1, &data)]).await.unwrap().remove(0).unwrap();
        is_decided.store(true, Ordering::Relaxed);
        println!("{FILTERS} filters: {:?}", began.elapsed());
        assert_eq!((answer.deliveries, answer.event.filtered), (FILTERS as u32, 0));
    };
    let others = async {
        let mut before = 0;
        for number in 2..12 {
            let began = Instant::now();
            store.ingest(vec![posted("acme", number, "{}")]).await.unwrap().remove(0).unwrap();
            println!("another event: {:?}", began.elapsed());
            before += u32::from(!is_decided.load(Ordering::Relaxed));
        }
        assert!(before > 0, "every other event waited for the filters");
    };
    tokio::join!(flood, others);
    store.close().await;
}
