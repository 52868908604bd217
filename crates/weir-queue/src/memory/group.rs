//! A limit group: the budget that its members share, and the turns by which they divide it.
//!
//! The members that have a backlog wait in a *turn queue*, ordered by virtual start time (start-time fair queueing; Goyal,
//! Vin and Cheng, 1996). A member that publishes n permits with weight w moves back by n / w. The group has one entry in the
//! schedule, whatever the number of its members: a run of the group takes the first members and says how many permits each
//! may publish. A member that its own limits, hold or breaker delays is not in the turn queue, so what it cannot use goes to
//! the others.

mod callers;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use weir_core::{
    DestinationId, IdMap, LimitGroup, LimitGroupId, Timestamp,
    breaker::Breaker,
    plan::{self, AllowanceReason, CADENCE, MOST_AHEAD, Observed},
    stall::Progress,
};

use self::callers::Callers;
use super::{budget::Budget, held::Held};
use crate::{GroupRun, Hold, RUN_FALLBACK, Terms};

/// By how much a permit of a member with weight 1 moves it back. So large that rounding is below a thousandth for every
/// weight, and so small that a tag does not overflow in centuries.
const PERMIT: u64 = 1 << 20;

/// A maximum of sends in flight that nothing reaches, and so small that nothing that is computed from it overflows.
const UNLIMITED: u32 = u32::MAX / (2 * (MOST_AHEAD + 1));

/// A virtual start time.
pub(super) type Tag = u64;

/// How far a permit moves a member back that has this weight.
pub(super) fn tag_of_permit(weight: u16) -> Tag {
    PERMIT / u64::from(weight.max(1))
}

#[derive(Debug, Default)]
pub(super) struct Group {
    /// Unknown until the first run or edit.
    pub(super) terms: Option<Terms>,
    pub(super) budget: Budget,
    held: Held,
    /// The members that wait for their turn, with their weights.
    turns: BTreeMap<(Tag, DestinationId), u16>,
    /// The start of the last turn. A member that comes back begins here, so that nobody saves turns.
    pub(super) virtual_time: Tag,
    /// The callers outside Weir who wait for slots.
    callers: Callers,
    /// What the runs under way may still publish, and its sum with what is promised to callers.
    promised: IdMap<DestinationId, u32>,
    promises: u32,
    /// The next run is not due before this.
    floor: Timestamp,
    /// When queued permits ask that wait for slots of their members' own. Until then the others take the slots before.
    own_starts: Vec<Timestamp>,
    /// Members whose own next slot begins before the permits of the next paced run would be ready.
    hurried: u32,
    /// The members have `max_in_flight` sends in flight: the next settle makes the group due, and this time at the latest.
    waits_for_room: Option<Timestamp>,
    /// Its entry in the schedule.
    pub(super) due: Option<Timestamp>,
    /// The place of a budget of limit keys in the turn queue of their destination's limit group, while it waits there.
    pub(super) waits_in: Option<(LimitGroupId, Tag)>,
    /// Where its next turn there begins.
    pub(super) tag: Tag,
    /// When it had its last turn there.
    pub(super) had_turn: Timestamp,
    /// As a member, its own limits delayed it: [`Job::in_time`](super::job::Job::in_time).
    pub(super) in_time: bool,
}

impl Group {
    /// Applies the terms in force, unless they or newer ones are known.
    pub(super) fn follow(&mut self, now: Timestamp, group: &LimitGroup) {
        if self.terms.as_ref().is_some_and(|known| known.version >= group.version(now)) {
            return;
        }
        let terms = Terms::of_group(group, now);
        if let Some(cursors) = &mut self.budget.cursors {
            cursors.reconfigure(&terms.limits);
        }
        self.held.follow(&terms, now, self.budget.cursors.as_mut());
        if !terms.of_keys {
            self.held.skip_slow_start();
        }
        self.terms = Some(terms);
        // A raised limit opens slots at once, and what was expected before says nothing.
        self.floor = Timestamp::MIN;
        self.budget.last_expected = Timestamp::MIN;
        self.own_starts.clear();
        self.waits_for_room = None;
    }

    /// Whether newer terms than these are known.
    pub(super) fn is_newer_than(&self, now: Timestamp, terms: &LimitGroup) -> bool {
        self.terms.as_ref().is_some_and(|known| known.version > terms.version(now))
    }

    /// Follows what a run has read.
    pub(super) fn learn(&mut self, now: Timestamp, GroupRun { terms, recovered }: GroupRun) {
        self.follow(now, &terms);
        if let (None, Some(mut recovered), Some(known)) = (&self.budget.cursors, recovered, &self.terms) {
            recovered.reconfigure(&known.limits);
            recovered.hold(self.held.until());
            self.budget.cursors = Some(recovered);
            self.floor = Timestamp::MIN;
        }
    }

    /// Whether a run need recover nothing. Terms that are over are as good as unknown.
    pub(super) fn is_known(&self, now: Timestamp) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.are_valid(now)) && self.budget.cursors.is_some()
    }

    /// Whether people hold it, or the receiver of its limit keys does.
    pub(super) fn is_held(&self, now: Timestamp) -> bool {
        self.held.is_held(now)
    }

    /// The limit group in which the budget of limit keys is a member.
    pub(super) fn outer(&self) -> Option<LimitGroupId> {
        self.terms.as_ref()?.outer
    }

    /// The group in whose turn queue its members' turns begin: while its own runs need recover nothing.
    pub(super) fn takes_turns_in(&self, now: Timestamp) -> Option<LimitGroupId> {
        self.outer().filter(|_| self.is_known(now) && !self.is_suspended())
    }

    /// Its share in its outer group.
    pub(super) fn weight(&self) -> u16 {
        self.terms.as_ref().map_or(1, |terms| terms.weight)
    }

    /// Holds the budget of limit keys, also one whose terms are not known yet.
    pub(super) fn hold(&mut self, hold: Hold) {
        self.held.hold(hold, self.budget.cursors.as_mut());
    }

    /// A send of a member that started at `sent_at` was answered.
    pub(super) fn answered(&mut self, sent_at: Timestamp) {
        self.held.answered(sent_at, self.terms.as_ref().map_or(UNLIMITED, |terms| terms.max_in_flight));
    }

    /// `of_outer`: the next start by the outer group.
    pub(super) fn progress(&self, now: Timestamp, of_outer: Option<Timestamp>) -> Progress {
        let earliest = of_outer.map_or(self.held.until(), |start| start.max(self.held.until()));
        Progress { lowered_maximum: self.held.slow_start(), ..self.budget.progress(now, earliest) }
    }

    /// Whether the group lets a member with these terms send. Three conditions: the queue knows the terms and the cursors of
    /// the group; the group is not suspended; and if it is a destination with limit keys, the member's terms are not older
    /// than its last edit.
    pub(super) fn lets_send(&self, now: Timestamp, member: &Terms) -> bool {
        self.is_known(now) && !self.is_suspended() && !self.is_ahead_of(member)
    }

    /// Whether the terms of a limit key are from before the last edit of its destination, whose group this is.
    pub(super) fn is_ahead_of(&self, member: &Terms) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.of_keys && member.version < terms.version)
    }

    /// Whether it is a destination with limit keys that is paused or deleted.
    fn is_suspended(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.suspended)
    }

    fn max_in_flight(&self) -> u32 {
        let most = self.terms.as_ref().map_or(UNLIMITED, |terms| terms.max_in_flight);
        self.held.slow_start().into_iter().fold(most.min(UNLIMITED), u32::min)
    }

    /// Whether one more send may be in flight.
    pub(super) fn has_room(&self) -> bool {
        self.budget.in_flight() < self.max_in_flight()
    }

    /// The permits that runs may still publish, and one for each member that waits for its turn.
    pub(super) fn waiting(&self) -> u32 {
        self.promises + self.turns.len() as u32
    }

    /// Whether a new delivery of a member, whose turn begins at `tag`, can be sent without a run: there is room, and a slot is
    /// free before `until`, also if all that is `waiting` goes first; and no other member is behind this one.
    pub(super) fn admits(&self, now: Timestamp, until: Timestamp, member: &Terms, tag: Tag, waiting: u32) -> bool {
        let taken = self.budget.queued() + waiting + 1;
        (waiting == 0 || tag <= self.virtual_time)
            && self.callers.are_absent()
            && self.lets_send(now, member)
            && self.budget.outstanding() + waiting < self.max_in_flight()
            && self.budget.cursors.as_ref().is_some_and(|cursors| cursors.slots_before(now, until, taken) == taken)
    }

    /// The start of a turn that a member takes, whose place is `tag`.
    pub(super) fn begin_turn(&mut self, tag: Tag) -> Tag {
        self.virtual_time = self.virtual_time.max(tag);
        self.virtual_time
    }

    pub(super) fn enter(&mut self, tag: Tag, id: DestinationId, weight: u16) {
        self.turns.insert((tag, id), weight);
    }

    /// The slots until the next paced run have permits already. A member that its own limits have delayed, and that has had
    /// no more than its share, would miss its own slot.
    pub(super) fn hurry(&mut self) {
        self.hurried = self.hurried.saturating_add(1);
    }

    pub(super) fn leave(&mut self, tag: Tag, id: DestinationId) {
        self.turns.remove(&(tag, id));
    }

    /// The next slot of a member whose turn has not come, if each of the others takes one before.
    pub(super) fn next_start(&self, now: Timestamp) -> Timestamp {
        self.budget.start_after(self.budget.queued() + self.turns.len() as u32, now)
    }

    /// A run of the group: the members whose turn has come, at most `max`, and how many permits each may publish. `most`: how
    /// many permits its outer group gives it, if it has one; 0 if the outer group is not known.
    pub(super) fn take_turns(&mut self, now: Timestamp, most: Option<u32>, max: usize) -> Vec<(DestinationId, u32)> {
        self.budget.drop_expired(now);
        self.drop_absent_callers(now);
        self.waits_for_room = None;
        self.floor = now + CADENCE;
        let hurried = std::mem::take(&mut self.hurried);
        let max_in_flight = self.max_in_flight();
        let ahead = self.budget.ended_meanwhile(now, max_in_flight);
        let is_known = self.is_known(now);
        let (Some(terms), Some(cursors), true) = (&self.terms, &self.budget.cursors, is_known) else {
            return self.take_turn_of_recovery();
        };
        if self.is_suspended() {
            return self.take_turns_of_suspension(max);
        }
        if most == Some(0) {
            return self.take_turn_of_recovery();
        }
        let observed = Observed {
            now,
            cursors,
            pace: None,
            preparation: self.budget.preparation,
            run_time: self.budget.run_time,
            queued: self.budget.queued() + self.promises,
            in_flight: self.budget.in_flight(),
            max_in_flight,
            ahead,
            max_queued: terms.limits.max_queued(),
            suspended: false,
            breaker: &CLOSED,
            lagging: false,
        };
        let allowance = plan::allowance(&observed);
        // Weir does not see how long the calls of callers last, so `max_in_flight` is not theirs.
        let of_callers = match allowance.reason {
            AllowanceReason::InFlight => {
                plan::allowance(&Observed { in_flight: 0, max_in_flight: UNLIMITED, ..observed }).allow
            }
            _ => 0,
        };
        match allowance.reason {
            AllowanceReason::InFlight => self.waits_for_room = Some(now + RUN_FALLBACK),
            AllowanceReason::Batch => self.floor = now,
            AllowanceReason::Slots | AllowanceReason::Suspended | AllowanceReason::Until(_) => {}
        }
        let mut allow = allowance.allow;
        if hurried > 0 && allowance.reason == AllowanceReason::Slots {
            // Their permits take slots for which others have permits already, which take the next ones. At most as many as
            // the next run may publish.
            let next = plan::allowance(&Observed { now: now + CADENCE, ..observed }).allow;
            allow += hurried.min(next.saturating_sub(allow));
        }
        let allow = most.map_or(allow, |most| most.min(allow));
        if most.is_some() && allow > 0 {
            // The outer group decides when its next turn is.
            self.floor = now;
        }
        let taken = self.divide(allow, max);
        for &(id, permits) in &taken {
            self.promise(id, permits);
        }
        for _ in 0..of_callers.saturating_sub(allowance.allow).min(self.callers.waiting()) {
            self.callers.promise();
            self.promises += 1;
        }
        taken
    }

    /// Gives each permit to the member with the earliest start, or to the callers if theirs is earlier.
    fn divide(&mut self, permits: u32, max: usize) -> Vec<(DestinationId, u32)> {
        let mut taken: Vec<(DestinationId, u32, u16)> = Vec::new();
        // Members that have permits already, by the start of their next one.
        let mut again: BTreeSet<(Tag, DestinationId, usize)> = BTreeSet::new();
        for _ in 0..permits {
            let new = self.turns.first_key_value().map(|(&(tag, id), &weight)| (tag, id, weight));
            let new = new.filter(|_| taken.len() < max);
            let first = again.first().copied().filter(|&(tag, id, _)| new.is_none_or(|new| (tag, id) < (new.0, new.1)));
            let of_member = first.map(|first| first.0).or(new.map(|new| new.0));
            if self.callers.waiting() > 0 && of_member.is_none_or(|tag| self.callers.tag < tag) {
                self.virtual_time = self.virtual_time.max(self.callers.tag);
                self.callers.promise();
                self.promises += 1;
                continue;
            }
            let (tag, id, index) = match (first, new) {
                (Some(first), _) => {
                    again.remove(&first);
                    first
                }
                (None, Some((tag, id, weight))) => {
                    self.turns.remove(&(tag, id));
                    taken.push((id, 0, weight));
                    (tag, id, taken.len() - 1)
                }
                (None, None) => break,
            };
            self.virtual_time = self.virtual_time.max(tag);
            taken[index].1 += 1;
            again.insert((tag + tag_of_permit(taken[index].2), id, index));
        }
        taken.into_iter().map(|(id, permits, _)| (id, permits)).collect()
    }

    /// While terms or cursors are unknown, one member at a time runs to recover them. It may publish nothing.
    fn take_turn_of_recovery(&mut self) -> Vec<(DestinationId, u32)> {
        if !self.promised.is_empty() {
            return Vec::new();
        }
        let Some(((_, id), _)) = self.turns.pop_first() else { return Vec::new() };
        self.promise(id, 0);
        vec![(id, 0)]
    }

    /// The members get turns without permits: their runs find the suspension and wait no longer.
    fn take_turns_of_suspension(&mut self, max: usize) -> Vec<(DestinationId, u32)> {
        let first: Vec<_> = std::iter::from_fn(|| self.turns.pop_first()).take(max).collect();
        first.iter().for_each(|&((_, id), _)| self.promise(id, 0));
        first.into_iter().map(|((_, id), _)| (id, 0)).collect()
    }

    /// A member that is the budget of limit keys has several runs at a time.
    pub(super) fn promise(&mut self, id: DestinationId, permits: u32) {
        self.promises += permits;
        *self.promised.entry(id).or_default() += permits;
    }

    /// When the slot of the next permit is expected; the worker asks for it a little earlier. `own`: when the member's own limits
    /// allow the slot. Usually it is the slot behind those of the queued permits. If `own` is later, or if the permit is to be
    /// `in_time`, it is `own`.
    pub(super) fn expected_at(&mut self, now: Timestamp, own: Timestamp, in_time: bool) -> Timestamp {
        self.own_starts.retain(|start| *start > now);
        let others = self.budget.queued().saturating_sub(self.own_starts.len() as u32);
        let behind = self.budget.start_behind(others, now);
        if own > now && (in_time || own > behind) {
            self.own_starts.push(own);
            return own;
        }
        behind
    }

    /// A run of this member publishes one of the permits that it was promised.
    pub(super) fn publish_promised(&mut self, id: DestinationId) {
        if let Some(left) = self.promised.get_mut(&id).filter(|left| **left > 0) {
            *left -= 1;
            self.promises -= 1;
        }
    }

    /// What a run of this member may still publish.
    pub(super) fn promised_to(&self, id: DestinationId) -> u32 {
        self.promised.get(&id).copied().unwrap_or(0)
    }

    /// The run of this member has ended. What it has left goes to the others at once. Returns how much that is.
    pub(super) fn end_run(&mut self, id: DestinationId) -> u32 {
        let left = self.promised.remove(&id).unwrap_or(0);
        self.promises -= left;
        self.left_over(left);
        left
    }

    /// A run of a limit key of this member has ended, and has not published `left` of its permits.
    pub(super) fn end_run_of_key(&mut self, id: DestinationId, left: u32, has_runs: bool) {
        let Some(promised) = self.promised.get_mut(&id) else { return };
        let left = left.min(*promised);
        *promised -= left;
        self.promises -= left;
        if !has_runs {
            self.end_run(id);
        }
        self.left_over(left);
    }

    /// Permits that a member has not used are for the others at once.
    fn left_over(&mut self, permits: u32) {
        if permits > 0 {
            self.floor = Timestamp::MIN;
            self.waits_for_room = None;
        }
    }

    /// Whether runs of members are under way.
    pub(super) fn has_runs(&self) -> bool {
        !self.promised.is_empty()
    }

    /// A permit of a member has ended, so there may be room: for those who wait for it at once.
    pub(super) fn room_freed(&mut self) {
        if self.waits_for_room.take().is_some() {
            self.floor = Timestamp::MIN;
        }
    }

    /// Whether a member waits that would miss its own slot.
    pub(super) fn is_hurried(&self) -> bool {
        self.hurried > 0
    }

    /// Whether a member or a caller waits.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.turns.is_empty() || self.callers.waiting() > 0
    }

    /// When the next run of the group is due; `None` while neither a member nor a caller waits. When its terms end, if not before.
    pub(super) fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        if !self.is_waited_for() {
            return None;
        }
        if self.is_suspended() {
            return Some(self.floor.max(now));
        }
        let queued = self.budget.queued() + self.promises;
        let waits_for_room = self.waits_for_room.filter(|_| self.callers.waiting() == 0);
        let for_next_slot = || match self.hurried {
            0 => self.budget.due_for_next_slot(queued, now).max(self.floor),
            _ => now,
        };
        let due = waits_for_room.unwrap_or_else(for_next_slot);
        let due = self.promised_until().map_or(due, |until| due.min(until.max(now)));
        let until = self.terms.as_ref().and_then(|terms| terms.until).unwrap_or(Timestamp::MAX);
        Some(due.min(until.max(self.floor)))
    }

    /// Whether the group can be dropped, because its cursors can be recovered from the store.
    pub(super) fn is_forgettable(&self, now: Timestamp) -> bool {
        self.budget.is_forgettable(now) && !self.is_held(now)
    }
}

/// Breakers are those of members.
static CLOSED: LazyLock<Breaker> = LazyLock::new(Breaker::default);
