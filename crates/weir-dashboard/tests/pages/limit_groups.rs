//! Limit groups: the list, the page of a group with its members, and the forms.

use serde_json::{Value, json};

use crate::support::{FakeApi, XSS};

const PATH: &str = "/v1/limit-groups/lgr_1";
const RESERVATIONS: &str = "/v1/limit-groups/lgr_1/reservations";
const LIMITS: &str = "limit_second=100&burst_second=&margin_second=&limit_minute=&limit_hour=&limit_day=&limit_other=";

fn api(role: &str) -> FakeApi {
    let api = FakeApi::for_role(role);
    let limits = json!([{"limit": 100, "period": "second"}, {"limit": 190, "period": "10s", "shape": "window"}]);
    let group = json!({"name": format!("Stripe {XSS}"), "rate_limits": limits});
    api.on_with("GET", PATH, 200, &[("etag", "\"1f\"")], group.clone());
    let member = |id: &str, name: &str, weight: u32, sent: f64, reason: Value| {
        json!({
            "id": id, "name": name, "weight": weight, "achieved_per_s": sent, "share_per_s": sent, "backlog": 900,
            "drain_eta_s": 90.0, "reason": reason,
        })
    };
    let grows = json!({
        "id": "dst_3", "name": "Grows", "weight": 1, "achieved_per_s": 0.0, "share_per_s": 0.0, "backlog": 900,
        "drain_eta_s": null, "drains": false, "reason": "group",
    });
    let members = json!([
        member("dst_1", "Acme", 1, 25.0, json!("group")),
        member("dst_2", "Beta", 3, 74.5, json!("key")),
        grows
    ]);
    let mut row = group;
    row["members"] = 2.into();
    row["backlog"] = 1_800.into();
    row["achieved_per_s"] = 100.0.into();
    row["utilisation"] = 1.0.into();
    row["drain_eta_s"] = 90.0.into();
    api.on("GET", "/v1/limit-groups", 200, json!({"data": [row], "next_cursor": "c2"}));
    row["data"] = members;
    row["reservations"] = json!({"last_minute": 30, "per_s": 0.5});
    api.on("GET", "/v1/limit-groups/lgr_1/overview", 200, row);
    let given = |state: &str| {
        let (starts_at, ends_at) = ("2026-11-27T12:00:01.200Z", "2026-11-27T12:00:01.450Z");
        json!({"state": state, "cost": 7, "starts_at": starts_at, "ends_at": ends_at})
    };
    let reserved = json!({"data": [given("coming"), given("over"), given("given_back")], "next_cursor": null});
    api.on("GET", RESERVATIONS, 200, reserved);
    api
}

#[tokio::test]
async fn the_page_of_a_group_shows_the_shares_of_its_members() {
    let api = api("read");
    let browser = api.dashboard();
    let list = browser.get("/limit-groups").await;
    for part in ["Stripe", "100/s, 190/10s window", "1,800", "/limit-groups/lgr_1", "cursor=c2"] {
        assert!(list.text.contains(part), "{part}: {}", list.text);
    }
    let page = browser.get("/limit-groups/lgr_1").await;
    for part in ["/destinations/dst_1", "Acme", "It sends its share of its limit group", "in 1 min 30 s", ">never<"] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    assert!(page.text.contains(r#"74.5/s <span class="soft">bound by its limit keys</span>"#), "{}", page.text);
    assert_eq!(page.text.matches("bound by").count(), 1, "the group binds the others: {}", page.text);
    // One after the other, and together the whole bar.
    assert!(page.text.contains(r#"x="0" y="0" width="250""#), "{}", page.text);
    assert!(page.text.contains(r#"x="250" y="0" width="745""#), "{}", page.text);
    assert!(page.text.contains(r#"<rect class="share-callers" x="995" y="0" width="5""#), "{}", page.text);
    assert!(!list.text.contains(XSS) && !page.text.contains(XSS));
    for text in [&list.text, &page.text] {
        assert!(!text.contains("Create group") && !text.contains("Delete…"), "a reader changes nothing");
    }
}

#[tokio::test]
async fn the_page_of_a_group_shows_its_reservations_or_how_to_make_one() {
    let api = api("read");
    let browser = api.dashboard();
    let page = browser.get("/limit-groups/lgr_1").await;
    page.has(&["beside 0.5/s of reservations", "<title>Reservations: 0.5/s</title>"]);
    for part in ["30 in the last minute", ">2026-11-27 12:00:01</time>", ">250 ms<", "coming", "over", "given back"] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    assert!(!page.text.contains("curl -X POST"), "{}", page.text);
    api.on("GET", RESERVATIONS, 200, json!({"data": [], "next_cursor": null}));
    let page = browser.get("/limit-groups/lgr_1").await;
    for part in ["No program beside Weir", "curl -X POST", "/v1/limit-groups/lgr_1/reservations"] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
}

#[tokio::test]
async fn the_history_of_a_group_has_a_chart_and_the_limits_in_force() {
    let api = api("read");
    let history = json!({
        "data": [{"arrivals": 9, "sends": 7, "delivered": 6, "failed": 1}],
        "limit_changes": [
            {"at": "2025-11-20T07:30:00.000Z", "rate_limits": [{"limit": 100, "period": "second", "burst": 1, "margin_ms": 0}]},
            {"at": "2025-11-21T07:30:30.000Z", "rate_limits": []},
        ],
    });
    api.on("GET", "/v1/limit-groups/lgr_1/history", 200, history);
    let browser = api.dashboard();
    let page = browser.get("/limit-groups/lgr_1").await;
    page.has(&["hx-get=\"/fragments/limit-groups/lgr_1/history\""]);
    let part = browser.get("/fragments/limit-groups/lgr_1/history").await;
    part.has(&["<svg", "Arrivals and sends", "arrived 9, sent 7", "100/s", "unlimited", "2025-11-20T07:30:00.000Z"]);
    part.has_not(&["waiting 0", "Backlog", "Nothing arrived"]);
    assert!(api.seen("GET", "/v1/limit-groups/lgr_1/history")[0].path.contains("?from="));
    api.on("GET", "/v1/limit-groups/lgr_1/history", 200, json!({}));
    browser.get("/fragments/limit-groups/lgr_1/history").await.has(&["Nothing arrived and nothing was sent."]);
}

#[tokio::test]
async fn an_override_and_a_hold_of_a_group_are_banners_and_begin_with_a_small_form() {
    let raised = json!({
        "rate_limits": [{"limit": 50, "period": "second", "burst": 1, "margin_ms": 0}],
        "max_in_flight": null, "until": "2027-01-01T00:00:00.000Z", "reason": "launch day",
    });
    let held = json!({"until": "2027-01-01T00:00:00.000Z", "reason": "their maintenance"});
    let api = api("operate");
    api.on("GET", "/v1/limit-groups/lgr_1/overview", 200, json!({"override": raised, "hold": held, "data": []}));
    let browser = api.dashboard();
    let page = browser.get("/limit-groups/lgr_1").await;
    for part in [
        "<b>50/s until ",
        "launch day. Then the limits below.",
        "their maintenance. No member sends before.",
        "action=\"/limit-groups/lgr_1/override\"><button name=\"end\"",
        "action=\"/limit-groups/lgr_1/hold\"><button name=\"end\"",
        "who sees the group sees why",
    ] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    let row = json!({"override": raised, "hold": held, "name": "Stripe", "rate_limits": []});
    api.on("GET", "/v1/limit-groups", 200, json!({"data": [row], "next_cursor": null}));
    let list = browser.get("/limit-groups").await;
    for part in [">held until <time", ">50/s until <time", ">50/s now, then unlimited<", "title=\"their maintenance\""]
    {
        assert!(list.text.contains(part), "{part}: {}", list.text);
    }
    let begun = json!({"override": raised});
    api.on("POST", "/v1/limit-groups/lgr_1/override", 200, begun);
    browser.post("/limit-groups/lgr_1/override", "limit=50&period=second&for=2+h&reason=launch+day").await;
    let sent = api.seen("POST", "/v1/limit-groups/lgr_1/override").remove(0).body;
    let limits = json!([{"limit": 50, "period": "second"}]);
    assert_eq!(sent, json!({"rate_limits": limits, "for_s": 7_200, "reason": "launch day"}));
}

#[tokio::test]
async fn a_group_is_created_edited_over_its_version_and_deleted() {
    let api = api("operate");
    api.on("POST", "/v1/limit-groups", 201, json!({}));
    api.on("PATCH", PATH, 200, json!({}));
    let browser = api.dashboard();
    let created = browser.post("/limit-groups", &format!("name=Stripe&max_in_flight=&{LIMITS}")).await;
    assert_eq!(created.status, 303, "{}", created.text);
    let sent = api.seen("POST", "/v1/limit-groups").remove(0).body;
    let limits = json!([{"period": "second", "limit": 100}]);
    assert_eq!(sent, json!({"name": "Stripe", "rate_limits": limits, "max_in_flight": null}));
    browser.post("/limit-groups", &format!("name=Stripe&tenant=acme&max_in_flight=&{LIMITS}")).await;
    assert_eq!(api.seen("POST", "/v1/limit-groups").remove(1).body["tenant"], "acme");
    let page = browser.get("/limit-groups/lgr_1").await;
    assert!(page.text.contains(r#"name="etag" value="&#34;1f&#34;""#), "{}", page.text);
    assert!(page.text.contains(r#"name="limit_10s" value="190""#), "{}", page.text);
    let saved = browser.post("/limit-groups/lgr_1", &format!("etag=%221f%22&name=S&max_in_flight=5&{LIMITS}")).await;
    assert_eq!(saved.status, 303, "{}", saved.text);
    let sent = api.seen("PATCH", PATH).remove(0);
    assert_eq!(sent.body, json!({"name": "S", "rate_limits": limits, "max_in_flight": 5}));
    assert_eq!(sent.headers["if-match"], "\"1f\"");
    api.on("DELETE", PATH, 409, json!({"detail": "the limit group has members", "status": 409}));
    let refused = browser.post("/limit-groups/lgr_1/delete", "sure=on").await;
    assert_eq!(refused.status, 303);
    assert_eq!(refused.headers["location"], "/limit-groups/lgr_1");
    assert!(refused.flash().starts_with("error"), "{}", refused.flash());
}

#[tokio::test]
async fn a_refused_form_keeps_what_was_typed() {
    let api = api("operate");
    let error = json!({"pointer": "/rate_limits/0/limit", "detail": "must be at most 1000000"});
    api.on("PATCH", PATH, 422, json!({"status": 422, "errors": [error]}));
    let browser = api.dashboard();
    let page = browser.post("/limit-groups/lgr_1", &format!("etag=%221f%22&name=Kept&max_in_flight=&{LIMITS}")).await;
    assert_eq!(page.status, 422);
    for part in [r#"value="Kept""#, "Not saved.", "fault-limit_second"] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    api.on("PATCH", PATH, 412, json!({"status": 412}));
    let page = browser.post("/limit-groups/lgr_1", &format!("etag=%221e%22&name=Kept&max_in_flight=&{LIMITS}")).await;
    assert!(page.text.contains("Somebody else has changed the group"), "{}", page.text);
}
