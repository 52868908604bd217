//! A new destination: the form, what is wrong with it, and the first steps with what it has created.

use serde_json::{Value, json};

use crate::support::{FakeApi, XSS, problem};

const FORM: &str =
    "url=https://example.com/hooks&name=Acme&tenant=acme&event_types=video.*&limit_second=10&limit_hour=&form=form-1";

fn created() -> Value {
    json!({
        "id": "dst_1", "name": "Acme", "url": "https://example.com/hooks", "tenant": "acme", "event_types": ["video.*"],
        "secret": "whsec_abc",
    })
}

#[tokio::test]
async fn a_destination_is_created_and_its_secret_is_on_no_page_but_this() {
    let api = FakeApi::for_role("operate");
    api.on("POST", "/v1/destinations", 201, created());
    let page = api.dashboard().post("/destinations", FORM).await;
    assert_eq!((page.status.as_u16(), page.header("cache-control")), (201, "no-store"));
    page.has(&[
        "whsec_abc",
        "curl http://weir.test/v1/events",
        "&#34;type&#34;:&#34;video.created&#34;",
        "&#34;tenant&#34;:&#34;acme&#34;",
        "weir.events.post(&#34;video.created&#34;, {&#34;id&#34;: 7}, tenant=&#34;acme&#34;)",
        "await weir.events.post({ type: &#34;video.created&#34;, data: { id: 7 }, tenant: &#34;acme&#34; });",
        "action=\"/destinations/dst_1/test\" target=\"_blank\"",
        "hx-sse:connect=\"/live?destination=dst_1\"",
        "a key with the role <code>admin</code>",
    ]);
    let sent = &api.seen("POST", "/v1/destinations")[0];
    let expected = json!({
        "url": "https://example.com/hooks", "name": "Acme", "tenant": "acme", "event_types": ["video.*"],
        "rate_limits": [{"period": "second", "limit": 10}],
    });
    assert_eq!((&sent.body, sent.headers["idempotency-key"].to_str().unwrap()), (&expected, "form-1"));
}

#[tokio::test]
async fn what_is_wrong_stands_beside_its_field_and_what_was_typed_stays() {
    let api = FakeApi::for_role("operate");
    let mut refusal = problem("Invalid", "the request is invalid");
    refusal["errors"] = json!([
        {"pointer": "/url", "detail": "must be an http or https URL, not `ftp:`"},
        {"pointer": "/rate_limits/1/limit", "detail": "must be a whole number from 1 to 1000000"},
        {"pointer": "/tenant", "detail": "for this key there is no tenant `x`"},
    ]);
    api.on("POST", "/v1/destinations", 422, refusal);
    let form = "url=ftp://x&name=%22%3E%3Cscript%3Ealert(1)&tenant=x&event_types=a,b&limit_second=10&limit_hour=many";
    let page = api.dashboard().post("/destinations", form).await;
    assert_eq!(page.status, 422);
    page.has(&[
        "<b>Not created.</b> See <a href=\"#field-url\">URL</a>, <a href=\"#field-limit_hour\">Most sends in any hour</a>, ",
        "aria-invalid=\"true\" aria-describedby=\"fault-url\">",
        "id=\"fault-url\">Must be an http or https URL, not ftp:.</span>",
        "id=\"fault-limit_hour\">Must be a whole number from 1 to 1,000,000.</span>",
        "id=\"fault-tenant\">For this key there is no tenant x.</span>",
        "name=\"url\" type=\"text\" inputmode=\"url\" value=\"ftp://x\"",
        "value=\"many\"",
        ">a,b</textarea>",
    ]);
    page.has_not(&["`", "<script>alert"]);
    api.on(
        "POST",
        "/v1/destinations",
        409,
        problem("Conflict", "the tenant has as many destinations as `WEIR_MAX` allows"),
    );
    let page = api.dashboard().post("/destinations", FORM).await;
    page.has(&["The tenant has as many destinations as WEIR_MAX allows.", "value=\"Acme\""]);
    assert_eq!(page.status, 409);
}

#[tokio::test]
async fn a_key_of_some_tenants_chooses_one_of_them_and_a_reader_none() {
    let api = FakeApi::for_role("operate");
    api.dashboard().get("/destinations/new").await.has(&["<input id=\"field-tenant\"", "Create destination"]);
    let me = json!({"role": "operate", "tenants": ["acme", XSS], "keys_required": true, "version": "0.1.0"});
    api.on("GET", "/v1/me", 200, me);
    api.dashboard().get("/destinations/new").await.has(&["<option>acme</option>"]).has_not(&["<script>alert"]);
    let reader = FakeApi::for_role("read");
    let page = reader.dashboard().get("/destinations/new").await;
    page.has(&["<fieldset disabled>", "the role <code>operate</code>"]).has_not(&["Create destination"]);
    reader.on("POST", "/v1/destinations", 403, problem("Forbidden", "this needs a key with the role `operate`"));
    let refused = reader.dashboard().post("/destinations", FORM).await;
    assert_eq!(refused.status, 403);
    refused.has(&["This needs a key with the role operate"]);
}

#[tokio::test]
async fn a_test_event_is_followed_until_the_receiver_has_answered() {
    let api = FakeApi::for_role("operate");
    let waiting = json!({"id": "dlv_1", "state": "pending", "attempts": []});
    api.on("POST", "/v1/destinations/dst_1/test", 202, waiting);
    let part = api.dashboard().post("/fragments/destinations/dst_1/test", "").await;
    part.has(&["hx-get=\"/fragments/test-events/dlv_1\"", "data-live", "It is on its way."]).has_not(&["<html"]);
    let attempt = json!({"status_code": 200, "duration_ms": 12, "response_body": XSS, "outcome": "delivered"});
    api.on("GET", "/v1/deliveries/dlv_1", 200, json!({"id": "dlv_1", "state": "delivered", "attempts": [attempt]}));
    let part = api.dashboard().get("/fragments/test-events/dlv_1").await;
    part.has(&["The receiver answered 200 in 12 ms.", "href=\"/deliveries/dlv_1\""]);
    part.has_not(&["data-live", "<script>alert"]);
    let attempt = json!({"status_code": null, "error": "connection refused", "duration_ms": 1, "outcome": "retryable"});
    api.on("GET", "/v1/deliveries/dlv_1", 200, json!({"id": "dlv_1", "state": "retrying", "attempts": [attempt]}));
    let part = api.dashboard().get("/fragments/test-events/dlv_1").await;
    part.has(&["notice bad", "No answer: connection refused.", "data-live"]);
}
