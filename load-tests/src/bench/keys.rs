//! CPU time for each delivery depending on the number of busy limit keys: the same events at the same rate at one
//! destination, with more keys.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use serde_json::json;

use super::{
    cost::{Cost, compared, figures_of, median_all},
    results::Measured,
    rig::{CONNECTIONS, MAX_IN_FLIGHT, RECORDED_WITHIN, Rig, SETTLE},
};
use crate::{
    client::{MakeBody, open_loop},
    figures::keyed_data,
};

const KEYS: [u64; 3] = [1, 1_000, 10_000];
/// The limits of the destination and of each key: above the rate of all deliveries together, so they never bind.
const LIMIT_PER_S: u32 = 100_000;
const BATCH: u64 = 20;
const BATCHES_PER_S: u32 = 50;
const REPEATS: usize = 3;
/// In a repeat each of 10,000 keys has an event.
const SECONDS: u64 = 10;

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let mut figures = Vec::new();
    let mut medians = Vec::new();
    for keys in KEYS {
        let keys = if rig.brief { keys.min(1_000) } else { keys };
        let repeats = cost(rig, keys).await.with_context(|| format!("{keys} keys"))?;
        figures.extend(figures_of(rig, keys, if keys == 1 { "key" } else { "keys" }, &repeats));
        medians.extend(median_all(&repeats).map(|cost| (keys, cost)));
    }
    figures.extend(compared("many_against_one", "10,000 keys against one", &medians, [10_000, 1]));
    Ok(Measured::of(figures))
}

async fn cost(rig: &Rig, keys: u64) -> anyhow::Result<Vec<Cost>> {
    let running = rig.engine().await?;
    let url = rig.receiver.url();
    let limits = json!([{"limit": LIMIT_PER_S, "period": "second"}]);
    let settings = json!({
        "url": url, "event_types": ["bench"], "max_in_flight": MAX_IN_FLIGHT, "rate_limits": limits,
        "key_limits": {"key": "/key", "rate_limits": limits},
    });
    running.create_many(1, move |_| settings.clone()).await?;
    let every = Duration::from_secs(1) / BATCHES_PER_S;
    let post = async |batches: u32| {
        rig.receiver.reset(false);
        open_loop(running.engine.address(), CONNECTIONS, every, batches, "/v1/events/batch", bodies(keys)).await?;
        rig.receiver.all_arrived(u64::from(batches) * BATCH).await
    };
    // The first sends of the destination are not measured.
    post(BATCHES_PER_S).await?;
    running.tidy().await?;
    tokio::time::sleep(SETTLE).await;
    let mut costs = Vec::new();
    for _ in 0..rig.repeats(REPEATS) {
        let batches = BATCHES_PER_S * rig.seconds(SECONDS) as u32;
        let before = running.cpu()?;
        post(batches).await?;
        // The recording of the last results is part of the cost.
        tokio::time::sleep(RECORDED_WITHIN).await;
        costs.push(Cost::between(before, running.cpu()?, u64::from(batches) * BATCH));
    }
    running.end().await?;
    Ok(costs)
}

/// Batches whose events have the keys in turn.
fn bodies(keys: u64) -> MakeBody {
    Arc::new(move |batch| {
        let event = |number: u64| {
            format!(r#"{{"type":"bench","data":{}}}"#, keyed_data(number, &format!("key-{}", number % keys)))
        };
        let events: Vec<_> = (batch * BATCH..(batch + 1) * BATCH).map(event).collect();
        format!(r#"{{"events":[{}]}}"#, events.join(",")).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_keys_in_turn() {
        let batch: serde_json::Value = serde_json::from_slice(&bodies(3)(1)).unwrap();
        let key = |event: usize| batch["events"][event]["data"]["key"].clone();
        assert_eq!((key(0), key(1)), ("key-2".into(), "key-0".into()));
    }
}
