//! The page of a destination: its state, the editor of its limits, and the proof.

use serde_json::{Value, json};

use crate::support::{FakeApi, Page, XSS, problem, row};

const PAGE: &str = "/destinations/dst_1";

fn destination() -> Value {
    let limits = json!([{"limit": 10, "period": "second", "burst": 1}]);
    json!({
        "id": "dst_1", "url": "https://example.com/hooks", "name": "Acme", "tenant": "default", "rate_limits": limits,
        "max_in_flight": 64, "paused": false, "paused_reason": null, "breaker_state": "closed", "breaker_reason": null,
        "next_probe_at": null, "held_until": null, "held_reason": null,
    })
}

fn health() -> Value {
    json!({
        "window": "1h", "success_ratio": 0.95, "latency_ms": {"p50": 12.0, "p95": 80.0, "p99": 1_500.0},
        "attempts": [{"number": 1, "deliveries": 900}, {"number": 2, "deliveries": 9}], "attempts_made": 918,
        "delivered": 909, "failed": 9, "dead": 0, "last_success_at": "2025-11-21T07:29:59.000Z",
    })
}

fn outlook(rate: f64, eta: Option<f64>) -> Value {
    json!({
        "effective_per_s": rate, "binding": {"limit": 10, "period": "second"}, "drain_eta_s": eta,
        "drains": eta.is_some(), "would_expire": true, "first_expiry_at": "2025-11-21T08:00:00.000Z",
    })
}

/// The API with this destination, changed by `edit`.
fn api(role: &str, edit: impl FnOnce(&mut Value)) -> FakeApi {
    let api = FakeApi::for_role(role);
    let mut shown = destination();
    edit(&mut shown);
    api.on_with("GET", "/v1/destinations/dst_1", 200, &[("etag", "\"v1\"")], shown);
    let mut state = row("dst_1", "Acme");
    state["as_of"] = json!("2025-11-21T07:30:00.000Z");
    api.on("GET", "/v1/destinations/dst_1/overview", 200, state);
    api.on("GET", "/v1/destinations/dst_1/health", 200, health());
    api
}

#[tokio::test]
async fn the_first_tab_says_why_it_is_not_faster_and_how_healthy_it_is() {
    let page = api("read", |_| {}).dashboard().get(&format!("{PAGE}?window=24h")).await;
    page.has(&[
        "<h1>Acme</h1>",
        "It sends as fast as its limit of 10/s allows.",
        "<dd>9.7/s <small>of 10/s</small></dd>",
        "3 min 32 s",
        "<b class=\"warn\">95 %</b>",
        "p99</span> 1.5 s",
        "aria-current=\"true\">24h</a>",
        "data-form=\"ago\">1 s ago</time> <span class=\"soft\"><time datetime=\"2025-11-21T07:29:59.000Z\"",
        "hx-get=\"/fragments/destinations/dst_1/now?window=24h\"",
        "hx-sse:connect=\"/live?destination=dst_1\"",
    ]);
}

/// The page of a destination whose row of the overview has these changes.
async fn page_with(changes: Value) -> Page {
    let api = api("operate", |_| {});
    let mut state = row("dst_1", "Acme");
    state.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    api.on("GET", "/v1/destinations/dst_1/overview", 200, state);
    api.dashboard().get(PAGE).await
}

#[tokio::test]
async fn the_advice_follows_the_reason() {
    let limit = json!({"limit": 10, "period": "second"});
    let advice = |setting: &str, value: u32, rate: f64, eta: Option<f64>| {
        json!({"setting": setting, "value": value, "effective_per_s": rate, "binding": limit, "drain_eta_s": eta,
            "drains": eta.is_some()})
    };
    let slow = json!({
        "as_of": "2025-11-21T07:30:00.000Z", "reason": "slow", "effective_per_s": 6.7, "answer_time_ms": 9_600.0,
        "advice": advice("max_in_flight", 120, 10.0, Some(140.0)),
    });
    page_with(slow).await.has(&[
        "The receiver takes 9.6 s to answer. With 64 in flight at one time, that is at most 6.7/s.",
        "With 120 in flight, it could send 10/s (bound by 10/s), and what waits would be sent within 2 min 20 s.",
        "<a href=\"#editor\">Change it</a>",
        "<dt>Effective</dt><dd>6.7/s</dd>",
    ]);
    let mut minute = advice("limit", 1_200, 10.0, Some(200.0));
    minute["period"] = json!("minute");
    page_with(json!({"advice": minute}))
        .await
        .has(&["Only with a limit of 1,200/min, it would send no faster: 10/s allows no more."]);
    let never = json!({"drains": false, "drain_eta_s": null, "arrivals_per_s": 25.0, "advice": {
        "setting": "limit", "value": 32, "period": "second", "effective_per_s": 31.7, "drain_eta_s": 90.0, "drains": true,
    }});
    page_with(never)
        .await
        .has(&["25/s arrive, but at most 10/s can be sent", "With a limit of 32/s, it could send 31.7/s"]);
    let held = json!({"reason": "held", "waits_for": {"reason": "hold", "until": "2025-11-21T07:31:00.000Z",
        "detail": "the destination answered 429 with retry-after: 60"}});
    page_with(held).await.has(&[
        "The receiver asked Weir to wait: the destination answered 429 with retry-after: 60.",
        "07:31:00</time> (<time",
    ]);
    let paused = json!({"reason": "paused", "waits_for": {"reason": "pause", "by": "olga"}});
    page_with(paused).await.has(&["Paused by olga. Deliveries wait. A resume sends the "]);
    let keyed = json!({"reason": "key", "effective_per_s": 6.0});
    page_with(keyed).await.has(&["or that are paused. <a href=\"/destinations/dst_1/keys\">Limit keys</a>"]);
    let until = "2025-11-21T07:31:00.000Z";
    let of_group = json!({"reason": "held", "waits_for": {"reason": "hold", "until": until,
        "detail": "its limit group is held"}});
    page_with(of_group).await.has(&["Its limit group is held, and so is each member.", "Held until <time"]);
}

#[tokio::test]
async fn a_limit_in_costs_is_told_in_points() {
    let binding = json!({"limit": 100, "period": "minute", "unit": "cost"});
    let advice = json!({
        "setting": "limit", "value": 200, "period": "minute", "effective_per_s": 0.66, "drain_eta_s": 90.0, "drains": true,
        "binding": {"limit": 200, "period": "minute", "unit": "cost"},
    });
    let limited = json!({"reason": "limit", "effective_per_s": 0.33, "binding": binding, "advice": advice});
    page_with(limited).await.has(&[
        "It sends as fast as its limit of 100 points/min allows.",
        "With a limit of 200 points/min, it could send 0.66/s (bound by 200 points/min)",
        "<small>of 100 points/min</small>",
    ]);
}

#[tokio::test]
async fn a_backlog_that_a_breaker_stops_is_red_and_the_preview_says_from_when_it_counts() {
    let broken = api("operate", |shown| shown["breaker_state"] = json!("open"));
    let mut state = row("dst_1", "Acme");
    state["as_of"] = json!("2025-11-21T07:30:00.000Z");
    (state["reason"], state["backlog"]) = (json!("breaker"), json!(60));
    (state["drain_eta_s"], state["drains"]) = (Value::Null, Value::Null);
    state["destination"]["breaker_state"] = json!("open");
    broken.on("GET", "/v1/destinations/dst_1/overview", 200, state);
    let page = broken.dashboard().get(PAGE).await;
    page.has(&["<span class=\"bad\">stopped</span>", "Its breaker is not closed: only probes are sent"]);
}

#[tokio::test]
async fn paused_limit_keys_are_named_where_the_backlog_counts_what_waits_for_them() {
    let page = api("read", |shown| {
        let paused = json!({"paused": true});
        let overrides = json!({"cus_9": paused, "cus_1": {"weight": 2, "paused": false}, "": paused});
        shown["key_limits"] = json!({"key": "/customer", "rate_limits": [], "weight": 1, "overrides": overrides});
    });
    page.dashboard().get(PAGE).await.has(&["The limit keys (no key), cus_9 are paused.", "is not sent. <a href"]);
}

#[tokio::test]
async fn a_member_of_a_limit_group_is_told_its_share_and_a_paused_one_that_it_is_paused() {
    let api = api("operate", |shown| {
        (shown["limit_group"], shown["weight"], shown["paused"]) = (json!("lgr_1"), json!(2), json!(true));
    });
    let other = |id: &str, backlog: u64| json!({"id": id, "backlog": backlog, "share_per_s": 4.0});
    let members = json!([other("dst_1", 9), other("dst_2", 9), other("dst_3", 9), other("dst_4", 0)]);
    let group = json!({"name": format!("stripe {XSS}"), "configured_per_s": 10.0, "members": 4, "data": members});
    api.on("GET", "/v1/limit-groups/lgr_1/overview", 200, group);
    let page = api.dashboard().get(PAGE).await;
    page.has(&[
        "It shares 10/s of stripe ",
        " with 2 others that have a backlog: about 4/s.",
        "It is paused: nothing is sent until it is resumed.",
    ]);
    page.has_not(&[XSS]);
    let bound = json!({"reason": "group", "effective_per_s": 4.0});
    api.on("GET", "/v1/destinations/dst_1/overview", 200, bound);
    api.dashboard().get(PAGE).await.has(&[
        "It sends its share of its limit group, 4/s. Higher limits of the group, or a higher weight in it, would let it send more.",
        "<a href=\"/limit-groups/lgr_1\">The limit group</a>",
    ]);
    // A key that is bound to a tenant may not see the group.
    api.on("GET", "/v1/limit-groups/lgr_1/overview", 404, problem("Not found", "there is no limit group lgr_1"));
    api.dashboard().get(PAGE).await.has(&["with the weight 2.</p>"]);
}

#[tokio::test]
async fn an_open_breaker_shows_its_last_failure_and_the_mix_of_errors() {
    let page = page_with(json!({
        "reason": "breaker",
        "waits_for": {"reason": "breaker", "until": "2025-11-21T07:30:12.000Z", "detail": "10 failures in a row"},
        "last_failure": {"delivery_id": "dlv_9", "number": 3, "at": "2025-11-21T07:29:50.000Z", "status_code": 503,
            "answer": XSS},
        "failures": [{"error": "503", "count": 12}, {"error": "timeout", "count": 3}],
    }));
    page.await.has(&[
        "The breaker is open because the receiver fails: 10 failures in a row.",
        "The next probe is sent at <time datetime=\"2025-11-21T07:30:12.000Z\"",
        "<a href=\"/deliveries/dlv_9#attempt-3\">HTTP 503</a>",
        "<code>&#34;&#39;&#62;&#60;script&#62;",
        "Of the last failures: 503 × 12, timeout × 3.",
    ]);
}

#[tokio::test]
async fn an_open_breaker_a_hold_and_a_pause_have_banners() {
    let open = api("operate", |shown| {
        shown["breaker_state"] = json!("open");
        shown["breaker_reason"] = json!("10 failures in a row");
        shown["next_probe_at"] = json!("2025-11-21T07:30:12.000Z");
        shown["held_until"] = json!("2025-11-21T07:31:00.000Z");
    });
    open.dashboard().get(PAGE).await.has(&[
        "The breaker is open.",
        "10 failures in a row. Next probe <time datetime=\"2025-11-21T07:30:12.000Z\"",
        "data-form=\"countdown\"",
        "Close it now",
        "Held until",
    ]);
    let held = api("operate", |shown| shown["held_until"] = json!("2025-11-21T07:31:00.000Z"));
    held.dashboard().get(PAGE).await.has(&["<b>Held until", "<button>Release</button>"]);
    held.on("POST", "/v1/destinations/dst_1/release", 200, json!({}));
    let released = held.dashboard().post(&format!("{PAGE}/release"), &format!("next={PAGE}")).await;
    assert_eq!((released.status.as_u16(), released.location()), (303, PAGE));
    assert_eq!(held.seen("POST", "/v1/destinations/dst_1/release").len(), 1);
    let paused = api("operate", |shown| shown["paused"] = json!(true));
    paused.dashboard().get(PAGE).await.has(&["<b>Paused.</b>", "<button>Resume</button>"]);
    let mut state = row("dst_1", "Acme");
    state["as_of"] = json!("2025-11-21T07:30:00.000Z");
    state["waits_for"] = json!({"reason": "pause", "by": "olga", "since": "2025-11-21T07:00:00.000Z"});
    paused.on("GET", "/v1/destinations/dst_1/overview", 200, state);
    paused
        .dashboard()
        .get(PAGE)
        .await
        .has(&["Paused by olga. Since <time", ">2025-11-21 07:00:00</time> its deliveries wait."]);
    paused.on("PATCH", "/v1/destinations/dst_1", 200, json!({}));
    let resumed = paused.dashboard().post(&format!("{PAGE}/pause"), &format!("paused=false&next={PAGE}")).await;
    assert_eq!((resumed.location(), resumed.flash().as_str()), (PAGE, "done.Sending again."));
    assert_eq!(paused.seen("PATCH", "/v1/destinations/dst_1")[0].body, json!({"paused": false}));
}

#[tokio::test]
async fn a_reader_sees_the_limits_and_no_form() {
    let page = api("read", |_| {}).dashboard().get(PAGE).await;
    page.has(&["10/s; 64 in flight"])
        .has_not(&["<form method=\"post\" action=\"/destinations", "name=\"limit_second\""]);
}

#[tokio::test]
async fn every_text_of_the_page_is_escaped() {
    let api = api("admin", |shown| {
        for field in ["name", "url", "tenant", "breaker_reason", "held_reason", "paused_reason"] {
            shown[field] = json!(XSS);
        }
        shown["breaker_state"] = json!("open");
        shown["held_until"] = json!("2025-11-21T07:31:00.000Z");
    });
    let page = api.dashboard().get(&format!("{PAGE}?was=%22%3E%3Cscript%3Ealert(1)%3C/script%3E")).await;
    page.has(&["&#60;script&#62;"]).has_not(&["<script>alert"]);
}

#[tokio::test]
async fn limits_are_tried_on_the_past_with_a_sentence_first() {
    let api = api("operate", |_| {});
    let points = [("2025-11-21T07:30:00.000Z", 4, 40), ("2025-11-21T07:42:00.000Z", 0, 1_200)];
    let point = |(at, recorded, tried): (&str, u64, u64)| json!({"at": at, "due": 9, "sent": 9, "recorded_backlog": recorded, "backlog": tried});
    let grows = json!({
        "deliveries": 5_000, "backlog_end": 1_200, "backlog_max": {"at": points[1].0, "count": 1_201}, "verdict": "grows",
        "drained_at": "2025-11-21T09:00:00.000Z", "would_expire": 3, "latency_ms": {"p50": 90_000.0, "p99": 900_000.0},
        "recorded_latency_ms": {"p50": 120.0, "p99": 2_500.0}, "series": points.map(point),
        "smallest_limit": {"limit": 24, "period": "second", "burst": 1, "margin_ms": 0},
    });
    api.on("POST", "/v1/destinations/dst_1/simulate", 200, grows);
    let form = "limit_second=20&max_in_flight=8&past=6h&traffic=2&within=5s";
    let headers = [("sec-fetch-site", "same-origin"), ("hx-request", "true")];
    let part = api.dashboard().post_with(&format!("{PAGE}/simulate"), form, &headers).await;
    part.has(&[
        "<b>With 20/s; 8 in flight, the backlog of the last 6 hours would have grown: 1,200 would wait now.</b>",
        "3 would expire unsent. The last one would be sent at <time",
        "<title>11-21 07:42 UTC: 0 waited, 1,200 would wait</title>",
        "<td>2.5 s</td><td><b>15 min</b></td>",
        "<td>4</td><td><b>1,201</b></td>",
        "<b>24/s</b> is the smallest limit, alone, with which 99 of 100 are answered within 5 seconds.",
    ]);
    part.has_not(&["<html", "max_in_flight</"]);
    let sent = &api.seen("POST", "/v1/destinations/dst_1/simulate")[0].body;
    assert_eq!(
        (&sent["rate_limits"][0]["limit"], &sent["scale"], &sent["target"]["latency_p99_ms"]),
        (&json!(20), &json!(2), &json!(5_000))
    );
    // Without the script it is the page with the form as typed.
    let page = api.dashboard().post(&format!("{PAGE}/simulate"), form).await;
    page.has(&["<html", "name=\"limit_second\" value=\"20\"", "<option value=\"6h\" selected>", "<b>24/s</b>"]);
}

#[tokio::test]
async fn a_past_without_deliveries_is_said_to_be_empty() {
    let api = api("operate", |_| {});
    api.on("POST", "/v1/destinations/dst_1/simulate", 200, json!({}));
    let page = api.dashboard().post(&format!("{PAGE}/simulate"), "limit_second=20").await;
    page.has(&["<b>Nothing was due in the last 24 hours.</b>"]).has_not(&["past-picture"]);
}

#[tokio::test]
async fn while_typing_the_preview_shows_both_outlooks() {
    let api = api("operate", |_| {});
    let mut preview = outlook(20.0, Some(60.0));
    preview["binding"] = json!("max_in_flight");
    preview["now"] = outlook(10.0, None);
    api.on("POST", "/v1/destinations/dst_1/preview", 200, preview);
    let (form, headers) =
        ("limit_second=20&max_in_flight=8", [("sec-fetch-site", "same-origin"), ("hx-request", "true")]);
    let part = api.dashboard().post_with(&format!("{PAGE}/preview"), form, &headers).await;
    part.has(&[
        "<td>10/s</td><td><b>20/s</b></td>",
        "<td>never</td><td><b>1 min</b></td>",
        "All places in flight are taken before the limits are reached",
        "yes <span class=\"soft\">the first at <time",
    ]);
    part.has_not(&["<html"]);
    let sent = json!({"rate_limits": [{"period": "second", "limit": 20}], "min_interval_ms": null, "max_in_flight": 8});
    assert_eq!(api.seen("POST", "/v1/destinations/dst_1/preview")[0].body, sent);
    // Without the script it is a page with the form as typed.
    let page = api.dashboard().post(&format!("{PAGE}/preview"), form).await;
    page.has(&["<html", "name=\"limit_second\" value=\"20\"", "<b>20/s</b>"]);
}

#[tokio::test]
async fn a_margin_and_a_minimum_interval_are_edited_with_their_cost() {
    let api = api("operate", |shown| {
        shown["rate_limits"][0]["margin_ms"] = json!(50);
        shown["min_interval_ms"] = json!(90);
    });
    let page = api.dashboard().get(PAGE).await;
    page.has(&["name=\"margin_second\" value=\"50 ms\"", "name=\"min_interval_ms\" value=\"90 ms\""]);
    let mut preview = outlook(9.4, Some(60.0));
    preview["binding"] = json!("min_interval");
    preview["margins_cost_per_s"] = json!(0.5);
    preview["min_interval_costs_per_s"] = json!(0.0);
    preview["now"] = outlook(10.0, None);
    api.on("POST", "/v1/destinations/dst_1/preview", 200, preview);
    let (form, headers) = (
        "limit_second=20&margin_second=0.05+s&min_interval_ms=100+ms",
        [("sec-fetch-site", "same-origin"), ("hx-request", "true")],
    );
    let part = api.dashboard().post_with(&format!("{PAGE}/preview"), form, &headers).await;
    part.has(&["its minimum interval", "<td></td><td>margins 0.5/s</td>"]).has_not(&["All places in flight"]);
    let sent = json!({"rate_limits": [{"period": "second", "limit": 20, "margin_ms": 50}], "min_interval_ms": 100});
    assert_eq!(api.seen("POST", "/v1/destinations/dst_1/preview")[0].body, sent);
}

#[tokio::test]
async fn limits_are_saved_for_the_version_that_was_read_and_can_be_restored() {
    let api = api("operate", |_| {});
    api.on("PATCH", "/v1/destinations/dst_1", 200, json!({}));
    let form = "etag=%22v1%22&limit_second=20&limit_minute=600&max_in_flight=64";
    let saved = api.dashboard().post(&format!("{PAGE}/limits"), form).await;
    assert_eq!(saved.location(), "/destinations/dst_1?was=10--.--.--.--..64");
    assert_eq!(
        saved.flash(),
        "done.Limits saved: 10/s; 64 in flight → 20/s, 600/min; 64 in flight. In effect within 100 ms."
    );
    let edit = api.seen("PATCH", "/v1/destinations/dst_1").pop().unwrap();
    assert_eq!(edit.headers.get("if-match").unwrap(), "\"v1\"");
    let limits = json!([{"period": "second", "limit": 20}, {"period": "minute", "limit": 600}]);
    assert_eq!(edit.body, json!({"rate_limits": limits, "min_interval_ms": null, "max_in_flight": 64}));

    // Afterwards the page offers the way back, with the new version.
    let changed = self::api("operate", |shown| shown["rate_limits"][0]["limit"] = json!(20));
    let page = changed.dashboard().get("/destinations/dst_1?was=10--.--.--.--..64").await;
    page.has(&[
        "Before, the limits were <b>10/s; 64 in flight</b>",
        "name=\"limit_second\" value=\"10\"",
        "Restore them",
    ]);
}

#[tokio::test]
async fn a_change_by_somebody_else_is_explained_with_both_values() {
    let api = api("operate", |shown| shown["rate_limits"][0]["limit"] = json!(15));
    api.on("PATCH", "/v1/destinations/dst_1", 412, problem("Changed", "another version"));
    let page = api.dashboard().post(&format!("{PAGE}/limits"), "etag=%22v0%22&limit_second=20&max_in_flight=64").await;
    assert_eq!(page.status, 412);
    page.has(&[
        "now <b>15/s; 64 in flight</b>",
        "are <b>20/s; 64 in flight</b>",
        "name=\"etag\" value=\"&#34;v1&#34;\"",
        "name=\"limit_second\" value=\"20\"",
    ]);
}

#[tokio::test]
async fn an_invalid_limit_is_shown_with_what_was_typed() {
    let api = api("operate", |_| {});
    let mut refused = problem("The request is invalid", "invalid");
    refused["errors"] = json!([{"pointer": "/rate_limits/0/limit", "detail": "must be a whole number"},
        {"pointer": "/min_interval_ms", "detail": "must be a whole number from 1 to 60000"},
        {"pointer": "/rate_limits/0/margin_ms", "detail": "must be a whole number from 0 to 10000"}]);
    api.on("PATCH", "/v1/destinations/dst_1", 422, refused);
    let page = api
        .dashboard()
        .post(&format!("{PAGE}/limits"), "limit_second=ten&margin_second=20+s&min_interval_ms=100&max_in_flight=64")
        .await;
    assert_eq!(page.status, 422);
    page.has(&[
        "<b>Not saved.</b> See <a href=\"#field-limit_second\">Limit in any second</a>",
        "name=\"limit_second\" value=\"ten\"",
        "aria-invalid=\"true\" aria-describedby=\"fault-limit_second\"",
        "id=\"fault-limit_second\">Must be a whole number.</span>",
        "id=\"fault-margin_second\">Must be from 0 s to 10 s.</span>",
        "id=\"fault-min_interval_ms\">Needs a unit, such as 500 ms, 15 s or 72 h.</span>",
    ]);
}

#[tokio::test]
async fn a_refused_preview_names_the_field_of_the_form() {
    let api = api("operate", |_| {});
    let mut refused = problem("The request is invalid", "invalid");
    refused["errors"] = json!([
        {"pointer": "/rate_limits/1/burst", "detail": "must be 1 or more"},
        {"pointer": "/rate_limits/1/margin_ms", "detail": "must be at most 10000"},
        {"pointer": "/min_interval_ms", "detail": "must be 1 or more"},
        {"pointer": "/max_in_flight", "detail": "must be 1 or more"},
    ]);
    api.on("POST", "/v1/destinations/dst_1/preview", 422, refused);
    let headers = [("sec-fetch-site", "same-origin"), ("hx-request", "true")];
    // The row of the minute is empty, so the hour is the second limit of the call.
    let form = "limit_second=5&limit_minute=&limit_hour=9&burst_hour=0&max_in_flight=0";
    let part = api.dashboard().post_with(&format!("{PAGE}/preview"), form, &headers).await;
    assert_eq!(part.status, 422);
    part.has(&[
        "Burst in any hour: Must be 1 or more. Margin in any hour: Must be at most 10 s. Between two sends: Must be 1 ms or more. \
         In flight: Must be 1 or more.",
    ]);
}

fn history() -> Value {
    let bucket = |at: &str, sends: u64, limit: u64| {
        json!({
            "at": at, "sends": sends, "delivered": sends, "failed": 0, "arrivals": 3, "backlog": 70,
            "max_window": [{"period": "second", "sends": limit, "limit": limit}],
        })
    };
    json!({
        "step": "10s", "from": "2025-11-21T07:30:00.000Z", "to": "2025-11-21T07:30:20.000Z",
        "data": [bucket("2025-11-21T07:30:00.000Z", 97, 10), bucket("2025-11-21T07:30:10.000Z", 190, 20)],
        "limit_changes": [{"at": "2025-11-21T07:30:10.000Z", "rate_limits": [{"limit": 20, "period": "second"}]}],
    })
}

fn audit(violations: u64) -> Value {
    let worst = json!({"start": "2025-11-21T07:30:01.000Z", "sends": 10});
    json!({"sends": 287, "rate_limits": [{"limit": 10, "period": "second", "burst": 1, "worst_sliding_window": worst,
        "violations": violations, "utilisation": 0.97}]})
}

#[tokio::test]
async fn the_proof_shows_verdict_chart_edits_and_a_permalink() {
    let api = api("read", |_| {});
    api.on("GET", "/v1/destinations/dst_1/history", 200, history());
    api.on("GET", "/v1/destinations/dst_1/audit", 200, audit(0));
    let page = api.dashboard().get(&format!("{PAGE}/proof?step=10s")).await;
    page.has(&[
        "Every limit held.",
        "97 %",
        "<svg class=\"weir-chart\"",
        "amber mark",
        ">20/s<",
        "data-form=\"clock\">07:30:10<",
        "href=\"/destinations/dst_1/proof?from=2025-11-21T07:30:00.000Z&#38;to=2025-11-21T07:30:20.000Z&#38;step=10s\"",
        "20 <span class=\"soft\">of 20</span>",
    ]);
    page.has_not(&["<style"]);
    assert_eq!(
        api.seen("GET", "/v1/destinations/dst_1/audit")[0].path,
        "/v1/destinations/dst_1/audit?from=2025-11-21T07:30:00.000Z&to=2025-11-21T07:30:20.000Z"
    );
    api.on("GET", "/v1/destinations/dst_1/audit", 200, audit(3));
    api.dashboard().get(&format!("{PAGE}/proof")).await.has(&["3 sends were above a limit."]);
    api.on("GET", "/v1/destinations/dst_1/audit", 422, problem("Invalid", "too long"));
    api.dashboard().get(&format!("{PAGE}/proof")).await.has(&["takes too much time", "<svg"]);
}

#[tokio::test]
async fn the_range_of_a_proof_is_typed_as_the_pages_show_times() {
    let api = api("read", |_| {});
    api.on("GET", "/v1/destinations/dst_1/history", 200, history());
    api.on("GET", "/v1/destinations/dst_1/audit", 200, audit(0));
    api.dashboard().get(&format!("{PAGE}/proof?from=2025-11-21+07:30:00&to=2025-11-21+07:30&step=10s")).await;
    assert_eq!(
        api.seen("GET", "/v1/destinations/dst_1/history")[0].path,
        "/v1/destinations/dst_1/history?from=2025-11-21T07:30:00Z&to=2025-11-21T07:30:00Z&step=10s"
    );
    api.on("GET", "/v1/destinations/dst_1/history", 422, problem("Invalid", "`from` must be before `to`"));
    let page = api.dashboard().get(&format!("{PAGE}/proof?from=yesterday&to=2025-11-21+07:30:00&step=1m")).await;
    assert_eq!(page.status, 422);
    page.has(&[
        "“yesterday” is no time",
        "name=\"to\" type=\"datetime-local\" step=\"1\" value=\"2025-11-21T07:30:00\"",
    ]);
    page.has(&["<option selected>1m</option>", "<h1>Acme</h1>"])
        .has_not(&["<svg class=\"weir-chart\"", "Every limit held"]);
    let page = api.dashboard().get(&format!("{PAGE}/proof?from=2025-11-21+07:30:00")).await;
    page.has(&["from must be before to"]).has_not(&["`"]);
}

#[tokio::test]
async fn the_preview_follows_the_live_figures_and_leaves_the_form_alone() {
    let page = api("operate", |_| {}).dashboard().get(PAGE).await;
    let region = page.text.split("<div id=\"preview\"").nth(1).unwrap().split('>').next().unwrap();
    for attribute in
        ["hx-trigger=\"snapshot from:#live throttle:2s\"", "hx-include=\"#limits\"", "hx-sync=\"#limits:drop\""]
    {
        assert!(region.contains(attribute), "{attribute}: {region}");
    }
}

#[tokio::test]
async fn a_success_of_this_second_was_just_now() {
    let api = api("read", |_| {});
    let mut health = health();
    health["last_success_at"] = json!("2025-11-21T07:30:00.000Z");
    api.on("GET", "/v1/destinations/dst_1/health", 200, health);
    api.dashboard().get(PAGE).await.has(&["data-form=\"ago\">just now</time> <span"]).has_not(&["0 ms ago"]);
}

#[tokio::test]
async fn the_proof_can_be_downloaded() {
    let api = api("read", |_| {});
    api.on("GET", "/v1/destinations/dst_1/history", 200, history());
    let csv = api.dashboard().get(&format!("{PAGE}/proof.csv")).await;
    assert_eq!(
        csv.text,
        "at,sends,delivered,failed,arrivals,backlog,largest_window_second,limit_second\n\
         2025-11-21T07:30:00.000Z,97,97,0,3,70,10,10\n2025-11-21T07:30:10.000Z,190,190,0,3,70,20,20\n"
    );
    let svg = api.dashboard().get(&format!("{PAGE}/proof.svg")).await;
    assert_eq!(svg.header("content-type"), "image/svg+xml");
    assert_eq!(svg.header("content-disposition"), "attachment; filename=\"dst_1-proof.svg\"");
    svg.has(&["<style>", ">Acme<"]);
}

#[tokio::test]
async fn the_backlog_lists_the_oldest_deliveries_with_their_problems() {
    let api = api("operate", |_| {});
    let delivery = json!({
        "id": "dlv_1", "event_type": XSS, "state": "retrying", "created_at": "2025-11-21T07:00:00.000Z",
        "attempt_count": 3, "next_attempt_at": "2025-11-21T07:31:00.000Z", "last_error": null, "last_status_code": 503,
    });
    // Its due time is over, but others are before it.
    let mut due = delivery.clone();
    (due["id"], due["next_attempt_at"]) = (json!("dlv_2"), json!("2025-11-21T07:29:00.000Z"));
    due["waits_for"] = json!({"reason": "turn", "ahead": {"value": 1_240, "capped": false}});
    due["expected_at"] = json!("2025-11-21T07:43:05.000Z");
    let mut paused = delivery.clone();
    (paused["id"], paused["waits_for"]) = (json!("dlv_3"), json!({"reason": "pause", "by": "olga"}));
    let mut broken = delivery.clone();
    broken["id"] = json!("dlv_4");
    broken["waits_for"] = json!({"reason": "breaker", "until": "2025-11-21T07:30:12.000Z"});
    api.on("GET", "/v1/deliveries", 200, json!({"data": [delivery, due, paused, broken], "next_cursor": null}));
    let page = api.dashboard().get(&format!("{PAGE}/backlog")).await;
    page.has(&[
        "data-form=\"countdown\">at 07:43:05</time> <span class=\"under\">1,240 ahead</span></td>",
        "<span class=\"under\">paused by olga</span>",
        "<span class=\"under\">breaker open, next probe <time datetime=\"2025-11-21T07:30:12.000Z\"",
    ]);
    page.has_not(&["07:29:00", ">now<"]);
    page.has(&[
        "href=\"/deliveries/dlv_1\"",
        "HTTP 503",
        "&#60;script&#62;",
        "href=\"/destinations/dst_1/purge\"",
        "href=\"/deliveries?destination=dst_1&#38;state=pending,retrying&#38;order=oldest\"",
        "hx-get=\"/fragments/destinations/dst_1/backlog\"",
    ]);
    page.has_not(&["<script>alert"]);
    assert_eq!(
        api.seen("GET", "/v1/deliveries")[0].path,
        "/v1/deliveries?destination=dst_1&state=pending,retrying&order=oldest&limit=20"
    );
    api.on("GET", "/v1/deliveries", 200, json!({"data": [], "next_cursor": null}));
    let page = api.dashboard().get(&format!("{PAGE}/backlog")).await;
    page.has(&["Nothing waits", "curl http://weir.test/v1/destinations/dst_1/test"]);
}

#[tokio::test]
async fn the_chart_shows_the_limit_that_binds_and_the_values_at_the_pointer() {
    let api = api("read", |_| {});
    let mut two = history();
    for bucket in two["data"].as_array_mut().unwrap() {
        let minute = json!({"period": "minute", "sends": 97, "limit": 300});
        bucket["max_window"].as_array_mut().unwrap().push(minute);
        (bucket["failed"], bucket["errors"]) =
            (json!(4), json!([{"error": "503", "count": 3}, {"error": "connect", "count": 1}]));
    }
    two["latencies"] = json!([{"at": "2025-11-21T07:30:00.000Z", "step_s": 60, "p50": 120.0, "p95": 900.0}]);
    api.on("GET", "/v1/destinations/dst_1/history", 200, two);
    let part = api.dashboard().get("/fragments/destinations/dst_1/chart").await;
    let (first, others) = part.text.split_once("<details>").expect("the other limits unfold");
    // 300 a minute is less than 20 a second.
    assert!(first.contains(">Any minute<") && !first.contains(">Any second<"), "{first}");
    assert!(others.contains(">Any second<") && !others.contains(">Any minute<"), "{others}");
    for shown in [
        ">Arrivals and sends<",
        ">Attempts<",
        ">The receiver answers in<",
        ">Errors<",
        ">Backlog<",
        ">p95<",
        ">503<",
        ">connect<",
        "<title>07:30:00 to 07:30:10 UTC\nany second: 10 of 10\nany minute: 97 of 300\narrived 3, sent 97\nsucceeded 97, \
         failed 4\nanswered in 120 ms (p50), 900 ms (p95)\n503 × 3, connect × 1\nwaiting 70</title>",
    ] {
        assert!(first.contains(shown), "{shown}: {first}");
    }
    assert_eq!(part.text.matches(">largest window<").count(), 1, "a legend is shown once");
    // The file has every limit.
    let file = api.dashboard().get(&format!("{PAGE}/proof.svg")).await;
    file.has(&[">Any second<", ">Any minute<"]);
    assert_eq!(file.text.matches(">largest window<").count(), 1);
}

#[tokio::test]
async fn the_chart_of_a_limit_in_costs_draws_points_and_says_so() {
    let api = api("read", |_| {});
    let mut costs = history();
    for bucket in costs["data"].as_array_mut().unwrap() {
        let points = |sends: u64| json!({"period": "minute", "unit": "cost", "sends": sends, "limit": 600});
        let windows = bucket["max_window"].as_array_mut().unwrap();
        windows[0]["sends"] = json!(2);
        windows.extend([json!({"period": "minute", "sends": 97, "limit": 900}), points(598)]);
    }
    let points = json!([{"limit": 20, "period": "second"}, {"limit": 500, "period": "minute", "unit": "cost"}]);
    costs["limit_changes"][0]["rate_limits"] = points;
    api.on("GET", "/v1/destinations/dst_1/history", 200, costs);
    let part = api.dashboard().get("/fragments/destinations/dst_1/chart").await;
    let (first, others) = part.text.split_once("<details>").expect("the other limits unfold");
    // Its windows are the fullest.
    for shown in [
        ">largest window, in points<",
        ">limit, in points<",
        ">points<",
        ">500 points/min<",
        "any minute: 598 of 600 points",
    ] {
        assert!(first.contains(shown), "{shown}: {first}");
    }
    assert!(others.contains(">sends<") && !others.contains(">points<"), "{others}");
    let file = api.dashboard().get(&format!("{PAGE}/proof.csv")).await;
    file.has(&["largest_window_minute,limit_minute,largest_window_cost_minute,limit_cost_minute", ",97,900,598,600"]);
    api.on("GET", "/v1/destinations/dst_1/audit", 200, audit(0));
    api.dashboard()
        .get(&format!("{PAGE}/proof"))
        .await
        .has(&["Largest minute, points", "598 <span class=\"soft\">of 600"]);
}

#[tokio::test]
async fn the_first_tab_loads_the_chart_of_the_last_minutes() {
    let api = api("read", |_| {});
    api.on("GET", "/v1/destinations/dst_1/history", 200, history());
    let browser = api.dashboard();
    browser.get(PAGE).await.has(&["hx-get=\"/fragments/destinations/dst_1/chart\"", "edit from:#live"]);
    let part = browser.get("/fragments/destinations/dst_1/chart").await;
    part.has(&["<svg class=\"weir-chart\"", "amber mark", "href=\"/destinations/dst_1/proof\""]).has_not(&["<html"]);
    assert_eq!(api.seen("GET", "/v1/destinations/dst_1/history")[0].path, "/v1/destinations/dst_1/history");
}

#[tokio::test]
async fn the_pace_is_drawn_below_the_limit_with_each_change_in_plain_english() {
    let adaptive = |shown: &mut Value| {
        shown["adaptive"] = json!({"min_per_s": 0.0167, "max_per_s": null, "latency": true});
        shown["rate_limits"][0]["limit"] = json!(40);
    };
    let api = api("operate", adaptive);
    let mut state = row("dst_1", "Acme");
    state["as_of"] = json!("2025-11-21T07:30:00.000Z");
    (state["reason"], state["backlog"], state["pending"]) = (json!("adaptive"), json!(9), json!(9));
    let detail = "12 of 340 answers were 429";
    state["adaptive_rate"] =
        json!({"per_s": 18.0, "since": "2025-11-21T07:30:04.000Z", "reason": "throttled", "detail": detail});
    api.on("GET", "/v1/destinations/dst_1/overview", 200, state);
    api.on("GET", "/v1/destinations/dst_1/history", 200, history());
    let change = |at: &str, from: f64, to: f64, detail: &str| json!({"at": at, "from_per_s": from, "to_per_s": to, "reason": "throttled", "detail": detail});
    let changes = [
        change("2025-11-21T07:30:14.000Z", 18.0, 21.0, "no refusal since the last rest"),
        change("2025-11-21T07:30:04.000Z", 100.0, 18.0, detail),
    ];
    api.on("GET", "/v1/destinations/dst_1/rate", 200, json!({"data": changes}));
    let browser = api.dashboard();
    let page = browser.get(PAGE).await;
    page.has(&[
        "It sends at its adaptive pace of 18/s. It was lowered: 12 of 340 answers were 429.",
        "hx-get=\"/fragments/destinations/dst_1/pace\"",
    ]);
    let part = browser.get("/fragments/destinations/dst_1/pace").await;
    part.has(&[
        "Raised to 21/s: no refusal since the last rest",
        "Lowered to 18/s: 12 of 340 answers were 429",
        "<svg class=\"weir-chart\"",
        ">pace<",
        ">limit<",
    ]);
    part.has_not(&["<html", "Make the pace adaptive"]);
    assert!(api.seen("GET", "/v1/destinations/dst_1/rate")[0].path.contains("from=2025-11-21"));
}

#[tokio::test]
async fn a_destination_without_limits_is_told_what_a_pace_would_be_and_turns_it_on_with_one_click() {
    let unlimited = api("operate", |shown| shown["rate_limits"] = json!([]));
    unlimited.on("GET", "/v1/destinations/dst_1/history", 200, history());
    let text = "In 3 of 4 stretches of 10 s the receiver refused";
    let observed = json!({"per_s": 97.0, "refusing": 3, "stretches": 4, "text": text});
    unlimited.on("GET", "/v1/destinations/dst_1/rate", 200, json!({"adaptive_rate": null, "observed": observed}));
    unlimited.on("PATCH", "/v1/destinations/dst_1", 200, json!({}));
    let browser = unlimited.dashboard();
    browser.get(PAGE).await.has(&["hx-get=\"/fragments/destinations/dst_1/pace\""]);
    browser.get("/fragments/destinations/dst_1/pace").await.has(&[
        text,
        "nothing was changed",
        "Make the pace adaptive",
    ]);
    browser.post(&format!("{PAGE}/adaptive"), &format!("adaptive=on&next={PAGE}")).await;
    assert_eq!(unlimited.seen("PATCH", "/v1/destinations/dst_1")[0].body, json!({"adaptive": {}}));
    // With a limit, and for those who may not change it, there is nothing to tell.
    api("operate", |_| {}).dashboard().get(PAGE).await.has_not(&["destinations/dst_1/pace"]);
    api("read", |shown| shown["rate_limits"] = json!([]))
        .dashboard()
        .get(PAGE)
        .await
        .has_not(&["destinations/dst_1/pace"]);
}

#[tokio::test]
async fn an_override_is_a_banner_with_its_end_and_its_reason_and_begins_with_a_small_form() {
    let api = api("operate", |_| {});
    let limits = json!([{"limit": 50, "period": "second", "burst": 1, "margin_ms": 0}]);
    let raised =
        json!({"rate_limits": limits, "max_in_flight": 128, "until": "2025-11-21T18:00:00.000Z", "reason": XSS});
    let mut state = row("dst_1", "Acme");
    state["as_of"] = json!("2025-11-21T07:30:00.000Z");
    state["destination"]["override"] = raised.clone();
    api.on("GET", "/v1/destinations/dst_1/overview", 200, state);
    let page = api.dashboard().get(PAGE).await;
    page.has(&[
        "<b>50/s, 128 in flight until <time datetime=\"2025-11-21T18:00:00.000Z\"",
        "data-form=\"countdown\"",
        "&#60;script&#62;",
        "<form method=\"post\" action=\"/destinations/dst_1/override\"><button name=\"end\" value=\"true\">End now</button>",
        "<summary>For a while only</summary>",
    ]);
    let mut answer = destination();
    answer["override"] = raised.clone();
    answer["replaced"] = raised;
    api.on("POST", "/v1/destinations/dst_1/override", 200, answer);
    let form = "limit=50&period=second&in_flight=&for=2+h&reason=launch+day";
    let done = api.dashboard().post("/destinations/dst_1/override", form).await;
    assert!(
        done.flash().contains("50/s, 128 in flight until 2025-11-21 18:00:00 UTC. It replaces 50/s"),
        "{}",
        done.flash()
    );
    let sent = api.seen("POST", "/v1/destinations/dst_1/override").remove(0);
    let expected = json!({"rate_limits": [{"limit": 50, "period": "second"}], "for_s": 7_200, "reason": "launch day"});
    assert_eq!(sent.body, expected);
    let mut refused = problem("Invalid", "d");
    refused["errors"] = json!([
        {"pointer": "/rate_limits", "detail": "give `rate_limits`, `max_in_flight` or both"},
        {"pointer": "/for_s", "detail": "must be a whole number from 1 to 2592000"},
    ]);
    api.on("POST", "/v1/destinations/dst_1/override", 422, refused);
    let refused = api.dashboard().post("/destinations/dst_1/override", "period=second&for=2&reason=x").await;
    refused.has(&[
        "Needs a limit, a number in flight, or both; “Hold” sends nothing until the end.",
        "id=\"fault-for\">Needs a unit",
        "<b>Not begun.</b>",
    ]);
    api.on("DELETE", "/v1/destinations/dst_1/override", 200, destination());
    let ended = api.dashboard().post("/destinations/dst_1/override", "end=true").await;
    assert!(ended.flash().contains("The override is over"), "{}", ended.flash());
    let reader = self::api("read", |_| {}).dashboard().get(PAGE).await;
    reader.has_not(&["For a while only"]);
}

#[tokio::test]
async fn a_hold_of_people_says_so_and_is_ended_by_a_button() {
    let hold = json!({"until": "2025-11-21T18:00:00.000Z", "reason": "their maintenance"});
    let api = api("operate", |shown| {
        shown["held_until"] = hold["until"].clone();
        shown["held_reason"] = hold["reason"].clone();
        shown["hold"] = hold.clone();
    });
    let page = api.dashboard().get(PAGE).await;
    page.has(&["<b>Held until", "their maintenance", "<button name=\"end\" value=\"true\">End now</button>"]);
    page.has_not(&["<button>Release</button>"]);
    api.on("DELETE", "/v1/destinations/dst_1/hold", 200, destination());
    let ended = api.dashboard().post("/destinations/dst_1/hold", "end=true").await;
    assert!(ended.flash().contains("The hold is over"), "{}", ended.flash());
}
