//! Destinations with limit keys in one limit group: key, destination and group keep their limits in every window.

use weir_core::LimitGroupId;

use super::*;

const GROUP: LimitGroupId = LimitGroupId::from_bytes([9; 16]);

impl World {
    /// Destinations 1 and 2 with these limits of their own and of each key, and their group.
    fn account(of_group: u32, of_destination: u32, of_key: u32) -> Self {
        let world = Self::new(per_second(of_destination), SendHistory::default());
        world.store.create(destination(2), per_second(of_destination), SendHistory::default());
        for number in [1, 2] {
            world.store.join(destination(number), GROUP, per_second(of_group));
            let now = world.clock.now();
            world.store.edit(destination(number), now, |of| set_keys(of, key_limits(per_second(of_key)), now));
        }
        world
    }

    async fn post_to(&self, number: u8, keys: u8, events: u32) {
        let due = self.clock.now();
        for of in 0..keys {
            for _ in 0..events {
                let destination_id = self.store.post_with(destination(number), Some(key(of)), due);
                self.queue.wake(&[Wake { destination_id, due }]).await.unwrap();
            }
        }
    }
}

impl Worker {
    #[track_caller]
    fn assert_keeps_all(&self, of_group: u32, of_destination: u32, of_key: u32) {
        assert_keeps(of_group, self.times(), "the group");
        let sent = self.sent();
        for number in [1, 2] {
            let flows: Vec<_> = (0..8).map(|of| key(of).flow_id(destination(number))).collect();
            let of_one =
                |flows: &[DestinationId]| sent.iter().filter(|(of, _)| flows.contains(of)).map(|(_, at)| *at).collect();
            assert_keeps(of_destination, of_one(&flows), &format!("destination {number}"));
            for flow in &flows {
                assert_keeps(of_key, of_one(&[*flow]), &format!("a key of destination {number}"));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keys_of_two_destinations_keep_the_limit_of_their_group_and_use_it() {
    let mut world = World::account(10, 8, 3);
    let worker = world.worker();
    for number in [1, 2] {
        world.post_to(number, 4, 10).await;
    }
    world.start(&worker);
    world.delivered().await;
    worker.assert_keeps_all(10, 8, 3);
    let took = world.clock.now().since(START);
    assert!(took < Duration::from_millis(9_500), "80 deliveries at 10 a second took {took:?}");
    for number in [1, 2] {
        assert!(world.store.left_homes(destination(number)).is_empty(), "destination {number}: they are closed");
    }
}

async fn assert_all_kept_through(fault: Fault) {
    let mut world = World::account(10, 7, 3);
    for number in [1, 2] {
        world.post_to(number, 5, 9).await;
    }
    world.delivered_through(fault).await.assert_keeps_all(10, 7, 3);
}

#[tokio::test(start_paused = true)]
async fn a_loss_of_the_queue_breaks_none_of_the_three_limits() {
    assert_all_kept_through(Fault::Loss).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_breaks_none_of_the_three_limits() {
    assert_all_kept_through(Fault::Crash).await;
}

/// The job of the destination is a member of the group until somebody tells the queue of the edit.
#[tokio::test(start_paused = true)]
async fn a_member_that_gets_limit_keys_while_it_sends_keeps_the_limit_of_the_group() {
    for announced_after in [Duration::ZERO, Duration::from_millis(50), Duration::from_millis(900)] {
        let mut world = World::new(per_second(8), SendHistory::default());
        world.store.create(destination(2), per_second(8), SendHistory::default());
        for number in [1, 2] {
            world.store.join(destination(number), GROUP, per_second(10));
        }
        let worker = world.worker();
        world.post(None, 40).await;
        let due = world.clock.now();
        for _ in 0..40 {
            world.store.post(destination(2), due);
        }
        world.start(&worker);
        tokio::time::sleep(Duration::from_millis(2_250)).await;
        let edited = world.edit(|of, now| set_keys(of, key_limits(per_second(4)), now));
        world.post_to(1, 6, 8).await;
        tokio::time::sleep(announced_after).await;
        world.announce(&edited).await;
        world.delivered().await;
        assert_keeps(10, worker.times(), "the group");
        for number in 0..6 {
            assert_keeps(4, worker.times_of(&key(number)), &format!("key {number}"));
        }
        assert_eq!(worker.sent().len(), 128);
    }
}
