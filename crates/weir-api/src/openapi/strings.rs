//! Strings that must have a certain form: ids, tenants, event types, error filters. The document describes each form by a
//! regular expression, so a client can check a value before it sends the value. A test checks that the server accepts
//! every value that such an expression describes.

#![expect(dead_code, reason = "used only as schemas, never constructed")]

use utoipa::ToSchema;

/// The id of a destination.
#[derive(ToSchema)]
#[schema(as = DestinationId, pattern = "^dst_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "dst_01h2xcejqtf2nbrexx3vqjhp41")]
pub(crate) struct DestinationIdText(String);

/// The id of an event.
#[derive(ToSchema)]
#[schema(as = EventId, pattern = "^evt_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "evt_01h2xcejqtf2nbrexx3vqjhp41")]
pub(crate) struct EventIdText(String);

/// The id of a delivery.
#[derive(ToSchema)]
#[schema(as = DeliveryId, pattern = "^dlv_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "dlv_01h2xcejqtf2nbrexx3vqjhp41")]
pub(crate) struct DeliveryIdText(String);

/// The id of a replay.
#[derive(ToSchema)]
#[schema(as = ReplayId, pattern = "^rpl_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "rpl_01h2xcejqtf2nbrexx3vqjhp41")]
pub(crate) struct ReplayIdText(String);

/// The name of a tenant.
#[derive(ToSchema)]
#[schema(as = Tenant, pattern = "^[A-Za-z0-9_.:-]{1,128}$", example = "acme")]
pub(crate) struct TenantText(String);

/// Dot-separated words of letters, digits, `_` and `-`.
#[derive(ToSchema)]
#[schema(as = EventType, pattern = "^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*$", max_length = 128, example = "video.created")]
pub(crate) struct EventTypeText(String);

/// An exact event type (`video.created`), a prefix (`video.*`) or `*`. `*` does not include alerts (`weir.*`).
#[derive(ToSchema)]
#[schema(
    as = EventPattern, pattern = "^([A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*(\\.\\*)?|\\*)$", max_length = 128, example = "video.*"
)]
pub(crate) struct EventPatternText(String);

/// The state of a delivery.
#[derive(ToSchema)]
#[schema(
    as = DeliveryState,
    pattern = "^(pending|delivering|retrying|delivered|failed|dead|cancelled|superseded|expired)$",
    example = "delivered"
)]
pub(crate) struct DeliveryStateText(String);

/// Why an attempt failed: a kind of error, a class of statuses (`3xx`, `4xx`, `5xx`) or one status (`503`).
#[derive(ToSchema)]
#[schema(
    as = AttemptError,
    pattern = "^(dns|connect|tls|timeout|broken|forbidden|unknown|[345]xx|1[0-9]{2}|[3-9][0-9]{2})$",
    example = "timeout"
)]
pub(crate) struct AttemptErrorText(String);

/// The state of a waiting delivery.
#[derive(ToSchema)]
#[schema(as = WaitingState, pattern = "^(pending|retrying)$", example = "pending")]
pub(crate) struct WaitingStateText(String);

/// The state of an ended delivery that can be sent again.
#[derive(ToSchema)]
#[schema(as = ReplayableState, pattern = "^(failed|dead|cancelled|delivered)$", example = "dead")]
pub(crate) struct ReplayableStateText(String);

/// `whsec_` and the base64 of 24 to 64 bytes, or `whsk_` and the base64 of the 32 bytes of an Ed25519 private key.
#[derive(ToSchema)]
#[schema(
    as = SigningSecret,
    pattern = "^(whsec_(([A-Za-z0-9+/]{4}){8,20}([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/][AQgw]==)?|([A-Za-z0-9+/]{4}){21}([A-Za-z0-9+/][AQgw]==)?)|whsk_([A-Za-z0-9+/]{4}){10}[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)$"
)]
pub(crate) struct SecretText(String);
