//! The gauge of destinations whose deliveries end as dead letters.
//!
//! Of each destination, not of all together: with thousands of destinations, one that loses everything hardly changes the
//! share of all.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use metrics::gauge;
use weir_core::{Clock, DestinationId, Timestamp};
use weir_store::{DeadLetterStore, StateCounts, StoreResult, TRAFFIC_BUCKET, Traffic};

use crate::run_every::{Agent, run_every};

/// The time between two passes: dead letters are no emergency.
const INTERVAL: Duration = Duration::from_secs(60);
/// The time over which dead letters are counted.
const WINDOW: Duration = Duration::from_secs(3_600);
/// How often the counts are kept, to compare later ones with.
const KEPT_EVERY: Duration = Duration::from_secs(600);
/// Fewer dead letters in the window are no alert: one event that a receiver refuses is none.
const LEAST: u64 = 10;
/// Nor are those that are a smaller share of the deliveries that ended.
const SHARE: f64 = 0.05;
/// The most destinations whose traffic is read in one pass. The others with new dead letters count without a look.
const LOOKS: usize = 100;

/// Counts the destinations with many new dead letters.
pub struct DeadLetterMeter {
    store: Arc<dyn DeadLetterStore>,
    clock: Arc<dyn Clock>,
    /// The dead letters of each destination that had some, at several instants, oldest first.
    kept: VecDeque<(Timestamp, HashMap<DestinationId, u64>)>,
}

impl DeadLetterMeter {
    pub fn new(store: Arc<dyn DeadLetterStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, kept: VecDeque::new() }
    }

    /// Sets the gauge at once and then every minute until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run_every(INTERVAL, shutdown, self).await;
    }

    /// The number of destinations with many new dead letters.
    async fn count(&mut self) -> StoreResult<usize> {
        let now = self.clock.now();
        let suspects = self.suspects(self.store.all_counts().await?, now);
        let mut losing = suspects.len().saturating_sub(LOOKS);
        for id in suspects.into_iter().take(LOOKS) {
            let (from, to) = (now.before(WINDOW).floor(TRAFFIC_BUCKET), now.floor(TRAFFIC_BUCKET) + TRAFFIC_BUCKET);
            let history = self.store.traffic(id, from, to, TRAFFIC_BUCKET).await?;
            losing += usize::from(is_losing(&history.buckets));
        }
        Ok(losing)
    }

    /// The destinations with new dead letters. Keeps the counts, to compare later ones with.
    fn suspects(&mut self, counts: HashMap<DestinationId, StateCounts>, now: Timestamp) -> Vec<DestinationId> {
        let dead = counts.into_iter().map(|(id, counts)| (id, counts.dead_letters())).filter(|(_, dead)| *dead > 0);
        let dead: HashMap<DestinationId, u64> = dead.collect();
        while self.kept.len() > 1 && self.kept.front().is_some_and(|(at, _)| now.since(*at) > WINDOW) {
            self.kept.pop_front();
        }
        // Since the first pass of this process, if it began later than an hour ago.
        let before = self.kept.front().map(|(_, before)| before);
        let new = |id, dead: u64| before.map_or(0, |before| dead.saturating_sub(before.get(id).copied().unwrap_or(0)));
        let suspects = dead.iter().filter(|(id, dead)| new(id, **dead) >= LEAST).map(|(id, _)| *id).collect();
        if self.kept.back().is_none_or(|(at, _)| now.since(*at) >= KEPT_EVERY) {
            self.kept.push_back((now, dead));
        }
        suspects
    }
}

/// Whether more than [`SHARE`] of what ended is dead.
fn is_losing(buckets: &[(Timestamp, Traffic)]) -> bool {
    let dead: u64 = buckets.iter().map(|(_, traffic)| traffic.dead).sum();
    let delivered: u64 = buckets.iter().map(|(_, traffic)| traffic.delivered).sum();
    dead as f64 > SHARE * (dead + delivered) as f64
}

impl Agent for DeadLetterMeter {
    async fn make_pass(&mut self) {
        match self.count().await {
            Ok(losing) => gauge!("weir_dead_letter_destinations").set(losing as f64),
            Err(error) => tracing::debug!(%error, "could not count dead letters; the gauge keeps its value"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use weir_core::DeliveryState;
    use weir_store::{Counters, Health, Latencies, RecentTraffic, TrafficHistory, TrafficLog};

    use super::*;

    /// The dead letters of each destination, and how many deliveries of each were delivered in the last hour.
    #[derive(Default)]
    struct Fake {
        dead: Mutex<HashMap<DestinationId, u64>>,
        delivered: u64,
        looks: Mutex<usize>,
    }

    #[async_trait]
    impl Counters for Fake {
        async fn all_counts(&self) -> StoreResult<HashMap<DestinationId, StateCounts>> {
            let dead = self.dead.lock().unwrap();
            Ok(StateCounts::of_rows(dead.iter().map(|(id, dead)| (*id, DeliveryState::Dead, *dead))))
        }

        async fn counts(&self, _: &[DestinationId]) -> StoreResult<Vec<StateCounts>> {
            unreachable!("all counts are read at once")
        }

        async fn oldest_waiting(&self, _: &[DestinationId]) -> StoreResult<Vec<Option<Timestamp>>> {
            unreachable!("nothing waits")
        }

        async fn count_by_scan(&self) -> StoreResult<HashMap<DestinationId, StateCounts>> {
            unreachable!("the meter reads counters")
        }

        async fn due_positions(
            &self,
            _: DestinationId,
            _: &[weir_core::DeliveryId],
            _: u32,
            _: Timestamp,
        ) -> StoreResult<weir_store::DuePositions> {
            unreachable!("no delivery is shown")
        }
    }

    #[async_trait]
    impl TrafficLog for Fake {
        async fn traffic(
            &self,
            id: DestinationId,
            from: Timestamp,
            to: Timestamp,
            _: Duration,
        ) -> StoreResult<TrafficHistory> {
            assert!(to.since(from) >= WINDOW && to.since(from) <= WINDOW + TRAFFIC_BUCKET * 2);
            *self.looks.lock().unwrap() += 1;
            let dead = self.dead.lock().unwrap()[&id];
            let traffic = Traffic { dead, delivered: self.delivered, ..Traffic::default() };
            Ok(TrafficHistory { buckets: vec![(from, traffic)], backlog: 0 })
        }

        async fn recent_traffic(&self, _: Timestamp) -> StoreResult<HashMap<DestinationId, RecentTraffic>> {
            unreachable!("only suspects are read")
        }

        async fn latencies(
            &self,
            _: DestinationId,
            _: Timestamp,
            _: Timestamp,
            _: Duration,
        ) -> StoreResult<Vec<(Timestamp, Latencies)>> {
            unreachable!("only traffic is read")
        }

        async fn traffic_of(
            &self,
            _: &[DestinationId],
            _: Timestamp,
            _: Duration,
        ) -> StoreResult<HashMap<DestinationId, Vec<(Timestamp, Traffic)>>> {
            unreachable!("suspects are read one by one")
        }

        async fn traffic_by_tenant(
            &self,
            _: Timestamp,
            _: Timestamp,
            _: Duration,
        ) -> StoreResult<Vec<(Timestamp, String, Traffic)>> {
            unreachable!("only suspects are read")
        }

        async fn health(&self, _: DestinationId, _: Timestamp) -> StoreResult<Health> {
            unreachable!("only traffic is read")
        }

        async fn roll_up_traffic(&self, _: Timestamp) -> StoreResult<bool> {
            unreachable!("the meter only reads")
        }
    }

    struct Steps(Mutex<Timestamp>);

    impl Clock for Steps {
        fn now(&self) -> Timestamp {
            *self.0.lock().unwrap()
        }

        fn wall(&self) -> Timestamp {
            self.now()
        }
    }

    fn id(number: u8) -> DestinationId {
        DestinationId::from_bytes([number; 16])
    }

    /// The minute, the dead letters of each destination, and how many destinations then count.
    type Step<'a> = (u64, &'a [(u8, u64)], usize);

    async fn counted(delivered: u64, steps: &[Step<'_>]) -> usize {
        let store = Arc::new(Fake { delivered, ..Fake::default() });
        let clock = Arc::new(Steps(Mutex::new(Timestamp::from_secs(1_000_000))));
        let mut meter = DeadLetterMeter::new(store.clone(), clock.clone());
        for (minute, dead, expected) in steps {
            *clock.0.lock().unwrap() = Timestamp::from_secs(1_000_000) + Duration::from_secs(60 * minute);
            *store.dead.lock().unwrap() = dead.iter().map(|(number, dead)| (id(*number), *dead)).collect();
            assert_eq!(meter.count().await.unwrap(), *expected, "minute {minute}");
        }
        *store.looks.lock().unwrap()
    }

    #[tokio::test]
    async fn new_dead_letters_count_until_they_are_an_hour_old() {
        // The first destination had a hundred before the process began.
        let looks = counted(
            20,
            &[
                (0, &[(1, 100)], 0),
                (1, &[(1, 105), (2, 9)], 0),
                (2, &[(1, 105), (2, 10), (3, 30)], 2),
                (50, &[(1, 105), (2, 10), (3, 30)], 2),
                // Replayed.
                (51, &[(1, 105), (2, 2), (3, 30)], 1),
                (80, &[(1, 105), (2, 2), (3, 30)], 0),
            ],
        );
        assert_eq!(looks.await, 5, "only destinations with new dead letters are looked at");
    }

    #[tokio::test]
    async fn a_small_share_of_many_deliveries_does_not_count() {
        counted(1_000, &[(0, &[], 0), (1, &[(1, 40)], 0), (2, &[(1, 60)], 1)]).await;
    }
}
