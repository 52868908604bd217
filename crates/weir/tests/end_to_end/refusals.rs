//! Receivers that refuse requests, or announce their quotas. Each of these functions runs on the embedded backends here,
//! and on PostgreSQL and Redis in `retries.rs`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    retries::{SECOND, ended, settings},
    support::{Answer, App, Receiver, assert_cap},
};

/// What a receiver refuses is not given up.
pub(crate) async fn refusals_count_only_if_the_destination_says_so(app: &App) {
    let receiver = Receiver::start().await;
    let soon = |status| Answer::status(status).header("retry-after", "0.02");
    for (path, refusals_count, state, attempts) in
        [("/refused", false, "delivered", 9), ("/counted-out", true, "dead", 3)]
    {
        // GitHub answers 403, with the quota or with a time.
        let quota = Answer::status(403).header("x-ratelimit-remaining", "0").header("x-ratelimit-reset-after", "0.02");
        let refusals = (0..7).map(|turn| soon(if turn % 2 == 0 { 429 } else { 403 }));
        receiver.script(path, refusals.chain([quota, Answer::status(200)]));
        let mut settings = settings(&receiver, path);
        settings["refusals_count"] = json!(refusals_count);
        let id = app.destination(settings).await;
        app.event(path.trim_start_matches('/')).await;
        let delivery = ended(app, &id).await;
        let numbers: Vec<_> = delivery["attempts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|attempt| attempt["number"].as_u64().unwrap())
            .collect();
        assert_eq!(delivery["state"], state, "{delivery}");
        assert_eq!(numbers, (1..=attempts).collect::<Vec<u64>>(), "{delivery}");
        let shown = app.get(&format!("/v1/destinations/{id}")).await;
        assert_eq!(shown["refusals_count"], refusals_count, "{shown}");
    }
}

/// A plain 403 is final, and the delivery says which header was ignored.
async fn a_malformed_header_is_noted(app: &App) {
    let receiver = Receiver::start().await;
    receiver.script("/malformed", [Answer::status(403).header("retry-after", "soon")]);
    let id = app.destination(settings(&receiver, "/malformed")).await;
    app.event("malformed").await;
    let delivery = ended(app, &id).await;
    assert_eq!(delivery["state"], "failed", "{delivery}");
    assert_eq!(delivery["attempts"][0]["error"], "ignored malformed headers: retry-after: soon", "{delivery}");
}

/// A receiver that refuses everything for a while lives: no breaker opens, and nothing is given up.
pub(crate) async fn refusals_in_a_row_do_not_open_the_breaker(app: &App) {
    let receiver = Receiver::start().await;
    receiver.script("/row", (0..40).map(|_| Answer::status(429)).chain([Answer::status(200)]));
    let mut row = settings(&receiver, "/row");
    row["rate_limits"] = json!([{"limit": 100, "period": "second"}]);
    let id = app.destination(row).await;
    app.events("row", 50).await;
    // An open breaker would wait for half a minute.
    app.drained(&id, Duration::from_secs(15)).await;
    assert_eq!(receiver.count("/row"), 90, "50 deliveries and 40 refusals");
    let shown = app.get(&format!("/v1/destinations/{id}")).await;
    assert_eq!((&shown["breaker_state"], &shown["held_until"]), (&json!("closed"), &Value::Null), "{shown}");
}

/// The receiver has the same limit as the destination, and says with each answer that it is used up, in whole seconds.
pub(crate) async fn an_announcement_of_our_own_limit_costs_nothing(app: &App) {
    const EVENTS: usize = 40;
    let receiver = Receiver::start().await;
    let used_up = |quota, reset| Answer::status(200).header("ratelimit-policy", quota).header("ratelimit", reset);
    receiver.script("/announced", [used_up("20;w=1", "limit=20, remaining=0, reset=1")]);
    let mut announced = settings(&receiver, "/announced");
    announced["rate_limits"] = json!([{"limit": 20, "period": "second"}]);
    let id = app.destination(announced).await;
    app.events("announced", EVENTS).await;
    let arrivals = receiver.wait_for("/announced", EVENTS, Duration::from_secs(30)).await;
    let took = arrivals[EVENTS - 1].at - arrivals[0].at;
    assert!(took < Duration::from_millis(2_500), "{EVENTS} sends at 20/s took {took:?}");
    assert_cap(&arrivals, 20, SECOND);
    app.drained(&id, Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_no_failures_and_are_not_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    refusals_count_only_if_the_destination_says_so(&app).await;
    refusals_in_a_row_do_not_open_the_breaker(&app).await;
    a_malformed_header_is_noted(&app).await;
}

/// This test judges times.
mod timed {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_announcement_of_the_same_limit_does_not_slow_a_destination() {
        let folder = tempfile::tempdir().unwrap();
        an_announcement_of_our_own_limit_costs_nothing(&App::start(folder.path()).await).await;
    }
}
