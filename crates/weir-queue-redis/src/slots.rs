//! Asking for slots. Requests that arrive during a call go together in the next call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use weir_core::{Clock as _, limit::UNLIMITED_SLOT_WIDTH, limiter::GRANT_AHEAD};
use weir_queue::{PermitId, QueueError, QueueResult, SlotAnswer, SlotRequest};

use crate::{
    batcher::Batcher,
    client::{ShardClient, unexpected},
    codec::AnswerReader,
    keys::Shard,
    schedule::BATCH,
    scripts::Operation,
};

/// Slower answers use up a good part of a narrow slot (10 ms), so slots are then requested for the time at which the
/// answer arrives.
const SLOW_ANSWER: Duration = Duration::from_millis(3);
/// Redis grants slots [`GRANT_AHEAD`] ahead at most. If a slot starts later than that plus this margin, a clock is
/// wrong: the error of an ordinary clock is a few milliseconds.
pub(crate) const CLOCK_DOUBT: Duration = Duration::from_millis(50);

struct PendingRequest {
    request: SlotRequest,
    /// By the monotonic clock.
    asked_at: i64,
    answer: oneshot::Sender<QueueResult<SlotAnswer>>,
}

pub(crate) struct SlotRequests {
    client: Arc<ShardClient>,
    batcher: Batcher<PendingRequest>,
    answer_times: AnswerTimes,
}

/// How long Redis takes to answer requests for slots, in nanoseconds.
#[derive(Default)]
struct AnswerTimes {
    /// The moving average of calls. A slot that ends before its answer arrives is useless; a worker that got only such
    /// slots would never send. A single slow answer changes little here: it would postpone the slots of many requests.
    usual: AtomicI64,
    /// From the request to the answer, with the wait for an earlier call. A longer time counts at once; a shorter one
    /// reduces the value by an eighth of the difference.
    slow: AtomicI64,
}

impl AnswerTimes {
    /// A call took `called`, and the first of its requests got its answer after `waited`.
    fn observe(&self, called: i64, waited: i64) {
        let usual = self.usual.load(Ordering::Relaxed);
        self.usual.store(usual + (called - usual) / 8, Ordering::Relaxed);
        let slow = self.slow.load(Ordering::Relaxed);
        self.slow.store(if waited >= slow { waited } else { slow - (slow - waited) / 8 }, Ordering::Relaxed);
    }

    /// From when a slot that is requested at `now` can be used, in microseconds; 0 while answers are fast.
    fn usable_from(&self, now: i64) -> i64 {
        let usual = self.usual.load(Ordering::Relaxed);
        if usual < SLOW_ANSWER.as_nanos() as i64 { 0 } else { now + usual / 1_000 }
    }

    fn upper_end(&self) -> Duration {
        Duration::from_nanos(self.slow.load(Ordering::Relaxed).unsigned_abs())
    }
}

impl SlotRequests {
    pub(crate) fn new(client: &Arc<ShardClient>) -> Self {
        let batcher = Batcher::new(BATCH, Duration::ZERO);
        Self { client: client.clone(), batcher, answer_times: AnswerTimes::default() }
    }

    /// How long requests take at the upper end.
    pub(crate) fn round_trip(&self) -> Duration {
        self.answer_times.upper_end()
    }

    /// One call asks for all pending slots. If each attempt made a call of its own, the slots would be over before the
    /// last answer arrived.
    pub(crate) async fn ask(&self, request: SlotRequest) -> QueueResult<SlotAnswer> {
        let (answer, answered) = oneshot::channel();
        let asked_at = self.client.clock.monotonic();
        self.batcher.add(self.client.shard_of_permit(request.id), PendingRequest { request, asked_at, answer });
        answered
            .await
            .unwrap_or_else(|_| Err(QueueError::Unknown("the task that requests slots was stopped".to_owned())))
    }

    /// Asks for the slots of a shard. Never returns.
    pub(crate) async fn run(self: Arc<Self>, shard: Shard) {
        loop {
            let requests = self.batcher.next(shard).await;
            self.ask_for_slots(shard, requests).await;
            // Each request has its answer, so none is repeated.
            self.batcher.finish(shard, Ok(()), Vec::new()).await;
        }
    }

    async fn ask_for_slots(&self, shard: Shard, requests: Vec<PendingRequest>) {
        let mut call = self.client.new_call(shard, Operation::TakeSlot);
        call.arg(self.answer_times.usable_from(self.client.clock.stated_time(shard)));
        call.arg(self.client.clock.needed_width(shard));
        for &PendingRequest { request: SlotRequest { id, preparation, missed, cost }, .. } in &requests {
            let micros = preparation.map_or(-1, |took| i64::try_from(took.as_micros()).unwrap_or(i64::MAX));
            // The name of the slot makes sure that a call which Redis runs late gives no later slot back.
            let missed = if missed { self.client.registry.slot_start(id) } else { 0 };
            call.destination(id.destination_id).arg(id.serial).arg(micros).arg(missed).arg(cost);
        }
        // If answers are slow, later requests ask for slots that are still usable when the answer arrives.
        let asked = self.client.clock.monotonic();
        let mut answered = self.client.call(call).await;
        let now = self.client.clock.monotonic();
        let first = requests.iter().map(|request| request.asked_at).min().unwrap_or(asked);
        self.answer_times.observe(now - asked, now - first);
        let mut slots: Vec<QueueResult<SlotAnswer>> = Vec::with_capacity(requests.len());
        for PendingRequest { request, .. } in &requests {
            slots.push(match &mut answered {
                Ok(answered) => self.read_slot(shard, request.id, &mut answered.values),
                Err(error) => Err(error.clone()),
            });
        }
        while let Some((position, grant)) = answered.as_mut().ok().and_then(|answered| answered.values.next_paced()) {
            if let Some(Ok(SlotAnswer::Granted(_, paced))) = slots.get_mut(position.wrapping_sub(1)) {
                *paced = Some(grant);
            }
        }
        for (PendingRequest { answer, .. }, slot) in requests.into_iter().zip(slots) {
            // The attempt may have been cancelled.
            let _ = answer.send(slot);
        }
    }

    fn read_slot(&self, shard: Shard, id: PermitId, answer: &mut AnswerReader) -> QueueResult<SlotAnswer> {
        let (Some(start), Some(end)) = (answer.next_int(), answer.next_int()) else {
            return Err(unexpected());
        };
        match start {
            0 => return Ok(SlotAnswer::Withdrawn),
            -1 => return Ok(SlotAnswer::NoRoom),
            -2 => return Ok(SlotAnswer::AboveLimit),
            _ => {}
        }
        if end == 0 {
            return Ok(SlotAnswer::Later(self.client.clock.engine_time(shard, start)));
        }
        self.client.registry.set_slot(id, start);
        let mut slot = self.client.clock.narrowed(shard, (start, end));
        if end - start == UNLIMITED_SLOT_WIDTH.as_micros() as i64 {
            // The destination has no limit, so a send that is a little early exceeds nothing.
            slot.start = self.client.clock.engine_time(shard, start);
        }
        // No slot is granted so far ahead: a clock has changed. The slot is not used, and the clock is set at once.
        if slot.start > self.client.clock.now() + GRANT_AHEAD + CLOCK_DOUBT {
            self.client.clock.doubt.notify_one();
            return Err(QueueError::Unknown("the clocks of Redis and of this process differ".to_owned()));
        }
        Ok(SlotAnswer::Granted(slot, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_requested_from_the_time_they_are_usable() {
        let times = AnswerTimes::default();
        (0..40).for_each(|_| times.observe(1_000_000, 1_000_000));
        assert_eq!(times.usable_from(5_000_000), 0);
        times.observe(18_000_000, 18_000_000);
        assert!(times.usable_from(5_000_000) < 5_004_000, "a single slow answer postpones few slots");
        (0..80).for_each(|_| times.observe(20_000_000, 20_000_000));
        assert!((5_019_900..=5_020_000).contains(&times.usable_from(5_000_000)));
    }

    #[test]
    fn workers_ask_earlier_by_the_slow_answers() {
        let times = AnswerTimes::default();
        times.observe(1_000_000, 1_000_000);
        times.observe(10_000_000, 25_000_000);
        assert_eq!(times.upper_end(), Duration::from_millis(25));
        (0..80).for_each(|_| times.observe(1_000_000, 1_000_000));
        assert!(times.upper_end() <= Duration::from_millis(2));
    }
}
