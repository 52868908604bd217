//! Destinations with limit keys in a limit group: a slot comes from three budgets, and turns are divided twice.

use std::time::Duration;

use weir_core::{DestinationId, Period, RateLimits, limit_group::KeysOf, limit_key::budget_of_keys};

use crate::{
    groups::{MANY, World, jain, per_second, used},
    in_windows,
    limit_keys::keys_of,
    world::{START, limits},
};

fn destination(number: usize) -> DestinationId {
    DestinationId::from_bytes([0x50 + number as u8; 16])
}

impl World {
    /// The first groups are those of limits, of which the destinations with limit keys are members.
    fn with_keyed(groups: &[RateLimits], keyed: &[(RateLimits, u16)]) -> Self {
        let limits: Vec<_> = groups.iter().cloned().chain(keyed.iter().map(|(limits, _)| limits.clone())).collect();
        let mut world = Self::new(&limits);
        for (number, (_, weight)) in keyed.iter().enumerate() {
            let index = groups.len() + number;
            let member_of = Some(world.groups[0].0.id);
            let group = &mut world.groups[index].0;
            group.id = budget_of_keys(destination(number));
            group.keys_of = Some(KeysOf { member_of, weight: *weight, ..keys_of(destination(number)) });
        }
        world
    }

    /// A limit key of the destination that is this group.
    fn add_key(&mut self, group: usize, limits: RateLimits, weight: u16, backlog: u64) {
        self.add(limits, weight, backlog);
        let flow = self.flows.len() - 1;
        self.flows[flow].group = Some(group);
    }

    /// The destination joins another limit group, or none.
    fn move_keyed(&mut self, keyed: usize, to: Option<usize>) {
        let member_of = to.map(|to| self.groups[to].0.id);
        let group = &mut self.groups[keyed].0;
        group.keys_of = group.keys_of.map(|of| KeysOf { member_of, ..of });
        let limits = group.rate_limits.clone();
        self.edit_group(keyed, limits);
    }
}

/// Two destinations with many and with few keys, and a member without keys, share by destination. Inside each destination its
/// keys share.
#[test]
fn a_limit_group_is_divided_among_destinations_and_each_share_among_its_keys() {
    for rate in [30, 300] {
        let mut world =
            World::with_keyed(&[per_second(rate)], &[(RateLimits::UNLIMITED, 1), (RateLimits::UNLIMITED, 1)]);
        for _ in 0..20 {
            world.add_key(1, RateLimits::UNLIMITED, 1, MANY);
        }
        for _ in 0..2 {
            world.add_key(2, RateLimits::UNLIMITED, 1, MANY);
        }
        world.add(RateLimits::UNLIMITED, 1, MANY);
        let sent = world.sent_in_ten_seconds();
        let of: Vec<usize> = [&sent[..20], &sent[20..22], &sent[22..]].map(|part| part.iter().sum()).to_vec();
        assert!(jain(&of) >= 0.99, "under {rate}/s: {of:?}");
        assert!(jain(&sent[..20]) >= 0.98, "under {rate}/s: {:?}", &sent[..20]);
        assert!(jain(&sent[20..22]) >= 0.98, "under {rate}/s: {:?}", &sent[20..22]);
        assert!(used(&of, rate) >= 0.985, "under {rate}/s: {}", used(&of, rate));
    }
}

#[test]
fn destinations_with_keys_share_by_their_weights() {
    let unlimited = || RateLimits::UNLIMITED;
    let mut world = World::with_keyed(&[per_second(100)], &[(unlimited(), 1), (unlimited(), 2), (unlimited(), 5)]);
    for keyed in 1..=3 {
        for weight in [1, 3] {
            world.add_key(keyed, RateLimits::UNLIMITED, weight, MANY);
        }
    }
    let sent = world.sent_in_ten_seconds();
    let total = sent.iter().sum::<usize>() as f64;
    for (pair, weight) in sent.chunks(2).zip([1.0, 2.0, 5.0]) {
        let share = pair.iter().sum::<usize>() as f64 / total / (weight / 8.0);
        assert!((0.9..=1.1).contains(&share), "weight {weight}: {share} of its share, {sent:?}");
        let of_keys = pair[1] as f64 / pair[0] as f64;
        assert!((2.5..=3.5).contains(&of_keys), "{sent:?}");
    }
    assert!(used(&sent, 100) >= 0.985, "{}", used(&sent, 100));
}

/// Each of the three budgets binds somewhere, and what one member cannot use goes to the others.
#[test]
fn each_of_three_budgets_is_kept_and_the_rest_goes_to_the_others() {
    let mut world = World::with_keyed(&[per_second(100)], &[(per_second(20), 1), (RateLimits::UNLIMITED, 1)]);
    // The destination's own limit binds: its keys have 10/s each.
    for _ in 0..2 {
        world.add_key(1, RateLimits::UNLIMITED, 1, MANY);
    }
    // The limits of the keys bind: 5/s and 60/min.
    world.add_key(2, per_second(5), 1, MANY);
    world.add_key(2, limits(&[(60, Period::MINUTE)]), 1, MANY);
    // The group binds: what is left.
    world.add(RateLimits::UNLIMITED, 1, MANY);
    let sent = world.sent_in_ten_seconds();
    assert!((180..=201).contains(&(sent[0] + sent[1])) && jain(&sent[..2]) >= 0.99, "{sent:?}");
    assert!((40..=51).contains(&sent[2]) && (8..=11).contains(&sent[3]), "{sent:?}");
    assert!(used(&sent, 100) >= 0.98, "{} by {sent:?}", used(&sent, 100));
}

#[test]
fn ten_thousand_waiting_keys_cost_no_more_runs_than_the_limit_group_has_slots() {
    let mut world = World::with_keyed(&[per_second(10)], &[(RateLimits::UNLIMITED, 1), (per_second(100), 1)]);
    for number in 0..10_000 {
        world.add_key(1 + number % 2, RateLimits::UNLIMITED, 1, MANY);
    }
    world.run_for(Duration::from_secs(2));
    let (before, since) = (world.runs, world.now);
    world.run_for(Duration::from_secs(10));
    let runs = world.runs - before;
    assert!(runs <= 130, "{runs} runs for 100 slots");
    assert!(world.sent(since).iter().sum::<usize>() >= 97);
}

#[test]
fn a_key_of_one_destination_beside_the_flood_of_another_waits_for_its_turn_only() {
    let mut world = World::with_keyed(&[per_second(100)], &[(RateLimits::UNLIMITED, 1), (RateLimits::UNLIMITED, 1)]);
    world.add_key(1, RateLimits::UNLIMITED, 1, MANY);
    world.run_for(Duration::from_secs(5));
    let since = world.now;
    for _ in 0..100 {
        world.add_key(2, RateLimits::UNLIMITED, 1, 1);
    }
    // Half of the slots are theirs.
    world.run_for(Duration::from_millis(2_300));
    let sent = world.sent(since);
    assert!(sent[1..].iter().all(|count| *count == 1), "{sent:?}");
    world.assert_caps();
}

#[test]
fn the_max_in_flight_of_the_limit_group_bounds_keys_too() {
    let mut world =
        World::with_keyed(&[RateLimits::UNLIMITED], &[(RateLimits::UNLIMITED, 1), (RateLimits::UNLIMITED, 1)]);
    world.groups[0].0.max_in_flight = Some(8);
    world.answer = Duration::from_secs(1);
    for number in 0..8 {
        world.add_key(1 + number % 2, RateLimits::UNLIMITED, 1, MANY);
    }
    let sent = world.sent_in_ten_seconds();
    assert!((72..=80).contains(&sent.iter().sum::<usize>()), "{sent:?}");
    assert!(jain(&sent) >= 0.95, "{sent:?}");
    assert!(world.runs < 600, "{} runs", world.runs);
}

/// Edits of groups, destinations and keys, moves of destinations with all their keys, and crashes, at random times.
#[test]
fn every_budget_holds_through_edits_moves_and_crashes() {
    let shaped = |even: bool, rate| if even { per_second(rate) } else { in_windows(&[(rate, Period::SECOND)]) };
    for round in 0..6 {
        let groups = [per_second(20), limits(&[(10, Period::SECOND), (300, Period::MINUTE)])];
        let mut world = World::with_keyed(&groups, &[(per_second(12), 1), (in_windows(&[(12, Period::SECOND)]), 2)]);
        world.random ^= round << 20;
        for number in 0..6 {
            world.add_key(2 + number % 2, shaped(number % 3 == 0, 6), 1 + number as u16, MANY);
        }
        world.add(per_second(8), 1, MANY);
        for _ in 0..60 {
            let pause = Duration::from_millis(world.below(1_500));
            world.run_for(pause);
            let (kind, rate) = (world.below(6), 1 + world.below(40) as u32);
            let keyed = 2 + world.below(2) as usize;
            match kind {
                0 => world.edit_group(0, per_second(rate)),
                1 => {
                    let limits = shaped(keyed == 2, rate);
                    world.edit_group(keyed, limits);
                }
                2 | 3 => {
                    let to = [None, Some(0), Some(1)][world.below(3) as usize];
                    world.move_keyed(keyed, to);
                }
                4 => {
                    world.flows[6].group = [None, Some(0), Some(1)][world.below(3) as usize];
                    world.announce(6);
                }
                _ => world.crash(),
            }
        }
        world.assert_caps();
        assert!(world.sent(START).iter().sum::<usize>() > 300);
    }
}
