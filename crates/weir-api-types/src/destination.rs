//! Destinations and their settings.

use std::{collections::BTreeMap, num::NonZeroU32};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::{Timestamp, alert::AlertOverrides};

use crate::{Adaptive, AdaptiveRate, Signature, SignatureFormat, references};

/// A destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Destination {
    #[schema(example = "dst_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: String,
    #[serde(flatten)]
    pub settings: DestinationSettings,
    pub created_at: Timestamp,
    /// Increases with every edit.
    pub updated_at: Timestamp,
    /// Why Weir paused the destination automatically: it answered 410 Gone, or every attempt failed for as long as the breaker allows.
    pub paused_reason: Option<String>,
    /// No send starts before this instant: the destination sent `Retry-After` or `RateLimit`, or people hold it.
    pub held_until: Option<Timestamp>,
    pub held_reason: Option<String>,
    /// `open`: nothing is sent. `half_open`: one probe is sent at a time.
    pub breaker_state: String,
    /// Why the breaker is not closed.
    pub breaker_reason: Option<String>,
    /// When an open breaker allows the next probe.
    pub next_probe_at: Option<Timestamp>,
    /// Until when the secret before the last rotation also signs; null if only one secret signs.
    pub previous_secret_valid_until: Option<Timestamp>,
    pub signature_format: SignatureFormat,
    /// The key with which receivers verify, if the secret is a private key (`whsk_…`); null for a shared secret.
    #[schema(example = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=")]
    pub public_key: Option<String>,
    /// The same key as the hex of its 32 bytes, as receivers of `discord` configure it.
    pub public_key_hex: Option<String>,
    /// The present pace and why; null: the destination is not adaptive, or has not sent yet. At most ten seconds old.
    pub adaptive_rate: Option<AdaptiveRate>,
    /// The certificates in `tls`, in words: the client certificate first.
    #[serde(default)]
    #[schema(required = true)]
    pub tls_certificates: Vec<TlsCertificate>,
    /// Those of `event_types` that match no type of the catalogue of event types, perhaps by a slip. Empty while the
    /// catalogue is.
    #[serde(default)]
    #[schema(required = true)]
    pub unknown_event_types: Vec<String>,
    /// The limits in force in place of those of the settings; null: those of the settings are.
    #[serde(rename = "override")]
    pub overridden: Option<Override>,
    /// The hold that people have set; `held_until` counts it.
    pub hold: Option<Hold>,
}

/// Limits that hold until an instant in place of those of the settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Override {
    /// Null: those of the settings. Empty: none.
    pub rate_limits: Option<Vec<RateLimit>>,
    /// Null: that of the settings.
    pub max_in_flight: Option<u32>,
    pub until: Timestamp,
    #[schema(example = "launch day")]
    pub reason: String,
}

/// A pause with an end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    pub until: Timestamp,
    #[schema(example = "their maintenance")]
    pub reason: String,
}

/// A destination whose limits are overridden.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OverriddenDestination {
    #[serde(flatten)]
    pub destination: Destination,
    /// The override that was in force before and has ended with this one.
    pub replaced: Option<Override>,
}

/// A destination that is held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeldDestination {
    #[serde(flatten)]
    pub destination: Destination,
    /// The hold that was in force before and has ended with this one.
    pub replaced: Option<Hold>,
}

/// A newly created destination. Only this view of a destination shows the secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreatedDestination {
    #[serde(flatten)]
    pub destination: Destination,
    /// The secret that signs requests. Shown only here, by `GET /v1/destinations/{id}/secret` and by a rotation.
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    pub secret: String,
}

/// The settings of a destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DestinationSettings {
    #[schema(format = "uri", example = "https://example.com/hooks")]
    pub url: String,
    pub name: String,
    pub tenant: String,
    pub event_types: Vec<String>,
    /// Which events of these types it takes by their `data`; null: all.
    #[schema(value_type = Option<Object>)]
    pub filter: Option<serde_json::Value>,
    pub rate_limits: Vec<RateLimit>,
    /// The least time between the starts of two sends; null: none.
    #[schema(minimum = 1, maximum = 60_000)]
    pub min_interval_ms: Option<u32>,
    /// Null: only the limits bound the pace.
    pub adaptive: Option<Adaptive>,
    /// The budget that it shares with other destinations, beside its own limits; null: none.
    #[schema(pattern = "^lgr_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "lgr_01h2xcejqtf2nbrexx3vqjhp41")]
    pub limit_group: Option<String>,
    /// Its part of the group's rate beside the weights of the other members that have a backlog.
    #[serde(default = "one")]
    #[schema(required = true, minimum = 1, maximum = 1_000)]
    pub weight: u16,
    /// The limits of each limit key, for example of each customer; null: its events have no keys.
    pub key_limits: Option<KeyLimits>,
    pub max_in_flight: u32,
    pub timeout_ms: u32,
    pub retry: Retry,
    /// Whether refusals (429, and 403 or 503 with a used-up quota) count against `retry.max_attempts`.
    pub refusals_count: bool,
    /// Null: the breaker is disabled.
    pub breaker: Option<Breaker>,
    #[schema(schema_with = references::alerts)]
    pub alerts: AlertOverrides,
    /// Events with the same `ordering_key` are delivered one after the other.
    pub ordered: bool,
    /// After this many failed attempts an event no longer blocks the later events of its key. Null: it blocks them
    /// until it has ended.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100)]
    pub skip_after_attempts: Option<NonZeroU32>,
    /// The header names, each with the value `***`: values are write-only. A PATCH with `***` keeps the value.
    pub headers: BTreeMap<String, String>,
    pub signature: Signature,
    pub body: Body,
    /// Null: as the installation reaches it. `direct`: without the proxy of the installation. Otherwise the URL of its HTTP
    /// proxy, with the password `***`.
    pub proxy: Option<String>,
    /// Null: the public authorities are trusted, and there is no client certificate.
    pub tls: Option<Tls>,
    pub paused: bool,
}

/// The weight of a server that knows none.
fn one() -> u16 {
    1
}

/// The limits of each limit key of a destination. All keys share the limits of the destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KeyLimits {
    /// Where the key is in the `data` of an event, as a JSON pointer. A `limit_key` of the event wins.
    #[schema(example = "/customer/id")]
    pub key: String,
    /// Of each key by itself. Empty: the keys only take turns.
    pub rate_limits: Vec<RateLimit>,
    /// The most sends of one key in flight; null: as many as the destination may have.
    #[schema(minimum = 1, maximum = 10_000)]
    pub max_in_flight: Option<u32>,
    /// The part of each key in what the destination may send, beside the weights of the other keys with a backlog.
    #[schema(minimum = 1, maximum = 1_000)]
    pub weight: u16,
    /// What is different for single keys. The key `""` is that of events without one.
    pub overrides: BTreeMap<String, KeyOverride>,
}

/// What is different for one limit key; null: as for the others.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct KeyOverride {
    pub rate_limits: Option<Vec<RateLimit>>,
    #[schema(minimum = 1, maximum = 10_000)]
    pub max_in_flight: Option<u32>,
    #[schema(minimum = 1, maximum = 1_000)]
    pub weight: Option<u16>,
    /// Nothing of this key is sent; its deliveries wait.
    pub paused: bool,
}

/// The certificates of TLS connections to a destination, in PEM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tls {
    /// The authorities that are trusted instead of the public ones.
    pub ca: Option<String>,
    pub client_certificate: Option<String>,
    /// `***`: the key is write-only.
    pub client_key: Option<String>,
}

/// A certificate in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TlsCertificate {
    /// The member of `tls` that has it.
    pub field: String,
    /// Empty if the certificate names its subject otherwise.
    #[schema(example = "CN=weir.example, O=Acme")]
    pub subject: String,
    pub issuer: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// That it has expired, expires within 14 days, or is not valid yet.
    pub warning: Option<String>,
}

impl TlsCertificate {
    /// In one line, without the warning.
    pub fn in_words(&self) -> String {
        let Self { field, subject, issuer, not_after, .. } = self;
        format!("{field}: {subject}, issued by {issuer}, valid until {not_after}")
    }
}

/// At most `limit` sends in every window of one `period`: `second`, `minute`, `hour`, `day`, or seconds such as `10s`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RateLimit {
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub limit: u32,
    #[schema(schema_with = references::period)]
    pub period: String,
    /// The length of the period, unless it is a whole second, minute, hour or day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86_400)]
    pub window_s: Option<u32>,
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub burst: u32,
    /// `limit` sends fit into a period that is longer by this time.
    #[schema(minimum = 0, maximum = 10_000)]
    pub margin_ms: u32,
    /// Absent: `even`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = references::shape)]
    pub shape: Option<String>,
    /// Absent: `request`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = references::unit)]
    pub unit: Option<String>,
}

/// The retry policy. The delays are given by `base_ms` and `cap_ms`, or by `schedule_ms`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Retry {
    pub max_attempts: u32,
    pub max_age_s: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub base_ms: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub cap_ms: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub schedule_ms: Option<Vec<u32>>,
}

/// The circuit breaker, which stops sends to a failing destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Breaker {
    pub failure_ratio: f64,
    pub min_attempts: u32,
    pub consecutive: u32,
    pub open_ms: u32,
    pub open_max_ms: u32,
    /// Null: never.
    pub pause_after_s: Option<u32>,
}

/// What the body of a request is. It shows only what its format has, so a PATCH can send it back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Body {
    #[schema(schema_with = references::body_format)]
    pub format: String,
    pub content_type: String,
    /// The `source` of CloudEvents.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub source: Option<String>,
}

/// Whether an event would pass a filter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FilterTried {
    pub matches: bool,
    /// Each condition of the filter by itself, also within `not`, in the order of the filter.
    pub conditions: Vec<FilterCondition>,
}

/// One condition of a filter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FilterCondition {
    /// Where it stands in the filter, as a JSON pointer.
    #[schema(example = "/or/0/~1amount")]
    pub pointer: String,
    pub holds: bool,
}
