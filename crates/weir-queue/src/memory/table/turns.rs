//! The part of the table about limit groups: members that wait for their turns, runs of groups, and moves.

use std::sync::Arc;

use weir_core::{DestinationId, LimitGroup, LimitGroupId, Timestamp, plan::NextRun};

use super::{Entry, JobTable};
use crate::{
    GroupRun, JobLease, ReservedSlots, Terms, Turn, WantedSlot,
    memory::{
        group::Group,
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
        let before = version(group);
        change(group);
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
        if let Some(group) = before.and_then(|before| self.groups.get_mut(&before)) {
            group.budget.leave(&job.budget);
            group.room_freed();
        }
        if let Some(group) = terms.group {
            self.groups.entry(group).or_default().budget.join(&job.budget);
        }
        for group in before.into_iter().chain(terms.group) {
            self.schedule_group(now, group);
        }
    }

    /// Lets a job wait for its turn in its group. A job that `comes_back` begins at the present turn.
    pub(super) fn enter_turn(&mut self, now: Timestamp, id: DestinationId, group: LimitGroupId, comes_back: bool) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if comes_back {
            job.tag = job.tag.max(self.groups.entry(group).or_default().virtual_time);
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
        let (is_known, known_since) = (group.is_known(now), self.known_since);
        for (member, permits) in group.take_turns(now, max - leases.len()) {
            let turn = Turn { group: id, permits, is_known, known_since };
            leases.extend(self.lease(now, member, due, expires, Some(turn)));
        }
        self.schedule_group(now, id);
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
        let Some(of) = self.jobs.get(&id).and_then(Job::group) else { return };
        self.change_group(of, Group::room_freed);
        self.schedule_group(now, of);
    }

    pub(super) fn change_group(&mut self, id: LimitGroupId, change: impl FnOnce(&mut Group)) {
        if let Some(group) = self.groups.get_mut(&id) {
            change(group);
        }
    }

    /// Keeps the entry of a group in the schedule current. An entry that is due stays so until a run takes it.
    pub(super) fn schedule_group(&mut self, now: Timestamp, id: LimitGroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let due = group.next_due(now).map(|due| group.due.filter(|known| *known <= now).unwrap_or(due));
        if due == group.due {
            return;
        }
        if let Some(before) = std::mem::replace(&mut group.due, due) {
            self.schedule.remove(&(before, Entry::Group(id)));
        }
        if let Some(due) = due {
            self.schedule.insert((due, Entry::Group(id)));
        }
    }

    /// After a run that may have left something of its turn.
    pub(super) fn schedule_group_of(&mut self, now: Timestamp, lease: &JobLease) {
        if let Some(turn) = lease.turn {
            self.schedule_group(now, turn.group);
        }
    }
}
