//! The time from an edit of a limit to its effect at the receiver. The chart of sends under an edited limit is measured
//! with it.

use std::time::Duration;

use weir_core::Timestamp;

use super::{
    figure::{Figure, Unit},
    ladder,
    recorded::Recorder,
    results::Measured,
    rig::Rig,
};

const SLOW: u32 = 5;
const FAST: u32 = 100;
const REPEATS: usize = 8;
const SETTLED: Duration = Duration::from_millis(900);
/// The shift of each edit, so that edits occur at different phases of the pace.
const PHASE: Duration = Duration::from_millis(37);

/// One edit; `until` is the time of the next one.
#[derive(Debug, Clone, Copy)]
struct Edit {
    sent: Timestamp,
    answered: Timestamp,
    until: Timestamp,
    from_per_s: u32,
    to_per_s: u32,
}

pub(super) async fn measure(rig: &Rig) -> anyhow::Result<Measured> {
    let running = rig.engine().await?;
    let mut recorder = Recorder::start().await?;
    let event_type = recorder.destination(&running, SLOW).await?;
    // Load more events than can be sent during the edits, then resume the destination.
    let repeats = rig.repeats(REPEATS);
    running.load(&event_type, u64::from(FAST) * 2 * repeats as u64).await?;
    recorder.pause(&running, false).await?;
    tokio::time::sleep(SETTLED).await;

    // Edit up and down in turn. Each edit has time to take effect before the next one.
    let mut edits: Vec<Edit> = Vec::new();
    for number in 0..repeats * 2 {
        let (from_per_s, to_per_s) = if number % 2 == 0 { (SLOW, FAST) } else { (FAST, SLOW) };
        let (sent, answered) = recorder.edit(&running, 0, to_per_s).await?;
        tokio::time::sleep(SETTLED + PHASE * number as u32).await;
        edits.push(Edit { sent, answered, until: recorder.now(), from_per_s, to_per_s });
    }
    // The arrivals are complete only when nothing is sent any more.
    recorder.pause(&running, true).await?;
    let recorded = recorder.finish(&running).await?;
    let arrivals = recorded.arrivals(0);
    running.end().await?;

    // Find in the arrivals when each edit took effect.
    let mut figures = Vec::new();
    for (id, what, to_per_s) in [("up", "5/s to 100/s", FAST), ("down", "100/s to 5/s", SLOW)] {
        let seen: Vec<_> = edits
            .iter()
            .filter(|edit| edit.to_per_s == to_per_s)
            .filter_map(|edit| Some((edit, effect(&arrivals, edit)?)))
            .collect();
        // The milliseconds until the effect, from the sending of each edit or from its answer.
        let since = |start: fn(&Edit) -> Timestamp| {
            let ms = |(edit, at): &(&Edit, Timestamp)| at.since(start(edit)).as_secs_f64() * 1e3;
            seen.iter().map(ms).collect::<Vec<_>>()
        };
        let (from_sent, from_answer) = (since(|edit| edit.sent), since(|edit| edit.answered));
        // Without the edits that had no effect, the figures would look too good.
        let missed = repeats - seen.len();
        anyhow::ensure!(missed == 0, "{missed} of {repeats} edits {what} had no effect before the next edit");
        figures.extend(Figure::of("median", format!("{what}, from the sending of the PATCH"), Unit::Ms, &from_sent));
        figures.extend(Figure::of("median", format!("{what}, from its answer"), Unit::Ms, &from_answer));
        let worst = from_sent.iter().copied().fold(0.0, f64::max);
        figures.push(Figure::new(
            format!("worst.{id}"),
            format!("{what}, from its sending, the worst"),
            Unit::Ms,
            worst,
        ));
    }
    // The chart is measured with an engine of its own.
    let ladder = ladder::measure(rig).await?;
    figures.extend(ladder.figures);
    Ok(Measured { figures, remarks: ladder.remarks, sends: ladder.sends })
}

/// The time at which an edit takes effect, counted only after its request. When the pace becomes faster, this is the
/// first arrival that the slower pace would not have allowed yet. When the pace becomes slower, this is the last
/// arrival that is closer to the one before than the slower pace allows.
fn effect(arrivals: &[Timestamp], edit: &Edit) -> Option<Timestamp> {
    let is_faster = edit.to_per_s > edit.from_per_s;
    let pace = Duration::from_secs(1) / edit.from_per_s.min(edit.to_per_s);
    // The factor is for arrivals that come a few milliseconds after their send.
    let mut close = arrivals
        .windows(2)
        .filter(|pair| edit.sent <= pair[1] && pair[1] < edit.until && pair[1].since(pair[0]) < pace.mul_f64(0.9));
    match is_faster {
        true => close.next().map(|pair| pair[1]),
        // If no arrival is too close to the one before, the edit took effect before the next send.
        false => Some(close.next_back().map_or(edit.sent, |pair| pair[1])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn edit(sent_ms: i64, from_per_s: u32, to_per_s: u32) -> Edit {
        Edit { sent: at(sent_ms), answered: at(sent_ms + 2), until: at(sent_ms + 1_000), from_per_s, to_per_s }
    }

    #[test]
    fn a_faster_pace_takes_effect_at_the_first_arrival_that_the_old_pace_forbids() {
        let arrivals = [0, 200, 400, 425, 435, 445].map(at);
        assert_eq!(effect(&arrivals, &edit(410, 5, 100)), Some(at(425)));
        // The old pace allows the arrival at 400 ms.
        assert_eq!(effect(&arrivals, &edit(390, 5, 100)), Some(at(425)));
        assert_eq!(effect(&arrivals[..3], &edit(390, 5, 100)), None);
    }

    #[test]
    fn a_slower_pace_takes_effect_at_the_last_arrival_that_the_new_pace_forbids() {
        let arrivals = [0, 10, 20, 30, 40, 230, 430].map(at);
        assert_eq!(effect(&arrivals, &edit(15, 100, 5)), Some(at(40)));
        assert_eq!(effect(&arrivals, &edit(45, 100, 5)), Some(at(45)), "at once");
    }
}
