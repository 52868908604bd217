//! A permit: its claim, its stage, and its record in the queue.

use crate::state::Ticks;

/// A claim and its permit, until no process and no queue knows of it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Permit {
    pub(crate) stage: Stage,
    pub(crate) delivery: u8,
    /// The delivery is still claimed by this claim: the claim epochs match.
    pub(crate) holds_claim: bool,
    /// When the claim and its permit expire.
    pub(crate) expires: Ticks,
    /// The slot that it was granted.
    pub(crate) slot: Option<Ticks>,
    /// Its slot is the last one that was granted, and not used.
    pub(crate) has_last_slot: bool,
    /// When a send started with this permit.
    pub(crate) sent: Option<Ticks>,
    /// The permit's record in the queue.
    pub(crate) in_queue: QueueView,
    /// The permit's record in the snapshot of the queue.
    pub(crate) in_snapshot: QueueView,
}

/// The holder of a permit, and the next step.
///
/// ```text
/// FastPathClaimed ──▶ Declined ──▶ Waking ──▶ Gone
///    └──────────┐
/// Claimed ──▶ Published ──▶ Taken ──▶ Sent ──▶ Answered ──▶ Waking ──▶ Gone
///    └─ stale ──▶ Gone        └──▶ Withdrawn ──▶ Released ──▶ Gone
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// A scheduler has claimed the delivery.
    Claimed {
        scheduler: u8,
    },
    /// A producer has stored the delivery as claimed, under the terms of this version, and has not asked the queue to
    /// admit it.
    FastPathClaimed {
        version: u8,
    },
    /// The queue has not admitted the delivery. The producer's process releases the claim.
    Declined,
    /// The permit is in the delivery queue.
    Published,
    /// A worker has the permit and is ready to send: it asks for a slot, and waits for the start of the granted slot.
    Taken,
    Sent,
    /// The answer has arrived and is settled in the queue, but not yet recorded in the store.
    Answered {
        refused: bool,
    },
    /// The delivery is waiting again, and the job is not yet woken.
    Waking,
    /// The permit must not be sent: its claim will be released.
    Withdrawn,
    /// The claim is released, and the queue does not know it yet.
    Released,
    /// No process holds the permit.
    Gone,
}

/// The queue's record of a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueueView {
    pub(crate) entry: Entry,
    pub(crate) set: Set,
}

/// The permit's entry in the delivery queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Entry {
    None,
    Ready,
    /// The entry is taken and not acknowledged.
    Pending,
}

/// The set of the destination's permits to which the permit belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Set {
    None,
    Queued,
    InFlight,
}

impl QueueView {
    pub(crate) const ABSENT: Self = Self { entry: Entry::None, set: Set::None };
}

impl Permit {
    pub(crate) const FREE: Self = Self {
        stage: Stage::Gone,
        delivery: 0,
        holds_claim: false,
        expires: 0,
        slot: None,
        has_last_slot: false,
        sent: None,
        in_queue: QueueView::ABSENT,
        in_snapshot: QueueView::ABSENT,
    };
}
