//! The chart of a run: load, workers and lag over the same time. It has a transparent background and colours of medium
//! brightness, so it is readable on light and dark pages.

use std::error::Error;

use anyhow::anyhow;
use plotters::{
    chart::{ChartBuilder, ChartContext},
    coord::{Shift, cartesian::Cartesian2d, ranged1d::ValueFormatter, types::RangedCoordf64},
    drawing::DrawingArea,
    prelude::{IntoDrawingArea, IntoLogRange, Rectangle, SVGBackend, Text},
    series::LineSeries,
    style::{Color, IntoFont, RGBColor, ShapeStyle},
};

use super::trace::Trace;

const SIZE: (u32, u32) = (960, 640);
const BLUE: RGBColor = RGBColor(47, 129, 247);
const RED: RGBColor = RGBColor(229, 83, 75);
const GREEN: RGBColor = RGBColor(46, 160, 100);
const GREY: RGBColor = RGBColor(125, 133, 144);
/// The promised lag in milliseconds.
const PROMISED_MS: f64 = 250.0;
/// The lowest lag shown.
const FLOOR_MS: f64 = 0.1;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), Box<dyn Error>>;

/// A line with its colour and its name.
struct Line {
    points: Vec<(f64, f64)>,
    color: RGBColor,
    name: &'static str,
}

pub(super) fn draw(trace: &Trace) -> anyhow::Result<String> {
    let mut svg = String::new();
    drawn(trace, &mut svg).map_err(|error| anyhow!("the picture: {error}"))?;
    Ok(svg)
}

fn drawn(trace: &Trace, svg: &mut String) -> DrawResult {
    let length_s = trace.replicas.last().map_or(1.0, |(at, _)| *at).max(1.0);
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let panels = area.split_evenly((3, 1));
    let load = [
        Line { points: stairs(&trace.offered), color: GREY, name: "offered" },
        Line { points: stairs(&trace.started), color: BLUE, name: "started" },
    ];
    panel(&panels[0], trace, length_s, "events a second", &load)?;
    let workers = [
        Line { points: stairs(&numbers(&trace.replicas)), color: RED, name: "wanted" },
        Line { points: stairs(&numbers(&trace.ready)), color: GREEN, name: "ready" },
    ];
    panel(&panels[1], trace, length_s, "workers", &workers)?;
    lag(&panels[2], trace, length_s)?;
    area.present()?;
    Ok(())
}

/// A panel whose y axis begins at zero.
fn panel(area: &Area<'_>, trace: &Trace, length_s: f64, title: &str, lines: &[Line]) -> DrawResult {
    let highest = lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y).fold(1.0, f64::max) * 1.25;
    let mut chart = builder(area).build_cartesian_2d(0.0..length_s, 0.0..highest)?;
    mesh(&mut chart, &|y| format!("{y:.0}"))?;
    let away = outages(trace)
        .map(|(from_s, until_s)| Rectangle::new([(from_s, 0.0), (until_s, highest)], GREY.mix(0.2).filled()));
    chart.draw_series(away)?;
    for line in lines {
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), ShapeStyle::from(line.color).stroke_width(2)))?;
    }
    let labels: Vec<_> = lines.iter().map(|line| (line.name, line.color)).collect();
    legend(area, title, &labels)
}

fn lag(area: &Area<'_>, trace: &Trace, length_s: f64) -> DrawResult {
    let above = |series: &[(f64, f64)]| series.iter().map(|(at, ms)| (*at, ms.max(FLOOR_MS))).collect::<Vec<_>>();
    let (lag, late) = (above(&trace.lag_ms), above(&trace.late_ms));
    let highest = lag.iter().chain(&late).map(|(_, ms)| *ms).fold(1_000.0, f64::max) * 2.0;
    let mut chart = builder(area).build_cartesian_2d(0.0..length_s, (FLOOR_MS..highest).log_scale())?;
    mesh(&mut chart, &|ms| if *ms < 1_000.0 { format!("{ms} ms") } else { format!("{} s", ms / 1_000.0) })?;
    let away = outages(trace)
        .map(|(from_s, until_s)| Rectangle::new([(from_s, FLOOR_MS), (until_s, highest)], GREY.mix(0.2).filled()));
    chart.draw_series(away)?;
    let promised = [(0.0, PROMISED_MS), (length_s, PROMISED_MS)];
    chart.draw_series(LineSeries::new(promised, ShapeStyle::from(RED).stroke_width(1)))?;
    chart.draw_series(LineSeries::new(late, ShapeStyle::from(GREEN).stroke_width(2)))?;
    chart.draw_series(LineSeries::new(lag, ShapeStyle::from(BLUE).stroke_width(2)))?;
    legend(area, "start lag, p99", &[("measured by Weir", BLUE), ("measured by receivers", GREEN), ("promised", RED)])
}

fn builder<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin(12).margin_top(28).x_label_area_size(26).y_label_area_size(64);
    builder
}

fn mesh<Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<RangedCoordf64, Y>>,
    formatter: &dyn Fn(&f64) -> String,
) -> DrawResult
where
    Y: plotters::coord::ranged1d::Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(0)
        .y_labels(5)
        .bold_line_style(GREY.mix(0.25))
        .axis_style(GREY)
        .label_style(("sans-serif", 15).into_font().color(&GREY))
        .x_label_formatter(&|x| format!("{x:.0} s"))
        .y_label_formatter(formatter)
        .draw()?;
    Ok(())
}

/// The names of the panel and its lines, above the panel.
fn legend(area: &Area<'_>, title: &str, lines: &[(&str, RGBColor)]) -> DrawResult {
    let mut x = 76;
    for (name, color) in [(title, GREY)].iter().chain(lines) {
        area.draw(&Text::new((*name).to_owned(), (x, 8), ("sans-serif", 16).into_font().color(color)))?;
        x += 9 * name.len() as i32 + 24;
    }
    Ok(())
}

fn outages(trace: &Trace) -> impl Iterator<Item = (f64, f64)> + '_ {
    trace.outages.iter().map(|(_, from_s, until_s)| (*from_s, *until_s))
}

fn numbers(series: &[(f64, u32)]) -> Vec<(f64, f64)> {
    series.iter().map(|(at, number)| (*at, f64::from(*number))).collect()
}

/// Keeps each value until the next.
fn stairs(series: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let ends = series.iter().skip(1).map(|(at, _)| *at).chain(series.last().map(|(at, _)| *at));
    series.iter().zip(ends).flat_map(|((at, value), end)| [(*at, *value), (end, *value)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_has_no_background_and_no_external_resources() {
        let trace = Trace {
            replicas: vec![(0.0, 2), (10.0, 9), (20.0, 2)],
            ready: vec![(0.0, 2), (12.0, 9)],
            offered: vec![(0.0, 60.0), (10.0, 600.0)],
            lag_ms: vec![(0.0, 3.0), (10.0, 4_000.0), (20.0, 0.0)],
            outages: vec![(super::super::plan::Server::Redis, 4.0, 6.0)],
            ..Trace::default()
        };
        let svg = draw(&trace).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("workers") && svg.contains("start lag"), "{svg}");
        assert!(!svg.contains("href") && !svg.contains("#FFFFFF"), "{svg}");
        assert!(draw(&Trace::default()).is_ok());
    }

    #[test]
    fn stairs_keep_a_value_until_the_next() {
        assert_eq!(stairs(&[(0.0, 1.0), (2.0, 3.0)]), [(0.0, 1.0), (2.0, 1.0), (2.0, 3.0), (2.0, 3.0)]);
        assert!(stairs(&[]).is_empty());
    }
}
