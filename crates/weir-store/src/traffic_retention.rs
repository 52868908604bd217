//! The retention of traffic: old rows are added up to longer buckets, and very old ones are deleted, in short steps.
//!
//! A store reads the first row that may be old enough. This file decides what the step does with it, and the store runs
//! the statements.

use std::time::Duration;

use weir_core::Timestamp;

use crate::{HISTOGRAM_MINUTES_KEPT, HOUR, MINUTE, TRAFFIC_KEPT, traffic::HISTOGRAMS_KEPT};

/// A kind of old rows that are added up to longer buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollUp {
    pub table: &'static str,
    /// The column of `traffic_rolled_up` with the instant before which all rows are added up.
    pub mark: &'static str,
    pub bucket: Duration,
    kept: Duration,
    /// How much of the time one step adds up. So a step reads only a few rows for each destination.
    step: Duration,
}

/// What one step of a [`RollUp`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollUpStep {
    /// The rows of this interval, `from` included and `to` excluded, are added up. `None` if no row is old enough.
    pub interval: Option<(Timestamp, Timestamp)>,
    /// Then all rows before this instant are added up, and the next step begins here.
    pub mark: Timestamp,
}

impl RollUp {
    pub const ALL: [Self; 3] = [
        Self { table: "traffic", mark: "minutes", bucket: MINUTE, kept: TRAFFIC_KEPT[0], step: MINUTE },
        Self { table: "traffic", mark: "hours", bucket: HOUR, kept: TRAFFIC_KEPT[1], step: Duration::from_secs(600) },
        Self {
            table: "traffic_histograms",
            mark: "histograms",
            bucket: HOUR,
            kept: HISTOGRAM_MINUTES_KEPT,
            step: MINUTE,
        },
    ];

    /// Rows before this instant are added up now. A whole bucket, so that none is added up in part.
    pub fn cutoff(&self, now: Timestamp) -> Timestamp {
        now.before(self.kept).floor(self.bucket)
    }

    /// The step that begins with `first`, the first row before the cutoff that is not added up yet.
    pub fn step(&self, first: Option<Timestamp>, now: Timestamp) -> RollUpStep {
        let Some(first) = first else {
            return RollUpStep { interval: None, mark: self.cutoff(now) };
        };
        let from = first.floor(self.step);
        let to = from + self.step;
        RollUpStep { interval: Some((from, to)), mark: to }
    }
}

/// A table whose oldest rows are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpiringTable {
    pub table: &'static str,
    kept: Duration,
}

impl ExpiringTable {
    pub const ALL: [Self; 2] =
        [Self { table: "traffic", kept: TRAFFIC_KEPT[2] }, Self { table: "traffic_histograms", kept: HISTOGRAMS_KEPT }];

    /// The instant before which one step deletes all rows, if `first` is the first row of the table: at most an hour of
    /// rows. `None` if no row is old enough.
    pub fn step(&self, first: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        let cutoff = now.before(self.kept);
        first.filter(|first| *first < cutoff).map(|first| (first + HOUR).min(cutoff))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    #[test]
    fn a_step_adds_up_the_interval_of_the_first_row() {
        let [minutes, hours, histograms] = RollUp::ALL;
        let first = Timestamp::from_secs(3_600 * 1_000 + 1_230);
        for (roll_up, from, to) in [(minutes, 1_200, 1_260), (hours, 1_200, 1_800), (histograms, 1_200, 1_260)] {
            let [from, to] = [from, to].map(|seconds| Timestamp::from_secs(3_600 * 1_000 + seconds));
            let expected = RollUpStep { interval: Some((from, to)), mark: to };
            assert_eq!(roll_up.step(Some(first), NOW), expected, "{}", roll_up.mark);
        }
    }

    #[test]
    fn a_step_without_a_row_moves_the_mark_to_the_cutoff() {
        for roll_up in RollUp::ALL {
            let cutoff = roll_up.cutoff(NOW);
            assert_eq!(roll_up.step(None, NOW), RollUpStep { interval: None, mark: cutoff });
            assert_eq!(cutoff, cutoff.floor(roll_up.bucket));
        }
    }

    #[test]
    fn a_step_deletes_an_hour_of_rows_and_none_that_are_kept() {
        for table in ExpiringTable::ALL {
            let cutoff = NOW.before(table.kept);
            assert_eq!(table.step(None, NOW), None);
            assert_eq!(table.step(Some(cutoff), NOW), None, "{}", table.table);
            let old = cutoff - Duration::from_secs(7_200);
            assert_eq!(table.step(Some(old), NOW), Some(old + HOUR));
            assert_eq!(table.step(Some(cutoff - MINUTE), NOW), Some(cutoff));
        }
    }
}
