//! The judge decides whether every promise was kept. It is pure and exact, and uses the whole recording.
//!
//! - [`caps`]: every limit in every window, at the receiver and in Weir's own record, and the use of the limit;
//! - [`keys`]: the same for the limit keys of a destination, by the keys that the receiver saw;
//! - [`shared`]: the same for limit groups, over all members while they were in the group, and the members' shares;
//! - [`reconcile`]: each event at each of its destinations: lost, doubled, out of order, or never owed;
//! - [`overload`]: the rate sent while more was offered than the machine can take;
//! - [`latency`]: percentiles, and fairness between destinations;
//! - [`series`]: the data of the charts.
//!
//! Each broken promise is a [breach](Judgement::breaches), described in a sentence. A run fails only by a breach.

pub(crate) mod caps;
pub(crate) mod keys;
pub(crate) mod latency;
pub(crate) mod overload;
pub(crate) mod reconcile;
pub(crate) mod series;
pub(crate) mod shared;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use weir_core::{Timestamp, audit::in_force::EDIT_GRACE};

use crate::{
    recording::{Outcome, Recording},
    run::SLACK,
};
use caps::LimitJudgement;
use latency::Latency;
use overload::Overload;
use reconcile::Reconciled;
use series::Pictures;
use shared::SharedJudgement;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Judgement {
    /// Every broken promise. The run passed when there is none.
    pub(crate) breaches: Vec<String>,
    pub(crate) events: u64,
    pub(crate) refused: u64,
    /// Events that were posted and never answered. They may have arrived.
    pub(crate) unknown: u64,
    /// Deliveries that accepted events owe to destinations that answer.
    pub(crate) owed: u64,
    pub(crate) arrivals: u64,
    pub(crate) lost: u64,
    pub(crate) duplicates: u64,
    /// The duplicates that a fault explains.
    pub(crate) explained: u64,
    pub(crate) out_of_order: u64,
    /// Arrivals that were not owed.
    pub(crate) strangers: u64,
    pub(crate) published_s: f64,
    /// From the end of publishing until no delivery was waiting or in flight.
    pub(crate) drained_after_s: Option<f64>,
    pub(crate) groups: Vec<GroupJudgement>,
    #[serde(default)]
    pub(crate) limit_groups: Vec<SharedJudgement>,
    /// For each stream of the scenario: the longest time from when an event was meant to be posted to its arrival; `None`
    /// if one did not arrive.
    #[serde(default)]
    pub(crate) streams_done_s: Vec<Option<f64>>,
    pub(crate) pictures: Pictures,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GroupJudgement {
    pub(crate) name: String,
    pub(crate) destinations: u64,
    pub(crate) arrivals: u64,
    pub(crate) limits: Vec<LimitJudgement>,
    /// The limit keys that arrived, and the worst of them under their own limits.
    #[serde(default)]
    pub(crate) keys: u64,
    #[serde(default)]
    pub(crate) key_limits: Vec<LimitJudgement>,
    /// Jain's index; `None` for a single destination.
    pub(crate) fairness: Option<f64>,
    pub(crate) latency_ms: Option<Latency>,
    pub(crate) overload: Option<Overload>,
}

impl GroupJudgement {
    /// The name and size of the group, for reports.
    pub(crate) fn title(&self) -> String {
        format!("{} ×{}", self.name, self.destinations)
    }

    pub(crate) fn title_of_keys(&self) -> String {
        format!("{}, keys ×{}", self.name, self.keys)
    }
}

impl Judgement {
    /// The limits of destinations, of their keys and of limit groups, each with the title of its row.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (String, &LimitJudgement)> {
        let own = self.groups.iter().map(|group| (group.title(), &group.limits));
        let of_keys = self.groups.iter().map(|group| (group.title_of_keys(), &group.key_limits));
        let shared = self.limit_groups.iter().map(|group| (group.title(), &group.limits));
        own.chain(of_keys)
            .chain(shared)
            .flat_map(|(title, limits)| limits.iter().map(move |limit| (title.clone(), limit)))
    }

    pub(crate) fn is_passed(&self) -> bool {
        self.breaches.is_empty()
    }
}

pub(crate) fn judge(recording: &Recording) -> Judgement {
    // Match the events with the arrivals first: the groups, the whole and the charts need the result.
    let reconciled = reconcile::reconcile(recording);
    let mut breaches = Vec::new();
    let groups = (0..recording.groups.len()).map(|group| judge_group(recording, &reconciled, group, &mut breaches));
    let groups = groups.collect();
    let limit_groups = shared::judge(recording, &mut breaches);
    let streams_done_s = latency::streams_done(recording, &reconciled, &mut breaches);
    judge_whole(recording, &reconciled, &mut breaches);
    // The figures of the report.
    let count = |is: fn(&Outcome) -> bool| recording.events.iter().filter(|event| is(&event.outcome)).count() as u64;
    Judgement {
        breaches,
        events: recording.events.len() as u64,
        refused: count(|outcome| matches!(outcome, Outcome::Refused(_))),
        unknown: count(|outcome| matches!(outcome, Outcome::Unknown)),
        owed: reconciled.owed,
        arrivals: recording.arrivals.iter().map(|at| at.len() as u64).sum(),
        lost: reconciled.lost.len() as u64,
        duplicates: reconciled.duplicates.len() as u64,
        explained: reconciled.duplicates.iter().filter(|duplicate| duplicate.is_explained).count() as u64,
        out_of_order: reconciled.out_of_order.len() as u64,
        strangers: reconciled.strangers.len() as u64,
        published_s: recording.published.since(recording.began).as_secs_f64(),
        drained_after_s: recording.drained.map(|at| at.since(recording.published).as_secs_f64()),
        groups,
        limit_groups,
        streams_done_s,
        pictures: series::pictures(recording, &reconciled),
    }
}

fn judge_group(
    recording: &Recording,
    reconciled: &Reconciled,
    group: usize,
    breaches: &mut Vec<String>,
) -> GroupJudgement {
    let recorded = &recording.groups[group];
    let (name, expect) = (&recorded.name, &recorded.expect);
    // The limits add their breaches themselves. The other figures are compared with the expectations below.
    let limits = caps::judge(recording, group, breaches);
    let (keys, key_limits) = keys::judge(recording, group, breaches);
    let fairness = latency::fairness(recording, group);
    let latency_ms = latency::latency(recording, reconciled, group);
    let arrivals = recording.of_group(group).map(|number| recording.at(number).len() as u64).sum();

    let used = caps::used(&limits);
    at_least(name, "utilisation", used, expect.utilisation_min, breaches);
    at_least(name, "fairness", fairness, expect.fairness_min, breaches);
    let bounds = [("p50", expect.p50_ms, latency_ms.map(|l| l.p50)), ("p99", expect.p99_ms, latency_ms.map(|l| l.p99))];
    for (what, most, measured) in bounds {
        if let Some(most) = most
            && measured.is_none_or(|measured| measured > most)
        {
            breaches.push(format!("{name}: {what} is {} ms, where {most} ms was expected", shown(measured)));
        }
    }
    // The rate sent during an overload counts as a share of the rate that the machine can take.
    let overload = overload::judge(recording, group);
    let share = overload.map(|overload| overload.share());
    if let Some(least) = expect.overload_min
        && share.is_none_or(|share| share < least)
    {
        breaches.push(format!(
            "{name}: the rate under overload was {} of the rate that the machine can take, where {least} was expected",
            shown(share)
        ));
    }
    // After a pause nothing may be sent, except during the time that an edit needs to take effect.
    for pause in &recorded.pauses {
        let holds_from = pause.from + EDIT_GRACE + SLACK;
        let is_within = |at: Timestamp| holds_from < at && at < pause.until;
        // An arrival in a stall of the receiver may have been sent before the pause.
        let sent =
            |number| recording.at(number).iter().filter(|arrival| is_within(arrival.at - arrival.stalled)).count();
        let sent: usize = recording.of_group(group).map(sent).sum();
        if sent > 0 {
            breaches.push(format!("{name}: {sent} sends while it was paused"));
        }
    }
    GroupJudgement {
        name: name.clone(),
        destinations: recording.of_group(group).count() as u64,
        arrivals,
        limits,
        keys,
        key_limits,
        fairness,
        latency_ms,
        overload,
    }
}

/// Judges the promises of the whole run.
fn judge_whole(recording: &Recording, reconciled: &Reconciled, breaches: &mut Vec<String>) {
    let name = |number: u32| &recording.groups[recording.destinations[number as usize].group].name;
    // Each promise about single deliveries names its first breach.
    if let Some((event, destination)) = reconciled.lost.first() {
        let (lost, of) = (reconciled.lost.len(), reconciled.owed);
        breaches.push(format!("{lost} of {of} deliveries are lost, event {event} to {} first", name(*destination)));
    }
    // A duplicate is a breach only if no fault explains it.
    let unexplained: Vec<_> = reconciled.duplicates.iter().filter(|duplicate| !duplicate.is_explained).collect();
    if let Some(first) = unexplained.first() {
        let (count, to) = (unexplained.len(), name(first.destination));
        breaches.push(format!("{count} deliveries arrived twice without a fault, event {} to {to} first", first.event));
    }
    if let Some((event, destination)) = reconciled.out_of_order.first() {
        let count = reconciled.out_of_order.len();
        breaches.push(format!("{count} sends out of order, event {event} to {} first", name(*destination)));
    }
    if let Some(first) = reconciled.strangers.first() {
        breaches.push(format!("{} arrivals that were not owed: {first}", reconciled.strangers.len()));
    }
    if let Some(first) = reconciled.short.first() {
        breaches.push(format!("{} events were accepted for too few destinations: {first}", reconciled.short.len()));
    }

    // Promises about Weir and the run itself.
    if recording.unknown_paths > 0 {
        breaches.push(format!("{} arrivals at paths of no destination", recording.unknown_paths));
    }
    if recording.drained.is_none() {
        breaches.push("the backlog was not drained in time".to_owned());
    }
    if recording.permits_left > 0 {
        breaches.push(format!("{} permits are left in the queue of an idle Weir", recording.permits_left));
    }
    for role in &recording.died {
        breaches.push(format!("{role} exited by itself"));
    }
    // Each event must be accepted in the end, whatever happened to Weir meanwhile.
    let is_refused = |event: &&crate::recording::Event| matches!(event.outcome, Outcome::Refused(_) | Outcome::Unknown);
    let unanswered = recording.events.iter().filter(is_refused).count();
    if unanswered > 0 {
        breaches.push(format!("{unanswered} events were refused or not answered"));
    }
}

/// A figure that was not measured misses its bound.
fn at_least(name: &str, what: &str, figure: Option<f64>, least: Option<f64>, breaches: &mut Vec<String>) {
    if let Some(least) = least
        && figure.is_none_or(|figure| figure < least)
    {
        breaches.push(format!("{name}: {what} {}, where {least} was expected", shown(figure)));
    }
}

fn shown(figure: Option<f64>) -> String {
    figure.map_or_else(|| "unknown".to_owned(), |figure| format!("{figure:.4}"))
}
