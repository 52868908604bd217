//! What happened in a run, complete and without judgement: every event, every arrival, every edit, every fault.

use std::{sync::Arc, time::Duration};

use weir_core::{EventId, RateLimits, Timestamp, audit::AuditReport};

use crate::scenario::Expect;

/// The evidence of one run. Destinations are known by their number, through all groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recording {
    pub(crate) groups: Vec<Group>,
    pub(crate) destinations: Vec<Destination>,
    /// By their number, which is in their data.
    pub(crate) events: Vec<Event>,
    /// Of each destination, in the order of `at`.
    pub(crate) arrivals: Vec<Vec<Arrival>>,
    /// Requests to paths that are no destination's.
    pub(crate) unknown_paths: u64,
    pub(crate) faults: Vec<Fault>,
    pub(crate) marks: Vec<Mark>,
    /// Events a second that the machine was measured to take before, where it is overloaded.
    pub(crate) capacity_per_s: Option<f64>,
    pub(crate) began: Timestamp,
    /// When the last request of the publisher was answered or given up.
    pub(crate) published: Timestamp,
    /// When no destination that is to be drained had anything waiting or under way.
    pub(crate) drained: Option<Timestamp>,
    pub(crate) ended: Timestamp,
    /// What was left in the queue of a Weir that had nothing to do any more.
    pub(crate) permits_left: u64,
    /// Roles whose process ended without having been told to.
    pub(crate) died: Vec<&'static str>,
}

#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) expect: Expect,
    pub(crate) pauses: Vec<Pause>,
    /// The last event of a key stands for those before it.
    pub(crate) coalesces: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Destination {
    pub(crate) group: usize,
    /// The limits, from the first on.
    pub(crate) limits: Vec<LimitChange>,
    /// What Weir itself says of its recorded send starts.
    pub(crate) audit: Option<AuditReport>,
}

/// An edit of limits: in force at some instant between the request and its answer, and the grace after it.
#[derive(Debug, Clone)]
pub(crate) struct LimitChange {
    pub(crate) sent: Timestamp,
    pub(crate) answered: Timestamp,
    pub(crate) limits: RateLimits,
}

/// From the answer to the pause until the request to resume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// Those of its stream.
    pub(crate) groups: Arc<[usize]>,
    /// `None`: every destination of the groups.
    pub(crate) destination: Option<u32>,
    /// Which of the keys of its group, for order or coalescing.
    pub(crate) key: Option<u32>,
    /// When it was to be posted.
    pub(crate) meant: Timestamp,
    pub(crate) outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Accepted {
        id: EventId,
        deliveries: u32,
        at: Timestamp,
    },
    /// By this status.
    Refused(u16),
    /// Posted, and never answered: it may have been stored.
    Unknown,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) destination: u32,
    /// The number in the event's data.
    pub(crate) event: u64,
    pub(crate) id: Option<EventId>,
    pub(crate) at: Timestamp,
    /// How much later than it was sent it may have come, because nothing ran.
    pub(crate) stalled: Duration,
    /// `None`: the sender went away before.
    pub(crate) answered: Option<Answered>,
}

/// An answer, and when it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) at: Timestamp,
}

/// Something that takes the records of what was sent just before, from when it may have happened until it had.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

/// Something done that the pictures show.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    pub(crate) what: String,
    pub(crate) at: Timestamp,
}

impl Arrival {
    pub(crate) fn is_success(&self) -> bool {
        self.succeeded_at().is_some()
    }

    pub(crate) fn succeeded_at(&self) -> Option<Timestamp> {
        self.answered.filter(|answered| (200..300).contains(&answered.status)).map(|answered| answered.at)
    }
}

impl Recording {
    /// Keeps what arrived by destination. `arrivals` come in their order.
    pub(crate) fn sort_in(&mut self, arrivals: Vec<Arrival>) {
        self.arrivals = vec![Vec::new(); self.destinations.len()];
        for arrival in arrivals {
            match self.arrivals.get_mut(arrival.destination as usize) {
                Some(at) => at.push(arrival),
                None => self.unknown_paths += 1,
            }
        }
    }

    /// What arrived at a destination, in its order.
    pub(crate) fn at(&self, destination: u32) -> &[Arrival] {
        &self.arrivals[destination as usize]
    }

    /// The numbers of a group's destinations.
    pub(crate) fn of_group(&self, group: usize) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.destinations).filter(move |(_, destination)| destination.group == group).map(|(n, _)| n)
    }
}
