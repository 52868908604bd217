//! Deliveries, events and dead letters.

use serde_json::{Value, json};

use crate::support::{FakeApi, XSS};

const AT: &str = "2025-11-21T07:30:00.000Z";

fn row(id: &str, state: &str) -> Value {
    json!({
        "id": id, "event_id": "evt_1", "event_type": "video.created", "destination_id": "dst_1", "state": state,
        "attempt_count": 3, "next_attempt_at": null, "expires_at": null, "created_at": AT, "updated_at": AT,
        "last_error": XSS, "last_error_kind": "5xx", "last_status_code": 503,
    })
}

fn destination(api: &FakeApi) {
    let body = json!({
        "id": "dst_1", "name": "Acme", "url": "https://example.com/hooks", "headers": {"x-api-key": "***"},
        "signature": {"style": "standard"},
    });
    api.on("GET", "/v1/destinations/dst_1", 200, body);
}

fn event(api: &FakeApi, data: Value) {
    let body = json!({
        "id": "evt_1", "type": "video.created", "tenant": "acme", "created_at": AT, "idempotency_key": null,
        "data": data, "deliveries": [row("dlv_1", "dead")],
    });
    api.on("GET", "/v1/events/evt_1", 200, body);
}

fn delivery(api: &FakeApi, state: &str) {
    let mut body = row("dlv_1", state);
    body["attempts"] = json!([{
        "id": "att_1", "number": 1, "sent_at": AT, "signed_at": AT, "status_code": 503, "duration_ms": 12,
        "error": null, "error_kind": "5xx", "outcome": "retryable", "response_body": XSS,
        "response_headers": [["x-reason", XSS]], "remote_address": "192.0.2.7:443", "connect_ms": 2, "tls_ms": null,
    }]);
    api.on("GET", "/v1/deliveries/dlv_1", 200, body);
}

#[tokio::test]
async fn every_filter_goes_to_the_api_and_is_a_chip() {
    let api = FakeApi::for_role("read");
    destination(&api);
    let count = json!({"value": 10_000, "capped": true});
    let list = json!({"data": [row("dlv_1", "dead")], "next_cursor": "c1", "count": count});
    api.on("GET", "/v1/deliveries", 200, list);
    let query = "destination=dst_1&state=dead&state=failed&error=503&event_type=video.*&from=2025-11-21T07:00";
    let page = api.dashboard().get(&format!("/deliveries?{query}&order=oldest")).await;
    let asked: Vec<String> = api.seen("GET", "/v1/deliveries").into_iter().map(|call| call.path).collect();
    let filter = "/v1/deliveries?destination=dst_1&event_type=video.*&error=503&from=2025-11-21T07:00:00Z\
                  &state=failed,dead&order=oldest";
    assert_eq!(asked, [filter.to_owned(), format!("{filter}&limit=1&count=true")]);
    page.has(&[
        "10,000+ match",
        "aria-label=\"Remove the filter Error\"",
        ">Acme</a>",
        "href=\"/deliveries/dlv_1\">video.created</a>",
        "&#38;cursor=c1\" rel=\"next\"",
    ]);
    page.has_not(&["<script>alert", "Replay all that match"]);
}

#[tokio::test]
async fn a_destination_may_be_named_and_the_link_has_its_id() {
    let api = FakeApi::for_role("read");
    let found = json!({"destination": {"id": "dst_1", "name": "Acme", "url": "https://example.com"}});
    api.on("GET", "/v1/overview", 200, json!({"data": [found], "next_cursor": null}));
    let page = api.dashboard().get("/deliveries?destination=acme&state=dead").await;
    assert_eq!(page.location(), "/deliveries?destination=dst_1&state=dead");
    api.on("GET", "/v1/overview", 200, json!({"data": [], "next_cursor": null}));
    api.on("GET", "/v1/deliveries", 200, json!({"data": [], "next_cursor": null}));
    api.dashboard().get("/deliveries?destination=acme").await.has(&["No destination has “acme”"]);
    // The exact name counts, also among many names that contain it.
    let named = |id: &str, name: &str| json!({"destination": {"id": id, "name": name, "url": "https://example.com"}});
    let found: Vec<Value> = (0..40).map(|n| named(&format!("dst_{n}"), &format!("{n:02} acme"))).collect();
    let found: Vec<Value> = found.into_iter().chain([named("dst_a", "acme")]).collect();
    api.on("GET", "/v1/overview", 200, json!({"data": found, "next_cursor": null}));
    let page = api.dashboard().get("/deliveries?destination=acme").await;
    assert_eq!(page.location(), "/deliveries?destination=dst_a");
}

#[tokio::test]
async fn a_filter_that_cannot_be_understood_matches_nothing_and_offers_nothing() {
    let api = FakeApi::for_role("operate");
    api.on("GET", "/v1/overview", 200, json!({"data": [], "next_cursor": null}));
    let count = json!({"value": 9, "capped": false});
    api.on("GET", "/v1/deliveries", 200, json!({"data": [row("dlv_1", "dead")], "next_cursor": "c", "count": count}));
    let group = json!({
        "destination_id": "dst_1", "destination_name": "Acme", "state": "dead", "error": "5xx", "status_code": 503,
        "deliveries": 9, "newest_at": AT, "oldest_at": AT, "example_id": "dlv_1",
    });
    api.on("GET", "/v1/deliveries/groups", 200, json!({"data": [group], "scanned": 9, "capped": false}));
    api.on("POST", "/v1/replays", 200, json!({"total": 9}));
    let browser = api.dashboard();
    let bogus = "There is no state “bogus”";
    let nope = "No destination has “nope”";
    for (path, why, kept) in [
        ("/deliveries?destination=nope&state=dead", nope, "name=\"destination\" value=\"nope\""),
        ("/deliveries?state=bogus", bogus, "name=\"state\" value=\"bogus\""),
        ("/deliveries?state=dead,bogus&cursor=c", bogus, "name=\"state\" value=\"dead,bogus\""),
        ("/dead-letters?destination=nope", nope, "name=\"destination\" value=\"nope\""),
        ("/dead-letters?state=bogus", bogus, "name=\"state\" value=\"bogus\""),
        ("/dead-letters?state=pending", "never pending", "name=\"state\" value=\"pending\""),
    ] {
        let page = browser.get(path).await;
        page.has(&[why, kept, "role=\"alert\""]);
        page.has_not(&["/replays/new", "dlv_1", "hx-get=\"/fragments/de"]);
    }
    for path in ["/replays/new?destination=nope&state=dead", "/replays/new?state=bogus", "/replays/new?event=evt_1"] {
        let page = browser.get(path).await;
        assert_eq!(page.status, 422, "{path}");
        page.has(&["The filter matches nothing"]).has_not(&["name=\"confirm\""]);
        let form = format!("{}&counted_until={AT}&total=9&confirm=replay+9", path.split_once('?').unwrap().1);
        assert_eq!(browser.post("/replays", &form).await.status, 422, "{path}");
    }
    for path in ["/v1/deliveries", "/v1/deliveries/groups"] {
        assert!(api.seen("GET", path).is_empty(), "{path}");
    }
    assert!(api.seen("POST", "/v1/replays").is_empty());
    // What the API refuses is explained in the same way.
    let mut refused = crate::support::problem("Invalid", "invalid");
    refused["errors"] = json!([{"pointer": "/error", "detail": "must be an error"}]);
    api.on("GET", "/v1/deliveries", 422, refused);
    browser.get("/deliveries?error=x").await.has(&["error must be an error", "name=\"error\" value=\"x\""]);
}

#[tokio::test]
async fn a_delivery_shows_request_and_response_and_the_bytes_of_the_body() {
    let api = FakeApi::for_role("operate");
    destination(&api);
    event(&api, json!({"b": 1, "a": "it's"}));
    delivery(&api, "dead");
    let page = api.dashboard().get("/deliveries/dlv_1").await;
    page.has(&[
        "POST https://example.com/hooks",
        "webhook-id: evt_1",
        "webhook-timestamp: 1763710200",
        "x-api-key: •••",
        "192.0.2.7:443",
        "HTTP 503",
        "2 ms",
        "&#34;data&#34;:{&#34;a&#34;:&#34;it&#39;s&#34;,&#34;b&#34;:1}}",
        "action=\"/deliveries/dlv_1/retry\"",
        "Dead: every attempt failed",
    ]);
    page.has_not(&["<script>alert", "action=\"/deliveries/dlv_1/cancel\""]);
}

#[tokio::test]
async fn a_delivery_shows_the_headers_of_its_style_and_the_body_in_its_form() {
    let api = FakeApi::for_role("operate");
    event(&api, json!({"a": 1}));
    delivery(&api, "dead");
    let shown = |format: &str, content_type: &str| {
        json!({
            "id": "dst_1", "name": "Acme", "url": "https://example.com/hooks", "headers": {},
            "signature": {"style": "twitch"},
            "signature_format": {
                "header": "x-sig", "timestamp_header": "x-time", "timestamp_format": "rfc3339", "id_header": "x-id",
            },
            "body": {"format": format, "content_type": content_type, "source": "urn:acme"},
        })
    };
    api.on("GET", "/v1/destinations/dst_1", 200, shown("cloudevents-binary", "application/vnd.acme+json"));
    let page = api.dashboard().get("/deliveries/dlv_1").await;
    page.has(&[
        "content-type: application/vnd.acme+json",
        "ce-type: video.created",
        "ce-source: urn:acme",
        "x-id: evt_1",
        "x-time: 2025-11-21T07:30:00Z",
        "x-sig: •••",
        "<code id=\"raw-body\">{&#34;a&#34;:1}</code>",
        "-H &#39;ce-id: evt_1&#39;",
        "--data-binary &#39;{&#34;a&#34;:1}&#39;",
    ]);
    api.on("GET", "/v1/destinations/dst_1", 200, shown("cloudevents", "application/cloudevents+json"));
    let page = api.dashboard().get("/deliveries/dlv_1").await;
    page.has(&["&#34;specversion&#34;:&#34;1.0&#34;", "content-type: application/cloudevents+json"])
        .has_not(&["ce-id"]);
}

#[tokio::test]
async fn a_delivery_shows_its_cost_its_limit_key_and_that_the_key_is_paused() {
    let api = FakeApi::for_role("read");
    destination(&api);
    event(&api, json!({"id": 7}));
    let mut body = row("dlv_1", "pending");
    (body["cost"], body["limit_key"], body["attempts"]) = (json!(5), json!(XSS), json!([]));
    body["waits_for"] = json!({"reason": "key"});
    api.on("GET", "/v1/deliveries/dlv_1", 200, body.clone());
    let page = api.dashboard().get("/deliveries/dlv_1").await;
    page.has(&[
        "5 points of a limit that counts by cost",
        "<a href=\"/destinations/dst_1/keys?q=%22%27%3E",
        "Its limit key is paused. It is sent once somebody resumes the key.",
        "nobody can say yet",
    ]);
    page.has_not(&[XSS]);
    let mut listed = body.clone();
    listed.as_object_mut().unwrap().remove("attempts");
    api.on("GET", "/v1/deliveries", 200, json!({"data": [listed], "next_cursor": null}));
    api.dashboard()
        .get("/deliveries")
        .await
        .has(&["limit key <span class=\"mono\">&#34;&#39;", ">limit key paused<"])
        .has_not(&[XSS]);
    body["limit_key"] = json!("");
    api.on("GET", "/v1/deliveries/dlv_1", 200, body);
    api.dashboard().get("/deliveries/dlv_1").await.has(&["it shares the limits of those without one"]);
}

#[tokio::test]
async fn a_delivery_is_replaced_only_after_a_change() {
    let api = FakeApi::for_role("operate");
    destination(&api);
    event(&api, json!({}));
    delivery(&api, "retrying");
    let browser = api.dashboard();
    let page = browser.get("/deliveries/dlv_1").await;
    page.has(&["hx-sse:connect=\"/live?destination=dst_1\"", "hx-trigger=\"snapshot from:#live\""]);
    let (_, rest) = page.text.split_once("data-live hx-get=\"").unwrap();
    let fragment = rest.split('"').next().unwrap();
    assert!(fragment.starts_with("/fragments/deliveries/dlv_1?seen="), "{fragment}");
    let unchanged = browser.get(fragment).await;
    assert_eq!((unchanged.status.as_u16(), unchanged.text.as_str()), (204, ""));
    delivery(&api, "delivered");
    let changed = browser.get(fragment).await;
    changed.has(&["<div id=\"delivery\" data-live", ">delivered</span>"]).has_not(&["<html"]);
    // A deleted destination has no stream.
    let orphan = FakeApi::for_role("operate");
    delivery(&orphan, "dead");
    orphan.dashboard().get("/deliveries/dlv_1").await.has_not(&["data-live", "hx-sse"]);
}

#[tokio::test]
async fn a_reader_sees_no_action_and_a_refusal_is_shown() {
    let api = FakeApi::for_role("read");
    delivery(&api, "dead");
    // The destination is deleted, and the event no longer kept.
    let page = api.dashboard().get("/deliveries/dlv_1").await;
    page.has(&["(the destination is deleted)"]).has_not(&["/retry\"", "/cancel\""]);
    let refusal = crate::support::problem("Conflict", "the delivery is delivering and cannot be retried");
    api.on("POST", "/v1/deliveries/dlv_1/retry", 409, refusal);
    let page = api.dashboard().post("/deliveries/dlv_1/retry", "").await;
    assert_eq!(page.location(), "/deliveries/dlv_1");
    assert!(page.flash().contains("cannot be retried"), "{}", page.flash());
}

#[tokio::test]
async fn dead_letters_are_grouped_and_each_group_leads_to_its_replay() {
    let api = FakeApi::for_role("operate");
    let group = json!({
        "destination_id": "dst_1", "destination_name": XSS, "state": "dead", "error": "5xx", "status_code": 503,
        "deliveries": 1_234, "newest_at": AT, "oldest_at": AT, "example_id": "dlv_1",
    });
    let timeout = json!({
        "destination_id": "dst_2", "destination_name": "", "state": "failed", "error": "timeout", "status_code": null,
        "deliveries": 2, "newest_at": AT, "oldest_at": AT, "example_id": "dlv_2",
    });
    let groups = json!({"data": [group, timeout], "scanned": 1_236, "capped": false});
    api.on("GET", "/v1/deliveries/groups", 200, groups);
    let page = api.dashboard().get("/dead-letters?tenant=acme").await;
    assert_eq!(api.seen("GET", "/v1/deliveries/groups")[0].path, "/v1/deliveries/groups?tenant=acme&state=failed,dead");
    page.has(&[
        "1,236 in 2 groups",
        "href=\"/replays/new?destination=dst_1&#38;error=503&#38;tenant=acme&#38;state=dead\"",
        "href=\"/deliveries?destination=dst_2&#38;error=timeout&#38;tenant=acme&#38;state=failed\"",
        "href=\"/replays/new?tenant=acme&#38;state=failed,dead\"",
    ]);
    page.has_not(&["<script>alert"]);
}

#[tokio::test]
async fn the_page_of_a_deeply_nested_event_is_not_much_larger_than_the_event() {
    let api = FakeApi::for_role("read");
    let data = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let event = r#""id":"evt_1","type":"t","tenant":"default","created_at":"2025-11-21T07:10:00.000Z","deliveries":[]"#;
    api.on("GET", "/v1/events/evt_1", 200, Value::String(format!(r#"{{{event},"data":{data}}}"#)));
    let page = api.dashboard().get("/events/evt_1").await;
    assert_eq!(page.status, 200);
    page.has(&[&data]);
    // As it was sent, and to copy.
    assert!(page.text.len() < 3 * data.len(), "{}", page.text.len());
}

#[tokio::test]
async fn an_event_shows_its_deliveries_and_its_body() {
    let api = FakeApi::for_role("read");
    destination(&api);
    event(&api, json!({"text": XSS}));
    let page = api.dashboard().get("/events/evt_1").await;
    page.has(&["href=\"/deliveries/dlv_1\"", ">Acme</a>", "&#34;type&#34;: &#34;video.created&#34;"]);
    page.has_not(&["<script>alert"]);
    let list = json!({"data": [], "next_cursor": null});
    api.on("GET", "/v1/events", 200, list);
    let page = api.dashboard().get("/events?type=video.created&idempotency_key=a%26b").await;
    assert_eq!(api.seen("GET", "/v1/events")[0].path, "/v1/events?type=video.created&idempotency_key=a%26b");
    page.has(&["No event matches", "href=\"/events?type=video.created\""]);
    api.dashboard().get("/events").await.has(&["No events yet", "curl http://weir.test/v1/events"]);
}
