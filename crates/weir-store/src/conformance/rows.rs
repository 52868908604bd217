//! Builders for the rows of the suite. Tests of the backends use them as well.

use weir_core::{
    ReplayId,
    delivery::{AttemptDetails, ConnectionDetails},
};

use super::*;
use crate::{OpenReplay, ReplayFilter, ReplayPhase, ReplayPosition};

/// The present time of the suite.
pub const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
pub(super) const TENANT: &str = "acme";

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn destination_id(number: u128) -> DestinationId {
    DestinationId::new(NOW, number)
}

/// A destination of the tenant `acme` that takes everything. Ids sort by `number`.
pub fn destination(number: u128) -> Destination {
    let url = "https://example.com/hook?a=1".parse().expect("a url");
    let signing = Signing::new(Secret::from_bytes(vec![7; 32]).expect("a secret"));
    let settings = Settings {
        name: format!("destination {number}"),
        tenant: TENANT.to_owned(),
        rate_limits: per_second(10),
        ..Settings::new(url, signing)
    };
    Destination::new(destination_id(number), settings, NOW)
}

pub(super) fn per_second(limit: u32) -> RateLimits {
    RateLimits::new(RateLimit::new(limit, Period::SECOND).into_iter().collect()).expect("limits")
}

/// The `number`-th event of the tenant `acme`, created `number` milliseconds after [`NOW`].
pub fn event(number: u64) -> Event {
    event_at(number, NOW + Duration::from_millis(number))
}

pub fn event_at(number: u64, created_at: Timestamp) -> Event {
    let id = EventId::new(created_at, u128::from(number));
    let event_type = "video.created".to_owned();
    let body = EventBody::freeze(id, &event_type, created_at, &format!("{{\"number\": {number}}}"));
    Event {
        id,
        tenant: TENANT.to_owned(),
        event_type,
        created_at,
        idempotency_key: None,
        options: DeliveryOptions::default(),
        body,
        filtered: 0,
    }
}

/// A number that looks random and differs for each event.
pub(super) fn random(event: &Event) -> u128 {
    u128::from_be_bytes(*event.id.as_bytes()).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// A new event for every destination that matches.
pub fn matched(event: Event) -> NewEvent {
    let random = random(&event);
    NewEvent::new(event, None, random)
}

/// A new event for these destinations.
pub fn named(event: Event, destinations: &[u128]) -> NewEvent {
    let destinations = destinations.iter().copied().map(destination_id).collect();
    let random = random(&event);
    NewEvent::new(event, Some(destinations), random)
}

pub fn with_key(mut event: Event, key: &str) -> Event {
    event.idempotency_key = Some(key.to_owned());
    event
}

/// The event with a trace made from `number`.
pub(super) fn in_trace(mut event: Event, number: u8) -> Event {
    event.body = event.body.traced(TraceParent::new([number; 16], [number; 8], true));
    event
}

/// A replay of these deliveries before its first step.
pub fn begun(filter: ReplayFilter) -> OpenReplay {
    OpenReplay {
        id: ReplayId::from_bytes([0; 16]),
        phase: ReplayPhase::Moving,
        filter,
        created_at: NOW,
        position: ReplayPosition::default(),
        moved: 0,
    }
}

pub fn request(number: u128, limit: u32) -> ClaimRequest {
    ClaimRequest {
        flow: crate::ClaimedFlow::All,
        destination_id: destination_id(number),
        limit,
        expires_at: NOW + seconds(60),
        durable: false,
    }
}

pub(super) fn attempt(claimed: &ClaimedDelivery, outcome: AttemptOutcome) -> Attempt {
    let number = claimed.attempts + 1;
    Attempt {
        id: AttemptId::new(NOW, u128::from_be_bytes(*claimed.claim.delivery_id.as_bytes()) ^ u128::from(number)),
        delivery_id: claimed.claim.delivery_id,
        number,
        sent_at: Some(NOW + seconds(1)),
        duration_ms: 20,
        outcome,
        status_code: Some(200),
        error: None,
        failure: None,
        response_body: Some("ok".to_owned()),
        details: AttemptDetails {
            signed_at: Some(NOW),
            connection: Some(ConnectionDetails {
                remote_address: "[2001:db8::7]:8443".parse().expect("an address"),
                connect_ms: Some(12),
                tls_ms: None,
            }),
            response_headers: vec![("server".to_owned(), "é\"\\".to_owned()), ("server".to_owned(), String::new())],
        },
    }
}

/// The result of a claimed delivery with this verdict, judged a second and 20 ms after [`NOW`].
pub fn result(claimed: &ClaimedDelivery, verdict: Verdict) -> AttemptResult {
    let outcome = match verdict {
        Verdict::Delivered => AttemptOutcome::Delivered,
        Verdict::Retry { .. } | Verdict::Dead => AttemptOutcome::Retryable,
        Verdict::Failed => AttemptOutcome::Rejected,
    };
    let now = NOW + Duration::from_millis(1_020);
    AttemptResult { claim: claimed.claim, attempt: attempt(claimed, outcome), verdict, is_counted: true, now }
}

pub(super) fn page(limit: u32) -> PageRequest {
    PageRequest { before: None, limit }
}

/// The number of the event, read from its body.
pub(super) fn number_of(claimed: &ClaimedDelivery) -> u64 {
    let ClaimedBody::Inline(body) = &claimed.body else { panic!("a store claims with bodies") };
    let data = body.data();
    let text = std::str::from_utf8(&data).expect("text");
    text.trim_start_matches("{\"number\": ").trim_end_matches('}').parse().expect("a number")
}

pub(super) fn numbers_of(claims: &Claims) -> Vec<u64> {
    claims.deliveries.iter().map(number_of).collect()
}
