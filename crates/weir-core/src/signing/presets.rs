//! The signature formats of well-known senders, whose receivers Weir can therefore deliver to.
//!
//! Each row is what the documentation of the sender says, and names its page. A test of `style.rs` has a signature for
//! each row that Weir did not compute.

use super::{
    format::{Algorithm, DEFAULT_HEADER, Encoding, TimestampFormat},
    secret::KeyForm,
};

/// A format that has a name.
#[derive(Debug, PartialEq, Eq)]
pub struct Preset {
    /// The name of the style in the API.
    pub name: &'static str,
    /// Whose receivers verify it.
    pub receiver: &'static str,
    pub(super) algorithm: Algorithm,
    pub(super) key: KeyForm,
    pub(super) encoding: Encoding,
    pub(super) timestamp_format: TimestampFormat,
    pub(super) signed: &'static str,
    pub(super) value: &'static str,
    /// What stands between several values of the header; `None`: the header holds one signature.
    pub(super) separator: Option<&'static str>,
    pub(super) header: &'static str,
    pub(super) timestamp_header: Option<&'static str>,
    pub(super) id_header: Option<&'static str>,
    /// The documentation of the format.
    pub source: &'static str,
}

/// What most of them have in common: a bare signature of the body in hex, with the text of the secret as the key.
const BASE: Preset = Preset {
    name: "",
    receiver: "",
    algorithm: Algorithm::HmacSha256,
    key: KeyForm::Text,
    encoding: Encoding::Hex,
    timestamp_format: TimestampFormat::Unix,
    signed: "{body}",
    value: "{signature}",
    separator: None,
    header: DEFAULT_HEADER,
    timestamp_header: None,
    id_header: None,
    source: "",
};

pub const PRESETS: [Preset; 17] = [
    TIMESTAMPED,
    PREFIXED,
    Preset {
        name: "stripe",
        receiver: "Stripe",
        signed: "{timestamp}.{body}",
        value: "t={timestamp},v1={signature}",
        separator: Some(","),
        header: "stripe-signature",
        source: "https://docs.stripe.com/webhooks#verify-manually",
        ..BASE
    },
    Preset {
        name: "github",
        receiver: "GitHub",
        value: "sha256={signature}",
        header: "x-hub-signature-256",
        source: "https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries",
        ..BASE
    },
    Preset {
        name: "slack",
        receiver: "Slack",
        signed: "v0:{timestamp}:{body}",
        value: "v0={signature}",
        header: "x-slack-signature",
        timestamp_header: Some("x-slack-request-timestamp"),
        source: "https://docs.slack.dev/authentication/verifying-requests-from-slack",
        ..BASE
    },
    Preset {
        name: "zoom",
        receiver: "Zoom",
        signed: "v0:{timestamp}:{body}",
        value: "v0={signature}",
        header: "x-zm-signature",
        timestamp_header: Some("x-zm-request-timestamp"),
        source: "https://developers.zoom.us/docs/api/webhooks/#verify-with-zooms-header",
        ..BASE
    },
    Preset {
        name: "shopify",
        receiver: "Shopify",
        encoding: Encoding::Base64,
        header: "x-shopify-hmac-sha256",
        source: "https://shopify.dev/docs/apps/build/webhooks/subscribe/https#step-2-validate-the-origin-of-your-webhook-to-ensure-its-coming-from-shopify",
        ..BASE
    },
    Preset {
        name: "zendesk",
        receiver: "Zendesk",
        encoding: Encoding::Base64,
        timestamp_format: TimestampFormat::Rfc3339,
        signed: "{timestamp}{body}",
        header: "x-zendesk-webhook-signature",
        timestamp_header: Some("x-zendesk-webhook-signature-timestamp"),
        source: "https://developer.zendesk.com/documentation/webhooks/verifying/",
        ..BASE
    },
    Preset {
        name: "square",
        receiver: "Square",
        encoding: Encoding::Base64,
        signed: "{url}{body}",
        header: "x-square-hmacsha256-signature",
        source: "https://developer.squareup.com/docs/webhooks/step3validate",
        ..BASE
    },
    Preset {
        name: "razorpay",
        receiver: "Razorpay",
        header: "x-razorpay-signature",
        source: "https://razorpay.com/docs/webhooks/validate-test/",
        ..BASE
    },
    Preset {
        name: "linear",
        receiver: "Linear",
        header: "linear-signature",
        source: "https://linear.app/developers/webhooks#securing-webhooks",
        ..BASE
    },
    Preset {
        name: "lemon-squeezy",
        receiver: "Lemon Squeezy",
        header: "x-signature",
        source: "https://docs.lemonsqueezy.com/help/webhooks/signing-requests",
        ..BASE
    },
    Preset {
        name: "pagerduty",
        receiver: "PagerDuty",
        value: "v1={signature}",
        separator: Some(","),
        header: "x-pagerduty-signature",
        source: "https://developer.pagerduty.com/docs/webhooks/webhook-signatures/",
        ..BASE
    },
    Preset {
        name: "paddle",
        receiver: "Paddle",
        signed: "{timestamp}:{body}",
        value: "ts={timestamp};h1={signature}",
        separator: Some(";"),
        header: "paddle-signature",
        source: "https://developer.paddle.com/webhooks/signature-verification",
        ..BASE
    },
    Preset {
        name: "discord",
        receiver: "Discord",
        algorithm: Algorithm::Ed25519,
        signed: "{timestamp}{body}",
        header: "x-signature-ed25519",
        timestamp_header: Some("x-signature-timestamp"),
        source: "https://discord.com/developers/docs/interactions/overview#setting-up-an-endpoint-validating-security-request-headers",
        ..BASE
    },
    Preset {
        name: "svix",
        receiver: "Svix, Clerk, Resend",
        key: KeyForm::Decoded,
        encoding: Encoding::Base64,
        signed: "{id}.{timestamp}.{body}",
        value: "v1,{signature}",
        separator: Some(" "),
        header: "svix-signature",
        timestamp_header: Some("svix-timestamp"),
        id_header: Some("svix-id"),
        source: "https://docs.svix.com/receiving/verifying-payloads/how-manual",
        ..BASE
    },
    Preset {
        name: "twitch",
        receiver: "Twitch",
        timestamp_format: TimestampFormat::Rfc3339,
        signed: "{id}{timestamp}{body}",
        value: "sha256={signature}",
        header: "twitch-eventsub-message-signature",
        timestamp_header: Some("twitch-eventsub-message-timestamp"),
        id_header: Some("twitch-eventsub-message-id"),
        source: "https://dev.twitch.tv/docs/eventsub/handling-webhook-events/#verifying-the-event-message",
        ..BASE
    },
];

/// `t=<unix seconds>,v1=<hex>`, with the bytes after `whsec_` as the key.
const TIMESTAMPED: Preset = Preset {
    name: "timestamped",
    receiver: "with one header for time and signature",
    key: KeyForm::Decoded,
    signed: "{timestamp}.{body}",
    value: "t={timestamp},v1={signature}",
    separator: Some(","),
    ..BASE
};

/// `sha256=<hex>`, with the bytes after `whsec_` as the key. With a `timestamp_header` the time is signed too
/// ([`WITH_TIME`]).
const PREFIXED: Preset = Preset {
    name: "prefixed",
    receiver: "with a prefix",
    key: KeyForm::Decoded,
    value: "sha256={signature}",
    separator: Some(","),
    ..BASE
};

/// What the style `prefixed` signs with a `timestamp_header`.
pub(super) const WITH_TIME: &str = "{timestamp}.{body}";
