//! One state of the small world: the store, the queue, who holds what, and what the properties need to remember.
//!
//! Every instant is a number of ticks from now and is forgotten once it no longer matters. Epochs and generations
//! are whether they still match. So the world has finitely many states although its time has no end.

use crate::{
    permit::{Kept, Permit, Stage},
    scenario::{Faults, Scenario},
};

/// Ticks from now: negative is past.
pub type Ticks = i8;

/// The most deliveries, permits, schedulers and edits of any [`Scenario`], and the ticks that a property looks back: those of
/// its longest window, one more, and those that a slot is granted ahead.
pub(crate) const MAX_DELIVERIES: usize = 3;
pub(crate) const MAX_PERMITS: usize = 5;
pub(crate) const MAX_SCHEDULERS: usize = 2;
pub(crate) const MAX_EDITS: u8 = 2;
pub(crate) const MAX_TICKS: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) store: Store,
    pub(crate) queue: Queue,
    /// What Redis would come back with after a stale restore; its permits are in [`Permit::saved`].
    pub(crate) snapshot: Option<Queue>,
    pub(crate) schedulers: [Scheduler; MAX_SCHEDULERS],
    pub(crate) permits: [Permit; MAX_PERMITS],
    /// The producer has committed and not yet woken the job.
    pub(crate) wake_owed: bool,
    /// The versions that are in the store and have not been announced to the queue: bits.
    pub(crate) edits_owed: u8,
    /// Faults that may still happen.
    pub(crate) faults: Faults,
    pub(crate) witness: Witness,
}

/// The store: durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) deliveries: [Delivery; MAX_DELIVERIES],
    /// Of the terms: so many edits were made.
    pub(crate) version: u8,
    /// The last recorded send start.
    pub(crate) last_sent: Ticks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Delivery {
    /// Not yet ingested.
    Absent,
    /// `pending` or `retrying`.
    Waiting {
        due: Ticks,
    },
    /// `delivering`.
    Claimed {
        expires: Ticks,
    },
    Delivered,
}

/// The queue's half of the destination: its job, terms and cursor. Losable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    pub(crate) phase: Phase,
    /// The start of the last slot; the next starts at least one spacing later.
    pub(crate) cursor: Option<Ticks>,
    /// Of the terms that it follows.
    pub(crate) version: u8,
    /// The last run found less than it was allowed to take. Only A fast path asks.
    pub(crate) dry: bool,
    /// Since the generation began.
    pub(crate) generation_age: Ticks,
}

/// Where the job stands, as in the queue's job table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    Scheduled {
        due: Ticks,
        floor: Ticks,
    },
    /// `woken`: the earliest due time of the wakes since the claim. That there was one is what the version tells.
    Leased {
        expires: Ticks,
        woken: Option<Ticks>,
    },
}

/// A scheduler, between the steps of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Scheduler {
    Idle,
    Leased(Lease),
    /// Its claims are permits in [`Stage::Claimed`].
    Planned(Lease, Plan),
    /// Its publication was stale: its claims go back.
    Stale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Lease {
    /// The job has not been claimed again since.
    pub(crate) current: bool,
    /// The queue has lost its state since.
    pub(crate) foreign: bool,
    pub(crate) queued: u8,
    pub(crate) cursor: Option<Ticks>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Plan {
    /// Of the terms that the run has read.
    pub(crate) version: u8,
    /// The last slot's start to begin with, where the lease knew no cursor.
    pub(crate) recovered: Option<Ticks>,
    pub(crate) next: NextRun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum NextRun {
    Paced,
    At(Ticks),
    Stop,
}

/// What happened, as far as a property asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    /// Send starts, by ticks ago.
    pub(crate) sends: [u8; MAX_TICKS],
    /// The newest terms that the queue was told of: those in force, whatever it makes of them.
    pub(crate) told: u8,
    /// The most that terms in force allowed, by ticks ago.
    pub(crate) limits: [u8; MAX_TICKS],
    /// Requests of each delivery that the receiver did not refuse.
    pub(crate) accepted: [u8; MAX_DELIVERIES],
    pub(crate) crashed_after_send: u8,
    pub(crate) permit_used_twice: bool,
    pub(crate) stale_published: bool,
    pub(crate) old_terms_admitted: bool,
}

impl State {
    pub(crate) fn initial(scenario: &Scenario) -> Self {
        Self {
            store: Store { deliveries: [Delivery::Absent; MAX_DELIVERIES], version: 0, last_sent: scenario.long_ago() },
            queue: Queue {
                phase: Phase::Idle,
                cursor: None,
                version: 0,
                dry: false,
                generation_age: scenario.old_age(),
            },
            snapshot: None,
            schedulers: [Scheduler::Idle; MAX_SCHEDULERS],
            permits: [Permit::FREE; MAX_PERMITS],
            wake_owed: false,
            edits_owed: 0,
            faults: scenario.faults,
            witness: Witness {
                sends: [0; MAX_TICKS],
                told: 0,
                limits: [scenario.rate; MAX_TICKS],
                accepted: [0; MAX_DELIVERIES],
                crashed_after_send: 0,
                permit_used_twice: false,
                stale_published: false,
                old_terms_admitted: false,
            },
        }
    }

    /// Names what is interchangeable in one order, so that states that differ in names only are one.
    pub(crate) fn canonical(mut self) -> Self {
        if self.schedulers[0] > self.schedulers[1] {
            self.schedulers.swap(0, 1);
            for permit in &mut self.permits {
                if let Stage::Claimed { scheduler } = &mut permit.stage {
                    *scheduler = 1 - *scheduler;
                }
            }
        }
        for permit in &mut self.permits {
            if permit.stage == Stage::Gone && permit.kept == Kept::NOTHING && permit.saved == Kept::NOTHING {
                *permit = Permit::FREE;
            }
        }
        self.permits.sort_unstable();
        self
    }
}
