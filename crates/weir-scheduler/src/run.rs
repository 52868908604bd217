//! One run of a job: what it may publish, what it wants of the store, and what follows it. It only decides; the scheduler does.

use std::{sync::Arc, time::Duration};

use weir_core::{
    Destination, Limiter, Timestamp,
    claim::ClaimedDelivery,
    lane::{self, Brought, Credit, Split},
    plan::{self, Allowance, InHand, NextRun, Observed, Wanted},
};
use weir_queue::{LAST_OLD_START, Lease, Publication};
use weir_store::{ClaimRequest, SendHistory};

use crate::returns::START_WITHIN;

/// One job of a batch, between reading its destination and publishing.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) lease: Lease,
    pub(crate) destination: Option<Arc<Destination>>,
    pub(crate) recovered: Option<Limiter>,
    pub(crate) allowance: Allowance,
    pub(crate) in_hand: InHand,
    pub(crate) wanted: Wanted,
    /// How the run's permits are split, where replays have a lane.
    pub(crate) split: Option<Split>,
    /// To be published next.
    pub(crate) deliveries: Vec<ClaimedDelivery>,
    /// Live deliveries that it has published.
    pub(crate) published: u32,
}

impl Run {
    pub(crate) fn new(lease: Lease, destination: Option<Arc<Destination>>) -> Self {
        Self {
            lease,
            destination,
            recovered: None,
            allowance: Allowance::NOTHING,
            in_hand: InHand::default(),
            wanted: Wanted::default(),
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

    pub(crate) fn allow(&self, now: Timestamp, lagging: bool) -> Allowance {
        let (Some(destination), Some(issued)) = (&self.destination, self.issued()) else {
            return Allowance::NOTHING;
        };
        let settings = &destination.settings;
        plan::allowance(&Observed {
            now,
            issued: &issued,
            queued: self.lease.queued,
            in_flight: self.lease.in_flight,
            max_in_flight: settings.max_in_flight,
            max_queued: settings.rate_limits.max_queued(),
            suspended: settings.paused,
            breaker: &destination.breaker,
            lagging,
        })
    }

    /// The cursors up to which permits have been issued, at the limits in force.
    pub(crate) fn issued(&self) -> Option<Limiter> {
        let mut issued = self.lease.issued.as_ref().or(self.recovered.as_ref())?.clone();
        issued.reconfigure(&self.destination.as_ref()?.settings.rate_limits);
        Some(issued)
    }

    /// Splits what the run may publish with the lane.
    pub(crate) fn split_with_lane(&mut self, credit: Credit, now: Timestamp) {
        let (Some(destination), Some(issued)) = (&self.destination, self.issued()) else { return };
        let out = self.lease.queued + self.lease.in_flight;
        self.split = Some(credit.split(self.allowance.allow, &issued, now, destination.settings.max_in_flight, out));
    }

    /// What follows a run that claims nothing. Without enough in hand it waits for the claim that is being made.
    pub(crate) fn next(&self) -> NextRun {
        let is_short = self.deliveries.len() < self.allowance.allow as usize;
        if self.in_hand.claiming && is_short { NextRun::OnWake } else { plan::next_run(self.allowance, false, None) }
    }

    pub(crate) fn claim_request(&self, now: Timestamp) -> ClaimRequest {
        let settings = self.destination.as_ref().map(|destination| &destination.settings);
        let timeout_ms = settings.map_or(0, |settings| settings.timeout_ms);
        // A durable claim keeps what was committed before it, too: that the one before was delivered is not forgotten once the next
        // is sent.
        let ordered = settings.is_some_and(|settings| settings.order.is_by_key());
        ClaimRequest {
            destination_id: self.lease.destination_id,
            limit: self.wanted.sum(),
            expires_at: now + START_WITHIN + Duration::from_millis(timeout_ms.into()),
            durable: ordered || settings.is_some_and(|settings| settings.rate_limits.outlast_a_restart()),
        }
    }

    /// Publishes what came of the lane, and ends the run.
    pub(crate) fn end_with_lane(
        mut self,
        deliveries: Vec<ClaimedDelivery>,
        live: Brought,
        lane: Brought,
        now: Timestamp,
    ) -> Publication {
        self.deliveries = deliveries;
        let next = match self.issued() {
            Some(mut issued) => {
                for _ in 0..self.published + self.deliveries.len() as u32 {
                    issued.take(now);
                }
                lane::next_run(self.allowance, live, lane, &issued, now)
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
        let limits = self.destination.map(|destination| destination.settings.rate_limits.clone()).unwrap_or_default();
        Publication { lease: self.lease, limits, recovered: self.recovered, deliveries: self.deliveries, next }
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
            issued: None,
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
            Run::new(lease(), Some(Arc::new(destination))).claim_request(NOW).durable
        };
        assert!(!durable(Period::Second, DeliveryOrder::Any));
        assert!(durable(Period::Minute, DeliveryOrder::Any));
        assert!(durable(Period::Second, DeliveryOrder::new(true, None)));
    }

    #[test]
    fn who_has_nothing_left_in_hand_waits_for_the_claim_that_is_being_made() {
        let next = |allow: u32, claiming: bool| {
            let mut run = Run::new(lease(), None);
            run.allowance = Allowance { allow, binding: plan::Binding::InFlight };
            run.in_hand.claiming = claiming;
            run.next()
        };
        assert_eq!(next(1, true), NextRun::OnWake);
        assert_eq!(next(0, true), NextRun::OnSettle, "there is no room for what it will bring");
        assert_eq!(next(1, false), NextRun::OnSettle);
    }
}
