//! The JSON views of destinations, events and deliveries.

mod signature;

use std::{collections::BTreeMap, num::NonZeroU32};

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use weir_core::{
    AttemptId, DeliveryId, Destination, DestinationId, EventId, RateLimit, Timestamp,
    alert::AlertOverrides,
    breaker::BreakerPolicy,
    delivery::{Attempt, Delivery},
    destination::Settings,
    event::Event,
    retry::{RetryDelays, RetryPolicy},
};

use self::signature::SignatureView;
use crate::settings::HEADER_MASK;

/// One page of a list, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct List<T> {
    pub(crate) data: Vec<T>,
    /// The `cursor` of the next page; null on the last page.
    pub(crate) next_cursor: Option<String>,
}

/// A destination.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Destination)]
pub(crate) struct DestinationView {
    #[schema(value_type = String, example = "dst_01h2xcejqtf2nbrexx3vqjhp41")]
    id: DestinationId,
    #[serde(flatten)]
    settings: SettingsView,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Increases with every edit.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// Why Weir paused the destination automatically: it answered 410 Gone, or every attempt failed for days.
    paused_reason: Option<String>,
    /// No send starts before this instant, because the destination sent `Retry-After` or `RateLimit`.
    #[schema(value_type = Option<String>, format = DateTime)]
    held_until: Option<Timestamp>,
    held_reason: Option<String>,
    /// `open`: nothing is sent. `half_open`: one probe is sent at a time.
    #[schema(value_type = String, pattern = "^(closed|open|half_open)$", example = "closed")]
    breaker_state: &'static str,
    /// Why the breaker is not closed.
    breaker_reason: Option<String>,
    /// When an open breaker allows the next probe.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_probe_at: Option<Timestamp>,
}

/// A newly created destination. Only this view of a destination shows the secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CreatedDestination)]
pub(crate) struct CreatedView {
    #[serde(flatten)]
    destination: DestinationView,
    /// The secret that signs requests. Shown only here, by `GET /v1/destinations/{id}/secret` and by a rotation.
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    secret: String,
}

/// The settings of a destination.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DestinationSettings)]
pub(crate) struct SettingsView {
    #[schema(format = "uri", example = "https://example.com/hooks")]
    url: String,
    name: String,
    tenant: String,
    event_types: Vec<String>,
    rate_limits: Vec<RateLimitView>,
    max_in_flight: u32,
    timeout_ms: u32,
    retry: RetryView,
    /// Null: the breaker is disabled.
    breaker: Option<BreakerView>,
    /// The thresholds that override the thresholds of all destinations.
    #[schema(value_type = crate::openapi::Alerts)]
    alerts: AlertOverrides,
    /// Events with the same `ordering_key` are delivered one after the other.
    ordered: bool,
    /// After this many failed attempts an event no longer blocks the later events of its key. Null: it blocks them
    /// until it has ended.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100)]
    skip_after_attempts: Option<NonZeroU32>,
    /// The header names, each with the value `***`: values are write-only. A PATCH with `***` keeps the value.
    headers: BTreeMap<String, &'static str>,
    signature: SignatureView,
    paused: bool,
}

/// At most `limit` sends in every window of one `period`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RateLimit)]
struct RateLimitView {
    #[schema(minimum = 1, maximum = 1_000_000)]
    limit: u32,
    #[schema(value_type = String, pattern = "^(second|minute|hour|day)$", example = "second")]
    period: &'static str,
    #[schema(minimum = 1, maximum = 1_000_000)]
    burst: u32,
}

/// The retry policy. The delays are given by `base_ms` and `cap_ms`, or by `schedule_ms`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Retry)]
struct RetryView {
    max_attempts: u32,
    max_age_s: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    base_ms: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    cap_ms: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    schedule_ms: Option<Vec<u32>>,
}

/// The circuit breaker, which stops sends to a failing destination.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Breaker)]
struct BreakerView {
    failure_ratio: f64,
    min_attempts: u32,
    consecutive: u32,
    open_ms: u32,
    open_max_ms: u32,
    /// Null: never.
    pause_after_s: Option<u32>,
}

impl From<&BreakerPolicy> for BreakerView {
    fn from(policy: &BreakerPolicy) -> Self {
        let &BreakerPolicy { failure_ratio, min_attempts, consecutive, open_ms, open_max_ms, pause_after_s } = policy;
        Self { failure_ratio, min_attempts, consecutive, open_ms, open_max_ms, pause_after_s }
    }
}

impl DestinationView {
    /// A hold that has ended is not shown.
    pub(crate) fn new(destination: &Destination, now: Timestamp) -> Self {
        let held_until = destination.held_until.filter(|until| *until > now);
        Self {
            id: destination.id,
            settings: SettingsView::from(&destination.settings),
            created_at: destination.created_at,
            updated_at: destination.updated_at,
            paused_reason: destination.paused_reason.clone(),
            held_until,
            held_reason: held_until.and_then(|_| destination.held_reason.clone()),
            breaker_state: destination.breaker.state(now).as_str(),
            breaker_reason: destination.breaker.reason().map(str::to_owned),
            next_probe_at: destination.breaker.next_probe_at(),
        }
    }
}

impl CreatedView {
    pub(crate) fn new(destination: &Destination, now: Timestamp) -> Self {
        Self {
            destination: DestinationView::new(destination, now),
            secret: destination.settings.signing.secret.reveal(),
        }
    }
}

impl From<&Settings> for SettingsView {
    fn from(settings: &Settings) -> Self {
        Self {
            url: settings.url.to_string(),
            name: settings.name.clone(),
            tenant: settings.tenant.clone(),
            event_types: settings.event_types.iter().map(ToString::to_string).collect(),
            rate_limits: settings.rate_limits.as_slice().iter().map(RateLimitView::from).collect(),
            max_in_flight: settings.max_in_flight,
            timeout_ms: settings.timeout_ms,
            retry: RetryView::from(&settings.retry),
            breaker: settings.breaker.as_ref().map(BreakerView::from),
            alerts: settings.alerts,
            ordered: settings.order.is_by_key(),
            skip_after_attempts: settings.order.skip_after_attempts(),
            headers: settings.headers.iter().map(|(name, _)| (name.clone(), HEADER_MASK)).collect(),
            signature: SignatureView::from(&settings.signing.style),
            paused: settings.paused,
        }
    }
}

impl From<&RateLimit> for RateLimitView {
    fn from(limit: &RateLimit) -> Self {
        Self { limit: limit.limit.get(), period: limit.period.as_str(), burst: limit.burst.get() }
    }
}

impl From<&RetryPolicy> for RetryView {
    fn from(policy: &RetryPolicy) -> Self {
        let (base_ms, cap_ms, schedule_ms) = match &policy.delays {
            RetryDelays::Backoff { base_ms, cap_ms } => (Some(*base_ms), Some(*cap_ms), None),
            RetryDelays::Schedule(delays) => (None, None, Some(delays.clone())),
        };
        Self { max_attempts: policy.max_attempts, max_age_s: policy.max_age_s, base_ms, cap_ms, schedule_ms }
    }
}

/// The number of deliveries that a request would affect (`dry_run`).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Count)]
pub(crate) struct CountView {
    pub(crate) total: u64,
}

/// An event.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub(crate) struct EventView<'a> {
    #[schema(value_type = String, example = "evt_01h2xcejqtf2nbrexx3vqjhp41")]
    id: EventId,
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "video.created")]
    event_type: &'a str,
    #[schema(value_type = String)]
    tenant: &'a str,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>)]
    idempotency_key: Option<&'a str>,
    /// No attempt starts before this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, format = DateTime, required = false)]
    deliver_at: Option<Timestamp>,
    /// Deliveries that are not sent by this instant become `expired`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, format = DateTime, required = false)]
    expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    coalesce_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    ordering_key: Option<&'a str>,
    /// The data, byte for byte as ingested. Lists show it only with `include=data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    data: Option<&'a RawValue>,
}

/// An event with its deliveries.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EventDetail)]
pub(crate) struct EventDetailView<'a> {
    #[serde(flatten)]
    pub(crate) event: EventView<'a>,
    pub(crate) deliveries: Vec<DeliveryView>,
}

impl<'a> EventView<'a> {
    /// `data` is the data of the event and valid JSON.
    pub(crate) fn new(event: &'a Event, data: Option<&'a RawValue>) -> Self {
        Self {
            id: event.id,
            event_type: &event.event_type,
            tenant: &event.tenant,
            created_at: event.created_at,
            idempotency_key: event.idempotency_key.as_deref(),
            deliver_at: event.options.deliver_at,
            expires_at: event.options.expires_at,
            coalesce_key: event.options.coalesce_key.as_deref(),
            ordering_key: event.options.ordering_key.as_deref(),
            data,
        }
    }
}

/// One event owed to one destination.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Delivery)]
pub(crate) struct DeliveryView {
    #[schema(value_type = String, example = "dlv_01h2xcejqtf2nbrexx3vqjhp41")]
    id: DeliveryId,
    #[schema(value_type = String)]
    event_id: EventId,
    event_type: String,
    #[schema(value_type = String)]
    destination_id: DestinationId,
    #[schema(
        value_type = String,
        pattern = "^(pending|delivering|retrying|delivered|failed|dead|cancelled|superseded|expired)$"
    )]
    state: &'static str,
    /// The number of counted attempts.
    attempt_count: u32,
    /// The due time of a waiting delivery. Null while it waits for an earlier delivery of its `ordering_key`.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt_at: Option<Timestamp>,
    /// The delivery becomes `expired` if it is not claimed by this instant.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// The error of the last attempt; null if it had none.
    last_error: Option<String>,
    /// The error in one word, as in the filter `error`: `dns`, `connect`, `tls`, `timeout`, `broken`, `forbidden`,
    /// `unknown`, or the class of the status (`5xx`).
    #[schema(example = "timeout")]
    last_error_kind: Option<String>,
    /// The HTTP status of the last attempt.
    last_status_code: Option<u16>,
}

/// A delivery with its attempts, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeliveryDetail)]
pub(crate) struct DeliveryDetailView {
    #[serde(flatten)]
    pub(crate) delivery: DeliveryView,
    pub(crate) attempts: Vec<AttemptView>,
}

/// One outbound HTTP request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Attempt)]
pub(crate) struct AttemptView {
    #[schema(value_type = String)]
    id: AttemptId,
    /// 1 for the first attempt.
    number: u32,
    /// When the send started. For an unknown outcome, the latest instant at which it may have started. Null if no send
    /// started.
    #[schema(value_type = Option<String>, format = DateTime)]
    sent_at: Option<Timestamp>,
    status_code: Option<u16>,
    duration_ms: u32,
    error: Option<String>,
    /// The error in one word, or the class of a status that is not 2xx.
    #[schema(example = "timeout")]
    error_kind: Option<String>,
    #[schema(value_type = String, pattern = "^(delivered|retryable|rejected|unknown)$")]
    outcome: &'static str,
    /// The body of the response, truncated to 16 KiB.
    response_body: Option<String>,
}

impl From<Delivery> for DeliveryView {
    fn from(delivery: Delivery) -> Self {
        let last = delivery.last_attempt;
        Self {
            id: delivery.id,
            event_id: delivery.event_id,
            event_type: delivery.event_type,
            destination_id: delivery.destination_id,
            state: delivery.state.as_str(),
            attempt_count: delivery.attempts,
            next_attempt_at: delivery.next_attempt_at,
            expires_at: delivery.expires_at,
            created_at: delivery.created_at,
            updated_at: delivery.updated_at,
            last_status_code: last.as_ref().and_then(|last| last.status_code),
            last_error_kind: last.as_ref().and_then(|last| last.error_kind).map(|kind| kind.to_string()),
            last_error: last.and_then(|last| last.error),
        }
    }
}

impl From<Attempt> for AttemptView {
    fn from(attempt: Attempt) -> Self {
        Self {
            id: attempt.id,
            number: attempt.number,
            sent_at: attempt.sent_at,
            status_code: attempt.status_code,
            duration_ms: attempt.duration_ms,
            error_kind: attempt.error_kind().map(|kind| kind.to_string()),
            error: attempt.error,
            outcome: attempt.outcome.as_str(),
            response_body: attempt.response_body,
        }
    }
}
