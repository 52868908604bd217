//! The conformance suite has one function for each behaviour. [`store_conformance!`](crate::store_conformance) runs all
//! functions on a backend, and behaviours.rs lists them.
//!
//! Times are fixed values, so the suite never waits. Each behaviour has its own database.

mod activity_log;
mod alerting;
mod api_keys;
mod behaviours;
mod coalescing;
mod costs;
mod counters;
mod destination_names;
mod destinations;
mod discard;
mod event_filters;
mod event_types;
mod fan_out;
mod fast_path;
mod filters;
mod found_keys;
mod group_alerts;
mod history;
mod ingest;
mod keyed_creations;
mod limit_groups;
mod limit_key_reads;
mod limit_keys;
mod lists;
mod message_groups;
mod message_groups_under_load;
mod ordered_replays;
mod outbox;
mod paces;
mod processes;
mod prune;
mod purge;
mod recovery;
mod replays;
mod reservations;
mod results;
mod rows;
mod stops;
mod timing;
mod traces;
mod traffic;

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::Mutex;
use weir_core::{
    AttemptId, DeliveryId, DeliveryState, Destination, DestinationId, EventId, LimitKey, Period, RateLimit, RateLimits,
    Timestamp, TraceParent,
    access::TenantScope,
    body::{BodyFormat, BodySettings},
    breaker::{Breaker, BreakerPolicy},
    claim::{ClaimedBody, ClaimedDelivery},
    delivery::{Attempt, AttemptOutcome, Delivery},
    destination::Settings,
    event::{DeliveryOptions, Event, EventBody},
    order::DeliveryOrder,
    outcome::Verdict,
    pattern::EventPattern,
    signing::{Secret, Signing},
};

pub use self::{
    activity_log::*, alerting::*, api_keys::*, coalescing::*, costs::*, counters::*, destination_names::*,
    destinations::*, discard::*, event_filters::*, event_types::*, fan_out::*, fast_path::*, filters::*, found_keys::*,
    group_alerts::*, history::*, ingest::*, keyed_creations::*, limit_groups::*, limit_key_reads::*, limit_keys::*,
    lists::*, message_groups::*, message_groups_under_load::*, ordered_replays::*, outbox::*, paces::*, processes::*,
    prune::*, purge::*, recovery::*, replays::*, reservations::*, results::*, rows::*, stops::*, timing::*, traces::*,
    traffic::*,
};
use crate::{
    AttemptResult, BreakerChange, ClaimRequest, Claims, Deletion, DeliveryFilter, DestinationFilter, Hold, Ingested,
    NewEvent, PageRequest, Pause, Settlement, SharedStore,
};

/// The migrations that a folder has, in their order, as a store names those that it has applied.
pub fn migrations_in(folder: &str) -> Vec<(i64, String)> {
    let files = std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").file_name());
    let names = files.filter_map(|name| {
        let (version, description) = name.to_str()?.strip_suffix(".sql")?.split_once('_')?;
        Some((version.parse().expect("a version"), description.replace('_', " ")))
    });
    let mut migrations: Vec<_> = names.collect();
    migrations.sort_unstable();
    migrations
}

/// The database of one test.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Opens the database, which is empty the first time. First closes the store that is open, as a process does at its
    /// end.
    async fn open(&self) -> SharedStore;
}

/// One test's store.
pub struct Subject {
    pub store: SharedStore,
    /// The same store, for [`CountedStore`].
    latest: Arc<Mutex<SharedStore>>,
    backend: Arc<dyn Backend>,
}

impl Subject {
    pub async fn new(backend: impl Backend + 'static) -> Self {
        let store = backend.open().await;
        Self { latest: Arc::new(Mutex::new(Arc::clone(&store))), store, backend: Arc::new(backend) }
    }

    /// Its store, whose counters are checked when the test is over.
    pub fn counted(&self) -> CountedStore {
        CountedStore { latest: Arc::clone(&self.latest), _backend: Arc::clone(&self.backend) }
    }

    /// Simulates a restart of the process.
    async fn reopen(&mut self) {
        self.store = self.backend.open().await;
        *self.latest.lock().await = Arc::clone(&self.store);
    }

    async fn create(&self, destination: Destination) -> Arc<Destination> {
        let created = self.store.create_destination(destination, creation()).await.expect("create");
        created.into_new().expect("a new destination")
    }

    /// Creates destinations 1 to `count`.
    async fn create_many(&self, count: u128) {
        for number in 1..=count {
            self.create(destination(number)).await;
        }
    }

    async fn ingest(&self, events: Vec<NewEvent>) -> Vec<Ingested> {
        let answers = self.store.ingest(events).await.expect("ingest");
        answers.into_iter().map(|answer| answer.expect("an accepted event")).collect()
    }

    /// Stores events with these numbers for destination `to`.
    async fn post(&self, to: u128, numbers: impl IntoIterator<Item = u64>) {
        self.ingest(numbers.into_iter().map(|number| named(event(number), &[to])).collect()).await;
    }

    /// Claims the deliveries of destination `number` that are due ten seconds after [`NOW`].
    async fn claim(&self, number: u128, limit: u32) -> Vec<ClaimedDelivery> {
        self.claims(vec![request(number, limit)], NOW + seconds(10)).await.remove(0).deliveries
    }

    async fn claims(&self, requests: Vec<ClaimRequest>, now: Timestamp) -> Vec<Claims> {
        self.store.claim(requests, now).await.expect("claim")
    }

    /// Creates destination 1 with one event, and claims its delivery.
    async fn one_claimed(&self) -> ClaimedDelivery {
        self.create_many(1).await;
        self.post(1, [1]).await;
        self.claim(1, 1).await.remove(0)
    }

    async fn settle(&self, result: impl Into<Arc<AttemptResult>>) -> Settlement {
        self.store.settle(vec![result.into()]).await.expect("settle").remove(0)
    }

    async fn delivery(&self, id: DeliveryId) -> Delivery {
        self.store.delivery(id).await.expect("read").expect("a delivery").delivery
    }

    async fn attempts(&self, id: DeliveryId) -> Vec<Attempt> {
        self.store.delivery(id).await.expect("read").expect("a delivery").attempts
    }

    async fn state(&self, id: DeliveryId) -> DeliveryState {
        self.delivery(id).await.state
    }

    async fn deliveries(&self, filter: DeliveryFilter) -> Vec<Delivery> {
        self.store.list_deliveries(&filter, page(200)).await.expect("list").rows
    }

    async fn patch(
        &self,
        current: &Destination,
        now: Timestamp,
        edit: impl FnOnce(&mut Settings),
    ) -> Option<Arc<Destination>> {
        let mut settings = current.settings.clone();
        edit(&mut settings);
        let (id, expected_updated_at) = (current.id, current.updated_at);
        let patch = crate::DestinationPatch {
            id,
            expected_updated_at,
            settings,
            temporary: None,
            closes_breaker: false,
            lifts_hold: false,
            now,
            made_at: now,
        };
        self.store.patch_destination(patch, creation()).await.expect("patch").into_new().flatten()
    }

    async fn pause(&self, number: u128) {
        assert!(self.pause_at(number, "gone", NOW + seconds(1)).await);
    }

    async fn pause_at(&self, number: u128, reason: &str, now: Timestamp) -> bool {
        let pause = Pause { id: destination_id(number), reason: reason.to_owned(), now };
        self.store.pause_destinations(vec![pause]).await.expect("pause").remove(0)
    }

    async fn hold(&self, number: u128, until: Timestamp, reason: &str, now: Timestamp) {
        let hold = Hold { id: destination_id(number), until, reason: reason.to_owned(), sent_at: now, now };
        self.store.hold_destinations(vec![hold]).await.expect("hold");
    }

    async fn change_breaker(&self, change: BreakerChange) -> bool {
        self.store.change_breakers(vec![change]).await.expect("change").remove(0)
    }

    async fn delete(&self, number: u128) {
        let deleted = self.store.delete_destination(deletion(number, seconds(1)), activity()).await;
        assert_eq!(deleted.expect("delete"), Deletion::Deleted);
    }
}

fn non_zero(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}
