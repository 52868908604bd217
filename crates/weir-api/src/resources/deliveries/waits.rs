//! What keeps a delivery that is due from being sent: the condition of its destination.

use serde::Serialize;
use utoipa::ToSchema;
use weir_core::{Destination, Timestamp, breaker::BreakerState, delivery::Delivery};

/// Why nothing is sent to a destination.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = WaitsFor)]
pub(crate) struct WaitsForView {
    /// `pause`: until somebody resumes the destination. `hold`: the receiver asked Weir to wait; a release ends it.
    /// `breaker`: the destination fails, and one probe is sent at a time.
    #[schema(value_type = String, pattern = "^(pause|hold|breaker)$", example = "hold")]
    reason: &'static str,
    /// Null for a pause.
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
    /// The reason in words, such as ``the destination answered 429 with retry-after: 120``.
    detail: Option<String>,
}

impl WaitsForView {
    /// Why nothing is sent to the destination now; `None` if it is sent to.
    pub(crate) fn of(destination: &Destination, now: Timestamp) -> Option<Self> {
        if destination.settings.paused {
            return Some(Self { reason: "pause", until: None, detail: destination.paused_reason.clone() });
        }
        if let Some(until) = destination.held_until.filter(|until| *until > now) {
            return Some(Self { reason: "hold", until: Some(until), detail: destination.held_reason.clone() });
        }
        let breaker = &destination.breaker;
        (breaker.state(now) == BreakerState::Open).then(|| {
            let detail = breaker.reason().map(str::to_owned);
            Self { reason: "breaker", until: breaker.next_probe_at(), detail }
        })
    }

    /// Why a delivery waits although it is due, or after it will be due. `None` for a delivery that does not wait, or
    /// waits only for its own time.
    pub(super) fn of_delivery(delivery: &Delivery, destination: Option<&Destination>, now: Timestamp) -> Option<Self> {
        let due = delivery.next_attempt_at.filter(|_| delivery.state.is_waiting())?;
        let waits_for = Self::of(destination?, now)?;
        waits_for.until.is_none_or(|until| until > due).then_some(waits_for)
    }

    /// The due time of a delivery that is due at this instant by itself.
    pub(super) fn earliest(&self, due: Timestamp) -> Timestamp {
        self.until.map_or(due, |until| until.max(due))
    }
}
