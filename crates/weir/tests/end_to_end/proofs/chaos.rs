//! Many faults while a backlog drains: killed processes, a suspended worker, a lost Redis, a crash of PostgreSQL. The
//! receivers get every event and no window above a limit, and no permit or job remains afterwards.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use serde_json::{Value, json};
use weir_test_support::Postgres;

use crate::support::{App, Arrival, Fleet, Machine, Receiver, assert_cap_with, eventually, now};

const SECOND: Duration = Duration::from_secs(1);
const ROLES: [&str; 8] = ["api", "api", "scheduler", "scheduler", "worker", "worker", "worker", "worker"];
const APIS: usize = 2;
const FIRST_WORKER: usize = 4;
const EVENTS: usize = 50_000;
/// Events in one request.
const BATCH: usize = 500;
const TIMEOUT_MS: u32 = 4_000;
const KILLS: usize = 24;
/// The longest time without an ended delivery after the last fault. Claims that only a lost Redis knew are resolved
/// when they expire, a minute plus the timeout after the claim. Claims of a dead process are resolved within ten
/// seconds.
const RECOVERED: Duration = Duration::from_secs(90);
/// The time from a send to the commit of its record on a busy machine. It takes longer while Redis or PostgreSQL is
/// down, or when the machine loses CPU time.
const RECORDED_WITHIN: Duration = Duration::from_millis(1_000);
const RECORDED_IN_FAULT: Duration = Duration::from_secs(8);

/// A kind of destination: the number of destinations, their limit, and the events for each.
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

/// The current URLs of the API.
type Urls = Arc<Mutex<Vec<String>>>;

/// The faults that explain a send without a recorded outcome.
#[derive(Default)]
struct Faults {
    machine_was_disturbed: bool,
    workers_killed: Vec<Instant>,
    servers_down: Vec<(Instant, Instant)>,
    postgres_crashed: Vec<Instant>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_every_kind_break_no_limit_lose_nothing_and_leave_no_permits() {
    let seed: u64 =
        std::env::var("WEIR_TEST_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().expect("a number"));
    eprintln!("to repeat the choices: WEIR_TEST_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let postgres = Postgres::start().await.unwrap();
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
    chaos.inject_faults(&mut rng).await;
    let over = now();
    let accepted = producer.await.expect("the producer ends");
    assert_eq!(accepted.len(), EVENTS);
    let Chaos { fleet, members, mut faults, .. } = chaos;
    faults.machine_was_disturbed = !machine.was_undisturbed();
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

/// The events of all targets in random order. Each has one destination and an idempotency key.
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

/// Posts like a correct producer: repeats a batch with the same keys until it is answered. Returns the event ids by
/// their keys.
async fn produce(urls: Urls, events: Vec<Value>) -> HashMap<String, String> {
    let http = crate::support::http_client().timeout(SECOND * 5).build().expect("a client");
    let mut accepted = HashMap::new();
    for (turn, batch) in events.chunks(BATCH).enumerate() {
        let mut turn = turn;
        let ids = loop {
            let url = urls.lock()[turn % APIS].clone();
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

/// The ids of the events; `None` when the events may not have been stored.
async fn post(http: &reqwest::Client, url: &str, batch: &[Value]) -> Option<Vec<String>> {
    let body = json!({ "events": batch });
    let response = http.post(format!("{url}/v1/events/batch")).json(&body).send().await.ok()?;
    if response.status() == 503 {
        return None;
    }
    assert_eq!(response.status(), 202, "no request of the producer is invalid");
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
    /// One kill a second, and the other faults in between.
    async fn inject_faults(&mut self, rng: &mut StdRng) {
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

    /// Sends SIGKILL and starts a replacement as soon as possible.
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
            self.urls.lock()[member] = another.url.clone();
        }
        self.members[member] = another;
    }

    async fn lose_redis(&mut self) {
        let from = now();
        self.fleet.redis.kill().await.unwrap();
        self.fleet.redis.start_again().await.unwrap();
        self.faults.servers_down.push((from, now()));
    }

    async fn cut_postgres_off(&mut self) {
        let from = now();
        self.faults.postgres_crashed.push(from);
        self.postgres.crash().await.unwrap();
        self.postgres.start_again().await.unwrap();
        self.faults.servers_down.push((from, now()));
    }
}

/// The number of deliveries that have not ended, from the first pages; at least one while a restarting PostgreSQL
/// cannot answer.
async fn under_way(api: &App) -> usize {
    let mut count = 0;
    for state in ["pending", "retrying", "delivering"] {
        let page = api.try_get(&format!("/v1/deliveries?state={state}&limit=200")).await;
        count += page.map_or(1, |page| page["data"].as_array().expect("a page").len());
    }
    count
}

/// The audit judges the recorded send starts, without slack. If a worker is killed, nobody records the starts of its last
/// sends, and only their arrivals can be judged. Processes start and end all the time here, so a worker may wait for a
/// processor between the start of a send and its write. One send too many in a window of 50 would arrive 20 ms early.
const SENDER_SLACK: Duration = Duration::from_millis(15);

fn judge_caps(target: &Target, arrivals: &[Arrival]) {
    if let Some((limit, period)) = target.kind.limit {
        let window = if period == "second" { SECOND } else { SECOND * 60 };
        assert_cap_with(SENDER_SLACK, arrivals, limit as usize, window);
    }
}

/// Asserts that every event arrived, and that a fault explains each duplicate: the worker was killed before the record
/// was made, or PostgreSQL before the record was on disk. Returns the number of duplicates.
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
                "{id} to {} was sent twice without a fault; {}",
                target.path,
                faults.nearest(sent)
            );
        }
    }
    doubled
}

impl Faults {
    /// Details for the failure message.
    fn nearest(&self, sent: Instant) -> String {
        let next = self.workers_killed.iter().filter(|&&killed| killed > sent).min();
        let after = next.map(|&killed| killed - sent);
        format!(
            "the next kill of a worker was {after:?} later; the machine was disturbed: {}",
            self.machine_was_disturbed
        )
    }

    /// Whether a fault may have lost the record of a send at this instant.
    fn explain(&self, sent: Instant) -> bool {
        let is_down =
            |&(from, until): &(Instant, Instant)| sent + RECORDED_WITHIN >= from && sent <= until + RECORDED_WITHIN;
        let is_slow = self.machine_was_disturbed || self.servers_down.iter().any(is_down);
        let within = if is_slow { RECORDED_IN_FAULT } else { RECORDED_WITHIN };
        // A crash of PostgreSQL may lose claims and records of the last second.
        self.postgres_crashed.iter().any(|&crashed| sent <= crashed && crashed <= sent + RECORDED_WITHIN * 2)
            || self.workers_killed.iter().any(|&killed| sent <= killed + SECOND / 10 && killed <= sent + within)
    }
}

async fn assert_nothing_is_left(fleet: &Fleet, api: &App) {
    // Jobs stop at their next run, and permits of dead workers are removed every ten seconds.
    let gauges = ["weir_scheduled_jobs", "weir_queued_permits", "weir_in_flight_sends", "weir_delivery_queue_depth"];
    eventually("nothing is left in the queue", SECOND * 15, async || {
        for gauge in gauges {
            if api.metric(gauge).await > 0.0 {
                return false;
            }
        }
        fleet.entries().await == "0 0"
    })
    .await;
}
