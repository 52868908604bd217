//! Tests of the findings.

use std::collections::HashMap;

use serde_json::{Value, json};
use weir_api_types::{ActiveAlert, LastFailure};
use weir_core::Timestamp;

use super::{
    super::{super::overview::tests::overview_row, finding::Severity, receivers::common_cause},
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
    let mixed = json!([{"id": 1, "role": "serve", "version": "0.1.0"}, {"id": 2, "role": "serve", "version": "0.2.0"}]);
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
    assert_eq!((found[0].subject, &*found[0].found), ("limits", "receivers answer many sends with 429: Acme, dst_1"));
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
