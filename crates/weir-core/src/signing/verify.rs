//! Verifies the signature of a received request, as a receiver does. `weir verify` uses it.
//!
//! MACs are compared in constant time.

use std::{str::FromStr, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::Mac as _;

use super::{
    secret::{PUBLIC, PublicKey, Secret},
    style::{SignatureStyle, update},
};
use crate::time::Timestamp;

/// The key with which a receiver verifies: a secret or a public key.
#[derive(Debug, Clone)]
pub enum Key {
    Secret(Secret),
    Public(PublicKey),
}

/// The text is neither a secret nor a public key. The error does not name the text, which may be most of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a `whsec_…` or `whsk_…` secret, or a `whpk_…` public key")]
pub struct InvalidKey;

impl FromStr for Key {
    type Err = InvalidKey;
    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        match text.strip_prefix(PUBLIC) {
            Some(encoded) => PublicKey::from_base64(encoded).map(Self::Public).ok_or(InvalidKey),
            None => text.parse().map(Self::Secret).map_err(|_| InvalidKey),
        }
    }
}

/// A request as it was received.
#[derive(Debug, Clone, Copy)]
pub struct Received<'r> {
    /// `webhook-id`; signed in the standard style only.
    pub id: &'r str,
    /// The signed time: the value of `webhook-timestamp`, or of the style's own header. A `timestamped` signature
    /// contains its time, and a `prefixed` signature of the body alone has no time.
    pub unix_seconds: Option<i64>,
    /// The value of the signature header.
    pub signature: &'r str,
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

/// Verifies that one of the signatures is valid and its time is within `tolerance` of `now`. The signature is checked
/// before the time, because anybody can change a time that no valid signature covers.
pub fn verify(
    key: &Key,
    style: &SignatureStyle,
    received: &Received<'_>,
    now: Timestamp,
    tolerance: Duration,
) -> Result<(), Rejection> {
    // The signed time: a part of the signature in the timestamped style, else the value of a header.
    let signed_at = match style {
        SignatureStyle::Timestamped { .. } => {
            Some(parts_with_prefix(received.signature, "t=").next().ok_or(Rejection::Undated)?)
        }
        _ => None,
    };
    let signed_at = match signed_at {
        Some(text) => Some(text.parse().map_err(|_| Rejection::Undated)?),
        None => received.unix_seconds,
    };
    // One valid signature is enough: during a rotation the sender signs with two secrets.
    let is_valid = match (style, signed_at) {
        (SignatureStyle::Standard, None) => return Err(Rejection::Undated),
        (SignatureStyle::Standard, Some(signed_at)) => {
            let message = [format!("{}.{signed_at}.", received.id).as_bytes(), received.body].concat();
            received.signature.split(' ').any(|signature| is_standard(key, &message, signature))
        }
        (SignatureStyle::Timestamped { .. }, _) => {
            parts_with_prefix(received.signature, "v1=").any(|hex| is_hex_of(key, signed_at, received.body, hex))
        }
        (SignatureStyle::Prefixed { .. }, _) => {
            parts_with_prefix(received.signature, "sha256=").any(|hex| is_hex_of(key, signed_at, received.body, hex))
        }
    };
    if !is_valid {
        return Err(Rejection::BadSignature);
    }
    // Only now does the time mean anything. A signature of the body alone has no time and does not age.
    signed_at.map_or(Ok(()), |signed_at| is_recent(signed_at, now.as_secs(), tolerance.as_secs()))
}

/// The parts of a comma-separated list that begin with `prefix`, without the prefix.
fn parts_with_prefix<'s>(list: &'s str, prefix: &'s str) -> impl Iterator<Item = &'s str> {
    list.split(',').filter_map(move |part| part.trim().strip_prefix(prefix))
}

fn is_standard(key: &Key, message: &[u8], signature: &str) -> bool {
    let Some((version, encoded)) = signature.split_once(',') else { return false };
    let Ok(bytes) = STANDARD.decode(encoded) else { return false };
    // A shared secret makes a MAC (`v1`). Any other key belongs to a signature (`v1a`).
    let public = match key {
        Key::Secret(secret) => {
            if let Some(mut mac) = secret.mac() {
                mac.update(message);
                return version == "v1" && mac.verify_slice(&bytes).is_ok();
            }
            secret.public_key()
        }
        Key::Public(public) => Some(*public),
    };
    let bytes: Result<[u8; 64], _> = bytes.try_into();
    version == "v1a" && public.zip(bytes.ok()).is_some_and(|(public, bytes)| public.verifies(message, &bytes))
}

/// Whether a MAC in hex is valid; the styles other than the standard use only MACs.
fn is_hex_of(key: &Key, signed_at: Option<i64>, body: &[u8], hex: &str) -> bool {
    let Key::Secret(secret) = key else { return false };
    let (Some(mut mac), Some(bytes)) = (secret.mac(), unhex(hex)) else { return false };
    update(&mut mac, signed_at, body);
    mac.verify_slice(&bytes).is_ok()
}

fn unhex(hex: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
        _ => None,
    };
    hex.as_bytes().chunks(2).map(pair).collect()
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
    use crate::signing::{KeyKind, Signing};

    const NOW: i64 = 1_700_000_000;
    const MINUTES: Duration = Duration::from_secs(300);

    fn styles() -> [SignatureStyle; 4] {
        let header = || "x-signature".to_owned();
        let prefixed = |timestamp_header| SignatureStyle::Prefixed { header: header(), timestamp_header };
        [
            SignatureStyle::Standard,
            SignatureStyle::Timestamped { header: header() },
            prefixed(None),
            prefixed(Some("x-time".to_owned())),
        ]
    }

    /// Signs at `signed_at` during the overlap of two secrets, and verifies at [`NOW`].
    fn check(style: &SignatureStyle, key: &Key, body: &[u8], signed_at: i64) -> Result<(), Rejection> {
        let [old, new] = [1, 2].map(|byte| Secret::from_bytes(vec![byte; 32]).unwrap());
        let mut signing = Signing::new(old).rotated(new, Some(Timestamp::MAX));
        signing.style = style.clone();
        let signature = signing.sign("evt_1", signed_at, b"{}", Timestamp::MIN);
        let undated = matches!(style, SignatureStyle::Prefixed { timestamp_header: None, .. });
        let received =
            Received { id: "evt_1", unix_seconds: (!undated).then_some(signed_at), signature: &signature, body };
        verify(key, style, &received, Timestamp::from_secs(NOW), MINUTES)
    }

    #[test]
    fn in_every_style_both_secrets_verify_and_no_other() {
        for style in styles() {
            for (byte, accepted) in [(1, true), (2, true), (3, false)] {
                let key = Key::Secret(Secret::from_bytes(vec![byte; 32]).unwrap());
                assert_eq!(check(&style, &key, b"{}", NOW).is_ok(), accepted, "{style:?}");
                assert_eq!(check(&style, &key, b"{} ", NOW), Err(Rejection::BadSignature), "{style:?}");
            }
        }
    }

    #[test]
    fn a_time_outside_the_tolerance_is_rejected_when_the_time_is_signed() {
        let key = Key::Secret(Secret::from_bytes(vec![1; 32]).unwrap());
        for style in styles() {
            let undated = matches!(style, SignatureStyle::Prefixed { timestamp_header: None, .. });
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
        let check = |key: &Key, signature: &str| {
            let received = Received { id: "evt_1", unix_seconds: Some(NOW), signature, body: b"{}" };
            verify(key, &SignatureStyle::Standard, &received, Timestamp::from_secs(NOW), MINUTES)
        };
        assert_eq!(check(&public, &signature), Ok(()));
        assert_eq!(check(&Key::Secret(secret), &signature), Ok(()));
        assert_eq!(check(&public, &signature.replace("v1a,", "v1,")), Err(Rejection::BadSignature));
        assert_eq!(check(&public, &format!("v1,AAAA junk {signature}")), Ok(()));
    }

    #[test]
    fn malformed_input_is_rejected_without_a_panic() {
        let key = Key::Secret(Secret::from_bytes(vec![1; 32]).unwrap());
        for style in styles() {
            for signature in ["", ",", "v1", "v1,é", "t=,v1=", "t=x,v1=00", "t=1,v1=0", "sha256=é", "sha256=0g"] {
                let received = Received { id: "", unix_seconds: Some(i64::MIN), signature, body: b"" };
                assert!(verify(&key, &style, &received, Timestamp::from_secs(NOW), MINUTES).is_err(), "{signature}");
            }
        }
        for text in ["", "whpk_", "whpk_AAAA", "whsec_", "secret"] {
            assert!(text.parse::<Key>().is_err(), "{text}");
        }
    }
}
