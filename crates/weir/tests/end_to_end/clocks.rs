//! A Redis whose clock is set while requests are under way, on PostgreSQL.

use std::time::Duration;

use serde_json::json;

use crate::support::{Answer, Fleet, Receiver, assert_cap, cases::limit, eventually};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: f64 = 3_600.0;
const YEAR: f64 = 400.0 * 24.0 * HOUR;

/// The requests take longer than the window, so that the store does not know of them yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_exceeds_its_limit_and_nothing_is_sent_twice_while_the_clock_of_redis_is_set() {
    const EVENTS: usize = 100;
    let (fleet, receiver) = (Fleet::with_clock().await, Receiver::start().await);
    receiver.script("/stepped", [Answer::status(200).after(SECOND * 3)]);
    let clock = fleet.redis.clock.as_ref().unwrap();
    let (first, _second) = (fleet.launch("serve").await, fleet.launch("serve").await);
    let id = first.destination(json!({"url": receiver.url("/stepped"), "rate_limits": limit(5, "second")})).await;
    first.events("stepped", EVENTS).await;
    receiver.wait_for("/stepped", 5, SECOND * 10).await;
    for ahead in [HOUR, 0.0, YEAR, 0.3, 0.6, 0.9, -HOUR, HOUR, 2.0 * HOUR, -YEAR, YEAR, 0.0, 0.3] {
        clock.set(ahead).unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    let before = receiver.count("/stepped");
    receiver.wait_for("/stepped", before + 5, SECOND * 10).await;
    first.drained(&id, SECOND * 60).await;
    let arrivals = receiver.arrivals("/stepped");
    assert_cap(&arrivals, 5, SECOND);
    assert_eq!(arrivals.len(), EVENTS, "none is sent twice");
    first.assert_audit_clean(&id).await;
}
