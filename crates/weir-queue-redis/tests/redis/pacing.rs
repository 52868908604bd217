//! The guarantee, and the use of what it allows, with two schedulers and two workers on one Redis.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;
use weir_core::{
    Clock as _, Limiter, Timestamp,
    plan::{self, Observed},
};
use weir_queue::{Lease, Permit, Permits as _, Publication, Schedule as _, SlotAnswer};
use weir_queue_redis::{RedisConfig, RedisQueue};

use crate::support::{self, delivery, destination, per_second, wake};

const RATE: u32 = 100;
const SECONDS: u64 = 4;
/// What two clocks may differ by, in the record of the sends.
const CLOCK_ERROR: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Shared {
    sends: Mutex<Vec<Timestamp>>,
    /// Slots that a worker came too late for: the machine's doing, not the queue's.
    missed: AtomicUsize,
    over: AtomicBool,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// What a scheduler does, with a backlog that never ends.
async fn schedule(queue: Arc<RedisQueue>, shared: Arc<Shared>) {
    while !shared.is_over() {
        let claimed =
            tokio::time::timeout(Duration::from_millis(100), queue.claim_due(16, Duration::from_secs(4))).await;
        let Ok(jobs) = claimed else { continue };
        let runs = jobs.unwrap().leases.into_iter().map(|lease| run(&queue, lease)).collect();
        queue.publish(runs).await.unwrap();
    }
}

fn run(queue: &RedisQueue, lease: Lease) -> Publication {
    let limits = per_second(RATE);
    let recovered = lease.issued.is_none().then(|| Limiter::new(&limits));
    let mut issued = lease.issued.clone().or(recovered.clone()).unwrap();
    issued.reconfigure(&limits);
    let allowance = plan::allowance(&Observed {
        now: queue.clock().now(),
        issued: &issued,
        queued: lease.queued,
        in_flight: lease.in_flight,
        max_in_flight: 64,
        max_queued: limits.max_queued(),
        suspended: false,
        lagging: false,
    });
    let to = lease.destination_id;
    let deliveries = (0..allowance.allow).map(|_| delivery(queue, to, 1, Duration::from_secs(30))).collect();
    Publication { lease, limits, recovered, deliveries, next: plan::next_run(allowance, allowance.allow, None) }
}

/// What a worker does with standing connections, to a destination that answers at once.
async fn work(queue: Arc<RedisQueue>, shared: Arc<Shared>) {
    let mut attempts = JoinSet::new();
    while !shared.is_over() {
        let taken = tokio::time::timeout(Duration::from_millis(100), queue.take(64)).await;
        for permit in taken.into_iter().flat_map(Result::unwrap) {
            attempts.spawn(attempt(queue.clone(), permit, shared.clone()));
        }
    }
    attempts.join_all().await;
}

async fn attempt(queue: Arc<RedisQueue>, permit: Permit, shared: Arc<Shared>) {
    let clock = queue.clock();
    let mut published = permit.slot;
    loop {
        let slot = match published.take() {
            Some(slot) if !slot.is_over(clock.now()) => slot,
            late => match queue.take_slot(permit.id, true).await.unwrap() {
                SlotAnswer::Granted(slot) => {
                    shared.missed.fetch_add(usize::from(late.is_some()), Ordering::Relaxed);
                    slot
                }
                SlotAnswer::Withdrawn => return,
            },
        };
        tokio::time::sleep(slot.start.since(clock.now())).await;
        if shared.is_over() || !queue.start(permit.id) {
            return;
        }
        let now = clock.now();
        if slot.contains(now) {
            shared.sends.lock().unwrap().push(now);
            return queue.settle(&[permit.id]).await.unwrap();
        }
        shared.missed.fetch_add(1, Ordering::Relaxed);
    }
}

async fn assert_paced(config: RedisConfig) {
    let shared = Arc::new(Shared::default());
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let queue = Arc::new(support::open(config.clone()).await);
        wake(&queue, destination(1)).await.unwrap();
        tasks.spawn(schedule(queue.clone(), shared.clone()));
        tasks.spawn(work(queue, shared.clone()));
    }
    tokio::time::sleep(Duration::from_secs(SECONDS)).await;
    shared.over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    let mut sends = shared.sends.lock().unwrap().clone();
    sends.sort();
    for (first, last) in sends.iter().zip(sends.iter().skip(RATE as usize)) {
        let span = last.since(*first);
        assert!(span + CLOCK_ERROR >= Duration::from_secs(1), "{} sends within {span:?}", RATE + 1);
    }
    let missed = shared.missed.load(Ordering::Relaxed);
    let used = (sends.len() + missed) as f64 / (f64::from(RATE) * SECONDS as f64);
    assert!(
        used >= 0.9,
        "only {used:.3} of the limit was handed out; {} slots were used, {missed} missed",
        sends.len()
    );
}

#[tokio::test]
async fn a_limit_is_kept_and_used_by_two_processes() {
    assert_paced(support::shared_config()).await;
}

#[tokio::test]
async fn a_limit_is_kept_and_used_by_two_processes_on_a_cluster() {
    assert_paced(support::cluster_config()).await;
}
