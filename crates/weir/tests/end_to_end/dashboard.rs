//! The dashboard on the real API: login, a page, a form, and the settings that decide where it is served.

use reqwest::{Client, RequestBuilder, Response, header, redirect::Policy};
use serde_json::{Value, json};

use crate::support::App;

const KEY: &str = "sesame";

/// A browser that follows no redirect and sends the cookies that a test gives it.
fn browser() -> Client {
    crate::support::http_client().redirect(Policy::none()).build().unwrap()
}

fn html(request: RequestBuilder) -> RequestBuilder {
    request.header(header::ACCEPT, "text/html")
}

fn location(response: &Response) -> &str {
    assert_eq!(response.status(), 303);
    response.headers()[header::LOCATION].to_str().unwrap()
}

/// Logs in and returns the cookie.
async fn log_in(app: &App, browser: &Client) -> String {
    let form = browser.post(format!("{}/login", app.url)).header(header::ORIGIN, &app.url);
    let answer =
        form.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(format!("key={KEY}&next=/"));
    let answer = answer.send().await.unwrap();
    assert_eq!(location(&answer), "/");
    let cookie = answer.headers()[header::SET_COOKIE].to_str().unwrap();
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_opens_the_pages_and_their_forms_until_the_logout() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start_with(folder.path(), &[("WEIR_API_KEYS", KEY)]).await;
    let browser = browser();
    let home = format!("{}/", app.url);
    assert_eq!(location(&html(browser.get(&home)).send().await.unwrap()), "/login");
    let index: Value = browser.get(&home).send().await.unwrap().json().await.unwrap();
    assert!(index.is_object(), "a program gets the answer of the API: {index}");

    let created = app.http.post(format!("{}/v1/destinations", app.url)).bearer_auth(KEY);
    let created = created.json(&json!({"url": "https://example.com/hooks", "name": "<Acme>"})).send().await.unwrap();
    let created: Value = created.json().await.unwrap();
    let settings = format!("{}/destinations/{}/settings", app.url, created["id"].as_str().unwrap());

    let cookie = log_in(&app, &browser).await;
    let page = html(browser.get(&settings)).header(header::COOKIE, &cookie).send().await.unwrap();
    assert_eq!(page.status(), 200);
    let text = page.text().await.unwrap();
    assert!(text.contains("&#60;Acme&#62;") && text.contains("Save settings"), "{text}");

    // The unchanged form is valid, and the version that was read is the present one.
    let etag = text.split_once("name=\"etag\" value=\"&#34;").unwrap().1.split_once("&#34;").unwrap().0;
    let form = format!(
        "etag=%22{etag}%22&name=Renamed&url=https%3A%2F%2Fexample.com%2Fhooks&timeout_ms=15+s&event_types=*&max_attempts=16\
         &max_age_s=72+h&base_ms=10+s&cap_ms=1+h&headers=&style=standard&body_format=envelope"
    );
    let send = |origin: &str| {
        let request = browser.post(&settings).header(header::COOKIE, &cookie).header(header::ORIGIN, origin);
        request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(form.clone()).send()
    };
    assert_eq!(send("https://evil.example").await.unwrap().status(), 403);
    let saved = send(&app.url).await.unwrap();
    assert!(location(&saved).ends_with("/settings"), "{saved:?}");
    assert_eq!(send(&app.url).await.unwrap().status(), 412, "somebody has changed it: the form before");
    let path = format!("{}/v1/destinations/{}", app.url, created["id"].as_str().unwrap());
    let stored: Value = app.http.get(path).bearer_auth(KEY).send().await.unwrap().json().await.unwrap();
    assert_eq!((&stored["name"], &stored["breaker"]), (&json!("Renamed"), &Value::Null));

    // A link of another site leads to a page that counts first. Some browsers do not name the site.
    for site in [Some("cross-site"), None] {
        let link = html(browser.get(format!("{}/replays/new?state=dead", app.url))).header(header::COOKIE, &cookie);
        let link = site.into_iter().fold(link, |link, site| link.header("sec-fetch-site", site));
        assert_eq!(link.send().await.unwrap().status(), 200, "{site:?}");
    }

    let logout = browser.post(format!("{}/logout", app.url)).header(header::COOKIE, &cookie);
    let logout = logout.header(header::ORIGIN, &app.url).send().await.unwrap();
    assert_eq!(location(&logout), "/login");
    let mut expired = logout.headers().get_all(header::SET_COOKIE).iter();
    assert!(expired.any(|cookie| cookie.to_str().unwrap().contains("weir_session=;")), "{logout:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_is_served_below_the_public_url_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let environment = [("WEIR_API_KEYS", KEY), ("WEIR_PUBLIC_URL", "https://ops.example.com/weir")];
    let app = App::start_with(folder.path(), &environment).await;
    let login = html(browser().get(format!("{}/login", app.url))).header(header::HOST, "ops.example.com");
    let login = login.send().await.unwrap();
    assert_eq!(login.status(), 200);
    let text = login.text().await.unwrap();
    assert!(text.contains("action=\"/weir/login\"") && text.contains("href=\"/weir/assets/"), "{text}");
    app.terminate().await;

    let app = App::start_with(folder.path(), &[("WEIR_DASHBOARD", "off")]).await;
    for path in ["/login", "/status"] {
        let answer = html(browser().get(format!("{}{path}", app.url))).send().await.unwrap();
        assert_eq!(answer.status(), 404, "{path}");
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/problem+json");
    }
}
