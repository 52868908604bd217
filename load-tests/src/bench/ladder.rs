//! A backlog that drains while its limit is raised and lowered: the chart, and the judgement of every window.

use std::time::Duration;

use weir_core::Timestamp;

use super::{
    figure::{Figure, Unit},
    picture::Sends,
    recorded::Recorder,
    results::Measured,
    rig::Rig,
};

const STEPS_PER_S: [u32; 5] = [100, 300, 50, 500, 200];
const STEP_S: u64 = 5;
const BUCKET: Duration = Duration::from_millis(500);

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let running = rig.engine().await?;
    let mut recorder = Recorder::start().await?;
    let event_type = recorder.destination(&running, STEPS_PER_S[0]).await?;
    let step = rig.span(STEP_S);
    // The backlog is larger than what the steps can send: each step has a second to spare.
    let most: u32 = STEPS_PER_S.iter().sum();
    running.load(&event_type, u64::from(most) * (step.as_secs() + 1)).await?;

    // Resume the destination and edit its limit after each step. In the chart a limit begins with the answer to its
    // edit.
    recorder.pause(&running, false).await?;
    let mut caps = vec![(recorder.now(), f64::from(STEPS_PER_S[0]))];
    tokio::time::sleep(step).await;
    for per_s in &STEPS_PER_S[1..] {
        let (_, answered) = recorder.edit(&running, 0, *per_s).await?;
        caps.push((answered, f64::from(*per_s)));
        tokio::time::sleep(step).await;
    }
    let ended = recorder.now();

    // Pause, and wait for the sends in flight.
    recorder.pause(&running, true).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let recorded = recorder.finish(&running).await?;
    running.end().await?;

    // Judge every window, as in the scenarios, and keep the data of the chart.
    let (judged, breaches) = recorded.judge(0)?;
    let above = (judged.violations + judged.recorded_violations) as f64;
    let figure = Figure::new("ladder", "sends above the cap of the picture, in any window", Unit::Count, above);
    let measured = Measured { sends: Some(sends(&recorded.arrivals(0), &caps, ended)), ..Measured::of([figure]) };
    Ok(measured.judged(breaches))
}

/// The data of the chart, from the first limit to the end.
fn sends(arrivals: &[Timestamp], caps: &[(Timestamp, f64)], ended: Timestamp) -> Sends {
    let began = caps.first().map_or(ended, |(at, _)| *at);
    let bucket_of = |at: Timestamp| (at.since(began).as_nanos() / BUCKET.as_nanos()) as usize;
    let mut counts = vec![0_u32; bucket_of(ended)];
    for arrival in arrivals.iter().filter(|arrival| **arrival >= began) {
        if let Some(count) = counts.get_mut(bucket_of(*arrival)) {
            *count += 1;
        }
    }
    Sends {
        bucket_s: BUCKET.as_secs_f64(),
        per_s: counts.into_iter().map(|count| f64::from(count) / BUCKET.as_secs_f64()).collect(),
        caps: caps.iter().map(|(at, cap)| (at.since(began).as_secs_f64(), *cap)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_counted_from_the_first_limit_to_the_end() {
        let at = Timestamp::from_millis;
        let arrivals = [900, 1_000, 1_499, 1_500, 2_600].map(at);
        let sends = sends(&arrivals, &[(at(1_000), 10.0), (at(1_750), 20.0)], at(2_100));
        assert_eq!(sends.per_s, [4.0, 2.0]);
        assert_eq!(sends.caps, [(0.0, 10.0), (0.75, 20.0)]);
    }
}
