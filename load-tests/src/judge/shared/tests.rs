//! Recordings that break the promises of limit groups: the judge must name each breach.

use std::time::Duration;

use weir_core::{Limiter, RateLimits, Timestamp, audit::Evidence, budget, limiter::GRANT_AHEAD};

use super::super::{judge, tests};
use crate::{
    recording::{Call, CallOutcome, Destination, Home, LimitChange, LimitGroup, Recording},
    scenario::ExpectShared,
};

const GROUP: &str = "limit group account: ";

fn per_second(limit: u32) -> RateLimits {
    tests::limits(limit)
}

/// Points in windows of a second.
fn points(limit: u32) -> RateLimits {
    RateLimits::new(vec![per_second(limit).as_slice()[0].in_costs().unwrap()]).unwrap()
}

fn changed_to(limits: RateLimits) -> LimitChange {
    LimitChange { sent: tests::at(0), answered: tests::at(0), limits }
}

fn home(ms: i64, limit_group: Option<usize>) -> Home {
    Home { sent: tests::at(ms), answered: tests::at(ms + 10), limit_group }
}

/// Destinations without limits of their own that share a limit, and an event for each arrival.
fn members(shared: RateLimits, arrivals_ms: &[Vec<i64>]) -> Recording {
    let all: Vec<i64> = arrivals_ms.iter().flatten().copied().collect();
    let mut recording = tests::recording(1_000_000, &all);
    let mut arrivals = recording.arrivals[0].clone().into_iter();
    let audit = recording.destinations[0].audit.clone();
    recording.destinations.clear();
    recording.arrivals.clear();
    for (number, of_member) in (0..).zip(arrivals_ms) {
        let alone = Destination::alone(0, changed_to(RateLimits::UNLIMITED));
        let homes = vec![home(0, Some(0))];
        recording.destinations.push(Destination { homes, audit: audit.clone(), ..alone });
        let mut of_member: Vec<_> = arrivals.by_ref().take(of_member.len()).collect();
        for arrival in &mut of_member {
            arrival.destination = number;
            recording.events[arrival.event as usize].destination = Some(number);
        }
        recording.arrivals.push(of_member);
    }
    recording.limit_groups = vec![account(shared)];
    recording
}

/// With the audit of a Weir that has recorded nothing: only the receiver can find a breach.
fn account(limits: RateLimits) -> LimitGroup {
    let evidence = Evidence { sends: &[], limit_changes: &[(Timestamp::MIN, limits.clone())], latencies: &[] };
    let audit = Some(weir_core::audit::audit(&evidence));
    LimitGroup { name: "account".to_owned(), expect: ExpectShared::default(), limits: vec![changed_to(limits)], audit }
}

fn every(ms: i64, from: i64, count: i64) -> Vec<i64> {
    (0..count).map(|n| 20 + from + n * ms).collect()
}

#[track_caller]
fn assert_breach(recording: &Recording, expected: &str) {
    let (breaches, expected) = (judge(recording).breaches, format!("{GROUP}{expected}"));
    assert!(breaches.iter().any(|breach| breach.starts_with(&expected)), "{expected} is not in {breaches:?}");
}

#[track_caller]
fn assert_passes(recording: &Recording) {
    assert_eq!(judge(recording).breaches, Vec::<String>::new());
}

/// Sends of three members from real limiters: the group allows ten a second, and the first member one a second.
fn played(take: impl Fn(usize, &mut [&mut Limiter], Timestamp) -> bool) -> Recording {
    let own = [per_second(1), RateLimits::UNLIMITED, RateLimits::UNLIMITED];
    let mut limiters = own.each_ref().map(Limiter::new);
    let mut shared = Limiter::new(&per_second(10));
    let mut sent = vec![Vec::new(); own.len()];
    for ms in 0..10_000 {
        // Each member has a backlog, and they ask in turn.
        for turn in 0..own.len() {
            let member = (turn + ms as usize / 100) % own.len();
            if take(member, &mut [&mut shared, &mut limiters[member]], tests::at(ms)) {
                sent[member].push(20 + ms);
            }
        }
    }
    let mut recording = members(per_second(10), &sent);
    recording.limit_groups[0].expect.utilisation_min = Some(0.985);
    recording
}

fn takes_now(budgets: &mut [&mut Limiter], now: Timestamp) -> bool {
    budget::take(budgets, 1, now, now).is_ok()
}

#[test]
fn slots_that_are_taken_from_every_budget_or_from_none_pass() {
    let recording = played(|_, budgets, now| takes_now(budgets, now));
    assert_passes(&recording);
    let used = judge(&recording).limit_groups[0].limits[0].utilisation.unwrap();
    assert!(used >= 0.985, "{used}");
}

#[test]
fn a_member_that_skips_its_group_is_found() {
    let skips = played(|member, budgets, now| takes_now(if member == 2 { &mut budgets[1..] } else { budgets }, now));
    assert_breach(&skips, "");
    let once = played(|member, budgets, now| {
        let skips = member == 0 && now >= tests::at(5_000);
        takes_now(if skips { &mut budgets[1..] } else { budgets }, now)
    });
    let once = judge(&once).breaches;
    assert!(once[0].starts_with(GROUP) && once[0].ends_with("the fullest window holds 11"), "{once:?}");
}

#[test]
fn a_take_that_has_spent_one_budget_and_is_refused_by_another_is_found() {
    let spends = played(|_, budgets, now| {
        let (shared, own) = budgets.split_at_mut(1);
        takes_now(shared, now) && takes_now(own, now)
    });
    assert_breach(&spends, "utilisation 0.7");
    // The other way round: sent although the group has refused.
    let spends = played(|_, budgets, now| {
        let (shared, own) = budgets.split_at_mut(1);
        let is_open = budget::next_start(own, 1, now) <= now;
        let _ = takes_now(shared, now);
        is_open && now.as_millis() % 50 == 0 && takes_now(own, now)
    });
    assert_breach(&spends, "");
    assert!(GRANT_AHEAD < Duration::from_millis(100));
}

#[test]
fn costs_are_summed_over_the_members() {
    let mut costs = members(points(10), &[every(200, 0, 5), every(200, 100, 5)]);
    assert_passes(&costs);
    costs.events[3].cost = 2;
    assert_breach(&costs, "1 arrivals above the limit of a second in costs; the fullest window holds 11");
    let spread = [every(400, 0, 5), every(400, 200, 5)];
    let mut costs = members(points(10), &spread);
    costs.events.iter_mut().for_each(|event| event.cost = 2);
    assert_passes(&costs);
}

#[test]
fn the_cost_limit_of_a_single_destination_is_judged_too() {
    let mut costs = members(points(100), &[every(200, 0, 5)]);
    costs.destinations[0].limits = vec![changed_to(points(6))];
    assert_passes(&costs);
    costs.events[2].cost = 3;
    let breaches = judge(&costs).breaches;
    assert!(breaches[0].starts_with("partner: 1 arrivals above the limit of a second in costs"), "{breaches:?}");
}

#[test]
fn arrivals_count_in_the_group_that_a_destination_was_in() {
    let mut moved = members(per_second(10), &[every(110, 0, 30), every(110, 0, 30)]);
    assert_breach(&moved, "");
    // Together they would be twice the limit, and each keeps it alone.
    moved.limit_groups.push(LimitGroup { name: "other".to_owned(), ..account(per_second(10)) });
    moved.destinations[1].homes = vec![home(0, Some(1)), home(1_500, None)];
    assert_passes(&moved);
    let counted = judge(&moved).limit_groups.iter().map(|group| group.arrivals).collect::<Vec<_>>();
    assert_eq!(counted[0], 30);
    assert!((14..=16).contains(&counted[1]), "{counted:?}");
    moved.destinations[1].homes = vec![home(0, Some(1)), home(1_500, Some(0))];
    assert_breach(&moved, "");
}

/// The first sends of the mover are above the limit of either group, if all of them count in it.
#[test]
fn a_move_acts_at_one_instant_between_its_request_and_its_grace() {
    // The old and the new group have room for the arrivals before and after 1,080 ms, not for all five.
    let mut moved = members(per_second(3), &[vec![1_020, 1_040, 1_060, 1_080, 1_100, 1_110]]);
    moved.limit_groups.push(LimitGroup { name: "other".to_owned(), ..account(per_second(3)) });
    moved.destinations[0].homes = vec![home(0, Some(0)), home(1_010, Some(1))];
    assert_passes(&moved);
    let counted = judge(&moved).limit_groups.iter().map(|group| group.arrivals).collect::<Vec<_>>();
    assert_eq!(counted, [3, 3]);
    // One more fits into neither.
    moved.limit_groups[1].limits = vec![changed_to(per_second(2))];
    let breaches = judge(&moved).breaches;
    assert!(breaches.iter().any(|breach| breach.contains("1 arrivals above")), "{breaches:?}");
}

#[test]
fn expected_shares_are_judged_by_weight() {
    let mut shared = members(per_second(100), &[every(400, 0, 10), every(200, 0, 20)]);
    shared.limit_groups[0].expect = ExpectShared { share_within: Some(0.1), ..ExpectShared::default() };
    assert_breach(&shared, "a member is 0.3");
    shared.destinations[1].weight = 2;
    assert_passes(&shared);
    shared.limit_groups[0].expect.fairness_min = Some(0.99);
    assert_passes(&shared);
    shared.destinations[1].weight = 1;
    assert_breach(&shared, "fairness 0.9");
}

fn calls(times_ms: impl IntoIterator<Item = i64>) -> Vec<Call> {
    let call = |ms| Call { limit_group: 0, at: tests::at(ms), outcome: CallOutcome::Made };
    times_ms.into_iter().map(call).collect()
}

#[test]
fn calls_of_callers_count_under_the_limit_of_their_group() {
    let mut beside = members(per_second(10), &[every(200, 0, 10)]);
    beside.calls = calls(every(200, 100, 10));
    assert_passes(&beside);
    let judged = &judge(&beside).limit_groups[0];
    assert_eq!((judged.arrivals, judged.calls), (10, 10));
    beside.calls = calls(every(200, 100, 10).into_iter().chain([1_930]));
    assert_breach(&beside, "1 arrivals above the limit of a second; the fullest window holds 11");
    // A slot that nobody used is no call.
    beside.calls.last_mut().unwrap().outcome = CallOutcome::TooLate;
    assert_passes(&beside);
    assert_eq!(judge(&beside).limit_groups[0].too_late, 1);
}

#[test]
fn all_callers_together_have_the_share_of_one_member() {
    let mut beside = members(per_second(100), &[every(200, 0, 20), every(200, 50, 20)]);
    beside.limit_groups[0].expect = ExpectShared { share_within: Some(0.1), ..ExpectShared::default() };
    beside.calls = calls(every(200, 100, 20));
    assert_passes(&beside);
    beside.calls = calls(every(400, 100, 10));
    assert_breach(&beside, "a member is 0.");
    // Callers that never had a slot have no share.
    beside.calls.iter_mut().for_each(|call| call.outcome = CallOutcome::NoSlot);
    assert_breach(&beside, "a member is unknown from its share");
}
