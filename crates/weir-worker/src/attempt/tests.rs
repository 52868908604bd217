//! Attempts that must not be sent, and how attempts are counted.

use std::{sync::atomic::AtomicBool, time::Duration};

use bytes::Bytes;
use tokio::{net::TcpListener, time::Instant};
use weir_core::{
    DeliveryId, Destination, EventId, Limiter, Period, RateLimit, RateLimits, Timestamp, address::AddressPolicy,
    body::BodySettings, claim::ClaimedBody, outcome::Verdict, plan::NextRun, signing::SignatureStyle,
};
use weir_queue::{
    Permits as _, Publication, Published, Schedule as _, SlotAnswer, SlotRequest, Terms, Wake, conformance::settings,
    memory::MemoryQueue,
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
    /// A permit of a delivery after `attempts` attempts, `attempts_before` of them before a replay.
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
            spans: None,
            stopping: Arc::new(AtomicBool::new(false)),
        };
        let mut destination: Destination = settings(&limits, 64);
        destination.settings.url = url;
        let now = clock.now();
        queue.wake(&[Wake { destination_id: destination.id, due: now }]).await.unwrap();
        let lease = queue.claim_due(1, Duration::from_secs(4)).await.unwrap().leases.remove(0);
        let body = EventBody::stored(Bytes::from_static(b"{}"), 0);
        let delivery = ClaimedDelivery {
            flow_id: destination.id,
            claim: Claim { delivery_id: DeliveryId::from_bytes([1; 16]), destination_id: destination.id, epoch: 1 },
            event_id: EventId::from_bytes([1; 16]),
            event_created_at: now,
            attempts,
            attempts_before,
            is_replay: false,
            cost: 1,
            body: ClaimedBody::Inline(body.clone()),
            expires_at: now + expires_in,
            destination: None,
        };
        let recovered = Some(Limiter::new(&limits));
        let terms = Some(Terms::of(&destination, now));
        let publication = Publication {
            lease,
            terms,
            recovered,
            groups: Vec::new(),
            pace: None,
            deliveries: vec![delivery],
            next: NextRun::Stop,
        };
        assert!(matches!(queue.publish(vec![publication]).await.unwrap()[..], [Published::Done]));
        let permit = queue.take(1).await.unwrap().remove(0);
        let target = Target::new(&destination.settings.url, &[], &SignatureStyle::standard(), &BodySettings::default());
        let target = DestinationTarget::new(Arc::new(destination), target);
        Self { attempter, queue, permit, body, target }
    }

    async fn attempt(&self) -> AttemptEnd {
        self.attempter.make(&self.permit, &self.body, &self.target).await
    }
}

/// The first attempt with a permit whose claim expires after `expires_in`.
async fn attempt(expires_in: Duration) -> (AttemptEnd, Arc<MemoryQueue>) {
    let rig = Rig::new(RateLimits::UNLIMITED, (0, 0), expires_in).await;
    (rig.attempt().await, rig.queue)
}

#[tokio::test]
async fn an_attempt_that_could_outlast_its_claim_is_not_sent() {
    // The claim expires in ten seconds, and the timeout is fifteen seconds.
    let (ended, queue) = attempt(Duration::from_secs(10)).await;
    let AttemptEnd::Unused(unsent) = ended else { panic!("a recovered claim would be sent twice") };
    let request = SlotRequest::new(unsent.permit);
    let granted = queue.take_slot(request).await.unwrap();
    assert!(matches!(granted, SlotAnswer::Granted(..)), "the queue alone would grant a slot");
}

#[tokio::test]
async fn an_attempt_that_ends_before_its_claim_is_made() {
    let (ended, _) = attempt(Duration::from_secs(75)).await;
    assert!(matches!(ended, AttemptEnd::Recorded(_)));
}

#[tokio::test]
async fn the_retries_of_a_replayed_delivery_are_counted_from_the_replay() {
    for (attempts, attempts_before, is_retried) in [(14, 0, true), (15, 0, false), (16, 16, true), (31, 16, false)] {
        let rig = Rig::new(RateLimits::UNLIMITED, (attempts, attempts_before), Duration::from_secs(75)).await;
        let AttemptEnd::Recorded(finished) = rig.attempt().await else { panic!("the attempt is made") };
        let result = finished.result;
        assert_eq!(result.attempt.number, attempts + 1, "attempt numbers continue");
        assert_eq!(matches!(result.verdict, Verdict::Retry { .. }), is_retried, "{attempts} {attempts_before}");
    }
}

/// The receiver closes every connection. Each is an attempt, and the limit applies to them.
#[tokio::test]
async fn an_attempt_without_a_connection_takes_a_slot() {
    let one_a_minute = RateLimits::new(RateLimit::new(1, Period::MINUTE).into_iter().collect()).unwrap();
    let rig = Rig::new(one_a_minute, (0, 0), Duration::from_secs(75)).await;
    let AttemptEnd::Recorded(finished) = rig.attempt().await else { panic!("the first slot is now") };
    assert_eq!(finished.result.attempt.failure, Some(Failure::Connect));
    assert!(matches!(rig.attempt().await, AttemptEnd::Unused(_)), "the next slot is a minute away");
}

/// The receiver accepts connections and never answers a TLS handshake.
#[tokio::test]
async fn the_duration_of_an_attempt_that_hangs_in_its_dial_is_the_time_of_the_dial() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut rig = Rig::new(RateLimits::UNLIMITED, (0, 0), Duration::from_secs(75)).await;
    let mut destination = Destination::clone(&rig.target.destination);
    destination.settings.url = format!("https://{}/", silent.local_addr().unwrap()).parse().unwrap();
    destination.settings.timeout_ms = 200;
    let target = Target::new(&destination.settings.url, &[], &SignatureStyle::standard(), &BodySettings::default());
    rig.target = DestinationTarget::new(Arc::new(destination), target);
    let AttemptEnd::Recorded(finished) = rig.attempt().await else { panic!("the attempt is made") };
    let attempt = &finished.result.attempt;
    assert_eq!((attempt.sent_at, attempt.failure), (None, Some(Failure::Tls)));
    assert_eq!(attempt.error.as_deref(), Some("the TLS handshake did not end within 200 ms"));
    assert!((200..5_000).contains(&attempt.duration_ms), "{} ms", attempt.duration_ms);
}

/// A slot that starts a few milliseconds ahead must not hide that the permit waited for a worker.
#[tokio::test(start_paused = true)]
async fn the_wait_before_the_request_for_a_slot_is_lag_and_the_wait_for_the_slot_is_not() {
    let hundred_a_second = RateLimits::new(RateLimit::new(100, Period::SECOND).into_iter().collect()).unwrap();
    let Rig { attempter, queue, permit, .. } = Rig::new(hundred_a_second, (0, 0), Duration::from_secs(75)).await;
    let (start_by, lag_since) = (permit.delivery.expires_at, permit.published_at);
    let ask_ahead = AskAhead::new(&permit.delivery, &RateLimits::default());
    let mut slots = PermitSlots {
        attempter: &attempter,
        permit: &permit,
        ask_ahead,
        start_by,
        preparation: None,
        slot: None,
        notes: &mut super::permit_slots::SlotNotes::default(),
        lag_since,
    };
    tokio::time::advance(Duration::from_secs(2)).await;
    let first = queue.take_slot(SlotRequest::new(permit.id)).await.unwrap();
    assert!(matches!(first, SlotAnswer::Granted(..)), "its slot is missed, and the next one is 10 ms away");
    let slot = slots.next().await.unwrap();
    assert!(slot.start > attempter.clock.now());
    assert_eq!(slot.start.since(slots.lag_since), Duration::from_secs(2));
}
