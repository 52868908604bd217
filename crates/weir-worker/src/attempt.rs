//! The life of one attempt: connect, take the slot, send through the gate, judge.
//!
//! The slot is taken once a connection stands. A permit published with a slot waits for it and uses a standing connection;
//! when there is none, and connecting took longer than the slot, it asks for another slot: not an attempt, no retry burnt.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use metrics::counter;
use weir_core::{
    AttemptId, Clock, Destination, Slot, Timestamp,
    claim::{Claim, ClaimedDelivery},
    delivery::Attempt,
    event::EventBody,
    outcome::{self, Effect, Failure, HoldReason, Met},
};
use weir_queue::{Permit, PermitId, SharedQueue, SlotAnswer, SlotRequest};
use weir_store::AttemptResult;

use crate::{
    lane::LaneSlots,
    meters::Meters,
    outbound::{Connection, Found, NoConnection, Outbound, SendResult, Sent, SlotSource, Unreachable},
    targets::DestinationTarget,
};

/// How many connections that were made for an attempt may be dead before the request leaves.
const MAX_CLOSED: u32 = 3;

/// What an attempt needs of its surroundings.
pub(crate) struct Attempter {
    pub(crate) queue: SharedQueue,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) outbound: Arc<Outbound>,
    pub(crate) meters: Meters,
    pub(crate) lane_slots: LaneSlots,
    /// The process is shutting down: what has not been sent goes back.
    pub(crate) stopping: Arc<AtomicBool>,
}

/// How a permit ended.
pub(crate) enum Ended {
    /// An attempt was made.
    Recorded(Finished),
    /// Nothing was sent.
    Unsent(Unsent),
}

/// An attempt to record.
pub(crate) struct Finished {
    pub(crate) permit: PermitId,
    /// Shared with the store, and kept until that has taken it.
    pub(crate) result: Arc<AttemptResult>,
    pub(crate) effect: Effect,
    /// As it was when the permit was taken.
    pub(crate) destination: Arc<Destination>,
    /// When the permit was taken.
    pub(crate) began: Timestamp,
    /// What the destination answered, when it has an effect on the destination.
    pub(crate) reason: String,
}

/// A permit that was not used.
pub(crate) struct Unsent {
    pub(crate) permit: PermitId,
    pub(crate) claim: Claim,
}

impl From<&Permit> for Unsent {
    fn from(permit: &Permit) -> Self {
        Self { permit: permit.id, claim: permit.delivery.claim }
    }
}

/// The slot that a permit was given, and the one it has: live traffic changes slots with replays.
#[derive(Clone, Copy)]
struct Held {
    given: Slot,
    slot: Slot,
}

impl Held {
    /// No other attempt has the one that was given.
    fn is_its_own(&self) -> bool {
        self.slot == self.given
    }
}

/// What became of the way to the wire.
enum Wire {
    Sent(Sent),
    /// No connection could be made, or each died before the request left.
    Unreachable(Unreachable),
    /// Withdrawn, held, expired, shutting down, or nothing left to connect with.
    Withdrawn,
}

impl Attempter {
    pub(crate) async fn make(&self, permit: &Permit, body: &EventBody, target: &DestinationTarget) -> Ended {
        let began = self.clock.now();
        match self.send(permit, body, target).await {
            Wire::Sent(sent) => self.judge(permit, target, sent, began),
            Wire::Unreachable(Unreachable { failure, error }) => {
                let sent = Sent {
                    sent_at: None,
                    ended_at: self.clock.now(),
                    met: Met::Failure(failure),
                    response_body: None,
                    error: Some(error),
                    cut_on_reuse: false,
                };
                self.judge(permit, target, sent, began)
            }
            Wire::Withdrawn => {
                counter!("weir_permits_unused_total").increment(1);
                Ended::Unsent(permit.into())
            }
        }
    }

    async fn send(&self, permit: &Permit, body: &EventBody, target: &DestinationTarget) -> Wire {
        let start_by = permit.delivery.expires_at - target.timeout();
        let published = match permit.slot {
            Some(given) => Some(self.wait_for(permit, given).await),
            None => None,
        };
        let mut slots = PermitSlots { attempter: self, permit, start_by, published, unused: None, warm: false };
        let mut closed = 0;
        loop {
            let (connection, warm) = match self.outbound.connect(&target.target).await {
                Ok(Found { connection, warm }) => (connection, warm),
                Err(NoConnection::Unreachable(unreachable)) => return Wire::Unreachable(unreachable),
                Err(NoConnection::Exhausted(what)) => {
                    tracing::warn!(what, "could not connect; the permit goes back unsent");
                    return Wire::Withdrawn;
                }
            };
            slots.warm = warm;
            if self.clock.now() >= start_by {
                self.outbound.give_back(&target.target, connection);
                return Wire::Withdrawn;
            }
            match self.send_on(connection, permit, body, target, &mut slots).await {
                SendResult::Sent(sent) => return Wire::Sent(sent),
                SendResult::Withdrawn => return Wire::Withdrawn,
                // Back for another connection; nothing has left.
                SendResult::NotSent(_) => {
                    closed += u32::from(!warm);
                    if closed == MAX_CLOSED {
                        return closed_each_time();
                    }
                }
            }
        }
    }

    /// The published slot while it lasts, else a new one, waited for, in exchange for the one that was not used.
    async fn slot_for(
        &self,
        permit: &Permit,
        published: Option<Held>,
        unused: Option<Held>,
        warm: bool,
    ) -> Option<Held> {
        if let Some(held) = published.filter(|held| !held.slot.is_over(self.clock.now())) {
            return Some(held);
        }
        if published.is_some() {
            counter!("weir_slots_missed_total").increment(1);
        }
        let in_exchange = published.or(unused).is_some_and(|held| held.is_its_own());
        let given = match self.queue.take_slot(permit.id, SlotRequest { warm, in_exchange }).await {
            Ok(SlotAnswer::Granted(slot)) => slot,
            Ok(SlotAnswer::Withdrawn) => return None,
            Err(error) => {
                tracing::warn!(%error, "could not take a slot; the permit goes back unsent");
                return None;
            }
        };
        Some(self.wait_for(permit, given).await)
    }

    async fn wait_for(&self, permit: &Permit, given: Slot) -> Held {
        Held { given, slot: self.reach(permit, given).await }
    }

    /// Waits for the slot, or for the one it is changed for: live traffic goes before replays.
    async fn reach(&self, permit: &Permit, mut slot: Slot) -> Slot {
        if slot.start <= self.clock.now() {
            return slot;
        }
        if !permit.delivery.in_lane {
            slot = self.lane_slots.change(permit.id.destination_id, slot, self.clock.now());
            self.sleep_until(slot.start).await;
            return slot;
        }
        self.lane_slots.wait(permit.id, slot);
        loop {
            self.sleep_until(slot.start).await;
            let now = self.clock.now();
            slot = self.lane_slots.reach(permit.id, slot, now);
            if slot.start <= now {
                return slot;
            }
        }
    }

    async fn sleep_until(&self, at: Timestamp) {
        let wait = at.since(self.clock.now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    async fn send_on(
        &self,
        connection: Connection,
        permit: &Permit,
        body: &EventBody,
        target: &DestinationTarget,
        slots: &mut PermitSlots<'_>,
    ) -> SendResult {
        let delivery = &permit.delivery;
        let body = body.bytes().clone();
        let unix_seconds = self.clock.wall().as_secs();
        let id = delivery.event_id.to_string();
        let signing = &target.destination.settings.signing;
        let signature = signing.sign(&id, unix_seconds, &body, self.clock.now());
        let head = target.target.request_head(&id, unix_seconds, &signature, delivery.attempts + 1);
        self.outbound.send(&target.target, connection, head, body, slots, target.timeout()).await
    }

    fn judge(&self, permit: &Permit, target: &DestinationTarget, sent: Sent, began: Timestamp) -> Ended {
        let &ClaimedDelivery { claim, event_created_at, attempts, attempts_before, .. } = &permit.delivery;
        let number = attempts + 1;
        let of_series = number.saturating_sub(attempts_before);
        let now = sent.ended_at;
        let policy = &target.destination.settings.retry;
        let decision = outcome::judge(&sent.met, policy, of_series, event_created_at, now, rand::random());
        let (status_code, failure) = match sent.met {
            Met::Answer { status, .. } => (Some(status), None),
            Met::Failure(failure) => (None, Some(failure)),
        };
        let kind = failure.map_or("answer", Failure::as_str);
        self.meters.observe(decision.outcome, kind, event_created_at, sent.sent_at, now);
        let reason = match decision.effect {
            Effect::None => String::new(),
            Effect::HoldUntil(_, HoldReason::RetryAfter) => {
                format!("the destination answered {} with Retry-After", status_code.unwrap_or(0))
            }
            Effect::HoldUntil(_, HoldReason::QuotaUsedUp) => {
                "the destination said that its rate limit is used up".to_owned()
            }
            Effect::Pause => "the destination answered 410 Gone".to_owned(),
        };
        let attempt = Attempt {
            id: AttemptId::new(now, rand::random()),
            delivery_id: claim.delivery_id,
            number,
            sent_at: sent.sent_at,
            duration_ms: sent.sent_at.map_or(0, |sent_at| now.since(sent_at).as_millis() as u32),
            outcome: decision.outcome,
            status_code,
            error: sent.error,
            failure,
            response_body: sent.response_body,
        };
        let result = Arc::new(AttemptResult { claim, attempt, verdict: decision.verdict, now });
        let destination = target.destination.clone();
        Ended::Recorded(Finished { permit: permit.id, result, effect: decision.effect, destination, began, reason })
    }
}

/// The slots of one permit: the published one first, then others in exchange for those that were not used.
struct PermitSlots<'a> {
    attempter: &'a Attempter,
    permit: &'a Permit,
    start_by: Timestamp,
    published: Option<Held>,
    unused: Option<Held>,
    warm: bool,
}

impl SlotSource for PermitSlots<'_> {
    async fn next(&mut self) -> Option<Slot> {
        let Self { attempter, permit, .. } = *self;
        if self.unused.is_some() {
            counter!("weir_slots_missed_total").increment(1);
        }
        let held = attempter.slot_for(permit, self.published.take(), self.unused, self.warm).await?;
        let late = attempter.clock.now() >= self.start_by;
        if late || attempter.stopping.load(Ordering::Relaxed) || !attempter.queue.start(permit.id) {
            return None;
        }
        self.unused = Some(held);
        Some(held.slot)
    }
}

fn closed_each_time() -> Wire {
    let error = "each connection was closed before the request could be sent".to_owned();
    Wire::Unreachable(Unreachable { failure: Failure::Connect, error })
}

#[cfg(test)]
mod tests;
