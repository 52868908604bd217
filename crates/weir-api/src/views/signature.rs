//! The JSON view of a destination's signature. It shows only the settings of its style, so a PATCH can send it back.

use serde::Serialize;
use utoipa::ToSchema;
use weir_core::signing::SignatureStyle;

/// The signature of requests.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Signature)]
pub(super) struct SignatureView {
    #[schema(value_type = String, pattern = "^(standard|timestamped|prefixed)$", example = "standard")]
    style: &'static str,
    /// The header of the signature, for styles with a configurable header.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    header: Option<String>,
    /// For the `prefixed` style: the header of the signed time; null if only the body is signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    timestamp_header: Option<Option<String>>,
}

impl From<&SignatureStyle> for SignatureView {
    fn from(style: &SignatureStyle) -> Self {
        let (header, timestamp_header) = match style {
            SignatureStyle::Standard => (None, None),
            SignatureStyle::Timestamped { header } => (Some(header.clone()), None),
            SignatureStyle::Prefixed { header, timestamp_header } => {
                (Some(header.clone()), Some(timestamp_header.clone()))
            }
        };
        Self { style: style.as_str(), header, timestamp_header }
    }
}
