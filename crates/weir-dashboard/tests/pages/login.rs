//! Login and logout.

use serde_json::{Value, json};

use crate::support::{FakeApi, problem};

#[tokio::test]
async fn a_valid_key_is_exchanged_for_the_cookie_of_the_api() {
    let api = FakeApi::locked();
    let cookie = "weir_session=signed; HttpOnly; SameSite=Lax; Path=/; Max-Age=43200";
    api.on_with("POST", "/v1/session", 201, &[("set-cookie", cookie)], json!({"role": "admin"}));
    let page = api.dashboard_at("/weir").post("/login", "key=+wk_1+&next=/deliveries?state=dead").await;
    assert_eq!((page.location(), page.header("set-cookie")), ("/weir/deliveries?state=dead", cookie));
    let [login] = api.seen("POST", "/v1/session").try_into().unwrap();
    assert_eq!(login.body, json!({"key": "wk_1"}));
}

#[tokio::test]
async fn after_the_login_no_other_site_is_opened() {
    let api = FakeApi::locked();
    api.on("POST", "/v1/session", 201, json!({"role": "admin"}));
    for next in ["//evil.test", "https://evil.test", "/\\evil.test", "%2F%2Fevil.test"] {
        assert_eq!(api.dashboard().post("/login", &format!("key=k&next={next}")).await.location(), "/", "{next}");
    }
    api.on(
        "GET",
        "/v1/me",
        200,
        json!({"name": null, "role": "admin", "tenants": null, "keys_required": false, "version": "0.1.0"}),
    );
    assert_eq!(api.dashboard().get("/login?next=//evil.test").await.location(), "/");
}

#[tokio::test]
async fn a_wrong_key_is_told_and_not_repeated_in_the_page() {
    let api = FakeApi::locked();
    api.on("POST", "/v1/session", 401, problem("An API key is required", "the API key is not valid"));
    let page = api.dashboard().post("/login", "key=wk_secret&next=/keys").await;
    assert_eq!(page.status, 401);
    page.has(&["This key is not valid", "name=\"next\" value=\"/keys\"", "type=\"password\""]).has_not(&["wk_secret"]);
}

#[tokio::test]
async fn too_many_tries_are_told_with_the_time_to_wait() {
    let api = FakeApi::locked();
    api.on_with("POST", "/v1/session", 429, &[("retry-after", "17")], problem("Too many", "wait"));
    let page = api.dashboard().post("/login", "key=x").await;
    assert_eq!(page.status, 429);
    page.has(&["Try again in 17 seconds"]);
}

#[tokio::test]
async fn without_configured_keys_no_login_is_needed() {
    let api = FakeApi::default();
    let me = json!({"name": null, "role": "admin", "tenants": null, "keys_required": false, "version": "0.1.0"});
    api.on("GET", "/v1/me", 200, me);
    assert_eq!(api.dashboard().get("/login?next=/keys").await.location(), "/keys");
}

#[tokio::test]
async fn a_logout_expires_the_cookie() {
    let api = FakeApi::for_role("read");
    api.on_with("DELETE", "/v1/session", 204, &[("set-cookie", "weir_session=; Max-Age=0")], Value::Null);
    let page = api.dashboard().post("/logout", "").await;
    assert_eq!(page.location(), "/login");
    let cookies: Vec<_> = page.headers.get_all("set-cookie").iter().collect();
    assert!(cookies.iter().any(|cookie| *cookie == "weir_session=; Max-Age=0"), "{cookies:?}");
}

#[tokio::test]
async fn a_key_for_ingest_learns_what_its_role_may_do() {
    let api = FakeApi::for_role("ingest");
    api.on("GET", "/v1/overview", 403, problem("Forbidden", "the role ingest may not do this"));
    let page = api.dashboard().get("/").await;
    assert_eq!(page.status, 403);
    page.has(&["a program posts events with it", "Log in with another key"]);
    page.has_not(&[">Overview</a>", "action=\"/jump\""]);
    // Other roles are led on.
    let reader = FakeApi::for_role("read");
    reader.on("GET", "/v1/keys", 403, problem("Forbidden", "the role read may not do this"));
    reader.dashboard().get("/keys").await.has(&["class=\"button\" href=\"/\">Overview</a>"]);
}
