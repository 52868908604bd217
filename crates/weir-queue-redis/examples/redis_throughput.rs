//! How many permits a second go through publish, take, start and settle, and what each costs Redis.
//!
//! `cargo run --release -p weir-queue-redis --example redis_throughput -- redis://127.0.0.1:6379 [destinations] [seconds]`
//!
//! Unlimited destinations run as the scheduler runs them, at most 64 permits of each out at one time, and two workers answer
//! at once. Uses keys of its own on the server, and counts commands of everybody on it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::task::JoinSet;
use weir_core::{
    Clock as _, DeliveryId, DestinationId, EventId, RateLimits,
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    event::EventBody,
    plan::NextRun,
};
use weir_queue::{Lease, Permits as _, Publication, QueueError, Schedule as _, Wake};
use weir_queue_redis::{OpenError, RedisConfig, RedisQueue, Topology};

const MAX_IN_FLIGHT: u32 = 64;
const LEASE: Duration = Duration::from_secs(4);
const BODY: &[u8] = &[b'x'; 1_024];
const WORKERS: usize = 2;

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Redis(#[from] redis::RedisError),
    #[error("name a server: redis://127.0.0.1:6379")]
    NoServer,
}

#[derive(Default)]
struct Run {
    settled: AtomicU64,
    over: AtomicBool,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or(Failure::NoServer)?;
    let mut number = |default| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (destinations, seconds) = (number(100), number(5));
    let prefix = format!("throughput-{:x}:", rand::random::<u32>());
    let config = RedisConfig { prefix, ..RedisConfig::new(Topology::Single(url.clone())) };

    let scheduling = Arc::new(RedisQueue::open(config.clone()).await?);
    let before = Usage::of(&url).await?;
    let run = Arc::new(Run::default());
    let mut tasks: JoinSet<Result<(), QueueError>> = JoinSet::new();
    for _ in 0..2 {
        let (queue, run) = (scheduling.clone(), run.clone());
        tasks.spawn(async move { schedule(&queue, &run).await });
    }
    for _ in 0..WORKERS {
        let (queue, run) = (RedisQueue::open(config.clone()).await?, run.clone());
        tasks.spawn(async move { work(&queue, &run).await });
    }
    let due = scheduling.clock().now();
    let wakes: Vec<_> = (0..destinations)
        .map(|number| Wake { destination_id: DestinationId::new(due, u128::from(number)), due })
        .collect();
    scheduling.wake(&wakes).await?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    run.over.store(true, Ordering::Relaxed);
    let settled = run.settled.load(Ordering::Relaxed);
    let after = Usage::of(&url).await?;
    while let Some(task) = tasks.join_next().await {
        task.unwrap_or(Ok(()))?;
    }
    let each = |before: f64, after: f64| (after - before) / settled as f64;
    println!("{destinations} destinations, {} bytes a body, {seconds} s", BODY.len());
    println!("{:>10.0} permits a second", settled as f64 / seconds as f64);
    println!("{:>10.2} commands from clients a permit", each(before.received, after.received));
    println!("{:>10.2} commands in all a permit, those of scripts included", each(before.commands, after.commands));
    println!("{:>10.2} µs of Redis's processor a permit", each(before.processor, after.processor) * 1e6);
    Ok(())
}

async fn schedule(queue: &RedisQueue, run: &Run) -> Result<(), QueueError> {
    while !run.over.load(Ordering::Relaxed) {
        let claimed = tokio::time::timeout(Duration::from_millis(200), queue.claim_due(256, LEASE)).await;
        let Ok(jobs) = claimed else { continue };
        let publications = jobs?.leases.into_iter().map(|lease| publication(queue, lease)).collect();
        queue.publish(publications).await?;
    }
    Ok(())
}

fn publication(queue: &RedisQueue, lease: Lease) -> Publication {
    let count = MAX_IN_FLIGHT.saturating_sub(lease.queued + lease.in_flight);
    let now = queue.clock().now();
    let delivery = |_| ClaimedDelivery {
        claim: Claim {
            delivery_id: DeliveryId::new(now, rand::random()),
            destination_id: lease.destination_id,
            epoch: 1,
        },
        event_id: EventId::new(now, rand::random()),
        event_created_at: now,
        attempts: 0,
        attempts_before: 0,
        in_lane: false,
        body: ClaimedBody::Inline(EventBody::stored(Bytes::from_static(BODY), 0)),
        expires_at: now + Duration::from_secs(60),
        destination: None,
    };
    let deliveries = (0..count).map(delivery).collect();
    Publication { lease, limits: RateLimits::UNLIMITED, recovered: None, deliveries, next: NextRun::OnSettle }
}

async fn work(queue: &RedisQueue, run: &Run) -> Result<(), QueueError> {
    while !run.over.load(Ordering::Relaxed) {
        let Ok(taken) = tokio::time::timeout(Duration::from_millis(200), queue.take(256)).await else { continue };
        let ids: Vec<_> = taken?.iter().map(|permit| permit.id).filter(|id| queue.start(*id)).collect();
        queue.settle(&ids).await?;
        run.settled.fetch_add(ids.len() as u64, Ordering::Relaxed);
    }
    queue.hand_back(&queue.stop_taking().await.iter().map(|permit| permit.id).collect::<Vec<_>>()).await
}

/// What the server has done so far.
struct Usage {
    received: f64,
    commands: f64,
    processor: f64,
}

impl Usage {
    async fn of(url: &str) -> Result<Self, redis::RedisError> {
        let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        let info: redis::InfoDict = redis::cmd("INFO").arg("everything").query_async(&mut connection).await?;
        let number = |name: &str| info.get::<f64>(name).unwrap_or_default();
        let calls = |name: &str| {
            let line: String = info.get(&format!("cmdstat_{name}")).unwrap_or_default();
            let calls = line.strip_prefix("calls=").and_then(|rest| rest.split(',').next()?.parse().ok());
            calls.unwrap_or(0.0)
        };
        let processor = number("used_cpu_user_main_thread") + number("used_cpu_sys_main_thread");
        let received = ["evalsha", "eval", "xreadgroup", "subscribe", "ping"].map(calls).iter().sum();
        Ok(Self { received, commands: number("total_commands_processed"), processor })
    }
}
