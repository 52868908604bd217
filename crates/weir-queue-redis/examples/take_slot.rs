//! What a slot costs by the number of budgets that it is taken from: in time in the process, and in CPU time of Redis.
//! And what a delivery costs Redis from its wake to its settlement, if each is one of another limit key.
//!
//! ```sh
//! WEIR_TEST_REDIS_URL=redis://localhost:6379 cargo run --release -p weir-queue-redis --example take_slot
//! ```
//!
//! The server is used by nothing else meanwhile. Each figure is the median of some rounds; the last column compares with
//! the slot that is taken from one budget.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::{
    collections::HashMap,
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::future::join_all;
use weir_core::{
    Clock, DeliveryId, Destination, DestinationId, EventId, LimitGroup, LimitGroupId, LimitKey, Limiter, Period,
    RateLimit, RateLimits, Timestamp,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::EventBody,
    limit_key::KeyLimits,
    plan::NextRun,
};
use weir_queue::{
    GroupRun, Permit, Publication, SharedQueue, SlotAnswer, SlotRequest, Terms, Turn, Wake, conformance::settings,
    memory::MemoryQueue,
};
use weir_queue_redis::{RedisConfig, RedisQueue, Topology};

type Done<T> = Result<T, Box<dyn Error>>;

/// As many as go in one call.
const PERMITS: usize = 200;
const ROUNDS: usize = 41;
/// As many limit keys with one delivery each.
const KEYS: usize = 1_000;
const LEASE: Duration = Duration::from_secs(30);
const GROUP: LimitGroupId = LimitGroupId::from_bytes([0x77; 16]);

/// From which budgets slots are taken. Each has a limit, which never binds.
struct Layout {
    name: &'static str,
    has_keys: bool,
    limit_group: Option<LimitGroupId>,
}

const LAYOUTS: [Layout; 4] = [
    Layout { name: "destination", has_keys: false, limit_group: None },
    Layout { name: "destination, group", has_keys: false, limit_group: Some(GROUP) },
    Layout { name: "key, destination", has_keys: true, limit_group: None },
    Layout { name: "key, destination, group", has_keys: true, limit_group: Some(GROUP) },
];

impl Layout {
    /// A destination of its own, so that no layout finds what another one has left.
    fn destination(&self) -> Destination {
        let mut destination = settings(&limits(), 10_000);
        let number = 1 + u8::from(self.has_keys) + 2 * u8::from(self.limit_group.is_some());
        destination.id = DestinationId::from_bytes([number; 16]);
        destination.settings.limit_group = self.limit_group;
        if self.has_keys {
            destination.keyed_at = Some(Timestamp::from_secs(1));
            destination.settings.key_limits = Some(Arc::new(KeyLimits {
                pointer: "/customer".to_owned(),
                rate_limits: limits(),
                max_in_flight: None,
                weight: 1,
                overrides: Default::default(),
            }));
        }
        destination
    }
}

fn limits() -> RateLimits {
    RateLimits::new(RateLimit::new(1_000_000, Period::SECOND).into_iter().collect()).unwrap_or_default()
}

fn group() -> Arc<LimitGroup> {
    Arc::new(LimitGroup {
        id: GROUP,
        tenant: None,
        name: "account".to_owned(),
        rate_limits: limits(),
        max_in_flight: None,
        keys_of: None,
        temporary: Default::default(),
        created_at: Timestamp::from_secs(1),
        updated_at: Timestamp::from_secs(1),
    })
}

struct Bed {
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
}

impl Bed {
    async fn permits(&self, layout: &Layout) -> Done<Vec<Permit>> {
        let destination = layout.destination();
        let key = layout.has_keys.then(|| LimitKey::new("cus_1"));
        let id = key.as_ref().map_or(destination.id, |key| key.flow_id(destination.id));
        let terms = match &key {
            Some(_) => Terms::of(&destination.flow(key.as_ref()), self.clock.now()),
            None => Terms::of(&destination, self.clock.now()),
        };
        let terms = Terms { outer: destination.outer_group(), ..terms };
        let keys = layout.has_keys.then(|| Arc::new(destination.as_group()));
        let shared: Vec<_> = keys.into_iter().chain(layout.limit_group.map(|_| group())).collect();
        self.queue.learn_group(id, layout.limit_group);
        self.queue.wake(&[Wake { destination_id: id, due: self.clock.now() }]).await?;
        let mut waiting = PERMITS;
        while waiting > 0 {
            for lease in self.queue.claim_due(16, LEASE).await?.leases {
                let seen: Vec<_> = lease.turn.iter().flat_map(Turn::groups).collect();
                let is_known = seen.len() == shared.len() && seen.iter().all(|of| of.is_known);
                let count = match lease.turn {
                    _ if shared.is_empty() => waiting,
                    Some(turn) if is_known => waiting.min(turn.permits as usize),
                    _ => 0,
                };
                waiting -= count;
                let next = match waiting {
                    0 => NextRun::Stop,
                    _ if is_known => NextRun::Paced,
                    _ => NextRun::Now,
                };
                let new = || Limiter::new(&limits());
                let recovered = lease.cursors.is_none().then(new);
                let read = |terms: &Arc<LimitGroup>| GroupRun {
                    terms: Arc::clone(terms),
                    recovered: seen.iter().find(|of| of.group == terms.id && !of.is_known).map(|_| new()),
                };
                let groups = shared.iter().map(read).collect();
                let deliveries = (0..count).map(|number| self.delivery(lease.destination_id, number as u8)).collect();
                let terms = Some(terms.clone());
                let publication = Publication { lease, terms, recovered, groups, pace: None, deliveries, next };
                self.queue.publish(vec![publication]).await?;
            }
        }
        let mut permits = Vec::new();
        while permits.len() < PERMITS {
            permits.extend(self.queue.take(PERMITS - permits.len()).await?);
        }
        Ok(permits)
    }

    fn delivery(&self, id: DestinationId, number: u8) -> ClaimedDelivery {
        let claim = Claim { delivery_id: DeliveryId::from_bytes([number; 16]), destination_id: id, epoch: 1 };
        ClaimedDelivery {
            flow_id: id,
            claim,
            event_id: EventId::from_bytes([number; 16]),
            event_created_at: self.clock.now(),
            attempts: 0,
            attempts_before: 0,
            is_replay: false,
            cost: 1,
            body: ClaimedBody::Inline(EventBody::stored(Bytes::from_static(b"{}"), 0)),
            expires_at: self.clock.now() + Duration::from_secs(60),
            destination: None,
        }
    }

    /// Microseconds for each slot. `used`: those that were used by now.
    async fn cost(&self, layout: &Layout, used: impl AsyncFn() -> Done<f64>) -> Done<f64> {
        let permits = self.permits(layout).await?;
        let before = used().await?;
        let answers = join_all(permits.iter().map(|permit| self.queue.take_slot(SlotRequest::new(permit.id)))).await;
        let cost = (used().await? - before) / PERMITS as f64;
        let granted = answers.iter().filter(|answer| matches!(answer, Ok(SlotAnswer::Granted(..)))).count();
        if granted < PERMITS {
            return Err(format!("{granted} of {PERMITS} slots were granted").into());
        }
        let settled: Vec<_> = permits.iter().map(|permit| permit.id.into()).collect();
        self.queue.settle(&settled).await?;
        Ok(cost)
    }

    fn destination_of_keys() -> Destination {
        let layout = Layout { name: "keys", has_keys: true, limit_group: None };
        Destination { id: DestinationId::from_bytes([9; 16]), ..layout.destination() }
    }

    /// The same if the deliveries are admitted without a run, which each key had before.
    async fn cost_without_runs(&self, used: impl AsyncFn() -> Done<f64>) -> Done<f64> {
        let destination = Arc::new(Self::destination_of_keys());
        let flow = |number| LimitKey::new(&format!("cus_{number}")).flow_id(destination.id);
        let before = used().await?;
        let mut sent = 0;
        while sent < KEYS {
            let reserved = (sent..KEYS).take(20).map(flow).filter(|flow| self.queue.reserve(&destination, *flow));
            let delivery = |flow| {
                let destination = Some(Arc::clone(&destination));
                ClaimedDelivery { destination, ..self.delivery(flow, 0) }
            };
            let deliveries: Vec<_> = reserved.map(delivery).collect();
            let (mut permits, mut count) = (Vec::new(), deliveries.len());
            self.queue.admit(deliveries);
            while permits.len() < count {
                tokio::select! {
                    taken = self.queue.take(count - permits.len()) => permits.extend(taken?),
                    declined = self.queue.declined() => count -= declined.len(),
                }
            }
            sent += count;
            join_all(permits.iter().map(|permit| self.queue.take_slot(SlotRequest::new(permit.id)))).await;
            let settled: Vec<_> = permits.iter().map(|permit| permit.id.into()).collect();
            self.queue.settle(&settled).await?;
        }
        Ok((used().await? - before) / KEYS as f64)
    }

    /// Microseconds for each delivery of a round in which every limit key of a destination has one.
    async fn cost_of_keys(&self, used: impl AsyncFn() -> Done<f64>) -> Done<f64> {
        let destination = Self::destination_of_keys();
        let shared = Arc::new(destination.as_group());
        let keys: Vec<_> = (0..KEYS).map(|number| LimitKey::new(&format!("cus_{number}"))).collect();
        let flows: HashMap<_, _> = keys.iter().map(|key| (key.flow_id(destination.id), key)).collect();
        let before = used().await?;
        let due = self.clock.now();
        let wakes: Vec<_> = flows.keys().map(|&destination_id| Wake { destination_id, due }).collect();
        for wakes in wakes.chunks(20) {
            self.queue.wake(wakes).await?;
        }
        let mut permits = Vec::new();
        let mut published = 0;
        while published < KEYS {
            let mut publications = Vec::new();
            for lease in self.queue.claim_due(64, LEASE).await?.leases {
                let flow = destination.flow(flows.get(&lease.destination_id).copied());
                let terms = Some(Terms { outer: None, ..Terms::of(&flow, self.clock.now()) });
                let seen = lease.turn.and_then(|turn| turn.groups().next());
                let new = || Limiter::new(&limits());
                let count = match lease.turn {
                    Some(turn) if seen.is_some_and(|of| of.is_known) => turn.permits.min(1),
                    _ => 0,
                };
                published += count as usize;
                let next = if count == 0 { NextRun::Now } else { NextRun::Stop };
                let recovered = lease.cursors.is_none().then(new);
                let of_group = seen.filter(|of| !of.is_known).map(|_| new());
                let groups = vec![GroupRun { terms: Arc::clone(&shared), recovered: of_group }];
                let deliveries = (0..count).map(|_| self.delivery(lease.destination_id, 0)).collect();
                publications.push(Publication { lease, terms, recovered, groups, pace: None, deliveries, next });
            }
            self.queue.publish(publications).await?;
        }
        while permits.len() < KEYS {
            permits.extend(self.queue.take(KEYS - permits.len()).await?);
        }
        for permits in permits.chunks(20) {
            join_all(permits.iter().map(|permit| self.queue.take_slot(SlotRequest::new(permit.id)))).await;
            let settled: Vec<_> = permits.iter().map(|permit| permit.id.into()).collect();
            self.queue.settle(&settled).await?;
        }
        Ok((used().await? - before) / KEYS as f64)
    }

    /// The layouts are measured in turns, so that other work of the machine disturbs all of them alike.
    async fn print(&self, what: &str, used: impl AsyncFn() -> Done<f64>) -> Done<()> {
        let mut costs = LAYOUTS.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (layout, costs) in LAYOUTS.iter().zip(&mut costs) {
                costs.push(self.cost(layout, &used).await?);
            }
        }
        let medians = costs.map(|mut costs| {
            costs.sort_by(f64::total_cmp);
            costs[ROUNDS / 2]
        });
        for (layout, us) in LAYOUTS.iter().zip(medians) {
            println!("{what:<11} {:<24} {us:>7.2} µs  {:.2} ×", layout.name, us / medians[0]);
        }
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "an example that measures")]
fn now() -> Instant {
    Instant::now()
}

async fn of_server(client: &redis::Client) -> Done<f64> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    let text: String = redis::cmd("INFO").arg("cpu").query_async(&mut connection).await?;
    let used = ["used_cpu_user:", "used_cpu_sys:"].map(|name| text.lines().find_map(|line| line.strip_prefix(name)));
    let seconds: Vec<f64> = used.into_iter().flatten().filter_map(|text| text.trim().parse().ok()).collect();
    Ok(seconds.iter().sum::<f64>() * 1e6)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Done<()> {
    let url = std::env::var("WEIR_TEST_REDIS_URL")?;
    let redis = RedisQueue::open(RedisConfig::new(Topology::Single(url.clone()))).await?;
    let clock: Arc<dyn Clock> = redis.clock();
    let memory = Bed { queue: Arc::new(MemoryQueue::new(Arc::clone(&clock))), clock: Arc::clone(&clock) };
    let began = now();
    memory.print("in process", async || Ok(began.elapsed().as_secs_f64() * 1e6)).await?;
    let client = redis::Client::open(url)?;
    let bed = Bed { queue: Arc::new(redis), clock };
    bed.print("Redis", async || of_server(&client).await).await?;
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..9 {
        costs[0].push(bed.cost_of_keys(async || of_server(&client).await).await?);
        costs[1].push(bed.cost_without_runs(async || of_server(&client).await).await?);
    }
    for (costs, how) in costs.iter_mut().zip(["", ", without a run"]) {
        costs.sort_by(f64::total_cmp);
        println!("Redis       a delivery of one of {KEYS} keys{how} {:>5.1} µs", costs[4]);
    }
    Ok(())
}
