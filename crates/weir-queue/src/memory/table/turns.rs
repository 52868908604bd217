//! The part of the table about limit groups: members that wait for their turns, runs of groups, and moves.

use std::sync::Arc;

use weir_core::{DestinationId, IdMap, LimitGroup, LimitGroupId, Timestamp, plan::NextRun};

use super::{Entry, JobTable, group_named};
use crate::{
    GroupRun, JobLease, LONGEST_RUN, OuterGroup, ReservedSlots, Terms, Turn, WantedSlot,
    memory::{
        group::{Group, Tag, tag_of_permit},
        job::{Job, Phase},
    },
};

impl JobTable {
    /// Applies the terms of a group. Its members need no run: their permits get slots by these terms.
    pub fn edited_group(&mut self, now: Timestamp, terms: &Arc<LimitGroup>) {
        self.change_terms_of_group(terms.id, now, |group| group.follow(now, terms));
        self.schedule_group(now, terms.id);
    }

    /// Lets a group follow terms. If it is a destination with limit keys and they are newer, its keys that wait for slots
    /// by older terms, or for the end of a pause, run at once: each has terms of its own.
    pub(super) fn change_terms_of_group(&mut self, id: LimitGroupId, now: Timestamp, change: impl FnOnce(&mut Group)) {
        let group = self.groups.entry(id).or_default();
        let version = |group: &Group| group.terms.as_ref().filter(|terms| terms.of_keys).map(|terms| terms.version);
        let (before, outer) = (version(group), group.outer());
        change(group);
        let group = &self.groups[&id];
        self.change_outer(now, id, outer, group.outer());
        let Some(group) = self.groups.get(&id) else { return };
        if before.is_none() || version(group) == before {
            return;
        }
        let waits = |job: &Job| match job.phase {
            Phase::Scheduled { floor, .. } => floor > now,
            Phase::Idle => job.terms.as_ref().is_some_and(|terms| terms.suspended),
            Phase::Turn { .. } | Phase::Leased { .. } => false,
        };
        let waiting = self.jobs.iter().filter(|(_, job)| job.group() == Some(id) && waits(job));
        // At most the jobs of the table. An edit of a destination with many keys is one pass over them, for which other calls
        // of this process wait.
        for member in waiting.map(|(member, _)| *member).collect::<Vec<_>>() {
            self.run_at_once(now, member);
        }
    }

    /// Takes slots of a group for callers outside Weir.
    pub fn reserve_slots(&mut self, now: Timestamp, group: &GroupRun, wanted: &[WantedSlot]) -> ReservedSlots {
        let id = group.terms.id;
        let of = self.groups.entry(id).or_default();
        of.learn(now, group.clone());
        let answer = of.reserve(now, wanted);
        self.schedule_group(now, id);
        answer
    }

    /// Gives a slot back that a caller has not used.
    pub fn give_back_reserved(&mut self, now: Timestamp, group: LimitGroupId, cost: u32, start: Timestamp) {
        self.change_group(group, |of| of.give_back_reserved(cost, start, now));
        self.schedule_group(now, group);
    }

    /// Applies the terms to a job. Its permits count in the budget of its group.
    pub(super) fn follow(&mut self, now: Timestamp, id: DestinationId, terms: &Terms) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let before = job.group();
        job.follow(terms, now);
        if before == terms.group {
            return;
        }
        job.tag = 0;
        for group in shared_by(&self.groups, before) {
            if let Some(group) = self.groups.get_mut(&group) {
                group.budget.leave(&job.budget);
                group.room_freed();
            }
        }
        if let Some(group) = terms.group {
            self.groups.entry(group).or_default();
        }
        for group in shared_by(&self.groups, terms.group) {
            self.groups.entry(group).or_default().budget.join(&job.budget);
        }
        for group in before.into_iter().chain(terms.group) {
            self.schedule_group(now, group);
        }
    }

    /// The budget of limit keys moves to another limit group, or to none, with the permits of all keys.
    fn change_outer(
        &mut self,
        now: Timestamp,
        id: LimitGroupId,
        before: Option<LimitGroupId>,
        after: Option<LimitGroupId>,
    ) {
        if before == after {
            return;
        }
        self.leave_outer_turns(now, id);
        if let Some(outer) = after {
            self.groups.entry(outer).or_default();
        }
        if let Some([Some(outer), Some(keys)]) = before.map(|outer| self.groups.get_disjoint_mut([&outer, &id])) {
            outer.budget.leave(&keys.budget);
            outer.end_run(destination_named(id));
            outer.room_freed();
        }
        if let Some([Some(outer), Some(keys)]) = after.map(|outer| self.groups.get_disjoint_mut([&outer, &id])) {
            keys.tag = 0;
            outer.budget.join(&keys.budget);
        }
        for group in before.into_iter().chain(after) {
            self.schedule_group(now, group);
        }
    }

    /// The budget of limit keys waits in the turn queue of its limit group. One that comes back begins at the present turn.
    fn enter_outer_turns(&mut self, now: Timestamp, id: LimitGroupId, outer: LimitGroupId) {
        let [Some(group), Some(keys)] = self.groups.get_disjoint_mut([&outer, &id]) else { return };
        let own = keys.budget.start_after(keys.budget.queued(), now);
        keys.in_time = keys.tag <= group.virtual_time && (own > now || keys.is_hurried());
        if keys.in_time {
            group.hurry();
        }
        // It had no key to give a turn to only because their runs were under way.
        if now.since(keys.had_turn) > LONGEST_RUN {
            keys.tag = keys.tag.max(group.virtual_time);
        }
        keys.waits_in = Some((outer, keys.tag));
        group.enter(keys.tag, destination_named(id), keys.weight());
        self.schedule_group(now, outer);
    }

    /// It waits there no longer.
    fn leave_outer_turns(&mut self, now: Timestamp, id: LimitGroupId) {
        let Some((outer, tag)) = self.groups.get_mut(&id).and_then(|keys| keys.waits_in.take()) else { return };
        self.change_group(outer, |group| group.leave(tag, destination_named(id)));
        self.schedule_group(now, outer);
    }

    /// A permit that is issued without a run is a turn like any other: it moves the virtual time of each group to its start, and
    /// its member behind it. The job itself moves when the permit is queued.
    pub(super) fn take_turns_without_run(&mut self, id: DestinationId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let mut shared = shared_by(&self.groups, job.group());
        let (inner, outer) = (shared.next(), shared.next());
        let Some(group) = inner.and_then(|inner| self.groups.get_mut(&inner)) else { return };
        job.tag = group.begin_turn(job.tag);
        let (of_keys, weight) = (group.tag, group.weight());
        let Some(outer) = outer.and_then(|outer| self.groups.get_mut(&outer)) else { return };
        let tag = outer.begin_turn(of_keys) + tag_of_permit(weight);
        if let Some(keys) = inner.and_then(|inner| self.groups.get_mut(&inner)) {
            keys.tag = tag;
        }
    }

    /// Lets a job wait for its turn in its group. A job that `comes_back` begins at the present turn.
    pub(super) fn enter_turn(&mut self, now: Timestamp, id: DestinationId, group: LimitGroupId, comes_back: bool) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if comes_back {
            let of = self.groups.entry(group).or_default();
            job.in_time = job.tag <= of.virtual_time && job.start_after(job.budget.queued(), now) > now;
            if job.in_time {
                of.hurry();
            }
            job.tag = job.tag.max(of.virtual_time);
        }
        let tag = job.tag;
        self.move_to(id, Phase::Turn { group, tag });
        self.schedule_group(now, group);
    }

    /// Runs the members of a group whose turn has come.
    pub(super) fn run_group(
        &mut self,
        now: Timestamp,
        id: LimitGroupId,
        due: Timestamp,
        expires: Timestamp,
        max: usize,
        leases: &mut Vec<JobLease>,
    ) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        self.schedule.remove(&(due, Entry::Group(id)));
        group.due = None;
        // The budget of limit keys waits for its turn in its limit group first.
        if group.takes_turns_in(now).is_none() {
            for (member, permits) in group.take_turns(now, None, max - leases.len()) {
                match self.keys_in(id, member) {
                    Some(keys) => {
                        let used = self.run_keys(now, keys, permits, (due, expires), max, leases);
                        let has_runs = self.groups.get(&keys).is_some_and(Group::has_runs);
                        self.change_group(id, |group| group.end_run_of_key(member, permits - used, has_runs));
                        self.schedule_group(now, keys);
                    }
                    None => self.lease_in_turn(now, member, id, permits, (due, expires), leases),
                }
            }
        }
        self.schedule_group(now, id);
    }

    /// The budget of limit keys that this member of a group is.
    fn keys_in(&self, group: LimitGroupId, member: DestinationId) -> Option<LimitGroupId> {
        let keys = group_named(member);
        self.groups.get(&keys).filter(|keys| keys.outer() == Some(group)).map(|_| keys)
    }

    /// Divides the turn of a budget of limit keys among the keys. `permits`: 0 if the limit group is not known. Returns how many
    /// permits they may publish.
    fn run_keys(
        &mut self,
        now: Timestamp,
        id: LimitGroupId,
        permits: u32,
        times: (Timestamp, Timestamp),
        max: usize,
        leases: &mut Vec<JobLease>,
    ) -> u32 {
        let Some(keys) = self.groups.get_mut(&id) else { return 0 };
        keys.waits_in = None;
        keys.had_turn = now;
        let mut used = 0;
        for (key, of_key) in keys.take_turns(now, Some(permits), max.saturating_sub(leases.len())) {
            used += of_key;
            self.lease_in_turn(now, key, id, of_key, times, leases);
        }
        self.change_group(id, |keys| keys.tag += Tag::from(used) * tag_of_permit(keys.weight()));
        used
    }

    fn lease_in_turn(
        &mut self,
        now: Timestamp,
        member: DestinationId,
        group: LimitGroupId,
        permits: u32,
        (due, expires): (Timestamp, Timestamp),
        leases: &mut Vec<JobLease>,
    ) {
        let known = |id: LimitGroupId| {
            let is_known = self.groups.get(&id).is_some_and(|group| group.is_known(now));
            OuterGroup { group: id, is_known, known_since: self.known_since }
        };
        let OuterGroup { is_known, known_since, .. } = known(group);
        let outer = self.groups.get(&group).and_then(Group::outer).map(known);
        let turn = Turn { group, permits, is_known, known_since, outer };
        leases.extend(self.lease(now, member, due, expires, Some(turn)));
    }

    /// The group of a member with a backlog that nothing but its turn delays: it has published all that its turn allowed,
    /// and its next slot is near.
    pub(super) fn turn_again(&self, now: Timestamp, id: DestinationId, next: NextRun) -> Option<LimitGroupId> {
        let job = self.jobs.get(&id)?;
        let Phase::Leased { turn_of: Some(of), .. } = job.phase else { return None };
        let group = self.groups.get(&of).filter(|_| job.group() == Some(of))?;
        match next {
            NextRun::Now => Some(of),
            NextRun::Paced if group.promised_to(id) == 0 && job.due_with_room(now) <= now => Some(of),
            _ => None,
        }
    }

    /// There is room in the group of this destination, if it has one.
    pub(super) fn group_room_freed(&mut self, now: Timestamp, id: DestinationId) {
        for of in shared_by(&self.groups, self.jobs.get(&id).and_then(Job::group)) {
            self.change_group(of, Group::room_freed);
            self.schedule_group(now, of);
        }
    }

    pub(super) fn change_group(&mut self, id: LimitGroupId, change: impl FnOnce(&mut Group)) {
        if let Some(group) = self.groups.get_mut(&id) {
            change(group);
        }
    }

    /// Keeps the entry of a group in the schedule current. An entry that is due stays so until a run takes it. The budget of
    /// limit keys that is due waits for its turn in its limit group instead.
    pub(super) fn schedule_group(&mut self, now: Timestamp, id: LimitGroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let outer = group.takes_turns_in(now);
        if group.waits_in.is_some() {
            if outer.is_some() && group.is_waited_for() {
                return;
            }
            self.leave_outer_turns(now, id);
        }
        let Some(group) = self.groups.get_mut(&id) else { return };
        let due = group.next_due(now).map(|due| group.due.filter(|known| *known <= now).unwrap_or(due));
        let enters = outer.filter(|_| due.is_some_and(|due| due <= now));
        let due = due.filter(|_| enters.is_none());
        if due != group.due {
            if let Some(before) = std::mem::replace(&mut group.due, due) {
                self.schedule.remove(&(before, Entry::Group(id)));
            }
            if let Some(due) = due {
                self.schedule.insert((due, Entry::Group(id)));
            }
        }
        if let Some(outer) = enters {
            self.enter_outer_turns(now, id, outer);
        }
    }

    /// After a run that may have left something of its turn.
    pub(super) fn schedule_group_of(&mut self, now: Timestamp, lease: &JobLease) {
        for of in lease.turn.iter().flat_map(Turn::groups) {
            self.schedule_group(now, of.group);
        }
    }

    /// A run of a member has ended. What it has left goes to the others, also to those of the outer group.
    pub(super) fn end_run_in(&mut self, id: LimitGroupId, member: DestinationId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let (left, has_runs) = (group.end_run(member), group.has_runs());
        let Some(outer) = group.outer() else { return };
        group.tag = group.tag.saturating_sub(Tag::from(left) * tag_of_permit(group.weight()));
        self.change_group(outer, |outer| outer.end_run_of_key(destination_named(id), left, has_runs));
    }
}

/// The budgets that a job of this group shares with others: the group and, where that is the budget of limit keys, the limit
/// group of their destination.
pub(super) fn shared_by(
    groups: &IdMap<LimitGroupId, Group>,
    group: Option<LimitGroupId>,
) -> impl Iterator<Item = LimitGroupId> + use<> {
    let outer = group.and_then(|group| groups.get(&group)?.outer());
    group.into_iter().chain(outer)
}

/// The budget of limit keys with this id, in the form of a destination's.
pub(super) fn destination_named(id: LimitGroupId) -> DestinationId {
    DestinationId::from_bytes(*id.as_bytes())
}
