//! What every queue does alike: one function per behaviour, run on each backend by [`queue_conformance!`].
//!
//! Real time, since a queue may keep a clock of its own; waits are for signals, and only absence is waited out.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use weir_core::{
    Clock, DeliveryId, Destination, DestinationId, EventId, Limiter, Period, RateLimit, RateLimits, Slot, Timestamp,
    alert::AlertOverrides,
    breaker::{Breaker, BreakerPolicy},
    claim::{Claim, ClaimedBody, ClaimedDelivery},
    destination::Settings,
    event::EventBody,
    limiter::UNLIMITED_SLOT_WIDTH,
    order::DeliveryOrder,
    plan::NextRun,
    retry::RetryPolicy,
    signing::{Secret, Signing},
};

use crate::{DueJobs, Edit, Lease, Permit, Publication, Published, Room, SharedQueue, SlotAnswer, Wake};

const LEASE: Duration = Duration::from_secs(10);
/// Long enough for a job that is due to be claimed.
const SOON: Duration = Duration::from_secs(5);
/// Long enough to believe that nothing is due.
const ABSENCE: Duration = Duration::from_millis(60);

/// A fresh queue and its clock.
pub struct Subject {
    pub queue: SharedQueue,
    pub clock: Arc<dyn Clock>,
    /// How much later than the arithmetic says a slot may start, and earlier end, because the queue's clock is not this
    /// process's. Never the other way round.
    pub precision: Duration,
}

fn destination(number: u8) -> DestinationId {
    DestinationId::from_bytes([number; 16])
}

fn per_second(limit: u32) -> RateLimits {
    RateLimits::new(RateLimit::new(limit, Period::Second).into_iter().collect()).unwrap_or_default()
}

/// Destination 1 with these settings.
pub fn settings(limits: &RateLimits, max_in_flight: u32) -> Destination {
    Destination {
        id: destination(1),
        created_at: Timestamp::MIN,
        updated_at: Timestamp::MIN,
        settings: Settings {
            url: "https://example.com/".parse().expect("a url"),
            name: String::new(),
            tenant: "default".to_owned(),
            event_types: Vec::new(),
            rate_limits: limits.clone(),
            max_in_flight,
            timeout_ms: 15_000,
            retry: RetryPolicy::default(),
            breaker: Some(BreakerPolicy::default()),
            alerts: AlertOverrides::default(),
            order: DeliveryOrder::Any,
            headers: Vec::new(),
            signing: Signing::new(Secret::from_bytes(vec![7; 32]).expect("a secret")),
            paused: false,
        },
        paused_reason: None,
        held_until: None,
        held_reason: None,
        breaker: Breaker::default(),
    }
}

impl Subject {
    fn delivery(&self, number: u8, expires_in: Duration) -> ClaimedDelivery {
        let now = self.clock.now();
        ClaimedDelivery {
            claim: Claim {
                delivery_id: DeliveryId::from_bytes([number; 16]),
                destination_id: destination(1),
                epoch: 1,
            },
            event_id: EventId::from_bytes([number; 16]),
            event_created_at: now,
            attempts: 0,
            attempts_before: 0,
            in_lane: false,
            body: ClaimedBody::Inline(EventBody::stored(Bytes::from_static(b"{}"), 0)),
            expires_at: now + expires_in,
            destination: None,
        }
    }

    async fn wake(&self, due: Timestamp) {
        self.queue.wake(&[Wake { destination_id: destination(1), due }]).await.expect("wake");
    }

    async fn edit(&self, suspended: bool) {
        self.queue.edited(&[Edit { destination_id: destination(1), suspended }]).await.expect("edit");
    }

    async fn claim_for(&self, lease_for: Duration) -> Vec<Lease> {
        let claimed = tokio::time::timeout(SOON, self.queue.claim_due(16, lease_for)).await;
        let DueJobs { leases, .. } = claimed.expect("a job is due").expect("claim");
        leases
    }

    async fn claim(&self) -> Lease {
        self.claim_for(LEASE).await.remove(0)
    }

    async fn assert_nothing_due(&self) {
        let claimed = tokio::time::timeout(ABSENCE, self.queue.claim_due(16, LEASE)).await;
        assert!(claimed.is_err(), "nothing should be due: {claimed:?}");
    }

    async fn publish(&self, lease: Lease, limits: RateLimits, count: u8, next: NextRun) -> Published {
        let recovered = lease.issued.is_none().then(|| Limiter::new(&limits));
        let deliveries = (0..count).map(|number| self.delivery(number, SOON)).collect();
        let publication = Publication { lease, limits, recovered, deliveries, next };
        self.queue.publish(vec![publication]).await.expect("publish").remove(0)
    }

    /// Wakes, claims, publishes and takes `count` permits under `limits`.
    async fn permits(&self, limits: RateLimits, count: u8, next: NextRun) -> Vec<Permit> {
        self.wake(self.clock.now()).await;
        let lease = self.claim().await;
        assert!(matches!(self.publish(lease, limits, count, next).await, Published::Done));
        self.take(usize::from(count)).await
    }

    async fn take(&self, count: usize) -> Vec<Permit> {
        let mut permits = Vec::new();
        while permits.len() < count {
            let more = tokio::time::timeout(SOON, self.queue.take(count - permits.len())).await;
            permits.extend(more.expect("permits are published").expect("take"));
        }
        permits
    }

    fn assert_starts(&self, start: Timestamp, expected: Timestamp) {
        assert!(
            start + self.precision >= expected && start <= expected + self.precision,
            "a slot at {start:?} where {expected:?} was expected"
        );
    }

    fn assert_wide(&self, slot: Slot, width: Duration) {
        let actual = slot.end.since(slot.start);
        assert!(actual <= width && actual + self.precision * 2 >= width, "a slot {actual:?} wide instead of {width:?}");
    }

    async fn slot(&self, permit: &Permit, warm: bool) -> Slot {
        match self.queue.take_slot(permit.id, warm).await.expect("take a slot") {
            SlotAnswer::Granted(slot) => slot,
            SlotAnswer::Withdrawn => panic!("the permit should be good"),
        }
    }
}

pub async fn a_woken_job_is_claimed_once(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    subject.wake(subject.clock.now()).await;
    assert_eq!(subject.claim_for(LEASE).await.len(), 1);
    subject.assert_nothing_due().await;
}

pub async fn a_claim_waits_for_a_wake(subject: Subject) {
    let (claimed, ()) = tokio::join!(subject.claim(), async { subject.wake(subject.clock.now()).await });
    assert_eq!(claimed.destination_id, destination(1));
}

pub async fn a_wake_pulls_a_parked_job_forward(subject: Subject) {
    subject.wake(subject.clock.now() + Duration::from_secs(3_600)).await;
    subject.assert_nothing_due().await;
    subject.wake(subject.clock.now()).await;
    subject.claim().await;
}

pub async fn a_job_of_which_only_the_lane_waits_runs_soon_or_at_a_wake(subject: Subject) {
    let far = subject.clock.now() + Duration::from_secs(3_600);
    subject.permits(RateLimits::UNLIMITED, 1, NextRun::Soon(far)).await;
    subject.assert_nothing_due().await;
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    let soon = subject.clock.now() + Duration::from_millis(20);
    subject.publish(lease, RateLimits::UNLIMITED, 0, NextRun::Soon(soon)).await;
    let lease = subject.claim().await;
    assert!(subject.clock.now() + subject.precision * 2 >= soon);
    // A wake during a run is not lost either.
    subject.wake(subject.clock.now()).await;
    subject.publish(lease, RateLimits::UNLIMITED, 0, NextRun::Soon(far)).await;
    subject.claim().await;
}

pub async fn a_later_wake_does_not_push_a_job_back(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    subject.wake(subject.clock.now() + Duration::from_secs(3_600)).await;
    subject.claim().await;
}

pub async fn a_wake_does_not_pull_a_paced_job_below_its_pace(subject: Subject) {
    subject.permits(per_second(1), 1, NextRun::Paced).await;
    subject.wake(subject.clock.now()).await;
    subject.assert_nothing_due().await;
}

pub async fn a_stop_removes_the_job(subject: Subject) {
    subject.permits(per_second(10), 1, NextRun::Stop).await;
    subject.assert_nothing_due().await;
}

pub async fn a_wake_during_a_run_survives_its_stop(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    subject.wake(subject.clock.now()).await;
    subject.publish(lease, per_second(10), 0, NextRun::Stop).await;
    subject.claim().await;
}

pub async fn a_wake_during_a_run_pulls_its_parking_forward(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    subject.wake(subject.clock.now()).await;
    let far = subject.clock.now() + Duration::from_secs(3_600);
    subject.publish(lease, per_second(10), 0, NextRun::At(far)).await;
    subject.claim().await;
}

pub async fn an_ended_lease_is_claimed_again_and_its_stale_epoch_publishes_nothing(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    let stale = subject.claim_for(Duration::from_millis(20)).await.remove(0);
    let fresh = subject.claim().await;
    assert!(fresh.epoch > stale.epoch);
    let refused = subject.publish(stale, per_second(10), 3, NextRun::Stop).await;
    assert!(matches!(refused, Published::Stale(back) if back.len() == 3));
    assert!(matches!(subject.publish(fresh, per_second(10), 1, NextRun::Stop).await, Published::Done));
    assert_eq!(subject.take(1).await.len(), 1);
}

pub async fn a_publish_after_a_publish_of_the_same_lease_is_stale(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    assert!(matches!(subject.publish(lease.clone(), per_second(10), 1, NextRun::Stop).await, Published::Done));
    assert!(matches!(subject.publish(lease, per_second(10), 1, NextRun::Stop).await, Published::Stale(_)));
}

pub async fn a_run_that_continues_keeps_its_lease_and_publishes_again(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    let continued = subject.publish(lease.clone(), per_second(10), 2, NextRun::Continue).await;
    assert!(matches!(continued, Published::Done));
    assert_eq!(subject.take(2).await.len(), 2, "they need not wait for the end of the run");
    // A wake during the run is for the one after it.
    subject.wake(subject.clock.now()).await;
    assert!(matches!(subject.publish(lease.clone(), per_second(10), 1, NextRun::Stop).await, Published::Done));
    assert_eq!(subject.take(1).await.len(), 1);
    let next = subject.claim().await;
    assert_eq!((next.epoch > lease.epoch, next.queued), (true, 3));
}

pub async fn permits_come_in_the_order_they_were_published(subject: Subject) {
    let permits = subject.permits(per_second(10), 5, NextRun::Stop).await;
    let order: Vec<_> = permits.iter().map(|permit| permit.delivery.claim.delivery_id.as_bytes()[0]).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
}

pub async fn a_cold_destination_takes_its_slots_when_connections_stand(subject: Subject) {
    let permits = subject.permits(per_second(10), 3, NextRun::Stop).await;
    assert!(permits.iter().all(|permit| permit.slot.is_none()));
    let asked_at = subject.clock.now();
    let first = subject.slot(&permits[0], false).await;
    let starts_now = first.start >= asked_at && first.start <= subject.clock.now() + subject.precision;
    assert!(starts_now, "an idle destination's slot starts now");
    let second = subject.slot(&permits[1], false).await;
    subject.assert_starts(second.start, first.start + Duration::from_millis(101));
    subject.assert_wide(second, Duration::from_millis(10));
}

pub async fn a_warm_destination_is_published_with_slots_t_apart(subject: Subject) {
    let permits = subject.permits(per_second(10), 1, NextRun::Now).await;
    let first = subject.slot(&permits[0], true).await;
    let lease = subject.claim().await;
    subject.publish(lease, per_second(10), 3, NextRun::Stop).await;
    for (permit, n) in subject.take(3).await.iter().zip(1..) {
        subject.assert_starts(permit.slot.expect("warm").start, first.start + Duration::from_millis(101) * n);
    }
}

pub async fn a_missed_slot_is_replaced_by_a_later_one(subject: Subject) {
    let permits = subject.permits(per_second(10), 2, NextRun::Stop).await;
    let first = subject.slot(&permits[0], true).await;
    assert!(subject.queue.start(permits[0].id));
    let again = subject.slot(&permits[0], true).await;
    subject.assert_starts(again.start, first.start + Duration::from_millis(101));
    assert!(subject.queue.start(permits[0].id), "back in the queue, it may be started again");
}

pub async fn cursors_survive_a_stop(subject: Subject) {
    let first = subject.permits(per_second(10), 1, NextRun::Stop).await;
    let first_slot = subject.slot(&first[0], false).await;
    let second = subject.permits(per_second(10), 1, NextRun::Stop).await;
    let again = subject.slot(&second[0], false).await;
    assert!(again.start + subject.precision >= first_slot.start + Duration::from_millis(101));
}

pub async fn unknown_cursors_continue_from_the_recovered_ones(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    assert!(lease.issued.is_none());
    let last_start = subject.clock.now() + Duration::from_secs(1);
    let recovered = Some(Limiter::recovered(&per_second(10), Some(last_start)));
    let deliveries = vec![subject.delivery(1, SOON)];
    let publication = Publication { lease, limits: per_second(10), recovered, deliveries, next: NextRun::Stop };
    subject.queue.publish(vec![publication]).await.expect("publish");
    let permit = subject.take(1).await.remove(0);
    subject.assert_starts(subject.slot(&permit, false).await.start, last_start + Duration::from_millis(101));
}

pub async fn new_limits_apply_from_the_next_publish(subject: Subject) {
    let permits = subject.permits(per_second(1), 1, NextRun::Now).await;
    let first = subject.slot(&permits[0], true).await;
    let lease = subject.claim().await;
    subject.publish(lease, per_second(100), 1, NextRun::Stop).await;
    let slot = subject.take(1).await[0].slot.expect("warm");
    assert!(slot.start + subject.precision >= first.start + Duration::from_micros(10_100));
    assert!(slot.start < first.start + Duration::from_millis(900), "the old spacing no longer holds it");
}

pub async fn an_unlimited_permit_has_a_slot_that_starts_now(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::Stop).await;
    let slot = subject.slot(&permits[0], true).await;
    assert!(slot.start <= subject.clock.now() + subject.precision);
    subject.assert_wide(slot, UNLIMITED_SLOT_WIDTH);
}

pub async fn an_edit_runs_a_parked_job_at_once(subject: Subject) {
    subject.permits(per_second(1), 1, NextRun::Paced).await;
    subject.edit(false).await;
    subject.claim().await;
}

pub async fn an_edit_during_a_run_brings_another_run(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    subject.edit(false).await;
    // It may have read the limits of before the edit.
    assert!(matches!(subject.publish(lease, per_second(1), 1, NextRun::Paced).await, Published::Stale(_)));
    subject.claim().await;
}

pub async fn a_suspended_destination_withdraws_its_permits(subject: Subject) {
    let permits = subject.permits(per_second(10), 2, NextRun::Stop).await;
    subject.slot(&permits[0], true).await;
    subject.edit(true).await;
    assert!(!subject.queue.start(permits[0].id));
    assert_eq!(subject.queue.take_slot(permits[1].id, true).await.expect("ask"), SlotAnswer::Withdrawn);
}

pub async fn a_suspension_during_a_run_makes_its_publish_stale(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    subject.edit(true).await;
    assert!(matches!(subject.publish(lease, per_second(10), 2, NextRun::Stop).await, Published::Stale(_)));
    subject.claim().await;
}

pub async fn a_resumed_destination_publishes_again(subject: Subject) {
    subject.permits(per_second(10), 1, NextRun::Stop).await;
    subject.edit(true).await;
    let lease = subject.claim().await;
    subject.publish(lease, per_second(10), 0, NextRun::Stop).await;
    subject.edit(false).await;
    let lease = subject.claim().await;
    subject.publish(lease, per_second(10), 1, NextRun::Stop).await;
    let permit = subject.take(1).await.remove(0);
    subject.slot(&permit, false).await;
    assert!(subject.queue.start(permit.id));
}

pub async fn a_hold_moves_the_next_slot_and_stops_what_is_published(subject: Subject) {
    let permits = subject.permits(per_second(10), 2, NextRun::Stop).await;
    subject.slot(&permits[0], true).await;
    let until = subject.clock.now() + Duration::from_secs(1);
    subject.queue.hold(destination(1), until).await.expect("hold");
    assert!(!subject.queue.start(permits[0].id));
    subject.assert_starts(subject.slot(&permits[1], true).await.start, until);
}

pub async fn a_slot_beyond_the_horizon_is_not_granted(subject: Subject) {
    let per_minute = RateLimits::new(RateLimit::new(1, Period::Minute).into_iter().collect()).unwrap_or_default();
    let permit = subject.permits(per_minute, 1, NextRun::Stop).await.remove(0);
    subject.slot(&permit, true).await;
    let missed = subject.queue.take_slot(permit.id, true).await;
    assert_eq!(missed.expect("take a slot"), SlotAnswer::Withdrawn);
}

pub async fn a_permit_is_started_once(subject: Subject) {
    let permits = subject.permits(per_second(10), 1, NextRun::Stop).await;
    subject.slot(&permits[0], true).await;
    assert!(subject.queue.start(permits[0].id));
    assert!(!subject.queue.start(permits[0].id));
}

pub async fn a_lease_counts_what_is_queued_and_in_flight(subject: Subject) {
    let permits = subject.permits(per_second(10), 3, NextRun::Now).await;
    subject.slot(&permits[0], true).await;
    assert!(subject.queue.start(permits[0].id));
    let lease = subject.claim().await;
    assert_eq!((lease.queued, lease.in_flight), (2, 1));
    subject.publish(lease, per_second(10), 0, NextRun::Now).await;
    subject.queue.settle(&[permits[0].id]).await.expect("settle");
    subject.queue.hand_back(&[permits[1].id, permits[2].id]).await.expect("hand back");
    let lease = subject.claim().await;
    assert_eq!((lease.queued, lease.in_flight), (0, 0));
}

pub async fn a_settle_runs_a_job_that_waits_for_room(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::OnSettle).await;
    subject.assert_nothing_due().await;
    subject.queue.settle(&[permits[0].id]).await.expect("settle");
    subject.claim().await;
}

pub async fn a_settle_during_a_run_is_not_missed(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::Now).await;
    let lease = subject.claim().await;
    subject.queue.settle(&[permits[0].id]).await.expect("settle");
    subject.publish(lease, RateLimits::UNLIMITED, 0, NextRun::OnSettle).await;
    subject.claim().await;
}

pub async fn a_job_that_waits_for_a_claim_runs_at_its_wake(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::OnWake).await;
    subject.queue.settle(&[permits[0].id]).await.expect("settle");
    subject.assert_nothing_due().await;
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    // The claim ended while the run was under way.
    subject.wake(subject.clock.now()).await;
    subject.publish(lease, RateLimits::UNLIMITED, 0, NextRun::OnWake).await;
    subject.claim().await;
}

pub async fn an_expired_permit_is_withdrawn_and_no_longer_counted(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    let limits = per_second(10);
    let deliveries = vec![subject.delivery(1, Duration::ZERO)];
    let recovered = Some(Limiter::new(&limits));
    let publication = Publication { lease, limits, recovered, deliveries, next: NextRun::Now };
    subject.queue.publish(vec![publication]).await.expect("publish");
    let permit = subject.take(1).await.remove(0);
    assert_eq!(subject.queue.take_slot(permit.id, true).await.expect("ask"), SlotAnswer::Withdrawn);
    assert!(!subject.queue.start(permit.id));
    assert_eq!(subject.claim().await.queued, 0);
}

pub async fn permits_whose_workers_died_are_no_longer_counted_once_their_claims_expire(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    let limits = per_second(10);
    let deliveries = [1, 2].map(|number| subject.delivery(number, Duration::from_secs(1))).to_vec();
    let expires_at = deliveries[1].expires_at;
    let recovered = Some(Limiter::new(&limits));
    let publication = Publication { lease, limits: limits.clone(), recovered, deliveries, next: NextRun::Now };
    subject.queue.publish(vec![publication]).await.expect("publish");
    let permit = subject.take(2).await.remove(0);
    subject.slot(&permit, true).await;
    assert!(subject.queue.start(permit.id));
    let lease = subject.claim().await;
    assert_eq!((lease.queued, lease.in_flight), (1, 1));
    subject.publish(lease, limits, 0, NextRun::At(expires_at)).await;
    let lease = subject.claim().await;
    assert_eq!((lease.queued, lease.in_flight), (0, 0));
}

pub async fn one_destination_does_not_delay_another(subject: Subject) {
    subject.permits(per_second(1), 1, NextRun::Paced).await;
    subject.queue.wake(&[Wake { destination_id: destination(2), due: subject.clock.now() }]).await.expect("wake");
    assert_eq!(subject.claim().await.destination_id, destination(2));
}

impl Subject {
    /// A run that found nothing more to do: the destination has no backlog, and its cursors are known.
    async fn run_dry(&self, limits: RateLimits) {
        self.wake(self.clock.now()).await;
        let lease = self.claim().await;
        assert!(matches!(self.publish(lease, limits, 0, NextRun::Stop).await, Published::Done));
    }

    fn try_reserve(&self, of: &Destination) -> bool {
        self.queue.reserve(of, self.clock.now() + SOON).is_kept()
    }

    /// Keeps room for a permit. A queue that has to guess may need a moment.
    async fn reserve(&self, of: &Destination) {
        let until = self.clock.now() + SOON;
        while !self.try_reserve(of) {
            assert!(self.clock.now() < until, "there is no room");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn admit(&self, number: u8, of: &Destination) {
        let delivery = self.delivery(number, SOON);
        self.queue.admit(vec![ClaimedDelivery { destination: Some(Arc::new(of.clone())), ..delivery }]);
    }

    /// The permit of a delivery that is admitted; tried again when it comes back, since a queue may guess.
    async fn admitted(&self, number: u8, of: &Destination) -> Permit {
        loop {
            self.reserve(of).await;
            self.admit(number, of);
            tokio::select! {
                permits = self.take(1) => return permits.into_iter().next().expect("one was taken"),
                _ = self.queue.declined() => {}
            }
        }
    }

    /// A queue that has to guess may keep room, and declines.
    async fn assert_not_admitted(&self, number: u8, of: &Destination) {
        if self.try_reserve(of) {
            self.admit(number, of);
            assert_eq!(self.declined(1).await.len(), 1);
        }
    }

    async fn declined(&self, count: usize) -> Vec<ClaimedDelivery> {
        let mut declined = Vec::new();
        while declined.len() < count {
            declined.extend(tokio::time::timeout(SOON, self.queue.declined()).await.expect("deliveries are declined"));
        }
        declined
    }
}

pub async fn a_delivery_is_admitted_without_a_run(subject: Subject) {
    let unlimited = settings(&RateLimits::UNLIMITED, 64);
    subject.run_dry(RateLimits::UNLIMITED).await;
    let permit = subject.admitted(7, &unlimited).await;
    assert_eq!(permit.delivery.claim.delivery_id, DeliveryId::from_bytes([7; 16]));
    let SlotAnswer::Granted(slot) = subject.queue.take_slot(permit.id, true).await.expect("take a slot") else {
        panic!("no slot");
    };
    tokio::time::sleep(slot.start.since(subject.clock.now())).await;
    assert!(subject.queue.start(permit.id));
    subject.queue.settle(&[permit.id]).await.expect("settle");
    assert!(subject.admitted(8, &unlimited).await.slot.is_some(), "a warm permit comes with its slot");
    subject.assert_nothing_due().await;
}

pub async fn nothing_is_admitted_to_a_destination_that_never_ran(subject: Subject) {
    assert!(!subject.try_reserve(&settings(&RateLimits::UNLIMITED, 64)), "its cursors are not known");
}

pub async fn an_admitted_delivery_takes_its_slot_off_the_same_cursor(subject: Subject) {
    let limits = per_second(10);
    let spacing = Duration::from_millis(101);
    let first = subject.permits(limits.clone(), 1, NextRun::Stop).await.remove(0);
    let SlotAnswer::Granted(slot) = subject.queue.take_slot(first.id, true).await.expect("take a slot") else {
        panic!("no slot");
    };
    let admitted = subject.admitted(7, &settings(&limits, 64)).await.slot.expect("a warm permit has its slot");
    assert!(admitted.start + subject.precision * 2 >= slot.start + spacing, "{admitted:?} after {slot:?}");
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    assert!(matches!(subject.publish(lease, limits, 1, NextRun::Stop).await, Published::Done));
    let next = subject.take(1).await.remove(0).slot.expect("a warm permit has its slot");
    assert!(next.start + subject.precision * 2 >= admitted.start + spacing, "{next:?} after {admitted:?}");
}

pub async fn no_more_are_admitted_than_may_be_in_flight(subject: Subject) {
    let two = settings(&RateLimits::UNLIMITED, 2);
    subject.run_dry(RateLimits::UNLIMITED).await;
    subject.admitted(1, &two).await;
    subject.admitted(2, &two).await;
    assert!(!subject.try_reserve(&two), "two are out");
    subject.wake(subject.clock.now()).await;
    let lease = subject.claim().await;
    assert_eq!(lease.queued, 2, "a run counts what was admitted");
}

pub async fn nothing_is_admitted_while_a_backlog_waits(subject: Subject) {
    subject.permits(RateLimits::UNLIMITED, 1, NextRun::Now).await;
    subject.assert_not_admitted(7, &settings(&RateLimits::UNLIMITED, 64)).await;
}

pub async fn what_is_live_is_admitted_beside_a_lane_that_has_filled_its_horizon(subject: Subject) {
    let (soon, limits) = (subject.clock.now() + Duration::from_secs(3_600), per_second(200));
    let mut last = Timestamp::MIN;
    for permit in subject.permits(limits.clone(), 4, NextRun::Soon(soon)).await {
        let SlotAnswer::Granted(slot) = subject.queue.take_slot(permit.id, true).await.expect("take a slot") else {
            panic!("no slot");
        };
        last = slot.start;
    }
    let admitted = subject.admitted(7, &settings(&limits, 64)).await.slot.expect("a warm permit has its slot");
    assert!(admitted.start + subject.precision * 2 >= last + Duration::from_millis(5), "{admitted:?} after {last:?}");
    let slow = per_second(10);
    subject.permits(slow.clone(), 2, NextRun::Soon(soon)).await;
    // Its next slot is far away.
    subject.assert_not_admitted(8, &settings(&slow, 64)).await;
}

pub async fn what_is_admitted_after_a_suspension_comes_back(subject: Subject) {
    let unlimited = settings(&RateLimits::UNLIMITED, 64);
    subject.run_dry(RateLimits::UNLIMITED).await;
    subject.reserve(&unlimited).await;
    subject.edit(true).await;
    subject.admit(7, &unlimited);
    let declined = subject.declined(1).await;
    assert_eq!(declined[0].claim.delivery_id, DeliveryId::from_bytes([7; 16]));
    assert!(!subject.try_reserve(&unlimited));
}

pub async fn room_that_was_given_up_is_there_again(subject: Subject) {
    let one = settings(&RateLimits::UNLIMITED, 1);
    subject.run_dry(RateLimits::UNLIMITED).await;
    subject.reserve(&one).await;
    assert!(!subject.try_reserve(&one));
    subject.queue.unreserve(destination(1));
    subject.reserve(&one).await;
}

pub async fn want_of_room_is_told_from_a_backlog(subject: Subject) {
    let one = settings(&RateLimits::UNLIMITED, 1);
    let room = || subject.queue.reserve(&one, subject.clock.now() + SOON);
    assert_eq!(room(), Room::Closed, "nothing is known of it");
    subject.run_dry(RateLimits::UNLIMITED).await;
    subject.reserve(&one).await;
    assert_eq!(room(), Room::Full);
    subject.permits(RateLimits::UNLIMITED, 1, NextRun::OnSettle).await;
    assert_eq!(room(), Room::Closed, "more waits than there is room for");
}

pub async fn nothing_is_admitted_under_limits_that_the_cursors_do_not_follow(subject: Subject) {
    let (before, after) = (per_second(10), per_second(5));
    subject.run_dry(before).await;
    let edited = settings(&after, 64);
    // The announcement of the edit is lost, or late.
    subject.assert_not_admitted(7, &edited).await;
    subject.run_dry(after).await;
    subject.admitted(7, &edited).await;
}

/// Runs every behaviour as a test of its own on the queue that `$subject`, an async function, makes.
#[macro_export]
macro_rules! queue_conformance {
    ($subject:path) => {
        $crate::queue_conformance!(@each $subject,
            a_woken_job_is_claimed_once,
            a_claim_waits_for_a_wake,
            a_wake_pulls_a_parked_job_forward,
            a_job_of_which_only_the_lane_waits_runs_soon_or_at_a_wake,
            a_later_wake_does_not_push_a_job_back,
            a_wake_does_not_pull_a_paced_job_below_its_pace,
            a_stop_removes_the_job,
            a_wake_during_a_run_survives_its_stop,
            a_wake_during_a_run_pulls_its_parking_forward,
            an_ended_lease_is_claimed_again_and_its_stale_epoch_publishes_nothing,
            a_publish_after_a_publish_of_the_same_lease_is_stale,
            a_run_that_continues_keeps_its_lease_and_publishes_again,
            permits_come_in_the_order_they_were_published,
            a_cold_destination_takes_its_slots_when_connections_stand,
            a_warm_destination_is_published_with_slots_t_apart,
            a_missed_slot_is_replaced_by_a_later_one,
            cursors_survive_a_stop,
            unknown_cursors_continue_from_the_recovered_ones,
            new_limits_apply_from_the_next_publish,
            an_unlimited_permit_has_a_slot_that_starts_now,
            an_edit_runs_a_parked_job_at_once,
            an_edit_during_a_run_brings_another_run,
            a_suspended_destination_withdraws_its_permits,
            a_suspension_during_a_run_makes_its_publish_stale,
            a_resumed_destination_publishes_again,
            a_hold_moves_the_next_slot_and_stops_what_is_published,
            a_slot_beyond_the_horizon_is_not_granted,
            a_permit_is_started_once,
            a_lease_counts_what_is_queued_and_in_flight,
            a_settle_runs_a_job_that_waits_for_room,
            a_settle_during_a_run_is_not_missed,
            a_job_that_waits_for_a_claim_runs_at_its_wake,
            an_expired_permit_is_withdrawn_and_no_longer_counted,
            permits_whose_workers_died_are_no_longer_counted_once_their_claims_expire,
            one_destination_does_not_delay_another,
            a_delivery_is_admitted_without_a_run,
            nothing_is_admitted_to_a_destination_that_never_ran,
            an_admitted_delivery_takes_its_slot_off_the_same_cursor,
            no_more_are_admitted_than_may_be_in_flight,
            nothing_is_admitted_while_a_backlog_waits,
            what_is_live_is_admitted_beside_a_lane_that_has_filled_its_horizon,
            what_is_admitted_after_a_suspension_comes_back,
            room_that_was_given_up_is_there_again,
            want_of_room_is_told_from_a_backlog,
            nothing_is_admitted_under_limits_that_the_cursors_do_not_follow,
        );
    };
    (@each $subject:path, $($behaviour:ident),+ $(,)?) => {$(
        #[tokio::test]
        async fn $behaviour() {
            $crate::conformance::$behaviour($subject().await).await;
        }
    )+};
}
