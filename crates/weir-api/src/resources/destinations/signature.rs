//! The signature style of a destination, as it is set and shown.

use http::HeaderName;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use weir_core::{
    destination::is_reserved_header,
    signing::{DEFAULT_HEADER, SignatureStyle},
};

use crate::{
    errors::Errors,
    readers::{fields::object, texts::text},
};

/// Always sent with the signed time, so a style may use it as its timestamp header.
const TIMESTAMP_HEADER: &str = "webhook-timestamp";

/// The name of a style.
pub(crate) enum Style {
    Standard,
    Timestamped,
    Prefixed,
}

impl Style {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "standard" => Ok(Self::Standard),
            "timestamped" => Ok(Self::Timestamped),
            "prefixed" => Ok(Self::Prefixed),
            _ => Err("must be `standard`, `timestamped` or `prefixed`".to_owned()),
        }
    }
}

text! {
    /// The format of a signature.
    #[schema(as = SignatureStyle, value_type = String, pattern = "^(standard|timestamped|prefixed)$")]
    pub(crate) struct StyleText(Style);
    parse = Style::parse;
}

text! {
    /// The header of a signature: no header that Weir or HTTP sets, except `webhook-signature`.
    #[schema(as = SignatureHeader, pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", example = "x-signature")]
    pub(crate) struct SignatureHeaderText(String);
    parse = |text| header_name(text, DEFAULT_HEADER);
}

text! {
    /// The header of a signed time: no header that Weir or HTTP sets, except `webhook-timestamp`.
    #[schema(as = TimestampHeader, pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", example = "x-timestamp")]
    pub(crate) struct TimestampHeaderText(String);
    parse = |text| header_name(text, TIMESTAMP_HEADER);
}

object! {
    /// The signature of requests. The key of every HMAC is the text after `whsec_`, decoded from base64.
    pub(crate) struct SignatureRequest {
        /// `standard`: Standard Webhooks, in `webhook-signature`. `timestamped`: `t=<unix seconds>,v1=<hex>`, the
        /// HMAC-SHA256 of `{unix seconds}.{body}`. `prefixed`: `sha256=<hex>`, the HMAC-SHA256 of `{unix
        /// seconds}.{body}` if `timestamp_header` is set, and of the body otherwise. During a rotation the second
        /// signature follows after a space (`standard`), `,v1=` (`timestamped`) or `,sha256=` (`prefixed`).
        #[schema(default = "standard")]
        style: Option<StyleText>,
        /// The header of the signature; not for `standard`.
        #[schema(default = json!(DEFAULT_HEADER))]
        header: Option<SignatureHeaderText>,
        /// Only for `prefixed`: the header with the signed time, in unix seconds.
        timestamp_header: Option<TimestampHeaderText>,
    }
    check = Self::check;
}

impl SignatureRequest {
    /// Each style has its own headers.
    pub(crate) fn keywords() -> Value {
        json!({"anyOf": [
            {"properties": {
                "style": {"enum": ["standard", null]}, "header": {"type": "null"}, "timestamp_header": {"type": "null"},
            }},
            {"properties": {"style": {"const": "timestamped"}, "timestamp_header": {"type": "null"}}, "required": ["style"]},
            {"properties": {"style": {"const": "prefixed"}}, "required": ["style"]},
        ]})
    }

    fn check(&self, at: &str, errors: &mut Errors) {
        if errors.has(&format!("{at}/style")) {
            // The allowed headers depend on the style.
            return;
        }
        // Refuses a field that the style does not use.
        let mut omit = |name: &str, is_given: bool, reason: &str| {
            if is_given {
                errors.add(format!("{at}/{name}"), format!("must be omitted: {reason}"));
            }
        };
        match self.style() {
            Style::Standard => {
                let reason = "the `standard` style has fixed headers";
                omit("header", self.header.is_some(), reason);
                omit("timestamp_header", self.timestamp_header.is_some(), reason);
            }
            Style::Timestamped => {
                let reason = "a `timestamped` signature contains its time";
                omit("timestamp_header", self.timestamp_header.is_some(), reason);
            }
            Style::Prefixed => {
                // Both headers are allowed, but one header cannot have two values.
                if self.timestamp_header.as_ref().is_some_and(|TimestampHeaderText(name)| name == self.header()) {
                    errors.add(format!("{at}/timestamp_header"), "must differ from the header of the signature");
                }
            }
        }
    }

    /// Refuses the headers of the signature that are also among the destination's own `headers`.
    pub(crate) fn check_own(&self, at: &str, is_own: impl Fn(&str) -> bool, errors: &mut Errors) {
        let header = self.header.as_ref().map(|SignatureHeaderText(name)| ("header", name));
        let timestamp_header =
            self.timestamp_header.as_ref().map(|TimestampHeaderText(name)| ("timestamp_header", name));
        for (field, name) in header.into_iter().chain(timestamp_header) {
            let pointer = format!("{at}/{field}");
            if is_own(name) && !errors.has(&pointer) {
                errors.add(pointer, "is also in the destination's `headers`: remove it there, or use another name");
            }
        }
    }

    fn style(&self) -> &Style {
        self.style.as_ref().map_or(&Style::Standard, |StyleText(style)| style)
    }

    fn header(&self) -> &str {
        self.header.as_ref().map_or(DEFAULT_HEADER, |SignatureHeaderText(name)| name)
    }
}

impl From<SignatureRequest> for SignatureStyle {
    fn from(request: SignatureRequest) -> Self {
        let header = request.header().to_owned();
        match request.style() {
            Style::Standard => Self::Standard,
            Style::Timestamped => Self::Timestamped { header },
            Style::Prefixed => Self::Prefixed { header, timestamp_header: request.timestamp_header.map(|name| name.0) },
        }
    }
}

/// The header name in lower case, if it is valid. Reserved headers are refused, except `allowed`.
pub(super) fn header_name(name: &str, allowed: &str) -> Result<String, String> {
    let name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| "must be the name of a header: letters, digits and `-`".to_owned())?;
    if is_reserved_header(name.as_str()) && name.as_str() != allowed {
        return Err("is reserved, because Weir or HTTP sets this header: use another name".to_owned());
    }
    Ok(name.as_str().to_owned())
}

/// The signature of requests. It shows only the settings of its style, so a PATCH can send it back.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Signature)]
pub(crate) struct SignatureView {
    #[schema(value_type = StyleText)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::texts::tests::assert_pattern_is_accepted;

    #[test]
    fn every_text_that_a_pattern_describes_is_accepted() {
        assert_pattern_is_accepted::<StyleText>();
        assert_pattern_is_accepted::<SignatureHeaderText>();
        assert_pattern_is_accepted::<TimestampHeaderText>();
    }
}
