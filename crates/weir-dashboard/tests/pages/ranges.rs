//! The picker of a range of time, on every page that has one.

use serde_json::json;

use crate::support::FakeApi;

fn api() -> FakeApi {
    let api = FakeApi::for_role("read");
    let nothing = json!({"data": [], "next_cursor": null});
    for path in ["/v1/deliveries", "/v1/events", "/v1/activity"] {
        api.on("GET", path, 200, nothing.clone());
    }
    api.on("GET", "/v1/deliveries/groups", 200, json!({"data": [], "scanned": 0, "capped": false}));
    api.on("GET", "/v1/destinations/dst_1", 200, json!({"id": "dst_1", "name": "Acme", "url": "https://example.com"}));
    let history =
        json!({"step": "1m", "from": "2025-11-20T07:30:00.000Z", "to": "2025-11-21T07:30:00.000Z", "data": []});
    api.on("GET", "/v1/destinations/dst_1/history", 200, history);
    api.on("GET", "/v1/destinations/dst_1/audit", 200, json!({"sends": 0}));
    api
}

const PAGES: [(&str, &str); 7] = [
    ("/deliveries", "/v1/deliveries"),
    ("/dead-letters", "/v1/deliveries/groups"),
    ("/events", "/v1/events"),
    ("/activity", "/v1/activity"),
    ("/destinations/dst_1/activity", "/v1/activity"),
    ("/destinations/dst_1/proof", "/v1/destinations/dst_1/history"),
    ("/replays/new", "/v1/replays"),
];

#[tokio::test]
async fn every_page_with_a_range_has_the_same_picker() {
    let (api, range) = (api(), "last=24+h&from=&to=&had_from=&had_to=");
    api.on("POST", "/v1/replays", 200, json!({"total": 3}));
    for (path, call) in PAGES {
        let page = api.dashboard().get(path).await;
        page.has(&[
            "<select name=\"last\">",
            "<option value=\"15 min\"",
            "<option value=\"30 d\"",
            "name=\"from\" type=\"datetime-local\"",
            "name=\"had_from\"",
            "(<span data-zone-name>UTC</span>)",
        ]);
        assert_eq!(page.text.matches("<select name=\"last\">").count(), 1, "{path}");
        let settled = api.dashboard().get(&format!("{path}?{range}")).await;
        assert_eq!(settled.location(), format!("{path}?from=2025-11-20T07:30:00.000Z"), "{path}");
        let page = api.dashboard().get(settled.location()).await;
        page.has(&["<option value=\"24 h\" selected>Last 24 h</option>", "value=\"2025-11-20T07:30:00\""]);
        let method = if call.ends_with("replays") { "POST" } else { "GET" };
        let asked = api.seen(method, call).pop().unwrap();
        let has_it =
            asked.path.contains("from=2025-11-20T07:30:00.000Z") || asked.body["from"] == "2025-11-20T07:30:00.000Z";
        assert!(has_it, "{path}: {} {}", asked.path, asked.body);
    }
}

#[tokio::test]
async fn the_base_of_the_dashboard_stays_in_the_link() {
    let page = api().dashboard_at("/weir").get("/activity?last=all&from=&to=&actor=ann").await;
    assert_eq!(page.location(), "/weir/activity?actor=ann");
}

#[tokio::test]
async fn a_step_that_does_not_fit_its_range_is_named() {
    let page = api().dashboard().get("/destinations/dst_1/proof?from=2025-11-20T07:30:00Z&step=10s").await;
    page.has(&["for buckets of 10s: they are 1m long"]);
    api().dashboard().get("/destinations/dst_1/proof").await.has_not(&["for buckets of"]);
}
