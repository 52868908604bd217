//! Events a second over many destinations of one tenant that have a type each, against one destination: the work to find
//! the destinations of an event must not grow with their number.

use std::sync::Arc;

use anyhow::Context;
use serde_json::json;

use super::{
    figure::{Figure, Unit},
    results::Measured,
    rig::{BATCH, BATCH_CONNECTIONS, MAX_IN_FLIGHT, Rig, SETTLE},
};
use crate::{
    client::{MakeBody, Until, closed_loop},
    figures::data,
};

const MANY: u64 = 100_000;
/// Copies of the only destination, with a type each. On PostgreSQL each creation counts the destinations of the tenant, so
/// that 100,000 of them would take longer than all other topics.
const COPIES: &str = "
INSERT INTO destinations SELECT copy.* FROM destinations one, generate_series(1, 99999) AS number,
    LATERAL jsonb_populate_record(NULL::destinations, to_jsonb(one) || jsonb_build_object('id', gen_random_uuid(),
        'version', nextval('destination_versions'), 'event_types', format('[\"order.shop%s.paid\"]', number))) AS copy";
const SECONDS: u64 = 5;

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let many = rig.count(MANY);
    let mut figures = Vec::new();
    for (id, types) in [("one", 1), ("many", many)] {
        let (accepted, delivered) = run(rig, types).await.with_context(|| format!("{types} types"))?;
        let figure = |id: &str, what: &str, per_s| {
            let what = format!("{types} destinations with a type each, batches of 100, {what}");
            Figure::new(id, what, Unit::PerSecond, per_s)
        };
        figures.push(figure(&format!("{id}_accepted"), "accepted while they were posted", accepted));
        figures.push(figure(id, "delivered", delivered));
    }
    Ok(Measured::of(figures))
}

/// Events a second that are accepted, and from the first post to the last arrival.
async fn run(rig: &Rig, types: u64) -> anyhow::Result<(f64, f64)> {
    let running = rig.engine().await?;
    let url = rig.receiver.url();
    let settings =
        move |number: u64| json!({"url": url, "event_types": [name(number)], "max_in_flight": MAX_IN_FLIGHT});
    match &running.on {
        Some((servers, database)) if types == MANY => {
            running.create_many(1, settings).await?;
            servers.run_in(database, COPIES).await?;
        }
        _ => drop(running.create_many(types, settings).await?),
    }
    running.tidy().await?;
    tokio::time::sleep(SETTLE).await;
    rig.receiver.reset(false);
    let until = Until::Elapsed(rig.span(SECONDS));
    let driven =
        closed_loop(running.engine.address(), BATCH_CONNECTIONS, until, "/v1/events/batch", bodies(types)).await?;
    let events = driven.answered * BATCH;
    let last = rig.receiver.all_arrived(events).await?;
    running.end().await?;
    let delivered = events as f64 / last.duration_since(driven.started).as_secs_f64();
    Ok((driven.per_second() * BATCH as f64, delivered))
}

fn name(number: u64) -> String {
    format!("order.shop{number}.paid")
}

/// Batches whose events have all types in turn, in an order in which none is remembered.
fn bodies(types: u64) -> MakeBody {
    /// Prime, so that every type has its turn.
    const STEP: u64 = 7_919;
    Arc::new(move |batch| {
        let event = |number: u64| {
            let of = name(number * STEP % types);
            format!(r#"{{"type":"{of}","data":{}}}"#, data(number))
        };
        let events: Vec<_> = (batch * BATCH..(batch + 1) * BATCH).map(event).collect();
        format!(r#"{{"events":[{}]}}"#, events.join(",")).into()
    })
}
