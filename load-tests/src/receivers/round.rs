//! One round: cases that are played at the same time, each at a destination and a receiver of its own.

use std::{fs::File, sync::Arc, time::Duration};

use anyhow::Context;
use hyper::Method;
use serde_json::{Value, json};

use super::{
    case::{Case, Setting},
    relay::Relay,
    servers::{Receivers, path},
    verdict::Played,
};
use crate::{
    client::{MakeBody, Until, closed_loop},
    clock::now,
    figures::batch,
    run::api::Api,
};

/// Events in one request.
const BATCH: u64 = 500;
const CONNECTIONS: usize = 4;
/// More events than can be sent, so a backlog waits until the end.
const SPARE_S: u64 = 5;
/// The time in which the load of the backlog ends in Weir and its store.
const SETTLE: Duration = Duration::from_secs(2);

/// A case with its destination.
struct Prepared {
    case: Case,
    relay: Relay,
    destination: String,
    events: u64,
}

/// Plays the cases for this time. A case whose settings Weir refuses has an error.
pub(super) async fn play(
    cases: &[Case],
    seconds: u64,
    api: &Api,
    log: &File,
) -> anyhow::Result<Vec<anyhow::Result<Played>>> {
    let receivers = Receivers::start(cases, log).await?;
    // Paused until every backlog is there, so that no load disturbs a case.
    let mut prepared = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let relay = Relay::to(receivers.address(number), case.jitter).await?;
        prepared.push(prepare(*case, number, relay, seconds, api).await);
    }
    tokio::time::sleep(SETTLE).await;
    for one in prepared.iter().flatten() {
        api.patch(&one.destination, &json!({"paused": false})).await?;
    }
    tokio::time::sleep(Duration::from_secs(seconds)).await;

    let mut played = Vec::new();
    for one in prepared {
        played.push(match one {
            Ok(one) => Ok(end(one, api).await?),
            Err(error) => Err(error),
        });
    }
    Ok(played)
}

async fn prepare(case: Case, number: usize, relay: Relay, seconds: u64, api: &Api) -> anyhow::Result<Prepared> {
    // The port of the relay tells the rounds apart.
    let event_type = format!("receivers.{}.{number}", relay.port());
    let mut settings = case.settings();
    settings["url"] = json!(format!("http://127.0.0.1:{}{}", relay.port(), path(number)));
    settings["name"] = json!(case.to_string());
    settings["event_types"] = json!([event_type]);
    settings["paused"] = json!(true);
    let destination = api.create_destination(&settings).await?;
    let events = match case.setting {
        // All of them shall arrive before the end.
        Setting::Unlimited => (case.limit.per_s() * seconds as f64 / 2.0) as u64,
        _ => (case.limit.per_s() * (seconds + SPARE_S) as f64).ceil() as u64,
    };
    let body: MakeBody = Arc::new(move |part| batch(&event_type, part, BATCH.min(events - part * BATCH)));
    let until = Until::Sent(events.div_ceil(BATCH));
    closed_loop(api.address(), CONNECTIONS, until, "/v1/events/batch", body).await.context("cannot post events")?;
    Ok(Prepared { case, relay, destination, events })
}

/// Reads what has happened and deletes the destination.
async fn end(one: Prepared, api: &Api) -> anyhow::Result<Played> {
    let Prepared { case, relay, destination, events } = one;
    let (exchanges, ended) = (relay.exchanges(), now());
    let of_destination = format!("/v1/destinations/{destination}");
    let state: Value = api.ask(Method::GET, &of_destination, &Value::Null).await?;
    let dead = format!("/v1/deliveries?destination={destination}&state=dead&limit=200");
    let dead: Value = api.ask(Method::GET, &dead, &Value::Null).await?;
    api.delete(&destination).await?;
    Ok(Played {
        case,
        exchanges,
        ended,
        events,
        dead: dead["data"].as_array().map_or(0, Vec::len) as u64,
        stopped: stopped(&state),
    })
}

fn stopped(destination: &Value) -> Option<String> {
    let text = |name: &str| destination[name].as_str();
    let breaker =
        text("breaker_state").filter(|state| *state != "closed").map(|state| format!("the breaker is {state}"));
    let hold =
        text("held_until").map(|until| format!("held until {until}: {}", text("held_reason").unwrap_or("no reason")));
    let pause = text("paused_reason").map(|reason| format!("paused: {reason}"));
    [breaker, hold, pause].into_iter().flatten().reduce(|all, one| format!("{all}; {one}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stops_a_destination_is_told_in_the_words_of_the_api() {
        let free = json!({"breaker_state": "closed", "held_until": null, "paused_reason": null});
        assert_eq!(stopped(&free), None);
        let held =
            json!({"breaker_state": "open", "held_until": "2026-01-01T00:00:00.000Z", "held_reason": "retry-after"});
        let told = "the breaker is open; held until 2026-01-01T00:00:00.000Z: retry-after";
        assert_eq!(stopped(&held).as_deref(), Some(told));
    }
}
