//! An endpoint that is down for six hours: how few requests its breaker allows, and how fast its backlog drains
//! afterwards.
//!
//! The test acts as the worker: it sends in granted slots, updates the breaker, and settles in the same order as the
//! recorder.

use std::{collections::HashMap, time::Duration};

use weir_core::{
    DeliveryId, Period, Timestamp,
    breaker::{AttemptWindow, EndedAttempt, SLOW_START},
    delivery::AttemptOutcome,
    outcome::Effect,
    retry::{Next, RetryPolicy},
};
use weir_queue::{HandedBack, Permit, Permits as _, Schedule as _, Terms, TermsChange, Wake};
use weir_store::{BreakerChange, RunDestinations as _, SendHistory};

use crate::{
    START, World,
    store::{destination, limits},
};

/// How long the endpoint is down.
const OUTAGE: Duration = Duration::from_secs(6 * 3_600);
/// The time between two events.
const EVENT_INTERVAL: Duration = Duration::from_secs(20);
const EVENTS: u32 = (OUTAGE.as_secs() / EVENT_INTERVAL.as_secs()) as u32;
const PER_SECOND: u32 = 2;

/// The requests that the endpoint received.
#[derive(Default)]
struct Endpoint {
    sends: Vec<Timestamp>,
    attempts: HashMap<DeliveryId, u32>,
    delivered: u32,
    window: AttemptWindow,
}

impl World {
    /// Makes an attempt with the permit, to an endpoint that answers from `back_at` on.
    async fn send(&self, permit: Permit, back_at: Timestamp, endpoint: &mut Endpoint) {
        let id = destination(1);
        let claim = permit.delivery.claim;
        let Some(start) = self.try_start_of(&permit).await else {
            let now = self.clock.now();
            self.store.put_back(claim, now);
            self.queue.hand_back(&[HandedBack { id: permit.id, crowded: false }]).await.unwrap();
            self.queue.wake(&[Wake { destination_id: id, due: now }]).await.unwrap();
            return;
        };
        tokio::time::sleep(start.since(self.clock.now())).await;
        let now = self.clock.now();
        let known = self.store.destinations(&[id]).await.unwrap().remove(0).unwrap();
        endpoint.sends.push(now);
        *endpoint.attempts.entry(claim.delivery_id).or_default() += 1;
        let outcome = if now < back_at { AttemptOutcome::Retryable } else { AttemptOutcome::Delivered };
        let ending = EndedAttempt { outcome, effect: Effect::None, refusal: None, began: now, now };
        let policy = known.settings.breaker.unwrap();
        if let Some(changed) = endpoint.window.observe(&known.breaker, &policy, &ending) {
            let change = BreakerChange { id, expected: known.breaker.clone(), changed, now };
            assert_eq!(self.store.change_breakers(vec![change]).await.unwrap(), [true]);
            let known = self.store.destinations(&[id]).await.unwrap().remove(0).unwrap();
            self.queue.edited(&[TermsChange { destination_id: id, terms: Terms::of(&known, now) }]).await.unwrap();
        }
        self.queue.settle(&[permit.id.into()]).await.unwrap();
        if outcome == AttemptOutcome::Delivered {
            endpoint.delivered += 1;
            self.store.end(claim);
            return;
        }
        let attempt = endpoint.attempts[&claim.delivery_id];
        match RetryPolicy::default().next(attempt, now, now, 1.0, None, true) {
            Next::RetryAt(due) => {
                self.store.put_back(claim, due);
                self.queue.wake(&[Wake { destination_id: id, due }]).await.unwrap();
            }
            Next::Exhausted => panic!("no delivery should use up its attempts"),
        }
    }

    /// Commits an event every [`EVENT_INTERVAL`], and wakes the destination.
    fn start_producer(&mut self) {
        let (store, queue, clock) = (self.store.clone(), self.queue.clone(), self.clock.clone());
        self.running.spawn(async move {
            for _ in 0..EVENTS {
                let due = clock.now();
                store.post(destination(1), due);
                queue.wake(&[Wake { destination_id: destination(1), due }]).await.unwrap();
                tokio::time::sleep(EVENT_INTERVAL).await;
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_six_hours_causes_only_probes_and_its_backlog_drains_at_the_limit() {
    let mut world = World::new(limits(PER_SECOND, Period::SECOND), SendHistory::default());
    world.start_scheduler();
    world.start_sweeper();
    world.start_producer();
    let back_at = START + OUTAGE;
    let mut endpoint = Endpoint::default();
    while endpoint.delivered < EVENTS {
        let permit = world.permit_within(OUTAGE).await;
        world.send(permit, back_at, &mut endpoint).await;
    }
    let during_outage = endpoint.sends.partition_point(|at| *at < back_at);
    // Ten failures open the breaker. Probes follow after 0.5, 1, 2, 4, 8 and 16 minutes, and then every 30 minutes.
    assert!((15..=30).contains(&during_outage), "{during_outage} requests in six hours");
    assert!(endpoint.attempts.values().all(|attempts| *attempts <= 15), "attempts are not used up");

    let after = &endpoint.sends[during_outage..];
    for (first, next) in after.iter().zip(&after[PER_SECOND as usize..]) {
        assert!(next.since(*first) >= Duration::from_secs(1), "more than {PER_SECOND} within {:?}", next.since(*first));
    }
    // The deliveries of the probes are retried later, each at its own time.
    let backlog = EVENTS as usize - during_outage - 2 * SLOW_START.as_secs() as usize;
    let drained: Vec<_> = after.iter().filter(|at| at.since(after[0]) > SLOW_START).take(backlog).collect();
    let span = drained[drained.len() - 1].since(*drained[0]).as_secs_f64();
    let utilisation = (drained.len() - 1) as f64 / span / f64::from(PER_SECOND);
    assert!(utilisation >= 0.985, "the backlog drained at {utilisation} of the limit");
}
