//! Limit groups: destinations that share a budget.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use weir_core::{
    DestinationId, LimitGroup, LimitGroupId, Limiter, Period, RateLimit, RateLimits, Slot, Timestamp,
    plan::NextRun,
    temporary::{Hold, Override, Temporary},
};

use super::{SOON, Subject, destination, granted, per_minute, per_second, slots::start_of};
use crate::{GroupRun, JobLease, Permit, Publication, Published, SlotAnswer, SlotRequest, Terms, TermsChange, Wake};

pub(super) const GROUP: LimitGroupId = LimitGroupId::from_bytes([9; 16]);

/// Destinations 1, 2, … with limits and weights of their own, and their group.
pub(super) struct Members {
    pub(super) group: LimitGroup,
    of: BTreeMap<DestinationId, (RateLimits, u16)>,
    /// The group's cursors, if the queue knows none.
    recovered: Limiter,
}

impl Members {
    pub(super) fn new(shared: RateLimits, own: &[(RateLimits, u16)]) -> Self {
        let recovered = Limiter::new(&shared);
        let group = LimitGroup {
            keys_of: None,
            id: GROUP,
            tenant: None,
            name: "account".to_owned(),
            rate_limits: shared,
            max_in_flight: None,
            temporary: Default::default(),
            created_at: Timestamp::from_secs(1),
            updated_at: Timestamp::from_secs(1),
        };
        Self { group, of: (1..).map(destination).zip(own.iter().cloned()).collect(), recovered }
    }

    /// Two destinations without limits of their own.
    pub(super) fn two(shared: RateLimits) -> Self {
        Self::new(shared, &[(RateLimits::UNLIMITED, 1), (RateLimits::UNLIMITED, 1)])
    }

    fn terms(&self, subject: &Subject, id: DestinationId) -> Terms {
        let (limits, weight) = &self.of[&id];
        Terms { group: Some(GROUP), weight: *weight, ..subject.terms(limits) }
    }

    async fn edit(&mut self, subject: &Subject, limits: RateLimits) {
        self.group.updated_at = self.group.updated_at + Duration::from_secs(1);
        self.group.rate_limits = limits;
        subject.queue.edited_groups(&[Arc::new(self.group.clone())]).await.expect("edit");
    }

    async fn set_temporary(&mut self, subject: &Subject, temporary: Temporary) {
        self.group.temporary = temporary;
        let below = self.group.rate_limits.clone();
        self.edit(subject, below).await;
    }

    /// Wakes members, as a process does that has read their destinations.
    pub(super) async fn wake(&self, subject: &Subject, ids: impl IntoIterator<Item = DestinationId>) {
        let wake = |destination_id| {
            subject.queue.learn_group(destination_id, Some(GROUP));
            Wake { destination_id, due: subject.clock.now() }
        };
        subject.queue.wake(&ids.into_iter().map(wake).collect::<Vec<_>>()).await.expect("wake");
    }

    /// Runs a member by the terms of its destination and its group.
    pub(super) async fn run(&self, subject: &Subject, lease: JobLease, waiting: u32) -> u32 {
        let terms = self.terms(subject, lease.destination_id);
        subject.run_of_member(lease, terms, &[(&self.group, &self.recovered)], waiting).await
    }

    /// Runs the jobs of these destinations until so much of each is published.
    async fn publish(&self, subject: &Subject, of: &[(u8, u32)]) {
        let mut waiting: BTreeMap<_, _> = of.iter().map(|&(number, count)| (destination(number), count)).collect();
        self.wake(subject, waiting.keys().copied()).await;
        while waiting.values().any(|count| *count > 0) {
            for lease in subject.claim_for(SOON).await {
                let id = lease.destination_id;
                let published = self.run(subject, lease, waiting[&id]).await;
                waiting.entry(id).and_modify(|count| *count -= published);
            }
        }
    }

    /// One permit of each of these destinations, in this order.
    pub(super) async fn permits(&self, subject: &Subject, of: &[u8]) -> Vec<Permit> {
        let mut permits = Vec::new();
        for &number in of {
            self.publish(subject, &[(number, 1)]).await;
            permits.extend(subject.take(1).await);
        }
        permits
    }
}

impl Subject {
    /// Publishes what the turn of a run allows, and no more than waits. A run that finds one of its groups unknown publishes
    /// nothing. `groups`: with the cursors that it recovers then, the inner one first. Returns how much it has published.
    pub(super) async fn run_of_member(
        &self,
        lease: JobLease,
        terms: Terms,
        groups: &[(&LimitGroup, &Limiter)],
        waiting: u32,
    ) -> u32 {
        let id = lease.destination_id;
        let ids = groups.iter().map(|(group, _)| group.id);
        let turn = lease.turn.filter(|turn| turn.groups().map(|of| of.group).eq(ids));
        let is_known = turn.is_some_and(|turn| turn.groups().all(|of| of.is_known));
        let permits = turn.filter(|_| is_known && !terms.suspended).map_or(0, |turn| turn.permits);
        let count = permits.min(waiting);
        let next = match turn {
            _ if terms.suspended => NextRun::Stop,
            Some(_) if is_known && count < waiting => NextRun::Paced,
            Some(_) if is_known => NextRun::Stop,
            _ => NextRun::Now,
        };
        let destination_id = groups[0].0.keys_of.map_or(id, |of| of.destination_id);
        let seen = |id| lease.turn.and_then(|turn| turn.groups().find(|of| of.group == id));
        let read = |&(group, recovered): &(&LimitGroup, &Limiter)| GroupRun {
            terms: Arc::new(group.clone()),
            recovered: seen(group.id).filter(|of| !of.is_known).map(|_| recovered.clone()),
        };
        let groups = groups.iter().map(read).collect();
        let delivery = |number: u32| {
            let mut delivery = self.delivery(number as u8, SOON * 4);
            (delivery.claim.destination_id, delivery.flow_id) = (destination_id, id);
            delivery
        };
        let recovered = lease.cursors.is_none().then(|| Limiter::new(&terms.limits));
        let deliveries = (0..count).map(delivery).collect();
        let publication = Publication { lease, terms: Some(terms), recovered, groups, pace: None, deliveries, next };
        match self.queue.publish(vec![publication]).await.expect("publish").remove(0) {
            Published::Done => count,
            answer => panic!("the publication should be good: {answer:?}"),
        }
    }
}

pub async fn a_destination_without_a_group_has_no_turn(subject: Subject) {
    assert_eq!(subject.begin_run().await.turn, None);
}

pub async fn slots_of_all_members_are_one_spacing_of_their_group_apart(subject: Subject) {
    let members = Members::two(per_second(10));
    // A permit is published only when its slot is near.
    let mut last: Option<Slot> = None;
    for number in [1, 2, 1, 2] {
        let permit = members.permits(&subject, &[number]).await.remove(0);
        let slot = subject.slot(&permit).await;
        subject.assert_wide(slot, Duration::from_millis(10));
        if let Some(last) = last.replace(slot) {
            assert!(slot.start + subject.precision >= last.start + Duration::from_millis(101), "{last:?} {slot:?}");
        }
    }
}

pub async fn a_member_keeps_its_own_limits(subject: Subject) {
    let members = Members::new(per_second(100), &[(per_second(2), 1), (RateLimits::UNLIMITED, 1)]);
    let permits = members.permits(&subject, &[1, 2]).await;
    let own = subject.slot(&permits[0]).await;
    let other = subject.slot(&permits[1]).await;
    assert!(other.start + subject.precision >= own.start + Duration::from_micros(10_100));
    let next = members.permits(&subject, &[1]).await.remove(0);
    assert!(start_of(subject.ask_for_slot(&next).await) + subject.precision >= own.start + Duration::from_millis(505));
}

/// Otherwise a member would lose its own slots to a group that has none.
pub async fn a_slot_that_the_group_refuses_costs_a_member_nothing(subject: Subject) {
    let mut members = Members::new(per_second(100), &[(RateLimits::UNLIMITED, 1), (per_second(1), 1)]);
    let permits = members.permits(&subject, &[1, 2]).await;
    subject.slot(&permits[0]).await;
    // The next slot is nearly two seconds away.
    members.edit(&subject, per_minute(31)).await;
    for _ in 0..3 {
        let answer = subject.ask_for_slot(&permits[1]).await;
        assert!(matches!(answer, SlotAnswer::Later(_)), "{answer:?}");
    }
    members.edit(&subject, RateLimits::UNLIMITED).await;
    let slot = granted(subject.ask_for_slot(&permits[1]).await);
    assert!(slot.start <= subject.clock.now() + subject.precision, "its own limit has not been used");
}

pub async fn a_group_in_costs_counts_the_costs_of_all_members(subject: Subject) {
    let limit = RateLimit::new(100, Period::SECOND).and_then(RateLimit::in_costs);
    let members = Members::two(RateLimits::new(limit.into_iter().collect()).expect("one limit"));
    let permits = members.permits(&subject, &[1, 2]).await;
    let ask = async |permit: &Permit, cost| {
        let request = SlotRequest { cost, ..SlotRequest::new(permit.id) };
        subject.queue.take_slot(request).await.expect("an answer")
    };
    let first = granted(ask(&permits[0], 60).await);
    assert_eq!(ask(&permits[1], 101).await, SlotAnswer::AboveLimit);
    let next = start_of(ask(&permits[1], 41).await);
    assert!(next + subject.precision >= first.end + Duration::from_secs(1), "{next:?} {first:?}");
}

pub async fn a_lowered_limit_of_a_group_applies_to_outstanding_permits(subject: Subject) {
    let mut members = Members::two(per_second(100));
    let permits = members.permits(&subject, &[1, 2]).await;
    let first = subject.slot(&permits[0]).await;
    members.edit(&subject, per_second(1)).await;
    let expected = first.start + Duration::from_millis(1_010);
    assert!(start_of(subject.ask_for_slot(&permits[1]).await) + subject.precision >= expected);
    // An older edit that arrives later changes nothing.
    let old = LimitGroup { updated_at: Timestamp::from_secs(1), rate_limits: per_second(100), ..members.group.clone() };
    subject.queue.edited_groups(&[Arc::new(old)]).await.expect("edit");
    assert!(start_of(subject.ask_for_slot(&permits[1]).await) + subject.precision >= expected);
}

/// An override ends although no process announces it: no permit of any member gets a slot until a run has brought the
/// limits below. The cursors stay.
pub async fn an_override_of_a_group_ends_by_itself_and_resets_no_window(subject: Subject) {
    let mut members = Members::two(per_second(50));
    let permits = members.permits(&subject, &[1, 2, 1]).await;
    let first = subject.slot(&permits[0]).await;
    let until = subject.clock.now() + Duration::from_millis(400);
    let (limits, reason) = (Some(per_second(1)), "their sale".to_owned());
    let overridden = Some(Override { limits, max_in_flight: None, until, reason });
    members.set_temporary(&subject, Temporary { overridden, hold: None }).await;
    let lowered = start_of(subject.ask_for_slot(&permits[1]).await);
    assert!(lowered + subject.precision >= first.start + Duration::from_millis(1_010), "it is in force");
    // The next slot is seconds away, but the group is due at the end.
    members.wake(&subject, [destination(2)]).await;
    let lease = subject.claim().await;
    let now = subject.clock.now();
    assert!(now + subject.precision >= until && now < first.start + Duration::from_secs(1), "at the end");
    assert!(lease.turn.is_some_and(|turn| !turn.is_known && turn.permits == 0));
    assert_eq!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::Withdrawn);
    members.run(&subject, lease, 0).await;
    let mut last = first;
    for permit in &permits[1..] {
        let slot = subject.slot(permit).await;
        assert!(slot.start + subject.precision >= last.start + Duration::from_micros(20_200), "no window begins anew");
        last = slot;
    }
}

/// Nobody waited when it ended, so the group was not due.
pub async fn a_member_that_comes_after_an_override_of_its_group_does_not_wait_for_its_limits(subject: Subject) {
    let mut members = Members::two(per_second(50));
    let permits = members.permits(&subject, &[1, 2]).await;
    let first = subject.slot(&permits[0]).await;
    let until = subject.clock.now() + Duration::from_millis(100);
    let overridden = Override { limits: Some(per_second(1)), max_in_flight: None, until, reason: "a sale".to_owned() };
    members.set_temporary(&subject, Temporary { overridden: Some(overridden), hold: None }).await;
    while subject.ask_for_slot(&permits[1]).await != SlotAnswer::Withdrawn {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    members.wake(&subject, [destination(2)]).await;
    let lease = subject.claim().await;
    assert!(lease.turn.is_some_and(|turn| !turn.is_known));
    assert!(subject.clock.now() < first.start + Duration::from_secs(1));
}

pub async fn a_held_group_grants_no_slot_to_any_member(subject: Subject) {
    let mut members = Members::two(per_second(100));
    let permits = members.permits(&subject, &[1, 2]).await;
    let until = subject.clock.now() + Duration::from_secs(1);
    let hold = |until| Some(Hold { until, reason: "their maintenance".to_owned() });
    members.set_temporary(&subject, Temporary { overridden: None, hold: hold(until) }).await;
    for permit in &permits {
        assert!(start_of(subject.ask_for_slot(permit).await) + subject.precision >= until);
    }
    let long = subject.clock.now() + Duration::from_secs(60);
    members.set_temporary(&subject, Temporary { overridden: None, hold: hold(long) }).await;
    assert_eq!(subject.ask_for_slot(&permits[0]).await, SlotAnswer::Withdrawn);
    // Ended early: both members may send, and at once.
    members.set_temporary(&subject, Temporary::default()).await;
    for permit in &permits {
        subject.slot(permit).await;
    }
    assert!(subject.clock.now() < until);
}

pub async fn a_run_that_has_read_old_terms_of_its_group_publishes_nothing(subject: Subject) {
    let mut members = Members::two(per_second(100));
    members.publish(&subject, &[(1, 1)]).await;
    members.wake(&subject, [destination(1)]).await;
    let lease = subject.claim().await;
    let read = GroupRun { terms: Arc::new(members.group.clone()), recovered: None };
    members.edit(&subject, per_second(50)).await;
    let terms = Some(members.terms(&subject, destination(1)));
    let deliveries = vec![subject.delivery(1, SOON)];
    let publication =
        Publication { lease, terms, recovered: None, groups: vec![read], pace: None, deliveries, next: NextRun::Stop };
    let answer = subject.queue.publish(vec![publication]).await.expect("publish").remove(0);
    assert!(matches!(answer, Published::Stale(_)), "{answer:?}");
    assert_eq!(subject.claim().await.destination_id, destination(1));
}

pub async fn the_sends_of_all_members_count_in_the_max_in_flight_of_their_group(subject: Subject) {
    let mut members = Members::two(RateLimits::UNLIMITED);
    members.group.max_in_flight = Some(2);
    let permits = members.permits(&subject, &[1, 2]).await;
    members.group.max_in_flight = Some(1);
    members.edit(&subject, RateLimits::UNLIMITED).await;
    subject.slot(&permits[0]).await;
    assert_eq!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::NoRoom);
    subject.settle(&permits[0]).await;
    granted(subject.ask_for_slot(&permits[1]).await);
}

pub async fn lost_cursors_of_a_group_continue_from_the_recovered_ones(subject: Subject) {
    let mut members = Members::two(per_second(10));
    let last_start = subject.clock.now() + Duration::from_millis(700);
    members.recovered = Limiter::recovered(&members.group.rate_limits, Some(last_start));
    let permit = members.permits(&subject, &[2]).await.remove(0);
    subject.assert_starts(subject.slot(&permit).await.start, last_start + Duration::from_millis(101));
}

pub async fn a_missed_slot_is_given_back_to_all_budgets_or_to_none(subject: Subject) {
    let own = per_second(2);
    let members = Members::new(per_second(100), &[(own.clone(), 1), (own, 1)]);
    let permits = members.permits(&subject, &[1, 2]).await;
    // The last slot of both: the next one starts at once.
    let missed = subject.slot(&permits[0]).await;
    let again = granted(subject.ask_after_miss(&permits[0], missed).await);
    // Half of its own spacing at most.
    assert!(again.start <= subject.clock.now() + Duration::from_millis(250), "no spacing later");
    // The group has granted another one since: the slot stays taken in both budgets.
    let other = subject.slot(&permits[1]).await;
    subject.until(again.end + subject.precision).await;
    let request = SlotRequest { missed: true, ..SlotRequest::new(permits[0].id) };
    let start = start_of(subject.queue.take_slot(request).await.expect("take a slot"));
    let spacing = RateLimit::new(2, Period::SECOND).expect("a limit").spacing();
    assert!(start + subject.precision >= again.start + spacing && start > other.start);
}

/// The backlog of both is never empty, so that only the turns decide.
pub async fn turns_are_divided_by_weight(subject: Subject) {
    let own = RateLimits::UNLIMITED;
    let members = Members::new(per_second(200), &[(own.clone(), 1), (own, 3)]);
    let mut published = BTreeMap::from([(destination(1), 0), (destination(2), 0)]);
    members.wake(&subject, published.keys().copied()).await;
    let mut largest = 0;
    while published.values().sum::<u32>() < 120 {
        let leases = subject.claim_for(SOON).await;
        largest = leases.iter().filter_map(|lease| lease.turn).map(|turn| turn.permits).sum::<u32>().max(largest);
        for lease in leases {
            let id = lease.destination_id;
            let count = members.run(&subject, lease, 1_000).await;
            published.entry(id).and_modify(|sum| *sum += count);
            // The permits get slots as they are published, so that further slots open.
            for permit in subject.take(count as usize).await {
                subject.slot(&permit).await;
                subject.settle(&permit).await;
            }
        }
    }
    let [one, two] = [1, 2].map(|number| published[&destination(number)]);
    // A lag is one run's permits at most.
    assert!(two.abs_diff(3 * one) <= 3 * largest, "{one} and {two}, at most {largest} in a run");
}

pub async fn no_more_permits_are_queued_under_a_group_than_its_rate(subject: Subject) {
    let members = Members::new(per_second(2), &std::array::from_fn::<_, 6, _>(|_| (RateLimits::UNLIMITED, 1)));
    members.wake(&subject, members.of.keys().copied()).await;
    let until = subject.clock.now() + Duration::from_secs(2);
    let mut published = 0;
    // No permit gets a slot: after the first runs nothing is due any more, or runs find nothing that they may publish.
    while subject.clock.now() < until {
        let due = tokio::time::timeout(until.since(subject.clock.now()), subject.queue.claim_due(16, SOON)).await;
        for lease in due.into_iter().flat_map(|due| due.expect("claim").leases) {
            published += members.run(&subject, lease, 10).await;
        }
    }
    assert!((1..=2).contains(&published), "{published} permits are queued under two a second");
}

/// Moves inside one home: the budgets of the member are others from the edit on.
pub async fn a_destination_that_leaves_its_group_has_only_its_own_budget(subject: Subject) {
    let members = Members::two(per_minute(1));
    let permits = members.permits(&subject, &[1]).await;
    subject.slot(&permits[0]).await;
    subject.settle(&permits[0]).await;
    let terms = Terms { version: Timestamp::from_secs(1_000), group: None, ..members.terms(&subject, destination(1)) };
    let change = TermsChange { destination_id: destination(1), terms: terms.clone() };
    subject.queue.edited(&[change]).await.expect("edit");
    let lease = subject.claim().await;
    assert_eq!(lease.turn, None);
    let deliveries = vec![subject.delivery(1, SOON)];
    assert!(matches!(subject.publish_under(lease, terms, deliveries, NextRun::Stop).await, Published::Done));
    let permit = subject.take(1).await.remove(0);
    let slot = granted(subject.ask_for_slot(&permit).await);
    assert!(slot.start <= subject.clock.now() + subject.precision, "the group's minute does not count");
}
