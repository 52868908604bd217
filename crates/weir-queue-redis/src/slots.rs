//! Asking for slots: those who ask while a call is under way ask together in the next.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use weir_core::{
    Clock as _,
    limiter::{GRANT_AHEAD, UNLIMITED_SLOT_WIDTH},
};
use weir_queue::{QueueError, QueueResult, SlotAnswer, SlotRequest};

use crate::{
    codec::Answer,
    keys::{SHARDS, Shard},
    scripts::Operation,
    shard_context::{ShardContext, unexpected},
};

/// Slots asked for in one call, so that no script keeps the server for long.
const BATCH: usize = 200;
/// An answer that takes so long costs a narrow slot a good part of its width.
const SLOW_ANSWER: Duration = Duration::from_millis(3);
/// A slot that starts so much further ahead than any is granted was granted by a clock that is wrong.
const CLOCK_DOUBT: Duration = Duration::from_millis(50);

struct Waiting {
    request: SlotRequest,
    answer: oneshot::Sender<QueueResult<SlotAnswer>>,
}

/// Those who wait for slots of a shard.
#[derive(Default)]
struct Line {
    waiting: Vec<Waiting>,
    /// A task asks for them, and for those who come meanwhile.
    is_served: bool,
}

#[derive(Default)]
pub(crate) struct SlotRequests {
    lines: Mutex<[Line; SHARDS]>,
    answer_time: AnswerTime,
}

impl SlotRequests {
    // A panic while the lock is held is a bug already reported; the lists are whole between two calls.
    fn lines(&self) -> MutexGuard<'_, [Line; SHARDS]> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the line; answers whether somebody has to serve it.
    fn join(&self, shard: Shard, waiting: Waiting) -> bool {
        let line = &mut self.lines()[shard.index()];
        line.waiting.push(waiting);
        !std::mem::replace(&mut line.is_served, true)
    }

    /// Those who wait now, as many as go in one call. With nobody left the line is not served any more.
    fn next(&self, shard: Shard) -> Vec<Waiting> {
        let line = &mut self.lines()[shard.index()];
        line.is_served = !line.waiting.is_empty();
        let count = line.waiting.len().min(BATCH);
        line.waiting.drain(..count).collect()
    }
}

/// How long Redis takes to answer of late, in nanoseconds: up at once, down by an eighth each time. A slot that would be over before
/// the answer is here is of no use; whoever always asked for such slots would never send.
#[derive(Default)]
struct AnswerTime(AtomicI64);

impl AnswerTime {
    fn observe(&self, took: i64) {
        let known = self.0.load(Ordering::Relaxed);
        self.0.store(if took >= known { took } else { known - (known - took) / 8 }, Ordering::Relaxed);
    }

    /// From when a slot can be used that is asked for at `now`, in microseconds; 0 while answers come quickly.
    fn usable_from(&self, now: i64) -> i64 {
        let took = self.0.load(Ordering::Relaxed);
        if took < SLOW_ANSWER.as_nanos() as i64 { 0 } else { now + took / 1_000 }
    }
}

impl ShardContext {
    /// One task asks for everybody who waits. If each waiting attempt took its own turn, each would make a call of its own, and the slots
    /// would be over before the last answer came.
    pub(crate) async fn ask_for_slot(self: &Arc<Self>, request: SlotRequest) -> QueueResult<SlotAnswer> {
        let shard = Shard::of(request.id.destination_id);
        let (answer, answered) = oneshot::channel();
        if self.slot_requests.join(shard, Waiting { request, answer }) {
            let core = self.clone();
            tokio::spawn(async move { core.serve(shard).await });
        }
        answered.await.unwrap_or_else(|_| Err(QueueError("who asked for slots was stopped".to_owned())))
    }

    async fn serve(&self, shard: Shard) {
        loop {
            let waiting = self.slot_requests.next(shard);
            if waiting.is_empty() {
                return;
            }
            self.ask_for_slots(shard, waiting).await;
        }
    }
}

impl ShardContext {
    async fn ask_for_slots(&self, shard: Shard, waiting: Vec<Waiting>) {
        let mut call = self.new_call(shard, Operation::TakeSlot);
        call.arg(self.slot_requests.answer_time.usable_from(self.clock.lower_bound(shard)));
        for Waiting { request: SlotRequest { id, preparation }, .. } in &waiting {
            let micros = preparation.map_or(-1, |took| i64::try_from(took.as_micros()).unwrap_or(i64::MAX));
            call.destination(id.destination_id).arg(id.serial).arg(micros);
        }
        let asked = self.clock.monotonic();
        let mut answered = self.call(call).await.map_err(QueueError::from);
        self.slot_requests.answer_time.observe(self.clock.monotonic() - asked);
        for Waiting { answer, .. } in waiting {
            let slot = match &mut answered {
                Ok(answered) => self.read_slot(shard, &mut answered.rest),
                Err(error) => Err(error.clone()),
            };
            // Who asked may have gone.
            let _ = answer.send(slot);
        }
    }

    fn read_slot(&self, shard: Shard, answer: &mut Answer) -> QueueResult<SlotAnswer> {
        let (Some(start), Some(end)) = (answer.next_int(), answer.next_int()) else {
            return Err(unexpected().into());
        };
        if start == 0 {
            return Ok(SlotAnswer::Withdrawn);
        }
        if end == 0 {
            return Ok(SlotAnswer::Later(self.clock.placed(shard, start)));
        }
        let mut slot = self.clock.narrowed(shard, (start, end));
        if end - start == UNLIMITED_SLOT_WIDTH.as_micros() as i64 {
            // There is no window that a send a little too early could fill.
            slot.start = self.clock.placed(shard, start);
        }
        if slot.start > self.clock.now() + GRANT_AHEAD + CLOCK_DOUBT {
            self.clock_doubt.notify_one();
            return Err(QueueError("the clocks of Redis and of this process differ".to_owned()));
        }
        Ok(SlotAnswer::Granted(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_asked_for_from_when_they_can_be_used() {
        let time = AnswerTime::default();
        time.observe(1_000_000);
        assert_eq!(time.usable_from(5_000_000), 0);
        time.observe(20_000_000);
        assert_eq!(time.usable_from(5_000_000), 5_020_000);
        (0..40).for_each(|_| time.observe(1_000_000));
        assert_eq!(time.usable_from(5_000_000), 0);
    }
}
