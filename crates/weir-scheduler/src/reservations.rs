//! Slots of limit groups for callers outside Weir: the line of each group in this process.
//!
//! Callers of a group wait in one line. While somebody waits, one task asks the queue for all of them, with one call at a
//! time; the queue says when to ask again. Slots go to the first in the line.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use weir_core::{Clock, LimitGroup, LimitGroupId, Slot, Timestamp, reservation::LONGEST_WAIT};
use weir_queue::{
    GroupRun, QueueResult, ReserveAnswer, ReserveError, ReserveSlots, ReservedSlots, SharedQueue, WantedSlot,
};
use weir_store::RunStore;

use crate::{groups::recovered, run::RETRY_RUN};

/// The most callers that wait for one group: under a slow limit more would wait in vain.
pub const MOST_WAITING: usize = 1_000;
/// The most callers that wait in the process. Each holds a connection and less than a kilobyte.
pub const MOST_WAITING_IN_ALL: usize = 10_000;
/// The most slots of one call to the queue.
const BATCH: usize = 200;
/// How long after its start a slot is given back. Clocks differ by less.
const PASSED: Duration = Duration::from_millis(5);

type Answer = Result<ReserveAnswer, ReserveError>;

/// One for each process that answers the API.
pub struct ReservationDesk(Arc<Desk>);

struct Desk {
    store: Arc<dyn RunStore>,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    of: HashMap<LimitGroupId, Line>,
    waiting: usize,
}

/// Exists exactly while its task runs.
struct Line {
    terms: Arc<LimitGroup>,
    callers: VecDeque<Caller>,
    changed: Arc<Notify>,
}

struct Caller {
    wanted: WantedSlot,
    deadline: Timestamp,
    answer: oneshot::Sender<Answer>,
}

/// A caller's side. A slot that was granted to a caller who has gone is given back.
struct Waiting {
    desk: Arc<Desk>,
    group: LimitGroupId,
    cost: u32,
    answer: oneshot::Receiver<Answer>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(ReserveAnswer::Granted(slot))) = self.answer.try_recv() {
            self.desk.clone().return_slot(self.group, self.cost, slot);
        }
    }
}

impl ReservationDesk {
    pub fn new(store: Arc<dyn RunStore>, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Desk { store, queue, clock, lines: Mutex::default() }))
    }
}

#[async_trait::async_trait]
impl ReserveSlots for ReservationDesk {
    async fn reserve(
        &self,
        group: Arc<LimitGroup>,
        wanted: WantedSlot,
        wait: Duration,
    ) -> Result<ReserveAnswer, ReserveError> {
        let (answer, answered) = oneshot::channel();
        let deadline = self.0.clock.now() + wait.min(LONGEST_WAIT);
        let (id, cost) = (group.id, wanted.cost);
        if !self.0.clone().join(group, Caller { wanted, deadline, answer }) {
            return Ok(ReserveAnswer::TooMany);
        }
        let mut waiting = Waiting { desk: self.0.clone(), group: id, cost, answer: answered };
        // The task answers everybody, so it is gone only with the runtime.
        (&mut waiting.answer).await.unwrap_or(Ok(ReserveAnswer::TooMany))
    }

    async fn has_kept(&self, group: LimitGroupId, start: Timestamp) -> QueueResult<bool> {
        self.0.queue.has_kept(group, start).await
    }

    async fn give_back(&self, group: LimitGroupId, cost: u32, start: Timestamp) -> QueueResult<()> {
        self.0.give_back(group, cost, start).await
    }
}

impl Desk {
    /// Whether the caller has a place in the line of its group.
    fn join(self: Arc<Self>, group: Arc<LimitGroup>, caller: Caller) -> bool {
        let (id, mut lines) = (group.id, self.lines.lock());
        if lines.waiting >= MOST_WAITING_IN_ALL || lines.of.get(&id).is_some_and(|of| of.callers.len() >= MOST_WAITING)
        {
            lines.drop_gone(id);
        }
        if lines.waiting >= MOST_WAITING_IN_ALL || lines.of.get(&id).is_some_and(|of| of.callers.len() >= MOST_WAITING)
        {
            return false;
        }
        lines.waiting += 1;
        if let Some(line) = lines.of.get_mut(&id) {
            if line.terms.updated_at < group.updated_at {
                line.terms = group;
            }
            line.callers.push_back(caller);
            line.changed.notify_one();
            return true;
        }
        let changed = Arc::new(Notify::new());
        lines.of.insert(id, Line { terms: group, callers: [caller].into(), changed: changed.clone() });
        drop(lines);
        tokio::spawn(async move { self.serve(id, &changed).await });
        true
    }

    /// Serves the line of a group until nobody waits in it.
    async fn serve(self: Arc<Self>, id: LimitGroupId, changed: &Notify) {
        let (mut next, mut expected) = (Timestamp::MIN, Timestamp::MIN);
        loop {
            let now = self.clock.now();
            let Some((terms, wanted)) = self.lines.lock().first(id) else { return };
            let mut failure = None;
            if now >= next {
                match self.ask(&terms, &wanted).await {
                    Ok(answer) => {
                        next = answer.next.unwrap_or(Timestamp::MIN);
                        expected = answer.expected.unwrap_or(next);
                        self.hand_out(id, &wanted, answer);
                    }
                    Err(error) => {
                        next = now + RETRY_RUN;
                        failure = Some(error);
                    }
                }
            }
            let deadline = self.lines.lock().dismiss(id, self.clock.now(), next, || match &failure {
                Some(error) => Err(error.clone()),
                None => Ok(ReserveAnswer::Later(expected.max(next))),
            });
            let until = deadline.map_or(next, |deadline| deadline.min(next));
            let _ = tokio::time::timeout(until.since(self.clock.now()), changed.notified()).await;
        }
    }

    /// One call to the queue; one more if it has lost the cursors of the group, after they are recovered.
    async fn ask(&self, terms: &Arc<LimitGroup>, wanted: &[WantedSlot]) -> Result<ReservedSlots, ReserveError> {
        let mut run = GroupRun { terms: terms.clone(), recovered: None };
        let answer = self.queue.reserve_slots(&run, wanted).await?;
        if !answer.is_unknown {
            return Ok(answer);
        }
        // What was granted before the loss may be used for a while from now on: the time of the loss is not known.
        let now = self.clock.now();
        let cursors = recovered(&*self.store, terms, now, now).await;
        run.recovered = Some(cursors.map_err(|error| ReserveError::Store(error.to_string()))?);
        let answer = self.queue.reserve_slots(&run, wanted).await?;
        let next = answer.is_unknown.then(|| now + RETRY_RUN);
        Ok(ReservedSlots { next: answer.next.or(next), ..answer })
    }

    /// The first in the line get the slots, as the queue was asked for them. A caller who has gone meanwhile has left a
    /// slot for the next one, if that wants no more.
    fn hand_out(self: &Arc<Self>, id: LimitGroupId, wanted: &[WantedSlot], answer: ReservedSlots) {
        let mut lines = self.lines.lock();
        for (slot, wanted) in answer.granted.iter().zip(wanted) {
            let left = match lines.next_caller(id, wanted) {
                Some(caller) => caller.answer.send(Ok(ReserveAnswer::Granted(*slot))).is_err(),
                None => true,
            };
            if left {
                self.clone().return_slot(id, wanted.cost, *slot);
            }
        }
        if let Some(refused) = wanted.get(answer.granted.len()).filter(|_| answer.is_above_limit)
            && let Some(caller) = lines.next_caller(id, refused)
        {
            let _ = caller.answer.send(Ok(ReserveAnswer::AboveLimit));
        }
    }

    fn return_slot(self: Arc<Self>, group: LimitGroupId, cost: u32, slot: Slot) {
        tokio::spawn(async move {
            if let Err(error) = self.give_back(group, cost, slot.start).await {
                tracing::debug!(%error, "could not give a reserved slot back; it stays taken");
            }
        });
    }

    /// Slots start at most 40 ms ahead, and no start names two slots once it has passed.
    async fn give_back(&self, group: LimitGroupId, cost: u32, start: Timestamp) -> QueueResult<()> {
        tokio::time::sleep((start + PASSED).since(self.clock.now())).await;
        self.queue.give_back_reserved(group, cost, start).await
    }
}

impl Lines {
    /// What the first in the line want. A line without anybody is removed.
    fn first(&mut self, id: LimitGroupId) -> Option<(Arc<LimitGroup>, Vec<WantedSlot>)> {
        self.drop_gone(id);
        let line = self.of.get(&id)?;
        if line.callers.is_empty() {
            self.of.remove(&id);
            return None;
        }
        Some((line.terms.clone(), line.callers.iter().take(BATCH).map(|caller| caller.wanted).collect()))
    }

    /// Callers whose futures were dropped leave their places.
    fn drop_gone(&mut self, id: LimitGroupId) {
        let Some(line) = self.of.get_mut(&id) else { return };
        let before = line.callers.len();
        line.callers.retain(|caller| !caller.answer.is_closed());
        self.waiting -= before - line.callers.len();
    }

    /// The first caller who wants such a slot.
    fn next_caller(&mut self, id: LimitGroupId, wanted: &WantedSlot) -> Option<Caller> {
        let line = self.of.get_mut(&id)?;
        let at = line.callers.iter().position(|caller| caller.wanted == *wanted && !caller.answer.is_closed())?;
        self.waiting -= 1;
        line.callers.remove(at)
    }

    /// Answers the callers whose deadlines have passed, unless a call to the queue is due at once: it may still have slots
    /// for them. Returns the earliest deadline of the others.
    fn dismiss(
        &mut self,
        id: LimitGroupId,
        now: Timestamp,
        next: Timestamp,
        answer: impl Fn() -> Answer,
    ) -> Option<Timestamp> {
        let line = self.of.get_mut(&id)?;
        if next > now {
            let before = line.callers.len();
            let callers = std::mem::take(&mut line.callers);
            let (gone, left): (VecDeque<_>, _) = callers.into_iter().partition(|caller| caller.deadline <= now);
            line.callers = left;
            self.waiting -= before - line.callers.len();
            gone.into_iter().for_each(|caller| _ = caller.answer.send(answer()));
        }
        line.callers.iter().map(|caller| caller.deadline).min()
    }
}
