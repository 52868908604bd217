//! One attempt: connect, take the slot, send through the gate, judge the answer.
//!
//! A permit says when its slot is expected. A little before, the worker is ready to send: it has an open connection and
//! a signed request. If no connection is idle, it dials at once. Then it asks for the slot ([`permit_slots`]).

mod permit_slots;

use std::{
    fmt::Write as _,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use metrics::counter;
use weir_core::{
    AttemptId, Clock, Destination, DestinationId, Timestamp,
    adaptive::Sample,
    claim::{Claim, ClaimedDelivery},
    delivery::{Attempt, AttemptOutcome},
    event::EventBody,
    limit_key::budget_as_destination,
    outcome::{self, Circumstances, Decision, Effect, Failure, HoldReason, Refusal, RequestedHold, Verdict},
    signing::Message,
    time::InWords,
};
use weir_queue::{PacedGrant, Permit, PermitId, Settled, SharedQueue};
use weir_store::AttemptResult;

use self::permit_slots::{AskAhead, PermitSlots, SlotNotes};
use crate::{
    meters::Meters,
    outbound::{
        Checkout, Connection, ExchangeResult, NoConnection, Outbound, Sent, SlotSource, TimeLimit, Unreachable,
    },
    spans::{AttemptSpan, AttemptSpans, StartedSpan},
    targets::DestinationTarget,
};

/// How many connections that were dialled for one attempt may be closed before the request is sent. One may meet a
/// restart, two a failover; three in a row are how the destination answers.
const MAX_CLOSED: u32 = 3;
/// How long the worker keeps a permit when no file or port is left for a connection. Attempts that end in this time
/// free some.
const EXHAUSTED_PAUSE: Duration = Duration::from_secs(1);

/// How long the worker keeps a permit whose body or secrets it cannot open.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(2);

/// The longest time that a permit is on its way to a worker and counts as preparation: two round trips to a store that
/// is 50 ms away, and a busy machine. A longer time means that the workers have no places, and permits that were
/// published even earlier would only wait for them.
const LONGEST_HANDOVER: Duration = Duration::from_millis(250);

/// Makes attempts.
pub(crate) struct Attempter {
    pub(crate) queue: SharedQueue,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) outbound: Arc<Outbound>,
    pub(crate) meters: Meters,
    /// `None`: attempts are not traced.
    pub(crate) spans: Option<Arc<dyn AttemptSpans>>,
    /// The process is shutting down: permits without a slot are handed back.
    pub(crate) stopping: Arc<AtomicBool>,
}

/// How an attempt ended.
pub(crate) enum AttemptEnd {
    /// An attempt was made.
    Recorded(FinishedAttempt),
    /// Nothing was sent.
    Unused(UnusedPermit),
}

/// An attempt to record.
pub(crate) struct FinishedAttempt {
    pub(crate) permit: PermitId,
    /// Shared with the call of the store, which is repeated with it after a failure.
    pub(crate) result: Arc<AttemptResult>,
    pub(crate) effect: Effect,
    pub(crate) refusal: Option<Refusal>,
    /// The destination at the time when the permit was taken.
    pub(crate) destination: Arc<Destination>,
    /// When the work on the attempt began.
    pub(crate) began: Timestamp,
    /// The reason for the hold or the pause of the destination; empty if there is neither.
    pub(crate) reason: String,
    /// What the job of an adaptive destination is told.
    pub(crate) sample: Option<Box<Sample>>,
    /// The failure says nothing about the destination's health: the server closed a reused connection.
    pub(crate) ignored_by_breaker: bool,
}

impl FinishedAttempt {
    /// What the queue is told of its end. An answer that asks for a hold says nothing about the time after it.
    pub(crate) fn settled(&self) -> Settled {
        let attempt = &self.result.attempt;
        let is_refused = self.refusal.is_some() || matches!(self.effect, Effect::Hold(_));
        let is_answered = attempt.status_code.is_some() && !is_refused;
        Settled { id: self.permit, answered: attempt.sent_at.filter(|_| is_answered) }
    }

    /// What the queue holds: the destination or, where it has limit keys, the budget that all of them share.
    pub(crate) fn held_id(&self) -> DestinationId {
        let Destination { id, keyed_at, .. } = *self.destination;
        if keyed_at.is_some() { budget_as_destination(id) } else { id }
    }

    /// The hold that its answer asks for: until when, and when the send started. Of two the later one counts.
    pub(crate) fn hold(&self) -> Option<(Timestamp, Timestamp)> {
        let Effect::Hold(RequestedHold { until, .. }) = self.effect else { return None };
        Some((until, self.result.attempt.sent_at.unwrap_or(self.began)))
    }
}

/// A permit that was not used.
pub(crate) struct UnusedPermit {
    pub(crate) permit: PermitId,
    pub(crate) claim: Claim,
    /// The destination held its share of the worker's places, with attempts that take long.
    pub(crate) crowded: bool,
}

impl From<&Permit> for UnusedPermit {
    fn from(permit: &Permit) -> Self {
        Self { permit: permit.id, claim: permit.delivery.claim, crowded: false }
    }
}

/// The result of connecting, taking a slot and sending.
enum TransportResult {
    Sent(Box<Sent>),
    /// No connection could be made, or each was closed before the request was sent. A slot was taken.
    /// With how long it was tried.
    Unreachable(Unreachable, Duration),
    /// Withdrawn, held, expired, or shutting down.
    Withdrawn,
}

impl Attempter {
    /// Makes one attempt with the permit, or returns the permit unused.
    pub(crate) async fn make(&self, permit: &Permit, body: &EventBody, target: &DestinationTarget) -> AttemptEnd {
        let began = self.clock.now();
        // The limit was lowered while the delivery waited. It can never be sent, and must not wait unseen for ever.
        let of = &target.destination;
        let limits = of.temporary.limits(&of.settings.rate_limits, began);
        if let Some(limit) = limits.too_low_for(permit.delivery.cost) {
            let limit = format!("the limit of {} per {} of the destination", limit.limit, limit.period);
            return Self::above_limit(permit, target, &limit, began);
        }
        let span = self.spans.as_ref().and_then(|spans| spans.begin(body.trace()));
        // The receiver gets the span of the attempt, if there is one.
        let traced_body = span.map(|span| body.clone().traced(Some(span.context)));
        let mut notes = SlotNotes::default();
        let sent = match self.send(permit, traced_body.as_ref().unwrap_or(body), target, &mut notes).await {
            TransportResult::Sent(sent) => *sent,
            // An attempt without a connection has no send start, and is judged and recorded like any other.
            TransportResult::Unreachable(unreachable, tried_for) => {
                Sent::nothing(unreachable, tried_for, self.clock.now())
            }
            TransportResult::Withdrawn if notes.is_above_limit => {
                return Self::above_limit(permit, target, "a limit that its sends share", began);
            }
            TransportResult::Withdrawn => {
                counter!("weir_permits_unused_total").increment(1);
                return AttemptEnd::Unused(permit.into());
            }
        };
        let settings = &target.destination.settings;
        let decision = decide(
            &sent,
            &Circumstances {
                policy: &settings.retry,
                limits: &target.destination.temporary.limits(&settings.rate_limits, sent.ended_at),
                is_adaptive: settings.adaptive.is_some(),
                // A replay begins a new series of attempts, and refusals do not count.
                attempt: number(permit).saturating_sub(permit.delivery.attempts_before),
                created_at: permit.delivery.event_created_at,
                now: sent.ended_at,
                jitter: rand::random(),
                refusals: target.record(&sent.result, sent.ended_at),
            },
        );
        if sent.cut_on_reuse && matches!(decision.verdict, Verdict::Retry { .. }) {
            // Its retry takes a new connection, with which this cannot happen again.
            self.outbound.close_idle(&target.target);
        }
        self.report(permit, target, &sent, decision.outcome, span);
        let sample = notes.paced.and_then(|paced| sample(&sent, &decision.effect, paced)).map(Box::new);
        AttemptEnd::Recorded(FinishedAttempt { sample, ..record(permit, target, sent, decision, began) })
    }

    /// The end of an attempt that never gets a slot.
    fn above_limit(permit: &Permit, target: &DestinationTarget, limit: &str, began: Timestamp) -> AttemptEnd {
        let error = format!("not sent: its cost of {} is above {limit}", permit.delivery.cost);
        let unreachable = Unreachable { failure: Failure::Forbidden, error };
        let decision = Decision {
            outcome: AttemptOutcome::Rejected,
            verdict: Verdict::Dead,
            effect: Effect::None,
            refusal: None,
            is_counted: true,
        };
        let nothing = Sent::nothing(unreachable, Duration::ZERO, began);
        let finished = record(permit, target, nothing, decision, began);
        AttemptEnd::Recorded(FinishedAttempt { ignored_by_breaker: true, ..finished })
    }

    /// Keeps a permit whose body or secrets this process cannot open for a moment, and returns it unused: at once it would
    /// be back at once. The attempt does not count.
    pub(crate) async fn wait_unread(&self, permit: &Permit) -> AttemptEnd {
        counter!("weir_permits_unused_total").increment(1);
        tokio::time::sleep(UNREADABLE_PAUSE).await;
        AttemptEnd::Unused(permit.into())
    }

    /// When to ask for the slot of a permit, the latest send start, and when the start lag begins.
    fn slots<'a>(
        &'a self,
        permit: &'a Permit,
        target: &DestinationTarget,
        notes: &'a mut SlotNotes,
    ) -> PermitSlots<'a> {
        let of = &target.destination;
        let limits = of.temporary.limits(&of.settings.rate_limits, self.clock.now());
        PermitSlots {
            attempter: self,
            permit,
            ask_ahead: AskAhead::new(&permit.delivery, &limits),
            start_by: permit.delivery.expires_at - target.timeout(),
            preparation: None,
            slot: None,
            notes,
            lag_since: permit.expected_at.map_or(permit.published_at, |at| at.max(permit.published_at)),
        }
    }

    /// `notes` becomes what the answers for the permit say.
    async fn send(
        &self,
        permit: &Permit,
        body: &EventBody,
        target: &DestinationTarget,
        notes: &mut SlotNotes,
    ) -> TransportResult {
        let mut slots = self.slots(permit, target, notes);
        // How long the permit took to get here, and how long the request for its slot will take.
        let handover = self.clock.now().since(permit.published_at).min(LONGEST_HANDOVER);
        let round_trip = self.queue.slot_round_trip();
        let expected_at = permit.expected_at.map_or(Timestamp::MIN, |at| slots.ask_ahead.of(at, round_trip));
        // Leave an idle connection to others until it is needed. If none is idle, dial now.
        if expected_at > self.clock.now() && self.outbound.has_idle_connection(&target.target) {
            self.sleep_until(expected_at).await;
        }
        // Connecting and the request share one limit: a destination that hangs in the handshake is not waited for longer
        // than one that hangs before its answer.
        let mut limit = TimeLimit::new(target.timeout());
        let mut closed = 0;
        loop {
            // Get an open connection.
            let connecting_since = self.clock.now();
            let Checkout { connection, warm } = match self.outbound.connect(&target.target, &mut limit).await {
                Ok(found) => found,
                Err(why) => return self.not_connected(why, target, limit.connecting(), &mut slots).await,
            };
            if !warm {
                // The destination decides how long connecting takes.
                slots.exclude_from_lag(connecting_since, self.clock.now());
            }
            // An idle connection needs no preparation.
            let took = if warm { Duration::ZERO } else { self.clock.now().since(connecting_since) };
            slots.preparation = Some(handover + took + round_trip);

            // Ready to send: take the slot when it is expected, and send in it.
            self.sleep_until(expected_at).await;
            match self.send_on(connection, permit, body, target, &mut slots, limit).await {
                ExchangeResult::Sent(sent) => {
                    if let Some(sent_at) = sent.sent_at {
                        self.meters.sent(slots.lag_since, sent_at);
                    }
                    return TransportResult::Sent(sent);
                }
                ExchangeResult::Withdrawn => return TransportResult::Withdrawn,
                // No byte was sent: use another connection.
                ExchangeResult::NotSent(unreachable) => {
                    // An idle connection may have been closed long ago, so it does not count.
                    closed += u32::from(!warm);
                    if closed == MAX_CLOSED {
                        let unreachable = closed_each_time(unreachable);
                        return self.take_slot_for_failure(unreachable, limit.connecting(), &mut slots).await;
                    }
                }
            }
        }
    }

    async fn not_connected(
        &self,
        why: NoConnection,
        target: &DestinationTarget,
        tried_for: Duration,
        slots: &mut PermitSlots<'_>,
    ) -> TransportResult {
        match why {
            NoConnection::Unreachable(unreachable) => self.take_slot_for_failure(unreachable, tried_for, slots).await,
            NoConnection::Exhausted(what) => {
                let destination = &target.destination.id;
                tracing::warn!(what, %destination, "could not connect; the permit goes back unsent");
                // A permit that is handed back at once would return at once and fail in the same way.
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
                TransportResult::Withdrawn
            }
        }
    }

    /// Takes a slot for an attempt without a connection: an unreachable destination is not tried more often than its
    /// limit allows.
    async fn take_slot_for_failure(
        &self,
        unreachable: Unreachable,
        tried_for: Duration,
        slots: &mut PermitSlots<'_>,
    ) -> TransportResult {
        match slots.next().await {
            Some(_) => TransportResult::Unreachable(unreachable, tried_for),
            None => TransportResult::Withdrawn,
        }
    }

    async fn send_on(
        &self,
        connection: Connection,
        permit: &Permit,
        body: &EventBody,
        target: &DestinationTarget,
        slots: &mut PermitSlots<'_>,
        limit: TimeLimit,
    ) -> ExchangeResult {
        let delivery = &permit.delivery;
        let settings = &target.destination.settings;
        let binary = settings.body.binary_headers(body, &settings.tenant);
        let (trace, body) = (body.trace(), settings.body.of(body, &settings.tenant));
        let unix_seconds = self.clock.wall().as_secs();
        let id = delivery.event_id.to_string();
        let message = Message { id: &id, unix_seconds, url: settings.url.as_str(), body: &body };
        let signature = settings.signing.sign(&message, self.clock.now());
        let head = target.target.request_head(&id, unix_seconds, &signature, number(permit), trace, binary.as_ref());
        let mut result = self.outbound.send(&target.target, connection, head, body, slots, limit).await;
        if let ExchangeResult::Sent(sent) = &mut result {
            sent.details.signed_at = Some(Timestamp::from_secs(unix_seconds));
        }
        result
    }

    /// Sleeps until `at`, if it is in the future.
    async fn sleep_until(&self, at: Timestamp) {
        let wait = at.since(self.clock.now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Reports the attempt to the trace and the meters.
    fn report(
        &self,
        permit: &Permit,
        target: &DestinationTarget,
        sent: &Sent,
        outcome: AttemptOutcome,
        span: Option<StartedSpan>,
    ) {
        let &ClaimedDelivery { claim, event_id, event_created_at, .. } = &permit.delivery;
        let (status_code, failure) = sent.result.parts();
        if let (Some(spans), Some(span)) = (&self.spans, span) {
            spans.end(AttemptSpan {
                span,
                event_id,
                claim,
                number: number(permit),
                sent_at: sent.sent_at.unwrap_or(sent.ended_at),
                ended_at: sent.ended_at,
                url: &target.destination.settings.url,
                status_code,
                failure,
            });
        }
        let kind = failure.map_or("answer", Failure::as_str);
        self.meters.observe(outcome, kind, event_created_at, sent.sent_at, sent.ended_at);
    }
}

/// The failure of an attempt whose every connection was closed. A refusal by TLS says itself why.
fn closed_each_time(last: Unreachable) -> Unreachable {
    match last.failure {
        Failure::Tls => last,
        failure => {
            Unreachable { failure, error: "each connection was closed before the request could be sent".to_owned() }
        }
    }
}

/// The number of the attempt. After a replay the numbers continue.
fn number(permit: &Permit) -> u32 {
    permit.delivery.attempts + 1
}

/// Decides about the delivery and the destination.
fn decide(sent: &Sent, circumstances: &Circumstances<'_>) -> Decision {
    let mut decision = outcome::judge(&sent.result, circumstances);
    if let Verdict::Retry { at } = &mut decision.verdict {
        // A delivery that waits only for the end of the hold is due now: the hold keeps it, and a release sends it.
        let waits_for_hold = matches!(&decision.effect, Effect::Hold(hold) if hold.until == *at);
        // Most likely the server had closed the reused connection: retry in the next slot.
        if waits_for_hold || sent.cut_on_reuse {
            *at = circumstances.now;
        }
    }
    decision
}

/// The record of the attempt, and what the recorder needs to apply its effect.
fn record(
    permit: &Permit,
    target: &DestinationTarget,
    sent: Sent,
    decision: Decision,
    began: Timestamp,
) -> FinishedAttempt {
    let claim = permit.delivery.claim;
    let (status_code, failure) = sent.result.parts();
    let attempt = Attempt {
        id: AttemptId::new(sent.ended_at, rand::random()),
        delivery_id: claim.delivery_id,
        number: number(permit),
        sent_at: sent.sent_at,
        duration_ms: sent.took.as_millis() as u32,
        outcome: decision.outcome,
        status_code,
        error: with_note(sent.error, sent.result.malformed_headers()),
        failure,
        response_body: sent.response_body,
        details: sent.details,
    };
    let Decision { verdict, is_counted, effect, refusal, .. } = decision;
    FinishedAttempt {
        permit: permit.id,
        result: Arc::new(AttemptResult { claim, attempt, verdict, is_counted, now: sent.ended_at }),
        reason: reason(&effect, status_code),
        effect,
        refusal,
        destination: target.destination.clone(),
        began,
        sample: None,
        ignored_by_breaker: sent.cut_on_reuse,
    }
}

/// What the answer says about the pace. A reused connection that the server had closed says nothing.
fn sample(sent: &Sent, effect: &Effect, paced: PacedGrant) -> Option<Sample> {
    let held_until = match effect {
        Effect::Hold(hold) => Some(hold.until),
        Effect::None | Effect::Pause => None,
    };
    let PacedGrant { generation, in_flight } = paced;
    let sample = || Sample::of(&sent.result, sent.took, held_until, (generation, in_flight), sent.ended_at);
    if sent.cut_on_reuse { None } else { sample() }
}

/// The reason for a hold or a pause, as the API will show it.
fn reason(effect: &Effect, status_code: Option<u16>) -> String {
    let status = status_code.unwrap_or(0);
    let mut reason = match effect {
        Effect::None => String::new(),
        Effect::Hold(RequestedHold { reason: HoldReason::RetryAfter, header, .. }) => {
            format!("the destination answered {status} with {header}")
        }
        Effect::Hold(RequestedHold { reason: HoldReason::QuotaUsedUp, header, .. }) => {
            format!("the destination said that its rate limit is used up: {header}")
        }
        Effect::Hold(RequestedHold { reason: HoldReason::Refused, .. }) => {
            format!("the destination answered {status} and did not say until when")
        }
        Effect::Pause => "the destination answered 410 Gone".to_owned(),
    };
    if let Effect::Hold(RequestedHold { longer_for: Some(refused_for), .. }) = effect {
        let _ = write!(reason, ", and has refused every request for {}", InWords(*refused_for));
    }
    reason
}

/// The error of an attempt, and what was ignored of the answer's headers.
fn with_note(error: Option<String>, malformed: Option<&str>) -> Option<String> {
    let Some(headers) = malformed else { return error };
    let note = format!("ignored malformed headers: {headers}");
    Some(error.map_or_else(|| note.clone(), |error| format!("{error}; {note}")))
}

#[cfg(test)]
mod tests;
