//! The bench: the whole table of figures on both set-ups, topic by topic, written to `load-tests/RESULTS.md`.
//!
//! Figures are worth something only beside what the machine could do at the same time, so every topic measures its own ceiling,
//! and throughput measures one right beside each of its figures.

mod figure;
mod machine;
mod markdown;
mod picture;
mod results;
mod rig;
mod run;
mod servers;
mod short;
mod targets;

mod backlog;
mod destinations;
mod edit;
mod idle;
mod ladder;
mod latency;
mod limits;
mod overload;
mod recorded;
mod statements;
mod throughput;

pub(crate) use run::{BenchArgs, run};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How Weir runs while it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SetUp {
    /// One process with SQLite and a queue of its own
    Embedded,
    /// One process with all roles, over PostgreSQL and Redis
    Scaled,
}

impl SetUp {
    pub(crate) const ALL: [Self; 2] = [Self::Embedded, Self::Scaled];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Embedded => "Embedded (SQLite)",
            Self::Scaled => "PostgreSQL + Redis",
        }
    }
}

/// What is measured, in the order of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Topic {
    /// Events a second, end to end, posted one by one and in batches
    Throughput,
    /// Milliseconds from POST to arrival, at several rates
    Latency,
    /// CPU time for each delivery, against the number of active destinations
    Destinations,
    /// CPU time for each delivery, against a standing backlog
    Backlog,
    /// Destinations with nothing to do
    Idle,
    /// SQL statements and Redis commands for each delivery
    Statements,
    /// From a rate edit to its first effect
    Edit,
    /// How much of each limit is used, and never more
    Limits,
    /// Twice as much as goes
    Overload,
}

impl Topic {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Throughput => "Throughput",
            Self::Latency => "Latency",
            Self::Destinations => "Cost per delivery: active destinations",
            Self::Backlog => "Cost per delivery: backlog",
            Self::Idle => "Idle destinations",
            Self::Statements => "Statements and commands per delivery",
            Self::Edit => "Rate edits",
            Self::Limits => "Use of limits",
            Self::Overload => "Overload",
        }
    }
}
