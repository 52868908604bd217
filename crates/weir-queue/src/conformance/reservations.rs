//! Slots of limit groups for callers outside Weir.

use std::{sync::Arc, time::Duration};

use weir_core::{
    LimitGroup, LimitGroupId, Limiter, Period, RateLimit, RateLimits, Slot, Timestamp, limiter::GRANT_AHEAD,
};

use super::{Subject, destination, groups::Members, per_minute, per_second, slots::start_of};
use crate::{GroupRun, ReservedSlots, WantedSlot};

const NARROW: WantedSlot = WantedSlot { cost: 1, width: Duration::ZERO };

/// What a process has read of the group, with cursors for a queue that has lost them.
fn known(group: &LimitGroup) -> GroupRun {
    GroupRun { terms: Arc::new(group.clone()), recovered: Some(Limiter::new(&group.rate_limits)) }
}

async fn ask(subject: &Subject, run: &GroupRun, wanted: &[WantedSlot]) -> ReservedSlots {
    subject.queue.reserve_slots(run, wanted).await.expect("an answer")
}

/// Asks until so many slots are granted, when the queue says so.
async fn slots(subject: &Subject, run: &GroupRun, wanted: &[WantedSlot]) -> Vec<Slot> {
    let mut granted = Vec::new();
    while granted.len() < wanted.len() {
        let answer = ask(subject, run, &wanted[granted.len()..]).await;
        granted.extend(answer.granted);
        match answer.next {
            Some(next) => subject.until(next).await,
            None => assert_eq!(granted.len(), wanted.len(), "the queue says when to ask again"),
        }
    }
    granted
}

fn of_group(limits: RateLimits) -> (Members, GroupRun) {
    let members = Members::two(limits);
    let run = known(&members.group);
    (members, run)
}

pub async fn a_queue_without_the_cursors_of_a_group_says_so_and_reserves_nothing(subject: Subject) {
    let (_, run) = of_group(per_second(10));
    let lost = GroupRun { recovered: None, ..run.clone() };
    let answer = ask(&subject, &lost, &[NARROW]).await;
    assert!(answer.is_unknown && answer.granted.is_empty(), "{answer:?}");
    assert_eq!(ask(&subject, &run, &[NARROW]).await.granted.len(), 1);
    assert!(!ask(&subject, &lost, &[NARROW]).await.is_unknown, "it is known by now");
}

pub async fn reserved_slots_continue_from_the_recovered_cursors(subject: Subject) {
    let (members, _) = of_group(per_second(10));
    let last_start = subject.clock.now() + Duration::from_millis(300);
    let recovered = Some(Limiter::recovered(&members.group.rate_limits, Some(last_start)));
    let run = GroupRun { terms: Arc::new(members.group.clone()), recovered };
    let slot = slots(&subject, &run, &[NARROW]).await[0];
    subject.assert_starts(slot.start, last_start + Duration::from_millis(101));
}

pub async fn callers_alone_get_all_slots_one_spacing_apart(subject: Subject) {
    let (_, run) = of_group(per_second(20));
    let first = ask(&subject, &run, &[NARROW; 8]).await;
    assert_eq!(first.granted.len(), 1, "no slot further ahead than 40 ms: {first:?}");
    assert!(first.next.is_some());
    let slots = [first.granted, slots(&subject, &run, &[NARROW; 7]).await].concat();
    let spacing = RateLimit::new(20, Period::SECOND).expect("a limit").spacing();
    for pair in slots.windows(2) {
        assert!(pair[1].start + subject.precision >= pair[0].start + spacing, "{pair:?}");
    }
    let span = slots[7].start.since(slots[0].start);
    assert!(span < spacing * 7 + Duration::from_millis(200), "{span:?}");
}

pub async fn a_reserved_slot_is_as_wide_as_its_caller_wants_and_counts_until_its_end(subject: Subject) {
    let (_, run) = of_group(per_second(2));
    let wide = WantedSlot { width: Duration::from_millis(400), ..NARROW };
    let first = ask(&subject, &run, &[wide]).await.granted[0];
    assert!(first.end.since(first.start) >= wide.width, "{first:?}");
    let more = slots(&subject, &run, &[NARROW, NARROW]).await;
    subject.assert_starts(more[0].start, first.start + Duration::from_millis(505));
    // The third one since the first: a window after its end.
    assert!(more[1].start + subject.precision >= first.end + Duration::from_secs(1), "{first:?} {more:?}");
}

pub async fn a_reservation_above_a_limit_in_costs_is_never_granted(subject: Subject) {
    let limit = RateLimit::new(10, Period::SECOND).and_then(RateLimit::in_costs);
    let (_, run) = of_group(RateLimits::new(limit.into_iter().collect()).expect("one limit"));
    let of_cost = |cost| WantedSlot { cost, ..NARROW };
    let answer = ask(&subject, &run, &[of_cost(10), of_cost(11)]).await;
    assert!(answer.granted.len() == 1 || answer.is_above_limit, "{answer:?}");
    assert!(ask(&subject, &run, &[of_cost(11)]).await.is_above_limit);
    let first = answer.granted[0];
    let next = slots(&subject, &run, &[of_cost(1)]).await[0];
    assert!(next.start + subject.precision >= first.end + Duration::from_secs(1), "{first:?} {next:?}");
}

pub async fn reserved_slots_and_slots_of_members_come_from_one_budget(subject: Subject) {
    let (members, run) = of_group(per_second(2));
    let permit = members.permits(&subject, &[1]).await.remove(0);
    let own = subject.slot(&permit).await;
    subject.settle(&permit).await;
    let reserved = slots(&subject, &run, &[NARROW]).await[0];
    subject.assert_starts(reserved.start, own.start + Duration::from_millis(505));
    let permit = members.permits(&subject, &[2]).await.remove(0);
    let next = start_of(subject.ask_for_slot(&permit).await);
    assert!(next + subject.precision >= reserved.start + Duration::from_millis(505), "{next:?} {reserved:?}");
}

/// A queued permit has been promised its slot before.
pub async fn a_reservation_does_not_overtake_a_queued_permit(subject: Subject) {
    let (members, run) = of_group(per_second(4));
    let permit = members.permits(&subject, &[1]).await.remove(0);
    let answer = ask(&subject, &run, &[NARROW]).await;
    assert!(answer.granted.is_empty() && answer.next.is_some(), "{answer:?}");
    let own = subject.slot(&permit).await;
    subject.settle(&permit).await;
    let reserved = slots(&subject, &run, &[NARROW]).await[0];
    assert!(reserved.start > own.start, "{own:?} {reserved:?}");
}

/// The backlog of the member is never empty, and the callers ask for more than there is.
pub async fn callers_have_turns_like_a_member_with_weight_1(subject: Subject) {
    let (members, run) = of_group(per_second(100));
    members.wake(&subject, [destination(1)]).await;
    let mut published = 0;
    let member = async {
        loop {
            for lease in subject.claim_for(super::SOON).await {
                let count = members.run(&subject, lease, 1_000).await;
                published += count;
                for permit in subject.take(count as usize).await {
                    subject.slot(&permit).await;
                    subject.settle(&permit).await;
                }
            }
        }
    };
    let wanted = [NARROW; 60];
    let granted = tokio::select! {
        () = member => unreachable!("a member with a backlog"),
        granted = slots(&subject, &run, &wanted) => granted.len() as u32,
    };
    assert!(
        published * 10 >= granted * 7 && granted * 10 >= published * 7,
        "{granted} reserved, {published} published"
    );
}

pub async fn what_is_promised_to_callers_who_have_gone_goes_to_the_members(subject: Subject) {
    let (members, run) = of_group(per_second(2));
    let permit = members.permits(&subject, &[1]).await.remove(0);
    assert!(ask(&subject, &run, &[NARROW; 2]).await.granted.is_empty());
    let own = subject.slot(&permit).await;
    subject.settle(&permit).await;
    // Nobody fetches what the next run promises.
    let permit = members.permits(&subject, &[2]).await.remove(0);
    let next = subject.slot(&permit).await;
    let latest = own.start + Duration::from_millis(505) + crate::RESERVED_FOR + Duration::from_millis(1_000);
    assert!(next.start <= latest, "{own:?} {next:?}");
}

pub async fn a_reserved_slot_is_given_back_if_it_is_the_last_one(subject: Subject) {
    let (members, run) = of_group(per_minute(30));
    let id: LimitGroupId = members.group.id;
    let first = ask(&subject, &run, &[NARROW]).await.granted[0];
    let give_back = async |slot: Slot| {
        subject.until(slot.start + subject.precision * 2 + Duration::from_millis(1)).await;
        subject.queue.give_back_reserved(id, 1, slot.start).await.expect("give back");
    };
    give_back(first).await;
    let second = ask(&subject, &run, &[NARROW]).await.granted;
    assert_eq!(second.len(), 1, "the spacing of two seconds is free again");
    // The first one is no more the last.
    give_back(first).await;
    let answer = ask(&subject, &run, &[NARROW]).await;
    assert!(answer.granted.is_empty() && answer.next > Some(Timestamp::MIN + GRANT_AHEAD), "{answer:?}");
}
