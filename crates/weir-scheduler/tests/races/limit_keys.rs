//! Destinations with limit keys: each key and the destination keep their limits in every window, through edits, pauses,
//! holds, a loss of the queue and a crash.

mod at_once;
mod becoming_keyed;
mod in_a_group;
mod replayed;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::timeout};
use weir_core::{
    Clock, Destination, DestinationId, LimitKey, Period, RateLimits, Timestamp,
    limit_key::{KeyLimits, KeyOverride, budget_as_destination},
    limiter::GRANT_AHEAD,
};
use weir_queue::{
    Edits, HandedBack, Hold, Permit, Permits as _, Schedule as _, SlotAnswer, SlotRequest, Wake, memory::MemoryQueue,
};
use weir_scheduler::recover_all;
use weir_store::{Outbox as _, SendHistory};

use crate::{
    LONG, START, World,
    store::{TestStore, destination, limits},
};

const SECOND: Duration = Duration::from_secs(1);
/// The time after its announcement until which an edit binds.
const BINDS_WITHIN: Duration = Duration::from_millis(100);
/// How long the receiver takes to answer.
const ANSWER: Duration = Duration::from_millis(20);

fn per_second(limit: u32) -> RateLimits {
    limits(limit, Period::SECOND)
}

fn key(number: u8) -> LimitKey {
    LimitKey::new(&format!("cus_{number}"))
}

fn key_limits(rate_limits: RateLimits) -> KeyLimits {
    let (pointer, overrides) = ("/customer".to_owned(), Default::default());
    KeyLimits { pointer, rate_limits, max_in_flight: None, weight: 1, overrides }
}

/// Sets the limits of each key.
fn set_keys(of: &mut Destination, keys: KeyLimits, now: Timestamp) {
    of.keyed_at = of.keyed_at.or(Some(now));
    of.settings.key_limits = Some(Arc::new(keys));
}

/// A worker that sends in every slot: the flow and the start of each send, as the receiver sees them.
#[derive(Clone)]
struct Worker {
    store: Arc<TestStore>,
    queue: Arc<MemoryQueue>,
    clock: Arc<dyn Clock>,
    sends: Arc<Mutex<Vec<(DestinationId, Timestamp)>>>,
    attempts: Arc<Mutex<JoinSet<()>>>,
    /// The queue has lost its data: its permits get no slots.
    is_lost: Arc<AtomicBool>,
}

impl Worker {
    async fn take(self) {
        while let Ok(permits) = self.queue.take(64).await {
            for permit in permits {
                let worker = self.clone();
                self.attempts.lock().unwrap().spawn(async move { worker.attempt(permit).await });
            }
        }
    }

    async fn attempt(&self, permit: Permit) {
        let began = self.clock.now();
        while !self.is_lost.load(Ordering::Relaxed) {
            match self.queue.take_slot(SlotRequest::new(permit.id)).await.unwrap() {
                SlotAnswer::Granted(slot, _) => {
                    // At the beginning of the slot, or at its end.
                    let late = slot.end.since(slot.start) - Duration::from_nanos(1);
                    let at = if permit.id.serial.is_multiple_of(2) { slot.start } else { slot.start + late };
                    tokio::time::sleep(at.since(self.clock.now())).await;
                    let sent_at = self.clock.now();
                    self.sends.lock().unwrap().push((permit.delivery.flow_id, sent_at));
                    tokio::time::sleep(ANSWER).await;
                    self.store.settle(&permit.delivery, sent_at);
                    return self.queue.settle(&[permit.id.into()]).await.unwrap();
                }
                SlotAnswer::Later(start) => tokio::time::sleep((start - GRANT_AHEAD).since(self.clock.now())).await,
                SlotAnswer::NoRoom if self.clock.now().since(began) < 2 * SECOND => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                SlotAnswer::NoRoom | SlotAnswer::Withdrawn => break,
                SlotAnswer::AboveLimit => panic!("no delivery has a cost"),
            }
        }
        let now = self.clock.now();
        self.store.release(vec![permit.delivery.claim], now).await.unwrap();
        self.queue.hand_back(&[HandedBack { id: permit.id, crowded: false }]).await.unwrap();
        self.queue.wake(&[Wake { destination_id: permit.id.destination_id, due: now }]).await.unwrap();
    }
}

impl World {
    /// Destination 1 with limits of its own and of each key, without a scheduler.
    fn keyed(rate_limits: RateLimits, keys: KeyLimits) -> Self {
        let world = Self::new(rate_limits, SendHistory::default());
        world.edit(|of, now| set_keys(of, keys, now));
        world
    }

    fn edit(&self, edit: impl FnOnce(&mut Destination, Timestamp)) -> Arc<Destination> {
        let now = self.clock.now();
        self.store.edit(destination(1), now, |of| edit(of, now))
    }

    async fn announce(&self, edited: &Destination) {
        Edits::of(edited, self.clock.now()).announce(&*self.queue).await.unwrap();
    }

    /// Commits events of a key, and wakes its flow.
    async fn post(&self, key: Option<&LimitKey>, events: u32) {
        let due = self.clock.now();
        for _ in 0..events {
            let destination_id = self.store.post_with(destination(1), key.cloned(), due);
            self.queue.wake(&[Wake { destination_id, due }]).await.unwrap();
        }
    }

    fn start(&mut self, worker: &Worker) {
        self.start_scheduler();
        self.start_sweeper();
        self.running.spawn(worker.clone().take());
    }

    fn worker(&self) -> Worker {
        let (store, queue, clock) = (self.store.clone(), self.queue.clone(), self.clock.clone());
        Worker { store, queue, clock, sends: Arc::default(), attempts: Arc::default(), is_lost: Arc::default() }
    }

    /// Begins with an empty queue and a new worker, whose sends are added to those of `before`.
    fn restart(&mut self, before: &Worker) -> Worker {
        self.queue = Arc::new(MemoryQueue::new(self.clock.clone()));
        let (sends, attempts) = (before.sends.clone(), before.attempts.clone());
        let worker = Worker { sends, attempts, ..self.worker() };
        self.start(&worker);
        worker
    }

    /// Sends everything, through three of these faults. Returns a worker with all sends.
    async fn delivered_through(&mut self, fault: Fault) -> Worker {
        let mut worker = self.worker();
        self.start(&worker);
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(1_700)).await;
            worker.is_lost.store(fault == Fault::Loss, Ordering::Relaxed);
            self.running.shutdown().await;
            if fault == Fault::Crash {
                worker.attempts.lock().unwrap().abort_all();
                recover_all(&*self.store, self.clock.now()).await.unwrap();
            }
            worker = self.restart(&worker);
        }
        self.delivered().await;
        worker
    }

    /// Waits until everything is delivered.
    async fn delivered(&self) {
        let all = async {
            while self.store.open() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LONG, all).await.expect("everything is delivered");
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The queue loses its data. The claims of lost permits are outstanding until the worker releases them or they expire, and
    /// slots that were granted before are still used.
    Loss,
    /// The process dies, with its attempts.
    Crash,
}

/// No sliding second of these sends has more than the limit.
#[track_caller]
fn assert_keeps(limit: u32, mut sends: Vec<Timestamp>, what: &str) {
    sends.sort_unstable();
    for (first, next) in sends.iter().zip(sends.iter().skip(limit as usize)) {
        let apart = next.since(*first);
        assert!(apart >= SECOND, "{what}: {} sends within {apart:?}, from {:?}", limit + 1, first.since(START));
    }
}

impl Worker {
    fn sent(&self) -> Vec<(DestinationId, Timestamp)> {
        self.sends.lock().unwrap().clone()
    }

    fn times(&self) -> Vec<Timestamp> {
        self.sent().into_iter().map(|(_, at)| at).collect()
    }

    fn times_of(&self, key: &LimitKey) -> Vec<Timestamp> {
        let flow = key.flow_id(destination(1));
        self.sent().into_iter().filter(|(of, _)| *of == flow).map(|(_, at)| at).collect()
    }

    #[track_caller]
    fn assert_keeps(&self, of_destination: u32, of_key: u32) {
        assert_keeps(of_destination, self.times(), "the destination");
        for number in 0..16 {
            assert_keeps(of_key, self.times_of(&key(number)), &format!("key {number}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keys_and_their_destination_keep_their_limits_and_use_them() {
    let mut world = World::keyed(per_second(10), key_limits(per_second(2)));
    let worker = world.worker();
    for number in 0..8 {
        world.post(Some(&key(number)), 10).await;
    }
    world.post(None, 5).await;
    world.start(&worker);
    world.delivered().await;
    worker.assert_keeps(10, 2);
    let took = world.clock.now().since(START);
    assert!(took < Duration::from_secs(10), "85 deliveries at 10 a second took {took:?}");
    assert_eq!(worker.sent().len(), 85);
}

#[tokio::test(start_paused = true)]
async fn without_limits_of_their_own_keys_take_turns() {
    let mut world = World::keyed(per_second(10), key_limits(RateLimits::UNLIMITED));
    let worker = world.worker();
    world.post(Some(&key(1)), 200).await;
    for number in 2..6 {
        world.post(Some(&key(number)), 1).await;
    }
    world.start(&worker);
    tokio::time::sleep(3 * SECOND).await;
    for number in 2..6 {
        assert_eq!(worker.times_of(&key(number)).len(), 1, "key {number} does not wait behind key 1");
    }
    world.delivered().await;
    assert_keeps(10, worker.times(), "the destination");
}

#[tokio::test(start_paused = true)]
async fn an_event_whose_flow_is_not_woken_is_found_by_the_sweep() {
    let mut world = World::keyed(per_second(10), key_limits(per_second(2)));
    let worker = world.worker();
    world.start(&worker);
    tokio::time::sleep(SECOND).await;
    world.store.post_with(destination(1), Some(key(1)), world.clock.now());
    world.delivered().await;
    assert!(world.clock.now() <= START + Duration::from_secs(7), "a sweep every five seconds");
}

#[tokio::test(start_paused = true)]
async fn a_pause_stops_every_key_at_once_and_a_resume_starts_them() {
    let mut world = World::keyed(per_second(20), key_limits(per_second(4)));
    let worker = world.worker();
    for number in 0..6 {
        world.post(Some(&key(number)), 12).await;
    }
    world.start(&worker);
    tokio::time::sleep(SECOND + SECOND / 3).await;
    let paused = world.edit(|of, _| of.settings.paused = true);
    world.announce(&paused).await;
    let paused_at = world.clock.now();
    tokio::time::sleep(8 * SECOND).await;
    let late = worker.times().into_iter().filter(|at| *at > paused_at + BINDS_WITHIN).count();
    assert_eq!(late, 0, "sends of a paused destination");
    let resumed = world.edit(|of, _| of.settings.paused = false);
    world.announce(&resumed).await;
    world.delivered().await;
    worker.assert_keeps(20, 4);
}

#[tokio::test(start_paused = true)]
async fn a_paused_key_waits_alone() {
    let keys = key_limits(per_second(4));
    let mut world = World::keyed(per_second(20), keys.clone());
    let worker = world.worker();
    for number in [1, 2] {
        world.post(Some(&key(number)), 8).await;
    }
    world.start(&worker);
    tokio::time::sleep(SECOND / 2).await;
    let paused = KeyOverride { paused: true, ..KeyOverride::default() };
    let with_pause = KeyLimits { overrides: [(key(1), paused)].into(), ..keys.clone() };
    let edited = world.edit(|of, now| set_keys(of, with_pause, now));
    world.announce(&edited).await;
    let before = worker.times_of(&key(1)).len();
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(worker.times_of(&key(2)).len(), 8);
    assert!(worker.times_of(&key(1)).len() <= before + 1, "a send of the paused key");
    let edited = world.edit(|of, now| set_keys(of, keys, now));
    world.announce(&edited).await;
    world.delivered().await;
    worker.assert_keeps(20, 4);
}

#[tokio::test(start_paused = true)]
async fn lower_limits_bind_all_keys_at_once() {
    let mut world = World::keyed(per_second(40), key_limits(per_second(10)));
    let worker = world.worker();
    for number in 0..6 {
        world.post(Some(&key(number)), 20).await;
    }
    world.start(&worker);
    tokio::time::sleep(SECOND + SECOND / 3).await;
    let edited = world.edit(|of, now| {
        of.settings.rate_limits = per_second(5);
        set_keys(of, key_limits(per_second(2)), now);
    });
    world.announce(&edited).await;
    let edited_at = world.clock.now() + BINDS_WITHIN;
    world.delivered().await;
    worker.assert_keeps(40, 10);
    let after = |sends: Vec<Timestamp>| sends.into_iter().filter(|at| *at > edited_at).collect();
    assert_keeps(5, after(worker.times()), "the destination");
    for number in 0..6 {
        assert_keeps(2, after(worker.times_of(&key(number))), "a key");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_of_the_destination_holds_every_key() {
    let mut world = World::keyed(per_second(20), key_limits(per_second(4)));
    let worker = world.worker();
    for number in 0..6 {
        world.post(Some(&key(number)), 12).await;
    }
    world.start(&worker);
    tokio::time::sleep(SECOND).await;
    let sent_at = world.clock.now();
    let until = sent_at + Duration::from_secs(6);
    let hold = Hold { destination_id: budget_as_destination(destination(1)), until, sent_at };
    world.queue.hold(&[hold]).await.unwrap();
    world.delivered().await;
    let during = worker.times().into_iter().filter(|at| *at > sent_at + BINDS_WITHIN && *at < until).count();
    assert_eq!(during, 0, "sends of a held destination");
    worker.assert_keeps(20, 4);
}

async fn assert_kept_through(fault: Fault) {
    let mut world = World::keyed(per_second(10), key_limits(per_second(3)));
    for number in 0..6 {
        world.post(Some(&key(number)), 10).await;
    }
    world.post(None, 3).await;
    world.delivered_through(fault).await.assert_keeps(10, 3);
}

#[tokio::test(start_paused = true)]
async fn a_loss_of_the_queue_breaks_no_limit() {
    assert_kept_through(Fault::Loss).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_breaks_no_limit() {
    assert_kept_through(Fault::Crash).await;
}
