//! Events with many destinations: limits, and batches that need several commits.

use http::StatusCode;
use serde_json::{Value, json};
use weir_store::DestinationLimits;

use crate::harness::{Server, json_request};

const URL: &str = "https://example.com/hooks";

#[tokio::test]
async fn a_tenant_with_all_its_destinations_is_told_which_setting_refuses_another() {
    let server = Server::start().await;
    server.store.limit_destinations(DestinationLimits { of_tenant: 2, ..DestinationLimits::default() });
    let keyed = || {
        let mut request = json_request("POST", "/v1/destinations", json!({"url": URL}));
        request.headers_mut().insert("idempotency-key", "first".parse().unwrap());
        request
    };
    server.send(keyed()).await.expect(StatusCode::CREATED);
    let second = server.destination(json!({"url": URL})).await;
    let refusal = server.post("/v1/destinations", json!({"url": URL})).await.problem(409);
    assert!(refusal["detail"].as_str().unwrap().contains("WEIR_MAX_DESTINATIONS"), "{refusal}");
    let by_name = json_request("PUT", "/v1/destinations/by-name/default/third", json!({"url": URL}));
    server.send(by_name).await.problem(409);
    // A repeated creation gets its first answer, and a refused one keeps no key.
    server.send(keyed()).await.expect(StatusCode::CREATED);
    let mut other = json_request("POST", "/v1/destinations", json!({"url": URL, "name": "b"}));
    other.headers_mut().insert("idempotency-key", "third".parse().unwrap());
    server.send(other).await.problem(409);
    assert_eq!(server.delete(&format!("/v1/destinations/{second}")).await.status, StatusCode::NO_CONTENT);
    let mut other = json_request("POST", "/v1/destinations", json!({"url": URL, "name": "b"}));
    other.headers_mut().insert("idempotency-key", "third".parse().unwrap());
    server.send(other).await.expect(StatusCode::CREATED);
}

#[tokio::test]
async fn an_event_for_too_many_destinations_is_refused_and_names_the_setting() {
    let server = Server::start().await;
    server.store.limit_destinations(DestinationLimits { of_event: 1, ..DestinationLimits::default() });
    server.destination(json!({"url": URL, "event_types": ["a", "b"]})).await;
    server.destination(json!({"url": URL, "event_types": ["b"]})).await;
    let refusal = server.post("/v1/events", json!({"type": "b", "data": 1})).await.problem(422);
    assert!(refusal["errors"][0]["detail"].as_str().unwrap().contains("WEIR_MAX_DESTINATIONS_PER_EVENT"), "{refusal}");
    let batch = json!({"events": [{"type": "b", "data": 1}, {"type": "a", "data": 2}]});
    let answer = server.post("/v1/events/batch", batch).await.expect(StatusCode::ACCEPTED);
    assert_eq!((&answer["events"][0]["error"]["status"], &answer["events"][1]["deliveries"]), (&json!(422), &json!(1)));
    assert_eq!(server.count("/v1/events").await, 1);
}

#[tokio::test]
async fn a_batch_with_many_deliveries_is_answered_in_order_and_wakes_every_destination() {
    let server = Server::start().await;
    for _ in 0..100 {
        server.destination(json!({"url": URL})).await;
    }
    let events: Vec<Value> = (0..100).map(|number| json!({"type": format!("t.{number}"), "data": number})).collect();
    let answer = server.post("/v1/events/batch", json!({"events": events})).await.expect(StatusCode::ACCEPTED);
    let answers = answer["events"].as_array().unwrap();
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!((&answer["type"], &answer["deliveries"]), (&json!(format!("t.{number}")), &json!(100)));
    }
    assert_eq!(answers.len(), 100);
    assert_eq!(server.queue.woken().len(), 200, "each destination is woken after each of the two commits");
}
