//! The tab *Limit keys* of a destination: the list, the form of the limits of each key, and what is done with one key.

use serde_json::{Value, json};

use crate::support::{FakeApi, XSS, row};

const PATH: &str = "/v1/destinations/dst_1";
const KEYS: &str = "/v1/destinations/dst_1/keys";
const LIMITS: &str = "limit_second=5&burst_second=&margin_second=&limit_minute=&limit_hour=&limit_day=&limit_other=";

fn api(role: &str, key_limits: Value) -> FakeApi {
    let api = FakeApi::for_role(role);
    let mut destination = row("dst_1", "Acme")["destination"].clone();
    destination["key_limits"] = key_limits;
    api.on_with("GET", PATH, 200, &[("etag", "\"1f\"")], destination);
    let of = |key: &str, waiting: u64, binding: &str, paused: bool| {
        json!({
            "key": key, "waiting": waiting, "oldest_age_s": 185.0, "achieved_per_s": 5.0, "drain_eta_s": 90.0, "weight": 3,
            "rate_limits": [{"limit": 5, "period": "second", "burst": 1, "margin_ms": 0}], "binding": binding, "paused": paused, "is_overridden": paused || key == "cus_2",
        })
    };
    let keys = json!([
        of(XSS, 900, "key", false),
        of("cus_2", 7, "destination", false),
        of("cus_3", 1, "paused", true),
        of("", 2, "key", false),
    ]);
    api.on("GET", KEYS, 200, json!({"data": keys, "is_partial": true}));
    api
}

fn limits() -> Value {
    json!({
        "key": "/customer/id", "rate_limits": [{"limit": 5, "period": "second", "burst": 1, "margin_ms": 0}], "max_in_flight": null,
        "weight": 1, "overrides": {},
    })
}

#[tokio::test]
async fn the_list_says_what_each_key_may_send_and_what_binds_it() {
    let api = api("operate", limits());
    let page = api.dashboard().get("/destinations/dst_1/keys?q=cus&sort=use").await;
    page.has(&[
        "900+",
        "3 min 5 s",
        "5/s",
        "in 1 min 30 s",
        "Its own limit",
        "It takes turns in the limits of the destination",
        "It is paused",
        "own limits",
        ">paused</span>",
        "(no key)",
        "<button>Resume</button>",
        "limit_key=cus_2",
        "Only the 20,000 deliveries",
        "value=\"/customer/id\"",
        "Remove limit keys",
        "value=\"cus\"",
    ]);
    assert!(!page.text.contains(XSS));
    let asked = &api.seen("GET", KEYS)[0].path;
    assert!(asked.contains("q=cus") && asked.contains("sort=use"), "{asked}");
    let reader = self::api("read", limits()).dashboard().get("/destinations/dst_1/keys").await;
    reader.has(&["cus_2"]).has_not(&["<button>Pause</button>", "Remove limit keys", "Limits for one key"]);
}

#[tokio::test]
async fn without_limit_keys_the_page_says_what_they_are_for_and_sets_them() {
    let api = api("operate", Value::Null);
    api.on("PATCH", PATH, 200, json!({}));
    let browser = api.dashboard();
    let page = browser.get("/destinations/dst_1/keys").await;
    page.has(&["No limit keys", "/v1/events", "Use limit keys"]).has_not(&["Remove limit keys", "cus_2"]);
    // The browser would complain at once that nothing is filled in.
    page.has(&["hx-trigger=\"input delay:150ms\" hx-validate=\"false\""]);
    let form = format!("etag=%221f%22&pointer=/customer/id&weight=&max_in_flight=&{LIMITS}");
    let saved = browser.post("/destinations/dst_1/keys", &form).await;
    assert_eq!(saved.status, 303, "{}", saved.text);
    let sent = api.seen("PATCH", PATH).remove(0);
    let of_keys = json!({
        "key": "/customer/id", "rate_limits": [{"period": "second", "limit": 5}], "max_in_flight": null,
    });
    assert_eq!(sent.body, json!({ "key_limits": of_keys }));
    assert_eq!(sent.headers["if-match"], "\"1f\"");
}

#[tokio::test]
async fn a_refused_form_keeps_what_was_typed_and_limit_keys_are_removed() {
    let api = api("operate", limits());
    let error = json!({"pointer": "/key_limits/rate_limits/0/limit", "detail": "must be at most 1000000"});
    api.on("PATCH", PATH, 422, json!({"status": 422, "errors": [error]}));
    let browser = api.dashboard();
    let form = format!("etag=%221f%22&pointer=/kept&weight=2&max_in_flight=&{LIMITS}");
    let page = browser.post("/destinations/dst_1/keys", &form).await;
    assert_eq!(page.status, 422);
    page.has(&["value=\"/kept\"", "Not saved.", "fault-limit_second"]);
    api.on("PATCH", PATH, 200, json!({}));
    let removed = browser.post("/destinations/dst_1/keys", "etag=%221f%22&remove=true&pointer=/kept").await;
    assert_eq!(removed.status, 303);
    assert_eq!(api.seen("PATCH", PATH).pop().unwrap().body, json!({"key_limits": null}));
}

#[tokio::test]
async fn the_editor_shows_what_proposed_limits_would_do_to_the_busiest_keys() {
    let api = api("operate", limits());
    let preview = json!({
        "effective_per_s": 9.9, "binding": {"limit": 10, "period": "second"}, "drain_eta_s": 90.0, "drains": true,
        "now": {"effective_per_s": 5.0, "binding": "key", "drain_eta_s": 180.0, "drains": true},
        "key_limits": "The limits of the keys that wait allow 12 per second together.",
        "keys": [{
            "key": "cus_1", "waiting": 900, "share_per_s": 6.5, "binding": "destination", "drain_eta_s": 138.0,
            "now": {"share_per_s": 1.0, "binding": "key", "drain_eta_s": 900.0},
        }],
    });
    api.on("POST", &format!("{PATH}/preview"), 200, preview);
    let browser = api.dashboard();
    let editor = browser.get("/destinations/dst_1/keys").await;
    editor.has(&["hx-post=\"/destinations/dst_1/keys/preview\"", "formaction=\"/destinations/dst_1/keys/preview\""]);
    let form = format!("pointer=/customer/id&weight=&max_in_flight=&{LIMITS}");
    let part = browser.post_with(
        "/destinations/dst_1/keys/preview",
        &form,
        &[("hx-request", "true"), ("sec-fetch-site", "same-origin")],
    );
    let part = part.await;
    part.has(&[
        "<b>6.5/s</b>, in 2 min 18 s<span class=\"under\">It takes turns in the limits of the destination",
        "1/s, in 15 min<span class=\"under\">Its own limit",
        "allow 12 per second together",
    ]);
    part.has_not(&["<html"]);
    let sent = api.seen("POST", &format!("{PATH}/preview")).remove(0);
    assert_eq!(sent.body["key_limits"]["rate_limits"], json!([{"period": "second", "limit": 5}]));
    // Without the script: the page, with what was typed.
    let page = browser.post("/destinations/dst_1/keys/preview", &form).await;
    page.has(&["<html", "value=\"5\"", "The busiest keys"]);
}

#[tokio::test]
async fn one_key_is_paused_resumed_and_given_limits_of_its_own() {
    let api = api("operate", limits());
    for verb in ["pause", "resume"] {
        api.on("POST", &format!("{KEYS}/cus_2/{verb}"), 200, json!({}));
    }
    api.on("PATCH", PATH, 200, json!({}));
    let browser = api.dashboard();
    for (paused, verb) in [("true", "pause"), ("false", "resume")] {
        let done = browser.post("/destinations/dst_1/keys/pause", &format!("key=cus_2&paused={paused}")).await;
        assert_eq!(done.status, 303, "{}", done.text);
        assert_eq!(api.seen("POST", &format!("{KEYS}/cus_2/{verb}")).len(), 1);
    }
    browser.post("/destinations/dst_1/keys/override", "key=cus_2&one_limit=50&one_period=second&one_weight=5").await;
    let special = json!({"rate_limits": [{"limit": 50, "period": "second"}], "weight": 5});
    assert_eq!(api.seen("PATCH", PATH)[0].body, json!({"key_limits": {"overrides": {"cus_2": special}}}));
    browser.post("/destinations/dst_1/keys/override", "key=cus_2&one_limit=&one_weight=&end=true").await;
    assert_eq!(api.seen("PATCH", PATH)[1].body, json!({"key_limits": {"overrides": {"cus_2": null}}}));
}

#[tokio::test]
async fn a_destination_that_stands_is_why_its_keys_wait() {
    let api = api("operate", limits());
    let of = |binding: &str| json!({"key": binding, "waiting": 1, "binding": binding});
    let keys = ["destination_paused", "destination_held", "destination_breaker"].map(of);
    api.on("GET", KEYS, 200, json!({"data": keys, "is_partial": false}));
    let page = api.dashboard().get("/destinations/dst_1/keys").await;
    page.has(&["The destination is paused", "The destination is held", "The breaker of the destination is not closed"]);
    page.has_not(&["It takes turns"]);
}

#[tokio::test]
async fn the_proof_of_one_key_is_the_audit_of_its_sends() {
    let api = api("read", limits());
    let judged = json!([{
        "limit": 5, "period": "second", "burst": 1, "violations": 0, "utilisation": 0.5,
        "worst_sliding_window": {"start": "2025-11-21T07:30:00.000Z", "sends": 4},
    }]);
    let audit = format!("{PATH}/audit");
    api.on("GET", &audit, 200, json!({"sends": 97, "rate_limits": judged}));
    let page = api.dashboard().get("/destinations/dst_1/keys?proof=cus_2").await;
    page.has(&["Proof of cus_2", "Every limit held.", "97 sends", "proof=cus_2"]);
    assert!(api.seen("GET", &audit)[0].path.contains("key=cus_2"));
    api.on("GET", &audit, 422, json!({"status": 422, "detail": "too long"}));
    api.dashboard().get("/destinations/dst_1/keys?proof=cus_2").await.has(&["There is no audit of this key"]);
    api.dashboard().get("/destinations/dst_1/keys").await.has_not(&["proof-of-key"]);
}
