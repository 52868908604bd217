//! Filters on the data of events. The events of these tests have the data `{"number": …}`.

use serde_json::{Value, json};
use weir_core::filter::Filter;

use super::*;
use crate::EventFilter;

fn filter(json: &Value) -> Option<Arc<Filter>> {
    Some(Arc::new(Filter::parse(json).expect("a filter")))
}

fn filtering(number: u128, json: &Value) -> Destination {
    let mut destination = destination(number);
    destination.settings.filter = filter(json);
    destination
}

/// The deliveries of an event, and how many destinations filtered it out.
fn counts(answer: &Ingested) -> (u32, u32) {
    (answer.deliveries, answer.event.filtered)
}

pub async fn a_filter_decides_by_the_data_of_each_event(mut subject: Subject) {
    subject.create(filtering(1, &json!({"/number": {"gte": 2}}))).await;
    subject.create(filtering(2, &json!({"not": {"/number": 2}}))).await;
    subject.create(filtering(3, &json!({"/number": {"gte": 2}}))).await;
    let mut keyed = event(1);
    keyed.idempotency_key = Some("once".to_owned());
    let answers = subject.ingest(vec![matched(keyed.clone()), matched(event(2)), matched(event(3))]).await;
    assert_eq!(answers.iter().map(counts).collect::<Vec<_>>(), [(1, 2), (2, 1), (3, 0)]);
    let to: Vec<_> = subject.deliveries(DeliveryFilter::default()).await;
    let mut to: Vec<_> = to.iter().map(|delivery| (delivery.event_id, delivery.destination_id)).collect();
    to.sort_unstable();
    let expected = [(1, 2), (2, 1), (2, 3), (3, 1), (3, 2), (3, 3)];
    assert!(to.into_iter().eq(expected.map(|(number, to)| (event(number).id, destination_id(to)))));
    // What was filtered out is stored with the event, and is the answer to its key.
    subject.reopen().await;
    assert_eq!(subject.store.event(event(2).id).await.expect("read").map(|event| event.filtered), Some(1));
    let page = PageRequest { before: None, limit: 9 };
    let listed = subject.store.list_events(&EventFilter::default(), page).await.expect("list").rows;
    assert_eq!(listed.iter().map(|event| event.filtered).collect::<Vec<_>>(), [0, 1, 2]);
    let again = subject.ingest(vec![matched(keyed)]).await.remove(0);
    assert_eq!((again.duplicate, counts(&again)), (true, (1, 2)));
}

pub async fn an_event_that_every_filter_refuses_is_stored_without_deliveries(subject: Subject) {
    subject.create(filtering(1, &json!({"/number": "one"}))).await;
    let answer = subject.ingest(vec![matched(event(1))]).await.remove(0);
    assert_eq!((counts(&answer), answer.wake), ((0, 1), Vec::new()));
    let stored = subject.store.event(event(1).id).await.expect("read").expect("the event");
    assert_eq!((stored.filtered, stored.body), (1, event(1).body));
}

pub async fn an_event_that_names_its_destinations_is_not_filtered(subject: Subject) {
    subject.create(filtering(1, &json!({"/number": "one"}))).await;
    assert_eq!(counts(&subject.ingest(vec![named(event(1), &[1])]).await[0]), (1, 0));
}

pub async fn an_edited_filter_applies_to_the_next_event(mut subject: Subject) {
    let first = subject.create(filtering(1, &json!({"/number": 1}))).await;
    let answers = subject.ingest(vec![matched(event(1)), matched(event(2))]).await;
    assert_eq!(answers.iter().map(counts).collect::<Vec<_>>(), [(1, 0), (0, 1)]);
    let edit = |settings: &mut Settings| settings.filter = filter(&json!({"/number": {"in": [3, 4]}}));
    let edited = subject.patch(&first, NOW + seconds(1), edit).await.expect("applied");
    let answers = subject.ingest(vec![matched(event(3)), matched(event(5))]).await;
    assert_eq!(answers.iter().map(counts).collect::<Vec<_>>(), [(1, 0), (0, 1)]);
    subject.reopen().await;
    let read = subject.store.destination(destination_id(1)).await.expect("read");
    assert_eq!(read.as_ref(), Some(&edited));
    subject.patch(&edited, NOW + seconds(2), |settings| settings.filter = None).await.expect("applied");
    assert_eq!(counts(&subject.ingest(vec![matched(event(6))]).await[0]), (1, 0));
}

/// More filters than a commit evaluates, in a process that does not know the destinations yet.
pub async fn many_filters_are_evaluated_before_the_commit(mut subject: Subject) {
    const MANY: u128 = 40;
    for number in 1..=MANY {
        subject.create(filtering(number, &json!({"/number": {"lt": number as u64}}))).await;
    }
    subject.reopen().await;
    let answers = subject.ingest((0..50).map(|number| matched(event(number))).collect()).await;
    let expected = (0..50_u32).map(|number| (40 - number.min(40), number.min(40)));
    assert!(answers.iter().map(counts).eq(expected));
}
