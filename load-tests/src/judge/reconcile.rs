//! Each event at each of its destinations: did it arrive, once, in its turn, and was it owed?

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use weir_core::Timestamp;

use crate::recording::{Arrival, Event, Fault, Outcome, Recording};

/// From a send to the commit of its record, on a busy machine: a fault may take the records of that long before it.
const UNRECORDED: Duration = Duration::from_millis(1_500);
/// What was sent before a fault may be read after it.
const ON_ITS_WAY: Duration = Duration::from_millis(100);

/// Events are known by their number, destinations by theirs.
#[derive(Debug, Default)]
pub(crate) struct Reconciled {
    /// Deliveries owed to destinations that answer.
    pub(crate) owed: u64,
    pub(crate) lost: Vec<(u64, u32)>,
    pub(crate) duplicates: Vec<Duplicate>,
    pub(crate) out_of_order: Vec<(u64, u32)>,
    /// In words.
    pub(crate) strangers: Vec<String>,
    /// Events that were accepted for fewer destinations than there are, in words.
    pub(crate) short: Vec<String>,
    /// Of each destination, when each of its events first arrived and was answered well.
    pub(crate) seen: Vec<HashMap<u64, Seen>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) first: Timestamp,
    pub(crate) success: Option<Timestamp>,
}

/// An arrival after one that had been answered well.
#[derive(Debug)]
pub(crate) struct Duplicate {
    pub(crate) event: u64,
    pub(crate) destination: u32,
    /// A fault may have taken the record of the one before.
    pub(crate) is_explained: bool,
}

pub(crate) fn reconcile(recording: &Recording) -> Reconciled {
    let mut reconciled = Reconciled { seen: vec![HashMap::new(); recording.destinations.len()], ..Default::default() };
    for number in (0..).take(recording.destinations.len()) {
        arrivals_at(recording, number, &mut reconciled);
        order_at(recording, number, &mut reconciled);
    }
    owed(recording, &mut reconciled);
    reconciled
}

fn arrivals_at(recording: &Recording, number: u32, reconciled: &mut Reconciled) {
    for arrival in recording.at(number) {
        if let Some(reason) = stranger(recording, arrival) {
            reconciled.strangers.push(reason);
            continue;
        }
        let seen = reconciled.seen[number as usize].entry(arrival.event);
        let seen = seen.or_insert(Seen { first: arrival.at, success: None });
        if let Some(success) = seen.success {
            let explains = |fault: &Fault| fault.from - UNRECORDED <= success && success <= fault.until + ON_ITS_WAY;
            reconciled.duplicates.push(Duplicate {
                event: arrival.event,
                destination: number,
                is_explained: recording.faults.iter().any(explains),
            });
        } else if arrival.is_success() {
            seen.success = Some(arrival.at);
        }
    }
}

/// Why an arrival is none that was owed.
fn stranger(recording: &Recording, arrival: &Arrival) -> Option<String> {
    let Some(event) = recording.events.get(arrival.event as usize) else {
        return Some(format!("event {} was never posted", arrival.event));
    };
    if !is_for(recording, event, arrival.destination) {
        return Some(format!("event {} was for somebody else", arrival.event));
    }
    match event.outcome {
        Outcome::Refused(status) => Some(format!("event {} was refused with {status}", arrival.event)),
        Outcome::Accepted { id, .. } if arrival.id != Some(id) => {
            Some(format!("event {} came under another id than it was accepted with", arrival.event))
        }
        Outcome::Accepted { .. } | Outcome::Unknown => None,
    }
}

fn is_for(recording: &Recording, event: &Event, destination: u32) -> bool {
    match event.destination {
        Some(only) => only == destination,
        None => event.groups.contains(&recording.destinations[destination as usize].group),
    }
}

/// What was accepted and did not arrive.
fn owed(recording: &Recording, reconciled: &mut Reconciled) {
    let members: Vec<Vec<u32>> = (0..recording.groups.len()).map(|group| recording.of_group(group).collect()).collect();
    let mut replaced = HashSet::new();
    // The last of a key first: those before it may have given way.
    let mut keys = HashSet::new();
    for (number, event) in recording.events.iter().enumerate().rev() {
        let is_accepted = matches!(event.outcome, Outcome::Accepted { .. });
        if event.groups.iter().any(|group| recording.groups[*group].coalesces)
            && is_accepted
            && !keys.insert((&event.groups, event.destination, event.key))
        {
            replaced.insert(number as u64);
        }
    }
    for (number, event) in (0_u64..).zip(&recording.events) {
        let Outcome::Accepted { deliveries, .. } = event.outcome else { continue };
        let all = || event.groups.iter().flat_map(|group| members[*group].iter().copied());
        let expected = event.destination.map_or_else(|| all().count(), |_| 1);
        if deliveries as usize != expected {
            reconciled.short.push(format!("event {number} has {deliveries} deliveries, not {expected}"));
        }
        let answers = |destination: &u32| {
            let group = recording.destinations[*destination as usize].group;
            recording.groups[group].expect.delivered
        };
        for destination in
            event.destination.map_or_else(|| all().collect(), |only| vec![only]).into_iter().filter(answers)
        {
            reconciled.owed += 1;
            let seen = reconciled.seen[destination as usize].get(&number);
            if seen.is_none_or(|seen| seen.success.is_none()) && !replaced.contains(&number) {
                reconciled.lost.push((number, destination));
            }
        }
    }
}

/// Of events with one key each may leave only when all before it have been answered well.
fn order_at(recording: &Recording, number: u32, reconciled: &mut Reconciled) {
    let group = recording.destinations[number as usize].group;
    if !recording.groups[group].expect.in_order {
        return;
    }
    // Of each key the accepted events, in the order of their posts, and how many at the front have been answered well.
    let mut lines: HashMap<Option<u32>, (Vec<u64>, usize)> = HashMap::new();
    for (event_number, event) in (0_u64..).zip(&recording.events) {
        if is_for(recording, event, number) && matches!(event.outcome, Outcome::Accepted { .. }) {
            lines.entry(event.key).or_default().0.push(event_number);
        }
    }
    let mut successes: Vec<(Timestamp, u64)> =
        recording.at(number).iter().filter_map(|arrival| Some((arrival.succeeded_at()?, arrival.event))).collect();
    successes.sort_unstable();
    let mut successes = successes.into_iter().peekable();
    let mut done = HashSet::new();
    for arrival in recording.at(number) {
        while let Some((_, event)) = successes.next_if(|(at, _)| *at <= arrival.at) {
            done.insert(event);
        }
        let Some(event) = recording.events.get(arrival.event as usize) else { continue };
        let Some((line, front)) = lines.get_mut(&event.key) else { continue };
        while line.get(*front).is_some_and(|head| done.contains(head)) {
            *front += 1;
        }
        if line.get(*front).is_some_and(|head| arrival.event > *head) {
            reconciled.out_of_order.push((arrival.event, number));
        }
    }
}
