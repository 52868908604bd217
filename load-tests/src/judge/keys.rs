//! Judges limit keys: each limit of a key in every window over the arrivals with this key, and the wait of the keys with few
//! events beside the one with the most.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    caps::{self, Arrived, Counted, LimitJudgement},
    reconcile::Reconciled,
};
use crate::recording::Recording;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct KeysJudgement {
    pub(crate) keys: u64,
    /// Of each limit the worst of all keys.
    pub(crate) limits: Vec<LimitJudgement>,
    /// The longest wait of a key, without the one that has the most events; `None` with a single key.
    pub(crate) waited_s: Option<f64>,
}

impl KeysJudgement {
    /// The name and the number of the keys, for reports.
    pub(crate) fn title(&self, group: &str) -> String {
        format!("limit keys of {group} ×{}", self.keys)
    }
}

/// `None` for a group whose events have no limit keys.
pub(super) fn judge(
    recording: &Recording,
    reconciled: &Reconciled,
    group: usize,
    breaches: &mut Vec<String>,
) -> Option<KeysJudgement> {
    let name = &recording.groups[group].name;
    // By destination and key.
    let mut arrivals: BTreeMap<(u32, u32), Vec<Arrived>> = BTreeMap::new();
    let mut waits: BTreeMap<(u32, u32), (u64, Duration)> = BTreeMap::new();
    for number in recording.of_group(group) {
        let key_of = |event: u64| recording.events.get(event as usize)?.limit_key;
        for arrival in recording.at(number) {
            let Some(key) = key_of(arrival.event) else { continue };
            arrivals.entry((number, key)).or_default().push(Arrived::of(recording, arrival));
        }
        for (&event, seen) in &reconciled.seen[number as usize] {
            let Some(key) = key_of(event) else { continue };
            let wait = waits.entry((number, key)).or_default();
            *wait = (wait.0 + 1, wait.1.max(seen.first.since(recording.events[event as usize].meant)));
        }
    }
    if arrivals.is_empty() {
        return None;
    }
    let changes = recording.of_group(group).flat_map(|number| &recording.destinations[number as usize].key_limits);
    let limits: Vec<_> = Counted::by(changes)
        .filter_map(|counted| {
            let of = |(&(number, _), arrivals): (&(u32, u32), &Vec<Arrived>)| {
                caps::judge_limit(arrivals, counted, &recording.destinations[number as usize].key_limits, None)
            };
            arrivals.iter().filter_map(of).reduce(LimitJudgement::combined_with)
        })
        .collect();
    let busiest = waits.iter().max_by_key(|(_, (events, _))| *events).map(|(key, _)| *key);
    let others = waits.iter().filter(|(key, _)| Some(**key) != busiest);
    let waited_s = others.map(|(_, (_, wait))| wait.as_secs_f64()).reduce(f64::max);
    let judged = KeysJudgement { keys: arrivals.len() as u64, limits, waited_s };
    caps::report_violations(&judged.title(name), &judged.limits, breaches);
    if let Some(most) = recording.groups[group].expect.keys_within_s
        && waited_s.is_none_or(|waited| waited > most)
    {
        let waited = super::shown(waited_s);
        breaches.push(format!("{name}: a limit key waited {waited} s, where {most} s was expected"));
    }
    Some(judged)
}

#[cfg(test)]
mod tests;
