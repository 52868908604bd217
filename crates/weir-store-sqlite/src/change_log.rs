//! What a transaction has changed in the counters: collected in memory while the transaction runs, and appended as rows
//! before it commits, one row for each destination and bucket. So a group of hundreds of deliveries costs a few rows.
//!
//! Every statement that changes the state of deliveries records it here. The conformance suite compares the counters
//! with the deliveries after every test, so a statement that forgets it fails its own test.

use std::collections::BTreeMap;

use rusqlite::Connection;
use weir_core::{DeliveryState, DestinationId, Timestamp, delivery::AttemptOutcome};
use weir_store::{AttemptResult, TRAFFIC_BUCKET, Traffic, rows::state_code, sql};

use crate::{
    error::Result,
    sql::{Batch, MAX_ROWS, Values, execute},
};

static APPEND_COUNTS: Batch = Batch::new(
    sql!(
        "INSERT OR ROLLBACK INTO count_changes (destination_id, at, {state_columns}, arrivals) SELECT * FROM (VALUES "
    ),
    "(?,?,?,?,?,?,?,?,?,?,?,?)",
    ") AS r WHERE r.column1 IS NOT NULL",
);

static APPEND_TRAFFIC: Batch = Batch::new(
    "INSERT OR ROLLBACK INTO traffic_changes (destination_id, at, sends, delivered, failed, dead, throttled,
        last_success_at, latencies, attempts)
    SELECT * FROM (VALUES ",
    "(?,?,?,?,?,?,?,?,?,?)",
    ") AS r WHERE r.column1 IS NOT NULL",
);

/// The changes of one transaction.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog {
    /// By destination and the beginning of the bucket.
    counts: BTreeMap<(DestinationId, Timestamp), CountChange>,
    attempts: BTreeMap<(DestinationId, Timestamp), Attempts>,
}

/// By how many deliveries each state has grown or shrunk, and how many deliveries are new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct CountChange {
    states: [i64; DeliveryState::ALL.len()],
    arrivals: i64,
}

/// Recorded attempts that started in one bucket.
#[derive(Debug, Default)]
struct Attempts {
    traffic: Traffic,
    last_success_at: Option<Timestamp>,
    latencies: BTreeMap<u16, u32>,
    /// How many attempts the delivered deliveries needed.
    numbers: BTreeMap<u32, u32>,
}

impl ChangeLog {
    /// An attempt was recorded, and its delivery has this state now.
    pub(crate) fn attempted(&mut self, result: &AttemptResult, state: DeliveryState) {
        let attempt = &result.attempt;
        let at = result.started_at().floor(TRAFFIC_BUCKET);
        let attempts = self.attempts.entry((result.claim.destination_id, at)).or_default();
        let traffic = &mut attempts.traffic;
        traffic.sends += u64::from(attempt.sent_at.is_some());
        traffic.dead += u64::from(matches!(state, DeliveryState::Dead | DeliveryState::Failed));
        if attempt.outcome == AttemptOutcome::Delivered {
            traffic.delivered += 1;
            attempts.last_success_at = attempts.last_success_at.max(Some(result.now));
            *attempts.numbers.entry(attempt.number).or_default() += 1;
        } else {
            traffic.failed += 1;
            traffic.throttled += u64::from(attempt.status_code == Some(429));
        }
        if let Some(latency) = result.latency_bucket() {
            *attempts.latencies.entry(latency).or_default() += 1;
        }
    }

    /// A new delivery was stored in this state.
    pub(crate) fn arrived(&mut self, destination_id: DestinationId, state: DeliveryState, at: Timestamp) {
        let change = self.count(destination_id, at);
        change.states[state as usize] += 1;
        change.arrivals += 1;
    }

    /// A delivery moved to another state.
    pub(crate) fn moved(&mut self, of: DestinationId, from: DeliveryState, to: DeliveryState, at: Timestamp) {
        let change = self.count(of, at);
        change.states[from as usize] -= 1;
        change.states[to as usize] += 1;
    }

    /// Several deliveries moved from one state to another.
    pub(crate) fn moved_many(
        &mut self,
        of: DestinationId,
        deliveries: i64,
        [from, to]: [DeliveryState; 2],
        at: Timestamp,
    ) {
        let change = self.count(of, at);
        change.states[from as usize] -= deliveries;
        change.states[to as usize] += deliveries;
    }

    /// A delivery was deleted.
    pub(crate) fn deleted(&mut self, destination_id: DestinationId, state: DeliveryState, at: Timestamp) {
        self.count(destination_id, at).states[state as usize] -= 1;
    }

    fn count(&mut self, destination_id: DestinationId, at: Timestamp) -> &mut CountChange {
        self.counts.entry((destination_id, at.floor(TRAFFIC_BUCKET))).or_default()
    }

    /// Appends the changes to their tables.
    pub(crate) fn write(&mut self, connection: &Connection) -> Result<()> {
        // A delivery that was claimed and released in one transaction leaves no change.
        self.counts.retain(|_, change| *change != CountChange::default());
        let counts: Vec<_> = self.counts.iter().collect();
        for part in counts.chunks(MAX_ROWS) {
            let (sql, values) = APPEND_COUNTS.of(Values::default(), part, |values, ((destination_id, at), change)| {
                values.bind(destination_id.as_bytes()).bind(at);
                for deliveries in change.states {
                    values.bind(deliveries);
                }
                values.bind(change.arrivals);
            });
            execute(connection, &sql, &values)?;
        }
        self.write_attempts(connection)
    }

    fn write_attempts(&self, connection: &Connection) -> Result<()> {
        let attempts = self.attempts.iter().map(|(of, Attempts { traffic, last_success_at, latencies, numbers })| {
            Ok((of, traffic, last_success_at, serde_json::to_string(latencies)?, serde_json::to_string(numbers)?))
        });
        for part in attempts.collect::<Result<Vec<_>>>()?.chunks(MAX_ROWS) {
            let (sql, values) = APPEND_TRAFFIC.of(Values::default(), part, |values, one| {
                let ((destination_id, at), traffic, last_success_at, latencies, numbers) = one;
                values.bind(destination_id.as_bytes()).bind(at);
                for number in [traffic.sends, traffic.delivered, traffic.failed, traffic.dead, traffic.throttled] {
                    values.bind(number as i64);
                }
                values.bind(**last_success_at);
                values.bind(latencies).bind(numbers);
            });
            execute(connection, &sql, &values)?;
        }
        Ok(())
    }
}

// The columns of the states are in the order of the codes.
const _: () = assert!(state_code(DeliveryState::Pending) == 0 && state_code(DeliveryState::Expired) == 8);
