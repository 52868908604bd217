//! What is read of a form before its sender is known, and how much at all.

use std::{convert::Infallible, time::Duration};

use axum::body::{Body, Bytes};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use serde_json::json;

use crate::support::{FakeApi, Page};

const SAME_ORIGIN: [(&str, &str); 2] = [("sec-fetch-site", "same-origin"), ("origin", "http://weir.test")];

/// A body that has these bytes and does not end.
fn endless(bytes: impl Into<Bytes>) -> Body {
    let arrived = stream::iter([Ok::<_, Infallible>(bytes.into())]);
    Body::from_stream(arrived.chain(stream::pending()))
}

fn form_of(bytes: usize) -> String {
    format!("key=k&next=/&padding={}", "x".repeat(bytes))
}

#[tokio::test]
async fn a_large_form_is_read_only_when_its_sender_is_known() {
    let locked = FakeApi::locked();
    locked.on("POST", "/v1/session", 201, json!({"role": "admin"}));
    let page = locked.dashboard().post("/login", &form_of(4_000)).await;
    assert_eq!((page.location(), locked.seen("GET", "/v1/me").len()), ("/", 0));
    let refused = locked.dashboard().post("/login", &form_of(5_000)).await;
    assert!(refused.location().starts_with("/login"), "{}", refused.location());
    assert_eq!(locked.seen("POST", "/v1/session").len(), 1);

    let known = FakeApi::for_role("admin");
    known.on("POST", "/v1/session", 201, json!({"role": "admin"}));
    assert_eq!(known.dashboard().post("/login", &form_of(700_000)).await.location(), "/");
    assert_eq!(known.dashboard().post("/login", &form_of(800_000)).await.status, 413);
}

#[tokio::test(start_paused = true)]
async fn a_form_that_arrives_too_slowly_is_ended() {
    let began = tokio::time::Instant::now();
    let api = FakeApi::for_role("admin");
    for (bytes, seconds) in [(1, 10), (160 * 1024, 20)] {
        let before = began.elapsed().as_secs();
        let page = api.dashboard().post_body("/login", endless(form_of(bytes)), &SAME_ORIGIN).await;
        assert_eq!((page.status.as_u16(), began.elapsed().as_secs() - before), (408, seconds));
    }
    // Without a login a large form is not waited for: what has arrived is dropped.
    let page = FakeApi::locked().dashboard().post_body("/login", endless(form_of(5_000)), &SAME_ORIGIN).await;
    assert!(page.location().starts_with("/login"));
}

#[tokio::test(start_paused = true)]
async fn large_forms_have_a_budget_that_open_ones_give_back() {
    let api = FakeApi::for_role("admin");
    api.on("POST", "/v1/session", 201, json!({"role": "admin"}));
    let dashboard = api.dashboard();
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut form = Box::pin(dashboard.post_body("/login", endless(form_of(500_000)), &SAME_ORIGIN));
        // Reads what has arrived.
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut form).await.is_err());
        open.push(form);
    }
    assert_eq!(dashboard.post("/login", &form_of(500_000)).await.status, 503);
    assert_eq!(dashboard.post("/login", &form_of(100)).await.location(), "/", "a small form needs no budget");
    open.clear();
    assert_eq!(dashboard.post("/login", &form_of(500_000)).await.location(), "/");
}

#[tokio::test]
async fn a_compressed_form_is_refused() {
    let api = FakeApi::for_role("admin");
    let headers = [("content-encoding", "gzip"), SAME_ORIGIN[0], SAME_ORIGIN[1]];
    let page: Option<Page> = api.dashboard().post_with("/login", "key=k", &headers).now_or_never();
    assert_eq!(page.unwrap().status, 415);
}

/// The properties of a form that a morph of the page or the script reads. A control of the same name hides them.
const HIDDEN_BY_A_NAME: [&str; 14] = [
    "id",
    "action",
    "method",
    "target",
    "tagName",
    "nodeType",
    "attributes",
    "children",
    "childNodes",
    "firstChild",
    "nextSibling",
    "parentNode",
    "parentElement",
    "className",
];

#[test]
fn no_control_hides_a_property_of_its_form() {
    // The forms of the layout are in no live region.
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/templates")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for name in HIDDEN_BY_A_NAME.iter().filter(|_| !path.ends_with("layout.html")) {
            assert!(!text.contains(&format!(" name=\"{name}\"")), "{path:?} has a control that is called {name}");
        }
    }
}
