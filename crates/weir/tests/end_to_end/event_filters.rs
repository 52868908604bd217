//! Filters on the data of events, from the setting to the receiver.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{App, Fleet, Receiver, eventually};

const LONG: Duration = Duration::from_secs(20);

async fn posted(app: &App, data: Value) -> (Value, Value) {
    let event = json!({"type": "order.paid", "data": data});
    let (status, answer) = app.request(Method::POST, "/v1/events", Some(event)).await;
    assert_eq!(status, 202, "{answer}");
    (answer["deliveries"].clone(), answer["filtered"].clone())
}

/// The amounts that a receiver got.
async fn amounts(receiver: &Receiver, path: &str, count: usize) -> Vec<i64> {
    let arrivals = receiver.wait_for(path, count, LONG).await;
    let amount = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["data"]["amount"].as_i64().unwrap();
    let mut amounts: Vec<i64> = arrivals.iter().map(|arrival| amount(&arrival.body)).collect();
    amounts.sort_unstable();
    amounts
}

/// `edits` and `posts` may be processes of one installation. A filter that was set through one holds in the other.
async fn a_receiver_gets_what_its_filter_lets_pass(edits: &App, posts: &App) {
    let receiver = Receiver::start().await;
    let all = edits.destination(json!({"url": receiver.url("/all")})).await;
    let large = json!({"url": receiver.url("/large"), "filter": {"/amount": {"gte": 100}}});
    let large = edits.destination(large).await;
    for (amount, expected) in [(99, (1, 1)), (100, (2, 0)), (500, (2, 0))] {
        assert_eq!(posted(posts, json!({"amount": amount})).await, (json!(expected.0), json!(expected.1)));
    }
    assert_eq!(amounts(&receiver, "/all", 3).await, [99, 100, 500]);
    assert_eq!(amounts(&receiver, "/large", 2).await, [100, 500]);
    // An edit counts from its answer on, and nobody gets an event that no filter lets pass.
    for id in [&all, &large] {
        edits.patch(id, json!({"filter": {"/amount": {"lt": 0}}})).await;
    }
    assert_eq!(posted(posts, json!({"amount": 7})).await, (json!(0), json!(2)));
    assert_eq!(posts.metric("weir_events_filtered_out_total").await, 1.0);
    assert_eq!(posts.metric("weir_events_filtered_total").await, 3.0);
    let listed = edits.get("/v1/events").await;
    assert_eq!((&listed["data"][0]["filtered"], &listed["data"][3]["filtered"]), (&json!(2), &json!(1)));
    // A replay repeats the deliveries that the filter of their time let pass.
    edits.drained(&large, LONG).await;
    let replay = json!({"destination": large, "states": ["delivered"]});
    let (status, replay) = edits.request(Method::POST, "/v1/replays", Some(replay)).await;
    assert_eq!((status, &replay["total"]), (202, &json!(2)));
    assert_eq!(amounts(&receiver, "/large", 4).await, [100, 100, 500, 500]);
    // Without the filter the next event comes again.
    edits.patch(&large, json!({"filter": null})).await;
    assert_eq!(posted(posts, json!({"amount": 8})).await, (json!(1), json!(1)));
    eventually("the event arrives", LONG, async || receiver.count("/large") == 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_gets_what_its_filter_lets_pass_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    a_receiver_gets_what_its_filter_lets_pass(&app, &app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_gets_what_its_filter_lets_pass_through_several_processes() {
    let fleet = Fleet::new().await;
    let edits = fleet.launch("serve").await;
    let posts = fleet.launch("api").await;
    a_receiver_gets_what_its_filter_lets_pass(&edits, &posts).await;
}
