//! What is wrong now, and the most recent alerts.

use serde_json::{Value, json};

use crate::support::{FakeApi, XSS};

fn alert(id: &str, event_type: &str, minute: u32, data: Value) -> Value {
    let at = format!("2025-11-21T07:{minute:02}:00.000Z");
    json!({"id": id, "type": event_type, "tenant": "acme", "created_at": at, "idempotency_key": null, "data": data})
}

fn api(alerts: &[Value], next_cursor: Value) -> FakeApi {
    let api = FakeApi::for_role("admin");
    let policy = json!({"backlog_depth": 500, "oldest_age_s": null, "drain_beyond_ttl": true, "dead_letters": 1});
    api.on("GET", "/v1/alerts", 200, policy);
    api.on("GET", "/v1/events", 200, json!({"data": alerts, "next_cursor": next_cursor}));
    api.on("GET", "/v1/alerts/active", 200, json!({"data": [], "next_cursor": null}));
    api
}

#[tokio::test]
async fn what_is_wrong_now_is_listed_with_its_tenant_and_counted_by_kind() {
    let api = api(&[], Value::Null);
    let backlog = json!({"waiting": 1_234, "oldest_age_s": 5, "drain_eta_s": null});
    let high = json!({"reasons": ["backlog_depth"], "thresholds": {"backlog_depth": 1_000}, "backlog": backlog});
    let alerts = [
        json!({"type": "weir.breaker.opened", "destination_name": XSS, "tenant": "acme", "data": {"reason": XSS}}),
        json!({"type": "weir.delivery.dead", "tenant": "default", "data": {"new": 7, "dead_letters": 7}}),
        json!({"type": "weir.backlog.high", "destination_name": "", "tenant": "default", "data": high}),
        json!({
            "type": "weir.limit_group.behind", "destination_id": null, "destination_name": null, "tenant": "*",
            "limit_group_id": "lgr_1", "limit_group_name": "partner",
            "data": {"members": 3, "reasons": ["backlog_depth"], "backlog": backlog},
        }),
    ];
    let counts = json!({
        "weir.breaker.opened": 1_200, "weir.delivery.dead": 1, "weir.backlog.high": 1, "weir.limit_group.behind": 1,
    });
    api.on("GET", "/v1/alerts/active", 200, json!({"counts": counts, "data": alerts, "next_cursor": "c2"}));
    let page = api.dashboard().get("/alerts?type=weir.breaker.opened&tenant=acme").await;
    assert_eq!(api.seen("GET", "/v1/alerts/active")[0].path, "/v1/alerts/active?type=weir.breaker.opened&tenant=acme");
    page.has(&[
        "<h2>Wrong now</h2>",
        "title=\"Tenant acme\"",
        "<a href=\"/dead-letters?destination=dst_1\">7 dead letters.</a>",
        "1,234 deliveries wait (the threshold is 1,000).",
        "href=\"/limit-groups/lgr_1\">partner</a>",
        "3 members wait for it. 1,234 deliveries wait.",
        "1,200 ×</a>",
        "href=\"/alerts?type=weir.delivery.dead&#38;tenant=acme\"",
        "href=\"/alerts?type=weir.breaker.opened&#38;tenant=acme&#38;cursor=c2\" rel=\"next\"",
        "hx-get=\"/fragments/alerts/active?type=weir.breaker.opened&#38;tenant=acme\"",
    ]);
    page.has_not(&["<script>alert", "Tenant default"]);
    let part = api.dashboard().get("/fragments/alerts/active").await;
    assert!(part.text.starts_with("<div id=\"active-alerts\""), "{}", part.text);
}

#[tokio::test]
async fn a_key_that_is_bound_to_tenants_sees_its_alerts_without_the_thresholds() {
    let api = api(&[], Value::Null);
    let me = json!({
        "name": "billing", "role": "read", "tenants": ["acme"], "session_expires_at": null, "keys_required": true,
        "version": "0.1.0",
    });
    api.on("GET", "/v1/me", 200, me);
    api.on("GET", "/v1/alerts", 404, json!({"title": "Not found", "detail": "there is no such path"}));
    let page = api.dashboard().get("/alerts").await;
    page.has(&["Nothing is wrong now", "No alerts yet"]).has_not(&["Thresholds"]);
}

#[tokio::test]
async fn the_history_leaves_out_the_copies_for_operators() {
    let mut copy = alert("evt_2", "weir.breaker.opened", 30, json!({"destination_id": "dst_1", "name": "Acme"}));
    copy["tenant"] = json!("*");
    let own = alert("evt_1", "weir.breaker.opened", 30, json!({"destination_id": "dst_1", "name": "Acme"}));
    // A limit group for all tenants has no other event.
    let group = json!({"limit_group_id": "lgr_1", "name": "partner", "tenant": "*"});
    let mut of_all = alert("evt_3", "weir.limit_group.caught_up", 30, group);
    of_all["tenant"] = json!("*");
    let page = api(&[copy, own, of_all], Value::Null).dashboard().get("/alerts").await;
    page.has(&["row-evt_1", "title=\"Tenant acme\"", "row-evt_3", "<a href=\"/limit-groups/lgr_1\">partner</a>"]);
    page.has_not(&["row-evt_2"]);
}

#[tokio::test]
async fn recent_alerts_are_in_words_with_their_destinations_newest_first() {
    let backlog = json!({"waiting": 1_234, "oldest_age_s": 5, "drain_eta_s": null});
    let high = json!({"destination_id": "dst_1", "name": "Acme", "reasons": ["backlog_depth"], "backlog": backlog});
    let dead = json!({"destination_id": "dst_2", "name": "", "new": 3, "dead_letters": 7});
    let opened = json!({"destination_id": "dst_3", "name": XSS, "reason": XSS, "next_probe_at": null});
    let api = api(
        &[
            alert("evt_4", "weir.test", 40, json!({})),
            alert("evt_3", "weir.breaker.opened", 30, opened),
            alert("evt_2", "weir.delivery.dead", 20, dead),
            alert("evt_1", "weir.backlog.high", 10, high),
        ],
        Value::Null,
    );
    let unnamed = json!({"id": "dst_2", "name": "", "url": "https://example.com/hooks"});
    api.on("GET", "/v1/destinations/dst_2", 200, unnamed);
    let page = api.dashboard().get("/alerts").await;
    let asked: Vec<String> = api.seen("GET", "/v1/events").into_iter().map(|call| call.path).collect();
    assert_eq!(asked, ["/v1/events?type=weir.*&include=data&limit=100"]);
    page.has(&[
        "href=\"/events/evt_1\"><time datetime=\"2025-11-21T07:10:00.000Z\"",
        "<span class=\"chip warn\">Backlog high</span>",
        "<a href=\"/destinations/dst_1\">Acme</a>",
        "1,234 deliveries wait.",
        "<span class=\"chip bad\">Dead letters</span>",
        "<a href=\"/destinations/dst_2\">https://example.com/hooks</a>",
        "3 new dead letters, 7 in all.",
        "<span class=\"chip bad\">Breaker opened</span>",
    ]);
    page.has_not(&["<script>alert", "No alerts yet", "older alerts"]);
    let rows: Vec<&str> = page.text.split("<tr id=\"row-").skip(1).map(|row| &row[..5]).collect();
    assert_eq!(rows, ["evt_3", "evt_2", "evt_1"]);
}

#[tokio::test]
async fn recent_alerts_are_live() {
    let api = api(&[alert("evt_1", "weir.breaker.closed", 1, json!({}))], Value::Null);
    let browser = api.dashboard();
    let page = browser.get("/alerts").await;
    page.has(&["hx-sse:connect=\"/live?also=events\"", "hx-trigger=\"snapshot from:#live\" hx-swap=\"outerMorph\""]);
    let (_, rest) = page.text.split_once("hx-get=\"/fragments/alerts?seen=").expect("a live region");
    let seen = rest.split('"').next().unwrap();
    let unchanged = browser.get(&format!("/fragments/alerts?seen={seen}")).await;
    assert_eq!((unchanged.status.as_u16(), unchanged.text.as_str()), (204, ""));
    let part = browser.get("/fragments/alerts").await;
    assert!(part.text.starts_with("<div id=\"recent-alerts\" class=\"recent\" data-live=\"list\""), "{}", part.text);
    assert!(page.text.contains(part.text.trim_end()), "{}", part.text);
    part.has_not(&["<form", "<html"]);
}

#[tokio::test]
async fn at_most_twenty_alerts_are_listed() {
    let alerts: Vec<Value> =
        (10..40).rev().map(|at| alert(&format!("evt_{at}"), "weir.breaker.closed", at, json!({}))).collect();
    let page = api(&alerts, json!("c2")).dashboard().get("/alerts").await;
    assert_eq!(page.text.matches("<tr id=\"row-").count(), 20);
    page.has(&["row-evt_39", "row-evt_20"]).has_not(&["row-evt_19\"", "older alerts"]);
}

#[tokio::test]
async fn without_alerts_the_page_shows_how_to_receive_them() {
    let page = api(&[], Value::Null).dashboard().get("/alerts").await;
    page.has(&["No alerts yet", "curl http://weir.test/v1/destinations", "weir.*"]);
    assert_eq!(page.text.matches("curl http").count(), 1);
    // All events that were read are test events.
    let page = api(&[], json!("c2")).dashboard().get("/alerts").await;
    page.has(&["No recent alerts", "Older alerts are listed by type", "Receive them"]);
    assert_eq!(page.text.matches("curl http").count(), 1);
    let one = [alert("evt_1", "weir.breaker.closed", 1, json!({}))];
    let page = api(&one, json!("c2")).dashboard().get("/alerts").await;
    page.has(&["There may be older alerts", "href=\"/events?type=weir.breaker.closed\""]);
}
