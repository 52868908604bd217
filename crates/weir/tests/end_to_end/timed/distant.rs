//! Redis or PostgreSQL in another zone or region: their round trips cost no slots.

use std::time::Duration;

use weir_test_support::SlowLink;

use crate::support::{
    App, Fleet, Machine, Receiver, assert_cap,
    cases::{destination, limit},
    eventually, now, utilisation,
};

const SECOND: Duration = Duration::from_secs(1);
/// After the change of a round trip, the measured times follow within this time.
const SETTLED: Duration = Duration::from_secs(4);
const JUDGED: Duration = Duration::from_secs(8);

/// A fleet whose processes reach their servers through slow links.
struct Distant {
    fleet: Fleet,
    redis: SlowLink,
    database: SlowLink,
}

impl Distant {
    async fn new() -> Self {
        let fleet = Fleet::new().await;
        let address = fleet.redis.url().trim_start_matches("redis://").parse().expect("an address");
        let redis = SlowLink::to(address).await.expect("a port");
        let address = fleet.database_address().parse().expect("an address");
        let database = SlowLink::to(address).await.expect("a port");
        Self { fleet, redis, database }
    }

    async fn launch(&self, role: &str) -> App {
        let redis = format!("redis://127.0.0.1:{}", self.redis.port());
        let database = self.fleet.database_url_at(self.database.port());
        self.fleet.launch_with(role, &[("WEIR_REDIS_URL", &redis), ("WEIR_DATABASE_URL", &database)]).await
    }

    /// Judges how much of their limits destinations at 10 a second use with these round trips.
    async fn judge(&self, redis: Duration, database: Duration, least: f64) {
        let receiver = Receiver::start().await;
        let api = self.launch("api").await;
        let _others = [self.launch("scheduler").await, self.launch("worker").await, self.launch("worker").await];
        let paths: Vec<_> = (0..10).map(|number| format!("/distant-{number}")).collect();
        let mut ids = Vec::new();
        for path in &paths {
            ids.push(destination(&api, &receiver, path, limit(10, "second")).await);
            api.events(path.trim_start_matches('/'), 200).await;
        }
        self.redis.set_round_trip(redis);
        self.database.set_round_trip(database);
        tokio::time::sleep(SETTLED).await;
        let (since, machine) = (now(), Machine::watched());
        tokio::time::sleep(JUDGED).await;
        let mut used = 0.0;
        for (path, id) in paths.iter().zip(&ids) {
            let arrivals = receiver.arrivals(path);
            assert_cap(&arrivals, 10, SECOND);
            api.assert_audit_clean(id).await;
            let judged: Vec<_> = arrivals.into_iter().filter(|arrival| arrival.at >= since).collect();
            used += utilisation(&judged, 10.0, SECOND) / paths.len() as f64;
        }
        machine.judge_use(&format!("{redis:?} to Redis, {database:?} to PostgreSQL"), used, least);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_10_ms_away_costs_no_slots() {
    Distant::new().await.judge(Duration::from_millis(10), Duration::ZERO, 0.95).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_20_ms_away_costs_no_slots() {
    Distant::new().await.judge(Duration::ZERO, Duration::from_millis(20), 0.95).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_50_ms_away_costs_few_slots() {
    Distant::new().await.judge(Duration::ZERO, Duration::from_millis(50), 0.9).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_beyond_the_latency_budget_are_reported_and_change_nothing_else() {
    let distant = Distant::new().await;
    let worker = distant.launch("worker").await;
    distant.redis.set_round_trip(Duration::from_millis(40));
    distant.database.set_round_trip(Duration::from_millis(80));
    eventually("both are reported", Duration::from_secs(20), async || {
        let ready = worker.get("/readyz").await;
        assert_eq!(ready["status"], "ready");
        let warnings = ready["warnings"].as_array().map_or(0, Vec::len);
        warnings == 2
            && worker.metric("weir_queue_round_trip_seconds").await >= 0.04
            && worker.metric("weir_store_round_trip_seconds").await >= 0.08
    })
    .await;
}
