//! What follows from the evidence. Here is what concerns the parts of Weir; `faults` has what Weir does not send, `receivers`
//! what receivers do, `groups` and `clocks` the rest.

use std::collections::BTreeSet;

use weir_api_types::{Backend, InstallationStatus, Process};
use weir_core::stall::Fault;

use super::{
    clocks::clocks,
    evidence::Evidence,
    faults::{faults, outage, start, unread},
    finding::{
        Finding,
        Severity::{Note, Problem},
        finding,
    },
    groups::groups,
    receivers::{receivers, refusing},
};
use crate::output::texts::{count, span_s};

/// Longer answers keep limits from being used in full, as `/readyz` says.
const SLOW_STORE_MS: f64 = 60.0;
const SLOW_QUEUE_MS: f64 = 15.0;
/// Permits are taken within milliseconds while a worker has places.
const LATE_PERMITS_MS: u64 = 5_000;
/// Less free space is filled within minutes by a busy installation, or within a day.
const DISK_PROBLEM: u64 = 512 << 20;
const DISK_NOTE: u64 = 5 << 30;
/// SQLite cannot write with less than a checkpoint needs.
const DISK_FULL: u64 = 16 << 20;
/// Each obstacle has its row there.
const UNWRITABLE_STEP: &str =
    "docs/operations/sqlite.md#what-the-messages-mean says what to do for this cause, also for PostgreSQL";
const REFUSING_STEP: &str = "docs/operations/runbook.md#weirredisaway says what to do: memory, password, failover";
const LARGE_WAL_BYTES: f64 = (1_u64 << 30) as f64;

/// The findings, problems first.
pub(super) fn findings(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(reason) = &evidence.unreachable {
        let next = "start `weir serve` or `weir api`, read the last lines of its log (exit code 2 is a wrong setting, and the line names it), or name another server with --server";
        return vec![finding(Problem, "server", format!("the server does not answer ({reason})"), next)];
    }
    if let Some(status) = &evidence.status {
        // A store on a full disk does not answer, and the disk is the cause.
        let is_full = status.store.free_bytes.is_some_and(|free| free < DISK_FULL);
        if !is_full || status.store.is_reachable {
            backend(&mut found, "store", &status.store, SLOW_STORE_MS);
        }
        backend(&mut found, "queue", &status.queue, SLOW_QUEUE_MS);
        processes(&mut found, status);
        depths(&mut found, status);
        disk(&mut found, &status.store);
    }
    clocks(&mut found, evidence);
    readiness(&mut found, evidence);
    resources(&mut found, evidence);
    faults(&mut found, evidence);
    outage(&mut found, evidence);
    unread(&mut found, evidence);
    found.extend(receivers(evidence));
    groups(&mut found, &evidence.groups);
    found.extend(refusing(&evidence.refusing));
    found.sort_by_key(|finding| finding.severity != Problem);
    found
}

fn backend(found: &mut Vec<Finding>, subject: &'static str, backend: &Backend, slow_ms: f64) {
    let kind = &backend.kind;
    if let Some(obstacle) = &backend.obstacle {
        let (text, next) = match subject {
            "store" => (format!("takes no writes, because {obstacle}: no event can be accepted"), UNWRITABLE_STEP),
            _ => (format!("cannot be used, because {obstacle}: events wait, and nothing is sent"), REFUSING_STEP),
        };
        found.push(finding(Problem, subject, format!("the {subject} ({kind}) {text}"), next));
    } else if !backend.is_reachable {
        let (effect, setting) = match subject {
            "store" => ("no event can be accepted, and nothing is sent", "WEIR_DATABASE_URL"),
            _ => ("events are accepted and wait, and nothing is sent", "WEIR_REDIS_URL"),
        };
        let found_text = format!("the {subject} ({kind}) does not answer within two seconds: {effect}");
        found.push(finding(
            Problem,
            subject,
            found_text,
            format!("start it, look at its log and at the network in between, or correct {setting}"),
        ));
    } else if let Some(ms) = backend.answered_in_ms.filter(|ms| *ms > slow_ms) {
        let text = format!(
            "the {subject} ({kind}) took {ms:.0} ms to answer: above {slow_ms:.0} ms, limits are not used in full"
        );
        found.push(finding(
            Note,
            subject,
            text,
            format!("look at the load and the disk of the {subject}, and at the network to it"),
        ));
    }
}

fn processes(found: &mut Vec<Finding>, status: &InstallationStatus) {
    let Some(processes) = &status.processes else { return };
    // A process of an older version does not say its role.
    let is_unknown = processes.iter().any(|process| process.role.is_none());
    for (role, effect) in [
        ("scheduler", "backlogs do not drain, and there are no retries and replays"),
        ("worker", "nothing is delivered; accepted events wait"),
    ] {
        let runs = |process: &Process| process.role.as_deref().is_some_and(|found| found == role || found == "serve");
        if !is_unknown && !processes.iter().any(runs) {
            found.push(finding(Problem, "processes", format!("no {role} runs: {effect}"), start(role)));
        }
    }
    let versions: BTreeSet<&str> = processes.iter().filter_map(|process| process.version.as_deref()).collect();
    if versions.len() > 1 {
        let versions = versions.into_iter().collect::<Vec<_>>().join(", ");
        let text = format!("processes of several versions run: {versions}");
        found.push(finding(
            Note,
            "versions",
            text,
            "during an upgrade this is right; otherwise restart the old ones: `weir status` lists them",
        ));
    }
}

fn depths(found: &mut Vec<Finding>, status: &InstallationStatus) {
    let Some(depths) = status.queue_depths.as_ref().filter(|depths| depths.oldest_waited_ms > LATE_PERMITS_MS) else {
        return;
    };
    // Without a worker they wait for one, and that is said already.
    if found.iter().any(|finding| finding.found.starts_with(Fault::NoWorker.sentence())) {
        return;
    }
    let waited = span_s(depths.oldest_waited_ms as f64 / 1_000.0);
    let text = format!(
        "{} wait for a worker, the oldest for {waited}: the workers are full, suspended, cut off, or use another Redis or prefix",
        count(depths.ready, "permit", "permits")
    );
    found.push(finding(Problem, "lag", text, "look at weir_worker_busy_ratio: near 1, start more workers, or raise WEIR_WORKER_CAPACITY and the limit of open files. Near 0, compare WEIR_REDIS_URL and WEIR_REDIS_PREFIX of the workers with those of the schedulers (`weir config check`)"));
}

fn disk(found: &mut Vec<Finding>, store: &Backend) {
    let Some(free) = store.free_bytes.filter(|free| *free < DISK_NOTE) else { return };
    let severity = if free < DISK_PROBLEM { Problem } else { Note };
    let effect = if store.is_reachable { "" } else { ": no event can be accepted" };
    let text = format!("the disk of the database has {} MB left{effect}", free >> 20);
    found.push(finding(
        severity,
        "disk",
        text,
        "free space or enlarge the disk; shorter WEIR_RETENTION_… settings keep less",
    ));
}

fn readiness(found: &mut Vec<Finding>, evidence: &Evidence) {
    match &evidence.readiness {
        Some(Ok(readiness)) => {
            // The round trips of store and queue are judged above.
            let others = readiness.warnings.iter().filter(|warning| !warning.contains("ms to answer"));
            found.extend(others.map(|warning| finding(Note, "server", warning.clone(), "see the runbook")));
        }
        // A problem that is known already is the cause.
        Some(Err(reason)) if found.iter().all(|finding| finding.severity != Problem) => {
            let text = format!("the process is not ready: {reason}");
            found.push(finding(
                Problem,
                "server",
                text,
                "read its log; while it starts or stops, this passes by itself",
            ));
        }
        _ => {}
    }
}

fn resources(found: &mut Vec<Finding>, evidence: &Evidence) {
    if let Some(bytes) = evidence.gauge("weir_sqlite_wal_bytes").filter(|bytes| *bytes > LARGE_WAL_BYTES) {
        let text =
            format!("the write-ahead log of SQLite has {:.1} GB: the disk is slow, or a reader holds it", bytes / 1e9);
        found.push(finding(
            Note,
            "store",
            text,
            "end other programs that read the database file, and look at the disk",
        ));
    }
    if evidence.gauge("weir_replica_up") == Some(0.0) {
        let behind = evidence.gauge("weir_replica_lag_seconds").unwrap_or_default();
        let text = format!(
            "the read replica has not been up to date for {}: lists, history and audits are read from the primary",
            span_s(behind)
        );
        let next = "start it or look why it replays slowly; after a failover correct WEIR_DATABASE_READ_URL; the log of the API names the reason";
        found.push(finding(Note, "store", text, next));
    }
    let files = evidence.gauge("process_open_fds").zip(evidence.gauge("process_max_fds"));
    if let Some((open, most)) = files.filter(|(open, most)| *open > most * 0.9) {
        let text = format!("the process has {open:.0} of at most {most:.0} files open");
        found.push(finding(
            Problem,
            "server",
            text,
            "raise the limit of open files (ulimit -n, LimitNOFILE), or lower WEIR_WORKER_CAPACITY",
        ));
    }
}

#[cfg(test)]
mod tests;
