//! A limit group: a budget that several destinations share, because the receiver counts them as one account.

use std::{borrow::Cow, fmt, str::FromStr};

use crate::{
    id::{DestinationId, InvalidId, LimitGroupId},
    limit::RateLimits,
    temporary::Temporary,
    time::Timestamp,
};

/// The most destinations of one group: a recovery reads the last sends of all of them.
pub const MAX_MEMBERS: usize = 1_000;
/// The weight of a destination that sets none.
pub const DEFAULT_WEIGHT: u16 = 1;
/// The accepted weights of a member.
pub const WEIGHTS: std::ops::RangeInclusive<u16> = 1..=1_000;

/// A named budget of several destinations. Each of them has its own limits, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitGroup {
    pub id: LimitGroupId,
    /// `None`: for destinations of any tenant.
    pub tenant: Option<String>,
    pub name: String,
    pub rate_limits: RateLimits,
    /// The most sends of all members that are started and not yet settled.
    pub max_in_flight: Option<u32>,
    /// What holds for a while in place of the settings.
    pub temporary: Temporary,
    pub created_at: Timestamp,
    /// The version: rises with each edit.
    pub updated_at: Timestamp,
    /// Set if it is no group of its own but a destination, as the group of its limit keys.
    pub keys_of: Option<KeysOf>,
}

/// A destination that is the group of its limit keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeysOf {
    pub destination_id: DestinationId,
    /// Paused or deleted: nothing is sent.
    pub suspended: bool,
    /// The hold of the destination, and the last release of one.
    pub held_until: Option<Timestamp>,
    pub released_at: Option<Timestamp>,
    /// The limit group of the destination, and its share there.
    pub member_of: Option<LimitGroupId>,
    pub weight: u16,
}

impl LimitGroup {
    /// The group with the limits that are in force at `now`, for whoever acts at `now`.
    pub fn at(&self, now: Timestamp) -> Cow<'_, Self> {
        let Some(overridden) = self.temporary.override_at(now) else { return Cow::Borrowed(self) };
        Cow::Owned(Self {
            rate_limits: self.temporary.limits(&self.rate_limits, now),
            max_in_flight: overridden.max_in_flight.or(self.max_in_flight),
            ..self.clone()
        })
    }

    /// The limits in force from `now` on: at once and, where an override ends, from its end.
    pub fn limits_from(&self, now: Timestamp) -> Vec<(Timestamp, RateLimits)> {
        self.temporary.limits_from(&self.rate_limits, now)
    }

    /// The version of what is in force at `now`.
    pub fn version(&self, now: Timestamp) -> Timestamp {
        self.temporary.version(self.updated_at, now)
    }

    /// The limit group of a destination that is the group of its limit keys.
    pub fn outer(&self) -> Option<LimitGroupId> {
        self.keys_of.and_then(|of| of.member_of)
    }
}

/// What holds the budgets of a destination in the queue: its group if it has one, otherwise the destination itself. A
/// destination that changes its group leaves its home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Home {
    Own,
    Group(LimitGroupId),
}

impl Home {
    /// The group, if the home is one.
    pub fn group(self) -> Option<LimitGroupId> {
        match self {
            Self::Own => None,
            Self::Group(id) => Some(id),
        }
    }
}

impl From<Option<LimitGroupId>> for Home {
    fn from(group: Option<LimitGroupId>) -> Self {
        group.map_or(Self::Own, Self::Group)
    }
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("own"),
            Self::Group(id) => fmt::Display::fmt(id, f),
        }
    }
}

impl FromStr for Home {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        if text == "own" { Ok(Self::Own) } else { text.parse().map(Self::Group) }
    }
}
