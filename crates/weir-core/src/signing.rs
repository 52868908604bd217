//! Signatures: as Standard Webhooks 1.0 defines them, or in a style that older receivers know ([`SignatureStyle`]).
//!
//! A destination has one secret, and for a while after a rotation the one before as well ([`Signing`]). Both then sign.

mod secret;
mod style;
mod verify;

use serde::{Deserialize, Serialize};

pub use secret::{InvalidSecret, KeyKind, PublicKey, SECRET_LEN, Secret};
pub use style::{DEFAULT_HEADER, SignatureStyle};
pub use verify::{InvalidKey, Key, Received, Rejection, verify};

use crate::time::Timestamp;

/// What signs the deliveries of one destination, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Signing {
    pub secret: Secret,
    /// The secret before the last rotation, and until when it signs too. Only one is kept.
    pub previous: Option<PreviousSecret>,
    pub style: SignatureStyle,
}

/// A secret that was rotated out.
#[derive(Debug, Clone, PartialEq)]
pub struct PreviousSecret {
    pub secret: Secret,
    /// The first instant at which it signs no more.
    pub valid_until: Timestamp,
}

impl Signing {
    /// Signs in the standard style with this secret alone.
    pub fn new(secret: Secret) -> Self {
        Self { secret, previous: None, style: SignatureStyle::Standard }
    }

    /// With another secret; the one there was signs beside it until `previous_until`. Should there be one before already,
    /// it is forgotten: nobody is helped by a secret that was replaced twice.
    #[must_use]
    pub fn rotated(&self, secret: Secret, previous_until: Option<Timestamp>) -> Self {
        let before = |valid_until| PreviousSecret { secret: self.secret.clone(), valid_until };
        Self { secret, previous: previous_until.map(before), style: self.style.clone() }
    }

    /// The secret before the last rotation, while it still signs.
    pub fn previous_at(&self, now: Timestamp) -> Option<&PreviousSecret> {
        self.previous.as_ref().filter(|previous| now < previous.valid_until)
    }

    /// The value of the signature's header for one attempt.
    pub fn sign(&self, id: &str, unix_seconds: i64, body: &[u8], now: Timestamp) -> String {
        match (&self.style, self.previous_at(now)) {
            // The hot path: one secret, one MAC.
            (SignatureStyle::Standard, None) => self.secret.sign(id, unix_seconds, body),
            (SignatureStyle::Standard, Some(previous)) => {
                format!("{} {}", self.secret.sign(id, unix_seconds, body), previous.secret.sign(id, unix_seconds, body))
            }
            (style, previous) => {
                let secrets = [Some(&self.secret), previous.map(|previous| &previous.secret)];
                style.value(secrets.into_iter().flatten(), unix_seconds, body)
            }
        }
    }

    /// As the stores keep it. The text holds the secrets: it goes nowhere else.
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

    /// What [`Self::to_stored`] wrote; `None` for anything else. The text is not told: it holds secrets.
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

/// The shape in the stores.
#[derive(Serialize, Deserialize)]
struct Stored {
    secret: String,
    /// The secret and its end in nanoseconds.
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

    /// As the independent implementation computes it.
    fn theirs(byte: u8) -> String {
        let webhook = standardwebhooks::Webhook::from_bytes(vec![byte; 32]).unwrap();
        webhook.sign("evt_1", NOW.as_secs(), b"{}").unwrap()
    }

    #[test]
    fn during_the_overlap_both_secrets_sign_the_new_one_first() {
        let until = NOW + std::time::Duration::from_secs(60);
        let rotated = Signing::new(secret(1)).rotated(secret(2), Some(until));
        let just_before = Timestamp::from_nanos(until.as_nanos() - 1);
        let sign = |at| rotated.sign("evt_1", NOW.as_secs(), b"{}", at);
        assert_eq!(sign(just_before), format!("{} {}", theirs(2), theirs(1)));
        assert_eq!(sign(until), theirs(2));
    }

    #[test]
    fn a_rotation_without_an_overlap_forgets_at_once_and_a_second_one_keeps_only_the_secret_before() {
        let at_once = Signing::new(secret(1)).rotated(secret(2), None);
        assert_eq!((at_once.secret, at_once.previous), (secret(2), None));
        let twice = Signing::new(secret(1)).rotated(secret(2), Some(NOW)).rotated(secret(3), Some(Timestamp::MAX));
        assert_eq!(twice.previous.unwrap().secret, secret(2));
    }

    #[test]
    fn what_is_stored_is_read_back_and_nothing_is_printed() {
        let mut signing = Signing::new(secret(1)).rotated(secret(2), Some(NOW));
        signing.style = SignatureStyle::Prefixed { header: "x-signature".to_owned(), timestamp_header: None };
        let stored = signing.to_stored().unwrap();
        assert_eq!(Signing::from_stored(&stored), Some(signing.clone()));
        for broken in ["", "{}", &stored.replace("whsec_", "whsec-"), &stored.replace("prefixed", "suffixed")] {
            assert_eq!(Signing::from_stored(broken), None, "{broken}");
        }
        assert!(!format!("{signing:?}").contains("whs"), "{signing:?}");
    }
}
