//! What holds on every page: its frame, its landmarks, what a reader may do, and what it asks the API for.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::{Value, json};

use crate::support::{FakeApi, Page, row};

const AT: &str = "2025-11-21T07:30:00.000Z";
/// Every page for logged-in readers, with data.
const PAGES: [&str; 29] = [
    "/",
    "/destinations/new",
    "/destinations/dst_1",
    "/destinations/dst_1/proof",
    "/destinations/dst_1/backlog",
    "/destinations/dst_1/keys",
    "/destinations/dst_1/settings",
    "/destinations/dst_1/activity",
    "/destinations/dst_1/purge",
    "/deliveries",
    "/deliveries?destination=dst_1&state=dead",
    "/deliveries/dlv_1",
    "/dead-letters",
    "/dead-letters/discard?destination=dst_1&state=dead",
    "/events",
    "/events/evt_1",
    "/event-types",
    "/event-types/order.created",
    "/limit-groups",
    "/limit-groups/lgr_1",
    "/replays",
    "/replays/rpl_1",
    "/replays/new",
    "/replays/new?destination=dst_1&state=dead",
    "/alerts",
    "/activity",
    "/keys",
    "/status",
    "/shedding",
];

/// An API in which every list has something.
pub(crate) fn filled(role: &str) -> FakeApi {
    let api = FakeApi::for_role(role);
    let list = |item: Value| json!({"data": [item], "next_cursor": "c2"});
    destinations(&api);
    let delivery = json!({"state": "dead", "attempt_count": 1, "last_error_kind": "5xx", "last_status_code": 503});
    let mut detail = delivery.clone();
    detail["attempts"] = json!([{
        "sent_at": AT, "signed_at": AT, "status_code": 503, "outcome": "retryable", "response_body": "no",
        "remote_address": "192.0.2.7:443", "connect_ms": 2, "tls_ms": 3,
    }]);
    api.on("GET", "/v1/deliveries/dlv_1", 200, detail);
    let mut deliveries = list(delivery.clone());
    deliveries["count"] = json!({"value": 1, "capped": false});
    api.on("GET", "/v1/deliveries", 200, deliveries);
    let group = json!({
        "destination_id": "dst_1", "destination_name": "Acme", "state": "dead", "error": "5xx", "status_code": 503,
        "deliveries": 9, "newest_at": AT, "oldest_at": AT, "example_id": "dlv_1",
    });
    api.on("GET", "/v1/deliveries/groups", 200, json!({"data": [group], "scanned": 9, "capped": false}));
    api.on("POST", "/v1/deliveries/discard", 200, json!({"total": 9}));
    let event = json!({"idempotency_key": "a", "ordering_key": "b", "data": {"id": 7}});
    api.on("GET", "/v1/events", 200, list(event.clone()));
    let mut detail = event;
    detail["deliveries"] = json!([delivery]);
    api.on("GET", "/v1/events/evt_1", 200, detail);
    let event_type = json!({"description": "An order.", "example": {"id": 7}, "schema": {"type": "object"}});
    api.on("GET", "/v1/event-types", 200, list(event_type.clone()));
    api.on_with("GET", "/v1/event-types/order.created", 200, &[("etag", "\"1\"")], event_type);
    api.on("GET", "/v1/destinations", 200, list(json!({"event_types": ["order.*"]})));
    api.on("GET", "/v1/limit-groups", 200, list(json!({"backlog": 3})));
    api.on_with("GET", "/v1/limit-groups/lgr_1", 200, &[("etag", "\"1\"")], json!({}));
    let members = json!({"members": 1, "backlog": 3, "data": [{"backlog": 3, "reason": "group"}]});
    api.on("GET", "/v1/limit-groups/lgr_1/overview", 200, members);
    api.on("GET", "/v1/limit-groups/lgr_1/reservations", 200, list(json!({"state": "given_back"})));
    let replay = json!({
        "states": ["dead"], "destination": "dst_1", "total": 200, "delivered": 90, "failed": 10, "remaining": 100, "eta_s": 12,
    });
    api.on("GET", "/v1/replays/rpl_1", 200, replay.clone());
    api.on("GET", "/v1/replays", 200, list(replay));
    api.on("POST", "/v1/replays", 200, json!({"total": 3}));
    let policy = json!({"backlog_depth": 500, "oldest_age_s": null, "drain_beyond_ttl": true, "dead_letters": 1});
    api.on("GET", "/v1/alerts", 200, policy);
    let active = json!({"type": "weir.delivery.dead", "data": {"new": 7, "dead_letters": 7}});
    let counts = json!({"weir.delivery.dead": 1, "weir.breaker.opened": 2});
    api.on("GET", "/v1/alerts/active", 200, json!({"counts": counts, "data": [active], "next_cursor": "c2"}));
    let entry = json!({
        "id": "act_1", "at": AT, "actor": "billing", "actor_kind": "key", "actor_key_id": "key_1", "action": "destination.edited", "before": {"paused": false},
        "after": {"paused": true}, "subject": {"type": "destination", "id": "dst_1", "name": "Acme"}, "request_id": "r",
    });
    api.on("GET", "/v1/activity", 200, list(entry));
    api.on("GET", "/v1/keys", 200, list(json!({})));
    let status = json!({
        "as_of": AT, "version": "0.1.0", "store": {"kind": "sqlite", "is_reachable": true, "answered_in_ms": 0.4},
        "queue": {"kind": "memory", "is_reachable": true, "answered_in_ms": null}, "queue_depths": null,
        "processes": [{"id": 1, "role": "serve", "version": "0.1.0", "started_at": AT}],
    });
    api.on("GET", "/v1/status", 200, status);
    api.on("GET", "/v1/shedding", 200, json!({}));
    api
}

/// One destination with everything that its pages show.
fn destinations(api: &FakeApi) {
    let mut state = row("dst_1", "Acme");
    let totals =
        json!({"destinations": 1, "backlog": 5, "undelivered": 7, "achieved_per_s": 9.5, "arrivals_per_s": 4.0});
    let overview = json!({"as_of": AT, "totals": totals, "data": [state.clone()], "next_cursor": "c2"});
    api.on("GET", "/v1/overview", 200, overview);
    let mut destination = state["destination"].clone();
    let settings = json!({
        "event_types": ["*"], "timeout_ms": 15_000, "breaker": null, "alerts": {}, "skip_after_attempts": null,
        "retry": {"max_attempts": 16, "max_age_s": 259_200, "schedule_ms": [1_000]}, "headers": {"x-key": "***"},
        "signature": {"style": "standard"}, "key_limits": {"key": "/customer/id", "rate_limits": [], "weight": 1, "overrides": {}},
    });
    destination.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    api.on_with("GET", "/v1/destinations/dst_1", 200, &[("etag", "\"v1\"")], destination);
    state["as_of"] = json!(AT);
    api.on("GET", "/v1/destinations/dst_1/keys", 200, json!({"data": [{"key": "cus_1", "waiting": 3}]}));
    api.on("GET", "/v1/destinations/dst_1/overview", 200, state);
    let health = json!({
        "success_ratio": 0.95, "latency_ms": {"p50": 12.0, "p95": 80.0, "p99": 1_500.0}, "attempts_made": 918,
        "attempts": [{"number": 1, "deliveries": 900}], "delivered": 909, "failed": 9, "dead": 0, "last_success_at": AT,
    });
    api.on("GET", "/v1/destinations/dst_1/health", 200, health);
    let bucket = json!({
        "at": AT, "sends": 97, "delivered": 97, "failed": 0, "arrivals": 3, "backlog": 70,
        "max_window": [{"period": "second", "sends": 10, "limit": 10}],
    });
    let history = json!({"step": "10s", "from": AT, "to": "2025-11-21T07:30:10.000Z", "data": [bucket]});
    api.on("GET", "/v1/destinations/dst_1/history", 200, history);
    let limit = json!({
        "limit": 10, "period": "second", "burst": 1, "worst_sliding_window": {"start": AT, "sends": 10},
        "violations": 0, "utilisation": 0.97,
    });
    api.on("GET", "/v1/destinations/dst_1/audit", 200, json!({"sends": 97, "rate_limits": [limit]}));
    api.on("POST", "/v1/destinations/dst_1/purge", 200, json!({"total": 3}));
}

/// What follows each occurrence of `start`, up to `end`.
fn parts<'a>(text: &'a str, start: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(start).skip(1).map(move |rest| rest.split(end).next().unwrap_or(rest))
}

async fn pages(api: &FakeApi) -> Vec<(&'static str, Page)> {
    let browser = api.dashboard();
    let mut pages = Vec::new();
    for path in PAGES {
        let page = browser.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        pages.push((path, page));
    }
    pages
}

#[tokio::test]
async fn every_page_has_a_language_a_description_a_title_one_heading_and_a_way_past_the_navigation() {
    let mut titles = BTreeSet::new();
    for (path, page) in pages(&filled("admin")).await {
        page.has(&[
            "<!doctype html>",
            "<html lang=\"en\">",
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">",
            "<meta name=\"description\" content=\"",
            "<a class=\"skip\" href=\"#main\">",
            "<main id=\"main\" tabindex=\"-1\">",
        ]);
        assert_eq!(page.text.matches("<h1").count(), 1, "{path}");
        let title = parts(&page.text, "<title>", "</title>").next().unwrap();
        assert!(title.ends_with(" · Weir") && title.len() > " · Weir".len(), "{path}: {title}");
        titles.insert(title.to_owned());
    }
    // The list of deliveries is there twice.
    assert_eq!(titles.len(), PAGES.len() - 1, "pages are told apart by their titles: {titles:?}");
}

#[tokio::test]
async fn no_id_occurs_twice_on_a_page() {
    for (path, page) in pages(&filled("admin")).await {
        let ids: Vec<&str> = parts(&page.text, " id=\"", "\"").collect();
        let different: BTreeSet<&&str> = ids.iter().collect();
        assert_eq!(ids.len(), different.len(), "{path}: {ids:?}");
    }
}

#[tokio::test]
async fn a_table_that_is_too_wide_can_be_scrolled_with_the_keyboard() {
    let mut tables = 0;
    for (path, page) in pages(&filled("admin")).await {
        for region in parts(&page.text, "<div class=\"scroll", ">") {
            let is_reachable = region.contains(" tabindex=\"0\" role=\"region\" aria-label=\"");
            assert!(is_reachable, "{path}: {region}");
            tables += 1;
        }
        let grids = page.text.matches("<table class=\"grid").count();
        assert_eq!(page.text.matches("<div class=\"scroll").count(), grids, "{path}: a table is in no region");
    }
    assert!(tables >= 13, "{tables}");
}

#[tokio::test]
async fn a_list_names_its_next_page_and_from_there_its_first() {
    let api = filled("admin");
    for path in ["/", "/deliveries", "/events", "/replays", "/activity", "/keys"] {
        let first = api.dashboard().get(path).await;
        first.has(&[&format!("href=\"{path}?cursor=c2\" rel=\"next\">Next page</a>")]).has_not(&["First page"]);
        let second = api.dashboard().get(&format!("{path}?cursor=c2")).await;
        second.has(&[&format!("href=\"{path}\">First page</a>")]);
    }
    api.on("GET", "/v1/events", 200, json!({"data": [], "next_cursor": null}));
    api.dashboard().get("/events").await.has_not(&["aria-label=\"Pages\""]);
}

#[tokio::test]
async fn a_reader_sees_no_button_that_changes_anything() {
    let api = filled("read");
    // An open breaker and a pause offer actions to others.
    let mut open = row("dst_1", "Acme")["destination"].clone();
    open["breaker_state"] = json!("open");
    for (path, page) in pages(&api).await {
        for form in parts(&page.text, "<form method=\"post\" action=\"", "</form>") {
            let action = form.split('"').next().unwrap();
            let changes_nothing =
                ["/logout", "/destinations/dst_1/verify#verify", "/destinations/dst_1/filter#try-filter"]
                    .contains(&action);
            // The API shows these two to administrators only.
            let is_for_admins = ["/keys", "/shedding"].contains(&path);
            assert!(changes_nothing || is_for_admins || !form.contains("<button"), "{path}: {form}");
        }
        let offered = [
            "Purge …",
            "Replay…",
            "Replay all that match…",
            "Discard…",
            "Discard all that match…",
            ">Actions<",
            "type=\"checkbox\" name=\"id\"",
        ];
        if path != "/keys" {
            page.has_not(&offered);
        }
    }
    api.on_with("GET", "/v1/destinations/dst_1", 200, &[("etag", "\"v1\"")], open);
    api.dashboard().get("/destinations/dst_1").await.has(&["The breaker is open."]).has_not(&["Close it now"]);
}

#[tokio::test]
async fn no_page_loads_all_destinations() {
    let api = filled("admin");
    pages(&api).await;
    assert!(api.seen("GET", "/v1/destinations").iter().all(|seen| seen.path.contains("limit=50")));
    for call in api.seen("GET", "/v1/overview") {
        let limit = call.path.split(['?', '&']).find_map(|part| part.strip_prefix("limit="));
        assert!(limit.is_some_and(|limit| limit.parse::<u32>().unwrap() <= 50), "{}", call.path);
    }
}

/// Charts escape their texts themselves (`weir_chart::escaped`). Everything else is escaped by askama.
#[test]
fn only_charts_are_put_into_a_page_as_they_are() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut unescaped = Vec::new();
    for file in fs::read_dir(crate_folder.join("templates")).unwrap() {
        let template = fs::read_to_string(file.unwrap().path()).unwrap();
        unescaped.extend(parts(&template, "{{", "}}").filter(|text| text.contains("safe")).map(str::to_owned));
    }
    unescaped.sort();
    let charts = [
        " chart|safe ",
        " history.chart(\"\").inline()|safe ",
        " others|safe ",
        " others|safe ",
        " picture.svg|safe ",
        " self.chart()|safe ",
        " shown.svg()|safe ",
        " table.spark(row)|safe ",
        " tried.picture().inline()|safe ",
    ];
    assert_eq!(unescaped, charts);
    let script = fs::read_to_string(crate_folder.join("assets/app.js")).unwrap();
    for sink in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc"] {
        assert!(!script.contains(sink), "{sink}");
    }
}

#[test]
fn no_rule_of_the_style_is_for_nothing() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut words = BTreeSet::new();
    for folder in ["templates", "src", "src/pages", "src/pages/destination", "src/pages/limit_groups", "assets"] {
        for file in fs::read_dir(crate_folder.join(folder)).unwrap() {
            let file = file.unwrap().path();
            if file.extension().is_some_and(|kind| ["html", "rs", "js"].iter().any(|known| kind == *known)) {
                let text = fs::read_to_string(file).unwrap();
                words.extend(text.split(|at: char| !at.is_ascii_alphanumeric() && at != '-').map(str::to_owned));
            }
        }
    }
    let style = fs::read_to_string(crate_folder.join("assets/app.css")).unwrap();
    // A class begins with a letter; a number such as `.35` does not.
    let classes = style.split('.').skip(1).filter(|rest| rest.starts_with(|first: char| first.is_ascii_alphabetic()));
    let names = classes.map(|rest| rest.split(|at: char| !at.is_ascii_alphanumeric() && at != '-').next().unwrap());
    let unused: BTreeSet<&str> = names.filter(|name| !words.contains(*name)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

/// The paths of the table of all pages.
fn routes() -> Vec<&'static str> {
    let table = include_str!("../../src/router.rs");
    let written = parts(table, "        (\"", "\"").filter(|path| path.starts_with('/'));
    let routes: Vec<_> = written.chain(["/deliveries"]).collect();
    assert!(routes.len() > 40, "{routes:?}");
    routes
}

/// A path may name anything: another resource of the API, or characters that no header can hold.
#[tokio::test]
async fn no_path_query_or_form_makes_a_page_fail() {
    let (api, long) = (filled("admin"), "x".repeat(3_000));
    let browser = api.dashboard();
    let ids = [
        "dst_1",
        "groups",
        "by-name",
        "batch",
        "bulk",
        "new",
        "_",
        "a%0d%0ab",
        "%ff",
        "%00",
        "..",
        "%2e%2e%2fkeys",
        "dst_1%2Fhealth",
        "dst_1%3Fx",
        "%C3%A9",
        "dlv_%C3%A9",
        &long,
    ];
    let queries = [
        "?cursor=%ff&state=%00&destination=%22%3E&q=%0d%0a&seen=&sort=-1&from=x&to=0&window=%F0%9F%92%A5",
        "?cursor=&cursor=&state=dead&state=dead&destination=groups&limit=-1&a[b]=c&%=%",
    ];
    let forms = ["", "next=%0d%0a//evil.example&name=%00&paused=%ff&if_match=%0a&idempotency_key=%0a&id=groups&id=_"];
    for route in routes() {
        for id in ids {
            let path = route.replace("{id}", id).replace("{file}", id);
            for path in std::iter::once(path.clone()).chain(queries.map(|query| format!("{path}{query}"))) {
                let status = browser.get(&path).await.status;
                assert!(!status.is_server_error(), "GET {path} is {status}");
            }
            for form in forms {
                let status = browser.post(&path, form).await.status;
                assert!(!status.is_server_error(), "POST {path} with {form} is {status}");
            }
            if !route.contains('{') {
                break;
            }
        }
    }
}
