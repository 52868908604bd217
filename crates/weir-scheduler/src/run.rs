//! One run of a job: what it may publish, what it claims in the store, and what follows it. It only decides; the scheduler does.

use std::{sync::Arc, time::Duration};

use weir_core::{
    Destination, Limiter, Timestamp,
    claim::ClaimedDelivery,
    plan::{self, Allowance, NextRun, Observed},
    replay_share::{self, ClaimResult, Credit, Split},
};
use weir_queue::{LAST_OLD_START, Lease, Publication, Terms};
use weir_store::{ClaimRequest, SendHistory};

use crate::returns::START_WITHIN;

/// One job of a batch, between reading its destination and publishing.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) lease: Lease,
    pub(crate) destination: Option<Arc<Destination>>,
    /// When the destination was read.
    now: Timestamp,
    pub(crate) recovered: Option<Limiter>,
    pub(crate) allowance: Allowance,
    /// How the run's permits are split, where replays have a lane.
    pub(crate) split: Option<Split>,
    /// To be published next.
    pub(crate) deliveries: Vec<ClaimedDelivery>,
    /// Live deliveries that it has published.
    pub(crate) published: u32,
}

impl Run {
    pub(crate) fn new(lease: Lease, destination: Option<Arc<Destination>>, now: Timestamp) -> Self {
        Self {
            lease,
            destination,
            now,
            recovered: None,
            allowance: Allowance::NOTHING,
            split: None,
            deliveries: Vec::new(),
            published: 0,
        }
    }

    /// Continues lost cursors from the last send the store knows of.
    pub(crate) fn recover_cursors(&mut self, history: SendHistory, now: Timestamp) {
        let Some(destination) = &self.destination else { return };
        let last_start = latest_start(history, self.lease.known_since, now);
        let mut limiter = Limiter::recovered(&destination.settings.rate_limits, last_start);
        limiter.hold(destination.held_until.unwrap_or(Timestamp::MIN));
        self.recovered = Some(limiter);
    }

    /// Decides how much the run may publish; `credit` is that of the destination's lane, if it has one.
    pub(crate) fn decide(&mut self, lagging: bool, credit: Option<Credit>) {
        let (Some(destination), Some(cursors)) = (&self.destination, self.cursors()) else { return };
        let settings = &destination.settings;
        let max_in_flight = settings.max_in_flight;
        let observed = Observed {
            now: self.now,
            cursors: &cursors,
            preparation: self.lease.preparation,
            queued: self.lease.queued,
            in_flight: self.lease.in_flight,
            max_in_flight: self.lease.window.map_or(max_in_flight, |window| window.min(max_in_flight)),
            max_queued: settings.rate_limits.max_queued(),
            suspended: settings.paused,
            breaker: &destination.breaker,
            lagging,
        };
        let allowance = plan::allowance(&observed);
        self.split = credit.filter(|_| allowance.allow > 0).map(|credit| credit.split(allowance.allow, &observed));
        self.allowance = allowance;
    }

    /// Where the next slots may begin, at the limits in force.
    fn cursors(&self) -> Option<Limiter> {
        let mut cursors = self.lease.cursors.as_ref().or(self.recovered.as_ref())?.clone();
        cursors.reconfigure(&self.destination.as_ref()?.settings.rate_limits);
        Some(cursors)
    }

    /// How much the run claims of what is live.
    pub(crate) fn wanted(&self) -> u32 {
        self.split.map_or(self.allowance.allow, |split| split.live)
    }

    pub(crate) fn claim_request(&self, limit: u32) -> ClaimRequest {
        let settings = self.destination.as_ref().map(|destination| &destination.settings);
        let timeout_ms = settings.map_or(0, |settings| settings.timeout_ms);
        // A durable claim keeps what was committed before it, too: that the one before was delivered is not forgotten once the next
        // is sent.
        let ordered = settings.is_some_and(|settings| settings.order.is_by_key());
        ClaimRequest {
            destination_id: self.lease.destination_id,
            limit,
            expires_at: self.now + START_WITHIN + Duration::from_millis(timeout_ms.into()),
            durable: ordered || settings.is_some_and(|settings| settings.rate_limits.outlast_a_restart()),
        }
    }

    /// Publishes what came of the lane, and ends the run.
    pub(crate) fn end_with_replay(
        mut self,
        deliveries: Vec<ClaimedDelivery>,
        live: ClaimResult,
        replay: ClaimResult,
    ) -> Publication {
        self.deliveries = deliveries;
        let out = self.lease.queued + self.published + self.deliveries.len() as u32;
        let next = match self.cursors() {
            Some(cursors) => {
                replay_share::next_run(self.allowance, live, replay, cursors.start_after(out, self.now), self.now)
            }
            None => NextRun::Stop,
        };
        self.into_publication(next)
    }

    /// What is to be published next, by a run that goes on.
    pub(crate) fn publication(&mut self, next: NextRun) -> Publication {
        let deliveries = std::mem::take(&mut self.deliveries);
        Self { deliveries, ..self.clone() }.into_publication(next)
    }

    pub(crate) fn into_publication(mut self, next: NextRun) -> Publication {
        for delivery in &mut self.deliveries {
            delivery.destination.clone_from(&self.destination);
        }
        let terms = self.destination.map(|destination| Terms::of(&destination, self.now));
        Publication { lease: self.lease, terms, recovered: self.recovered, deliveries: self.deliveries, next }
    }
}

/// The latest instant at which a send can have started, or will yet, that the queue does not know of.
fn latest_start(history: SendHistory, known_since: Timestamp, now: Timestamp) -> Option<Timestamp> {
    // No send lies in the future, whatever the clock of the process that recorded it said.
    let recorded = history.last_sent_at.map(|at| at.min(now));
    // Claims that are out may belong to permits the queue has lost.
    let unrecorded = history.unsettled.then_some(known_since + LAST_OLD_START);
    recorded.max(unrecorded)
}

#[cfg(test)]
mod tests {
    use weir_core::{DestinationId, Period, RateLimit, RateLimits, order::DeliveryOrder};
    use weir_queue::conformance::settings;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn lease() -> Lease {
        Lease {
            destination_id: DestinationId::from_bytes([1; 16]),
            epoch: 1,
            version: 1,
            due: NOW,
            queued: 0,
            in_flight: 0,
            cursors: None,
            preparation: Duration::ZERO,
            window: None,
            known_since: NOW,
        }
    }

    fn sent(seconds_ago: u64, unsettled: bool) -> SendHistory {
        SendHistory { last_sent_at: Some(NOW - Duration::from_secs(seconds_ago)), unsettled }
    }

    #[test]
    fn cursors_continue_from_the_last_recorded_send() {
        assert_eq!(latest_start(SendHistory::default(), NOW, NOW), None);
        assert_eq!(latest_start(sent(7, false), NOW, NOW), Some(NOW - Duration::from_secs(7)));
        let ahead = SendHistory { last_sent_at: Some(NOW + Duration::from_secs(7)), unsettled: false };
        assert_eq!(latest_start(ahead, NOW, NOW), Some(NOW), "no send lies in the future");
    }

    #[test]
    fn permits_of_a_lost_queue_are_let_pass_before_anything_new_starts() {
        assert_eq!(latest_start(sent(7, true), NOW, NOW), Some(NOW + LAST_OLD_START));
    }

    #[test]
    fn unsettled_claims_hold_nothing_up_long_after_the_queue_was_lost() {
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
            Run::new(lease(), Some(Arc::new(destination)), NOW).claim_request(1).durable
        };
        assert!(!durable(Period::Second, DeliveryOrder::Any));
        assert!(durable(Period::Minute, DeliveryOrder::Any));
        assert!(durable(Period::Second, DeliveryOrder::new(true, None)));
    }
}
