//! Everything at once: processes killed, a worker that stalls, Redis lost, PostgreSQL cut off, while a backlog drains. The
//! receiver sees no window above its cap and every event; and when it is over nothing is left behind.

#[path = "support/harness.rs"]
mod support;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use serde_json::{Value, json};
use support::{App, Arrival, Fleet, Machine, Receiver, assert_cap, eventually, now, servers::Postgres};

const SECOND: Duration = Duration::from_secs(1);
const ROLES: [&str; 8] = ["api", "api", "scheduler", "scheduler", "worker", "worker", "worker", "worker"];
const APIS: usize = 2;
const FIRST_WORKER: usize = 4;
const EVENTS: usize = 50_000;
/// In one request.
const BATCH: usize = 500;
const TIMEOUT_MS: u32 = 4_000;
const KILLS: usize = 24;
/// How long at most nothing ends after the last fault, while something is left. What a lost Redis knew of is found once its claim
/// has expired, a minute and the timeout after it was made; what a dead process had, within ten seconds.
const RECOVERED: Duration = Duration::from_secs(90);
/// From a send to the commit of its record, on a machine this busy; while Redis or PostgreSQL is away it takes longer, and where others
/// have some of the machine.
const UNRECORDED: Duration = Duration::from_millis(1_000);
const UNRECORDED_IN_FAULT: Duration = Duration::from_secs(8);

/// A kind of destination: how many there are, their limit, how many events each of them gets.
struct Kind {
    count: usize,
    limit: Option<(u32, &'static str)>,
    events: usize,
}

/// 200 destinations and 50,000 events, which take half a minute when nothing fails.
const KINDS: [Kind; 9] = [
    Kind { count: 2, limit: Some((200, "second")), events: 6_000 },
    Kind { count: 4, limit: Some((100, "second")), events: 3_000 },
    Kind { count: 6, limit: Some((50, "second")), events: 1_500 },
    Kind { count: 12, limit: Some((20, "second")), events: 600 },
    Kind { count: 30, limit: Some((5, "second")), events: 150 },
    Kind { count: 60, limit: Some((1, "second")), events: 35 },
    Kind { count: 20, limit: Some((60, "minute")), events: 30 },
    Kind { count: 10, limit: Some((300, "minute")), events: 120 },
    Kind { count: 56, limit: None, events: 25 },
];

struct Target {
    id: String,
    path: String,
    kind: &'static Kind,
}

/// Where the API answers at the moment.
type Urls = Arc<Mutex<Vec<String>>>;

/// When what happened that explains a send whose outcome nobody recorded.
#[derive(Default)]
struct Faults {
    machine_was_away: bool,
    workers_killed: Vec<Instant>,
    servers_away: Vec<(Instant, Instant)>,
    postgres_crashed: Vec<Instant>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_every_kind_exceed_nothing_lose_nothing_and_leave_nothing_behind() {
    let seed: u64 =
        std::env::var("WEIR_TEST_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().expect("a number"));
    eprintln!("to repeat the choices: WEIR_TEST_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let postgres = Postgres::start().await;
    let fleet = Fleet::on(postgres.url()).await;
    let receiver = Receiver::start().await;
    let mut members = Vec::new();
    for role in ROLES {
        members.push(fleet.launch(role).await);
    }
    let targets = create_targets(&members[0], &receiver).await;
    let urls: Urls = Arc::new(Mutex::new(members[..APIS].iter().map(|api| api.url.clone()).collect()));
    let producer = tokio::spawn(produce(urls.clone(), shuffled_events(&targets, &mut rng)));
    receiver_has(&receiver, 2_000, SECOND * 20).await;

    let machine = Machine::watched();
    let mut chaos = Chaos { fleet, postgres, members, urls, faults: Faults::default() };
    chaos.reign(&mut rng).await;
    let over = now();
    let accepted = producer.await.expect("the producer ends");
    assert_eq!(accepted.len(), EVENTS);
    let Chaos { fleet, members, mut faults, .. } = chaos;
    faults.machine_was_away = !machine.was_there();
    let api = &members[0];
    let (mut left, mut since) = (usize::MAX, over);
    while left > 0 {
        assert!(since.elapsed() < RECOVERED, "none of {left} deliveries has ended for {:?}", since.elapsed());
        tokio::time::sleep(SECOND).await;
        let before = std::mem::replace(&mut left, under_way(api).await);
        if left < before {
            since = now();
        }
    }

    let mut doubled = 0;
    for target in &targets {
        let arrivals = receiver.arrivals(&target.path);
        api.assert_audit_clean(&target.id).await;
        judge_caps(target, &arrivals);
        doubled += judge_deliveries(target, &arrivals, &accepted, &faults);
    }
    eprintln!("{doubled} sent twice; the last delivered {:?} after the last fault", over.elapsed());
    assert_nothing_is_left(&fleet, api).await;
}

async fn receiver_has(receiver: &Receiver, count: usize, within: Duration) {
    eventually("the backlog drains", within, async || receiver.total() >= count).await;
}

async fn create_targets(api: &App, receiver: &Receiver) -> Vec<Target> {
    let mut targets = Vec::new();
    for kind in &KINDS {
        for _ in 0..kind.count {
            let path = format!("/{}", targets.len());
            let limits: Vec<Value> =
                kind.limit.iter().map(|(limit, period)| json!({"limit": limit, "period": period})).collect();
            let settings = json!({"url": receiver.url(&path), "rate_limits": limits, "timeout_ms": TIMEOUT_MS});
            targets.push(Target { id: api.destination(settings).await, path, kind });
        }
    }
    targets
}

/// The events of all targets, in any order; each names its destination and its key.
fn shuffled_events(targets: &[Target], rng: &mut StdRng) -> Vec<Value> {
    let of = |target: &Target| {
        let (id, path) = (target.id.clone(), target.path.clone());
        (0..target.kind.events).map(move |number| {
            json!({"type": "chaos", "data": number, "destinations": [id], "idempotency_key": format!("{path} {number}")})
        })
    };
    let mut events: Vec<Value> = targets.iter().flat_map(of).collect();
    events.shuffle(rng);
    events
}

/// Posts as a producer should: the same again, with the same key, until it is answered. The event ids by their keys.
async fn produce(urls: Urls, events: Vec<Value>) -> HashMap<String, String> {
    let http = reqwest::Client::builder().no_proxy().timeout(SECOND * 5).build().expect("a client");
    let mut accepted = HashMap::new();
    for (turn, batch) in events.chunks(BATCH).enumerate() {
        let mut turn = turn;
        let ids = loop {
            let url = urls.lock().unwrap_or_else(PoisonError::into_inner)[turn % APIS].clone();
            if let Some(ids) = post(&http, &url, batch).await {
                break ids;
            }
            turn += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let keys = batch.iter().map(|event| event["idempotency_key"].as_str().expect("a key").to_owned());
        accepted.extend(keys.zip(ids));
    }
    accepted
}

/// The ids of the events, or nothing when they may not have been stored.
async fn post(http: &reqwest::Client, url: &str, batch: &[Value]) -> Option<Vec<String>> {
    let body = json!({ "events": batch });
    let response = http.post(format!("{url}/v1/events/batch")).json(&body).send().await.ok()?;
    if response.status() == 503 {
        return None;
    }
    assert_eq!(response.status(), 202, "no fault is the producer's");
    let answer: Value = response.json().await.ok()?;
    let id = |event: &Value| event["id"].as_str().unwrap_or_else(|| panic!("refused: {event}")).to_owned();
    Some(answer["events"].as_array()?.iter().map(id).collect())
}

struct Chaos {
    fleet: Fleet,
    postgres: Postgres,
    members: Vec<App>,
    urls: Urls,
    faults: Faults,
}

impl Chaos {
    /// A kill a second, and the other faults in between.
    async fn reign(&mut self, rng: &mut StdRng) {
        let began = now();
        let mut seconds = tokio::time::interval(SECOND);
        let mut stalled = None;
        for kill in 0..KILLS {
            seconds.tick().await;
            match kill {
                4 | 16 => self.lose_redis().await,
                11 => self.cut_postgres_off().await,
                7 => {
                    let worker = rng.random_range(FIRST_WORKER..ROLES.len());
                    self.members[worker].signal("STOP").await;
                    stalled = Some(worker);
                }
                10 => {
                    if let Some(worker) = stalled.take() {
                        self.members[worker].signal("CONT").await;
                    }
                }
                _ => {}
            }
            let others: Vec<usize> = (0..ROLES.len()).filter(|member| Some(*member) != stalled).collect();
            let victim = others[rng.random_range(0..others.len())];
            eprintln!("{:?}: kill {kill} takes {} {victim}", began.elapsed(), ROLES[victim]);
            self.kill(victim).await;
        }
    }

    /// SIGKILL, and another at once, or as soon as it can be started.
    async fn kill(&mut self, member: usize) {
        let role = ROLES[member];
        if role == "worker" {
            self.faults.workers_killed.push(now());
        }
        self.members[member].signal("KILL").await;
        let another = loop {
            match self.fleet.try_launch(role).await {
                Ok(another) => break another,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        if member < APIS {
            self.urls.lock().unwrap_or_else(PoisonError::into_inner)[member] = another.url.clone();
        }
        self.members[member] = another;
    }

    async fn lose_redis(&mut self) {
        let from = now();
        self.fleet.redis.kill().await;
        self.fleet.redis.start_again().await;
        self.faults.servers_away.push((from, now()));
    }

    async fn cut_postgres_off(&mut self) {
        let from = now();
        self.faults.postgres_crashed.push(from);
        self.postgres.crash().await;
        self.postgres.start_again().await;
        self.faults.servers_away.push((from, now()));
    }
}

/// Deliveries that have not ended, of the first pages; at least one while PostgreSQL, just restarted, cannot tell.
async fn under_way(api: &App) -> usize {
    let mut count = 0;
    for state in ["pending", "retrying", "delivering"] {
        let page = api.try_get(&format!("/v1/deliveries?state={state}&limit=200")).await;
        count += page.map_or(1, |page| page["data"].as_array().expect("a page").len());
    }
    count
}

fn judge_caps(target: &Target, arrivals: &[Arrival]) {
    if let Some((limit, period)) = target.kind.limit {
        let window = if period == "second" { SECOND } else { SECOND * 60 };
        assert_cap(arrivals, limit as usize, window);
    }
}

/// Every event arrived, and what arrived twice is explained: its sender was killed before the record was made, or
/// PostgreSQL before it was on the disk. Answers how
/// many sends were one too many.
fn judge_deliveries(
    target: &Target,
    arrivals: &[Arrival],
    accepted: &HashMap<String, String>,
    faults: &Faults,
) -> usize {
    let mut times: HashMap<&str, Vec<Instant>> = HashMap::new();
    for arrival in arrivals {
        times.entry(arrival.header("webhook-id")).or_default().push(arrival.at);
    }
    let expected: HashSet<&str> =
        (0..target.kind.events).map(|number| accepted[&format!("{} {number}", target.path)].as_str()).collect();
    assert_eq!(times.keys().copied().collect::<HashSet<_>>(), expected, "{}", target.path);
    let mut doubled = 0;
    for (id, mut times) in times {
        times.sort_unstable();
        for &sent in &times[..times.len() - 1] {
            doubled += 1;
            assert!(
                faults.explain(sent),
                "{id} to {} was sent twice for no reason; {}",
                target.path,
                faults.nearest(sent)
            );
        }
    }
    doubled
}

impl Faults {
    /// For whoever has to find out.
    fn nearest(&self, sent: Instant) -> String {
        let next = self.workers_killed.iter().filter(|&&killed| killed > sent).min();
        let after = next.map(|&killed| killed - sent);
        format!("the next kill of a worker came {after:?} after; the machine was away: {}", self.machine_was_away)
    }

    /// Whether a send at this instant may have lost its record with its worker.
    fn explain(&self, sent: Instant) -> bool {
        let is_away = |&(from, until): &(Instant, Instant)| sent + UNRECORDED >= from && sent <= until + UNRECORDED;
        let is_slow = self.machine_was_away || self.servers_away.iter().any(is_away);
        let unrecorded = if is_slow { UNRECORDED_IN_FAULT } else { UNRECORDED };
        // What a crash of PostgreSQL takes of the last second are claims and records.
        self.postgres_crashed.iter().any(|&crashed| sent <= crashed && crashed <= sent + UNRECORDED * 2)
            || self.workers_killed.iter().any(|&killed| sent <= killed + SECOND / 10 && killed <= sent + unrecorded)
    }
}

async fn assert_nothing_is_left(fleet: &Fleet, api: &App) {
    // Jobs stop with their next run, and what dead workers left is dropped every ten seconds.
    let gauges = ["weir_scheduled_jobs", "weir_queued_permits", "weir_in_flight_sends", "weir_delivery_queue_depth"];
    eventually("nothing is left in the queue", SECOND * 15, async || {
        for gauge in gauges {
            if api.metric(gauge).await > 0.0 {
                return false;
            }
        }
        fleet.redis.entries().await == "0 0"
    })
    .await;
}
