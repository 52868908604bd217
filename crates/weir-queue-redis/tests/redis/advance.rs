//! Permits that are asked for while their deliveries are being stored.

use std::{sync::Arc, time::Duration};

use weir_core::{Clock as _, Destination, RateLimits, plan::NextRun};
use weir_queue::{Permits as _, Publication, Schedule as _, conformance::settings};
use weir_queue_redis::RedisQueue;

use crate::support::{self, Server, claim, delivery, destination, eventually, take, wake};

const LASTS: Duration = Duration::from_secs(60);

fn unlimited() -> Arc<Destination> {
    Arc::new(Destination { id: destination(1), ..settings(&RateLimits::UNLIMITED, 64) })
}

/// A queue whose process has a worker, and a destination without a backlog.
async fn open(server: &Server) -> RedisQueue {
    let queue = support::open(server.config()).await;
    let nothing_yet = tokio::time::timeout(Duration::from_millis(1), queue.take(1)).await;
    assert!(nothing_yet.is_err(), "the worker begins to take");
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    let (limits, recovered, deliveries) = (RateLimits::UNLIMITED, None, Vec::new());
    queue.publish(vec![Publication { lease, limits, recovered, deliveries, next: NextRun::Stop }]).await.unwrap();
    eventually("there is room", async || {
        let reserved = queue.reserve(&unlimited(), queue.clock().now() + LASTS).is_kept();
        if reserved {
            queue.unreserve(destination(1));
        }
        reserved
    })
    .await;
    eventually("what was given up has gone back", async || queued(&queue).await == 0).await;
    queue
}

async fn queued(queue: &RedisQueue) -> usize {
    queue.depths().await.unwrap().queued
}

fn reserve(queue: &RedisQueue) {
    assert!(queue.reserve(&unlimited(), queue.clock().now() + LASTS).is_kept());
}

fn store(queue: &RedisQueue, number: u8) {
    let mut stored = delivery(queue, destination(1), number, LASTS);
    stored.destination = Some(unlimited());
    queue.admit(vec![stored]);
}

/// The worker gets this delivery with a permit, and no other room is taken.
async fn assert_sent(queue: &RedisQueue, number: u8) {
    let permit = take(queue, 1).await.remove(0);
    assert_eq!(permit.delivery.claim.delivery_id.as_bytes()[0], number);
    queue.settle(&[permit.id]).await.unwrap();
    eventually("its room is free", async || queued(queue).await == 0).await;
}

#[tokio::test]
async fn a_permit_waits_for_the_commit_of_its_delivery() {
    let server = Server::start().await;
    let queue = open(&server).await;
    reserve(&queue);
    eventually("the permit is issued before", async || queued(&queue).await == 1).await;
    store(&queue, 7);
    assert_sent(&queue, 7).await;
}

#[tokio::test]
async fn a_delivery_waits_for_its_permit() {
    let server = Server::start().await;
    let queue = open(&server).await;
    reserve(&queue);
    store(&queue, 7);
    assert_sent(&queue, 7).await;
}

#[tokio::test]
async fn a_permit_whose_delivery_is_not_stored_goes_back() {
    let server = Server::start().await;
    let queue = open(&server).await;
    reserve(&queue);
    eventually("the permit is issued", async || queued(&queue).await == 1).await;
    queue.unreserve(destination(1));
    eventually("it has gone back", async || queued(&queue).await == 0).await;
    reserve(&queue);
    queue.unreserve(destination(1));
    eventually("one that was given up before it came as well", async || queued(&queue).await == 0).await;
}

#[tokio::test]
async fn deliveries_come_back_when_the_server_is_gone() {
    let mut server = Server::start().await;
    let queue = open(&server).await;
    server.kill();
    reserve(&queue);
    store(&queue, 7);
    let declined = tokio::time::timeout(Duration::from_secs(30), queue.declined()).await.unwrap();
    assert_eq!(declined.len(), 1);
}
