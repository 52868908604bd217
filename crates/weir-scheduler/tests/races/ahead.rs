//! What is claimed ahead of its room.

use std::{collections::HashSet, time::Duration};

use weir_core::{DeliveryId, RateLimits};
use weir_queue::{Permit, PermitId, Permits as _};
use weir_store::SendHistory;

use crate::{START, World, store::destination};

/// As many as the destination may have in flight.
const ROOM: usize = 64;

impl World {
    /// With a backlog of 200, of which the first have been published.
    fn with_backlog() -> Self {
        let world = Self::new(RateLimits::UNLIMITED, SendHistory::default());
        (0..200).for_each(|_| world.store.post(destination(1), START));
        world
    }

    async fn permits(&self, count: usize) -> Vec<Permit> {
        let mut permits = Vec::new();
        while permits.len() < count {
            permits.push(self.permit().await);
        }
        permits
    }

    async fn answer(&self, permits: &[Permit]) {
        let ids: Vec<PermitId> = permits.iter().map(|permit| permit.id).collect();
        self.queue.settle(&ids).await.unwrap();
    }

    /// Has deliveries claimed ahead, and the room full.
    async fn run_briskly(&mut self) -> Vec<Permit> {
        self.start_scheduler();
        self.wake().await;
        let first = self.permits(ROOM).await;
        self.answer(&first).await;
        let second = self.permits(ROOM).await;
        assert!(
            self.store.claimed() > 2 * ROOM,
            "a destination that answers at once has more claimed than it has room for"
        );
        second
    }
}

#[tokio::test(start_paused = true)]
async fn room_is_filled_with_what_was_claimed_ahead_while_the_store_is_asked_for_more() {
    let mut world = World::with_backlog();
    let in_flight = world.run_briskly().await;
    world.store.delay_the_next_claim(Duration::from_secs(3));
    let answered_at = world.clock.now();
    world.answer(&in_flight[..8]).await;
    world.permits(8).await;
    assert!(world.clock.now() < answered_at + Duration::from_secs(1), "they waited for the store");
}

#[tokio::test(start_paused = true)]
async fn what_was_claimed_ahead_of_a_destination_that_hangs_goes_back() {
    let mut world = World::with_backlog();
    let in_flight = world.run_briskly().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.store.claimed(), 2 * ROOM, "only what was published stays claimed");
    world.answer(&in_flight).await;
    assert_eq!(world.permits(ROOM).await.len(), ROOM, "and it is published when there is room");
}

#[tokio::test(start_paused = true)]
async fn a_backlog_is_published_once_and_in_its_order() {
    let mut world = World::with_backlog();
    world.start_scheduler();
    world.wake().await;
    let mut seen: Vec<DeliveryId> = Vec::new();
    while seen.len() < 200 {
        let permit = world.permit().await;
        seen.push(permit.delivery.claim.delivery_id);
        world.answer(&[permit]).await;
    }
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), 200);
    assert!(seen.is_sorted(), "the oldest first");
    world.assert_no_more_permits().await;
}
