//! Invalid destinations are refused field by field, and nothing changes.

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::{
    activity::{Action, Activity, Origin},
    address::AddressPolicy,
};

use crate::harness::{Options, Server};

const URL: &str = "https://example.com/hooks";

/// Invalid bodies and the pointers of their errors. A valid URL is added where none is given.
fn invalid_destinations() -> Vec<(Value, Vec<&'static str>)> {
    let limit = |limit: Value| json!([{"limit": limit, "period": "second"}]);
    let second = json!({"limit": 1, "period": "second"});
    let headers: Value = (0..33).map(|number| (format!("x-{number}"), json!("v"))).collect();
    vec![
        (json!({"url": null}), vec!["/url"]),
        (json!({"url": 5, "name": 5, "tenant": 5, "paused": 1}), vec!["/url", "/name", "/tenant", "/paused"]),
        (json!({"colour": "red", "id": "dst_1"}), vec!["/colour", "/id"]),
        (json!({"name": "x".repeat(201)}), vec!["/name"]),
        (json!({"name": "a\nb"}), vec!["/name"]),
        (json!({"tenant": ""}), vec!["/tenant"]),
        (json!({"tenant": "a b"}), vec!["/tenant"]),
        (json!({"event_types": []}), vec!["/event_types"]),
        (json!({"event_types": ["ok", "vid*", 7]}), vec!["/event_types/1", "/event_types/2"]),
        (json!({"filter": {}}), vec!["/filter"]),
        (json!({"filter": "x", "name": 5}), vec!["/name", "/filter"]),
        (
            json!({"filter": {"amount": 1, "/a": {"ne": 1}, "or": [{"/b": [1]}]}}),
            vec!["/filter/~1a/ne", "/filter/amount", "/filter/or/0/~1b"],
        ),
        (json!({"rate_limits": limit(json!(0))}), vec!["/rate_limits/0/limit"]),
        (json!({"rate_limits": limit(json!(1_000_001))}), vec!["/rate_limits/0/limit"]),
        (json!({"rate_limits": limit(json!(-1))}), vec!["/rate_limits/0/limit"]),
        (json!({"rate_limits": limit(json!(1.5))}), vec!["/rate_limits/0/limit"]),
        (json!({"rate_limits": limit(json!("10"))}), vec!["/rate_limits/0/limit"]),
        (json!({"rate_limits": limit(Value::Null)}), vec!["/rate_limits/0/limit"]),
        (json!({"rate_limits": [{"limit": 1, "period": "second", "burst": 0}]}), vec!["/rate_limits/0/burst"]),
        (json!({"rate_limits": [{"limit": 1, "period": "week"}]}), vec!["/rate_limits/0/period"]),
        (json!({"rate_limits": [{"limit": 1, "period": "0s"}]}), vec!["/rate_limits/0/period"]),
        (json!({"rate_limits": [{"limit": 1, "window_s": 0}]}), vec!["/rate_limits/0/window_s"]),
        (json!({"rate_limits": [{"limit": 1, "period": "day", "shape": "burst"}]}), vec!["/rate_limits/0/shape"]),
        (
            json!({"rate_limits": [{"limit": 1, "period": "day", "shape": "window", "burst": 2}]}),
            vec!["/rate_limits/0/burst"],
        ),
        (json!({"rate_limits": [{"limit": 1, "period": "day", "unit": "points"}]}), vec!["/rate_limits/0/unit"]),
        (
            json!({"rate_limits": [{"limit": 1, "period": "day", "unit": "cost", "shape": "even"}]}),
            vec!["/rate_limits/0/shape"],
        ),
        (
            json!({"rate_limits": [{"limit": 1, "period": "day", "unit": "cost", "burst": 2}]}),
            vec!["/rate_limits/0/burst"],
        ),
        (json!({"rate_limits": [{"limit": 1, "window_s": 86_401}]}), vec!["/rate_limits/0/window_s"]),
        (json!({"rate_limits": [{"limit": 1, "window_s": 10, "period": "second"}]}), vec!["/rate_limits/0/window_s"]),
        (
            json!({"rate_limits": [{"limit": 1, "window_s": 60}, {"limit": 2, "period": "minute"}]}),
            vec!["/rate_limits/1/period"],
        ),
        (json!({"rate_limits": [{"limit": 1, "period": "day", "margin_ms": -1}]}), vec!["/rate_limits/0/margin_ms"]),
        (
            json!({"rate_limits": [{"limit": 1, "period": "day", "margin_ms": 10_001}]}),
            vec!["/rate_limits/0/margin_ms"],
        ),
        (json!({"min_interval_ms": 0}), vec!["/min_interval_ms"]),
        (json!({"min_interval_ms": 60_001}), vec!["/min_interval_ms"]),
        (json!({"min_interval_ms": "100"}), vec!["/min_interval_ms"]),
        (json!({"rate_limits": [{}]}), vec!["/rate_limits/0/limit", "/rate_limits/0/period"]),
        (json!({"rate_limits": [{"limit": 1, "period": "second", "per": 1}]}), vec!["/rate_limits/0/per"]),
        (json!({"rate_limits": [second, second]}), vec!["/rate_limits/1/period"]),
        (json!({"rate_limits": vec![second; 5]}), vec!["/rate_limits"]),
        (json!({"rate_limits": {}}), vec!["/rate_limits"]),
        (json!({"max_in_flight": 0, "timeout_ms": 99}), vec!["/max_in_flight", "/timeout_ms"]),
        (json!({"max_in_flight": 10_001, "timeout_ms": 120_001}), vec!["/max_in_flight", "/timeout_ms"]),
        (json!({"retry": {"max_attempts": 0, "max_age_s": 0}}), vec!["/retry/max_attempts", "/retry/max_age_s"]),
        (
            json!({"retry": {"max_attempts": 101, "max_age_s": 2_592_001}}),
            vec!["/retry/max_attempts", "/retry/max_age_s"],
        ),
        (json!({"retry": {"base_ms": 0, "cap_ms": 0}}), vec!["/retry/base_ms", "/retry/cap_ms"]),
        (json!({"retry": {"base_ms": 2, "cap_ms": 1}}), vec!["/retry/cap_ms"]),
        (json!({"retry": {"schedule_ms": [1], "base_ms": 1}}), vec!["/retry/base_ms"]),
        (json!({"retry": {"schedule_ms": []}}), vec!["/retry/schedule_ms"]),
        (json!({"retry": {"schedule_ms": vec![1; 101]}}), vec!["/retry/schedule_ms"]),
        (json!({"retry": {"schedule_ms": [1, -1]}}), vec!["/retry/schedule_ms/1"]),
        (
            json!({"alerts": {"backlog_depth": 0, "oldest_age_s": -1, "drain_beyond_ttl": 1, "dead_letters": "1", "age": 1}}),
            vec![
                "/alerts/backlog_depth",
                "/alerts/oldest_age_s",
                "/alerts/drain_beyond_ttl",
                "/alerts/dead_letters",
                "/alerts/age",
            ],
        ),
        (json!({"alerts": true}), vec!["/alerts"]),
        (json!({"retry": {"jitter": true}}), vec!["/retry/jitter"]),
        (json!({"retry": 3}), vec!["/retry"]),
        (
            json!({"headers": {"host": "a", "content-type": "b", "traceparent": "t", "webhook-id": "c", "weir-attempt": "d"}}),
            vec![
                "/headers/content-type",
                "/headers/host",
                "/headers/traceparent",
                "/headers/webhook-id",
                "/headers/weir-attempt",
            ],
        ),
        (
            json!({"headers": {"a b": "v", "x-a": "line\nbreak", "x-b": 7}}),
            vec!["/headers/a b", "/headers/x-a", "/headers/x-b"],
        ),
        (json!({"headers": {"X-A": "1", "x-a": "2"}}), vec!["/headers/x-a"]),
        (json!({"headers": {"x-a": "***"}}), vec!["/headers/x-a"]),
        (json!({"headers": headers}), vec!["/headers"]),
        (json!({"headers": []}), vec!["/headers"]),
        (json!({"secret": "whsec_c2hvcnQ="}), vec!["/secret"]),
        (json!({"secret": 7}), vec!["/secret"]),
        (json!({"secret": "whsk_c2hvcnQ="}), vec!["/secret"]),
        (json!({"breaker": true}), vec!["/breaker"]),
        (
            json!({"breaker": {"failure_ratio": 1.5, "min_attempts": 0, "consecutive": "10", "open_ms": 1, "sound": 1}}),
            vec![
                "/breaker/failure_ratio",
                "/breaker/min_attempts",
                "/breaker/consecutive",
                "/breaker/open_ms",
                "/breaker/sound",
            ],
        ),
        (json!({"breaker": {"failure_ratio": "half"}}), vec!["/breaker/failure_ratio"]),
        (json!({"breaker": {"open_ms": 2000, "open_max_ms": 1000}}), vec!["/breaker/open_max_ms"]),
        (json!({"breaker_state": "closed", "next_probe_at": "now"}), vec!["/breaker_state", "/next_probe_at"]),
        (json!({"signature": "standard"}), vec!["/signature"]),
        (
            json!({"signature": {"style": "md5", "header": "x-s", "salt": 1}}),
            vec!["/signature/style", "/signature/salt"],
        ),
        (json!({"signature": {"style": 7}}), vec!["/signature/style"]),
        (
            json!({"signature": {"header": "x-s", "timestamp_header": "x-t"}}),
            vec!["/signature/header", "/signature/timestamp_header"],
        ),
        (
            json!({"signature": {"style": "timestamped", "timestamp_header": "x-t"}}),
            vec!["/signature/timestamp_header"],
        ),
        (json!({"signature": {"style": "timestamped", "header": "a b"}}), vec!["/signature/header"]),
        (json!({"signature": {"style": "timestamped", "header": ""}}), vec!["/signature/header"]),
        (json!({"signature": {"style": "timestamped", "header": "Content-Length"}}), vec!["/signature/header"]),
        (json!({"signature": {"style": "timestamped", "header": "webhook-timestamp"}}), vec!["/signature/header"]),
        (
            json!({"signature": {"style": "prefixed", "header": "webhook-id", "timestamp_header": "weir-attempt"}}),
            vec!["/signature/header", "/signature/timestamp_header"],
        ),
        (
            json!({"signature": {"style": "prefixed", "header": "host", "timestamp_header": "x y"}}),
            vec!["/signature/header", "/signature/timestamp_header"],
        ),
        (
            json!({"signature": {"style": "prefixed", "header": "X-Same", "timestamp_header": "x-same"}}),
            vec!["/signature/timestamp_header"],
        ),
        (
            json!({"signature": {"style": "prefixed", "header": "x-own"}, "headers": {"X-Own": "v"}}),
            vec!["/signature/header"],
        ),
        (
            json!({"signature": {"style": "timestamped"}, "secret": format!("whsk_{}=", "A".repeat(43))}),
            vec!["/signature"],
        ),
        (json!({"signature": {"style": "stripe", "timestamp_header": "x-t"}}), vec!["/signature/timestamp_header"]),
        (json!({"signature": {"style": "stripe", "signed": "{body}"}}), vec!["/signature/signed"]),
        (json!({"signature": {"style": "custom"}}), vec!["/signature/signed"]),
        (
            json!({"signature": {"style": "custom", "signed": "{bdy}", "value": "x", "encoding": "hex32", "key": 7}}),
            vec!["/signature/encoding", "/signature/key", "/signature/signed", "/signature/value"],
        ),
        (
            json!({"signature": {"style": "custom", "signed": "{body}", "header": "user-agent", "id_header": "te"}}),
            vec!["/signature/header", "/signature/id_header"],
        ),
        (json!({"signature": {"style": "slack"}, "headers": {"X-Slack-Signature": "v"}}), vec!["/signature/header"]),
        (json!({"headers": {"content-type": "text/plain"}}), vec!["/headers/content-type"]),
        (json!({"body": "data"}), vec!["/body"]),
        (json!({"body": {"format": "xml", "source": "x"}}), vec!["/body/format"]),
        (json!({"body": {"format": "data", "source": "x"}}), vec!["/body/source"]),
        (json!({"body": {"content_type": "text\r\nx: y"}}), vec!["/body/content_type"]),
        (
            json!({"body": {"format": "cloudevents", "content_type": "text/plain", "source": "a b"}}),
            vec!["/body/source", "/body/content_type"],
        ),
        (json!({"body": {"format": "cloudevents-binary"}, "headers": {"ce-id": "7"}}), vec!["/headers/ce-id"]),
    ]
}

#[tokio::test]
async fn every_error_of_a_destination_is_reported() {
    let server = Server::start().await;
    for (mut body, pointers) in invalid_destinations() {
        if body.get("url").is_none() {
            body["url"] = json!(URL);
        }
        assert_eq!(server.post("/v1/destinations", &body).await.pointers(), pointers, "{body}");
    }
    assert_eq!(server.post("/v1/destinations", "{}").await.pointers(), ["/url"]);
    assert_eq!(server.post("/v1/destinations", "7").await.pointers(), [""]);
    server.assert_untouched().await;
}

/// `serde_json` keeps the last of two fields with the same name, and drops the other without a word.
#[tokio::test]
async fn a_header_that_is_named_twice_is_refused() {
    let server = Server::start().await;
    let body = |headers: &str| format!(r#"{{"url": "{URL}", "headers": {headers}}}"#);
    for headers in [r#"{"x-a": "1", "X-A": "2"}"#, r#"{"x-a": "1", "x-b": "", "x-a": "2"}"#] {
        let refused = server.post("/v1/destinations", &*body(headers)).await.problem(422);
        assert!(refused.to_string().contains("twice") || refused.to_string().contains("duplicate field"), "{refused}");
    }
    server.assert_untouched().await;
}

#[tokio::test]
async fn a_refused_patch_changes_nothing() {
    let server = Server::start().await;
    let path = format!("/v1/destinations/{}", server.destination(json!({"url": URL, "headers": {"x-k": "v"}})).await);
    let before = server.get(&path).await.expect(StatusCode::OK);
    for (mut patch, pointers) in invalid_destinations() {
        patch["tenant"] = patch.get("tenant").cloned().unwrap_or(json!("changed"));
        assert_eq!(server.patch(&path, &patch).await.pointers(), pointers, "{patch}");
    }
    assert_eq!(server.patch(&path, json!({"secret": null})).await.pointers(), ["/secret"]);
    assert_eq!(server.patch(&path, json!([])).await.pointers(), [""]);
    server.patch(&path, "{").await.problem(400);
    assert_eq!(server.get(&path).await.expect(StatusCode::OK), before);
    assert!(server.queue.edited().is_empty());
}

#[tokio::test]
async fn an_unknown_field_of_a_patch_is_refused_even_if_it_is_null() {
    let server = Server::start().await;
    let path = format!("/v1/destinations/{}", server.destination(json!({"url": URL, "breaker": null})).await);
    let before = server.get(&path).await.expect(StatusCode::OK);
    for (patch, pointers) in [
        (json!({"colour": null}), vec!["/colour"]),
        (json!({"colour": null, "name": 7}), vec!["/name", "/colour"]),
        (json!({"id": null, "held_until": null}), vec!["/held_until", "/id"]),
        (json!({"retry": {"jitter": null}}), vec!["/retry/jitter"]),
        (json!({"breaker": {"sound": null}}), vec!["/breaker/sound"]),
        (json!({"alerts": {"age": null}}), vec!["/alerts/age"]),
        (json!({"signature": {"salt": null}}), vec!["/signature/salt"]),
        (json!({"headers": {"a b": null, "host": null}}), vec!["/headers/a b", "/headers/host"]),
    ] {
        assert_eq!(server.patch(&path, &patch).await.pointers(), pointers, "{patch}");
    }
    assert_eq!(server.get(&path).await.expect(StatusCode::OK), before);
}

#[tokio::test]
async fn errors_of_fields_and_of_rules_are_reported_together_in_the_order_of_the_fields() {
    let server = Server::start().await;
    let second = json!({"limit": 1, "period": "second"});
    let body = json!({
        "url": "https://10.0.0.1/", "rate_limits": [{}, second, second], "timeout_ms": 1,
        "retry": {"base_ms": 2, "cap_ms": 1, "max_attempts": 0}, "skip_after_attempts": 3,
        "headers": {"x-a": "***"}, "paused": "no",
    });
    let pointers = [
        "/url",
        "/rate_limits/0/limit",
        "/rate_limits/0/period",
        "/rate_limits/2/period",
        "/timeout_ms",
        "/retry/max_attempts",
        "/retry/cap_ms",
        "/skip_after_attempts",
        "/headers/x-a",
        "/paused",
    ];
    assert_eq!(server.post("/v1/destinations", &body).await.pointers(), pointers);
    server.assert_untouched().await;
}

#[tokio::test]
async fn a_patch_can_replace_a_header_of_a_destination_with_the_most_headers() {
    let server = Server::start().await;
    let headers: Value = (0..32).map(|number| (format!("x-{number}"), json!("v"))).collect();
    let path = format!("/v1/destinations/{}", server.destination(json!({"url": URL, "headers": headers})).await);
    assert_eq!(server.patch(&path, json!({"headers": {"x-new": "v"}})).await.pointers(), ["/headers"]);
    let replaced = server.patch(&path, json!({"headers": {"x-0": null, "x-new": "v"}})).await.expect(StatusCode::OK);
    assert_eq!(replaced["headers"].as_object().unwrap().len(), 32);
}

#[tokio::test]
async fn forbidden_urls_are_refused() {
    let server = Server::start().await;
    let long = format!("https://example.com/{}", "x".repeat(2_048));
    for url in [
        "",
        "example.com",
        "/hooks",
        "https://",
        "ftp://example.com/",
        "http://example.com/",
        "https://user@example.com/",
        "https://:pass@example.com/",
        "https://example.com/#part",
        "https://127.0.0.1/",
        "https://10.1.2.3/",
        "https://[::1]/",
        "https://169.254.169.254/latest",
        "https://0x7f000001/",
        "https://2130706433/",
        "https://localhost/",
        &long,
    ] {
        assert_eq!(server.post("/v1/destinations", json!({"url": url})).await.pointers(), ["/url"], "{url}");
    }
    server.assert_untouched().await;
}

#[tokio::test]
async fn denied_networks_and_other_ports_are_refused() {
    let addresses = AddressPolicy {
        allow_networks: vec!["10.0.0.0/8".parse().unwrap()],
        deny_networks: vec!["10.1.0.0/16".parse().unwrap(), "8.8.8.0/24".parse().unwrap()],
        allow_ports: vec![443..=443, 8_000..=8_999],
        ..AddressPolicy::default()
    };
    let server = Server::start_with(Options { addresses, ..Options::default() }).await;
    for url in ["https://10.1.2.3/", "https://[::ffff:10.1.2.3]/", "https://8.8.8.8/", "https://example.com:22/"] {
        assert_eq!(server.post("/v1/destinations", json!({"url": url})).await.pointers(), ["/url"], "{url}");
    }
    server.assert_untouched().await;
    let path = format!("/v1/destinations/{}", server.destination(json!({"url": "https://10.2.0.1:8443/"})).await);
    assert_eq!(server.patch(&path, json!({"url": "https://10.2.0.1:22/"})).await.pointers(), ["/url"]);
}

#[tokio::test]
async fn a_destination_whose_address_is_no_longer_allowed_can_still_be_paused() {
    let addresses = AddressPolicy { allow_http: true, ..AddressPolicy::default() };
    let server = Server::start_with(Options { addresses, ..Options::default() }).await;
    let id = server.destination(json!({"url": "http://example.com/"})).await;
    let strict = Server::start().await;
    let old = server.store.destination(id.parse().unwrap()).await.unwrap().unwrap();
    let creation = Activity::new(Origin::weir(), Action::DestinationCreated, old.created_at);
    strict.store.create_destination((*old).clone(), creation.into()).await.unwrap();
    let path = format!("/v1/destinations/{id}");
    strict.patch(&path, json!({"paused": true})).await.expect(StatusCode::OK);
    assert_eq!(strict.patch(&path, json!({"url": "http://example.com/other"})).await.pointers(), ["/url"]);
}

/// A name with such a character can look like another one: `safe\u{202e}moc.live` is shown as `safeevil.com`.
#[tokio::test]
async fn a_name_with_characters_that_nobody_sees_is_refused_and_the_character_is_named() {
    let server = Server::start().await;
    for char in ['\u{202e}', '\u{2066}', '\u{200f}', '\u{61c}', '\u{7f}'] {
        let name = format!("safe{char}moc.live");
        let destination = server.post("/v1/destinations", json!({"url": "https://example.com/", "name": name})).await;
        assert_eq!(destination.pointers(), ["/name"], "{char:?}");
        let key = server.post("/v1/keys", json!({"name": name, "role": "read"})).await;
        assert_eq!(key.pointers(), ["/name"], "{char:?}");
    }
    let refused = server.post("/v1/destinations", json!({"url": "https://example.com/", "name": "a\u{202e}b"})).await;
    let detail = refused.problem(422)["errors"][0]["detail"].clone();
    assert_eq!(detail, "must not contain the character U+202E, which changes the direction of the text around it");
    // Names in scripts that are written from right to left need no such character.
    server
        .post("/v1/destinations", json!({"url": "https://example.com/", "name": "شركة"}))
        .await
        .expect(StatusCode::CREATED);
}
