//! A form that has changed something answers with a redirect, so that a reload of the page does not send it again.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::{Value, json};

use crate::support::{FakeApi, row};

const AT: &str = "2025-11-21T07:30:00.000Z";

/// Forms that answer with a page, and why a reload does no harm.
const PAGES: [(&str, &str); 10] = [
    ("/destinations", "the secret of a new destination is in no URL; a form that is sent again creates no second one"),
    ("/fragments/destinations/{id}/test", "a part of a page, which no reload asks for"),
    ("/destinations/{id}/preview", "changes nothing"),
    ("/destinations/{id}/simulate", "changes nothing"),
    ("/destinations/{id}/keys/preview", "changes nothing"),
    ("/limit-groups/{id}/preview", "changes nothing"),
    ("/destinations/{id}/secret", "changes nothing; the secret must be in no URL and no cookie"),
    ("/destinations/{id}/verify", "changes nothing"),
    ("/destinations/{id}/filter", "changes nothing"),
    ("/keys", "the secret of a new key is shown once; a form that is sent again creates no second key"),
];

/// Every form that redirects, with what a page would send.
fn forms() -> [(&'static str, String); 33] {
    let form = |path, fields: &str| (path, fields.to_owned());
    [
        form("/login", "key=k&next=/"),
        form("/logout", ""),
        form("/destinations/bulk", "do=pause&destination=dst_1&next=/"),
        form("/destinations/{id}/pause", "paused=true&next=/"),
        form("/destinations/{id}/release", "next=/"),
        form("/destinations/{id}/override", "limit=9&period=second&in_flight=&for=2+h&reason=r"),
        form("/destinations/{id}/hold", "for=2+h&reason=r"),
        form("/destinations/{id}/adaptive", "adaptive=on&next=/"),
        form("/destinations/{id}/limits", "limit_second=9&max_in_flight=9"),
        form("/destinations/{id}/keys", "etag=%221%22&pointer=/customer/id"),
        form("/destinations/{id}/keys/pause", "key=cus_1&paused=true"),
        form("/destinations/{id}/keys/override", "key=cus_1&one_limit=5&one_period=second&one_weight="),
        form("/destinations/{id}/settings", "name=a&url=https://example.com&event_types=*&style=standard"),
        form("/destinations/{id}/rotate", "overlap_s=60&secret="),
        form("/destinations/{id}/test", ""),
        form("/destinations/{id}/delete", "confirm=Acme"),
        form("/deliveries/{id}/retry", ""),
        form("/deliveries/{id}/cancel", ""),
        ("/replays", format!("state=dead&counted_until={AT}&total=1&confirm=replay+1")),
        form("/replays/{id}/cancel", ""),
        form("/alerts", "backlog_depth=5"),
        form("/shedding", "mode=dry-run&target_ms=250&weight=1"),
        ("/destinations/{id}/purge", format!("counted_until={AT}&total=1&confirm=purge+1")),
        form("/event-types", "name=order.created&description=&example=&schema="),
        form("/event-types/{name}", "etag=%221%22&description=&example=&schema="),
        form("/event-types/{name}/delete", "sure=on"),
        form("/limit-groups", "name=Stripe"),
        form("/limit-groups/{id}", "etag=%221%22&name=Stripe"),
        form("/limit-groups/{id}/delete", "sure=on"),
        form("/limit-groups/{id}/override", "limit=50&period=second&for=2+h&reason=r"),
        form("/limit-groups/{id}/hold", "for=2+h&reason=r"),
        form("/deliveries/{id}/discard", "reason=no"),
        ("/dead-letters/discard", format!("state=dead&counted_until={AT}&total=1&confirm=discard+1")),
    ]
}

/// The paths of the router that take a form. `/keys/{id}/delete` is among them.
pub(crate) fn routes() -> BTreeSet<String> {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/router.rs")).unwrap();
    let routes = source.lines().filter(|line| line.contains("post("));
    routes.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_form_that_changes_something_answers_with_a_redirect() {
    let api = FakeApi::for_role("admin");
    let mut destination = row("dst_1", "Acme")["destination"].clone();
    let settings = json!({
        "event_types": ["*"], "timeout_ms": 15_000, "breaker": null, "alerts": {}, "skip_after_attempts": null,
        "retry": {"max_attempts": 16, "max_age_s": 259_200, "schedule_ms": [1_000]}, "headers": {},
        "signature": {"style": "standard"},
    });
    destination.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    api.on("GET", "/v1/destinations/dst_1", 200, destination);
    for (method, path, answer) in [
        ("POST", "/v1/session", json!({})),
        ("DELETE", "/v1/session", Value::Null),
        ("PATCH", "/v1/destinations/dst_1", json!({})),
        ("DELETE", "/v1/destinations/dst_1", Value::Null),
        ("POST", "/v1/destinations/dst_1/rotate-secret", json!({"secret": "whsec_new", "previous_valid_until": AT})),
        ("POST", "/v1/destinations/dst_1/test", json!({"id": "dlv_1"})),
        ("POST", "/v1/destinations/dst_1/release", json!({})),
        ("POST", "/v1/destinations/dst_1/override", json!({})),
        ("POST", "/v1/destinations/dst_1/hold", json!({})),
        ("POST", "/v1/destinations/dst_1/keys/cus_1/pause", json!({})),
        ("POST", "/v1/destinations/dst_1/purge", json!({"cancelled": 1})),
        ("POST", "/v1/deliveries/dst_1/retry", json!({"id": "dlv_1"})),
        ("POST", "/v1/deliveries/dst_1/cancel", json!({})),
        ("POST", "/v1/deliveries/dst_1/discard", json!({})),
        ("POST", "/v1/deliveries/discard", json!({"discarded": 1})),
        ("POST", "/v1/replays", json!({"id": "rpl_1"})),
        ("POST", "/v1/replays/dst_1/cancel", json!({})),
        ("PUT", "/v1/alerts", json!({})),
        ("GET", "/v1/shedding", json!({})),
        ("PUT", "/v1/shedding", json!({})),
        ("DELETE", "/v1/keys/dst_1", Value::Null),
        ("GET", "/v1/destinations", json!({})),
        ("POST", "/v1/limit-groups", json!({})),
        ("PATCH", "/v1/limit-groups/dst_1", json!({})),
        ("DELETE", "/v1/limit-groups/dst_1", Value::Null),
        ("POST", "/v1/limit-groups/dst_1/override", json!({})),
        ("POST", "/v1/limit-groups/dst_1/hold", json!({})),
        ("GET", "/v1/event-types/order.created", json!({})),
        ("PUT", "/v1/event-types/order.created", json!({})),
        ("DELETE", "/v1/event-types/order.created", Value::Null),
    ] {
        api.on(method, path, 200, answer);
    }
    let browser = api.dashboard();
    let mut tried: BTreeSet<String> = PAGES.iter().map(|(path, _)| (*path).to_owned()).collect();
    for (path, fields) in forms().into_iter().chain([("/keys/{id}/delete", "sure=on".to_owned())]) {
        let answer = browser.post(&path.replace("{id}", "dst_1").replace("{name}", "order.created"), &fields).await;
        assert_eq!(answer.status, 303, "{path}: {}", answer.text);
        assert!(!answer.flash().starts_with("error"), "{path}: {}", answer.flash());
        assert!(!answer.flash().contains("whsec_"), "{path}: a cookie has no secret");
        tried.insert(path.to_owned());
    }
    assert_eq!(tried, routes(), "a new form is added here");
}
