//! Verifies the signature of a received request, as a receiver does. `weir verify` uses it.
//!
//! MACs are compared in constant time.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::Mac as _;

use super::{
    format::{Algorithm, HeaderValues, Values},
    pattern::Placeholder,
    secret::{InvalidKey, Key, PublicKey},
    style::SignatureStyle,
};
use crate::time::Timestamp;

impl Key {
    /// Parses the key of a receiver that verifies this style. Receivers of Discord have the public key in hex.
    pub fn parse(text: &str, style: &SignatureStyle) -> Result<Self, InvalidKey> {
        let is_ed25519 = style.format().algorithm == Algorithm::Ed25519;
        if let Some(public) = PublicKey::from_hex(text).filter(|_| is_ed25519) {
            return Ok(Self::Public(public));
        }
        let key: Self = text.parse()?;
        let fits = match &key {
            Self::Secret(secret) => style.refusal_of(secret).is_none(),
            Self::Public(_) => is_ed25519 || style.is_standard(),
        };
        if fits { Ok(key) } else { Err(InvalidKey) }
    }
}

/// A request as it was received.
#[derive(Debug, Clone, Copy, Default)]
pub struct Received<'r> {
    /// The value of the style's id header. Not needed if the style signs no id.
    pub id: Option<&'r str>,
    /// The value of the style's timestamp header, as it was received. Not needed if the header of the signature has the
    /// time, or if the style signs none.
    pub timestamp: Option<&'r str>,
    /// The value of the signature header.
    pub signature: &'r str,
    /// The URL of the destination, for styles that sign it.
    pub url: &'r str,
    pub body: &'r [u8],
}

/// Why a request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    #[error("the signature has no valid time")]
    Undated,
    #[error("bad signature: no signature matches this body and this key")]
    BadSignature,
    #[error("too old: it was signed {0} s ago")]
    TooOld(u64),
    #[error("too new: it was signed {0} s in the future")]
    TooNew(u64),
}

/// The time that the signature is for, in unix seconds; `None` if the style signs none, or if it is not a time.
pub fn signed_seconds(style: &SignatureStyle, received: &Received<'_>) -> Option<i64> {
    let format = style.format();
    let text = format.read_header(received.signature).timestamp.or(received.timestamp)?;
    format.signs(Placeholder::Timestamp).then(|| format.timestamp_format.read(text))?
}

/// Verifies that one of the signatures is valid and its time is within `tolerance` of `now`. The signature is checked
/// before the time, because anybody can change a time that no valid signature covers.
pub fn verify(
    key: &Key,
    style: &SignatureStyle,
    received: &Received<'_>,
    now: Timestamp,
    tolerance: Duration,
) -> Result<(), Rejection> {
    let format = style.format();
    let signed_at = signed_seconds(style, received);
    if format.signs(Placeholder::Timestamp) && signed_at.is_none() {
        return Err(Rejection::Undated);
    }
    let header: HeaderValues<'_> = format.read_header(received.signature);
    let values = Values {
        id: header.id.or(received.id).unwrap_or_default(),
        // The text as it was received, because that was signed.
        timestamp: header.timestamp.or(received.timestamp).unwrap_or_default(),
        url: received.url,
        body: received.body,
    };
    // One valid signature is enough: during a rotation the sender signs with two secrets.
    let is_valid = if style.is_standard() {
        let message = [format!("{}.{}.", values.id, values.timestamp).as_bytes(), received.body].concat();
        received.signature.split(' ').any(|signature| is_standard(key, &message, signature))
    } else {
        header.signatures.iter().any(|signature| format.is_signature(key, signature, &values))
    };
    if !is_valid {
        return Err(Rejection::BadSignature);
    }
    // Only now does the time mean anything. A signature without a time does not age.
    signed_at.map_or(Ok(()), |signed_at| is_recent(signed_at, now.as_secs(), tolerance.as_secs()))
}

/// The standard has two versions of signatures: MACs (`v1`), and those of a private key (`v1a`).
fn is_standard(key: &Key, message: &[u8], signature: &str) -> bool {
    let Some((version, encoded)) = signature.split_once(',') else { return false };
    let Ok(bytes) = STANDARD.decode(encoded) else { return false };
    if let Key::Secret(secret) = key
        && let Some(mut mac) = secret.mac()
    {
        mac.update(message);
        return version == "v1" && mac.verify_slice(&bytes).is_ok();
    }
    let bytes: Result<[u8; 64], _> = bytes.try_into();
    version == "v1a" && key.public().zip(bytes.ok()).is_some_and(|(public, bytes)| public.verifies(message, &bytes))
}

const fn is_recent(signed_at: i64, now: i64, tolerance: u64) -> Result<(), Rejection> {
    let distance = now.abs_diff(signed_at);
    if distance <= tolerance {
        return Ok(());
    }
    Err(if signed_at < now { Rejection::TooOld(distance) } else { Rejection::TooNew(distance) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signing::{KeyKind, Message, Secret, Signing, StyleSpec, style_names};

    const NOW: i64 = 1_700_000_000;
    const MINUTES: Duration = Duration::from_secs(300);
    const URL: &str = "https://example.com/hooks";

    fn styles() -> Vec<SignatureStyle> {
        let named = style_names().filter(|name| *name != "custom").map(StyleSpec::named);
        let with_time = StyleSpec { timestamp_header: Some("x-time".to_owned()), ..StyleSpec::named("prefixed") };
        let custom = |signed: &str, value: &str, time: &str| StyleSpec {
            signed: Some(signed.to_owned()),
            value: Some(value.to_owned()),
            separator: Some(", ".to_owned()),
            timestamp_format: Some(time.to_owned()),
            ..StyleSpec::named("custom")
        };
        let customs = [
            custom("{url}\n{id}:{timestamp}:{body}", "i={id}, t={timestamp}, s=({signature})", "unix_ms"),
            StyleSpec { algorithm: Some("hmac-sha512".to_owned()), ..custom("{body}", "{signature}", "unix") },
        ];
        named.chain([with_time]).chain(customs).map(|spec| spec.resolve().unwrap()).collect()
    }

    fn secret(style: &SignatureStyle, byte: u8) -> Secret {
        style.new_secret(None, [byte; 32])
    }

    /// Signs at `signed_at` during the overlap of two secrets, and verifies at [`NOW`].
    fn check(style: &SignatureStyle, key: &Key, body: &[u8], signed_at: i64) -> Result<(), Rejection> {
        let mut signing = Signing::new(secret(style, 1)).rotated(secret(style, 2), Some(Timestamp::MAX));
        signing.style = style.clone();
        let message = Message { id: "evt_1", unix_seconds: signed_at, url: URL, body: b"{}" };
        let signature = signing.sign(&message, Timestamp::MIN);
        let time = style.format().timestamp_format.write(signed_at);
        let timestamp = style.timestamp_header().map(|_| time.as_str());
        let received = Received { id: Some("evt_1"), timestamp, signature: &signature, url: URL, body };
        verify(key, style, &received, Timestamp::from_secs(NOW), MINUTES)
    }

    #[test]
    fn in_every_style_both_secrets_verify_and_no_other() {
        for style in styles() {
            for (byte, accepted) in [(1, style.takes_several()), (2, true), (3, false)] {
                let key = Key::Secret(secret(&style, byte));
                assert_eq!(check(&style, &key, b"{}", NOW).is_ok(), accepted, "{byte} {style:?}");
                assert_eq!(check(&style, &key, b"{} ", NOW), Err(Rejection::BadSignature), "{style:?}");
            }
        }
    }

    #[test]
    fn a_time_outside_the_tolerance_is_rejected_when_the_time_is_signed() {
        for style in styles() {
            let key = Key::Secret(secret(&style, 2));
            let undated = !style.format().signs(Placeholder::Timestamp);
            for (signed_at, expected) in [
                (NOW - 300, Ok(())),
                (NOW + 300, Ok(())),
                (NOW - 301, Err(Rejection::TooOld(301))),
                (NOW + 301, Err(Rejection::TooNew(301))),
            ] {
                let expected = if undated { Ok(()) } else { expected };
                assert_eq!(check(&style, &key, b"{}", signed_at), expected, "{style:?}");
            }
        }
    }

    #[test]
    fn a_public_key_verifies_its_private_key_and_other_versions_are_ignored() {
        let secret = Secret::from_random(KeyKind::Ed25519, [5; 32]);
        let public = secret.public_key().unwrap().to_string().parse().unwrap();
        let signature = secret.sign("evt_1", NOW, b"{}");
        let time = NOW.to_string();
        let check = |key: &Key, signature: &str| {
            let received =
                Received { id: Some("evt_1"), timestamp: Some(&time), signature, body: b"{}", ..Received::default() };
            verify(key, &SignatureStyle::standard(), &received, Timestamp::from_secs(NOW), MINUTES)
        };
        assert_eq!(check(&public, &signature), Ok(()));
        assert_eq!(check(&Key::Secret(secret), &signature), Ok(()));
        assert_eq!(check(&public, &signature.replace("v1a,", "v1,")), Err(Rejection::BadSignature));
        assert_eq!(check(&public, &format!("v1,AAAA junk {signature}")), Ok(()));
    }

    #[test]
    fn a_key_is_of_the_kind_that_its_style_verifies_with() {
        let discord = StyleSpec::named("discord").resolve().unwrap();
        let private = secret(&discord, 5);
        let public = private.public_key().unwrap();
        for text in [private.reveal(), public.to_string(), public.to_hex()] {
            let key = Key::parse(&text, &discord).unwrap();
            assert!(check(&discord, &key, b"{}", NOW).is_err(), "another key");
        }
        let own = secret(&discord, 2).public_key().unwrap();
        for text in [own.to_string(), own.to_hex()] {
            assert_eq!(check(&discord, &Key::parse(&text, &discord).unwrap(), b"{}", NOW), Ok(()));
        }
        assert!(Key::parse("a text of some length", &discord).is_err());
        assert!(Key::parse("a text of some length", &SignatureStyle::standard()).is_err());
        let github = StyleSpec::named("github").resolve().unwrap();
        assert!(matches!(Key::parse(&public.to_hex(), &github), Ok(Key::Secret(_))), "a text in hex");
        assert!(Key::parse(&public.to_string(), &github).is_err());
    }

    #[test]
    fn malformed_input_is_rejected_without_a_panic() {
        for style in styles() {
            let key = Key::Secret(secret(&style, 1));
            for signature in ["", ",", "v1", "v1,é", "t=,v1=", "t=x,v1=00", "t=1,v1=0", "sha256=é", "sha256=0g", "ts=;"]
            {
                for timestamp in [None, Some("x"), Some("-9223372036854775808"), Some("9999-99-99T00:00:00Z")] {
                    let received = Received { timestamp, signature, ..Received::default() };
                    assert!(
                        verify(&key, &style, &received, Timestamp::from_secs(NOW), MINUTES).is_err(),
                        "{signature}"
                    );
                }
            }
        }
        for text in ["", "whpk_", "whpk_AAAA", "whsec_", "secret"] {
            assert!(text.parse::<Key>().is_err(), "{text}");
        }
    }
}
