//! Judges limit groups: every limit in every window over the sends of all members, while they were in the group.
//!
//! A move acts at some instant between its request and the end of the grace after its answer. What a destination sent
//! meanwhile counts in the old group up to that instant and in the new group from it on. The judge does not know the
//! instant. A window above a limit is a breach only if no instant explains it.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use weir_core::{Timestamp, audit::in_force::EDIT_GRACE};

use super::{
    at_least,
    caps::{self, Arrived, Counted, LimitJudgement},
    latency::jain,
};
use crate::{
    recording::{CallOutcome, Destination, Home, LimitGroup, Recording},
    run::SLACK,
};

/// How often the instants of all moves are chosen anew while windows are above a limit: the best instant of one move
/// depends on those of the others.
const ROUNDS: usize = 3;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SharedJudgement {
    pub(crate) name: String,
    /// The destinations that have been in it.
    pub(crate) members: u64,
    pub(crate) arrivals: u64,
    /// The calls of callers outside Weir. They count under the limits as sends do.
    #[serde(default)]
    pub(crate) calls: u64,
    /// Slots that were not used, because the caller came too late.
    #[serde(default)]
    pub(crate) too_late: u64,
    /// Reservations without a slot in the time that the caller waited.
    #[serde(default)]
    pub(crate) without_slot: u64,
    pub(crate) limits: Vec<LimitJudgement>,
    /// Of the sends ÷ weights of its members while all had a backlog; `None` with less than two, and with moves.
    pub(crate) shares: Option<Shares>,
}

impl SharedJudgement {
    /// The name and size of the group, for reports.
    pub(crate) fn title(&self) -> String {
        format!("limit group {} ×{}", self.name, self.members)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shares {
    /// Jain's index.
    pub(crate) fairness: f64,
    /// The largest difference of a member's sends from its share, as a part of the share.
    pub(crate) farthest: f64,
}

pub(crate) fn judge(recording: &Recording, breaches: &mut Vec<String>) -> Vec<SharedJudgement> {
    if recording.limit_groups.is_empty() {
        return Vec::new();
    }
    let arrivals = sorted_in(recording);
    let of = |(number, (group, arrivals)): (usize, (&LimitGroup, Vec<Arrived>))| {
        let limits: Vec<_> = Counted::by(group.limits.iter())
            .filter_map(|counted| caps::judge_limit(&arrivals, counted, &group.limits, group.audit.as_ref()))
            .collect();
        let name = format!("limit group {}", group.name);
        caps::report_violations(&name, &limits, breaches);
        if group.audit.is_none() {
            breaches.push(format!("{name}: it has no audit"));
        }
        let shares = shares(recording, number);
        at_least(&name, "utilisation", caps::used(&limits), group.expect.utilisation_min, breaches);
        at_least(&name, "fairness", shares.map(|shares| shares.fairness), group.expect.fairness_min, breaches);
        if let Some(most) = group.expect.share_within
            && shares.is_none_or(|shares| shares.farthest > most)
        {
            let farthest = super::shown(shares.map(|shares| shares.farthest));
            breaches.push(format!("{name}: a member is {farthest} from its share, where {most} was expected"));
        }
        let was_member = |member: &&Destination| member.homes.iter().any(|home| home.limit_group == Some(number));
        let calls = |outcome| {
            let of = recording.calls.iter().filter(|call| call.limit_group == number && call.outcome == outcome);
            of.count() as u64
        };
        SharedJudgement {
            name: group.name.clone(),
            members: recording.destinations.iter().filter(was_member).count() as u64,
            arrivals: (arrivals.len() - recording.calls_of(number).count()) as u64,
            calls: calls(CallOutcome::Made),
            too_late: calls(CallOutcome::TooLate),
            without_slot: calls(CallOutcome::NoSlot),
            limits,
            shares,
        }
    };
    recording.limit_groups.iter().zip(arrivals).enumerate().map(of).collect()
}

/// A move, and the arrivals that may have been sent on either side of it.
struct Move {
    destination: usize,
    from: Option<usize>,
    into: Option<usize>,
    either: Range<usize>,
}

/// The arrivals that count in each limit group.
fn sorted_in(recording: &Recording) -> Vec<Vec<Arrived>> {
    // What can have been granted before a move counts in the old group, unless another instant explains more.
    let mut homes: Vec<Vec<Option<usize>>> =
        recording.arrivals.iter().map(|arrivals| vec![None; arrivals.len()]).collect();
    let mut moves = Vec::new();
    for (destination, (of, homes)) in recording.destinations.iter().zip(&mut homes).enumerate() {
        let arrivals = &recording.arrivals[destination];
        // It was created in its first group.
        let Some((first, moved)) = of.homes.split_first() else { continue };
        let mut from = first.limit_group;
        homes.fill(from);
        for &Home { sent, answered, limit_group } in moved {
            let first = arrivals.partition_point(|arrival| arrival.at <= sent);
            let acts_by = answered + EDIT_GRACE + SLACK;
            let last = arrivals.partition_point(|arrival| arrival.at - arrival.stalled <= acts_by).max(first);
            homes[last..].fill(limit_group);
            moves.push(Move { destination, from, into: limit_group, either: first..last });
            from = limit_group;
        }
    }
    for _ in 0..ROUNDS {
        let before = homes.clone();
        for change in &moves {
            choose_instant(recording, change, &mut homes);
        }
        if homes == before {
            break;
        }
    }
    (0..recording.limit_groups.len()).map(|group| arrivals_of(recording, &homes, group)).collect()
}

/// Chooses the instant of a move with the fewest arrivals above a limit.
fn choose_instant(recording: &Recording, change: &Move, homes: &mut [Vec<Option<usize>>]) {
    let above = |homes: &[Vec<Option<usize>>]| -> u64 {
        let groups = change.from.into_iter().chain(change.into);
        groups.map(|group| above(&recording.limit_groups[group], &arrivals_of(recording, homes, group))).sum()
    };
    let mut fewest = above(homes);
    let mut best = homes[change.destination].clone();
    for instant in change.either.start..=change.either.end {
        if fewest == 0 {
            break;
        }
        homes[change.destination][change.either.start..instant].fill(change.from);
        homes[change.destination][instant..change.either.end].fill(change.into);
        let now_above = above(homes);
        if now_above < fewest {
            (fewest, best) = (now_above, homes[change.destination].clone());
        }
    }
    homes[change.destination] = best;
}

fn above(group: &LimitGroup, arrivals: &[Arrived]) -> u64 {
    Counted::by(group.limits.iter()).map(|counted| counted.violations(arrivals, &group.limits)).sum()
}

fn arrivals_of(recording: &Recording, homes: &[Vec<Option<usize>>], group: usize) -> Vec<Arrived> {
    let at_home = recording.arrivals.iter().zip(homes).flat_map(|(arrivals, homes)| arrivals.iter().zip(homes));
    let mut arrivals: Vec<_> =
        at_home.filter(|(_, home)| **home == Some(group)).map(|(arrival, _)| Arrived::of(recording, arrival)).collect();
    // A call starts in this process, so no stall makes it late.
    arrivals.extend(recording.calls_of(group).map(|call| Arrived { at: call.at, earliest: call.at, cost: 1 }));
    arrivals.sort_by_key(|arrival| arrival.at);
    arrivals
}

/// The shares of the members while all had a backlog: from the latest first arrival to the earliest last one. All callers
/// together are one more member with weight 1.
fn shares(recording: &Recording, group: usize) -> Option<Shares> {
    let was_member = |of: &Destination| of.homes.iter().any(|home| home.limit_group == Some(group));
    let mut members: Vec<(f64, Vec<Timestamp>)> = Vec::new();
    for (of, arrivals) in recording.destinations.iter().zip(&recording.arrivals).filter(|(of, _)| was_member(of)) {
        if of.homes.len() > 1 {
            return None;
        }
        members.push((f64::from(of.weight), arrivals.iter().map(|arrival| arrival.at).collect()));
    }
    let calls: Vec<Timestamp> = recording.calls_of(group).map(|call| call.at).collect();
    if recording.calls.iter().any(|call| call.limit_group == group) {
        members.push((1.0, calls));
    }
    if members.len() < 2 {
        return None;
    }
    let from = *members.iter().map(|(_, sends)| sends.first()).max()??;
    let until = *members.iter().map(|(_, sends)| sends.last()).min()??;
    let per_weight = |(weight, sends): &(f64, Vec<Timestamp>)| {
        sends.iter().filter(|at| (from..=until).contains(at)).count() as f64 / weight
    };
    let of_members: Vec<f64> = members.iter().map(per_weight).collect();
    let weights: f64 = members.iter().map(|(weight, _)| weight).sum();
    let total: f64 = members.iter().zip(&of_members).map(|((weight, _), each)| each * weight).sum();
    let fair = total / weights;
    let farthest = of_members.iter().map(|each| (each / fair - 1.0).abs()).fold(0.0, f64::max);
    (total > 0.0).then(|| Shares { fairness: jain(&of_members), farthest })
}

#[cfg(test)]
mod tests;
