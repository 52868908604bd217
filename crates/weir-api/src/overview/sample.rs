//! One sample: every destination with its figures, and the answers to filters, orders and pages.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;
use weir_core::{
    Destination, DestinationId, LimitGroup, LimitGroupId, Timestamp, access::TenantScope, refusing::Refusing,
    stall::StallReport,
};
use weir_queue::{SharedQueue, known_paces};
use weir_store::{
    CostWatch, DestinationFilter, KeyWatch, PageRequest, RecentTraffic, RefusalWatch, StateCounts, Store, StoreResult,
    TRAFFIC_BUCKET, limit_in_costs,
};

use super::{
    changes::{self, Change, Known, OpenReplays},
    row::{Row, Standing},
    version,
};
use crate::figures::{FAILING, Figures, Measured, Reason, flood_began, is_slow, per_second, share};

/// How many destinations are read at one time.
const AT_ONCE: u32 = 1_000;
/// The time over which arrivals are measured, and the newer part of it, over which sends are. Both are extended to
/// whole buckets of traffic.
const ARRIVALS: Duration = Duration::from_secs(60);
const NEWER: Duration = Duration::from_secs(10);
/// A sample reads the oldest delivery of every tenth destination again, in turn. So that of each is read within ten samples
/// even if its counts do not change.
const TURNS: u64 = 10;
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
    /// The places of the rows in the other orders, each sorted when it is first asked for.
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
        let destinations = destinations(store, last).await?;
        let counts = store.all_counts().await?;
        // Whole buckets, the last of which has not ended.
        let (older_from, newer_from) =
            (now.before(ARRIVALS).floor(TRAFFIC_BUCKET), now.before(NEWER).floor(TRAFFIC_BUCKET));
        let (all, newer) = (store.recent_traffic(older_from).await?, store.recent_traffic(newer_from).await?);
        let number = last.map_or(0, |last| last.number + 1);
        let waiting = destinations.iter().filter_map(|destination| {
            let counts = counts.get(&destination.id).filter(|counts| counts.waiting() > 0)?;
            Some((destination.id, counts))
        });
        let oldest = oldest_waiting(store, waiting, last, number).await?;
        let replays = open_replays(store, last).await?;
        let mut refusals = last.map(|last| last.refusals.clone()).unwrap_or_default();
        if refusals.is_due(now) {
            let refused = refusals.refused();
            let failed = |id| all.get(&id).map_or(0, |traffic| traffic.sum.failed);
            let is_suspect = |destination: &&Arc<Destination>| {
                RefusalWatch::is_suspect(failed(destination.id)) || refused.contains(&destination.id)
            };
            let suspects = destinations.iter().filter(is_suspect).cloned().collect();
            refusals.look(store, suspects, now).await?;
            refusals.count(store, &all, std::iter::empty(), now).await?;
        }

        let groups = groups_of(store, &destinations).await?;
        let mut costs = last.map(|last| last.costs.clone()).unwrap_or_default();
        let costly = destinations.iter().filter_map(|destination| {
            counts.get(&destination.id).filter(|counts| counts.waiting() > 0)?;
            let group = destination.settings.limit_group.and_then(|id| groups.get(&id));
            Some((destination.id, limit_in_costs(destination, group.map(|group| &**group), now)?))
        });
        costs.look(store, costly, now).await?;
        let mut keys = last.map(|last| last.keys.clone()).unwrap_or_default();
        let waits = |one: &&Arc<Destination>| counts.get(&one.id).is_some_and(|counts| counts.waiting() > 0);
        keys.look(store, destinations.iter().filter(waits), now).await?;
        let mut paces = known_paces(queue, destinations.iter().map(|destination| &**destination)).await;

        // Its members send as unevenly as it does.
        let is_of_slow_group = |destination: &Destination| {
            let group = destination.settings.limit_group.and_then(|id| groups.get(&id));
            group.is_some_and(|group| is_slow(&group.at(now).rate_limits))
        };
        let mut measured = |destination: &Arc<Destination>| {
            let id = destination.id;
            let traffic = |of: &HashMap<DestinationId, RecentTraffic>| of.get(&id).copied().unwrap_or_default();
            let (RecentTraffic { sum: all, arriving_since }, newer) = (traffic(&all), traffic(&newer).sum);
            let older_arrivals = all.arrivals.saturating_sub(newer.arrivals);
            let began = flood_began(all.arrivals, arriving_since, older_from);
            Measured {
                counts: counts.get(&id).copied().unwrap_or_default(),
                oldest_at: oldest.get(&id).copied(),
                achieved_per_s: match is_slow(&destination.at(now).settings.rate_limits)
                    || is_of_slow_group(destination)
                {
                    true => per_second(all.sends, older_from, now),
                    false => per_second(newer.sends, newer_from, now),
                },
                arrivals_per_s: per_second(all.arrivals, began, now),
                older_arrivals_per_s: per_second(older_arrivals, began.min(newer_from), newer_from),
                newer_arrivals_per_s: per_second(newer.arrivals, newer_from, now),
                refusals: refusals.found(destination).flatten(),
                fails: all.failed >= FAILING && all.delivered == 0,
                // Under a backlog the cursors are where a send of just now left them.
                rings: Vec::new(),
                usual_cost: costs.of(id),
                last_sent_at: Some(now),
                answer_time: None,
                fault: stalls.fault_of(id, now),
                pace: paces.remove(&id),
                share: None,
                keys: None,
                watched_keys: keys.seen(id, now),
            }
        };
        let mut measured: Vec<_> = destinations.iter().map(&mut measured).collect();
        share_groups(&groups, &destinations, &mut measured, now);
        let row = |(destination, measured): (Arc<Destination>, Measured)| Row {
            figures: Figures::of(&destination, &measured, now),
            destination,
        };
        let mut rows: Vec<Row> = destinations.into_iter().zip(measured).map(row).collect();
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
            refusals,
            costs,
            keys,
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

    /// When the oldest waiting delivery of a destination was created, if its counts are still those of this sample and
    /// it is not its turn to be read.
    fn known_oldest(&self, id: DestinationId, counts: &StateCounts, next: u64) -> Option<Timestamp> {
        let is_its_turn = u64::from(id.as_bytes()[15]) % TURNS == next % TURNS;
        let figures =
            self.row(id).filter(|row| row.figures.counts == *counts && !is_its_turn).map(|row| &row.figures)?;
        figures.oldest_age.map(|age| self.as_of.before(age))
    }

    /// The rows that a filter keeps, in an order. All viewers share the sorted places.
    pub(crate) fn rows(&self, order: Order, keeps: impl Fn(&Row) -> bool) -> Vec<&Row> {
        match self.places(order) {
            Some(places) => places.iter().map(|&at| &self.rows[at]).filter(|row| keeps(row)).collect(),
            None => self.rows.iter().filter(|row| keeps(row)).collect(),
        }
    }

    /// `None`: the rows are in this order.
    fn places(&self, order: Order) -> Option<&[usize]> {
        let id = |at: usize| *self.rows[at].destination.id.as_bytes();
        let figures = |at: usize| &self.rows[at].figures;
        let sorted = |order: usize, sort: &dyn Fn(&mut Vec<usize>)| {
            let places = self.sorted[order].get_or_init(|| {
                let mut places = (0..self.rows.len()).collect();
                sort(&mut places);
                places
            });
            Some(&**places)
        };
        match order {
            Order::Trouble => None,
            Order::Name => sorted(0, &|places| {
                places.sort_by_cached_key(|&at| (label(&self.rows[at].destination).to_lowercase(), id(at)));
            }),
            Order::Backlog => sorted(1, &|places| {
                places.sort_unstable_by_key(|&at| (Reverse(figures(at).counts.waiting()), id(at)));
            }),
            Order::OldestAge => sorted(2, &|places| {
                places.sort_unstable_by_key(|&at| (Reverse(figures(at).oldest_age), id(at)));
            }),
            Order::Utilisation => sorted(3, &|places| {
                places.sort_unstable_by_key(|&at| (Reverse(figures(at).utilisation.map(ordered)), id(at)));
            }),
            Order::Arrivals => sorted(4, &|places| {
                places.sort_unstable_by_key(|&at| (Reverse(ordered(figures(at).arrivals_per_s)), id(at)));
            }),
            Order::Sends => sorted(5, &|places| {
                places.sort_unstable_by_key(|&at| (Reverse(ordered(figures(at).achieved_per_s)), id(at)));
            }),
            Order::DrainEta => sorted(6, &|places| {
                let never = |at: usize| self.rows[at].is(Standing::NeverDrains, self.as_of);
                // A stopped backlog has no ETA. It comes before those that drain by themselves.
                let stopped = |at: usize| figures(at).counts.waiting() > 0 && figures(at).drain_eta.is_none();
                places.sort_unstable_by_key(|&at| {
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

/// Notes the shares of the members of all limit groups.
fn share_groups(
    groups: &HashMap<LimitGroupId, Arc<LimitGroup>>,
    destinations: &[Arc<Destination>],
    measured: &mut [Measured],
    now: Timestamp,
) {
    let mut members: HashMap<LimitGroupId, Vec<(&Destination, &mut Measured)>> = HashMap::new();
    for (destination, measured) in destinations.iter().zip(measured) {
        if let Some(id) = destination.settings.limit_group {
            members.entry(id).or_default().push((destination, measured));
        }
    }
    for (id, mut members) in members {
        if let Some(group) = groups.get(&id) {
            share(group, &mut members, now);
        }
    }
}

/// The limit groups of these destinations.
async fn groups_of(
    store: &dyn Store,
    destinations: &[Arc<Destination>],
) -> StoreResult<HashMap<LimitGroupId, Arc<LimitGroup>>> {
    let ids: BTreeSet<LimitGroupId> = destinations.iter().filter_map(|one| one.settings.limit_group).collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let found = store.limit_groups(&Vec::from_iter(ids)).await?;
    Ok(found.into_iter().flatten().map(|group| (group.id, group)).collect())
}

/// Every destination that is not deleted. The known ones are read by id, which costs little, and new ones are at the
/// beginning of the list.
async fn destinations(store: &dyn Store, last: Option<&Sample>) -> StoreResult<Vec<Arc<Destination>>> {
    let ids: Vec<DestinationId> = last.into_iter().flat_map(|sample| sample.by_id.keys().copied()).collect();
    let mut found: Vec<_> = store.destinations(&ids).await?.into_iter().flatten().collect();
    let mut page = PageRequest { before: None, limit: AT_ONCE };
    loop {
        let read = store.list_destinations(&DestinationFilter::of(TenantScope::All), page).await?;
        let before = found.len();
        let is_new = |id: DestinationId| last.is_none_or(|sample| !sample.by_id.contains_key(&id));
        let rows = read.rows.len();
        found.extend(read.rows.into_iter().filter(|destination| is_new(destination.id)));
        // Ids rise with time, also across processes, except for the difference of their clocks. A page has the
        // destinations of more than that.
        match read.next {
            Some(next) if found.len() - before == rows => page.before = Some(next),
            _ => return Ok(found),
        }
    }
}

/// When the oldest waiting delivery of each of these destinations was created. Most backlogs of a large
/// installation stand still from one second to the next, so only those with other counts than in the last sample are
/// read. The counts of ended deliveries are compared too, so a delivery that ended while another one arrived shows.
async fn oldest_waiting(
    store: &dyn Store,
    waiting: impl Iterator<Item = (DestinationId, &StateCounts)>,
    last: Option<&Sample>,
    number: u64,
) -> StoreResult<HashMap<DestinationId, Timestamp>> {
    let (mut oldest, mut unknown) = (HashMap::new(), Vec::new());
    for (id, counts) in waiting {
        match last.and_then(|last| last.known_oldest(id, counts, number)) {
            Some(at) => drop(oldest.insert(id, at)),
            None => unknown.push(id),
        }
    }
    let read = store.oldest_waiting(&unknown).await?;
    oldest.extend(unknown.into_iter().zip(read).filter_map(|(id, at)| Some((id, at?))));
    Ok(oldest)
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
