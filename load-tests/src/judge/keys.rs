//! Judges the limits of keys: every limit in every window over the arrivals of each key at a destination.
//!
//! The key is what the receiver found in the data, not what Weir says of it. Weir's own record knows no keys, so it is
//! judged under the limits of the destination only.

use std::collections::HashMap;

use super::caps::{self, Arrived, Counted, LimitJudgement};
use crate::recording::{Destination, LimitChange, Recording};

/// The worst of all keys of a group's destinations, for each period and unit, and the number of these keys.
pub(crate) fn judge(recording: &Recording, group: usize, breaches: &mut Vec<String>) -> (u64, Vec<LimitJudgement>) {
    let mut judged: Vec<LimitJudgement> = Vec::new();
    let mut keys = 0;
    for number in recording.of_group(group) {
        let destination = &recording.destinations[number as usize];
        if destination.key_limits.is_empty() {
            continue;
        }
        let mut of_keys: HashMap<&str, Vec<Arrived>> = HashMap::new();
        for arrival in recording.at(number) {
            // An event without a key has the empty one.
            let key = arrival.limit_key.and_then(|number| recording.limit_keys.get(number as usize));
            of_keys.entry(key.map_or("", String::as_str)).or_default().push(Arrived::of(recording, arrival));
        }
        keys += of_keys.len() as u64;
        for (key, arrivals) in of_keys {
            for limit in judge_key(destination, key, &arrivals) {
                match judged.iter_mut().find(|of| of.period == limit.period) {
                    Some(worst) => *worst = worst.clone().combined_with(limit),
                    None => judged.push(limit),
                }
            }
        }
    }
    judged.sort_by(|one, other| one.period.cmp(&other.period));
    caps::report_violations(&format!("{}: per key", recording.groups[group].name), &judged, breaches);
    (keys, judged)
}

fn judge_key(destination: &Destination, key: &str, arrivals: &[Arrived]) -> Vec<LimitJudgement> {
    let of_key = |change: &crate::recording::KeyLimitChange| LimitChange {
        sent: change.sent,
        answered: change.answered,
        limits: change.limits.of(key).clone(),
    };
    let changes: Vec<LimitChange> = destination.key_limits.iter().map(of_key).collect();
    let judged = Counted::by(changes.iter()).filter_map(|counted| caps::judge_limit(arrivals, counted, &changes, None));
    // A key with one event uses nothing, so the least use of all keys says nothing.
    judged.map(|limit| LimitJudgement { utilisation: None, ..limit }).collect()
}

#[cfg(test)]
mod tests;
