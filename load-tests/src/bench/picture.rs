//! The chart of sends a second and a limit that changes. It has a transparent background and colours of medium
//! brightness, so it is readable on light and dark pages.

use std::error::Error;

use anyhow::anyhow;
use plotters::{
    chart::ChartBuilder,
    prelude::{IntoDrawingArea, SVGBackend, Text},
    series::{AreaSeries, LineSeries},
    style::{Color, IntoFont, RGBColor, ShapeStyle},
};
use serde::{Deserialize, Serialize};

const SIZE: (u32, u32) = (960, 300);
const BLUE: RGBColor = RGBColor(47, 129, 247);
const RED: RGBColor = RGBColor(229, 83, 75);
const GREY: RGBColor = RGBColor(125, 133, 144);

/// The data of the chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sends {
    pub(crate) bucket_s: f64,
    /// Arrivals a second in each bucket.
    pub(crate) per_s: Vec<f64>,
    /// The limits: when each began, in seconds, and its rate.
    pub(crate) caps: Vec<(f64, f64)>,
}

pub(crate) fn draw(sends: &Sends) -> anyhow::Result<String> {
    let mut svg = String::new();
    drawn(sends, &mut svg).map_err(|error| anyhow!("the picture: {error}"))?;
    Ok(svg)
}

fn drawn(sends: &Sends, svg: &mut String) -> Result<(), Box<dyn Error>> {
    let length_s = (sends.per_s.len() as f64 * sends.bucket_s).max(1.0);
    let highest = sends.caps.iter().map(|(_, cap)| *cap).chain(sends.per_s.iter().copied()).fold(1.0, f64::max);
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let mut builder = ChartBuilder::on(&area);
    builder.margin(12).x_label_area_size(30).y_label_area_size(60);
    let mut chart = builder.build_cartesian_2d(0.0..length_s, 0.0..highest * 1.15)?;
    let label = || ("sans-serif", 16).into_font().color(&GREY);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(0)
        .bold_line_style(GREY.mix(0.25))
        .axis_style(GREY)
        .label_style(label())
        .x_label_formatter(&|x| format!("{x:.0} s"))
        .y_label_formatter(&|y| format!("{y:.0}/s"))
        .draw()?;
    let stairs = sends
        .per_s
        .iter()
        .enumerate()
        .flat_map(|(n, per_s)| [(n as f64 * sends.bucket_s, *per_s), ((n + 1) as f64 * sends.bucket_s, *per_s)]);
    chart.draw_series(
        AreaSeries::new(stairs, 0.0, BLUE.mix(0.35)).border_style(ShapeStyle::from(BLUE).stroke_width(1)),
    )?;
    let mut line = Vec::new();
    for (number, (from_s, cap)) in sends.caps.iter().enumerate() {
        let until_s = sends.caps.get(number + 1).map_or(length_s, |(next_s, _)| *next_s);
        line.extend([(*from_s, *cap), (until_s, *cap)]);
        let text = Text::new(
            format!("cap {cap:.0}/s"),
            (from_s + length_s * 0.025, cap + highest * 0.09),
            ("sans-serif", 16).into_font().color(&RED),
        );
        chart.draw_series([text])?;
    }
    chart.draw_series(LineSeries::new(line, ShapeStyle::from(RED).stroke_width(2)))?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_has_no_background_and_no_external_resources() {
        let sends =
            Sends { bucket_s: 0.5, per_s: vec![99.0, 100.0, 298.0, 300.0], caps: vec![(0.0, 100.0), (1.0, 300.0)] };
        let svg = draw(&sends).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("cap 300/s"), "{svg}");
        assert!(!svg.contains("href") && !svg.contains("#FFFFFF"), "{svg}");
        assert!(draw(&Sends { bucket_s: 0.5, per_s: Vec::new(), caps: Vec::new() }).is_ok());
    }
}
