//! How a destination's signature is shown: what its style has a choice of, and nothing else, so that it can be sent back.

use serde::Serialize;
use utoipa::ToSchema;
use weir_core::signing::SignatureStyle;

/// How what is sent is signed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Signature)]
pub(super) struct SignatureView {
    #[schema(value_type = String, pattern = "^(standard|timestamped|prefixed)$", example = "standard")]
    style: &'static str,
    /// The header of the signature, of a style that has a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    header: Option<String>,
    /// Of the `prefixed` style: the header of the signed time; null when the body alone is signed.
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
