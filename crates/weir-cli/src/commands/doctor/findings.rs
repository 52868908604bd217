//! What follows from the evidence.

use std::collections::BTreeSet;

use weir_api_types::{ActiveAlert, Backend, InstallationStatus, LastFailure, OverviewRow, Process};
use weir_core::stall::Fault;

use super::{
    super::overview::title,
    clocks::clocks,
    evidence::{Evidence, error_of, has_open_breaker, is_behind_a_pause, is_failing},
    finding::{
        Finding, NAMED,
        Severity::{Note, Problem},
        finding, listed,
    },
    groups::groups,
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
/// Of an error as much is shown.
const ERROR_CHARS: usize = 120;
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
    receivers(&mut found, evidence);
    groups(&mut found, &evidence.groups);
    refusing(&mut found, &evidence.refusing);
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

/// Destinations that Weir itself keeps from sends, by the judgement of the watch over stalls.
fn faults(found: &mut Vec<Finding>, evidence: &Evidence) {
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
        let text = format!("{} {effect}: {}", named(late.iter().copied()), fault.sentence());
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
fn outage(found: &mut Vec<Finding>, evidence: &Evidence) {
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
fn unread(found: &mut Vec<Finding>, evidence: &Evidence) {
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

fn start(role: &str) -> String {
    format!("start `weir {role}`; if it ends at once, the last lines of its log say why")
}

fn receivers(found: &mut Vec<Finding>, evidence: &Evidence) {
    let rows = &evidence.rows;
    let all = |matches: fn(&OverviewRow) -> bool| rows.iter().filter(|row| matches(row)).collect::<Vec<_>>();
    let last = |row: &OverviewRow| evidence.last_failures.get(&row.destination.id);
    let open = all(has_open_breaker);
    if let Some(first) = open.first() {
        let reason = first.destination.breaker_reason.as_deref().unwrap_or("it fails");
        // Each may fail in its own way: the resolver, a certificate, the answers.
        let with_error = |row: &&OverviewRow| match last(row).and_then(error_of) {
            Some(error) => format!("{} ({error})", title(&row.destination)),
            None => title(&row.destination).to_owned(),
        };
        let names: Vec<_> = open.iter().map(with_error).collect();
        let text = format!("breakers are open: {} ({reason})", listed(names.iter().map(String::as_str)));
        let next = common_cause(open.iter().filter_map(|row| last(row))).map_or_else(
            || {
                format!(
                    "weir deliveries list --destination '{}' --state retrying shows the errors; the owner of the receiver must act",
                    title(&first.destination)
                )
            },
            str::to_owned,
        );
        found.push(finding(Note, "receivers", text, next));
    }
    let paused = all(is_behind_a_pause);
    if let Some(first) = paused.first() {
        let since = |row: &&OverviewRow| match evidence.paused_at.get(&row.destination.id) {
            Some(at) => format!("{} (since {at})", title(&row.destination)),
            None => title(&row.destination).to_owned(),
        };
        let names: Vec<_> = paused.iter().map(since).collect();
        let text = format!("deliveries wait behind a pause: {}", listed(names.iter().map(String::as_str)));
        found.push(finding(
            Note,
            "receivers",
            text,
            format!(
                "weir activity --destination '{0}' shows who paused it; weir destinations resume '{0}'",
                title(&first.destination)
            ),
        ));
    }
    let refused = all(|row| row.refused_within_limit.is_some());
    if let Some((first, said)) = refused.first().and_then(|row| Some((row, row.refused_within_limit.as_ref()?))) {
        let text =
            format!("receivers refuse sends that keep the limit: {}. {}", named(refused.iter().copied()), said.text);
        found.push(finding(
            Note,
            "limits",
            text,
            format!("set {} to {} at {}", said.setting, said.value, title(&first.destination)),
        ));
    }
    // Of a member that its limit group holds back the finding about the group tells.
    let never = all(|row| row.drains == Some(false) && row.reason.as_deref() != Some("group"));
    if let Some(first) = never.first() {
        let text =
            format!("more arrives than may be sent, so the backlog never drains: {}", named(never.iter().copied()));
        found.push(finding(
            Note,
            "limits",
            text,
            format!("weir preview '{}' --limit N/second shows what another limit would do", title(&first.destination)),
        ));
    }
    let failing = all(is_failing);
    if let Some(first) = failing.first() {
        let with_error = |row: &&OverviewRow| match last(row)
            .and_then(|last| Some((error_of(last)?, last.error.as_deref(), last.at)))
        {
            // Of a status the error says no more.
            Some((kind, Some(error), at)) if kind.parse::<u16>().is_err() => {
                let error: String = error.chars().take(ERROR_CHARS).collect();
                format!("{} ({kind} at {at}: {error})", title(&row.destination))
            }
            Some((kind, _, at)) => format!("{} ({kind} at {at})", title(&row.destination)),
            None => title(&row.destination).to_owned(),
        };
        let names: Vec<_> = failing.iter().map(with_error).collect();
        let text = format!("no attempt of the last minute succeeded at {}", listed(names.iter().map(String::as_str)));
        let next = format!(
            "weir deliveries list --destination '{}' --state retrying shows the errors; timeouts are a receiver that hangs; Weir sends again, \
             and the owner of the receiver must act",
            title(&first.destination)
        );
        found.push(finding(Note, "receivers", text, next));
    }
    let slow = all(|row| row.reason.as_deref() == Some("slow"));
    if let Some(first) = slow.first() {
        let text = format!("receivers answer too slowly for their limits: {}", named(slow.iter().copied()));
        found.push(finding(
            Note,
            "limits",
            text,
            format!(
                "weir deliveries list --destination '{}' --state retrying shows whether requests end without an answer; if they are answered, raise \
                 max_in_flight as far as the receiver can take more requests at one time",
                title(&first.destination)
            ),
        ));
    }
    let dead: u64 = rows.iter().map(|row| row.undelivered).sum();
    if dead > 0 {
        let text = format!(
            "{} at {}",
            count(dead, "dead letter", "dead letters"),
            named(all(|row| row.undelivered > 0).into_iter())
        );
        found.push(finding(
            Note,
            "receivers",
            text,
            "weir deliveries groups shows why; weir replays create sends them again",
        ));
    }
}

/// What to look at on this side if as many receivers as are looked at fail in the same way: so many rarely fail at the same
/// time by themselves.
fn common_cause<'a>(failures: impl Iterator<Item = &'a LastFailure>) -> Option<&'static str> {
    let kinds: Vec<_> = failures.filter_map(|failure| failure.error_kind.as_deref()).collect();
    if kinds.len() < NAMED || kinds.iter().any(|kind| *kind != kinds[0]) {
        return None;
    }
    match kinds[0] {
        "dns" => Some(
            "several names cannot be resolved: look at the resolver of the workers (/etc/resolv.conf, `getent hosts NAME`) before you ask the owners",
        ),
        "connect" | "timeout" => Some(
            "several receivers cannot be reached: look at the outbound network of the workers (firewall, NAT, network policy) before you ask the owners",
        ),
        "tls" => Some(
            "several certificates are refused: look at the clock and the trusted authorities of the workers before you ask the owners",
        ),
        _ => None,
    }
}

/// Receivers that answer many sends with 429, each with what helps.
fn refusing(found: &mut Vec<Finding>, alerts: &[ActiveAlert]) {
    let name = |alert: &ActiveAlert| {
        let name = alert.destination_name.clone().filter(|name| !name.is_empty());
        name.or_else(|| alert.destination_id.clone()).unwrap_or_default()
    };
    let Some(first) = alerts.first() else { return };
    let names: Vec<_> = alerts.iter().map(name).collect();
    let text = format!("receivers answer many sends with 429: {}", listed(names.iter().map(String::as_str)));
    let reason = first.data["reason"].as_str().unwrap_or_default();
    found.push(finding(Note, "limits", text, format!("{}: {reason}", name(first))));
}

fn named<'a>(rows: impl Iterator<Item = &'a OverviewRow>) -> String {
    listed(rows.map(|row| title(&row.destination)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::{Value, json};
    use weir_core::Timestamp;

    use super::{
        super::{super::overview::tests::overview_row, finding::Severity},
        *,
    };

    fn status(changes: &Value) -> InstallationStatus {
        let mut status = json!({
            "as_of": "2026-11-26T04:30:00.000Z", "version": "0.1.0",
            "store": {"kind": "postgres", "is_reachable": true, "answered_in_ms": 1.0},
            "queue": {"kind": "redis", "is_reachable": true, "answered_in_ms": 1.0},
            "queue_depths": {"jobs": 1, "ready": 0, "oldest_waited_ms": 0, "queued": 0, "in_flight": 0},
            "processes": [{"id": 1, "role": "serve", "version": "0.1.0"}],
        });
        status.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(status).unwrap()
    }

    fn of(changes: Value) -> Vec<(Severity, &'static str, String)> {
        told(&Evidence { status: Some(status(&changes)), ..Evidence::default() })
    }

    fn told(evidence: &Evidence) -> Vec<(Severity, &'static str, String)> {
        findings(evidence).into_iter().map(|finding| (finding.severity, finding.subject, finding.found)).collect()
    }

    fn subjects(found: &[(Severity, &'static str, String)]) -> Vec<(Severity, &'static str)> {
        found.iter().map(|(severity, subject, _)| (*severity, *subject)).collect()
    }

    #[test]
    fn a_healthy_installation_has_no_findings() {
        assert_eq!(of(json!({})), []);
    }

    #[test]
    fn each_part_that_is_away_or_late_is_a_problem() {
        let away = json!({"kind": "redis", "is_reachable": false, "answered_in_ms": null});
        assert_eq!(subjects(&of(json!({"queue": away}))), [(Problem, "queue")]);
        let worker = json!([{"id": 1, "role": "worker", "version": "0.1.0"}]);
        let found = of(json!({"processes": worker}));
        assert!(found.len() == 1 && found[0].2.starts_with("no scheduler runs"), "{found:?}");
        let late = json!({"jobs": 1, "ready": 9, "oldest_waited_ms": 9_000, "queued": 9, "in_flight": 0});
        assert_eq!(subjects(&of(json!({"queue_depths": late}))), [(Problem, "lag")]);
        // Without a worker, permits wait for one, and destinations get nothing: one cause, one finding.
        let scheduler = json!([{"id": 1, "role": "scheduler", "version": "0.1.0"}]);
        let status = status(&json!({"processes": scheduler, "queue_depths": late}));
        let mut row = overview_row(&json!({}), &json!({"reason": "no_worker", "undelivered": 0}));
        let rows = vec![row.clone()];
        let found = told(&Evidence { status: Some(status), rows, ..Evidence::default() });
        assert!(found.len() == 1 && found[0].2.starts_with("no worker runs"), "{found:?}");
        // The row of a process that was killed stays until another one declares it dead.
        row.reason = Some("no_scheduler".to_owned());
        let found = findings(&Evidence { rows: vec![row], ..Evidence::default() });
        assert!(found.len() == 1 && found[0].next_step.starts_with("start `weir scheduler`"));
        let full = json!({"kind": "sqlite", "is_reachable": true, "answered_in_ms": 1.0, "free_bytes": 1_000_000});
        assert_eq!(subjects(&of(json!({"store": full}))), [(Problem, "disk")]);
        let full = json!({"kind": "sqlite", "is_reachable": false, "answered_in_ms": null, "free_bytes": 0});
        assert_eq!(subjects(&of(json!({"store": full}))), [(Problem, "disk")], "one cause");
        // It answers, so it is not started again in vain.
        let read_only = json!({"kind": "postgres", "is_reachable": false, "obstacle": "it is read-only"});
        let found = of(json!({"store": read_only}));
        assert_eq!(subjects(&found), [(Problem, "store")]);
        let text = "the store (postgres) takes no writes, because it is read-only: no event can be accepted";
        assert_eq!(found[0].2, text);
        let full = json!({"kind": "redis", "is_reachable": false, "obstacle": "it refuses calls: OOM"});
        let found = of(json!({"queue": full}));
        assert!(found.len() == 1 && found[0].2.contains("because it refuses calls: OOM"), "{found:?}");
        // A lock in the database: it answers, and the destinations cannot be read.
        let outage = json!({"cause": "store_slow", "reason": "the database does not answer, or answers slowly",
            "since": "2026-11-26T04:10:00.000Z"});
        let locked = Evidence {
            status: Some(self::status(&json!({"outage": outage}))),
            unread: Some("503".to_owned()),
            ..Evidence::default()
        };
        let found = told(&locked);
        assert_eq!(subjects(&found), [(Problem, "backlog")]);
        assert!(found[0].2.ends_with("answers slowly"), "{found:?}");
        let unread = Evidence { unread: Some("503".to_owned()), ..Evidence::default() };
        assert_eq!(subjects(&told(&unread)), [(Problem, "server")], "what was not read is not healthy");
        let unreachable = Evidence { unreachable: Some("refused".to_owned()), ..Evidence::default() };
        assert_eq!(subjects(&told(&unreachable)), [(Problem, "server")]);
    }

    #[test]
    fn what_is_slow_mixed_or_wrong_by_seconds_is_a_note() {
        let slow = json!({"kind": "postgres", "is_reachable": true, "answered_in_ms": 61.0});
        assert_eq!(subjects(&of(json!({"store": slow}))), [(Note, "store")]);
        let mixed =
            json!([{"id": 1, "role": "serve", "version": "0.1.0"}, {"id": 2, "role": "serve", "version": "0.2.0"}]);
        assert_eq!(subjects(&of(json!({"processes": mixed}))), [(Note, "versions")]);
        let clock = |ahead| told(&Evidence { clock_ahead_s: Some(ahead), ..Evidence::default() });
        assert_eq!(clock(1.0), []);
        assert_eq!(subjects(&clock(-5.0)), [(Note, "clock")]);
        assert_eq!(subjects(&clock(90.0)), [(Problem, "clock")]);
        let metrics = "weir_clock_offset_seconds 31.5\nprocess_open_fds 95\nprocess_max_fds 100\n".to_owned();
        let found = told(&Evidence { metrics: Some(metrics), ..Evidence::default() });
        assert_eq!(subjects(&found), [(Problem, "clock"), (Problem, "server")], "an earlier version states no clock");
        let replica = |up| format!("weir_replica_up {up}\nweir_replica_lag_seconds 90\n");
        let told_of = |up| told(&Evidence { metrics: Some(replica(up)), ..Evidence::default() });
        assert_eq!(subjects(&told_of(0)), [(Note, "store")]);
        assert_eq!(told_of(1), []);
    }

    #[test]
    fn receivers_that_refuse_many_sends_are_named_with_what_helps() {
        let alert = |name: &str| {
            let data = json!({"reason": "the receiver answered 60 of the 300 sends of five minutes with 429; turn on the adaptive pace, or set a limit"});
            let alert = json!({"type": "weir.destination.refusing", "destination_id": "dst_1", "destination_name": name,
                "tenant": "default", "data": data});
            serde_json::from_value::<ActiveAlert>(alert).unwrap()
        };
        let refusing = vec![alert("Acme"), alert("")];
        let found = findings(&Evidence { refusing, ..Evidence::default() });
        assert_eq!(
            (found[0].subject, &*found[0].found),
            ("limits", "receivers answer many sends with 429: Acme, dst_1")
        );
        assert!(found[0].next_step.starts_with("Acme: the receiver answered 60 of the 300 sends"), "{found:?}");
    }

    #[test]
    fn troubles_of_receivers_are_notes_and_name_a_few_of_them() {
        let row = |name: &str, destination: Value, figures: Value| {
            let mut brief = json!({"name": name});
            brief.as_object_mut().unwrap().extend(destination.as_object().unwrap().clone());
            overview_row(&brief, &figures)
        };
        let open = json!({"breaker_state": "open", "breaker_reason": "10 failures in a row"});
        let bolt = json!({"id": "dst_2", "breaker_state": "open", "breaker_reason": "10 failures in a row"});
        let rows = vec![
            row("Acme", open.clone(), json!({"undelivered": 0})),
            row("Bolt", bolt, json!({"undelivered": 0})),
            row("Core", open.clone(), json!({"undelivered": 0})),
            row("Dune", open, json!({"undelivered": 0})),
            row("Echo", json!({}), json!({"undelivered": 3, "drains": false, "reason": "slow"})),
            row("Fern", json!({"id": "dst_6", "paused": true}), json!({"undelivered": 0})),
            row("Gold", json!({"id": "dst_7", "paused": true}), json!({"undelivered": 0})),
            row("Hung", json!({"id": "dst_8"}), json!({"undelivered": 0, "reason": "failing"})),
            row("Iris", json!({"id": "dst_9"}), json!({"undelivered": 0, "reason": "failing"})),
        ];
        let paused_at = HashMap::from([("dst_6".to_owned(), Timestamp::from_secs(1_800_000_000))]);
        let failure = |id: &str, status: Option<u16>, kind: &str| {
            let failure = json!({
                "delivery_id": "dlv_1", "number": 1, "at": "2026-11-26T04:29:51.000Z", "status_code": status,
                "error_kind": kind, "error": "it said no", "answer": null,
            });
            (id.to_owned(), serde_json::from_value(failure).unwrap())
        };
        let last_failures = HashMap::from([
            failure("dst_2", None, "dns"),
            failure("dst_8", Some(503), "5xx"),
            failure("dst_9", None, "timeout"),
        ]);
        let found = told(&Evidence { rows, paused_at, last_failures, ..Evidence::default() });
        assert!(found.iter().all(|(severity, ..)| *severity == Note), "{found:?}");
        let texts: Vec<_> = found.iter().map(|(.., text)| text.as_str()).collect();
        assert_eq!(texts[0], "breakers are open: Acme, Bolt (dns), Core and 1 more (10 failures in a row)");
        assert_eq!(texts[1], "deliveries wait behind a pause: Fern (since 2027-01-15T08:00:00.000Z), Gold");
        assert!(texts[2].ends_with("never drains: Echo") && texts[4].ends_with("limits: Echo"), "{texts:?}");
        assert_eq!(
            texts[3],
            "no attempt of the last minute succeeded at Hung (503 at 2026-11-26T04:29:51.000Z), Iris (timeout at \
             2026-11-26T04:29:51.000Z: it said no)"
        );
        assert_eq!(texts[5], "3 dead letters at Echo");
    }

    #[test]
    fn receivers_that_all_fail_in_the_same_way_point_to_this_side() {
        let failure = |kind: &str| {
            let failure =
                json!({"delivery_id": "dlv_1", "number": 1, "at": "2026-11-26T04:29:51.000Z", "error_kind": kind});
            serde_json::from_value::<LastFailure>(failure).unwrap()
        };
        let cause = |kinds: &[&str]| common_cause(kinds.iter().map(|kind| failure(kind)).collect::<Vec<_>>().iter());
        assert!(cause(&["dns", "dns", "dns"]).unwrap().contains("resolver of the workers"));
        assert_eq!(cause(&["dns", "dns"]), None, "two are no pattern");
        assert_eq!(cause(&["dns", "connect", "dns"]), None);
        assert_eq!(cause(&["5xx", "5xx", "5xx"]), None);
    }

    #[test]
    fn what_weir_itself_does_not_send_is_a_problem_with_the_cause_that_the_watch_sees() {
        let rows = |reason: &str, rate: f64| {
            vec![overview_row(
                &json!({"name": "Acme"}),
                &json!({"reason": reason, "achieved_per_s": rate, "undelivered": 0}),
            )]
        };
        let of = |reason, rate| told(&Evidence { rows: rows(reason, rate), ..Evidence::default() });
        let stalled = of("not_published", 0.0);
        assert_eq!(subjects(&stalled), [(Problem, "backlog")]);
        let text = "Acme gets nothing, although the limits allow it: the schedulers publish nothing for it";
        assert_eq!(stalled[0].2, text);
        assert_eq!(subjects(&of("store_slow", 3.0)), [(Problem, "backlog")]);
        assert_eq!(subjects(&of("not_started", 3.0)), [(Note, "backlog")]);
        assert_eq!(of("limit", 3.0), []);
    }
}
