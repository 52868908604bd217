//! What Weir itself does not send, and what could not be read.

use weir_core::stall::Fault;

use super::{
    evidence::Evidence,
    finding::{
        Finding,
        Severity::{Note, Problem},
        finding,
    },
    receivers::named,
};
use crate::output::texts::count;

/// Destinations that Weir itself keeps from sends, by the judgement of the watch over stalls.
pub(super) fn faults(found: &mut Vec<Finding>, evidence: &Evidence) {
    let rows = &evidence.rows;
    for fault in Fault::all() {
        let late: Vec<_> = rows.iter().filter(|row| row.reason.as_deref() == Some(fault.as_str())).collect();
        if late.is_empty() || is_told(found, fault) {
            continue;
        }
        // One that sends may be behind for reasons of its own, as its alert says.
        let is_of_one = !fault.is_of_installation();
        let sends = late.iter().all(|row| row.achieved_per_s > 0.0);
        let severity = if is_of_one && sends { Note } else { Problem };
        let effect =
            if sends { "gets less than the limits allow" } else { "gets nothing, although the limits allow it" };
        let text = format!("{} {effect}: {}", named(&late), fault.sentence());
        let next = match fault {
            Fault::NoWorker => start_or_wake(evidence, "worker"),
            Fault::NoScheduler => start_or_wake(evidence, "scheduler"),
            _ => "docs/operations/runbook.md#weirdestinationsstalled says what to do for this cause".to_owned(),
        };
        found.push(finding(severity, "backlog", text, next));
    }
}

/// Whether a finding names this cause already, with its next step.
fn is_told(found: &[Finding], fault: Fault) -> bool {
    let names = |finding: &Finding| match fault {
        Fault::QueueAway => finding.subject == "queue" && finding.severity == Problem,
        Fault::StoreSlow | Fault::StoreUnwritable => matches!(finding.subject, "store" | "disk"),
        Fault::WorkersFull if finding.subject == "lag" => true,
        fault => finding.found.starts_with(fault.sentence()),
    };
    found.iter().any(names)
}

/// An outage that no finding names yet: the destinations could not be read, or wait in tenants that the key does not see.
pub(super) fn outage(found: &mut Vec<Finding>, evidence: &Evidence) {
    let outage = evidence.status.as_ref().and_then(|status| status.outage.as_ref());
    let Some((outage, fault)) = outage.and_then(|outage| Some((outage, Fault::named(&outage.cause)?))) else { return };
    let is_of_rows = |finding: &Finding| finding.severity == Problem && finding.found.ends_with(fault.sentence());
    if is_told(found, fault) || found.iter().any(is_of_rows) {
        return;
    }
    let text = format!("deliveries are due and not sent since {}: {}", outage.since, outage.reason);
    let next = "docs/operations/runbook.md#weirdestinationsstalled says what to do for this cause";
    found.push(finding(Problem, "backlog", text, next));
}

/// Nothing is judged that was not read.
pub(super) fn unread(found: &mut Vec<Finding>, evidence: &Evidence) {
    let Some(reason) = &evidence.unread else { return };
    if found.iter().any(|finding| finding.severity == Problem) {
        return;
    }
    let next = "ask again in a minute; if it stays, look at the log of the API and at `weir shedding`";
    found.push(finding(Problem, "server", format!("the server does not say its state: {reason}"), next));
}

/// A process that is registered and gives no sign of life is not started again blindly.
fn start_or_wake(evidence: &Evidence, role: &str) -> String {
    let processes = evidence.status.as_ref().and_then(|status| status.processes.as_deref()).unwrap_or_default();
    let silent = processes.iter().filter(|process| process.role.as_deref() == Some(role)).count();
    match silent {
        0 => start(role),
        silent => format!(
            "{} in `weir status`: killed a moment ago, suspended, or cut off from the database. Look at them; otherwise {}",
            count(silent as u64, &format!("silent {role} is"), &format!("silent {role}s are")),
            start(role)
        ),
    }
}

pub(super) fn start(role: &str) -> String {
    format!("start `weir {role}`; if it ends at once, the last lines of its log say why")
}
