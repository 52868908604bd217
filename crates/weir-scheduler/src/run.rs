//! One run of a job: how much it may publish, which claims it makes, and when the job runs next. A `Run` only decides;
//! the scheduler performs the calls.

use std::{sync::Arc, time::Duration};

use weir_core::{
    Destination, DestinationId, LimitGroupId, LimitKey, Limiter, RateLimit, RateLimits, Timestamp,
    claim::ClaimedDelivery,
    limit::Shape,
    plan::{self, Allowance, AllowanceReason, NextRun, Observed},
    replay_share::{self, ClaimResult, Credit, Split},
};
use weir_queue::{GroupRun, JobLease, LAST_OLD_START, Pace, Publication, Terms};
use weir_store::{ClaimRequest, ClaimedFlow, SendHistory, SentCounts};

use crate::release::START_WITHIN;

/// The delay before a destination runs again after a failed run: a short failure costs little, and a lasting one few
/// calls.
pub(crate) const RETRY_RUN: Duration = Duration::from_millis(250);

/// A job whose run is under way.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) lease: JobLease,
    pub(crate) destination: Option<Arc<Destination>>,
    /// Whose deliveries it publishes.
    flow: ClaimedFlow,
    /// Whose terms the job has: the destination or, where it has limit keys, its flow.
    terms_of: Option<Arc<Destination>>,
    /// The same with the limits and the hold that are in force.
    pub(crate) effective: Option<Arc<Destination>>,
    /// When the destination was read.
    now: Timestamp,
    pub(crate) recovered: Option<Limiter>,
    /// [`Publication::groups`].
    pub(crate) groups: Vec<GroupRun>,
    /// The run publishes nothing and is repeated then.
    waits_until: Option<Timestamp>,
    /// The pace of an adaptive destination, once the run has learnt.
    pub(crate) pace: Option<Box<Pace>>,
    pub(crate) allowance: Allowance,
    /// The split between live and replayed deliveries, if the destination has replays.
    pub(crate) split: Option<Split>,
    /// The deliveries to publish next.
    pub(crate) deliveries: Vec<ClaimedDelivery>,
    /// The number of live deliveries that the run has published.
    pub(crate) published: u32,
}

impl Run {
    /// `key`: that of the flow whose job it is. A destination with limit keys has a flow without one, too.
    pub(crate) fn new(
        lease: JobLease,
        destination: Option<Arc<Destination>>,
        key: Option<LimitKey>,
        now: Timestamp,
    ) -> Self {
        let is_keyed = destination.as_ref().is_some_and(|of| of.keyed_at.is_some());
        let flow = match key {
            Some(_) => ClaimedFlow::Key(lease.destination_id),
            None if is_keyed => ClaimedFlow::Keyless,
            None => ClaimedFlow::All,
        };
        let terms_of = destination.as_ref().map(|destination| match flow {
            ClaimedFlow::All => Arc::clone(destination),
            ClaimedFlow::Key(_) | ClaimedFlow::Keyless => Arc::new(destination.flow(key.as_ref())),
        });
        let mut run = Self {
            lease,
            effective: terms_of.as_ref().map(|of| of.shared_at(now)),
            flow,
            terms_of,
            destination,
            now,
            recovered: None,
            groups: Vec::new(),
            waits_until: None,
            pace: None,
            allowance: Allowance::NOTHING,
            split: None,
            deliveries: Vec::new(),
            published: 0,
        };
        // The destination was read before it had limit keys. Its flows have no budget without them.
        if key.is_some() && run.destination.is_some() && !is_keyed {
            run.wait_until(now + RETRY_RUN);
        }
        run
    }

    /// The budget that the destination, or its flows, share.
    pub(crate) fn group_id(&self) -> Option<LimitGroupId> {
        self.destination.as_ref()?.shared_budget()
    }

    /// The destination of the flow, or that of the job.
    pub(crate) fn destination_id(&self) -> DestinationId {
        self.destination.as_ref().map_or(self.lease.destination_id, |destination| destination.id)
    }

    pub(crate) fn is_of_key(&self) -> bool {
        matches!(self.flow, ClaimedFlow::Key(_))
    }

    /// Tells the queue nothing, and ends: the destination is not here.
    pub(crate) fn leave(&mut self) {
        (self.destination, self.terms_of, self.effective) = (None, None, None);
        self.groups.clear();
    }

    /// Tells the queue nothing, and runs again at this instant.
    pub(crate) fn wait_until(&mut self, at: Timestamp) {
        self.leave();
        self.waits_until = Some(at);
    }

    /// The limit group of the destination.
    pub(crate) fn limit_group(&self) -> Option<LimitGroupId> {
        self.destination.as_ref()?.settings.limit_group
    }

    /// The same, where the run is one of a flow, whose own group is the budget of limit keys.
    pub(crate) fn outer_id(&self) -> Option<LimitGroupId> {
        self.destination.as_ref()?.outer_group()
    }

    /// How many permits the run may publish under the budgets that the job shares. `None`: the queue does not know one of
    /// them, or takes the destination for a member of another group.
    fn turn(&self) -> Option<u32> {
        let Some(turn) = self.lease.turn else { return self.group_id().is_none().then_some(u32::MAX) };
        let is_of_these = turn.groups().map(|of| of.group).eq(self.group_id().into_iter().chain(self.outer_id()));
        (is_of_these && turn.groups().all(|of| of.is_known)).then_some(turn.permits)
    }

    /// The limits of the window shape, whose lost rings are filled from what is recorded.
    pub(crate) fn windows(&self) -> Vec<RateLimit> {
        let limits = self.effective.iter().flat_map(|of| of.settings.rate_limits.of_shape(Shape::Window));
        limits.copied().collect()
    }

    /// The limits of the window shape that an override replaces. What they have let through counts again when it ends.
    pub(crate) fn replaced_windows(&self) -> Vec<RateLimit> {
        let (Some(below), Some(in_force)) = (&self.terms_of, &self.effective) else { return Vec::new() };
        replaced_windows(&below.settings.rate_limits, &in_force.settings.rate_limits).collect()
    }

    /// The even limits whose window reaches back to an edit, as limits of the window shape.
    pub(crate) fn changed_limits(&self) -> Vec<RateLimit> {
        let Some(destination) = &self.destination else { return Vec::new() };
        if destination.temporary.is_none() && destination.updated_at == destination.created_at {
            return Vec::new();
        }
        let changed_at = if destination.temporary.is_none() { destination.updated_at } else { self.now };
        self.effective.iter().flat_map(|of| of_late(&of.settings.rate_limits, changed_at, self.now)).collect()
    }

    /// Leaves room for what is recorded of such a limit, as of one of the window shape.
    pub(crate) fn recall_even(&mut self, limit: RateLimit, sent: &SentCounts, now: Timestamp) {
        let unrecorded = self.lease.known_since + LAST_OLD_START;
        if let Some(limiter) = &mut self.recovered {
            limiter.recall_even(&sent.ring(limit, unrecorded, now));
        }
    }

    /// Fills the ring of a limit from what is recorded. Outstanding claims may belong to permits that the queue has lost.
    pub(crate) fn recall(&mut self, limit: RateLimit, sent: &SentCounts, now: Timestamp) {
        let unrecorded = self.lease.known_since + LAST_OLD_START;
        if let Some(limiter) = &mut self.recovered {
            limiter.expect_cost(sent.usual_cost);
            limiter.recall(sent.ring(limit, unrecorded, now));
        }
    }

    /// The same for a limit that an override replaces.
    pub(crate) fn recall_dormant(&mut self, limit: RateLimit, sent: &SentCounts, now: Timestamp) {
        let unrecorded = self.lease.known_since + LAST_OLD_START;
        if let Some(limiter) = &mut self.recovered {
            limiter.recall_dormant(&sent.ring(limit, unrecorded, now));
        }
    }

    pub(crate) fn is_adaptive(&self) -> bool {
        self.terms_of.as_ref().is_some_and(|of| of.settings.adaptive.is_some())
    }

    /// Recovers lost cursors from the last send in the store.
    pub(crate) fn recover_cursors(&mut self, history: SendHistory, now: Timestamp) {
        let Some(destination) = &self.effective else { return };
        let last_start = latest_start(history, self.lease.known_since, now);
        let mut limiter = Limiter::recovered(&destination.settings.rate_limits, last_start);
        limiter.hold(destination.held_until.unwrap_or(Timestamp::MIN));
        self.recovered = Some(limiter);
    }

    /// Decides how much the run may publish. `credit` is the replay credit of the destination, if it has replays.
    pub(crate) fn decide(&mut self, lagging: bool, credit: Option<Credit>) {
        if let Some(at) = self.waits_until {
            self.allowance = Allowance { allow: 0, reason: AllowanceReason::Until(at) };
        }
        let (Some(destination), Some(cursors)) = (&self.effective, self.cursors()) else { return };
        let Some(turn) = self.turn() else {
            self.allowance = Allowance::NOT_YET;
            return;
        };
        let settings = &destination.settings;
        let pace = self.pace.as_ref().map(|pace| &pace.cursor);
        let max_in_flight = pace.map_or(settings.max_in_flight, |pace| pace.window.min(settings.max_in_flight));
        let observed = Observed {
            now: self.now,
            cursors: &cursors,
            pace,
            preparation: self.lease.preparation,
            run_time: self.lease.run_time,
            // While workers have no places, more permits would only wait.
            ahead: if self.lease.max_outstanding.is_some() { 0 } else { self.lease.ahead },
            queued: self.lease.queued,
            in_flight: self.lease.in_flight,
            // While workers have no places, fewer permits may be outstanding.
            max_in_flight: self.lease.max_outstanding.map_or(max_in_flight, |most| most.min(max_in_flight)),
            max_queued: settings.rate_limits.max_queued(),
            suspended: settings.paused,
            breaker: &destination.breaker,
            lagging,
        };
        let allowance = plan::allowance(&observed).within_turn(turn);
        self.split = credit.filter(|_| allowance.allow > 0).map(|credit| credit.split(allowance.allow, &observed));
        self.allowance = allowance;
    }

    /// The cursors, at the limits in force.
    fn cursors(&self) -> Option<Limiter> {
        let mut cursors = self.lease.cursors.as_ref().or(self.recovered.as_ref())?.clone();
        cursors.reconfigure(&self.effective.as_ref()?.settings.rate_limits);
        Some(cursors)
    }

    /// How many live deliveries the run claims.
    pub(crate) fn wanted(&self) -> u32 {
        self.split.map_or(self.allowance.allow, |split| split.live)
    }

    pub(crate) fn claim_request(&self, limit: u32) -> ClaimRequest {
        let settings = self.effective.as_ref().map(|destination| &destination.settings);
        let timeout_ms = settings.map_or(0, |settings| settings.timeout_ms);
        // A durable claim makes earlier commits durable too: the result of a delivery is on disk before the next one of
        // its message group is sent.
        let ordered = settings.is_some_and(|settings| settings.order.is_by_key());
        ClaimRequest {
            flow: self.flow,
            destination_id: self.destination_id(),
            limit,
            expires_at: self.now + START_WITHIN + Duration::from_millis(timeout_ms.into()),
            durable: ordered
                || settings.is_some_and(|settings| settings.rate_limits.outlast_a_restart())
                || self.groups.iter().any(|group| group.terms.at(self.now).rate_limits.outlast_a_restart()),
        }
    }

    /// Publishes replayed deliveries, and ends the run.
    pub(crate) fn end_with_replay(
        mut self,
        deliveries: Vec<ClaimedDelivery>,
        live: ClaimResult,
        replay: ClaimResult,
    ) -> Publication {
        self.deliveries = deliveries;
        // All permits that are out when this is published: the next run waits for the slot behind theirs.
        let outstanding = self.lease.queued + self.published + self.deliveries.len() as u32;
        let of_pace = self.pace.as_ref().map(|pace| pace.cursor.start_after(outstanding, self.now));
        let next = match self.cursors() {
            Some(cursors) => {
                let slot_start = cursors.start_after(outstanding, self.now);
                let slot_start = of_pace.map_or(slot_start, |start| start.max(slot_start));
                replay_share::next_run(self.allowance, live, replay, slot_start, self.now)
            }
            None => NextRun::Stop,
        };
        self.into_publication(next)
    }

    /// Takes the deliveries to publish next; the run continues.
    pub(crate) fn publication(&mut self, next: NextRun) -> Publication {
        let deliveries = std::mem::take(&mut self.deliveries);
        Self { deliveries, ..self.clone() }.into_publication(next)
    }

    /// Publishes the remaining deliveries, and ends the run unless `next` continues it.
    pub(crate) fn into_publication(mut self, next: NextRun) -> Publication {
        for delivery in &mut self.deliveries {
            delivery.destination.clone_from(&self.destination);
        }
        let outer = self.outer_id();
        let terms = self.terms_of.map(|of| Terms { outer, ..Terms::of(&of, self.now) });
        let pace = self.pace.map(|mut pace| {
            // Deliveries wait for an answer. That is the window's doing, unless workers have no places.
            if next == NextRun::OnSettle && self.lease.max_outstanding.is_none() {
                pace.rate.leaves_waiting();
            }
            Box::new(pace.rate)
        });
        let Self { lease, recovered, groups, deliveries, .. } = self;
        Publication { lease, terms, recovered, groups, pace, deliveries, next }
    }
}

/// The even limits whose window reaches back to the last change, as those of the window shape that they may have been.
pub(crate) fn of_late(limits: &RateLimits, changed_at: Timestamp, now: Timestamp) -> impl Iterator<Item = RateLimit> {
    let even = limits.of_shape(Shape::Even).filter(move |limit| changed_at + limit.span() > now);
    even.map(|limit| limit.as_window())
}

/// The limits of the window shape below those in force that none of them continues.
pub(crate) fn replaced_windows(below: &RateLimits, in_force: &RateLimits) -> impl Iterator<Item = RateLimit> {
    let goes_on = |limit: &RateLimit| in_force.of_shape(Shape::Window).any(|other| other.period == limit.period);
    below.of_shape(Shape::Window).copied().filter(move |limit| !goes_on(limit))
}

/// The latest time at which a send that the queue does not know of has started or may still start.
pub(crate) fn latest_start(history: SendHistory, known_since: Timestamp, now: Timestamp) -> Option<Timestamp> {
    // No send is in the future, even if the clock of the process that recorded it was wrong.
    let recorded = history.last_sent_at.map(|at| at.min(now));
    // Unsettled claims may belong to permits that the queue has lost.
    let unrecorded = history.unsettled.then_some(known_since + LAST_OLD_START);
    recorded.max(unrecorded)
}

#[cfg(test)]
pub(crate) mod tests {
    use weir_core::{Period, RateLimits, order::DeliveryOrder};
    use weir_queue::conformance::settings;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    /// A lease of a job that has never run, taken then.
    pub(crate) fn lease(now: Timestamp) -> JobLease {
        JobLease {
            destination_id: DestinationId::from_bytes([1; 16]),
            shard: 0,
            turn: None,
            epoch: 1,
            version: 1,
            due: now,
            queued: 0,
            in_flight: 0,
            cursors: None,
            pace: None,
            preparation: Duration::ZERO,
            run_time: Duration::ZERO,
            ahead: 0,
            max_outstanding: None,
            known_since: now,
        }
    }

    fn sent(seconds_ago: u64, unsettled: bool) -> SendHistory {
        SendHistory { last_sent_at: Some(NOW - Duration::from_secs(seconds_ago)), unsettled }
    }

    #[test]
    fn cursors_are_recovered_from_the_last_recorded_send() {
        assert_eq!(latest_start(SendHistory::default(), NOW, NOW), None);
        assert_eq!(latest_start(sent(7, false), NOW, NOW), Some(NOW - Duration::from_secs(7)));
        let ahead = SendHistory { last_sent_at: Some(NOW + Duration::from_secs(7)), unsettled: false };
        assert_eq!(latest_start(ahead, NOW, NOW), Some(NOW), "no send is in the future");
    }

    #[test]
    fn no_new_send_starts_before_the_last_possible_send_of_a_lost_queue() {
        assert_eq!(latest_start(sent(7, true), NOW, NOW), Some(NOW + LAST_OLD_START));
    }

    #[test]
    fn unsettled_claims_delay_no_send_long_after_the_queue_was_lost() {
        let since = NOW - Duration::from_secs(60);
        assert_eq!(latest_start(sent(7, true), since, NOW), Some(NOW - Duration::from_secs(7)));
        assert_eq!(latest_start(sent(70, true), since, NOW), Some(since + LAST_OLD_START));
    }

    #[test]
    fn claims_are_durable_where_losing_one_could_break_a_limit_or_an_order() {
        let durable = |period: Period, order: DeliveryOrder| {
            let limits = RateLimits::new(RateLimit::new(1, period).into_iter().collect()).unwrap();
            let mut destination = settings(&limits, 64);
            destination.settings.order = order;
            Run::new(lease(NOW), Some(Arc::new(destination)), None, NOW).claim_request(1).durable
        };
        assert!(!durable(Period::SECOND, DeliveryOrder::Any));
        assert!(durable(Period::MINUTE, DeliveryOrder::Any));
        assert!(durable(Period::SECOND, DeliveryOrder::new(true, None)));
    }
}
