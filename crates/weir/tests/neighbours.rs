//! One slow, dead or flooding destination does not move the others.

#[path = "support/harness.rs"]
mod support;

use std::{collections::HashMap, time::Duration};

use serde_json::json;
use support::{Answer, App, Machine, Receiver, now, receiver::AnswerBody};

const HEALTHY: usize = 100;
const ROUNDS: usize = 15;

/// From just before a post to each arrival, over all healthy destinations.
async fn latencies(app: &App, receiver: &Receiver, event_type: &str) -> Vec<Duration> {
    let mut latencies = Vec::new();
    for round in 1..=ROUNDS {
        let posted = now();
        let id = app.event(event_type).await;
        for healthy in 0..HEALTHY {
            receiver.wait_for(&format!("/{event_type}/{healthy}"), round, Duration::from_secs(10)).await;
        }
        for healthy in 0..HEALTHY {
            let arrivals = receiver.arrivals(&format!("/{event_type}/{healthy}"));
            let arrival = arrivals.iter().find(|arrival| arrival.header("webhook-id") == id).expect("it arrived");
            latencies.push(arrival.at - posted);
        }
    }
    latencies.sort_unstable();
    latencies
}

fn p99(latencies: &[Duration]) -> Duration {
    latencies[latencies.len() * 99 / 100]
}

async fn healthy_ones(app: &App, receiver: &Receiver, event_type: &str) {
    for healthy in 0..HEALTHY {
        let url = receiver.url(&format!("/{event_type}/{healthy}"));
        app.destination(json!({"url": url, "event_types": [event_type]})).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_p99_of_a_hundred_healthy_destinations_does_not_move_beside_bad_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver, machine) = (App::start(folder.path()).await, Receiver::start().await, Machine::watched());
    healthy_ones(&app, &receiver, "calm").await;
    let alone = latencies(&app, &receiver, "calm").await;

    receiver.script("/hangs", [Answer::status(200).after(Duration::from_secs(30))]);
    receiver.script("/drips", [Answer::status(200).body(AnswerBody::Drip(Duration::from_millis(100)))]);
    receiver.script("/floods", [Answer::status(200).body(AnswerBody::Large(64 << 20))]);
    let bad = HashMap::from([
        ("hangs", receiver.url("/hangs")),
        ("drips", receiver.url("/drips")),
        ("floods", receiver.url("/floods")),
        ("refuses", "http://127.0.0.1:1/refuses".to_owned()),
    ]);
    for (event_type, url) in &bad {
        // The flood is held to a few a second: the receiver that makes 64 MB shares these two cores.
        let limits = if *event_type == "floods" { json!([{"limit": 2, "period": "second"}]) } else { json!([]) };
        app.destination(json!({"url": url, "event_types": [event_type], "rate_limits": limits})).await;
        app.events(event_type, 500).await;
    }
    receiver.wait_for("/hangs", 64, Duration::from_secs(10)).await;
    healthy_ones(&app, &receiver, "beside").await;
    let beside = latencies(&app, &receiver, "beside").await;

    assert_eq!(receiver.count("/hangs"), 64, "a hanging destination holds its own max_in_flight and no more");
    let (alone, beside) = (p99(&alone), p99(&beside));
    let is_undisturbed = beside <= alone * 3 + Duration::from_millis(20);
    machine.judge(is_undisturbed, &format!("p99 alone {alone:?}, beside bad neighbours {beside:?}"));
}
