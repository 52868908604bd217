//! Edits of limit keys by one process, while another stores events.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use weir_core::{Destination, LimitKey, RateLimits, Timestamp, limit_key::KeyLimits};
use weir_store::{
    ClaimRequest, ClaimedFlow, DestinationPatch, Destinations as _, Flows as _, Ingest as _, LimitKeys as _,
    Outbox as _,
};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    fixtures::{NOW, creation, destination, destination_id, event, request},
};

const LATER: Timestamp = Timestamp::from_secs(1_800_001_000);

/// The key of an event of the suite is its number.
fn by_number() -> Option<Arc<KeyLimits>> {
    Some(Arc::new(KeyLimits {
        pointer: "/number".to_owned(),
        rate_limits: RateLimits::UNLIMITED,
        max_in_flight: None,
        weight: 1,
        overrides: [].into(),
    }))
}

async fn set_keys(store: &PostgresStore, current: &Destination, keys: Option<Arc<KeyLimits>>) -> Arc<Destination> {
    let mut settings = current.settings.clone();
    settings.key_limits = keys;
    let now = current.updated_at + Duration::from_millis(1);
    let patch = DestinationPatch {
        id: current.id,
        expected_updated_at: current.updated_at,
        settings,
        temporary: None,
        closes_breaker: false,
        lifts_hold: false,
        now,
        made_at: now,
    };
    store.patch_destination(patch, creation()).await.unwrap().into_new().flatten().unwrap()
}

async fn claim(store: &PostgresStore, flow: ClaimedFlow) -> Vec<u128> {
    let requests = vec![ClaimRequest { flow, ..request(1, 1_000) }];
    let claims = store.claim(requests, LATER).await.unwrap().remove(0);
    claims.deliveries.iter().map(|one| one.event_created_at.since(NOW).as_millis()).collect()
}

/// Whether an event is stored before or after an edit, it has the flow of its key or none, and each is claimed.
#[tokio::test]
async fn no_event_is_lost_beside_edits_of_limit_keys() {
    let database = Database::migrated().await;
    let editor = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let other = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let mut current = editor.create_destination(destination(1), creation()).await.unwrap().into_new().unwrap();
    // The other process caches the destination without keys.
    let answer = other.ingest(vec![event(1)]).await.unwrap().remove(0).unwrap();
    assert_eq!(answer.wake, [destination_id(1)]);
    let edits = async {
        for round in 0..20 {
            current = set_keys(&editor, &current, if round % 2 == 0 { by_number() } else { None }).await;
        }
        set_keys(&editor, &current, by_number()).await
    };
    let posts = async {
        for number in 2..=100 {
            other.ingest(vec![event(number)]).await.unwrap().remove(0).unwrap();
        }
    };
    let (edited, ()) = tokio::join!(edits, posts);
    assert_eq!(edited.keyed_at, Some(NOW + Duration::from_millis(1)));
    // An event after the answer to the edit has a flow.
    let flow = LimitKey::new("101").flow_id(destination_id(1));
    assert_eq!(other.ingest(vec![event(101)]).await.unwrap().remove(0).unwrap().wake, [flow]);
    let due = other.due_destinations(LATER, None, 9).await.unwrap();
    assert_eq!(due.iter().map(|due| due.destination_id).collect::<Vec<_>>(), [destination_id(1)]);
    let mut claimed = claim(&other, ClaimedFlow::Keyless).await;
    assert!(claimed.contains(&1) && !claimed.contains(&101));
    let flows = other.due_flows(LATER, None, 1_000).await.unwrap();
    assert_eq!(flows.len() + claimed.len(), 101);
    for flow in flows {
        claimed.extend(claim(&other, ClaimedFlow::Key(flow.destination_id)).await);
    }
    assert_eq!(claimed.len(), 101);
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>(), (1..=101).collect());
}

/// A program of the version before reads a list, or the member `settings` of an object.
#[tokio::test]
async fn a_program_of_the_version_before_refuses_to_read_a_destination_that_has_had_limit_keys() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let made = store.create_destination(destination(1), creation()).await.unwrap().into_new().unwrap();
    let column = async || {
        let query = sqlx::query_scalar("SELECT rate_limits FROM destinations");
        let text: String = query.fetch_one(&mut database.connect().await).await.unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    assert!(column().await.is_array());
    let mut current = made;
    for keys in [by_number(), None] {
        current = set_keys(&store, &current, keys).await;
        let column = column().await;
        assert!(!column.is_array() && column["settings"].is_null(), "{column}");
    }
}

/// PostgreSQL has no text with this character.
#[tokio::test]
async fn a_key_with_a_zero_character_is_stored() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let mut keyed = destination(1);
    keyed.settings.key_limits = by_number();
    store.create_destination(keyed, creation()).await.unwrap();
    let mut new = event(1);
    new.event.options.limit_key = Some(LimitKey::new("a\0b"));
    let flow = LimitKey::new("a\0b").flow_id(destination_id(1));
    assert_eq!(store.ingest(vec![new]).await.unwrap().remove(0).unwrap().wake, [flow]);
    assert_eq!(claim(&store, ClaimedFlow::Key(flow)).await, [1]);
    assert_eq!(store.key_backlogs(destination_id(1), Some("a\0"), 9).await.unwrap().keys, []);
}
