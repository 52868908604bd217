//! Limit groups: slots from two budgets, turns, and moves between shards.

use std::{collections::HashMap, sync::Arc, time::Duration};

use weir_core::{
    Clock as _, DestinationId, LimitGroup, LimitGroupId, Limiter, RateLimits, Slot, Timestamp,
    limit_group::DEFAULT_WEIGHT, plan::NextRun,
};
use weir_queue::{
    GroupRun, JobLease, LeftShard, Permit, Permits as _, Publication, Published, Schedule, SlotAnswer, SlotRequest,
    Terms, TermsChange, WantedSlot,
};
use weir_queue_redis::RedisQueue;

use crate::support::{
    Server, ask_for_slot, claim, delivery, destination, open, per_second, settled, shared_config, take, terms, wake,
};

fn group_of(number: u8, limits: RateLimits, max_in_flight: Option<u32>) -> Arc<LimitGroup> {
    let (created_at, updated_at) = (Timestamp::MIN, Timestamp::from_secs(1));
    let (id, name) = (LimitGroupId::from_bytes([number; 16]), "account".to_owned());
    Arc::new(LimitGroup {
        keys_of: None,
        id,
        tenant: None,
        name,
        rate_limits: limits,
        max_in_flight,
        temporary: Default::default(),
        created_at,
        updated_at,
    })
}

/// A group, in the shard of this destination or in another one.
fn group_near(queue: &RedisQueue, id: DestinationId, is_near: bool, limits: RateLimits) -> Arc<LimitGroup> {
    let own = queue.shard_of(id, None);
    let mut groups = (1..).map(|number| group_of(number, limits.clone(), None));
    groups.find(|group| (queue.shard_of(id, Some(group.id)) == own) == is_near).unwrap()
}

fn member_of(group: &LimitGroup, weight: u16, version: i64) -> Terms {
    Terms { group: Some(group.id), weight, version: Timestamp::from_secs(version), ..terms(RateLimits::UNLIMITED) }
}

/// What a run publishes of a backlog: what its turn allows, or only terms and cursors when the queue does not know them.
fn run(queue: &RedisQueue, lease: JobLease, terms: &Terms, group: &Arc<LimitGroup>, left: &mut u32) -> Publication {
    let turn = lease.turn.filter(|turn| turn.is_known && turn.group == group.id && lease.cursors.is_some());
    let count = turn.map_or(0, |turn| turn.permits.min(*left));
    *left -= count;
    let recovered = lease.cursors.is_none().then(|| Limiter::new(&terms.limits));
    let recovered_group = (!lease.turn.is_some_and(|turn| turn.is_known)).then(|| Limiter::new(&group.rate_limits));
    let to = lease.destination_id;
    let deliveries = (0..count).map(|number| delivery(queue, to, number as u8, Duration::from_secs(30))).collect();
    let next = match (turn.is_some(), *left) {
        (false, _) => NextRun::Now,
        (true, 0) => NextRun::Stop,
        (true, _) => NextRun::Paced,
    };
    let groups = vec![GroupRun { terms: group.clone(), recovered: recovered_group }];
    Publication { lease, terms: Some(terms.clone()), recovered, groups, pace: None, deliveries, next }
}

/// The members of a group with their backlogs.
struct Members<'q> {
    queue: &'q RedisQueue,
    group: Arc<LimitGroup>,
    of: HashMap<DestinationId, (Terms, u32)>,
    published: HashMap<DestinationId, u32>,
    /// The most permits that one claim has given.
    largest_run: u32,
}

impl<'q> Members<'q> {
    async fn new(queue: &'q RedisQueue, group: &Arc<LimitGroup>, members: &[(u64, u16, u32)]) -> Self {
        let mut of = HashMap::new();
        for &(number, weight, backlog) in members {
            let id = destination(number);
            queue.learn_group(id, Some(group.id));
            of.insert(id, (member_of(group, weight, 1), backlog));
            wake(queue, id).await.unwrap();
        }
        Self { queue, group: group.clone(), of, published: HashMap::new(), largest_run: 0 }
    }

    /// Runs the jobs that are due, in the order of their leases.
    async fn run_due(&mut self) {
        let due = tokio::time::timeout(Duration::from_secs(5), self.queue.claim_due(64, Duration::from_secs(4))).await;
        let leases = due.expect("a job is due").unwrap().leases;
        self.largest_run =
            self.largest_run.max(leases.iter().filter_map(|lease| lease.turn).map(|turn| turn.permits).sum());
        for lease in leases {
            let published = self.published.entry(lease.destination_id).or_default();
            let (terms, left) = self.of.get_mut(&lease.destination_id).unwrap();
            let publication = run(self.queue, lease, terms, &self.group, left);
            *published += publication.deliveries.len() as u32;
            let published = self.queue.publish(vec![publication]).await.unwrap();
            assert!(matches!(published[..], [Published::Done]), "{published:?}");
        }
    }

    /// No member is further than one run from its share.
    fn assert_shared_by_weight(&self) {
        let shares: Vec<_> =
            self.of.iter().map(|(id, (terms, _))| self.published[id] as f64 / f64::from(terms.weight)).collect();
        let apart = shares.iter().fold(0.0, |apart: f64, share| apart.max((share - shares[0]).abs()));
        let published = &self.published;
        assert!(apart <= f64::from(self.largest_run) + 1.0, "{published:?}, at most {} in a run", self.largest_run);
    }

    /// The first `count` permits that the members publish, each with its slot. Their sends end at once.
    async fn send(&mut self, count: usize) -> Vec<(DestinationId, Slot)> {
        let mut sent = Vec::new();
        while sent.len() < count {
            self.run_due().await;
            let published = self.queue.depths().await.unwrap().ready;
            for permit in take(self.queue, published).await {
                let slot = slot_of(self.queue, &permit).await;
                self.queue.settle(&settled(&[permit.id])).await.unwrap();
                self.queue.recorded(&[permit.id]);
                sent.push((permit.id.destination_id, slot));
            }
        }
        sent
    }
}

/// The slot of a permit, when it comes.
async fn slot_of(queue: &RedisQueue, permit: &Permit) -> Slot {
    loop {
        match ask_for_slot(queue, permit.id).await {
            SlotAnswer::Granted(slot, _) => return slot,
            SlotAnswer::Later(at) => {
                tokio::time::sleep(at.since(queue.clock().now()).saturating_sub(Duration::from_millis(30))).await;
            }
            SlotAnswer::NoRoom => tokio::time::sleep(Duration::from_millis(5)).await,
            SlotAnswer::AboveLimit | SlotAnswer::Withdrawn => panic!("the permit gets no slot"),
        }
    }
}

#[tokio::test]
async fn members_take_the_slots_of_their_group_in_turns() {
    let queue = open(shared_config()).await;
    let mut members = Members::new(&queue, &group_of(1, per_second(10), None), &[(1, 1, 9), (2, 1, 9)]).await;
    let sent = members.send(8).await;
    for pair in sent.windows(2) {
        let spacing = pair[1].1.start.since(pair[0].1.start);
        assert!(spacing >= Duration::from_millis(91), "the group's spacing is 101 ms: {spacing:?}");
    }
    members.assert_shared_by_weight();
}

#[tokio::test]
async fn the_slots_of_a_group_are_shared_by_weight() {
    let queue = open(shared_config()).await;
    let mut members = Members::new(&queue, &group_of(1, per_second(200), None), &[(1, 1, 400), (2, 3, 400)]).await;
    members.send(120).await;
    members.assert_shared_by_weight();
}

#[tokio::test]
async fn what_a_member_does_not_use_goes_to_the_others() {
    let queue = open(shared_config()).await;
    let group = group_of(1, per_second(100), None);
    let mut members = Members::new(&queue, &group, &[(1, 100, 2), (2, 1, 40)]).await;
    let sent = members.send(42).await;
    assert_eq!(sent.iter().filter(|(id, _)| *id == destination(2)).count(), 40);
}

#[tokio::test]
async fn a_group_has_one_entry_in_the_schedule_and_leaves_nothing_when_its_members_are_idle() {
    let server = Server::start().await;
    let queue = open(server.config()).await;
    let members: Vec<_> = (1..=6).map(|number| (number, 1, 2)).collect();
    let mut members = Members::new(&queue, &group_of(1, per_second(20), None), &members).await;
    // The first runs find the terms and the cursors.
    while queue.depths().await.unwrap().jobs != 1 {
        members.run_due().await;
        let published = queue.depths().await.unwrap().ready;
        for permit in take(&queue, published).await {
            slot_of(&queue, &permit).await;
            queue.settle(&settled(&[permit.id])).await.unwrap();
        }
    }
    let left: u32 = members.of.values().map(|(_, left)| left).sum();
    members.send(left as usize).await;
    assert_eq!(queue.depths().await.unwrap().jobs, 0);
    let redis::Value::Array(keys) = server.command(&["KEYS", "*"]).await else { panic!("an array") };
    for key in keys {
        let key: String = redis::from_redis_value(key).unwrap();
        assert!(!key.contains(":turns:") && !key.contains(":schedule"), "{key} is left");
        if key.contains("dst_") {
            let ttl: i64 = redis::from_redis_value(server.command(&["PTTL", &key]).await).unwrap();
            assert!((1..=95_000).contains(&ttl), "{key} expires in {ttl} ms: its permits were valid for 30 s");
        }
    }
}

#[tokio::test]
async fn a_destination_without_a_group_has_the_keys_that_it_always_had() {
    let server = Server::start().await;
    let queue = open(server.config()).await;
    let permits = crate::support::permits(&queue, 2).await;
    slot_of(&queue, &permits[0]).await;
    let redis::Value::Array(keys) = server.command(&["KEYS", "*dst_*"]).await else { panic!("an array") };
    let mut kinds: Vec<String> = keys.into_iter().map(|key| redis::from_redis_value::<String>(key).unwrap()).collect();
    kinds.iter_mut().for_each(|key| *key = key.split(':').nth(2).unwrap().to_owned());
    kinds.sort();
    assert_eq!(kinds, ["in_flight", "job", "queued"]);
}

#[tokio::test]
async fn the_sends_in_flight_of_all_members_are_bounded_by_their_group() {
    let queue = open(shared_config()).await;
    let group = group_of(1, RateLimits::UNLIMITED, Some(1));
    let mut members = Members::new(&queue, &group, &[(1, 1, 1), (2, 1, 1)]).await;
    let mut permits = Vec::new();
    while permits.is_empty() {
        members.run_due().await;
        let published = queue.depths().await.unwrap().ready;
        permits.extend(take(&queue, published).await);
    }
    assert_eq!(permits.len(), 1, "no more than the group may have outstanding");
    slot_of(&queue, &permits[0]).await;
    queue.settle(&settled(&[permits[0].id])).await.unwrap();
    let sent = members.send(1).await;
    assert_ne!(sent[0].0, permits[0].id.destination_id);
}

/// A destination without a group that has a permit, and the lease of its next run.
async fn before_a_move(queue: &RedisQueue) -> (Permit, JobLease) {
    let permit = crate::support::permits(queue, 1).await.remove(0);
    wake(queue, permit.id.destination_id).await.unwrap();
    (permit, claim(queue).await)
}

#[tokio::test]
async fn after_its_close_a_shard_grants_nothing_and_publishes_nothing() {
    let queue = open(shared_config()).await;
    let (permit, lease) = before_a_move(&queue).await;
    let left = |version| LeftShard {
        of_keys: false,
        destination_id: destination(1),
        shard: lease.shard,
        version: Timestamp::from_secs(version),
    };
    assert_eq!(Schedule::close(&queue, &[left(5)]).await.unwrap(), [true]);
    assert_eq!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Withdrawn);
    let late = crate::support::publication(&queue, lease.clone(), 1, NextRun::Paced);
    assert!(matches!(queue.publish(vec![late]).await.unwrap()[..], [Published::Stale(_)]));
    assert_eq!(Schedule::close(&queue, &[left(5)]).await.unwrap(), [true], "a repeated close changes nothing");
}

#[tokio::test]
async fn a_close_by_old_terms_is_refused() {
    let queue = open(shared_config()).await;
    let (permit, lease) = before_a_move(&queue).await;
    let version = Timestamp::from_secs(6);
    let edited = Terms { version, ..terms(per_second(10)) };
    queue.edited(&[TermsChange { destination_id: destination(1), terms: edited }]).await.unwrap();
    let left = LeftShard {
        destination_id: destination(1),
        of_keys: false,
        shard: lease.shard,
        version: Timestamp::from_secs(5),
    };
    assert_eq!(Schedule::close(&queue, &[left]).await.unwrap(), [false]);
    assert!(matches!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Granted(..)));
}

#[tokio::test]
async fn a_move_to_another_shard_ends_the_old_permits_and_continues_there() {
    let queue = open(shared_config()).await;
    let (permit, lease) = before_a_move(&queue).await;
    let group = group_near(&queue, destination(1), false, per_second(10));
    let moved = member_of(&group, DEFAULT_WEIGHT, 5);
    queue.edited(&[TermsChange { destination_id: destination(1), terms: moved.clone() }]).await.unwrap();
    assert_eq!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Withdrawn, "the edit binds in the old shard, too");
    let late = crate::support::publication(&queue, lease.clone(), 1, NextRun::Paced);
    let first = claim(&queue).await;
    assert_ne!(first.shard, lease.shard);
    assert!(first.cursors.is_none(), "the new shard knows nothing");
    let left = LeftShard { destination_id: destination(1), of_keys: false, shard: lease.shard, version: moved.version };
    assert_eq!(Schedule::close(&queue, &[left]).await.unwrap(), [true]);
    let mut lease = first;
    let mut backlog = 1;
    loop {
        let published = queue.publish(vec![run(&queue, lease, &moved, &group, &mut backlog)]).await.unwrap();
        assert!(matches!(published[..], [Published::Done]), "{published:?}");
        if backlog == 0 {
            break;
        }
        lease = claim(&queue).await;
    }
    let permit = take(&queue, 1).await.remove(0);
    slot_of(&queue, &permit).await;
    assert!(matches!(queue.publish(vec![late]).await.unwrap()[..], [Published::Stale(_)]), "a run in the old shard");
    queue.settle(&settled(&[permit.id])).await.unwrap();
    assert_eq!(queue.depths().await.unwrap().in_flight, 0);
}

#[tokio::test]
async fn a_flush_in_the_middle_of_a_move_leaves_no_permit_that_gets_a_slot() {
    let server = Server::start().await;
    let queue = open(server.config()).await;
    let (permit, lease) = before_a_move(&queue).await;
    slot_of(&queue, &permit).await;
    server.command(&["FLUSHALL"]).await;
    let version = Timestamp::from_secs(5);
    let left = LeftShard { destination_id: destination(1), of_keys: false, shard: lease.shard, version };
    assert_eq!(Schedule::close(&queue, &[left]).await.unwrap(), [true]);
    assert_eq!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Withdrawn);
    let late = crate::support::publication(&queue, lease, 1, NextRun::Paced);
    assert!(matches!(queue.publish(vec![late]).await.unwrap()[..], [Published::Stale(_)]));
}

#[tokio::test]
async fn a_group_that_was_lost_is_recovered_by_a_run_before_any_slot() {
    let server = Server::start().await;
    let queue = open(server.config()).await;
    let group = group_of(1, per_second(10), None);
    let mut members = Members::new(&queue, &group, &[(1, 1, 4)]).await;
    members.send(1).await;
    members.run_due().await;
    let permits = take(&queue, queue.depths().await.unwrap().ready).await;
    // The group alone is lost, as by an eviction: the jobs of its members stay.
    let of_group = DestinationId::from_bytes(*group.id.as_bytes());
    let shard = queue.shard_of(destination(1), Some(group.id));
    server.command(&["DEL", &format!("{{weir:{shard}}}:job:{of_group}")]).await;
    for permit in &permits {
        assert_eq!(ask_for_slot(&queue, permit.id).await, SlotAnswer::Withdrawn, "its cursors are unknown");
    }
    wake(&queue, destination(1)).await.unwrap();
    let before = members.of[&destination(1)].1 as usize;
    assert_eq!(members.send(before).await.len(), before);
}

#[tokio::test]
async fn a_member_of_an_unknown_group_gets_no_slot() {
    let queue = open(shared_config()).await;
    let permit = crate::support::permits(&queue, 1).await.remove(0);
    // The same shard, so the job stays.
    let group = group_near(&queue, destination(1), true, per_second(10));
    let moved = member_of(&group, DEFAULT_WEIGHT, 5);
    queue.edited(&[TermsChange { destination_id: destination(1), terms: moved }]).await.unwrap();
    assert_eq!(queue.take_slot(SlotRequest::new(permit.id)).await.unwrap(), SlotAnswer::Withdrawn);
}

#[tokio::test]
async fn a_slot_that_was_reserved_before_a_loss_is_not_kept() {
    let server = Server::start().await;
    let queue = open(server.config()).await;
    let group = group_of(1, per_second(10), None);
    let read = GroupRun { terms: group.clone(), recovered: Some(Limiter::new(&group.rate_limits)) };
    let wanted = [WantedSlot { cost: 1, width: Duration::from_millis(100) }];
    let start = queue.reserve_slots(&read, &wanted).await.unwrap().granted[0].start;
    assert!(queue.has_kept(group.id, start).await.unwrap());
    server.command(&["FLUSHALL"]).await;
    assert!(!queue.has_kept(group.id, start).await.unwrap());
    // Others have recovered the group meanwhile.
    queue.reserve_slots(&read, &wanted).await.unwrap();
    assert!(!queue.has_kept(group.id, start).await.unwrap());
}
