//! Slots of a group for callers outside Weir. All callers together have turns like one member with weight 1.
//!
//! While nobody else waits, a slot is taken at once. Otherwise a run of the group promises permits to the callers, as to a
//! member, and the next request takes that many slots. A promise counts as a queued permit.

use std::time::Duration;

use weir_core::{Slot, Timestamp, limiter::GRANT_AHEAD, reservation::WIDEST};

use super::{Group, Tag, tag_of_permit};
use crate::{RESERVED_AGAIN, RESERVED_FOR, ReservedSlots, WantedSlot};

/// The soonest that callers are told to ask again: a run of the group may come first.
const SOONEST: Duration = Duration::from_millis(1);

/// What callers have asked for and not got.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// The start of their next turn.
    pub(super) tag: Tag,
    wanted: u32,
    /// How many of these slots a run has promised them.
    promised: u32,
    /// Without another request they have gone by then.
    expires: Timestamp,
}

impl Callers {
    /// How many more permits a run may promise.
    pub(super) fn waiting(&self) -> u32 {
        self.wanted.saturating_sub(self.promised)
    }

    pub(super) fn are_absent(&self) -> bool {
        self.wanted == 0 && self.promised == 0
    }

    /// A run promises one more permit.
    pub(super) fn promise(&mut self) {
        self.promised += 1;
        self.tag += tag_of_permit(1);
    }
}

impl Group {
    /// Takes slots for callers, in their order, from the group's budget alone.
    pub(in crate::memory) fn reserve(&mut self, now: Timestamp, wanted: &[WantedSlot]) -> ReservedSlots {
        self.budget.drop_expired(now);
        self.drop_absent_callers(now);
        let mut answer = ReservedSlots::default();
        // The only condition besides the cursors, which know of holds.
        if !self.is_known(now) {
            answer.is_unknown = true;
            return answer;
        }
        let mut next = None;
        for wanted in wanted {
            let has_turn = self.nobody_else_waits() || self.callers.promised > 0;
            match self.reserve_one(now, *wanted, has_turn) {
                Ok(slot) => answer.granted.push(slot),
                Err(Timestamp::MAX) => {
                    answer.is_above_limit = true;
                    break;
                }
                Err(start) => {
                    next = has_turn.then_some(start - GRANT_AHEAD);
                    break;
                }
            }
        }
        let left = (wanted.len() - answer.granted.len()) as u32;
        if left > 0 && !answer.is_above_limit {
            if self.callers.waiting() == 0 {
                self.callers.tag = self.callers.tag.max(self.virtual_time);
            }
            self.callers.wanted = self.callers.wanted.max(left);
            self.callers.expires = now + RESERVED_FOR;
            let next = next.or_else(|| self.next_due(now)).unwrap_or(now);
            answer.expected = Some(self.budget.start_after(self.budget.queued() + self.promises, now));
            answer.next = Some(next.max(now + SOONEST).min(now + RESERVED_AGAIN));
        }
        answer
    }

    /// The slot of one caller; otherwise its start, [`Timestamp::MAX`] if its cost is above a limit.
    fn reserve_one(&mut self, now: Timestamp, wanted: WantedSlot, has_turn: bool) -> Result<Slot, Timestamp> {
        let Some(cursors) = self.budget.cursors.as_mut() else { return Err(now) };
        let start = cursors.next_start_of(wanted.cost, now);
        if start > now + GRANT_AHEAD || !has_turn {
            if has_turn {
                cursors.wait(wanted.cost, start, now);
            }
            return Err(start);
        }
        let slot = cursors.take_wide(wanted.cost, start, wanted.width.min(WIDEST));
        if self.callers.promised > 0 {
            self.callers.promised -= 1;
            self.promises -= 1;
        }
        self.callers.wanted = self.callers.wanted.saturating_sub(1);
        Ok(slot)
    }

    /// Gives a slot back that nobody has used, if it is the last one.
    pub(in crate::memory) fn give_back_reserved(&mut self, cost: u32, start: Timestamp, now: Timestamp) {
        if self.budget.cursors.as_mut().is_some_and(|cursors| cursors.give_back_of(cost, start, now)) {
            self.floor = Timestamp::MIN;
        }
    }

    /// No member has a backlog, a run under way, or a permit without a slot.
    fn nobody_else_waits(&self) -> bool {
        self.turns.is_empty() && self.promises == self.callers.promised && self.budget.queued() == 0
    }

    /// What callers have left who do not ask any more goes to the others at once.
    pub(super) fn drop_absent_callers(&mut self, now: Timestamp) {
        if self.callers.expires > now {
            return;
        }
        self.promises -= self.callers.promised;
        (self.callers.wanted, self.callers.promised) = (0, 0);
    }

    /// Until when promised permits count.
    pub(super) fn promised_until(&self) -> Option<Timestamp> {
        (self.callers.promised > 0).then_some(self.callers.expires)
    }
}
