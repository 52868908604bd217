//! The meters of attempts, looked up once, because a look-up costs more than the measurement.

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
    pub(crate) slot_request: Histogram,
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
            slot_request: histogram!("weir_slot_request_seconds"),
        }
    }

    /// A request was sent in its slot at `sent_at`. From `lag_since` on, only this process delayed it.
    pub(crate) fn sent(&self, lag_since: Timestamp, sent_at: Timestamp) {
        self.start_lag.record(sent_at.since(lag_since).as_secs_f64());
        self.slots_used.increment(1);
    }

    /// An attempt ended at `now` with a result of this `kind`: an answer or a kind of failure.
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

/// Deliveries that ended with an attempt, by state. The series exist from the start, so that the first failure shows as
/// an increase.
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

    /// Counts a delivery that an attempt moved to this state, if the state is final.
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
