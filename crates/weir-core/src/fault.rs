//! Faults of Weir itself: why a start is late that every limit allows.

use strum::{EnumIter, IntoEnumIterator as _, IntoStaticStr};

use crate::Timestamp;

/// Why Weir does not send although the limits allow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Fault {
    /// Redis does not answer, or refuses calls.
    QueueAway,
    /// The database does not answer, or answers slowly.
    StoreSlow,
    /// The database answers and takes no writes.
    StoreUnwritable,
    /// No worker runs.
    NoWorker,
    /// No scheduler runs.
    NoScheduler,
    /// Workers run, and no place is free for further attempts.
    WorkersFull,
    /// Workers hold permits and start nothing.
    NotStarted,
    /// Schedulers run, and publish nothing for the destination.
    NotPublished,
}

impl Fault {
    /// The name in JSON and in the label of metrics.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// Every fault.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::iter()
    }

    /// The fault with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|fault| fault.as_str() == name)
    }

    /// Whether it is a fault of the installation, which stops many destinations at once.
    pub const fn is_of_installation(self) -> bool {
        !matches!(self, Self::NotStarted | Self::NotPublished)
    }

    /// In words, as the end of a sentence.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::QueueAway => "Redis does not answer, or refuses calls",
            Self::StoreSlow => "the database does not answer, or answers slowly",
            Self::StoreUnwritable => "the database takes no writes",
            Self::NoWorker => "no worker runs",
            Self::NoScheduler => "no scheduler runs",
            Self::WorkersFull => "the workers take nothing: they have no free places, or use another Redis or prefix",
            Self::NotStarted => "workers hold its permits and start none of them",
            Self::NotPublished => "the schedulers publish nothing for it",
        }
    }
}

/// A fault of the installation that stalls destinations, or lets no event in. One alert tells of it, however many they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    pub fault: Fault,
    /// Since when the first of them has been stalled, or since when no event is accepted.
    pub since: Timestamp,
    /// What keeps the database from writing: then no event is accepted, whether or not a destination waits.
    pub obstacle: Option<&'static str>,
}

impl Outage {
    /// Why, as a sentence without its end.
    pub fn reason(&self) -> String {
        match self.obstacle {
            Some(obstacle) => format!("the database takes no writes, because {obstacle}: no event is accepted"),
            None => self.fault.sentence().to_owned(),
        }
    }
}

/// A start that is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Late {
    /// Since when the limits have allowed it.
    pub since: Timestamp,
    pub fault: Fault,
}
