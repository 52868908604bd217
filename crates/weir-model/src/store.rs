//! The store's operations, each a transaction.

use crate::{
    permit::{Permit, Stage},
    scenario::{RETRY, Remedy, Scenario, TIMEOUT},
    state::{Delivery, MAX_PERMITS, State, Ticks},
};

impl State {
    pub(crate) fn ingest(&mut self, scenario: &Scenario) -> bool {
        let Some(next) = self.next_event(scenario) else { return false };
        self.store.deliveries[next] = Delivery::Waiting { due: 0 };
        true
    }

    /// Ingests one event and stores its delivery as claimed.
    pub(crate) fn ingest_claimed(&mut self, scenario: &Scenario) -> bool {
        let stage = Stage::FastPathClaimed { version: self.store.version };
        self.next_event(scenario).is_some_and(|next| self.claim_one(scenario, next, stage))
    }

    fn next_event(&self, scenario: &Scenario) -> Option<usize> {
        self.store.deliveries[..scenario.deliveries].iter().position(|delivery| *delivery == Delivery::Absent)
    }

    /// Claims up to `limit` due deliveries for a scheduler, oldest first. Returns how many, or `None` when this world
    /// has no room for so many permits.
    pub(crate) fn claim(&mut self, scenario: &Scenario, scheduler: usize, limit: u8) -> Option<u8> {
        let mut claimed = 0;
        for delivery in 0..scenario.deliveries {
            if claimed == limit || self.store.deliveries[delivery] != (Delivery::Waiting { due: 0 }) {
                continue;
            }
            if !self.claim_one(scenario, delivery, Stage::Claimed { scheduler: scheduler as u8 }) {
                return None;
            }
            claimed += 1;
        }
        Some(claimed)
    }

    /// A free permit; `None` when the scenario allows no further one.
    pub(crate) fn free_permit(&mut self, scenario: &Scenario) -> Option<&mut Permit> {
        let room = MAX_PERMITS - scenario.permits;
        let free = self.permits.iter().filter(|permit| **permit == Permit::FREE).count();
        let place = self.permits.iter_mut().find(|permit| **permit == Permit::FREE);
        place.filter(|_| free > room)
    }

    fn claim_one(&mut self, scenario: &Scenario, delivery: usize, stage: Stage) -> bool {
        let expires = scenario.start_within + TIMEOUT;
        let Some(place) = self.free_permit(scenario) else { return false };
        *place = Permit { stage, delivery: delivery as u8, holds_claim: true, expires, ..Permit::FREE };
        self.store.deliveries[delivery] = Delivery::Claimed { expires };
        true
    }

    /// The earliest due time of the waiting deliveries.
    pub(crate) fn next_due(&self) -> Option<Ticks> {
        let due = |delivery: &Delivery| match delivery {
            Delivery::Waiting { due } => Some(*due),
            Delivery::Absent | Delivery::Claimed { .. } | Delivery::Delivered => None,
        };
        self.store.deliveries.iter().filter_map(due).min()
    }

    /// Whether there are claims whose result is not recorded.
    pub(crate) fn has_unsettled_claims(&self) -> bool {
        self.store.deliveries.iter().any(|delivery| matches!(delivery, Delivery::Claimed { .. }))
    }

    /// Records a result; returns whether the job is to be woken for a retry.
    pub(crate) fn settle(&mut self, scenario: &Scenario, permit: usize, refused: bool) -> bool {
        if !self.holds_claim(scenario, permit) {
            return false;
        }
        let sent = self.permits[permit].sent.unwrap_or(0);
        self.store.last_sent = self.store.last_sent.max(sent);
        let ended = if refused { Delivery::Waiting { due: RETRY } } else { Delivery::Delivered };
        self.end_claim(self.permits[permit].delivery, ended);
        refused
    }

    /// Gives a claim back unsent.
    pub(crate) fn release(&mut self, scenario: &Scenario, permit: usize) {
        if self.holds_claim(scenario, permit) {
            self.end_claim(self.permits[permit].delivery, Delivery::Waiting { due: 0 });
        }
    }

    /// Resolves the expired claims, or all claims, as unknown: sent now at the latest.
    pub(crate) fn recover_claims(&mut self, all: bool) -> bool {
        let expired = |delivery: &Delivery| matches!(delivery, Delivery::Claimed { expires } if all || *expires < 0);
        let mut recovered = false;
        for delivery in 0..self.store.deliveries.len() {
            if expired(&self.store.deliveries[delivery]) {
                self.store.last_sent = self.store.last_sent.max(0);
                self.end_claim(delivery as u8, Delivery::Waiting { due: 0 });
                recovered = true;
            }
        }
        recovered
    }

    fn holds_claim(&self, scenario: &Scenario, permit: usize) -> bool {
        let permit = &self.permits[permit];
        if scenario.has(Remedy::ClaimEpoch) {
            return permit.holds_claim;
        }
        matches!(self.store.deliveries[usize::from(permit.delivery)], Delivery::Claimed { .. })
    }

    /// Ends the claim of a delivery: no permit holds it any more.
    fn end_claim(&mut self, delivery: u8, ended: Delivery) {
        self.store.deliveries[usize::from(delivery)] = ended;
        self.permits
            .iter_mut()
            .filter(|permit| permit.delivery == delivery)
            .for_each(|permit| permit.holds_claim = false);
    }
}
