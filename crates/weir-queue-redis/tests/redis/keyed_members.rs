//! Destinations with limit keys that move between limit groups in different shards.

use std::{sync::Arc, time::Duration};

use weir_core::{
    Clock as _, Destination, DestinationId, LimitGroup, LimitGroupId, LimitKey, Limiter, RateLimits, Timestamp,
    limit_key::{KeyLimits, budget_as_destination},
    plan::NextRun,
};
use weir_queue::{
    GroupRun, JobLease, LeftShard, Permit, Publication, Published, Schedule, SlotAnswer, Terms, Wake,
    conformance::settings,
};
use weir_queue_redis::RedisQueue;

use crate::support::{Server, ask_for_slot, delivery, destination, open, per_second, take};

struct Moving {
    destination: Destination,
    /// In two shards.
    groups: [Arc<LimitGroup>; 2],
}

impl Moving {
    /// In the first group.
    fn new(queue: &RedisQueue) -> Self {
        let mut destination = settings(&RateLimits::UNLIMITED, 64);
        destination.id = crate::support::destination(1);
        (destination.updated_at, destination.keyed_at) = (Timestamp::from_secs(1), Some(Timestamp::from_secs(1)));
        destination.settings.key_limits = Some(Arc::new(KeyLimits {
            pointer: "/customer".to_owned(),
            rate_limits: per_second(100),
            max_in_flight: None,
            weight: 1,
            overrides: Default::default(),
        }));
        let shard = |number| queue.shard_of(destination.id, Some(group(number).id));
        let other = (2..).find(|number| shard(*number) != shard(1)).expect("another shard");
        destination.settings.limit_group = Some(group(1).id);
        Self { destination, groups: [1, other].map(|number| Arc::new(group(number))) }
    }

    fn group(&self) -> &Arc<LimitGroup> {
        let id = self.destination.settings.limit_group;
        self.groups.iter().find(|group| Some(group.id) == id).expect("a group")
    }

    fn shard(&self, queue: &RedisQueue) -> u16 {
        queue.shard_of(self.destination.id, self.destination.settings.limit_group)
    }

    /// Announced by a process that does not know where the destination was.
    async fn move_to(&mut self, process: &RedisQueue, group: usize) {
        self.destination.updated_at = self.destination.updated_at + Duration::from_secs(1);
        self.destination.settings.limit_group = Some(self.groups[group].id);
        process.edited_groups(&[Arc::new(self.destination.as_group())]).await.unwrap();
    }

    /// What the first run does in the new shard.
    async fn close(&self, queue: &RedisQueue, shard: u16) {
        let version = self.destination.updated_at;
        let left = |(destination_id, of_keys)| LeftShard { destination_id, of_keys, shard, version };
        let id = self.destination.id;
        let left = [(id, false), (budget_as_destination(id), true)].map(left);
        assert_eq!(Schedule::close(queue, &left).await.unwrap(), [true, true]);
    }

    async fn wake(&self, queue: &RedisQueue, key: &str) {
        let destination_id = flow(key);
        queue.learn_group(destination_id, self.destination.settings.limit_group);
        queue.wake(&[Wake { destination_id, due: queue.clock().now() }]).await.unwrap();
    }

    /// What a run publishes that finds one delivery, if its turn allows it.
    fn publication(&self, queue: &RedisQueue, lease: JobLease) -> Publication {
        let budget = Arc::new(self.destination.as_group());
        let ids = [budget.id, self.group().id];
        let turn = lease.turn.filter(|turn| turn.groups().map(|of| of.group).eq(ids));
        let known = turn.filter(|turn| turn.groups().all(|of| of.is_known));
        let seen = |id| lease.turn.and_then(|turn| turn.groups().find(|of| of.group == id));
        let read = |terms: &Arc<LimitGroup>| GroupRun {
            terms: Arc::clone(terms),
            recovered: seen(terms.id).filter(|of| !of.is_known).map(|_| Limiter::new(&terms.rate_limits)),
        };
        let mut of_key = delivery(queue, self.destination.id, 1, Duration::from_secs(30));
        of_key.flow_id = lease.destination_id;
        let outer = self.destination.outer_group();
        let terms = Terms::of(&self.destination.flow(Some(&LimitKey::new("any"))), queue.clock().now());
        Publication {
            recovered: lease.cursors.is_none().then(|| Limiter::new(&per_second(100))),
            terms: Some(Terms { outer, ..terms }),
            groups: [&budget, self.group()].map(read).into(),
            pace: None,
            deliveries: vec![of_key; known.map_or(0, |turn| turn.permits.min(1)) as usize],
            next: if known.is_some() { NextRun::Stop } else { NextRun::Now },
            lease,
        }
    }

    /// A permit of this key.
    async fn permit(&self, queue: &RedisQueue, key: &str) -> Permit {
        self.wake(queue, key).await;
        loop {
            let lease = crate::support::claim(queue).await;
            let is_here = lease.shard == self.shard(queue) && lease.destination_id == flow(key);
            let publication = match is_here {
                true => self.publication(queue, lease),
                false => elsewhere(lease),
            };
            let published = publication.deliveries.len();
            assert!(matches!(queue.publish(vec![publication]).await.unwrap()[..], [Published::Done]));
            if published > 0 {
                return take(queue, 1).await.remove(0);
            }
        }
    }
}

/// A run that finds out that its job is elsewhere tells the queue nothing.
fn elsewhere(lease: JobLease) -> Publication {
    let (next, groups) = (NextRun::Stop, Vec::new());
    Publication { lease, terms: None, recovered: None, groups, pace: None, deliveries: Vec::new(), next }
}

fn group(number: u8) -> LimitGroup {
    LimitGroup {
        keys_of: None,
        id: LimitGroupId::from_bytes([number; 16]),
        tenant: None,
        name: "account".to_owned(),
        rate_limits: per_second(100),
        max_in_flight: None,
        temporary: Default::default(),
        created_at: Timestamp::MIN,
        updated_at: Timestamp::from_secs(1),
    }
}

fn flow(key: &str) -> DestinationId {
    LimitKey::new(key).flow_id(destination(1))
}

#[tokio::test]
async fn a_move_closes_all_keys_in_the_shard_that_they_leave() {
    let server = Server::start().await;
    let [queue, editor] = [open(server.config()).await, open(server.config()).await];
    let mut moving = Moving::new(&queue);
    let old = moving.shard(&queue);
    let permit = moving.permit(&queue, "a").await;
    assert_eq!(queue.shard_of(destination(1), Some(moving.groups[0].id)), old);
    // A run is under way that has read the destination before the move.
    moving.wake(&queue, "b").await;
    let lease = crate::support::claim(&queue).await;
    assert_eq!(lease.shard, old);
    let late = moving.publication(&queue, lease);
    moving.move_to(&editor, 1).await;
    moving.close(&queue, old).await;
    assert_eq!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Withdrawn);
    assert!(matches!(queue.publish(vec![late]).await.unwrap()[..], [Published::Stale(_)]));
    assert_eq!(
        ask_for_slot(&queue, permit.id).await,
        SlotAnswer::Withdrawn,
        "and nothing has brought the old terms back"
    );
    let again = moving.permit(&queue, "a").await;
    assert!(matches!(ask_for_slot(&queue, again.id).await, SlotAnswer::Granted(..)));
}

/// Sends of meanwhile are not in the cursors of the shard that it comes back to.
#[tokio::test]
async fn a_destination_that_comes_back_recovers_the_cursors_of_its_keys() {
    let server = Server::start().await;
    let queue = open(server.config()).await;
    let mut moving = Moving::new(&queue);
    let old = moving.shard(&queue);
    let permit = moving.permit(&queue, "a").await;
    assert!(matches!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Granted(..)));
    for (to, from) in [(1, 0), (0, 1)] {
        let left = queue.shard_of(destination(1), Some(moving.groups[from].id));
        moving.move_to(&queue, to).await;
        moving.close(&queue, left).await;
    }
    assert_eq!(moving.shard(&queue), old);
    moving.wake(&queue, "a").await;
    let lease = loop {
        let lease = crate::support::claim(&queue).await;
        if lease.shard == old {
            break lease;
        }
        queue.publish(vec![elsewhere(lease)]).await.unwrap();
    };
    assert_eq!((lease.destination_id, lease.cursors), (flow("a"), None));
}

/// A process that does not know the group of a key wakes it in the shard of the destination. The run there finds out.
#[tokio::test]
async fn a_key_that_is_woken_in_the_wrong_shard_costs_one_run() {
    let server = Server::start().await;
    let queue = open(server.config()).await;
    let moving = Moving::new(&queue);
    let own = queue.shard_of(destination(1), None);
    let groups = moving.groups.iter().map(|group| queue.shard_of(destination(1), Some(group.id)));
    assert!(groups.clone().any(|shard| shard != own), "at least one group is in another shard");
    queue.wake(&[Wake { destination_id: flow("a"), due: queue.clock().now() }]).await.unwrap();
    let lease = crate::support::claim(&queue).await;
    assert_eq!((lease.shard, lease.turn), (own, None));
    queue.publish(vec![elsewhere(lease)]).await.unwrap();
    let permit = moving.permit(&queue, "a").await;
    assert!(matches!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Granted(..)));
}
