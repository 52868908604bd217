//! The charts of a run: sends and the limit, fullness of windows, latency of events, and the backlog.

use weir_chart::{Axis, Chart, Color, Element, Panel, Plot, Point, Stroke, stairs};

use crate::judge::series::{GroupPictures, Pictures};

const WIDE: (f64, f64) = (1_160.0, 190.0);
const MAIN: (f64, f64) = (560.0, 230.0);
const SMALL: (f64, f64) = (290.0, 230.0);
/// A limit above this many times the highest send rate is not drawn, because the sends would be invisible below it.
const FAR_CAP: f64 = 8.0;
/// Space above the highest value.
const HEADROOM: f64 = 1.18;
/// Labels of an axis, at most one more.
const WIDE_LABELS: usize = 15;
const MAIN_LABELS: usize = 10;
const FEW_LABELS: usize = 5;

pub(super) struct Picture {
    /// The group; `None` for a chart of all groups.
    pub(super) group: Option<String>,
    pub(super) title: String,
    pub(super) svg: String,
}

pub(super) fn all(pictures: &Pictures) -> Vec<Picture> {
    let mut all = vec![picture(None, "Owed and not yet delivered".to_owned(), WIDE, backlog(pictures))];
    for group in &pictures.groups {
        let name = || Some(group.name.clone());
        if group.sends_per_s.iter().any(|sends| *sends > 0.0) {
            all.push(picture(name(), sends_title(group), MAIN, sends(pictures, group)));
        }
        if !group.fullness.is_empty() {
            all.push(picture(name(), "Fullness of windows".to_owned(), SMALL, fullness(group)));
        }
        if !group.latency.is_empty() {
            all.push(picture(name(), "Latency of events".to_owned(), SMALL, latency(group)));
        }
    }
    all
}

fn picture(group: Option<String>, title: String, (width, height): (f64, f64), plot: Plot) -> Picture {
    Picture { group, title, svg: Chart::of(width, Panel::of(height, plot)).inline() }
}

fn seconds(length_s: f64, labels: usize) -> Axis {
    Axis::linear(length_s, labels, whole).named("seconds since the beginning")
}

/// Begins at zero and is never empty.
fn heights(highest: f64, name: &str) -> Axis {
    Axis::linear(highest.max(1e-3) * HEADROOM, FEW_LABELS, whole).named(name)
}

fn whole(value: f64) -> String {
    if value >= 10.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// A line for each step of the scenario, with its label beside it.
fn marks(pictures: &Pictures) -> impl Iterator<Item = Element> {
    pictures.marks.iter().map(|(at_s, what)| Element::Mark(Color::Amber, *at_s, what.clone()))
}

fn areas(values: impl Iterator<Item = f64>, bucket_s: f64) -> impl Iterator<Item = Element> {
    stretches(values.map(Some), bucket_s).into_iter().map(|area| Element::Area(Color::Blue, area))
}

/// One line for each run of buckets with a value.
fn stretches(values: impl Iterator<Item = Option<f64>>, bucket_s: f64) -> Vec<Vec<Point>> {
    stairs(values.enumerate().map(|(n, value)| (n as f64 * bucket_s, (n + 1) as f64 * bucket_s, value)))
}

fn most_of(group: &GroupPictures) -> f64 {
    group.sends_per_s.iter().copied().fold(0.0, f64::max)
}

/// The limits that are low enough to be shown beside the sends.
fn near(group: &GroupPictures, caps: &[Option<f64>]) -> Vec<Option<f64>> {
    let most = most_of(group);
    caps.iter().map(|cap| cap.filter(|cap| *cap <= most * FAR_CAP)).collect()
}

fn is_apart(group: &GroupPictures) -> bool {
    group.pace_per_s != group.cap_per_s
}

fn sends_title(group: &GroupPictures) -> String {
    let is_any = |caps: &[Option<f64>]| caps.iter().any(Option::is_some);
    let cap = match (is_any(&group.cap_per_s), is_any(&near(group, &group.cap_per_s))) {
        (false, _) => ", no cap",
        (true, false) => ", far below the cap",
        (true, true) => " and the cap (red)",
    };
    let pace = if is_apart(group) && is_any(&group.pace_per_s) { ", with the long-term pace (dashed)" } else { "" };
    format!("Sends{cap}{pace}")
}

fn sends(pictures: &Pictures, group: &GroupPictures) -> Plot {
    let (caps, paces) = (near(group, &group.cap_per_s), near(group, &group.pace_per_s));
    let highest = caps.iter().flatten().copied().fold(most_of(group), f64::max);
    let mut elements: Vec<_> = areas(group.sends_per_s.iter().copied(), pictures.bucket_s).collect();
    let mut lines = |values: Vec<Option<f64>>, stroke| {
        let lines = stretches(values.into_iter(), pictures.bucket_s).into_iter();
        elements.extend(lines.map(|line| Element::Line(Color::Red, stroke, line)));
    };
    if is_apart(group) {
        lines(paces, Stroke::Dashed);
    }
    lines(caps, Stroke::Solid);
    elements.extend(marks(pictures));
    let length_s = group.sends_per_s.len() as f64 * pictures.bucket_s;
    Plot { x: seconds(length_s, MAIN_LABELS), y: heights(highest, "sends a second"), elements }
}

fn fullness(group: &GroupPictures) -> Plot {
    let all: u64 = group.fullness.iter().map(|(_, count)| count).sum();
    let share = |count: u64| count as f64 * 100.0 / all.max(1) as f64;
    let most = group.fullness.iter().map(|(_, count)| share(*count)).fold(0.0, f64::max);
    let fullest = group.fullness.last().map_or(0, |(percent, _)| *percent).max(110) as f64;
    let bars = group.fullness.iter().map(|(percent, count)| {
        let right = *percent as f64;
        let color = if *percent > 100 { Color::Red } else { Color::Blue };
        Element::Bar(color, (right - 4.5, right - 0.5), share(*count))
    });
    let limit = Element::Line(Color::Red, Stroke::Solid, vec![(100.0, 0.0), (100.0, most * HEADROOM)]);
    Plot {
        x: Axis::linear(fullest, FEW_LABELS, whole).named("% of the limit in a window"),
        y: heights(most, "% of windows"),
        elements: bars.chain([limit]).collect(),
    }
}

/// On a logarithmic axis, because the tail matters most.
fn latency(group: &GroupPictures) -> Plot {
    let decades = group.latency.iter().map(|(ms, _)| ms.max(0.01).log10());
    let first = decades.clone().fold(f64::MAX, f64::min).floor();
    let last = decades.fold(f64::MIN, f64::max).ceil().max(first + 1.0);
    let line = group.latency.iter().map(|(ms, share)| (*ms, *share * 100.0)).collect();
    let mut elements = vec![Element::Line(Color::Blue, Stroke::Solid, line)];
    for (quantile, name) in [(0.5, "p50"), (0.99, "p99")] {
        let Some((ms, _)) = group.latency.iter().find(|(_, share)| *share >= quantile) else { continue };
        elements.push(Element::Dot(Color::Blue, (*ms, quantile * 100.0), format!("{name} {}", describe(*ms))));
    }
    let decade = |power: f64| 10_f64.powf(power);
    let x = Axis::logarithmic(decade(first), decade(last), |ms| format!("{}", ms as f32)).named("milliseconds");
    Plot { x, y: heights(100.0, "% of events within"), elements }
}

fn describe(ms: f64) -> String {
    match ms {
        ms if ms >= 10_000.0 => format!("{:.0} s", ms / 1_000.0),
        ms if ms >= 1_000.0 => format!("{:.1} s", ms / 1_000.0),
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms => format!("{ms:.1} ms"),
    }
}

fn backlog(pictures: &Pictures) -> Plot {
    let most = pictures.backlog.iter().map(|count| *count as f64).fold(0.0, f64::max);
    let length_s = pictures.backlog.len() as f64 * pictures.bucket_s;
    let areas = areas(pictures.backlog.iter().map(|count| *count as f64), pictures.bucket_s);
    let elements = areas.chain(marks(pictures)).collect();
    Plot { x: seconds(length_s, WIDE_LABELS), y: heights(most, "deliveries"), elements }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pictures() -> Pictures {
        let group = GroupPictures {
            name: "partner".to_owned(),
            sends_per_s: vec![1.0, 2.0, 0.0],
            cap_per_s: vec![Some(2.0), None, Some(4.0)],
            pace_per_s: vec![Some(2.0), None, Some(1.0)],
            fullness: vec![(50, 5), (100, 9)],
            latency: vec![(0.4, 0.0), (2.0, 0.5), (90.0, 1.0)],
        };
        let marks = vec![(1.5, "kill <worker>".to_owned())];
        Pictures { bucket_s: 1.0, backlog: vec![3, 1, 0], marks, groups: vec![group] }
    }

    #[test]
    fn every_chart_is_drawn_without_external_resources() {
        let drawn = all(&pictures());
        assert_eq!(drawn.len(), 4);
        for Picture { title, svg, .. } in &drawn {
            assert!(svg.starts_with("<svg") && svg.contains("</svg>"), "{title}");
            assert!(!svg.contains("href") && !svg.contains("<worker>"), "{title}");
        }
        assert_eq!(all(&Pictures::default()).len(), 1);
    }

    #[test]
    fn axes_have_names_and_steps_are_marked() {
        let drawn = all(&pictures());
        for (svg, words) in
            [(&drawn[0].svg, "deliveries"), (&drawn[1].svg, "sends a second"), (&drawn[3].svg, "milliseconds")]
        {
            assert!(svg.contains(words), "{words}");
        }
        assert!(drawn[1].svg.contains("kill &lt;worker&gt;") && drawn[3].svg.contains("p50 2.0 ms"));
    }

    #[test]
    fn a_limit_is_not_drawn_after_its_end() {
        let lines = stretches([Some(2.0), None, Some(4.0), Some(5.0)].into_iter(), 1.0);
        assert_eq!(lines, [vec![(0.0, 2.0), (1.0, 2.0)], vec![(2.0, 4.0), (3.0, 4.0), (3.0, 5.0), (4.0, 5.0)]]);
    }
}
