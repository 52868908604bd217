//! Limit keys: budgets inside a destination, one for each value of a key, for example for each customer.
//!
//! A destination with [`KeyLimits`] is the group of its keys, as a limit group is that of its members: each key is a *flow*
//! with a job and a budget of its own, and all of them share the budget of the destination. The id of a flow has the form of
//! a destination's id, so that the queue needs to know nothing of keys.

use std::{collections::BTreeMap, fmt, sync::Arc};

use sha2::{Digest, Sha256};

use crate::{
    filter::{Data, MAX_NAMES},
    id::{DestinationId, LimitGroupId},
    limit::RateLimits,
    limit_group::DEFAULT_WEIGHT,
};

/// The most bytes of a key. A longer one is stored as its SHA-256 in hexadecimal.
pub const MAX_KEY_BYTES: usize = 128;
/// The most overrides of one destination: all of them are read with it.
pub const MAX_OVERRIDES: usize = 1_000;
/// The most bytes of a pointer to the key.
pub const MAX_POINTER_BYTES: usize = 256;
/// The most names in it: reading the data of an event costs one pass over its text for each.
pub const MAX_POINTER_NAMES: usize = MAX_NAMES;

/// The value by which the events of a destination are told apart. An event without one has the empty key, which has a
/// budget like any other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LimitKey(Arc<str>);

impl LimitKey {
    /// The key with this text, or with its SHA-256 if it is longer than [`MAX_KEY_BYTES`], or has a NUL, which PostgreSQL
    /// does not store.
    pub fn new(text: &str) -> Self {
        if text.len() <= MAX_KEY_BYTES && !text.contains('\0') {
            return Self(text.into());
        }
        let hash = Sha256::digest(text);
        Self(hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into())
    }

    /// The key of an event: a text, number or boolean that the JSON pointer finds in its data. Anything else, or nothing, is
    /// the empty key.
    pub fn found(pointer: &str, data: &Data<'_>) -> Self {
        data.scalar_at(pointer).map(|text| Self::new(&text)).unwrap_or_default()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id of the flow that has the deliveries of a destination with this key.
    pub fn flow_id(&self, destination: DestinationId) -> DestinationId {
        DestinationId::from_bytes(derived(destination, b"key", self.0.as_bytes()))
    }
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of the budget that the keys of a destination share: that of the destination.
pub fn budget_of_keys(destination: DestinationId) -> LimitGroupId {
    LimitGroupId::from_bytes(derived(destination, b"budget", &[]))
}

/// The same id, for calls of the queue that take destinations and know this budget like one: holds, and progress.
pub fn budget_as_destination(destination: DestinationId) -> DestinationId {
    DestinationId::from_bytes(*budget_of_keys(destination).as_bytes())
}

/// Whether the id is that of a flow with a limit key. The version of its UUID is 8, that of a destination 7.
pub fn is_of_key(id: DestinationId) -> bool {
    id.as_bytes()[6] >> 4 == 8
}

/// A UUIDv8 that depends on a destination and a text (RFC 9562, section 5.8). Its last byte is that of the destination, by
/// which Redis chooses the shard: so all budgets of a destination are in one.
fn derived(destination: DestinationId, kind: &[u8], text: &[u8]) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(kind);
    hash.update(destination.as_bytes());
    hash.update(text);
    let mut id = [0; 16];
    id.copy_from_slice(&hash.finalize()[..16]);
    id[6] = id[6] & 0x0f | 0x80;
    id[8] = id[8] & 0x3f | 0x80;
    id[15] = destination.as_bytes()[15];
    id
}

/// The limits of each key of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyLimits {
    /// Where the key is in the `data` of an event, as a JSON pointer (RFC 6901). An event may name its key itself.
    pub pointer: String,
    /// Without limits the keys only take turns.
    pub rate_limits: RateLimits,
    /// The most sends of one key in flight; `None`: as many as the destination may have.
    pub max_in_flight: Option<u32>,
    /// The share of each key in what the destination may send, in relation to the other keys with a backlog.
    pub weight: u16,
    /// What is different for single keys, [`MAX_OVERRIDES`] at most.
    pub overrides: BTreeMap<LimitKey, KeyOverride>,
}

/// What is different for one key. `None`: as for the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyOverride {
    pub rate_limits: Option<RateLimits>,
    pub max_in_flight: Option<u32>,
    pub weight: Option<u16>,
    /// The key has been paused by a person.
    pub paused: bool,
}

impl KeyOverride {
    /// Whether nothing is different.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What holds for one flow of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowLimits {
    pub rate_limits: RateLimits,
    pub max_in_flight: Option<u32>,
    pub weight: u16,
    pub paused: bool,
}

impl FlowLimits {
    /// Only the budget of the destination bounds the flow.
    pub const NONE: Self =
        Self { rate_limits: RateLimits::UNLIMITED, max_in_flight: None, weight: DEFAULT_WEIGHT, paused: false };
}

impl KeyLimits {
    /// Whether deliveries may wait for what bounds a single key, while the budget of the destination allows a send.
    pub fn may_bind(&self) -> bool {
        let binds = |of: &KeyOverride| of.paused || of.max_in_flight.is_some() || of.rate_limits.is_some();
        self.max_in_flight.is_some() || !self.rate_limits.is_unlimited() || self.overrides.values().any(binds)
    }

    /// What holds for this key.
    pub fn of(&self, key: &LimitKey) -> FlowLimits {
        let special = self.overrides.get(key).cloned().unwrap_or_default();
        FlowLimits {
            rate_limits: special.rate_limits.unwrap_or_else(|| self.rate_limits.clone()),
            max_in_flight: special.max_in_flight.or(self.max_in_flight),
            weight: special.weight.unwrap_or(self.weight),
            paused: special.paused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Period, RateLimit};

    const DESTINATION: DestinationId = DestinationId::from_bytes([7; 16]);

    fn per_second(limit: u32) -> RateLimits {
        RateLimits::new(RateLimit::new(limit, Period::SECOND).into_iter().collect()).unwrap()
    }

    #[test]
    fn a_key_is_a_text_a_number_or_a_boolean_of_the_data() {
        let customer = r#"{"id": "cus_\u0031", "number": 7, "vip": true, "tags": ["a"], "a/b": -1.50}"#;
        let data = format!(r#"{{"customer": {customer}, "none": null}}"#);
        let data = Data::new(&data);
        let found = |pointer: &str| LimitKey::found(pointer, &data).to_string();
        assert_eq!(found("/customer/id"), "cus_1");
        assert_eq!((found("/customer/number"), found("/customer/vip")), ("7".to_owned(), "true".to_owned()));
        assert_eq!((found("/customer/tags/0"), found("/customer/a~1b")), ("a".to_owned(), "-1.5".to_owned()));
        let deep = "/a".repeat(MAX_POINTER_NAMES + 1);
        for pointer in ["", "customer", "/customer", "/customer/tags", "/customer/tags/00", "/none", "/nothing", &deep]
        {
            assert_eq!(found(pointer), "", "{pointer}");
        }
    }

    #[test]
    fn a_long_key_is_its_hash() {
        let long = |end: char| "x".repeat(MAX_KEY_BYTES) + &end.to_string();
        assert_eq!(LimitKey::new(&"x".repeat(MAX_KEY_BYTES)).as_str().len(), MAX_KEY_BYTES);
        assert_eq!(LimitKey::new(&long('a')).as_str().len(), 64);
        assert_ne!(LimitKey::new(&long('a')), LimitKey::new(&long('b')));
        assert_eq!(LimitKey::new("a\0").as_str().len(), 64);
    }

    #[test]
    fn a_flow_has_an_id_of_its_own_that_ends_as_that_of_its_destination() {
        let [one, other] = ["cus_1", "cus_2"].map(|key| LimitKey::new(key).flow_id(DESTINATION));
        let budget = budget_as_destination(DESTINATION);
        assert_ne!(one, other);
        assert_ne!(one, budget);
        assert_ne!(one, LimitKey::new("cus_1").flow_id(DestinationId::from_bytes([8; 16])));
        assert_eq!(one, LimitKey::new("cus_1").flow_id(DESTINATION));
        for id in [one, other, budget, LimitKey::default().flow_id(DESTINATION)] {
            assert!(is_of_key(id) && id.as_bytes()[15] == 7);
        }
        assert!(!is_of_key(DestinationId::new(crate::Timestamp::from_secs(1), 1)));
    }

    #[test]
    fn an_override_changes_what_it_names() {
        let special = KeyOverride { rate_limits: Some(per_second(5)), weight: Some(9), ..KeyOverride::default() };
        let limits = KeyLimits {
            pointer: "/customer".to_owned(),
            rate_limits: per_second(1),
            max_in_flight: Some(2),
            weight: 1,
            overrides: [(LimitKey::new("cus_1"), special)].into(),
        };
        let plain = FlowLimits { rate_limits: per_second(1), max_in_flight: Some(2), weight: 1, paused: false };
        assert_eq!(limits.of(&LimitKey::new("cus_2")), plain);
        assert_eq!(limits.of(&LimitKey::new("cus_1")), FlowLimits { rate_limits: per_second(5), weight: 9, ..plain });
    }
}
