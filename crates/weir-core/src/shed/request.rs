//! A request as load shedding sees it, and what can be decided about it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// How important a request is: what is refused first, and what last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::EnumIter, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Class {
    /// What an operator needs to get out of an overload: refused last.
    Control,
    /// Events.
    Ingest,
    /// Lists and single reads.
    Read,
    /// What reads a lot: audits, replays, previews.
    Heavy,
}

impl Class {
    pub(super) const COUNT: usize = 4;

    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The requests of this class in flight in one process, unless somebody has set another limit.
    pub const fn default_in_flight(self) -> u32 {
        match self {
            Self::Control => 64,
            Self::Ingest => 16_384,
            Self::Read => 256,
            Self::Heavy => 8,
        }
    }

    /// The level of pressure from which on no request of this class is let in.
    pub(super) const fn shed_from(self) -> Option<u8> {
        match self {
            Self::Heavy => Some(1),
            Self::Read => Some(2),
            Self::Control | Self::Ingest => None,
        }
    }
}

/// Whether requests are refused.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, strum::EnumString, strum::IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Mode {
    #[default]
    On,
    /// Decided and counted, but nothing is refused, so nothing is relieved either.
    DryRun,
    Off,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::EnumIter, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// The memory for bodies is used up.
    Bytes,
    /// As many requests of its class are in flight as may be.
    Class,
    /// The store is slow.
    Pressure,
    /// Its client uses its limit or its share.
    Client,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Who is counted together: a key, or a tenant that has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ClientId(pub(super) u64);

impl ClientId {
    /// The same text gives the same id in every process. FNV-1a: ids are compared between processes and never shown.
    pub fn of(kind: &str, name: &str) -> Self {
        let bytes = kind.bytes().chain([0]).chain(name.bytes());
        Self(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    pub id: ClientId,
    /// For people.
    pub name: Arc<str>,
}

/// The sender of a request.
#[derive(Debug, Clone)]
pub struct Sender {
    pub key: Client,
    /// The only tenant of the key; `None` for a key of several tenants.
    pub tenant: Option<Client>,
}

/// The right to be in flight. Must be given back to [`Shedder::release`](super::Shedder::release).
#[derive(Debug)]
#[must_use]
pub struct Ticket {
    pub(super) class: Class,
    pub(super) client: ClientId,
}

/// What a client with a limit of its own may still have in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub limit: u32,
    pub left: u32,
}

#[derive(Debug)]
pub enum Decision {
    Admitted {
        ticket: Ticket,
        /// If less than a quarter of the client's own limit is left.
        left: Option<Left>,
        /// Why it would have been refused if this were no dry run.
        would_refuse: Option<Reason>,
    },
    Refused(Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    /// Whether the limit was set for this client. Otherwise the process has no room.
    pub is_own_limit: bool,
    /// The limit that was reached.
    pub limit: u32,
    pub retry_after_s: u32,
}
