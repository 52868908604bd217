//! Tests that the judge finds broken promises: for each promise there is a recording that breaks it, and the judge must
//! name the breach.

use std::time::Duration;

use proptest::prelude::*;
use weir_core::{EventId, Period, RateLimit, RateLimits, Timestamp, audit::audit};

use super::*;
use crate::{
    recording::{Answered, Arrival, Destination, Event, Fault, Group, LimitChange, Pause},
    scenario::Expect,
};

const ACCEPTED_MS: i64 = 1;

pub(super) fn at(ms: i64) -> Timestamp {
    Timestamp::from_secs(1_763_710_200) + Duration::from_millis(ms.unsigned_abs())
}

pub(super) fn limits(limit: u32) -> RateLimits {
    RateLimits::new(vec![RateLimit::new(limit, Period::SECOND).unwrap()]).unwrap()
}

fn id(number: u64) -> EventId {
    EventId::from_bytes(u128::from(number + 1).to_be_bytes())
}

fn answered(status: u16, ms: i64) -> Option<Answered> {
    Some(Answered { status, at: at(ms) })
}

fn arrival(number: u64, ms: i64) -> Arrival {
    Arrival {
        destination: 0,
        event: number,
        limit_key: None,
        id: Some(id(number)),
        at: at(ms),
        stalled: Duration::ZERO,
        answered: answered(200, ms + 1),
    }
}

/// One destination with a limit a second, and an event for each arrival, in the same order.
pub(super) fn recording(limit: u32, arrivals_ms: &[i64]) -> Recording {
    let accepted = |number| Outcome::Accepted { id: id(number), deliveries: 1, at: at(ACCEPTED_MS) };
    let event = |number| Event {
        groups: [0].into(),
        destination: None,
        key: None,
        cost: 1,
        meant: at(0),
        outcome: accepted(number),
    };
    let arrivals: Vec<_> = (0..).zip(arrivals_ms).map(|(number, ms)| arrival(number, *ms)).collect();
    let last = arrivals_ms.iter().copied().max().unwrap_or(0);
    let sends: Vec<_> = arrivals.iter().map(|arrival| arrival.at).collect();
    let limits = limits(limit);
    let limit_changes = [(Timestamp::MIN, limits.clone())];
    let evidence = weir_core::audit::Evidence { sends: &sends, limit_changes: &limit_changes, latencies: &[] };
    Recording {
        groups: vec![Group {
            name: "partner".to_owned(),
            expect: Expect::default(),
            pauses: Vec::new(),
            coalesces: false,
        }],
        destinations: vec![Destination {
            audit: Some(audit(&evidence)),
            ..Destination::alone(0, LimitChange { sent: at(0), answered: at(0), limits })
        }],
        events: (0..arrivals_ms.len() as u64).map(event).collect(),
        arrivals: vec![arrivals],
        began: at(0),
        published: at(10),
        drained: Some(at(last + 10)),
        ended: at(last + 20),
        ..Recording::default()
    }
}

/// Ten events, 110 ms apart.
fn sound() -> Recording {
    recording(10, &(0..10).map(|n| 20 + n * 110).collect::<Vec<_>>())
}

#[track_caller]
fn assert_breach(recording: &Recording, expected: &str) {
    let breaches = judge(recording).breaches;
    assert!(breaches.iter().any(|breach| breach.contains(expected)), "{expected} is not in {breaches:?}");
}

#[test]
fn a_recording_that_keeps_every_promise_passes() {
    let judgement = judge(&sound());
    assert_eq!(judgement.breaches, Vec::<String>::new());
    assert_eq!((judgement.owed, judgement.arrivals, judgement.lost), (10, 10, 0));
    assert_eq!(judgement.groups[0].limits[0].bound, Some(10));
}

#[test]
fn one_send_too_many_in_a_window_is_found_at_the_receiver_and_in_the_record() {
    let recording = recording(2, &[20, 500, 1_010]);
    assert_breach(&recording, "partner: 1 arrivals above the limit of a second; the fullest window holds 3");
    assert_breach(&recording, "partner: 1 recorded sends above the limit of a second");
}

#[test]
fn the_slack_is_five_milliseconds_at_the_receiver_and_none_in_the_record() {
    let mut edge = recording(1, &[20, 1_016]);
    assert_breach(&edge, "recorded sends above");
    edge.destinations[0].audit = recording(1, &[20, 1_020]).destinations[0].audit.clone();
    assert!(judge(&edge).is_passed(), "{:?}", judge(&edge).breaches);
    edge.arrivals[0][1].at = at(1_014);
    assert_breach(&edge, "arrivals above");
}

#[test]
fn the_rate_under_overload_is_compared_with_the_capacity_of_the_machine() {
    let mut flooded = recording(1_000, &(0..40).map(|n| 20 + n * 50).collect::<Vec<_>>());
    (0..).zip(&mut flooded.events).for_each(|(n, event)| event.meant = at(n * 25));
    flooded.groups[0].expect.overload_min = Some(0.5);
    assert_breach(&flooded, "partner: the rate under overload was unknown of the rate");
    flooded.capacity_per_s = Some(38.0);
    let judgement = judge(&flooded);
    assert!(judgement.is_passed(), "{:?}", judgement.breaches);
    let overload = judgement.groups[0].overload.unwrap();
    assert_eq!((overload.offered_per_s.round(), overload.sent_per_s.round()), (41.0, 21.0));
    flooded.capacity_per_s = Some(42.0);
    assert_breach(
        &flooded,
        "partner: the rate under overload was 0.4884 of the rate that the machine can take, where 0.5 was expected",
    );
}

#[test]
fn an_event_for_several_groups_is_owed_to_each_of_their_destinations() {
    let mut both = sound();
    both.groups.push(Group { name: "other".to_owned(), ..both.groups[0].clone() });
    both.destinations.push(Destination { group: 1, ..both.destinations[0].clone() });
    let elsewhere = both.arrivals[0].iter().map(|arrival| Arrival { destination: 1, ..*arrival });
    both.arrivals.push(elsewhere.collect());
    assert_breach(&both, "arrivals that were not owed: event 0 was for another destination");
    for event in &mut both.events {
        event.groups = [0, 1].into();
        event.outcome = match event.outcome {
            Outcome::Accepted { id, at, .. } => Outcome::Accepted { id, deliveries: 2, at },
            other => other,
        };
    }
    let judgement = judge(&both);
    assert!(judgement.is_passed(), "{:?}", judgement.breaches);
    assert_eq!(judgement.owed, 20);
    both.arrivals[1].pop();
    assert_breach(&both, "1 of 20 deliveries are lost, event 9 to other first");
}

#[test]
fn a_chart_of_a_limit_shows_the_most_that_a_bucket_may_hold_and_the_long_term_pace() {
    let mut minute = recording(10, &[20, 30, 40, 50]);
    let limits = RateLimits::new(vec![RateLimit::new(30, Period::MINUTE).unwrap()]).unwrap();
    minute.destinations[0].limits[0].limits = limits;
    let pictures = judge(&minute).pictures;
    let group = &pictures.groups[0];
    assert_eq!((group.cap_per_s[0], group.pace_per_s[0]), (Some(30.0), Some(0.5)));
    // The four windows hold one, two, three and four of thirty a minute.
    assert_eq!(group.fullness, [(5, 1), (10, 2), (15, 1)]);
}

#[test]
fn an_arrival_above_the_limit_that_a_stall_explains_is_counted_as_excused() {
    let mut late = recording(1, &[20, 1_000]);
    late.destinations[0].audit = recording(1, &[20, 1_020]).destinations[0].audit.clone();
    assert_breach(&late, "arrivals above");
    late.arrivals[0][0].stalled = Duration::from_millis(16);
    let judgement = judge(&late);
    assert!(judgement.is_passed(), "{:?}", judgement.breaches);
    assert_eq!(judgement.groups[0].limits[0].excused, 1);
}

#[test]
fn a_lost_event_is_found() {
    let mut lost = sound();
    lost.arrivals[0].pop();
    assert_breach(&lost, "1 of 10 deliveries are lost, event 9 to partner first");
    let mut failed = sound();
    failed.arrivals[0][4].answered = answered(500, 461);
    assert_breach(&failed, "1 of 10 deliveries are lost, event 4");
    let mut given_up = sound();
    given_up.arrivals[0][4].answered = None;
    assert_breach(&given_up, "1 of 10 deliveries are lost, event 4");
}

#[test]
fn a_duplicate_is_a_breach_unless_a_fault_explains_it() {
    let mut doubled = sound();
    doubled.arrivals[0].push(arrival(3, 1_300));
    assert_breach(&doubled, "1 deliveries arrived twice without a fault, event 3");
    doubled.faults = vec![Fault { from: at(600), until: at(700) }];
    assert_eq!(judge(&doubled).breaches, Vec::<String>::new());
    doubled.faults[0].from = at(9_000);
    doubled.faults[0].until = at(9_100);
    assert_breach(&doubled, "arrived twice without a fault");
}

#[test]
fn a_retry_after_a_failure_is_not_a_duplicate() {
    let mut retried = sound();
    retried.arrivals[0][3].answered = answered(503, 351);
    retried.arrivals[0].push(arrival(3, 1_300));
    retried.destinations[0].audit.as_mut().unwrap().sends += 1;
    assert_eq!(judge(&retried).breaches, Vec::<String>::new());
}

#[test]
fn a_send_out_of_order_is_found() {
    let mut swapped = sound();
    swapped.groups[0].expect.in_order = true;
    assert!(judge(&swapped).is_passed());
    let times = [swapped.arrivals[0][4].at, swapped.arrivals[0][5].at];
    (swapped.arrivals[0][4].at, swapped.arrivals[0][5].at) = (times[1], times[0]);
    swapped.arrivals[0].sort_by_key(|arrival| arrival.at);
    assert_breach(&swapped, "1 sends out of order, event 5 to partner first");
    let mut hasty = sound();
    hasty.groups[0].expect.in_order = true;
    // It is answered at 470 ms, after the next event has arrived.
    hasty.arrivals[0][3].answered = answered(200, 470);
    assert_breach(&hasty, "1 sends out of order, event 4 to partner first");
    // Events with different keys have no order.
    swapped.events[5].key = Some(1);
    assert!(judge(&swapped).is_passed());
}

#[test]
fn no_event_may_overtake_a_failed_event() {
    let mut passed = sound();
    passed.groups[0].expect.in_order = true;
    passed.arrivals[0][3].answered = answered(500, 351);
    passed.arrivals[0].push(arrival(3, 1_300));
    passed.destinations[0].audit.as_mut().unwrap().sends += 1;
    assert_breach(&passed, "6 sends out of order, event 4");
}

#[test]
fn a_late_drain_and_a_dead_process_are_found() {
    let mut late = sound();
    late.drained = None;
    late.died = vec!["worker"];
    late.permits_left = 3;
    assert_breach(&late, "the backlog was not drained in time");
    assert_breach(&late, "worker exited by itself");
    assert_breach(&late, "3 permits are left in the queue");
}

#[test]
fn arrivals_that_were_not_owed_are_found() {
    let mut foreign = sound();
    foreign.arrivals[0][2].id = Some(id(77));
    assert_breach(&foreign, "event 2 arrived with another id");
    let mut refused = sound();
    refused.events[2].outcome = Outcome::Refused(503);
    assert_breach(&refused, "event 2 was refused with 503");
    assert_breach(&refused, "1 events were refused or not answered");
    let mut invented = sound();
    invented.arrivals[0].push(arrival(99, 1_300));
    assert_breach(&invented, "event 99 was never posted");
    let mut misled = sound();
    misled.destinations.push(misled.destinations[0].clone());
    misled.arrivals.push(Vec::new());
    misled.events[2].destination = Some(1);
    assert_breach(&misled, "event 2 was for another destination");
}

#[test]
fn an_event_for_too_few_destinations_is_found() {
    let mut short = sound();
    short.events[2].outcome = Outcome::Accepted { id: id(2), deliveries: 0, at: at(ACCEPTED_MS) };
    assert_breach(&short, "1 events were accepted for too few destinations: event 2 has 0 deliveries, not 1");
}

#[test]
fn a_record_that_lacks_a_send_is_found() {
    let mut hidden = sound();
    hidden.destinations[0].audit.as_mut().unwrap().sends -= 1;
    assert_breach(&hidden, "1 arrivals are not in Weir's record");
    hidden.destinations[0].audit = None;
    assert_breach(&hidden, "1 destinations have no audit");
}

#[test]
fn a_pause_binds_after_its_grace() {
    let mut paused = sound();
    paused.groups[0].pauses = vec![Pause { from: at(240), until: at(450) }];
    // One event arrives at 350 ms, 5 ms after the end of the grace.
    assert_breach(&paused, "partner: 1 sends while it was paused");
    paused.groups[0].pauses = vec![Pause { from: at(246), until: at(450) }];
    assert!(judge(&paused).is_passed());
}

#[test]
fn a_lower_limit_binds_from_its_answer_and_a_higher_one_from_its_request() {
    let change =
        |sent: i64, answered: i64, limit| LimitChange { sent: at(sent), answered: at(answered), limits: limits(limit) };
    let of = |changes: &[LimitChange]| {
        caps::changes(changes, caps::Counted::requests(Period::SECOND))
            .into_iter()
            .map(|(at, _)| at)
            .collect::<Vec<_>>()
    };
    let first = change(0, 0, 10);
    assert_eq!(of(&[first.clone(), change(100, 150, 5)])[1], at(150));
    assert_eq!(of(&[first.clone(), change(100, 150, 20)])[1], at(100));
    let lifted = LimitChange { limits: RateLimits::UNLIMITED, ..change(100, 150, 1) };
    assert_eq!(of(&[first, lifted, change(200, 250, 50)]), [at(0), at(100), at(250)]);
}

#[test]
fn expected_utilisation_latency_and_fairness_are_judged() {
    let mut used = recording(10, &(0..10).map(|n| 20 + n * 150).collect::<Vec<_>>());
    used.groups[0].expect.utilisation_min = Some(0.98);
    assert_breach(&used, "partner: utilisation 0.7");
    used.groups[0].expect = Expect { p99_ms: Some(100.0), fairness_min: Some(0.9), ..Expect::default() };
    assert_breach(&used, "partner: p99 is 13");
    assert_breach(&used, "partner: fairness unknown");
}

#[test]
fn only_the_last_event_of_a_coalesce_key_is_owed() {
    let mut coalesced = sound();
    coalesced.groups[0].coalesces = true;
    coalesced.arrivals[0].remove(3);
    assert!(judge(&coalesced).is_passed(), "{:?}", judge(&coalesced).breaches);
    coalesced.arrivals[0].pop();
    assert_breach(&coalesced, "1 of 10 deliveries are lost, event 9");
}

#[test]
fn a_smaller_share_while_all_have_a_backlog_is_unfair() {
    let mut unfair = recording(10, &(0..30).map(|n| 20 + n * 110).collect::<Vec<_>>());
    unfair.destinations.push(unfair.destinations[0].clone());
    unfair.arrivals.push(unfair.arrivals[0].clone());
    assert_eq!(latency::fairness(&unfair, 0), Some(1.0));
    // The second destination gets most of its events only after the first has had all of its own.
    unfair.arrivals[1].iter_mut().skip(3).for_each(|arrival| arrival.at = arrival.at + Duration::from_secs(9));
    let fairness = latency::fairness(&unfair, 0).unwrap();
    assert!(fairness < 0.7, "{fairness}");
    unfair.groups[0].expect.fairness_min = Some(0.95);
    assert_breach(&unfair, "partner: fairness 0.");
    unfair.arrivals[1].clear();
    assert_breach(&unfair, "partner: fairness unknown");
}

proptest! {
    /// A recording within the limit passes; with one more send in the fullest window it fails.
    #[test]
    fn within_the_limit_passes_and_an_extra_send_fails(
        limit in 1_u32..20,
        waits in proptest::collection::vec(0_i64..80, 20..60),
    ) {
        let spacing = 1_010 / i64::from(limit) + 1;
        let mut next = 0;
        let mut times: Vec<i64> = waits.iter().map(|wait| {
            next += spacing + wait;
            next
        }).collect();
        let judgement = judge(&recording(limit, &times));
        prop_assert!(judgement.is_passed(), "{:?}", judgement.breaches);
        // One more send than the limit allows, almost at the same instant.
        let end = times[times.len() - 1] + 2_000;
        times.extend((0..=i64::from(limit)).map(|n| end + n));
        let judgement = judge(&recording(limit, &times));
        prop_assert_eq!(judgement.groups[0].limits[0].violations, 1);
        prop_assert_eq!(judgement.breaches.len(), 2);
    }

    /// Any single arrival that is removed or repeated is found.
    #[test]
    fn a_removed_or_repeated_arrival_is_found(victim in 0_usize..10, doubles: bool) {
        let mut recording = sound();
        let taken = recording.arrivals[0][victim];
        if doubles {
            recording.arrivals[0].push(Arrival { at: at(3_000), ..taken });
        } else {
            recording.arrivals[0].remove(victim);
        }
        let judgement = judge(&recording);
        prop_assert_eq!((judgement.lost, judgement.duplicates), if doubles { (0, 1) } else { (1, 0) });
        prop_assert!(!judgement.is_passed());
    }
}
