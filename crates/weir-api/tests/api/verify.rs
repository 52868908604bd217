//! The verification of a received request.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::{Clock as _, outcome::Verdict, signing::Secret};

use crate::harness::Server;

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const THIRD: &str = "whsec_dGhpcmQtc2VjcmV0LW9mLXRoZS10ZXN0cw==";
const BODY: &str = r#"{"n":1}"#;

impl Server {
    /// The headers of a request that is signed now.
    fn signed(&self, secret: &str) -> Value {
        let now = self.clock.wall().as_secs();
        let secret: Secret = secret.parse().unwrap();
        json!({
            "Webhook-Id": "evt_1", "webhook-timestamp": now.to_string(),
            "webhook-signature": secret.sign("evt_1", now, BODY.as_bytes()),
        })
    }

    async fn verified(&self, request: Value) -> Value {
        self.post("/v1/verify", request).await.expect(StatusCode::OK)
    }
}

#[tokio::test]
async fn a_request_is_verified_with_a_given_secret_or_with_those_of_a_destination() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": "https://example.com/", "secret": OLD})).await;
    let of_old = server.signed(OLD);
    let valid = |cause: Value| {
        let signed_at = "2026-11-21T07:30:00.000Z";
        json!({"valid": true, "reason": null, "signed_at": signed_at, "age_s": 0, "cause": cause})
    };
    let shown = |mut verified: Value| {
        verified.as_object_mut().unwrap().remove("hint");
        verified
    };
    let given = json!({"secret": OLD, "headers": of_old, "body": BODY});
    assert_eq!(shown(server.verified(given).await), valid(Value::Null));
    let path = format!("/v1/destinations/{id}/rotate-secret");
    server.post(&path, json!({"secret": NEW})).await.expect(StatusCode::OK);
    // The current and the previous secret.
    for (secret, cause) in [(OLD, json!("previous_secret")), (NEW, Value::Null)] {
        let named = json!({"destination": id, "headers": server.signed(secret), "body": BODY});
        assert_eq!(shown(server.verified(named).await), valid(cause));
    }
    let changed = server.verified(json!({"destination": id, "headers": of_old, "body": "{}"})).await;
    assert_eq!((&changed["valid"], &changed["signed_at"]), (&json!(false), &Value::Null));
    let reason = changed["reason"].as_str().unwrap();
    assert!(reason.starts_with("bad signature"), "{reason}");
}

/// The published examples of GitHub and Slack.
#[tokio::test]
async fn a_request_is_verified_in_the_style_of_another_sender() {
    let server = Server::start().await;
    let github = json!({
        "secret": "It's a Secret to Everybody", "signature": {"style": "github"}, "body": "Hello, World!",
        "headers": {
            "X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
        },
    });
    let github = server.verified(github).await;
    assert_eq!((&github["valid"], &github["reason"], &github["age_s"]), (&json!(true), &Value::Null, &Value::Null));
    let square = json!({
        "secret": "a text key of these tests", "signature": {"style": "square"}, "body": BODY,
        "url": "https://example.com/hooks",
        "headers": {"x-square-hmacsha256-signature": "zvzlr4C7t4QskomNR7vli4hNbK+zdWXIaKul2xKzX1Q="},
    });
    assert_eq!(server.verified(square.clone()).await["valid"], true);
    let settings = json!({
        "url": "https://example.com/hooks", "secret": "a text key of these tests", "signature": {"style": "square"},
    });
    let id = server.destination(settings).await;
    let of_destination = json!({"destination": id, "headers": square["headers"], "body": BODY});
    assert_eq!(server.verified(of_destination).await["valid"], true, "the URL is that of the destination");
}

#[tokio::test]
async fn a_verification_without_what_it_needs_is_refused_and_shows_no_secret() {
    let server = Server::start().await;
    for (request, pointer) in [
        (json!({"headers": {}, "body": ""}), "/secret"),
        (json!({"secret": "whsec_short", "headers": {}, "body": ""}), "/secret"),
        (json!({"secret": OLD, "headers": [], "body": ""}), "/headers"),
        (json!({"secret": OLD, "headers": {"webhook-id": 7}, "body": ""}), "/headers/webhook-id"),
        (json!({"secret": OLD, "headers": {}}), "/body"),
        (json!({"secret": OLD, "headers": {}, "body": "", "tolerance_s": -1}), "/tolerance_s"),
    ] {
        let reply = server.post("/v1/verify", request.clone()).await;
        assert_eq!(reply.pointers(), [pointer], "{request}");
        assert!(!String::from_utf8_lossy(&reply.body).contains("short"), "{reply:?}");
    }
    let id = server.destination(json!({"url": "https://example.com/"})).await;
    for (request, pointer) in [
        (json!({"secret": "a text of some length", "headers": {}, "body": ""}), "/secret"),
        (json!({"secret": OLD, "signature": {"style": "discord"}, "headers": {}, "body": ""}), "/secret"),
        (json!({"secret": OLD, "signature": {"style": "md5"}, "headers": {}, "body": ""}), "/signature/style"),
        (json!({"destination": id, "signature": {}, "headers": {}, "body": ""}), "/signature"),
        (json!({"destination": id, "secret": "a text of some length", "headers": {}, "body": ""}), "/secret"),
    ] {
        assert_eq!(server.post("/v1/verify", request.clone()).await.pointers(), [pointer], "{request}");
    }
    let unknown = json!({"destination": "dst_01h2xcejqtf2nbrexx3vqjhp41", "headers": {}, "body": ""});
    server.post("/v1/verify", unknown).await.problem(404);
    let missing = server.verified(json!({"secret": OLD, "headers": {}, "body": BODY})).await;
    assert_eq!((&missing["valid"], &missing["reason"]), (&json!(false), &json!("the header `webhook-id` is missing")));
}

/// Each signature in the header costs a MAC of the whole body, so tens of thousands of signatures would take seconds.
#[tokio::test]
async fn a_header_with_too_many_signatures_is_not_verified() {
    let server = Server::start().await;
    let styles = [
        (json!({"style": "standard"}), "webhook-signature", "v1, "),
        (json!({"style": "timestamped", "header": "x-signature"}), "x-signature", "t=1,v1=,"),
        (json!({"style": "prefixed", "header": "x-signature"}), "x-signature", "sha256=,"),
    ];
    for (style, header, part) in styles {
        let id = server.destination(json!({"url": "https://example.com/", "signature": style})).await;
        let reason = async |times: usize| {
            let mut headers = server.signed(OLD);
            headers[header] = part.repeat(times).into();
            let request = json!({"destination": id, "headers": headers, "body": "a".repeat(100_000)});
            server.verified(request).await["reason"].as_str().unwrap().to_owned()
        };
        assert_eq!(reason(10_000).await, format!("the header `{header}` has too many signatures"));
        assert!(reason(10).await.starts_with("bad signature"), "{header}");
    }
}

/// A destination that has sent one event, and the request as its receiver got it.
struct Sent {
    server: Server,
    destination: String,
    headers: Value,
    body: String,
}

impl Sent {
    async fn new() -> Self {
        let server = Server::start().await;
        let destination = server.destination(json!({"url": "https://example.com/", "secret": OLD})).await;
        let event = json!({"type": "video.created", "data": {"b": 1, "a": "x"}});
        let event = server.post("/v1/events", event).await.expect(StatusCode::ACCEPTED)["id"].clone();
        let claimed = server.claim(&destination).await.pop().unwrap();
        server.settle(&claimed, 401, Verdict::Failed).await;
        let stored = server.store.event(event.as_str().unwrap().parse().unwrap()).await.unwrap().unwrap();
        let body = String::from_utf8(stored.body.bytes().to_vec()).unwrap();
        let (secret, now): (Secret, _) = (OLD.parse().unwrap(), server.clock.now().as_secs());
        let headers = json!({
            "webhook-id": event, "webhook-timestamp": now.to_string(),
            "webhook-signature": secret.sign(event.as_str().unwrap(), now, body.as_bytes()),
        });
        Self { server, destination, headers, body }
    }

    /// The cause and the hint of a request to the destination.
    async fn cause(&self, headers: &Value, body: &str) -> (String, String) {
        let request = json!({"destination": self.destination, "headers": headers, "body": body});
        let verified = self.server.verified(request).await;
        assert_eq!(verified["valid"], false, "{verified}");
        let text = |name: &str| verified[name].as_str().unwrap_or_default().to_owned();
        (text("cause"), text("hint"))
    }
}

#[tokio::test]
async fn a_body_that_something_has_changed_is_compared_with_the_stored_bytes() {
    let sent = Sent::new().await;
    let Sent { headers, body, .. } = &sent;
    let parsed: Value = serde_json::from_str(body).unwrap();
    let pretty = serde_json::to_string_pretty(&parsed).unwrap();
    for (received, cause, hint) in [
        (format!("{body}\n"), "newline", "a line break or a space at its end"),
        (format!("{body}\r\n"), "newline", "a line break or a space at its end"),
        (pretty, "re_serialized", "the same JSON in other bytes"),
        (body.replace("\"x\"", "\"y\""), "body_changed", "`x\",\"b\":1}}` was signed and `y\",\"b\":1}}` was received"),
        (String::new(), "body_changed", "from byte 0 on"),
    ] {
        let found = sent.cause(headers, &received).await;
        assert_eq!(found.0, cause, "{received}: {found:?}");
        assert!(found.1.contains(hint), "{found:?}");
    }
}

#[tokio::test]
async fn a_changed_time_is_named_with_how_far_it_is_off() {
    let sent = Sent::new().await;
    let mut headers = sent.headers.clone();
    let signed = sent.server.clock.now().as_secs();
    headers["webhook-timestamp"] = json!((signed + 90).to_string());
    let (cause, hint) = sent.cause(&headers, &sent.body).await;
    assert!(cause == "timestamp" && hint.ends_with("was signed, which is off by 90 s"), "{hint}");
    headers["webhook-timestamp"] = json!("2026-11-21T07:30:00Z");
    let (cause, hint) = sent.cause(&headers, &sent.body).await;
    assert!(cause == "timestamp" && hint.contains("no such time"), "{hint}");
    // The signature matches, but is too old.
    sent.server.clock.advance(Duration::from_secs(400));
    let request =
        json!({"destination": sent.destination, "headers": sent.headers, "body": sent.body, "tolerance_s": 300});
    let verified = sent.server.verified(request).await;
    assert_eq!((&verified["valid"], &verified["cause"]), (&json!(false), &json!("timestamp")));
    assert!(verified["hint"].as_str().unwrap().starts_with("it was signed 400 s ago, 100 s more"), "{verified}");
}

#[tokio::test]
async fn the_secret_of_another_destination_of_the_tenant_and_another_style_are_named() {
    let sent = Sent::new().await;
    let server = &sent.server;
    let id = sent.headers["webhook-id"].as_str().unwrap();
    let other = json!({"url": "https://other.example.com/", "name": "billing", "secret": NEW});
    let other = server.destination(other).await;
    let foreign = json!({"url": "https://foreign.example.com/", "tenant": "acme", "secret": THIRD});
    server.destination(foreign).await;
    let signed = |secret: &str| {
        let (secret, now): (Secret, _) = (secret.parse().unwrap(), server.clock.now().as_secs());
        let mut headers = sent.headers.clone();
        headers["webhook-signature"] = json!(secret.sign(id, now, sent.body.as_bytes()));
        headers
    };
    let (cause, hint) = sent.cause(&signed(NEW), &sent.body).await;
    assert_eq!(cause, "other_destination");
    assert!(hint.ends_with(&format!("another destination: billing ({other})")), "{hint}");
    let (cause, _) = sent.cause(&signed(THIRD), &sent.body).await;
    assert_eq!(cause, "", "the secrets of other tenants are not tried");
    // A secret was given, and the destination has another one.
    let given = json!({"destination": sent.destination, "secret": NEW, "headers": sent.headers, "body": sent.body});
    assert_eq!(server.verified(given).await["cause"], "present_secret");
    let path = format!("/v1/destinations/{}", sent.destination);
    server.patch(&path, json!({"signature": {"style": "timestamped"}})).await.expect(StatusCode::OK);
    let (cause, hint) = sent.cause(&sent.headers, &sent.body).await;
    assert_eq!(cause, "other_style");
    assert!(hint.contains("in the style `standard`, and was verified in the style `timestamped`"), "{hint}");
}
