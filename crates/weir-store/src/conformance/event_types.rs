//! The catalogue of event types.

use serde_json::json;
use weir_core::event_types::{EventType, MAX_SCHEMA_BYTES};

use super::*;
use crate::EventTypeChange;

fn event_type(name: &str) -> EventType {
    EventType {
        name: name.to_owned(),
        description: "A customer has placed an order.\nIt is paid.".to_owned(),
        example: Some(json!({"id": 7, "a": [null]})),
        schema: Some(json!({"type": "object"})),
        created_at: NOW,
        updated_at: NOW + seconds(1),
        version: 0,
    }
}

impl Subject {
    async fn set_type(&self, expected: Option<u64>, event_type: EventType) -> Option<EventType> {
        match self.store.set_event_type(expected, event_type, activity()).await.expect("set") {
            EventTypeChange::Made(made) => Some(*made),
            EventTypeChange::Outdated => None,
            EventTypeChange::Full => panic!("the catalogue is full"),
        }
    }

    async fn type_names(&self, q: Option<&str>, after: Option<&str>, limit: u32) -> Vec<String> {
        let found = self.store.event_types(q, after, limit).await.expect("list");
        found.into_iter().map(|found| found.name).collect()
    }
}

pub async fn an_event_type_is_changed_only_over_the_expected_version(mut subject: Subject) {
    assert_eq!(subject.store.event_types_version().await.expect("read"), 0);
    assert_eq!(subject.store.event_type("order.created").await.expect("read"), None);
    let first = subject.set_type(None, event_type("order.created")).await.expect("a new type");
    assert_eq!(first, EventType { version: first.version, ..event_type("order.created") });
    assert_eq!(subject.set_type(None, event_type("order.created")).await, None, "it exists");
    let bare = EventType { example: None, schema: None, ..event_type("order.created") };
    assert_eq!(subject.set_type(Some(first.version + 1), bare.clone()).await, None, "another version");
    let second = subject.set_type(Some(first.version), bare).await.expect("a replaced type");
    assert!(second.version > first.version);
    subject.reopen().await;
    assert_eq!(subject.store.event_type("order.created").await.expect("read"), Some(second.clone()));
    assert_eq!(subject.store.event_types_version().await.expect("read"), second.version);

    let delete = |version| subject.store.delete_event_type("order.created", version, activity());
    assert!(!delete(first.version).await.expect("delete"), "another version");
    assert!(delete(second.version).await.expect("delete"));
    assert!(!delete(second.version).await.expect("delete"), "it is gone");
    assert!(subject.store.event_types_version().await.expect("read") > second.version);
    assert_eq!(subject.set_type(Some(second.version), event_type("order.created")).await, None, "it is gone");
}

pub async fn event_types_are_listed_by_their_names(subject: Subject) {
    for name in ["order.created", "Order.paid", "invoice.paid", "order-item.added"] {
        subject.set_type(None, event_type(name)).await;
    }
    // By their bytes, in every store.
    let all = ["Order.paid", "invoice.paid", "order-item.added", "order.created"];
    assert_eq!(subject.type_names(None, None, 10).await, all);
    assert_eq!(subject.type_names(None, None, 2).await, all[..2]);
    assert_eq!(subject.type_names(None, Some("invoice.paid"), 10).await, all[2..]);
    assert_eq!(subject.type_names(Some("ORDER."), None, 10).await, ["Order.paid", "order.created"]);
    assert_eq!(subject.type_names(Some("%"), None, 10).await, [""; 0]);
}

pub async fn a_process_reads_the_schemas_that_have_changed(subject: Subject) {
    let first = subject.set_type(None, event_type("a")).await.expect("a type");
    let second = subject.set_type(None, event_type("b")).await.expect("a type");
    let mut known = subject.store.known_event_types(0).await.expect("read");
    known.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(known.iter().all(|known| known.schema.as_deref() == Some(r#"{"type":"object"}"#)), "{known:?}");
    let mut known = subject.store.known_event_types(first.version).await.expect("read");
    known.sort_by(|a, b| a.name.cmp(&b.name));
    let found: Vec<_> =
        known.iter().map(|known| (known.name.as_str(), known.version, known.schema.is_some())).collect();
    assert_eq!(found, [("a", first.version, false), ("b", second.version, true)]);
}

pub async fn the_catalogue_of_event_types_is_bounded(subject: Subject) {
    let large = |name: &str, bytes: usize| EventType {
        schema: Some(json!({"description": "x".repeat(bytes - r#"{"description":""}"#.len())})),
        ..event_type(name)
    };
    let half = subject.set_type(None, large("a", MAX_SCHEMA_BYTES / 2)).await.expect("a type");
    subject.set_type(None, large("b", MAX_SCHEMA_BYTES / 2)).await.expect("a type");
    let too_much = subject.store.set_event_type(None, event_type("c"), activity()).await.expect("set");
    assert_eq!(too_much, EventTypeChange::Full);
    let grown = large("a", MAX_SCHEMA_BYTES / 2 + 1);
    let grown = subject.store.set_event_type(Some(half.version), grown, activity()).await.expect("set");
    assert_eq!(grown, EventTypeChange::Full);
    let bare = EventType { schema: None, ..event_type("c") };
    subject.set_type(None, bare).await.expect("a type without a schema");
    let small = subject.set_type(Some(half.version), event_type("a")).await.expect("a smaller schema");
    subject.store.delete_event_type("a", small.version, activity()).await.expect("delete");
    subject.set_type(None, large("d", MAX_SCHEMA_BYTES / 2)).await.expect("room again");
}
