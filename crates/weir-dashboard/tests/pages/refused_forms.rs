//! A form that is refused is shown again: with everything that was typed, and with what is wrong beside its field.

use std::collections::BTreeSet;

use serde_json::json;
use url::form_urlencoded;

use crate::{every_page::filled, posts, support::problem};

/// Forms in which nothing is typed that could be refused or lost.
const NOTHING_TYPED: [(&str, &str); 17] = [
    ("/login", "a key is a secret, which no page repeats"),
    ("/logout", "a button"),
    ("/destinations/bulk", "ticks and a button"),
    ("/destinations/{id}/pause", "a button"),
    ("/destinations/{id}/release", "a button"),
    ("/destinations/{id}/adaptive", "a button"),
    ("/destinations/{id}/keys/pause", "a button"),
    ("/destinations/{id}/secret", "a button"),
    ("/destinations/{id}/test", "a button"),
    ("/fragments/destinations/{id}/test", "a button"),
    ("/deliveries/{id}/retry", "a button"),
    ("/deliveries/{id}/cancel", "a button"),
    ("/replays/{id}/cancel", "a button"),
    ("/keys/{id}/delete", "one box to tick"),
    ("/event-types/{name}/delete", "one box to tick"),
    ("/limit-groups/{id}/delete", "one box to tick"),
    // Refused in one sentence above the form, which speaks of both fields.
    ("/destinations/{id}/filter", "see a_filter_and_a_pasted_request_stay"),
];

/// A form, the call of the API that refuses it and where, what is typed, and the field that is wrong.
struct Case {
    form: &'static str,
    call: (&'static str, &'static str),
    pointer: &'static str,
    typed: &'static str,
    wrong: &'static str,
}

const fn case(
    form: &'static str,
    call: (&'static str, &'static str),
    pointer: &'static str,
    typed: &'static str,
    wrong: &'static str,
) -> Case {
    Case { form, call, pointer, typed, wrong }
}

const NONE: (&str, &str) = ("", "");
const DESTINATION: (&str, &str) = ("PATCH", "/v1/destinations/dst_1");
const LIMITS: &str = "limit_second=71&burst_second=72&margin_second=73+ms&limit_other=74&window_other=75+s&shape_minute=&max_in_flight=76";

const CASES: [Case; 32] = [
    case(
        "/destinations",
        ("POST", "/v1/destinations"),
        "/url",
        "url=example&name=n71&tenant=t71&event_types=a.b&limit_second=5&limit_minute=",
        "url",
    ),
    case(
        "/destinations/{id}/override",
        ("POST", "/v1/destinations/dst_1/override"),
        "/rate_limits/0/limit",
        "limit=0&period=hour&in_flight=71&for=2+h&reason=r71",
        "limit",
    ),
    case(
        "/destinations/{id}/override",
        ("POST", "/v1/destinations/dst_1/override"),
        "/for_s",
        "limit=5&period=day&in_flight=&for=soon&reason=r71",
        "for",
    ),
    case("/destinations/{id}/hold", ("POST", "/v1/destinations/dst_1/hold"), "/reason", "for=2+h&reason=r71", "reason"),
    case("/destinations/{id}/limits", DESTINATION, "/rate_limits/0/limit", LIMITS, "limit_second"),
    case("/destinations/{id}/limits", DESTINATION, "/rate_limits/1/period", LIMITS, "window_other"),
    case("/destinations/{id}/limits", DESTINATION, "/max_in_flight", LIMITS, "max_in_flight"),
    case("/destinations/{id}/limits", DESTINATION, "/min_interval_ms", "min_interval_ms=x", "min_interval_ms"),
    case(
        "/destinations/{id}/preview",
        ("POST", "/v1/destinations/dst_1/preview"),
        "/rate_limits/0/burst",
        LIMITS,
        "burst_second",
    ),
    case(
        "/destinations/{id}/simulate",
        ("POST", "/v1/destinations/dst_1/simulate"),
        "/rate_limits/0/margin_ms",
        LIMITS,
        "margin_second",
    ),
    case("/destinations/{id}/keys", DESTINATION, "/key_limits/key", "pointer=customer&weight=71", "pointer"),
    case(
        "/destinations/{id}/keys",
        DESTINATION,
        "/key_limits/weight",
        "pointer=/a&weight=71&limit_second=72",
        "weight",
    ),
    case(
        "/destinations/{id}/keys",
        DESTINATION,
        "/key_limits/max_in_flight",
        "pointer=/a&max_in_flight=71",
        "max_in_flight",
    ),
    case(
        "/destinations/{id}/keys/preview",
        ("POST", "/v1/destinations/dst_1/preview"),
        "/key_limits/rate_limits/0/limit",
        "pointer=/a&weight=71&limit_second=0",
        "limit_second",
    ),
    case(
        "/destinations/{id}/keys/override",
        DESTINATION,
        "/key_limits/overrides/cus~11/rate_limits/0/limit",
        "key=cus/1&one_limit=0&one_period=hour&one_weight=71",
        "one_limit",
    ),
    case(
        "/destinations/{id}/keys/override",
        DESTINATION,
        "/key_limits/overrides/cus_1/weight",
        "key=cus_1&one_limit=71&one_period=day&one_weight=72",
        "one_weight",
    ),
    case(
        "/destinations/{id}/settings",
        DESTINATION,
        "/timeout_ms",
        "name=n71&url=https://example.org/h71&event_types=a.b&timeout_ms=soon&ordered=on",
        "timeout_ms",
    ),
    case(
        "/destinations/{id}/rotate",
        ("POST", "/v1/destinations/dst_1/rotate-secret"),
        "/secret",
        "overlap_s=3600&secret=short",
        "secret",
    ),
    case("/destinations/{id}/delete", NONE, "", "confirm=other", "confirm"),
    case(
        "/destinations/{id}/purge",
        NONE,
        "",
        "counted_until=2025-11-21T07:30:00.000Z&total=3&confirm=purge+2",
        "confirm",
    ),
    case("/replays", NONE, "", "state=dead&counted_until=2025-11-21T07:30:00.000Z&total=3&confirm=replay+2", "confirm"),
    case(
        "/dead-letters/discard",
        NONE,
        "",
        "state=dead&counted_until=2025-11-21T07:30:00.000Z&total=9&reason=r71&confirm=discard",
        "confirm",
    ),
    case("/deliveries/{id}/discard", ("POST", "/v1/deliveries/dlv_1/discard"), "/reason", "reason=r71", "reason"),
    case(
        "/alerts",
        ("PUT", "/v1/alerts"),
        "/oldest_age_s",
        "backlog_depth=71&oldest_age_s=soon&dead_letters=72&drain_beyond_ttl=on",
        "oldest_age_s",
    ),
    case(
        "/shedding",
        ("PUT", "/v1/shedding"),
        "/clients/overrides/0/in_flight",
        "mode=dry-run&target_ms=71&in_flight=72&weight=73&client-0=acme&in_flight-0=74&weight-0=75",
        "in_flight-0",
    ),
    case(
        "/keys",
        ("POST", "/v1/keys"),
        "/name",
        "name=n71&role=operate&tenants=t71&expires=2026-01-02T03:04:05",
        "name",
    ),
    case("/event-types", NONE, "", "name=order.new&description=d71&example=%7B&schema=%7B%7D", "example"),
    case(
        "/event-types/{name}",
        ("PUT", "/v1/event-types/order.created"),
        "/schema/type",
        "etag=%221%22&description=d71&example=%7B%7D&schema=%7B%22type%22%3A1%7D",
        "schema",
    ),
    case(
        "/limit-groups",
        ("POST", "/v1/limit-groups"),
        "/name",
        "name=n71&tenant=t71&limit_second=72&max_in_flight=73",
        "name",
    ),
    case("/limit-groups", ("POST", "/v1/limit-groups"), "/tenant", "name=n71&tenant=t71&limit_hour=72", "tenant"),
    case("/limit-groups/{id}", ("PATCH", "/v1/limit-groups/lgr_1"), "/name", "name=n71&limit_second=72", "name"),
    case(
        "/limit-groups/{id}/hold",
        ("POST", "/v1/limit-groups/lgr_1/hold"),
        "/for_s",
        "limit=&period=hour&in_flight=71&for=2&reason=r71",
        "for",
    ),
];

/// The tags with this name, each with the text that follows it.
fn controls<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let attribute = format!(" name=\"{name}\"");
    text.match_indices(&attribute).map(|(at, _)| &text[text[..at].rfind('<').unwrap()..]).collect()
}

/// Whether a control of the page has the value.
fn shows(text: &str, name: &str, value: &str) -> bool {
    let escaped = value.replace('&', "&#38;").replace('"', "&#34;");
    controls(text, name).iter().any(|control| {
        let tag = &control[..=control.find('>').unwrap()];
        let whole = |end: &str| control.split(end).next().unwrap_or_default();
        if control.starts_with("<textarea") {
            whole("</textarea>").ends_with(&format!(">{escaped}"))
        } else if control.starts_with("<select") {
            let named = format!("<option value=\"{escaped}\" selected>");
            whole("</select>").contains(&named) || whole("</select>").contains(&format!("<option selected>{escaped}<"))
        } else if tag.contains("type=\"checkbox\"") || tag.contains("type=\"radio\"") {
            tag.contains(&format!("value=\"{escaped}\"")) && tag.contains(" checked")
        } else {
            tag.contains(&format!(" value=\"{escaped}\""))
        }
    })
}

fn path_of(form: &str) -> String {
    let id = match form.split('/').nth(1) {
        Some("limit-groups") => "lgr_1",
        Some("deliveries") => "dlv_1",
        _ => "dst_1",
    };
    form.replace("{id}", id).replace("{name}", "order.created")
}

#[tokio::test]
async fn a_refused_form_keeps_what_was_typed_and_says_what_is_wrong_beside_its_field() {
    let mut tried: BTreeSet<String> = NOTHING_TYPED.iter().map(|(path, _)| (*path).to_owned()).collect();
    for Case { form, call: (method, call), pointer, typed, wrong } in CASES {
        let api = filled("admin");
        if !method.is_empty() {
            let mut refused = problem("The request is invalid", "d");
            refused["errors"] = json!([{"pointer": pointer, "detail": "is wrong here"}]);
            api.on(method, call, 422, refused);
        }
        let page = api.dashboard().post(&path_of(form), typed).await;
        assert_eq!(page.status, 422, "{form}: {}", page.text);
        for (name, value) in form_urlencoded::parse(typed.as_bytes()) {
            let is_hidden = ["etag", "total", "counted_until", "state"].contains(&&*name);
            assert!(is_hidden || shows(&page.text, &name, &value), "{form}: {name} is not {value} in {}", page.text);
        }
        let field = controls(&page.text, wrong);
        let marked = format!("aria-invalid=\"true\" aria-describedby=\"fault-{wrong}\"");
        assert!(field.iter().any(|field| field[..field.find('>').unwrap()].contains(&marked)), "{form}: {wrong}");
        page.has(&[&format!("<span class=\"fault\" id=\"fault-{wrong}\">"), "role=\"alert\""]);
        tried.insert(form.to_owned());
    }
    // The other form of the same fields.
    tried.extend(
        ["/limit-groups/{id}/override", "/limit-groups/{id}/preview", "/destinations/{id}/verify"].map(str::to_owned),
    );
    assert_eq!(tried, posts::routes(), "a new form is added here");
}

#[tokio::test]
async fn a_filter_and_a_pasted_request_stay() {
    let api = filled("admin");
    let refused = || {
        let mut refused = problem("The request is invalid", "d");
        refused["errors"] = json!([{"pointer": "/filter/and", "detail": "is wrong here"}]);
        refused
    };
    api.on("POST", "/v1/destinations/dst_1/filter/try", 422, refused());
    api.on("POST", "/v1/verify", 422, refused());
    let typed = "data=%7B%22a%22%3A1%7D&filter=%7B%7D";
    for (path, typed) in [("filter", typed), ("verify", "request_headers=webhook-id%3A+1&request_body=b71")] {
        let page = api.dashboard().post(&format!("/destinations/dst_1/{path}"), typed).await;
        page.has(&["is wrong here"]);
        for (name, value) in form_urlencoded::parse(typed.as_bytes()) {
            assert!(shows(&page.text, &name, &value), "{path}: {name}");
        }
    }
}

/// An end that is refused has no fields: the reason is in the message of the page.
#[tokio::test]
async fn an_end_that_is_refused_opens_no_form() {
    let api = filled("admin");
    api.on("DELETE", "/v1/destinations/dst_1/override", 422, problem("Invalid", "there is no override"));
    let page = api.dashboard().post("/destinations/dst_1/override", "end=true").await;
    assert_eq!(page.flash(), "error.There is no override");
}
