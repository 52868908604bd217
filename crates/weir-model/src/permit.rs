//! A permit: the claim it is made of, who holds it, and what the queue keeps of it.

use crate::state::Ticks;

/// A claim, and the permit made of it, until nobody knows of it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Permit {
    pub(crate) stage: Stage,
    pub(crate) delivery: u8,
    /// The store's claim is still this one: the claim epochs match.
    pub(crate) holds_claim: bool,
    /// When the claim, and with it the permit, expires.
    pub(crate) expires: Ticks,
    /// The slot that it was granted.
    pub(crate) slot: Option<Ticks>,
    /// A send has started on it, that long ago.
    pub(crate) sent: Option<Ticks>,
    /// What the queue knows of it.
    pub(crate) kept: Kept,
    /// What the snapshot knows of it.
    pub(crate) saved: Kept,
}

/// Who holds a permit and what comes next.
///
/// ```text
/// Boarded ──▶ Declined ──▶ Waking ──▶ Gone
///    └──────────┐
/// Claimed ──▶ Published ──▶ Taken ──▶ Sent ──▶ Answered ──▶ Waking ──▶ Gone
///    └─ stale ──▶ Gone        └──▶ Withdrawn ──▶ Released ──▶ Gone
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// A scheduler has it.
    Claimed {
        scheduler: u8,
    },
    /// Stored as claimed by a producer, which has read these terms and not asked the queue to admit it.
    Boarded {
        version: u8,
    },
    /// Not admitted: the producer's process has it, and the claim goes back.
    Declined,
    /// In the delivery queue.
    Published,
    /// A worker has it and stands ready: it asks for a slot, and waits for the start of the one that it was granted.
    Taken,
    Sent,
    /// The answer is in and the queue has heard of it; the store has not.
    Answered {
        refused: bool,
    },
    /// The delivery waits again and the job is not yet woken.
    Waking,
    /// Not to be sent: the claim goes back.
    Withdrawn,
    /// The claim has gone back and the queue has not heard of it.
    Released,
    /// Nobody holds it.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Kept {
    pub(crate) entry: Entry,
    pub(crate) set: Set,
}

/// The permit's entry in the delivery queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Entry {
    None,
    Ready,
    /// Taken and not acknowledged.
    Pending,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Set {
    None,
    Queued,
    InFlight,
}

impl Kept {
    pub(crate) const NOTHING: Self = Self { entry: Entry::None, set: Set::None };
}

impl Permit {
    pub(crate) const FREE: Self = Self {
        stage: Stage::Gone,
        delivery: 0,
        holds_claim: false,
        expires: 0,
        slot: None,
        sent: None,
        kept: Kept::NOTHING,
        saved: Kept::NOTHING,
    };
}
