//! The queue as a state machine without threads or clocks: every job, the schedule over them, and the delivery queue.
//!
//! Invariants: a job is in `schedule` exactly while it is Scheduled or Leased, at its due time or its lease's end, and in
//! the turn queue of its group exactly while it is in its Turn; a group is in `schedule` exactly while a member is; a
//! permit is in at most one of `queued` and `in_flight`; the sets of a group hold the permits of its members; slots are
//! granted by [`Job::take_slot`] only.

mod turns;

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use weir_core::{
    Destination, DestinationId, IdMap, IdSet, LimitGroupId, Limiter, Timestamp,
    adaptive::Status,
    claim::ClaimedDelivery,
    limit_key,
    plan::{LAG_DEPTH, NextRun},
    stall::Progress,
};

use self::turns::{destination_named, shared_by};
use super::{
    group::Group,
    job::{DuringLease, Job, Phase},
};
use crate::{
    GroupRun, HandedBack, Hold, JobLease, Permit, PermitId, Publication, Published, RUN_FALLBACK, Report, Settled,
    SlotAnswer, SlotRequest, TermsChange, Turn, Wake,
};

/// Idle jobs are kept until there are more jobs than this, so that their next run needs nothing from the store. An idle
/// job takes less than a kilobyte, so these take less than 20 MB.
const MIN_KEPT_JOBS: usize = 20_000;

/// Idle flows of limit keys, and jobs above [`MIN_KEPT_JOBS`], are dropped within this time after their windows. A prune
/// reads every job, which takes milliseconds for 100,000.
const PRUNE_AFTER: Duration = Duration::from_secs(60);

/// The group with this id in the form of a destination's, by which calls name the budget of limit keys.
fn group_named(id: DestinationId) -> LimitGroupId {
    LimitGroupId::from_bytes(*id.as_bytes())
}

/// Counts over all jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Depths {
    /// Permits that no worker has taken.
    pub ready: usize,
    /// When the oldest of them was published.
    pub oldest_published_at: Option<Timestamp>,
    /// Permits without a slot, taken or not.
    pub queued: usize,
    /// Permits with a slot that are not settled.
    pub in_flight: usize,
    /// Jobs that are not idle.
    pub jobs: usize,
}

/// What the schedule makes due. Jobs come before groups, so that a group sees all members that are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    Job(DestinationId),
    Group(LimitGroupId),
}

/// Every job of the process.
#[derive(Debug, Default)]
pub struct JobTable {
    known_since: Timestamp,
    jobs: IdMap<DestinationId, Job>,
    groups: IdMap<LimitGroupId, Group>,
    schedule: BTreeSet<(Timestamp, Entry)>,
    ready: VecDeque<Permit>,
    last_serial: u64,
    /// Prune when there are more jobs than this: twice as many as the last prune kept.
    prune_above: usize,
    /// Prune at this time at the latest.
    prune_at: Timestamp,
    /// The worker has stopped; no more permits are published.
    closed: bool,
}

impl JobTable {
    /// An empty table, as at the start of a process.
    pub fn new(now: Timestamp) -> Self {
        Self { known_since: now, ..Self::default() }
    }

    /// When the next job is due or the next lease ends.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.schedule.first().map(|&(due, _)| due)
    }

    /// Permits that no worker has taken.
    pub fn depth(&self) -> usize {
        self.ready.len()
    }

    /// How many jobs take memory, idle or not.
    pub fn known_jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Counts over every job, for gauges and tests; too slow for the hot path.
    pub fn depths(&self) -> Depths {
        let sum = |count: fn(&Job) -> usize| self.jobs.values().map(count).sum();
        Depths {
            ready: self.ready.len(),
            oldest_published_at: self.oldest_untaken(),
            queued: sum(|job| job.budget.published() as usize),
            in_flight: sum(|job| job.budget.in_flight() as usize),
            jobs: self.jobs.values().filter(|job| job.phase != Phase::Idle).count(),
        }
    }

    /// When the oldest permit that no worker has taken was published.
    pub fn oldest_untaken(&self) -> Option<Timestamp> {
        self.ready.front().map(|permit| permit.published_at)
    }

    /// How far a destination or the budget of its limit keys has come.
    pub fn progress(&self, id: DestinationId, now: Timestamp) -> Progress {
        // None of its slots begins before those of the budgets that it shares.
        let not_before = |group| {
            let shared = shared_by(&self.groups, group).filter_map(|of| self.groups.get(&of));
            shared.map(|group| group.next_start(now)).max()
        };
        match self.jobs.get(&id) {
            Some(job) => job.progress(now, not_before(job.group())),
            None => self
                .groups
                .get(&group_named(id))
                .map_or_else(Progress::default, |keys| keys.progress(now, not_before(keys.outer()))),
        }
    }

    /// The pace of an adaptive destination.
    pub fn pace(&self, id: DestinationId, now: Timestamp) -> Option<Status> {
        Some(self.jobs.get(&id)?.pace.as_ref()?.rate.status(now))
    }

    /// Takes a report. The job runs at once if the pace may have to follow.
    pub fn report(&mut self, now: Timestamp, &Report { destination_id, sample }: &Report) {
        if self.jobs.get_mut(&destination_id).is_some_and(|job| job.report(now, sample)) {
            self.run_at_once(now, destination_id);
        }
    }

    /// The job runs at once, or again if it is leased.
    fn run_at_once(&mut self, now: Timestamp, id: DestinationId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match job.phase {
            Phase::Leased { .. } => job.during_lease.wake = Some(now),
            // It runs as soon as it may.
            Phase::Turn { .. } => {}
            Phase::Scheduled { due, .. } if due <= now => {}
            Phase::Idle | Phase::Scheduled { .. } => self.schedule(id, now, Timestamp::MIN, false),
        }
    }

    pub fn wake(&mut self, wake: Wake) {
        let job = self.jobs.entry(wake.destination_id).or_insert_with(Job::new);
        // A run under way does not stop a job whose version has changed.
        job.version += 1;
        match job.phase {
            Phase::Idle => self.schedule(wake.destination_id, wake.due, Timestamp::MIN, false),
            Phase::Scheduled { due, floor, on_settle } => {
                // A paced job runs no sooner than its floor.
                let sooner = wake.due.max(floor);
                if sooner < due {
                    self.schedule(wake.destination_id, sooner, floor, on_settle);
                }
            }
            Phase::Turn { .. } => {}
            Phase::Leased { .. } => {
                job.during_lease.wake = Some(job.during_lease.wake.map_or(wake.due, |due| due.min(wake.due)));
            }
        }
    }

    /// Applies the terms, unless the job has these or newer ones, and makes the job due.
    pub fn edited(&mut self, now: Timestamp, edit: &TermsChange) {
        let job = self.jobs.entry(edit.destination_id).or_insert_with(Job::new);
        if job.knows(&edit.terms) {
            return;
        }
        job.version += 1;
        self.follow(now, edit.destination_id, &edit.terms);
        let Some(job) = self.jobs.get_mut(&edit.destination_id) else { return };
        // The next run finds out whether there is a backlog.
        job.fast_path_ahead = None;
        if !matches!(job.phase, Phase::Leased { .. }) {
            self.schedule(edit.destination_id, now, Timestamp::MIN, false);
        } else {
            job.during_lease.wake = Some(now);
        }
    }

    /// Holds a destination or the budget of its limit keys, also one that is not known yet.
    pub fn hold(&mut self, now: Timestamp, hold: Hold) {
        // Single limit keys are not held.
        if limit_key::is_of_key(hold.destination_id) {
            let group = group_named(hold.destination_id);
            self.groups.entry(group).or_default().hold(hold);
            return self.schedule_group(now, group);
        }
        let job = self.jobs.entry(hold.destination_id).or_insert_with(Job::new);
        job.held.hold(hold, job.budget.cursors.as_mut());
    }

    /// Claims due jobs and leases that have ended, earliest first.
    pub fn claim_due(&mut self, now: Timestamp, max: usize, lease_for: Duration) -> Vec<JobLease> {
        self.prune(now);
        let mut leases = Vec::new();
        // The schedule begins with the job that is due first. A leased job is in it at the end of its lease, so that it
        // runs again if its scheduler has died.
        while leases.len() < max {
            let Some(&(due, entry)) = self.schedule.first() else { break };
            if due > now {
                break;
            }
            match entry {
                Entry::Job(id) => match self.jobs.get(&id).and_then(Job::group) {
                    Some(group) => self.enter_turn(now, id, group, true),
                    None => leases.extend(self.lease(now, id, due, now + lease_for, None)),
                },
                Entry::Group(id) => self.run_group(now, id, due, now + lease_for, max, &mut leases),
            }
        }
        leases
    }

    fn lease(
        &mut self,
        now: Timestamp,
        destination_id: DestinationId,
        due: Timestamp,
        expires: Timestamp,
        turn: Option<Turn>,
    ) -> Option<JobLease> {
        let phase = self.jobs.get(&destination_id)?.phase;
        self.move_to(destination_id, Phase::Leased { expires, turn_of: turn.map(|turn| turn.group) });
        let of_groups = turn.iter().flat_map(Turn::groups).filter_map(|of| self.groups.get(&of.group));
        let times = of_groups.map(|group| (group.budget.preparation, group.budget.run_time));
        let (preparation, run_time) = times.fold((Duration::ZERO, Duration::ZERO), |(preparation, run_time), of| {
            (preparation.max(of.0), run_time.max(of.1))
        });
        let job = self.jobs.get_mut(&destination_id)?;
        // A job without a floor may have been due for long, so it says nothing about the time of a run.
        let is_paced = turn.is_some() || matches!(phase, Phase::Scheduled { floor, .. } if floor == due);
        job.run_since = is_paced.then_some(due);
        // The new epoch makes a publication of an earlier lease stale. From here on wakes and settles are events of
        // this lease.
        job.epoch += 1;
        job.during_lease = DuringLease::default();
        // Drop expired permits first, so that the lease does not count them: they may never be settled.
        job.budget.drop_expired(now);
        let (preparation, run_time) = (preparation.max(job.budget.preparation), run_time.max(job.budget.run_time));
        Some(JobLease {
            destination_id,
            shard: 0,
            turn,
            epoch: job.epoch,
            version: job.version,
            due,
            queued: job.budget.queued(),
            in_flight: job.budget.in_flight(),
            cursors: job.budget.cursors.clone(),
            pace: job.lend_pace(),
            preparation,
            run_time,
            ahead: job.ended_meanwhile(now),
            max_outstanding: job.lowered_maximum(),
            known_since: self.known_since,
        })
    }

    /// Publishes the claims of a run, and ends the run unless it continues. A stale epoch publishes nothing. Nothing is
    /// published after the worker has stopped.
    pub fn publish(&mut self, now: Timestamp, publication: Publication) -> Published {
        let Publication { lease, terms, recovered, groups, pace, deliveries, next } = publication;
        let destination_id = lease.destination_id;
        // The job must still have this lease: not ended, and not claimed again.
        let Some(job) = self.jobs.get_mut(&destination_id) else { return Published::Stale(deliveries) };
        if job.epoch != lease.epoch || !matches!(job.phase, Phase::Leased { .. }) {
            return Published::Stale(deliveries);
        }
        // The run read the destination or its group before an edit.
        let is_edited = groups.iter().any(|GroupRun { terms, .. }| {
            self.groups.get(&terms.id).is_some_and(|group| group.is_newer_than(now, terms))
        });
        if is_edited || terms.as_ref().is_some_and(|terms| job.is_newer_than(terms)) {
            self.schedule(destination_id, now, Timestamp::MIN, false);
            self.schedule_group_of(now, &lease);
            return Published::Stale(deliveries);
        }
        // The worker stopped during the run, so no worker would take the permits or hand them back.
        if self.closed && !deliveries.is_empty() {
            return Published::Stale(deliveries);
        }
        // Unknown cursors come from the run, or begin one spacing from now. A hold from before applies to them. Then
        // the limits that the run has read are applied.
        if let Some(terms) = &terms {
            job.know_cursors(|| recovered.unwrap_or_else(|| Limiter::recovered(&terms.limits, Some(now))));
            self.follow(now, destination_id, terms);
            let Some(job) = self.jobs.get_mut(&destination_id) else { return Published::Done };
            job.follow_pace(pace, now);
        }
        for run in groups {
            self.change_terms_of_group(run.terms.id, now, |group| group.learn(now, run));
        }
        // Each slot is expected after those of the permits before it.
        for delivery in deliveries {
            self.issue(now, delivery, true);
        }
        self.requeue(now, &lease, next);
        self.schedule_group_of(now, &lease);
        Published::Done
    }

    /// Publishes one permit of a job with known cursors. Its slot is expected after those of the permits `of_run`s before
    /// it; without a run it is expected as soon as the worker is ready.
    fn issue(&mut self, now: Timestamp, delivery: ClaimedDelivery, of_run: bool) {
        let destination_id = delivery.flow_id;
        let Some(job) = self.jobs.get_mut(&destination_id) else { return };
        if job.budget.cursors.is_none() {
            return;
        }
        self.last_serial += 1;
        let id = PermitId { destination_id, serial: self.last_serial };
        let expected_at = of_run.then(|| {
            let group = job.group();
            let mut expected = match group {
                Some(_) => job.start_behind(job.budget.queued(), now),
                None => job.start_after(job.budget.queued(), now),
            };
            let (mut in_time, mut waits_in) = (std::mem::take(&mut job.in_time), Vec::new());
            for shared in shared_by(&self.groups, group) {
                let Some(group) = self.groups.get_mut(&shared) else { continue };
                let own = expected;
                expected = group.expected_at(now, own, in_time);
                if expected != own {
                    waits_in.push(shared);
                }
                in_time |= group.in_time;
            }
            job.budget.last_expected = expected;
            for group in waits_in {
                self.groups.entry(group).or_default().budget.last_expected = expected;
            }
            expected
        });
        let mut member = destination_id;
        for shared in shared_by(&self.groups, job.group()) {
            let Some(group) = self.groups.get_mut(&shared) else { continue };
            group.budget.queue(id.serial, delivery.expires_at);
            if of_run {
                group.publish_promised(member);
            }
            member = destination_named(shared);
        }
        if !of_run {
            self.take_turns_without_run(destination_id);
        }
        let Some(job) = self.jobs.get_mut(&destination_id) else { return };
        job.queue(id.serial, delivery.expires_at);
        self.ready.push_back(Permit { id, published_at: now, expected_at, delivery });
    }

    /// Reserves room for a permit of this flow without a run, if there is room and a free slot in all of its budgets.
    pub fn reserve(&mut self, now: Timestamp, destination: &Destination, flow: DestinationId) -> bool {
        if self.closed || self.depth() > LAG_DEPTH {
            return false;
        }
        let Some(job) = self.jobs.get_mut(&flow) else { return false };
        let (Some(until), Some(terms)) = (job.admits_until(now, destination), &job.terms) else { return false };
        let (mut tag, mut waiting) = (job.tag, 0);
        let admits = shared_by(&self.groups, terms.group).all(|shared| {
            let Some(group) = self.groups.get(&shared) else { return false };
            // The keys that wait for their turns inside a member do so for its turn, too.
            waiting += group.waiting();
            group.admits(now, until, terms, std::mem::replace(&mut tag, group.tag), waiting)
        });
        if !admits {
            return false;
        }
        job.budget.reserved += 1;
        for shared in shared_by(&self.groups, job.group()) {
            self.change_group(shared, |group| group.budget.reserved += 1);
        }
        true
    }

    /// Releases reserved room. A job that waits for room becomes due.
    pub fn unreserve(&mut self, now: Timestamp, flow: DestinationId) {
        if self.release_room(flow) {
            self.group_room_freed(now, flow);
            self.room_freed(now, flow);
        }
    }

    /// Whether room was reserved, which is free now.
    fn release_room(&mut self, id: DestinationId) -> bool {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.budget.reserved > 0) else { return false };
        job.budget.reserved -= 1;
        for shared in shared_by(&self.groups, job.group()) {
            self.change_group(shared, |group| group.budget.reserved = group.budget.reserved.saturating_sub(1));
        }
        true
    }

    /// Publishes a permit for which room was reserved. Returns the delivery when the destination has been suspended or
    /// held, or the worker has stopped.
    pub fn admit(&mut self, now: Timestamp, delivery: ClaimedDelivery) -> Option<ClaimedDelivery> {
        let destination_id = delivery.flow_id;
        let closed = self.closed;
        // The conditions are checked again, because they may have changed since the room was reserved.
        let admits = |job: &&mut Job| {
            job.terms.as_ref().is_some_and(|terms| !terms.suspended)
                && !job.held.is_held(now)
                && job.budget.cursors.is_some()
        };
        match self.jobs.get_mut(&destination_id).filter(admits).filter(|job| job.budget.reserved > 0 && !closed) {
            Some(_) => {
                self.release_room(destination_id);
                self.issue(now, delivery, false);
                None
            }
            None => {
                self.unreserve(now, destination_id);
                Some(delivery)
            }
        }
    }

    /// Takes all published permits, and publishes no more.
    pub fn close(&mut self) -> Vec<Permit> {
        self.closed = true;
        self.take(usize::MAX)
    }

    /// Ends a run: schedules the next one, or makes the job idle.
    fn requeue(&mut self, now: Timestamp, lease: &JobLease, next: NextRun) {
        let id = lease.destination_id;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        // The run publishes once more under its lease, so the job stays as it is.
        if next == NextRun::Continue {
            return;
        }
        if let Some(since) = job.run_since.take() {
            job.budget.run_ended(since, now);
            for group in shared_by(&self.groups, job.group()) {
                self.change_group(group, |group| group.budget.run_ended(since, now));
            }
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        // Only a run that found no live backlog opens the fast path.
        job.fast_path_ahead = next.fast_path_ahead();
        // A wake during the lease counts: a stop would lose it, and a later due time would delay it.
        let during_lease = job.during_lease;
        if let Some(group) = self.turn_again(now, id, next) {
            return self.enter_turn(now, id, group, false);
        }
        let Some(job) = self.jobs.get(&id) else { return };
        match (next, during_lease.wake) {
            (NextRun::Continue, _) => {}
            (NextRun::Stop, None) if job.version == lease.version => self.move_to(id, Phase::Idle),
            (NextRun::Stop, wake) => self.schedule(id, wake.unwrap_or(now), Timestamp::MIN, false),
            (NextRun::At(due) | NextRun::Soon(due), wake) => {
                self.schedule(id, wake.map_or(due, |wake| wake.min(due)), Timestamp::MIN, false);
            }
            (NextRun::Now, _) => self.schedule(id, now, now, false),
            (NextRun::Paced, _) => {
                let due = job.paced_due(now);
                self.schedule(id, due, due, false);
            }
            // There may be room, because a permit has ended since the lease was claimed.
            (NextRun::OnSettle, _) if during_lease.settled || job.budget.outstanding() == 0 => {
                let due = job.due_with_room(now);
                self.schedule(id, due, due, false);
            }
            (NextRun::OnSettle, _) => {
                let fallback = now + RUN_FALLBACK;
                self.schedule(id, fallback, fallback, true);
            }
        }
    }

    /// Takes permits in the order of publication.
    pub fn take(&mut self, max: usize) -> Vec<Permit> {
        let count = max.min(self.ready.len());
        self.ready.drain(..count).collect()
    }

    pub fn take_slot(&mut self, now: Timestamp, request: SlotRequest) -> SlotAnswer {
        let id = request.id.destination_id;
        let Some(job) = self.jobs.get_mut(&id) else { return SlotAnswer::Withdrawn };
        let mut shared = shared_by(&self.groups, job.group());
        let (group, outer) = (shared.next(), shared.next());
        let known = match (group, outer) {
            (Some(group), Some(outer)) => self.groups.get_disjoint_mut([&group, &outer]),
            (Some(group), None) => [self.groups.get_mut(&group), None],
            (None, _) => [None, None],
        };
        let (mut one, mut two);
        let groups: &mut [&mut Group] = match known {
            [Some(group), Some(outer)] => {
                two = [group, outer];
                &mut two
            }
            [Some(group), None] | [None, Some(group)] => {
                one = [group];
                &mut one
            }
            [None, None] => &mut [],
        };
        let is_behind = groups.first().zip(job.terms.as_ref()).is_some_and(|(group, terms)| group.is_ahead_of(terms));
        let answer = job.take_slot(now, request, groups);
        // A run brings the terms.
        if is_behind {
            self.run_at_once(now, id);
        }
        answer
    }

    /// Removes a permit whose attempt has ended. A job that waits for room becomes due.
    pub fn settle(&mut self, now: Timestamp, Settled { id, answered }: Settled) {
        if self.end_permit(now, id) {
            let Some(job) = self.jobs.get_mut(&id.destination_id) else { return };
            job.raise_maxima(answered);
            let group = job.group();
            for (group, sent_at) in shared_by(&self.groups, group).zip(answered.into_iter().cycle()) {
                self.change_group(group, |group| group.answered(sent_at));
            }
            self.room_freed(now, id.destination_id);
        }
    }

    /// Removes a permit from the budgets that it counts in. Returns whether it was known.
    fn end_permit(&mut self, now: Timestamp, id: PermitId) -> bool {
        let Some(job) = self.jobs.get_mut(&id.destination_id) else { return false };
        let is_known = job.budget.end(id.serial);
        for group in shared_by(&self.groups, job.group()) {
            self.change_group(group, |group| _ = group.budget.end(id.serial));
        }
        self.group_room_freed(now, id.destination_id);
        is_known
    }

    /// Removes an unused permit. A paced job becomes due earlier, because another permit can take the slot. But if the
    /// worker had no place, the job does not become due: the run would find no place either, and would be repeated
    /// without end.
    pub fn hand_back(&mut self, now: Timestamp, HandedBack { id, crowded }: HandedBack) {
        if !self.end_permit(now, id) {
            return;
        }
        let Some(job) = self.jobs.get_mut(&id.destination_id) else { return };
        if crowded {
            job.lower_max_outstanding();
            return;
        }
        let pace = job.paced_due(now);
        match job.phase {
            Phase::Scheduled { due, floor, on_settle: false } if due == floor && pace < due => {
                self.schedule(id.destination_id, pace, pace, false);
            }
            _ => self.room_freed(now, id.destination_id),
        }
    }

    /// A job that waits for room becomes due.
    fn room_freed(&mut self, now: Timestamp, id: DestinationId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match job.phase {
            Phase::Scheduled { on_settle: true, .. } => {
                let due = job.due_with_room(now);
                self.schedule(id, due, due, false);
            }
            Phase::Leased { .. } => job.during_lease.settled = true,
            Phase::Idle | Phase::Scheduled { .. } | Phase::Turn { .. } => {}
        }
    }

    /// The job runs when its terms end, if not before.
    fn schedule(&mut self, id: DestinationId, due: Timestamp, floor: Timestamp, on_settle: bool) {
        let until = self.jobs.get(&id).and_then(|job| job.terms.as_ref()?.until).unwrap_or(Timestamp::MAX);
        self.move_to(id, Phase::Scheduled { due: due.min(until), floor: floor.min(until), on_settle });
    }

    /// The only function that changes a phase, so that job, schedule and turn queue agree.
    fn move_to(&mut self, id: DestinationId, phase: Phase) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let schedule_key = |phase| match phase {
            Phase::Idle | Phase::Turn { .. } => None,
            Phase::Scheduled { due, .. } => Some((due, Entry::Job(id))),
            Phase::Leased { expires, .. } => Some((expires, Entry::Job(id))),
        };
        if let Some(key) = schedule_key(job.phase) {
            self.schedule.remove(&key);
        }
        if let Some(key) = schedule_key(phase) {
            self.schedule.insert(key);
        }
        let (before, weight) = (std::mem::replace(&mut job.phase, phase), job.weight());
        match before {
            Phase::Turn { group, tag } => self.change_group(group, |group| group.leave(tag, id)),
            Phase::Leased { turn_of: Some(group), .. } => self.end_run_in(group, id),
            _ => {}
        }
        if let Phase::Turn { group, tag } = phase {
            self.change_group(group, |group| group.enter(tag, id, weight));
        }
    }

    fn prune(&mut self, now: Timestamp) {
        let many = self.jobs.len() > self.prune_above.max(MIN_KEPT_JOBS);
        if many || now >= self.prune_at {
            let keeps = self.jobs.len() <= MIN_KEPT_JOBS;
            self.jobs.retain(|id, job| !job.is_forgettable(now) || (keeps && !limit_key::is_of_key(*id)));
            // Room for as many as come until the next prune.
            self.jobs.shrink_to(self.jobs.len() * 2);
            self.prune_at = now + PRUNE_AFTER;
            let direct = self.jobs.values().filter_map(Job::group);
            let members: IdSet<_> = direct.flat_map(|group| shared_by(&self.groups, Some(group))).collect();
            self.groups.retain(|id, group| members.contains(id) || !group.is_forgettable(now));
            self.prune_above = self.jobs.len() * 2;
        }
    }
}
