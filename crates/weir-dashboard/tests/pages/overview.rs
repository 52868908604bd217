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
        "href=\"/dead-letters?destination=dst_1\">7 dead letters</a>",
        "3 min 5 s",
        "4.2/s</td>",
        "9.7/s</td>",
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
    page.has(&["<strong class=\"bad\">never drains</strong>", "stopped", "class=\"chip warn\""]);
    assert_eq!(page.text.matches("<strong class=\"bad\">never drains").count(), 1);
}

#[tokio::test]
async fn the_filter_is_in_the_url_and_goes_to_the_api() {
    let api = FakeApi::for_role("read");
    script(&api, vec![row("dst_1", "Acme")], Some("next&1"));
    let page = api.dashboard().get("/?q=a%26b&tenant=acme&state=held&sort=name&cursor=c1").await;
    let [call] = api.seen("GET", "/v1/overview").try_into().unwrap();
    assert_eq!(call.path, "/v1/overview?q=a%26b&tenant=acme&state=held&sort=name&recent=true&limit=50&cursor=c1");
    page.has(&[
        "value=\"a&#38;b\"",
        "<option value=\"held\" selected>",
        "<option value=\"name\" selected>",
        "href=\"/?q=a%26b&#38;tenant=acme&#38;state=held&#38;sort=name&#38;cursor=next%261\" rel=\"next\"",
        "hx-get=\"/fragments/overview?q=a%26b&#38;tenant=acme&#38;state=held&#38;sort=name&#38;cursor=c1\"",
        "hx-sse:connect=\"/live?also=pictures&#38;tenant=acme\"",
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
        assert_eq!(page.text.contains("name=\"destination\" value=\"dst_1\""), sees, "{role}");
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
    let page =
        browser.post("/destinations/bulk", "do=pause&destination=dst_1&destination=dst_2&next=/?state=active").await;
    assert_eq!((page.location(), page.flash().as_str()), ("/?state=active", "done.2 destinations paused."));
    assert_eq!(api.seen("PATCH", "/v1/destinations/dst_2")[0].body, json!({"paused": true}));
    let page = browser.post("/destinations/bulk", "do=resume&destination=dst_1&next=//evil.test").await;
    assert_eq!((page.location(), page.flash().as_str()), ("/", "done.1 destination resumed."));
    let page = browser.post("/destinations/bulk", "do=pause&next=/").await;
    assert_eq!(page.flash(), "error.Tick the destinations first.");
}

#[tokio::test]
async fn an_action_that_the_api_refuses_says_why() {
    let api = FakeApi::for_role("operate");
    api.on("PATCH", "/v1/destinations/dst_1", 409, problem("Conflict", "an edit of this destination is under way"));
    let page = api.dashboard().post("/destinations/bulk", "do=pause&destination=dst_1&next=/").await;
    assert_eq!(page.flash(), "error.An edit of this destination is under way");
    // One of two is done: the message names both.
    api.on("PATCH", "/v1/destinations/dst_2", 200, json!({}));
    let page = api.dashboard().post("/destinations/bulk", "do=pause&destination=dst_1&destination=dst_2&next=/").await;
    assert_eq!(
        page.flash(),
        "error.1 destination paused. The others are not: an edit of this destination is under way"
    );
    // No page offers the form to a reader, so its answer is the refusal itself.
    let api = FakeApi::for_role("read");
    api.on("PATCH", "/v1/destinations/dst_1", 403, problem("Forbidden", "this needs a key with the role `operate`"));
    let page = api.dashboard().post("/destinations/bulk", "do=pause&destination=dst_1&next=/").await;
    assert_eq!(page.status, 403);
    assert!(page.text.contains("This needs a key with the role operate"), "{}", page.text);
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
    api.on("GET", "/v1/events", 200, json!({"data": [], "next_cursor": null}));
    let browser = api.dashboard();
    assert_eq!(browser.get("/jump?id=Acme").await.location(), "/destinations/dst_1");
    assert_eq!(browser.get("/jump?id=aCME").await.location(), "/destinations/dst_1");
    assert_eq!(browser.get("/jump?id=acm").await.location(), "/?q=acm");
    assert_eq!(browser.get("/jump?id=dst_7").await.location(), "/destinations/dst_7");
    script(&api, vec![row("dst_1", "Acme"), row("dst_2", "Acme")], None);
    assert_eq!(browser.get("/jump?id=Acme").await.location(), "/?q=Acme");
    // The exact case decides between two names.
    script(&api, vec![row("dst_1", "ACME"), row("dst_2", "Acme")], None);
    assert_eq!(browser.get("/jump?id=Acme").await.location(), "/destinations/dst_2");
    assert_eq!(browser.get("/jump?id=acme").await.location(), "/?q=acme");
}

#[tokio::test]
async fn a_jump_by_an_idempotency_key_leads_to_the_event() {
    let api = FakeApi::for_role("read");
    script(&api, vec![row("dst_1", "Acme")], None);
    let browser = api.dashboard();
    api.on("GET", "/v1/events", 200, json!({"data": [{"id": "evt_9"}], "next_cursor": null}));
    assert_eq!(browser.get("/jump?id=order-17").await.location(), "/events/evt_9");
    assert_eq!(api.seen("GET", "/v1/events")[0].path, "/v1/events?idempotency_key=order-17&limit=2");
    // Two tenants have the key.
    api.on("GET", "/v1/events", 200, json!({"data": [{"id": "evt_9"}, {"id": "evt_8"}], "next_cursor": null}));
    assert_eq!(browser.get("/jump?id=order-17").await.location(), "/events?idempotency_key=order-17");
    // A text that cannot be a key is looked for in names and URLs only.
    api.on("GET", "/v1/events", 422, json!({"title": "Invalid", "detail": "must be printable"}));
    assert_eq!(browser.get("/jump?id=%C3%BCber").await.location(), "/?q=%C3%BCber");
}

#[tokio::test]
async fn names_are_suggested_while_a_reader_types() {
    let api = FakeApi::for_role("read");
    script(&api, vec![row("dst_1", "Old acme"), row("dst_2", "Acme billing"), row("dst_3", "")], None);
    let browser = api.dashboard();
    browser.get("/").await.has(&["list=\"jump-names\"", "hx-get=\"/fragments/jump\"", "<datalist id=\"jump-names\">"]);
    let names = browser.get("/fragments/jump?id=ac").await;
    let at = |text: &str| names.text.find(text).unwrap_or_else(|| panic!("{text}: {}", names.text));
    assert!(at("value=\"Acme billing\"") < at("value=\"Old acme\""), "{}", names.text);
    names.has(&["value=\"https://example.com/hooks\""]);
    browser.get("/fragments/jump?id=").await.has_not(&["<option"]);
}

#[tokio::test]
async fn what_needs_a_person_is_red_and_what_only_waits_has_no_colour() {
    let api = FakeApi::for_role("read");
    let never = [("/drain_eta_s", Value::Null), ("/drains", json!(false))];
    let broken =
        [("/destination/breaker_state", json!("open")), ("/reason", json!("breaker")), ("/drain_eta_s", Value::Null)];
    let rows = [with(row("dst_1", "never"), &never), with(row("dst_2", "broken"), &broken), row("dst_3", "waits")];
    script(&api, rows.to_vec(), None);
    api.dashboard().get("/").await.has(&[
        "<tr id=\"row-dst_1\" data-severity=\"bad\">",
        "<tr id=\"row-dst_2\" data-severity=\"bad\">",
        "<tr id=\"row-dst_3\" data-severity=\"\">",
        "<span class=\"chip bad\" title=\"The breaker is open: the receiver fails\">breaker</span>",
        "<span class=\"chip calm\" title=\"It sends as fast as its limit allows\">limit</span>",
    ]);
}

#[tokio::test]
async fn rates_of_a_row_have_one_unit() {
    let api = FakeApi::for_role("read");
    let rates = [("/arrivals_per_s", json!(0.05)), ("/achieved_per_s", json!(20.0))];
    script(&api, vec![with(row("dst_1", "Acme"), &rates)], None);
    api.dashboard().get("/").await.has(&[">20/s</td>", ">0.05/s</td>"]).has_not(&["/min</td>"]);
}

#[tokio::test]
async fn the_line_above_the_table_counts_what_needs_a_person_and_filters() {
    let api = FakeApi::for_role("read");
    let totals = |changes: Value| {
        let mut totals =
            json!({"destinations": 60, "backlog": 9, "undelivered": 0, "achieved_per_s": 0.0, "arrivals_per_s": 0.0});
        totals.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let answer = json!({"as_of": "2025-11-21T07:30:00.000Z", "totals": totals, "data": [row("dst_1", "Acme")]});
        api.on("GET", "/v1/overview", 200, answer);
    };
    totals(json!({"breaker": 9, "paused": 2, "never_drains": 12}));
    let page = api.dashboard().get("/?q=a&cursor=c2").await;
    page.has(&[
        "<a href=\"/?q=a&#38;state=breaker\" class=\"bad\">9 broken</a>",
        "<a href=\"/?q=a&#38;state=never_drains\" class=\"bad\">12 never drain</a>",
        "<a href=\"/?q=a&#38;state=paused\" class=\"warn\">2 paused</a>",
    ]);
    page.has_not(&["held</a>", "every backlog drains"]);
    let filtered = api.dashboard().get("/?state=paused").await;
    filtered.has(&["<a href=\"/\" class=\"warn on\" aria-current=\"true\">2 paused</a>"]);
    totals(json!({}));
    api.dashboard().get("/").await.has(&["No destination is broken, paused or held, and every backlog drains."]);
}

#[tokio::test]
async fn the_head_of_a_column_sorts_by_it_and_turns_the_order_round() {
    let api = FakeApi::for_role("read");
    script(&api, vec![row("dst_1", "Acme")], None);
    let browser = api.dashboard();
    browser.get("/?q=a").await.has(&[
        "<th class=\"why\" aria-sort=\"descending\"><a href=\"/?q=a&#38;reverse=true\">Why</a></th>",
        "<th class=\"name\"><a href=\"/?q=a&#38;sort=name\">Destination</a></th>",
        "<th class=\"limits\">Limits</th>",
    ]);
    let turned = browser.get("/?sort=backlog&reverse=true&cursor=c2").await;
    turned.has(&["<th class=\"number\" aria-sort=\"ascending\"><a href=\"/?sort=backlog\">Backlog</a></th>"]);
    let asked = api.seen("GET", "/v1/overview").pop().unwrap().path;
    assert_eq!(asked, "/v1/overview?sort=backlog&reverse=true&recent=true&limit=50&cursor=c2");
}

#[tokio::test]
async fn a_page_says_which_rows_of_how_many_it_shows() {
    let api = FakeApi::for_role("read");
    let rows: Vec<Value> = (0..50).map(|n| row(&format!("dst_{n}"), "Acme")).collect();
    let answer = |skipped: u64, previous: Value| {
        json!({
            "as_of": "2025-11-21T07:30:00.000Z", "matches": 3_000, "skipped": skipped, "data": rows, "next_cursor": "c3",
            "previous_cursor": previous,
        })
    };
    api.on("GET", "/v1/overview", 200, answer(0, Value::Null));
    api.dashboard().get("/").await.has(&["1–50 of 3,000, page 1 of 60"]).has_not(&["Previous page"]);
    api.on("GET", "/v1/overview", 200, answer(50, json!("c1")));
    api.dashboard().get("/?cursor=c2").await.has(&[
        "51–100 of 3,000, page 2 of 60",
        "<a class=\"button\" href=\"/?cursor=c1\" rel=\"prev\">Previous page</a>",
    ]);
    api.on(
        "GET",
        "/v1/overview",
        200,
        json!({"as_of": "2025-11-21T07:30:00.000Z", "matches": 1, "data": [row("dst_1", "A")]}),
    );
    api.dashboard().get("/").await.has(&["1 shown"]).has_not(&[" of 1"]);
}

#[tokio::test]
async fn rows_that_are_held_keep_their_order_and_those_that_left_the_page_are_read_too() {
    let api = FakeApi::for_role("read");
    script(&api, vec![row("dst_2", "two"), row("dst_1", "one")], None);
    let page = api.dashboard().get("/fragments/overview?sort=backlog&held=dst_1,dst_2").await;
    let place = |text: &str| page.text.find(text).unwrap_or_else(|| panic!("{text} is missing in {}", page.text));
    assert!(place("row-dst_1") < place("row-dst_2"), "{}", page.text);
    page.has(&["The order stands still: 2 rows are elsewhere by now."]);
    page.has_not(&["held="]);
    let asked: Vec<String> = api.seen("GET", "/v1/overview").into_iter().map(|call| call.path).collect();
    assert_eq!(asked, ["/v1/overview?sort=backlog&recent=true&limit=50"], "nothing else is needed");
    let page = api.dashboard().get("/fragments/overview?held=dst_9,dst_2").await;
    let asked = api.seen("GET", "/v1/overview").pop().unwrap().path;
    assert_eq!(asked, "/v1/overview?ids=dst_9&recent=true&limit=200");
    // The scripted API answers with what it has, and not with the missing one: it is gone.
    page.has(&["row-dst_2"]).has_not(&["row-dst_1"]);
}

#[tokio::test]
async fn the_pictures_show_the_last_half_hour_in_words_too() {
    let api = FakeApi::for_role("read");
    script(&api, vec![row("dst_1", "Acme")], None);
    let minute =
        |at: &str, sends, failed| json!({"at": at, "sends": sends, "failed": failed, "arrivals": 600, "backlog": 40});
    let data = [minute("2025-11-21T07:28:00.000Z", 300, 60), minute("2025-11-21T07:29:00.000Z", 600, 0)];
    api.on("GET", "/v1/overview/history", 200, json!({"as_of": "2025-11-21T07:30:00.000Z", "data": data}));
    let page = api.dashboard().get("/?tenant=acme").await;
    page.has(&[
        "aria-label=\"Arriving 10/s and sent 10/s now; at most 10/s in the last half hour\"",
        "aria-label=\"Failed attempts: 0/s now; at most 1/s in the last half hour\"",
        "aria-label=\"Waiting: 40 now; at most 40 in the last half hour\"",
        "<title>2 min ago: 10/s arrived, 5/s sent</title>",
        "data-form=\"minute\">07:28</time>",
        "hx-get=\"/fragments/overview/pictures?tenant=acme\" hx-trigger=\"snapshot from:#live throttle:10s\"",
    ]);
    let part = api.dashboard().get("/fragments/overview/pictures?tenant=acme").await;
    assert!(page.text.contains(part.text.trim_end()), "{}", part.text);
    assert_eq!(api.seen("GET", "/v1/overview/history")[0].path, "/v1/overview/history?tenant=acme");
}

#[tokio::test]
async fn a_row_has_a_picture_of_its_last_half_hour() {
    let api = FakeApi::for_role("read");
    let mut busy = row("dst_1", "Acme");
    busy["recent"] =
        json!({"from": "2025-11-21T07:28:00.000Z", "sends": [60, 30], "failed": [0, 2], "arrivals": [60, 60]});
    script(&api, vec![busy], None);
    let page = api.dashboard().get("/").await;
    page.has(&["aria-label=\"Last half hour: 120 arrived, 90 sent, 2 failed\"", "<rect class=\"red bar\""]);
}
