//! Filters on the data of events.

use http::StatusCode;
use serde_json::{Value, json};

use crate::harness::Server;

const URL: &str = "https://example.com/hooks";

/// The deliveries of an answer, and how many destinations filtered the event out.
fn counts(answer: &Value) -> [Value; 2] {
    ["deliveries", "filtered"].map(|field| answer[field].clone())
}

async fn post(server: &Server, data: Value) -> Value {
    server.post("/v1/events", json!({"type": "order.paid", "data": data})).await.expect(StatusCode::ACCEPTED)
}

#[tokio::test]
async fn an_answer_says_how_many_destinations_filtered_the_event_out() {
    let server = Server::start().await;
    server.destination(json!({"url": URL})).await;
    server.destination(json!({"url": "https://large.example/", "filter": {"/amount": {"gte": 100}}})).await;
    server.destination(json!({"url": "https://other.example/", "event_types": ["other"], "filter": {"/a": 1}})).await;
    assert_eq!(counts(&post(&server, json!({"amount": 100.0})).await), [json!(2), json!(0)]);
    let small = post(&server, json!({"amount": 99.99})).await;
    assert_eq!(counts(&small), [json!(1), json!(1)]);
    let shown = server.get(&format!("/v1/events/{}", small["id"].as_str().unwrap())).await.expect(StatusCode::OK);
    assert_eq!((&shown["filtered"], shown["deliveries"].as_array().map(Vec::len)), (&json!(1), Some(1)));
    let listed = server.get("/v1/events").await.expect(StatusCode::OK);
    assert_eq!(listed["data"].as_array().unwrap().iter().map(|event| &event["filtered"]).collect::<Vec<_>>(), [1, 0]);
}

#[tokio::test]
async fn a_patch_replaces_the_whole_filter() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL, "filter": {"/a": {"gt": 1}}})).await;
    let path = format!("/v1/destinations/{id}");
    for filter in [json!({"/a": {"lt": 5}, "/b": null}), json!({"or": [{"/c": true}]}), Value::Null] {
        let edited = server.patch(&path, json!({"filter": filter})).await.expect(StatusCode::OK);
        assert_eq!(edited["filter"], filter);
        let renamed = server.patch(&path, json!({"name": "kept"})).await.expect(StatusCode::OK);
        assert_eq!(renamed["filter"], filter);
    }
    assert_eq!(counts(&post(&server, json!({})).await), [json!(1), json!(0)]);
}

#[tokio::test]
async fn a_trial_names_each_condition_and_changes_nothing() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL})).await;
    let path = format!("/v1/destinations/{id}/filter/try");
    let tried = server.post(&path, json!({"data": null})).await.expect(StatusCode::OK);
    assert_eq!(tried, json!({"matches": true, "conditions": []}));
    let filter = json!({"/a": 1, "or": [{"/b": {"prefix": "x"}}, {"/c": {"exists": true}}]});
    let tried = server.post(&path, json!({"data": {"a": 1, "b": "y"}, "filter": filter})).await.expect(StatusCode::OK);
    let expected = [("/~1a", true), ("/or/0/~1b", false), ("/or/1/~1c", false)];
    let conditions = expected.map(|(pointer, holds)| json!({"pointer": pointer, "holds": holds}));
    assert_eq!(tried, json!({"matches": false, "conditions": conditions}));
    server.post(&path, json!({"data": 1, "filter": {"a": 1}})).await.problem(422);
    server.post(&path, json!({"filter": {"/a": 1}})).await.problem(422);
    server.patch(&format!("/v1/destinations/{id}"), json!({"filter": filter})).await.expect(StatusCode::OK);
    let tried = server.post(&path, json!({"data": {"a": 1, "c": null}})).await.expect(StatusCode::OK);
    assert_eq!(tried["matches"], true, "the filter of the destination");
}

#[tokio::test]
async fn a_test_event_and_a_named_destination_pass_every_filter() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL, "filter": {"/a": 1}})).await;
    server.post(&format!("/v1/destinations/{id}/test"), json!(null)).await.expect(StatusCode::ACCEPTED);
    let named = json!({"type": "a", "data": 0, "destinations": [id]});
    let answer = server.post("/v1/events", named).await.expect(StatusCode::ACCEPTED);
    assert_eq!(counts(&answer), [json!(1), json!(0)]);
}
