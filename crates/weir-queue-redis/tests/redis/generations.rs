//! A Redis that loses its data: no earlier state is used, and the queue recovers by itself.

use weir_core::{Clock as _, adaptive::Sample, plan::NextRun};
use weir_queue::{JobLease, Permit, Permits as _, Published, Report, Schedule as _, SlotAnswer};
use weir_queue_redis::RedisQueue;

use crate::support::{self, Server, ask_for_slot, claim, destination, eventually, permits, publication, wake};

/// A queue before its server loses its data, with a permit in flight and a claimed lease.
struct Before {
    queue: RedisQueue,
    permit: Permit,
    lease: JobLease,
}

impl Before {
    async fn on(server: &Server) -> Self {
        let queue = support::open(server.config()).await;
        let permit = permits(&queue, 1).await.remove(0);
        assert!(matches!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Granted(..)));
        wake(&queue, destination(1)).await.unwrap();
        let lease = claim(&queue).await;
        assert!(lease.cursors.is_some());
        Self { queue, permit, lease }
    }

    /// The queue has lost its data: a job that is woken again has no cursors, and earlier leases and permits are not
    /// used.
    async fn assert_lost(self) {
        let Self { queue, permit, lease } = self;
        eventually("the queue is back", async || wake(&queue, destination(1)).await.is_ok()).await;
        let fresh = claim(&queue).await;
        assert!(fresh.cursors.is_none(), "earlier cursors are not trusted");
        assert!(fresh.known_since > lease.known_since && fresh.known_since <= queue.clock().now());
        assert!(fresh.epoch > lease.epoch);
        assert_eq!((fresh.queued, fresh.in_flight), (0, 0));
        let stale = publication(&queue, lease, 3, NextRun::Stop);
        assert!(matches!(queue.publish(vec![stale]).await.unwrap()[..], [Published::Stale(_)]));
        assert_eq!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Withdrawn, "an earlier permit gets no slot");
        let published = queue.publish(vec![publication(&queue, fresh, 2, NextRun::Stop)]).await.unwrap();
        assert!(matches!(published[..], [Published::Done]));
        let again = support::take(&queue, 2).await;
        assert!(again.iter().all(|permit| permit.delivery.claim.destination_id == destination(1)));
        let ids: Vec<_> = again.iter().map(|permit| permit.id).collect();
        queue.settle(&support::settled(&ids)).await.unwrap();
        queue.recorded(&ids);
        eventually("only permits of the new generation are there", async || {
            let depths = queue.depths().await.unwrap();
            (depths.queued, depths.in_flight, depths.entries) == (0, 0, 0)
        })
        .await;
    }
}

#[tokio::test]
async fn a_flushed_server_begins_a_new_generation() {
    let server = Server::start().await;
    let before = Before::on(&server).await;
    server.command(&["FLUSHALL"]).await;
    before.assert_lost().await;
}

#[tokio::test]
async fn a_server_that_comes_back_empty_begins_a_new_generation() {
    let mut server = Server::start().await;
    let before = Before::on(&server).await;
    server.restart().await;
    before.assert_lost().await;
}

#[tokio::test]
async fn a_server_that_comes_back_with_an_older_snapshot_begins_a_new_generation() {
    let mut server = Server::start().await;
    let queue = support::open(server.config()).await;
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    queue.publish(vec![publication(&queue, lease, 5, NextRun::Stop)]).await.unwrap();
    // The snapshot holds unread permits. They are used afterwards and must not be used again from the snapshot.
    server.command(&["SAVE"]).await;
    let used: Vec<_> = support::take(&queue, 5).await.iter().map(|permit| permit.id).collect();
    queue.settle(&support::settled(&used)).await.unwrap();
    drop(queue);
    let before = Before::on(&server).await;
    server.restart().await;
    before.assert_lost().await;
}

#[tokio::test]
async fn a_lost_stream_begins_a_new_generation() {
    let server = Server::start().await;
    let before = Before::on(&server).await;
    let redis::Value::Array(keys) = server.command(&["KEYS", "*:queue"]).await else { panic!("a list of keys") };
    for key in keys {
        let key: String = redis::from_redis_value(key).unwrap();
        server.command(&["DEL", &key]).await;
    }
    before.assert_lost().await;
}

#[tokio::test]
async fn a_flushed_server_has_lost_the_pace_and_takes_no_reports_of_it() {
    let server = Server::start().await;
    let queue = support::open(server.config()).await;
    support::permits_at(&queue, 1, Some(support::pace(&queue, 5.0))).await;
    wake(&queue, destination(1)).await.unwrap();
    assert!(claim(&queue).await.pace.is_some());
    server.command(&["FLUSHALL"]).await;
    let report = Report { destination_id: destination(1), sample: Sample { bad: 9, ..Sample::default() } };
    eventually("the queue is back", async || queue.report(&[report]).await.is_ok()).await;
    assert_eq!(queue.paces(&[destination(1)]).await.unwrap(), [None]);
    eventually("the queue is back", async || wake(&queue, destination(1)).await.is_ok()).await;
    assert!(claim(&queue).await.pace.is_none(), "the run resumes from the copy in the store");
}
