//! The chart of sends a second and a limit that changes.

use serde::{Deserialize, Serialize};
use weir_chart::{Axis, Chart, Color, Element, Panel, Plot, Stroke, stairs};

const SIZE: (f64, f64) = (960.0, 300.0);
/// Space above the highest value, for the labels of the limits.
const HEADROOM: f64 = 1.15;

/// The data of the chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sends {
    pub(crate) bucket_s: f64,
    /// Arrivals a second in each bucket.
    pub(crate) per_s: Vec<f64>,
    /// The limits: when each began, in seconds, and its rate.
    pub(crate) caps: Vec<(f64, f64)>,
}

pub(crate) fn draw(sends: &Sends) -> String {
    let Sends { bucket_s, per_s, caps } = sends;
    let length_s = (per_s.len() as f64 * bucket_s).max(1.0);
    let highest = caps.iter().map(|(_, cap)| *cap).chain(per_s.iter().copied()).fold(1.0, f64::max);
    // Each bucket lasts until the next one, and each limit until the next edit.
    let bucket = |(n, per_s): (usize, &f64)| (n as f64 * bucket_s, (n + 1) as f64 * bucket_s, Some(*per_s));
    let cap = |(n, &(from_s, cap)): (usize, &(f64, f64))| {
        let until_s = caps.get(n + 1).map_or(length_s, |(next_s, _)| *next_s);
        (from_s, until_s, Some(cap))
    };

    // The arrivals are areas, the limits are lines with labels.
    let areas = stairs(per_s.iter().enumerate().map(bucket)).into_iter().map(|area| Element::Area(Color::Blue, area));
    let lines = stairs(caps.iter().enumerate().map(cap)).into_iter();
    let lines = lines.map(|line| Element::Line(Color::Red, Stroke::Solid, line));
    let labels = caps
        .iter()
        .map(|&(from_s, cap)| Element::Label(Color::Red, (from_s + length_s * 0.025, cap), format!("cap {cap:.0}/s")));
    let plot = Plot {
        x: Axis::linear(length_s, 10, |s| format!("{s} s")),
        y: Axis::linear(highest * HEADROOM, 6, |per_s| format!("{per_s}/s")),
        elements: areas.chain(lines).chain(labels).collect(),
    };
    Chart::of(SIZE.0, Panel::of(SIZE.1, plot)).to_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_shows_the_sends_and_each_limit() {
        let sends =
            Sends { bucket_s: 0.5, per_s: vec![99.0, 100.0, 298.0, 300.0], caps: vec![(0.0, 100.0), (1.0, 300.0)] };
        let svg = draw(&sends);
        for part in ["class=\"blue area\"", "class=\"red line\"", ">cap 100/s<", ">cap 300/s<"] {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
        assert!(draw(&Sends { bucket_s: 0.5, per_s: Vec::new(), caps: Vec::new() }).contains("</svg>"));
    }
}
