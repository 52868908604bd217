//! The chart of a run: load, workers and lag over the same time.

use weir_chart::{Axis, Chart, Color, Content, Element, Key, Panel, Plot, Point, Stroke, stairs};

use super::trace::Trace;

const WIDTH: f64 = 960.0;
const PANEL: f64 = 214.0;
/// Space above the highest value.
const HEADROOM: f64 = 1.25;
/// The promised lag in milliseconds.
const PROMISED_MS: f64 = 250.0;
/// The lowest lag shown.
const FLOOR_MS: f64 = 0.1;

/// A line with its colour and its name.
struct Line {
    points: Vec<Point>,
    color: Color,
    name: &'static str,
}

pub(super) fn draw(trace: &Trace) -> String {
    let length_s = trace.replicas.last().map_or(1.0, |(at, _)| *at).max(1.0);
    // The three panels: the load, the number of workers, and the start lag.
    let load = vec![
        Line { points: steps(&trace.offered), color: Color::Grey, name: "offered" },
        Line { points: steps(&trace.started), color: Color::Blue, name: "started" },
    ];
    let workers = vec![
        Line { points: steps(&numbers(&trace.replicas)), color: Color::Red, name: "wanted" },
        Line { points: steps(&numbers(&trace.ready)), color: Color::Green, name: "ready" },
    ];
    // The axis of lag is logarithmic, so it has a lowest value above 0.
    let above_floor = |series: &[Point]| series.iter().map(|(at, ms)| (*at, ms.max(FLOOR_MS))).collect();
    let lag = vec![
        Line { points: vec![(0.0, PROMISED_MS), (length_s, PROMISED_MS)], color: Color::Red, name: "promised" },
        Line { points: above_floor(&trace.late_ms), color: Color::Green, name: "measured by receivers" },
        Line { points: above_floor(&trace.lag_ms), color: Color::Blue, name: "measured by Weir" },
    ];

    // The axes: counts from 0, and the lag up to 2 s or more.
    let slowest = highest(&lag).max(1_000.0) * 2.0;
    let in_time = |ms: f64| if ms < 1_000.0 { format!("{ms} ms") } else { format!("{} s", ms / 1_000.0) };
    let counts = |lines: &[Line]| Axis::linear(highest(lines) * HEADROOM, 5, |count| count.to_string());
    let panels = vec![
        panel("events a second", trace, length_s, counts(&load), load),
        panel("workers", trace, length_s, counts(&workers), workers),
        panel("start lag, p99", trace, length_s, Axis::logarithmic(FLOOR_MS, slowest, in_time), lag),
    ];
    Chart { width: WIDTH, title: String::new(), legend: Vec::new(), panels, values: None }.to_file()
}

fn highest(lines: &[Line]) -> f64 {
    lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y).fold(1.0, f64::max)
}

fn panel(title: &str, trace: &Trace, length_s: f64, y: Axis, lines: Vec<Line>) -> Panel {
    let stroke = Stroke::Solid;
    let legend =
        lines.iter().map(|&Line { name, color, .. }| Key { name: name.into(), color, stroke: Some(stroke) }).collect();
    let outages = trace.outages.iter().map(|(_, from_s, until_s)| Element::Band(Color::Grey, (*from_s, *until_s)));
    let lines = lines.into_iter().map(|line| Element::Line(line.color, stroke, line.points));
    let x = Axis::linear(length_s, 10, |s| format!("{s} s"));
    let content = Content::Plot(Plot { x, y, elements: outages.chain(lines).collect() });
    Panel { height: PANEL, title: title.to_owned(), note: String::new(), legend, content }
}

fn numbers(series: &[(f64, u32)]) -> Vec<Point> {
    series.iter().map(|(at, number)| (*at, f64::from(*number))).collect()
}

/// Keeps each value until the next.
fn steps(series: &[Point]) -> Vec<Point> {
    let ends = series.iter().skip(1).map(|(at, _)| *at).chain(series.last().map(|(at, _)| *at));
    stairs(series.iter().zip(ends).map(|((at, value), end)| (*at, end, Some(*value)))).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_shows_load_workers_and_lag() {
        let trace = Trace {
            replicas: vec![(0.0, 2), (10.0, 9), (20.0, 2)],
            ready: vec![(0.0, 2), (12.0, 9)],
            offered: vec![(0.0, 60.0), (10.0, 600.0)],
            lag_ms: vec![(0.0, 3.0), (10.0, 4_000.0), (20.0, 0.0)],
            outages: vec![(super::super::trace::Server::Redis, 4.0, 6.0)],
            ..Trace::default()
        };
        let svg = draw(&trace);
        for part in [">workers<", ">start lag, p99<", ">wanted<", ">1 s<", ">0.1 ms<", "class=\"grey band\""] {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
        assert!(draw(&Trace::default()).contains("</svg>"));
    }

    #[test]
    fn steps_keep_a_value_until_the_next() {
        assert_eq!(steps(&[(0.0, 1.0), (2.0, 3.0)]), [(0.0, 1.0), (2.0, 1.0), (2.0, 3.0), (2.0, 3.0)]);
        assert!(steps(&[]).is_empty());
    }
}
