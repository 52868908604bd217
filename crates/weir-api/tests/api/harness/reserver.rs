//! Slots of limit groups for the tested server: a test says what the next requests get.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::Notify;
use weir_core::{LimitGroup, LimitGroupId, Timestamp};
use weir_queue::{QueueError, QueueResult, ReserveAnswer, ReserveError, ReserveSlots, WantedSlot};

/// Answers in the order of the script, and records its calls. After it, the queue is away, or requests wait.
#[derive(Default)]
pub(crate) struct ScriptedReserver {
    answers: Mutex<VecDeque<Result<ReserveAnswer, ReserveError>>>,
    wanted: Mutex<Vec<(WantedSlot, Duration)>>,
    given_back: Mutex<Vec<(u32, Timestamp)>>,
    waits: AtomicBool,
    has_lost: AtomicBool,
    hesitates: AtomicBool,
    asked: Notify,
    called: Notify,
}

impl ScriptedReserver {
    pub(crate) fn next(&self, answer: Result<ReserveAnswer, ReserveError>) {
        self.answers.lock().unwrap().push_back(answer);
    }

    /// From now on, requests without a script wait for ever.
    pub(crate) fn wait(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// From now on, the queue has lost each slot by the time that its row is stored.
    pub(crate) fn lose(&self) {
        self.has_lost.store(true, Ordering::Relaxed);
    }

    /// From now on, the queue does not answer whether it has kept a slot.
    pub(crate) fn hesitate(&self) {
        self.hesitates.store(true, Ordering::Relaxed);
    }

    /// Waits until the queue is asked whether it has kept a slot.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// The calls since the last one of this function.
    pub(crate) fn wanted(&self) -> Vec<(WantedSlot, Duration)> {
        std::mem::take(&mut self.wanted.lock().unwrap())
    }

    pub(crate) fn given_back(&self) -> Vec<(u32, Timestamp)> {
        std::mem::take(&mut self.given_back.lock().unwrap())
    }

    /// Waits for the next call.
    pub(crate) async fn called(&self) {
        self.called.notified().await;
    }
}

#[async_trait]
impl ReserveSlots for ScriptedReserver {
    async fn reserve(
        &self,
        _: Arc<LimitGroup>,
        wanted: WantedSlot,
        wait: Duration,
    ) -> Result<ReserveAnswer, ReserveError> {
        self.wanted.lock().unwrap().push((wanted, wait));
        self.called.notify_one();
        let answer = self.answers.lock().unwrap().pop_front();
        match answer {
            Some(answer) => answer,
            None if self.waits.load(Ordering::Relaxed) => std::future::pending().await,
            None => Err(QueueError::NotSent("away".to_owned()).into()),
        }
    }

    async fn has_kept(&self, _: LimitGroupId, _: Timestamp) -> QueueResult<bool> {
        self.asked.notify_one();
        if self.hesitates.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(!self.has_lost.load(Ordering::Relaxed))
    }

    async fn give_back(&self, _: LimitGroupId, cost: u32, start: Timestamp) -> QueueResult<()> {
        self.given_back.lock().unwrap().push((cost, start));
        self.called.notify_one();
        Ok(())
    }
}
