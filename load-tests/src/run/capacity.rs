//! The rate that a machine can take, measured right before the overload. A multiple of this rate is an overload on
//! every machine; a fixed rate would be one only on some.

use anyhow::ensure;

use crate::{
    recording::Recording,
    scenario::{Expect, Publish, ReceiverBehavior, Scenario},
};

/// Enough for several seconds, so the slower start has little weight.
const EVENTS: u64 = 40_000;
const WITHIN_S: f64 = 120.0;

/// A scenario that posts the same events to the same destinations as fast as they are answered, until all have arrived.
pub(crate) fn scenario(of: &Scenario, publish: &Publish) -> Scenario {
    let mut destinations = of.destinations.clone();
    destinations.retain(|group| publish.to.contains(&group.name));
    for group in &mut destinations {
        (group.behavior, group.expect) = (ReceiverBehavior::Ok, Expect::default());
    }
    let burst = Publish { burst: Some(EVENTS), overload: None, from_s: 0.0, until_s: None, ..publish.clone() };
    Scenario {
        publish_s: 0.0,
        drain_within_s: WITHIN_S,
        destinations,
        publish: vec![burst],
        steps: Vec::new(),
        ..of.clone()
    }
}

/// Events a second, from the first post to the last arrival.
pub(crate) fn per_second(recording: &Recording) -> anyhow::Result<f64> {
    let last = recording.arrivals.iter().flatten().map(|arrival| arrival.at).max();
    let took_s = last.map_or(0.0, |last| last.since(recording.began).as_secs_f64());
    ensure!(recording.drained.is_some() && took_s > 0.0, "the rate that the machine can take could not be measured");
    Ok(recording.events.len() as f64 / took_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capacity_is_measured_on_the_overloaded_destinations_only() {
        let overload = Scenario::named("overload").unwrap();
        let measured = scenario(&overload, &overload.publish[0]);
        assert_eq!(measured.destinations.len(), 1);
        assert_eq!(measured.destinations[0].settings, overload.destinations[0].settings);
        assert_eq!((measured.publish.len(), measured.publish[0].burst), (1, Some(EVENTS)));
        assert!(measured.publish[0].overload.is_none() && measured.steps.is_empty());
    }
}
