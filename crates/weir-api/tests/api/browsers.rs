//! What a page of another site, or a name that resolves to this server, can make a browser do.

use axum::body::Body;
use http::{HeaderName, Request, StatusCode, header};
use serde_json::json;

use crate::harness::{Options, ROOT, Reply, Server};

const EXAMPLE_ID: &str = "dst_01h2xcejqtf2nbrexx3vqjhp41";

impl Server {
    /// Sends a request with these headers and without a body.
    async fn with_headers(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::empty()).unwrap()).await
    }

    /// Every method and path of the document, with an id for each parameter.
    async fn routes(&self) -> Vec<(String, String)> {
        let document = self.get("/openapi.json").await.expect(StatusCode::OK);
        let paths = document["paths"].as_object().unwrap().iter();
        let routes = paths.flat_map(|(path, item)| {
            let path = path.replace("{id}", EXAMPLE_ID).replace("{tenant}", "acme").replace("{name}", "a");
            item.as_object().unwrap().keys().map(move |method| (method.to_uppercase(), path.clone()))
        });
        routes.collect()
    }
}

/// Tested on a server without keys, because a web page can reach such a server by a name that resolves to 127.0.0.1.
#[tokio::test]
async fn every_route_refuses_a_host_that_is_not_its_own() {
    let server = Server::start().await;
    let routes = server.routes().await;
    assert!(routes.iter().any(|(_, path)| path == "/v1/stream") && routes.len() > 40, "{routes:?}");
    for (method, path) in &routes {
        for host in ["evil.test", "EVIL.test:80", "evil.test.", "localhost.evil.test:8080", "0.0.0.0", "[fe80::1]:8080"]
        {
            server.with_headers(method, path, &[("host", host)]).await.problem(421);
        }
        for host in ["", "localhost:80:80", "[::1", "me@localhost"] {
            let status = server.with_headers(method, path, &[("host", host)]).await.status.as_u16();
            assert!([400, 421].contains(&status), "{method} {path} of `{host}`: {status}");
        }
        server.with_headers(method, path, &[("host", "localhost"), ("host", "evil.test")]).await.problem(400);
    }
    for host in ["localhost", "LOCALHOST:8080", "localhost.:8080", "127.0.0.1:8080", "[::1]:8080"] {
        for path in ["/v1/me", "/docs", "/openapi.json", "/v1/stream"] {
            assert_eq!(
                server.with_headers("GET", path, &[("host", host)]).await.status,
                StatusCode::OK,
                "{path} {host}"
            );
        }
    }
}

#[tokio::test]
async fn what_a_proxy_adds_changes_neither_the_host_nor_the_method() {
    let server = Server::with_keys().await;
    let created = server.root("POST", "/v1/destinations", json!({"url": "https://example.com/"})).await;
    let path = format!("/v1/destinations/{}", created["id"].as_str().unwrap());
    let bearer = format!("Bearer {ROOT}");
    for name in ["x-forwarded-host", "x-original-host", "x-host", "x-forwarded-server"] {
        let own = [("authorization", &*bearer), ("host", "localhost"), (name, "evil.test")];
        server.with_headers("GET", &path, &own).await.expect(StatusCode::OK);
        let other = [("authorization", &*bearer), ("host", "evil.test"), (name, "localhost")];
        server.with_headers("GET", &path, &other).await.problem(421);
    }
    let forwarded = [("authorization", &*bearer), ("host", "evil.test"), ("forwarded", "host=localhost")];
    server.with_headers("GET", &path, &forwarded).await.problem(421);
    for name in ["x-http-method-override", "x-http-method", "x-method-override"] {
        let headers = [("authorization", &*bearer), (name, "DELETE")];
        server.with_headers("GET", &path, &headers).await.expect(StatusCode::OK);
        server.with_headers("POST", &path, &headers).await.problem(405);
    }
    assert_eq!(server.ask(ROOT, "GET", &format!("{path}?_method=DELETE"), None).await.pointers(), ["/_method"]);
    server.ask(ROOT, "GET", &path, None).await.expect(StatusCode::OK);
}

/// Reads are answered to pages of other sites too, but browsers do not show them the answers.
#[tokio::test]
async fn every_answer_tells_browsers_to_keep_it_to_this_server() {
    let server = Server::with_keys().await;
    for (key, method, path, status) in [
        (ROOT, "GET", "/v1/events", 200),
        (ROOT, "GET", "/v1/stream", 200),
        ("wrong", "GET", "/v1/events", 401),
        (ROOT, "GET", "/v1/nothing", 404),
        (ROOT, "OPTIONS", "/v1/events", 405),
        (ROOT, "GET", "/v1/events?limit=0", 422),
        ("", "DELETE", "/v1/session", 204),
        ("", "GET", "/docs", 200),
        ("", "GET", "/openapi.json", 200),
        ("", "GET", "/healthz", 200),
        ("", "GET", "/metrics", 200),
        ("", "GET", "/nothing", 404),
    ] {
        let reply = server.ask(key, method, path, None).await;
        assert_eq!(reply.status.as_u16(), status, "{method} {path}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(reply.header(name), value, "{name} of {method} {path}");
        }
        let policy = reply.header("content-security-policy");
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
        let is_guarded = path.starts_with("/v1/") && path != "/v1/session";
        let kept_out = ["no-store", "no-cache"].contains(&reply.header("cache-control"));
        assert_eq!(kept_out, is_guarded, "{method} {path}");
        let opens = |name: &HeaderName| name.as_str().starts_with("access-control-");
        assert!(!reply.headers.keys().any(opens), "{method} {path}: {:?}", reply.headers);
    }
    let refused = server.with_headers("GET", "/v1/events", &[("host", "evil.test")]).await;
    assert_eq!((refused.status.as_u16(), refused.header("x-content-type-options")), (421, "nosniff"));
}

/// What a client sends comes back only as JSON, and never in a header.
#[tokio::test]
async fn no_text_of_a_request_gets_into_a_header_or_into_a_page() {
    let server = Server::start_with(Options::default()).await;
    let markup = "%3Cscript%3Ealert(1)%3C/script%3E%0d%0aset-cookie:%20a=b";
    for path in [
        format!("/{markup}"),
        format!("/v1/{markup}"),
        format!("/v1/destinations/{markup}"),
        format!("/v1/events?{markup}={markup}"),
        format!("/v1/overview?sort={markup}"),
        format!("/docs?next={markup}"),
    ] {
        let reply = server.get(&path).await;
        reply.problem(reply.status.as_u16());
        assert!(reply.status.is_client_error(), "{path}");
        for name in [header::SET_COOKIE, header::LOCATION, header::REFRESH] {
            assert!(!reply.headers.contains_key(&name), "{path}: {name}");
        }
    }
}
