//! The settings of a destination: the form, the secret, test events, the check of a request, deletion.

use serde_json::{Value, json};

use crate::support::{FakeApi, XSS, problem};

const PAGE: &str = "/destinations/dst_1/settings";

fn destination() -> Value {
    json!({
        "id": "dst_1", "url": "https://example.com/hooks", "name": "Acme", "tenant": "default", "rate_limits": [],
        "max_in_flight": 64, "paused": false, "paused_reason": null, "breaker_state": "closed", "breaker_reason": null,
        "next_probe_at": null, "held_until": null, "held_reason": null, "event_types": ["video.*", "*"],
        "timeout_ms": 15_000, "retry": {"max_attempts": 16, "max_age_s": 259_200, "schedule_ms": [1_000, 5_000]},
        "breaker": null, "alerts": {}, "ordered": false, "skip_after_attempts": null, "headers": {"x-key": "***"},
        "signature": {"style": "timestamped", "header": "x-sig"},
    })
}

fn api(role: &str) -> FakeApi {
    let api = FakeApi::for_role(role);
    api.on_with("GET", "/v1/destinations/dst_1", 200, &[("etag", "\"v1\"")], destination());
    api
}

#[tokio::test]
async fn the_form_shows_every_setting_and_hides_the_values_of_headers() {
    let page = api("operate").dashboard().get(PAGE).await;
    page.has(&[
        "name=\"name\" value=\"Acme\"",
        "video.*\n*</textarea>",
        "name=\"schedule_ms\" value=\"1 s, 5 s\"",
        "name=\"timeout_ms\" value=\"15 s\"",
        "name=\"max_age_s\" value=\"72 h\"",
        "x-key: ***</textarea>",
        "<option selected>timestamped</option>",
        "name=\"signature_header\" value=\"x-sig\"",
        "name=\"etag\" value=\"&#34;v1&#34;\"",
        "Send a test event",
        "Delete this destination",
    ]);
    page.has_not(&["name=\"breaker\" value=\"on\" checked", "Show the secret"]);
}

#[tokio::test]
async fn the_page_says_how_requests_are_signed_and_offers_no_overlap_that_a_style_has_not() {
    let api = FakeApi::for_role("admin");
    let mut shown = destination();
    shown["signature"] = json!({"style": "discord", "header": "x-signature-ed25519"});
    shown["signature_format"] = json!({
        "signed": "{timestamp}{body}", "value": "{signature}", "header": "x-signature-ed25519", "algorithm": "ed25519",
        "encoding": "hex", "key": "text", "separator": null,
    });
    shown["public_key"] = json!("whpk_abc");
    shown["public_key_hex"] = json!("d52880");
    shown["body"] = json!({"format": "data", "content_type": "text/plain"});
    api.on_with("GET", "/v1/destinations/dst_1", 200, &[("etag", "\"v1\"")], shown);
    let page = api.dashboard().get(PAGE).await;
    page.has(&[
        "<option selected>discord</option>",
        "<code>{timestamp}{body}</code> with ed25519",
        "<code>d52880</code>",
        "<code>whpk_abc</code>",
        "<option value=\"0\">not at all</option>",
        "<option selected>data</option>",
        "name=\"content_type\" value=\"text/plain\"",
    ]);
    page.has_not(&["<option value=\"3600\">"]);
}

#[tokio::test]
async fn a_reader_can_only_look_and_verify() {
    let page = api("read").dashboard().get(PAGE).await;
    page.has(&["<fieldset disabled>", "Verify a request"]);
    page.has_not(&["Save settings", "Send a test event", "Delete this", "Show the secret"]);
}

#[tokio::test]
async fn settings_are_saved_for_the_version_that_was_read() {
    let api = api("operate");
    api.on("PATCH", "/v1/destinations/dst_1", 200, json!({}));
    let form = "etag=%22v1%22&name=New&url=https://example.com/&event_types=*&timeout_ms=9+s&max_attempts=1&max_age_s=72+h\
                &base_ms=500+ms&cap_ms=1+h&headers=&style=standard";
    let saved = api.dashboard().post(PAGE, form).await;
    assert_eq!((saved.location(), saved.flash().as_str()), (PAGE, "done.Settings saved."));
    let edit = api.seen("PATCH", "/v1/destinations/dst_1").pop().unwrap();
    assert_eq!(edit.headers.get("if-match").unwrap(), "\"v1\"");
    assert_eq!((&edit.body["name"], &edit.body["headers"]), (&json!("New"), &json!({"x-key": null})));
    assert_eq!((&edit.body["timeout_ms"], &edit.body["retry"]["max_age_s"]), (&json!(9_000), &json!(259_200)));
    assert_eq!((&edit.body["retry"]["base_ms"], &edit.body["retry"]["cap_ms"]), (&json!(500), &json!(3_600_000)));
    assert_eq!(edit.body.get("rate_limits"), None, "limits have an editor of their own");
}

#[tokio::test]
async fn what_was_typed_stays_when_it_is_not_saved() {
    let api = api("operate");
    let mut refused = problem("Invalid", "invalid");
    refused["errors"] = json!([{"pointer": "/timeout_ms", "detail": "must be a whole number from 100 to 120000"}]);
    api.on("PATCH", "/v1/destinations/dst_1", 422, refused);
    let page = api.dashboard().post(PAGE, "etag=x&name=Typed&timeout_ms=soon").await;
    assert_eq!(page.status, 422);
    page.has(&["Not saved.", "<a href=\"#field-timeout_ms\">Timeout of an attempt</a>", "value=\"Typed\""]);
    // Only the wrong field is marked, and the reason is beside it, in words of the page.
    let marked = "aria-invalid=\"true\" aria-describedby=\"fault-timeout_ms\"";
    page.has(&[
        &format!("value=\"soon\" autocomplete=\"off\" spellcheck=\"false\" {marked}>"),
        "id=\"fault-timeout_ms\">Must be a duration, such as 500 ms, 15 s or 72 h.</span>",
    ]);
    assert_eq!(page.text.matches("aria-invalid").count(), 1);
    let page = api.dashboard().post(PAGE, "etag=x&name=Typed&timeout_ms=1+h").await;
    page.has(&["id=\"fault-timeout_ms\">Must be from 100 ms to 2 min.</span>", "value=\"1 h\""]);
    api.on("PATCH", "/v1/destinations/dst_1", 412, problem("Changed", "x"));
    let page = api.dashboard().post(PAGE, "etag=x&name=Typed").await;
    assert_eq!(page.status, 412);
    page.has(&["somebody else changed this destination", "value=\"Typed\"", "name=\"etag\" value=\"&#34;v1&#34;\""]);
}

#[tokio::test]
async fn certificates_are_shown_in_words_and_a_wrong_one_is_marked() {
    let api = api("admin");
    let mut shown = destination();
    shown["proxy"] = json!("http://weir:***@proxy.example:3128");
    shown["tls"] = json!({"ca": null, "client_certificate": "-----BEGIN", "client_key": "***"});
    shown["tls_certificates"] = json!([{
        "field": "client_certificate", "subject": format!("CN={XSS}"), "issuer": "CN=Acme CA",
        "not_before": "2025-01-01T00:00:00.000Z", "not_after": "2025-11-22T07:30:00.000Z",
        "warning": "expired at 2025-11-22T07:30:00.000Z",
    }]);
    api.on_with("GET", "/v1/destinations/dst_1", 200, &[("etag", "\"v1\"")], shown);
    let browser = api.dashboard();
    let page = browser.get(PAGE).await;
    page.has(&[
        "name=\"proxy\" value=\"http://weir:***@proxy.example:3128\"",
        "-----BEGIN</textarea>",
        "***</textarea>",
        "issued by CN=Acme CA",
        "expired at 2025-11-22",
    ]);
    page.has_not(&[XSS]);
    let mut refused = problem("Invalid", "invalid");
    refused["errors"] = json!([{"pointer": "/tls/client_key", "detail": "is not the key of the first certificate"}]);
    api.on("PATCH", "/v1/destinations/dst_1", 422, refused);
    let page = browser.post(PAGE, "etag=x&client_certificate=a&client_key=b&proxy=direct").await;
    page.has(&["id=\"fault-client_key\">Is not the key of the first certificate.</span>"]);
    let edit = api.seen("PATCH", "/v1/destinations/dst_1").pop().unwrap();
    let tls = json!({"ca": null, "client_certificate": "a", "client_key": "b"});
    assert_eq!((&edit.body["tls"], &edit.body["proxy"]), (&tls, &json!("direct")));
}

#[tokio::test]
async fn the_secret_is_shown_only_when_asked_for_and_never_stored() {
    let api = api("admin");
    let secret = json!({"secret": "whsec_abc", "public_key": null, "previous_valid_until": null});
    api.on("GET", "/v1/destinations/dst_1/secret", 200, secret);
    let browser = api.dashboard();
    browser.get(PAGE).await.has(&["Show the secret"]).has_not(&["whsec_abc"]);
    assert!(api.seen("GET", "/v1/destinations/dst_1/secret").is_empty());
    let page = browser.post("/destinations/dst_1/secret", "").await;
    page.has(&[">whsec_abc</pre>"]);
    assert_eq!(page.header("cache-control"), "no-store");
}

#[tokio::test]
async fn a_rotation_leads_back_to_the_settings_and_says_how_long_the_old_secret_signs() {
    let api = api("admin");
    let until = "2025-11-22T07:30:00.000Z";
    let secret = json!({"secret": "whsec_new", "public_key": null, "previous_valid_until": until});
    api.on("POST", "/v1/destinations/dst_1/rotate-secret", 200, secret);
    let browser = api.dashboard();
    let page = browser.post("/destinations/dst_1/rotate", "overlap_s=3600&secret=&etag=%22v1%22").await;
    // A reload of the page that follows rotates nothing.
    assert_eq!(page.location(), PAGE);
    let expected = "done.The secret is rotated. The previous secret also signs until 2025-11-22 07:30:00 UTC. \
                    “Show the secret” shows the new one.";
    assert_eq!(page.flash(), expected);
    // Neither does a form that is sent twice.
    let changed = json!({"type": "/docs#problem-precondition-failed", "title": "Changed", "status": 412, "detail": "it has changed"});
    api.on("POST", "/v1/destinations/dst_1/rotate-secret", 412, changed);
    let late = browser.post("/destinations/dst_1/rotate", "overlap_s=3600&secret=&etag=%22v0%22").await;
    assert!(late.flash().starts_with("error.Nothing was rotated"), "{}", late.flash());
    let calls = api.seen("POST", "/v1/destinations/dst_1/rotate-secret");
    let sent: Vec<_> = calls.iter().map(|call| (call.headers["if-match"].to_str().unwrap(), &call.body)).collect();
    let body = json!({"overlap_s": 3_600, "secret": null, "force": false});
    assert_eq!(sent, [("\"v1\"", &body), ("\"v0\"", &body)]);
}

#[tokio::test]
async fn a_refused_secret_stays_in_the_form_with_the_reason_beside_it() {
    let api = api("admin");
    let mut refused = problem("Invalid", "invalid");
    refused["errors"] = json!([{"pointer": "/secret", "detail": "must be `whsec_` and base64"}]);
    api.on("POST", "/v1/destinations/dst_1/rotate-secret", 422, refused);
    let page = api.dashboard().post("/destinations/dst_1/rotate", "overlap_s=3600&secret=mine&etag=x").await;
    assert_eq!(page.status, 422);
    page.has(&[
        "Nothing was rotated.",
        "id=\"fault-secret\">Must be whsec_ and base64.</span>",
        "name=\"secret\" value=\"mine\"",
        "<option value=\"3600\" selected>1 hour</option>",
    ]);
}

#[tokio::test]
async fn a_second_rotation_within_the_overlap_asks_for_a_confirmation() {
    let api = api("admin");
    api.dashboard().get(PAGE).await.has_not(&["name=\"force\""]);
    let mut rotated = destination();
    rotated["previous_secret_valid_until"] = json!("2025-11-22T07:30:00.000Z");
    api.on_with("GET", "/v1/destinations/dst_1", 200, &[("etag", "\"v2\"")], rotated);
    api.dashboard().get(PAGE).await.has(&["name=\"force\" value=\"true\" required"]);
    let secret = json!({"secret": "whsec_new", "public_key": null, "previous_valid_until": null});
    api.on("POST", "/v1/destinations/dst_1/rotate-secret", 200, secret);
    api.dashboard().post("/destinations/dst_1/rotate", "overlap_s=0&secret=&force=true&etag=%22v2%22").await;
    let [call] = api.seen("POST", "/v1/destinations/dst_1/rotate-secret").try_into().unwrap();
    assert_eq!(call.body["force"], true);
}

#[tokio::test]
async fn the_overlap_of_a_rotation_is_shown_until_it_ends() {
    let api = api("read");
    api.dashboard().get(PAGE).await.has_not(&["The previous secret also signs"]);
    let mut rotated = destination();
    rotated["previous_secret_valid_until"] = json!("2025-11-22T07:30:00.000Z");
    api.on_with("GET", "/v1/destinations/dst_1", 200, &[("etag", "\"v2\"")], rotated);
    api.dashboard().get(PAGE).await.has(&["The previous secret also signs until", "data-form=\"countdown\""]);
}

#[tokio::test]
async fn a_test_event_leads_to_its_delivery() {
    let api = api("operate");
    api.on("POST", "/v1/destinations/dst_1/test", 202, json!({"id": "dlv_1", "state": "pending"}));
    assert_eq!(api.dashboard().post("/destinations/dst_1/test", "").await.location(), "/deliveries/dlv_1");
    api.on("POST", "/v1/destinations/dst_1/test", 409, problem("Conflict", "it is gone"));
    let refused = api.dashboard().post("/destinations/dst_1/test", "").await;
    assert_eq!((refused.location(), refused.flash().as_str()), (PAGE, "error.It is gone"));
}

#[tokio::test]
async fn the_reason_against_a_pasted_request_is_a_sentence() {
    let api = api("read");
    let said = async |hint: serde_json::Value| {
        let answer = json!({"valid": false, "reason": "the header `webhook-id` is missing", "hint": hint, "signed_at": null, "age_s": null});
        api.on("POST", "/v1/verify", 200, answer);
        api.dashboard().post("/destinations/dst_1/verify", "request_headers=x:+y&request_body=z").await
    };
    said(json!(null)).await.has(&["<b>Not valid.</b> The header webhook-id is missing.</p>"]);
    said(json!("`id` is another")).await.has(&["<b>Not valid.</b> Found the cause: id is another.</p>"]);
}

#[tokio::test]
async fn a_pasted_request_is_checked() {
    let api = api("read");
    let answer = json!({"valid": false, "reason": XSS, "signed_at": null, "age_s": null});
    api.on("POST", "/v1/verify", 200, answer);
    let form = "request_headers=Webhook-Id:+evt_1%0D%0Awebhook-timestamp:+5&request_body=%7B%7D%0D%0A";
    let page = api.dashboard().post("/destinations/dst_1/verify", form).await;
    page.has(&["Not valid.", "&#60;script&#62;", "Webhook-Id: evt_1\nwebhook-timestamp: 5</textarea>"]);
    page.has_not(&["<script>alert"]);
    let [call] = api.seen("POST", "/v1/verify").try_into().unwrap();
    let headers = json!({"webhook-id": "evt_1", "webhook-timestamp": "5"});
    assert_eq!(call.body, json!({"destination": "dst_1", "headers": headers, "body": "{}\n"}));
}

#[tokio::test]
async fn a_filter_is_tried_and_its_faults_stand_beside_the_field() {
    let api = api("read");
    let conditions = json!([{"pointer": "/~1amount/gte", "holds": false}]);
    api.on("POST", "/v1/destinations/dst_1/filter/try", 200, json!({"matches": false, "conditions": conditions}));
    let form = "data=%7B%22amount%22:+1%7D&filter=%7B%22/amount%22:+%7B%22gte%22:+2%7D%7D";
    let page = api.dashboard().post("/destinations/dst_1/filter", form).await;
    page.has(&[
        "The event does not pass.",
        "/~1amount/gte</code> <b>does not hold</b>",
        "{&#34;amount&#34;: 1}</textarea>",
    ]);
    let [call] = api.seen("POST", "/v1/destinations/dst_1/filter/try").try_into().unwrap();
    assert_eq!(call.body, json!({"data": {"amount": 1}, "filter": {"/amount": {"gte": 2}}}));
    let page = api.dashboard().post("/destinations/dst_1/filter", "data=%7B&filter=").await;
    page.has(&["The data is no JSON"]);
}

#[tokio::test]
async fn a_destination_is_deleted_only_after_its_name_was_typed() {
    let api = api("operate");
    api.on("DELETE", "/v1/destinations/dst_1", 204, Value::Null);
    let refused = api.dashboard().post("/destinations/dst_1/delete", "confirm=acme&etag=").await;
    refused.has(&["Nothing was deleted.", "name=\"confirm\" value=\"acme\""]);
    assert!(api.seen("DELETE", "/v1/destinations/dst_1").is_empty());
    let deleted = api.dashboard().post("/destinations/dst_1/delete", "confirm=Acme&etag=%22v1%22").await;
    assert_eq!((deleted.location(), deleted.flash().starts_with("done.Acme is deleted")), ("/", true));
}

#[tokio::test]
async fn the_form_turns_the_pace_on_with_its_bounds_and_off() {
    let api = api("operate");
    api.on("PATCH", "/v1/destinations/dst_1", 200, json!({}));
    let browser = api.dashboard();
    browser
        .get(PAGE)
        .await
        .has(&["id=\"field-adaptive\"", "id=\"field-late_answers\" name=\"late_answers\" value=\"on\" checked"]);
    let common = "name=a&url=https://example.com&event_types=*&style=standard&max_attempts=2&max_age_s=9+s";
    browser.post(PAGE, &format!("{common}&adaptive=on&pace_min=0.5&pace_max=&late_answers=on")).await;
    browser.post(PAGE, common).await;
    let patches: Vec<Value> =
        api.seen("PATCH", "/v1/destinations/dst_1").iter().map(|call| call.body["adaptive"].clone()).collect();
    assert_eq!(patches, [json!({"min_per_s": 0.5, "max_per_s": null, "latency": true}), Value::Null]);
    let mut refused = problem("Invalid", "1 field is invalid");
    refused["errors"] =
        json!([{"pointer": "/adaptive/max_per_s", "detail": "must be at least `min_per_s`, which is 5"}]);
    api.on("PATCH", "/v1/destinations/dst_1", 422, refused);
    let page = browser.post(PAGE, &format!("{common}&adaptive=on&pace_min=5&pace_max=2")).await;
    page.has(&["Never faster than", "Must be at least"]);
}

#[tokio::test]
async fn a_limit_group_is_shown_and_typed_by_its_name() {
    let api = api("operate");
    let mut member = destination();
    member["limit_group"] = json!("lgr_9");
    api.on_with("GET", "/v1/destinations/dst_1", 200, &[("etag", "\"v1\"")], member);
    let group = |id: &str, name: &str, tenant: Value| json!({"id": id, "name": name, "tenant": tenant});
    let groups = json!([
        group("lgr_1", "Stripe", Value::Null),
        group("lgr_2", "Foreign", json!("acme")),
        group("lgr_3", &format!("Mine {XSS}"), json!("default")),
    ]);
    api.on("GET", "/v1/limit-groups", 200, json!({"data": groups, "next_cursor": "c2"}));
    // Not on the first page.
    api.on("GET", "/v1/limit-groups/lgr_9", 200, group("lgr_9", "Old", json!("default")));
    let second = json!({"data": [group("lgr_9", "Old", json!("default")), group("lgr_4", "Stripe", json!("default"))], "next_cursor": null});
    api.on("GET", "/v1/limit-groups?limit=200&cursor=c2", 200, second);
    let browser = api.dashboard();
    let page = browser.get(PAGE).await;
    page.has(&[
        "name=\"limit_group\" value=\"Old\"",
        "/limit-groups/lgr_9\">Old</a>",
        "<option value=\"Stripe\">",
        "Mine ",
    ]);
    page.has_not(&["Foreign", XSS]);

    api.on("PATCH", "/v1/destinations/dst_1", 200, json!({}));
    let form = "name=a&url=https://example.com&event_types=*&style=standard&weight=1&limit_group=";
    // That of the tenant comes before the one for all tenants, wherever it is in the list.
    for (typed, id) in [("Stripe", json!("lgr_4")), ("lgr_7", json!("lgr_7")), ("", Value::Null)] {
        browser.post(PAGE, &format!("{form}{typed}")).await;
        assert_eq!(api.seen("PATCH", "/v1/destinations/dst_1").pop().unwrap().body["limit_group"], id, "{typed}");
    }
    let refused = browser.post(PAGE, &format!("{form}Foreign")).await;
    assert_eq!(refused.status, http::StatusCode::UNPROCESSABLE_ENTITY);
    refused.has(&["No limit group that this destination may join is named Foreign.", "value=\"Foreign\""]);
}
