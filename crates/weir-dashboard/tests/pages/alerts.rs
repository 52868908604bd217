//! The most recent alerts.

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
    api
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
