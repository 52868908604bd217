//! The last half hour by minute: of all destinations, added up for each tenant, and of the destinations of a page.
//!
//! Nothing of it is taken without viewers, and what was read is kept, so that viewers share it. Of all destinations only
//! the last minutes are read again and again; older ones are read once, newest first, and no longer than a moment at one
//! time. So an installation with very many busy destinations shows the picture from the right to the left.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Mutex, time::Instant};
use weir_core::{DestinationId, Timestamp};
use weir_store::{MINUTE, Store, StoreResult, Traffic};

use super::{
    row::Row,
    sample::{Order, Sample},
};

/// The minutes of a picture. The last one has not ended.
pub(crate) const MINUTES: u32 = 30;
/// Traffic is recorded in buckets of this length, so nothing new is seen sooner.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// A row may be a little older, because fifty of them are read at one time.
const ROW_READ_AGAIN: Duration = Duration::from_secs(20);
/// An attempt counts in the minute in which it started, once it has ended: then an older minute does not change.
const SETTLES_AFTER: Duration = Duration::from_secs(120);
/// How many minutes one statement reads of all destinations, and how long one call reads older ones.
const AT_ONCE: u32 = 3;
const READ_FOR: Duration = Duration::from_millis(150);
/// The most rows that are kept: those that nobody has looked at for a while go, and all of them before there are more.
const MAX_ROWS: usize = 10_000;

/// Traffic by minute, oldest first.
pub(crate) type Minutes = Vec<(Timestamp, Traffic)>;

pub(crate) struct Recent {
    all: Mutex<All>,
    rows: Mutex<HashMap<DestinationId, Known>>,
}

/// The minutes of all destinations.
struct All {
    read: Option<Instant>,
    as_of: Timestamp,
    minutes: BTreeMap<Timestamp, ByTenant>,
    /// How much waited at that instant.
    waiting: HashMap<String, u64>,
}

/// What happened at the destinations of some tenants.
pub(crate) struct Picture {
    pub(crate) as_of: Timestamp,
    pub(crate) minutes: Minutes,
    pub(crate) waiting: u64,
}

struct ByTenant {
    /// The instant at which it was read.
    as_of: Timestamp,
    traffic: HashMap<String, Traffic>,
}

struct Known {
    read: Instant,
    minutes: Minutes,
}

impl Default for Recent {
    fn default() -> Self {
        let (read, minutes, waiting) = (None, BTreeMap::new(), HashMap::new());
        let all = All { read, as_of: Timestamp::MIN, minutes, waiting };
        Self { all: Mutex::new(all), rows: Mutex::default() }
    }
}

impl Recent {
    /// What happened at all destinations of these tenants. The oldest minutes may not have been read yet. `sample` is
    /// asked for only when something is read: what waits then must fit to it.
    pub(crate) async fn all(
        &self,
        store: &dyn Store,
        sample: impl Future<Output = StoreResult<Arc<Sample>>>,
        is_seen: impl Fn(&str) -> bool,
    ) -> StoreResult<Picture> {
        let mut all = self.all.lock().await;
        if all.read.is_none_or(|read| read.elapsed() >= READ_AGAIN) {
            let sample = sample.await?;
            all.read(store, sample.as_of).await?;
            all.waiting.clear();
            for Row { destination, figures } in sample.rows(Order::Trouble, |_| true) {
                *all.waiting.entry(destination.settings.tenant.clone()).or_default() += figures.counts.waiting();
            }
        }
        let sum = |by_tenant: &ByTenant| {
            let seen = by_tenant.traffic.iter().filter(|(tenant, _)| is_seen(tenant));
            seen.fold(Traffic::default(), |sum, (_, traffic)| added(sum, *traffic))
        };
        let minutes = all.minutes.iter().map(|(&at, by_tenant)| (at, sum(by_tenant))).collect();
        let waiting = all.waiting.iter().filter(|(tenant, _)| is_seen(tenant)).map(|(_, waiting)| waiting).sum();
        Ok(Picture { as_of: all.as_of, minutes, waiting })
    }

    /// What happened at these destinations, in the same order.
    pub(crate) async fn of(
        &self,
        store: &dyn Store,
        ids: &[DestinationId],
        now: Timestamp,
    ) -> StoreResult<Vec<Minutes>> {
        let mut rows = self.rows.lock().await;
        let is_old = |row: &Known| row.read.elapsed() >= ROW_READ_AGAIN;
        let unknown: Vec<DestinationId> = ids.iter().copied().filter(|id| rows.get(id).is_none_or(is_old)).collect();
        if !unknown.is_empty() {
            rows.retain(|_, row| row.read.elapsed() < ROW_READ_AGAIN);
            if rows.len() + unknown.len() > MAX_ROWS {
                rows.clear();
            }
            let from = first_minute(now);
            let mut found = store.traffic_of(&unknown, from, MINUTE).await?;
            let read = Instant::now();
            for id in unknown {
                let minutes = whole(from, found.remove(&id).unwrap_or_default());
                rows.insert(id, Known { read, minutes });
            }
        }
        // Those that were read before the clearing are gone.
        let of = |id: &DestinationId| rows.get(id).map(|row| row.minutes.clone()).unwrap_or_default();
        Ok(ids.iter().map(of).collect())
    }
}

impl All {
    async fn read(&mut self, store: &dyn Store, now: Timestamp) -> StoreResult<()> {
        let (first, began) = (first_minute(now), Instant::now());
        self.minutes.retain(|at, _| *at >= first);
        let mut to = now.floor(MINUTE) + MINUTE;
        while to > first && began.elapsed() < READ_FOR {
            let from = to.before(MINUTE * AT_ONCE).max(first);
            if !self.is_settled(from, to) {
                let read = store.traffic_by_tenant(from, to, MINUTE).await?;
                for at in minutes_between(from, to) {
                    self.minutes.insert(at, ByTenant { as_of: now, traffic: HashMap::new() });
                }
                for (at, tenant, traffic) in read {
                    if let Some(minute) = self.minutes.get_mut(&at) {
                        minute.traffic.insert(tenant, traffic);
                    }
                }
            }
            to = from;
        }
        // A gap would look like a time without traffic.
        let mut expected = now.floor(MINUTE);
        while self.minutes.contains_key(&expected) {
            expected = expected.before(MINUTE);
        }
        self.minutes.retain(|at, _| *at > expected);
        (self.read, self.as_of) = (Some(Instant::now()), now);
        Ok(())
    }

    /// Whether all these minutes are known and do not change any more.
    fn is_settled(&self, from: Timestamp, to: Timestamp) -> bool {
        let is_settled =
            |at: Timestamp| self.minutes.get(&at).is_some_and(|minute| minute.as_of >= at + MINUTE + SETTLES_AFTER);
        minutes_between(from, to).all(is_settled)
    }
}

fn first_minute(now: Timestamp) -> Timestamp {
    now.floor(MINUTE).before(MINUTE * (MINUTES - 1))
}

fn minutes_between(from: Timestamp, to: Timestamp) -> impl Iterator<Item = Timestamp> {
    std::iter::successors(Some(from), |at| Some(*at + MINUTE)).take_while(move |at| *at < to)
}

/// Every minute, also those in which nothing happened.
fn whole(from: Timestamp, read: Minutes) -> Minutes {
    let by: HashMap<Timestamp, Traffic> = read.into_iter().collect();
    let of = |at| (at, by.get(&at).copied().unwrap_or_default());
    minutes_between(from, from + MINUTE * MINUTES).map(of).collect()
}

fn added(a: Traffic, b: Traffic) -> Traffic {
    Traffic {
        sends: a.sends + b.sends,
        delivered: a.delivered + b.delivered,
        failed: a.failed + b.failed,
        dead: a.dead + b.dead,
        arrivals: a.arrivals + b.arrivals,
        backlog_change: a.backlog_change + b.backlog_change,
        throttled: a.throttled + b.throttled,
    }
}
