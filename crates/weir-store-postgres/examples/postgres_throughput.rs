//! How fast the store ingests, claims and settles, on the server that `WEIR_TEST_POSTGRES_URL` names.
//!
//! `cargo run --release -p weir-store-postgres --example postgres_throughput [events]`
//!
//! Prints events per second of wall time and, where the system tells, of this process's processor time, and how many
//! transactions the server committed for each event.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a measurement reads the clock and may stop anywhere"
)]

#[path = "../tests/store/database.rs"]
mod database;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use weir_core::{
    AttemptId, Destination, DestinationId, EventId, RateLimits, Timestamp,
    claim::ClaimedDelivery,
    delivery::{Attempt, AttemptOutcome},
    event::{Event, EventBody, Terms},
    outcome::Verdict,
};
use weir_store::{
    AttemptResult, ClaimRequest, Destinations as _, Ingest as _, NewEvent, Outbox as _, Results as _, conformance,
};
use weir_store_postgres::PostgresStore;

use database::Database;

const DESTINATIONS: u128 = 20;
const BATCH: usize = 100;
const CALLERS: usize = 64;
const START: Timestamp = Timestamp::from_secs(1_800_000_000);

fn destination(number: u128) -> Destination {
    let mut destination = conformance::destination(number);
    destination.settings.tenant = "default".to_owned();
    destination.settings.rate_limits = RateLimits::UNLIMITED;
    destination
}

/// Scrambles a counter, as fresh random bits would be.
fn scrambled(number: u64) -> u128 {
    u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// The `number`-th event: 30,000 of them a second, 300 bytes each, one destination in turn.
fn event(number: u64) -> NewEvent {
    let created_at = START + Duration::from_nanos(number * 33_333);
    let id = EventId::new(created_at, scrambled(number));
    let event_type = "video.created".to_owned();
    let data = format!(r#"{{"number": {number}, "filler": "{}"}}"#, "x".repeat(200));
    let body = EventBody::freeze(id, &event_type, created_at, &data);
    let event = Event {
        id,
        tenant: "default".to_owned(),
        event_type,
        created_at,
        idempotency_key: None,
        terms: Terms::default(),
        body,
    };
    let to = DestinationId::new(START, u128::from(number) % DESTINATIONS);
    NewEvent { event, destinations: Some(vec![to]), random: scrambled(number).rotate_left(17) }
}

fn requests(limit: u32) -> Vec<ClaimRequest> {
    let request = |number| ClaimRequest {
        destination_id: DestinationId::new(START, number),
        limit,
        expires_at: Timestamp::MAX,
        durable: false,
    };
    (0..DESTINATIONS).map(request).collect()
}

fn delivered(claimed: &ClaimedDelivery) -> Arc<AttemptResult> {
    let now = claimed.event_created_at + Duration::from_millis(30);
    let random = u128::from_be_bytes(*claimed.claim.delivery_id.as_bytes());
    let attempt = Attempt {
        id: AttemptId::new(now, random),
        delivery_id: claimed.claim.delivery_id,
        number: claimed.attempts + 1,
        sent_at: Some(now),
        duration_ms: 12,
        outcome: AttemptOutcome::Delivered,
        status_code: Some(200),
        error: None,
        failure: None,
        response_body: Some("ok".to_owned()),
    };
    Arc::new(AttemptResult { claim: claimed.claim, attempt, verdict: Verdict::Delivered, now })
}

/// Processor time of this process so far, and its resident memory in MiB, where `/proc` tells.
fn process() -> (Duration, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    (Duration::from_millis((ticks(11) + ticks(12)) * 10), ticks(21) * 4096 / (1024 * 1024))
}

struct Measured {
    what: &'static str,
    database: Arc<Database>,
    started: Instant,
    processor: Duration,
    transactions: i64,
}

/// How many transactions the server committed in the database so far. It hears of them a little late.
async fn transactions(database: &Database) -> i64 {
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let committed = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    sqlx::query_scalar(committed).fetch_one(&mut database.connect().await).await.unwrap()
}

impl Measured {
    async fn begin(what: &'static str, database: &Arc<Database>) -> Self {
        let transactions = transactions(database).await;
        let database = Arc::clone(database);
        Self { what, database, started: Instant::now(), processor: process().0, transactions }
    }

    async fn end(self, events: u64) {
        let (processor, resident) = process();
        let wall = events as f64 / self.started.elapsed().as_secs_f64();
        let spent = (processor - self.processor).as_secs_f64();
        let transactions = transactions(&self.database).await - self.transactions;
        println!(
            "{:<44} {wall:>9.0} events/s   {:>9.0} per processor second   {:.3} transactions each   {resident} MiB",
            self.what,
            events as f64 / spent.max(0.01),
            transactions as f64 / events as f64,
        );
    }
}

async fn open() -> (Arc<Database>, Arc<PostgresStore>) {
    let database = Database::create().await;
    let store = PostgresStore::open(&database.url(), START).await.unwrap();
    for number in 0..DESTINATIONS {
        store.create_destination(destination(number)).await.unwrap();
    }
    (Arc::new(database), Arc::new(store))
}

/// Each step by itself, over the whole backlog.
async fn step_by_step(events: u64) {
    let (database, store) = open().await;
    let measured = Measured::begin("ingest, batches of 100", &database).await;
    for first in (0..events).step_by(BATCH) {
        store.ingest((first..first + BATCH as u64).map(event).collect()).await.unwrap();
    }
    measured.end(events).await;
    let measured = Measured::begin("claim, 20 destinations x 5", &database).await;
    let mut claimed = Vec::new();
    loop {
        let claims = store.claim(requests(5), Timestamp::MAX).await.unwrap();
        let before = claimed.len();
        claimed.extend(claims.into_iter().flat_map(|claims| claims.deliveries).map(|claimed| delivered(&claimed)));
        if claimed.len() == before {
            break;
        }
    }
    measured.end(events).await;
    let measured = Measured::begin("settle, batches of 100", &database).await;
    for part in claimed.chunks(BATCH) {
        store.settle(part.to_vec()).await.unwrap();
    }
    measured.end(events).await;
    store.close().await;
}

/// All three steps at once, as in the engine under load.
async fn pipeline(events: u64) {
    let (database, store) = open().await;
    let measured = Measured::begin("ingest + claim + settle, batches of 100", &database).await;
    let producer = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            for first in (0..events).step_by(BATCH) {
                store.ingest((first..first + BATCH as u64).map(event).collect()).await.unwrap();
            }
        }
    });
    consume(&store, events).await;
    producer.await.unwrap();
    measured.end(events).await;
    store.close().await;
}

/// 64 producers that post one event at a time, while what they post is claimed and settled.
async fn singles(events: u64) {
    let (database, store) = open().await;
    let measured = Measured::begin("single ingests of 64 callers, alone", &database).await;
    post_singles(&store, 0..events).await;
    measured.end(events).await;
    store.close().await;
    let (database, store) = open().await;
    let measured = Measured::begin("single ingests of 64 callers, claim, settle", &database).await;
    tokio::join!(post_singles(&store, 0..events), consume(&store, events));
    measured.end(events).await;
    let measured = Measured::begin("single ingests of 1 caller", &database).await;
    for number in events..events + 500 {
        store.ingest(vec![event(number)]).await.unwrap();
    }
    measured.end(500).await;
    store.close().await;
}

async fn post_singles(store: &Arc<PostgresStore>, numbers: std::ops::Range<u64>) {
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (store, numbers) = (Arc::clone(store), numbers.clone());
            tokio::spawn(async move {
                for number in numbers.skip(caller).step_by(CALLERS) {
                    store.ingest(vec![event(number)]).await.unwrap();
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
}

/// Claims and settles until `events` are delivered.
async fn consume(store: &Arc<PostgresStore>, events: u64) {
    let mut settled = 0;
    while settled < events {
        let claims = store.claim(requests(50), Timestamp::MAX).await.unwrap();
        let results: Vec<_> = claims.iter().flat_map(|claims| &claims.deliveries).map(delivered).collect();
        if results.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        settled += results.len() as u64;
        store.settle(results).await.unwrap();
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let events = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(100_000);
    step_by_step(events).await;
    pipeline(events).await;
    singles(events).await;
}
