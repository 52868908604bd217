//! Lists whose first page is live: deliveries, events, activity, dead letters.

use serde_json::{Value, json};

use crate::support::{FakeApi, Page};

const AT: &str = "2025-11-21T07:30:00.000Z";
/// The instant after it.
const AFTER: &str = "2025-11-21T07:30:00.001Z";

fn list(rows: &[Value]) -> Value {
    json!({"data": rows, "next_cursor": "c2"})
}

/// A list of deliveries, which have a count.
fn counted(rows: &[Value]) -> Value {
    json!({"data": rows, "next_cursor": "c2", "count": {"value": rows.len(), "capped": false}})
}

fn delivery(id: &str, state: &str) -> Value {
    json!({
        "id": id, "event_type": "video.created", "destination_id": "dst_1", "state": state, "attempt_count": 1,
        "next_attempt_at": null, "updated_at": AT, "last_error": null, "last_status_code": null,
    })
}

fn event(id: &str) -> Value {
    json!({"id": id, "type": "video.created", "tenant": "acme", "created_at": AT, "idempotency_key": null})
}

fn change(id: &str) -> Value {
    let fields = json!({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5});
    json!({"id": id, "at": AT, "actor": "ops", "actor_kind": "key", "actor_key_id": "key_1", "action": "destination.edited", "after": fields, "request_id": null})
}

fn group(destination: &str) -> Value {
    json!({
        "destination_id": destination, "destination_name": "Acme", "state": "dead", "error": "5xx", "status_code": 503,
        "deliveries": 9, "newest_at": AT, "oldest_at": AT, "example_id": "dlv_1",
    })
}

fn filled(role: &str) -> FakeApi {
    let api = FakeApi::for_role(role);
    api.on("GET", "/v1/destinations/dst_1", 200, json!({"id": "dst_1", "name": "Acme", "url": "https://a.test"}));
    api.on("GET", "/v1/deliveries", 200, counted(&[delivery("dlv_1", "pending")]));
    api.on("GET", "/v1/events", 200, list(&[event("evt_1")]));
    api.on("GET", "/v1/activity", 200, list(&[change("act_1")]));
    let groups = json!({"data": [group("dst_1")], "scanned": 9, "capped": false});
    api.on("GET", "/v1/deliveries/groups", 200, groups);
    // Nothing is newer than the first row.
    for query in ["", "error=5xx&", "event_type=video.*&"] {
        let none = json!({"data": [], "next_cursor": null, "count": null});
        api.on("GET", &format!("/v1/deliveries?{query}from={AFTER}&limit=100"), 200, none);
    }
    for query in ["", "type=video.created&"] {
        let none = json!({"data": [], "next_cursor": null});
        api.on("GET", &format!("/v1/events?{query}from={AFTER}&limit=100"), 200, none);
    }
    api
}

/// The opening tag of the live region with this id: its fragment and its trigger.
fn region(page: &Page, id: &str) -> (String, String) {
    let tag = page.text.split('<').find(|tag| tag.contains(&format!(" id=\"{id}\""))).unwrap();
    assert!(tag.contains(" hx-swap=\"outerMorph\""), "{tag}");
    let attribute = |name: &str| {
        let (_, rest) = tag.split_once(&format!(" {name}=\"")).unwrap_or_else(|| panic!("no {name} in {tag}"));
        rest.split('"').next().unwrap().replace("&#38;", "&")
    };
    (attribute("hx-get"), attribute("hx-trigger"))
}

/// What the lists are called, with a row after a change.
fn lists() -> [(&'static str, &'static str, Value, &'static str); 3] {
    [
        ("deliveries", "/v1/deliveries", counted(&[delivery("dlv_2", "pending"), delivery("dlv_1", "dead")]), "dlv_2"),
        ("events", "/v1/events", list(&[event("evt_2"), event("evt_1")]), "evt_2"),
        ("activity", "/v1/activity", list(&[change("act_2"), change("act_1")]), "act_2"),
    ]
}

#[tokio::test]
async fn the_first_page_of_a_list_is_live_and_is_replaced_only_after_a_change() {
    for (name, api_path, changed, new) in lists() {
        let api = filled("read");
        let browser = api.dashboard();
        let page = browser.get(&format!("/{name}")).await;
        page.has(&["hx-sse:connect=\"/live", "id=\"pause-live\""]);
        let (fragment, trigger) = region(&page, name);
        let begins = if name == "activity" { "seen=" } else { "top=2025-11-21T07:30:00.001Z&seen=" };
        assert!(fragment.starts_with(&format!("/fragments/{name}?{begins}")), "{fragment}");
        assert_eq!(trigger, "snapshot from:#live", "{name}");
        let unchanged = browser.get(&fragment).await;
        assert_eq!((unchanged.status.as_u16(), unchanged.text.as_str()), (204, ""), "{name}");
        api.on("GET", api_path, 200, changed);
        let part = browser.get(&fragment).await;
        assert!(part.text.starts_with(&format!("<div id=\"{name}\" data-live=\"list\"")), "{}", part.text);
        part.has(&[&format!("<tr id=\"row-{new}\">")]).has_not(&["<html", "<form"]);
        let (next, _) = region(&part, name);
        assert_ne!(next, fragment, "it asks for what comes after the change");
        assert_eq!(browser.get(&next).await.status, 204, "{name}");
    }
}

#[tokio::test]
async fn a_later_page_stays_as_it_is() {
    let api = filled("read");
    for (name, ..) in lists() {
        let page = api.dashboard().get(&format!("/{name}?cursor=c2")).await;
        page.has(&[">First page</a>"]).has_not(&["data-live", "hx-sse", "id=\"pause-live\""]);
    }
}

#[tokio::test]
async fn live_updates_keep_the_filter_and_the_order() {
    let api = filled("read");
    let browser = api.dashboard();
    for (id, query) in [
        ("deliveries", "destination=dst_1&from=2025-11-21T07:00&state=pending,retrying&order=oldest"),
        ("events", "idempotency_key=a%26b&from=2025-11-21T07:00&order=oldest"),
        ("activity", "destination=dst_1&actor=ops%20team"),
    ] {
        let page = browser.get(&format!("/{id}?{query}")).await;
        let (fragment, _) = region(&page, id);
        assert!(fragment.starts_with(&format!("/fragments/{id}?{query}&seen=")), "{fragment}");
        let asked = |path: &str| api.seen("GET", path).last().unwrap().path.clone();
        let path = format!("/v1/{id}");
        browser.get(&fragment).await;
        let expected = query.replace("T07:00", "T07:00:00Z");
        assert_eq!(asked(&path), format!("{path}?{expected}"));
    }
}

#[tokio::test]
async fn an_idle_list_asks_the_api_only_for_its_rows() {
    let api = filled("read");
    let browser = api.dashboard();
    let (fragment, _) = region(&browser.get("/deliveries").await, "deliveries");
    let count = || ["/v1/me", "/v1/destinations/dst_1", "/v1/deliveries"].map(|path| api.seen("GET", path).len());
    let before = count();
    browser.get(&fragment).await;
    assert_eq!(count(), [before[0], before[1], before[2] + 2], "the rows, and those that are newer");
    let asked: Vec<String> = api.seen("GET", "/v1/deliveries").into_iter().map(|call| call.path).collect();
    let mut asked = asked[before[2]..].to_vec();
    asked.sort();
    assert_eq!(asked, [format!("/v1/deliveries?from={AFTER}&limit=100"), format!("/v1/deliveries?to={AFTER}")]);
}

#[tokio::test]
async fn what_examines_many_rows_is_asked_for_every_ten_seconds_at_most() {
    let slow = "snapshot from:#live throttle:10s";
    let api = filled("operate");
    let browser = api.dashboard();
    for (path, id, fragment) in [
        ("/deliveries", "deliveries-head", "/fragments/deliveries/head"),
        ("/deliveries?error=5xx", "deliveries-head", "/fragments/deliveries/head?error=5xx"),
        ("/deliveries?error=5xx", "deliveries", "/fragments/deliveries?error=5xx&top=2025-11-21T07:30:00.001Z"),
        (
            "/deliveries?event_type=video.*",
            "deliveries",
            "/fragments/deliveries?event_type=video.*&top=2025-11-21T07:30:00.001Z",
        ),
        ("/events?type=video.created", "events", "/fragments/events?type=video.created&top=2025-11-21T07:30:00.001Z"),
        ("/dead-letters?tenant=acme", "dead-letters", "/fragments/dead-letters?tenant=acme&state=failed,dead"),
    ] {
        let page = browser.get(path).await;
        // The link does not change with the rows: htmx would ask at once.
        assert_eq!(region(&page, id), (fragment.to_owned(), slow.to_owned()), "{path}");
        let part = browser.get(fragment).await;
        assert!(page.text.contains(part.text.trim_end()), "{path}: {}", part.text);
    }
    // A key that is bound to tenants filters all lists by tenant.
    let me = json!({
        "name": "a", "role": "read", "tenants": ["acme"], "session_expires_at": null, "keys_required": true,
        "version": "0.1.0",
    });
    api.on("GET", "/v1/me", 200, me);
    for path in ["deliveries", "events"] {
        assert_eq!(region(&browser.get(&format!("/{path}")).await, path).1, slow, "{path}");
    }
}

#[tokio::test]
async fn the_count_and_the_groups_follow_with_their_actions() {
    let api = filled("operate");
    let browser = api.dashboard();
    api.on("GET", "/v1/deliveries", 200, counted(&[]));
    let replay = "href=\"/replays/new?state=dead\"";
    let page = browser.get("/deliveries?state=dead").await;
    page.has(&["0 match"]).has_not(&[replay]);
    api.on("GET", "/v1/deliveries", 200, counted(&[delivery("dlv_1", "dead")]));
    let (fragment, _) = region(&page, "deliveries-head");
    browser.get(&fragment).await.has(&["<h1>Deliveries</h1>", "1 match", replay]);
    // What fits on one page is counted with each change, and not by the API.
    let whole = |rows: &[Value]| json!({"data": rows, "next_cursor": null});
    api.on("GET", "/v1/deliveries", 200, whole(&[delivery("dlv_1", "dead")]));
    let counts = || api.seen("GET", "/v1/deliveries").iter().filter(|call| call.path.contains("count")).count();
    let before = counts();
    let page = browser.get("/deliveries?state=dead").await;
    let (fragment, trigger) = region(&page, "deliveries-head");
    assert_eq!(fragment, "/fragments/deliveries/head?state=dead&seen=1");
    assert_eq!(trigger, "snapshot from:#live");
    assert_eq!(browser.get(&fragment).await.status, 204);
    api.on("GET", "/v1/deliveries", 200, whole(&[delivery("dlv_1", "dead"), delivery("dlv_2", "dead")]));
    browser.get(&fragment).await.has(&["2 match"]);
    assert_eq!(counts(), before);
    let page = browser.get("/dead-letters").await;
    page.has(&["9 in 1 group"]);
    let groups = json!({"data": [group("dst_1"), group("dst_2")], "scanned": 10_000, "capped": true});
    api.on("GET", "/v1/deliveries/groups", 200, groups);
    let (fragment, _) = region(&page, "dead-letters");
    browser.get(&fragment).await.has(&[
        "18+ in 2 groups",
        "Replay all that match…",
        "<tr id=\"row-dst_2-dead-503\">",
        "only the newest 10,000 dead letters",
    ]);
}

#[tokio::test]
async fn what_a_reader_has_unfolded_is_left_alone() {
    let page = filled("read").dashboard().get("/activity").await;
    page.has(&["<details hx-morph-skip><summary>5 fields</summary>"]);
}

#[tokio::test]
async fn rows_that_came_later_are_counted_and_added_when_the_reader_asks() {
    let api = filled("read");
    let browser = api.dashboard();
    for (name, api_path, rows, more) in [
        ("deliveries", "/v1/deliveries", vec![delivery("dlv_3", "pending"), delivery("dlv_2", "pending")], "dlv_3"),
        ("events", "/v1/events", vec![event("evt_3"), event("evt_2")], "evt_3"),
    ] {
        let page = browser.get(&format!("/{name}")).await;
        page.has(&["class=\"pill\"", "data-new=\"0\" data-more=\"\" hidden>"]);
        let (fragment, _) = region(&page, name);
        let newer = json!({"data": rows, "next_cursor": null});
        api.on("GET", &format!("{api_path}?from={AFTER}&limit=100"), 200, newer);
        let part = browser.get(&fragment).await;
        part.has(&[
            &format!("href=\"/{name}\" hx-get=\"/fragments/{name}\" hx-target=\"#{name}\""),
            "data-new=\"2\" data-more=\"\">2 new</a>",
        ]);
        part.has_not(&[&format!("<tr id=\"row-{more}\"")]);
        // The page stays at its top, however often it asks.
        let (next, _) = region(&part, name);
        assert!(next.starts_with(&format!("/fragments/{name}?top={AFTER}&seen=")), "{next}");
        assert_eq!(browser.get(&next).await.status, 204);
    }
}
