//! The frame around every page: navigation, who is logged in, the message of the last action, live updates.

use std::str::FromStr;

use serde::Deserialize;
use weir_api_types as types;
use weir_core::access::Role;

use crate::{assets, flash::Flash, site::Site};

/// The parts of the dashboard, in the order of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Overview,
    Deliveries,
    DeadLetters,
    Events,
    EventTypes,
    LimitGroups,
    Replays,
    Alerts,
    Activity,
    Keys,
    Status,
    Shedding,
    /// Pages that no entry of the navigation leads to.
    None,
}

impl Section {
    const ALL: [Self; 12] = [
        Self::Overview,
        Self::Deliveries,
        Self::DeadLetters,
        Self::Events,
        Self::EventTypes,
        Self::LimitGroups,
        Self::Replays,
        Self::Alerts,
        Self::Activity,
        Self::Keys,
        Self::Status,
        Self::Shedding,
    ];

    /// Its path, its name, and the key that follows `g`.
    fn entry(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Overview | Self::None => ("/", "Overview", "o"),
            Self::Deliveries => ("/deliveries", "Deliveries", "d"),
            Self::DeadLetters => ("/dead-letters", "Dead letters", "x"),
            Self::Events => ("/events", "Events", "e"),
            Self::EventTypes => ("/event-types", "Event types", "t"),
            Self::LimitGroups => ("/limit-groups", "Limit groups", "g"),
            Self::Replays => ("/replays", "Replays", "r"),
            Self::Alerts => ("/alerts", "Alerts", "a"),
            Self::Activity => ("/activity", "Activity", "l"),
            Self::Keys => ("/keys", "Keys", "k"),
            Self::Status => ("/status", "Status", "s"),
            Self::Shedding => ("/shedding", "Load shedding", "h"),
        }
    }

    /// The role without which the API refuses what the section shows.
    fn role(self) -> Role {
        match self {
            Self::Keys | Self::Shedding => Role::Admin,
            _ => Role::Read,
        }
    }

    /// Whether it is of the installation as a whole, which the API does not show to keys that are bound to tenants.
    fn is_of_installation(self) -> bool {
        matches!(self, Self::Status | Self::Shedding)
    }

    fn is_for(self, me: &Me) -> bool {
        me.role.includes(self.role()) && (me.tenants.is_none() || !self.is_of_installation())
    }
}

/// The caller (`GET /v1/me`).
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "types::Me")]
pub(crate) struct Me {
    /// Null without configured keys.
    pub(crate) name: Option<String>,
    pub(crate) role: Role,
    pub(crate) tenants: Option<Vec<String>>,
    pub(crate) keys_required: bool,
    pub(crate) version: String,
}

impl Me {
    /// The lists of a key that is bound to tenants have a filter by tenant, for which the store examines many rows.
    pub(crate) fn is_bound(&self) -> bool {
        self.tenants.is_some()
    }
}

impl TryFrom<types::Me> for Me {
    type Error = <Role as FromStr>::Err;

    fn try_from(me: types::Me) -> Result<Self, Self::Error> {
        let types::Me { name, role, tenants, keys_required, version, .. } = me;
        Ok(Self { name, role: role.parse()?, tenants, keys_required, version })
    }
}

/// What a page shows besides the figures of destinations, so that its stream tells it of changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Also {
    #[default]
    Nothing,
    /// Events, also those without a delivery.
    Events,
    Activity,
    /// What happened in the last minutes or hours, which changes for a while after the last change.
    Pictures,
    /// Figures that change with time alone.
    Time,
}

impl Also {
    /// The query of the stream of such a page.
    pub(crate) fn query(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Events => "?also=events",
            Self::Activity => "?also=activity",
            Self::Pictures => "?also=pictures",
            Self::Time => "?also=time",
        }
    }
}

/// An entry of the navigation.
pub(crate) struct Entry {
    pub(crate) href: String,
    pub(crate) name: &'static str,
    pub(crate) key: &'static str,
    pub(crate) is_current: bool,
}

/// What the layout shows around a page. Every page has it as the field `frame`.
pub(crate) struct Frame {
    pub(crate) site: Site,
    pub(crate) section: Section,
    pub(crate) title: String,
    /// `None` without a login.
    pub(crate) me: Option<Me>,
    pub(crate) flash: Option<Flash>,
    /// The query of the live stream, such as `?destination=dst_…`; `None`: the page has no live updates.
    pub(crate) live: Option<String>,
}

impl Frame {
    pub(crate) fn new(site: Site, section: Section, title: impl Into<String>) -> Self {
        Self { site, section, title: title.into(), me: None, flash: None, live: None }
    }

    /// Updates the live regions of the page. `query` selects the stream: empty, or `?destination=…` or `?tenant=…`.
    pub(crate) fn live(self, query: impl Into<String>) -> Self {
        Self { live: Some(query.into()), ..self }
    }

    /// As [`Self::live`], if this is the first page of a list. A later page stays as the reader has opened it.
    pub(crate) fn live_if_first(self, cursor: &str, also: Also) -> Self {
        if cursor.is_empty() { self.live(also.query()) } else { self }
    }

    /// The path prefix of every link: `{{ frame.base() }}/deliveries`.
    pub(crate) fn base(&self) -> &str {
        &self.site.base
    }

    pub(crate) fn asset(&self, name: &str) -> String {
        format!("{}{}", self.site.base, assets::path(name))
    }

    /// The entries that the caller may use.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let Some(me) = &self.me else { return Vec::new() };
        let visible = Section::ALL.into_iter().filter(|section| section.is_for(me));
        let entry = |section: Section| {
            let (path, name, key) = section.entry();
            Entry { href: format!("{}{path}", self.site.base), name, key, is_current: section == self.section }
        };
        visible.map(entry).collect()
    }

    /// Whether any page is for the caller: a key for ingest reads nothing.
    pub(crate) fn can_read(&self) -> bool {
        self.me.as_ref().is_some_and(|me| me.role.includes(Role::Read))
    }

    /// Whether actions on destinations and deliveries are shown. The API decides about each of them again.
    pub(crate) fn can_operate(&self) -> bool {
        self.me.as_ref().is_some_and(|me| me.role.includes(Role::Operate))
    }

    /// Whether secrets, keys and the alert policy are shown.
    pub(crate) fn can_admin(&self) -> bool {
        self.me.as_ref().is_some_and(|me| me.role.includes(Role::Admin))
    }
}
