//! One state of the small world: the store, the queue, the schedulers, the permits, and the history that the properties
//! need.
//!
//! Every instant is a number of ticks from now and is forgotten when it no longer matters. Epochs and generations are
//! modelled only as matching or not. So the world has finitely many states although time has no end.

use crate::{
    permit::{Permit, QueueView, Stage},
    scenario::{Faults, Scenario},
};

/// Ticks from now; negative values are in the past.
pub type Ticks = i8;

/// The maximum numbers of deliveries, permits, schedulers and edits in any [`Scenario`]. `MAX_TICKS` is the number of
/// ticks that the properties look back: the longest window, one tick more, and the ticks that a slot is granted ahead.
pub(crate) const MAX_DELIVERIES: usize = 3;
pub(crate) const MAX_PERMITS: usize = 5;
pub(crate) const MAX_SCHEDULERS: usize = 2;
pub(crate) const MAX_EDITS: u8 = 2;
pub(crate) const MAX_TICKS: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) store: Store,
    pub(crate) queue: Queue,
    /// The state that a stale restore of Redis brings back. Its permits are in [`Permit::in_snapshot`].
    pub(crate) snapshot: Option<Queue>,
    pub(crate) schedulers: [Scheduler; MAX_SCHEDULERS],
    pub(crate) permits: [Permit; MAX_PERMITS],
    /// The producer has committed and not yet woken the job.
    pub(crate) wake_owed: bool,
    /// The versions in the store that have not been announced to the queue, as bits.
    pub(crate) edits_owed: u8,
    /// Faults that may still happen.
    pub(crate) faults: Faults,
    pub(crate) witness: Witness,
}

/// The store: durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) deliveries: [Delivery; MAX_DELIVERIES],
    /// The version of the terms: the number of edits.
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

/// The queue's half of the destination: its job, terms and cursor. It can be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    pub(crate) phase: Phase,
    /// The start of the last slot; the next starts at least one spacing later.
    pub(crate) cursor: Option<Ticks>,
    /// The cursor before the last slot, while this slot may be given back.
    pub(crate) before_last: Option<Ticks>,
    /// The version of the terms that the queue applies.
    pub(crate) version: u8,
    /// The last run found fewer due deliveries than it was allowed to claim. Only the fast path uses this.
    pub(crate) backlog_ended: bool,
    /// The time since the generation began.
    pub(crate) generation_age: Ticks,
}

/// The phase of the job, as in the queue's job table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    Scheduled {
        due: Ticks,
        floor: Ticks,
    },
    /// `woken`: the earliest due time of the wakes since the claim; `None` when the wake version has not changed.
    Leased {
        expires: Ticks,
        woken: Option<Ticks>,
    },
}

/// A scheduler, between the steps of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Scheduler {
    Idle,
    Leased(JobLease),
    /// The run has claimed deliveries: its permits are in [`Stage::Claimed`].
    Planned(JobLease, Plan),
    /// The publication was stale, and the claims will be released.
    Stale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct JobLease {
    /// The job has not been claimed again since this lease.
    pub(crate) current: bool,
    /// The queue has lost its state since this lease.
    pub(crate) foreign: bool,
    pub(crate) queued: u8,
    pub(crate) cursor: Option<Ticks>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Plan {
    /// The version of the terms that the run has read.
    pub(crate) version: u8,
    /// The recovered start of the last slot, when the lease knew no cursor.
    pub(crate) recovered: Option<Ticks>,
    pub(crate) next: NextRun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum NextRun {
    Paced,
    At(Ticks),
    Stop,
}

/// The history that the properties need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    /// Send starts, by ticks ago.
    pub(crate) sends: [u8; MAX_TICKS],
    /// The newest version that was announced to the queue. These terms are in force, even if the queue ignores them.
    pub(crate) announced: u8,
    /// The most that terms in force allowed, by ticks ago.
    pub(crate) limits: [u8; MAX_TICKS],
    /// The requests of each delivery that the receiver did not refuse.
    pub(crate) accepted: [u8; MAX_DELIVERIES],
    pub(crate) crashed_after_send: u8,
    pub(crate) permit_used_twice: bool,
    pub(crate) stale_published: bool,
    pub(crate) admitted_under_old_terms: bool,
}

impl State {
    pub(crate) fn initial(scenario: &Scenario) -> Self {
        Self {
            // No limit depends on a send that was so long ago.
            store: Store { deliveries: [Delivery::Absent; MAX_DELIVERIES], version: 0, last_sent: scenario.long_ago() },
            queue: Queue {
                phase: Phase::Idle,
                // No cursor yet: the first run recovers it from the store.
                cursor: None,
                before_last: None,
                version: 0,
                backlog_ended: false,
                // No send of an earlier generation can matter any more.
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
                announced: 0,
                // The first terms have been in force as long as any property looks back.
                limits: [scenario.rate; MAX_TICKS],
                accepted: [0; MAX_DELIVERIES],
                crashed_after_send: 0,
                permit_used_twice: false,
                stale_published: false,
                admitted_under_old_terms: false,
            },
        }
    }

    /// Sorts interchangeable schedulers and permits, so that states which differ only in their order are equal.
    pub(crate) fn canonical(mut self) -> Self {
        // Sort the two schedulers. Claimed permits contain the index of their scheduler, so the indices are swapped
        // too.
        if self.schedulers[0] > self.schedulers[1] {
            self.schedulers.swap(0, 1);
            for permit in &mut self.permits {
                if let Stage::Claimed { scheduler } = &mut permit.stage {
                    *scheduler = 1 - *scheduler;
                }
            }
        }
        for permit in &mut self.permits {
            // A permit that neither a process nor a queue knows any more is a free place.
            if permit.stage == Stage::Gone
                && permit.in_queue == QueueView::ABSENT
                && permit.in_snapshot == QueueView::ABSENT
            {
                *permit = Permit::FREE;
            }
        }
        self.permits.sort_unstable();
        self
    }
}
