//! CPU time and memory of many idle destinations.

use std::time::Duration;

use hyper::Method;
use serde_json::json;

use super::{
    cost::thousands,
    figure::{Figure, Unit},
    results::Measured,
    rig::{Rig, SETTLE},
};
use crate::clock::now;

const DESTINATIONS: u64 = 100_000;
/// Weir creates the destinations of one tenant one after the other, and those of different tenants in parallel.
const TENANTS: u64 = 50;
const SECONDS: u64 = 10;

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let running = rig.engine().await?;
    let before_mib = running.engine.rss_mib()?;
    let (count, url) = (rig.count(DESTINATIONS), rig.receiver.url());
    // Create the destinations. With many tenants Weir creates them in parallel.
    let started = now();
    let settings = move |number: u64| {
        json!({
            "url": url, "tenant": format!("t{}", number % TENANTS), "event_types": ["idle"],
            "rate_limits": [{"limit": 10, "period": "second"}],
        })
    };
    running.create_many(count, settings).await?;
    let made_per_s = count as f64 / now().duration_since(started).as_secs_f64();

    // Send one event to each destination, so that all have been active and are idle again.
    rig.receiver.reset(false);
    let mut sent = 0;
    for tenant in 0..TENANTS {
        let event = json!({"type": "idle", "tenant": format!("t{tenant}"), "data": null});
        running.engine.ask(Method::POST, "/v1/events", event).await?;
        // Send to one tenant after the other, because this topic does not measure 100,000 destinations that are active
        // at once.
        sent += (tenant..count).step_by(TENANTS as usize).count() as u64;
        rig.receiver.all_arrived(sent).await?;
    }
    // Background work of the sends must not be part of the measurement.
    running.tidy().await?;
    tokio::time::sleep(SETTLE + Duration::from_secs(3)).await;

    // Nothing is sent during the span.
    let (before, span) = (running.cpu()?, rig.span(SECONDS));
    tokio::time::sleep(span).await;
    let after = running.cpu()?;
    let over = format!("{} idle, over {} s", thousands(count), span.as_secs());
    let mut figures = vec![
        Figure::new("cpu", format!("{over}, weir"), Unit::CpuS, after.weir_s - before.weir_s),
        Figure::new(
            "memory",
            format!("{} idle, resident memory of weir", thousands(count)),
            Unit::MiB,
            running.engine.rss_mib()?,
        ),
        Figure::new("memory_before", "resident memory of weir with none", Unit::MiB, before_mib),
        Figure::new("made", "destinations made", Unit::PerSecond, made_per_s),
    ];
    if let Some(servers) = &rig.servers {
        let all = Figure::new(
            "cpu_all",
            format!("{over}, weir, PostgreSQL and Redis"),
            Unit::CpuS,
            after.all_s - before.all_s,
        );
        figures.insert(1, all);
        figures.push(Figure::new("redis", "memory of Redis", Unit::MiB, servers.redis_mib().await?));
    }
    running.end().await?;
    Ok(Measured::of(figures))
}
