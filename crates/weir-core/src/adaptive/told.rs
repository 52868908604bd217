//! A `Retry-After` may be longer than what the receiver counts.
//!
//! A wall that lasts some seconds shows that the receiver counts requests over a window of that length. But a wall may only
//! be as long as a `Retry-After` said. If then a pace well above the ceiling is not refused for twice that time, the receiver
//! counts a shorter window than it says.

use serde::{Deserialize, Serialize};

/// After 429s for at least this time, the rate at which sends were taken before is believed to be the receiver's.
pub(super) const TELLING_S: f64 = 5.0;
/// For so many lengths of the wall, a pace above the ceiling must not be refused.
const PROOF: f64 = 2.0;

/// What is known of the last wall whose end a `Retry-After` said.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Told {
    /// How long the pace has been well above the ceiling since it, without a refusal. `None`: it was not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    outgrown_s: Option<f64>,
    is_too_long: bool,
    /// The next wall came sooner than it lasted, once: the pace after it was too high, or a long window has filled up.
    is_doubted: bool,
}

impl Told {
    /// Whether the receiver counts shorter windows than it says.
    pub(super) fn is_too_long(&self) -> bool {
        self.is_too_long
    }

    /// Whether the pace after the last wall is to be lower than the last clean one, which a receiver of calendar windows
    /// may have taken although it is too high.
    pub(super) fn is_doubted(&self) -> bool {
        self.is_doubted
    }

    /// A long wall is over. `is_soon`: it began sooner after the one before than it lasted.
    pub(super) fn over(&mut self, is_soon: bool) {
        (self.is_too_long, self.is_doubted) = match (self.is_too_long, is_soon) {
            (true, true) => (!self.is_doubted, !self.is_doubted),
            (is_too_long, _) => (is_too_long, false),
        };
    }

    /// A wall is over; its end was told or not.
    pub(super) fn begin(&mut self, is_told: bool) {
        self.outgrown_s = is_told.then_some(0.0);
    }

    /// Something was refused.
    pub(super) fn refused(&mut self) {
        self.outgrown_s = self.outgrown_s.map(|_| 0.0);
    }

    /// The pace was well above the ceiling for `seconds` more. The wall lasted `wall_s`.
    pub(super) fn outgrow(&mut self, seconds: f64, wall_s: f64) {
        if let Some(outgrown_s) = &mut self.outgrown_s {
            *outgrown_s += seconds;
            self.is_too_long |= *outgrown_s >= PROOF * wall_s;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn too_long() -> Told {
        let mut told = Told::default();
        told.begin(true);
        told.outgrow(40.0, 20.0);
        told
    }

    #[test]
    fn a_pace_above_the_ceiling_for_twice_the_wall_shows_that_it_was_too_long() {
        let mut told = Told::default();
        told.outgrow(100.0, 20.0);
        assert!(!told.is_too_long(), "nobody said how long the wall would be");
        told.begin(true);
        told.outgrow(39.0, 20.0);
        told.refused();
        told.outgrow(39.0, 20.0);
        assert!(!told.is_too_long() && too_long().is_too_long());
    }

    #[test]
    fn one_wall_that_is_met_again_soon_lowers_the_pace_and_the_second_ends_it() {
        let mut told = too_long();
        told.over(true);
        assert_eq!((told.is_too_long(), told.is_doubted()), (true, true));
        told.over(true);
        assert_eq!((told.is_too_long(), told.is_doubted()), (false, false));
        let mut late = too_long();
        [true, false, true].into_iter().for_each(|is_soon| late.over(is_soon));
        assert_eq!((late.is_too_long(), late.is_doubted()), (true, true));
    }
}
