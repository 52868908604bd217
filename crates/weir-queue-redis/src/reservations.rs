//! Slots of limit groups for callers outside Weir.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use weir_core::{Clock as _, LimitGroupId, Timestamp, limiter::GRANT_AHEAD, reservation::WIDEST};
use weir_queue::{GroupRun, QueueError, QueueResult, ReservedSlots, WantedSlot};

use crate::{
    client::{ShardClient, unexpected},
    keys::{Shard, group_job},
    schedule::BATCH,
    scripts::Operation,
    slots::CLOCK_DOUBT,
};

/// So many granted slots can be given back. Only the last of a group is, and the others are older than it.
const REMEMBERED: usize = 1_000;

pub(crate) struct Reservations {
    client: Arc<ShardClient>,
    /// The last granted slots.
    granted: Mutex<VecDeque<Granted>>,
}

#[derive(Clone, Copy)]
struct Granted {
    group: LimitGroupId,
    /// For the caller.
    start: Timestamp,
    /// By the time of the shard.
    at: i64,
    /// When the group's data began.
    known_since: i64,
}

impl Reservations {
    pub(crate) fn new(client: &Arc<ShardClient>) -> Self {
        Self { client: client.clone(), granted: Mutex::default() }
    }

    /// One call for the first of them. A call without an answer may have taken slots, which then stay taken.
    pub(crate) async fn take(&self, group: &GroupRun, wanted: &[WantedSlot]) -> QueueResult<ReservedSlots> {
        let id = group.terms.id;
        let (clock, shard) = (&self.client.clock, Shard::of(group_job(id)));
        let mut call = self.client.new_call(shard, Operation::Reserve);
        let needed = clock.needed_width(shard);
        call.group(group, self.client.clock.now()).arg(needed);
        for WantedSlot { cost, width } in wanted.iter().take(BATCH) {
            // The error of the clock is taken from both ends.
            let width = i64::try_from((*width).min(WIDEST).as_micros()).unwrap_or(i64::MAX);
            call.arg(*cost).arg(width.saturating_add(needed));
        }
        let mut answer = self.client.call(call).await?.values;
        if let Some(due) = answer.next_time() {
            self.client.due_times.learn(shard, due);
        }
        let mut number = || answer.next_int().ok_or_else(unexpected);
        let (status, next, expected, known_since) = (number()?, number()?, number()?, number()?);
        let time = |micros: i64| (micros > 0).then(|| clock.engine_time(shard, micros));
        let mut slots = ReservedSlots {
            granted: Vec::new(),
            next: time(next),
            expected: time(expected),
            is_unknown: status == 1,
            is_above_limit: status == 2,
        };
        while let (Some(start), Some(end)) = (answer.next_int(), answer.next_int()) {
            let slot = clock.narrowed(shard, (start, end));
            // No slot is granted so far ahead: a clock has changed. None of them is used, and the clock is set at once.
            if slot.start > clock.now() + GRANT_AHEAD + CLOCK_DOUBT {
                clock.doubt.notify_one();
                return Err(QueueError::Unknown("the clocks of Redis and of this process differ".to_owned()));
            }
            slots.granted.push(slot);
            let mut granted = self.granted.lock();
            granted.truncate(REMEMBERED - 1);
            granted.push_front(Granted { group: id, start: slot.start, at: start, known_since });
        }
        // More were wanted than one call takes.
        if slots.granted.len() == BATCH && wanted.len() > BATCH {
            slots.next = slots.next.or_else(|| Some(clock.now() + Duration::from_millis(1)));
        }
        Ok(slots)
    }

    /// `false` for a slot that is not remembered, too.
    pub(crate) async fn has_kept(&self, group: LimitGroupId, start: Timestamp) -> QueueResult<bool> {
        let known = self.granted.lock().iter().find(|of| (of.group, of.start) == (group, start)).copied();
        let Some(Granted { known_since, .. }) = known else { return Ok(false) };
        let job = group_job(group);
        let mut call = self.client.new_call(Shard::of(job), Operation::GroupSince);
        call.destination(job);
        Ok(self.client.call(call).await?.values.next_int() == Some(known_since))
    }

    /// Does nothing for a slot that another process was granted.
    pub(crate) async fn give_back(&self, group: LimitGroupId, cost: u32, start: Timestamp) -> QueueResult<()> {
        let known = {
            let mut granted = self.granted.lock();
            let at = granted.iter().position(|of| (of.group, of.start) == (group, start));
            at.and_then(|at| granted.remove(at))
        };
        let Some(Granted { at: start, .. }) = known else { return Ok(()) };
        let job = group_job(group);
        let mut call = self.client.new_call(Shard::of(job), Operation::GiveBack);
        call.destination(job).arg(cost).arg(start);
        self.client.call(call).await.map(drop)
    }
}
