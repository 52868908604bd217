//! The meters every attempt passes, looked up once: a look-up costs more than the measurement.

use metrics::{Counter, Histogram, counter, histogram};
use weir_core::{
    Timestamp,
    breaker::BreakerState,
    delivery::{AttemptOutcome, DeliveryState},
};

pub(crate) struct Meters {
    delivered: Counter,
    duration: Histogram,
    latency: Histogram,
    start_lag: Histogram,
    slots_used: Counter,
    pub(crate) slots_missed: Counter,
}

impl Meters {
    pub(crate) fn new() -> Self {
        Self {
            delivered: attempts(AttemptOutcome::Delivered, "answer"),
            duration: histogram!("weir_attempt_duration_seconds"),
            latency: histogram!("weir_delivery_latency_seconds"),
            start_lag: histogram!("weir_start_lag_seconds"),
            slots_used: counter!("weir_slots_used_total"),
            slots_missed: counter!("weir_slots_missed_total"),
        }
    }

    /// A request that might have left at `due` left at `sent_at`, in its slot.
    pub(crate) fn sent(&self, due: Timestamp, sent_at: Timestamp) {
        self.start_lag.record(sent_at.since(due).as_secs_f64());
        self.slots_used.increment(1);
    }

    /// An attempt that met `kind` ended at `now`.
    pub(crate) fn observe(
        &self,
        outcome: AttemptOutcome,
        kind: &'static str,
        created_at: Timestamp,
        sent_at: Option<Timestamp>,
        now: Timestamp,
    ) {
        if let Some(sent_at) = sent_at {
            self.duration.record(now.since(sent_at).as_secs_f64());
        }
        if outcome == AttemptOutcome::Delivered {
            self.delivered.increment(1);
            self.latency.record(now.since(created_at).as_secs_f64());
        } else {
            attempts(outcome, kind).increment(1);
        }
    }
}

/// Deliveries that have ended with an attempt, by how. Series are there from the start, so that the first failure is a rise.
pub(crate) struct DeliveryMeters {
    delivered: Counter,
    failed: Counter,
    dead: Counter,
}

impl DeliveryMeters {
    pub(crate) fn new() -> Self {
        for state in [BreakerState::Closed, BreakerState::Open, BreakerState::HalfOpen] {
            breaker_changes(state.as_str()).increment(0);
        }
        let of = |state: DeliveryState| counter!("weir_deliveries_total", "state" => state.as_str());
        Self {
            delivered: of(DeliveryState::Delivered),
            failed: of(DeliveryState::Failed),
            dead: of(DeliveryState::Dead),
        }
    }

    /// An attempt has left its delivery in this state.
    pub(crate) fn count(&self, state: DeliveryState) {
        match state {
            DeliveryState::Delivered => self.delivered.increment(1),
            DeliveryState::Failed => self.failed.increment(1),
            DeliveryState::Dead => self.dead.increment(1),
            _ => {}
        }
    }
}

pub(crate) fn breaker_changes(state: &'static str) -> Counter {
    counter!("weir_breaker_changes_total", "state" => state)
}

fn attempts(outcome: AttemptOutcome, kind: &'static str) -> Counter {
    counter!("weir_attempts_total", "outcome" => outcome.as_str(), "kind" => kind)
}
