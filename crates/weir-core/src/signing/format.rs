//! The format of a signature: what is signed with which key, and how the result is written into the headers.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use ed25519_dalek::SIGNATURE_LENGTH;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Sha256, Sha512};

use super::{
    hex::{hex, unhex},
    pattern::{Pattern, Placeholder},
    secret::{Key, KeyForm, Secret},
};
use crate::time::Timestamp;

/// The headers of the standard style. Every request has the id and the time in them.
pub const DEFAULT_HEADER: &str = "webhook-signature";
pub const ID_HEADER: &str = "webhook-id";
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";

named! {
    /// How the signature is computed.
    Algorithm {
        HmacSha256 = "hmac-sha256",
        HmacSha512 = "hmac-sha512",
        /// With a private key; receivers have the public one.
        Ed25519 = "ed25519",
    }
}

named! {
    Encoding {
        Hex = "hex",
        Base64 = "base64",
    }
}

named! {
    /// How `{timestamp}` is written, in all places alike.
    TimestampFormat {
        Unix = "unix",
        UnixMs = "unix_ms",
        Rfc3339 = "rfc3339",
    }
}

impl TimestampFormat {
    pub fn write(self, unix_seconds: i64) -> String {
        match self {
            Self::Unix => unix_seconds.to_string(),
            Self::UnixMs => unix_seconds.saturating_mul(1_000).to_string(),
            Self::Rfc3339 => Timestamp::from_secs(unix_seconds).to_string().replace(".000", ""),
        }
    }

    /// The time in unix seconds.
    pub fn read(self, text: &str) -> Option<i64> {
        match self {
            Self::Unix => text.parse().ok(),
            Self::UnixMs => text.parse::<i64>().ok().map(|ms| ms.div_euclid(1_000)),
            Self::Rfc3339 => text.parse::<Timestamp>().ok().map(Timestamp::as_secs),
        }
    }
}

/// The format of a signature. Header names are in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    pub algorithm: Algorithm,
    pub key: KeyForm,
    pub encoding: Encoding,
    pub timestamp_format: TimestampFormat,
    pub(super) signed: Pattern,
    /// The parts of the header's value, which are joined by the separator. One of them has the signature.
    pub(super) parts: Vec<Pattern>,
    pub separator: Option<String>,
    pub header: String,
    pub timestamp_header: Option<String>,
    pub id_header: Option<String>,
}

/// What a request puts in the place of the placeholders.
#[derive(Debug, Clone, Copy)]
pub(super) struct Values<'v> {
    pub(super) id: &'v str,
    pub(super) timestamp: &'v str,
    pub(super) url: &'v str,
    pub(super) body: &'v [u8],
}

/// What the header of a signature says.
#[derive(Debug, Default)]
pub(super) struct HeaderValues<'h> {
    pub(super) timestamp: Option<&'h str>,
    pub(super) id: Option<&'h str>,
    pub(super) signatures: Vec<&'h str>,
}

impl Format {
    /// What is signed, with its placeholders.
    pub fn signed(&self) -> String {
        self.signed.to_string()
    }

    /// The value of the header, with its placeholders.
    pub fn value(&self) -> String {
        let parts: Vec<_> = self.parts.iter().map(ToString::to_string).collect();
        parts.join(self.separator.as_deref().unwrap_or_default())
    }

    pub fn signs(&self, place: Placeholder) -> bool {
        self.signed.has(place)
    }

    /// Whether the header of the signature has this value too.
    pub fn shows(&self, place: Placeholder) -> bool {
        self.parts.iter().any(|part| part.has(place))
    }

    /// The value of the signature header. Secrets that cannot sign in this format are left out; without a separator
    /// the first secret signs alone.
    pub(super) fn header_value<'s>(&self, secrets: impl Iterator<Item = &'s Secret>, values: &Values<'_>) -> String {
        let most = if self.separator.is_some() { usize::MAX } else { 1 };
        let signatures: Vec<_> = secrets.filter_map(|secret| self.sign(secret, values)).take(most).collect();
        let separator = self.separator.as_deref().unwrap_or_default();
        let mut header = String::with_capacity(128);
        let mut add = |part: &Pattern, signature: &str| {
            if !header.is_empty() {
                header.push_str(separator);
            }
            let value = |place| match place {
                Placeholder::Id => values.id,
                Placeholder::Timestamp => values.timestamp,
                Placeholder::Signature => signature,
                Placeholder::Url | Placeholder::Body => "",
            };
            part.write(value, &mut header);
        };
        for part in &self.parts {
            match part.has(Placeholder::Signature) {
                true => signatures.iter().for_each(|signature| add(part, signature)),
                false => add(part, ""),
            }
        }
        header
    }

    /// Reads a header that [`Self::header_value`] or another sender has written.
    pub(super) fn read_header<'h>(&self, header: &'h str) -> HeaderValues<'h> {
        let mut found = HeaderValues::default();
        for given in self.split(header) {
            let values = self.parts.iter().find_map(|part| part.read(given)).unwrap_or_default();
            for (place, value) in values {
                match place {
                    Placeholder::Timestamp => found.timestamp = found.timestamp.or(Some(value)),
                    Placeholder::Id => found.id = found.id.or(Some(value)),
                    Placeholder::Signature => found.signatures.push(value),
                    Placeholder::Url | Placeholder::Body => {}
                }
            }
        }
        found
    }

    /// How many values a received header has: each may cost a MAC of the whole body.
    pub fn count_parts(&self, header: &str) -> usize {
        self.split(header).count()
    }

    /// The parts of a received header.
    pub(super) fn split<'h>(&self, header: &'h str) -> impl Iterator<Item = &'h str> {
        let parts: Vec<_> = match self.separator.as_deref().map(str::trim) {
            None => vec![header],
            Some("") => header.split_whitespace().collect(),
            Some(separator) => header.split(separator).collect(),
        };
        parts.into_iter().map(str::trim)
    }

    /// The signature; `None` if the secret is of another kind.
    fn sign(&self, secret: &Secret, values: &Values<'_>) -> Option<String> {
        let bytes = match self.algorithm {
            Algorithm::HmacSha256 => self.mac::<Hmac<Sha256>>(secret, values)?.finalize().into_bytes().to_vec(),
            Algorithm::HmacSha512 => self.mac::<Hmac<Sha512>>(secret, values)?.finalize().into_bytes().to_vec(),
            Algorithm::Ed25519 => secret.sign_message(&self.message(values))?.to_vec(),
        };
        Some(match self.encoding {
            Encoding::Hex => hex(&bytes),
            Encoding::Base64 => STANDARD.encode(&bytes),
        })
    }

    /// Whether a signature is of these values. MACs are compared in constant time.
    pub(super) fn is_signature(&self, key: &Key, signature: &str, values: &Values<'_>) -> bool {
        let bytes = match self.encoding {
            Encoding::Hex => unhex(signature),
            Encoding::Base64 => STANDARD_NO_PAD.decode(signature.trim_end_matches('=')).ok(),
        };
        let Some(bytes) = bytes else { return false };
        let is_mac = |secret: &Secret| match self.algorithm {
            Algorithm::HmacSha256 => {
                self.mac::<Hmac<Sha256>>(secret, values).is_some_and(|mac| mac.verify_slice(&bytes).is_ok())
            }
            Algorithm::HmacSha512 => {
                self.mac::<Hmac<Sha512>>(secret, values).is_some_and(|mac| mac.verify_slice(&bytes).is_ok())
            }
            Algorithm::Ed25519 => false,
        };
        match (self.algorithm, key) {
            (Algorithm::Ed25519, key) => {
                let signature: Option<[u8; SIGNATURE_LENGTH]> = bytes.try_into().ok();
                let public = key.public();
                public.zip(signature).is_some_and(|(public, bytes)| public.verifies(&self.message(values), &bytes))
            }
            (_, Key::Secret(secret)) => is_mac(secret),
            (_, Key::Public(_)) => false,
        }
    }

    fn mac<M: Mac + KeyInit>(&self, secret: &Secret, values: &Values<'_>) -> Option<M> {
        let mut mac = M::new_from_slice(secret.mac_key(self.key)?).ok()?;
        self.signed.feed(|place| values.get(place), |part| mac.update(part));
        Some(mac)
    }

    /// The signed text. Ed25519 reads its message twice, so the message must be contiguous.
    fn message(&self, values: &Values<'_>) -> Vec<u8> {
        let mut message = Vec::with_capacity(values.body.len() + 128);
        self.signed.feed(|place| values.get(place), |part| message.extend_from_slice(part));
        message
    }
}

impl<'v> Values<'v> {
    const fn get(&self, place: Placeholder) -> &'v [u8] {
        match place {
            Placeholder::Id => self.id.as_bytes(),
            Placeholder::Timestamp => self.timestamp.as_bytes(),
            Placeholder::Url => self.url.as_bytes(),
            Placeholder::Body => self.body,
            Placeholder::Signature => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_it_is_written() {
        for (format, text) in [
            (TimestampFormat::Unix, "1700000000"),
            (TimestampFormat::UnixMs, "1700000000000"),
            (TimestampFormat::Rfc3339, "2023-11-14T22:13:20Z"),
        ] {
            assert_eq!(format.write(1_700_000_000), text);
            assert_eq!(format.read(text), Some(1_700_000_000));
            assert_eq!(format.read("yesterday"), None);
        }
    }
}
