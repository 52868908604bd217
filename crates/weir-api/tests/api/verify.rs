//! The verification of a received request.

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::{Clock as _, signing::Secret};

use crate::harness::Server;

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
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
    let valid = json!({"valid": true, "reason": null, "signed_at": "2026-11-21T07:30:00.000Z", "age_s": 0});
    let given = json!({"secret": OLD, "headers": of_old, "body": BODY});
    assert_eq!(server.verified(given).await, valid);
    let path = format!("/v1/destinations/{id}/rotate-secret");
    server.post(&path, json!({"secret": NEW})).await.expect(StatusCode::OK);
    for secret in [OLD, NEW] {
        let named = json!({"destination": id, "headers": server.signed(secret), "body": BODY});
        assert_eq!(server.verified(named).await, valid, "the current and the previous secret");
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
    assert_eq!(server.verified(github).await, json!({"valid": true, "reason": null, "signed_at": null, "age_s": null}));
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
