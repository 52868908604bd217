//! A destination gets limit keys while its own job sends.

use weir_store::{ClaimRequest, ClaimedFlow, RunDestinations as _};

use super::*;

/// The job of the destination sends under its own terms until somebody tells the queue of the edit. Its keys have runs
/// before that.
#[tokio::test(start_paused = true)]
async fn a_destination_that_gets_limit_keys_while_it_sends_keeps_its_limit() {
    for announced_after in [Duration::ZERO, Duration::from_millis(50), Duration::from_millis(900)] {
        let mut world = World::new(per_second(10), SendHistory::default());
        let worker = world.worker();
        world.post(None, 60).await;
        world.start(&worker);
        tokio::time::sleep(Duration::from_millis(2_250)).await;
        let edited = world.edit(|of, now| set_keys(of, key_limits(per_second(4)), now));
        for number in 0..6 {
            world.post(Some(&key(number)), 8).await;
        }
        tokio::time::sleep(announced_after).await;
        world.announce(&edited).await;
        world.delivered().await;
        worker.assert_keeps(10, 4);
        assert_eq!(worker.sent().len(), 108);
    }
}

/// A process that does not know of the limit keys yet stores events and sends them at once, under the terms that the job of
/// the destination has. Nobody announces the edit but the first run of a key.
#[tokio::test(start_paused = true)]
async fn no_event_takes_the_fast_path_beside_the_keys_of_its_destination() {
    let mut world = World::new(per_second(10), SendHistory::default());
    let worker = world.worker();
    world.post(None, 1).await;
    world.start(&worker);
    world.delivered().await;
    tokio::time::sleep(2 * SECOND).await;
    let old = world.store.destinations(&[destination(1)]).await.unwrap().remove(0).unwrap();
    assert!(world.queue.reserve(&old, old.id), "the fast path is open");
    world.queue.unreserve(old.id);
    world.edit(|of, now| set_keys(of, key_limits(per_second(4)), now));
    for number in 0..10 {
        world.post(Some(&key(number)), 2).await;
    }
    while world.store.open() > 0 {
        tokio::time::sleep(Duration::from_millis(70)).await;
        if worker.sent().len() > 3 && world.queue.reserve(&old, old.id) {
            let now = world.clock.now();
            let (flow, expires_at) = (ClaimedFlow::Keyless, now + 60 * SECOND);
            world.store.post(old.id, now);
            let request = ClaimRequest { destination_id: old.id, flow, limit: 1, expires_at, durable: false };
            let mut claims = world.store.claim(vec![request], now).await.unwrap().remove(0);
            claims.deliveries.iter_mut().for_each(|delivery| delivery.destination = Some(old.clone()));
            world.queue.admit(claims.deliveries);
        }
    }
    worker.assert_keeps(10, 4);
}
