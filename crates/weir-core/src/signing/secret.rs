//! Secrets and keys: shared secrets (a text, or `whsec_` and base64), and the Ed25519 pair `whsk_` (private) and `whpk_`
//! (public).

use std::{fmt, fmt::Write as _, str::FromStr};

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use ed25519_dalek::{SIGNATURE_LENGTH, Signer as _, SigningKey, VerifyingKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::hex::{hex, unhex};

pub(super) const SHARED: &str = "whsec_";
pub(super) const PRIVATE: &str = "whsk_";
pub(super) const PUBLIC: &str = "whpk_";
/// The allowed length of a shared secret: of a text, or of the bytes before encoding. Standard Webhooks recommends 24 to
/// 64 bytes; people who migrate have shorter and longer ones.
pub const SECRET_LEN: std::ops::RangeInclusive<usize> = 16..=128;
/// The length of an Ed25519 seed. A private key is the seed followed by the public key, or the seed alone.
const SEED_LEN: usize = 32;

named! {
    /// What of a shared secret is the key of the MAC.
    KeyForm {
        /// The secret as it is shown, with its `whsec_` if it has one.
        Text = "text",
        /// The bytes after `whsec_`, decoded from base64.
        Decoded = "decoded",
    }
}

/// A signing secret. `Debug` never prints it; only [`Secret::reveal`] returns its text.
#[derive(Clone)]
pub struct Secret(Material);

/// The key and its prepared state. The preparation saves two hash blocks, or the expansion of the key, for each
/// signature.
#[derive(Clone)]
enum Material {
    Shared {
        text: String,
        /// What the text encodes after its `whsec_`; `None` if it is another text.
        decoded: Option<Vec<u8>>,
        mac: Hmac<Sha256>,
    },
    Private(Box<SigningKey>),
}

/// Secrets come from many hands: with or without the padding.
const ANY_PADDING: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The kind of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// Sender and receiver share the secret.
    Shared,
    /// `whsk_`: receivers have only the public key.
    Ed25519,
}

/// The text is not a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be `whsec_` and the base64 of 16 to 128 bytes, a text of 16 to 128 printable ASCII characters, or `whsk_` and the base64 of an Ed25519 key: its 32 bytes, or its 32 bytes followed by the public key"
)]
pub struct InvalidSecret;

impl Secret {
    /// A shared secret of these bytes, `whsec_…`. They must be random; [`SECRET_LEN`] is the allowed length.
    pub fn from_bytes(key: Vec<u8>) -> Result<Self, InvalidSecret> {
        if !SECRET_LEN.contains(&key.len()) {
            return Err(InvalidSecret);
        }
        Self::shared(format!("{SHARED}{}", STANDARD.encode(&key)), Some(key))
    }

    fn shared(text: String, decoded: Option<Vec<u8>>) -> Result<Self, InvalidSecret> {
        let mac = Hmac::new_from_slice(decoded.as_deref().unwrap_or(text.as_bytes())).map_err(|_| InvalidSecret)?;
        Ok(Self(Material::Shared { text, decoded, mac }))
    }

    /// A secret of this kind. The bytes must be random.
    pub fn from_random(kind: KeyKind, bytes: [u8; SEED_LEN]) -> Self {
        match (kind, Self::from_bytes(bytes.to_vec())) {
            (KeyKind::Shared, Ok(shared)) => shared,
            _ => Self(Material::Private(Box::new(SigningKey::from_bytes(&bytes)))),
        }
    }

    /// A shared secret that is a text: the random bytes in hex, which no shell, form or library changes or decodes.
    pub fn random_text(bytes: [u8; SEED_LEN]) -> Self {
        Self::shared(hex(&bytes), None).unwrap_or_else(|_| Self::from_random(KeyKind::Shared, bytes))
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

    /// Whether a key for MACs of this form can be had of it.
    pub fn has_key(&self, form: KeyForm) -> bool {
        self.mac_key(form).is_some()
    }

    /// The text of the secret. Only the owner may see it.
    pub fn reveal(&self) -> String {
        match &self.0 {
            Material::Shared { text, .. } => text.clone(),
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

    /// The MAC of the standard style, ready for a message; `None` for a private key.
    pub(super) fn mac(&self) -> Option<Hmac<Sha256>> {
        match &self.0 {
            Material::Shared { mac, .. } => Some(mac.clone()),
            Material::Private(_) => None,
        }
    }

    /// The key for the MACs of a format; `None` for a private key, or if the secret is a text and the format wants
    /// decoded bytes.
    pub(super) fn mac_key(&self, form: KeyForm) -> Option<&[u8]> {
        match (&self.0, form) {
            (Material::Shared { text, .. }, KeyForm::Text) => Some(text.as_bytes()),
            (Material::Shared { decoded, .. }, KeyForm::Decoded) => decoded.as_deref(),
            (Material::Private(_), _) => None,
        }
    }

    /// The signature by a private key; `None` for a shared secret.
    pub(super) fn sign_message(&self, message: &[u8]) -> Option<[u8; SIGNATURE_LENGTH]> {
        match &self.0 {
            Material::Shared { .. } => None,
            Material::Private(key) => Some(key.sign(message).to_bytes()),
        }
    }
}

impl FromStr for Secret {
    type Err = InvalidSecret;
    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        if let Some(encoded) = text.strip_prefix(PRIVATE) {
            return Self::from_private(&ANY_PADDING.decode(encoded).map_err(|_| InvalidSecret)?);
        }
        if text.starts_with(PUBLIC) {
            // It cannot sign, and its owner believes that it is no secret.
            return Err(InvalidSecret);
        }
        let decoded = text.strip_prefix(SHARED).and_then(|encoded| ANY_PADDING.decode(encoded).ok());
        let decoded = decoded.filter(|decoded| SECRET_LEN.contains(&decoded.len()));
        // Spaces at the ends are those of a careless copy.
        let is_printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~')) && text.trim() == text;
        if decoded.is_none() && !(is_printable && SECRET_LEN.contains(&text.len())) {
            return Err(InvalidSecret);
        }
        Self::shared(text.to_owned(), decoded)
    }
}

// Only the keys are compared: the prepared state is derived from the key.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Material::Shared { text, .. }, Material::Shared { text: other, .. }) => text == other,
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
        Self::from_bytes(ANY_PADDING.decode(encoded).ok()?)
    }

    /// From the hex that other senders show.
    pub(super) fn from_hex(hex: &str) -> Option<Self> {
        Self::from_bytes(unhex(hex)?)
    }

    fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        let bytes: [u8; SEED_LEN] = bytes.try_into().ok()?;
        VerifyingKey::from_bytes(&bytes).ok().map(Self)
    }

    /// The 32 bytes in hex, as receivers of Discord configure the key.
    pub fn to_hex(&self) -> String {
        hex(self.0.as_bytes())
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

/// The key with which a receiver verifies: a secret or a public key.
#[derive(Debug, Clone)]
pub enum Key {
    Secret(Secret),
    Public(PublicKey),
}

/// The text is neither a secret nor a public key. The error does not name the text, which may be most of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be a `whsec_…` or `whsk_…` secret, or a `whpk_…` public key; for a style with a text key, 16 to 128 characters"
)]
pub struct InvalidKey;

impl Key {
    /// The public key, or that of a private key.
    pub(super) fn public(&self) -> Option<PublicKey> {
        match self {
            Self::Secret(secret) => secret.public_key(),
            Self::Public(public) => Some(*public),
        }
    }
}

impl FromStr for Key {
    type Err = InvalidKey;
    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        match text.strip_prefix(PUBLIC) {
            Some(encoded) => PublicKey::from_base64(encoded).map(Self::Public).ok_or(InvalidKey),
            None => text.parse().map(Self::Secret).map_err(|_| InvalidKey),
        }
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
        assert!(of(129).parse::<Secret>().is_err());
        // As the key of the standard style; it may still be a text.
        assert!(!of(15).parse::<Secret>().unwrap().has_key(KeyForm::Decoded));
        let public = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
        for bad in ["", "fifteen letters", "whsec_c2hvcnQ=", " a text with a space ", "sixteen letters\n", public] {
            assert!(bad.parse::<Secret>().is_err(), "{bad}");
        }
        assert!("é".repeat(16).parse::<Secret>().is_err());
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

    #[test]
    fn a_secret_is_shown_as_it_was_given_and_its_padding_does_not_matter() {
        let padded = format!("whsec_{}", STANDARD.encode([7; 16]));
        let bare = padded.trim_end_matches('=').to_owned();
        assert!(padded.len() > bare.len());
        let [padded_key, bare_key]: [Secret; 2] = [&padded, &bare].map(|text| text.parse().unwrap());
        assert_eq!((padded_key.reveal(), bare_key.reveal()), (padded.clone(), bare));
        assert_eq!(padded_key.mac_key(KeyForm::Decoded), Some(&[7; 16][..]));
        assert_eq!(padded_key.mac_key(KeyForm::Decoded), bare_key.mac_key(KeyForm::Decoded));
        assert_eq!(padded_key.mac_key(KeyForm::Text), Some(padded.as_bytes()));
        let text: Secret = "It's a Secret to Everybody".parse().unwrap();
        assert_eq!((text.reveal().as_str(), text.mac_key(KeyForm::Decoded)), ("It's a Secret to Everybody", None));
        let made = Secret::random_text([0xa7; 32]);
        assert_eq!((made.reveal(), made.has_key(KeyForm::Decoded)), ("a7".repeat(32), false));
        assert_eq!(made.reveal().parse(), Ok(made));
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
