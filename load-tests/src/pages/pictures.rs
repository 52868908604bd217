//! The charts of a run, as SVG: sends and the limit, fullness of windows, latency of events, and the backlog.
//!
//! They have a transparent background and the colours of a light page. The page's style maps each colour value to one
//! for a dark page, so all colours are defined here.

use std::error::Error;

use anyhow::anyhow;
use plotters::{
    chart::{ChartBuilder, ChartContext},
    coord::{Shift, types::RangedCoordf64},
    element::{DashedPathElement, EmptyElement},
    prelude::{Cartesian2d, Circle, DrawingArea, IntoDrawingArea, PathElement, Rectangle, SVGBackend, Text},
    series::{AreaSeries, DashedLineSeries, LineSeries},
    style::{
        Color, IntoFont, RGBColor, ShapeStyle, TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

use crate::judge::series::{GroupPictures, Pictures};

const WIDE: (u32, u32) = (1_160, 190);
const MAIN: (u32, u32) = (560, 230);
const SMALL: (u32, u32) = (290, 230);
pub(super) const BLUE: RGBColor = RGBColor(9, 105, 218);
pub(super) const RED: RGBColor = RGBColor(207, 34, 46);
pub(super) const GREY: RGBColor = RGBColor(101, 109, 118);
pub(super) const AMBER: RGBColor = RGBColor(154, 103, 0);
/// A limit above this many times the highest send rate is not drawn, because the sends would be invisible below it.
const FAR_CAP: f64 = 8.0;
/// Space above the highest value.
const HEADROOM: f64 = 1.18;

pub(super) struct Picture {
    /// The group; `None` for a chart of all groups.
    pub(super) group: Option<String>,
    pub(super) title: String,
    pub(super) svg: String,
}

type DrawResult = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

pub(super) fn all(pictures: &Pictures) -> anyhow::Result<Vec<Picture>> {
    let mut all = vec![picture(None, "Owed and not yet delivered".to_owned(), WIDE, |area| backlog(area, pictures))?];
    for group in &pictures.groups {
        let name = || Some(group.name.clone());
        if group.sends_per_s.iter().any(|sends| *sends > 0.0) {
            all.push(picture(name(), sends_title(group), MAIN, |area| sends(area, pictures, group))?);
        }
        if !group.fullness.is_empty() {
            all.push(picture(name(), "Fullness of windows".to_owned(), SMALL, |area| fullness(area, group))?);
        }
        if !group.latency.is_empty() {
            all.push(picture(name(), "Latency of events".to_owned(), SMALL, |area| latency(area, group))?);
        }
    }
    Ok(all)
}

fn picture(
    group: Option<String>,
    title: String,
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> DrawResult,
) -> anyhow::Result<Picture> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(&area).and_then(|()| Ok(area.present()?)).map_err(|error| anyhow!("a picture: {error}"))?;
    }
    Ok(Picture { group, title, svg })
}

/// Axes that begin at zero and are never empty.
fn chart<'a, 'b>(area: &'a Area<'b>, x: f64, y: f64) -> Result<Chart<'a, 'b>, Box<dyn Error>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin(6).margin_right(26).x_label_area_size(38).y_label_area_size(58);
    Ok(builder.build_cartesian_2d(0.0..x.max(1e-3), 0.0..y.max(1e-3) * HEADROOM)?)
}

/// Names, labels and units of the axes.
struct Axes<'a> {
    x: &'a str,
    y: &'a str,
    x_labels: usize,
    x_label: &'a dyn Fn(&f64) -> String,
    y_label: &'a dyn Fn(&f64) -> String,
}

fn mesh(chart: &mut Chart<'_, '_>, axes: &Axes<'_>) -> DrawResult {
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh()
        .max_light_lines(1)
        .light_line_style(GREY.mix(0.0))
        .bold_line_style(GREY.mix(0.25))
        .axis_style(GREY)
        .label_style(small(GREY))
        .axis_desc_style(small(GREY));
    mesh.x_desc(axes.x).y_desc(axes.y).x_labels(axes.x_labels).y_labels(5);
    mesh.x_label_formatter(axes.x_label).y_label_formatter(axes.y_label).draw()?;
    Ok(())
}

fn small(colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", 12).into_font().color(&colour)
}

/// A line for each step of the scenario, with its label beside it. Labels are staggered, so close ones can be read, and
/// are drawn on the side with more space.
fn marks(chart: &mut Chart<'_, '_>, pictures: &Pictures, right: f64, top: f64) -> DrawResult {
    for (number, (at_s, what)) in pictures.marks.iter().enumerate() {
        let line = [(*at_s, 0.0), (*at_s, top * HEADROOM)];
        let style = ShapeStyle::from(AMBER).stroke_width(1);
        chart.draw_series([DashedPathElement::new(line, 4, 3, style)])?;
        let height = top * (HEADROOM - 0.02 - 0.1 * (number % 4) as f64);
        let (side, gap) = if *at_s > right * 0.75 { (HPos::Right, -4) } else { (HPos::Left, 4) };
        let text = Text::new(what.clone(), (gap, 0), small(AMBER).pos(Pos::new(side, VPos::Top)));
        chart.draw_series([EmptyElement::at((*at_s, height)) + text])?;
    }
    Ok(())
}

fn whole(value: &f64) -> String {
    if *value >= 10.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn stairs(values: impl Iterator<Item = f64>, bucket_s: f64) -> Vec<(f64, f64)> {
    let ends = |(n, value): (usize, f64)| [(n as f64 * bucket_s, value), ((n + 1) as f64 * bucket_s, value)];
    values.enumerate().flat_map(ends).collect()
}

/// Like [`stairs`], with gaps: one line for each run of buckets with a value.
fn stretches(values: &[Option<f64>], bucket_s: f64) -> Vec<Vec<(f64, f64)>> {
    let mut stretches: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut is_open = false;
    for (n, value) in values.iter().enumerate() {
        if let Some(value) = value {
            let ends = [n, n + 1].map(|n| (n as f64 * bucket_s, *value));
            match stretches.last_mut() {
                Some(last) if is_open => last.extend(ends),
                _ => stretches.push(ends.to_vec()),
            }
        }
        is_open = value.is_some();
    }
    stretches
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

fn sends(area: &Area<'_>, pictures: &Pictures, group: &GroupPictures) -> DrawResult {
    let (caps, paces) = (near(group, &group.cap_per_s), near(group, &group.pace_per_s));
    let highest = caps.iter().flatten().copied().fold(most_of(group), f64::max);
    let right = group.sends_per_s.len() as f64 * pictures.bucket_s;
    let mut chart = chart(area, right, highest)?;
    let (x, y) = ("seconds since the beginning", "sends a second");
    mesh(&mut chart, &Axes { x, y, x_labels: 10, x_label: &whole, y_label: &whole })?;
    let line = stairs(group.sends_per_s.iter().copied(), pictures.bucket_s);
    chart.draw_series(AreaSeries::new(line, 0.0, BLUE.mix(0.25)).border_style(BLUE))?;
    if is_apart(group) {
        for line in stretches(&paces, pictures.bucket_s) {
            chart.draw_series(DashedLineSeries::new(line, 6, 4, RED.into()))?;
        }
    }
    for line in stretches(&caps, pictures.bucket_s) {
        chart.draw_series(LineSeries::new(line, ShapeStyle::from(RED).stroke_width(2)))?;
    }
    marks(&mut chart, pictures, right, highest)
}

fn fullness(area: &Area<'_>, group: &GroupPictures) -> DrawResult {
    let all: u64 = group.fullness.iter().map(|(_, count)| count).sum();
    let share = |count: u64| count as f64 * 100.0 / all.max(1) as f64;
    let most = group.fullness.iter().map(|(_, count)| share(*count)).fold(0.0, f64::max);
    let fullest = group.fullness.last().map_or(0, |(percent, _)| *percent).max(110) as f64;
    let mut chart = chart(area, fullest, most)?;
    let (x, y) = ("% of the limit in a window", "% of windows");
    mesh(&mut chart, &Axes { x, y, x_labels: 6, x_label: &whole, y_label: &whole })?;
    let bars = group.fullness.iter().map(|(percent, count)| {
        let right = *percent as f64;
        let colour = if *percent > 100 { RED } else { BLUE };
        Rectangle::new([(right - 4.5, 0.0), (right - 0.5, share(*count))], colour.mix(0.65).filled())
    });
    chart.draw_series(bars)?;
    chart.draw_series([PathElement::new(
        [(100.0, 0.0), (100.0, most * HEADROOM)],
        ShapeStyle::from(RED).stroke_width(2),
    )])?;
    Ok(())
}

/// On a logarithmic axis, because the tail matters most.
fn latency(area: &Area<'_>, group: &GroupPictures) -> DrawResult {
    let decade = |ms: f64| ms.max(0.01).log10();
    let decades = group.latency.iter().map(|(ms, _)| decade(*ms));
    let first = decades.clone().fold(f64::MAX, f64::min).floor();
    let last = decades.fold(f64::MIN, f64::max).ceil().max(first + 1.0);
    let place = |ms: f64| decade(ms) - first;
    let mut chart = chart(area, last - first, 100.0)?;
    let label = |x: &f64| format!("{}", 10_f64.powf(x + first) as f32);
    let (x, y) = ("milliseconds", "% of events within");
    mesh(&mut chart, &Axes { x, y, x_labels: (last - first) as usize + 1, x_label: &label, y_label: &whole })?;
    let line = group.latency.iter().map(|(ms, share)| (place(*ms), *share * 100.0));
    chart.draw_series(LineSeries::new(line, ShapeStyle::from(BLUE).stroke_width(2)))?;
    for (quantile, name) in [(0.5, "p50"), (0.99, "p99")] {
        let Some((ms, _)) = group.latency.iter().find(|(_, share)| *share >= quantile) else { continue };
        let at = (place(*ms), quantile * 100.0);
        let (side, gap) = if at.0 > (last - first) * 0.5 { (HPos::Right, -6) } else { (HPos::Left, 6) };
        let below = Pos::new(side, VPos::Top);
        let words = Text::new(format!("{name} {}", describe(*ms)), (gap, 4), small(GREY).pos(below));
        let dot = Circle::new((0, 0), 3, BLUE.filled());
        chart.draw_series([EmptyElement::at(at) + dot + words])?;
    }
    Ok(())
}

fn describe(ms: f64) -> String {
    match ms {
        ms if ms >= 10_000.0 => format!("{:.0} s", ms / 1_000.0),
        ms if ms >= 1_000.0 => format!("{:.1} s", ms / 1_000.0),
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms => format!("{ms:.1} ms"),
    }
}

fn backlog(area: &Area<'_>, pictures: &Pictures) -> DrawResult {
    let most = pictures.backlog.iter().map(|count| *count as f64).fold(0.0, f64::max);
    let right = pictures.backlog.len() as f64 * pictures.bucket_s;
    let mut chart = chart(area, right, most)?;
    let (x, y) = ("seconds since the beginning", "deliveries");
    mesh(&mut chart, &Axes { x, y, x_labels: 16, x_label: &whole, y_label: &whole })?;
    let line = stairs(pictures.backlog.iter().map(|count| *count as f64), pictures.bucket_s);
    chart.draw_series(AreaSeries::new(line, 0.0, BLUE.mix(0.25)).border_style(BLUE))?;
    marks(&mut chart, pictures, right, most)
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
        let drawn = all(&pictures()).unwrap();
        assert_eq!(drawn.len(), 4);
        for Picture { title, svg, .. } in &drawn {
            assert!(svg.starts_with("<svg") && svg.contains("</svg>"), "{title}");
            assert!(!svg.contains("href") && !svg.contains("<worker>"), "{title}");
        }
        assert!(all(&Pictures::default()).is_ok());
    }

    #[test]
    fn axes_have_names_and_steps_are_marked() {
        let drawn = all(&pictures()).unwrap();
        for (svg, words) in
            [(&drawn[0].svg, "deliveries"), (&drawn[1].svg, "sends a second"), (&drawn[3].svg, "milliseconds")]
        {
            assert!(svg.contains(words), "{words}");
        }
        assert!(drawn[1].svg.contains("kill &lt;worker&gt;") && drawn[3].svg.contains("p50 2.0 ms"));
    }

    #[test]
    fn a_limit_is_not_drawn_after_its_end() {
        let lines = stretches(&[Some(2.0), None, Some(4.0), Some(5.0)], 1.0);
        assert_eq!(lines, [vec![(0.0, 2.0), (1.0, 2.0)], vec![(2.0, 4.0), (3.0, 4.0), (3.0, 5.0), (4.0, 5.0)]]);
    }
}
