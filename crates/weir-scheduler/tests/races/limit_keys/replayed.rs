//! Replays of a destination with limit keys.

use weir_scheduler::{Replayer, Scheduler};
use weir_store::ReplayStep;

use super::*;

/// The flows whose jobs are due within this time.
async fn due(world: &World, within: Duration) -> Vec<DestinationId> {
    let mut found = Vec::new();
    let claim = async {
        loop {
            let jobs = world.queue.claim_due(64, Duration::from_secs(60)).await.unwrap();
            found.extend(jobs.leases.iter().map(|lease| lease.destination_id));
        }
    };
    drop(timeout(within, claim).await);
    found.sort_unstable();
    found
}

#[tokio::test(start_paused = true)]
async fn a_replay_wakes_the_flows_of_its_keys_without_a_sweep() {
    let mut world = World::keyed(per_second(10), key_limits(per_second(2)));
    let scheduler = Scheduler::new(world.store.clone(), world.queue.clone(), world.clock.clone());
    let replayer = Replayer::new(world.store.clone(), world.queue.clone(), world.clock.clone(), &scheduler);
    let mut flows: Vec<_> = [1, 2].map(|number| key(number).flow_id(destination(1))).into();
    flows.sort_unstable();
    world.store.replay(ReplayStep::of(2, vec![destination(1)]).with_flows(flows.clone()));
    world.running.spawn(replayer.run(std::future::pending()));
    let mut woken = due(&world, SECOND).await;
    woken.retain(|id| flows.contains(id));
    assert_eq!(woken, flows);
}

/// The first runs of the flows may be made by processes that do not know of the replay yet, and claim nothing of it.
#[tokio::test(start_paused = true)]
async fn the_flows_of_a_new_replay_are_woken_once_more_when_every_process_knows_of_it() {
    let mut world = World::keyed(per_second(10), key_limits(per_second(2)));
    world.start_scheduler();
    // Of another process: the runs know of no replay.
    let scheduler = Scheduler::new(world.store.clone(), world.queue.clone(), world.clock.clone());
    let replayer = Replayer::new(world.store.clone(), world.queue.clone(), world.clock.clone(), &scheduler);
    let flow = key(1).flow_id(destination(1));
    world.store.replay(ReplayStep::of(1, vec![destination(1)]).with_flows(vec![flow]));
    world.running.spawn(replayer.run(std::future::pending()));
    tokio::time::sleep(Duration::from_millis(400)).await;
    // The runs so far have found nothing.
    world.store.post_with(destination(1), Some(key(1)), world.clock.now());
    let permit = world.permit_within(SECOND).await;
    assert_eq!(permit.delivery.flow_id, flow);
}
