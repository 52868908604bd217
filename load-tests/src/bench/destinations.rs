//! CPU time for each delivery depending on the number of active destinations: the same deliveries at the same rate over
//! more of them.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use serde_json::json;

use super::{
    cost::{Cost, compared, figures_of, median_all},
    results::Measured,
    rig::{CONNECTIONS, MAX_IN_FLIGHT, RECORDED_WITHIN, Rig, Running, SETTLE},
};
use crate::{
    client::{MakeBody, Until, closed_loop, open_loop},
    figures::data,
};

const ACTIVE: [u64; 5] = [1, 10, 100, 1_000, 10_000];
/// The two numbers whose costs are compared.
const FEW: u64 = 10;
const MANY: u64 = 10_000;
/// Above the rate of all deliveries together, so it never binds.
const LIMIT_PER_S: u32 = 100_000;
const BATCH: u64 = 20;
const BATCHES_PER_S: u32 = 100;
const REPEATS: usize = 3;
const SECONDS: u64 = 5;

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let mut figures = Vec::new();
    let mut medians = Vec::new();
    for active in ACTIVE {
        let active = if rig.brief { active.min(1_000) } else { active };
        let repeats = cost(rig, active).await.with_context(|| format!("{active} destinations"))?;
        figures.extend(figures_of(rig, active, "active", &repeats));
        medians.extend(median_all(&repeats).map(|cost| (active, cost)));
    }
    figures.extend(compared("many_against_few", "10,000 active against 10", &medians, [MANY, FEW]));
    Ok(Measured::of(figures))
}

async fn cost(rig: &Rig, active: u64) -> anyhow::Result<Vec<Cost>> {
    let running = rig.engine().await?;
    let url = rig.receiver.url();
    let settings = json!({
        "url": url, "max_in_flight": MAX_IN_FLIGHT, "rate_limits": [{"limit": LIMIT_PER_S, "period": "second"}],
    });
    // Create the destinations and send to each once.
    let ids: Arc<[String]> = running.create_many(active, move |_| settings.clone()).await?.into();
    warm(rig, &running, &ids).await?;
    let mut costs = Vec::new();
    for _ in 0..rig.repeats(REPEATS) {
        // In each repeat post the same number of events at the same rate.
        rig.receiver.reset(false);
        let batches = BATCHES_PER_S * rig.seconds(SECONDS) as u32;
        let deliveries = u64::from(batches) * BATCH;
        let every = Duration::from_secs(1) / BATCHES_PER_S;
        let before = running.cpu()?;
        open_loop(running.engine.address(), CONNECTIONS, every, batches, "/v1/events/batch", bodies(&ids)).await?;
        rig.receiver.all_arrived(deliveries).await?;
        // The recording of the last results is part of the cost.
        tokio::time::sleep(RECORDED_WITHIN).await;
        costs.push(Cost::between(before, running.cpu()?, deliveries));
    }
    running.end().await?;
    Ok(costs)
}

/// Sends to each destination once, so that first sends are not measured.
async fn warm(rig: &Rig, running: &Running<'_>, ids: &Arc<[String]>) -> anyhow::Result<()> {
    rig.receiver.reset(false);
    let batches = (ids.len() as u64).max(2_000).div_ceil(BATCH);
    closed_loop(running.engine.address(), 8, Until::Sent(batches), "/v1/events/batch", bodies(ids)).await?;
    rig.receiver.all_arrived(batches * BATCH).await?;
    running.tidy().await?;
    tokio::time::sleep(SETTLE).await;
    Ok(())
}

/// Batches whose events go to the destinations in turn.
fn bodies(ids: &Arc<[String]>) -> MakeBody {
    let ids = Arc::clone(ids);
    Arc::new(move |batch| {
        let event = |number: u64| {
            let id = &ids[number as usize % ids.len()];
            format!(r#"{{"type":"bench","destinations":["{id}"],"data":{}}}"#, data(number))
        };
        let events: Vec<_> = (batch * BATCH..(batch + 1) * BATCH).map(event).collect();
        format!(r#"{{"events":[{}]}}"#, events.join(",")).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_go_to_the_destinations_in_turn() {
        let ids: Arc<[String]> = ["dst_a", "dst_b", "dst_c"].map(str::to_owned).into();
        let batch: serde_json::Value = serde_json::from_slice(&bodies(&ids)(1)).unwrap();
        assert_eq!(batch["events"].as_array().unwrap().len(), 20);
        assert_eq!(batch["events"][0]["destinations"][0], "dst_c");
        assert_eq!(batch["events"][1]["destinations"][0], "dst_a");
    }
}
