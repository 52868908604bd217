//! What waiting deliveries cost, where limits count costs: figures and alerts say by it when a backlog is sent.

use std::{collections::HashMap, time::Duration};

use weir_core::{Destination, DestinationId, LimitGroup, RateLimit, RateLimits, Timestamp, limiter::COST_OF_ONE};

use crate::{Outbox, StoreResult};

/// The mean costs that were read last, each of a few of the oldest deliveries.
#[derive(Debug, Clone, Default)]
pub struct CostWatch {
    known: HashMap<DestinationId, (Timestamp, u32)>,
}

impl CostWatch {
    /// A mean cost changes slowly.
    const EVERY: Duration = Duration::from_secs(60);
    /// How many destinations one look reads. Each takes a statement of about a millisecond.
    const AT_ONCE: usize = 32;

    /// Reads what waits at some of these destinations, each with a limit in costs ([`limit_in_costs`]): at those that were
    /// read longest ago first. Forgets the others.
    pub async fn look(
        &mut self,
        store: &(impl Outbox + ?Sized),
        wanted: impl IntoIterator<Item = (DestinationId, RateLimit)>,
        now: Timestamp,
    ) -> StoreResult<()> {
        let wanted: HashMap<_, _> = wanted.into_iter().collect();
        self.known.retain(|id, _| wanted.contains_key(id));
        let read_at = |id: &DestinationId| self.known.get(id).map(|(at, _)| *at);
        let is_due = |id: &DestinationId| read_at(id).is_none_or(|at| now.since(at) >= Self::EVERY);
        let mut due: Vec<_> = wanted.into_iter().filter(|(id, _)| is_due(id)).collect();
        due.sort_by_key(|(id, _)| (read_at(id), *id));
        due.truncate(Self::AT_ONCE);
        for (id, limit) in due {
            // Nothing was sent after this instant, so only what waits is read.
            let usual_cost = store.sent_counts(&[id], now, limit).await?.usual_cost;
            self.known.insert(id, (now, usual_cost));
        }
        Ok(())
    }

    /// In parts of [`COST_OF_ONE`]; 0: not known.
    pub fn of(&self, id: DestinationId) -> u32 {
        self.known.get(&id).map_or(0, |(_, usual_cost)| *usual_cost)
    }

    /// As a number; 1 if it is not known.
    pub fn mean_of(&self, id: DestinationId) -> f64 {
        f64::from(self.of(id).max(COST_OF_ONE)) / f64::from(COST_OF_ONE)
    }
}

/// A limit in costs that holds for a destination: its own, or one of its group.
pub fn limit_in_costs(destination: &Destination, group: Option<&LimitGroup>, now: Timestamp) -> Option<RateLimit> {
    let of = |limits: &RateLimits| limits.as_slice().iter().find(|limit| limit.is_in_costs()).copied();
    of(&destination.at(now).settings.rate_limits).or_else(|| of(&group?.at(now).rate_limits))
}
