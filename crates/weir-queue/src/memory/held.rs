//! A hold, its release, and the slow start after it. Kept beside the cursors, because they may be unknown.

use weir_core::{Limiter, Timestamp};

use crate::{Hold, Terms};

#[derive(Debug, Default)]
pub(super) struct Held {
    /// The end of the latest hold.
    until: Timestamp,
    /// [`Terms::released_at`].
    released_at: Timestamp,
    /// The maximum of sends in flight after a hold: 1, and one more with each send since the end of the hold that was
    /// answered and not refused, until it is `max_in_flight`.
    slow_start: Option<u32>,
}

impl Held {
    pub(super) fn until(&self) -> Timestamp {
        self.until
    }

    pub(super) fn slow_start(&self) -> Option<u32> {
        self.slow_start
    }

    /// Whether no slot starts yet.
    pub(super) fn is_held(&self, now: Timestamp) -> bool {
        now < self.until
    }

    /// Applies a hold, unless the send that asked for it started before the last release.
    pub(super) fn hold(&mut self, hold: Hold, cursors: Option<&mut Limiter>) {
        if hold.sent_at >= self.released_at {
            self.extend(hold.until, cursors);
        }
    }

    /// Follows new terms. A release replaces what the queue knows of holds with what the store knows.
    pub(super) fn follow(&mut self, terms: &Terms, now: Timestamp, mut cursors: Option<&mut Limiter>) {
        if terms.released_at > self.released_at {
            self.released_at = terms.released_at;
            self.until = self.until.min(terms.released_at);
            if let Some(cursors) = &mut cursors {
                cursors.lift_hold(terms.released_at);
            }
        }
        // Terms from before the release may name a hold that it has lifted.
        if terms.released_at == self.released_at && terms.held_until > now {
            self.extend(terms.held_until, cursors);
        }
    }

    /// Extends the hold. The slow start begins again.
    fn extend(&mut self, until: Timestamp, cursors: Option<&mut Limiter>) {
        if until > self.until {
            self.until = until;
            self.slow_start = Some(1);
        }
        if let Some(cursors) = cursors {
            cursors.hold(self.until);
        }
    }

    /// A send that started at `sent_at` was answered and not refused. Only sends from after the hold raise the slow start.
    pub(super) fn answered(&mut self, sent_at: Timestamp, max_in_flight: u32) {
        if sent_at >= self.until {
            self.slow_start = self.slow_start.map(|most| most + 1).filter(|most| *most < max_in_flight);
        }
    }

    /// Ends the slow start. A hold by people says nothing about the receiver, so no single send has to try it first.
    pub(super) fn skip_slow_start(&mut self) {
        self.slow_start = None;
    }
}
