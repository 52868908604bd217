//! Installations that reach the same Redis.

use weir_core::InstallationId;
use weir_queue::{QueueError, Schedule as _};
use weir_queue_redis::{OpenError, RedisConfig, RedisQueue, Topology};

use crate::support::{self, Server, destination, eventually, hand_back, permits, wake};

fn of_installation(number: u8, config: RedisConfig) -> RedisConfig {
    RedisConfig { installation: InstallationId::from_bytes([number; 16]), ..config }
}

/// Runs a job and takes its permits, which must be valid.
async fn delivers(queue: &RedisQueue) {
    let taken = permits(queue, 3).await;
    hand_back(queue, &taken).await;
}

async fn is_refused(config: RedisConfig) {
    let prefix = config.prefix.clone();
    match RedisQueue::open(config).await {
        Err(error @ OpenError::Foreign { .. }) => {
            let text = error.to_string();
            for word in ["redis_prefix", "WEIR_REDIS_PREFIX", "WEIR_REDIS_URL", &prefix] {
                assert!(text.contains(word), "{text}");
            }
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the keys belong to another installation"),
    }
}

async fn assert_separate(config: RedisConfig) {
    let first = support::open(of_installation(1, config.clone())).await;
    is_refused(of_installation(2, config.clone())).await;
    delivers(&first).await;
    let same = support::open(of_installation(1, config.clone())).await;
    delivers(&same).await;
    let prefix = format!("{}-other", config.prefix);
    let second = support::open(of_installation(2, RedisConfig { prefix, ..config })).await;
    delivers(&second).await;
    delivers(&first).await;
}

#[tokio::test]
async fn keys_of_another_installation_are_refused_and_another_prefix_is_used() {
    assert_separate(support::shared_config()).await;
}

#[tokio::test]
async fn keys_of_another_installation_are_refused_and_another_prefix_is_used_in_a_cluster() {
    assert_separate(support::cluster_config()).await;
}

#[tokio::test]
async fn of_two_installations_that_start_together_one_gets_all_shards() {
    let config = support::shared_config();
    let (one, other) = tokio::join!(
        RedisQueue::open(of_installation(1, config.clone())),
        RedisQueue::open(of_installation(2, config.clone()))
    );
    let winners: Vec<RedisQueue> = [one, other].into_iter().flatten().collect();
    assert_eq!(winners.len(), 1);
    delivers(&winners[0]).await;
}

/// Channels are common to all databases of a server.
#[tokio::test]
async fn notifications_of_another_database_of_the_server_are_ignored() {
    let server = Server::start().await;
    let at = |database: u8| RedisConfig::new(Topology::Single(format!("{}/{database}", server.url())));
    let first = support::open(of_installation(1, at(0))).await;
    delivers(&first).await;
    // Its generations begin later, so their numbers are higher.
    let second = support::open(of_installation(2, at(1))).await;
    delivers(&second).await;
    delivers(&first).await;
}

async fn generations(server: &Server) -> Vec<String> {
    redis::from_redis_value(server.command(&["KEYS", "*:generation"]).await).unwrap()
}

#[tokio::test]
async fn a_running_process_changes_nothing_while_its_keys_are_marked_by_another_installation() {
    let server = Server::start().await;
    let queue = support::open(of_installation(1, server.config())).await;
    delivers(&queue).await;
    let other = InstallationId::from_bytes([2; 16]).to_string();
    for key in generations(&server).await {
        server.command(&["HSET", &key, "installation", &other]).await;
    }
    let refused = wake(&queue, destination(1)).await;
    assert!(matches!(&refused, Err(QueueError::Refused(reason)) if reason.contains(&other)), "{refused:?}");
    assert!(queue.check().await.is_err(), "the process is not ready");
    for key in generations(&server).await {
        let redis::Value::Int(removed) = server.command(&["HDEL", &key, "installation"]).await else { panic!() };
        assert_eq!(removed, 1, "no other call has changed the marker");
    }
    delivers(&queue).await;
    is_refused(of_installation(3, server.config())).await;
}

#[tokio::test]
async fn a_redis_that_comes_back_empty_is_marked_again() {
    let mut server = Server::start().await;
    let queue = support::open(of_installation(1, server.config())).await;
    server.restart().await;
    eventually("the queue is back", async || queue.check().await.is_ok()).await;
    is_refused(of_installation(2, server.config())).await;
    delivers(&queue).await;
}
