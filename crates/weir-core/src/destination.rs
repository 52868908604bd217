//! A destination: an HTTP endpoint with its limits, secret and retry policy.

use url::Url;

use crate::{
    alert::AlertOverrides,
    breaker::{Breaker, BreakerPolicy},
    id::DestinationId,
    limit::RateLimits,
    order::DeliveryOrder,
    pattern::EventPattern,
    retry::RetryPolicy,
    signing::Signing,
    time::Timestamp,
};

/// The tenant of what nobody named one for.
pub const DEFAULT_TENANT: &str = "default";

/// An HTTP endpoint, as the engine uses it. Shared as `Arc<Destination>`; an edit makes a new value.
#[derive(Debug, Clone, PartialEq)]
pub struct Destination {
    pub id: DestinationId,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub settings: Settings,
    /// Why it is paused, when Weir paused it itself (410 Gone).
    pub paused_reason: Option<String>,
    /// No send starts before this instant (`Retry-After`).
    pub held_until: Option<Timestamp>,
    pub held_reason: Option<String>,
    pub breaker: Breaker,
}

/// What a person chooses of a destination.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub url: Url,
    pub name: String,
    pub tenant: String,
    pub event_types: Vec<EventPattern>,
    pub rate_limits: RateLimits,
    /// Sends started and not yet settled at one time, 1 to [`MAX_IN_FLIGHT`].
    pub max_in_flight: u32,
    /// For one attempt, from the start of the send to the end of the answer's body; [`TIMEOUT_MS`].
    pub timeout_ms: u32,
    pub retry: RetryPolicy,
    /// When it is left alone because it fails; `None`: never.
    pub breaker: Option<BreakerPolicy>,
    /// When others are told of it, where that differs from the policy of all.
    pub alerts: AlertOverrides,
    pub order: DeliveryOrder,
    /// Added to every request: names in lower case, values write-only in the API.
    pub headers: Vec<(String, String)>,
    /// The secrets that sign what is sent, and how.
    pub signing: Signing,
    pub paused: bool,
}

/// The `max_in_flight` of a destination that names none.
pub const DEFAULT_MAX_IN_FLIGHT: u32 = 64;
/// The largest `max_in_flight`.
pub const MAX_IN_FLIGHT: u32 = 10_000;
/// The `timeout_ms` of a destination that names none.
pub const DEFAULT_TIMEOUT_MS: u32 = 15_000;
/// What `timeout_ms` may be.
pub const TIMEOUT_MS: std::ops::RangeInclusive<u32> = 100..=120_000;

impl Settings {
    /// Whether it takes Weir's own events.
    pub fn takes_alerts(&self) -> bool {
        self.event_types.iter().any(EventPattern::is_operational)
    }
}

impl Destination {
    /// Whether Weir itself keeps it from being sent to as usual: its breaker is not closed, or Weir paused it.
    pub fn is_impaired(&self) -> bool {
        self.breaker.reason().is_some() || self.paused_reason.is_some()
    }

    /// Whether an event of this type and tenant goes here when it names no destinations.
    pub fn accepts(&self, tenant: &str, event_type: &str) -> bool {
        self.settings.tenant == tenant && self.settings.event_types.iter().any(|pattern| pattern.matches(event_type))
    }
}
