//! Secrets and keys: `whsec_` (HMAC-SHA256), and the Ed25519 pair `whsk_` (private) and `whpk_` (public).

use std::{fmt, fmt::Write as _, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

pub(super) const SHARED: &str = "whsec_";
pub(super) const PRIVATE: &str = "whsk_";
pub(super) const PUBLIC: &str = "whpk_";
/// The allowed length of a shared secret, in bytes before encoding.
pub const SECRET_LEN: std::ops::RangeInclusive<usize> = 24..=64;
/// The length of an Ed25519 seed. A private key is the seed followed by the public key, or the seed alone.
const SEED_LEN: usize = 32;

/// A signing secret. `Debug` never prints it; only [`Secret::reveal`] returns its text.
#[derive(Clone)]
pub struct Secret(Material);

/// The key and its prepared state. The preparation saves two hash blocks, or the expansion of the key, for each
/// signature.
#[derive(Clone)]
enum Material {
    Shared { key: Vec<u8>, mac: Hmac<Sha256> },
    Private(Box<SigningKey>),
}

/// The kind of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// `whsec_`: sender and receiver share the secret.
    Shared,
    /// `whsk_`: receivers have only the public key.
    Ed25519,
}

/// The text is not a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be `whsec_` and the base64 of 24 to 64 bytes, or `whsk_` and the base64 of an Ed25519 key: its 32 bytes, or its 32 bytes followed by the public key"
)]
pub struct InvalidSecret;

impl Secret {
    /// A shared secret of these bytes. They must be random; [`SECRET_LEN`] is the allowed length.
    pub fn from_bytes(key: Vec<u8>) -> Result<Self, InvalidSecret> {
        if !SECRET_LEN.contains(&key.len()) {
            return Err(InvalidSecret);
        }
        let mac = Hmac::new_from_slice(&key).map_err(|_| InvalidSecret)?;
        Ok(Self(Material::Shared { key, mac }))
    }

    /// A secret of this kind. The bytes must be random.
    pub fn from_random(kind: KeyKind, bytes: [u8; SEED_LEN]) -> Self {
        match (kind, Self::from_bytes(bytes.to_vec())) {
            (KeyKind::Shared, Ok(shared)) => shared,
            _ => Self(Material::Private(Box::new(SigningKey::from_bytes(&bytes)))),
        }
    }

    /// A private key from its seed, with or without the public key.
    fn from_private(bytes: &[u8]) -> Result<Self, InvalidSecret> {
        let (seed, public) = bytes.split_first_chunk::<SEED_LEN>().ok_or(InvalidSecret)?;
        let key = SigningKey::from_bytes(seed);
        if !public.is_empty() && public != key.verifying_key().as_bytes() {
            return Err(InvalidSecret);
        }
        Ok(Self(Material::Private(Box::new(key))))
    }

    pub const fn kind(&self) -> KeyKind {
        match self.0 {
            Material::Shared { .. } => KeyKind::Shared,
            Material::Private(_) => KeyKind::Ed25519,
        }
    }

    /// The `whsec_…` or `whsk_…` text. Only the owner may see it.
    pub fn reveal(&self) -> String {
        match &self.0 {
            Material::Shared { key, .. } => format!("{SHARED}{}", STANDARD.encode(key)),
            Material::Private(key) => format!("{PRIVATE}{}", STANDARD.encode(key.to_keypair_bytes())),
        }
    }

    /// The key with which receivers verify; `None` for a shared secret.
    pub fn public_key(&self) -> Option<PublicKey> {
        match &self.0 {
            Material::Shared { .. } => None,
            Material::Private(key) => Some(PublicKey(key.verifying_key())),
        }
    }

    /// The `webhook-signature` value for one attempt: `v1,` and the base64 of the MAC, or `v1a,` and the base64 of the
    /// Ed25519 signature.
    pub fn sign(&self, id: &str, unix_seconds: i64, body: &[u8]) -> String {
        let mut head = String::with_capacity(64);
        // Writing to a string cannot fail.
        let _ = write!(head, "{id}.{unix_seconds}.");
        match &self.0 {
            Material::Shared { mac, .. } => {
                let mut mac = mac.clone();
                mac.update(head.as_bytes());
                mac.update(body);
                let mut signature = String::with_capacity(48);
                signature.push_str("v1,");
                STANDARD.encode_string(mac.finalize().into_bytes(), &mut signature);
                signature
            }
            Material::Private(key) => {
                // Ed25519 reads its message twice, so the message must be contiguous.
                let message = [head.as_bytes(), body].concat();
                format!("v1a,{}", STANDARD.encode(key.sign(&message).to_bytes()))
            }
        }
    }

    /// The MAC, ready for a message; `None` for a private key.
    pub(super) fn mac(&self) -> Option<Hmac<Sha256>> {
        match &self.0 {
            Material::Shared { mac, .. } => Some(mac.clone()),
            Material::Private(_) => None,
        }
    }
}

impl FromStr for Secret {
    type Err = InvalidSecret;
    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        if let Some(encoded) = text.strip_prefix(SHARED) {
            return Self::from_bytes(decode(encoded)?);
        }
        Self::from_private(&decode(text.strip_prefix(PRIVATE).ok_or(InvalidSecret)?)?)
    }
}

fn decode(encoded: &str) -> Result<Vec<u8>, InvalidSecret> {
    STANDARD.decode(encoded).map_err(|_| InvalidSecret)
}

// Only the keys are compared: the prepared state is derived from the key.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Material::Shared { key, .. }, Material::Shared { key: other, .. }) => key == other,
            (Material::Private(key), Material::Private(other)) => key == other,
            _ => false,
        }
    }
}
impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The public half of a `whsk_` secret; shown as `whpk_…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    pub(super) fn from_base64(encoded: &str) -> Option<Self> {
        let bytes: [u8; SEED_LEN] = STANDARD.decode(encoded).ok()?.try_into().ok()?;
        VerifyingKey::from_bytes(&bytes).ok().map(Self)
    }

    pub(super) fn verifies(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        self.0.verify_strict(message, &ed25519_dalek::Signature::from_bytes(signature)).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC}{}", STANDARD.encode(self.0.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_published_test_vectors_pass() {
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
            (
                "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                1_614_265_330,
                r#"{"test": 2432232314}"#,
                "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==",
            ),
        ];
        for (secret, id, timestamp, body, signature) in vectors {
            assert_eq!(secret.parse::<Secret>().unwrap().sign(id, timestamp, body.as_bytes()), signature);
        }
    }

    #[test]
    fn a_private_key_is_parsed_with_or_without_its_public_key_and_shown_with_it() {
        let whole = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
        let seed = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbc=";
        let [whole_key, seed_key]: [Secret; 2] = [whole, seed].map(|text| text.parse().unwrap());
        assert_eq!(whole_key, seed_key);
        assert_eq!(seed_key.reveal(), whole);
        let public = seed_key.public_key().unwrap().to_string();
        assert_eq!(public, "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=");
        assert_eq!(whole_key.kind(), KeyKind::Ed25519);
        // The public key does not belong to the seed.
        assert!(whole.replace("LlX0d", "LlX0e").parse::<Secret>().is_err());
    }

    #[test]
    fn invalid_secrets_are_refused_and_debug_shows_no_secret() {
        let of = |len| format!("whsec_{}", STANDARD.encode(vec![7; len]));
        assert!(of(23).parse::<Secret>().is_err());
        assert!(of(65).parse::<Secret>().is_err());
        assert!("whpk_AAAA".parse::<Secret>().is_err());
        assert!("whsk_AAAA".parse::<Secret>().is_err());
        let secret: Secret = of(24).parse().unwrap();
        assert_eq!(secret.reveal(), of(24));
        assert_eq!((secret.public_key(), secret.kind()), (None, KeyKind::Shared));
        for kind in [KeyKind::Shared, KeyKind::Ed25519] {
            let made = Secret::from_random(kind, [9; 32]);
            assert_eq!((made.kind(), format!("{made:?}").as_str()), (kind, "Secret(…)"));
            assert_eq!(made.reveal().parse(), Ok(made));
        }
    }

    proptest! {
        #[test]
        fn the_independent_implementation_computes_the_same_signature(key in prop::collection::vec(any::<u8>(), 24..=64), body in ".*", timestamp in 0i64..1 << 33) {
            let secret = Secret::from_bytes(key.clone()).unwrap();
            let theirs = standardwebhooks::Webhook::from_bytes(key).unwrap();
            prop_assert_eq!(secret.sign("evt_1", timestamp, body.as_bytes()), theirs.sign("evt_1", timestamp, body.as_bytes()).unwrap());
        }
    }
}
