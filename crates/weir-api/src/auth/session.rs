//! Sessions: the token that a browser keeps in place of a key.
//!
//! ```text
//!   fingerprint of the key (16 bytes) · expiry in Unix seconds (8) · HMAC-SHA256 of both (32), as base64url
//! ```
//!
//! The HMAC is keyed by a secret that all processes share and that nothing else is made of, and it covers the digest of
//! the key too. So whoever has read the digests of the keys cannot make a session, a token needs no storage, every
//! process accepts it, and it ends with its key. The token contains no role and no tenants; they are those of the key at
//! the time of each request. A session cannot be extended, and a server never accepts a token that it has not signed.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use weir_core::{Timestamp, access::KeyDigest};
use weir_store::SessionSecret;

/// How long a session lasts: a working day, so that nobody has to log in twice a day, and a forgotten browser is
/// logged out by the next morning.
pub(crate) const SESSION_LENGTH: Duration = Duration::from_secs(12 * 3_600);

/// Each signed text begins with one of these purposes, so that a fingerprint is never valid as the signature of a
/// token.
const FINGERPRINT: &[u8] = b"weir session: fingerprint of the key\n";
const TOKEN: &[u8] = b"weir session: token\n";

/// Identifies a key. It reveals neither the digest nor, to somebody who guesses keys, that a guess is right.
pub(super) type Fingerprint = [u8; 16];

const EXPIRY_AT: usize = size_of::<Fingerprint>();
const SIGNATURE_AT: usize = EXPIRY_AT + size_of::<u64>();
const LENGTH: usize = SIGNATURE_AT + 32;

/// A session's token. Only [`Self::is_signed`] says whether this server made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token([u8; LENGTH]);

impl Token {
    /// A token for the key with this digest. Its expiry has whole seconds.
    pub(super) fn sign(secret: &SessionSecret, digest: &KeyDigest, expires_at: Timestamp) -> Self {
        let mut token = [0; LENGTH];
        token[..EXPIRY_AT].copy_from_slice(&fingerprint(secret, digest));
        token[EXPIRY_AT..SIGNATURE_AT].copy_from_slice(&expires_at.as_secs().to_be_bytes());
        let signature = mac(secret, TOKEN, digest).chain_update(&token[..SIGNATURE_AT]).finalize();
        token[SIGNATURE_AT..].copy_from_slice(&signature.into_bytes());
        Self(token)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut token = [0; LENGTH];
        let length = URL_SAFE_NO_PAD.decode_slice(text, &mut token).ok()?;
        (length == LENGTH).then_some(Self(token))
    }

    /// Which key to check the signature with. Not yet checked: anybody can write any fingerprint.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        let mut fingerprint = Fingerprint::default();
        fingerprint.copy_from_slice(&self.0[..EXPIRY_AT]);
        fingerprint
    }

    /// The first instant at which the token is no longer valid.
    pub(super) fn expires_at(&self) -> Timestamp {
        let mut seconds = [0; 8];
        seconds.copy_from_slice(&self.0[EXPIRY_AT..SIGNATURE_AT]);
        Timestamp::from_secs(i64::from_be_bytes(seconds))
    }

    /// Whether the token was made with this secret for the key of this digest. The comparison takes the same time for
    /// every signature.
    pub(super) fn is_signed(&self, secret: &SessionSecret, digest: &KeyDigest) -> bool {
        let (signed, signature) = self.0.split_at(SIGNATURE_AT);
        mac(secret, TOKEN, digest).chain_update(signed).verify_slice(signature).is_ok()
    }

    /// The text in the cookie.
    pub(super) fn to_text(self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }
}

/// The fingerprint of the key with this digest.
pub(super) fn fingerprint(secret: &SessionSecret, digest: &KeyDigest) -> Fingerprint {
    let full = mac(secret, FINGERPRINT, digest).finalize().into_bytes();
    let mut fingerprint = Fingerprint::default();
    fingerprint.copy_from_slice(&full[..size_of::<Fingerprint>()]);
    fingerprint
}

fn mac(secret: &SessionSecret, purpose: &[u8], digest: &KeyDigest) -> Hmac<Sha256> {
    // HMAC extends a short key with zeros to the length of a block.
    let mut key = [0; 64];
    key[..secret.len()].copy_from_slice(secret);
    Hmac::new(&key.into()).chain_update(purpose).chain_update(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: SessionSecret = [5; 32];
    const OWN: KeyDigest = [7; 32];
    const OTHER: KeyDigest = [8; 32];
    const EXPIRY: Timestamp = Timestamp::from_secs(1_800_000_000);

    #[test]
    fn a_token_is_read_back_and_is_signed_by_its_key_alone() {
        let token = Token::sign(&SECRET, &OWN, EXPIRY);
        let read = Token::parse(&token.to_text()).unwrap();
        assert_eq!((read, read.expires_at(), read.fingerprint()), (token, EXPIRY, fingerprint(&SECRET, &OWN)));
        assert!(read.is_signed(&SECRET, &OWN) && !read.is_signed(&SECRET, &OTHER));
    }

    #[test]
    fn who_knows_the_digest_of_a_key_makes_no_valid_token() {
        // With the digest as the secret, as it once was; and with secrets that are easily guessed.
        for guessed in [OWN, [0; 32], [255; 32]] {
            let forged = Token::sign(&guessed, &OWN, EXPIRY);
            assert!(!forged.is_signed(&SECRET, &OWN));
            assert_ne!(forged.fingerprint(), fingerprint(&SECRET, &OWN));
        }
    }

    #[test]
    fn a_token_with_any_changed_bit_is_not_valid() {
        let token = Token::sign(&SECRET, &OWN, EXPIRY);
        for bit in 0..LENGTH * 8 {
            let mut forged = token;
            forged.0[bit / 8] ^= 1 << (bit % 8);
            assert!(!forged.is_signed(&SECRET, &OWN), "bit {bit}");
        }
    }

    #[test]
    fn a_signature_is_valid_for_no_other_fingerprint_and_no_other_expiry() {
        let (own, other) = (Token::sign(&SECRET, &OWN, EXPIRY), Token::sign(&SECRET, &OTHER, EXPIRY));
        let mut swapped = own;
        swapped.0[..EXPIRY_AT].copy_from_slice(&other.0[..EXPIRY_AT]);
        assert!(!swapped.is_signed(&SECRET, &OWN) && !swapped.is_signed(&SECRET, &OTHER));
        let later = Token::sign(&SECRET, &OWN, EXPIRY + Duration::from_secs(1));
        let mut extended = own;
        extended.0[EXPIRY_AT..SIGNATURE_AT].copy_from_slice(&later.0[EXPIRY_AT..SIGNATURE_AT]);
        assert!(!extended.is_signed(&SECRET, &OWN));
    }

    #[test]
    fn text_of_another_length_or_alphabet_is_no_token() {
        let text = Token::sign(&SECRET, &OWN, EXPIRY).to_text();
        assert_eq!(text.len(), 75);
        let truncated = &text[..text.len() - 4];
        let foreign = text.replace(|_: char| true, "!");
        for bad in ["", "x", truncated, &format!("{text}AAAA"), &format!("{text}="), &foreign, &format!(" {text}")] {
            assert_eq!(Token::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_token_reveals_neither_the_key_nor_its_digest() {
        let token = Token::sign(&SECRET, &OWN, EXPIRY);
        assert!(!token.0.windows(4).any(|part| part == &OWN[..4]));
    }
}
