//! Limit keys: what many of them leave on the server, and an edit of a destination with many that wait.

use std::{collections::HashSet, sync::Arc, time::Duration};

use weir_core::{
    Clock as _, Destination, DestinationId, LimitKey, Limiter, Period, RateLimit, RateLimits, Timestamp,
    limit_key::{self, KeyLimits},
    plan::NextRun,
};
use weir_queue::{
    GroupRun, JobLease, Permits as _, Publication, Published, Schedule as _, SlotAnswer, Terms, Wake,
    conformance::settings,
};
use weir_queue_redis::RedisQueue;

use crate::support::{Server, ask_for_slot, delivery, destination, open, per_second, settled, take};

/// A destination with limit keys after so many edits.
fn keyed(of_each: RateLimits, edits: i64) -> Destination {
    let mut keyed = settings(&per_second(1_000), 10_000);
    let version = Timestamp::from_secs(1 + edits);
    (keyed.id, keyed.updated_at, keyed.keyed_at) = (destination(1), version, Some(Timestamp::from_secs(1)));
    keyed.settings.key_limits = Some(Arc::new(KeyLimits {
        pointer: "/customer".to_owned(),
        rate_limits: of_each,
        max_in_flight: None,
        weight: 1,
        overrides: Default::default(),
    }));
    keyed
}

fn flows(count: usize) -> Vec<DestinationId> {
    (0..count).map(|number| LimitKey::new(&number.to_string()).flow_id(destination(1))).collect()
}

async fn wake(queue: &RedisQueue, flows: &[DestinationId]) {
    let wake = |&destination_id| Wake { destination_id, due: queue.clock().now() };
    queue.wake(&flows.iter().map(wake).collect::<Vec<_>>()).await.unwrap();
}

async fn due(queue: &RedisQueue) -> Vec<JobLease> {
    let due = tokio::time::timeout(Duration::from_secs(5), queue.claim_due(64, Duration::from_secs(10))).await;
    due.expect("a job is due").unwrap().leases
}

/// What a run publishes that finds one delivery, or none. Its key has sent a moment ago if nothing is known of it.
async fn run(queue: &RedisQueue, keyed: &Destination, lease: JobLease, has_one: bool, next: NextRun) -> u32 {
    let now = queue.clock().now();
    let terms = Terms::of(&keyed.flow(Some(&LimitKey::new("any"))), now);
    let group = keyed.as_group();
    let recovered = (!lease.turn.is_some_and(|turn| turn.is_known)).then(|| Limiter::new(&group.rate_limits));
    let count = lease.turn.filter(|turn| turn.is_known && has_one).map_or(0, |turn| turn.permits.min(1));
    let next = if lease.turn.is_some_and(|turn| turn.is_known) { next } else { NextRun::Now };
    let flow_id = lease.destination_id;
    let one = |_| {
        let mut one = delivery(queue, keyed.id, 1, Duration::from_secs(30));
        one.flow_id = flow_id;
        one
    };
    let publication = Publication {
        recovered: lease.cursors.is_none().then(|| match has_one {
            true => Limiter::new(&terms.limits),
            false => Limiter::recovered(&terms.limits, Some(now)),
        }),
        lease,
        terms: Some(terms),
        groups: vec![GroupRun { terms: Arc::new(group), recovered }],
        pace: None,
        deliveries: (0..count).map(one).collect(),
        next,
    };
    let published = queue.publish(vec![publication]).await.unwrap();
    assert!(matches!(published[..], [Published::Done]), "{published:?}");
    count
}

#[tokio::test]
async fn idle_limit_keys_leave_only_keys_that_expire_with_their_windows() {
    let server = Server::start().await;
    let queue = open(server.config()).await;
    let (destination, flows) = (keyed(per_second(1), 0), flows(40));
    wake(&queue, &flows).await;
    let mut sent = 0;
    while sent < flows.len() as u32 {
        for lease in due(&queue).await {
            let count = run(&queue, &destination, lease, true, NextRun::Stop).await;
            for permit in take(&queue, count as usize).await {
                while !matches!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Granted(..)) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                queue.settle(&settled(&[permit.id])).await.unwrap();
                queue.recorded(&[permit.id]);
                sent += 1;
            }
        }
    }
    assert_eq!(queue.depths().await.unwrap().jobs, 0);
    let redis::Value::Array(keys) = server.command(&["KEYS", "*dst_*"]).await else { panic!("an array") };
    assert!(keys.len() > flows.len());
    for key in keys {
        let key: String = redis::from_redis_value(key).unwrap();
        assert!(!key.contains(":turns:") && !key.contains(":parked:"), "{key} is left");
        let ttl: i64 = redis::from_redis_value(server.command(&["PTTL", &key]).await).unwrap();
        assert!((1..=95_000).contains(&ttl), "{key} expires in {ttl} ms: its permits were valid for 30 s");
    }
}

/// More than one call makes due.
#[tokio::test]
async fn an_edit_runs_all_limit_keys_that_wait_for_slots_of_their_own() {
    let queue = open(crate::support::shared_config()).await;
    let flows = flows(450);
    let hourly = RateLimits::new(RateLimit::new(1, Period::HOUR).into_iter().collect()).unwrap();
    let before = keyed(hourly, 0);
    wake(&queue, &flows).await;
    let mut parked = HashSet::new();
    while parked.len() < flows.len() {
        for lease in due(&queue).await {
            let (id, is_known) = (lease.destination_id, lease.turn.is_some_and(|turn| turn.is_known));
            run(&queue, &before, lease, false, NextRun::Paced).await;
            assert!(!is_known || parked.insert(id), "its slot is an hour away");
        }
    }
    let after = keyed(per_second(10), 1);
    queue.edited_groups(&[Arc::new(after.as_group())]).await.unwrap();
    let mut ran = HashSet::new();
    while ran.len() < flows.len() {
        for lease in due(&queue).await {
            assert!(ran.insert(lease.destination_id), "each runs once");
            run(&queue, &after, lease, false, NextRun::Stop).await;
        }
    }
    assert_eq!(queue.depths().await.unwrap().jobs, 0);
}

#[tokio::test]
async fn a_hold_of_limit_keys_outlives_what_is_known_of_them() {
    let server = Server::start().await;
    let queue = open(server.config()).await;
    let budget = DestinationId::from_bytes(*limit_key::budget_of_keys(destination(1)).as_bytes());
    let now = queue.clock().now();
    let hold = weir_queue::Hold { destination_id: budget, until: now + Duration::from_secs(3_600), sent_at: now };
    queue.hold(&[hold]).await.unwrap();
    let job = format!("{{weir:{}}}:job:{budget}", queue.shard_of(destination(1), None));
    let ttl: i64 = redis::from_redis_value(server.command(&["PTTL", &job]).await).unwrap();
    assert!(ttl > 3_600_000, "{ttl} ms, in the shard of the destination");
}
