//! A row of the overview.

use std::sync::Arc;

use weir_core::{Condition, Destination, Timestamp};

use crate::figures::Figures;

/// A destination with its figures.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) destination: Arc<Destination>,
    pub(crate) figures: Figures,
}

/// The sums over some destinations.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Totals {
    pub(crate) destinations: u64,
    pub(crate) backlog: u64,
    pub(crate) undelivered: u64,
    pub(crate) achieved_per_s: f64,
    pub(crate) arrivals_per_s: f64,
    pub(crate) paused: u64,
    pub(crate) held: u64,
    pub(crate) broken: u64,
    pub(crate) never_drain: u64,
}

/// What a list can be limited to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has a backlog.
    Waiting,
    /// Its backlog grows: more arrives than may be sent.
    NeverDrains,
    In(Condition),
}

impl Row {
    pub(crate) fn is(&self, standing: Standing, now: Timestamp) -> bool {
        match standing {
            Standing::Waiting => self.figures.counts.waiting() > 0,
            Standing::NeverDrains => self.figures.counts.waiting() > 0 && self.figures.drains == Some(false),
            Standing::In(Condition::Held) if self.figures.share.is_some_and(|share| share.is_held(now)) => true,
            Standing::In(condition) => self.destination.is(condition, now),
        }
    }
}

impl Totals {
    pub(crate) fn of<'a>(rows: impl IntoIterator<Item = &'a Row>, now: Timestamp) -> Self {
        rows.into_iter().fold(Self::default(), |sum, row| {
            let figures = &row.figures;
            let one_if = |standing| u64::from(row.is(standing, now));
            Self {
                destinations: sum.destinations + 1,
                backlog: sum.backlog + figures.counts.waiting(),
                undelivered: sum.undelivered + figures.counts.dead_letters(),
                achieved_per_s: sum.achieved_per_s + figures.achieved_per_s,
                arrivals_per_s: sum.arrivals_per_s + figures.arrivals_per_s,
                paused: sum.paused + one_if(Standing::In(Condition::Paused)),
                held: sum.held + one_if(Standing::In(Condition::Held)),
                broken: sum.broken + one_if(Standing::In(Condition::Breaker)),
                never_drain: sum.never_drain + one_if(Standing::NeverDrains),
            }
        })
    }
}
