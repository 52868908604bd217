//! The cost of claims and sweeps does not depend on the length of the backlog.

#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test of durations")]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use weir_core::Timestamp;
use weir_store::{
    ClaimRequest, Destinations as _, Ingest as _, NewEvent, Outbox as _,
    conformance::{NOW, creation, destination, event_at, named, request},
};
use weir_store_sqlite::SqliteStore;

const CLAIMS: usize = 41;
const PER_CLAIM: u32 = 10;
const SHORT: u64 = 1_000;
const LONG: u64 = 100_000;

fn event(number: u64, to: u128) -> NewEvent {
    named(event_at(number, NOW + Duration::from_micros(number)), &[to])
}

/// The median durations of a claim of ten deliveries from destination 1 and of the sweep's query, with `backlog`
/// deliveries waiting.
async fn medians(path: &Path, backlog: u64) -> (Duration, Duration) {
    let store = SqliteStore::open(path).await.unwrap();
    for number in 1..=2 {
        store.create_destination(destination(number), creation()).await.unwrap();
    }
    for first in (0..backlog).step_by(1_000) {
        store.ingest((first..first + 1_000).map(|number| event(number, 1)).collect()).await.unwrap();
    }
    store.ingest(vec![event(backlog, 2)]).await.unwrap();
    let mut claims = Vec::new();
    let mut sweeps = Vec::new();
    for _ in 0..CLAIMS {
        let request = ClaimRequest { expires_at: Timestamp::MAX, ..request(1, PER_CLAIM) };
        let started = Instant::now();
        let claimed = store.claim(vec![request], Timestamp::MAX).await.unwrap();
        claims.push(started.elapsed());
        assert_eq!(claimed[0].deliveries.len(), PER_CLAIM as usize);
        let started = Instant::now();
        let due = store.due_destinations(Timestamp::MAX, None, 100).await.unwrap();
        sweeps.push(started.elapsed());
        assert_eq!(due.len(), 2);
    }
    store.close().await;
    claims.sort_unstable();
    sweeps.sort_unstable();
    (claims[CLAIMS / 2], sweeps[CLAIMS / 2])
}

#[tokio::test]
async fn a_long_backlog_slows_neither_claims_nor_the_sweep() {
    let directory = tempfile::tempdir().unwrap();
    let (short_claim, short_sweep) = medians(&directory.path().join("short.db"), SHORT).await;
    let (long_claim, long_sweep) = medians(&directory.path().join("long.db"), LONG).await;
    // The backlog is 100 times as long. A scan would cost tens of times as much; other load on the machine may double a
    // duration.
    let allowed = |short: Duration| short * 5 + Duration::from_millis(2);
    assert!(long_claim < allowed(short_claim), "claims: {short_claim:?} became {long_claim:?}");
    assert!(long_sweep < allowed(short_sweep), "sweeps: {short_sweep:?} became {long_sweep:?}");
}
