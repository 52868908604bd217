//! Slots and cursors: the arithmetic behind the guarantee.
//!
//! A limit of R per window W hands out slots of width J whose starts are at least T = (W + J) / R apart. A send starts
//! inside its slot, so the R-th send after `i` starts no earlier than `start_i + R·T = start_i + W + J ≥ send_i + W`: no
//! half-open window of length W, wherever it begins, holds more than R sends. The utilisation is W / (W + J).
//!
//! With a burst B up to B slots may start at once, which bounds every window by R + B − 1. This is the generic cell rate
//! algorithm (ITU-T I.371) with an interval instead of an instant for each cell, kept as a token bucket: `spent` tokens, one
//! of which comes back every T after `since`. In this form no number grows with B·T, which can be centuries. Several limits
//! apply together: a slot starts where the strictest cursor allows.
//!
//! ```text
//!   start_i     end_i              start_{i+1}                       start_{i+R}
//!   |--- J -----|                  |--- J -----|          ...        |--- J -----|
//!   |<------------ T ------------->|
//!   |<--------------------------- R·T = W + J ---------------------->|
//! ```

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::{
    limit::{RateLimit, RateLimits},
    time::Timestamp,
};

/// How long a slot of an unlimited destination stays good. It bounds how late a pause can be noticed.
pub const UNLIMITED_SLOT_WIDTH: Duration = Duration::from_millis(50);
/// A slot is granted only when it starts within this time from now. With the width of a narrow slot it bounds how long what was
/// granted before an edit can be in use: less than 100 ms.
pub const GRANT_AHEAD: Duration = Duration::from_millis(40);
/// A half-open interval `[start, end)` in which one send may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub start: Timestamp,
    pub end: Timestamp,
}

impl Slot {
    /// Whether a send may start at `now`.
    pub fn contains(&self, now: Timestamp) -> bool {
        self.start <= now && now < self.end
    }

    /// Whether the slot has passed unused.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.end <= now
    }
}

/// One limit and where its next slot may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitCursor {
    pub limit: RateLimit,
    spacing: Duration,
    /// From when the spent tokens come back, one every T.
    pub since: Timestamp,
    /// Tokens spent at `since`, at most the burst.
    pub spent: u32,
}

impl LimitCursor {
    pub fn new(limit: RateLimit, since: Timestamp, spent: u32) -> Self {
        Self { limit, spacing: limit.spacing(), since, spent }
    }

    /// Of a destination whose last send is known, if there was one: the burst counts as spent.
    fn after(limit: RateLimit, last_start: Option<Timestamp>) -> Self {
        last_start.map_or(Self::new(limit, Timestamp::MIN, 0), |at| Self::new(limit, at, limit.burst.get()))
    }

    /// The same cursor with the tokens back that have come back by `now`.
    fn at(self, now: Timestamp) -> Self {
        let back = times(now.since(self.since), self.spacing);
        if back < self.spent {
            Self { since: self.since + self.spacing * back, spent: self.spent - back, ..self }
        } else {
            Self { since: now.max(self.since), spent: 0, ..self }
        }
    }

    /// Where the slot may start that follows `others` more; [`Timestamp::MIN`] when tokens are left for all of them.
    fn earliest(&self, others: u32) -> Timestamp {
        let lacking = (u64::from(self.spent) + u64::from(others) + 1).saturating_sub(self.limit.burst.get().into());
        match u32::try_from(lacking) {
            Ok(0) => Timestamp::MIN,
            Ok(lacking) => self.since + self.spacing.saturating_mul(lacking),
            Err(_) => Timestamp::MAX,
        }
    }

    /// Spends one token at `start`.
    fn advance(&mut self, start: Timestamp) {
        let back = self.at(start);
        *self = Self { spent: back.spent + 1, ..back };
    }

    /// The cursor under another limit of the same period. The debt, measured in sends since the last start, stays, at the new
    /// spacing; so a window that spans the edit is bounded by the larger of the two limits. Once a whole window has passed since
    /// the last start there is nothing left that such a window could hold.
    ///
    /// No edit adds a token: those of a raised burst begin spent. Otherwise a burst that is lowered and raised would be had
    /// again and again.
    fn under(&self, limit: RateLimit, last_start: Timestamp) -> Self {
        let (spacing, burst) = (limit.spacing(), limit.burst.get());
        let raised = burst.saturating_sub(self.limit.burst.get());
        let spent = self.spent.saturating_add(raised);
        // Both rounded away from the next start.
        let on_the_way = rescaled(last_start.since(self.since), self.spacing, spacing);
        let owed = rescaled(self.since.since(last_start), self.spacing, spacing);
        let owed = if owed.is_zero() { owed } else { owed + Duration::from_nanos(1) };
        let over = spacing.saturating_mul(spent.saturating_sub(burst));
        let latest = last_start + limit.span() - spacing;
        let since = last_start - on_the_way + owed + over;
        Self::new(limit, since.min(latest), spent.min(burst))
    }
}

/// The cursors of one destination. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limiter {
    cursors: Vec<LimitCursor>,
    last_start: Option<Timestamp>,
    held_until: Timestamp,
}

/// A [`Limiter`] taken apart, for a queue that keeps cursors elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimiterParts {
    /// The shortest period first.
    pub cursors: Vec<LimitCursor>,
    pub last_start: Option<Timestamp>,
    pub held_until: Timestamp,
}

impl From<LimiterParts> for Limiter {
    fn from(LimiterParts { cursors, last_start, held_until }: LimiterParts) -> Self {
        Self { cursors, last_start, held_until }
    }
}

impl From<&Limiter> for LimiterParts {
    fn from(limiter: &Limiter) -> Self {
        let Limiter { cursors, last_start, held_until } = limiter.clone();
        Self { cursors, last_start, held_until }
    }
}

impl Limiter {
    /// The limiter of a destination that has never sent: the first slot starts at once.
    pub fn new(limits: &RateLimits) -> Self {
        Self::recovered(limits, None)
    }

    /// The limiter of a destination of which only the start of its last send is known, at most `last_start`.
    ///
    /// Slot starts are T apart, so one spacing after the last of them continues the sequence as if nothing had been
    /// forgotten; any burst counts as spent.
    pub fn recovered(limits: &RateLimits, last_start: Option<Timestamp>) -> Self {
        let cursors = limits.as_slice().iter().map(|&limit| LimitCursor::after(limit, last_start)).collect();
        Self { cursors, last_start, held_until: Timestamp::MIN }
    }

    /// Whether slots follow exactly these limits.
    pub fn follows(&self, limits: &RateLimits) -> bool {
        self.cursors.iter().map(|cursor| &cursor.limit).eq(limits.as_slice())
    }

    /// Whether a new limiter would hand out the same slots from `now` on, so that this one may be forgotten.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        self.held_until <= now && self.cursors.iter().all(|cursor| cursor.at(now).spent == 0)
    }

    /// Holds the destination: no slot starts before `until`. A hold is only ever extended.
    pub fn hold(&mut self, until: Timestamp) {
        self.held_until = self.held_until.max(until);
    }

    /// Until when the destination is held.
    pub fn held_until(&self) -> Timestamp {
        self.held_until
    }

    /// How wide the slots are.
    pub fn slot_width(&self) -> Duration {
        self.cursors.iter().map(|cursor| cursor.limit.slot_width()).min().unwrap_or(UNLIMITED_SLOT_WIDTH)
    }

    /// Where the next slot would start, were it taken at `now`.
    pub fn next_start(&self, now: Timestamp) -> Timestamp {
        self.cursors.iter().map(|cursor| cursor.earliest(0)).fold(now.max(self.held_until), Timestamp::max)
    }

    /// Where the slot would start that is taken after `others` more: an estimate where several limits bind in turn.
    pub fn start_after(&self, others: u32, now: Timestamp) -> Timestamp {
        let next = self.next_start(now);
        self.cursors.iter().map(|cursor| cursor.at(next).earliest(others)).fold(next, Timestamp::max)
    }

    /// How many slots, taken now, would start before `until`; counted up to `max`. As [`Self::start_after`], an estimate.
    pub fn slots_before(&self, now: Timestamp, until: Timestamp, max: u32) -> u32 {
        let next = self.next_start(now);
        if next >= until {
            return 0;
        }
        let of = |cursor: &LimitCursor| {
            let cursor = cursor.at(next);
            let left = cursor.limit.burst.get().saturating_sub(cursor.spent);
            let last = until.since(cursor.since).saturating_sub(Duration::from_nanos(1));
            times(last, cursor.spacing).saturating_add(left)
        };
        self.cursors.iter().map(of).fold(max, u32::min)
    }

    /// Hands out the next slot. It starts at `now` when the destination was idle, later under backlog.
    pub fn take(&mut self, now: Timestamp) -> Slot {
        let start = self.next_start(now);
        for cursor in &mut self.cursors {
            cursor.advance(start);
        }
        self.last_start = self.last_start.max(Some(start));
        Slot { start, end: start + self.slot_width() }
    }

    /// Follows new limits without resetting any window.
    ///
    /// A limit that keeps its period keeps its debt. A limit of a new period starts with its burst spent, one spacing after the
    /// last start. The last slot may still be used at its end, so where the new slots are narrower the last start counts as
    /// so much later.
    pub fn reconfigure(&mut self, limits: &RateLimits) {
        if self.follows(limits) {
            return;
        }
        let old_width = self.slot_width();
        let unmoved = self.last_start;
        let cursor = |&limit: &RateLimit| {
            let same_period = self.cursors.iter().find(|cursor| cursor.limit.period == limit.period);
            match (same_period, unmoved) {
                (Some(cursor), _) if cursor.limit == limit => *cursor,
                (Some(cursor), Some(last_start)) => cursor.under(limit, last_start),
                _ => LimitCursor::after(limit, unmoved),
            }
        };
        let mut edited = Self { cursors: limits.as_slice().iter().map(cursor).collect(), ..self.clone() };
        let later = old_width.saturating_sub(edited.slot_width());
        if let Some(last_start) = edited.last_start.filter(|_| !later.is_zero()) {
            edited.last_start = Some(last_start + later);
            for cursor in &mut edited.cursors {
                let is_kept = self.cursors.iter().any(|old| old.limit == cursor.limit);
                if !is_kept {
                    cursor.since = cursor.since + later;
                }
            }
        }
        *self = edited;
    }
}

/// How often `spacing` goes into `time`.
fn times(time: Duration, spacing: Duration) -> u32 {
    let nanos = |of: Duration| u64::try_from(of.as_nanos()).unwrap_or(u64::MAX);
    u32::try_from(nanos(time) / nanos(spacing)).unwrap_or(u32::MAX)
}

/// `time · to / from`, rounded down to the nanosecond.
fn rescaled(time: Duration, from: Duration, to: Duration) -> Duration {
    let nanos = time.as_nanos() * to.as_nanos() / from.as_nanos();
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
