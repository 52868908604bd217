//! Limit keys whose own limits hold them back: a destination is late also where one of its keys is. For alerts, and for the
//! overview of all destinations.

use std::{collections::HashMap, sync::Arc, time::Duration};

use weir_core::{
    Destination, DestinationId, LimitKey, Timestamp,
    alert::{BoundKeys, DestinationStatus},
    limit_key::FlowLimits,
    shares::{Wish, divide},
};

use crate::{KeyBacklog, LimitKeys, StoreResult};

/// What was found when the keys of destinations were read last.
#[derive(Debug, Clone, Default)]
pub struct KeyWatch {
    known: HashMap<DestinationId, Known>,
}

#[derive(Debug, Clone)]
struct Known {
    read_at: Timestamp,
    bound: BoundKeys,
    keys: WatchedKeys,
}

/// What was seen of the limit keys of a destination.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WatchedKeys {
    /// No key waits for the limits that all keys share.
    pub all_bound: bool,
    /// What the keys that wait may send together, if only limits of their own bind them.
    pub per_s: Option<f64>,
    /// Until nothing of the key that takes longest waits. `None`: a key that waits is paused, so nobody knows.
    pub drain_in: Option<Duration>,
}

impl KeyWatch {
    /// The thresholds of alerts are minutes.
    const EVERY: Duration = Duration::from_secs(30);
    /// How many destinations one look reads. Each takes a statement over the 20,000 deliveries that are due first.
    const AT_ONCE: usize = 2;
    /// Of how many keys, the longest backlogs first.
    const KEYS: u32 = 1_000;

    /// Reads which keys wait at some of these destinations, which have a backlog: at those that were read longest ago
    /// first. Forgets the others. Destinations whose keys have no limits of their own cost nothing.
    pub async fn look<'a>(
        &mut self,
        store: &(impl LimitKeys + ?Sized),
        waiting: impl IntoIterator<Item = &'a Arc<Destination>>,
        now: Timestamp,
    ) -> StoreResult<()> {
        let may_bind = |destination: &&Arc<Destination>| {
            destination.settings.key_limits.as_ref().is_some_and(|limits| limits.may_bind())
        };
        let wanted: HashMap<_, _> = waiting.into_iter().filter(may_bind).map(|one| (one.id, one)).collect();
        self.known.retain(|id, _| wanted.contains_key(id));
        let read_at = |id: &DestinationId| self.known.get(id).map(|known| known.read_at);
        let mut due: Vec<_> = wanted
            .into_values()
            .filter(|one| read_at(&one.id).is_none_or(|at| at < one.updated_at || now.since(at) >= Self::EVERY))
            .collect();
        due.sort_by_key(|one| (read_at(&one.id), one.id));
        due.truncate(Self::AT_ONCE);
        for destination in due {
            let keys = store.key_backlogs(destination.id, None, Self::KEYS).await?.keys;
            self.known.insert(destination.id, Known::of(destination, keys, now));
        }
        Ok(())
    }

    /// The status of a destination with what is known of its keys: it drains when the last of them does.
    pub fn add_to(&self, status: DestinationStatus, id: DestinationId) -> DestinationStatus {
        match self.known.get(&id) {
            Some(Known { bound, .. }) if status.waiting > 0 => DestinationStatus {
                drains_in: status.drains_in.max(bound.drains_in),
                bound_keys: bound.clone(),
                ..status
            },
            _ => status,
        }
    }

    /// `None`: nobody has looked, or no key may wait for its own limits.
    pub fn seen(&self, id: DestinationId, now: Timestamp) -> Option<WatchedKeys> {
        let Known { read_at, keys, .. } = self.known.get(&id)?;
        let left = |drain_in: Duration| drain_in.saturating_sub(now.since(*read_at));
        Some(WatchedKeys { drain_in: keys.drain_in.map(left), ..*keys })
    }
}

impl Known {
    /// The keys that their own limits bind. A key that people have paused is late because they want it.
    fn of(destination: &Destination, backlogs: Vec<KeyBacklog>, now: Timestamp) -> Self {
        let wish = |KeyBacklog { key, .. }: &KeyBacklog| {
            let limits = destination.settings.key_limits.as_deref().map_or(FlowLimits::NONE, |all| all.of(key));
            let own = limits.rate_limits.per_second().unwrap_or(f64::INFINITY);
            Wish { weight: limits.weight.into(), per_s: if limits.paused { 0.0 } else { own } }
        };
        let wishes: Vec<Wish> = backlogs.iter().map(wish).collect();
        let parts = match destination.at(now).settings.rate_limits.per_second() {
            Some(rate) => divide(rate, &wishes),
            None => wishes.iter().map(|wish| wish.per_s).collect(),
        };
        let is_bound = |(wish, part): &(&Wish, f64)| part.is_finite() && *part >= wish.per_s;
        let of_keys: Vec<_> = wishes.iter().zip(parts).collect();
        let all_bound = !of_keys.is_empty() && of_keys.iter().all(is_bound);
        let takes =
            |waiting: u64, per_s: f64| Duration::try_from_secs_f64(waiting as f64 / per_s).unwrap_or(Duration::MAX);
        let of_each = || backlogs.iter().zip(&of_keys);
        let is_paused = of_each().any(|(_, (_, per_s))| *per_s <= 0.0);
        let longest = of_each().map(|(backlog, (_, per_s))| takes(backlog.waiting, *per_s)).max().unwrap_or_default();
        let per_s = all_bound.then(|| of_keys.iter().map(|(_, part)| part).sum());
        let keys = WatchedKeys { all_bound, per_s, drain_in: (!is_paused).then_some(longest) };
        let mut bound: Vec<(Duration, LimitKey)> = backlogs
            .into_iter()
            .zip(of_keys)
            .filter(|(_, of)| is_bound(of) && of.1 > 0.0)
            .map(|(KeyBacklog { key, waiting, .. }, (_, per_s))| (takes(waiting, per_s), key))
            .collect();
        bound.sort_by(|(one, key), (other, other_key)| other.cmp(one).then_with(|| key.cmp(other_key)));
        let (count, drains_in) = (bound.len(), bound.first().map(|(takes, _)| *takes));
        let named = bound.into_iter().take(BoundKeys::NAMED).map(|(_, key)| key).collect();
        Self { read_at: now, bound: BoundKeys { named, count, drains_in }, keys }
    }
}
