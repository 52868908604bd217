//! The overview.

use serde_json::{Value, json};

use crate::support::{FakeApi, XSS, problem, row};

fn script(api: &FakeApi, rows: Vec<Value>, next: Option<&str>) {
    let totals =
        json!({"destinations": 3, "backlog": 12_345, "undelivered": 7, "achieved_per_s": 9.7, "arrivals_per_s": 104.0});
    let as_of = "2025-11-21T07:30:00.000Z";
    api.on("GET", "/v1/overview", 200, json!({"as_of": as_of, "totals": totals, "data": rows, "next_cursor": next}));
}

fn with(mut row: Value, changes: &[(&str, Value)]) -> Value {
    for (pointer, value) in changes {
        *row.pointer_mut(pointer).unwrap() = value.clone();
    }
    row
}

#[tokio::test]
async fn a_row_shows_use_limits_backlog_age_rates_eta_and_reason() {
    let api = FakeApi::for_role("read");
    script(&api, vec![row("dst_1", "Acme")], None);
    let page = api.dashboard().get("/").await;
    page.has(&[
        "href=\"/destinations/dst_1\">Acme</a>",
        "aria-label=\"97 % of the binding limit\"",
        "<span class=\"limit binding\">10/s</span>",
        "<span class=\"limit\">600/min</span>",
        ">1,234<",
        "href=\"/dead-letters?destination=dst_1\">7 dead</a>",
        "3 min 5 s",
        "4.2/s",
        "9.7/s",
        "3 min 32 s",
        ">limit</span>",
        "<dd>12,345</dd>",
        "data-form=\"clock\">07:30:00</time>",
    ]);
}

#[tokio::test]
async fn a_backlog_that_grows_never_drains_and_one_that_is_stopped_says_so() {
    let api = FakeApi::for_role("read");
    let never = [("/drain_eta_s", Value::Null), ("/drains", json!(false))];
    let stopped = [("/drain_eta_s", Value::Null), ("/drains", Value::Null), ("/reason", json!("paused"))];
    let empty = [("/backlog", json!(0)), ("/drain_eta_s", Value::Null), ("/reason", Value::Null)];
    let rows =
        vec![with(row("dst_1", "a"), &never), with(row("dst_2", "b"), &stopped), with(row("dst_3", "c"), &empty)];
    script(&api, rows, None);
    let page = api.dashboard().get("/").await;
    page.has(&["never drains", "stopped", "class=\"chip warn\""]);
    assert_eq!(page.text.matches("never drains").count(), 1);
}

#[tokio::test]
async fn the_filter_is_in_the_url_and_goes_to_the_api() {
    let api = FakeApi::for_role("read");
    script(&api, vec![row("dst_1", "Acme")], Some("next&1"));
    let page = api.dashboard().get("/?q=a%26b&tenant=acme&state=held&sort=name&cursor=c1").await;
    let [call] = api.seen("GET", "/v1/overview").try_into().unwrap();
    assert_eq!(call.path, "/v1/overview?q=a%26b&tenant=acme&state=held&sort=name&limit=50&cursor=c1");
    page.has(&[
        "value=\"a&#38;b\"",
        "<option value=\"held\" selected>",
        "<option value=\"name\" selected>",
        "href=\"/?q=a%26b&#38;tenant=acme&#38;state=held&#38;sort=name&#38;cursor=next%261\" rel=\"next\"",
        "hx-get=\"/fragments/overview?q=a%26b&#38;tenant=acme&#38;state=held&#38;sort=name&#38;cursor=c1\"",
        "hx-sse:connect=\"/live?tenant=acme\"",
    ]);
}

#[tokio::test]
async fn the_fragment_is_the_table_of_the_page() {
    let api = FakeApi::for_role("operate");
    script(&api, vec![row("dst_1", "Acme")], None);
    let browser = api.dashboard();
    let (page, fragment) = (browser.get("/?q=x").await, browser.get("/fragments/overview?q=x").await);
    assert!(fragment.text.starts_with("<div id=\"overview\""), "{}", fragment.text);
    assert!(page.text.contains(fragment.text.trim_end()), "{}", fragment.text);
}

#[tokio::test]
async fn every_text_of_a_destination_is_escaped() {
    let api = FakeApi::for_role("admin");
    let texts = ["/destination/name", "/destination/url", "/destination/tenant", "/reason", "/destination/id"];
    script(&api, vec![with(row("dst_1", ""), &texts.map(|pointer| (pointer, json!(XSS))))], Some(XSS));
    let page = api.dashboard().get(&format!("/?q={}", "%22%3E%3Cscript%3Ealert(1)%3C/script%3E")).await;
    page.has(&["&#60;script&#62;alert(1)"]).has_not(&["<script>", "\"'>"]);
}

#[tokio::test]
async fn the_url_of_a_destination_is_no_link() {
    let api = FakeApi::for_role("read");
    script(&api, vec![with(row("dst_1", "x"), &[("/destination/url", json!("javascript:alert(1)"))])], None);
    api.dashboard().get("/").await.has(&[">javascript:alert(1)</span>"]).has_not(&["href=\"javascript"]);
}

#[tokio::test]
async fn a_long_url_is_cut_and_its_title_has_all_of_it() {
    let api = FakeApi::for_role("read");
    let url = json!("https://example.com/a-rather-long-path/of-the-receiver/hooks");
    let unnamed = with(row("dst_2", ""), &[("/destination/url", url.clone())]);
    script(&api, vec![with(row("dst_1", "Acme"), &[("/destination/url", url.clone())]), unnamed], None);
    let url = url.as_str().unwrap();
    api.dashboard().get("/").await.has(&[
        &format!("<span class=\"url\" title=\"{url}\">{url}</span>"),
        &format!("<a class=\"row url\" href=\"/destinations/dst_2\" title=\"{url}\">{url}</a>"),
    ]);
}

#[tokio::test]
async fn the_dead_letters_of_the_totals_are_those_of_the_tenant() {
    let api = FakeApi::for_role("read");
    script(&api, vec![row("dst_1", "Acme")], None);
    api.dashboard().get("/?tenant=acme").await.has(&["href=\"/dead-letters?tenant=acme\">7</a>"]);
    api.dashboard().get("/").await.has(&["href=\"/dead-letters\">7</a>"]);
}

#[tokio::test]
async fn a_reader_gets_no_actions() {
    for (role, sees) in [("read", false), ("operate", true), ("admin", true)] {
        let api = FakeApi::for_role(role);
        script(&api, vec![row("dst_1", "Acme")], None);
        let page = api.dashboard().get("/").await;
        assert_eq!(page.text.contains("value=\"pause\""), sees, "{role}");
        assert_eq!(page.text.contains("name=\"id\" value=\"dst_1\""), sees, "{role}");
    }
}

#[tokio::test]
async fn an_empty_overview_shows_the_curl_that_fills_it() {
    let api = FakeApi::for_role("read");
    script(&api, Vec::new(), None);
    let browser = api.dashboard_at("/weir");
    browser.get("/").await.has(&["curl http://weir.test/weir/v1/destinations", "authorization: Bearer"]);
    browser.get("/?q=x").await.has(&["No destination matches"]).has_not(&["curl"]);
}

#[tokio::test]
async fn ticked_destinations_are_paused_and_resumed() {
    let api = FakeApi::for_role("operate");
    for id in ["dst_1", "dst_2"] {
        api.on("PATCH", &format!("/v1/destinations/{id}"), 200, json!({}));
    }
    let browser = api.dashboard();
    let page = browser.post("/destinations/bulk", "action=pause&id=dst_1&id=dst_2&next=/?state=active").await;
    assert_eq!((page.location(), page.flash().as_str()), ("/?state=active", "done.2 destinations paused."));
    assert_eq!(api.seen("PATCH", "/v1/destinations/dst_2")[0].body, json!({"paused": true}));
    let page = browser.post("/destinations/bulk", "action=resume&id=dst_1&next=//evil.test").await;
    assert_eq!((page.location(), page.flash().as_str()), ("/", "done.1 destination resumed."));
    let page = browser.post("/destinations/bulk", "action=pause&next=/").await;
    assert_eq!(page.flash(), "error.Tick the destinations first.");
}

#[tokio::test]
async fn an_action_that_the_api_refuses_says_why() {
    let api = FakeApi::for_role("operate");
    api.on("PATCH", "/v1/destinations/dst_1", 409, problem("Conflict", "an edit of this destination is under way"));
    let page = api.dashboard().post("/destinations/bulk", "action=pause&id=dst_1&next=/").await;
    assert_eq!(page.flash(), "error.an edit of this destination is under way");
    // One of two is done: the message names both.
    api.on("PATCH", "/v1/destinations/dst_2", 200, json!({}));
    let page = api.dashboard().post("/destinations/bulk", "action=pause&id=dst_1&id=dst_2&next=/").await;
    assert_eq!(
        page.flash(),
        "error.1 destination paused. The others are not: an edit of this destination is under way"
    );
    // No page offers the form to a reader, so its answer is the refusal itself.
    let api = FakeApi::for_role("read");
    api.on("PATCH", "/v1/destinations/dst_1", 403, problem("Forbidden", "this needs a key with the role `operate`"));
    let page = api.dashboard().post("/destinations/bulk", "action=pause&id=dst_1&next=/").await;
    assert_eq!(page.status, 403);
    assert!(page.text.contains("this needs a key with the role operate"), "{}", page.text);
}

#[tokio::test]
async fn a_name_of_white_space_is_no_label() {
    let api = FakeApi::for_role("operate");
    script(&api, vec![with(row("dst_1", ""), &[("/destination/name", json!(" \u{3000}"))])], None);
    let page = api.dashboard().get("/").await;
    page.has(&[">https://example.com/hooks</a>", "aria-label=\"Tick https://example.com/hooks\""]);
}

#[tokio::test]
async fn a_jump_by_an_exact_name_leads_to_the_destination() {
    let api = FakeApi::for_role("read");
    script(&api, vec![row("dst_1", "Acme"), row("dst_2", "Acme billing")], None);
    let browser = api.dashboard();
    assert_eq!(browser.get("/jump?id=Acme").await.location(), "/destinations/dst_1");
    assert_eq!(browser.get("/jump?id=acm").await.location(), "/?q=acm");
    assert_eq!(browser.get("/jump?id=dst_7").await.location(), "/destinations/dst_7");
    script(&api, vec![row("dst_1", "Acme"), row("dst_2", "Acme")], None);
    assert_eq!(browser.get("/jump?id=Acme").await.location(), "/?q=Acme");
}
