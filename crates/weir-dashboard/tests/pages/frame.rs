//! What all pages share: headers, login, forms of other sites, refusals, assets.

use serde_json::json;

use crate::support::{FakeApi, problem, row};

fn overview(api: &FakeApi) {
    let totals =
        json!({"destinations": 1, "backlog": 0, "undelivered": 0, "achieved_per_s": 0.0, "arrivals_per_s": 0.0});
    let body = json!({"as_of": "2025-11-21T07:30:00.000Z", "totals": totals, "data": [row("dst_1", "Acme")],
        "next_cursor": null});
    api.on("GET", "/v1/overview", 200, body);
}

#[tokio::test]
async fn every_page_has_the_security_headers_and_is_never_stored() {
    let api = FakeApi::for_role("read");
    overview(&api);
    let browser = api.dashboard();
    for page in [
        browser.get("/").await,
        browser.get("/login").await,
        browser.get_with("/fragments/overview", &[("hx-request", "true")]).await,
    ] {
        assert_eq!(
            page.header("content-security-policy"),
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        );
        assert_eq!(page.header("x-content-type-options"), "nosniff");
        assert_eq!(page.header("x-frame-options"), "DENY");
        assert!(page.header("permissions-policy").contains("camera=()"));
        assert_eq!(page.header("cross-origin-resource-policy"), "same-origin");
        assert_eq!(page.header("referrer-policy"), "same-origin");
        assert_eq!(page.header("cross-origin-opener-policy"), "same-origin");
        assert_eq!(page.header("cache-control"), "no-store");
    }
}

#[tokio::test]
async fn a_page_has_no_inline_script_style_or_handler() {
    let api = FakeApi::for_role("admin");
    overview(&api);
    let page = api.dashboard().get("/").await;
    for script in page.text.split("<script").skip(1) {
        assert!(script.starts_with(" defer src=\"/assets/"), "{script}");
    }
    page.has_not(&["<style", " style=", " onclick=", " onload=", "javascript:", "hx-on", "js:"]);
}

#[tokio::test]
async fn assets_are_named_by_their_content_and_kept_for_ever() {
    let api = FakeApi::locked();
    let browser = api.dashboard_at("/weir");
    let login = browser.get("/login").await;
    let (_, rest) = login.text.split_once("href=\"/weir/assets/").unwrap();
    let icon = rest.split('"').next().unwrap().to_owned();
    let asset = browser.get(&format!("/assets/{icon}")).await;
    assert_eq!(asset.header("content-type"), "image/svg+xml");
    assert_eq!(asset.header("cache-control"), "public, max-age=31536000, immutable");
    assert_eq!(browser.get("/assets/0000000000000000-app.css").await.status, 404);
}

#[tokio::test]
async fn a_page_without_a_login_leads_to_the_login_and_back() {
    let api = FakeApi::locked();
    api.on("GET", "/v1/overview", 401, problem("An API key is required", "send a key"));
    let browser = api.dashboard();
    assert_eq!(browser.get("/").await.location(), "/login");
    assert_eq!(browser.get("/?q=a%20b&state=held").await.location(), "/login?next=/?q%3Da%2520b%26state%3Dheld");
    assert_eq!(api.dashboard_at("/weir").get("/").await.location(), "/weir/login");
    let fragment = browser.get_with("/fragments/overview", &[("hx-request", "true")]).await;
    assert_eq!((fragment.status.as_u16(), fragment.header("hx-redirect")), (200, "/login"));
    // A live page whose session has ended is opened again after the login.
    let headers = [("hx-request", "true"), ("referer", "http://weir.test/weir/?q=a")];
    let fragment = api.dashboard_at("/weir").get_with("/fragments/overview", &headers).await;
    assert_eq!(fragment.header("hx-redirect"), "/weir/login?next=/?q%3Da");
}

#[tokio::test]
async fn a_refusal_is_a_page_with_its_status_and_a_part_in_a_fragment() {
    let api = FakeApi::for_role("ingest");
    api.on_with(
        "GET",
        "/v1/overview",
        503,
        &[("retry-after", "2")],
        problem("The server is temporarily unavailable", "the <store> does not answer"),
    );
    let browser = api.dashboard();
    let page = browser.get("/").await;
    assert_eq!((page.status.as_u16(), page.header("retry-after")), (503, "2"));
    page.has(&["<!doctype html>", "The server is temporarily unavailable", "The &#60;store&#62; does not answer"]);
    let part = browser.get_with("/fragments/overview", &[("hx-request", "true")]).await;
    part.has(&["does not answer"]).has_not(&["<html"]);
    assert_eq!(part.status.as_u16(), 503);
}

#[tokio::test]
async fn a_refusal_keeps_the_navigation_of_a_reader() {
    let api = FakeApi::for_role("read");
    let page = api.dashboard().get("/deliveries/dlv_unknown").await;
    assert_eq!(page.status, 404);
    page.has(&["There is no path /v1/deliveries/dlv_unknown", "href=\"/deliveries\"", "action=\"/logout\""]);
    page.has_not(&["Its activity"]);
    // A destination may have been deleted; what happened to it is kept.
    for path in ["/destinations/dst_1", "/destinations/dst_1/proof?window=60"] {
        let page = api.dashboard().get(path).await;
        assert_eq!(page.status, 404, "{path}");
        page.has(&["href=\"/activity?destination=dst_1\"", "href=\"/deliveries?destination=dst_1\""]);
    }
    // A key that only posts events has nothing to go to.
    let api = FakeApi::for_role("ingest");
    api.on("GET", "/v1/overview", 403, problem("Forbidden", "this needs a key with the role `read`"));
    api.dashboard().get("/").await.has(&["Log in with another key"]).has_not(&["href=\"/deliveries\""]);
}

#[tokio::test]
async fn a_form_must_prove_that_a_page_of_this_server_sent_it() {
    let api = FakeApi::for_role("admin");
    let browser = api.dashboard();
    let cases: [(&[(&str, &str)], bool); 8] = [
        (&[("sec-fetch-site", "same-origin")], true),
        (&[("origin", "http://weir.test")], true),
        (&[("origin", "http://WEIR.test")], true),
        (&[], false),
        (&[("sec-fetch-site", "cross-site"), ("origin", "http://weir.test")], false),
        (&[("sec-fetch-site", "same-site")], false),
        (&[("origin", "http://evil.test")], false),
        (&[("origin", "null")], false),
    ];
    for (headers, is_accepted) in cases {
        let page = browser.post_with("/destinations/bulk", "do=pause&next=/", headers).await;
        assert_eq!(page.status == 303, is_accepted, "{headers:?}: {}", page.text);
        assert!(is_accepted || page.status == 403, "{headers:?}");
    }
}

#[tokio::test]
async fn calls_carry_what_the_api_needs_to_decide() {
    let api = FakeApi::for_role("operate");
    let headers = [("sec-fetch-site", "same-origin"), ("origin", "http://weir.test"), ("x-request-id", "r-1")];
    api.dashboard().post_with("/destinations/bulk", "do=pause&destination=dst_1&next=/", &headers).await;
    let [edit] = api.seen("PATCH", "/v1/destinations/dst_1").try_into().unwrap();
    for (name, value) in headers.into_iter().chain([("cookie", "weir_session=abc"), ("host", "weir.test")]) {
        assert_eq!(edit.headers.get(name).unwrap(), value, "{name}");
    }
    assert!(edit.headers.get("accept").is_none());
}

#[tokio::test]
async fn a_program_gets_the_answer_of_the_api() {
    let api = FakeApi::for_role("read");
    overview(&api);
    for accept in ["application/json", "*/*"] {
        let page = api.dashboard().get_with("/", &[("accept", accept)]).await;
        assert_eq!(page.status, 404, "{accept}");
        page.has(&["there is no path /"]).has_not(&["<html"]);
    }
    let missing = api.dashboard().get_with("/nothing", &[("accept", "application/json")]).await;
    missing.has(&["there is no path /nothing"]).has_not(&["<html"]);
    assert_eq!(api.dashboard().get("/v1/me").await.status, 200);
    assert_eq!(api.dashboard().get("/v1/nothing").await.status, 404);
}

#[tokio::test]
async fn only_an_admin_sees_the_keys() {
    for (role, sees) in [("read", false), ("operate", false), ("admin", true)] {
        let api = FakeApi::for_role(role);
        overview(&api);
        assert_eq!(api.dashboard().get("/").await.text.contains("href=\"/keys\""), sees, "{role}");
    }
}

#[tokio::test]
async fn a_key_that_is_bound_to_tenants_sees_nothing_of_the_installation() {
    for (tenants, sees) in [(json!(null), true), (json!(["acme"]), false)] {
        let api = FakeApi::for_role("admin");
        let me = json!({
            "name": "billing", "role": "admin", "tenants": tenants, "session_expires_at": null, "keys_required": true,
            "version": "0.1.0",
        });
        api.on("GET", "/v1/me", 200, me);
        overview(&api);
        let page = api.dashboard().get("/").await;
        page.has(&["href=\"/keys\"", "href=\"/activity\"", "href=\"/alerts\""]);
        assert_eq!(page.text.contains("href=\"/status\""), sees);
    }
}

#[tokio::test]
async fn the_message_of_an_action_is_shown_once() {
    let api = FakeApi::for_role("operate");
    overview(&api);
    let page = api.dashboard().get_with("/", &[("cookie", "weir_flash=error.It%20%3Cfailed%3E")]).await;
    page.has(&["role=\"alert\">It &#60;failed&#62;</p>"]);
    assert!(page.header("set-cookie").starts_with("weir_flash=; Path=/; Max-Age=0"));
    assert_eq!(api.dashboard().get("/").await.header("set-cookie"), "");
}

#[tokio::test]
async fn the_live_stream_names_events_and_carries_no_data() {
    let api = FakeApi::for_role("read");
    let snapshot = |at: &str, version: &str| {
        format!("event: snapshot\ndata: {{\"as_of\":\"{at}\",\"version\":\"{version}\",\"secret\":1}}\n\n")
    };
    let stream = [
        snapshot("2025-11-21T07:30:00.000Z", "a"),
        snapshot("2025-11-21T07:30:01.000Z", "a"),
        "event: edit\ndata: {}\n\n".to_owned(),
        snapshot("2025-11-21T07:30:02.000Z", "b"),
    ];
    let stream = stream.concat();
    api.on_with("GET", "/v1/stream", 200, &[("content-type", "text/event-stream")], json!(stream));
    let live = api.dashboard().get_with("/live?destination=dst_1", &[("hx-request", "true")]).await;
    assert_eq!((live.header("content-type"), live.header("x-accel-buffering")), ("text/event-stream", "no"));
    // Only a snapshot with another version makes the page ask for anything.
    live.has(&["event: snapshot\ndata: 2025-11-21T07:30:00.000Z\n\nevent: still\ndata: 2025-11-21T07:30:01.000Z\n\n\
         event: edit\ndata: 1\n\nevent: snapshot\ndata: 2025-11-21T07:30:02.000Z\n\n"]);
    live.has_not(&["secret"]);
    assert_eq!(api.seen("GET", "/v1/stream")[0].path, "/v1/stream?destination=dst_1");
    // Without a login the browser is led to it.
    api.on("GET", "/v1/stream", 401, problem("An API key is required", "send a key"));
    let refused = api.dashboard().get_with("/live", &[("hx-request", "true")]).await;
    assert_eq!(refused.header("hx-redirect"), "/login");
}

#[tokio::test]
async fn pages_are_compressed_and_streams_are_not() {
    let api = FakeApi::for_role("read");
    overview(&api);
    api.on_with("GET", "/v1/stream", 200, &[("content-type", "text/event-stream")], json!("event: edit\n\n"));
    let browser = api.dashboard();
    for path in ["/", "/fragments/overview"] {
        let plain = browser.get(path).await;
        let (headers, bytes) = browser.get_compressed(path).await;
        assert_eq!(
            (plain.header("content-encoding"), headers["content-encoding"].to_str().unwrap()),
            ("", "gzip"),
            "{path}"
        );
        assert_eq!(headers["vary"], "accept-encoding", "{path}");
        assert_eq!(bytes[..2], [0x1f, 0x8b], "gzip begins so");
        assert!(bytes.len() * 2 < plain.text.len(), "{path}: {} of {}", bytes.len(), plain.text.len());
    }
    let (headers, bytes) = browser.get_compressed("/live").await;
    assert_eq!((headers.get("content-encoding"), &bytes[..]), (None, &b"event: edit\ndata: 1\n\n"[..]));
}

#[tokio::test]
async fn a_page_whose_session_ends_asks_for_its_regions_and_so_gets_to_the_login() {
    let api = FakeApi::locked();
    api.on("GET", "/v1/stream", 401, problem("An API key is required", "send a key"));
    // A page that reconnects reads the answer as a stream, whatever its headers are.
    let live = api.dashboard().get_with("/live", &[("hx-request", "true")]).await;
    assert_eq!((live.status.as_u16(), live.header("content-type")), (200, "text/event-stream"));
    live.has(&["retry: 30000\nevent: snapshot\ndata: 1\n\n"]);
}

#[tokio::test]
async fn a_browser_gets_a_page_where_there_is_nothing() {
    let api = FakeApi::for_role("read");
    let page = api.dashboard().get("/nothing").await;
    assert_eq!((page.status.as_u16(), page.header("cache-control")), (404, "no-store"));
    page.has(&["<html", "There is no such page.", "href=\"/deliveries\""]);
    assert!(page.header("content-security-policy").starts_with("default-src 'none'"));
    api.dashboard().get("/v1/nothing").await.has_not(&["<html"]);
}

#[tokio::test]
async fn a_path_that_somebody_types_or_loads_again_leads_to_its_page() {
    let api = FakeApi::for_role("read");
    for (typed, page) in [
        ("/destinations", "/"),
        ("/destinations/", "/"),
        ("/destinations/bulk", "/"),
        ("/logout", "/"),
        ("/destinations/dst_1/", "/destinations/dst_1"),
        ("/destinations/dst_1/limits", "/destinations/dst_1"),
        ("/destinations/dst_1/delete", "/destinations/dst_1/settings"),
        ("/deliveries/dlv_1/retry", "/deliveries/dlv_1"),
        ("/alert", "/alerts"),
        ("/key", "/keys"),
        ("/keys/key_1/delete", "/keys"),
        ("/deliveries/", "/deliveries"),
        ("//example.com/", "/example.com"),
    ] {
        let answer = api.dashboard().get(typed).await;
        assert_eq!((answer.status.as_u16(), answer.header("location")), (303, page), "{typed}");
    }
    assert_eq!(api.dashboard().get("/nothing/else").await.status, 404);
}

#[tokio::test]
async fn the_stream_of_the_events_asks_for_the_newest_one_because_no_counter_counts_it() {
    let api = FakeApi::for_role("read");
    let snapshot = "event: snapshot\ndata: {\"as_of\":\"2025-11-21T07:30:00.000Z\",\"version\":\"a\"}\n\n";
    api.on("GET", "/v1/events", 200, json!({"data": [], "next_cursor": null}));
    api.on_with("GET", "/v1/stream", 200, &[("content-type", "text/event-stream")], json!(snapshot.repeat(2)));
    let live = api.dashboard().get_with("/live?also=events", &[("hx-request", "true")]).await;
    assert_eq!((live.text.matches("event: snapshot").count(), live.text.matches("event: still").count()), (1, 1));
    assert_eq!(api.seen("GET", "/v1/events").len(), 2);
    // What changes with time alone is asked for at each snapshot.
    let live = api.dashboard().get_with("/live?also=time", &[("hx-request", "true")]).await;
    assert_eq!(live.text.matches("event: snapshot").count(), 2);
}
