//! The breakers of the destinations that this process sends to: counts of their recent failures.
//!
//! Each worker counts its own attempts and changes the breaker in the store, which all workers share. So a breaker
//! opens when the failures in one process meet its policy, and no process depends on the counts of another.

use std::{collections::HashMap, time::Duration};

use weir_core::{
    DestinationId, Timestamp,
    breaker::{AttemptWindow, EndedAttempt},
};
use weir_store::BreakerChange;

use crate::attempt::FinishedAttempt;

/// How often destinations without recent attempts are forgotten. The window of a breaker is a minute long.
const TIDY: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Breakers {
    windows: HashMap<DestinationId, AttemptWindow>,
    tidied_at: Timestamp,
}

/// A change of a breaker.
pub(crate) struct BreakerUpdate {
    pub(crate) change: BreakerChange,
    /// How long the destination has failed, if it must be paused for that.
    pub(crate) failed_for: Option<Duration>,
}

impl Breakers {
    /// Counts an attempt. Returns the change of the destination's breaker, if the attempt causes one.
    pub(crate) fn observe(&mut self, ended: &FinishedAttempt) -> Option<BreakerUpdate> {
        let destination = &ended.destination;
        let policy = destination.settings.breaker.as_ref()?;
        let (outcome, now) = (ended.result.attempt.outcome, ended.result.now);
        let ending =
            EndedAttempt { outcome, effect: ended.effect.clone(), refusal: ended.refusal, began: ended.began, now };
        let window = self.windows.entry(destination.id).or_default();
        let changed = window.observe(&destination.breaker, policy, &ending)?;
        Some(BreakerUpdate {
            failed_for: changed.pauses_after(policy, now),
            change: BreakerChange { id: destination.id, expected: destination.breaker.clone(), changed, now },
        })
    }

    /// Forgets destinations without recent attempts.
    pub(crate) fn tidy(&mut self, now: Timestamp) {
        if now.since(self.tidied_at) > TIDY {
            self.tidied_at = now;
            self.windows.retain(|_, window| !window.is_over(now));
        }
    }
}
