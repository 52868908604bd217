//! The recent sends, shared by the windows of all periods.

use std::collections::VecDeque;

use super::windows::Window;
use crate::{limit::MAX_LIMIT, time::Timestamp};

/// The most sends that are kept. Every bound is smaller, so each send that exceeds a bound is found. The count of a
/// window never exceeds this number.
pub(super) const MAX_RECENT: usize = 2 * MAX_LIMIT as usize;

/// The recent sends that a window may still hold, earliest first.
#[derive(Debug, Default)]
pub(super) struct Recent {
    sends: VecDeque<Timestamp>,
    /// The recent sends whose outcome is unknown: few, except after a crash.
    unknown: VecDeque<Timestamp>,
}

/// The sends at or after an instant.
pub(super) struct Held {
    pub(super) window: Window,
    /// How many of the sends have a known outcome, and so certainly started at their instant.
    pub(super) known: u64,
}

impl Recent {
    /// Adds a send. Sends are added earliest first.
    pub(super) fn push(&mut self, at: Timestamp, is_unknown: bool) {
        if self.sends.len() == MAX_RECENT {
            self.sends.pop_front();
            self.keep_from(self.sends.front().copied());
        }
        self.sends.push_back(at);
        if is_unknown {
            self.unknown.push_back(at);
        }
    }

    /// Forgets the sends before `earliest`; `None` forgets all sends.
    pub(super) fn keep_from(&mut self, earliest: Option<Timestamp>) {
        for sends in [&mut self.sends, &mut self.unknown] {
            match earliest {
                Some(earliest) => {
                    while sends.front().is_some_and(|first| *first < earliest) {
                        sends.pop_front();
                    }
                }
                None => sends.clear(),
            }
        }
    }

    /// The sends at or after `begin`; `None` when there are none.
    pub(super) fn since(&self, begin: Timestamp) -> Option<Held> {
        let held = |sends: &VecDeque<Timestamp>| (sends.len() - sends.partition_point(|send| *send < begin)) as u64;
        let sends = held(&self.sends);
        let start = *self.sends.get(self.sends.len() - sends as usize)?;
        Some(Held { window: Window { start, sends }, known: sends.saturating_sub(held(&self.unknown)) })
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.sends.len() + self.unknown.len()
    }
}
