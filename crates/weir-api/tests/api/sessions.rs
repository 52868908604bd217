//! Logins, the cookie of a session, and what a page of another site can make a browser send.

use std::{net::IpAddr, time::Duration};

use axum::body::Body;
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use weir_api::{PublicUrl, RemoteAddress, SettingKeys, TrustedProxies};

use crate::harness::{Options, Reply, Server, json_request};

const KEY: &str = "sesame";
const OWN_PAGE: (&str, &str) = ("sec-fetch-site", "same-origin");
const OTHER_PAGE: (&str, &str) = ("sec-fetch-site", "cross-site");

impl Server {
    async fn with_login(public_url: Option<&str>) -> Self {
        let public_url = public_url.map(|url| url.parse::<PublicUrl>().unwrap());
        Self::start_with(Options { api_keys: SettingKeys::new([KEY]), public_url, ..Options::default() }).await
    }

    async fn log_in(&self, key: &str) -> Reply {
        self.send(json_request("POST", "/v1/session", json!({"key": key}))).await
    }

    async fn log_in_from(&self, address: &str, key: &str) -> Reply {
        let mut request = json_request("POST", "/v1/session", json!({"key": key}));
        request.extensions_mut().insert(RemoteAddress(address.parse::<IpAddr>().unwrap()));
        self.send(request).await
    }

    /// Sends a request with this cookie and these headers.
    async fn browse(&self, method: &str, path: &str, cookie: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = Request::builder().method(method).uri(path).header(header::COOKIE, cookie);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::empty()).unwrap()).await
    }

    /// Creates a key and returns its id and secret.
    async fn create_key(&self, cookie: &str, request: Value) -> (String, String) {
        let mut request = json_request("POST", "/v1/keys", request);
        request.headers_mut().insert(header::COOKIE, cookie.parse().unwrap());
        request.headers_mut().insert("sec-fetch-site", "same-origin".parse().unwrap());
        let created = self.send(request).await.expect(StatusCode::CREATED);
        let text = |field: &str| created[field].as_str().unwrap().to_owned();
        (text("id"), text("secret"))
    }
}

/// Name and value of the cookie that a reply sets.
fn cookie(reply: &Reply) -> String {
    reply.header("set-cookie").split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_login_sets_a_cookie_that_replaces_the_key() {
    let server = Server::with_login(None).await;
    let reply = server.log_in(KEY).await;
    let me = reply.expect(StatusCode::CREATED);
    assert_eq!(
        me,
        json!({
            "name": null, "role": "admin", "tenants": null, "session_expires_at": "2026-11-21T19:30:00.000Z",
            "keys_required": true, "version": env!("CARGO_PKG_VERSION"),
        })
    );
    assert_eq!(reply.header("cache-control"), "no-store");
    let attributes = reply.header("set-cookie").split_once(';').unwrap().1;
    assert_eq!(attributes, " Path=/; Max-Age=43200; HttpOnly; SameSite=Lax");
    let cookie = cookie(&reply);
    assert!(cookie.starts_with("weir_session=") && !cookie.contains(KEY), "{cookie}");
    assert_eq!(server.browse("GET", "/v1/me", &cookie, &[]).await.expect(StatusCode::OK), me);
    server.browse("GET", "/v1/destinations", &cookie, &[OTHER_PAGE]).await.expect(StatusCode::OK);
    server.clock.advance(Duration::from_secs(12 * 3_600));
    server.browse("GET", "/v1/me", &cookie, &[]).await.problem(401);
}

#[tokio::test]
async fn me_names_the_key_with_its_role_and_tenants() {
    let server = Server::with_login(None).await;
    let root = cookie(&server.log_in(KEY).await);
    let request =
        json!({"name": "billing", "role": "ingest", "tenants": ["acme"], "expires_at": "2026-11-21T08:30:00Z"});
    let (_, secret) = server.create_key(&root, request).await;
    let by_key = Request::get("/v1/me").header(header::AUTHORIZATION, format!("Bearer {secret}"));
    let me = server.send(by_key.body(Body::empty()).unwrap()).await.expect(StatusCode::OK);
    let expected = json!({
        "name": "billing", "role": "ingest", "tenants": ["acme"], "session_expires_at": null,
        "keys_required": true, "version": env!("CARGO_PKG_VERSION"),
    });
    assert_eq!(me, expected);
    // The session ends with the key.
    let reply = server.log_in(&secret).await;
    assert_eq!(reply.expect(StatusCode::CREATED)["session_expires_at"], "2026-11-21T08:30:00.000Z");
    assert!(reply.header("set-cookie").contains("Max-Age=3600;"));
}

#[tokio::test]
async fn without_configured_keys_everybody_is_an_admin_and_can_still_log_in_with_a_stored_key() {
    let server = Server::start().await;
    let anonymous = server.get("/v1/me").await.expect(StatusCode::OK);
    assert_eq!(
        anonymous,
        json!({
            "name": null, "role": "admin", "tenants": null, "session_expires_at": null, "keys_required": false,
            "version": env!("CARGO_PKG_VERSION"),
        })
    );
    server.log_in("anything").await.problem(401);
    let key = server.post("/v1/keys", json!({"name": "viewer", "role": "read"})).await.expect(StatusCode::CREATED);
    let reply = server.log_in(key["secret"].as_str().unwrap()).await;
    assert_eq!(reply.expect(StatusCode::CREATED)["role"], "read");
    server.browse("POST", "/v1/replays", &cookie(&reply), &[OWN_PAGE]).await.problem(403);
}

#[tokio::test]
async fn a_logout_removes_the_cookie_also_when_it_is_no_longer_valid() {
    let server = Server::with_login(Some("http://weir.lan/hooks")).await;
    let own = cookie(&server.log_in(KEY).await);
    for cookie in [&*own, "weir_session=expired", ""] {
        let reply = server.browse("DELETE", "/v1/session", cookie, &[OWN_PAGE]).await;
        assert_eq!(reply.status, StatusCode::NO_CONTENT);
        assert_eq!(reply.header("set-cookie"), "weir_session=; Path=/hooks; Max-Age=0; HttpOnly; SameSite=Lax");
    }
}

#[tokio::test]
async fn under_https_only_a_cookie_of_this_host_is_set_and_accepted() {
    let server = Server::with_login(Some("https://ops.example.com/weir")).await;
    let reply = server.log_in(KEY).await;
    let (name, token) = reply.header("set-cookie").split_once('=').unwrap();
    assert_eq!(name, "__Host-weir_session");
    assert!(token.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"), "{token}");
    let token = token.split(';').next().unwrap();
    server.browse("GET", "/v1/me", &format!("__Host-weir_session={token}"), &[]).await.expect(StatusCode::OK);
    // Another host of the site, or a page over plain http, could have set a cookie without the prefix.
    server.browse("GET", "/v1/me", &format!("weir_session={token}"), &[]).await.problem(401);
}

#[tokio::test]
async fn with_the_cookie_only_pages_of_this_server_change_anything() {
    let server = Server::with_login(None).await;
    let cookie = cookie(&server.log_in(KEY).await);
    let bearer = format!("Bearer {KEY}");
    for (headers, status) in [
        (&[][..], 403),
        (&[OTHER_PAGE], 403),
        (&[("sec-fetch-site", "same-site")], 403),
        (&[("origin", "http://evil.test")], 403),
        (&[("origin", "null")], 403),
        (&[OWN_PAGE], 404),
        (&[("origin", "http://localhost")], 404),
        // A request with a key is accepted from every page, because a browser never adds a key by itself.
        (&[("authorization", &*bearer), OTHER_PAGE], 404),
    ] {
        let path = "/v1/keys/key_01h2xcejqtf2nbrexx3vqjhp41";
        let problem = server.browse("DELETE", path, &cookie, headers).await.problem(status);
        let is_cross_site = problem["type"] == "/docs#problem-cross-site";
        assert_eq!(is_cross_site, status == 403, "{headers:?}: {problem}");
    }
    // The page is checked before the path, so an unknown path gets the same refusal.
    server.browse("POST", "/v1/nothing", &cookie, &[OTHER_PAGE]).await.problem(403);
}

#[tokio::test]
async fn another_site_can_neither_log_a_browser_in_nor_out_nor_use_a_server_without_keys() {
    let server = Server::with_login(None).await;
    for elsewhere in [OTHER_PAGE, ("origin", "http://evil.test")] {
        let mut login = json_request("POST", "/v1/session", json!({"key": KEY}));
        login.headers_mut().insert(elsewhere.0, elsewhere.1.parse().unwrap());
        let reply = server.send(login).await;
        reply.problem(403);
        assert_eq!(reply.header("set-cookie"), "");
        server.browse("DELETE", "/v1/session", "", &[elsewhere]).await.problem(403);
    }
    let open = Server::start().await;
    let id = open.destination(json!({"url": "https://example.com/"})).await;
    let path = format!("/v1/destinations/{id}");
    open.browse("DELETE", &path, "", &[OTHER_PAGE]).await.problem(403);
    open.browse("DELETE", &path, "", &[("origin", "http://evil.test")]).await.problem(403);
    assert_eq!(open.browse("DELETE", &path, "", &[]).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_session_ends_at_once_when_its_key_is_deleted() {
    let server = Server::with_login(None).await;
    let root = cookie(&server.log_in(KEY).await);
    let (id, secret) = server.create_key(&root, json!({"name": "a", "role": "operate"})).await;
    let session = cookie(&server.log_in(&secret).await);
    server.browse("GET", "/v1/events", &session, &[]).await.expect(StatusCode::OK);
    let deleted = server.browse("DELETE", &format!("/v1/keys/{id}"), &root, &[OWN_PAGE]).await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT);
    server.browse("GET", "/v1/events", &session, &[]).await.problem(401);
    server.log_in(&secret).await.problem(401);
}

#[tokio::test]
async fn a_cookie_that_the_server_has_not_signed_is_never_accepted() {
    let (server, other) = (Server::with_login(None).await, Server::with_login(None).await);
    let root = cookie(&server.log_in(KEY).await);
    let (_, secret) = server.create_key(&root, json!({"name": "a", "role": "admin"})).await;
    let session = cookie(&server.log_in(&secret).await);
    // Refused: a token with a changed byte, a part of a token, a token at another server, and a token that an attacker
    // chose.
    let changed = |at: usize| {
        let mut text = session.clone().into_bytes();
        text[at] = if text[at] == b'A' { b'B' } else { b'A' };
        String::from_utf8(text).unwrap()
    };
    let start = "weir_session=".len();
    for forged in [changed(start), changed(start + 26), changed(start + 40), session[..60].to_owned()] {
        server.browse("GET", "/v1/me", &forged, &[]).await.problem(401);
    }
    // The other server has the same key in its settings, and another secret of sessions.
    other.browse("GET", "/v1/me", &root, &[]).await.problem(401);
    other.browse("GET", "/v1/me", &session, &[]).await.problem(401);
    server.browse("GET", "/v1/me", "weir_session=chosen-by-an-attacker", &[]).await.problem(401);
    // Each login answers with a new token, whatever cookie the browser has sent.
    let mut login = json_request("POST", "/v1/session", json!({"key": KEY}));
    login.headers_mut().insert(header::COOKIE, session.parse().unwrap());
    let fresh = cookie(&server.send(login).await);
    assert_ne!(fresh, session);
    assert_eq!(server.browse("GET", "/v1/me", &fresh, &[]).await.expect(StatusCode::OK)["name"], Value::Null);
}

/// A request with this key, through a proxy if `forwarded` is given.
fn with_key(address: &str, forwarded: Option<&str>, key: &str) -> Request<Body> {
    let mut request = Request::get("/v1/me").header(header::AUTHORIZATION, format!("Bearer {key}"));
    if let Some(forwarded) = forwarded {
        request = request.header("x-forwarded-for", forwarded);
    }
    let mut request = request.body(Body::empty()).unwrap();
    request.extensions_mut().insert(RemoteAddress(address.parse().unwrap()));
    request
}

#[tokio::test]
async fn wrong_keys_are_throttled_for_each_address_and_a_right_one_is_always_accepted() {
    let server = Server::with_login(None).await;
    for attempt in 0..10 {
        // At the login and in requests alike.
        if attempt % 2 == 0 {
            server.log_in_from("192.0.2.1", &format!("{attempt} guessed")).await.problem(401);
        } else {
            server.send(with_key("192.0.2.1", None, &format!("{attempt} guessed"))).await.problem(401);
        }
        server.clock.advance(Duration::from_millis(500));
    }
    let refused = server.log_in_from("192.0.2.1", "another guess").await;
    assert!(refused.problem(429)["detail"].as_str().unwrap().contains("not valid"));
    assert_eq!((refused.header("retry-after"), refused.header("set-cookie")), ("55", ""));
    let refused = server.send(with_key("192.0.2.1", None, "one more guess")).await;
    refused.problem(429);
    assert_eq!(refused.header("retry-after"), "55");
    // People with the right key behind the same address, and others with a wrong one.
    server.log_in_from("192.0.2.1", KEY).await.expect(StatusCode::CREATED);
    server.send(with_key("192.0.2.1", None, KEY)).await.expect(StatusCode::OK);
    server.log_in_from("192.0.2.2", "yet another guess").await.problem(401);
    server.clock.advance(Duration::from_secs(55));
    server.log_in_from("192.0.2.1", "guessed later").await.problem(401);
}

#[tokio::test]
async fn keys_that_begin_alike_are_throttled_from_all_addresses() {
    let server = Server::with_login(None).await;
    let statuses = (0..12).map(|n| {
        let request = with_key(&format!("192.0.2.{n}"), None, &format!("wk_8qWz1 guess {n}"));
        async { server.send(request).await.status.as_u16() }
    });
    let mut seen = Vec::new();
    for status in statuses {
        seen.push(status.await);
    }
    assert_eq!(seen, [[401; 10].as_slice(), &[429; 2]].concat());
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_are_told_apart_and_nobody_chooses_an_address() {
    let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
    let server = Server::start_with(Options { api_keys: SettingKeys::new([KEY]), proxies, ..Options::default() }).await;
    let guess = |n: usize, address: &str, forwarded: &str| with_key(address, Some(forwarded), &format!("{n} guessed"));
    for n in 0..10 {
        server.send(guess(n, "10.0.0.1", "192.0.2.1")).await.problem(401);
    }
    server.send(guess(10, "10.0.0.1", "192.0.2.1")).await.problem(429);
    // It writes another address before its own, which the proxy adds.
    server.send(guess(11, "10.0.0.1", "203.0.113.9, 192.0.2.1")).await.problem(429);
    server.send(guess(12, "10.0.0.1", "192.0.2.2")).await.problem(401);
    // Who comes without the proxy has the address of its connection, whatever it writes.
    for n in 13..23 {
        server.send(guess(n, "198.51.100.1", &format!("192.0.2.{n}"))).await.problem(401);
    }
    server.send(guess(23, "198.51.100.1", "192.0.2.99")).await.problem(429);
}

#[tokio::test]
async fn a_login_needs_a_key_as_text() {
    let server = Server::with_login(None).await;
    for (body, pointers) in
        [(json!({}), ["/key"]), (json!({"key": 7}), ["/key"]), (json!({"key": KEY, "remember": true}), ["/remember"])]
    {
        assert_eq!(server.post("/v1/session", body).await.pointers(), pointers);
    }
    server.log_in("").await.problem(401);
}

#[tokio::test]
async fn a_login_has_a_small_body_so_that_nobody_fills_the_memory_without_a_key() {
    let server = Server::with_login(None).await;
    server.log_in(&"k".repeat(4_000)).await.problem(401);
    server.log_in(&"k".repeat(5_000)).await.problem(413);
    // Whatever such bodies take, they take nothing from others.
    let endless = Body::from_stream(futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
    let stalled = Request::post("/v1/session").header(header::CONTENT_TYPE, "application/json").body(endless).unwrap();
    let mut stalled = Box::pin(server.send(stalled));
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut stalled).await.is_err(), "it waits for the body");
    server.log_in(KEY).await.expect(StatusCode::CREATED);
}
