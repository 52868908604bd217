//! New deliveries that join what runs have in hand.

use std::time::Duration;

use weir_core::{Destination, RateLimits};
use weir_queue::{Permit, Permits as _};
use weir_scheduler::Express;
use weir_store::{Express as _, SendHistory};

use crate::{START, World, store::destination};

/// As many as the destination may have in flight.
const ROOM: usize = 64;

/// A busy destination, whose events come as fast as they are sent.
struct Flood {
    world: World,
    express: Express,
    destination: Destination,
}

impl Flood {
    /// The destination's job has found nothing to do.
    async fn new() -> Self {
        let mut world = World::new(RateLimits::UNLIMITED, SendHistory::default());
        let scheduler = world.start_scheduler();
        let express = Express::new(world.queue.clone(), world.clock.clone()).beside(&scheduler);
        world.store.post(destination(1), START);
        world.wake().await;
        let first = world.permit().await;
        world.store.end(first.delivery.claim);
        world.queue.settle(&[first.id]).await.unwrap();
        // What follows the settle is a run that finds nothing.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let destination =
            Destination { id: destination(1), ..weir_queue::conformance::settings(&RateLimits::UNLIMITED, 64) };
        Self { world, express, destination }
    }

    /// Stores an event; answers whether its delivery goes by the express.
    fn post(&self) -> bool {
        let now = self.world.clock.now();
        match self.express.reserve(&self.destination) {
            Some(until) => {
                let claimed = self.world.store.post_claimed(self.destination.id, now, until);
                self.express.admit(vec![claimed]);
                true
            }
            None => {
                self.world.store.post(self.destination.id, now);
                false
            }
        }
    }

    async fn permits(&self, count: usize) -> Vec<Permit> {
        let mut permits = Vec::new();
        while permits.len() < count {
            permits.push(self.world.permit().await);
        }
        permits
    }

    async fn answer(&self, permit: &Permit) {
        self.world.store.end(permit.delivery.claim);
        self.world.queue.settle(&[permit.id]).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn new_deliveries_of_a_busy_destination_are_not_claimed_again() {
    let flood = Flood::new().await;
    for _ in 0..4 * ROOM {
        assert!(flood.post(), "only room is short");
    }
    let mut seen = Vec::new();
    while seen.len() < 4 * ROOM {
        let permit = flood.world.permit().await;
        assert_eq!(permit.delivery.claim.epoch, 1, "it was claimed as it was stored");
        seen.push(permit.delivery.claim.delivery_id);
        flood.answer(&permit).await;
    }
    assert!(seen.is_sorted(), "the oldest first");
    assert_eq!(flood.world.store.released(), 0);
    flood.world.assert_no_more_permits().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_process_stored_has_its_turn_however_many_join() {
    let flood = Flood::new().await;
    (0..4 * ROOM).for_each(|_| assert!(flood.post()));
    let mut under_way = flood.permits(ROOM).await;
    flood.world.store.post(flood.destination.id, flood.world.clock.now());
    let of_another_process = flood.world.store.last_posted();
    flood.world.wake().await;
    let stored_at = flood.world.clock.now();
    let mut joined = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let permit = under_way.remove(0);
        flood.answer(&permit).await;
        // As many come as are sent.
        joined += usize::from(flood.post());
        let next = flood.world.permit().await;
        if next.delivery.claim.delivery_id == of_another_process {
            break;
        }
        under_way.push(next);
        assert!(flood.world.clock.now() < stored_at + Duration::from_secs(1), "it is starved");
    }
    assert!(joined > 0, "none joined meanwhile");
}

#[tokio::test(start_paused = true)]
async fn new_deliveries_of_a_destination_that_hangs_go_back_and_wait_in_the_store() {
    let flood = Flood::new().await;
    (0..2 * ROOM).for_each(|_| assert!(flood.post()));
    let hanging = flood.permits(ROOM).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(flood.world.store.claimed(), ROOM, "only what was published stays claimed");
    assert!(!flood.post(), "there is a backlog");
    for permit in &hanging {
        flood.answer(permit).await;
    }
    assert_eq!(flood.permits(ROOM).await.len(), ROOM, "and it is published when there is room");
}
