//! The meters every attempt passes, looked up once: a look-up costs more than the measurement.

use metrics::{Counter, Histogram, counter, histogram};
use weir_core::{Timestamp, delivery::AttemptOutcome};

pub(crate) struct Meters {
    delivered: Counter,
    duration: Histogram,
    latency: Histogram,
}

impl Meters {
    pub(crate) fn new() -> Self {
        Self {
            delivered: attempts(AttemptOutcome::Delivered, "answer"),
            duration: histogram!("weir_attempt_duration_seconds"),
            latency: histogram!("weir_delivery_latency_seconds"),
        }
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

fn attempts(outcome: AttemptOutcome, kind: &'static str) -> Counter {
    counter!("weir_attempts_total", "outcome" => outcome.as_str(), "kind" => kind)
}
