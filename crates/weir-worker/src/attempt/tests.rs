//! When an attempt must not leave any more.

use std::{sync::atomic::AtomicBool, time::Duration};

use bytes::Bytes;
use tokio::{net::TcpListener, time::Instant};
use weir_core::{
    DeliveryId, Destination, EventId, Limiter, Period, RateLimit, RateLimits, Timestamp, address::AddressPolicy,
    claim::ClaimedBody, outcome::Verdict, plan::NextRun, signing::SignatureStyle,
};
use weir_queue::{
    Permits as _, Publication, Published, Schedule as _, Wake, conformance::settings, memory::MemoryQueue,
};

use super::*;
use crate::outbound::{Target, TlsRoots};

struct TestClock(Instant);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(1_000_000) + self.0.elapsed()
    }

    fn wall(&self) -> Timestamp {
        self.now()
    }
}

/// One permit, and a worker whose receiver closes every connection.
struct Rig {
    attempter: Attempter,
    queue: Arc<MemoryQueue>,
    permit: Permit,
    body: EventBody,
    target: DestinationTarget,
}

impl Rig {
    /// After so many attempts, some of them before a replay.
    async fn new(limits: RateLimits, (attempts, attempts_before): (u32, u32), expires_in: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                drop(connection);
            }
        });
        let clock: Arc<dyn Clock> = Arc::new(TestClock(Instant::now()));
        let queue = Arc::new(MemoryQueue::new(clock.clone()));
        let policy = AddressPolicy {
            allow_http: true,
            allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
            ..AddressPolicy::default()
        };
        let attempter = Attempter {
            queue: queue.clone(),
            clock: clock.clone(),
            outbound: Arc::new(Outbound::new(policy, TlsRoots::none(), clock.clone())),
            meters: Meters::new(),
            lane_slots: LaneSlots::default(),
            stopping: Arc::new(AtomicBool::new(false)),
        };
        let mut destination: Destination = settings(&limits, 64);
        destination.settings.url = url;
        let now = clock.now();
        queue.wake(&[Wake { destination_id: destination.id, due: now }]).await.unwrap();
        let lease = queue.claim_due(1, Duration::from_secs(4)).await.unwrap().leases.remove(0);
        let body = EventBody::stored(Bytes::from_static(b"{}"), 0);
        let delivery = ClaimedDelivery {
            claim: Claim { delivery_id: DeliveryId::from_bytes([1; 16]), destination_id: destination.id, epoch: 1 },
            event_id: EventId::from_bytes([1; 16]),
            event_created_at: now,
            attempts,
            attempts_before,
            in_lane: false,
            body: ClaimedBody::Inline(body.clone()),
            expires_at: now + expires_in,
            destination: None,
        };
        let recovered = Some(Limiter::new(&limits));
        let publication = Publication { lease, limits, recovered, deliveries: vec![delivery], next: NextRun::Stop };
        assert!(matches!(queue.publish(vec![publication]).await.unwrap()[..], [Published::Done]));
        let permit = queue.take(1).await.unwrap().remove(0);
        let target = Target::new(&destination.settings.url, &[], &SignatureStyle::Standard);
        let target = DestinationTarget { destination: Arc::new(destination), target };
        Self { attempter, queue, permit, body, target }
    }

    async fn attempt(&self) -> Ended {
        self.attempter.make(&self.permit, &self.body, &self.target).await
    }
}

/// The first attempt of a permit whose claim expires so long from now.
async fn attempt(expires_in: Duration) -> (Ended, Arc<MemoryQueue>) {
    let rig = Rig::new(RateLimits::UNLIMITED, (0, 0), expires_in).await;
    (rig.attempt().await, rig.queue)
}

fn a_minute(limit: u32) -> RateLimits {
    RateLimits::new(RateLimit::new(limit, Period::Minute).into_iter().collect()).unwrap()
}

#[tokio::test]
async fn an_attempt_that_could_outlast_its_claim_does_not_leave() {
    // Ten seconds are left of the claim, and the answer may take fifteen.
    let (ended, queue) = attempt(Duration::from_secs(10)).await;
    let Ended::Unsent(unsent) = ended else { panic!("a recovered claim would be sent twice") };
    assert!(queue.start(unsent.permit), "the queue alone would have let it go");
}

#[tokio::test]
async fn an_attempt_that_ends_before_its_claim_is_made() {
    let (ended, _) = attempt(Duration::from_secs(75)).await;
    assert!(matches!(ended, Ended::Recorded(_)));
}

#[tokio::test]
async fn the_retries_of_a_replayed_delivery_count_anew() {
    for (attempts, attempts_before, is_retried) in [(14, 0, true), (15, 0, false), (16, 16, true), (31, 16, false)] {
        let rig = Rig::new(RateLimits::UNLIMITED, (attempts, attempts_before), Duration::from_secs(75)).await;
        let Ended::Recorded(finished) = rig.attempt().await else { panic!("it is made") };
        let result = finished.result;
        assert_eq!(result.attempt.number, attempts + 1, "numbers go on");
        assert_eq!(matches!(result.verdict, Verdict::Retry { .. }), is_retried, "{attempts} {attempts_before}");
    }
}

/// Each of three connections dies before anything leaves, and the slot with it: the next would be a minute away.
#[tokio::test]
async fn a_slot_that_was_not_used_is_exchanged_for_another() {
    let rig = Rig::new(a_minute(1), (0, 0), Duration::from_secs(75)).await;
    let Ended::Recorded(finished) = rig.attempt().await else { panic!("it waits for the next minute") };
    assert_eq!(finished.result.attempt.failure, Some(Failure::Connect));
}

/// The slot that was missed was the replay's, which has the one that was given: two of 31 a minute, and a third is further than the
/// horizon.
#[tokio::test]
async fn a_slot_that_a_replay_has_now_is_not_exchanged() {
    let mut rig = Rig::new(a_minute(31), (0, 0), Duration::from_secs(75)).await;
    let take_slot = async || match rig.queue.take_slot(rig.permit.id, SlotRequest::COLD).await.unwrap() {
        SlotAnswer::Granted(slot) => slot,
        SlotAnswer::Withdrawn => panic!("it is less than two seconds away"),
    };
    take_slot().await;
    let given = take_slot().await;
    rig.permit.slot = Some(given);
    let now = rig.attempter.clock.now();
    let replay = PermitId { serial: 0, ..rig.permit.id };
    rig.attempter.lane_slots.wait(replay, Slot { start: now + Duration::from_millis(50), end: given.end });
    assert!(matches!(rig.attempt().await, Ended::Unsent(_)), "the replay sends in the slot that would be given back");
    assert_eq!(rig.attempter.lane_slots.reach(replay, given, now), given);
}
