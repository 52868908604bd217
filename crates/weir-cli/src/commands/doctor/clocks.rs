//! What follows from the clocks: those of the processes against that of Redis, and the server's against this machine's.

use std::collections::BTreeSet;

use weir_api_types::Process;

use super::{
    evidence::Evidence,
    finding::{
        Finding,
        Severity::{Note, Problem},
        finding, listed,
    },
};

/// Clocks that are kept agree within milliseconds; receivers refuse signatures whose time is wrong by minutes.
pub(crate) const CLOCK_NOTE_S: f64 = 2.0;
/// A process is not ready then.
const CLOCK_PROBLEM_S: f64 = 30.0;
const WITH_NTP: &str =
    "with NTP (chrony, systemd-timesyncd); no process needs a restart, and no limit is broken meanwhile";

/// What is wrong, by how many seconds at most, and the machines to set.
type Differs = (String, f64, String);

pub(super) fn clocks(found: &mut Vec<Finding>, evidence: &Evidence) {
    let processes = evidence.status.as_ref().and_then(|status| status.processes.as_deref()).unwrap_or_default();
    let known: Vec<_> = processes.iter().filter_map(|process| Some((process, process.clock_ahead_s?))).collect();
    let differs = of_processes(&known).or_else(|| of_answering_process(evidence, known.is_empty()));
    let Some((text, worst, machines)) = differs else { return };
    let severity = if worst < CLOCK_PROBLEM_S { Note } else { Problem };
    let text = format!("{text}: receivers refuse signatures of a wrong time");
    found.push(finding(severity, "clock", text, format!("set the clock of {machines} {WITH_NTP}")));
}

/// `40.0 s ahead`.
pub(crate) fn offset(ahead_s: f64) -> String {
    format!("{:.1} s {}", ahead_s.abs(), if ahead_s < 0.0 { "behind" } else { "ahead" })
}

fn of_processes(known: &[(&Process, f64)]) -> Option<Differs> {
    let off: Vec<_> = known.iter().filter(|(_, ahead)| ahead.abs() >= CLOCK_NOTE_S).collect();
    let ahead = off.iter().map(|(_, ahead)| *ahead).max_by(|one, other| one.abs().total_cmp(&other.abs()))?;
    let hosts: BTreeSet<_> = known.iter().filter_map(|(process, _)| process.host.as_deref()).collect();
    // Machines that agree with each other are right, and that of Redis is wrong.
    let do_agree = known.iter().all(|(_, other)| (other - ahead).abs() < CLOCK_NOTE_S);
    if do_agree && hosts.len() > 1 {
        let text = format!("the clock of Redis is {} those of all {} processes", compared(-ahead), known.len());
        return Some((text, ahead.abs(), "the machine of Redis".to_owned()));
    }
    let name = |process: &Process| {
        let [role, host] = [&process.role, &process.host].map(|name| name.as_deref().unwrap_or("unknown"));
        format!("{role} {} on {host}", process.id)
    };
    let names: Vec<_> = off.iter().map(|(process, ahead)| format!("{} is {}", name(process), offset(*ahead))).collect();
    let text = format!("clocks differ from that of Redis: {}", listed(names.iter().map(String::as_str)));
    let hosts: BTreeSet<_> = off.iter().filter_map(|(process, _)| process.host.as_deref()).collect();
    let or_redis = if do_agree { " (or of Redis: compare both with a third machine)" } else { "" };
    Some((text, ahead.abs(), format!("{}{or_redis}", listed(hosts.into_iter()))))
}

/// By its metrics if no process states its clock; and by the time of its answer.
fn of_answering_process(evidence: &Evidence, is_unstated: bool) -> Option<Differs> {
    let of_redis = evidence.gauge("weir_clock_offset_seconds").filter(|_| is_unstated);
    let of_redis = of_redis.map(|offset| (offset, "the clock of Redis", "that of Weir's machine"));
    let of_server = evidence.clock_ahead_s.map(|offset| (offset, "the clock of the server", "that of this machine"));
    let (ahead, one, other) =
        [of_redis, of_server].into_iter().flatten().find(|(ahead, ..)| ahead.abs() >= CLOCK_NOTE_S)?;
    Some((format!("{one} is {} {other}", compared(ahead)), ahead.abs(), "both machines".to_owned()))
}

/// `40.0 s ahead of`, `40.0 s behind`.
fn compared(ahead: f64) -> String {
    format!("{}{}", offset(ahead), if ahead < 0.0 { "" } else { " of" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(processes: &[(i32, &str, &str, f64)]) -> Vec<Finding> {
        let process = |(id, role, host, ahead): &(i32, &str, &str, f64)| json!({"id": id, "role": role, "version": "0.1.0", "host": host, "clock_ahead_s": ahead});
        let backend = json!({"kind": "redis", "is_reachable": true});
        let status = json!({
            "as_of": "2026-11-26T04:30:00.000Z", "version": "0.1.0", "store": backend, "queue": backend,
            "processes": processes.iter().map(process).collect::<Vec<_>>(),
        });
        let metrics = Some("weir_clock_offset_seconds 31.5\n".to_owned());
        let status = Some(serde_json::from_value(status).unwrap());
        let mut found = Vec::new();
        clocks(&mut found, &Evidence { status, metrics, ..Evidence::default() });
        found
    }

    #[test]
    fn a_process_with_a_wrong_clock_is_named_with_its_machine() {
        assert_eq!(found(&[(1, "api", "web-1", 0.002), (2, "worker", "web-2", -1.9)]), [], "no metric is needed");
        let found = found(&[(1, "api", "web-1", 0.0), (2, "worker", "web-2", 40.04), (3, "worker", "web-3", 0.1)]);
        assert_eq!((found.len(), found[0].severity), (1, Problem));
        let text = "clocks differ from that of Redis: worker 2 on web-2 is 40.0 s ahead: receivers refuse signatures of a wrong time";
        assert_eq!(found[0].found, text);
        assert!(found[0].next_step.starts_with("set the clock of web-2 with NTP"), "{}", found[0].next_step);
    }

    #[test]
    fn machines_that_agree_blame_the_clock_of_redis() {
        let all = found(&[(1, "api", "web-1", 5.0), (2, "worker", "web-2", 5.1)]);
        assert_eq!(all[0].severity, Note);
        assert!(all[0].found.starts_with("the clock of Redis is 5.1 s behind those of all 2 processes"), "{all:?}");
        assert!(all[0].next_step.starts_with("set the clock of the machine of Redis"), "{all:?}");
        // One machine does not outvote another one.
        let two = found(&[(1, "api", "web-1", -5.0), (2, "worker", "web-1", -5.0)]);
        assert!(two[0].next_step.starts_with("set the clock of web-1 (or of Redis"), "{two:?}");
    }
}
