//! Faults of Weir itself: why a start is late that every limit allows.

use strum::{EnumIter, IntoEnumIterator as _, IntoStaticStr};

use crate::Timestamp;

/// Why Weir does not send although the limits allow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Fault {
    /// Redis does not answer.
    QueueAway,
    /// The database does not answer, or answers slowly.
    StoreSlow,
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

    /// In words, as the end of a sentence.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::QueueAway => "Redis does not answer",
            Self::StoreSlow => "the database does not answer, or answers slowly",
            Self::NoWorker => "no worker runs",
            Self::NoScheduler => "no scheduler runs",
            Self::WorkersFull => "the workers have no free places",
            Self::NotStarted => "workers hold its permits and start none of them",
            Self::NotPublished => "the schedulers publish nothing for it",
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
