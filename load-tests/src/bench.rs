//! The command `bench`: measures all figures on each set-up, topic by topic, and writes them to
//! `load-tests/RESULTS.md`.
//!
//! A figure is meaningful only relative to the speed of the machine at the same time. So every topic measures its own
//! ceiling, and throughput measures one right before each of its figures.

pub(crate) mod figure;
mod machine;
mod markdown;
mod picture;
mod results;
mod rig;
mod run;
pub(crate) mod servers;
mod short;
pub(crate) mod targets;
pub(crate) mod weir;

mod backlog;
mod cost;
mod destinations;
mod edit;
mod fan_out;
mod idle;
mod keys;
mod ladder;
mod latency;
mod limits;
mod overload;
mod recorded;
mod retention;
mod statements;
mod throughput;
mod viewers;

pub(crate) use run::{BenchArgs, run};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The processes of Weir while it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SetUp {
    /// One process with SQLite and a queue of its own
    Embedded,
    /// One process with all roles, over PostgreSQL and Redis
    Scaled,
    /// An API, a scheduler and two workers, each in its own process, over PostgreSQL and Redis: throughput and latency
    Roles,
}

impl SetUp {
    pub(crate) const ALL: [Self; 3] = [Self::Embedded, Self::Scaled, Self::Roles];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Embedded => "Embedded (SQLite)",
            Self::Scaled => "PostgreSQL + Redis, one process",
            Self::Roles => "PostgreSQL + Redis, a process per role",
        }
    }

    /// Whether a topic is measured on this set-up. Separate processes change only the path of a delivery between them.
    /// The cost with many destinations and the limits depend on the same code as in one process.
    pub(crate) fn has(self, topic: Topic) -> bool {
        match topic {
            Topic::Throughput | Topic::Latency => true,
            // One process has SQLite, and nothing else deletes there.
            Topic::Retention => self == Self::Scaled,
            _ => self != Self::Roles,
        }
    }
}

/// The topics, in the order of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Topic {
    /// Events a second, end to end, posted one by one and in batches
    Throughput,
    /// Milliseconds from POST to arrival, at several rates
    Latency,
    /// CPU time for each delivery, depending on the number of active destinations
    Destinations,
    /// CPU time for each delivery, depending on the number of busy limit keys
    Keys,
    /// Events a second over many destinations of one tenant that have a type each
    FanOut,
    /// CPU time for each delivery, depending on the size of a standing backlog
    Backlog,
    /// CPU time and memory of idle destinations
    Idle,
    /// SQL statements and Redis commands for each delivery
    Statements,
    /// From a rate edit to its first effect
    Edit,
    /// How much of each limit is used, and that no limit is exceeded
    Limits,
    /// Throughput at twice the peak rate
    Overload,
    /// The overview with 10,000 destinations, and what its viewers cost
    Viewers,
    /// Old deliveries deleted a second by two processes, while events are posted: on PostgreSQL
    Retention,
}

impl Topic {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Throughput => "Throughput",
            Self::Latency => "Latency",
            Self::Destinations => "Cost per delivery: active destinations",
            Self::Keys => "Cost per delivery: limit keys",
            Self::FanOut => "Fan-out: a type for each destination",
            Self::Backlog => "Cost per delivery: backlog",
            Self::Idle => "Idle destinations",
            Self::Statements => "Statements and commands per delivery",
            Self::Edit => "Rate edits",
            Self::Limits => "Use of limits",
            Self::Overload => "Overload",
            Self::Viewers => "Viewers of the dashboard",
            Self::Retention => "Retention on two processes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separate_roles_are_measured_for_throughput_and_latency_only() {
        let topics = |set_up: SetUp| Topic::value_variants().iter().copied().filter(|topic| set_up.has(*topic)).count();
        assert_eq!(SetUp::ALL.map(topics), [12, 13, 2]);
        assert!(SetUp::Roles.has(Topic::Throughput) && SetUp::Roles.has(Topic::Latency));
    }
}
