//! The signature style of a destination, as it is set and shown.

use http::HeaderName;
use serde_json::{Value, json};
use weir_api_types as types;
use weir_core::{
    destination::is_reserved_header,
    signing::{
        Algorithm, CUSTOM, DEFAULT_HEADER, Encoding, ID_HEADER, KeyForm, SignatureStyle, StyleSpec, TIMESTAMP_HEADER,
        TimestampFormat, style_names,
    },
};

use crate::{
    errors::Errors,
    readers::{
        fields::object,
        texts::{one_of, text},
    },
};

text! {
    /// The name of a style.
    #[schema(
        as = SignatureStyle, value_type = String,
        pattern = "^(standard|timestamped|prefixed|stripe|github|slack|zoom|shopify|zendesk|square|razorpay|linear|lemon-squeezy|pagerduty|paddle|discord|svix|twitch|custom)$",
    )]
    pub(crate) struct StyleText(String);
    parse = |text| one_of(text, style_names());
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

text! {
    /// The header of a signed id: no header that Weir or HTTP sets, except `webhook-id`.
    #[schema(as = IdHeader, pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", example = "x-id")]
    pub(crate) struct IdHeaderText(String);
    parse = |text| header_name(text, ID_HEADER);
}

text! {
    /// What is signed: a text of at most 200 bytes with `{body}` once and, as needed, `{id}`, `{timestamp}` and `{url}`.
    /// The pattern describes a part of it.
    #[schema(
        as = SignedText, pattern = "^[!-z]{0,40}(\\{id\\}\\.)?(\\{timestamp\\}\\.)?\\{body\\}$", example = "v0:{timestamp}:{body}"
    )]
    pub(crate) struct SignedText(String);
    parse = |text| Ok(text.to_owned());
}

text! {
    /// The value of the signature's header: a text of at most 200 bytes with `{signature}` once and, as needed,
    /// `{timestamp}` and `{id}`. The pattern describes a part of it.
    #[schema(
        as = SignatureValue, pattern = "^([!-+\\--z]{0,40}|t=\\{timestamp\\},v1=)\\{signature\\}$", example = "v0={signature}"
    )]
    pub(crate) struct ValueText(String);
    parse = |text| Ok(text.to_owned());
}

text! {
    /// What stands between several values of the signature's header: one or two printable characters.
    #[schema(as = SignatureSeparator, pattern = "^[ ,;]$", example = ",")]
    pub(crate) struct SeparatorText(String);
    parse = |text| Ok(text.to_owned());
}

text! {
    /// How the signature is written.
    #[schema(as = SignatureEncoding, value_type = String, pattern = "^(hex|base64)$", example = "hex")]
    pub(crate) struct EncodingText(String);
    parse = |text| one_of(text, Encoding::ALL.iter().copied());
}

text! {
    /// How the signature is computed.
    #[schema(
        as = SignatureAlgorithm, value_type = String, pattern = "^(hmac-sha256|hmac-sha512|ed25519)$",
        example = "hmac-sha256"
    )]
    pub(crate) struct AlgorithmText(String);
    parse = |text| one_of(text, Algorithm::ALL.iter().copied());
}

text! {
    /// What of the secret is the key: its `text` as it is shown, or the bytes that are `decoded` from it.
    #[schema(as = SignatureKey, value_type = String, pattern = "^(text|decoded)$", example = "text")]
    pub(crate) struct KeyText(String);
    parse = |text| one_of(text, KeyForm::ALL.iter().copied());
}

text! {
    /// How `{timestamp}` is written: unix seconds, unix milliseconds, or `2026-11-21T07:30:00Z`.
    #[schema(as = TimestampFormat, value_type = String, pattern = "^(unix|unix_ms|rfc3339)$", example = "unix")]
    pub(crate) struct TimestampFormatText(String);
    parse = |text| one_of(text, TimestampFormat::ALL.iter().copied());
}

object! {
    /// The signature of requests: the style of Standard Webhooks, of a well-known sender, or one of your own.
    ///
    /// The styles `stripe`, `github`, `slack`, `zoom`, `shopify`, `zendesk`, `square`, `razorpay`, `linear`,
    /// `lemon-squeezy`, `pagerduty`, `paddle`, `discord`, `svix` and `twitch` are what the receivers of these senders
    /// verify. `signature_format` of the destination shows what a style means.
    pub(crate) struct SignatureRequest {
        /// `standard`: Standard Webhooks, in `webhook-signature`. `timestamped`: `t=<unix seconds>,v1=<hex>`, the
        /// HMAC-SHA256 of `{timestamp}.{body}`. `prefixed`: `sha256=<hex>`, the HMAC-SHA256 of `{timestamp}.{body}` if
        /// `timestamp_header` is set, and of the body otherwise. The key of these three is the text after `whsec_`,
        /// decoded from base64; the key of most other styles is the secret as it is shown. `custom`: as the other
        /// members say. During a rotation a header that can hold several signatures has two.
        #[schema(default = "standard")]
        style: Option<StyleText>,
        /// The header of the signature; not for `standard`. The default is that of the style.
        header: Option<SignatureHeaderText>,
        /// The header with the signed time, for styles that have one.
        timestamp_header: Option<TimestampHeaderText>,
        /// The header with the signed id, for styles that have one.
        id_header: Option<IdHeaderText>,
        /// Only for `custom`, as all that follow. Required for it.
        signed: Option<SignedText>,
        #[schema(default = "{signature}")]
        value: Option<ValueText>,
        /// If absent, the header holds one signature, and after a rotation the new secret signs alone at once. With a
        /// separator, the part of `value` with the signature is repeated for the previous secret.
        separator: Option<SeparatorText>,
        #[schema(default = "hex")]
        encoding: Option<EncodingText>,
        /// `ed25519` needs a `whsk_` secret.
        #[schema(default = "hmac-sha256")]
        algorithm: Option<AlgorithmText>,
        #[schema(default = "text")]
        key: Option<KeyText>,
        /// With another format than `unix`, a signed time needs a `timestamp_header` or a place in `value`.
        #[schema(default = "unix")]
        timestamp_format: Option<TimestampFormatText>,
    }
    check = Self::check;
}

impl SignatureRequest {
    /// Each style has its own members. The document is narrower than the server in what a rule between texts decides.
    pub(crate) fn keywords() -> Value {
        let absent = |names: &[&str]| -> Value {
            names.iter().map(|name| ((*name).to_owned(), json!({"type": "null"}))).collect()
        };
        const FORMAT: [&str; 7] = ["signed", "value", "separator", "encoding", "algorithm", "key", "timestamp_format"];
        let styled = |style: Value, names: &[&str]| {
            let mut properties = absent(&[&FORMAT[..], names].concat());
            properties["style"] = style;
            json!({"properties": properties, "required": ["style"]})
        };
        let mut standard = styled(json!({"enum": ["standard", null]}), &["header", "timestamp_header", "id_header"]);
        if let Value::Object(standard) = &mut standard {
            standard.remove("required");
        }
        let one_header = json!({"enum": ["timestamped", "stripe", "github", "shopify", "square", "razorpay", "linear",
            "lemon-squeezy", "pagerduty", "paddle"]});
        let with_time = json!({"enum": ["prefixed", "slack", "zoom", "zendesk", "discord"]});
        let with_id = json!({"enum": ["svix", "twitch"]});
        let custom = json!({
            "properties": {
                "style": {"const": CUSTOM}, "signed": {"type": "string"}, "timestamp_format": {"enum": ["unix", null]},
            },
            "required": ["style", "signed"],
        });
        // The receiver finds a time in another format only in a header of its own.
        let timed = json!({
            "properties": {
                "style": {"const": CUSTOM}, "signed": {"type": "string"}, "timestamp_header": {"type": "string"},
                "timestamp_format": {"enum": ["unix_ms", "rfc3339"]},
            },
            "required": ["style", "signed", "timestamp_header", "timestamp_format"],
        });
        json!({"anyOf": [
            standard,
            styled(one_header, &["timestamp_header", "id_header"]),
            styled(with_time, &["id_header"]),
            styled(with_id, &[]),
            custom,
            timed,
        ]})
    }

    fn check(&self, at: &str, errors: &mut Errors) {
        if errors.has(&format!("{at}/style")) {
            // Every other rule depends on the style.
            return;
        }
        for invalid in self.spec().resolve().err().unwrap_or_default() {
            let pointer = format!("{at}/{}", invalid.field);
            // A text that cannot be read looks absent.
            if !errors.has(&pointer) {
                errors.add(pointer, invalid.detail);
            }
        }
    }

    /// Refuses the headers of the signature that are also among the destination's own `headers`.
    pub(crate) fn check_own(&self, at: &str, is_own: impl Fn(&str) -> bool, errors: &mut Errors) {
        let Ok(style) = self.spec().resolve() else { return };
        let format = style.format();
        let headers = [
            ("header", Some(&format.header)),
            ("timestamp_header", format.timestamp_header.as_ref()),
            ("id_header", format.id_header.as_ref()),
        ];
        for (field, name) in headers {
            let pointer = format!("{at}/{field}");
            if name.is_some_and(|name| is_own(name)) && !errors.has(&pointer) {
                errors.add(pointer, "is also in the destination's `headers`, or sent with its `body`: remove it there, or use another name");
            }
        }
    }

    pub(crate) fn spec(&self) -> StyleSpec {
        StyleSpec {
            style: self.style.as_ref().map(|text| text.0.clone()),
            header: self.header.as_ref().map(|text| text.0.clone()),
            timestamp_header: self.timestamp_header.as_ref().map(|text| text.0.clone()),
            id_header: self.id_header.as_ref().map(|text| text.0.clone()),
            signed: self.signed.as_ref().map(|text| text.0.clone()),
            value: self.value.as_ref().map(|text| text.0.clone()),
            separator: self.separator.as_ref().map(|text| text.0.clone()),
            encoding: self.encoding.as_ref().map(|text| text.0.clone()),
            algorithm: self.algorithm.as_ref().map(|text| text.0.clone()),
            key: self.key.as_ref().map(|text| text.0.clone()),
            timestamp_format: self.timestamp_format.as_ref().map(|text| text.0.clone()),
        }
    }

    /// The style. An invalid one is refused before.
    pub(crate) fn style(&self) -> SignatureStyle {
        self.spec().resolve().unwrap_or_default()
    }
}

/// The header name in lower case, if it is valid. Reserved headers are refused, except `allowed`.
pub(super) fn header_name(name: &str, allowed: &str) -> Result<String, String> {
    let name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| "must be the name of a header: letters, digits and `-`".to_owned())?;
    if name == http::header::CONTENT_TYPE {
        return Err("is reserved: set `content_type` in the `body` of the destination".to_owned());
    }
    if is_reserved_header(name.as_str()) && name.as_str() != allowed {
        return Err("is reserved, because Weir or HTTP sets this header: use another name".to_owned());
    }
    Ok(name.as_str().to_owned())
}

pub(crate) fn view(style: &SignatureStyle) -> types::Signature {
    let spec = style.spec();
    let is_custom = style.as_str() == CUSTOM;
    // A member that the style has, though null.
    let has_time = is_custom || style.as_str() == "prefixed";
    types::Signature {
        style: style.as_str().to_owned(),
        header: spec.header,
        timestamp_header: (has_time || spec.timestamp_header.is_some()).then_some(spec.timestamp_header),
        id_header: (is_custom || spec.id_header.is_some()).then_some(spec.id_header),
        signed: spec.signed,
        value: spec.value,
        separator: is_custom.then_some(spec.separator),
        encoding: spec.encoding,
        algorithm: spec.algorithm,
        key: spec.key,
        timestamp_format: spec.timestamp_format,
    }
}

pub(crate) fn format(style: &SignatureStyle) -> types::SignatureFormat {
    let format = style.format();
    types::SignatureFormat {
        signed: format.signed(),
        value: format.value(),
        separator: format.separator.clone(),
        encoding: format.encoding.as_str().to_owned(),
        algorithm: format.algorithm.as_str().to_owned(),
        key: format.key.as_str().to_owned(),
        timestamp_format: format.timestamp_format.as_str().to_owned(),
        header: format.header.clone(),
        timestamp_header: format.timestamp_header.clone(),
        id_header: format.id_header.clone(),
    }
}

#[cfg(test)]
mod tests {
    use utoipa::PartialSchema;

    use super::*;
    use crate::readers::texts::tests::assert_pattern_is_accepted;

    #[test]
    fn every_text_that_a_pattern_describes_is_accepted() {
        assert_pattern_is_accepted::<StyleText>();
        assert_pattern_is_accepted::<SignatureHeaderText>();
        assert_pattern_is_accepted::<TimestampHeaderText>();
        assert_pattern_is_accepted::<IdHeaderText>();
        assert_pattern_is_accepted::<EncodingText>();
        assert_pattern_is_accepted::<AlgorithmText>();
        assert_pattern_is_accepted::<KeyText>();
        assert_pattern_is_accepted::<TimestampFormatText>();
    }

    /// The document names every style, and says no to no style that the server knows.
    #[test]
    fn the_document_names_every_style() {
        let schema = serde_json::to_value(StyleText::schema()).unwrap();
        let names: Vec<_> = style_names().collect();
        let mut described: Vec<_> =
            schema["pattern"].as_str().unwrap().trim_matches(&['^', '$', '(', ')'][..]).split('|').collect();
        let mut expected = names.clone();
        described.sort_unstable();
        expected.sort_unstable();
        assert_eq!(described, expected);
        let keywords = SignatureRequest::keywords().to_string();
        assert!(names.iter().all(|name| keywords.contains(&format!("\"{name}\""))), "{keywords}");
    }
}
