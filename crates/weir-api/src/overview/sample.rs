//! One sample: every destination with its figures, and the answers to filters, orders and pages. `readings` is what a
//! sample reads.

mod readings;

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;
use weir_core::{Destination, DestinationId, Timestamp, access::TenantScope, refusing::Refusing, stall::StallReport};
use weir_queue::SharedQueue;
use weir_store::{CostWatch, KeyWatch, RefusalWatch, Store, StoreResult};

use self::readings::Readings;
use super::{
    changes::{self, Change, Known, OpenReplays},
    row::{Row, Standing},
    version,
};
use crate::figures::Reason;

/// How many changes a sample keeps for viewers that skipped samples: more than people make in some seconds.
const CHANGES_KEPT: usize = 1_000;

/// All destinations at one instant.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) as_of: Timestamp,
    /// When the process began to take it, and how long that took.
    pub(super) began: Instant,
    pub(super) took: Duration,
    /// The shorter time of this sample and the last one: a single sample may have waited for a processor.
    pub(super) cost: Duration,
    /// The number of the sample.
    number: u64,
    /// In the order of [`Order::Trouble`].
    rows: Vec<Row>,
    by_id: HashMap<DestinationId, usize>,
    /// The positions of the rows in the other orders, each sorted when it is first asked for.
    sorted: [OnceLock<Vec<usize>>; Order::SORTED],
    replays: OpenReplays,
    refusals: RefusalWatch,
    costs: CostWatch,
    keys: KeyWatch,
    /// The last changes with their numbers, oldest first.
    changes: VecDeque<(u64, Arc<Change>)>,
    last_change: u64,
    /// The snapshots that were sent to viewers, by what they show.
    snapshots: Mutex<HashMap<String, Bytes>>,
}

/// The order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// What needs a person first.
    Trouble,
    Name,
    /// The largest first, as in the following.
    Backlog,
    OldestAge,
    Utilisation,
    Arrivals,
    Sends,
    /// What never drains first, then what drains last.
    DrainEta,
}

impl Sample {
    /// Reads the counters of the store, and paces from the queue. `last` is the sample before this one.
    pub(super) async fn take(
        (store, queue): (&dyn Store, &SharedQueue),
        now: Timestamp,
        stalls: &StallReport,
        last: Option<&Self>,
    ) -> StoreResult<Self> {
        let began = Instant::now();
        let number = last.map_or(0, |last| last.number + 1);
        let readings = Readings::read((store, queue), now, last, number).await?;
        let replays = open_replays(store, last).await?;
        let mut rows = readings.rows(stalls);
        rows.sort_by_cached_key(trouble);
        let by_id = rows.iter().enumerate().map(|(at, row)| (row.destination.id, at)).collect();
        let mut sample = Self {
            as_of: now,
            began,
            took: Duration::ZERO,
            cost: Duration::ZERO,
            number,
            rows,
            by_id,
            sorted: Default::default(),
            replays,
            refusals: readings.refusals,
            costs: readings.costs,
            keys: readings.keys,
            changes: VecDeque::new(),
            last_change: 0,
            snapshots: Mutex::default(),
        };
        if let Some(last) = last {
            sample.follow(last);
        }
        sample.took = began.elapsed();
        sample.cost = last.map_or(sample.took, |last| last.took.min(sample.took));
        Ok(sample)
    }

    /// Adds what changed since the last sample to its changes.
    fn follow(&mut self, last: &Self) {
        let known = |sample: &'_ Self| -> Vec<Change> {
            let before = Known { rows: &last.rows, replays: &last.replays, at: last.as_of };
            changes::between(before, Known { rows: &sample.rows, replays: &sample.replays, at: sample.as_of })
        };
        let new = known(self);
        (self.changes, self.last_change) = (last.changes.clone(), last.last_change);
        for change in new {
            self.last_change += 1;
            self.changes.push_back((self.last_change, Arc::new(change)));
        }
        let surplus = self.changes.len().saturating_sub(CHANGES_KEPT);
        self.changes.drain(..surplus);
    }

    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// The number of the last change.
    pub(crate) fn last_change(&self) -> u64 {
        self.last_change
    }

    /// The changes after the one with this number.
    pub(crate) fn changes_after(&self, number: u64) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |(of, _)| *of > number).map(|(_, change)| &**change)
    }

    /// A text that is another one for other figures of these rows; see [`version`].
    pub(crate) fn version(&self, rows: &[&Row], is_replaying: bool) -> String {
        // What a replay has examined is in no counter, so every sample of its time counts as a change.
        version::of(rows, self.as_of, is_replaying.then_some(self.number))
    }

    /// Whether one of these replays runs.
    pub(crate) fn has_replay(&self, is_seen: impl Fn(&TenantScope) -> bool) -> bool {
        self.replays.values().any(is_seen)
    }

    pub(crate) fn row(&self, id: DestinationId) -> Option<&Row> {
        self.by_id.get(&id).map(|&at| &self.rows[at])
    }

    /// The destinations that refuse sends within their limits.
    pub(crate) fn refused(&self) -> impl Iterator<Item = &Arc<Destination>> {
        self.rows.iter().filter(|row| row.figures.refusals.is_some()).map(|row| &row.destination)
    }

    /// The destinations whose receivers refuse much, with limits or without.
    pub(crate) fn refusing(&self) -> impl Iterator<Item = DestinationId> {
        self.refusals.refusing()
    }

    /// What waiting deliveries cost, where limits count costs.
    pub(crate) fn costs(&self) -> CostWatch {
        self.costs.clone()
    }

    /// Which limit keys wait for their own limits.
    pub(crate) fn keys(&self) -> &KeyWatch {
        &self.keys
    }

    /// What a receiver that refuses has answered of late.
    pub(crate) fn answered(&self, id: DestinationId) -> Option<Refusing> {
        self.refusals.answered(id)
    }

    /// The rows that a filter keeps, in an order. All viewers share the sorted positions.
    pub(crate) fn rows(&self, order: Order, keeps: impl Fn(&Row) -> bool) -> Vec<&Row> {
        match self.positions(order) {
            Some(positions) => positions.iter().map(|&at| &self.rows[at]).filter(|row| keeps(row)).collect(),
            None => self.rows.iter().filter(|row| keeps(row)).collect(),
        }
    }

    /// `None`: the rows are in this order.
    fn positions(&self, order: Order) -> Option<&[usize]> {
        let id = |at: usize| *self.rows[at].destination.id.as_bytes();
        let figures = |at: usize| &self.rows[at].figures;
        let sorted = |order: usize, sort: &dyn Fn(&mut Vec<usize>)| {
            let positions = self.sorted[order].get_or_init(|| {
                let mut positions = (0..self.rows.len()).collect();
                sort(&mut positions);
                positions
            });
            Some(&**positions)
        };
        match order {
            Order::Trouble => None,
            Order::Name => sorted(0, &|positions| {
                positions.sort_by_cached_key(|&at| (label(&self.rows[at].destination).to_lowercase(), id(at)));
            }),
            Order::Backlog => sorted(1, &|positions| {
                positions.sort_unstable_by_key(|&at| (Reverse(figures(at).counts.waiting()), id(at)));
            }),
            Order::OldestAge => sorted(2, &|positions| {
                positions.sort_unstable_by_key(|&at| (Reverse(figures(at).oldest_age), id(at)));
            }),
            Order::Utilisation => sorted(3, &|positions| {
                positions.sort_unstable_by_key(|&at| (Reverse(figures(at).utilisation.map(ordered)), id(at)));
            }),
            Order::Arrivals => sorted(4, &|positions| {
                positions.sort_unstable_by_key(|&at| (Reverse(ordered(figures(at).arrivals_per_s)), id(at)));
            }),
            Order::Sends => sorted(5, &|positions| {
                positions.sort_unstable_by_key(|&at| (Reverse(ordered(figures(at).achieved_per_s)), id(at)));
            }),
            Order::DrainEta => sorted(6, &|positions| {
                let never = |at: usize| self.rows[at].is(Standing::NeverDrains, self.as_of);
                // A stopped backlog has no ETA. It comes before those that drain by themselves.
                let stopped = |at: usize| figures(at).counts.waiting() > 0 && figures(at).drain_eta.is_none();
                positions.sort_unstable_by_key(|&at| {
                    (Reverse(never(at)), Reverse(stopped(at)), Reverse(figures(at).drain_eta), id(at))
                });
            }),
        }
    }

    /// The bytes of a snapshot. All viewers that see the same share them.
    pub(crate) fn snapshot(&self, key: String, make: impl FnOnce() -> Bytes) -> Bytes {
        let mut made = self.snapshots.lock();
        made.entry(key).or_insert_with(make).clone()
    }
}

impl Order {
    /// How many orders a sample sorts when they are asked for: all but [`Order::Trouble`].
    const SORTED: usize = 7;
}

/// A figure as a key: figures are never below zero, and a thousandth is the smallest difference that anybody sees.
fn ordered(figure: f64) -> u64 {
    (figure * 1_000.0).round() as u64
}

/// The name, or the URL of a destination without one.
fn label(destination: &Destination) -> &str {
    let Destination { settings, .. } = destination;
    if settings.name.is_empty() { settings.url.as_str() } else { &settings.name }
}

/// The order of trouble: the smallest first. Within a rank, what takes longest to drain, or has waited longest.
fn trouble(row: &Row) -> (u8, Reverse<Option<Duration>>, Reverse<u64>, [u8; 16]) {
    let Row { destination, figures } = row;
    let rank = match figures.reason {
        _ if destination.is_impaired() => 0,
        // It is Weir that does not send.
        Some(Reason::Fault(_)) => 0,
        _ if figures.drains == Some(false) => 1,
        Some(
            Reason::Paused
            | Reason::Breaker
            | Reason::RefusedWithinLimit
            | Reason::Held
            | Reason::Ordered
            | Reason::Failing
            | Reason::Slow,
        ) => 2,
        Some(Reason::Adaptive | Reason::Group | Reason::Key | Reason::Limit) => 3,
        None if figures.counts.waiting() > 0 => 4,
        None if figures.counts.dead_letters() > 0 => 5,
        None if destination.settings.paused => 6,
        None => 7,
    };
    let wait = figures.drain_eta.max(figures.oldest_age);
    (rank, Reverse(wait), Reverse(figures.counts.dead_letters()), *destination.id.as_bytes())
}

/// The open replays. Only a new one is read, because its figures are counted for that.
async fn open_replays(store: &dyn Store, last: Option<&Sample>) -> StoreResult<OpenReplays> {
    let mut replays = OpenReplays::new();
    for id in store.open_replays().await? {
        let scope = match last.and_then(|sample| sample.replays.get(&id)) {
            Some(scope) => scope.clone(),
            // What is not known is shown only to those who see all tenants.
            None => store.replay(id).await?.map_or(TenantScope::All, |replay| replay.filter.deliveries.tenants),
        };
        replays.insert(id, scope);
    }
    Ok(replays)
}

#[cfg(test)]
mod tests;
