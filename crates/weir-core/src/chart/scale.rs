//! Scales and ticks: the map from values to positions, and which values get a label.

use crate::time::Timestamp;

/// A linear map from values to positions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub(super) from: (f64, f64),
    pub(super) to: (f64, f64),
}

impl Scale {
    /// The position of a value. A value outside the scale lies on the edge.
    pub(super) fn position(&self, value: f64) -> f64 {
        let share = ((value - self.from.0) / (self.from.1 - self.from.0)).clamp(0.0, 1.0);
        self.to.0 + share * (self.to.1 - self.to.0)
    }
}

/// Round counts from 0 to at least `highest`, about five of them.
pub(super) fn count_ticks(highest: u64) -> Vec<u64> {
    let rough = highest.div_ceil(4).max(1);
    let magnitude = 10_u64.pow(rough.ilog10());
    let step = [1, 2, 5, 10].map(|factor| factor * magnitude).into_iter().find(|step| *step >= rough).unwrap_or(rough);
    (0..=highest.div_ceil(step).max(1)).map(|n| n * step).collect()
}

/// Steps between time labels in milliseconds. Each divides the next larger unit of the clock.
const STEPS_MS: [i64; 17] = [
    1_000,
    2_000,
    5_000,
    10_000,
    30_000,
    60_000,
    120_000,
    300_000,
    600_000,
    1_800_000,
    3_600_000,
    7_200_000,
    21_600_000,
    43_200_000,
    86_400_000,
    604_800_000,
    2_592_000_000,
];

/// Round times between two instants, at most nine, with their labels.
pub(super) fn time_ticks(from_ms: i64, until_ms: i64) -> Vec<(i64, String)> {
    let span = (until_ms - from_ms).max(1);
    let step = STEPS_MS.into_iter().find(|step| span / step <= 8).unwrap_or(span / 8);
    let first = from_ms.div_euclid(step) * step;
    let inside = (0..=10).map(|n| first + n * step).filter(|at| (from_ms..=until_ms).contains(at));
    inside.map(|at| (at, label(at, step, span))).collect()
}

fn label(at_ms: i64, step: i64, span: i64) -> String {
    // `2025-11-21T07:30:00.000Z`
    let shown = Timestamp::from_millis(at_ms).to_string();
    let (day, clock) = shown.split_once('T').unwrap_or((&shown, ""));
    let (seconds, minutes) = (clock.get(..8).unwrap_or(clock), clock.get(..5).unwrap_or(clock));
    match (step, span) {
        (86_400_000.., _) => day.to_owned(),
        (_, 86_400_001..) => format!("{} {minutes}", day.get(5..).unwrap_or(day)),
        (60_000.., _) => minutes.to_owned(),
        _ => seconds.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_get_ticks_in_round_steps_up_to_the_highest() {
        assert_eq!(count_ticks(1), [0, 1]);
        assert_eq!(count_ticks(10), [0, 5, 10]);
        assert_eq!(count_ticks(1_000), [0, 500, 1_000]);
        assert_eq!(count_ticks(11), [0, 5, 10, 15]);
        for highest in 1..3_000 {
            let ticks = count_ticks(highest);
            assert!((2..=6).contains(&ticks.len()) && ticks[ticks.len() - 1] >= highest, "{highest}: {ticks:?}");
        }
    }

    #[test]
    fn times_get_ticks_at_whole_units_of_the_clock() {
        let ticks = time_ticks(1_763_710_203_000, 1_763_710_223_000);
        let labels: Vec<_> = ticks.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(labels, ["07:30:05", "07:30:10", "07:30:15", "07:30:20"]);
        let year = time_ticks(1_763_710_203_000, 1_763_710_203_000 + 365 * 86_400_000);
        assert!((2..=10).contains(&year.len()), "{year:?}");
    }

    #[test]
    fn values_outside_a_scale_lie_on_its_edge() {
        let scale = Scale { from: (0.0, 10.0), to: (100.0, 0.0) };
        assert_eq!([-1.0, 5.0, 11.0].map(|value| scale.position(value)), [100.0, 50.0, 0.0]);
    }
}
