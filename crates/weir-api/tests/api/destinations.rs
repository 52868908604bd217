//! Destinations: create, show, edit and delete, and their backlog.

use std::time::Duration;

use http::{StatusCode, header};
use serde_json::{Value, json};
use weir_core::{address::AddressPolicy, outcome::Verdict};
use weir_queue::{Terms, TermsChange};

use crate::harness::{Options, Server, json_request, reply};

const URL: &str = "https://example.com/hooks";

#[tokio::test]
async fn a_destination_needs_only_a_url_and_shows_its_defaults() {
    let server = Server::start().await;
    let reply = server.post("/v1/destinations", json!({"url": URL})).await;
    let created = reply.expect(StatusCode::CREATED);
    let id = created["id"].as_str().unwrap();
    assert!(id.starts_with("dst_"));
    assert_eq!(reply.header("location"), format!("/v1/destinations/{id}"));
    assert_eq!(reply.header("cache-control"), "no-store");
    let mut expected = json!({
        "id": id, "url": URL, "name": "", "tenant": "default", "event_types": ["*"], "rate_limits": [], "min_interval_ms": null, "max_in_flight": 64,
        "timeout_ms": 15000, "retry": {"max_attempts": 16, "max_age_s": 259200, "base_ms": 10000, "cap_ms": 3600000},
        "headers": {}, "signature": {"style": "standard"}, "secret": created["secret"], "paused": false, "created_at": "2026-11-21T07:30:00.000Z",
        "updated_at": "2026-11-21T07:30:00.000Z", "paused_reason": null, "held_until": null, "held_reason": null,
        "breaker": {"failure_ratio": 0.5, "min_attempts": 20, "consecutive": 10, "open_ms": 30000, "open_max_ms": 1_800_000,
            "pause_after_s": 432_000},
        "breaker_state": "closed", "breaker_reason": null, "next_probe_at": null, "previous_secret_valid_until": null,
        "ordered": false, "skip_after_attempts": null, "alerts": {}, "refusals_count": false,
        "body": {"format": "envelope", "content_type": "application/json"},
        "signature_format": {
            "signed": "{id}.{timestamp}.{body}", "value": "v1,{signature}", "separator": " ", "encoding": "base64",
            "algorithm": "hmac-sha256", "key": "decoded", "timestamp_format": "unix", "header": "webhook-signature",
            "timestamp_header": "webhook-timestamp", "id_header": "webhook-id",
        },
        "public_key": null, "public_key_hex": null, "proxy": null, "tls": null, "tls_certificates": [],
        "unknown_event_types": [],
    });
    // The macro takes no more fields.
    for field in ["filter", "adaptive", "adaptive_rate", "override", "hold", "limit_group", "key_limits"] {
        expected[field] = Value::Null;
    }
    expected["weight"] = 1.into();
    assert_eq!(created, expected);
    assert!(created["secret"].as_str().unwrap().starts_with("whsec_"));
}

#[tokio::test]
async fn a_breaker_is_edited_member_by_member_and_null_disables_it() {
    let server = Server::start().await;
    let body = json!({"url": URL, "breaker": {"open_ms": 3_600_000}});
    let created = server.post("/v1/destinations", &body).await.expect(StatusCode::CREATED);
    assert_eq!(created["breaker"]["open_max_ms"], 3_600_000, "the default adapts to `open_ms`: {created}");
    let path = format!("/v1/destinations/{}", created["id"].as_str().unwrap());
    let edited = server.patch(&path, &json!({"breaker": {"consecutive": 3}})).await.expect(StatusCode::OK);
    assert_eq!((&edited["breaker"]["consecutive"], &edited["breaker"]["open_ms"]), (&json!(3), &json!(3_600_000)));
    let patient = server.patch(&path, &json!({"breaker": {"pause_after_s": null}})).await.expect(StatusCode::OK);
    assert_eq!((&patient["breaker"]["pause_after_s"], &patient["breaker"]["consecutive"]), (&json!(null), &json!(3)));
    let off = server.patch(&path, &json!({"breaker": null})).await.expect(StatusCode::OK);
    assert_eq!(off["breaker"], json!(null));
    let renamed = server.patch(&path, &json!({"name": "b"})).await.expect(StatusCode::OK);
    assert_eq!(renamed["breaker"], json!(null), "a disabled breaker stays disabled");
    let on = server.patch(&path, &json!({"breaker": {}})).await.expect(StatusCode::OK);
    assert_eq!(on["breaker"]["consecutive"], 10);
    let none = server.post("/v1/destinations", &json!({"url": URL, "breaker": null})).await.expect(StatusCode::CREATED);
    assert_eq!(none["breaker"], json!(null));
}

#[tokio::test]
async fn a_signature_style_of_null_is_the_standard_style_with_its_own_headers() {
    let server = Server::start().await;
    let prefixed = json!({"style": "prefixed", "header": "x-signature", "timestamp_header": "x-time"});
    for reset in [json!({"style": null}), json!({"style": "standard"}), Value::Null] {
        let id = server.destination(json!({"url": URL, "signature": prefixed})).await;
        let path = format!("/v1/destinations/{id}");
        // The header in the patch would belong to the new style, but the standard style has no configurable header.
        let refused = server.patch(&path, json!({"signature": {"style": null, "header": "x-other"}})).await;
        assert_eq!(refused.pointers(), ["/signature/header"]);
        let edited = server.patch(&path, json!({"signature": reset})).await.expect(StatusCode::OK);
        assert_eq!(edited["signature"], json!({"style": "standard"}), "{reset}");
    }
}

#[tokio::test]
async fn a_secret_is_generated_if_it_is_null() {
    let server = Server::start().await;
    let body = json!({"url": URL, "secret": null});
    let created = server.post("/v1/destinations", &body).await.expect(StatusCode::CREATED);
    assert!(created["secret"].as_str().unwrap().starts_with("whsec_"), "{created}");
}

#[tokio::test]
async fn every_field_is_kept_and_only_two_routes_show_the_secret() {
    let server = Server::start().await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let body = json!({
        "url": URL, "name": "Acme production", "tenant": "acme", "event_types": ["video.*", "order.paid"],
        "rate_limits": [{"limit": 300, "period": "minute", "burst": 5}, {"limit": 10, "period": "second"}],
        "max_in_flight": 8, "timeout_ms": 500, "retry": {"max_attempts": 3, "max_age_s": 60, "schedule_ms": [0, 100]},
        "headers": {"X-Api-Key": "hush"}, "secret": secret, "paused": true, "refusals_count": true,
        "filter": {"/amount": {"gte": 9_007_199_254_740_993_u64}, "not": {"/test": null}},
    });
    let created = server.post("/v1/destinations", &body).await.expect(StatusCode::CREATED);
    assert_eq!(created["secret"], secret);
    let path = format!("/v1/destinations/{}", created["id"].as_str().unwrap());
    let shown = server.get(&path).await.expect(StatusCode::OK);
    for field in ["url", "name", "tenant", "event_types", "filter", "timeout_ms", "retry", "refusals_count", "paused"] {
        assert_eq!(shown[field], body[field], "{field}");
    }
    let limits = json!([
        {"limit": 10, "period": "second", "burst": 1, "margin_ms": 0},
        {"limit": 300, "period": "minute", "burst": 5, "margin_ms": 0},
    ]);
    assert_eq!(shown["rate_limits"], limits);
    assert_eq!(shown["headers"], json!({"x-api-key": "***"}));
    assert_eq!(shown.get("secret"), None);
    let reply = server.get(&format!("{path}/secret")).await;
    assert_eq!(
        reply.expect(StatusCode::OK),
        json!({"secret": secret, "public_key": null, "public_key_hex": null, "previous_valid_until": null})
    );
    assert_eq!(reply.header("cache-control"), "no-store");
    for answer in [server.get("/v1/destinations").await, server.patch(&path, json!({"name": "x"})).await] {
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(!text.contains("hush") && !text.contains(secret), "{text}");
    }
}

#[tokio::test]
async fn a_minimum_interval_and_margins_are_kept_until_a_patch_changes_them() {
    let server = Server::start().await;
    let limits = json!([{"limit": 10, "period": "second", "burst": 1, "margin_ms": 50}]);
    let id = server.destination(json!({"url": URL, "rate_limits": limits, "min_interval_ms": 100})).await;
    let path = format!("/v1/destinations/{id}");
    let shown = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!((&shown["rate_limits"], &shown["min_interval_ms"]), (&limits, &json!(100)));
    let renamed = server.patch(&path, json!({"name": "a"})).await.expect(StatusCode::OK);
    assert_eq!((&renamed["rate_limits"], &renamed["min_interval_ms"]), (&limits, &json!(100)));
    let plain = server.patch(&path, json!({"rate_limits": [{"limit": 10, "period": "second"}]})).await;
    let plain = plain.expect(StatusCode::OK);
    assert_eq!((&plain["rate_limits"][0]["margin_ms"], &plain["min_interval_ms"]), (&json!(0), &json!(100)));
    let removed = server.patch(&path, json!({"min_interval_ms": null})).await.expect(StatusCode::OK);
    assert_eq!(removed["min_interval_ms"], json!(null));
    // The queue got the same limits with each edit.
    let terms = server.queue.edited();
    let intervals: Vec<_> =
        terms.iter().map(|edit| edit.terms.limits.min_interval().map(|one| one.as_millis())).collect();
    assert_eq!(intervals, [Some(100), Some(100), None]);
    let changes = server.store.limit_changes(id.parse().unwrap()).await.unwrap();
    assert_eq!(changes.len(), 3, "the name is no limit");
}

#[tokio::test]
async fn a_window_is_given_by_its_name_or_its_length_and_shown_by_both() {
    let server = Server::start().await;
    let limits =
        json!([{"limit": 190, "window_s": 10}, {"limit": 600, "window_s": 60}, {"limit": 9, "period": "7200s"}]);
    let id = server.destination(json!({"url": "https://example.com/", "rate_limits": limits})).await;
    let path = format!("/v1/destinations/{id}");
    let shown = server.get(&path).await.expect(StatusCode::OK)["rate_limits"].clone();
    let limit = |limit: u32, period: &str, window_s: Option<u32>| {
        let mut limit = json!({"limit": limit, "period": period, "burst": 1, "margin_ms": 0});
        if let Some(window_s) = window_s {
            limit["window_s"] = window_s.into();
        }
        limit
    };
    let expected = json!([limit(190, "10s", Some(10)), limit(600, "minute", None), limit(9, "7200s", Some(7_200))]);
    assert_eq!(shown, expected);
    // What is shown can be sent back.
    let patched = server.patch(&path, json!({"rate_limits": shown})).await.expect(StatusCode::OK);
    assert_eq!(patched["rate_limits"], shown);
    let preview = json!({"rate_limits": [{"limit": 20, "window_s": 10}]});
    let preview = server.post(&format!("{path}/preview"), preview).await.expect(StatusCode::OK);
    assert_eq!(preview["binding"], json!({"limit": 20, "period": "10s"}));
}

#[tokio::test]
async fn a_limit_says_that_its_sends_need_not_be_even_and_an_edit_of_the_shape_is_one_of_the_limit() {
    let server = Server::start().await;
    let limits = |shape: &str| json!([{"limit": 300, "period": "minute", "shape": shape}]);
    let id = server.destination(json!({"url": URL, "rate_limits": limits("window")})).await;
    let path = format!("/v1/destinations/{id}");
    let shown = server.get(&path).await.expect(StatusCode::OK)["rate_limits"].clone();
    assert_eq!(shown, json!([{"limit": 300, "period": "minute", "burst": 1, "margin_ms": 0, "shape": "window"}]));
    // What is shown can be sent back.
    let patched = server.patch(&path, json!({"rate_limits": shown})).await.expect(StatusCode::OK);
    assert_eq!(patched["rate_limits"], shown);
    let even = server.patch(&path, json!({"rate_limits": limits("even")})).await.expect(StatusCode::OK);
    assert_eq!(even["rate_limits"], json!([{"limit": 300, "period": "minute", "burst": 1, "margin_ms": 0}]));
    let changes = server.store.limit_changes(id.parse().unwrap()).await.unwrap();
    let shapes: Vec<_> = changes.iter().map(|change| change.limits.as_slice()[0].is_window()).collect();
    assert_eq!(shapes, [true, false]);
}

#[tokio::test]
async fn a_limit_counts_costs_and_what_is_shown_can_be_sent_back() {
    let server = Server::start().await;
    let limits = json!([{"limit": 1_000, "period": "minute", "unit": "cost"}]);
    let id = server.destination(json!({"url": URL, "rate_limits": limits})).await;
    let path = format!("/v1/destinations/{id}");
    let shown = server.get(&path).await.expect(StatusCode::OK)["rate_limits"].clone();
    let full = json!({
        "limit": 1_000, "period": "minute", "burst": 1, "margin_ms": 0, "shape": "window", "unit": "cost",
    });
    assert_eq!(shown, json!([full]));
    let patched = server.patch(&path, json!({"rate_limits": shown})).await.expect(StatusCode::OK);
    assert_eq!(patched["rate_limits"], shown);
    assert_eq!(server.store.limit_changes(id.parse().unwrap()).await.unwrap().len(), 1, "nothing has changed");
}

#[tokio::test]
async fn a_patch_changes_the_given_fields_and_null_restores_the_default() {
    let server = Server::start().await;
    let id = server
        .destination(json!({"url": URL, "name": "a", "max_in_flight": 5, "headers": {"x-a": "1", "x-b": "2"}}))
        .await;
    let path = format!("/v1/destinations/{id}");
    let before = server.get(&path).await.expect(StatusCode::OK);
    let patch = json!({"max_in_flight": null, "rate_limits": [{"limit": 7, "period": "hour"}], "headers": {"X-B": null, "x-c": "3", "x-a": "***"}});
    let after = server.patch(&path, patch).await.expect(StatusCode::OK);
    assert_eq!(after["name"], "a");
    assert_eq!(after["max_in_flight"], 64);
    assert_eq!(after["rate_limits"], json!([{"limit": 7, "period": "hour", "burst": 1, "margin_ms": 0}]));
    assert_eq!(after["headers"], json!({"x-a": "***", "x-c": "***"}));
    assert!(after["updated_at"].as_str() > before["updated_at"].as_str());
    assert_eq!(after["created_at"], before["created_at"]);
    assert_eq!(server.get(&path).await.expect(StatusCode::OK), after);
    // A header whose value in the patch was the mask kept its value.
    let stored = server.store.destination(id.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(stored.settings.headers, [("x-a".to_owned(), "1".to_owned()), ("x-c".to_owned(), "3".to_owned())]);
    let terms = Terms::of(&stored, stored.updated_at);
    assert_eq!(server.queue.edited(), [TermsChange { destination_id: id.parse().unwrap(), terms }]);
}

#[tokio::test]
async fn write_only_headers_do_not_follow_a_url_to_another_origin() {
    for url in ["https://evil.test/hooks", "https://example.com:8443/hooks", "http://example.com/hooks"] {
        let addresses = AddressPolicy { allow_http: true, ..AddressPolicy::default() };
        let server = Server::start_with(Options { addresses, ..Options::default() }).await;
        let headers = json!({"x-api-key": "s3cret", "x-other": "2"});
        let id = server.destination(json!({"url": "https://example.com/hooks", "headers": headers})).await;
        let path = format!("/v1/destinations/{id}");
        let stored =
            async || server.store.destination(id.parse().unwrap()).await.unwrap().unwrap().settings.headers.clone();
        // A URL with another path has the same origin, so the headers stay.
        server.patch(&path, json!({"url": "https://EXAMPLE.com:443/other"})).await.expect(StatusCode::OK);
        assert_eq!(stored().await.len(), 2);
        // At another origin a mask is refused, because it would send the old value there.
        let masked = json!({"url": url, "headers": {"x-api-key": "***"}});
        assert_eq!(server.patch(&path, masked).await.pointers(), ["/headers/x-api-key"]);
        assert_eq!(stored().await.len(), 2);
        let moved = server.patch(&path, json!({"url": url, "headers": {"x-other": "3"}})).await.expect(StatusCode::OK);
        assert_eq!((&moved["url"], &moved["headers"]), (&json!(url), &json!({"x-other": "***"})));
        assert_eq!(stored().await, [("x-other".to_owned(), "3".to_owned())]);
        // A patch with the old URL does not restore the removed headers.
        let back = server.patch(&path, json!({"url": "https://example.com/hooks"})).await.expect(StatusCode::OK);
        assert_eq!(back["headers"], json!({}));
    }
}

#[tokio::test]
async fn a_schedule_and_a_backoff_replace_each_other() {
    let server = Server::start().await;
    let path = format!("/v1/destinations/{}", server.destination(json!({"url": URL})).await);
    let retry = |patch: Value| {
        let server = &server;
        let path = path.clone();
        async move { server.patch(&path, json!({"retry": patch})).await.expect(StatusCode::OK)["retry"].clone() }
    };
    let scheduled = json!({"max_attempts": 16, "max_age_s": 259200, "schedule_ms": [1, 2]});
    assert_eq!(retry(json!({"schedule_ms": [1, 2]})).await, scheduled);
    assert_eq!(retry(json!({"base_ms": 5})).await["base_ms"], 5);
    assert_eq!(
        retry(json!({"max_attempts": 2})).await,
        json!({"max_attempts": 2, "max_age_s": 259200, "base_ms": 5, "cap_ms": 3600000})
    );
    assert_eq!(retry(Value::Null).await["base_ms"], 10000);
}

#[tokio::test]
async fn pausing_and_deleting_suspend_at_once() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL})).await;
    let path = format!("/v1/destinations/{id}");
    server.event("video.created").await;
    assert_eq!(server.patch(&path, json!({"paused": true})).await.expect(StatusCode::OK)["paused"], true);
    let suspended = || {
        let edits = server.queue.edited();
        edits.iter().map(|edit| (edit.destination_id.to_string(), edit.terms.suspended)).collect::<Vec<_>>()
    };
    assert_eq!(suspended(), [(id.clone(), true)]);
    let reply = server.delete(&path).await;
    assert_eq!((reply.status, reply.body.len()), (StatusCode::NO_CONTENT, 0));
    assert_eq!(suspended(), [(id.clone(), true)]);
    server.get(&path).await.problem(404);
    server.delete(&path).await.problem(404);
    for patch in [json!({"paused": false}), json!({"paused": 7}), json!({"secret": null}), json!([])] {
        server.patch(&path, patch).await.problem(404);
    }
    let kept = server.get(&format!("/v1/deliveries?destination={id}")).await.expect(StatusCode::OK);
    assert_eq!(kept["data"][0]["state"], "cancelled");
    assert_eq!(server.get(&format!("{path}/audit")).await.expect(StatusCode::OK)["sends"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_edits_of_different_fields_all_count() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL})).await;
    let path = format!("/v1/destinations/{id}");
    let edits = (0..20).map(|number| {
        let request = json_request("PATCH", &path, json!({"headers": {format!("x-{number}"): "v"}}));
        tokio::spawn(reply(server.router.clone(), request))
    });
    for edit in edits.collect::<Vec<_>>() {
        edit.await.unwrap().expect(StatusCode::OK);
    }
    let shown = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!(shown["headers"].as_object().unwrap().len(), 20);
}

#[tokio::test]
async fn an_edit_succeeds_even_if_the_queue_fails() {
    let server = Server::start().await;
    let path = format!("/v1/destinations/{}", server.destination(json!({"url": URL})).await);
    server.queue.break_down();
    assert_eq!(server.patch(&path, json!({"name": "b"})).await.expect(StatusCode::OK)["name"], "b");
    assert_eq!(server.get(&path).await.expect(StatusCode::OK)["name"], "b");
}

#[tokio::test]
async fn the_backlog_counts_states_and_estimates_the_drain() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL, "rate_limits": [{"limit": 2, "period": "second"}]})).await;
    let path = format!("/v1/destinations/{id}/backlog");
    let idle = server.get(&path).await.expect(StatusCode::OK);
    let expected = json!({
        "pending": 0, "retrying": 0, "delivering": 0, "oldest_age_s": null, "configured_per_s": 2.0, "effective_per_s": 1.98,
        "achieved_per_s": 0.0, "arrivals_per_s": 0.0, "drain_eta_s": 0.0, "drains": true,
    });
    assert_eq!(idle, expected);
    for _ in 0..3 {
        server.event("video.created").await;
    }
    let claimed = server.claim(&id).await;
    assert_eq!(claimed.len(), 3);
    server.settle(&claimed[0], 503, Verdict::Retry { at: claimed[0].expires_at }).await;
    server.settle(&claimed[1], 200, Verdict::Delivered).await;
    server.event("video.created").await;
    server.clock.advance(Duration::from_secs(2));
    let busy = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!((&busy["pending"], &busy["retrying"], &busy["delivering"]), (&json!(1), &json!(1), &json!(1)));
    assert_eq!((&busy["achieved_per_s"], &busy["drain_eta_s"]), (&json!(0.2), &json!(0.505)));
    assert_eq!((&busy["arrivals_per_s"], &busy["drains"]), (&json!(0.06667), &json!(true)));
    assert_eq!(busy["oldest_age_s"], 2.0);
}

#[tokio::test]
async fn an_edit_of_a_version_that_is_not_the_current_one_is_refused() {
    let server = Server::start().await;
    let path = format!("/v1/destinations/{}", server.destination(json!({"url": URL})).await);
    let edit = |method: &str, etag: &str, body: Value| {
        let mut request = json_request(method, &path, body);
        request.headers_mut().insert(header::IF_MATCH, etag.parse().unwrap());
        server.send(request)
    };
    let first = server.get(&path).await.header("etag").to_owned();
    let edited = edit("PATCH", &first, json!({"name": "one"})).await;
    edited.expect(StatusCode::OK);
    let second = edited.header("etag").to_owned();
    assert_ne!(first, second);

    let refused = edit("PATCH", &first, json!({"name": "two"})).await;
    assert!(refused.problem(412)["detail"].as_str().unwrap().contains(&second));
    edit("DELETE", &first, json!({})).await.problem(412);
    let shown = server.get(&path).await;
    assert_eq!((&shown.expect(StatusCode::OK)["name"], shown.header("etag")), (&json!("one"), second.as_str()));
    // Without the header the last edit wins.
    server.patch(&path, json!({"name": "three"})).await.expect(StatusCode::OK);
    edit("PATCH", "*", json!({"name": "four"})).await.expect(StatusCode::OK);
    let last = server.get(&path).await.header("etag").to_owned();
    assert_eq!(edit("DELETE", &last, json!({})).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_test_event_goes_only_to_its_destination() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL, "event_types": ["video.*"]})).await;
    server.destination(json!({"url": "https://other.example/", "event_types": ["*", "weir.*"]})).await;
    let delivery = server.post(&format!("/v1/destinations/{id}/test"), "").await.expect(StatusCode::ACCEPTED);
    assert_eq!(
        (&delivery["destination_id"], &delivery["event_type"], &delivery["state"]),
        (&json!(id), &json!("weir.test"), &json!("pending"))
    );
    assert_eq!(server.count("/v1/deliveries").await, 1);
    assert_eq!(server.queue.woken(), [id.parse().unwrap()]);
    let event = server.get(&format!("/v1/events/{}", delivery["event_id"].as_str().unwrap())).await;
    assert_eq!(event.expect(StatusCode::OK)["data"]["destination"], id);
    server.post("/v1/destinations/dst_01h2xcejqtf2nbrexx3vqjhp41/test", "").await.problem(404);
}
