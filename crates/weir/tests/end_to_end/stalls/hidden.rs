//! Causes that no part of Weir reports: each process lives, and no call fails, or only slowly.

use tokio::process::Command;
use weir_test_support::SlowLink;

use super::*;

/// What a scheduler or an API sees of one destination: that it starts nothing, or less than it may.
async fn impaired(app: &App, cause: &str) -> f64 {
    let behind = app.metric(&format!("weir_destinations_behind{{cause=\"{cause}\"}}")).await;
    behind + stalled(app, cause).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_500_ms_slower_is_seen() {
    let fleet = Fleet::new().await;
    let link = SlowLink::to(fleet.database_address().parse().unwrap()).await.unwrap();
    let database = fleet.database_url_at(link.port());
    let slow = [("WEIR_DATABASE_URL", &*database)];
    let (api, scheduler) = (fleet.launch_with("api", &slow).await, fleet.launch_with("scheduler", &slow).await);
    let _worker = fleet.launch_with("worker", &slow).await;
    let receiver = Receiver::start().await;
    destination(&api, &receiver, "/slow", limit(200, "second")).await;
    api.events("slow", 20_000).await;
    receiver.wait_for("/slow", 400, SECOND * 30).await;
    link.set_round_trip(SECOND / 2);
    for app in [&api, &scheduler] {
        eventually("a slow database", SEEN, async || impaired(app, "store_slow").await == 1.0).await;
    }
    link.set_round_trip(Duration::ZERO);
    eventually("its end", OVER, async || impaired(&scheduler, "store_slow").await == 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wakes_that_are_lost_again_and_again_are_seen() {
    let fleet = Fleet::new().await;
    let (api, scheduler, _worker, _receiver, _) = sending(&fleet, "lost").await;
    let script = "for shard = 0, 15 do redis.call('DEL', '{weir:' .. shard .. '}:schedule') end";
    let port = fleet.redis.url().rsplit(':').next().unwrap().to_owned();
    let lose = format!("exec redis-cli -p {port} -r 100000000 EVAL \"{script}\" 0 >/dev/null");
    let mut losing = Command::new("sh").args(["-c", &lose]).kill_on_drop(true).spawn().unwrap();
    // Some wakes may survive: then it is a destination that gets less than it may.
    for app in [&api, &scheduler] {
        eventually("lost wakes", SEEN, async || impaired(app, "not_published").await == 1.0).await;
    }
    assert_eq!(api.metric("weir_queue_up").await, 1.0, "nothing else shows it");
    losing.kill().await.unwrap();
    eventually("their end", OVER, async || impaired(&scheduler, "not_published").await == 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_never_ends_is_seen() {
    let fleet = Fleet::new().await;
    let (api, scheduler, _worker, _receiver, _) = sending(&fleet, "leased").await;
    // A run that nobody makes, for a day.
    let script = "for _, key in ipairs(redis.call('KEYS', '*:job:*')) do \
         local shard, id = string.match(key, '^(.*):job:(.*)$') local job = cmsgpack.unpack(redis.call('GET', key)) \
         job.epoch, job.phase, job.due = job.epoch + 1, 'leased', redis.call('TIME')[1] * 1000000 + 86400000000 \
         redis.call('SET', key, cmsgpack.pack(job)) redis.call('ZADD', shard .. ':schedule', job.due, id) end return 'done'";
    assert_eq!(fleet.redis.ask(&format!("EVAL \"{script}\" 0")).await.unwrap(), "done");
    see(&[&api, &scheduler], "not_published", 1.0).await;
    // As the runbook says.
    fleet
        .redis
        .ask("EVAL \"for _, key in ipairs(redis.call('KEYS', '*:schedule')) do redis.call('DEL', key) end return 'done'\" 0")
        .await
        .unwrap();
    sees_none(&scheduler).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_worker_that_is_suspended_is_seen() {
    let fleet = Fleet::new().await;
    let (api, scheduler, worker, receiver, _) = sending(&fleet, "suspended").await;
    worker.signal("STOP").await;
    see(&[&api, &scheduler], "no_worker", 1.0).await;
    worker.signal("CONT").await;
    receiver.wait_for("/suspended", receiver.count("/suspended") + 10, SECOND * 60).await;
    sees_none(&scheduler).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_that_reaches_the_database_only_is_seen_by_the_api() {
    let fleet = Fleet::new().await;
    let link = SlowLink::to(fleet.redis.url().trim_start_matches("redis://").parse().unwrap()).await.unwrap();
    let redis = format!("redis://127.0.0.1:{}", link.port());
    let api = fleet.launch("api").await;
    let scheduler = fleet.launch_with("scheduler", &[("WEIR_REDIS_URL", &redis)]).await;
    let _worker = fleet.launch("worker").await;
    let receiver = Receiver::start().await;
    destination(&api, &receiver, "/cut-off", limit(10, "second")).await;
    api.events("cut-off", 2_000).await;
    receiver.wait_for("/cut-off", 20, SECOND * 20).await;
    // It beats in the database, and what it asks of Redis is answered in minutes.
    link.set_round_trip(SECOND * 120);
    see(&[&api], "not_published", 1.0).await;
    see(&[&scheduler], "queue_away", 1.0).await;
    let _another = fleet.launch("scheduler").await;
    sees_none(&api).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_takes_no_writes_is_seen() {
    let fleet = Fleet::new().await;
    let (api, scheduler, _worker, receiver, _) = sending(&fleet, "full-redis").await;
    fleet.redis.ask("CONFIG SET maxmemory-policy noeviction").await.unwrap();
    fleet.redis.ask("CONFIG SET maxmemory 1").await.unwrap();
    for app in [&api, &scheduler] {
        eventually("a stall", SEEN, async || app.metric("weir_destinations_stalled").await == 1.0).await;
        assert_eq!(stalled(app, "queue_away").await, 1.0, "and its cause");
    }
    fleet.redis.ask("CONFIG SET maxmemory 0").await.unwrap();
    receiver.wait_for("/full-redis", receiver.count("/full-redis") + 10, SECOND * 60).await;
    sees_none(&scheduler).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_locked_is_seen() {
    let fleet = Fleet::new().await;
    let (api, scheduler, _worker, receiver, _) = sending(&fleet, "locked").await;
    // As a `VACUUM FULL` or a migration of another program holds it. Reads of the status and checks still succeed.
    let lock = "BEGIN; LOCK TABLE deliveries IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(600)";
    let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE datname = current_database() AND query LIKE '%pg_sleep(600)' AND pid <> pg_backend_pid()";
    let locked = async {
        for app in [&api, &scheduler] {
            eventually("a stall", SEEN, async || app.metric("weir_destinations_stalled").await == 1.0).await;
            assert_eq!(stalled(app, "store_slow").await, 1.0, "and its cause");
        }
        fleet.sql(ended).await;
    };
    tokio::join!(fleet.sql_that_ends(lock), locked);
    receiver.wait_for("/locked", receiver.count("/locked") + 10, SECOND * 60).await;
    sees_none(&scheduler).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_may_open_no_more_files_is_seen() {
    let fleet = Fleet::new().await;
    let (api, scheduler, worker, _receiver, _) = sending(&fleet, "before").await;
    let files = async |most: &str| {
        let pid = worker.pid().to_string();
        let limit = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={most}:")]).status().await;
        assert!(limit.unwrap().success());
    };
    files("8").await;
    // Those that are connected may stay so, so the next one is another server.
    let receiver = Receiver::start().await;
    destination(&api, &receiver, "/after", limit(10, "second")).await;
    api.events("after", 2_000).await;
    eventually("a stall", SEEN, async || scheduler.metric("weir_destinations_stalled").await == 1.0).await;
    assert_eq!(receiver.count("/after"), 0);
    files("1024").await;
    receiver.wait_for("/after", 10, SECOND * 60).await;
    sees_none(&scheduler).await;
}
