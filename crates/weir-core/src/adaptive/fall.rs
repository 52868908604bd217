//! Whether a pace has fallen so far that a person wants to know.
//!
//! Every cut is in the history. An alert tells only of a pace that is less than half of what it was: of the highest pace of
//! the last hour that had lasted a minute without a change of a tenth. What a probe reached for a moment does not count.

use std::time::Duration;

use super::{Change, Reason};
use crate::Timestamp;

/// The time over which a pace is compared.
pub const COMPARED: Duration = Duration::from_secs(3_600);
/// A pace counts if it has lasted for this time.
const STEADY: Duration = Duration::from_secs(60);

/// A pace beside what it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Fall {
    /// The highest pace of the last hour that had lasted; 0 if none had.
    pub usual_per_s: f64,
    pub per_s: f64,
    /// The last cut: when and why.
    pub at: Timestamp,
    pub reason: Reason,
    pub detail: String,
}

impl Fall {
    /// By the changes since `from`, which is [`COMPARED`] ago, oldest first. `None`: there was no change.
    pub fn of(changes: &[Change], from: Timestamp) -> Option<Self> {
        let last = changes.last()?;
        let cut = changes.iter().rev().find(|change| change.is_lowered()).unwrap_or(last);
        let begins = std::iter::once(from).chain(changes.iter().map(|change| change.at));
        let lasted = changes.iter().zip(begins).filter(|(change, began)| change.at.since(*began) >= STEADY);
        let usual_per_s = lasted.map(|(change, _)| change.from_per_s).fold(0.0, f64::max);
        let (at, reason, detail) = (cut.at, cut.reason, cut.detail.clone());
        Some(Self { usual_per_s, per_s: last.to_per_s, at, reason, detail })
    }

    /// Whether the pace has fallen below half. A lowered limit does not count: whoever lowered it knows.
    pub fn is_deep(&self) -> bool {
        self.reason != Reason::AtLimit && self.per_s < 0.5 * self.usual_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn change(at_s: u64, from_per_s: f64, to_per_s: f64) -> Change {
        let at = FROM + Duration::from_secs(at_s);
        Change { at, from_per_s, to_per_s, reason: Reason::Throttled, detail: format!("at {at_s} s") }
    }

    #[test]
    fn a_pace_has_fallen_when_it_is_less_than_half_of_what_had_lasted() {
        let fallen = Fall::of(&[change(600, 100.0, 60.0), change(602, 60.0, 20.0), change(640, 20.0, 24.0)], FROM);
        let fallen = fallen.unwrap();
        assert!(fallen.is_deep());
        assert_eq!((fallen.usual_per_s, fallen.per_s, &*fallen.detail), (100.0, 24.0, "at 602 s"));
        assert!(!Fall::of(&[change(600, 100.0, 60.0)], FROM).unwrap().is_deep());
        let edited = Change { reason: Reason::AtLimit, ..change(600, 100.0, 20.0) };
        assert!(!Fall::of(&[edited], FROM).unwrap().is_deep());
        assert_eq!(Fall::of(&[], FROM), None);
    }

    #[test]
    fn what_a_start_or_a_probe_has_tried_is_not_what_the_pace_was() {
        // It doubles from 10 to 160, and the receiver takes 60.
        let tried = [change(70, 10.0, 40.0), change(71, 40.0, 80.0), change(72, 80.0, 160.0), change(73, 160.0, 54.0)];
        assert!(!Fall::of(&tried, FROM).unwrap().is_deep());
        // A pace from before the hour is not known to have lasted.
        assert!(!Fall::of(&[change(5, 100.0, 20.0)], FROM).unwrap().is_deep());
    }
}
