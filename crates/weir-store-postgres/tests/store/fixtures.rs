//! Destinations, events and results as the tests need them.

use std::time::Duration;

use weir_core::{
    AttemptId, Destination, DestinationId, EventId, RateLimits, Timestamp,
    alert::AlertOverrides,
    breaker::{Breaker, BreakerPolicy},
    claim::ClaimedDelivery,
    delivery::{Attempt, AttemptOutcome},
    destination::Settings,
    event::{Event, EventBody, Terms},
    order::DeliveryOrder,
    outcome::Verdict,
    retry::RetryPolicy,
    signing::{Secret, Signing},
};
use weir_store::{AttemptResult, ClaimRequest, NewEvent};

/// The invented present.
pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
pub(crate) const TENANT: &str = "acme";

pub(crate) fn destination_id(number: u128) -> DestinationId {
    DestinationId::new(NOW, number)
}

pub(crate) fn destination(number: u128) -> Destination {
    Destination {
        id: destination_id(number),
        created_at: NOW,
        updated_at: NOW,
        settings: Settings {
            url: "https://example.com/hook".parse().unwrap(),
            name: String::new(),
            tenant: TENANT.to_owned(),
            event_types: vec!["*".parse().unwrap()],
            rate_limits: RateLimits::UNLIMITED,
            max_in_flight: 64,
            timeout_ms: 15_000,
            retry: RetryPolicy::default(),
            breaker: Some(BreakerPolicy::default()),
            alerts: AlertOverrides::default(),
            order: DeliveryOrder::Any,
            headers: Vec::new(),
            signing: Signing::new(Secret::from_bytes(vec![7; 32]).unwrap()),
            paused: false,
        },
        paused_reason: None,
        held_until: None,
        held_reason: None,
        breaker: Breaker::default(),
    }
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
        terms: Terms::default(),
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
