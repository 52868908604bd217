//! Limit keys of one destination: caps of every budget through edits and crashes, one key's flood beside others, the number
//! of runs, and the memory of idle keys.

use std::{sync::Arc, time::Duration};

use weir_core::{
    DestinationId, LimitGroup, LimitKey, Limiter, Period, RateLimits, Timestamp, limit_group::KeysOf,
    limit_key::budget_of_keys, plan::NextRun,
};
use weir_queue::{
    GroupRun, Hold, Publication, Published, Terms, Wake,
    conformance::settings,
    memory::{Depths, JobTable},
};

use crate::{
    groups::{MANY, SETTLED, World, per_second, used},
    in_windows,
    world::{LEASE, START, limits},
};

const DESTINATION: DestinationId = DestinationId::from_bytes([1; 16]);

pub(crate) fn keys_of(destination_id: DestinationId) -> KeysOf {
    let [held_until, released_at] = [None; 2];
    KeysOf { destination_id, suspended: false, held_until, released_at, member_of: None, weight: 1 }
}

impl World {
    /// The members of the first group are the keys of a destination.
    fn keyed(shared: RateLimits) -> Self {
        let mut world = Self::new(&[shared]);
        let group = &mut world.groups[0].0;
        group.id = budget_of_keys(DESTINATION);
        group.keys_of = Some(keys_of(DESTINATION));
        world
    }

    /// An edit of the destination, of which each key learns by its next run.
    fn edit_keyed(&mut self, shared: RateLimits, of_each: impl Fn(usize) -> RateLimits) {
        for (number, flow) in self.flows.iter_mut().enumerate() {
            flow.limits = of_each(number);
            flow.judged.edit(self.now, flow.limits.clone());
        }
        self.edit_group(0, shared);
    }

    fn pause(&mut self, suspended: bool) {
        let group = &mut self.groups[0].0;
        group.keys_of = group.keys_of.map(|of| KeysOf { suspended, ..of });
        let shared = group.rate_limits.clone();
        self.edit_group(0, shared);
    }

    fn hold_for(&mut self, time: Duration) -> Timestamp {
        let destination_id = DestinationId::from_bytes(*budget_of_keys(DESTINATION).as_bytes());
        let until = self.now + time;
        self.table.hold(self.now, Hold { destination_id, until, sent_at: self.now });
        until
    }

    fn total(&self, since: Timestamp) -> usize {
        self.sent(since).iter().sum()
    }
}

#[test]
fn a_thousand_keys_with_one_event_each_are_sent_beside_a_flood_of_one_in_their_fair_time() {
    let mut world = World::keyed(per_second(100));
    world.add(RateLimits::UNLIMITED, 1, MANY);
    world.run_for(Duration::from_secs(5));
    let since = world.now;
    for _ in 0..1_000 {
        world.add(RateLimits::UNLIMITED, 1, 1);
    }
    // The thousand and one of the flood take ten seconds.
    world.run_for(Duration::from_secs(13));
    let sent = world.sent(since);
    assert!(sent[1..].iter().all(|count| *count == 1), "{} of 1,000", sent[1..].iter().sum::<usize>());
    assert!(sent[0] >= 250, "the others leave the rest to the flood: {}", sent[0]);
    world.assert_caps();
}

#[test]
fn ten_thousand_waiting_keys_cost_no_more_runs_than_their_destination_has_slots_also_after_an_edit() {
    let mut world = World::keyed(per_second(10));
    for _ in 0..10_000 {
        world.add(RateLimits::UNLIMITED, 1, MANY);
    }
    world.run_for(Duration::from_secs(2));
    for rate in [10, 9, 11] {
        world.edit_keyed(per_second(rate), |_| RateLimits::UNLIMITED);
        let (before, since) = (world.runs, world.now);
        world.run_for(Duration::from_secs(10));
        let runs = world.runs - before;
        assert!(runs <= 130, "{runs} runs for {} slots", rate * 10);
        assert!(world.total(since) >= rate as usize * 10 - 3, "{} under {rate}/s", world.total(since));
    }
}

#[test]
fn a_raised_limit_of_each_key_binds_at_once_for_keys_that_wait_for_slots_of_their_own() {
    let mut world = World::keyed(per_second(100));
    for _ in 0..10 {
        world.add(limits(&[(1, Period::HOUR)]), 1, MANY);
    }
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.total(START), 10);
    world.edit_keyed(per_second(100), |_| per_second(5));
    let since = world.now;
    world.run_for(Duration::from_secs(10));
    assert!(world.total(since) >= 480, "{:?}", world.sent(since));
    world.assert_caps();
}

#[test]
fn a_paused_destination_sends_nothing_and_its_keys_have_one_run_each() {
    let mut world = World::keyed(per_second(10));
    for _ in 0..2_000 {
        world.add(RateLimits::UNLIMITED, 1, MANY);
    }
    world.run_for(Duration::from_secs(5));
    world.pause(true);
    let (before, since) = (world.runs, world.now);
    world.run_for(Duration::from_secs(600));
    let runs = world.runs - before;
    assert!((1_900..=2_100).contains(&runs), "{runs} runs");
    assert_eq!(world.total(since + SETTLED), 0);
    world.pause(false);
    let since = world.now;
    world.run_for(Duration::from_secs(10));
    assert!(used(&world.sent(since), 10) >= 0.95, "{}", world.total(since));
    world.assert_caps();
}

/// Their runs end although no slot opens.
#[test]
fn the_keys_of_a_destination_that_is_paused_during_a_hold_have_one_run_each() {
    let mut world = World::keyed(per_second(10));
    for _ in 0..500 {
        world.add(RateLimits::UNLIMITED, 1, MANY);
    }
    world.run_for(Duration::from_secs(2));
    world.hold_for(Duration::from_secs(3_600));
    world.run_for(Duration::from_secs(2));
    world.pause(true);
    let before = world.runs;
    world.run_for(Duration::from_secs(5));
    assert!((450..=600).contains(&(world.runs - before)), "{} runs", world.runs - before);
    assert_eq!(world.table.depths().jobs, 0);
}

/// A run that finds nothing leaves its room to the next.
#[test]
fn keys_without_a_backlog_do_not_delay_the_next_where_one_send_may_be_in_flight() {
    let mut world = World::keyed(RateLimits::UNLIMITED);
    world.groups[0].0.max_in_flight = Some(1);
    for backlog in [0, 0, 0, 0, 1] {
        world.add(RateLimits::UNLIMITED, 1, backlog);
    }
    world.run_for(Duration::from_millis(500));
    assert_eq!(world.sent(START), [0, 0, 0, 0, 1]);
}

#[test]
fn a_held_destination_sends_nothing_and_its_keys_do_not_run() {
    let mut world = World::keyed(per_second(50));
    for _ in 0..200 {
        world.add(RateLimits::UNLIMITED, 1, MANY);
    }
    world.run_for(Duration::from_secs(2));
    let until = world.hold_for(Duration::from_secs(300));
    let (before, since) = (world.runs, world.now);
    world.run_for(Duration::from_secs(290));
    assert_eq!(world.total(since + SETTLED), 0);
    assert!(world.runs - before <= 200, "{} runs", world.runs - before);
    world.run_for(Duration::from_secs(30));
    assert!(world.total(until) >= 900, "{}", world.total(until));
    world.assert_caps();
}

#[test]
fn keys_without_limits_have_equal_shares_of_what_may_be_in_flight() {
    let mut world = World::keyed(RateLimits::UNLIMITED);
    world.groups[0].0.max_in_flight = Some(8);
    world.answer = Duration::from_millis(100);
    world.add(RateLimits::UNLIMITED, 1, MANY);
    world.run_for(Duration::from_secs(2));
    for _ in 0..4 {
        world.add(RateLimits::UNLIMITED, 1, MANY);
    }
    world.run_for(Duration::from_secs(1));
    let (since, before) = (world.now, world.runs);
    world.run_for(Duration::from_secs(10));
    let sent = world.sent(since);
    // Eight at a time, ten times a second.
    assert!((760..=800).contains(&world.total(since)), "{sent:?}");
    assert!(sent.iter().all(|count| (140..=180).contains(count)), "{sent:?}");
    assert!(world.runs - before <= 1_000, "{} runs", world.runs - before);
    // The breaker opens, and closes.
    for (most, expected) in [(1, 90..=101), (8, 760..=810)] {
        world.groups[0].0.max_in_flight = Some(most);
        world.edit_keyed(RateLimits::UNLIMITED, |_| RateLimits::UNLIMITED);
        world.run_for(Duration::from_millis(200));
        let since = world.now;
        world.run_for(Duration::from_secs(10));
        assert!(expected.contains(&world.total(since)), "{} with {most} in flight", world.total(since));
    }
}

/// Edits of the destination, crashes, holds and pauses at random times. Each budget keeps its shape.
#[test]
fn every_budget_of_limit_keys_holds_through_edits_pauses_and_crashes() {
    for round in 0..6 {
        let mut world = World::keyed(per_second(20));
        world.random ^= round << 20;
        let shape = |number: usize, rate| match number % 3 {
            0 => per_second(rate),
            1 => in_windows(&[(rate, Period::SECOND)]),
            _ => limits(&[(rate, Period::SECOND), (20 * rate, Period::MINUTE)]),
        };
        for number in 0..9 {
            world.add(shape(number, 8), 1 + number as u16 % 3, MANY);
        }
        for _ in 0..60 {
            let pause = Duration::from_millis(world.below(1_500));
            world.run_for(pause);
            let (kind, rate, shared) = (world.below(4), 1 + world.below(12) as u32, 1 + world.below(40) as u32);
            match kind {
                0 | 1 => world.edit_keyed(per_second(shared), |number| shape(number, rate)),
                2 => {
                    world.pause(true);
                    world.run_for(Duration::from_millis(200));
                    world.pause(false);
                }
                _ => world.crash(),
            }
        }
        world.assert_caps();
        assert!(world.total(START) > 300, "{}", world.total(START));
    }
}

#[test]
fn a_hundred_thousand_idle_keys_leave_nothing_after_their_windows() {
    let mut table = JobTable::new(START);
    let shared = settings(&RateLimits::UNLIMITED, 64);
    let group = LimitGroup { keys_of: None, ..shared.as_group() };
    let group = Arc::new(LimitGroup { keys_of: shared.as_group().keys_of, ..group });
    let minutely = limits(&[(1, Period::MINUTE)]);
    let recovered = Limiter::recovered(&minutely, Some(START));
    let flows: Vec<_> = (0..100_000).map(|key| LimitKey::new(&key.to_string()).flow_id(DESTINATION)).collect();
    for &destination_id in &flows {
        table.wake(Wake { destination_id, due: START });
    }
    let mut runs = 0;
    while table.next_due().is_some_and(|due| due <= START) {
        for lease in table.claim_due(START, 256, LEASE) {
            runs += 1;
            let is_lost = lease.turn.is_some_and(|turn| !turn.is_known);
            let run =
                GroupRun { terms: group.clone(), recovered: is_lost.then(|| Limiter::new(&RateLimits::UNLIMITED)) };
            let terms = Terms { group: Some(group.id), ..Terms::of(&settings(&minutely, 64), START) };
            let (terms, recovered) = (Some(terms), lease.cursors.is_none().then(|| recovered.clone()));
            let (deliveries, next) = (Vec::new(), NextRun::Stop);
            let publication = Publication { lease, terms, recovered, groups: vec![run], pace: None, deliveries, next };
            assert!(matches!(table.publish(START, publication), Published::Done));
        }
    }
    assert_eq!((runs, table.known_jobs()), (100_000, 100_000), "all are in their windows");
    let other = DestinationId::from_bytes([2; 16]);
    let later = START + Duration::from_secs(120);
    table.wake(Wake { destination_id: other, due: later });
    assert_eq!(table.claim_due(later, 1, LEASE).len(), 1);
    assert_eq!(table.known_jobs(), 1, "only the job that has a lease");
    assert_eq!(table.depths(), Depths { jobs: 1, ..Depths::default() });
}
