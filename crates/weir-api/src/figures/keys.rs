//! What the limit keys of a destination may send: its rate, divided by weight among the keys that wait.

use std::{collections::HashSet, time::Duration};

use weir_core::{
    Condition, Destination, LimitKey, Timestamp,
    destination::Settings,
    limit_key::FlowLimits,
    shares::{Wish, divide},
};
use weir_store::{KeyBacklog, KeyBacklogs};

use super::{Measured, is_slow};

/// The longest times over which sends are counted, of limits below one a second and of others.
const COUNTED_IF_SLOW: Duration = Duration::from_secs(70);
const COUNTED: Duration = Duration::from_secs(20);

/// A key, and what may be sent of it.
#[derive(Debug, Clone)]
pub(crate) struct KeyFigures {
    pub(crate) key: LimitKey,
    pub(crate) waiting: u64,
    pub(crate) oldest_at: Option<Timestamp>,
    pub(crate) limits: FlowLimits,
    pub(crate) is_overridden: bool,
    /// Sends per second. `None`: nothing bounds it, or nothing waits.
    pub(crate) share: Option<f64>,
    pub(crate) binding: Option<KeyBound>,
}

/// What bounds a limit key that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyBound {
    /// A person has paused the key.
    Paused,
    /// Its own limits.
    Key,
    /// The limits that all keys share.
    Destination,
    /// The share of the destination in its limit group.
    Group,
    /// The whole destination is not sent to.
    Stands(Condition),
}

impl KeyBound {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Key => "key",
            Self::Destination => "destination",
            Self::Group => "group",
            Self::Stands(Condition::Paused) => "destination_paused",
            Self::Stands(Condition::Breaker) => "destination_breaker",
            Self::Stands(Condition::Held | Condition::Active) => "destination_held",
        }
    }
}

impl KeyFigures {
    /// The keys that wait, the longest backlog first, then those that only have an override.
    /// `of_group`: what the limit group of the destination leaves to it.
    pub(crate) fn all(
        destination: &Destination,
        of_group: Option<f64>,
        backlogs: Vec<KeyBacklog>,
        now: Timestamp,
    ) -> Vec<Self> {
        let settings = destination.settings.key_limits.as_deref();
        let waiting: HashSet<LimitKey> = backlogs.iter().map(|backlog| backlog.key.clone()).collect();
        let overridden = settings.into_iter().flat_map(|limits| limits.overrides.keys());
        let others = overridden.filter(|key| !waiting.contains(*key)).map(|key| (key.clone(), 0, None));
        let found = backlogs.into_iter().map(|KeyBacklog { key, waiting, oldest_at }| (key, waiting, Some(oldest_at)));
        let known = |(key, waiting, oldest_at): (LimitKey, u64, Option<Timestamp>)| Self {
            limits: settings.map_or(FlowLimits::NONE, |limits| limits.of(&key)),
            is_overridden: settings.is_some_and(|limits| limits.overrides.contains_key(&key)),
            key,
            waiting,
            oldest_at,
            share: None,
            binding: None,
        };
        let mut keys: Vec<Self> = found.chain(others).map(known).collect();
        share(destination, of_group, &mut keys, now);
        keys
    }

    /// A key of which nothing waits.
    pub(crate) fn idle(key: LimitKey, limits: FlowLimits) -> Self {
        Self { key, waiting: 0, oldest_at: None, limits, is_overridden: false, share: None, binding: None }
    }

    /// The time until nothing of it waits, without new events. `None`: nobody can say.
    pub(crate) fn drain_eta_s(&self) -> Option<f64> {
        self.share.filter(|share| *share > 0.0).map(|share| self.waiting as f64 / share)
    }

    /// What its own limits allow.
    fn most_per_s(&self) -> f64 {
        if self.limits.paused { 0.0 } else { self.limits.rate_limits.per_second().unwrap_or(f64::INFINITY) }
    }
}

/// Why nothing of a destination is sent at present.
fn stands(destination: &Destination, now: Timestamp) -> Option<KeyBound> {
    let conditions = [Condition::Paused, Condition::Breaker, Condition::Held];
    conditions.into_iter().find(|condition| destination.is(*condition, now)).map(KeyBound::Stands)
}

/// Notes the share of each key that waits, and what bounds it.
fn share(destination: &Destination, of_group: Option<f64>, keys: &mut [KeyFigures], now: Timestamp) {
    let stands = stands(destination, now);
    let own = destination.at(now).settings.rate_limits.per_second().unwrap_or(f64::INFINITY);
    let (per_second, shared) = match of_group.filter(|share| *share < own) {
        Some(share) => (share, KeyBound::Group),
        None => (own, KeyBound::Destination),
    };
    let rate = if stands.is_some() { 0.0 } else { per_second };
    let wish = |key: &KeyFigures| {
        let per_s = if key.waiting == 0 { 0.0 } else { key.most_per_s() };
        Wish { weight: key.limits.weight.into(), per_s }
    };
    let wishes: Vec<Wish> = keys.iter().map(wish).collect();
    let parts = if rate.is_finite() { divide(rate, &wishes) } else { wishes.iter().map(|wish| wish.per_s).collect() };
    for ((key, wish), part) in keys.iter_mut().zip(wishes).zip(parts).filter(|((key, _), _)| key.waiting > 0) {
        key.share = Some(part).filter(|part| part.is_finite());
        key.binding = match () {
            () if key.limits.paused => Some(KeyBound::Paused),
            () if stands.is_some() => stands,
            () if part < wish.per_s => Some(shared),
            () if part.is_finite() => Some(KeyBound::Key),
            () => None,
        };
    }
}

/// What the own limits of the keys that wait allow, without those of the destination.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct KeysTogether {
    /// All of them together; 0 if all are paused.
    pub(crate) per_s: f64,
    /// Until nothing of the key that takes longest waits. `None`: a key is paused, and nobody knows.
    pub(crate) longest: Option<Duration>,
}

impl KeysTogether {
    /// `None`: a key has no limits of its own, so only the destination bounds them; or not all keys are known.
    pub(crate) fn of(destination: &Destination, backlogs: &KeyBacklogs) -> Option<Self> {
        let settings = destination.settings.key_limits.as_deref()?;
        let mut together = Self { per_s: 0.0, longest: Some(Duration::ZERO) };
        for KeyBacklog { key, waiting, .. } in &backlogs.keys {
            let limits = settings.of(key);
            if limits.paused {
                together.longest = None;
                continue;
            }
            let per_s = limits.rate_limits.per_second()?;
            together.per_s += per_s;
            let takes = Duration::try_from_secs_f64(*waiting as f64 / per_s).unwrap_or(Duration::MAX);
            together.longest = together.longest.map(|longest| longest.max(takes));
        }
        (!backlogs.is_partial && !backlogs.keys.is_empty()).then_some(together)
    }
}

impl Measured {
    /// Whether what waits is of limit keys whose own limits allow less than those of the destination. Where the keys are not
    /// read now, what was read last counts ([`weir_store::KeyWatch`]). Until then the sends tell: they stay below its limits, although something has waited during all the time over which they
    /// are counted, and nothing else has kept it from being sent meanwhile.
    pub(super) fn is_bound_by_keys(&self, destination: &Destination, now: Timestamp) -> bool {
        let settings = &destination.settings;
        if !settings.key_limits.as_ref().is_some_and(|limits| limits.may_bind()) {
            return false;
        }
        if self.keys.is_some() {
            return self.is_known_to_be_bound_by_keys(settings);
        }
        if let Some(keys) = self.watched_keys {
            return keys.all_bound;
        }
        let counted = if is_slow(&settings.rate_limits) { COUNTED_IF_SLOW } else { COUNTED };
        let since = now.before(counted);
        let is_before = |at: Option<Timestamp>| at.is_none_or(|at| at <= since);
        self.oldest_at.is_some_and(|at| at <= since)
            && destination.updated_at <= since
            && is_before(destination.held_until)
            && destination.breaker.share(now) >= 1.0
            && !self.is_at_limit(settings)
    }

    pub(super) fn is_known_to_be_bound_by_keys(&self, settings: &Settings) -> bool {
        let binds = |keys: KeysTogether| self.allowed_per_s(settings).is_none_or(|rate| keys.per_s < rate);
        self.keys.is_some_and(binds)
    }
}
