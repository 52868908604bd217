//! Destinations with limit keys in a limit group: each slot comes from three budgets.

use std::{sync::Arc, time::Duration};

use weir_core::{
    DestinationId, LimitGroup, Limiter, RateLimits, Slot, Timestamp,
    temporary::{Override, Temporary},
};

use super::{
    SOON, Subject, destination, granted,
    groups::{GROUP, Members},
    limit_keys::Keyed,
    per_minute, per_second,
    slots::start_of,
};
use crate::{JobLease, Permit, SlotAnswer};

/// Destinations 1, 2, … with limit keys, and their limit group.
struct Account {
    group: LimitGroup,
    members: Vec<Keyed>,
}

impl Account {
    /// The limits of each destination and of each of its keys, and its weight.
    fn new(shared: RateLimits, members: &[(RateLimits, RateLimits, u16)]) -> Self {
        let keyed = |(number, (own, of_each, weight)): (u8, &(RateLimits, RateLimits, u16))| {
            let mut keyed = Keyed::new(own.clone(), of_each.clone());
            keyed.destination.id = destination(number);
            keyed.destination.settings.limit_group = Some(GROUP);
            keyed.destination.settings.weight = *weight;
            keyed
        };
        Self { group: Members::new(shared, &[]).group, members: (1..).zip(members).map(keyed).collect() }
    }

    /// Two destinations without limits of their own, whose keys have none either.
    fn two(shared: RateLimits) -> Self {
        let unlimited = || (RateLimits::UNLIMITED, RateLimits::UNLIMITED, 1);
        Self::new(shared, &[unlimited(), unlimited()])
    }

    async fn edit(&mut self, subject: &Subject, change: impl FnOnce(&mut LimitGroup)) {
        self.group.updated_at = self.group.updated_at + Duration::from_secs(1);
        change(&mut self.group);
        subject.queue.edited_groups(&[Arc::new(self.group.clone())]).await.expect("edit");
    }

    fn member_of(&self, flow: DestinationId) -> &Keyed {
        self.members.iter().find(|keyed| keyed.knows(flow)).expect("a known flow")
    }

    async fn run(&self, subject: &Subject, lease: JobLease, waiting: u32) -> u32 {
        let keyed = self.member_of(lease.destination_id);
        let terms = keyed.terms(subject, lease.destination_id);
        let budget = keyed.destination.as_group();
        let [own, shared] = [&budget, &self.group].map(|group| Limiter::new(&group.rate_limits));
        let groups = [(&budget, &own), (&self.group, &shared)];
        let in_group = keyed.destination.settings.limit_group.is_some();
        subject.run_of_member(lease, terms, if in_group { &groups } else { &groups[..1] }, waiting).await
    }

    /// One permit of each of these keys of destinations, in this order.
    async fn permits(&mut self, subject: &Subject, of: &[(usize, &str)]) -> Vec<Permit> {
        let mut permits = Vec::new();
        for &(member, key) in of {
            let keyed = &mut self.members[member - 1];
            keyed.wake(subject, &[key]).await;
            let flow = keyed.flow(key);
            permits.push(subject.permit_of(flow, async |lease, waiting| self.run(subject, lease, waiting).await).await);
        }
        permits
    }
}

pub async fn slots_of_the_keys_of_all_members_are_one_spacing_of_their_limit_group_apart(subject: Subject) {
    let mut account = Account::two(per_second(10));
    let mut last: Option<Slot> = None;
    for of in [(1, "a"), (2, "a"), (1, "b"), (1, "a"), (2, "b")] {
        let permit = account.permits(&subject, &[of]).await.remove(0);
        let slot = subject.slot(&permit).await;
        if let Some(last) = last.replace(slot) {
            assert!(slot.start + subject.precision >= last.start + Duration::from_millis(101), "{last:?} {slot:?}");
        }
    }
}

pub async fn each_of_three_budgets_may_be_the_one_that_delays_a_slot(subject: Subject) {
    let members = [(per_second(2), per_minute(30), 1), (RateLimits::UNLIMITED, RateLimits::UNLIMITED, 1)];
    let mut account = Account::new(per_second(100), &members);
    let permits = account.permits(&subject, &[(1, "a"), (2, "a")]).await;
    let first = subject.slot(&permits[0]).await;
    let other = subject.slot(&permits[1]).await;
    assert!(other.start + subject.precision >= first.start + Duration::from_micros(10_100), "by the limit group");
    let of_b = account.permits(&subject, &[(1, "b")]).await.remove(0);
    let start = start_of(subject.ask_for_slot(&of_b).await);
    assert!(start + subject.precision >= first.start + Duration::from_millis(505), "by the destination");
    let flow = account.members[0].flow("a");
    subject.queue.learn_group(flow, Some(GROUP));
    let next = subject.progress_of(flow).await.next_start.expect("known cursors");
    assert!(next + subject.precision >= first.start + Duration::from_secs(2), "by the key");
}

/// Runs of these keys that find nothing.
async fn idle(subject: &Subject, account: &mut Account, of: &[(usize, &str)]) -> Vec<DestinationId> {
    for &(member, key) in of {
        account.members[member - 1].wake(subject, &[key]).await;
    }
    let flows: Vec<_> = of.iter().map(|&(member, key)| account.members[member - 1].flow(key)).collect();
    subject.give_empty_turns(&flows, async |lease, waiting| account.run(subject, lease, waiting).await).await;
    flows
}

pub async fn a_key_is_admitted_if_each_of_three_budgets_has_a_slot(subject: Subject) {
    let members = [(per_minute(30), per_minute(15), 1), (RateLimits::UNLIMITED, RateLimits::UNLIMITED, 1)];
    let mut account = Account::new(per_minute(60), &members);
    let flows = idle(&subject, &mut account, &[(1, "a"), (1, "b"), (2, "a")]).await;
    let [one, two] = [0, 1].map(|index| account.members[index].destination.clone());
    let sent = async |number, of, flow| {
        let permit = subject.admitted_to(number, of, flow).await;
        let slot = subject.slot(&permit).await;
        subject.settle(&permit).await;
        slot
    };
    let first = sent(1, &one, flows[0]).await;
    subject.assert_not_admitted_to(2, &two, flows[2]).await;
    let other = sent(3, &two, flows[2]).await;
    assert!(other.start + subject.precision >= first.start + Duration::from_secs(1), "by the limit group");
    let of_b = sent(4, &one, flows[1]).await;
    assert!(of_b.start + subject.precision >= first.start + Duration::from_secs(2), "by the destination");
    let again = sent(5, &one, flows[0]).await;
    assert!(again.start + subject.precision >= first.start + Duration::from_secs(4), "by the key");
}

pub async fn a_slot_that_the_limit_group_refuses_costs_a_key_and_its_destination_nothing(subject: Subject) {
    let members = [(RateLimits::UNLIMITED, RateLimits::UNLIMITED, 1), (per_second(1), per_second(1), 1)];
    let mut account = Account::new(per_second(100), &members);
    let permits = account.permits(&subject, &[(1, "a"), (2, "a")]).await;
    subject.slot(&permits[0]).await;
    // The next slot is nearly two seconds away.
    account.edit(&subject, |group| group.rate_limits = per_minute(31)).await;
    for _ in 0..3 {
        let answer = subject.ask_for_slot(&permits[1]).await;
        assert!(matches!(answer, SlotAnswer::Later(_)), "{answer:?}");
    }
    account.edit(&subject, |group| group.rate_limits = RateLimits::UNLIMITED).await;
    let slot = granted(subject.ask_for_slot(&permits[1]).await);
    assert!(slot.start <= subject.clock.now() + subject.precision, "their own limits have not been used");
}

pub async fn the_sends_of_all_keys_count_in_the_max_in_flight_of_their_limit_group(subject: Subject) {
    let mut account = Account::two(RateLimits::UNLIMITED);
    let permits = account.permits(&subject, &[(1, "a"), (2, "a"), (1, "b")]).await;
    account.edit(&subject, |group| group.max_in_flight = Some(2)).await;
    subject.slot(&permits[0]).await;
    subject.slot(&permits[1]).await;
    assert_eq!(subject.ask_for_slot(&permits[2]).await, SlotAnswer::NoRoom);
    subject.settle(&permits[1]).await;
    granted(subject.ask_for_slot(&permits[2]).await);
}

pub async fn unused_permits_of_keys_leave_every_budget(subject: Subject) {
    let mut account = Account::two(per_second(2));
    // While one permit is queued, the slot behind it is half a second away.
    for (member, key) in [(1, "a"), (2, "a"), (1, "b"), (1, "a")] {
        let permit = account.permits(&subject, &[(member, key)]).await.remove(0);
        subject.hand_back(&permit, false).await;
    }
    let permit = account.permits(&subject, &[(2, "b")]).await.remove(0);
    subject.slot(&permit).await;
}

pub async fn an_edit_of_the_limit_group_binds_the_outstanding_permits_of_keys(subject: Subject) {
    let mut account = Account::two(per_second(100));
    let permits = account.permits(&subject, &[(1, "a"), (2, "a")]).await;
    let first = subject.slot(&permits[0]).await;
    account.edit(&subject, |group| group.rate_limits = per_second(1)).await;
    let start = start_of(subject.ask_for_slot(&permits[1]).await);
    assert!(start + subject.precision >= first.start + Duration::from_millis(1_010));
}

pub async fn an_override_of_the_limit_group_ends_for_keys_too(subject: Subject) {
    let mut account = Account::two(per_second(50));
    let permits = account.permits(&subject, &[(1, "a"), (2, "a")]).await;
    let first = subject.slot(&permits[0]).await;
    let until = subject.clock.now() + Duration::from_millis(300);
    let (limits, reason) = (Some(per_second(1)), "their sale".to_owned());
    let overridden = Some(Override { limits, max_in_flight: None, until, reason });
    account.edit(&subject, |group| group.temporary = Temporary { overridden, hold: None }).await;
    let lowered = start_of(subject.ask_for_slot(&permits[1]).await);
    assert!(lowered + subject.precision >= first.start + Duration::from_millis(1_010), "it is in force");
    account.members[0].wake(&subject, &["b"]).await;
    loop {
        let lease = subject.claim().await;
        let is_known = lease.turn.is_some_and(|turn| turn.groups().all(|of| of.is_known));
        account.run(&subject, lease, 0).await;
        if !is_known && subject.clock.now() + subject.precision >= until {
            break;
        }
    }
    let slot = subject.slot(&permits[1]).await;
    assert!(slot.start < first.start + Duration::from_secs(1) && slot.start + subject.precision >= until);
}

/// The backlogs are never empty, so that only the turns decide.
pub async fn turns_of_a_limit_group_are_divided_among_destinations_and_then_among_keys(subject: Subject) {
    let unlimited = |weight| (RateLimits::UNLIMITED, RateLimits::UNLIMITED, weight);
    let mut account = Account::new(per_second(200), &[unlimited(1), unlimited(3)]);
    let keys = [(1, "a"), (1, "b"), (1, "c"), (2, "a")];
    for (member, key) in keys {
        account.members[member - 1].wake(&subject, &[key]).await;
    }
    let run = async |lease, waiting| account.run(&subject, lease, waiting).await;
    let (published, largest) = subject.use_turns(160, run).await;
    let [a, b, c, other] = keys.map(|(member, key)| published[&account.members[member - 1].flow(key)]);
    let most = 3 * largest;
    assert!(other.abs_diff(3 * (a + b + c)) <= 2 * most, "{a}, {b}, {c} and {other}, at most {largest} in a run");
    assert!(a.abs_diff(b) <= most && b.abs_diff(c) <= most, "{a}, {b}, {c}, at most {largest} in a run");
}

pub async fn a_key_that_waits_keeps_its_turn_when_it_is_woken(subject: Subject) {
    let mut account = Account::two(per_second(2));
    // While its permit is queued, the others wait.
    let permits = account.permits(&subject, &[(1, "a")]).await;
    for (member, key) in [(0, "b"), (1, "b")] {
        account.members[member].wake(&subject, &[key]).await;
    }
    while let Ok(due) = tokio::time::timeout(super::ABSENCE, subject.queue.claim_due(16, SOON)).await {
        for lease in due.expect("claim").leases {
            assert_eq!(account.run(&subject, lease, 5).await, 0);
        }
    }
    account.members[0].wake(&subject, &["b", "b", "b"]).await;
    subject.slot(&permits[0]).await;
    subject.settle(&permits[0]).await;
    let lease = subject.claim().await;
    assert!(lease.turn.is_some_and(|turn| turn.permits > 0), "{lease:?}");
}

/// In one home. Its keys have the budget of the destination, and no longer that of the group.
pub async fn a_destination_with_keys_that_leaves_its_limit_group_has_two_budgets(subject: Subject) {
    let mut account = Account::two(per_minute(1));
    let permit = account.permits(&subject, &[(1, "a")]).await.remove(0);
    subject.slot(&permit).await;
    subject.settle(&permit).await;
    let at = subject.clock.now();
    account.members[0].edit(&subject, |destination| destination.settings.limit_group = None).await;
    let permit = account.permits(&subject, &[(1, "a")]).await.remove(0);
    let slot = subject.slot(&permit).await;
    assert!(slot.start < at + Duration::from_secs(30) && slot.start > Timestamp::MIN, "{slot:?}");
}
