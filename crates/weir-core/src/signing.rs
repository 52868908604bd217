//! Signatures as Standard Webhooks 1.0 defines them: HMAC-SHA256 over `{id}.{timestamp}.{body}`.

use std::{fmt, fmt::Write as _, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const PREFIX: &str = "whsec_";
/// How long a secret is, in bytes before encoding.
pub const SECRET_LEN: std::ops::RangeInclusive<usize> = 24..=64;

/// A signing secret. Never printed by `Debug`; [`Secret::reveal`] is the only way out.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: Vec<u8>,
    /// Keyed once, so that a signature costs two hash blocks less.
    mac: KeyedMac,
}

#[derive(Clone)]
struct KeyedMac(Hmac<Sha256>);

// The key decides; the keyed state is derived from it.
impl PartialEq for KeyedMac {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for KeyedMac {}

/// The text is not a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be `whsec_` and the base64 of 24 to 64 bytes")]
pub struct InvalidSecret;

impl Secret {
    /// A secret of these bytes, which must be random and as many as [`SECRET_LEN`] allows.
    pub fn from_bytes(key: Vec<u8>) -> Result<Self, InvalidSecret> {
        if !SECRET_LEN.contains(&key.len()) {
            return Err(InvalidSecret);
        }
        let mac = Hmac::new_from_slice(&key).map_err(|_| InvalidSecret)?;
        Ok(Self { key, mac: KeyedMac(mac) })
    }

    /// The `whsec_…` text, for its owner's eyes only.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}", STANDARD.encode(&self.key))
    }

    /// The `webhook-signature` value for one attempt: `v1,` and the base64 of the MAC.
    pub fn sign(&self, id: &str, unix_seconds: i64, body: &[u8]) -> String {
        let mut mac = self.mac.0.clone();
        let mut head = String::with_capacity(64);
        // Writing to a string cannot fail.
        let _ = write!(head, "{id}.{unix_seconds}.");
        mac.update(head.as_bytes());
        mac.update(body);
        let mut signature = String::with_capacity(48);
        signature.push_str("v1,");
        STANDARD.encode_string(mac.finalize().into_bytes(), &mut signature);
        signature
    }
}

impl FromStr for Secret {
    type Err = InvalidSecret;
    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        let encoded = text.strip_prefix(PREFIX).ok_or(InvalidSecret)?;
        Self::from_bytes(STANDARD.decode(encoded).map_err(|_| InvalidSecret)?)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_published_vectors_are_met() {
        let vectors = [
            (
                "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                1_614_265_330,
                r#"{"test": 2432232314}"#,
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            ),
            (
                "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
                "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk",
                1_649_367_553,
                r#"{"email":"test@example.com","username":"test_user"}"#,
                "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=",
            ),
        ];
        for (secret, id, timestamp, body, signature) in vectors {
            assert_eq!(secret.parse::<Secret>().unwrap().sign(id, timestamp, body.as_bytes()), signature);
        }
    }

    #[test]
    fn short_long_and_foreign_secrets_are_refused_and_none_is_printed() {
        let of = |len| format!("whsec_{}", STANDARD.encode(vec![7; len]));
        assert!(of(23).parse::<Secret>().is_err());
        assert!(of(65).parse::<Secret>().is_err());
        assert!("whpk_AAAA".parse::<Secret>().is_err());
        let secret: Secret = of(24).parse().unwrap();
        assert_eq!(secret.reveal(), of(24));
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    proptest! {
        #[test]
        fn the_independent_verifier_computes_the_same(key in prop::collection::vec(any::<u8>(), 24..=64), body in ".*", timestamp in 0i64..1 << 33) {
            let secret = Secret::from_bytes(key.clone()).unwrap();
            let theirs = standardwebhooks::Webhook::from_bytes(key).unwrap();
            prop_assert_eq!(secret.sign("evt_1", timestamp, body.as_bytes()), theirs.sign("evt_1", timestamp, body.as_bytes()).unwrap());
        }
    }
}
