//! How one permit gets its slot.
//!
//! The worker asks shortly before the slot is expected. After a missed slot it asks for another one; a missed slot is
//! not an attempt and uses up no retry.

use std::{sync::atomic::Ordering, time::Duration};

use weir_core::{RateLimits, Slot, Timestamp, claim::ClaimedDelivery, limiter::GRANT_AHEAD};
use weir_queue::{PacedGrant, Permit, SLOT_HORIZON, SlotAnswer, SlotRequest};

use super::Attempter;
use crate::outbound::SlotSource;

/// How long before the expected slot the worker has the answer, so that a busy machine is in time too. The time is
/// rounded down to [`ASK_EVERY`], and the measured time of a request is added.
const ASK_AHEAD: Duration = Duration::from_millis(15);
/// At most this part of the least interval between two sends. An interval has narrow slots, and one that is missed is
/// given back only while it is the last that was granted. So the next one is asked for after the end of the one before.
const PART_OF_INTERVAL: u32 = 2;
/// The same for a replay's permit. It asks later than a live delivery does, but early enough for a slot of only 10 ms.
const REPLAY_ASK_AHEAD: Duration = Duration::from_millis(2);
/// Requests for slots are made at multiples of this time, so that permits with close slots ask in one call: at 1,000 a
/// second, five of them.
const ASK_EVERY: Duration = Duration::from_millis(5);
/// How long a permit waits before it asks again for room: a destination that answers quickly has room by then. The wait
/// doubles with each answer, up to the longest, so that permits of a destination that has become slow ask seldom.
const ROOM_WAIT: Duration = Duration::from_millis(2);
const LONGEST_ROOM_WAIT: Duration = Duration::from_millis(100);
/// How often a slot is asked for while the queue does not answer. Three tries take 0.2 s when calls fail at once, and
/// 6 s when Redis is silent: a tenth of the time that a claim lasts.
const ASK_TRIES: u32 = 3;
/// The time between two tries.
const ASK_RETRY: Duration = Duration::from_millis(100);

/// What the answers for a permit say of its attempt.
#[derive(Debug, Default)]
pub(super) struct SlotNotes {
    /// What the last slot was granted under.
    pub(super) paced: Option<PacedGrant>,
    /// No slot is ever granted.
    pub(super) is_above_limit: bool,
}

/// Asks for the slots of one permit.
pub(super) struct PermitSlots<'a> {
    pub(super) attempter: &'a Attempter,
    pub(super) permit: &'a Permit,
    /// How long before the expected slot it is asked for.
    pub(super) ask_ahead: AskAhead,
    /// The latest send start: a later attempt could outlast its claim.
    pub(super) start_by: Timestamp,
    /// How long the worker took to be ready to send; `None` once it was reported to the queue.
    pub(super) preparation: Option<Duration>,
    /// A slot that was granted and not used yet.
    pub(super) slot: Option<Slot>,
    pub(super) notes: &'a mut SlotNotes,
    /// The start of the start lag: the time from which only this process delays the send. The permit is published, the
    /// limit allows the send, and the connection is open. The wait for a slot that was granted ahead of its start does
    /// not count.
    pub(super) lag_since: Timestamp,
}

impl SlotSource for PermitSlots<'_> {
    async fn next(&mut self) -> Option<Slot> {
        let mut missed = false;
        // A slot that was granted and not used comes first, while it lasts.
        if let Some(slot) = self.slot.take() {
            if !slot.is_over(self.attempter.clock.now()) {
                // Its connection was closed. Another connection may be ready in time; the next slot may be an hour
                // away.
                self.slot = Some(slot);
                return Some(slot);
            }
            missed = true;
            self.attempter.meters.slots_missed.increment(1);
        }
        // Ask until a slot is granted or the permit is to go back unsent.
        let (mut failures, mut full_for) = (0, Duration::ZERO);
        loop {
            // A later attempt could outlast its claim. A process that shuts down takes no more slots.
            if self.attempter.clock.now() >= self.start_by || self.attempter.stopping.load(Ordering::Relaxed) {
                return None;
            }
            // The preparation is reported once. The next permits are published that much earlier.
            let (id, cost) = (self.permit.id, self.permit.delivery.cost);
            let request = SlotRequest { id, preparation: self.preparation.take(), missed, cost };
            let asked_at = self.attempter.clock.now();
            let answer = self.attempter.queue.take_slot(request).await;
            let took = self.attempter.clock.now().since(asked_at);
            self.attempter.meters.slot_request.record(took.as_secs_f64());
            match answer {
                Ok(SlotAnswer::Granted(slot, paced)) => {
                    // Redis may grant a slot a little later than the limit allows, so that the answer arrives in time.
                    // Only this wait is excluded from the lag. Delays before the request still count.
                    self.exclude_from_lag(self.attempter.clock.now(), slot.start);
                    (self.slot, self.notes.paced) = (Some(slot), paced);
                    return Some(slot);
                }
                Ok(SlotAnswer::Later(start)) => {
                    // Until then the limit delays the send, not this process.
                    self.lag_since = self.lag_since.max(start);
                    let round_trip = self.attempter.queue.slot_round_trip();
                    let early = self.ask_ahead.of(start, round_trip);
                    // If it is time already, this answer was faster than others.
                    let again = if early > self.attempter.clock.now() { early } else { start - GRANT_AHEAD };
                    self.attempter.sleep_until(again).await;
                }
                Ok(SlotAnswer::NoRoom) if full_for < SLOT_HORIZON => {
                    // The destination delays the send, not this process.
                    let wait = full_for.clamp(ROOM_WAIT, LONGEST_ROOM_WAIT);
                    full_for += wait;
                    let since = self.attempter.clock.now();
                    tokio::time::sleep(wait).await;
                    self.exclude_from_lag(since, self.attempter.clock.now());
                }
                Ok(SlotAnswer::AboveLimit) => {
                    self.notes.is_above_limit = true;
                    return None;
                }
                Ok(SlotAnswer::NoRoom | SlotAnswer::Withdrawn) => return None,
                Err(error) => {
                    // The queue may answer again in a moment: try a few times before the permit goes back.
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

    /// The pace follows the refusals of the receiver. A receiver that takes one request in 10 ms refuses a request that comes 9 ms
    /// after the one before. So a send that is 2 ms late, followed by one in time, would look like a pace that is too high.
    fn is_exact(&self) -> bool {
        self.notes.paced.is_some()
    }
}

impl PermitSlots<'_> {
    /// Excludes a time in which something else delays the send.
    pub(super) fn exclude_from_lag(&mut self, from: Timestamp, until: Timestamp) {
        self.lag_since = self.lag_since + until.since(self.lag_since.max(from));
    }
}

/// How long before its start a permit asks for its slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskAhead {
    /// The time of a request is added.
    ahead: Duration,
    /// Whether requests are made at multiples of [`ASK_EVERY`].
    is_rounded: bool,
}

impl AskAhead {
    /// A replay asks for its slot later than a live delivery does, so a live delivery that is ready gets the slot first.
    pub(super) fn new(delivery: &ClaimedDelivery, limits: &RateLimits) -> Self {
        if delivery.is_replay {
            return Self { ahead: REPLAY_ASK_AHEAD, is_rounded: false };
        }
        let longest = limits.min_interval().map_or(ASK_AHEAD, |interval| interval.as_duration() / PART_OF_INTERVAL);
        Self { ahead: ASK_AHEAD.min(longest), is_rounded: longest >= ASK_AHEAD }
    }

    /// When to ask for a slot that starts at `start`, if a request takes `round_trip`.
    pub(super) fn of(self, start: Timestamp, round_trip: Duration) -> Timestamp {
        // No slot is granted further ahead than this when the request arrives.
        let earliest = GRANT_AHEAD - ASK_EVERY + round_trip / 2;
        let early = start - (self.ahead + round_trip).min(earliest);
        if !self.is_rounded {
            return early;
        }
        let nanos = early.as_nanos();
        Timestamp::from_nanos(nanos - nanos.rem_euclid(ASK_EVERY.as_nanos() as i64))
    }
}
