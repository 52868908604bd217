//! Slots under several budgets: a slot is taken from every budget of its flow, or from none.
//!
//! A flow is what has a job: a destination, or one of its limit keys. Its budgets are its own, that of its destination if it is
//! a key, and that of the limit group if there is one. A slot has one start, the latest of what each budget allows, and every
//! budget grants exactly this slot, so none holds a slot that another one refused. The slot is as narrow as the narrowest: a
//! slot that ends earlier than a budget counts only keeps its limits.

use crate::{
    limiter::{Limiter, Slot},
    time::Timestamp,
};

/// The start of the next slot that all of these budgets allow to a send with this cost, if it is taken at `now`.
/// [`Timestamp::MAX`] if the cost is above a limit.
pub fn next_start(budgets: &[&mut Limiter], cost: u32, now: Timestamp) -> Timestamp {
    budgets.iter().fold(now, |start, budget| start.max(budget.next_start_of(cost, now)))
}

/// Takes the next slot from all of these budgets, if it starts at `latest` or earlier. Otherwise none of them changes,
/// and the answer is its start.
///
/// ```
/// use weir_core::{Limiter, Period, RateLimit, RateLimits, Timestamp, budget};
///
/// let per_second = |limit| RateLimits::new(RateLimit::new(limit, Period::SECOND).into_iter().collect());
/// let [mut own, mut shared] = [100, 10].map(|limit| Limiter::new(&per_second(limit).expect("one limit")));
/// let now = Timestamp::from_secs(1_800_000_000);
/// assert!(budget::take(&mut [&mut own, &mut shared], 1, now, now).is_ok());
/// let (before, later) = (own.clone(), budget::take(&mut [&mut own, &mut shared], 1, now, now));
/// assert_eq!((later, own), (Err(shared.next_start(now)), before));
/// ```
pub fn take(budgets: &mut [&mut Limiter], cost: u32, now: Timestamp, latest: Timestamp) -> Result<Slot, Timestamp> {
    let start = next_start(budgets, cost, now);
    if start > latest {
        return Err(start);
    }
    let slots = budgets.iter_mut().map(|budget| budget.take_at(cost, start));
    let narrowest = slots.reduce(|one, other| Slot { start, end: one.end.min(other.end) });
    narrowest.ok_or(start)
}

/// Notes that a send with this cost has to wait in those of these budgets that allow it later than `latest`.
pub fn wait(budgets: &mut [&mut Limiter], cost: u32, from: Timestamp, now: Timestamp, latest: Timestamp) {
    for budget in budgets {
        let start = budget.next_start_of(cost, from);
        if start > latest {
            budget.wait(cost, start, now);
        }
    }
}

/// Gives a missed slot of a send with this cost back to all of these budgets, if it is the last that each of them has
/// granted; otherwise to none: a slot that stays taken only delays.
pub fn give_back(budgets: &mut [&mut Limiter], cost: u32, start: Timestamp, now: Timestamp) -> bool {
    let is_last = budgets.iter().all(|budget| budget.can_give_back(cost, start, now));
    if is_last {
        budgets.iter_mut().for_each(|budget| _ = budget.give_back_of(cost, start, now));
    }
    is_last
}

#[cfg(test)]
mod tests;
