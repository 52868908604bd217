//! TypeIDs: a prefix that names the kind, and a UUIDv7 in base32, so ids sort by their creation time.
//!
//! Source: the TypeID specification 0.3 (26 characters of Crockford's base32, lower case, first character 0–7).

use std::{
    collections::{HashMap, HashSet},
    fmt,
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::time::Timestamp;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// A map by ids that the engine itself creates. It hashes faster than the standard map, whose hash protects against
/// keys that an attacker chooses.
pub type IdMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
/// A set of ids that the engine itself creates.
pub type IdSet<K> = HashSet<K, foldhash::fast::RandomState>;

/// The text is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be an id of the form {prefix}_ and 26 characters of base32")]
pub struct InvalidId {
    prefix: &'static str,
}

/// A UUIDv7 of `now` and 74 bits of `random` (the other bits are not used). Source: RFC 9562, section 5.7.
fn uuid_v7(now: Timestamp, random: u128) -> [u8; 16] {
    let millis = now.as_millis().unsigned_abs() as u128 & 0xffff_ffff_ffff;
    let random_a = (random >> 64) & 0xfff;
    let random_b = random & 0x3fff_ffff_ffff_ffff;
    (millis << 80 | 0x7 << 76 | random_a << 64 | 0b10 << 62 | random_b).to_be_bytes()
}

fn encode(bytes: [u8; 16]) -> [u8; 26] {
    let mut value = u128::from_be_bytes(bytes);
    let mut text = [0; 26];
    for character in text.iter_mut().rev() {
        *character = ALPHABET[(value & 31) as usize];
        value >>= 5;
    }
    text
}

fn decode(text: &str) -> Option<[u8; 16]> {
    let text = text.as_bytes();
    if text.len() != 26 || text[0] > b'7' {
        return None;
    }
    text.iter()
        .try_fold(0u128, |value, character| {
            let digit = ALPHABET.iter().position(|known| known == character)?;
            Some(value << 5 | digit as u128)
        })
        .map(u128::to_be_bytes)
}

macro_rules! typed_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The prefix of the text form, before the underscore.
            pub const PREFIX: &'static str = $prefix;

            /// A new id created at `now`. `random` must be new for each id.
            pub fn new(now: Timestamp, random: u128) -> Self {
                Self(uuid_v7(now, random))
            }

            /// The creation time of the id, in whole milliseconds.
            pub fn made_at(&self) -> Timestamp {
                let millis = u128::from_be_bytes(self.0) >> 80;
                Timestamp::from_millis(millis as i64)
            }

            /// The id stored as these bytes.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// The bytes to store. They sort like the text form.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!($prefix, "_"))?;
                f.write_str(std::str::from_utf8(&encode(self.0)).map_err(|_| fmt::Error)?)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                text.strip_prefix(concat!($prefix, "_"))
                    .and_then(decode)
                    .map(Self)
                    .ok_or(InvalidId { prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

typed_id!(
    /// An HTTP endpoint with its limits, secret and retry policy.
    DestinationId,
    "dst"
);
typed_id!(
    /// An immutable fact, ingested once. Sent as `webhook-id`, the same on each retry.
    EventId,
    "evt"
);
typed_id!(
    /// One event owed to one destination.
    DeliveryId,
    "dlv"
);
typed_id!(
    /// A replay: ended deliveries that are sent again.
    ReplayId,
    "rpl"
);
typed_id!(
    /// A budget that several destinations share.
    LimitGroupId,
    "lgr"
);
typed_id!(
    /// A slot of a limit group that a caller outside Weir has taken.
    ReservationId,
    "rsv"
);
typed_id!(
    /// A stored API key. The id is public; only the key itself is secret.
    ApiKeyId,
    "key"
);
typed_id!(
    /// One outbound HTTP request of a delivery.
    AttemptId,
    "att"
);
typed_id!(
    /// One row of the activity log.
    ActivityId,
    "act"
);

typed_id!(
    /// An installation: the processes of one database. It is made with the database, and marks what belongs to it in a
    /// Redis that others may reach too.
    InstallationId,
    "ins"
);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_the_specification_is_encoded_identically() {
        let bytes = 0x0188bac7_4afa_78aa_bc3b_bd1eef28d881_u128.to_be_bytes();
        assert_eq!(EventId::from_bytes(bytes).to_string(), "evt_01h2xcejqtf2nbrexx3vqjhp41");
    }

    #[test]
    fn ids_of_another_kind_and_malformed_ids_are_refused() {
        for text in [
            "",
            "dst_",
            "dst_01h2xcejqtf2nbrexx3vqjhp41",
            "evt_81h2xcejqtf2nbrexx3vqjhp41",
            "evt_01H2XCEJQTF2NBREXX3VQJHP41",
            "evt_01h2xcejqtf2nbrexx3vqjhp4",
            "evt_01h2xcejqtf2nbrexx3vqjhp4i",
        ] {
            assert!(text.parse::<EventId>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_id_is_parsed_back(bytes: [u8; 16]) {
            let id = DeliveryId::from_bytes(bytes);
            prop_assert_eq!(id.to_string().parse::<DeliveryId>().unwrap(), id);
        }

        #[test]
        fn ids_sort_by_their_creation_time(a in 0i64..1 << 43, b in 0i64..1 << 43, x: u128, y: u128) {
            prop_assume!(a < b);
            let (a, b) = (EventId::new(Timestamp::from_millis(a), x), EventId::new(Timestamp::from_millis(b), y));
            prop_assert!(a < b);
            prop_assert!(a.to_string() < b.to_string());
        }
    }
}
