//! What people have set: modes, limits, weights. `None` means automatic, and a value that somebody set always wins.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::request::{Class, ClientId, Mode};

/// The allowed range of limits.
pub const IN_FLIGHT: RangeInclusive<u32> = 0..=1_000_000;
/// The allowed range of `target_ms`.
pub const TARGET_MS: RangeInclusive<u32> = 20..=10_000;
/// The allowed range of weights.
pub const WEIGHT: RangeInclusive<u32> = 1..=1_000;

/// Whether and when requests are refused. The same for all processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShedPolicy {
    /// `None`: what the settings of the process say.
    pub mode: Option<Mode>,
    /// How long an event may wait for the store before fewer are let in, in [`TARGET_MS`].
    pub target_ms: u32,
    pub classes: ClassLimits,
    pub clients: ClientLimits,
}

impl Default for ShedPolicy {
    fn default() -> Self {
        Self { mode: None, target_ms: 250, classes: ClassLimits::default(), clients: ClientLimits::default() }
    }
}

/// The limits of the classes, for each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassLimits {
    pub control: ClassLimit,
    pub ingest: ClassLimit,
    pub read: ClassLimit,
    pub heavy: ClassLimit,
}

impl ClassLimits {
    pub(super) fn of(&self, class: Class) -> u32 {
        let limit = match class {
            Class::Control => self.control,
            Class::Ingest => self.ingest,
            Class::Read => self.read,
            Class::Heavy => self.heavy,
        };
        limit.in_flight.unwrap_or(class.default_in_flight())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassLimit {
    /// In [`IN_FLIGHT`]; `None`: the default of the class.
    pub in_flight: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientLimits {
    /// Of every client without an override.
    pub default: ClientLimit,
    pub overrides: Vec<ClientOverride>,
}

/// The limit of a client, of all processes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientLimit {
    /// In [`IN_FLIGHT`]; `None`: a fair share of what is free.
    pub in_flight: Option<u32>,
    /// In [`WEIGHT`].
    pub weight: u32,
}

impl Default for ClientLimit {
    fn default() -> Self {
        Self { in_flight: None, weight: 1 }
    }
}

/// The limit of one tenant or one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientOverride {
    /// The keys of this tenant alone, together. Without it `key` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The id of a stored key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default)]
    pub in_flight: Option<u32>,
    pub weight: u32,
}

impl ClientOverride {
    pub fn client_id(&self) -> ClientId {
        match (&self.tenant, &self.key) {
            (Some(tenant), _) => ClientId::of("tenant", tenant),
            (None, key) => ClientId::of("key", key.as_deref().unwrap_or_default()),
        }
    }

    pub(super) fn limit(&self) -> ClientLimit {
        ClientLimit { in_flight: self.in_flight, weight: self.weight }
    }
}

impl ShedPolicy {
    /// The limits that are not accepted, because they would refuse everything, or the operator who could change them: for
    /// each its JSON pointer, and why. Heavy requests and single clients may be refused altogether.
    pub fn faults(&self) -> Vec<(String, &'static str)> {
        let ClassLimits { control, ingest, read, heavy: _ } = self.classes;
        let classes = [("control", control), ("ingest", ingest), ("read", read)];
        let of_classes = classes.iter().filter(|(_, limit)| limit.in_flight == Some(0)).map(|(name, _)| {
            (format!("/classes/{name}/in_flight"), "must not be 0, which would refuse every request of this class")
        });
        let of_default = (self.clients.default.in_flight == Some(0)).then(|| {
            ("/clients/default/in_flight".to_owned(), "must not be 0, which would refuse the requests of every client")
        });
        let overrides = self.clients.overrides.iter().enumerate();
        let of_overrides = overrides.filter_map(|(index, of)| {
            let place = format!("/clients/overrides/{index}");
            match (of.tenant.is_some() == of.key.is_some(), self.clients.overrides[..index].iter()) {
                (true, _) => Some((place, "must have either `tenant` or `key`")),
                (false, mut before) => before
                    .any(|other| other.client_id() == of.client_id())
                    .then_some((place, "names a client that an earlier override names")),
            }
        });
        of_classes.chain(of_default).chain(of_overrides).collect()
    }
}
