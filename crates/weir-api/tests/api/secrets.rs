//! Secrets: rotate with an overlap and show; and the signature styles.

use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use weir_core::{
    Clock as _,
    signing::{KeyKind, Signing},
};

use crate::harness::{Server, json_request};

const URL: &str = "https://example.com/hooks";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const PRIVATE: &str = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
const PUBLIC: &str = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
const PUBLIC_HEX: &str = "d52880e28f61caa4c2a48a82e55f4751a92289a78009ea9f6532270c16ce8abe";
const TEXT: &str = "It's a Secret to Everybody";

/// A destination and its path.
async fn destination(server: &Server, body: Value) -> (String, String) {
    let id = server.destination(body).await;
    let path = format!("/v1/destinations/{id}");
    (id, path)
}

async fn signing(server: &Server, id: &str) -> Signing {
    server.store.destination(id.parse().unwrap()).await.unwrap().unwrap().settings.signing.clone()
}

#[tokio::test]
async fn a_rotation_without_a_body_generates_a_secret_and_keeps_the_previous_one_for_a_day() {
    let server = Server::start().await;
    let (id, path) = destination(&server, json!({"url": URL, "secret": SECRET})).await;
    let before = server.get(&path).await.expect(StatusCode::OK);
    let reply = server.send(Request::post(format!("{path}/rotate-secret")).body(Body::empty()).unwrap()).await;
    let rotated = reply.expect(StatusCode::OK);
    assert_eq!(reply.header("cache-control"), "no-store");
    assert_eq!(rotated["previous_valid_until"], "2026-11-22T07:30:00.000Z");
    let secret = rotated["secret"].as_str().unwrap();
    assert!(secret.starts_with("whsec_") && secret != SECRET);
    assert_eq!(server.get(&format!("{path}/secret")).await.expect(StatusCode::OK), rotated);
    let after = server.get(&path).await;
    let text = String::from_utf8(after.body.to_vec()).unwrap();
    assert!(!text.contains("whsec_"), "{text}");
    assert!(after.expect(StatusCode::OK)["updated_at"].as_str() > before["updated_at"].as_str());
    let edits = server.queue.edited();
    assert!(
        matches!(&edits[..], [edit] if edit.destination_id.to_string() == id && !edit.terms.suspended),
        "{edits:?}"
    );

    let kept = signing(&server, &id).await;
    assert_eq!(kept.previous_at(server.clock.now()).unwrap().secret.reveal(), SECRET);
    server.clock.advance(Duration::from_secs(86_400));
    assert_eq!(kept.previous_at(server.clock.now()), None);
    let shown = server.get(&format!("{path}/secret")).await.expect(StatusCode::OK);
    assert_eq!(
        shown,
        json!({"secret": secret, "public_key": null, "public_key_hex": null, "previous_valid_until": null})
    );
}

#[tokio::test]
async fn a_rotation_uses_the_given_secret_and_overlap() {
    let server = Server::start().await;
    let (id, path) = destination(&server, json!({"url": URL, "secret": SECRET})).await;
    let rotate = async |body: Value| server.post(&format!("{path}/rotate-secret"), body).await.expect(StatusCode::OK);
    let rotated = rotate(json!({"overlap_s": 60, "secret": OTHER})).await;
    assert_eq!(
        rotated,
        json!({"secret": OTHER, "public_key": null, "public_key_hex": null, "previous_valid_until": "2026-11-21T07:31:00.000Z"})
    );
    // After the overlap the next one.
    server.clock.advance(Duration::from_secs(60));
    rotate(json!({"overlap_s": null, "secret": null, "force": null})).await;
    server.clock.advance(Duration::from_secs(86_400));
    rotate(json!({"secret": OTHER})).await;
    server.clock.advance(Duration::from_secs(86_400));
    rotate(Value::Null).await;
    assert_eq!(signing(&server, &id).await.previous.unwrap().secret.reveal(), OTHER);
    server.clock.advance(Duration::from_secs(86_400));
    let at_once = rotate(json!({"overlap_s": 0, "secret": SECRET})).await;
    assert_eq!(at_once["previous_valid_until"], Value::Null);
    assert_eq!(signing(&server, &id).await.previous, None);
}

#[tokio::test]
async fn a_second_rotation_within_the_overlap_needs_force() {
    let server = Server::start().await;
    let (id, path) = destination(&server, json!({"url": URL, "secret": SECRET})).await;
    let rotate = async |body: Value| server.post(&format!("{path}/rotate-secret"), body).await;
    rotate(json!({"secret": OTHER, "force": true})).await.expect(StatusCode::OK);
    let kept = signing(&server, &id).await;
    for body in [json!({}), Value::Null, json!({"force": false}), json!({"overlap_s": 0}), json!({"secret": SECRET})] {
        let refused = rotate(body.clone()).await.problem(409);
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains("`force`") && detail.contains("2026-11-22T07:30:00.000Z"), "{body}: {detail}");
    }
    assert_eq!(signing(&server, &id).await, kept, "receivers with the old secret are still served");
    assert_eq!(rotate(json!({"force": "yes"})).await.pointers(), ["/force"]);
    rotate(json!({"force": true})).await.expect(StatusCode::OK);
    assert_eq!(signing(&server, &id).await.previous.unwrap().secret.reveal(), OTHER);
}

#[tokio::test]
async fn a_rotation_honours_if_match_and_answers_a_repetition_as_at_first() {
    let server = Server::start().await;
    let (id, path) = destination(&server, json!({"url": URL, "secret": SECRET})).await;
    let version = server.get(&path).await.header("etag").to_owned();
    let rotate = async |headers: &[(&str, &str)], body: Value| {
        let mut request = json_request("POST", &format!("{path}/rotate-secret"), body);
        for (name, value) in headers {
            request.headers_mut().insert(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        server.send(request).await
    };
    rotate(&[("if-match", "\"1\"")], json!({})).await.problem(412);
    assert_eq!(signing(&server, &id).await.previous, None);
    let with_key = [("if-match", &*version), ("idempotency-key", "rotation 1")];
    let first = rotate(&with_key, json!({"overlap_s": 60})).await;
    let rotated = first.expect(StatusCode::OK);
    assert_eq!(first.header("etag"), server.get(&path).await.header("etag"));
    assert_ne!(first.header("etag"), version);
    let kept = signing(&server, &id).await;
    // The version has changed, and the overlap runs: it is the same request, so it gets the same answer.
    let again = rotate(&with_key, json!({"overlap_s": 60})).await;
    assert_eq!((again.expect(StatusCode::OK), again.header("etag")), (rotated, first.header("etag")));
    assert_eq!((again.header("idempotency-replayed"), again.header("cache-control")), ("true", "no-store"));
    assert_eq!(rotate(&with_key, json!({"overlap_s": 61})).await.pointers(), ["/idempotency-key"]);
    assert_eq!(signing(&server, &id).await, kept);
    // A later secret is not shown to those who repeat the request.
    rotate(&[], json!({"force": true})).await.expect(StatusCode::OK);
    rotate(&with_key, json!({"overlap_s": 60})).await.problem(409);
}

#[tokio::test]
async fn two_clicks_at_one_time_rotate_once() {
    let server = Server::start().await;
    let (id, path) = destination(&server, json!({"url": URL, "secret": SECRET})).await;
    let path = format!("{path}/rotate-secret");
    let (one, two) = tokio::join!(server.post(&path, "{}"), server.post(&path, "{}"));
    let mut statuses = [one.status.as_u16(), two.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
    assert_eq!(signing(&server, &id).await.previous.unwrap().secret.reveal(), SECRET);
}

#[tokio::test]
async fn an_invalid_rotation_reports_its_errors_and_changes_nothing() {
    let server = Server::start().await;
    let (id, path) = destination(&server, json!({"url": URL, "secret": SECRET})).await;
    let before = signing(&server, &id).await;
    let path = format!("{path}/rotate-secret");
    for (body, pointers) in [
        (json!({"overlap_s": -1}), vec!["/overlap_s"]),
        (json!({"overlap_s": 2_592_001}), vec!["/overlap_s"]),
        (json!({"overlap_s": "1d", "secret": 7, "until": 1}), vec!["/overlap_s", "/secret", "/until"]),
        (json!({"secret": "whsec_c2hvcnQ="}), vec!["/secret"]),
        (json!({"secret": TEXT}), vec!["/secret"]),
        (json!({"secret": PUBLIC}), vec!["/secret"]),
        (json!({"secret": SECRET}), vec!["/secret"]),
        (json!([]), vec![""]),
    ] {
        let reply = server.post(&path, &body).await;
        assert_eq!(reply.pointers(), pointers, "{body}");
        let text = String::from_utf8(reply.body.to_vec()).unwrap();
        assert!(!text.contains(&SECRET[6..]) && !text.contains("c2hvcnQ"), "a secret is shown: {text}");
    }
    server.post(&path, "{").await.problem(400);
    for (origin, status) in [("https://example.com", 403), ("http://localhost", 415)] {
        let page = Request::post(&path).header("origin", origin).body(Body::empty()).unwrap();
        server.send(page).await.problem(status);
    }
    server.post("/v1/destinations/dst_01h2xcejqtf2nbrexx3vqjhp41/rotate-secret", "{}").await.problem(404);
    assert_eq!(signing(&server, &id).await, before);
    assert!(server.queue.edited().is_empty());
}

#[tokio::test]
async fn a_private_key_shows_its_public_key_and_is_rotated_to_another_private_key() {
    let server = Server::start().await;
    let (id, path) = destination(&server, json!({"url": URL, "secret": PRIVATE})).await;
    let shown = server.get(&format!("{path}/secret")).await.expect(StatusCode::OK);
    assert_eq!(
        shown,
        json!({"secret": PRIVATE, "public_key": PUBLIC, "public_key_hex": PUBLIC_HEX, "previous_valid_until": null})
    );
    let rotated = server.post(&format!("{path}/rotate-secret"), "{}").await.expect(StatusCode::OK);
    assert!(rotated["public_key"].as_str().unwrap().starts_with("whpk_") && rotated["public_key"] != PUBLIC);
    assert_eq!(signing(&server, &id).await.secret.kind(), KeyKind::Ed25519);
    // The other styles support only shared secrets.
    server.patch(&path, json!({"signature": {"style": "prefixed"}})).await.problem(409);
    let styled = json!({"secret": SECRET, "signature": {"style": "prefixed"}});
    server.patch(&path, styled).await.expect(StatusCode::OK);
    assert_eq!(server.post(&format!("{path}/rotate-secret"), json!({"secret": PRIVATE})).await.pointers(), ["/secret"]);
}

#[tokio::test]
async fn a_patched_secret_replaces_the_old_one_at_once_and_any_other_patch_keeps_the_overlap() {
    let server = Server::start().await;
    let (id, path) = destination(&server, json!({"url": URL, "secret": SECRET})).await;
    server.post(&format!("{path}/rotate-secret"), json!({"secret": OTHER})).await.expect(StatusCode::OK);
    for patch in [json!({"name": "x"}), json!({"secret": OTHER}), json!({"signature": {"style": "timestamped"}})] {
        server.patch(&path, patch).await.expect(StatusCode::OK);
        assert_eq!(signing(&server, &id).await.previous.unwrap().secret.reveal(), SECRET);
    }
    server.patch(&path, json!({"secret": SECRET})).await.expect(StatusCode::OK);
    let replaced = signing(&server, &id).await;
    assert_eq!((replaced.secret.reveal().as_str(), replaced.previous), (SECRET, None));
}

#[tokio::test]
async fn a_style_is_chosen_patched_member_by_member_and_shown() {
    let server = Server::start().await;
    let given = json!({"style": "prefixed", "header": "X-Hub-Signature-256", "timestamp_header": "webhook-timestamp"});
    let (_, path) = destination(&server, json!({"url": URL, "signature": given})).await;
    let kept = json!({"style": "prefixed", "header": "x-hub-signature-256", "timestamp_header": "webhook-timestamp"});
    assert_eq!(server.get(&path).await.expect(StatusCode::OK)["signature"], kept);
    for (patch, shown) in [
        (json!({}), kept.clone()),
        (kept.clone(), kept.clone()),
        (
            json!({"timestamp_header": null}),
            json!({"style": "prefixed", "header": "x-hub-signature-256", "timestamp_header": null}),
        ),
        (json!({"style": "timestamped"}), json!({"style": "timestamped", "header": "webhook-signature"})),
        (json!({"header": "x-s"}), json!({"style": "timestamped", "header": "x-s"})),
        (
            json!({"style": "prefixed"}),
            json!({"style": "prefixed", "header": "webhook-signature", "timestamp_header": null}),
        ),
        (json!({"style": "standard"}), json!({"style": "standard"})),
        (kept.clone(), kept),
        (Value::Null, json!({"style": "standard"})),
    ] {
        let after = server.patch(&path, json!({"signature": patch})).await.expect(StatusCode::OK);
        assert_eq!(after["signature"], shown, "{patch}");
    }
}

#[tokio::test]
async fn a_secret_is_replaced_only_by_a_key_that_may_see_secrets() {
    let server = Server::with_keys().await;
    let operate = server.key("operate", Value::Null).await;
    let admin = server.key("admin", Value::Null).await;
    let named = "/v1/destinations/by-name/default/acme";
    let settings = |secret: &str| json!({"url": URL, "secret": secret});
    // A new destination has the secret that its creator gives it.
    let created = server.ask(&operate, "PUT", named, Some(&settings(SECRET))).await.expect(StatusCode::CREATED);
    let id = created["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/destinations/{id}");
    for (method, path, body) in [
        ("PATCH", &*path, json!({"secret": OTHER})),
        ("PUT", named, settings(OTHER)),
        ("PUT", named, settings(PRIVATE)),
    ] {
        let refused = server.ask(&operate, method, path, Some(&body)).await;
        let detail = refused.problem(403)["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("`secret`") && detail.contains("`admin`"), "{detail}");
    }
    assert_eq!(signing(&server, &id).await.secret.reveal(), SECRET);
    // Tools that declare what should be there give the same secret again and again.
    server.ask(&operate, "PUT", named, Some(&settings(SECRET))).await.expect(StatusCode::OK);
    server.ask(&operate, "PATCH", &path, Some(&json!({"name": "Acme"}))).await.expect(StatusCode::OK);

    // The same secret again does not end the overlap of a rotation.
    let rotated = server.ask(&admin, "POST", &format!("{path}/rotate-secret"), None).await.expect(StatusCode::OK);
    let shown = server.ask(&operate, "GET", &path, None).await.expect(StatusCode::OK);
    assert_eq!(shown["previous_secret_valid_until"], rotated["previous_valid_until"]);
    let again = json!({"secret": rotated["secret"]});
    let kept = server.ask(&operate, "PATCH", &path, Some(&again)).await.expect(StatusCode::OK);
    assert_eq!(kept["previous_secret_valid_until"], rotated["previous_valid_until"]);
    let replaced = server.ask(&admin, "PATCH", &path, Some(&json!({"secret": OTHER}))).await.expect(StatusCode::OK);
    assert_eq!(replaced["previous_secret_valid_until"], Value::Null);
}

#[tokio::test]
async fn a_generated_secret_is_a_text_where_the_text_is_the_key() {
    let server = Server::start().await;
    for (style, is_expected) in [
        (
            "github",
            (|secret| secret.len() == 64 && secret.bytes().all(|byte| byte.is_ascii_hexdigit())) as fn(&str) -> bool,
        ),
        ("stripe", |secret| secret.len() == 64),
        ("svix", |secret| secret.starts_with("whsec_")),
        ("prefixed", |secret| secret.starts_with("whsec_")),
        ("discord", |secret| secret.starts_with("whsk_")),
    ] {
        let (_, path) = destination(&server, json!({"url": URL, "signature": {"style": style}})).await;
        let rotate = format!("{path}/rotate-secret");
        for path in [format!("{path}/secret"), rotate] {
            let shown = match path.ends_with("/secret") {
                true => server.get(&path).await,
                false => server.post(&path, "{}").await,
            };
            let shown = shown.expect(StatusCode::OK);
            assert!(is_expected(shown["secret"].as_str().unwrap()), "{style}: {shown}");
            assert_eq!(shown["public_key_hex"].is_string(), style == "discord");
        }
        let view = server.get(&path).await.expect(StatusCode::OK);
        assert_eq!(view["public_key_hex"].is_string(), style == "discord", "who may not see secrets sees this key");
    }
}

#[tokio::test]
async fn an_edit_of_the_style_keeps_a_secret_that_fits_and_asks_for_one_that_does_not() {
    let server = Server::start().await;
    let (id, path) = destination(&server, json!({"url": URL, "secret": SECRET})).await;
    let style = |name: &str| json!({"signature": {"style": name}});
    // The text of the secret, with its prefix, is the key now.
    server.patch(&path, style("stripe")).await.expect(StatusCode::OK);
    assert_eq!(signing(&server, &id).await.secret.reveal(), SECRET);
    server.patch(&path, json!({"secret": TEXT})).await.expect(StatusCode::OK);
    for name in ["standard", "svix", "discord"] {
        let refused = server.patch(&path, style(name)).await;
        let text = String::from_utf8(refused.body.to_vec()).unwrap();
        refused.problem(409);
        assert!(text.contains("`secret`") && !text.contains(TEXT), "{text}");
    }
    assert_eq!(signing(&server, &id).await.secret.reveal(), TEXT);
    for (name, prefix) in [("discord", "whsk_"), ("standard", "whsk_"), ("svix", "whsec_")] {
        let patch = json!({"signature": {"style": name}, "secret": null});
        server.patch(&path, patch).await.expect(StatusCode::OK);
        let secret = signing(&server, &id).await.secret.reveal();
        assert!(secret.starts_with(prefix), "{name}: a new secret, of the same kind if both kinds fit");
    }
    // A null without a style would replace a secret that receivers have.
    assert_eq!(server.patch(&path, json!({"secret": null})).await.pointers(), ["/secret"]);
}

#[tokio::test]
async fn a_header_for_one_signature_ends_the_overlap_and_has_none() {
    let server = Server::start().await;
    let (id, path) = destination(&server, json!({"url": URL, "secret": SECRET})).await;
    server.post(&format!("{path}/rotate-secret"), "{}").await.expect(StatusCode::OK);
    let edited = server.patch(&path, json!({"signature": {"style": "github"}})).await.expect(StatusCode::OK);
    assert_eq!(edited["previous_secret_valid_until"], Value::Null);
    assert_eq!(edited["signature_format"]["separator"], Value::Null);
    let rotate = format!("{path}/rotate-secret");
    let refused = server.post(&rotate, json!({"overlap_s": 60})).await.problem(409);
    assert!(refused["detail"].as_str().unwrap().contains("`overlap_s`"), "{refused}");
    for body in [json!({}), json!({"overlap_s": 0}), json!({"secret": TEXT})] {
        let rotated = server.post(&rotate, &body).await.expect(StatusCode::OK);
        assert_eq!(rotated["previous_valid_until"], Value::Null, "{body}");
    }
    let kept = signing(&server, &id).await;
    assert_eq!((kept.secret.reveal().as_str(), kept.previous), (TEXT, None));
}

#[tokio::test]
async fn own_secrets_have_16_to_128_bytes_and_padding_or_none() {
    let server = Server::start().await;
    let sixteen = "whsec_BwcHBwcHBwcHBwcHBwcHBw";
    let (long, longer) = ("x".repeat(128), "x".repeat(129));
    for (style, secret, pointers) in [
        ("standard", sixteen, &[][..]),
        ("standard", &format!("{sixteen}=="), &[]),
        ("standard", "whsec_BwcHBwcHBwcHBwcHBwcH", &["/secret"]),
        ("standard", TEXT, &["/secret"]),
        ("github", "sixteen letters!", &[]),
        ("github", "fifteen letters", &["/secret"]),
        ("github", &long, &[]),
        ("github", &longer, &["/secret"]),
        ("github", " a text with spaces at its ends ", &["/secret"]),
        ("github", PRIVATE, &["/signature"]),
        ("discord", PRIVATE, &[]),
        ("discord", SECRET, &["/signature"]),
    ] {
        let body = json!({"url": URL, "secret": secret, "signature": {"style": style}});
        let reply = server.post("/v1/destinations", &body).await;
        match pointers {
            [] => assert_eq!(reply.expect(StatusCode::CREATED)["secret"], secret),
            pointers => assert_eq!(reply.pointers(), *pointers, "{body}"),
        }
    }
}

#[tokio::test]
async fn a_preset_and_a_style_of_ones_own_are_shown_with_what_they_mean() {
    let server = Server::start().await;
    let (_, path) = destination(&server, json!({"url": URL, "signature": {"style": "slack", "header": "X-Own"}})).await;
    let shown = server.get(&path).await.expect(StatusCode::OK);
    let signature = json!({"style": "slack", "header": "x-own", "timestamp_header": "x-slack-request-timestamp"});
    assert_eq!(shown["signature"], signature);
    assert_eq!(
        shown["signature_format"],
        json!({
            "signed": "v0:{timestamp}:{body}", "value": "v0={signature}", "separator": null, "encoding": "hex",
            "algorithm": "hmac-sha256", "key": "text", "timestamp_format": "unix", "header": "x-own",
            "timestamp_header": "x-slack-request-timestamp", "id_header": null,
        })
    );
    let custom = json!({
        "style": "custom", "signed": "{timestamp}{url}{body}", "value": "t={timestamp};s={signature}", "separator": ";",
        "encoding": "base64", "algorithm": "hmac-sha512", "key": "decoded", "timestamp_format": "unix_ms",
        "header": "x-sig", "timestamp_header": null, "id_header": null,
    });
    let edited = server.patch(&path, json!({"signature": custom, "secret": SECRET})).await.expect(StatusCode::OK);
    assert_eq!(edited["signature"], custom);
    // What is shown can be sent back, and one member alone can be changed.
    let again = server.patch(&path, json!({"signature": edited["signature"]})).await.expect(StatusCode::OK);
    assert_eq!(again["signature"], custom);
    let one = server.patch(&path, json!({"signature": {"encoding": "hex"}})).await.expect(StatusCode::OK);
    assert_eq!((&one["signature"]["encoding"], &one["signature"]["separator"]), (&json!("hex"), &json!(";")));
    assert_eq!(server.patch(&path, json!({"signature": {"signed": "{id}"}})).await.pointers(), ["/signature/signed"]);
    let standard = server.patch(&path, json!({"signature": null})).await.expect(StatusCode::OK);
    assert_eq!(standard["signature"], json!({"style": "standard"}));
}
