//! What an adaptive pace would be at a destination that has none, by what was sent to it.
//!
//! The sends of the last hour are counted in stretches of ten seconds. In a stretch with more than 2 % of failures the
//! receiver was asked for more than it took, so what it took is its ceiling: the pace would climb to 0.97 of that. The
//! median of these stretches stands for all. Without any, nothing would bound the pace.

use super::{CLIMBED, refusals::TOLERATED};
use crate::{ErrorKind, outcome::Failure};

/// The length of a stretch, in seconds.
const STRETCH_S: f64 = 10.0;
/// Fewer attempts than this say nothing about a share.
const FEWEST: u64 = 10;

/// The attempts of ten seconds, and how many of them the receiver took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    pub attempted: u64,
    pub taken: u64,
}

impl Stretch {
    /// Whether the receiver refused more than a pace would accept.
    pub fn is_refusing(self) -> bool {
        let failed = self.attempted.saturating_sub(self.taken);
        self.attempted >= FEWEST && failed as f64 > TOLERATED * self.attempted as f64
    }

    fn taken_per_s(self) -> f64 {
        self.taken as f64 / STRETCH_S
    }
}

/// What the stretches of an hour show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// The most that the pace would send; `None`: nothing would bound it.
    pub per_s: Option<f64>,
    /// The fastest stretch without a failure.
    pub fastest_per_s: Option<f64>,
    pub refusing: u32,
    pub stretches: u32,
}

impl Observation {
    /// `None` without sends. `by_load`: whether the failures are such as a pace counts.
    pub fn of(stretches: impl Iterator<Item = Stretch>, by_load: bool) -> Option<Self> {
        let stretches: Vec<Stretch> = stretches.filter(|stretch| stretch.attempted > 0).collect();
        let clean = stretches.iter().filter(|stretch| stretch.taken >= stretch.attempted);
        let fastest_per_s = clean.map(|stretch| stretch.taken_per_s()).max_by(f64::total_cmp);
        let is_refusing = |stretch: &&Stretch| by_load && stretch.is_refusing();
        let mut refusing: Vec<f64> =
            stretches.iter().filter(is_refusing).map(|stretch| stretch.taken_per_s()).collect();
        refusing.sort_by(f64::total_cmp);
        let per_s = refusing.get(refusing.len() / 2).map(|ceiling| CLIMBED * ceiling);
        let (refusing, stretches) = (refusing.len() as u32, stretches.len() as u32);
        (stretches > 0).then_some(Self { per_s, fastest_per_s, refusing, stretches })
    }

    pub fn sentence(&self) -> String {
        let Self { refusing, stretches, .. } = self;
        match (self.per_s, self.fastest_per_s) {
            (Some(per_s), _) => format!(
                "In {refusing} of {stretches} stretches of 10 s the receiver refused; an adaptive pace would keep to \
                 about {per_s:.1}/s, where it takes nearly all"
            ),
            (None, Some(fastest)) => format!(
                "The receiver took {fastest:.1}/s without a failure; an adaptive pace would not slow it down now, and would \
                 if it began to refuse"
            ),
            (None, None) => {
                "The failures of the last hour do not come from load, so an adaptive pace would not bound it".to_owned()
            }
        }
    }
}

/// Whether a failure is one that a pace counts: the receiver is overloaded, or seems to be.
pub fn is_load(kind: ErrorKind, status: Option<u16>) -> bool {
    match kind {
        ErrorKind::Failure(Failure::Timeout | Failure::Connect) => true,
        ErrorKind::Answer(_) => matches!(status, Some(429 | 502 | 503 | 504)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(stretches: &[(u64, u64)], by_load: bool) -> Option<Observation> {
        Observation::of(stretches.iter().map(|&(attempted, taken)| Stretch { attempted, taken }), by_load)
    }

    #[test]
    fn the_ceiling_is_what_the_receiver_took_while_it_refused() {
        // 300/s at a receiver of 100/s, and a quiet time.
        let seen = of(&[(3_000, 1_000), (3_000, 1_010), (3_000, 990), (50, 50), (0, 0)], true).unwrap();
        assert_eq!((seen.per_s, seen.fastest_per_s), (Some(97.0), Some(5.0)));
        assert_eq!((seen.refusing, seen.stretches), (3, 4));
    }

    #[test]
    fn without_refusals_nothing_would_bound_the_pace() {
        let seen = of(&[(100, 100), (880, 880), (1_000, 990)], true).unwrap();
        assert_eq!((seen.per_s, seen.fastest_per_s, seen.refusing), (None, Some(88.0), 0), "1 % is background");
        // All answers are 404.
        let wrong = of(&[(100, 0)], false).unwrap();
        assert_eq!((wrong.per_s, wrong.fastest_per_s), (None, None));
        assert_eq!(of(&[], true), None);
    }
}
