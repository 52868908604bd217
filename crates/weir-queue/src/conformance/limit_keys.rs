//! Limit keys: a destination is the group of its keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use weir_core::{
    Destination, DestinationId, LimitKey, Limiter, RateLimits, Timestamp,
    limit_key::{KeyLimits, budget_of_keys},
    plan::MOST_AHEAD,
    stall::Progress,
};

use super::{SOON, Subject, destination, granted, per_minute, per_second, settings, slots::start_of};
use crate::{Hold, JobLease, Permit, SlotAnswer, Terms, TermsChange, Wake};

/// Longer than a permit waits for its slot.
const LONG: Duration = Duration::from_secs(60);

/// A destination with limit keys.
pub(super) struct Keyed {
    pub(super) destination: Destination,
    /// The keys whose flows are known.
    keys: BTreeMap<DestinationId, LimitKey>,
}

impl Keyed {
    pub(super) fn new(shared: RateLimits, of_each: RateLimits) -> Self {
        let mut destination = settings(&shared, 64);
        destination.updated_at = Timestamp::from_secs(1);
        destination.keyed_at = Some(Timestamp::from_secs(1));
        destination.settings.key_limits = Some(Arc::new(KeyLimits {
            pointer: "/customer".to_owned(),
            rate_limits: of_each,
            max_in_flight: None,
            weight: 1,
            overrides: BTreeMap::new(),
        }));
        Self { destination, keys: BTreeMap::new() }
    }

    /// The id by which calls name the budget that the keys share.
    fn budget(&self) -> DestinationId {
        DestinationId::from_bytes(*budget_of_keys(self.destination.id).as_bytes())
    }

    /// Whether it is one of its flows, with a known key or without one.
    pub(super) fn knows(&self, flow: DestinationId) -> bool {
        flow == self.destination.id || self.keys.contains_key(&flow)
    }

    pub(super) fn flow(&mut self, key: &str) -> DestinationId {
        let key = LimitKey::new(key);
        let id = key.flow_id(self.destination.id);
        self.keys.insert(id, key);
        id
    }

    pub(super) fn terms(&self, subject: &Subject, id: DestinationId) -> Terms {
        let outer = self.destination.outer_group();
        Terms { outer, ..Terms::of(&self.destination.flow(self.keys.get(&id)), subject.clock.now()) }
    }

    /// An edit, as it is announced: one call for the budget and one for the flow without a key, whose run finds nothing.
    pub(super) async fn edit(&mut self, subject: &Subject, change: impl FnOnce(&mut Destination)) {
        self.destination.updated_at = self.destination.updated_at + Duration::from_secs(1);
        change(&mut self.destination);
        subject.queue.edited_groups(&[Arc::new(self.destination.as_group())]).await.expect("edit");
        let (destination_id, terms) = (self.destination.id, Terms::of(&self.destination, subject.clock.now()));
        subject.queue.edited(&[TermsChange { destination_id, terms }]).await.expect("edit");
    }

    async fn set_limits(&mut self, subject: &Subject, shared: RateLimits, of_each: RateLimits) {
        self.edit(subject, |destination| {
            let limits = destination.settings.key_limits.take().map(Arc::unwrap_or_clone);
            destination.settings.key_limits =
                limits.map(|limits| Arc::new(KeyLimits { rate_limits: of_each, ..limits }));
            destination.settings.rate_limits = shared;
        })
        .await;
    }

    async fn hold(&self, subject: &Subject, until: Timestamp, sent_at: Timestamp) {
        let hold = Hold { destination_id: self.budget(), until, sent_at };
        subject.queue.hold(&[hold]).await.expect("hold");
    }

    pub(super) async fn wake(&mut self, subject: &Subject, keys: &[&str]) {
        let due = subject.clock.now();
        let group = self.destination.settings.limit_group;
        let wake = |key: &&str| {
            let destination_id = self.flow(key);
            subject.queue.learn_group(destination_id, group);
            Wake { destination_id, due }
        };
        let wakes: Vec<_> = keys.iter().map(wake).collect();
        subject.queue.wake(&wakes).await.expect("wake");
    }

    async fn run(&self, subject: &Subject, lease: JobLease, waiting: u32) -> u32 {
        let terms = self.terms(subject, lease.destination_id);
        let group = self.destination.as_group();
        subject.run_of_member(lease, terms, &[(&group, &Limiter::new(&group.rate_limits))], waiting).await
    }

    /// Runs what is due, with this backlog of each key, until the queue says that nothing is. Returns how often.
    async fn run_until_nothing_is_due(&self, subject: &Subject, waiting: u32) -> u32 {
        let mut runs = 0;
        while let Ok(due) = tokio::time::timeout(super::ABSENCE, subject.queue.claim_due(16, SOON)).await {
            for lease in due.expect("claim").leases {
                runs += 1;
                assert!(runs < 100, "the runs have no end");
                self.run(subject, lease, waiting).await;
            }
        }
        runs
    }

    /// Workers get no slots for these permits, and hand them back.
    async fn withdrawn(&self, subject: &Subject, permits: &[Permit]) {
        for permit in permits {
            assert_eq!(subject.ask_for_slot(permit).await, SlotAnswer::Withdrawn);
            subject.hand_back(permit, false).await;
        }
    }

    /// One permit of each of these keys, in this order.
    async fn permits(&mut self, subject: &Subject, keys: &[&str]) -> Vec<Permit> {
        let mut permits = Vec::new();
        for key in keys {
            self.wake(subject, &[key]).await;
            let flow = self.flow(key);
            permits.push(subject.permit_of(flow, async |lease, waiting| self.run(subject, lease, waiting).await).await);
        }
        permits
    }
}

impl Subject {
    /// Publishes one delivery of a flow that was woken, and takes its permit. `run` runs a job that has this backlog.
    pub(super) async fn permit_of(&self, flow: DestinationId, run: impl AsyncFn(JobLease, u32) -> u32) -> Permit {
        let mut published = 0;
        while published == 0 {
            for lease in self.claim_for(SOON).await {
                let waiting = u32::from(lease.destination_id == flow);
                published += run(lease, waiting).await;
            }
        }
        self.take(1).await.remove(0)
    }

    /// Runs what is due, with backlogs that are never empty, until so many permits are used. Returns how many each flow had, and
    /// the most that the turns of one claim had.
    pub(super) async fn use_turns(
        &self,
        permits: u32,
        run: impl AsyncFn(JobLease, u32) -> u32,
    ) -> (BTreeMap<DestinationId, u32>, u32) {
        let (mut published, mut largest) = (BTreeMap::new(), 0);
        while published.values().sum::<u32>() < permits {
            let leases = self.claim_for(SOON).await;
            largest = leases.iter().filter_map(|lease| lease.turn).map(|turn| turn.permits).sum::<u32>().max(largest);
            for lease in leases {
                let id = lease.destination_id;
                let count = run(lease, 1_000).await;
                *published.entry(id).or_default() += count;
                for permit in self.take(count as usize).await {
                    self.slot(&permit).await;
                    self.settle(&permit).await;
                }
            }
        }
        (published, largest)
    }

    /// Runs every due job, with no delivery waiting, until each of these flows has had a turn.
    pub(super) async fn give_empty_turns(&self, flows: &[DestinationId], run: impl AsyncFn(JobLease, u32) -> u32) {
        let mut left: BTreeSet<_> = flows.iter().copied().collect();
        while !left.is_empty() {
            for lease in self.claim_for(SOON).await {
                let (id, has_turn) = (lease.destination_id, lease.turn.is_some_and(|turn| turn.permits > 0));
                run(lease, 0).await;
                if has_turn {
                    left.remove(&id);
                }
            }
        }
    }

    pub(super) async fn progress_of(&self, id: DestinationId) -> Progress {
        self.queue.progress(&[destination(7), id]).await.expect("progress").of[1]
    }
}

pub async fn a_limit_key_has_slots_from_its_own_budget_and_that_of_its_destination(subject: Subject) {
    let mut keyed = Keyed::new(per_second(100), per_minute(2));
    let permits = keyed.permits(&subject, &["a", "b"]).await;
    assert_eq!(permits[0].id.destination_id, keyed.flow("a"));
    assert_eq!(permits[0].delivery.flow_id, keyed.flow("a"));
    assert_eq!(permits[0].delivery.claim.destination_id, destination(1));
    let of_a = subject.slot(&permits[0]).await;
    let of_b = subject.slot(&permits[1]).await;
    assert!(of_b.start + subject.precision >= of_a.start + Duration::from_micros(10_100));
    assert!(of_b.start < of_a.start + Duration::from_secs(30), "each key has limits of its own");
    let next = subject.progress_of(keyed.flow("a")).await.next_start.expect("known cursors");
    assert!(next + subject.precision >= of_a.start + Duration::from_secs(30), "{next:?} after {of_a:?}");
}

/// Nobody says to each key that the destination was edited.
pub async fn an_edit_of_a_destination_binds_the_outstanding_permits_of_all_its_limit_keys(subject: Subject) {
    let mut keyed = Keyed::new(per_second(100), RateLimits::UNLIMITED);
    let permits = keyed.permits(&subject, &["a", "b", "c", "b"]).await;
    subject.slot(&permits[0]).await;
    keyed.set_limits(&subject, per_second(100), per_second(1)).await;
    for permit in &permits[1..] {
        assert_eq!(subject.ask_for_slot(permit).await, SlotAnswer::Withdrawn, "the limits of the key are old ones");
    }
    // The keys whose permits were refused run, and no other: the flow without a key was told of the edit.
    assert_eq!(keyed.run_until_nothing_is_due(&subject, 0).await, 3);
    let of_b = subject.slot(&permits[1]).await;
    granted(subject.ask_for_slot(&permits[2]).await);
    let next = start_of(subject.ask_for_slot(&permits[3]).await);
    assert!(next + subject.precision >= of_b.start + Duration::from_millis(1_010), "{next:?} after {of_b:?}");
}

pub async fn an_edit_of_a_destination_runs_a_limit_key_that_waits_for_a_slot_of_its_own(subject: Subject) {
    let mut keyed = Keyed::new(per_second(100), per_minute(1));
    let permit = keyed.permits(&subject, &["a"]).await.remove(0);
    subject.slot(&permit).await;
    subject.settle(&permit).await;
    keyed.wake(&subject, &["a"]).await;
    // The run finds a backlog, and the next slot is a minute away.
    keyed.run_until_nothing_is_due(&subject, 0).await;
    keyed.wake(&subject, &["a"]).await;
    let lease = subject.claim().await;
    let publication = crate::Publication {
        terms: Some(keyed.terms(&subject, lease.destination_id)),
        lease,
        recovered: None,
        groups: Vec::new(),
        pace: None,
        deliveries: Vec::new(),
        next: weir_core::plan::NextRun::Paced,
    };
    subject.queue.publish(vec![publication]).await.expect("publish");
    subject.assert_nothing_due().await;
    keyed.set_limits(&subject, per_second(100), per_second(100)).await;
    let flow = keyed.flow("a");
    let mut due = Vec::new();
    while !due.contains(&flow) {
        for lease in subject.claim_for(SOON).await {
            due.push(lease.destination_id);
            keyed.run(&subject, lease, 0).await;
        }
    }
}

pub async fn a_paused_destination_grants_no_slot_to_its_limit_keys_and_their_runs_end(subject: Subject) {
    let mut keyed = Keyed::new(per_second(1), RateLimits::UNLIMITED);
    let first = keyed.permits(&subject, &["a"]).await.remove(0);
    subject.slot(&first).await;
    let second = keyed.permits(&subject, &["b"]).await.remove(0);
    // Five keys wait for their turns.
    keyed.wake(&subject, &["c", "d", "e", "f", "g"]).await;
    keyed.run_until_nothing_is_due(&subject, 5).await;
    keyed.edit(&subject, |destination| destination.settings.paused = true).await;
    keyed.withdrawn(&subject, &[second]).await;
    let runs = keyed.run_until_nothing_is_due(&subject, 5).await;
    assert!((6..=8).contains(&runs), "each of them has one run: {runs}");
    // What comes meanwhile finds out, too.
    keyed.wake(&subject, &["c", "h"]).await;
    let runs = keyed.run_until_nothing_is_due(&subject, 5).await;
    assert!((2..=3).contains(&runs), "{runs}");
}

pub async fn the_limit_keys_of_a_resumed_destination_run_at_once(subject: Subject) {
    let mut keyed = Keyed::new(per_second(100), RateLimits::UNLIMITED);
    let permits = keyed.permits(&subject, &["a", "b"]).await;
    keyed.edit(&subject, |destination| destination.settings.paused = true).await;
    keyed.wake(&subject, &["a", "b"]).await;
    keyed.run_until_nothing_is_due(&subject, 1).await;
    keyed.edit(&subject, |destination| destination.settings.paused = false).await;
    keyed.run_until_nothing_is_due(&subject, 0).await;
    for permit in &permits {
        subject.slot(permit).await;
    }
}

pub async fn a_hold_of_a_destination_holds_all_its_limit_keys_until_its_release(subject: Subject) {
    let mut keyed = Keyed::new(per_second(100), RateLimits::UNLIMITED);
    let permits = keyed.permits(&subject, &["a", "b"]).await;
    let sent_at = subject.clock.now();
    let until = sent_at + Duration::from_secs(1);
    keyed.hold(&subject, until, sent_at).await;
    for permit in &permits {
        assert!(start_of(subject.ask_for_slot(permit).await) + subject.precision >= until);
    }
    keyed.hold(&subject, sent_at + LONG, sent_at).await;
    keyed.hold(&subject, until, sent_at).await;
    assert_eq!(subject.ask_for_slot(&permits[0]).await, SlotAnswer::Withdrawn, "a hold is never shortened");
    let released_at = subject.clock.now() + subject.precision + Duration::from_millis(1);
    subject.until(released_at).await;
    keyed.edit(&subject, |destination| destination.released_at = Some(released_at)).await;
    // A hold that a send from before the release asked for.
    keyed.hold(&subject, sent_at + LONG, sent_at).await;
    keyed.withdrawn(&subject, &permits).await;
    for key in ["a", "b"] {
        let permit = keyed.permits(&subject, &[key]).await.remove(0);
        let slot = subject.slot(&permit).await;
        assert!(slot.start < sent_at + LONG, "nothing is held any more");
        // A slow start follows each hold.
        subject.settle_answered(&permit, slot.start).await;
    }
}

pub async fn a_hold_of_limit_keys_that_the_queue_does_not_know_is_kept(subject: Subject) {
    let mut keyed = Keyed::new(RateLimits::UNLIMITED, RateLimits::UNLIMITED);
    let until = subject.clock.now() + Duration::from_millis(700);
    keyed.hold(&subject, until, subject.clock.now()).await;
    let permit = keyed.permits(&subject, &["a"]).await.remove(0);
    let slot = subject.slot(&permit).await;
    assert!(slot.start + subject.precision >= until, "{slot:?}");
}

pub async fn after_a_hold_one_send_of_all_limit_keys_is_in_flight_until_it_is_answered(subject: Subject) {
    let mut keyed = Keyed::new(RateLimits::UNLIMITED, RateLimits::UNLIMITED);
    let permits = keyed.permits(&subject, &["a", "b", "c"]).await;
    let until = subject.clock.now() + Duration::from_millis(150);
    keyed.hold(&subject, until, subject.clock.now()).await;
    subject.until(until + subject.precision).await;
    let sent_at = subject.slot(&permits[0]).await.start;
    assert_eq!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::NoRoom);
    subject.settle_answered(&permits[0], sent_at).await;
    for permit in &permits[1..] {
        granted(subject.ask_for_slot(permit).await);
    }
}

pub async fn the_budget_of_limit_keys_has_the_progress_of_all_of_them(subject: Subject) {
    let mut keyed = Keyed::new(per_second(1), RateLimits::UNLIMITED);
    assert_eq!(subject.progress_of(keyed.budget()).await, Progress::default());
    let permits = keyed.permits(&subject, &["a"]).await;
    let slot = subject.slot(&permits[0]).await;
    keyed.permits(&subject, &["b"]).await;
    let of_all = subject.progress_of(keyed.budget()).await;
    assert_eq!((of_all.queued, of_all.in_flight), (1, 1));
    let next = of_all.next_start.expect("known cursors");
    assert!(next + subject.precision >= slot.start + Duration::from_millis(1_010), "{next:?} after {slot:?}");
    let of_a = subject.progress_of(keyed.flow("a")).await;
    assert_eq!((of_a.queued, of_a.in_flight), (0, 1));
    let until = subject.clock.now() + LONG;
    keyed.hold(&subject, until, subject.clock.now()).await;
    assert!(subject.progress_of(keyed.budget()).await.next_start.expect("known cursors") + subject.precision >= until);
}

/// Such as that of a destination whose breaker closes.
pub async fn a_raised_max_in_flight_of_a_destination_counts_for_its_limit_keys_at_once(subject: Subject) {
    let mut keyed = Keyed::new(RateLimits::UNLIMITED, RateLimits::UNLIMITED);
    let permits = keyed.permits(&subject, &["a", "b"]).await;
    keyed.edit(&subject, |destination| destination.settings.max_in_flight = 1).await;
    keyed.withdrawn(&subject, &permits).await;
    let only = keyed.permits(&subject, &["a"]).await.remove(0);
    granted(subject.ask_for_slot(&only).await);
    // Another key waits for room in its turn.
    keyed.wake(&subject, &["c"]).await;
    keyed.run_until_nothing_is_due(&subject, 1).await;
    assert_eq!(subject.progress_of(keyed.budget()).await.queued, 0);
    keyed.edit(&subject, |destination| destination.settings.max_in_flight = 64).await;
    let third = keyed.permits(&subject, &["c"]).await.remove(0);
    granted(subject.ask_for_slot(&third).await);
}

/// One key with a backlog that never ends does not keep another from its permits.
pub async fn limit_keys_without_limits_take_turns(subject: Subject) {
    let mut keyed = Keyed::new(RateLimits::UNLIMITED, RateLimits::UNLIMITED);
    keyed.destination.settings.max_in_flight = 8;
    let (busy, other) = (keyed.flow("busy"), keyed.flow("other"));
    keyed.wake(&subject, &["busy", "other"]).await;
    let run = async |lease, waiting| keyed.run(&subject, lease, waiting).await;
    let (published, largest) = subject.use_turns(120, run).await;
    assert!(published[&busy].abs_diff(published[&other]) <= 2 * largest, "{published:?}, at most {largest} in a run");
    assert!(
        (1..=8 * (1 + MOST_AHEAD)).contains(&largest),
        "at most what may be in flight and ends meanwhile: {largest}"
    );
}

/// A run of each of these keys that finds nothing.
async fn idle(subject: &Subject, keyed: &mut Keyed, keys: &[&str]) -> Vec<DestinationId> {
    keyed.wake(subject, keys).await;
    let flows: Vec<_> = keys.iter().map(|key| keyed.flow(key)).collect();
    subject.give_empty_turns(&flows, async |lease, waiting| keyed.run(subject, lease, waiting).await).await;
    flows
}

pub async fn a_delivery_of_a_limit_key_is_admitted_under_the_budget_of_its_destination(subject: Subject) {
    // The key has a slot every two seconds, so that a busy machine does not look like one.
    let mut keyed = Keyed::new(per_second(10), per_minute(30));
    let flows = idle(&subject, &mut keyed, &["a", "b"]).await;
    let new = keyed.flow("new");
    assert!(!subject.queue.reserve(&keyed.destination, new), "a key that never ran");
    let first = subject.admitted_to(1, &keyed.destination, flows[0]).await;
    assert_eq!((first.id.destination_id, first.expected_at), (flows[0], None));
    // A permit that is queued takes the slot that is free now.
    subject.assert_not_admitted_to(2, &keyed.destination, flows[1]).await;
    let of_a = subject.slot(&first).await;
    subject.settle(&first).await;
    // Usable again once a slot is near: by the destination for the other key, by its own limit for the same.
    let second = subject.admitted_to(3, &keyed.destination, flows[1]).await;
    let of_b = subject.slot(&second).await;
    subject.settle(&second).await;
    assert!(of_b.start + subject.precision >= of_a.start + Duration::from_millis(101), "{of_b:?} after {of_a:?}");
    subject.until(of_b.end + Duration::from_millis(101)).await;
    subject.assert_not_admitted_to(4, &keyed.destination, flows[0]).await;
    let third = subject.admitted_to(5, &keyed.destination, flows[0]).await;
    let again = subject.slot(&third).await;
    assert!(again.start + subject.precision >= of_a.start + Duration::from_secs(2), "{again:?} after {of_a:?}");
}

pub async fn limit_keys_are_admitted_up_to_the_max_in_flight_of_their_destination(subject: Subject) {
    let mut keyed = Keyed::new(RateLimits::UNLIMITED, RateLimits::UNLIMITED);
    keyed.destination.settings.max_in_flight = 2;
    let flows = idle(&subject, &mut keyed, &["a", "b", "c"]).await;
    let first = subject.admitted_to(1, &keyed.destination, flows[0]).await;
    granted(subject.ask_for_slot(&first).await);
    subject.admitted_to(2, &keyed.destination, flows[1]).await;
    subject.assert_not_admitted_to(3, &keyed.destination, flows[2]).await;
    subject.settle(&first).await;
    let third = subject.admitted_to(4, &keyed.destination, flows[2]).await;
    granted(subject.ask_for_slot(&third).await);
}

pub async fn nothing_is_admitted_to_a_limit_key_after_an_edit_or_while_it_is_behind(subject: Subject) {
    let mut keyed = Keyed::new(RateLimits::UNLIMITED, RateLimits::UNLIMITED);
    let flows = idle(&subject, &mut keyed, &["a", "b"]).await;
    let before = keyed.destination.clone();
    keyed.edit(&subject, |destination| destination.settings.max_in_flight = 60).await;
    // Nobody has told the key.
    for read in [&before, &keyed.destination.clone()] {
        subject.assert_not_admitted_to(1, read, flows[0]).await;
    }
    idle(&subject, &mut keyed, &["a"]).await;
    subject.assert_not_admitted_to(2, &keyed.destination, flows[1]).await;
    let permit = subject.admitted_to(3, &keyed.destination, flows[0]).await;
    keyed.edit(&subject, |destination| destination.settings.paused = true).await;
    keyed.withdrawn(&subject, &[permit]).await;
}

/// Each member that waits has its turn before a newcomer.
pub async fn a_limit_key_is_not_admitted_before_others_that_wait_for_their_turns(subject: Subject) {
    let mut keyed = Keyed::new(per_minute(60), RateLimits::UNLIMITED);
    let flows = idle(&subject, &mut keyed, &["a", "b", "c"]).await;
    let permit = keyed.permits(&subject, &["a"]).await.remove(0);
    let slot = subject.slot(&permit).await;
    subject.settle(&permit).await;
    // It waits for the next slot, in a second.
    keyed.wake(&subject, &["b"]).await;
    assert_eq!(keyed.run_until_nothing_is_due(&subject, 0).await, 0);
    subject.until(slot.end + Duration::from_secs(1)).await;
    subject.assert_not_admitted_to(1, &keyed.destination, flows[2]).await;
}

/// A key that was alone for a while has not used the turns of those that come later, nor they its own.
pub async fn what_a_limit_key_has_sent_alone_on_the_fast_path_costs_no_turns(subject: Subject) {
    let mut keyed = Keyed::new(RateLimits::UNLIMITED, RateLimits::UNLIMITED);
    keyed.destination.settings.max_in_flight = 8;
    let flows = idle(&subject, &mut keyed, &["busy", "other"]).await;
    for number in 0..100 {
        let permit = subject.admitted_to(number, &keyed.destination, flows[0]).await;
        granted(subject.ask_for_slot(&permit).await);
        subject.settle(&permit).await;
    }
    keyed.wake(&subject, &["busy", "other"]).await;
    let run = async |lease, waiting| keyed.run(&subject, lease, waiting).await;
    let (published, largest) = subject.use_turns(120, run).await;
    let of = |flow| published.get(flow).copied().unwrap_or(0);
    assert!(of(&flows[0]).abs_diff(of(&flows[1])) <= 2 * largest, "{published:?}, at most {largest} in a run");
}
