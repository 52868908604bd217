//! Queues for tests, and servers for those tests that must have their own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use weir_queue::conformance::Subject;
use weir_queue_redis::{RedisConfig, RedisQueue, Topology};

/// On a machine this busy, what the way to Redis may cost a slot.
const PRECISION: Duration = Duration::from_millis(10);

pub(crate) fn shared_config() -> RedisConfig {
    with_own_keys(RedisConfig::new(Topology::Single(provided("WEIR_TEST_REDIS_URL"))))
}

pub(crate) fn cluster_config() -> RedisConfig {
    let urls = provided("WEIR_TEST_REDIS_CLUSTER_URL").split(',').map(str::to_owned).collect();
    with_own_keys(RedisConfig::new(Topology::Cluster(urls)))
}

fn provided(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("these tests need a server: run them with `cargo xtask test`, which provides it, or set {variable}")
    })
}

/// Tests run side by side, and so do runs of them.
fn with_own_keys(config: RedisConfig) -> RedisConfig {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("test-{}-{}:", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    RedisConfig { prefix, ..config }
}

pub(crate) async fn open(config: RedisConfig) -> RedisQueue {
    RedisQueue::open(config).await.unwrap()
}

pub(crate) fn subject_of(queue: RedisQueue) -> Subject {
    let clock = queue.clock();
    Subject { queue: Arc::new(queue), clock, precision: PRECISION }
}
