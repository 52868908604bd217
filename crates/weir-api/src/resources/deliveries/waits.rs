//! What keeps a delivery that is due from being sent: the condition of its destination.

use weir_api_types as types;
use weir_core::{Destination, Timestamp, breaker::BreakerState, delivery::Delivery};

/// Why nothing is sent to the destination now; `None` if it is sent to.
pub(crate) fn waits_for(destination: &Destination, now: Timestamp) -> Option<types::WaitsFor> {
    if destination.settings.paused {
        return Some(types::WaitsFor {
            reason: "pause".to_owned(),
            until: None,
            detail: destination.paused_reason.clone(),
        });
    }
    if let Some(until) = destination.held_until.filter(|until| *until > now) {
        return Some(types::WaitsFor {
            reason: "hold".to_owned(),
            until: Some(until),
            detail: destination.held_reason.clone(),
        });
    }
    let breaker = &destination.breaker;
    (breaker.state(now) == BreakerState::Open).then(|| {
        let detail = breaker.reason().map(str::to_owned);
        types::WaitsFor { reason: "breaker".to_owned(), until: breaker.next_probe_at(), detail }
    })
}

/// Why a delivery waits although it is due, or after it will be due. `None` for a delivery that does not wait, or
/// waits only for its own time.
pub(super) fn of_delivery(
    delivery: &Delivery,
    destination: Option<&Destination>,
    now: Timestamp,
) -> Option<types::WaitsFor> {
    let due = delivery.next_attempt_at.filter(|_| delivery.state.is_waiting())?;
    let found = waits_for(destination?, now)?;
    found.until.is_none_or(|until| until > due).then_some(found)
}

/// The due time of a delivery that is due at this instant by itself.
pub(super) fn earliest(waits_for: &types::WaitsFor, due: Timestamp) -> Timestamp {
    waits_for.until.map_or(due, |until| until.max(due))
}
