//! A destination: an HTTP endpoint with its limits, secret and retry policy.

use std::{borrow::Cow, sync::Arc};

use url::Url;

use crate::{
    adaptive,
    alert::AlertOverrides,
    body::BodySettings,
    breaker::{Breaker, BreakerPolicy},
    egress::Egress,
    filter::Filter,
    id::{DestinationId, LimitGroupId},
    limit::RateLimits,
    limit_group::{DEFAULT_WEIGHT, Home, KeysOf, LimitGroup},
    limit_key::{FlowLimits, KeyLimits, LimitKey, budget_of_keys},
    order::DeliveryOrder,
    pattern::EventPattern,
    retry::RetryPolicy,
    signing::Signing,
    temporary::Temporary,
    time::Timestamp,
};

/// The tenant of a destination or an event that names none.
pub const DEFAULT_TENANT: &str = "default";

/// The tenant of a destination of operators, which gets the alerts of all tenants and nothing else.
pub const ALL_TENANTS: &str = "*";

/// Headers that Weir sets itself, or that change how the server or a proxy handles the request.
const RESERVED_HEADERS: [&str; 16] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
];
const RESERVED_PREFIXES: [&str; 2] = ["webhook-", "weir-"];

/// The only reserved header that the headers of a destination may set: it replaces that of Weir.
pub const USER_AGENT: &str = "user-agent";

/// Whether neither a signature nor a destination may set this header, except [`USER_AGENT`]; the name is in lower case.
/// The API refuses it, and the worker leaves it out.
pub fn is_reserved_header(name: &str) -> bool {
    RESERVED_HEADERS.contains(&name) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// An HTTP endpoint, as the engine uses it. Shared as `Arc<Destination>`; an edit makes a new value.
#[derive(Debug, Clone, PartialEq)]
pub struct Destination {
    pub id: DestinationId,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub settings: Settings,
    /// What holds for a while in place of the settings.
    pub temporary: Temporary,
    /// Why Weir paused the destination, for example after a 410 Gone. `None` when a person paused it.
    pub paused_reason: Option<String>,
    /// No send starts before this instant (`Retry-After`, or a used-up quota).
    pub held_until: Option<Timestamp>,
    pub held_reason: Option<String>,
    /// The last release of a hold. Holds that were asked for by earlier sends do not count.
    pub released_at: Option<Timestamp>,
    pub breaker: Breaker,
    /// The homes that it has left, where its jobs may still know older terms. They are closed before anything is sent.
    pub left_homes: Vec<Home>,
    /// When it first had limit keys. From then on it is the group of its flows, even without limit keys: deliveries with a
    /// key may still wait.
    pub keyed_at: Option<Timestamp>,
    /// Set while this process cannot open the secrets: they are not in the settings then.
    pub unreadable: Option<Unreadable>,
}

/// The sealed columns of a destination whose key this process lacks, as they are stored. The destination counts as paused
/// meanwhile, with the reason, so that nothing is sent; what is stored of its pause is kept here.
#[derive(Clone, PartialEq)]
pub struct Unreadable {
    pub sealed: Vec<Option<String>>,
    /// What is stored of its way out beside the sealed secrets of it.
    pub egress: Option<String>,
    pub paused: bool,
    pub paused_reason: Option<String>,
}

// Written by hand: some of the columns may be clear.
impl std::fmt::Debug for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unreadable").field("paused", &self.paused).finish_non_exhaustive()
    }
}

/// The settings of a destination that its owner chooses.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub url: Url,
    pub name: String,
    pub tenant: String,
    pub event_types: Vec<EventPattern>,
    /// Which of these events it takes by their `data`; `None`: all. Events that name their destinations are not
    /// filtered, as they are not by type.
    pub filter: Option<Arc<Filter>>,
    pub rate_limits: RateLimits,
    /// Whether the pace finds itself below the limits, and within which bounds. `None`: only the limits bound it.
    pub adaptive: Option<adaptive::Settings>,
    /// The most sends that are started and not yet settled at one time, 1 to [`MAX_IN_FLIGHT`].
    pub max_in_flight: u32,
    /// The timeout of one attempt, from the start of the send to the end of the answer's body; in [`TIMEOUT_MS`].
    pub timeout_ms: u32,
    pub retry: RetryPolicy,
    /// When sends stop because the destination fails; `None`: never.
    pub breaker: Option<BreakerPolicy>,
    /// The alert thresholds that differ from the general policy.
    pub alerts: AlertOverrides,
    pub order: DeliveryOrder,
    /// Headers that are added to every request. Names are in lower case; values are write-only in the API.
    pub headers: Vec<(String, String)>,
    /// What the body of a request is.
    pub body: BodySettings,
    /// How the destination is reached.
    pub egress: Egress,
    /// The secrets and the style of the signatures.
    pub signing: Signing,
    /// The budget that it shares with other destinations.
    pub limit_group: Option<LimitGroupId>,
    /// Its share of the group's slots while other members have a backlog too, in relation to their weights; in
    /// [`WEIGHTS`](crate::limit_group::WEIGHTS).
    pub weight: u16,
    /// The limits of each limit key. `None`: its events have no keys.
    pub key_limits: Option<Arc<KeyLimits>>,
    pub paused: bool,
}

/// The `max_in_flight` of a destination that sets none. A receiver that answers within 100 ms gets 640 requests a
/// second with it, and one that hangs holds less than a hundredth of a worker's places.
pub const DEFAULT_MAX_IN_FLIGHT: u32 = 64;
/// The largest `max_in_flight`: a little more than a worker has places by default.
pub const MAX_IN_FLIGHT: u32 = 10_000;
/// The `timeout_ms` of a destination that sets none. The Standard Webhooks specification recommends 15 to 30 s; the
/// shortest of them, because a receiver that hangs holds a place for as long.
pub const DEFAULT_TIMEOUT_MS: u32 = 15_000;
/// The allowed range of `timeout_ms`.
pub const TIMEOUT_MS: std::ops::RangeInclusive<u32> = 100..=120_000;

impl Settings {
    /// The settings of a destination that sets only this: all event types, and no limit.
    pub fn new(url: Url, signing: Signing) -> Self {
        Self {
            url,
            name: String::new(),
            tenant: DEFAULT_TENANT.to_owned(),
            event_types: vec![EventPattern::Any],
            filter: None,
            rate_limits: RateLimits::default(),
            adaptive: None,
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            timeout_ms: DEFAULT_TIMEOUT_MS,
            retry: RetryPolicy::default(),
            breaker: Some(BreakerPolicy::default()),
            alerts: AlertOverrides::default(),
            order: DeliveryOrder::Any,
            headers: Vec::new(),
            body: BodySettings::default(),
            egress: Egress::default(),
            signing,
            limit_group: None,
            weight: DEFAULT_WEIGHT,
            key_limits: None,
            paused: false,
        }
    }

    /// Whether the destination takes Weir's own events (alerts).
    pub fn takes_alerts(&self) -> bool {
        self.event_types.iter().any(EventPattern::is_operational)
    }

    /// Whether it gets the alerts of all tenants.
    pub fn is_of_all_tenants(&self) -> bool {
        self.tenant == ALL_TENANTS
    }
}

impl Destination {
    /// A new one, to which nothing has happened.
    pub fn new(id: DestinationId, settings: Settings, created_at: Timestamp) -> Self {
        Self {
            id,
            created_at,
            updated_at: created_at,
            settings,
            temporary: Temporary::default(),
            paused_reason: None,
            held_until: None,
            held_reason: None,
            released_at: None,
            breaker: Breaker::default(),
            left_homes: Vec::new(),
            keyed_at: None,
            unreadable: None,
        }
    }

    /// The budget that its job shares: that of its limit group or, where it has limit keys, that of the destination, which
    /// its flows share and which is a member of the limit group itself.
    pub fn shared_budget(&self) -> Option<LimitGroupId> {
        if self.keyed_at.is_some() { Some(budget_of_keys(self.id)) } else { self.settings.limit_group }
    }

    /// The limit group in which the budget of its limit keys is a member.
    pub fn outer_group(&self) -> Option<LimitGroupId> {
        self.settings.limit_group.filter(|_| self.keyed_at.is_some())
    }

    /// As the group of its limit keys. Keys have no breakers of their own, so while the destination's breaker is not closed,
    /// one send of all of them is in flight.
    pub fn as_group(&self) -> LimitGroup {
        let settings = &self.settings;
        let most = if self.breaker.reason().is_some() { 1 } else { settings.max_in_flight };
        LimitGroup {
            id: budget_of_keys(self.id),
            tenant: Some(settings.tenant.clone()),
            name: settings.name.clone(),
            rate_limits: settings.rate_limits.clone(),
            max_in_flight: Some(most),
            temporary: self.temporary.clone(),
            created_at: self.created_at,
            updated_at: self.updated_at,
            keys_of: Some(KeysOf {
                destination_id: self.id,
                suspended: settings.paused,
                held_until: self.held().0,
                released_at: self.released_at,
                member_of: settings.limit_group,
                weight: settings.weight,
            }),
        }
    }

    /// A deleted destination as the group of its limit keys: nothing is sent. `member_of`: its limit group.
    pub fn deleted_as_group(id: DestinationId, deleted_at: Timestamp, member_of: Option<LimitGroupId>) -> LimitGroup {
        LimitGroup {
            id: budget_of_keys(id),
            tenant: None,
            name: String::new(),
            rate_limits: RateLimits::UNLIMITED,
            max_in_flight: Some(0),
            temporary: Temporary::default(),
            created_at: deleted_at,
            updated_at: deleted_at,
            keys_of: Some(KeysOf {
                destination_id: id,
                suspended: true,
                held_until: None,
                released_at: None,
                member_of,
                weight: DEFAULT_WEIGHT,
            }),
        }
    }

    /// The flow of the deliveries with this key, or of those without one, as a destination whose limits are those of the
    /// flow and whose group is the destination. Only for a destination that has or had limit keys.
    pub fn flow(&self, key: Option<&LimitKey>) -> Self {
        let mut flow = self.clone();
        let limits = key.and_then(|key| Some(self.settings.key_limits.as_ref()?.of(key))).unwrap_or(FlowLimits::NONE);
        let settings = &mut flow.settings;
        settings.limit_group = self.shared_budget();
        settings.rate_limits = limits.rate_limits;
        settings.max_in_flight = limits.max_in_flight.unwrap_or(settings.max_in_flight);
        settings.weight = limits.weight;
        settings.paused |= limits.paused;
        // The pace would be one of the destination, which has no job of its own any more.
        settings.adaptive = None;
        // An override is one of the budget that the flows share. Its end changes the version of both.
        if let Some(overridden) = &mut flow.temporary.overridden {
            overridden.limits = None;
            overridden.max_in_flight = overridden.max_in_flight.filter(|_| limits.max_in_flight.is_none());
        }
        flow
    }

    /// The destination with the limits and the hold that are in force at `now`, for whoever acts at `now`.
    pub fn at(&self, now: Timestamp) -> Cow<'_, Self> {
        if self.temporary.is_none() {
            return Cow::Borrowed(self);
        }
        let mut effective = self.clone();
        effective.settings.rate_limits = self.temporary.limits(&self.settings.rate_limits, now);
        effective.settings.max_in_flight = self.temporary.max_in_flight(self.settings.max_in_flight, now);
        (effective.held_until, effective.held_reason) = self.held();
        Cow::Owned(effective)
    }

    /// The same, shared.
    pub fn shared_at(self: &Arc<Self>, now: Timestamp) -> Arc<Self> {
        match self.at(now) {
            Cow::Borrowed(_) => Arc::clone(self),
            Cow::Owned(effective) => Arc::new(effective),
        }
    }

    /// The later end of the hold that the receiver asked for and of the one that people set, which may be over; and why.
    pub fn held(&self) -> (Option<Timestamp>, Option<String>) {
        match &self.temporary.hold {
            Some(hold) if self.held_until.is_none_or(|until| until < hold.until) => {
                (Some(hold.until), Some(hold.reason.clone()))
            }
            _ => (self.held_until, self.held_reason.clone()),
        }
    }

    /// The limits in force from `now` on: at once and, where an override ends, from its end.
    pub fn limits_from(&self, now: Timestamp) -> Vec<(Timestamp, RateLimits)> {
        self.temporary.limits_from(&self.settings.rate_limits, now)
    }

    /// The version of what is in force at `now`.
    pub fn version(&self, now: Timestamp) -> Timestamp {
        self.temporary.version(self.updated_at, now)
    }

    /// Whether it is paused and why, as it is stored.
    pub fn stored_pause(&self) -> (bool, Option<&String>) {
        match &self.unreadable {
            Some(stored) => (stored.paused, stored.paused_reason.as_ref()),
            None => (self.settings.paused, self.paused_reason.as_ref()),
        }
    }

    /// Whether Weir itself stops or limits sends: the breaker is not closed, or Weir paused the destination.
    pub fn is_impaired(&self) -> bool {
        self.breaker.reason().is_some() || self.paused_reason.is_some()
    }

    /// Whether the destination gets an event of this type and tenant that names no destinations.
    pub fn accepts(&self, tenant: &str, event_type: &str) -> bool {
        self.settings.tenant == tenant && self.settings.event_types.iter().any(|pattern| pattern.matches(event_type))
    }
}
