//! Permits and entries of living and dead workers.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use weir_core::{Limiter, Period, RateLimit, RateLimits, claim::ClaimedBody, event::EventBody, plan::NextRun};
use weir_queue::{Permits as _, Schedule as _, SlotAnswer};
use weir_queue_redis::{Depths, RedisConfig};

use crate::support::{
    self, Server, ask_for_slot, claim, delivery, destination, eventually, hand_back, permits, publication, take, wake,
};

#[tokio::test]
async fn nothing_is_left_when_everything_is_settled() {
    let server = Server::start().await;
    let queue = support::open(server.config()).await;
    let permits = permits(&queue, 8).await;
    for permit in &permits[..5] {
        ask_for_slot(&queue, permit.id).await;
    }
    let ids: Vec<_> = permits.iter().map(|permit| permit.id).collect();
    queue.settle(&support::settled(&ids[..5])).await.unwrap();
    queue.recorded(&ids[..5]);
    hand_back(&queue, &permits[5..]).await;
    eventually("nothing is left", async || queue.depths().await.unwrap() == Depths::default()).await;
    for key in keys(&server, "*dst_*").await {
        let redis::Value::Int(ttl) = server.command(&["TTL", &key]).await else { panic!("a number") };
        assert!((0..120).contains(&ttl), "{key} stays for {ttl} s");
    }
}

#[tokio::test]
async fn a_stopped_job_is_kept_until_its_longest_window_has_passed() {
    let server = Server::start().await;
    let queue = support::open(server.config()).await;
    wake(&queue, destination(1)).await.unwrap();
    let mut publication = publication(&queue, claim(&queue).await, 1, NextRun::Stop);
    let hourly = RateLimits::new(RateLimit::new(1, Period::HOUR).into_iter().collect()).unwrap();
    publication.recovered = Some(Limiter::new(&hourly));
    publication.terms = Some(support::terms(hourly));
    queue.publish(vec![publication]).await.unwrap();
    let permit = take(&queue, 1).await.remove(0);
    assert!(matches!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Granted(..)));
    queue.settle(&[permit.id.into()]).await.unwrap();
    let kept = keys(&server, "*:job:dst_*").await;
    assert_eq!(kept.len(), 1);
    let redis::Value::Int(ttl) = server.command(&["TTL", &kept[0]]).await else { panic!("a number") };
    assert!(ttl >= 3_600, "the cursor expires in {ttl} s, before its hour has passed");
}

async fn keys(server: &Server, pattern: &str) -> Vec<String> {
    redis::from_redis_value(server.command(&["KEYS", pattern]).await).unwrap()
}

#[tokio::test]
async fn a_worker_takes_no_more_than_it_has_places_for() {
    let server = Server::start().await;
    let (busy, idle) = (support::open(server.config()).await, support::open(server.config()).await);
    wake(&busy, destination(1)).await.unwrap();
    let lease = claim(&busy).await;
    busy.publish(vec![publication(&busy, lease, 40, NextRun::Stop)]).await.unwrap();
    let taken = take(&busy, 4).await;
    let depths = busy.depths().await.unwrap();
    assert_eq!(depths.ready, 36, "permits that the worker has no place for stay unread");
    eventually("the age of the oldest permit rises", async || {
        busy.depths().await.unwrap().oldest_waited > depths.oldest_waited
    })
    .await;
    let others = take(&idle, 36).await;
    assert_eq!((taken.len(), others.len()), (4, 36), "another worker takes the other permits");
}

#[tokio::test]
async fn entries_of_a_dead_worker_are_dropped_and_never_sent_again() {
    let config = RedisConfig { tidy_every: Duration::from_millis(50), ..support::shared_config() };
    let dying = support::open(config.clone()).await;
    wake(&dying, destination(1)).await.unwrap();
    let lease = claim(&dying).await;
    let mut publication = publication(&dying, lease, 0, NextRun::Stop);
    publication.deliveries =
        (0..20).map(|number| delivery(&dying, destination(1), number, Duration::from_millis(400))).collect();
    dying.publish(vec![publication]).await.unwrap();
    take(&dying, 10).await;
    drop(dying);
    let living = support::open(config).await;
    assert_eq!(living.depths().await.unwrap().entries, 20);
    eventually("the entries are dropped", async || living.depths().await.unwrap() == Depths::default()).await;
    let nothing = tokio::time::timeout(Duration::from_millis(100), living.take(1)).await;
    assert!(nothing.is_err());
}

#[tokio::test]
async fn unread_permits_go_back_before_their_claims_expire() {
    let often = Duration::from_millis(50);
    let config = RedisConfig { tidy_every: often, unread_for: often, ..support::shared_config() };
    let queue = support::open(config).await;
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    let publication = publication(&queue, lease, 20, NextRun::Stop);
    let mut published: Vec<_> = publication.deliveries.iter().map(|delivery| delivery.claim).collect();
    queue.publish(vec![publication]).await.unwrap();
    let mut back = Vec::new();
    while back.len() < published.len() {
        let declined = tokio::time::timeout(Duration::from_secs(10), queue.declined()).await;
        back.extend(declined.expect("the claims go back to the store").into_iter().map(|one| one.claim));
    }
    published.sort_by_key(|claim| claim.delivery_id);
    back.sort_by_key(|claim| claim.delivery_id);
    assert_eq!(back, published);
    eventually("nothing is left", async || queue.depths().await.unwrap() == Depths::default()).await;
}

/// Redis also counts entries that were deleted unread. So workers must not be scaled by this lag (`lagCount` of KEDA's
/// `redis-streams`).
#[tokio::test]
async fn the_lag_that_redis_reports_stays_above_zero_after_an_outage() {
    let server = Server::start().await;
    let often = Duration::from_millis(50);
    let queue = support::open(RedisConfig { tidy_every: often, unread_for: often, ..server.config() }).await;
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    queue.publish(vec![publication(&queue, lease, 20, NextRun::Stop)]).await.unwrap();
    // Some permits are read before the workers stop.
    let taken = take(&queue, 4).await;
    hand_back(&queue, &taken).await;
    eventually("nothing is left", async || queue.depths().await.unwrap() == Depths::default()).await;
    let mut lag = 0;
    for stream in keys(&server, "*:queue").await {
        assert_eq!(server.command(&["XLEN", &stream]).await, redis::Value::Int(0));
        let groups: Vec<HashMap<String, redis::Value>> =
            redis::from_redis_value(server.command(&["XINFO", "GROUPS", &stream]).await).unwrap();
        lag += groups
            .iter()
            .filter_map(|group| redis::from_redis_value::<Option<i64>>(group["lag"].clone()).unwrap())
            .sum::<i64>();
    }
    assert!(lag > 0, "Redis counts correctly now, so lagCount can be used");
}

#[tokio::test]
async fn a_stopping_worker_gets_the_permits_that_were_read_for_it() {
    let queue = support::open(support::shared_config()).await;
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    queue.publish(vec![publication(&queue, lease, 9, NextRun::Stop)]).await.unwrap();
    let taken = queue.take(4).await.unwrap();
    let unused = queue.stop_taking().await;
    assert!(queue.take(1).await.is_err(), "`stop_taking` is the last call");
    hand_back(&queue, &taken).await;
    hand_back(&queue, &unused).await;
    let depths = queue.depths().await.unwrap();
    assert_eq!(
        (depths.ready + taken.len() + unused.len(), depths.pending),
        (9, 0),
        "the other permits stay for other workers"
    );
}

#[tokio::test]
async fn a_large_body_stays_in_the_store() {
    let config = RedisConfig { largest_inline_body: 64, ..support::shared_config() };
    let queue = support::open(config).await;
    wake(&queue, destination(1)).await.unwrap();
    let lease = claim(&queue).await;
    let mut publication = publication(&queue, lease, 2, NextRun::Stop);
    publication.deliveries[1].body = ClaimedBody::Inline(EventBody::stored(Bytes::from(vec![b'x'; 65]), 0));
    queue.publish(vec![publication]).await.unwrap();
    let permits = take(&queue, 2).await;
    assert!(matches!(permits[0].delivery.body, ClaimedBody::Inline(_)));
    assert_eq!(permits[1].delivery.body, ClaimedBody::InStore);
}
