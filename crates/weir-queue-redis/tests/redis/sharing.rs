//! Several processes on one queue. In these tests each process is a separate `RedisQueue`.

use std::time::Duration;

use tokio::sync::watch;
use weir_core::{Clock as _, RateLimits, Slot, Timestamp, limiter::GRANT_AHEAD, plan::NextRun};
use weir_queue::{
    Hold, Leases as _, Permit, Publication, Published, RECORD_KEPT, Schedule as _, SlotAnswer, Terms, TermsChange, Wake,
};
use weir_queue_redis::{RedisConfig, RedisQueue};

use crate::support::{self, ask_for_slot, claim, destination, per_second, permits, terms, wake};

/// Two processes with the same keys.
async fn two() -> (RedisQueue, RedisQueue) {
    two_on(support::shared_config()).await
}

async fn two_on(config: RedisConfig) -> (RedisQueue, RedisQueue) {
    (support::open(config.clone()).await, support::open(config).await)
}

/// Runs jobs until all jobs have run. Returns how many jobs this scheduler ran.
async fn run_jobs(queue: &RedisQueue, left: &watch::Sender<usize>) -> usize {
    let mut over = left.subscribe();
    let mut ran = 0;
    loop {
        let jobs = tokio::select! {
            _ = over.wait_for(|left| *left == 0) => return ran,
            jobs = queue.claim_due(32, Duration::from_secs(4)) => jobs,
        };
        let end = |lease| Publication {
            lease,
            terms: Some(terms(RateLimits::UNLIMITED)),
            recovered: None,
            groups: Vec::new(),
            pace: None,
            deliveries: Vec::new(),
            next: NextRun::Stop,
        };
        let ends = jobs.unwrap().leases.into_iter().map(end).collect();
        let answers = queue.publish(ends).await.unwrap();
        // A job whose lease has ended was run by the other scheduler.
        let count = answers.iter().filter(|answer| matches!(answer, Published::Done)).count();
        left.send_modify(|left| *left -= count);
        ran += count;
    }
}

#[tokio::test]
async fn two_schedulers_share_a_thousand_jobs_about_evenly() {
    let (one, other) = two().await;
    let due = one.clock().now();
    let wakes: Vec<_> = (0..1_000).map(|number| Wake { destination_id: destination(number), due }).collect();
    one.wake(&wakes).await.unwrap();
    let left = watch::Sender::new(1_000);
    let (by_one, by_other) = tokio::join!(run_jobs(&one, &left), run_jobs(&other, &left));
    assert_eq!(by_one + by_other, 1_000, "each job ran once");
    assert!(by_one.abs_diff(by_other) <= 300, "{by_one} and {by_other}");
    assert_eq!(one.depths().await.unwrap().jobs, 0);
}

#[tokio::test]
async fn the_job_of_a_scheduler_that_died_is_taken_over_when_its_lease_ends() {
    let (dying, living) = two().await;
    wake(&dying, destination(1)).await.unwrap();
    let lost = claim(&dying).await;
    drop(dying);
    let taken_over = claim(&living).await;
    assert_eq!(taken_over.destination_id, lost.destination_id);
    assert!(taken_over.epoch > lost.epoch);
}

#[tokio::test]
async fn a_wake_in_one_process_causes_a_claim_in_another() {
    assert_wakes(two().await).await;
}

#[tokio::test]
async fn a_wake_in_one_process_causes_a_claim_in_another_across_a_cluster() {
    assert_wakes(two_on(support::cluster_config()).await).await;
}

async fn assert_wakes((one, other): (RedisQueue, RedisQueue)) {
    // Both have checked every shard and found no due job.
    for queue in [&one, &other] {
        let looked = tokio::time::timeout(Duration::from_millis(50), queue.claim_due(16, Duration::from_secs(4))).await;
        assert!(looked.is_err());
    }
    let (claimed, ()) = tokio::join!(claim(&other), async { wake(&one, destination(1)).await.unwrap() });
    assert_eq!(claimed.destination_id, destination(1));
}

#[tokio::test]
async fn a_suspension_in_one_process_withdraws_permits_in_another() {
    assert_withdraws(two().await).await;
}

#[tokio::test]
async fn a_suspension_in_one_process_withdraws_permits_in_another_across_a_cluster() {
    assert_withdraws(two_on(support::cluster_config()).await).await;
}

async fn assert_withdraws((one, other): (RedisQueue, RedisQueue)) {
    let permit = permits(&other, 1).await.remove(0);
    let terms = Terms { version: Timestamp::from_secs(1), suspended: true, ..terms(per_second(10)) };
    one.edited(&[TermsChange { destination_id: destination(1), terms }]).await.unwrap();
    assert_eq!(ask_for_slot(&other, permit.id).await, SlotAnswer::Withdrawn);
}

#[tokio::test]
async fn a_hold_in_one_process_moves_slots_in_another() {
    let (one, other) = two().await;
    let permit = permits(&other, 1).await.remove(0);
    let until = one.clock().now() + Duration::from_millis(1_500);
    one.hold(&[Hold { destination_id: destination(1), until, sent_at: until }]).await.unwrap();
    let SlotAnswer::Later(start) = ask_for_slot(&other, permit.id).await else { panic!("it should be held") };
    assert!(start + Duration::from_millis(4) >= until);
}

#[tokio::test]
async fn a_limit_that_one_process_lowers_applies_to_the_permits_of_another() {
    let (one, other) = two().await;
    let mine = permits(&other, 3).await;
    let first = slot(&other, &mine[0]).await;
    let terms = Terms { version: Timestamp::from_secs(1), ..terms(per_second(1)) };
    one.edited(&[TermsChange { destination_id: destination(1), terms }]).await.unwrap();
    let SlotAnswer::Later(second) = ask_for_slot(&other, mine[1].id).await else { panic!("it is a second away") };
    assert!(second.since(first.start) + Duration::from_millis(4) >= Duration::from_millis(1_010));
}

async fn slot(queue: &RedisQueue, permit: &Permit) -> Slot {
    loop {
        match ask_for_slot(queue, permit.id).await {
            SlotAnswer::Granted(slot, _) => return slot,
            SlotAnswer::Later(start) => {
                tokio::time::sleep((start - GRANT_AHEAD / 2).since(queue.clock().now())).await;
            }
            answer => panic!("the permit should be valid: {answer:?}"),
        }
    }
}

#[tokio::test]
async fn slots_taken_by_two_processes_are_one_spacing_apart() {
    let (one, other) = two().await;
    let mine = permits(&one, 10).await;
    let mut starts: Vec<Timestamp> = Vec::new();
    for (permit, queue) in mine.iter().zip([&one, &other].into_iter().cycle()) {
        starts.push(slot(queue, permit).await.start);
    }
    for pair in starts.windows(2) {
        // The first slot starts `now`, the others a spacing apart; each process narrows by its own error.
        assert!(pair[1].since(pair[0]) + Duration::from_millis(4) >= Duration::from_millis(101), "{starts:?}");
    }
}

#[tokio::test]
async fn clocks_of_two_processes_agree() {
    let (one, other) = two().await;
    let first = one.clock().now();
    let between = other.clock().now();
    let last = one.clock().now();
    let error = Duration::from_millis(4);
    assert!(between + error >= first && between <= last + error, "{first:?} {between:?} {last:?}");
}

#[tokio::test]
async fn processes_read_each_others_records_until_three_seconds_after_the_last_one() {
    let (one, other) = two().await;
    let none: Vec<Vec<u8>> = Vec::new();
    assert_eq!(one.exchange(b"of one".to_vec()).await.unwrap(), none);
    // Any bytes are kept as they are.
    let packed: Vec<u8> = (0..=255).collect();
    assert_eq!(other.exchange(packed.clone()).await.unwrap(), [b"of one".to_vec()]);
    assert_eq!(one.exchange(b"again".to_vec()).await.unwrap(), std::slice::from_ref(&packed));
    assert_eq!(other.exchange(packed).await.unwrap(), [b"again".to_vec()]);
    // One of them dies. The other keeps the key.
    let began = tokio::time::Instant::now();
    while !one.exchange(Vec::new()).await.unwrap().is_empty() {
        assert!(began.elapsed() < 2 * RECORD_KEPT);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(began.elapsed() > RECORD_KEPT / 2);
}
