//! Lists as files.

use serde_json::{Value, json};

use crate::support::{FakeApi, problem};

const AT: &str = "2025-11-21T07:30:00.000Z";

fn list(items: &[Value], next: Value) -> Value {
    json!({"data": items, "next_cursor": next})
}

#[tokio::test]
async fn deliveries_that_match_are_a_file_without_formulas() {
    let api = FakeApi::for_role("read");
    let destination = json!({"id": "dst_1", "name": "=cmd|'/c calc'!A1", "url": "https://example.com"});
    api.on("GET", "/v1/destinations/dst_1", 200, destination);
    let delivery = json!({
        "id": "dlv_1", "event_id": "evt_1", "event_type": "video.created", "destination_id": "dst_1", "state": "dead",
        "attempt_count": 3, "last_status_code": 503, "last_error_kind": "5xx", "last_error": "HTTP 503, \"no\"",
        "created_at": AT, "updated_at": AT,
    });
    api.on("GET", "/v1/deliveries", 200, list(&[delivery], Value::Null));
    let browser = api.dashboard();
    let file = browser.get("/deliveries/export?destination=dst_1&state=dead&from=2025-11-21T07:00&format=csv").await;
    assert_eq!(
        api.seen("GET", "/v1/deliveries")[0].path,
        "/v1/deliveries?destination=dst_1&from=2025-11-21T07:00:00Z&state=dead&limit=200"
    );
    assert_eq!(file.header("content-disposition"), "attachment; filename=\"weir-deliveries-20251121-073000.csv\"");
    let expected = format!(
        "id,event_id,event_type,destination_id,destination,state,attempt_count,last_status_code,last_error_kind,last_error,\
         created_at,updated_at,next_attempt_at,expires_at\r\n\
         dlv_1,evt_1,video.created,dst_1,\"'=cmd|'/c calc'!A1\",dead,3,503,5xx,\"HTTP 503, \"\"no\"\"\",{AT},{AT},,\r\n"
    );
    assert_eq!(file.text, expected);
    let lines = browser.get("/deliveries/export?format=jsonl").await;
    let first: Value = serde_json::from_str(lines.text.trim_end()).unwrap();
    assert_eq!((&first["id"], &first["last_status_code"]), (&json!("dlv_1"), &json!(503)));
    assert_eq!(lines.header("content-type"), "application/jsonl; charset=utf-8");
    // For the pages of a file nothing is measured. For a page that somebody reads it is.
    assert!(api.seen("GET", "/v1/deliveries").iter().all(|page| page.is_unmeasured));
    browser.get("/deliveries").await;
    assert!(!api.seen("GET", "/v1/deliveries").last().unwrap().is_unmeasured);
}

#[tokio::test]
async fn changes_that_match_are_a_file() {
    let api = FakeApi::for_role("read");
    let entry = json!({
        "id": "act_1", "at": AT, "actor": "@ann", "actor_kind": "key", "action": "destination.edited", "tenant": "acme",
        "before": {"paused": false}, "after": {"paused": true}, "request_id": "r1",
        "subject": {"type": "destination", "id": "dst_1", "name": "Acme"},
    });
    api.on("GET", "/v1/activity", 200, list(&[entry], Value::Null));
    let file = api.dashboard().get("/activity/export?actor=@ann&format=csv").await;
    assert_eq!(api.seen("GET", "/v1/activity")[0].path, "/v1/activity?actor=@ann&limit=200");
    file.has(&[
        "act_1,2025-11-21T07:30:00.000Z,\"'@ann\",key,,destination.edited,acme,destination,dst_1,Acme,",
        "\"{\"\"paused\"\":false}\"",
    ]);
}

#[tokio::test]
async fn an_export_needs_what_its_list_needs() {
    let api = FakeApi::for_role("ingest");
    api.on("GET", "/v1/deliveries", 403, problem("Forbidden", "this needs a key with the role `read`"));
    api.on("GET", "/v1/activity", 403, problem("Forbidden", "this needs a key with the role `read`"));
    let browser = api.dashboard();
    for path in ["/deliveries/export?format=csv", "/activity/export?format=jsonl"] {
        assert_eq!(browser.get(path).await.status, 403, "{path}");
    }
    assert_eq!(FakeApi::for_role("read").dashboard().get("/deliveries/export?format=xls").await.status, 422);
    let locked = FakeApi::locked();
    locked.on("GET", "/v1/activity", 401, problem("An API key is required", "send a key"));
    assert!(locked.dashboard().get("/activity/export?format=csv").await.location().starts_with("/login"));
}

#[tokio::test]
async fn an_export_ends_at_its_bound_and_says_so() {
    let api = FakeApi::for_role("read");
    // Every page names another one.
    let change = json!({"id": "act_1", "at": AT, "actor": "ann", "actor_kind": "key", "action": "destination.edited"});
    api.on("GET", "/v1/activity", 200, list(&vec![change; 200], json!("more")));
    let file = api.dashboard().get("/activity/export?format=csv").await;
    assert_eq!(file.text.lines().count(), 1 + 100_000 + 1);
    assert!(
        file.text
            .trim_end()
            .ends_with("Not complete: the export ends after 100,000 rows. Narrow the filter to export the rest.\""),
        "{}",
        &file.text[file.text.len() - 200..]
    );
    assert_eq!(api.seen("GET", "/v1/activity").len(), 500);
}

#[tokio::test]
async fn every_list_links_to_its_file() {
    let api = FakeApi::for_role("read");
    api.on("GET", "/v1/deliveries", 200, json!({"data": [{"id": "dlv_1"}], "next_cursor": null, "count": null}));
    api.on("GET", "/v1/activity", 200, json!({"data": [{"id": "act_1"}], "next_cursor": null}));
    let group = json!({"destination_id": "dst_1", "state": "dead", "deliveries": 9, "example_id": "dlv_1"});
    api.on("GET", "/v1/deliveries/groups", 200, json!({"data": [group], "scanned": 9, "capped": false}));
    for (page, link) in [
        ("/deliveries?state=dead", "href=\"/deliveries/export?state=dead&#38;format=csv\" download"),
        (
            "/dead-letters?error=5xx",
            "href=\"/deliveries/export?error=5xx&#38;state=failed,dead&#38;format=jsonl\" download",
        ),
        ("/activity?actor=ann", "href=\"/activity/export?actor=ann&#38;format=csv\" download"),
    ] {
        api.dashboard().get(page).await.has(&[link]);
    }
}
