//! Checks each event at each of its destinations: whether it arrived, once, in order, and whether it was owed.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use weir_core::Timestamp;

use crate::recording::{Arrival, Event, Fault, Outcome, Recording};

/// The time from a send to the commit of its record, on a busy machine. A fault may lose the records of sends up to
/// this long before it.
const RECORDED_WITHIN: Duration = Duration::from_millis(1_500);
/// A send from before a fault may be read this long after it.
const RECEIVED_WITHIN: Duration = Duration::from_millis(100);

/// Events and destinations are identified by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Reconciled {
    /// Deliveries owed to destinations that answer.
    pub(crate) owed: u64,
    pub(crate) lost: Vec<(u64, u32)>,
    pub(crate) duplicates: Vec<Duplicate>,
    pub(crate) out_of_order: Vec<(u64, u32)>,
    /// A sentence for each arrival that was not owed.
    pub(crate) strangers: Vec<String>,
    /// A sentence for each event that was accepted for too few destinations.
    pub(crate) short: Vec<String>,
    /// For each destination, the first arrival and the first 2xx answer of each event.
    pub(crate) seen: Vec<HashMap<u64, Seen>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) first: Timestamp,
    pub(crate) success: Option<Timestamp>,
}

/// An arrival after an earlier one of the same event was answered 2xx.
#[derive(Debug)]
pub(crate) struct Duplicate {
    pub(crate) event: u64,
    pub(crate) destination: u32,
    /// A fault may have lost the record of the earlier arrival.
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
            let explains =
                |fault: &Fault| fault.from - RECORDED_WITHIN <= success && success <= fault.until + RECEIVED_WITHIN;
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

/// Why an arrival was not owed; `None` when it was owed.
fn stranger(recording: &Recording, arrival: &Arrival) -> Option<String> {
    let Some(event) = recording.events.get(arrival.event as usize) else {
        return Some(format!("event {} was never posted", arrival.event));
    };
    if !is_for(recording, event, arrival.destination) {
        return Some(format!("event {} was for another destination", arrival.event));
    }
    match event.outcome {
        Outcome::Refused(status) => Some(format!("event {} was refused with {status}", arrival.event)),
        Outcome::Accepted { id, .. } if arrival.id != Some(id) => {
            Some(format!("event {} arrived with another id than the one it was accepted with", arrival.event))
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

/// Finds accepted events that did not arrive.
fn owed(recording: &Recording, reconciled: &mut Reconciled) {
    let members: Vec<Vec<u32>> = (0..recording.groups.len()).map(|group| recording.of_group(group).collect()).collect();
    let mut replaced = HashSet::new();
    // From the last event of each coalesce key backwards: it may have replaced the earlier ones.
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
        // The event is owed to its only destination, or to all destinations of its groups.
        let all = || event.groups.iter().flat_map(|group| members[*group].iter().copied());
        let expected = event.destination.map_or_else(|| all().count(), |_| 1);
        if deliveries as usize != expected {
            reconciled.short.push(format!("event {number} has {deliveries} deliveries, not {expected}"));
        }
        // Destinations that never answer 2xx are owed nothing.
        let answers = |destination: &u32| {
            let group = recording.destinations[*destination as usize].group;
            recording.groups[group].expect.delivered
        };
        for destination in
            event.destination.map_or_else(|| all().collect(), |only| vec![only]).into_iter().filter(answers)
        {
            reconciled.owed += 1;
            let seen = reconciled.seen[destination as usize].get(&number);
            // A later event of its key may have replaced it. Then it need not arrive.
            if seen.is_none_or(|seen| seen.success.is_none()) && !replaced.contains(&number) {
                reconciled.lost.push((number, destination));
            }
        }
    }
}

/// Checks that an event was sent only after all earlier events of its key were answered 2xx.
fn order_at(recording: &Recording, number: u32, reconciled: &mut Reconciled) {
    let group = recording.destinations[number as usize].group;
    if !recording.groups[group].expect.in_order {
        return;
    }
    // The accepted events of each key in the order of their posts, and how many at the front were answered 2xx.
    let mut keys: HashMap<Option<u32>, (Vec<u64>, usize)> = HashMap::new();
    for (event_number, event) in (0_u64..).zip(&recording.events) {
        if is_for(recording, event, number) && matches!(event.outcome, Outcome::Accepted { .. }) {
            keys.entry(event.key).or_default().0.push(event_number);
        }
    }

    // Go through the arrivals. Before each one, take in the successes until its time.
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
        let Some((posted, front)) = keys.get_mut(&event.key) else { continue };
        // The head is the first event of the key without a success. Only it, or an earlier event, may arrive now.
        while posted.get(*front).is_some_and(|head| done.contains(head)) {
            *front += 1;
        }
        if posted.get(*front).is_some_and(|head| arrival.event > *head) {
            reconciled.out_of_order.push((arrival.event, number));
        }
    }
}
