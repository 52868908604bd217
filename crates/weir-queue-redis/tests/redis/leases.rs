//! Orphaned permits of a dead process, and the limits of a process that was declared dead.

use std::{collections::HashSet, time::Duration};

use tokio::time::Instant;
use weir_core::{claim::ProcessId, plan::NextRun};
use weir_queue::{Leases as _, OrphanedPermit, Permit, Permits as _, Published, Schedule as _, SlotAnswer};
use weir_queue_redis::{Depths, RedisConfig, RedisQueue};

use crate::support::{self, ask_for_slot, claim, destination, eventually, hand_back, permits, publication, take, wake};

const HOUR: Duration = Duration::from_secs(3_600);
const DYING: ProcessId = ProcessId(7);
const LIVING: ProcessId = ProcessId(8);

async fn open_as(config: &RedisConfig, process: ProcessId) -> RedisQueue {
    let queue = support::open(config.clone()).await;
    queue.renew_lease(process, Instant::now() + HOUR);
    queue
}

async fn dying_and_living() -> [RedisQueue; 2] {
    let config = support::shared_config();
    [open_as(&config, DYING).await, open_as(&config, LIVING).await]
}

/// The orphaned permits of these processes, by serial.
async fn orphaned(queue: &RedisQueue, dead: &[ProcessId]) -> Vec<OrphanedPermit> {
    let mut orphaned = queue.orphaned_permits(dead).await.unwrap();
    orphaned.sort_by_key(|permit| permit.id.serial);
    orphaned
}

fn as_orphaned(permit: &Permit, had_slot: bool) -> OrphanedPermit {
    OrphanedPermit { id: permit.id, claim: permit.delivery.claim, had_slot }
}

#[tokio::test]
async fn permits_of_a_dead_process_are_orphaned_and_those_of_a_living_one_are_not() {
    let [dying, living] = dying_and_living().await;
    let mut taken = permits(&dying, 4).await;
    taken.sort_by_key(|permit| permit.id.serial);
    assert!(matches!(ask_for_slot(&dying, taken[0].id).await, SlotAnswer::Granted(..)));
    ask_for_slot(&dying, taken[1].id).await;
    dying.settle(&[taken[1].id.into()]).await.unwrap();
    assert_eq!(living.holders().await.unwrap(), [DYING]);

    let expected: Vec<_> =
        taken.iter().zip([true, true, false, false]).map(|(permit, had)| as_orphaned(permit, had)).collect();
    assert_eq!(
        orphaned(&living, &[DYING]).await,
        expected,
        "a permit with a slot may have been sent, also when its attempt is not recorded yet"
    );
    // A second call returns the same permits, because the first caller may die before it resolves them.
    let dead = living.holders().await.unwrap();
    assert!(!dead.contains(&LIVING), "{dead:?}");
    assert_eq!(orphaned(&living, &dead).await, expected);

    for permit in &taken[2..] {
        assert_eq!(living.take_slot(weir_queue::SlotRequest::new(permit.id)).await.unwrap(), SlotAnswer::Withdrawn);
    }
    hand_back(&living, &taken[2..]).await;
    let sent = [taken[0].id, taken[1].id];
    living.settle(&support::settled(&sent)).await.unwrap();
    living.recorded(&sent);
    assert_eq!(orphaned(&living, &dead).await, []);
    assert_eq!(living.depths().await.unwrap(), Depths::default());
    assert_eq!(living.holders().await.unwrap(), []);
}

#[tokio::test]
async fn many_orphaned_permits_come_in_pages() {
    let [dying, living] = dying_and_living().await;
    permits(&dying, 250).await;
    let mut seen = HashSet::new();
    loop {
        let dead = living.holders().await.unwrap();
        let page = orphaned(&living, &dead).await;
        if page.is_empty() {
            break;
        }
        assert!(page.iter().all(|permit| !permit.had_slot));
        seen.extend(page.iter().map(|permit| permit.id));
        let back: Vec<_> = page.iter().map(|permit| weir_queue::HandedBack { id: permit.id, crowded: false }).collect();
        living.hand_back(&back).await.unwrap();
    }
    assert_eq!(seen.len(), 250);
    assert_eq!(living.depths().await.unwrap(), Depths::default());
}

#[tokio::test]
async fn a_claim_has_a_permit_until_its_attempt_is_recorded() {
    let [worker, other] = dying_and_living().await;
    wake(&worker, destination(1)).await.unwrap();
    let lease = claim(&worker).await;
    let publication = publication(&worker, lease, 250, NextRun::Stop);
    let claims: HashSet<_> = publication.deliveries.iter().map(|delivery| delivery.claim).collect();
    worker.publish(vec![publication]).await.unwrap();
    let permitted = async || other.permitted_claims().await.unwrap();
    assert_eq!(permitted().await, None, "a process that has just started does not know whether the queue lost permits");
    eventually("it knows", async || permitted().await.is_some()).await;
    assert_eq!(permitted().await.as_ref(), Some(&claims), "claims of unread permits");
    let taken = take(&worker, 250).await;
    worker.settle(&[taken[0].id.into()]).await.unwrap();
    assert_eq!(permitted().await.as_ref(), Some(&claims), "claims of permits that are held, or not recorded");
    worker.recorded(&[taken[0].id]);
    let others: HashSet<_> = taken[1..].iter().map(|permit| permit.delivery.claim).collect();
    eventually("the recorded one is gone", async || permitted().await.as_ref() == Some(&others)).await;
}

#[tokio::test]
async fn a_process_whose_lease_has_ended_gets_no_slot_and_takes_and_publishes_nothing_until_it_is_renewed() {
    let [queue, other] = dying_and_living().await;
    let permit = permits(&queue, 1).await.remove(0);
    wake(&queue, destination(2)).await.unwrap();
    let lease = claim(&queue).await;
    queue.renew_lease(DYING, Instant::now());
    assert_eq!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Withdrawn);
    let late = queue.publish(vec![publication(&queue, lease, 1, NextRun::Stop)]).await.unwrap();
    assert!(matches!(&late[..], [Published::Stale(back)] if back.len() == 1), "{late:?}");
    wake(&other, destination(3)).await.unwrap();
    let lease = claim(&other).await;
    other.publish(vec![publication(&other, lease, 1, NextRun::Stop)]).await.unwrap();
    // A read that was under way when the lease ended may return one more permit.
    let read = tokio::time::timeout(Duration::from_secs(3), queue.take(1)).await;
    let taken = read.map_or(0, |read| read.unwrap().len());

    queue.renew_lease(DYING, Instant::now() + HOUR);
    assert!(matches!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Granted(..)));
    take(&queue, 1 - taken).await;
}

#[tokio::test]
async fn permits_taken_by_a_process_declared_dead_get_no_slot() {
    let [queue, _] = dying_and_living().await;
    let before = permits(&queue, 1).await.remove(0);
    queue.renew_lease(ProcessId(9), Instant::now() + HOUR);
    assert_eq!(ask_for_slot(&queue, before.id).await, SlotAnswer::Withdrawn);
    wake(&queue, destination(2)).await.unwrap();
    let lease = claim(&queue).await;
    queue.publish(vec![publication(&queue, lease, 1, NextRun::Stop)]).await.unwrap();
    // The first read may still be under the old name.
    let after = take(&queue, 1).await.remove(0);
    let holders: HashSet<_> = queue.holders().await.unwrap().into_iter().collect();
    if holders.contains(&ProcessId(9)) {
        assert!(matches!(ask_for_slot(&queue, after.id).await, SlotAnswer::Granted(..)));
    }
    hand_back(&queue, &[before, after]).await;
    assert_eq!(queue.depths().await.unwrap(), Depths::default());
}
