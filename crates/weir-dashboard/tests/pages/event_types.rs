//! The catalogue of event types.

use serde_json::{Value, json};

use crate::support::{FakeApi, XSS};

const PATH: &str = "/v1/event-types/order.created";

fn api(role: &str) -> FakeApi {
    let api = FakeApi::for_role(role);
    let found = json!({
        "name": "order.created", "description": format!("Placed.\n{XSS}"), "example": {"id": 7},
        "schema": {"type": "object"},
    });
    api.on_with("GET", PATH, 200, &[("etag", "\"1f\"")], found.clone());
    api.on("GET", "/v1/event-types", 200, json!({"data": [found], "next_cursor": "order.created"}));
    let taking = json!({"id": "dst_1", "name": "Acme", "event_types": ["order.*"], "filter": {"/id": 7}});
    api.on("GET", "/v1/destinations", 200, json!({"data": [taking]}));
    api
}

#[tokio::test]
async fn a_type_is_shown_with_the_destinations_that_take_it() {
    let api = api("read");
    let browser = api.dashboard();
    let page = browser.get("/event-types/order.created").await;
    for part in
        ["Placed.", "&#34;id&#34;: 7", "order.*", "with a filter", "/destinations/dst_1", "/events?type=order.created"]
    {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    assert!(!page.text.contains(XSS) && !page.text.contains("Change it"), "{}", page.text);
    assert!(api.seen("GET", "/v1/destinations")[0].path.contains("event_type=order.created"));
    let list = browser.get("/event-types?q=order").await;
    assert!(
        list.text.contains("/event-types?q=order&amp;cursor=order.created")
            || list.text.contains("/event-types?q=order&#38;cursor=order.created"),
        "{}",
        list.text
    );
    assert!(!list.text.contains("Add type"));
    assert_eq!(browser.get("/event-types/no%20type").await.status, 404);
}

#[tokio::test]
async fn a_form_is_sent_over_the_version_that_was_read() {
    let api = api("operate");
    api.on("PUT", PATH, 200, json!({}));
    let browser = api.dashboard();
    let page = browser.get("/event-types/order.created").await;
    assert!(page.text.contains(r#"name="etag" value="&#34;1f&#34;""#), "{}", page.text);
    let saved = browser
        .post("/event-types/order.created", "etag=%221f%22&description=d&example=&schema={%22type%22:%22object%22}")
        .await;
    assert_eq!(saved.status, 303, "{}", saved.text);
    let sent = api.seen("PUT", PATH).remove(0);
    assert_eq!(sent.body, json!({"description": "d", "example": null, "schema": {"type": "object"}}));
    assert_eq!(sent.headers["if-match"], "\"1f\"");

    let added = browser.post("/event-types", "name=order.created&description=&example=7&schema=").await;
    assert_eq!(added.status, 303, "{}", added.text);
    let sent = api.seen("PUT", PATH).remove(1);
    assert_eq!((&sent.headers["if-none-match"], &sent.body["example"]), (&"*".parse().unwrap(), &json!(7)));
}

#[tokio::test]
async fn what_is_wrong_stands_beside_its_field_and_what_was_typed_stays() {
    let api = api("operate");
    let browser = api.dashboard();
    let page = browser.post("/event-types", "name=order created&description=kept&example={&schema=").await;
    assert_eq!(page.status, 422);
    assert!(page.text.contains("Must be words of letters") && page.text.contains("kept"), "{}", page.text);
    let page = browser.post("/event-types", "name=order.created&description=kept&example={&schema=").await;
    assert!(page.text.contains("This is no JSON") && page.text.contains("kept"), "{}", page.text);
    assert_eq!(api.seen("PUT", PATH).len(), 0);

    let errors = json!([{"pointer": "/schema/requred", "detail": "is not a keyword that is known here"}]);
    api.on("PUT", PATH, 422, json!({"status": 422, "errors": errors}));
    let page = browser
        .post("/event-types/order.created", "etag=%221f%22&description=kept&example=&schema={%22requred%22:[]}")
        .await;
    assert_eq!(page.status, 422);
    for part in ["/requred is not a keyword that is known here.", "requred&#34;:[]", "kept"] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    api.on("PUT", PATH, 412, json!({"status": 412}));
    let page = browser.post("/event-types/order.created", "etag=%221f%22&description=kept&example=&schema=").await;
    assert!(page.text.contains("omebody else has changed the type"), "{}", page.text);
    let page = browser.post("/event-types", "name=order.created&description=kept&example=&schema=").await;
    assert!(page.text.contains("There is a type with this name."), "{}", page.text);
}

#[tokio::test]
async fn a_destination_with_unknown_types_says_so() {
    let api = FakeApi::for_role("read");
    let settings = json!({"id": "dst_1", "name": "Acme", "unknown_event_types": ["ordr.*"], "event_types": ["ordr.*"]});
    api.on("GET", "/v1/destinations/dst_1", 200, settings);
    api.on("GET", "/v1/activity", 200, json!({"data": Value::Array(Vec::new())}));
    let page = api.dashboard().get("/destinations/dst_1/activity").await;
    assert!(page.text.contains("It subscribes to ordr.*"), "{}", page.text);
}
