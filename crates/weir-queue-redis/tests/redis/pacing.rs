//! The guarantee and the utilisation, with two schedulers and two workers on one Redis.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};
use weir_core::{
    Clock as _, Limiter, Timestamp,
    breaker::Breaker,
    plan::{self, Observed},
};
use weir_queue::{
    JobLease, LAST_OLD_START, Permit, Permits as _, Publication, Schedule as _, SlotAnswer, SlotRequest, Terms, Wake,
};
use weir_queue_redis::{RedisConfig, RedisQueue};

use crate::support::{self, Server, delivery, destination, hand_back, per_second, terms, wake};

const RATE: u32 = 100;
const SECONDS: u64 = 4;
/// A worker asks for a slot this long before the slot is expected.
const ASK_AHEAD: Duration = Duration::from_millis(15);
/// The tolerance for the recorded times of sends.
const CLOCK_ERROR: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Recording {
    /// By the receiver's clock, which no test changes: each started between two instants. They are far apart only if the
    /// machine stopped the test in between.
    sends: Mutex<Vec<(Instant, Instant)>>,
    /// Slots that a worker missed. The machine causes these, not the queue.
    missed: AtomicUsize,
    /// Each run sets another pace.
    has_paces: bool,
}

impl Recording {
    fn sorted_sends(&self) -> Vec<(Instant, Instant)> {
        let mut sends = self.sends.lock().unwrap().clone();
        sends.sort();
        sends
    }
}

/// A scheduler with an endless backlog.
async fn schedule(queue: Arc<RedisQueue>, recording: Arc<Recording>) {
    loop {
        let leases = queue.claim_due(16, Duration::from_secs(4)).await.unwrap().leases;
        queue.publish(leases.into_iter().map(|lease| run(&queue, lease, &recording)).collect()).await.unwrap();
    }
}

fn run(queue: &RedisQueue, lease: JobLease, recording: &Recording) -> Publication {
    let limits = per_second(RATE);
    // Lost cursors continue as in a store that has recorded none of the sends.
    let has_sent = !recording.sends.lock().unwrap().is_empty();
    let last_start = has_sent.then(|| lease.known_since + LAST_OLD_START);
    let recovered = lease.cursors.is_none().then(|| Limiter::recovered(&limits, last_start));
    let mut cursors = lease.cursors.clone().or(recovered.clone()).unwrap();
    cursors.reconfigure(&limits);
    let allowance = plan::allowance(&Observed {
        now: queue.clock().now(),
        cursors: &cursors,
        pace: None,
        preparation: lease.preparation,
        run_time: lease.run_time,
        ahead: lease.ahead,
        queued: lease.queued,
        in_flight: lease.in_flight,
        max_in_flight: 64,
        max_queued: limits.max_queued(),
        suspended: false,
        breaker: &Breaker::default(),
        lagging: false,
    });
    let to = lease.destination_id;
    let deliveries = (0..allowance.allow).map(|_| delivery(queue, to, 1, Duration::from_secs(30))).collect();
    let pace = recording.has_paces.then(|| Box::new(support::pace(queue, 20.0 + f64::from(rand::random::<u8>()))));
    Publication {
        lease,
        terms: Some(Terms { is_adaptive: pace.is_some(), ..terms(limits) }),
        recovered,
        groups: Vec::new(),
        pace,
        deliveries,
        next: plan::next_run(allowance, false, None),
    }
}

/// A worker with open connections to a destination that answers at once.
async fn work(queue: Arc<RedisQueue>, recording: Arc<Recording>) {
    let mut attempts = JoinSet::new();
    loop {
        for permit in queue.take(64).await.unwrap() {
            attempts.spawn(attempt(queue.clone(), permit, recording.clone()));
        }
    }
}

async fn attempt(queue: Arc<RedisQueue>, permit: Permit, recording: Arc<Recording>) {
    let clock = queue.clock();
    let mut asks_at = permit.expected_at.unwrap_or(Timestamp::MIN) - ASK_AHEAD;
    loop {
        tokio::time::sleep(asks_at.since(clock.now())).await;
        let request = SlotRequest::new(permit.id);
        // The clocks of Redis and of this process may differ.
        let Ok(answer) = queue.take_slot(request).await else {
            asks_at = clock.now() + Duration::from_millis(100);
            continue;
        };
        let slot = match answer {
            SlotAnswer::Granted(slot, _) => slot,
            SlotAnswer::Later(start) => {
                asks_at = start - ASK_AHEAD;
                continue;
            }
            _ => return hand_back(&queue, &[permit]).await,
        };
        tokio::time::sleep(slot.start.since(clock.now())).await;
        let (before, now, after) = (Instant::now(), clock.now(), Instant::now());
        if slot.contains(now) {
            recording.sends.lock().unwrap().push((before, after));
            return queue.settle(&[permit.id.into()]).await.unwrap();
        }
        recording.missed.fetch_add(1, Ordering::Relaxed);
    }
}

/// The share of the time in which other load on the machine kept this test from running. The slots of the queue are
/// judged by the remaining time.
async fn stalls_for(duration: Duration) -> f64 {
    let tick = Duration::from_millis(5);
    let begin = tokio::time::Instant::now();
    let mut stalled = Duration::ZERO;
    while begin.elapsed() < duration {
        let before = tokio::time::Instant::now();
        tokio::time::sleep(tick).await;
        // A timer can be a millisecond late on an idle machine.
        stalled += before.elapsed().saturating_sub(tick + Duration::from_millis(2));
    }
    stalled.as_secs_f64() / duration.as_secs_f64()
}

/// Two processes that schedule and send.
async fn two_processes(config: RedisConfig) -> (Arc<Recording>, JoinSet<()>) {
    two_processes_with(config, Recording::default()).await
}

async fn two_processes_with(config: RedisConfig, recording: Recording) -> (Arc<Recording>, JoinSet<()>) {
    let recording = Arc::new(recording);
    let mut processes = JoinSet::new();
    for _ in 0..2 {
        let queue = Arc::new(support::open(config.clone()).await);
        wake(&queue, destination(1)).await.unwrap();
        processes.spawn(schedule(queue.clone(), recording.clone()));
        processes.spawn(work(queue, recording.clone()));
    }
    (recording, processes)
}

fn assert_bounded(sends: &[(Instant, Instant)]) {
    for (first, last) in sends.iter().zip(sends.iter().skip(RATE as usize)) {
        let span = last.1.duration_since(first.0);
        assert!(span + CLOCK_ERROR >= Duration::from_secs(1), "{} sends within {span:?}", RATE + 1);
    }
}

async fn assert_paced(config: RedisConfig) {
    let (recording, mut processes) = two_processes(config).await;
    let stalled = stalls_for(Duration::from_secs(SECONDS)).await;
    processes.shutdown().await;
    let sends = recording.sorted_sends();
    assert_bounded(&sends);
    let missed = recording.missed.load(Ordering::Relaxed);
    let granted = (sends.len() + missed) as f64 / (f64::from(RATE) * SECONDS as f64);
    assert!(
        granted >= 0.95 - 2.0 * stalled,
        "only {granted:.3} of the limit was granted; {missed} slots were missed; {stalled:.3} of the time was stalled"
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

/// Whatever a pace is and however often it changes, it can only delay.
#[tokio::test]
async fn a_limit_is_kept_under_paces_that_change_with_each_run() {
    for config in [support::shared_config(), support::cluster_config()] {
        let recording = Recording { has_paces: true, ..Recording::default() };
        let (recording, mut processes) = two_processes_with(config, recording).await;
        tokio::time::sleep(Duration::from_secs(SECONDS)).await;
        processes.shutdown().await;
        let sends = recording.sorted_sends();
        assert_bounded(&sends);
        assert!(sends.len() > 20, "{} sends", sends.len());
    }
}

const HOUR: f64 = 3_600.0;
const YEAR: f64 = 400.0 * 24.0 * HOUR;

/// The processes' clocks carry the time: slots keep their spacing and go on when the clock of Redis is set.
#[tokio::test]
async fn a_limit_is_kept_and_used_while_the_clock_of_redis_is_set() {
    let (server, clock) = Server::start_with_clock().await;
    let (recording, mut processes) = two_processes(server.config()).await;
    for ahead in [0.0, HOUR, -HOUR, 0.3, YEAR] {
        clock.set(ahead).unwrap();
        // A process needs a moment to notice the change. Jobs that expire by the wrong time are lost, and their cursors
        // continue three seconds later.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let since = Instant::now();
        let stalled = stalls_for(Duration::from_secs(2)).await;
        let sends = recording.sends.lock().unwrap().iter().filter(|(at, _)| *at >= since).count();
        let used = sends as f64 / (2.0 * f64::from(RATE));
        assert!(used >= 0.8 - 2.0 * stalled, "used {used:.3} once the clock was {ahead} s ahead");
    }
    processes.shutdown().await;
    assert_bounded(&recording.sorted_sends());
}

#[tokio::test]
async fn a_limit_is_kept_while_the_clock_of_redis_is_set_again_and_again_and_processes_start() {
    let (server, clock) = Server::start_with_clock().await;
    let (recording, mut processes) = two_processes(server.config()).await;
    let steps =
        [0.3, 0.6, 0.9, 1.2, HOUR, 0.0, YEAR, 0.3, 0.6, -HOUR, 0.0, 0.3, HOUR, 2.0 * HOUR, YEAR, -YEAR, 0.0, 0.3];
    for (step, ahead) in steps.into_iter().enumerate() {
        clock.set(ahead).unwrap();
        // A process that starts directly after a step reads a clock that nobody has corrected yet.
        if step % 4 == 0 {
            let (config, recording) = (server.config(), recording.clone());
            processes.spawn(async move {
                let queue = Arc::new(support::open(config).await);
                let (scheduling, working) = (schedule(queue.clone(), recording.clone()), work(queue, recording));
                futures_util::future::join(scheduling, working).await;
            });
        }
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = recording.sorted_sends().len();
    let stalled = stalls_for(Duration::from_secs(2)).await;
    let used = (recording.sorted_sends().len() - before) as f64 / (2.0 * f64::from(RATE));
    assert!(used >= 0.8 - 2.0 * stalled, "used {used:.3} afterwards");
    let late_comer = support::open(server.config()).await.clock();
    let (now, wall) = (late_comer.now(), late_comer.wall());
    assert!(
        now.since(wall).max(wall.since(now)) < Duration::from_secs(2),
        "no process has followed a step: {now} {wall}"
    );
    processes.shutdown().await;
    assert_bounded(&recording.sorted_sends());
}

/// How often Redis has run `SET`.
async fn sets(server: &Server) -> String {
    let redis::Value::BulkString(stats) = server.command(&["INFO", "commandstats"]).await else {
        panic!("INFO answers with text")
    };
    let stats = String::from_utf8(stats).unwrap();
    let set = stats.lines().find_map(|line| line.strip_prefix("cmdstat_set:calls=")).unwrap_or_default();
    set.split(',').next().unwrap_or_default().to_owned()
}

/// Each sweep wakes every destination with a backlog, and most of them run early enough without it.
#[tokio::test]
async fn a_wake_of_a_job_that_runs_early_enough_writes_nothing() {
    let server = Server::start().await;
    let queue = support::open(server.config()).await;
    let due = queue.clock().now() + Duration::from_secs(60);
    let wake_all = async |due| {
        let wakes: Vec<_> = (1..=100).map(|number| Wake { destination_id: destination(number), due }).collect();
        queue.wake(&wakes).await.unwrap();
        sets(&server).await
    };
    let first = wake_all(due).await;
    assert_eq!(wake_all(due + Duration::from_secs(1)).await, first);
    assert_eq!(wake_all(due).await, first);
    assert_ne!(wake_all(due - Duration::from_secs(1)).await, first, "these jobs run earlier");
}
