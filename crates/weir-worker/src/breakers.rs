//! The breakers of the destinations that this process sends to: what their last minutes say against them.
//!
//! Each worker counts its own attempts, and changes the record that all of them share. So a breaker opens after as many failures as
//! its policy says in one process, and no process waits for another to count.

use std::{collections::HashMap, time::Duration};

use weir_core::{
    DestinationId, Timestamp,
    breaker::{AttemptWindow, EndedAttempt},
};
use weir_store::BreakerChange;

use crate::attempt::Finished;

/// How often destinations that nothing was sent to are forgotten.
const TIDY: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Breakers {
    windows: HashMap<DestinationId, AttemptWindow>,
    tidied_at: Timestamp,
}

/// A breaker that changes.
pub(crate) struct Changed {
    pub(crate) change: BreakerChange,
    /// Its destination has failed for so long that it is to be paused.
    pub(crate) gives_up: bool,
}

impl Breakers {
    /// Counts an attempt. Answers how its destination's breaker changes by it, if it does.
    pub(crate) fn observe(&mut self, ended: &Finished) -> Option<Changed> {
        let destination = &ended.destination;
        let policy = destination.settings.breaker.as_ref()?;
        let (outcome, now) = (ended.result.attempt.outcome, ended.result.now);
        let ending = EndedAttempt { outcome, effect: ended.effect, began: ended.began, now };
        let window = self.windows.entry(destination.id).or_default();
        let changed = window.observe(&destination.breaker, policy, &ending)?;
        Some(Changed {
            gives_up: changed.should_pause(policy, now),
            change: BreakerChange { id: destination.id, expected: destination.breaker.clone(), changed, now },
        })
    }

    pub(crate) fn tidy(&mut self, now: Timestamp) {
        if now.since(self.tidied_at) > TIDY {
            self.tidied_at = now;
            self.windows.retain(|_, window| !window.is_over(now));
        }
    }
}
