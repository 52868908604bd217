//! What a sample reads of the store and of the queue, and the figures of each destination by it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use weir_core::{
    Destination, DestinationId, LimitGroup, LimitGroupId, Timestamp, access::TenantScope, adaptive::Status,
    stall::StallReport,
};
use weir_queue::{SharedQueue, known_paces};
use weir_store::{
    CostWatch, DestinationFilter, KeyWatch, PageRequest, RecentTraffic, RefusalWatch, StateCounts, Store, StoreResult,
    TRAFFIC_BUCKET, limit_in_costs,
};

use super::{Row, Sample};
use crate::figures::{FAILING, Figures, Measured, flood_began, is_slow, per_second, share};

/// How many destinations are read at one time.
const AT_ONCE: u32 = 1_000;
/// The time over which arrivals are measured, and the newer part of it, over which sends are. Both are extended to
/// whole buckets of traffic.
const ARRIVALS: Duration = Duration::from_secs(60);
const NEWER: Duration = Duration::from_secs(10);
/// A sample reads the oldest delivery of every tenth destination again, in turn. So that of each is read within ten samples
/// even if its counts do not change.
pub(super) const TURNS: u64 = 10;

/// What a sample has read.
pub(super) struct Readings {
    now: Timestamp,
    destinations: Vec<Arc<Destination>>,
    counts: HashMap<DestinationId, StateCounts>,
    oldest: HashMap<DestinationId, Timestamp>,
    /// The traffic of the time over which arrivals are measured, and of its newer part.
    traffic: HashMap<DestinationId, RecentTraffic>,
    newer: HashMap<DestinationId, RecentTraffic>,
    groups: HashMap<LimitGroupId, Arc<LimitGroup>>,
    paces: HashMap<DestinationId, Status>,
    pub(super) refusals: RefusalWatch,
    pub(super) costs: CostWatch,
    pub(super) keys: KeyWatch,
}

impl Readings {
    /// `number`: that of the sample, which follows `last`.
    pub(super) async fn read(
        (store, queue): (&dyn Store, &SharedQueue),
        now: Timestamp,
        last: Option<&Sample>,
        number: u64,
    ) -> StoreResult<Self> {
        let destinations = destinations(store, last).await?;
        let counts = store.all_counts().await?;
        let mut readings = Self {
            now,
            traffic: store.recent_traffic(older_from(now)).await?,
            newer: store.recent_traffic(newer_from(now)).await?,
            oldest: HashMap::new(),
            groups: groups_of(store, &destinations).await?,
            paces: known_paces(queue, destinations.iter().map(|destination| &**destination)).await,
            refusals: last.map(|last| last.refusals.clone()).unwrap_or_default(),
            costs: last.map(|last| last.costs.clone()).unwrap_or_default(),
            keys: last.map(|last| last.keys.clone()).unwrap_or_default(),
            destinations,
            counts,
        };
        readings.read_oldest(store, last, number).await?;
        readings.look(store).await?;
        Ok(readings)
    }

    /// Reads when the oldest waiting deliveries were created. Most backlogs of a large installation stand still from one
    /// second to the next, so only those with other counts than in the last sample are read. The counts of ended
    /// deliveries are compared too, so a delivery that ended while another one arrived shows.
    async fn read_oldest(&mut self, store: &dyn Store, last: Option<&Sample>, number: u64) -> StoreResult<()> {
        let mut unknown = Vec::new();
        for (id, counts) in self.destinations.iter().filter_map(|of| Some((of.id, waiting(&self.counts, of)?))) {
            match last.and_then(|last| last.known_oldest(id, counts, number)) {
                Some(at) => drop(self.oldest.insert(id, at)),
                None => unknown.push(id),
            }
        }
        let read = store.oldest_waiting(&unknown).await?;
        self.oldest.extend(unknown.into_iter().zip(read).filter_map(|(id, at)| Some((id, at?))));
        Ok(())
    }

    /// Lets the watches look, each of which reads a bounded part.
    async fn look(&mut self, store: &dyn Store) -> StoreResult<()> {
        let Self { now, destinations, counts, traffic, groups, refusals, costs, keys, .. } = self;
        let now = *now;
        if refusals.is_due(now) {
            let refused = refusals.refused();
            let failed = |id| traffic.get(&id).map_or(0, |traffic| traffic.sum.failed);
            let is_suspect = |destination: &&Arc<Destination>| {
                RefusalWatch::is_suspect(failed(destination.id)) || refused.contains(&destination.id)
            };
            let suspects = destinations.iter().filter(is_suspect).cloned().collect();
            refusals.look(store, suspects, now).await?;
            refusals.count(store, traffic, std::iter::empty(), now).await?;
        }
        let costly = destinations.iter().filter_map(|destination| {
            waiting(counts, destination)?;
            let group = destination.settings.limit_group.and_then(|id| groups.get(&id));
            Some((destination.id, limit_in_costs(destination, group.map(|group| &**group), now)?))
        });
        costs.look(store, costly, now).await?;
        keys.look(store, destinations.iter().filter(|destination| waiting(counts, destination).is_some()), now).await
    }

    /// Each destination with its figures.
    pub(super) fn rows(&self, stalls: &StallReport) -> Vec<Row> {
        let mut measured: Vec<_> =
            self.destinations.iter().map(|destination| self.measure(destination, stalls)).collect();
        share_groups(&self.groups, &self.destinations, &mut measured, self.now);
        let row = |(destination, measured): (&Arc<Destination>, Measured)| Row {
            figures: Figures::of(destination, &measured, self.now),
            destination: Arc::clone(destination),
        };
        self.destinations.iter().zip(measured).map(row).collect()
    }

    fn measure(&self, destination: &Destination, stalls: &StallReport) -> Measured {
        let (id, now) = (destination.id, self.now);
        let (older_from, newer_from) = (older_from(now), newer_from(now));
        let traffic = |of: &HashMap<DestinationId, RecentTraffic>| of.get(&id).copied().unwrap_or_default();
        let (RecentTraffic { sum: all, arriving_since }, newer) = (traffic(&self.traffic), traffic(&self.newer).sum);
        let older_arrivals = all.arrivals.saturating_sub(newer.arrivals);
        let began = flood_began(all.arrivals, arriving_since, older_from);
        Measured {
            counts: self.counts.get(&id).copied().unwrap_or_default(),
            oldest_at: self.oldest.get(&id).copied(),
            achieved_per_s: match self.sends_seldom(destination) {
                true => per_second(all.sends, older_from, now),
                false => per_second(newer.sends, newer_from, now),
            },
            arrivals_per_s: per_second(all.arrivals, began, now),
            older_arrivals_per_s: per_second(older_arrivals, began.min(newer_from), newer_from),
            newer_arrivals_per_s: per_second(newer.arrivals, newer_from, now),
            refusals: self.refusals.found(destination).flatten(),
            fails: all.failed >= FAILING && all.delivered == 0,
            // Under a backlog the cursors are where a send of just now left them.
            rings: Vec::new(),
            usual_cost: self.costs.of(id),
            last_sent_at: Some(now),
            answer_time: None,
            fault: stalls.fault_of(id, now),
            pace: self.paces.get(&id).cloned(),
            share: None,
            keys: None,
            watched_keys: self.keys.seen(id, now),
        }
    }

    /// Whether its limits are slow. Members of a slow group send as unevenly as the group does.
    fn sends_seldom(&self, destination: &Destination) -> bool {
        let group = destination.settings.limit_group.and_then(|id| self.groups.get(&id));
        is_slow(&destination.at(self.now).settings.rate_limits)
            || group.is_some_and(|group| is_slow(&group.at(self.now).rate_limits))
    }
}

/// Where the traffic begins: with a whole bucket, the last of which has not ended.
fn older_from(now: Timestamp) -> Timestamp {
    now.before(ARRIVALS).floor(TRAFFIC_BUCKET)
}

fn newer_from(now: Timestamp) -> Timestamp {
    now.before(NEWER).floor(TRAFFIC_BUCKET)
}

/// The counts of a destination with waiting deliveries.
fn waiting<'c>(counts: &'c HashMap<DestinationId, StateCounts>, destination: &Destination) -> Option<&'c StateCounts> {
    counts.get(&destination.id).filter(|counts| counts.waiting() > 0)
}

impl Sample {
    /// When the oldest waiting delivery of a destination was created, if its counts are still those of this sample and
    /// it is not its turn to be read.
    pub(super) fn known_oldest(&self, id: DestinationId, counts: &StateCounts, next: u64) -> Option<Timestamp> {
        let is_its_turn = u64::from(id.as_bytes()[15]) % TURNS == next % TURNS;
        let figures =
            self.row(id).filter(|row| row.figures.counts == *counts && !is_its_turn).map(|row| &row.figures)?;
        figures.oldest_age.map(|age| self.as_of.before(age))
    }
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
