//! Asking for slots: those who ask while a call is under way ask together in the next.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Mutex as Turn, oneshot};
use weir_core::{
    Clock as _,
    limiter::{GRANT_AHEAD, UNLIMITED_SLOT_WIDTH},
};
use weir_queue::{QueueError, QueueResult, SlotAnswer, SlotRequest};

use crate::{
    core::{Core, unexpected},
    keys::{SHARDS, Shard},
    scripts::Operation,
    wire::Answer,
};

/// Slots asked for in one call, so that no script keeps the server for long.
const BATCH: usize = 200;
/// A slot that starts so much further ahead than any is granted was granted by a clock that is wrong.
const CLOCK_DOUBT: Duration = Duration::from_millis(50);

struct Waiting {
    request: SlotRequest,
    answer: oneshot::Sender<QueueResult<SlotAnswer>>,
}

#[derive(Default)]
pub(crate) struct SlotRequests {
    waiting: Mutex<[Vec<Waiting>; SHARDS]>,
    /// Who holds it asks for all that wait.
    turns: [Turn<()>; SHARDS],
}

impl SlotRequests {
    // A panic while the lock is held is a bug already reported; the lists are whole between two calls.
    fn waiting(&self) -> MutexGuard<'_, [Vec<Waiting>; SHARDS]> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn ask(&self, core: &Core, request: SlotRequest) -> QueueResult<SlotAnswer> {
        let shard = Shard::of(request.id.destination_id);
        let (answer, answered) = oneshot::channel();
        self.waiting()[shard.index()].push(Waiting { request, answer });
        let turn = self.turns[shard.index()].lock().await;
        // Whoever had the turn before may have taken this one along.
        let mut all = std::mem::take(&mut self.waiting()[shard.index()]);
        while !all.is_empty() {
            let rest = all.split_off(all.len().min(BATCH));
            core.ask_for_slots(shard, all).await;
            all = rest;
        }
        drop(turn);
        answered.await.unwrap_or_else(|_| Err(QueueError("who asked for slots was stopped".to_owned())))
    }
}

impl Core {
    async fn ask_for_slots(&self, shard: Shard, waiting: Vec<Waiting>) {
        let mut call = self.new_call(shard, Operation::TakeSlot);
        for Waiting { request: SlotRequest { id, preparation }, .. } in &waiting {
            let micros = preparation.map_or(-1, |took| i64::try_from(took.as_micros()).unwrap_or(i64::MAX));
            call.destination(id.destination_id).arg(id.serial).arg(micros);
        }
        let mut answered = self.call(call).await.map_err(QueueError::from);
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
