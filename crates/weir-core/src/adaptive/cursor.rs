//! What a queue needs of a pace to grant slots, and what it notes of them.

use std::time::Duration;

use super::{AdaptiveRate, EPOCH_S, held::LOST_PROBE_S, seconds};
use crate::Timestamp;

/// The pace in a queue. A run sets the first four numbers, and grants move the others. A slot starts at the maximum of
/// this cursor and those of the hard limits, so the pace can only delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PaceCursor {
    /// The next slot starts no earlier: the time of a probe, or one spacing after a loss.
    pub not_before: Timestamp,
    pub spacing: Duration,
    /// How many requests may be in flight.
    pub window: u32,
    /// Which pace the grants follow.
    pub generation: u32,
    /// The starts of the last slot and of the one before it.
    pub last_start: Timestamp,
    pub before_last: Timestamp,
    /// The slots that were granted since the last run.
    pub granted: u32,
    /// Whether a permit had to wait since the last run because the window was full.
    pub was_full: bool,
}

impl PaceCursor {
    /// The earliest start of the next slot.
    pub fn next_start(&self) -> Timestamp {
        if self.last_start < self.not_before { self.not_before } else { self.last_start + self.spacing }
    }

    /// The earliest start of a slot that is taken after `others` further slots.
    pub fn start_after(&self, others: u32, now: Timestamp) -> Timestamp {
        self.next_start().max(now) + self.spacing.saturating_mul(others)
    }

    /// How many slots start before `until`, at most `max`.
    pub fn slots_before(&self, now: Timestamp, until: Timestamp, max: u32) -> u32 {
        let next = self.next_start().max(now);
        if next >= until {
            return 0;
        }
        let further = (until.since(next).as_nanos() - 1) / self.spacing.as_nanos().max(1);
        u32::try_from(further + 1).map_or(max, |slots| slots.min(max))
    }

    /// A slot was granted. `is_first`: not in place of a missed one.
    pub fn take(&mut self, start: Timestamp, is_first: bool) {
        if start > self.last_start {
            (self.before_last, self.last_start) = (self.last_start, start);
        }
        self.granted += u32::from(is_first);
    }

    /// Gives the slot with this start back, if it is the last one: a probe or a slow pace would wait for a minute more.
    pub fn give_back(&mut self, start: Timestamp) {
        if self.last_start == start {
            self.last_start = self.before_last;
        }
    }

    /// Follows the numbers of a run.
    pub fn follow(&mut self, run: &Self) {
        let &mut Self { last_start, before_last, granted, was_full, .. } = self;
        *self = Self { last_start, before_last, granted, was_full, ..*run };
    }

    /// Hands the notes to a run, and begins new ones.
    pub fn lend(&mut self) -> Self {
        let lent = *self;
        (self.granted, self.was_full) = (0, false);
        lent
    }
}

impl AdaptiveRate {
    /// The numbers by which slots are granted from `now` on.
    pub fn cursor(&self, now: Timestamp) -> PaceCursor {
        let spacing = seconds(1.0 / self.per_s(now));
        let (not_before, spacing, window) = match &self.wall {
            // One probe at a time. One without an answer is forgotten after this spacing.
            Some(wall) => (wall.probe_at(), seconds(LOST_PROBE_S), self.max_in_flight),
            None => (self.not_before, spacing, self.window()),
        };
        PaceCursor { not_before, spacing, window, generation: self.generation, ..PaceCursor::default() }
    }

    /// Takes over what a queue has noted.
    pub(super) fn granted(&mut self, cursor: &PaceCursor) {
        if let Some(wall) = &mut self.wall {
            wall.probed(cursor.last_start);
        }
        if cursor.granted > 0 && self.epoch.sent == 0 && self.epoch.answers.answers() == 0 {
            // A time in which nothing was due is no part of the epoch.
            let first = cursor.last_start.before(cursor.spacing.saturating_mul(cursor.granted));
            if first.since(self.epoch.from) > seconds(EPOCH_S) {
                self.epoch.from = first;
            }
        }
        self.epoch.sent += cursor.granted;
        self.epoch.was_full |= cursor.was_full;
    }
}
