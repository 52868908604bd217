//! The life of one attempt: connect, take the slot, send through the gate, judge.
//!
//! A permit says when its slot is expected. The worker stands ready a little before: it makes a connection at once where none
//! stands, and signs. Then it asks for the slot. A slot that is missed is not sent in: it asks again; not an attempt, no retry
//! burnt.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use metrics::counter;
use weir_core::{
    AttemptId, Clock, Destination, Slot, Timestamp,
    claim::{Claim, ClaimedDelivery},
    delivery::Attempt,
    event::EventBody,
    outcome::{self, Effect, Failure, HoldReason, SendResult, Verdict},
};
use weir_queue::{Permit, PermitId, SharedQueue, SlotAnswer, SlotRequest};
use weir_store::AttemptResult;

use crate::{
    meters::Meters,
    outbound::{Connection, Checkout, NoConnection, Outbound, ExchangeResult, Sent, SlotSource, Unreachable},
    spans::{AttemptSpan, AttemptSpans, StartedSpan},
    targets::DestinationTarget,
};

/// How long before its slot is expected a worker asks for it, so that the answer is there in time.
const ASK_AHEAD: Duration = Duration::from_millis(15);
const REPLAY_ASK_AHEAD: Duration = Duration::from_millis(2);
/// Permits that ask at about the same time ask together: at multiples of this.
const ASK_EVERY: Duration = Duration::from_millis(5);
/// How many connections that were made for an attempt may be dead before the request leaves.
const MAX_CLOSED: u32 = 3;
/// How often a slot is asked for while the queue does not answer, and how long apart.
const ASK_TRIES: u32 = 3;
const ASK_RETRY: Duration = Duration::from_millis(100);

/// How long a permit is kept that finds no file or port left for a connection.
const EXHAUSTED_PAUSE: Duration = Duration::from_secs(1);

/// What an attempt needs of its surroundings.
pub(crate) struct Attempter {
    pub(crate) queue: SharedQueue,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) outbound: Arc<Outbound>,
    pub(crate) meters: Meters,
    /// `None`: attempts are not traced.
    pub(crate) spans: Option<Arc<dyn AttemptSpans>>,
    /// The process is shutting down: what has no slot goes back.
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
    /// It says nothing of the destination's health: the connection was an old one.
    pub(crate) ignored_by_breaker: bool,
}

/// A permit that was not used.
pub(crate) struct Unsent {
    pub(crate) permit: PermitId,
    pub(crate) claim: Claim,
    /// There was no place for it, beside others of its destination that take long.
    pub(crate) crowded: bool,
}

impl From<&Permit> for Unsent {
    fn from(permit: &Permit) -> Self {
        Self { permit: permit.id, claim: permit.delivery.claim, crowded: false }
    }
}

/// What became of the way to the wire.
enum Wire {
    Sent(Sent),
    /// No connection could be made, or each died before the request left.
    Unreachable(Unreachable),
    /// Withdrawn, held, expired, or shutting down.
    Withdrawn,
}

/// Asks for the slots of one permit.
struct PermitSlots<'a> {
    attempter: &'a Attempter,
    permit: &'a Permit,
    /// What starts later could outlast its claim.
    start_by: Timestamp,
    /// How long it took to stand ready, until that is told.
    preparation: Option<Duration>,
    /// Granted and not used yet.
    slot: Option<Slot>,
    /// Since when nothing but this process keeps the request from leaving: it is published, the limit lets it go, and the
    /// connection stands.
    due: Timestamp,
}

impl SlotSource for PermitSlots<'_> {
    async fn next(&mut self) -> Option<Slot> {
        if let Some(slot) = self.slot.take() {
            if !slot.is_over(self.attempter.clock.now()) {
                // Its connection died under it. Another may be there in time; the next slot may be an hour away.
                self.slot = Some(slot);
                return Some(slot);
            }
            self.attempter.meters.slots_missed.increment(1);
        }
        let mut failures = 0;
        loop {
            if self.attempter.clock.now() >= self.start_by || self.attempter.stopping.load(Ordering::Relaxed) {
                return None;
            }
            let request = SlotRequest { id: self.permit.id, preparation: self.preparation.take() };
            match self.attempter.queue.take_slot(request).await {
                Ok(SlotAnswer::Granted(slot)) => {
                    self.limited_until(slot.start);
                    self.slot = Some(slot);
                    return Some(slot);
                }
                Ok(SlotAnswer::Later(start)) => {
                    self.limited_until(start);
                    self.attempter.sleep_until(asks_at(start, &self.permit.delivery)).await;
                }
                Ok(SlotAnswer::Withdrawn) => return None,
                Err(error) => {
                    failures += 1;
                    if failures == ASK_TRIES {
                        tracing::warn!(%error, "could not take a slot; the permit goes back unsent");
                        return None;
                    }
                    tokio::time::sleep(ASK_RETRY).await;
                }
            }
        }
    }
}

impl PermitSlots<'_> {
    /// A slot that lies ahead waits for the limit, not for this process. One that starts now may have come late.
    fn limited_until(&mut self, start: Timestamp) {
        if start > self.attempter.clock.now() {
            self.due = self.due.max(start);
        }
    }

    /// A connection was made from `since` on, which takes as long as the other side takes.
    fn connected(&mut self, since: Timestamp) {
        let waited_since = self.due.max(since);
        self.due = self.due + self.attempter.clock.now().since(waited_since);
    }
}

/// When to ask for a slot that starts then. What is replayed asks as its time comes, so that a live delivery that is ready goes first.
fn asks_at(start: Timestamp, delivery: &ClaimedDelivery) -> Timestamp {
    if delivery.is_replay {
        return start - REPLAY_ASK_AHEAD;
    }
    let early = (start - ASK_AHEAD).as_nanos();
    Timestamp::from_nanos(early - early.rem_euclid(ASK_EVERY.as_nanos() as i64))
}

impl Attempter {
    pub(crate) async fn make(&self, permit: &Permit, body: &EventBody, target: &DestinationTarget) -> Ended {
        let began = self.clock.now();
        let span = self.spans.as_ref().and_then(|spans| spans.begin(body.trace()));
        // The receiver is told the attempt's own span, where there is one.
        let in_span = span.map(|span| body.clone().traced(Some(span.context)));
        match self.send(permit, in_span.as_ref().unwrap_or(body), target).await {
            Wire::Sent(sent) => self.judge(permit, target, sent, began, span),
            Wire::Unreachable(Unreachable { failure, error }) => {
                let sent = Sent {
                    sent_at: None,
                    ended_at: self.clock.now(),
                    result: SendResult::Failure(failure),
                    response_body: None,
                    error: Some(error),
                    cut_on_reuse: false,
                };
                self.judge(permit, target, sent, began, span)
            }
            Wire::Withdrawn => {
                counter!("weir_permits_unused_total").increment(1);
                Ended::Unsent(permit.into())
            }
        }
    }

    async fn send(&self, permit: &Permit, body: &EventBody, target: &DestinationTarget) -> Wire {
        let start_by = permit.delivery.expires_at - target.timeout();
        let due = permit.expected_at.map_or(permit.published_at, |at| at.max(permit.published_at));
        let mut slots = PermitSlots { attempter: self, permit, start_by, preparation: None, slot: None, due };
        let expected_at = permit.expected_at.map_or(Timestamp::MIN, |at| asks_at(at, &permit.delivery));
        // A connection that stands is for others until it is needed; where none stands, one is made meanwhile.
        if expected_at > self.clock.now() && self.outbound.has_idle_connection(&target.target) {
            self.sleep_until(expected_at).await;
        }
        let mut closed = 0;
        loop {
            let connecting_since = self.clock.now();
            let Checkout { connection, warm } = match self.outbound.connect(&target.target).await {
                Ok(found) => found,
                Err(NoConnection::Unreachable(unreachable)) => return self.paced(unreachable, &mut slots).await,
                Err(NoConnection::Exhausted(what)) => {
                    tracing::warn!(what, "could not connect; the permit goes back unsent");
                    // It would come straight back, and find the same.
                    tokio::time::sleep(EXHAUSTED_PAUSE).await;
                    return Wire::Withdrawn;
                }
            };
            if !warm {
                slots.connected(connecting_since);
            }
            let took = if warm { Duration::ZERO } else { self.clock.now().since(connecting_since) };
            slots.preparation = Some(took);
            self.sleep_until(expected_at).await;
            match self.send_on(connection, permit, body, target, &mut slots).await {
                ExchangeResult::Sent(sent) => {
                    if let Some(sent_at) = sent.sent_at {
                        self.meters.sent(slots.due, sent_at);
                    }
                    return Wire::Sent(sent);
                }
                ExchangeResult::Withdrawn => return Wire::Withdrawn,
                // Back for another connection; nothing has left.
                ExchangeResult::NotSent(unreachable) => {
                    closed += u32::from(!warm);
                    if closed == MAX_CLOSED {
                        let error = "each connection was closed before the request could be sent".to_owned();
                        return self.paced(Unreachable { error, ..unreachable }, &mut slots).await;
                    }
                }
            }
        }
    }

    /// An attempt that finds no connection takes a slot as well: who cannot be reached is not tried more often than the limit says.
    async fn paced(&self, unreachable: Unreachable, slots: &mut PermitSlots<'_>) -> Wire {
        match slots.next().await {
            Some(_) => Wire::Unreachable(unreachable),
            None => Wire::Withdrawn,
        }
    }

    async fn send_on(
        &self,
        connection: Connection,
        permit: &Permit,
        body: &EventBody,
        target: &DestinationTarget,
        slots: &mut PermitSlots<'_>,
    ) -> ExchangeResult {
        let delivery = &permit.delivery;
        let (trace, body) = (body.trace(), body.bytes().clone());
        let unix_seconds = self.clock.wall().as_secs();
        let id = delivery.event_id.to_string();
        let signing = &target.destination.settings.signing;
        let signature = signing.sign(&id, unix_seconds, &body, self.clock.now());
        let head = target.target.request_head(&id, unix_seconds, &signature, delivery.attempts + 1, trace);
        self.outbound.send(&target.target, connection, head, body, slots, target.timeout()).await
    }

    async fn sleep_until(&self, at: Timestamp) {
        let wait = at.since(self.clock.now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    fn judge(
        &self,
        permit: &Permit,
        target: &DestinationTarget,
        sent: Sent,
        began: Timestamp,
        span: Option<StartedSpan>,
    ) -> Ended {
        let &ClaimedDelivery { claim, event_created_at, attempts, attempts_before, .. } = &permit.delivery;
        let number = attempts + 1;
        let of_series = number.saturating_sub(attempts_before);
        let now = sent.ended_at;
        let policy = &target.destination.settings.retry;
        let mut decision = outcome::judge(&sent.result, policy, of_series, event_created_at, now, rand::random());
        if sent.cut_on_reuse && matches!(decision.verdict, Verdict::Retry { .. }) {
            // The server had most likely closed the old connection. It goes in the next slot; a connection that is made for it cannot
            // end this way again.
            decision.verdict = Verdict::Retry { at: now };
            self.outbound.forget(&target.target);
        }
        let (status_code, failure) = match sent.result {
            SendResult::Answer { status, .. } => (Some(status), None),
            SendResult::Failure(failure) => (None, Some(failure)),
        };
        if let (Some(spans), Some(span)) = (&self.spans, span) {
            spans.end(AttemptSpan {
                span,
                event_id: permit.delivery.event_id,
                claim,
                number,
                sent_at: sent.sent_at.unwrap_or(now),
                ended_at: now,
                url: &target.destination.settings.url,
                status_code,
                failure,
            });
        }
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
        Ended::Recorded(Finished {
            permit: permit.id,
            result,
            effect: decision.effect,
            destination,
            began,
            reason,
            ignored_by_breaker: sent.cut_on_reuse,
        })
    }
}

#[cfg(test)]
mod tests;
