//! The complete record of a run, without judgement: every event, arrival, edit and fault.

use std::{sync::Arc, time::Duration};

use weir_core::{EventId, RateLimits, Timestamp, audit::AuditReport};

use serde_json::Value;

use crate::scenario::{Expect, ExpectShared, KeyLimits};

/// The record of one run. Destinations are numbered across all groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recording {
    pub(crate) groups: Vec<Group>,
    pub(crate) destinations: Vec<Destination>,
    pub(crate) limit_groups: Vec<LimitGroup>,
    /// Indexed by the event's number, which is in its data.
    pub(crate) events: Vec<Event>,
    pub(crate) streams: Vec<Stream>,
    /// In the order of time.
    pub(crate) calls: Vec<Call>,
    /// The limit keys that have arrived.
    pub(crate) limit_keys: Vec<String>,
    /// For each destination, in the order of `at`.
    pub(crate) arrivals: Vec<Vec<Arrival>>,
    /// Requests to paths of no destination.
    pub(crate) unknown_paths: u64,
    pub(crate) faults: Vec<Fault>,
    pub(crate) marks: Vec<Mark>,
    /// The rate that the machine can take, measured before a run that overloads it.
    pub(crate) capacity_per_s: Option<f64>,
    pub(crate) began: Timestamp,
    /// When the last post was answered or given up.
    pub(crate) published: Timestamp,
    /// When no destination that must drain had a delivery waiting or in flight.
    pub(crate) drained: Option<Timestamp>,
    pub(crate) ended: Timestamp,
    /// Permits in the queue of a Weir that had become idle.
    pub(crate) permits_left: u64,
    /// Roles of processes that exited by themselves.
    pub(crate) died: Vec<&'static str>,
}

#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) expect: Expect,
    pub(crate) pauses: Vec<Pause>,
    /// Events have coalesce keys, so the last event of a key may replace earlier ones.
    pub(crate) coalesces: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Destination {
    pub(crate) group: usize,
    /// All limits in the order of their edits, with the initial ones first.
    pub(crate) limits: Vec<LimitChange>,
    /// Its limit groups in the order of its moves, with the initial one first.
    pub(crate) homes: Vec<Home>,
    /// The limits of its keys in the order of their edits; empty without keys.
    pub(crate) key_limits: Vec<KeyLimitChange>,
    /// The weight of its turns in a limit group.
    pub(crate) weight: u32,
    /// Weir's own audit of its recorded send starts.
    pub(crate) audit: Option<AuditReport>,
}

impl Destination {
    /// In no limit group, with these limits and without an audit.
    pub(crate) fn alone(group: usize, limits: LimitChange) -> Self {
        Self { group, limits: vec![limits], homes: Vec::new(), key_limits: Vec::new(), weight: 1, audit: None }
    }
}

/// A limit group: a budget that several destinations share.
#[derive(Debug, Clone)]
pub(crate) struct LimitGroup {
    pub(crate) name: String,
    pub(crate) expect: ExpectShared,
    pub(crate) limits: Vec<LimitChange>,
    pub(crate) audit: Option<AuditReport>,
}

/// A move of a destination into a limit group, or out of all. It acts at some instant between the request and the end of
/// the grace after its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Home {
    pub(crate) sent: Timestamp,
    pub(crate) answered: Timestamp,
    pub(crate) limit_group: Option<usize>,
}

/// An edit of limits. It binds at some instant between the request and the end of the grace after its answer.
#[derive(Debug, Clone)]
pub(crate) struct LimitChange {
    pub(crate) sent: Timestamp,
    pub(crate) answered: Timestamp,
    pub(crate) limits: RateLimits,
}

/// An edit of the limits of keys, with all settings after it.
#[derive(Debug, Clone)]
pub(crate) struct KeyLimitChange {
    pub(crate) sent: Timestamp,
    pub(crate) answered: Timestamp,
    pub(crate) settings: Value,
    pub(crate) limits: KeyLimits,
}

/// From the answer to the pause until the request to resume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// The groups of its stream.
    pub(crate) groups: Arc<[usize]>,
    /// `None`: every destination of the groups.
    pub(crate) destination: Option<u32>,
    /// The number of its ordering key or coalesce key.
    pub(crate) key: Option<u32>,
    pub(crate) cost: u32,
    /// When it was meant to be posted.
    pub(crate) meant: Timestamp,
    pub(crate) outcome: Outcome,
}

/// The events of one stream: `count` of them, beginning with the number `first`.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) done_within_s: Option<f64>,
}

/// What a caller outside Weir did with a slot of a limit group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) limit_group: usize,
    pub(crate) at: Timestamp,
    pub(crate) outcome: CallOutcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    Made,
    /// The caller came so late that the slot had ended.
    TooLate,
    /// There was no slot in the time that the caller waited.
    NoSlot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Accepted {
        id: EventId,
        deliveries: u32,
        at: Timestamp,
    },
    /// With this status.
    Refused(u16),
    /// Posted and never answered. It may have been stored.
    Unknown,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) destination: u32,
    /// The number in the event's data.
    pub(crate) event: u64,
    /// The number of its limit key, in [`Recording::limit_keys`].
    pub(crate) limit_key: Option<u32>,
    pub(crate) id: Option<EventId>,
    pub(crate) at: Timestamp,
    /// How much earlier than `at` it may have been sent, because of a stall.
    pub(crate) stalled: Duration,
    /// `None`: the sender disconnected before the answer.
    pub(crate) answered: Option<Answered>,
}

/// An answer, and when it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) at: Timestamp,
}

/// A fault that may lose the records of the latest sends. It happened at some instant between the two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

/// A step that the charts show.
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
    /// Sorts arrivals by destination. `arrivals` are in the order of time.
    pub(crate) fn sort_in(&mut self, arrivals: Vec<Arrival>) {
        self.arrivals = vec![Vec::new(); self.destinations.len()];
        for arrival in arrivals {
            match self.arrivals.get_mut(arrival.destination as usize) {
                Some(at) => at.push(arrival),
                None => self.unknown_paths += 1,
            }
        }
    }

    /// The arrivals at a destination in the order of time.
    pub(crate) fn at(&self, destination: u32) -> &[Arrival] {
        &self.arrivals[destination as usize]
    }

    /// The calls that callers made under a limit group, in the order of time.
    pub(crate) fn calls_of(&self, limit_group: usize) -> impl Iterator<Item = &Call> {
        let is_made = move |call: &&Call| call.limit_group == limit_group && call.outcome == CallOutcome::Made;
        self.calls.iter().filter(is_made)
    }

    /// The cost of the event that arrived: 1 if it was never posted.
    pub(crate) fn cost_of(&self, arrival: &Arrival) -> u32 {
        self.events.get(arrival.event as usize).map_or(1, |event| event.cost)
    }

    /// The numbers of a group's destinations.
    pub(crate) fn of_group(&self, group: usize) -> impl Iterator<Item = u32> + Clone + '_ {
        (0..).zip(&self.destinations).filter(move |(_, destination)| destination.group == group).map(|(n, _)| n)
    }
}
