//! The answers of the API, made from its types: the fields that each must have, and what a test adds or changes. A test that
//! names a field which the API does not have, or gives a field a value of another type, fails.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use weir_api_types as types;

const AT: &str = "2025-11-21T07:30:00.000Z";

/// The answer to `method path`, with these changes.
pub(crate) fn answer(method: &str, path: &str, changes: Value) -> Value {
    let parts: Vec<&str> = path.trim_start_matches("/v1/").split('/').collect();
    match (method, parts.as_slice()) {
        (_, ["me" | "session"]) => of::<types::Me>(me(), changes),
        (_, ["overview"]) => of::<types::Overview>(overview(), changes),
        (_, ["overview", "history"]) => of::<types::OverviewHistory>(overview_history(), changes),
        ("GET", ["destinations"]) => of::<types::List<types::Destination>>(list(destination()), changes),
        (_, ["destinations"]) => {
            of::<types::CreatedDestination>(with(destination(), json!({"secret": "whsec_1"})), changes)
        }
        (_, ["destinations", _]) => of::<types::Destination>(destination(), changes),
        ("POST", ["destinations", _, "override"]) => of::<types::OverriddenDestination>(destination(), changes),
        ("POST", ["destinations", _, "hold"]) => of::<types::HeldDestination>(destination(), changes),
        (_, ["destinations", _, "release" | "override" | "hold"]) => of::<types::Destination>(destination(), changes),
        (_, ["destinations", _, "overview"]) => of::<types::DestinationOverview>(with(row(), explained()), changes),
        (_, ["destinations", _, "rate"]) => of::<types::RateHistory>(rate(), changes),
        (_, ["destinations", _, "health"]) => of::<types::DestinationHealth>(health(), changes),
        (_, ["destinations", _, "history"]) => of::<types::History>(history(), changes),
        (_, ["destinations", _, "audit"]) => of::<types::Audit>(audit(), changes),
        (_, ["destinations", _, "preview"]) => of::<types::Preview>(preview(), changes),
        (_, ["destinations", _, "simulate"]) => of::<types::Simulation>(simulation(), changes),
        (_, ["destinations", _, "secret" | "rotate-secret"]) => of::<types::Secret>(secret(), changes),
        (_, ["destinations", _, "purge"]) => of::<types::PurgeAnswer>(json!({}), changes),
        (_, ["destinations", _, "test"]) => of::<types::DeliveryDetail>(delivery_detail(), changes),
        (_, ["deliveries"]) => of::<types::DeliveryList>(list(delivery()), changes),
        ("POST", ["deliveries", "discard"]) if changes.get("total").is_some() => {
            of::<types::DiscardCount>(json!({"capped": false}), changes)
        }
        ("POST", ["deliveries", "discard"]) => of::<types::Discarded>(json!({}), changes),
        (_, ["deliveries", "groups"]) => of::<types::DeliveryGroups>(groups(), changes),
        (_, ["deliveries", _] | ["deliveries", _, _]) => of::<types::DeliveryDetail>(delivery_detail(), changes),
        (_, ["events"]) => of::<types::List<types::Event>>(list(event()), changes),
        (_, ["events", _]) => of::<types::EventDetail>(event_detail(), changes),
        ("POST", ["limit-groups", _, "override"]) => of::<types::OverriddenLimitGroup>(limit_group(), changes),
        ("POST", ["limit-groups", _, "hold"]) => of::<types::HeldLimitGroup>(limit_group(), changes),
        (_, ["limit-groups", _, "override" | "hold"]) => of::<types::LimitGroup>(limit_group(), changes),
        ("GET", ["limit-groups"]) => of::<types::List<types::LimitGroupRow>>(list(group_row()), changes),
        (_, ["limit-groups"] | ["limit-groups", _]) => of::<types::LimitGroup>(limit_group(), changes),
        (_, ["limit-groups", _, "overview"]) => {
            let reservations = json!({"last_minute": 0, "per_s": 0.0});
            let shown = json!({"as_of": AT, "reservations": reservations, "data": [group_member()]});
            of::<types::LimitGroupOverview>(with(group_row(), shown), changes)
        }
        (_, ["limit-groups", _, "reservations"]) => of::<types::List<types::Reservation>>(list(reservation()), changes),
        (_, ["limit-groups", _, "preview"]) => of::<types::Preview>(preview(), changes),
        (_, ["limit-groups", _, "history"]) => of::<types::LimitGroupHistory>(group_history(), changes),
        (_, ["limit-groups", _, "audit"]) => of::<types::Audit>(audit(), changes),
        ("GET", ["event-types"]) => of::<types::List<types::EventType>>(list(event_type()), changes),
        (_, ["event-types", _]) => of::<types::EventType>(event_type(), changes),
        (_, ["replays"]) if changes.get("total").is_some() && changes.get("id").is_none() => {
            of::<types::Count>(json!({"total": 0}), changes)
        }
        ("GET", ["destinations", _, "keys"]) => {
            of::<types::LimitKeyList>(json!({"as_of": AT, "data": [limit_key()], "is_partial": false}), changes)
        }
        (_, ["destinations", _, "keys", _, _]) => of::<types::Destination>(destination(), changes),
        ("GET", ["replays"]) => of::<types::List<types::Replay>>(list(replay()), changes),
        (_, ["replays", ..]) => of::<types::Replay>(replay(), changes),
        ("GET", ["keys"]) => of::<types::List<types::ApiKey>>(list(key()), changes),
        ("POST", ["keys"]) => of::<types::CreatedApiKey>(with(key(), json!({"secret": "wk_1"})), changes),
        (_, ["activity"]) => of::<types::List<types::Activity>>(list(activity()), changes),
        (_, ["alerts", "active"]) => of::<types::ActiveAlerts>(active_alerts(), changes),
        (_, ["alerts"]) => of::<weir_core::alert::AlertPolicy>(alerts(), changes),
        (_, ["status"]) => of::<types::InstallationStatus>(status(), changes),
        (_, ["shedding"]) => of::<types::Shedding>(shedding(), changes),
        (_, ["destinations", _, "filter", "try"]) => of::<types::FilterTried>(json!({"matches": true}), changes),
        (_, ["verify"]) => of::<types::Verified>(verified(), changes),
        _ => panic!("{method} {path} is no route whose answer has a type"),
    }
}

/// A refusal.
pub(crate) fn refusal(changes: Value) -> Value {
    of::<types::Problem>(
        json!({"type": "/docs#problem", "title": "", "detail": "", "status": 0, "errors": [{}]}),
        changes,
    )
}

fn limit_group() -> Value {
    json!({
        "id": "lgr_1", "name": "Stripe", "tenant": "acme", "max_in_flight": null, "created_at": AT, "updated_at": AT,
        "rate_limits": [{"limit": 100, "period": "second", "burst": 1, "margin_ms": 0}],
    })
}

fn group_row() -> Value {
    let figures = json!({
        "members": 0, "backlog": 0, "delivering": 0, "oldest_age_s": null, "configured_per_s": 100.0, "binding": null,
        "achieved_per_s": 0.0, "arrivals_per_s": 0.0, "utilisation": 0.0, "drain_eta_s": null, "drains": null,
    });
    with(limit_group(), figures)
}

fn limit_key() -> Value {
    json!({
        "key": "cus_1", "waiting": 0, "oldest_age_s": null, "achieved_per_s": 0.0, "configured_per_s": null,
        "share_per_s": null, "binding": null, "drain_eta_s": null, "rate_limits": [], "max_in_flight": null, "weight": 1,
        "paused": false, "is_overridden": false,
    })
}

fn reservation() -> Value {
    json!({
        "id": "rsv_1", "limit_group": "lgr_1", "cost": 1, "created_at": AT, "starts_at": AT, "ends_at": AT,
        "cancelled_at": null, "state": "over",
    })
}

fn group_member() -> Value {
    json!({
        "id": "dst_1", "name": "Acme", "url": "https://a.example/", "tenant": "acme", "weight": 1, "backlog": 0,
        "achieved_per_s": 0.0, "share_per_s": null, "utilisation": null, "drain_eta_s": null, "reason": null,
    })
}

fn event_type() -> Value {
    json!({
        "name": "order.created", "description": "", "example": null, "schema": null, "created_at": AT, "updated_at": AT,
    })
}

fn group_history() -> Value {
    let bucket = json!({"at": AT, "sends": 0, "delivered": 0, "failed": 0, "arrivals": 0});
    let change = json!({"at": AT, "rate_limits": [limit()], "min_interval_ms": null});
    json!({"step": "1m", "from": AT, "to": "2025-11-21T07:31:00.000Z", "data": [bucket], "limit_changes": [change]})
}

fn active_alerts() -> Value {
    let alert = json!({
        "type": "weir.breaker.opened", "destination_id": "dst_1", "destination_name": "Acme", "tenant": "acme",
        "data": {},
    });
    json!({"as_of": AT, "counts": {}, "data": [alert], "next_cursor": null})
}

fn of<T: Serialize + DeserializeOwned>(example: Value, changes: Value) -> Value {
    let changed = changed(&example, changes.clone());
    let answer: T = serde_json::from_value(changed.clone()).unwrap_or_else(|error| panic!("{error}: {changed}"));
    let answer = serde_json::to_value(answer).unwrap();
    assert_has(&answer, &changes, "");
    answer
}

/// The example with these changes. The items of a list are changes of the example's item; a list that is not changed has
/// none.
fn changed(example: &Value, changes: Value) -> Value {
    match (example, changes) {
        (Value::Object(fields), Value::Object(mut changes)) => {
            let unchanged = |(name, value): (&String, &Value)| {
                let value = if value.is_array() { json!([]) } else { value.clone() };
                (name.clone(), changes.remove(name).map_or(value, |change| changed(&fields[name], change)))
            };
            let mut all: serde_json::Map<_, _> = fields.iter().map(unchanged).collect();
            all.extend(changes);
            Value::Object(all)
        }
        (Value::Array(items), Value::Array(changes)) => {
            changes.into_iter().map(|change| changed(items.first().unwrap_or(&Value::Null), change)).collect()
        }
        (_, change) => change,
    }
}

/// Panics unless the answer has every scripted value. A field without a value may be absent.
fn assert_has(answer: &Value, scripted: &Value, at: &str) {
    match (answer, scripted) {
        (Value::Object(fields), Value::Object(scripted)) => {
            for (name, value) in scripted {
                assert_has(fields.get(name).unwrap_or(&Value::Null), value, &format!("{at}/{name}"));
            }
        }
        (Value::Array(items), Value::Array(scripted)) => {
            items.iter().zip(scripted).for_each(|(item, scripted)| assert_has(item, scripted, at));
        }
        (Value::Number(number), Value::Number(scripted)) => assert_eq!(number.as_f64(), scripted.as_f64(), "{at}"),
        _ => assert_eq!(answer, scripted, "the API has no such {at}"),
    }
}

fn with(mut value: Value, more: Value) -> Value {
    value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    value
}

fn list(item: Value) -> Value {
    json!({ "data": [item] })
}

fn me() -> Value {
    json!({"role": "read", "keys_required": true, "version": "0.1.0"})
}

fn limit() -> Value {
    json!({"limit": 10, "period": "second", "burst": 1, "margin_ms": 0})
}

fn row() -> Value {
    let brief = json!({
        "id": "dst_1", "name": "Acme", "url": "https://example.com/hooks", "tenant": "default", "rate_limits": [limit()],
        "max_in_flight": 64, "ordered": false, "paused": false, "breaker_state": "closed",
    });
    json!({
        "destination": brief, "pending": 0, "retrying": 0, "delivering": 0, "undelivered": 0, "backlog": 0, "achieved_per_s": 0,
        "arrivals_per_s": 0,
    })
}

fn overview() -> Value {
    let totals = json!({
        "destinations": 0, "backlog": 0, "undelivered": 0, "achieved_per_s": 0, "arrivals_per_s": 0, "paused": 0, "held": 0,
        "breaker": 0, "never_drains": 0,
    });
    json!({"as_of": AT, "totals": totals, "matches": 0, "skipped": 0, "data": [row()]})
}

fn overview_history() -> Value {
    let minute = json!({"at": AT, "sends": 0, "delivered": 0, "failed": 0, "arrivals": 0, "backlog": 0});
    json!({"as_of": AT, "data": [minute]})
}

fn destination() -> Value {
    json!({
        "id": "dst_1", "created_at": AT, "updated_at": AT, "url": "https://example.com/hooks", "name": "Acme",
        "tenant": "default", "event_types": [""], "rate_limits": [limit()], "max_in_flight": 64, "timeout_ms": 15_000,
        "retry": {"max_attempts": 16, "max_age_s": 259_200}, "refusals_count": false, "alerts": {}, "ordered": false,
        "headers": {}, "signature": {"style": "standard"}, "paused": false, "breaker_state": "closed",
        "body": {"format": "envelope", "content_type": "application/json"},
        "signature_format": {
            "signed": "{id}.{timestamp}.{body}", "value": "v1,{signature}", "encoding": "base64",
            "algorithm": "hmac-sha256", "key": "decoded", "timestamp_format": "unix-seconds", "header": "webhook-signature",
            "separator": " ",
        },
    })
}

/// What the row of one destination has beside that of the overview.
fn explained() -> Value {
    json!({"as_of": AT, "failures": [{"error": "503", "count": 1}]})
}

fn pace() -> Value {
    json!({"per_s": 18.0, "since": AT, "reason": "throttled", "detail": "12 of 340 answers were 429"})
}

fn rate() -> Value {
    let change = json!({
        "at": AT, "from_per_s": 100.0, "to_per_s": 18.0, "reason": "throttled", "detail": "12 of 340 answers were 429",
    });
    let observed = json!({"per_s": 97.0, "fastest_per_s": null, "refusing": 3, "stretches": 4, "text": "It refused"});
    json!({"adaptive_rate": pace(), "observed": observed, "data": [change], "next_cursor": null})
}

fn health() -> Value {
    json!({
        "window": "1h", "latency_ms": {}, "attempts": [{}], "attempts_made": 0, "delivered": 0, "failed": 0, "dead": 0,
    })
}

fn history() -> Value {
    let bucket = json!({"at": AT, "sends": 0, "delivered": 0, "failed": 0, "arrivals": 0, "backlog": 0, "max_window": [{}],
        "errors": [{"error": "503", "count": 1}]});
    let change = json!({"at": AT, "rate_limits": [limit()]});
    let latency = json!({"at": AT, "step_s": 60, "p50": 1.0, "p95": 1.0});
    json!({
        "step": "10s", "from": AT, "to": AT, "data": [bucket], "windows_left_out": [], "errors_left_out": false,
        "latencies": [latency], "limit_changes": [change],
    })
}

fn audit() -> Value {
    let judged = with(limit(), json!({"violations": 0, "possible_violations": 0}));
    let interval = json!({"min_interval_ms": 100, "violations": 0, "possible_violations": 0});
    json!({
        "from": AT, "sends": 0, "rate_limits": [judged], "min_intervals": [interval], "unknown_sends": [],
        "unknown_sends_total": 0, "delivery_latency_ms": {},
    })
}

fn preview() -> Value {
    json!({"would_expire": false, "now": {"would_expire": false}})
}

fn simulation() -> Value {
    let point = json!({"at": AT, "due": 0, "sent": 0, "backlog": 0, "recorded_backlog": 0});
    json!({
        "from": AT, "to": AT, "deliveries": 0, "truncated": false, "backlog_max": {"at": AT, "count": 0},
        "backlog_end": 0, "would_expire": 0, "latency_ms": {}, "recorded_latency_ms": {}, "rate_limits": [],
        "verdict": "drains", "series": [point],
    })
}

fn secret() -> Value {
    json!({"secret": "whsec_1"})
}

fn delivery() -> Value {
    json!({
        "id": "dlv_1", "event_id": "evt_1", "event_type": "video.created", "destination_id": "dst_1", "state": "pending",
        "attempt_count": 0, "created_at": AT, "updated_at": AT,
    })
}

fn delivery_detail() -> Value {
    let attempt =
        json!({"id": "att_1", "number": 1, "duration_ms": 12, "outcome": "delivered", "response_headers": [["", ""]]});
    with(delivery(), json!({ "attempts": [attempt] }))
}

fn groups() -> Value {
    let group = json!({
        "destination_id": "dst_1", "destination_name": "Acme", "state": "dead", "deliveries": 1, "newest_at": AT,
        "oldest_at": AT, "example_id": "dlv_1",
    });
    json!({"data": [group], "scanned": 0, "capped": false})
}

fn event() -> Value {
    json!({"id": "evt_1", "type": "video.created", "tenant": "default", "created_at": AT})
}

fn event_detail() -> Value {
    with(event(), json!({ "deliveries": [delivery()] }))
}

fn replay() -> Value {
    json!({
        "id": "rpl_1", "state": "running", "states": [""], "total": 0, "delivered": 0, "failed": 0, "cancelled": 0,
        "remaining": 0, "created_at": AT,
    })
}

fn key() -> Value {
    json!({"id": "key_1", "name": "video", "role": "read", "created_at": AT})
}

fn activity() -> Value {
    json!({"id": "act_1", "at": AT, "actor": "billing", "actor_kind": "key", "action": "destination.edited"})
}

fn alerts() -> Value {
    json!({"drain_beyond_ttl": true, "dead_letters": 1})
}

fn status() -> Value {
    let backend = json!({"kind": "sqlite", "is_reachable": true});
    json!({"as_of": AT, "version": "0.1.0", "store": backend, "queue": backend, "processes": [{"id": 1}]})
}

fn shedding() -> Value {
    let peaks = json!({"peak_p99": 40, "peak_max": 48, "suggested": 60});
    let class = with(json!({"class": "ingest", "in_flight": 3, "limit": 16_384}), peaks.clone());
    let client = with(json!({"name": "billing", "in_flight": 3, "limit": 32, "weight": 4, "refused": 1_200}), peaks);
    let now = json!({
        "mode": "on", "level": 0, "blind": false, "processes": 2, "classes": [class], "clients": [client],
    });
    let automatic = json!({"in_flight": null});
    let limit = json!({"tenant": "acme", "in_flight": 32, "weight": 4});
    json!({
        "target_ms": 250, "now": now, "clients": {"default": {"weight": 1}, "overrides": [limit]},
        "classes": {"control": automatic, "ingest": automatic, "read": automatic, "heavy": {"in_flight": 4}},
    })
}

fn verified() -> Value {
    json!({"valid": true})
}
