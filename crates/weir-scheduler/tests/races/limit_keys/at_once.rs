//! Events of limit keys that are sent without a run, beside those that wait for one.

use weir_core::claim::ClaimedDelivery;
use weir_store::{ClaimRequest, ClaimedFlow, RunDestinations as _};

use super::*;

impl World {
    /// Commits an event of a key as the intake does: claimed if it can be sent at once, otherwise its flow is woken. Returns
    /// whether it can.
    async fn take_in(&self, key: &LimitKey) -> bool {
        let (id, now) = (destination(1), self.clock.now());
        let read = self.store.destinations(&[id]).await.unwrap().remove(0).unwrap();
        let flow = key.flow_id(id);
        let at_once = self.queue.reserve(&read, flow);
        self.store.post_with(id, Some(key.clone()), now);
        if !at_once {
            self.queue.wake(&[Wake { destination_id: flow, due: now }]).await.unwrap();
            return false;
        }
        let (flow, expires_at) = (ClaimedFlow::Key(flow), now + 60 * SECOND);
        let request = ClaimRequest { destination_id: id, flow, limit: 1, expires_at, durable: false };
        let claims = self.store.claim(vec![request], now).await.unwrap().remove(0);
        let with_destination = |of| ClaimedDelivery { destination: Some(read.clone()), ..of };
        self.queue.admit(claims.deliveries.into_iter().map(with_destination).collect());
        true
    }
}

/// Below the limit of the destination, through edits and losses of the queue.
#[tokio::test(start_paused = true)]
async fn keys_and_their_destination_keep_their_limits_on_the_fast_path() {
    let mut world = World::keyed(per_second(10), key_limits(per_second(4)));
    let mut worker = world.worker();
    world.start(&worker);
    let mut at_once = 0;
    for step in 0..600_u64 {
        at_once += u32::from(world.take_in(&key((step * 7 % 5) as u8)).await);
        tokio::time::sleep(Duration::from_millis(60 + step * 37 % 170)).await;
        match step % 150 {
            50 => {
                let limit = if step < 300 { 3 } else { 4 };
                let edited = world.edit(|of, now| set_keys(of, key_limits(per_second(limit)), now));
                world.announce(&edited).await;
            }
            100 => {
                worker.is_lost.store(true, Ordering::Relaxed);
                world.running.shutdown().await;
                worker = world.restart(&worker);
            }
            _ => {}
        }
        let (now, declined) = (world.clock.now(), world.queue.declined());
        if let Ok(declined) = timeout(Duration::ZERO, declined).await {
            for of in declined {
                world.store.release(vec![of.claim], now).await.unwrap();
                world.queue.wake(&[Wake { destination_id: of.flow_id, due: now }]).await.unwrap();
            }
        }
    }
    world.delivered().await;
    worker.assert_keeps(10, 4);
    assert!(at_once > 150, "{at_once} of 600 were sent at once");
}
