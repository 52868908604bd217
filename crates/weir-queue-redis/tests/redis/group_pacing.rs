//! The windows of two groups and their members, with two schedulers and two workers on one Redis, while members move
//! between the groups' shards and the server loses its data.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};
use weir_core::{
    Clock as _, DestinationId, LimitGroup, LimitGroupId, Limiter, RateLimits, Timestamp,
    breaker::Breaker,
    plan::{self, Allowance, NextRun, Observed},
};
use weir_queue::{
    GroupRun, HandedBack, JobLease, LAST_OLD_START, LeftShard, Permit, Permits as _, Publication, Schedule, SlotAnswer,
    SlotRequest, Terms, TermsChange,
};
use weir_queue_redis::{RedisConfig, RedisQueue};

use crate::support::{self, Server, delivery, destination, per_second, terms, wake};

const MEMBERS: u64 = 3;
/// Of each member, and of each group.
const OWN_RATE: u32 = 25;
const GROUP_RATES: [u32; 2] = [20, 30];
/// A worker asks for a slot this long before the slot is expected.
const ASK_AHEAD: Duration = Duration::from_millis(15);
/// The tolerance for the recorded times of sends.
const CLOCK_ERROR: Duration = Duration::from_millis(1);

/// A start between two instants, by the receiver's clock.
struct Send {
    to: DestinationId,
    /// The group whose shard has granted its slot.
    group: usize,
    between: (Instant, Instant),
}

struct Member {
    group: usize,
    version: i64,
    left: Vec<usize>,
}

/// What a store knows.
struct Store {
    groups: [Arc<LimitGroup>; 2],
    members: Mutex<Vec<Member>>,
    sends: Mutex<Vec<Send>>,
}

impl Store {
    fn new(queue: &RedisQueue) -> Self {
        let group = |number: u8, rate: u32| {
            let (created_at, updated_at) = (Timestamp::MIN, Timestamp::from_secs(1));
            let (id, name) = (LimitGroupId::from_bytes([number; 16]), String::new());
            let rate_limits = per_second(rate);
            Arc::new(LimitGroup {
                keys_of: None,
                id,
                tenant: None,
                name,
                rate_limits,
                max_in_flight: None,
                temporary: Default::default(),
                created_at,
                updated_at,
            })
        };
        let shard = |group: &LimitGroup| queue.shard_of(destination(1), Some(group.id));
        let first = group(1, GROUP_RATES[0]);
        let second = (2..).map(|number| group(number, GROUP_RATES[1])).find(|other| shard(other) != shard(&first));
        let members = (0..MEMBERS).map(|_| Member { group: 0, version: 1, left: Vec::new() }).collect();
        let groups = [first, second.unwrap()];
        Self { groups, members: Mutex::new(members), sends: Mutex::default() }
    }

    /// The terms of a member, and the indexes of its group and of those that it has left.
    fn read(&self, id: DestinationId) -> (Terms, usize, Vec<usize>) {
        let members = self.members.lock().unwrap();
        let number = (1..=MEMBERS).position(|number| destination(number) == id).unwrap();
        let Member { group, version, left } = &members[number];
        let (version, limits) = (Timestamp::from_secs(*version), per_second(OWN_RATE));
        let group_id = Some(self.groups[*group].id);
        (Terms { group: group_id, version, ..terms(limits) }, *group, left.clone())
    }

    /// Moves a member to the other group.
    fn move_member(&self, number: u64) -> TermsChange {
        let id = destination(number);
        {
            let member = &mut self.members.lock().unwrap()[number as usize - 1];
            member.left.push(member.group);
            (member.group, member.version) = (1 - member.group, member.version + 1);
        }
        TermsChange { destination_id: id, terms: self.read(id).0 }
    }

    fn homes_left(&self, id: DestinationId, version: Timestamp) {
        let number = (1..=MEMBERS).position(|number| destination(number) == id).unwrap();
        let member = &mut self.members.lock().unwrap()[number];
        if Timestamp::from_secs(member.version) == version {
            member.left.clear();
        }
    }

    /// Lost cursors continue as in a store that has recorded none of the sends.
    fn recovered(&self, limits: &RateLimits, known_since: Timestamp) -> Limiter {
        let has_sent = !self.sends.lock().unwrap().is_empty();
        Limiter::recovered(limits, has_sent.then(|| known_since + LAST_OLD_START))
    }
}

/// A scheduler with an endless backlog of each member.
async fn schedule(queue: Arc<RedisQueue>, store: Arc<Store>) {
    loop {
        let Ok(due) = queue.claim_due(16, Duration::from_secs(4)).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        for lease in due.leases {
            let id = lease.destination_id;
            let publication = run(&queue, &store, lease).await;
            let version = publication.terms.as_ref().map(|terms| terms.version);
            let published = queue.publish(vec![publication]).await;
            if let (Some(version), Ok([weir_queue::Published::Done])) = (version, published.as_deref()) {
                store.homes_left(id, version);
            }
        }
    }
}

/// A run as the scheduler makes it: it closes left shards first, and recovers only then.
async fn run(queue: &RedisQueue, store: &Store, mut lease: JobLease) -> Publication {
    let nothing = |lease: JobLease, next: NextRun| Publication {
        lease,
        terms: None,
        recovered: None,
        groups: Vec::new(),
        pace: None,
        deliveries: Vec::new(),
        next,
    };
    let id = lease.destination_id;
    let (terms, group, left) = store.read(id);
    queue.learn_group(id, terms.group);
    if queue.shard_of(id, terms.group) != lease.shard {
        let _ = wake(queue, id).await;
        return nothing(lease, NextRun::Stop);
    }
    let shards = left.iter().map(|&group| queue.shard_of(id, Some(store.groups[group].id)));
    let left = shards.filter(|shard| *shard != lease.shard);
    let left: Vec<_> =
        left.map(|shard| LeftShard { destination_id: id, of_keys: false, shard, version: terms.version }).collect();
    if !left.is_empty() {
        let closed = Schedule::close(queue, &left).await;
        if !closed.is_ok_and(|closed| closed.iter().all(|closed| *closed)) {
            return nothing(lease, NextRun::At(queue.clock().now() + Duration::from_millis(50)));
        }
        lease.known_since = lease.known_since.max(queue.clock().now());
    }
    let recovered = lease.cursors.is_none().then(|| store.recovered(&terms.limits, lease.known_since));
    let turn = lease.turn.filter(|turn| Some(turn.group) == terms.group);
    let shared = turn.filter(|turn| !turn.is_known);
    let shared = shared.map(|turn| store.recovered(&store.groups[group].rate_limits, turn.known_since));
    let mut cursors = lease.cursors.clone().or(recovered.clone()).unwrap();
    cursors.reconfigure(&terms.limits);
    let observed = Observed {
        now: queue.clock().now(),
        cursors: &cursors,
        pace: None,
        preparation: lease.preparation,
        run_time: lease.run_time,
        ahead: lease.ahead,
        queued: lease.queued,
        in_flight: lease.in_flight,
        max_in_flight: 64,
        max_queued: terms.limits.max_queued(),
        suspended: false,
        breaker: &Breaker::default(),
        lagging: false,
    };
    let known = turn.filter(|turn| turn.is_known);
    let allowance = known.map_or(Allowance::NOT_YET, |turn| plan::allowance(&observed).within_turn(turn.permits));
    // The group by whose shard the slots are granted.
    let of_group = |_| {
        let mut delivery = delivery(queue, id, 1, Duration::from_secs(30));
        delivery.attempts = group as u32;
        delivery
    };
    let deliveries = (0..allowance.allow).map(of_group).collect();
    let next = plan::next_run(allowance, false, None);
    let groups = vec![GroupRun { terms: store.groups[group].clone(), recovered: shared }];
    Publication { lease, terms: Some(terms), recovered, groups, pace: None, deliveries, next }
}

/// A worker with open connections to destinations that answer at once.
async fn work(queue: Arc<RedisQueue>, store: Arc<Store>) {
    let mut attempts = JoinSet::new();
    loop {
        for permit in queue.take(64).await.unwrap() {
            attempts.spawn(attempt(queue.clone(), permit, store.clone()));
        }
    }
}

async fn attempt(queue: Arc<RedisQueue>, permit: Permit, store: Arc<Store>) {
    let clock = queue.clock();
    let mut asks_at = permit.expected_at.unwrap_or(Timestamp::MIN) - ASK_AHEAD;
    loop {
        tokio::time::sleep(asks_at.since(clock.now())).await;
        let slot = match queue.take_slot(SlotRequest::new(permit.id)).await {
            Ok(SlotAnswer::Granted(slot, _)) => slot,
            Ok(SlotAnswer::Later(start)) => {
                asks_at = start - ASK_AHEAD;
                continue;
            }
            Ok(SlotAnswer::NoRoom | SlotAnswer::AboveLimit | SlotAnswer::Withdrawn) | Err(_) => {
                let handed_back = HandedBack { id: permit.id, crowded: false };
                let _ = queue.hand_back(&[handed_back]).await;
                return;
            }
        };
        tokio::time::sleep(slot.start.since(clock.now())).await;
        let (before, now, after) = (Instant::now(), clock.now(), Instant::now());
        if slot.contains(now) {
            let (to, group) = (permit.id.destination_id, permit.delivery.attempts as usize);
            store.sends.lock().unwrap().push(Send { to, group, between: (before, after) });
            let _ = queue.settle(&[permit.id.into()]).await;
            queue.recorded(&[permit.id]);
            return;
        }
    }
}

fn assert_bounded(what: &str, rate: u32, sends: impl Iterator<Item = (Instant, Instant)>) {
    let mut sends: Vec<_> = sends.collect();
    sends.sort();
    for (first, last) in sends.iter().zip(sends.iter().skip(rate as usize)) {
        let span = last.1.duration_since(first.0);
        assert!(span + CLOCK_ERROR >= Duration::from_secs(1), "{what}: {} sends within {span:?}", rate + 1);
    }
}

/// Two processes, while `disturb` is called.
async fn play(config: RedisConfig, disturb: impl AsyncFnOnce(&RedisQueue, &Store)) -> Arc<Store> {
    let mut processes = JoinSet::new();
    let queues = [support::open(config.clone()).await, support::open(config).await].map(Arc::new);
    let store = Arc::new(Store::new(&queues[0]));
    for queue in &queues {
        processes.spawn(schedule(queue.clone(), store.clone()));
        processes.spawn(work(queue.clone(), store.clone()));
    }
    for number in 1..=MEMBERS {
        wake(&queues[0], destination(number)).await.unwrap();
    }
    disturb(&queues[0], &store).await;
    processes.shutdown().await;
    store
}

/// Waits for so many sends. A busy machine takes longer.
async fn until_sent(store: &Store, count: usize) {
    let sent = async {
        while store.sends.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(100), sent).await.expect("members send");
}

fn judge(store: &Store) {
    let sends = store.sends.lock().unwrap();
    for number in 1..=MEMBERS {
        let own = sends.iter().filter(|send| send.to == destination(number));
        assert_bounded("a member", OWN_RATE, own.map(|send| send.between));
    }
    for (group, rate) in GROUP_RATES.into_iter().enumerate() {
        let shared = sends.iter().filter(|send| send.group == group);
        assert_bounded("a group", rate, shared.map(|send| send.between));
    }
}

#[tokio::test]
async fn no_window_of_a_group_or_a_member_is_exceeded_while_members_move_and_redis_is_flushed() {
    let server = Server::start().await;
    let store = play(server.config(), async |queue, store| {
        for round in 0..12u64 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            match round {
                // Twice at once: the run of the first move may be under way.
                2 | 7 => {
                    let edits = [store.move_member(1), store.move_member(1)];
                    let _ = queue.edited(&edits).await;
                }
                4 => {
                    let _ = queue.edited(&[store.move_member(2)]).await;
                    server.command(&["FLUSHALL"]).await;
                }
                // An edit whose announcement is lost.
                5 => drop(store.move_member(3)),
                _ => drop(queue.edited(&[store.move_member(1 + round % MEMBERS)]).await),
            }
            // The sweep.
            for number in 1..=MEMBERS {
                let _ = wake(queue, destination(number)).await;
            }
        }
        until_sent(store, 60).await;
    })
    .await;
    judge(&store);
}

#[tokio::test]
async fn members_use_the_slots_of_their_group_on_a_cluster() {
    let store = play(support::cluster_config(), async |_, store| until_sent(store, 60).await).await;
    judge(&store);
}
