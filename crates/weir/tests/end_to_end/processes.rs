//! Processes that die or lose their connection, on PostgreSQL and Redis: their claims and permits are resolved within
//! ten seconds, and those of other processes are not touched.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::support::{Answer, App, Arrival, Fleet, Receiver, assert_cap, cases::limit, eventually};

const SECOND: Duration = Duration::from_secs(1);
/// The time from a SIGKILL until the claims and permits of the process are resolved.
const RESOLVED: Duration = Duration::from_secs(10);

fn times_arrived(arrivals: &[Arrival]) -> HashMap<&str, usize> {
    let mut times = HashMap::new();
    for arrival in arrivals {
        *times.entry(arrival.header("webhook-id")).or_default() += 1;
    }
    times
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_of_a_killed_worker_are_repeated_by_another_whose_long_requests_continue() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    receiver.script("/long", [Answer::status(200).after(SECOND * 40)]);
    let api = fleet.launch("api").await;
    let _scheduler = fleet.launch("scheduler").await;
    let (killed, survivor) = (fleet.launch("worker").await, fleet.launch("worker").await);
    let settings =
        json!({"url": receiver.url("/long"), "timeout_ms": 120_000, "max_in_flight": 40, "retry": {"base_ms": 1}});
    let id = api.destination(settings).await;
    let taken = async |worker: &App| worker.metric("weir_permits_taken_total").await as usize;
    let mut sent = 0;
    while taken(&killed).await == 0 || taken(&survivor).await == 0 {
        api.events("long", 4).await;
        sent += 4;
        receiver.wait_for("/long", sent, SECOND * 10).await;
    }
    let of_killed = taken(&killed).await;

    killed.kill().await;
    receiver.wait_for("/long", sent + of_killed, RESOLVED).await;
    // If the survivor were declared dead, its sends would be repeated in this time.
    tokio::time::sleep(SECOND * 8).await;
    let arrivals = receiver.arrivals("/long");
    assert_eq!(arrivals.len(), sent + of_killed, "the sends of the survivor are not repeated");
    assert_eq!(times_arrived(&arrivals).values().filter(|times| **times == 2).count(), of_killed);
    api.drained(&id, SECOND * 60).await;
    let deliveries = api.get("/v1/deliveries?limit=200").await;
    let mut attempts: Vec<_> =
        deliveries["data"].as_array().unwrap().iter().map(|one| one["attempt_count"].as_u64().unwrap()).collect();
    attempts.sort_unstable();
    assert_eq!(attempts, [vec![1; sent - of_killed], vec![2; of_killed]].concat(), "an unknown outcome counts");
    eventually("nothing is left", SECOND * 5, async || fleet.entries().await == "0 0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unpublished_claims_of_a_killed_scheduler_are_resolved() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    // It registers first, so its id is the lowest.
    let killed = fleet.launch("scheduler").await;
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await];
    let id = api.destination(json!({"url": receiver.url("/claimed"), "paused": true})).await;
    api.events("claimed", 20).await;
    // Stands for a scheduler that claims and dies before it publishes.
    fleet
        .sql(
            "UPDATE deliveries SET state = 1, claim_epoch = claim_epoch + 1, claimed_by = (SELECT min(id) FROM processes), \
             claim_expires_at = next_attempt_at + 3600000000000",
        )
        .await;
    api.patch(&id, json!({"paused": false})).await;
    tokio::time::sleep(SECOND * 8).await;
    assert_eq!(receiver.count("/claimed"), 0, "its claims are kept while it lives");
    killed.kill().await;
    receiver.wait_for("/claimed", 20, RESOLVED).await;
    api.drained(&id, SECOND * 5).await;
    assert_eq!(receiver.count("/claimed"), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_permits_of_a_killed_scheduler_are_sent_once() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    receiver.script("/published", [Answer::status(200).after(SECOND * 20)]);
    let api = fleet.launch("api").await;
    let killed = fleet.launch("scheduler").await;
    let _worker = fleet.launch("worker").await;
    let settings =
        json!({"url": receiver.url("/published"), "timeout_ms": 60_000, "rate_limits": limit(100, "second")});
    let id = api.destination(settings).await;
    api.events("published", 20).await;
    receiver.wait_for("/published", 20, SECOND * 10).await;
    let _other = fleet.launch("scheduler").await;
    killed.kill().await;
    api.drained(&id, SECOND * 40).await;
    assert_eq!(
        receiver.count("/published"),
        20,
        "requests of a living worker continue, although their claims were a dead scheduler's"
    );
}

/// The claims of a worker's requests were made by other processes, and Redis loses its permits. Nothing but the worker
/// knows of the requests.
async fn requests_under_way_when_redis_is_flushed(end_claimers: impl AsyncFnOnce(App, App)) {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    receiver.script("/flushed", [Answer::status(200).after(SECOND * 14)]);
    let (api, scheduler, holder) =
        (fleet.launch("api").await, fleet.launch("scheduler").await, fleet.launch("worker").await);
    let settings = json!({"url": receiver.url("/flushed"), "timeout_ms": 60_000, "rate_limits": limit(100, "second")});
    let id = api.destination(settings).await;
    let others = [fleet.launch("api").await, fleet.launch("scheduler").await];
    api.events("flushed", 20).await;
    receiver.wait_for("/flushed", 20, SECOND * 20).await;
    fleet.redis.ask("FLUSHALL").await.unwrap();
    end_claimers(api, scheduler).await;
    // The worker finishes its requests, although it is told to stop.
    holder.signal("TERM").await;
    let _replacement = fleet.launch("worker").await;
    others[0].drained(&id, SECOND * 40).await;
    assert_eq!(receiver.count("/flushed"), 20, "requests of a living worker are not repeated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_requests_are_sent_once_when_redis_is_flushed_and_the_processes_that_claimed_them_are_killed() {
    requests_under_way_when_redis_is_flushed(async |api, scheduler| {
        api.kill().await;
        scheduler.kill().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_requests_are_sent_once_when_redis_is_flushed_and_the_processes_that_claimed_them_stop() {
    requests_under_way_when_redis_is_flushed(async |api, scheduler| {
        assert!(scheduler.terminate().await.success());
        assert!(api.terminate().await.success());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_with_a_lost_announcement_takes_effect_within_two_seconds_on_a_parked_job() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await];
    api.destination(json!({"url": receiver.url("/parked"), "rate_limits": limit(1, "day")})).await;
    api.events("parked", 10).await;
    receiver.wait_for("/parked", 1, SECOND * 10).await;
    // After this time the job is parked until tomorrow.
    tokio::time::sleep(SECOND * 2).await;
    // Stands for an API process that dies after the commit and before the announcement.
    fleet
        .sql(
            r#"UPDATE destinations SET rate_limits = '[{"limit":100,"period":"second","burst":1}]', version = DEFAULT,
               updated_at = (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"#,
        )
        .await;
    receiver.wait_for("/parked", 10, SECOND * 3).await;
}

/// A TCP proxy to a server, whose connections the test can cut.
struct Proxy {
    port: u16,
    connections: Arc<Mutex<Option<JoinSet<()>>>>,
}

impl Proxy {
    async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::new(Mutex::new(Some(JoinSet::new())));
        let open = connections.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = server.clone();
                // While the proxy is cut, new connections are closed at once.
                if let Some(connections) = &mut *open.lock() {
                    connections.spawn(async move {
                        let mut server = TcpStream::connect(server).await.expect("the server listens");
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    });
                }
            }
        });
        Self { port, connections }
    }

    fn set(&self, connections: Option<JoinSet<()>>) {
        *self.connections.lock() = connections;
    }

    fn cut(&self) {
        self.set(None);
    }

    fn restore(&self) {
        self.set(Some(JoinSet::new()));
    }
}

/// These tests judge times.
mod timed {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn unsent_permits_of_a_killed_worker_count_as_no_attempt() {
        let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
        let api = fleet.launch("api").await;
        let _scheduler = fleet.launch("scheduler").await;
        let killed = fleet.launch("worker").await;
        let id = api.destination(json!({"url": receiver.url("/slow"), "rate_limits": limit(2, "second")})).await;
        api.events("slow", 30).await;
        receiver.wait_for("/slow", 3, SECOND * 10).await;
        killed.kill().await;
        let _other = fleet.launch("worker").await;
        let before = receiver.count("/slow");
        receiver.wait_for("/slow", before + 1, RESOLVED).await;
        api.drained(&id, SECOND * 40).await;
        assert_cap(&receiver.arrivals("/slow"), 2, SECOND);
        api.assert_audit_clean(&id).await;
        let deliveries = api.get("/v1/deliveries?limit=200").await;
        let again = deliveries["data"].as_array().unwrap().iter().filter(|one| one["attempt_count"] != 1).count();
        assert!(again <= 1, "{again} were counted, where at most one was in flight");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_worker_cut_off_from_the_store_stops_sending_and_registers_again_later() {
        const EVENTS: usize = 450;
        let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
        let api = fleet.launch("api").await;
        let _scheduler = fleet.launch("scheduler").await;
        let proxy = Proxy::to(fleet.database_address()).await;
        let database = fleet.database_url_at(proxy.port);
        let cut_off = fleet.launch_with("worker", &[("WEIR_DATABASE_URL", &database)]).await;
        let id = api.destination(json!({"url": receiver.url("/cut"), "rate_limits": limit(20, "second")})).await;
        api.events("cut", EVENTS).await;
        receiver.wait_for("/cut", 40, SECOND * 20).await;

        proxy.cut();
        tokio::time::sleep(SECOND * 5).await;
        let stopped = receiver.count("/cut");
        tokio::time::sleep(SECOND * 2).await;
        assert_eq!(
            receiver.count("/cut"),
            stopped,
            "it no longer sends, because other workers may send its deliveries"
        );
        let other = fleet.launch("worker").await;
        receiver.wait_for("/cut", stopped + 60, SECOND * 20).await;
        proxy.restore();
        eventually("it takes permits again", SECOND * 20, async || {
            let before = cut_off.metric("weir_permits_taken_total").await;
            tokio::time::sleep(SECOND).await;
            cut_off.metric("weir_permits_taken_total").await > before
        })
        .await;
        api.drained(&id, SECOND * 60).await;
        drop(other);
        let arrivals = receiver.arrivals("/cut");
        assert_cap(&arrivals, 20, SECOND);
        api.assert_audit_clean(&id).await;
        let times = times_arrived(&arrivals);
        assert_eq!(times.len(), EVENTS);
        // Sends that it could not record: up to four seconds of sends.
        assert!(arrivals.len() - EVENTS <= 100, "{} were sent twice", arrivals.len() - EVENTS);
    }
}
