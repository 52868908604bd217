//! API keys themselves: created, listed, and valid until they end.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use crate::harness::{FOREIGN, OWN, ROOT, Server};

#[tokio::test]
async fn a_key_is_shown_once_and_is_valid_until_it_expires_or_is_deleted() {
    let server = Server::with_keys().await;
    let expires_at = "2026-11-21T08:30:00.000Z";
    let request = json!({"name": "billing", "role": "read", "expires_at": expires_at});
    let reply = server.ask(ROOT, "POST", "/v1/keys", Some(&request)).await;
    assert_eq!(reply.header("cache-control"), "no-store");
    let mut created = reply.expect(StatusCode::CREATED);
    let secret = created.as_object_mut().unwrap().remove("secret").unwrap();
    let secret = secret.as_str().unwrap();
    assert!(secret.starts_with("wk_") && secret.len() == 46, "{secret}");
    assert_eq!(
        created,
        json!({
            "id": created["id"], "name": "billing", "role": "read", "tenants": null,
            "created_at": created["created_at"], "expires_at": expires_at, "created_by": "WEIR_API_KEYS",
            "created_by_key_id": null, "last_used_at": null,
        })
    );
    server.clock.advance(Duration::from_millis(1));
    let forever = server.key("read", Value::Null).await;
    let listed = server.ask(ROOT, "GET", "/v1/keys", None).await.expect(StatusCode::OK);
    assert_eq!((listed["data"].as_array().unwrap().len(), &listed["data"][1]), (2, &created));
    assert!(!listed.to_string().contains("wk_"));
    let first = server.ask(ROOT, "GET", "/v1/keys?limit=1", None).await.expect(StatusCode::OK);
    let next = format!("/v1/keys?limit=1&cursor={}", first["next_cursor"].as_str().unwrap());
    let second = server.ask(ROOT, "GET", &next, None).await.expect(StatusCode::OK);
    assert_eq!((&second["data"][0], &second["next_cursor"]), (&created, &Value::Null));

    server.ask(secret, "GET", "/v1/events", None).await.expect(StatusCode::OK);
    server.clock.advance(Duration::from_secs(3_600));
    server.ask(secret, "GET", "/v1/events", None).await.problem(401);
    server.ask(&forever, "GET", "/v1/events", None).await.expect(StatusCode::OK);
    let path = format!("/v1/keys/{}", listed["data"][0]["id"].as_str().unwrap());
    assert_eq!(server.ask(ROOT, "DELETE", &path, None).await.status, StatusCode::NO_CONTENT);
    server.ask(&forever, "GET", "/v1/events", None).await.problem(401);
    server.ask(ROOT, "DELETE", &path, None).await.problem(404);
}

#[tokio::test]
async fn a_bad_key_is_refused_with_every_error() {
    let server = Server::with_keys().await;
    for (request, pointers) in [
        (json!({}), &["/name", "/role"][..]),
        (json!({"name": "", "role": "root", "tenants": [], "colour": 1}), &["/name", "/role", "/tenants", "/colour"]),
        (
            json!({"name": "a\nb", "role": "read", "tenants": ["a b"], "expires_at": "soon"}),
            &["/name", "/tenants/0", "/expires_at"],
        ),
        (json!({"name": "a", "role": "read", "expires_at": "2026-11-21T07:00:00Z"}), &["/expires_at"]),
        // Names of other actors, which the activity log would show.
        (json!({"name": "weir", "role": "read"}), &["/name"]),
        (json!({"name": " Anonymous", "role": "read"}), &["/name"]),
        (json!({"name": "weir_api_keys", "role": "read"}), &["/name"]),
        (json!({"name": "KEY_01h2xcejqtf2nbrexx3vqjhp41", "role": "read"}), &["/name"]),
    ] {
        assert_eq!(server.ask(ROOT, "POST", "/v1/keys", Some(&request)).await.pointers(), pointers, "{request}");
    }
    let admin = server.key("admin", json!([OWN])).await;
    for tenants in [Value::Null, json!([OWN, FOREIGN])] {
        let request = json!({"name": "wider", "role": "ingest", "tenants": tenants});
        assert_eq!(server.ask(&admin, "POST", "/v1/keys", Some(&request)).await.pointers(), ["/tenants"]);
    }
}

#[tokio::test]
async fn without_configured_keys_a_stored_key_still_has_only_its_role() {
    let server = Server::start().await;
    let created = server.post("/v1/keys", json!({"name": "a", "role": "read"})).await.expect(StatusCode::CREATED);
    let secret = created["secret"].as_str().unwrap();
    server.ask(secret, "GET", "/v1/events", None).await.expect(StatusCode::OK);
    server.ask(secret, "POST", "/v1/events", Some(&json!({"type": "t", "data": 1}))).await.problem(403);
    server.ask("wk_wrong", "GET", "/v1/events", None).await.problem(401);
    server.get("/v1/events").await.expect(StatusCode::OK);
}

#[tokio::test]
async fn an_admin_of_a_tenant_cannot_use_up_the_keys_of_all() {
    let server = Server::with_keys().await;
    // This is the first of the hundred keys that it may have.
    let admin = server.key("admin", json!([OWN])).await;
    let request = json!({"name": "one more", "role": "read", "tenants": [OWN]});
    for _ in 1..100 {
        server.ask(&admin, "POST", "/v1/keys", Some(&request)).await.expect(StatusCode::CREATED);
    }
    let refused = server.ask(&admin, "POST", "/v1/keys", Some(&request)).await.problem(409);
    assert!(refused["detail"].as_str().unwrap().contains("100 keys"), "{refused}");
    server.key("admin", json!([FOREIGN])).await;
}

#[tokio::test]
async fn a_key_shows_who_made_it_and_when_it_was_last_used() {
    let server = Server::with_keys().await;
    let admin = server.key("admin", Value::Null).await;
    server.clock.advance(Duration::from_millis(1));
    let created = server.ask(&admin, "POST", "/v1/keys", Some(&json!({"name": "reader", "role": "read"}))).await;
    let reader = created.expect(StatusCode::CREATED)["secret"].as_str().unwrap().to_owned();
    let listed = async || server.ask(ROOT, "GET", "/v1/keys", None).await.expect(StatusCode::OK)["data"].clone();
    let of = |key: &Value| (key["created_by"].clone(), key["created_by_key_id"].clone(), key["last_used_at"].clone());
    let keys = listed().await;
    assert_eq!(of(&keys[0]), (json!("admin"), keys[1]["id"].clone(), Value::Null));
    assert_eq!(of(&keys[1]), (json!("WEIR_API_KEYS"), Value::Null, Value::Null));

    // A request is recorded later, by the loop that reads the keys; and then not for a minute.
    let recorded = async |wait: u64, key: &str| {
        server.clock.advance(Duration::from_secs(wait));
        server.ask(key, "GET", "/v1/me", None).await.expect(StatusCode::OK);
        server.keys.record_uses(&*server.store).await.unwrap();
        server.keys.refresh(&*server.store).await.unwrap();
        let keys = listed().await;
        [&keys[0], &keys[1]].map(|key| key["last_used_at"].as_str().map(|at| at[11..19].to_owned()))
    };
    let at = |clock: &str| Some(clock.to_owned());
    let by_admin = at("07:30:00");
    assert_eq!(recorded(5, &reader).await, [at("07:30:05"), by_admin.clone()]);
    assert_eq!(recorded(59, &reader).await, [at("07:30:05"), by_admin.clone()], "it is written once a minute");
    assert_eq!(recorded(2, &admin).await, [at("07:30:05"), at("07:31:06")], "59 s are no minute");
    assert_eq!(recorded(30, ROOT).await, [at("07:30:05"), at("07:31:06")]);
    assert_eq!(recorded(1, &reader).await, [at("07:31:37"), at("07:31:06")]);
    let login = server.ask(ROOT, "POST", "/v1/session", Some(&json!({"key": reader}))).await;
    assert!(login.status.is_success());
    let cookie = login.header("set-cookie").split(';').next().unwrap().to_owned();
    server.clock.advance(Duration::from_secs(90));
    let request = http::Request::get("/v1/me").header("cookie", cookie).body(axum::body::Body::empty()).unwrap();
    server.send(request).await.expect(StatusCode::OK);
    server.keys.record_uses(&*server.store).await.unwrap();
    assert_eq!(listed().await[0]["last_used_at"], "2026-11-21T07:33:07.001Z", "a session is a use of its key");
}
