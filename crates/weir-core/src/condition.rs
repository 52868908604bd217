//! What keeps a destination from being sent to.

use crate::{Destination, Timestamp};

/// What keeps a destination from being sent to. Several may be true at one time; [`Self::Active`] is none of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Condition {
    Active,
    Paused,
    /// The receiver asked Weir to wait, or people hold it until an instant.
    Held,
    /// Its breaker is not closed.
    Breaker,
}

impl Condition {
    pub const ALL: [Self; 4] = [Self::Active, Self::Paused, Self::Held, Self::Breaker];

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

impl Destination {
    pub fn is(&self, condition: Condition, now: Timestamp) -> bool {
        match condition {
            Condition::Active => !self.is_stopped() && !self.is(Condition::Held, now),
            Condition::Paused => self.settings.paused,
            Condition::Held => self.held().0.is_some_and(|until| now < until),
            Condition::Breaker => self.breaker.reason().is_some(),
        }
    }

    /// Whether it is unknown when the destination sends again: after a pause, or a breaker that is not closed. The end of
    /// a hold is known.
    pub fn is_stopped(&self) -> bool {
        self.settings.paused || self.breaker.reason().is_some()
    }
}
