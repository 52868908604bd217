//! A clock of Redis that is set: what a process takes for the time.

use std::time::Duration;

use weir_core::{Clock as _, Timestamp};
use weir_queue_redis::RedisQueue;

use crate::support::{self, Server, destination, eventually, wake};

const HOUR: f64 = 3_600.0;
const YEAR: f64 = 400.0 * 24.0 * HOUR;

fn assert_continues(queue: &RedisQueue, before: Timestamp) {
    let now = queue.clock().now();
    assert!(now >= before && now.since(before) < Duration::from_secs(60), "{before} {now}");
}

/// No process runs that knows the time, and the clock of Redis is a year ahead.
#[tokio::test]
async fn a_process_that_starts_alone_does_not_trust_a_clock_of_redis_that_is_ahead_of_its_own() {
    let (server, clock) = Server::start_with_clock().await;
    let queue = support::open(server.config()).await;
    let before = queue.clock().now();
    drop(queue);
    clock.set(YEAR).unwrap();
    let queue = support::open(server.config()).await;
    assert_continues(&queue, before);
    let offset = queue.clock().servers_ahead_of_wall().unwrap();
    assert!((offset as f64 / 1e9 - YEAR).abs() < 5.0, "{offset}");
}

/// The correction of the clock goes with the data, and a process that knows no time comes first.
#[tokio::test]
async fn a_server_that_is_ahead_and_loses_its_data_moves_no_process() {
    let (server, clock) = Server::start_with_clock().await;
    let queue = support::open(server.config()).await;
    let before = queue.clock().now();
    clock.set(HOUR).unwrap();
    // Once it is corrected, a new process gets the right time.
    eventually("the server is corrected", async || {
        let late_comer = support::open(server.config()).await;
        late_comer.clock().now().since(before) < Duration::from_secs(60)
    })
    .await;
    for _ in 0..3 {
        server.command(&["FLUSHALL"]).await;
        let late_comer = support::open(server.config()).await;
        wake(&queue, destination(1)).await.unwrap();
        wake(&late_comer, destination(2)).await.unwrap();
        assert_continues(&queue, before);
        assert_continues(&late_comer, before);
    }
}

#[tokio::test]
async fn a_shard_whose_correction_was_lost_is_corrected() {
    let server = Server::start().await;
    let queue = support::open(server.config()).await;
    let before = queue.clock().now();
    let redis::Value::Array(keys) = server.command(&["KEYS", "*:generation"]).await else { panic!("a list of keys") };
    let keys: Vec<String> = keys.into_iter().map(|key| redis::from_redis_value(key).unwrap()).collect();
    // The correction of this shard failed, and that of the others did not.
    let shard = keys.iter().find(|key| key.contains(":7}")).unwrap();
    let shift = async || {
        let shift = server.command(&["HGET", shard, "shift"]).await;
        redis::from_redis_value::<Option<i64>>(shift).unwrap()
    };
    eventually("the shard has a time", async || shift().await.is_some()).await;
    server.command(&["HSET", shard, "shift", "3600000000"]).await;
    eventually("the shard is corrected", async || shift().await.is_some_and(|shift| shift < 1_000_000)).await;
    assert_continues(&queue, before);
}
