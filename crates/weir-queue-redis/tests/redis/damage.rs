//! Keys that somebody deletes or overwrites: the queue works again within seconds, and what it no longer knows counts as
//! lost.

use std::time::Duration;

use weir_core::{Clock as _, limiter::GRANT_AHEAD, plan::NextRun};
use weir_queue::{Permits as _, Published, Schedule as _, SlotAnswer, SlotRequest, Wake};
use weir_queue_redis::{RedisConfig, RedisQueue};

use crate::support::{self, Server, ask_for_slot, claim, destination, eventually, permits, publication, wake};

/// What an operator may do to keys: the pattern of their names, and a script on each key `k`. Keys of idle shards may
/// still be damaged from before.
const DAMAGES: [(&str, &str); 30] = [
    ("*:generation", "redis.pcall('DEL', k)"),
    ("*:generation", "redis.pcall('DEL', k) redis.pcall('SET', k, 'x')"),
    ("*:generation", "redis.pcall('HSET', k, 'began', 'x')"),
    ("*:generation", "redis.pcall('HSET', k, 'began', '9e300')"),
    ("*:generation", "redis.pcall('HSET', k, 'began', '1')"),
    ("*:generation", "redis.pcall('HSET', k, 'run_id', 'x')"),
    ("*:generation", "redis.pcall('HSET', k, 'checked', 'x')"),
    ("*:generation", "redis.pcall('HSET', k, 'shift', 'x')"),
    ("*:generation", "redis.pcall('HSET', k, 'shift', '9e300')"),
    ("*:generation", "redis.pcall('HSET', k, 'installation', 'x')"),
    ("*:schedule", "redis.pcall('DEL', k)"),
    ("*:schedule", "redis.pcall('DEL', k) redis.pcall('SET', k, 'x')"),
    ("*:schedule", "redis.pcall('ZADD', k, 1, 'x')"),
    ("*:queue", "redis.pcall('DEL', k)"),
    ("*:queue", "redis.pcall('DEL', k) redis.pcall('SET', k, 'x')"),
    ("*:queue", "redis.pcall('XGROUP', 'DESTROY', k, 'workers')"),
    ("*:queue", "redis.pcall('XGROUP', 'SETID', k, 'workers', '0')"),
    ("*:queue", "redis.pcall('XGROUP', 'SETID', k, 'workers', '$')"),
    ("*:queue", "redis.pcall('XTRIM', k, 'MAXLEN', 0)"),
    ("*:queue", "redis.pcall('XADD', k, '*', 'permit', 'x', 'delivery', 'x')"),
    ("*:queue", "redis.pcall('XADD', k, '*', 'x', 'x')"),
    ("*:busy", "redis.pcall('DEL', k)"),
    ("*:busy", "redis.pcall('DEL', k) redis.pcall('SET', k, 'x')"),
    ("*:job:dst_*", "redis.pcall('DEL', k)"),
    ("*:job:dst_*", "redis.pcall('SET', k, 'x')"),
    ("*:job:dst_*", "redis.pcall('DEL', k) redis.pcall('SADD', k, 'x')"),
    ("*:queued:dst_*", "redis.pcall('DEL', k)"),
    ("*:queued:dst_*", "redis.pcall('DEL', k) redis.pcall('SET', k, 'x')"),
    ("*:in_flight:dst_*", "redis.pcall('DEL', k)"),
    ("*:in_flight:dst_*", "redis.pcall('DEL', k) redis.pcall('SET', k, 'x')"),
];

async fn damage(server: &Server, (pattern, script): (&str, &str)) -> i64 {
    let on_each =
        format!("local keys = redis.call('KEYS', ARGV[1]) for _, k in ipairs(keys) do {script} end return #keys");
    match server.command(&["EVAL", &on_each, "0", pattern]).await {
        redis::Value::Int(count) => count,
        other => panic!("{other:?}"),
    }
}

/// Runs the job of a destination once in one process, and takes a slot for a permit in another. Leaves one permit in
/// flight and others queued. An error names the step that fails.
async fn run_once(scheduler: &RedisQueue, worker: &RedisQueue) -> Result<(), String> {
    let within = Duration::from_secs(1);
    wake(scheduler, destination(1)).await.map_err(|error| format!("wake: {error}"))?;
    let claimed = tokio::time::timeout(within, scheduler.claim_due(1, Duration::from_millis(500))).await;
    let claimed = claimed.map_err(|_| "nothing is due")?.map_err(|error| format!("claim: {error}"))?;
    let publications = claimed.leases.into_iter().map(|lease| publication(scheduler, lease, 2, NextRun::Stop));
    let published = scheduler.publish(publications.collect()).await.map_err(|error| format!("publish: {error}"))?;
    let [Published::Done] = published[..] else { return Err(format!("{published:?}")) };
    let taken = tokio::time::timeout(within, worker.take(1)).await.map_err(|_| "nothing is published")?;
    let permit = taken.map_err(|error| format!("take: {error}"))?.remove(0);
    loop {
        match worker.take_slot(SlotRequest::new(permit.id)).await {
            Ok(SlotAnswer::Granted(..)) => return Ok(()),
            Ok(SlotAnswer::Later(start)) => {
                tokio::time::sleep((start - GRANT_AHEAD / 2).since(worker.clock().now())).await;
            }
            withdrawn => return Err(format!("{withdrawn:?}")),
        }
    }
}

/// Ends the permits that earlier runs have left.
async fn settle_all(worker: &RedisQueue) {
    while let Ok(Ok(taken)) = tokio::time::timeout(Duration::from_millis(50), worker.take(1)).await {
        let ids: Vec<_> = taken.iter().map(|permit| permit.id).collect();
        let _ = worker.settle(&support::settled(&ids)).await;
        worker.recorded(&ids);
    }
}

/// Repeats [`run_once`] until it succeeds.
async fn works(scheduler: &RedisQueue, worker: &RedisQueue, when: &str) {
    let mut last = Ok(());
    let repeated = async {
        loop {
            last = run_once(scheduler, worker).await;
            if last.is_ok() {
                break;
            }
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(10), repeated).await;
    ended.unwrap_or_else(|_| panic!("it does not work {when}: {last:?}"));
}

#[tokio::test]
async fn every_kind_of_damage_mends_within_ten_seconds() {
    let server = Server::start().await;
    let [one, other, worker] = [&server; 3].map(|server| support::open(server.config()));
    let (one, other, worker) = tokio::join!(one, other, worker);
    for damaging in DAMAGES {
        let when = format!("after {damaging:?}");
        works(&one, &worker, "before").await;
        // A parked job of the same shard, so that every key exists.
        let parked = Wake { destination_id: destination(17), due: one.clock().now() + Duration::from_secs(3_600) };
        one.wake(&[parked]).await.unwrap();
        assert!(damage(&server, damaging).await > 0, "{damaging:?} finds no key");
        // More than once, because a run may only find the damage.
        for scheduler in [&one, &other, &one] {
            works(scheduler, &worker, &when).await;
        }
        settle_all(&worker).await;
    }
}

#[tokio::test]
async fn a_job_that_is_lost_alone_counts_as_lost_now() {
    let server = Server::start().await;
    let queue = support::open(server.config()).await;
    let permit = permits(&queue, 1).await.remove(0);
    assert!(matches!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Granted(..)));
    for script in ["redis.call('DEL', k)", "redis.call('SET', k, 'x')"] {
        let before = queue.clock().now() - Duration::from_millis(20);
        assert_eq!(damage(&server, ("*:job:dst_*", script)).await, 1);
        wake(&queue, destination(1)).await.unwrap();
        let lease = claim(&queue).await;
        assert!(lease.cursors.is_none());
        assert!(lease.known_since >= before, "sends of the lost job are not older than its loss");
        assert_eq!((lease.queued, lease.in_flight), (0, 0));
        assert_eq!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Withdrawn);
        queue.publish(vec![publication(&queue, lease, 0, NextRun::Stop)]).await.unwrap();
    }
}

#[tokio::test]
async fn permits_whose_entries_were_deleted_leave_their_room() {
    let server = Server::start().await;
    let config = RedisConfig { tidy_every: Duration::from_millis(100), ..server.config() };
    let queue = support::open(config).await;
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    queue.publish(vec![publication(&queue, lease, 10, NextRun::Stop)]).await.unwrap();
    assert_eq!(queue.depths().await.unwrap().queued, 10);
    damage(&server, ("*:queue", "redis.call('XTRIM', k, 'MAXLEN', 4)")).await;
    eventually("the permits are gone", async || queue.depths().await.is_ok_and(|depths| depths.queued == 0)).await;
    works(&queue, &queue, "afterwards").await;
}

/// Nobody reads the entries any more, and they are neither deleted nor old.
#[tokio::test]
async fn permits_whose_entries_were_skipped_leave_their_room() {
    let server = Server::start().await;
    let config = RedisConfig { tidy_every: Duration::from_millis(100), ..server.config() };
    let queue = support::open(config).await;
    for script in [
        "redis.call('XGROUP', 'SETID', k, 'workers', '$')",
        "redis.call('XREADGROUP', 'GROUP', 'workers', 'x', 'STREAMS', k, '>') \
         redis.call('XGROUP', 'DELCONSUMER', k, 'workers', 'x')",
    ] {
        wake(&queue, destination(1)).await.unwrap();
        let lease = claim(&queue).await;
        queue.publish(vec![publication(&queue, lease, 10, NextRun::Stop)]).await.unwrap();
        assert_eq!(queue.depths().await.unwrap().queued, 10);
        damage(&server, ("*:queue", script)).await;
        eventually("the permits are gone", async || queue.depths().await.is_ok_and(|depths| depths.queued == 0)).await;
        works(&queue, &queue, "afterwards").await;
        settle_all(&queue).await;
    }
}

#[tokio::test]
async fn a_process_that_knows_a_later_generation_than_redis_ends_the_one_that_it_finds() {
    let server = Server::start().await;
    let queue = support::open(server.config()).await;
    let permit = permits(&queue, 1).await.remove(0);
    // As if another server had come back with older data, or a clock that is behind, and another process first.
    damage(&server, ("*:generation", "redis.call('HSET', k, 'began', '1000')")).await;
    works(&queue, &queue, "again").await;
    assert_eq!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Withdrawn);
}

#[tokio::test]
async fn a_redis_that_comes_back_empty_and_behind_serves_old_and_new_processes() {
    let (mut server, clock) = Server::start_with_clock().await;
    let old = support::open(server.config()).await;
    works(&old, &old, "before").await;
    server.kill();
    clock.set(-3_600.0).unwrap();
    server.start_again().await;
    let new = support::open(server.config()).await;
    works(&new, &new, "in the process that comes first").await;
    for _ in 0..3 {
        // Each of them takes the permits that it has left to the other.
        for (scheduler, worker) in [(&old, &old), (&new, &old), (&old, &new), (&new, &new)] {
            works(scheduler, worker, "in both").await;
            settle_all(&old).await;
            settle_all(&new).await;
        }
    }
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "compares with the clock of the machine")]
async fn signatures_have_the_wall_clock_of_the_process_whatever_the_clock_of_redis_says() {
    let (server, clock) = Server::start_with_clock().await;
    clock.set(600.0).unwrap();
    let queue = support::open(server.config()).await;
    let machine = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let apart = queue.clock().wall().as_secs().abs_diff(machine.as_secs() as _);
    assert!(apart <= 2, "{apart} s");
}
