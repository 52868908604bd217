//! Destinations that share limit groups: caps of every budget through edits, moves and crashes, and fair shares.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use weir_core::{
    Destination, DestinationId, LimitGroup, LimitGroupId, Limiter, Period, RateLimits, Slot, Timestamp,
    plan::{self, Allowance, Observed},
};
use weir_queue::{
    GroupRun, HandedBack, JobLease, PermitId, Publication, Published, Settled, SlotAnswer, SlotRequest, Terms,
    TermsChange, Wake, WantedSlot, conformance::settings, memory::JobTable,
};

use crate::{
    in_windows,
    world::{LEASE, START, delivery, limits},
};

/// Workers ask for a slot this long before it is expected, and send at most this late.
const ASK_AHEAD: Duration = Duration::from_millis(10);
const LATE: Duration = Duration::from_millis(2);
/// What was granted before an edit or a move binds after this time.
pub(crate) const SETTLED: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Asks(PermitOrder, bool),
    /// The slot, and the groups whose budgets it was taken from.
    Opens(PermitOrder, i64, i64, [Option<usize>; 2]),
    Answered(PermitOrder),
}

/// The flow and the serial of a permit.
type PermitOrder = (usize, u64);

/// A budget's limits since when, and the sends that count in it.
#[derive(Default)]
pub(crate) struct Judged {
    limits: Vec<(Timestamp, RateLimits)>,
    sends: Vec<Timestamp>,
}

impl Judged {
    pub(crate) fn edit(&mut self, now: Timestamp, limits: RateLimits) {
        self.limits.push((now, limits));
    }

    /// No window holds more sends than the largest limit that was in force in it, where all had one of its period.
    fn assert_cap(&self, name: &str) {
        let mut sends = self.sends.clone();
        sends.sort_unstable();
        for (index, first) in sends.iter().enumerate() {
            let since = self.limits.iter().rposition(|(at, _)| *at + SETTLED <= *first).unwrap_or(0);
            for limit in self.limits[since].1.as_slice() {
                let end = *first + limit.period.window();
                let spanned = self.limits[since..].iter().take_while(|(at, _)| *at < end);
                let of_period = |(_, limits): &(Timestamp, RateLimits)| {
                    let limit = limits.as_slice().iter().find(|other| other.period == limit.period)?;
                    Some(limit.limit.get() as usize)
                };
                let Some(bounds) = spanned.map(of_period).collect::<Option<Vec<_>>>() else { continue };
                let sends = sends[index..].iter().take_while(|send| **send < end).count();
                assert!(sends <= bounds.into_iter().max().unwrap(), "{name}: {sends} sends from {first} on");
            }
        }
    }
}

pub(crate) struct Flow {
    pub(crate) limits: RateLimits,
    weight: u16,
    pub(crate) group: Option<usize>,
    version: i64,
    pub(crate) backlog: u64,
    pub(crate) judged: Judged,
}

pub(crate) struct World {
    pub(crate) table: JobTable,
    pub(crate) now: Timestamp,
    pub(crate) flows: Vec<Flow>,
    pub(crate) groups: Vec<(LimitGroup, Judged)>,
    events: BinaryHeap<Reverse<(Timestamp, Event)>>,
    publications: Vec<(Timestamp, Publication)>,
    run_time: Duration,
    pub(crate) answer: Duration,
    pub(crate) runs: u64,
    pub(crate) random: u64,
    callers: Callers,
}

/// Callers of the first group outside Weir, who always want so many slots.
#[derive(Default)]
struct Callers {
    wanted: usize,
    width: Duration,
    asks_at: Timestamp,
    slots: Vec<Slot>,
}

fn id(flow: usize) -> DestinationId {
    DestinationId::from_bytes((flow as u128 + 1).to_be_bytes())
}

fn flow(id: DestinationId) -> usize {
    u128::from_be_bytes(*id.as_bytes()) as usize - 1
}

pub(crate) fn per_second(rate: u32) -> RateLimits {
    limits(&[(rate, Period::SECOND)])
}

impl World {
    pub(crate) fn new(shared: &[RateLimits]) -> Self {
        let group = |(number, limits): (usize, &RateLimits)| {
            let group = LimitGroup {
                keys_of: None,
                id: LimitGroupId::from_bytes([number as u8; 16]),
                tenant: None,
                name: String::new(),
                rate_limits: limits.clone(),
                max_in_flight: None,
                temporary: Default::default(),
                created_at: START,
                updated_at: START,
            };
            (group, Judged { limits: vec![(START, limits.clone())], sends: Vec::new() })
        };
        Self {
            table: JobTable::new(START),
            now: START,
            flows: Vec::new(),
            groups: shared.iter().enumerate().map(group).collect(),
            events: BinaryHeap::new(),
            publications: Vec::new(),
            run_time: Duration::ZERO,
            answer: Duration::from_millis(5),
            runs: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            callers: Callers::default(),
        }
    }

    /// A member of the first group.
    pub(crate) fn add(&mut self, limits: RateLimits, weight: u16, backlog: u64) {
        let judged = Judged { limits: vec![(START, limits.clone())], sends: Vec::new() };
        self.flows.push(Flow { limits, weight, group: Some(0), version: 0, backlog, judged });
        self.wake(self.flows.len() - 1);
    }

    pub(crate) fn wake(&mut self, flow: usize) {
        self.table.wake(Wake { destination_id: id(flow), due: self.now });
    }

    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % most.max(1)
    }

    /// The group of a flow and, where that is the budget of limit keys, the limit group of their destination.
    fn shared_by(&self, flow: usize) -> [Option<usize>; 2] {
        let group = self.flows[flow].group;
        let outer = group.and_then(|group| self.groups[group].0.outer());
        [group, outer.and_then(|outer| self.groups.iter().position(|(group, _)| group.id == outer))]
    }

    fn terms(&self, flow: usize) -> Terms {
        let of = &self.flows[flow];
        let group = of.group.map(|group| &self.groups[group].0);
        let keyed = group.filter(|group| group.keys_of.is_some());
        let updated_at = keyed.map_or(Timestamp::from_secs(of.version), |destination| destination.updated_at);
        let mut destination = Destination { id: id(flow), updated_at, ..settings(&of.limits, 10_000) };
        destination.settings.limit_group = group.map(|group| group.id);
        destination.settings.paused = keyed.and_then(|group| group.keys_of).is_some_and(|of| of.suspended);
        destination.settings.weight = of.weight;
        Terms { outer: group.and_then(LimitGroup::outer), ..Terms::of(&destination, self.now) }
    }

    pub(crate) fn announce(&mut self, flow: usize) {
        self.flows[flow].version += 1;
        let terms = self.terms(flow);
        self.table.edited(self.now, &TermsChange { destination_id: id(flow), terms });
    }

    pub(crate) fn edit_group(&mut self, group: usize, limits: RateLimits) {
        let (terms, judged) = &mut self.groups[group];
        terms.updated_at = terms.updated_at + Duration::from_secs(1);
        terms.rate_limits = limits.clone();
        judged.edit(self.now, limits);
        self.table.edited_group(self.now, &Arc::new(terms.clone()));
    }

    /// The process dies. What was sent is recorded.
    pub(crate) fn crash(&mut self) {
        self.table = JobTable::new(self.now);
        self.events.clear();
        self.publications.clear();
        for flow in 0..self.flows.len() {
            self.wake(flow);
        }
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            let published = self.publications.iter().map(|(at, _)| *at).min();
            let event = self.events.peek().map(|Reverse((at, _))| *at);
            let asked = (self.callers.wanted > 0).then_some(self.callers.asks_at);
            let next = [self.table.next_due(), event, published, asked].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            for lease in self.table.claim_due(self.now, 256, LEASE) {
                self.runs += 1;
                let publication = self.run(lease);
                self.publications.push((self.now + self.run_time, publication));
            }
            let now = self.now;
            let publications = std::mem::take(&mut self.publications).into_iter();
            let (due, later): (Vec<_>, _) = publications.partition(|(at, _)| *at <= now);
            self.publications = later;
            for (_, publication) in due {
                let flow = flow(publication.lease.destination_id);
                if let Published::Stale(back) = self.table.publish(now, publication) {
                    self.flows[flow].backlog += back.len() as u64;
                }
            }
            for permit in self.table.take(usize::MAX) {
                let asks_at = permit.expected_at.map_or(now, |at| (at - ASK_AHEAD).max(now));
                let order = (flow(permit.id.destination_id), permit.id.serial);
                self.events.push(Reverse((asks_at, Event::Asks(order, false))));
            }
            if asked.is_some_and(|at| at <= now) {
                self.reserve();
            }
            while let Some(Reverse((_, event))) = self.events.peek().copied().filter(|Reverse((at, _))| *at <= now) {
                self.events.pop();
                self.handle(event);
            }
        }
        self.now = end;
    }

    /// The callers ask for slots, and start their calls anywhere in them.
    fn reserve(&mut self) {
        let (terms, judged) = &self.groups[0];
        let recovered = Some(Limiter::recovered(&terms.rate_limits, judged.sends.iter().max().copied()));
        let run = GroupRun { terms: Arc::new(terms.clone()), recovered };
        let wanted = vec![WantedSlot { cost: 1, width: self.callers.width }; self.callers.wanted];
        let answer = self.table.reserve_slots(self.now, &run, &wanted);
        assert!(!answer.is_unknown && !answer.is_above_limit, "{answer:?}");
        for slot in answer.granted {
            assert!(slot.end.since(slot.start) >= self.callers.width && slot.start >= self.now);
            let at = self.below(slot.end.since(slot.start).as_nanos() as u64);
            self.groups[0].1.sends.push(slot.start + Duration::from_nanos(at));
            self.callers.slots.push(slot);
        }
        self.callers.asks_at = answer.next.unwrap_or(self.now).max(self.now + Duration::from_millis(1));
    }

    /// What a scheduler does.
    fn run(&mut self, lease: JobLease) -> Publication {
        let number = flow(lease.destination_id);
        let terms = self.terms(number);
        let last = |judged: &Judged| judged.sends.iter().max().copied();
        let of = &self.flows[number];
        let recovered = lease.cursors.is_none().then(|| Limiter::recovered(&of.limits, last(&of.judged)));
        let seen = |id| lease.turn.and_then(|turn| turn.groups().find(|of| of.group == id)).map(|of| of.is_known);
        let groups = self.shared_by(number).into_iter().flatten().map(|group| {
            let (terms, judged) = &self.groups[group];
            let is_lost = seen(terms.id) == Some(false);
            let recovered = is_lost.then(|| Limiter::recovered(&terms.rate_limits, last(judged)));
            GroupRun { terms: Arc::new(terms.clone()), recovered }
        });
        let groups: Vec<_> = groups.collect();
        let mut cursors = lease.cursors.clone().or(recovered.clone()).unwrap();
        cursors.reconfigure(&of.limits);
        let turn = match (&terms.group, lease.turn) {
            (None, None) => Some(u32::MAX),
            (Some(group), Some(turn))
                if turn.group == *group
                    && turn.groups().all(|of| of.is_known)
                    && turn.outer.map(|of| of.group) == terms.outer =>
            {
                Some(turn.permits)
            }
            _ => None,
        };
        let allowance = turn.map_or(Allowance::NOT_YET, |turn| {
            let observed = Observed {
                now: self.now,
                cursors: &cursors,
                pace: None,
                preparation: lease.preparation,
                run_time: lease.run_time,
                ahead: lease.ahead,
                queued: lease.queued,
                in_flight: lease.in_flight,
                max_in_flight: terms.max_in_flight,
                max_queued: of.limits.max_queued(),
                suspended: terms.suspended,
                breaker: &weir_core::breaker::Breaker::default(),
                lagging: false,
            };
            plan::allowance(&observed).within_turn(turn)
        });
        let claimed = u64::from(allowance.allow).min(of.backlog);
        let next = plan::next_run(allowance, (claimed as u32) < allowance.allow, None);
        self.flows[number].backlog -= claimed;
        let mut delivery = delivery(self.now);
        delivery.flow_id = lease.destination_id;
        let deliveries = vec![delivery; claimed as usize];
        Publication { lease, terms: Some(terms), recovered, groups, pace: None, deliveries, next }
    }

    fn handle(&mut self, event: Event) {
        let (Event::Asks(order, _) | Event::Opens(order, ..) | Event::Answered(order)) = event;
        let permit = PermitId { destination_id: id(order.0), serial: order.1 };
        match event {
            Event::Asks(_, missed) => self.ask(order, SlotRequest { missed, ..SlotRequest::new(permit) }),
            Event::Opens(_, start, end, groups) => {
                let slot = Slot { start: Timestamp::from_nanos(start), end: Timestamp::from_nanos(end) };
                if !slot.contains(self.now) {
                    return self.ask(order, SlotRequest { missed: true, ..SlotRequest::new(permit) });
                }
                self.flows[order.0].judged.sends.push(self.now);
                for group in groups.into_iter().flatten() {
                    self.groups[group].1.sends.push(self.now);
                }
                self.events.push(Reverse((self.now + self.answer, Event::Answered(order))));
            }
            Event::Answered(_) => {
                let answered = Some(self.now - self.answer);
                self.table.settle(self.now, Settled { id: permit, answered });
            }
        }
    }

    fn ask(&mut self, order: PermitOrder, request: SlotRequest) {
        match self.table.take_slot(self.now, request) {
            SlotAnswer::Granted(Slot { start, end }, _) => {
                let late = Duration::from_nanos(self.below(LATE.as_nanos() as u64));
                let (at, groups) = (start.max(self.now) + late, self.shared_by(order.0));
                self.events.push(Reverse((at, Event::Opens(order, start.as_nanos(), end.as_nanos(), groups))));
            }
            SlotAnswer::Later(start) => self.events.push(Reverse((start - ASK_AHEAD, Event::Asks(order, false)))),
            SlotAnswer::NoRoom => {
                self.events.push(Reverse((self.now + Duration::from_millis(2), Event::Asks(order, false))));
            }
            SlotAnswer::AboveLimit | SlotAnswer::Withdrawn => {
                self.table.hand_back(self.now, HandedBack { id: request.id, crowded: false });
                self.flows[order.0].backlog += 1;
                self.wake(order.0);
            }
        }
    }

    /// Sends of each flow from `since` on.
    pub(crate) fn sent(&self, since: Timestamp) -> Vec<usize> {
        let of = |flow: &Flow| flow.judged.sends.iter().filter(|send| **send >= since).count();
        self.flows.iter().map(of).collect()
    }

    pub(crate) fn assert_caps(&self) {
        for (number, flow) in self.flows.iter().enumerate() {
            flow.judged.assert_cap(&format!("flow {number}"));
        }
        for (number, (_, judged)) in self.groups.iter().enumerate() {
            judged.assert_cap(&format!("group {number}"));
        }
    }

    /// Lets the backlogs begin, and counts the sends of ten seconds.
    pub(crate) fn sent_in_ten_seconds(&mut self) -> Vec<usize> {
        self.run_for(Duration::from_secs(2));
        let since = self.now;
        self.run_for(Duration::from_secs(10));
        self.assert_caps();
        self.sent(since)
    }
}

pub(crate) const MANY: u64 = 1_000_000;

pub(crate) fn jain(sent: &[usize]) -> f64 {
    let (sum, squares) =
        sent.iter().fold((0.0, 0.0), |(sum, squares), &count| (sum + count as f64, squares + (count as f64).powi(2)));
    sum * sum / (sent.len() as f64 * squares)
}

pub(crate) fn used(sent: &[usize], per_second: u32) -> f64 {
    sent.iter().sum::<usize>() as f64 / (10.0 * f64::from(per_second))
}

#[test]
fn members_with_equal_backlogs_get_equal_shares_and_use_the_group() {
    for (members, rate) in [(2, 10), (20, 100), (50, 1_000)] {
        let mut world = World::new(&[per_second(rate)]);
        for _ in 0..members {
            world.add(RateLimits::UNLIMITED, 1, MANY);
        }
        let sent = world.sent_in_ten_seconds();
        assert!(jain(&sent) >= 0.99, "{members} under {rate}/s: {}", jain(&sent));
        assert!(used(&sent, rate) >= 0.985, "{members} under {rate}/s: {}", used(&sent, rate));
    }
}

/// Fifty callers, and so many members with a backlog. Returns the sends of the members and the reserved slots of ten seconds.
fn beside_callers(shared: RateLimits, width: Duration, members: usize) -> (Vec<usize>, usize) {
    let mut world = World::new(&[shared]);
    world.callers = Callers { wanted: 50, width, asks_at: START, slots: Vec::new() };
    for _ in 0..members {
        world.add(RateLimits::UNLIMITED, 1, MANY);
    }
    let sent = world.sent_in_ten_seconds();
    let since = world.now - Duration::from_secs(10);
    (sent, world.callers.slots.iter().filter(|slot| slot.start >= since).count())
}

#[test]
fn fifty_callers_together_have_the_turns_of_one_member() {
    for rate in [20, 100, 1_000] {
        let (sent, reserved) = beside_callers(per_second(rate), Duration::from_millis(10), 3);
        let all = [&sent[..], &[reserved]].concat();
        assert!(jain(&sent) >= 0.99, "under {rate}/s: {all:?}");
        assert!(used(&all, rate) >= 0.985, "under {rate}/s: {} by {all:?}", used(&all, rate));
        let share = reserved as f64 / all.iter().sum::<usize>() as f64;
        assert!((0.225..=0.275).contains(&share), "under {rate}/s: {share} by {all:?}");
    }
}

/// A wide slot is counted until its end.
#[test]
fn wide_slots_of_callers_keep_every_window_and_the_shares_of_the_members() {
    let shapes = [
        per_second(100),
        in_windows(&[(100, Period::SECOND)]),
        limits(&[(100, Period::SECOND), (6_000, Period::MINUTE)]),
    ];
    for shared in shapes {
        let (sent, reserved) = beside_callers(shared, Duration::from_millis(250), 3);
        let all = [&sent[..], &[reserved]].concat();
        assert!(jain(&sent) >= 0.99, "{all:?}");
        assert!(used(&all, 100) >= 0.75, "{} by {all:?}", used(&all, 100));
    }
}

#[test]
fn callers_alone_get_all_slots_of_their_group() {
    for rate in [5, 100] {
        let (_, reserved) = beside_callers(per_second(rate), Duration::from_millis(10), 0);
        assert!(used(&[reserved], rate) >= 0.975, "{}", used(&[reserved], rate));
    }
}

#[test]
fn members_get_shares_by_their_weights() {
    for rate in [20, 200] {
        let mut world = World::new(&[per_second(rate)]);
        for weight in [1, 2, 5] {
            world.add(RateLimits::UNLIMITED, weight, MANY);
        }
        let sent = world.sent_in_ten_seconds();
        let total = sent.iter().sum::<usize>() as f64;
        for (count, weight) in sent.iter().zip([1.0, 2.0, 5.0]) {
            let share = *count as f64 / total / (weight / 8.0);
            assert!((0.9..=1.1).contains(&share), "weight {weight} under {rate}/s: {share} of its share");
        }
        assert!(used(&sent, rate) >= 0.985, "{}", used(&sent, rate));
    }
}

#[test]
fn what_a_member_cannot_use_goes_to_the_others() {
    let mut world = World::new(&[per_second(100)]);
    world.add(per_second(5), 10, MANY);
    world.add(limits(&[(60, Period::MINUTE)]), 10, MANY);
    world.add(RateLimits::UNLIMITED, 1, MANY);
    world.add(RateLimits::UNLIMITED, 1, MANY);
    let sent = world.sent_in_ten_seconds();
    assert!((48..=51).contains(&sent[0]) && (9..=11).contains(&sent[1]), "{sent:?}");
    assert!(sent[2].abs_diff(sent[3]) <= 10, "{sent:?}");
    assert!(used(&sent, 100) >= 0.985, "{}", used(&sent, 100));
}

#[test]
fn a_flood_of_one_member_does_not_delay_one_event_of_each_of_the_others() {
    let mut world = World::new(&[per_second(100)]);
    world.add(RateLimits::UNLIMITED, 1, MANY);
    world.run_for(Duration::from_secs(5));
    let since = world.now;
    for _ in 0..100 {
        world.add(RateLimits::UNLIMITED, 1, 1);
    }
    // The hundred alone take a second.
    world.run_for(Duration::from_millis(1_300));
    let sent = world.sent(since);
    assert!(sent[1..].iter().all(|count| *count == 1), "{sent:?}");
    world.assert_caps();
}

#[test]
fn a_thousand_waiting_members_cost_no_more_runs_than_the_group_has_slots() {
    let mut world = World::new(&[per_second(10)]);
    for _ in 0..1_000 {
        world.add(RateLimits::UNLIMITED, 1, MANY);
    }
    world.run_for(Duration::from_secs(2));
    let (before, since) = (world.runs, world.now);
    world.run_for(Duration::from_secs(10));
    let runs = world.runs - before;
    assert!(runs <= 120, "{runs} runs for 100 slots");
    assert!(world.sent(since).iter().sum::<usize>() >= 98);
}

#[test]
fn slow_runs_and_windows_cost_a_group_no_slots() {
    for (shared, rate) in [(per_second(50), 50), (in_windows(&[(50, Period::SECOND)]), 50)] {
        let mut world = World::new(&[shared]);
        world.run_time = Duration::from_millis(60);
        for weight in 1..=5 {
            world.add(RateLimits::UNLIMITED, weight, MANY);
        }
        let sent = world.sent_in_ten_seconds();
        assert!(used(&sent, rate) >= 0.98, "{}", used(&sent, rate));
    }
}

#[test]
fn the_max_in_flight_of_a_group_bounds_its_members_and_their_runs() {
    let mut world = World::new(&[RateLimits::UNLIMITED]);
    world.groups[0].0.max_in_flight = Some(8);
    world.answer = Duration::from_secs(1);
    for _ in 0..4 {
        world.add(RateLimits::UNLIMITED, 1, MANY);
    }
    let sent = world.sent_in_ten_seconds();
    assert!((76..=80).contains(&sent.iter().sum::<usize>()), "{sent:?}");
    assert!(sent.iter().all(|count| (17..=23).contains(count)), "{sent:?}");
    assert!(world.runs < 300, "{} runs", world.runs);
}

#[test]
fn an_edit_of_a_group_binds_within_100_ms_and_resets_no_window() {
    let mut world = World::new(&[per_second(10)]);
    for _ in 0..3 {
        world.add(RateLimits::UNLIMITED, 1, MANY);
    }
    for rate in [100, 5, 1, 50] {
        world.run_for(Duration::from_secs(5));
        world.edit_group(0, per_second(rate));
        let since = world.now + SETTLED;
        world.run_for(Duration::from_secs(10) + SETTLED);
        let sent = world.sent(since).iter().sum::<usize>() as f64;
        let expected = f64::from(rate) * 10.0;
        assert!((sent - expected).abs() <= expected * 0.02 + 1.0, "{sent} of {expected}");
    }
    world.assert_caps();
}

/// Edits of members and groups, moves and crashes at random times. Each budget keeps its shape.
#[test]
fn every_budget_holds_through_edits_moves_and_crashes() {
    let own = |flow, rate| if flow % 2 == 0 { per_second(rate) } else { in_windows(&[(rate, Period::SECOND)]) };
    for round in 0..6 {
        let mut world = World::new(&[per_second(20), limits(&[(10, Period::SECOND), (300, Period::MINUTE)])]);
        world.random ^= round << 20;
        for number in 0..6 {
            world.add(own(usize::from(number), 8), number + 1, MANY);
        }
        for _ in 0..60 {
            let pause = Duration::from_millis(world.below(1_500));
            world.run_for(pause);
            let (kind, rate, flow) = (world.below(5), 1 + world.below(40) as u32, world.below(6) as usize);
            match kind {
                0 => world.edit_group(0, per_second(rate)),
                1 => {
                    let new = own(flow, rate);
                    world.flows[flow].limits = new.clone();
                    let now = world.now;
                    world.flows[flow].judged.edit(now, new);
                    world.announce(flow);
                }
                2 | 3 => {
                    world.flows[flow].group = [None, Some(0), Some(1)][world.below(3) as usize];
                    world.announce(flow);
                }
                _ => world.crash(),
            }
        }
        world.assert_caps();
        assert!(world.sent(START).iter().sum::<usize>() > 300);
    }
}

/// Its slots come while others have permits for all slots until the next run of the group.
#[test]
fn a_member_below_its_share_gets_the_slots_of_its_own_and_the_group_is_used() {
    for (own, least) in [(2, 19), (5, 49), (7, 64), (10, 97), (15, 135), (20, 194), (25, 220), (40, 280), (50, 320)] {
        let mut world = World::new(&[per_second(100)]);
        world.add(per_second(own), 1, MANY);
        world.add(RateLimits::UNLIMITED, 1, MANY);
        world.add(RateLimits::UNLIMITED, 1, MANY);
        let sent = world.sent_in_ten_seconds();
        assert!(sent[0] >= least, "{own} a second: {sent:?}");
        assert!(used(&sent, 100) >= 0.985, "{own} a second: {} by {sent:?}", used(&sent, 100));
    }
}
