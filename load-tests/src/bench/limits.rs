//! How much of each limit is used while there is a backlog, and whether a limit is exceeded, by the judge of the
//! scenarios.

use std::time::Duration;

use super::{
    figure::{Figure, Unit},
    recorded::{Recorded, Recorder},
    results::Measured,
    rig::Rig,
};

/// Limits that are measured at the same time: together no more than the machine can take.
const TOGETHER: [&[u32]; 2] = [&[1, 2, 5, 10, 50, 100, 500, 1_000], &[2_000]];
const SECONDS: u64 = 20;
/// The time for the results of sends that are in flight when the destinations are paused.
const RECORDED_WITHIN: Duration = Duration::from_millis(800);

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let mut figures = Vec::new();
    let mut breaches = Vec::new();
    let (mut fullest, mut above) = (0.0_f64, 0);
    for limits in TOGETHER {
        // The limits of a group are measured at the same time, each at a destination of its own.
        let recorded = record(rig, limits).await?;
        for (number, limit) in limits.iter().enumerate() {
            let (judged, broken) = recorded.judge(number)?;
            breaches.extend(broken);
            // The fullest window is that of Weir's record. The remark adds the one at the receiver.
            let in_record = judged.recorded_worst_sliding.unwrap_or_default();
            fullest = fullest.max(in_record as f64 / f64::from(*limit));
            above += judged.violations + judged.recorded_violations;
            let used = judged.utilisation.unwrap_or_default();
            let remark = format!("fullest window {in_record}, at the receiver {}", judged.worst_sliding);
            figures.push(
                Figure::new(format!("used.{limit}"), format!("{limit}/s, used"), Unit::Share, used).remark(remark),
            );
        }
    }
    figures.push(Figure::new("fullest", "the fullest window ÷ its limit", Unit::Share, fullest));
    figures.push(Figure::new("above", "sends above a limit, in any window", Unit::Count, above as f64));
    Ok(Measured::of(figures).judged(breaches))
}

async fn record(rig: &Rig, limits: &[u32]) -> anyhow::Result<Recorded> {
    let running = rig.engine().await?;
    let mut recorder = Recorder::start().await?;
    let seconds = rig.seconds(SECONDS);
    for limit in limits {
        let event_type = recorder.destination(&running, *limit).await?;
        // More than can be sent, so there is a backlog until the end.
        running.load(&event_type, u64::from(*limit) * (seconds + 2)).await?;
    }
    running.tidy().await?;
    recorder.pause(&running, false).await?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    recorder.pause(&running, true).await?;
    tokio::time::sleep(RECORDED_WITHIN).await;
    let recorded = recorder.finish(&running).await?;
    running.end().await?;
    Ok(recorded)
}
