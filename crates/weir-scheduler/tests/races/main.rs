//! Races between the store, the schedule and processes that die: the real scheduler, sweep and in-process queue, in
//! simulated time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod limit_keys;
mod lost_answers;
mod outage;
mod reservations;
mod store;

use std::{future::pending, sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use weir_core::{Clock, LimitGroupId, Period, RateLimits, Timestamp, limiter::GRANT_AHEAD};
use weir_queue::{
    Permit, Permits as _, Schedule as _, SharedQueue, SlotAnswer, SlotRequest, Wake, memory::MemoryQueue,
};
use weir_scheduler::{Scheduler, Sweeper};
use weir_store::{ClaimRequest, Outbox as _, SendHistory};

use crate::{
    lost_answers::{Loss, LostAnswers},
    store::{TestStore, destination, limits},
};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
/// Longer than any test takes, including the recovery of claims.
const LONG: Duration = Duration::from_secs(300);

/// Tokio's paused clock: it advances when every task waits.
struct SimulatedClock {
    started: Instant,
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        START + self.started.elapsed()
    }

    fn wall(&self) -> Timestamp {
        self.now()
    }
}

/// A store, a queue, and the loops that run on them until the test ends.
struct World {
    store: Arc<TestStore>,
    queue: Arc<MemoryQueue>,
    clock: Arc<dyn Clock>,
    running: JoinSet<()>,
}

impl World {
    /// A world with destination 1.
    fn new(rate_limits: RateLimits, history: SendHistory) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SimulatedClock { started: Instant::now() });
        let store = Arc::new(TestStore::default());
        store.create(destination(1), rate_limits, history);
        Self { store, queue: Arc::new(MemoryQueue::new(clock.clone())), clock, running: JoinSet::new() }
    }

    fn start_scheduler(&mut self) -> Arc<Scheduler> {
        self.start_scheduler_on(self.queue.clone())
    }

    fn start_scheduler_on(&mut self, queue: SharedQueue) -> Arc<Scheduler> {
        let scheduler = Arc::new(Scheduler::new(self.store.clone(), queue, self.clock.clone()));
        let running = scheduler.clone();
        self.running.spawn(async move { running.run(pending()).await });
        scheduler
    }

    fn start_sweeper(&mut self) {
        let sweeper = Sweeper::new(self.store.clone(), self.queue.clone(), self.clock.clone());
        self.running.spawn(async move { sweeper.run(pending()).await });
    }

    async fn wake(&self) {
        self.queue.wake(&[Wake { destination_id: destination(1), due: self.clock.now() }]).await.unwrap();
    }

    async fn permit(&self) -> Permit {
        self.permit_within(LONG).await
    }

    async fn permit_within(&self, most: Duration) -> Permit {
        let mut permits = timeout(most, self.queue.take(1)).await.expect("a permit is published").unwrap();
        permits.remove(0)
    }

    async fn assert_no_more_permits(&self) {
        // The test settles no permit: a sweep recovers the published one after its claim has expired.
        let taken = timeout(Duration::from_secs(60), self.queue.take(1)).await;
        assert!(taken.is_err(), "nothing else should be published: {taken:?}");
    }

    /// The slot start that the queue grants to this permit.
    async fn start_of(&self, permit: &Permit) -> Timestamp {
        self.try_start_of(permit).await.expect("the permit should be good")
    }

    /// As [`Self::start_of`]; `None` when the permit is withdrawn.
    async fn try_start_of(&self, permit: &Permit) -> Option<Timestamp> {
        loop {
            match self.queue.take_slot(SlotRequest::new(permit.id)).await.unwrap() {
                SlotAnswer::Granted(slot, _) => return Some(slot.start),
                SlotAnswer::Later(start) => tokio::time::sleep((start - GRANT_AHEAD).since(self.clock.now())).await,
                SlotAnswer::NoRoom | SlotAnswer::AboveLimit | SlotAnswer::Withdrawn => return None,
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_delivery_committed_before_the_start_and_never_woken_is_sent_at_once() {
    let mut world = World::new(RateLimits::UNLIMITED, SendHistory::default());
    world.store.post(destination(1), START);
    world.start_scheduler();
    world.start_sweeper();
    world.permit().await;
    assert!(world.clock.now() < START + Duration::from_secs(1), "the first sweep runs at the start");
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_wake_is_lost_is_found_by_the_next_sweep() {
    let mut world = World::new(RateLimits::UNLIMITED, SendHistory::default());
    world.start_scheduler();
    world.start_sweeper();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let committed_at = world.clock.now();
    world.store.post(destination(1), committed_at);
    world.permit().await;
    assert!(world.clock.now() <= committed_at + Duration::from_secs(5), "a sweep every five seconds");
}

#[tokio::test(start_paused = true)]
async fn a_delivery_claimed_and_never_published_is_sent_after_its_claim_expires() {
    let mut world = World::new(RateLimits::UNLIMITED, SendHistory::default());
    world.store.post(destination(1), START);
    world.wake().await;
    // A scheduler that dies between claim and publish.
    assert_eq!(world.queue.claim_due(1, Duration::from_secs(4)).await.unwrap().leases.len(), 1);
    let expires_at = START + Duration::from_secs(75);
    let request = ClaimRequest {
        flow: weir_store::ClaimedFlow::All,
        destination_id: destination(1),
        limit: 1,
        expires_at,
        durable: false,
    };
    assert_eq!(world.store.claim(vec![request], START).await.unwrap()[0].deliveries.len(), 1);
    world.start_scheduler();
    world.start_sweeper();
    let permit = world.permit().await;
    assert!(world.clock.now() > expires_at, "until then the dead scheduler might have published it");
    assert!(permit.delivery.claim.epoch > 1, "the permit has a new claim");
    assert_eq!(permit.delivery.attempts, 1, "the expired claim counts as an attempt");
    world.assert_no_more_permits().await;
}

#[tokio::test(start_paused = true)]
async fn claims_that_may_have_been_published_are_not_released() {
    for loss in [Loss::Unknown, Loss::Error] {
        let mut world = World::new(RateLimits::UNLIMITED, SendHistory::default());
        world.store.post(destination(1), START);
        world.start_scheduler_on(Arc::new(LostAnswers { queue: world.queue.clone(), loss }));
        world.start_sweeper();
        let permit = world.permit().await;
        world.assert_no_more_permits().await;
        assert_eq!(world.store.released(), 0, "{loss:?}: a second permit would double the send");
        assert!(world.clock.now() < permit.delivery.expires_at);
    }
}

#[tokio::test(start_paused = true)]
async fn the_later_of_two_schedulers_that_run_one_job_releases_its_claims() {
    let mut world = World::new(RateLimits::UNLIMITED, SendHistory::default());
    world.store.post(destination(1), START);
    // Longer than the lease: the other scheduler runs the job meanwhile, finds nothing due, and stops it.
    world.store.delay_the_next_claim(Duration::from_secs(6));
    world.start_scheduler();
    world.start_scheduler();
    world.wake().await;
    let permit = world.permit().await;
    assert_eq!(world.store.released(), 1, "the later scheduler published nothing");
    assert_eq!((permit.delivery.claim.epoch, permit.delivery.attempts), (2, 0), "nothing was sent on the first claim");
    world.assert_no_more_permits().await;
}

#[tokio::test(start_paused = true)]
async fn claims_of_a_run_are_released_when_the_worker_stops() {
    let mut world = World::new(RateLimits::UNLIMITED, SendHistory::default());
    world.store.post(destination(1), START);
    world.store.delay_the_next_claim(Duration::from_secs(1));
    world.start_scheduler();
    world.wake().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.store.claimed(), 1, "the claim is made, and not yet answered");
    assert!(world.queue.stop_taking().await.is_empty());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        (world.store.claimed(), world.store.released()),
        (0, 1),
        "an unreleased claim would count as an attempt at the next start"
    );
}

#[tokio::test(start_paused = true)]
async fn an_empty_queue_continues_after_the_last_recorded_send() {
    let last_sent_at = START - Duration::from_secs(20);
    let history = SendHistory { last_sent_at: Some(last_sent_at), unsettled: false };
    let mut world = World::new(limits(1, Period::MINUTE), history);
    world.store.post(destination(1), START);
    world.start_scheduler();
    world.start_sweeper();
    let permit = world.permit().await;
    assert_eq!(world.start_of(&permit).await, last_sent_at + Period::MINUTE.window() + Period::MINUTE.widest_slot());
}

#[tokio::test(start_paused = true)]
async fn an_empty_queue_waits_for_the_last_possible_send_of_lost_permits() {
    let history = SendHistory { last_sent_at: None, unsettled: true };
    let mut world = World::new(limits(1, Period::SECOND), history);
    world.store.post(destination(1), START);
    world.start_scheduler();
    world.start_sweeper();
    let permit = world.permit().await;
    // A worker that does not know of the loss may send for at most three seconds.
    let last_old_start = START + Duration::from_secs(3);
    let spacing = Period::SECOND.window() + Period::SECOND.widest_slot();
    assert_eq!(world.start_of(&permit).await, last_old_start + spacing);
}

/// The queue begins empty, as after a restart. One member has sent a moment ago, and the other one waits.
#[tokio::test(start_paused = true)]
async fn a_group_continues_one_spacing_after_the_last_recorded_send_of_all_members() {
    let mut world = World::new(RateLimits::UNLIMITED, SendHistory::default());
    let sent_at = START - Duration::from_millis(300);
    let sent = SendHistory { last_sent_at: Some(sent_at), unsettled: false };
    world.store.create(destination(2), RateLimits::UNLIMITED, sent);
    let group = LimitGroupId::from_bytes([9; 16]);
    for number in [1, 2] {
        world.store.join(destination(number), group, limits(1, Period::SECOND));
    }
    world.store.post(destination(1), START);
    world.wake().await;
    world.start_scheduler();
    let permit = world.permit().await;
    assert_eq!(world.start_of(&permit).await, sent_at + Duration::from_millis(1_010));
    assert!(world.store.left_homes(destination(1)).is_empty(), "they are closed");
}
