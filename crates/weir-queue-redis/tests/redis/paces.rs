//! What a pace costs Redis.

use weir_core::{Clock as _, limiter::GRANT_AHEAD};
use weir_queue::{Permits as _, SlotAnswer};

use crate::support::{self, Server, ask_for_slot, open, pace, permits_at, settled};

const SENDS: u64 = 15;

/// How often Redis has read and written a job, the calls of scripts included.
async fn reads_and_writes(server: &Server) -> [u64; 2] {
    let text: String = redis::from_redis_value(server.command(&["INFO", "commandstats"]).await).unwrap();
    ["get", "set"].map(|name| {
        let figures = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        figures.and_then(|figures| figures.split(',').next()?.parse().ok()).unwrap_or(0)
    })
}

/// The reads and writes that some runs, their slots and their settlements need.
async fn reads_and_writes_of_sends(per_s: Option<f64>) -> [u64; 2] {
    let server = Server::start().await;
    let queue = open(server.config()).await;
    let pace = per_s.map(|per_s| pace(&queue, per_s));
    let before = reads_and_writes(&server).await;
    for _ in 0..SENDS {
        let permit = permits_at(&queue, 1, pace.clone()).await.remove(0);
        while let SlotAnswer::Later(start) = ask_for_slot(&queue, permit.id).await {
            tokio::time::sleep((start - GRANT_AHEAD / 2).since(queue.clock().now())).await;
        }
        queue.settle(&settled(&[permit.id])).await.unwrap();
    }
    let after = reads_and_writes(&server).await;
    [after[0] - before[0], after[1] - before[1]]
}

/// A pace is a part of its job. One more read or write for each send would show; a few of the background do not.
#[tokio::test]
async fn a_send_needs_no_more_reads_and_writes_with_a_pace_than_without() {
    let (plain, paced) = (reads_and_writes_of_sends(None).await, reads_and_writes_of_sends(Some(1_000.0)).await);
    assert!(plain.iter().all(|count| *count >= 3 * SENDS), "{plain:?}");
    for (plain, paced) in plain.into_iter().zip(paced) {
        assert!(paced < plain + SENDS && plain < paced + SENDS, "{plain} without a pace, {paced} with one");
    }
}

#[tokio::test]
async fn a_pace_survives_a_process_and_is_read_by_another() {
    let config = support::shared_config();
    let queue = open(config.clone()).await;
    permits_at(&queue, 0, Some(pace(&queue, 5.0))).await;
    drop(queue);
    let other = open(config).await;
    support::wake(&other, support::destination(1)).await.unwrap();
    let lease = support::claim(&other).await;
    let status = lease.pace.unwrap().rate.status(other.clock().now());
    assert_eq!(status.per_s, 5.0);
}
