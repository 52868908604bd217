//! The format of a signature: the standard, or one of two styles that receivers of other senders already verify.
//!
//! The key is the same for all styles: the decoded bytes after `whsec_`. So a text that a receiver uses as its secret
//! stays valid when the destination's secret is `whsec_` and the base64 of that text.

use std::fmt::Write as _;

use hmac::Mac as _;
use serde::{Deserialize, Serialize};

use super::secret::Secret;

/// The header of the signature unless another one is set.
pub const DEFAULT_HEADER: &str = "webhook-signature";

/// How a destination's deliveries are signed. Header names are in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "style", rename_all = "snake_case")]
pub enum SignatureStyle {
    /// Standard Webhooks, in its own headers.
    #[default]
    Standard,
    /// `t=<unix seconds>,v1=<hex>` with the MAC of `{unix seconds}.{body}`; one `v1=` for each secret.
    Timestamped { header: String },
    /// `sha256=<hex>` with the MAC of `{unix seconds}.{body}`, or of the body alone without a `timestamp_header`.
    /// During a rotation there are two of these, separated by a comma.
    Prefixed { header: String, timestamp_header: Option<String> },
}

impl SignatureStyle {
    /// The name in the API.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Timestamped { .. } => "timestamped",
            Self::Prefixed { .. } => "prefixed",
        }
    }

    /// The header of the signature.
    pub fn header(&self) -> &str {
        match self {
            Self::Standard => DEFAULT_HEADER,
            Self::Timestamped { header } | Self::Prefixed { header, .. } => header,
        }
    }

    /// The header with the signed time, in addition to the standard one.
    pub fn timestamp_header(&self) -> Option<&str> {
        match self {
            Self::Standard | Self::Timestamped { .. } => None,
            Self::Prefixed { timestamp_header, .. } => timestamp_header.as_deref(),
        }
    }

    /// The value of the signature header in a style other than the standard. Private keys have no MAC and are skipped.
    pub(super) fn value<'s>(
        &self,
        secrets: impl Iterator<Item = &'s Secret>,
        unix_seconds: i64,
        body: &[u8],
    ) -> String {
        // Without a header that carries the time, a receiver could not verify a signed time.
        let signed_time = match self {
            Self::Prefixed { timestamp_header: None, .. } => None,
            _ => Some(unix_seconds),
        };
        // A timestamped signature begins with its time, as the first part of the list.
        let (mut value, prefix) = match self {
            Self::Timestamped { .. } => (format!("t={unix_seconds}"), "v1="),
            _ => (String::new(), "sha256="),
        };
        // One signature for each secret: during a rotation a receiver verifies with the old secret or with the new one.
        for mut mac in secrets.filter_map(Secret::mac) {
            update(&mut mac, signed_time, body);
            if !value.is_empty() {
                value.push(',');
            }
            value.push_str(prefix);
            for byte in mac.finalize().into_bytes() {
                // Writing to a string cannot fail.
                let _ = write!(value, "{byte:02x}");
            }
        }
        value
    }
}

/// Feeds the signed message of a style other than the standard to the MAC.
pub(super) fn update(mac: &mut impl hmac::Mac, signed_time: Option<i64>, body: &[u8]) {
    if let Some(unix_seconds) = signed_time {
        mac.update(format!("{unix_seconds}.").as_bytes());
    }
    mac.update(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{signing::Signing, time::Timestamp};

    const BODY: &[u8] = br#"{"n":1}"#;

    fn value(style: SignatureStyle, rotated: bool) -> String {
        let text = |text: &str| Secret::from_bytes(text.as_bytes().to_vec()).unwrap();
        let mut signing = Signing::new(text("an old secret of some length"));
        if rotated {
            signing = signing.rotated(text("a new secret of this length!"), Some(Timestamp::MAX));
        }
        signing.style = style;
        signing.sign("evt_1", 1_700_000_000, BODY, Timestamp::MIN)
    }

    /// Computed with Python's `hmac.new(b"…", message, "sha256").hexdigest()`.
    const OLD_TIMED: &str = "aed26b8c522f7a0bb0afe21bc26a17c4ce07bb00847f14cbe1a234f35c162829";
    const NEW_TIMED: &str = "62df7e865a8e7717f0a57453ca23ee39b0fd22ddfedebaa96b71a7611b724c51";
    const OLD_BODY: &str = "f3f71077c937aeacb24deceeb71de05f055470288b4418445286911cbffdba81";
    const NEW_BODY: &str = "9f190ef246ab30b81854d92833c6631d75a528552b5304ae730201b6577931f5";

    #[test]
    fn every_style_has_the_format_that_its_receivers_verify() {
        let header = || "x-signature".to_owned();
        let timestamped = || SignatureStyle::Timestamped { header: header() };
        let prefixed = |time: Option<&str>| SignatureStyle::Prefixed {
            header: header(),
            timestamp_header: time.map(str::to_owned),
        };
        assert_eq!(value(timestamped(), false), format!("t=1700000000,v1={OLD_TIMED}"));
        assert_eq!(value(timestamped(), true), format!("t=1700000000,v1={NEW_TIMED},v1={OLD_TIMED}"));
        assert_eq!(value(prefixed(None), false), format!("sha256={OLD_BODY}"));
        assert_eq!(value(prefixed(None), true), format!("sha256={NEW_BODY},sha256={OLD_BODY}"));
        assert_eq!(value(prefixed(Some("x-time")), false), format!("sha256={OLD_TIMED}"));
        assert_eq!(value(prefixed(Some("x-time")), true), format!("sha256={NEW_TIMED},sha256={OLD_TIMED}"));
    }
}
