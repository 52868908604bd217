//! The JSON view of a destination.

use std::{collections::BTreeMap, num::NonZeroU32};

use serde::Serialize;
use utoipa::ToSchema;
use weir_core::{
    Destination, DestinationId, Timestamp, alert::AlertOverrides, destination::Settings, limit::MinInterval,
};

use super::{
    body::BodyView,
    breaker::BreakerView,
    headers::MASK,
    rates::RateLimitView,
    retry::RetryView,
    signature::{FormatView, SignatureView},
};
use crate::resources::alerts::Alerts;

/// Fields of a destination that are shown but cannot be set.
pub(crate) const READ_ONLY: [&str; 13] = [
    "id",
    "created_at",
    "updated_at",
    "paused_reason",
    "held_until",
    "held_reason",
    "breaker_state",
    "breaker_reason",
    "next_probe_at",
    "previous_secret_valid_until",
    "signature_format",
    "public_key",
    "public_key_hex",
];

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
    /// Why Weir paused the destination automatically: it answered 410 Gone, or every attempt failed for as long as the breaker allows.
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
    /// Until when the secret before the last rotation also signs; null if only one secret signs.
    #[schema(value_type = Option<String>, format = DateTime)]
    previous_secret_valid_until: Option<Timestamp>,
    signature_format: FormatView,
    /// The key with which receivers verify, if the secret is a private key (`whsk_…`); null for a shared secret.
    #[schema(example = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=")]
    public_key: Option<String>,
    /// The same key as the hex of its 32 bytes, as receivers of `discord` configure it.
    public_key_hex: Option<String>,
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
    /// The least time between the starts of two sends; null: none.
    #[schema(minimum = 1, maximum = 60_000)]
    min_interval_ms: Option<u32>,
    max_in_flight: u32,
    timeout_ms: u32,
    retry: RetryView,
    /// Whether refusals (429, and 403 or 503 with a used-up quota) count against `retry.max_attempts`.
    refusals_count: bool,
    /// Null: the breaker is disabled.
    breaker: Option<BreakerView>,
    /// The thresholds that override the thresholds of all destinations.
    #[schema(value_type = Alerts)]
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
    body: BodyView,
    paused: bool,
}

impl DestinationView {
    /// A hold that has ended is not shown.
    pub(crate) fn new(destination: &Destination, now: Timestamp) -> Self {
        let settings = &destination.settings;
        let held_until = destination.held_until.filter(|until| *until > now);
        let public_key = settings.signing.secret.public_key();
        Self {
            id: destination.id,
            settings: SettingsView::from(settings),
            created_at: destination.created_at,
            updated_at: destination.updated_at,
            paused_reason: destination.paused_reason.clone(),
            held_until,
            held_reason: held_until.and_then(|_| destination.held_reason.clone()),
            breaker_state: destination.breaker.state(now).as_str(),
            breaker_reason: destination.breaker.reason().map(str::to_owned),
            next_probe_at: destination.breaker.next_probe_at(),
            previous_secret_valid_until: settings.signing.previous_at(now).map(|previous| previous.valid_until),
            signature_format: FormatView::from(&settings.signing.style),
            public_key: public_key.map(|key| key.to_string()),
            public_key_hex: public_key.map(|key| key.to_hex()),
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
            min_interval_ms: settings.rate_limits.min_interval().map(MinInterval::as_millis),
            max_in_flight: settings.max_in_flight,
            timeout_ms: settings.timeout_ms,
            retry: RetryView::from(&settings.retry),
            refusals_count: settings.retry.refusals_count,
            breaker: settings.breaker.as_ref().map(BreakerView::from),
            alerts: settings.alerts,
            ordered: settings.order.is_by_key(),
            skip_after_attempts: settings.order.skip_after_attempts(),
            headers: settings.headers.iter().map(|(name, _)| (name.clone(), MASK)).collect(),
            signature: SignatureView::from(&settings.signing.style),
            body: BodyView::from(settings),
            paused: settings.paused,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use utoipa::PartialSchema;

    use super::*;

    #[test]
    fn the_read_only_fields_are_those_that_the_view_adds_to_the_settings() {
        let schema = serde_json::to_value(DestinationView::schema()).unwrap();
        let parts = schema["allOf"].as_array().unwrap().iter().filter_map(|part| part["properties"].as_object());
        let mut added: Vec<&String> = parts.flat_map(|part: &serde_json::Map<String, Value>| part.keys()).collect();
        let mut read_only = READ_ONLY;
        added.sort();
        read_only.sort_unstable();
        assert_eq!(added, read_only);
    }
}
