//! Signatures: those of Standard Webhooks 1.0, of well-known senders ([`PRESETS`]), or in a format that the destination
//! describes ([`SignatureStyle`]).
//!
//! A destination has one secret. During the overlap after a rotation the previous secret also signs ([`Signing`]).

/// An enumeration whose values have names in the API.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[$value_meta:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$value_meta])* $value,)+
        }

        impl $name {
            pub const ALL: &'static [&'static str] = &[$($text),+];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }

            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$value),)+
                    _ => None,
                }
            }
        }
    };
}

mod format;
mod hex;
mod pattern;
mod presets;
mod secret;
mod style;
mod verify;

use serde::{Deserialize, Serialize};

pub use format::{Algorithm, DEFAULT_HEADER, Encoding, Format, ID_HEADER, TIMESTAMP_HEADER, TimestampFormat};
pub use pattern::{MAX_PATTERN, Placeholder};
pub use presets::{PRESETS, Preset};
pub use secret::{InvalidKey, InvalidSecret, Key, KeyForm, KeyKind, PublicKey, SECRET_LEN, Secret};
pub use style::{CUSTOM, InvalidStyle, STANDARD, SignatureStyle, StyleSpec, Unfit, style_names};
pub use verify::{Received, Rejection, signed_seconds, verify};

use crate::time::Timestamp;

/// The secrets and the style with which the deliveries of one destination are signed.
#[derive(Debug, Clone, PartialEq)]
pub struct Signing {
    pub secret: Secret,
    /// The secret before the last rotation, and the end of its overlap. Only one previous secret is kept.
    pub previous: Option<PreviousSecret>,
    pub style: SignatureStyle,
}

/// A secret that a rotation has replaced.
#[derive(Debug, Clone, PartialEq)]
pub struct PreviousSecret {
    pub secret: Secret,
    /// The first instant at which the secret no longer signs.
    pub valid_until: Timestamp,
}

/// What one attempt signs.
#[derive(Debug, Clone, Copy)]
pub struct Message<'m> {
    pub id: &'m str,
    /// The time of the attempt.
    pub unix_seconds: i64,
    /// The URL of the destination.
    pub url: &'m str,
    pub body: &'m [u8],
}

impl Signing {
    /// Signs in the standard style with this secret alone.
    pub fn new(secret: Secret) -> Self {
        Self { secret, previous: None, style: SignatureStyle::standard() }
    }

    /// Replaces the secret. The old secret also signs until `previous_until`. An older secret is dropped: a secret that
    /// was replaced twice is of no use.
    #[must_use]
    pub fn rotated(&self, secret: Secret, previous_until: Option<Timestamp>) -> Self {
        let previous = |valid_until| PreviousSecret { secret: self.secret.clone(), valid_until };
        Self { secret, previous: previous_until.map(previous), style: self.style.clone() }
    }

    /// The previous secret, while it still signs.
    pub fn previous_at(&self, now: Timestamp) -> Option<&PreviousSecret> {
        self.previous.as_ref().filter(|previous| now < previous.valid_until)
    }

    /// The value of the signature header for one attempt.
    pub fn sign(&self, message: &Message<'_>, now: Timestamp) -> String {
        let Message { id, unix_seconds, url, body } = *message;
        match (self.style.is_standard(), self.previous_at(now)) {
            // The hot path: one secret, one MAC.
            (true, None) => self.secret.sign(id, unix_seconds, body),
            (true, Some(previous)) => {
                format!("{} {}", self.secret.sign(id, unix_seconds, body), previous.secret.sign(id, unix_seconds, body))
            }
            (false, previous) => {
                let secrets = [Some(&self.secret), previous.map(|previous| &previous.secret)];
                let format = self.style.format();
                let timestamp = format.timestamp_format.write(unix_seconds);
                let values = format::Values { id, timestamp: &timestamp, url, body };
                format.header_value(secrets.into_iter().flatten(), &values)
            }
        }
    }

    /// The text that the stores keep. It contains the secrets and must not be used elsewhere.
    pub fn to_stored(&self) -> serde_json::Result<String> {
        serde_json::to_string(&Stored {
            secret: self.secret.reveal(),
            previous: self
                .previous
                .as_ref()
                .map(|previous| (previous.secret.reveal(), previous.valid_until.as_nanos())),
            style: self.style.clone(),
        })
    }

    /// Parses the text of [`Self::to_stored`]; `None` when it is malformed. No error names the text, because it
    /// contains secrets.
    pub fn from_stored(text: &str) -> Option<Self> {
        let stored: Stored = serde_json::from_str(text).ok()?;
        let previous = match stored.previous {
            Some((secret, until)) => {
                Some(PreviousSecret { secret: secret.parse().ok()?, valid_until: Timestamp::from_nanos(until) })
            }
            None => None,
        };
        Some(Self { secret: stored.secret.parse().ok()?, previous, style: stored.style })
    }
}

/// The JSON that the stores keep.
#[derive(Serialize, Deserialize)]
struct Stored {
    secret: String,
    /// The secret, and the end of its overlap in nanoseconds.
    previous: Option<(String, i64)>,
    style: SignatureStyle,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes(vec![byte; 32]).unwrap()
    }

    /// The signature that the independent implementation computes.
    fn expected(byte: u8) -> String {
        let webhook = standardwebhooks::Webhook::from_bytes(vec![byte; 32]).unwrap();
        webhook.sign("evt_1", NOW.as_secs(), b"{}").unwrap()
    }

    #[test]
    fn during_the_overlap_both_secrets_sign_and_the_new_signature_is_first() {
        let until = NOW + std::time::Duration::from_secs(60);
        let rotated = Signing::new(secret(1)).rotated(secret(2), Some(until));
        let just_before = Timestamp::from_nanos(until.as_nanos() - 1);
        let message = Message { id: "evt_1", unix_seconds: NOW.as_secs(), url: "", body: b"{}" };
        let sign = |at| rotated.sign(&message, at);
        assert_eq!(sign(just_before), format!("{} {}", expected(2), expected(1)));
        assert_eq!(sign(until), expected(2));
    }

    #[test]
    fn a_rotation_keeps_at_most_one_previous_secret_and_none_without_an_overlap() {
        let at_once = Signing::new(secret(1)).rotated(secret(2), None);
        assert_eq!((at_once.secret, at_once.previous), (secret(2), None));
        let twice = Signing::new(secret(1)).rotated(secret(2), Some(NOW)).rotated(secret(3), Some(Timestamp::MAX));
        assert_eq!(twice.previous.unwrap().secret, secret(2));
    }

    #[test]
    fn stored_signing_is_parsed_back_and_debug_shows_no_secret() {
        let mut signing = Signing::new(secret(1)).rotated(secret(2), Some(NOW));
        signing.style =
            StyleSpec { header: Some("x-signature".to_owned()), ..StyleSpec::named("prefixed") }.resolve().unwrap();
        let stored = signing.to_stored().unwrap();
        assert_eq!(Signing::from_stored(&stored), Some(signing.clone()));
        for broken in ["", "{}", &stored.replace("whsec_", "é"), &stored.replace("prefixed", "suffixed")] {
            assert_eq!(Signing::from_stored(broken), None, "{broken}");
        }
        assert!(!format!("{signing:?}").contains("whs"), "{signing:?}");
    }

    /// A process of the previous version may have written them, or reads what this one writes.
    #[test]
    fn the_styles_of_the_previous_version_are_stored_as_it_stores_them() {
        let prefixed = |time: &str| format!(r#"{{"style":"prefixed","header":"x-s","timestamp_header":{time}}}"#);
        for (stored, signed) in [
            (r#"{"style":"standard"}"#.to_owned(), "{id}.{timestamp}.{body}"),
            (r#"{"style":"timestamped","header":"x-s"}"#.to_owned(), "{timestamp}.{body}"),
            (prefixed("null"), "{body}"),
            (prefixed(r#""x-t""#), "{timestamp}.{body}"),
        ] {
            let style: SignatureStyle = serde_json::from_str(&stored).unwrap();
            assert_eq!(style.format().signed(), signed);
            let again = serde_json::to_string(&style).unwrap();
            assert_eq!(again, stored.replace(r#","timestamp_header":null"#, ""));
        }
    }
}
