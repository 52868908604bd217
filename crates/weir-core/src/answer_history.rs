//! The recent answers of a destination, as far as they say whether its own limits fit the receiver.

use std::time::Duration;

use crate::time::Timestamp;

/// Answers are counted in spans of this length; the current and the previous one count.
const SPAN: Duration = Duration::from_secs(30);
/// Refusals are rare while they are at most one in this many answers, beside [`EXCUSED`].
const RARE: u32 = 10;
/// A single refusal says nothing about how many follow.
const EXCUSED: u32 = 1;

/// Counts the answers of one destination in this process.
#[derive(Debug, Clone, Default)]
pub struct AnswerHistory {
    /// The number of the current span.
    span: i64,
    current: Counts,
    previous: Counts,
    /// Since when every answer was a refusal.
    refused_since: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    answers: u32,
    refusals: u32,
}

/// What the recent answers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalTrend {
    /// Refusals are so rare that the destination's own limits fit, apart from jitter.
    pub are_rare: bool,
    /// For how long every answer has been a refusal.
    pub lasts: Duration,
}

impl AnswerHistory {
    /// Counts an answer that arrived at `now`.
    pub fn record(&mut self, is_refusal: bool, now: Timestamp) -> RefusalTrend {
        let span = now.as_nanos() / SPAN.as_nanos() as i64;
        if span != self.span {
            let follows = span == self.span + 1;
            self.previous = if follows { self.current } else { Counts::default() };
            (self.span, self.current) = (span, Counts::default());
        }
        self.current.answers = self.current.answers.saturating_add(1);
        self.current.refusals = self.current.refusals.saturating_add(is_refusal.into());
        self.refused_since = is_refusal.then(|| self.refused_since.unwrap_or(now));
        let refusals = self.current.refusals.saturating_add(self.previous.refusals);
        let answers = self.current.answers.saturating_add(self.previous.answers);
        RefusalTrend {
            are_rare: refusals <= EXCUSED + answers / RARE,
            lasts: self.refused_since.map_or(Duration::ZERO, |since| now.since(since)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(3_000_000);

    fn at(secs: u64) -> Timestamp {
        NOW + Duration::from_secs(secs)
    }

    #[test]
    fn one_refusal_in_ten_answers_is_rare() {
        let mut history = AnswerHistory::default();
        assert!(history.record(true, NOW).are_rare, "a single one");
        assert!(!history.record(true, NOW).are_rare);
        for _ in 0..20 {
            history.record(false, NOW);
        }
        assert!(history.record(true, NOW).are_rare, "three of 23");
        assert!(!history.record(true, NOW).are_rare, "four of 24");
    }

    #[test]
    fn refusals_of_more_than_a_minute_ago_do_not_count() {
        let mut history = AnswerHistory::default();
        for _ in 0..9 {
            history.record(true, NOW);
        }
        assert!(!history.record(true, at(45)).are_rare);
        assert!(history.record(false, at(105)).are_rare);
        assert!(history.record(true, at(300)).are_rare);
    }

    #[test]
    fn a_row_of_refusals_lasts_until_another_answer() {
        let mut history = AnswerHistory::default();
        assert_eq!(history.record(true, NOW).lasts, Duration::ZERO);
        assert_eq!(history.record(true, at(9)).lasts, Duration::from_secs(9));
        assert_eq!(history.record(false, at(10)).lasts, Duration::ZERO);
        assert_eq!(history.record(true, at(11)).lasts, Duration::ZERO);
    }
}
