//! What is sent is recorded soon, or nothing more is sent.

use std::{collections::HashSet, time::Duration};

use serde_json::json;

use crate::support::{Answer, App, Fleet, Receiver, eventually, receiver::AnswerBody};

const DESTINATIONS: usize = 20;
const TIMEOUT: Duration = Duration::from_secs(120);

/// Creates destinations without limits for all events of the type `flood`.
async fn unlimited_destinations(app: &App, receiver: &Receiver) -> Vec<String> {
    let mut ids = Vec::new();
    for number in 0..DESTINATIONS {
        let path = format!("/flood/{number}");
        // A receiver that answers with more than anybody reads.
        receiver.script(&path, [Answer::status(200).body(AnswerBody::Large(15_000))]);
        ids.push(app.destination(json!({"url": receiver.url(&path), "event_types": ["flood"]})).await);
    }
    ids
}

/// How many requests came again.
fn duplicates(receiver: &Receiver, events: usize) -> usize {
    let mut again = 0;
    for number in 0..DESTINATIONS {
        let arrivals = receiver.arrivals(&format!("/flood/{number}"));
        let ids: HashSet<_> = arrivals.iter().map(|arrival| arrival.header("webhook-id")).collect();
        assert_eq!(ids.len(), events, "nothing is lost at destination {number}");
        again += arrivals.len() - ids.len();
    }
    again
}

async fn wait_for_total(receiver: &Receiver, count: usize) {
    eventually(&format!("{count} arrivals"), TIMEOUT, async || receiver.total() >= count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_a_flood_duplicates_at_most_what_was_in_flight_or_unrecorded() {
    const EVENTS: usize = 500;
    const CAPACITY: usize = 64;
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    let capacity = CAPACITY.to_string();
    let environment = [("WEIR_WORKER_CAPACITY", capacity.as_str())];
    let mut app = App::start_with(folder.path(), &environment).await;
    let ids = unlimited_destinations(&app, &receiver).await;
    app.events("flood", EVENTS).await;
    let kills = 2;
    for kill in 1..=kills {
        wait_for_total(&receiver, kill * EVENTS * DESTINATIONS / 4).await;
        app.kill().await;
        app = App::start_with(folder.path(), &environment).await;
    }
    for id in &ids {
        app.drained(id, TIMEOUT).await;
    }
    let again = duplicates(&receiver, EVENTS);
    assert!(again <= kills * 2 * CAPACITY, "{again} duplicates from {kills} kills");
}

/// Claims and ingest go on, but no attempt can be recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_stop_while_the_store_records_nothing_and_nothing_is_sent_twice() {
    const EVENTS: usize = 400;
    const CAPACITY: usize = 150;
    const STALL: &str = "BEGIN; LOCK TABLE attempts IN EXCLUSIVE MODE; SELECT pg_sleep(8); COMMIT";
    let fleet = Fleet::new().await;
    let receiver = Receiver::start().await;
    let capacity = CAPACITY.to_string();
    let environment = [("WEIR_WORKER_CAPACITY", capacity.as_str())];
    let mut app = fleet.launch_with("serve", &environment).await;
    let ids = unlimited_destinations(&app, &receiver).await;
    app.events("flood", EVENTS).await;

    // A stall, after which every attempt is recorded.
    wait_for_total(&receiver, 500).await;
    tokio::join!(fleet.sql(STALL), sends_stop(&app, &receiver, 2 * CAPACITY));
    wait_for_total(&receiver, EVENTS * DESTINATIONS / 2).await;
    let sent = |number| receiver.arrivals(&format!("/flood/{number}"));
    for number in 0..DESTINATIONS {
        let (arrivals, mut seen) = (sent(number), HashSet::new());
        assert!(arrivals.iter().all(|arrival| seen.insert(arrival.header("webhook-id"))), "sent once");
    }

    // A stall in which the process dies.
    let killed = async {
        sends_stop(&app, &receiver, 2 * CAPACITY).await;
        app.kill().await;
    };
    tokio::join!(fleet.sql(STALL), killed);
    app = fleet.launch_with("serve", &environment).await;
    for id in &ids {
        app.drained(id, TIMEOUT).await;
    }
    let again = duplicates(&receiver, EVENTS);
    assert!(again <= 2 * CAPACITY, "{again} duplicates from a kill");
}

/// Waits until nothing is sent for a second, while deliveries wait. At most `most` of what was sent is unrecorded then.
async fn sends_stop(app: &App, receiver: &Receiver, most: usize) {
    let mut before = 0;
    eventually("the sends stop", TIMEOUT, async || {
        before = receiver.total();
        tokio::time::sleep(Duration::from_secs(1)).await;
        receiver.total() == before
    })
    .await;
    let recorded = app.metric("weir_deliveries_total").await as usize;
    let unrecorded = before - recorded;
    assert!(unrecorded <= most, "{unrecorded} of {before} sends are not recorded");
    assert!(unrecorded > 0, "the store records nothing");
}
