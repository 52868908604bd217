//! Lists: pages, cursors, filters.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use crate::harness::{FOREIGN, OWN, ROOT, Server, json_request};

const URL: &str = "https://example.com/hooks";

fn ids(page: &Value) -> Vec<String> {
    page["data"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn pages_follow_each_other_newest_first_without_gaps() {
    let server = Server::start().await;
    let mut created = Vec::new();
    for _ in 0..5 {
        created.push(server.destination(json!({"url": URL})).await);
        server.event("video.created").await;
        server.clock.advance(Duration::from_millis(1));
    }
    created.reverse();
    for (list, total) in [("destinations", 5), ("events", 5), ("deliveries", 15)] {
        let whole = server.get(&format!("/v1/{list}")).await.expect(StatusCode::OK);
        assert_eq!((ids(&whole).len(), &whole["next_cursor"]), (total, &Value::Null), "{list}");
        let mut paged = Vec::new();
        let mut path = format!("/v1/{list}?limit=2");
        loop {
            let page = server.get(&path).await.expect(StatusCode::OK);
            assert!(ids(&page).len() <= 2);
            paged.extend(ids(&page));
            let Some(cursor) = page["next_cursor"].as_str() else {
                break;
            };
            path = format!("/v1/{list}?limit=2&cursor={cursor}");
        }
        assert_eq!(paged, ids(&whole), "{list}");
        if list == "destinations" {
            assert_eq!(paged, created);
        }
    }
}

#[tokio::test]
async fn filters_narrow_a_list() {
    let server = Server::start().await;
    let first = server.destination(json!({"url": URL})).await;
    server.destination(json!({"url": URL, "tenant": "acme"})).await;
    let event = server.event("video.created").await;
    server.clock.advance(Duration::from_secs(60));
    server.event("order.paid").await;
    for (path, expected) in [
        ("/v1/destinations?tenant=acme".to_owned(), 1),
        ("/v1/destinations?tenant=nobody".to_owned(), 0),
        ("/v1/events?type=order.paid".to_owned(), 1),
        ("/v1/events?tenant=acme".to_owned(), 0),
        ("/v1/events?from=2026-11-21T07:30:30Z".to_owned(), 1),
        ("/v1/events?to=2026-11-21T08:30:30%2B01:00&tenant=default".to_owned(), 1),
        ("/v1/events?from=2026-11-21T08:00:00Z&to=2026-11-21T07:00:00Z".to_owned(), 0),
        ("/v1/events?from=1363-03-21T08:17:29Z&to=3000-01-01T00:00:00Z".to_owned(), 2),
        ("/v1/deliveries?from=2026-11-21T08:00:00Z&to=2026-11-21T07:00:00Z".to_owned(), 0),
        (format!("/v1/deliveries?destination={first}"), 2),
        (format!("/v1/deliveries?event={event}&state=pending"), 1),
        (format!("/v1/deliveries?event={event}&state=dead"), 0),
        (format!("/v1/deliveries?event={event}&state=dead,pending"), 1),
        ("/v1/deliveries?state=dead,failed,cancelled".to_owned(), 0),
        ("/v1/destinations?q=EXAMPLE.com/h".to_owned(), 2),
        ("/v1/destinations?url=https://EXAMPLE.com/hooks".to_owned(), 2),
        ("/v1/destinations?name=nobody".to_owned(), 0),
        ("/v1/destinations?state=active".to_owned(), 2),
        ("/v1/destinations?state=paused".to_owned(), 0),
        ("/v1/events?idempotency_key=order-1".to_owned(), 0),
    ] {
        assert_eq!(server.count(&path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn events_are_listed_without_their_data_by_default() {
    let server = Server::start().await;
    let id = server.event("video.created").await;
    let without = server.get("/v1/events").await.expect(StatusCode::OK)["data"][0].clone();
    assert_eq!((&without["id"], without.get("data")), (&json!(id), None));
    let with = server.get("/v1/events?include=data").await.expect(StatusCode::OK)["data"][0].clone();
    assert_eq!(with["data"], 1);
    assert_eq!(server.get(&format!("/v1/events/{id}")).await.expect(StatusCode::OK)["data"], 1);
    assert_eq!(server.get("/v1/events?include=deliveries").await.pointers(), ["/include"]);
}

#[tokio::test]
async fn a_cursor_of_another_list_is_refused() {
    let server = Server::start().await;
    for _ in 0..2 {
        server.event("video.created").await;
    }
    let page = server.get("/v1/events?limit=1").await.expect(StatusCode::OK);
    let cursor = page["next_cursor"].as_str().unwrap();
    for path in [
        format!("/v1/destinations?cursor={cursor}"),
        format!("/v1/deliveries?cursor={cursor}"),
        format!("/v1/events?cursor={cursor}x"),
        "/v1/events?cursor=".to_owned(),
        "/v1/events?cursor=evt_01h2xcejqtf2nbrexx3vqjhp41".to_owned(),
    ] {
        assert_eq!(server.get(&path).await.pointers(), ["/cursor"], "{path}");
    }
}

#[tokio::test]
async fn a_list_that_begins_with_the_oldest_is_the_reverse_and_its_cursors_keep_the_order() {
    let server = Server::start().await;
    server.destination(json!({"url": URL})).await;
    for _ in 0..5 {
        server.event("video.created").await;
        server.clock.advance(Duration::from_millis(1));
    }
    for list in ["events", "deliveries"] {
        let mut newest_first = ids(&server.get(&format!("/v1/{list}")).await.expect(StatusCode::OK));
        newest_first.reverse();
        let mut paged = Vec::new();
        let mut path = format!("/v1/{list}?limit=2&order=oldest");
        loop {
            let page = server.get(&path).await.expect(StatusCode::OK);
            paged.extend(ids(&page));
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            // Without `order` the cursor determines the order. A cursor with the other order is refused.
            path = format!("/v1/{list}?limit=2&cursor={cursor}");
            let other = server.get(&format!("{path}&order=newest")).await;
            assert_eq!(other.pointers(), ["/cursor"], "{path}");
        }
        assert_eq!(paged, newest_first, "{list}");
    }
}

#[tokio::test]
async fn an_event_is_found_by_its_idempotency_key() {
    let server = Server::start().await;
    for tenant in ["default", "acme"] {
        let event = json!({"type": "t", "data": 1, "tenant": tenant, "idempotency_key": "order-1"});
        server.post("/v1/events", event).await.expect(StatusCode::ACCEPTED);
    }
    for (query, tenants) in [
        ("", vec!["acme", "default"]),
        ("&order=oldest", vec!["default", "acme"]),
        ("&tenant=acme", vec!["acme"]),
        ("&tenant=nobody", vec![]),
        ("&tenant=acme&type=other", vec![]),
    ] {
        let found = server.get(&format!("/v1/events?idempotency_key=order-1{query}")).await.expect(StatusCode::OK);
        let found: Vec<_> = found["data"].as_array().unwrap().iter().map(|event| event["tenant"].clone()).collect();
        assert_eq!(found, tenants, "{query}");
    }
}

#[tokio::test]
async fn an_idempotency_key_is_looked_up_in_all_tenants_of_the_api_key() {
    let server = Server::with_keys().await;
    for tenant in [OWN, FOREIGN, "third"] {
        let event = json!({"type": "t", "data": 1, "tenant": tenant, "idempotency_key": "order-1"});
        server.root("POST", "/v1/events", event).await;
    }
    let (one, two) = (server.key("read", json!([OWN])).await, server.key("read", json!([OWN, FOREIGN])).await);
    for (key, expected) in [(one.as_str(), vec![OWN]), (&two, vec![FOREIGN, OWN]), (ROOT, vec!["third", FOREIGN, OWN])]
    {
        let found = server.ask(key, "GET", "/v1/events?idempotency_key=order-1", None).await.expect(StatusCode::OK);
        let found: Vec<_> = found["data"].as_array().unwrap().iter().map(|event| event["tenant"].clone()).collect();
        assert_eq!(found, expected);
    }
}

/// Covers every operation of the document, which has the same routes as the router.
#[tokio::test]
async fn an_unknown_parameter_is_refused_on_every_route_without_effect() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    let event = server.event("video.created").await;
    let deliveries = server.get("/v1/deliveries").await.expect(StatusCode::OK);
    let delivery = deliveries["data"][0]["id"].as_str().unwrap();
    let document = server.get("/openapi.json").await.expect(StatusCode::OK);
    let mut routes = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let id = match path.split('/').nth(2) {
            Some("destinations") => &destination,
            Some("events") => &event,
            Some("deliveries") => delivery,
            Some("keys") => "key_01h2xcejqtf2nbrexx3vqjhp41",
            Some("limit-groups") => "lgr_01h2xcejqtf2nbrexx3vqjhp41",
            _ => "rpl_01h2xcejqtf2nbrexx3vqjhp41",
        };
        for method in item.as_object().unwrap().keys() {
            let path = path.replace("{id}", id).replace("{tenant}", "acme").replace("{name}", "a");
            let path = path.replace("{rid}", "rsv_01h2xcejqtf2nbrexx3vqjhp41");
            let target = format!("{path}?dry_runs=true");
            let reply = server.send(json_request(&method.to_uppercase(), &target, "{}")).await;
            assert_eq!(reply.pointers(), ["/dry_runs"], "{method} {path}");
            routes += 1;
        }
    }
    assert!(routes > 25, "{routes}");
    assert_eq!(server.count("/v1/destinations").await, 1);
    assert_eq!(server.count("/v1/deliveries?state=pending").await, 1);
}

#[tokio::test]
async fn parameters_are_checked_by_name() {
    let server = Server::start().await;
    for (path, pointers) in [
        ("/v1/events?limit=0", vec!["/limit"]),
        ("/v1/events?limit=201", vec!["/limit"]),
        ("/v1/events?limit=ten&colour=red", vec!["/limit", "/colour"]),
        ("/v1/events?type=a%20b", vec!["/type"]),
        ("/v1/events?from=yesterday", vec!["/from"]),
        ("/v1/destinations?tenant=", vec!["/tenant"]),
        ("/v1/destinations?state=pending", vec!["/state"]),
        ("/v1/deliveries?state=lost", vec!["/state"]),
        ("/v1/deliveries?state=dead,lost", vec!["/state"]),
        ("/v1/deliveries?state=dead,", vec!["/state"]),
        ("/v1/deliveries?order=random&count=maybe", vec!["/order", "/count"]),
        ("/v1/deliveries/groups?state=pending", vec!["/state"]),
        ("/v1/deliveries/groups?limit=3", vec!["/limit"]),
        ("/v1/destinations?q=", vec!["/q"]),
        ("/v1/events?idempotency_key=", vec!["/idempotency_key"]),
        ("/v1/deliveries?type=video.created", vec!["/type"]),
        ("/v1/deliveries?event_type=video*&tenant=", vec!["/tenant", "/event_type"]),
        ("/v1/deliveries?error=lost", vec!["/error"]),
        ("/v1/deliveries?error=200", vec!["/error"]),
        ("/v1/deliveries?error=2xx&error=5xx", vec!["/error"]),
        ("/v1/deliveries?destination=evt_01h2xcejqtf2nbrexx3vqjhp41&event=x", vec!["/destination", "/event"]),
    ] {
        assert_eq!(server.get(path).await.pointers(), pointers, "{path}");
    }
}
