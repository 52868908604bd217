//! Destinations, events and results for the tests.

use std::time::Duration;

use weir_core::{
    AttemptId, Destination, EventId, RateLimits, Timestamp,
    claim::ClaimedDelivery,
    delivery::{Attempt, AttemptOutcome},
    event::{DeliveryOptions, Event, EventBody},
    outcome::Verdict,
};
use weir_store::{AttemptResult, ClaimRequest, NewEvent, conformance};

pub(crate) use weir_store::conformance::{NOW, destination_id};

pub(crate) const TENANT: &str = "acme";

pub(crate) fn destination(number: u128) -> Destination {
    let mut destination = conformance::destination(number);
    destination.settings.rate_limits = RateLimits::UNLIMITED;
    destination
}

pub(crate) fn event_at(number: u64, created_at: Timestamp) -> NewEvent {
    let random = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let id = EventId::new(created_at, random);
    let event_type = "video.created".to_owned();
    let body = EventBody::freeze(id, &event_type, created_at, &format!("{{\"number\": {number}}}"));
    let event = Event {
        id,
        tenant: TENANT.to_owned(),
        event_type,
        created_at,
        idempotency_key: None,
        options: DeliveryOptions::default(),
        body,
    };
    NewEvent { event, destinations: None, random: random.rotate_left(17) }
}

/// The `number`-th event, created `number` milliseconds after [`NOW`], for every destination.
pub(crate) fn event(number: u64) -> NewEvent {
    event_at(number, NOW + Duration::from_millis(number))
}

pub(crate) fn request(number: u128, limit: u32) -> ClaimRequest {
    let expires_at = NOW + Duration::from_secs(60);
    ClaimRequest { destination_id: destination_id(number), limit, expires_at, durable: false }
}

pub(crate) fn result(claimed: &ClaimedDelivery, verdict: Verdict) -> AttemptResult {
    let now = NOW + Duration::from_secs(1);
    let random = u128::from_be_bytes(*claimed.claim.delivery_id.as_bytes());
    let attempt = Attempt {
        id: AttemptId::new(now, random),
        delivery_id: claimed.claim.delivery_id,
        number: claimed.attempts + 1,
        sent_at: Some(now),
        duration_ms: 12,
        outcome: if verdict == Verdict::Delivered { AttemptOutcome::Delivered } else { AttemptOutcome::Retryable },
        status_code: Some(200),
        error: None,
        failure: None,
        response_body: Some("ok".to_owned()),
    };
    AttemptResult { claim: claimed.claim, attempt, verdict, now }
}
