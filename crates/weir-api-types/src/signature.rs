//! The signature of requests, and the secret behind it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

use crate::{alert_data::given, references};

/// The signature of requests, as it is set: a PATCH can send it back. `signature_format` shows what it means.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Signature {
    #[schema(schema_with = references::signature_style)]
    pub style: String,
    /// The header of the signature, for styles with a configurable header.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub header: Option<String>,
    /// The header of the signed time, for styles that have one; null if only the body is signed (`prefixed`).
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub timestamp_header: Option<Option<String>>,
    /// The header of the signed id, for styles that have one.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub id_header: Option<Option<String>>,
    /// For `custom`, as all that follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub signed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub value: Option<String>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub separator: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub encoding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub algorithm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub timestamp_format: Option<String>,
}

/// What a signature style means: what is signed with which key, and how the result is sent. The style `standard` with a
/// private key signs with Ed25519 and writes `v1a,{signature}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SignatureFormat {
    /// `{id}` is the value of `webhook-id`, `{url}` the destination's `url` as it is shown.
    #[schema(example = "{timestamp}.{body}")]
    pub signed: String,
    #[schema(example = "t={timestamp},v1={signature}")]
    pub value: String,
    /// What stands between the signatures of two secrets; null: the header holds one signature.
    pub separator: Option<String>,
    pub encoding: String,
    pub algorithm: String,
    /// `text`: the secret as it is shown is the key. `decoded`: the bytes after `whsec_`.
    pub key: String,
    pub timestamp_format: String,
    pub header: String,
    pub timestamp_header: Option<String>,
    pub id_header: Option<String>,
}

/// The secret that signs the requests to a destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    pub secret: String,
    /// The key with which receivers verify, if the secret is a private key (`whsk_…`); null for a shared secret.
    #[schema(example = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=")]
    pub public_key: Option<String>,
    /// The same key as the hex of its 32 bytes, as receivers of `discord` configure it.
    pub public_key_hex: Option<String>,
    /// Until when the secret before the last rotation also signs; null if only one secret signs.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub previous_valid_until: Option<Timestamp>,
}
