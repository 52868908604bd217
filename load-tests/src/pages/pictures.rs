//! The pictures of a run, as SVG: sends against the cap, how full windows were, how long events took, what waited.

use std::error::Error;

use anyhow::anyhow;
use plotters::{
    chart::{ChartBuilder, ChartContext},
    coord::{Shift, types::RangedCoordf64},
    prelude::{Cartesian2d, DrawingArea, IntoDrawingArea, PathElement, Rectangle, SVGBackend, Text},
    series::{AreaSeries, LineSeries},
    style::{Color, IntoFont, RGBColor, ShapeStyle, WHITE},
};

use crate::judge::series::{GroupPictures, Pictures};

const SIZE: (u32, u32) = (960, 260);
const BLUE: RGBColor = RGBColor(9, 105, 218);
const RED: RGBColor = RGBColor(207, 34, 46);
const GREY: RGBColor = RGBColor(110, 119, 129);
/// A cap this many times the most that was sent is left out, or the sends would vanish below it.
const FAR_CAP: f64 = 8.0;

pub(super) struct Picture {
    pub(super) caption: String,
    pub(super) svg: String,
}

type Drawn = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

pub(super) fn all(pictures: &Pictures) -> anyhow::Result<Vec<Picture>> {
    let mut all = Vec::new();
    for group in &pictures.groups {
        let name = &group.name;
        if group.sends_per_s.iter().any(|sends| *sends > 0.0) {
            let caption = format!("{name}: sends per second, and the cap (red)");
            all.push(picture(caption, |area| sends(area, pictures, group))?);
        }
        if !group.windows.is_empty() {
            let caption = format!("{name}: how many sends the windows held that end at a send, and the bound (red)");
            all.push(picture(caption, |area| windows(area, group))?);
        }
        if !group.latency.is_empty() {
            let caption = format!("{name}: share of events that took no longer, over milliseconds (powers of ten)");
            all.push(picture(caption, |area| latency(area, group))?);
        }
    }
    all.push(picture("Owed and not yet delivered".to_owned(), |area| backlog(area, pictures))?);
    Ok(all)
}

fn picture(caption: String, draw: impl FnOnce(&Area<'_>) -> Drawn) -> anyhow::Result<Picture> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let drawn = area.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&area));
        drawn.and_then(|()| Ok(area.present()?)).map_err(|error| anyhow!("a picture: {error}"))?;
    }
    Ok(Picture { caption, svg })
}

fn chart<'a, 'b>(area: &'a Area<'b>, x: f64, y: f64) -> Result<Chart<'a, 'b>, Box<dyn Error>> {
    // Room above the highest, and something to see when there is nothing.
    let (x, y) = (x.max(1e-3), y.max(1e-3) * 1.12);
    let mut builder = ChartBuilder::on(area);
    builder.margin(10).x_label_area_size(28).y_label_area_size(56);
    Ok(builder.build_cartesian_2d(0.0..x, 0.0..y)?)
}

fn mesh(chart: &mut Chart<'_, '_>, x_label: &dyn Fn(&f64) -> String) -> Drawn {
    let label = |y: &f64| if *y >= 10.0 || *y == 0.0 { format!("{y:.0}") } else { format!("{y:.2}") };
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh()
        .max_light_lines(1)
        .light_line_style(GREY.mix(0.2))
        .bold_line_style(GREY.mix(0.2))
        .axis_style(GREY);
    mesh.x_label_formatter(x_label).y_label_formatter(&label).draw()?;
    Ok(())
}

/// Lines where something was done to the engine.
fn marks(chart: &mut Chart<'_, '_>, pictures: &Pictures, top: f64) -> Drawn {
    for (number, (at_s, what)) in pictures.marks.iter().enumerate() {
        let line = vec![(*at_s, 0.0), (*at_s, top * 1.12)];
        chart.draw_series([PathElement::new(line, ShapeStyle::from(GREY.mix(0.7)).stroke_width(1))])?;
        // One below the other, so that what lies close can be read.
        let height = top * (1.1 - 0.09 * (number % 4) as f64);
        let text = Text::new(what.clone(), (*at_s, height), ("sans-serif", 11).into_font().color(&GREY));
        chart.draw_series([text])?;
    }
    Ok(())
}

fn seconds(x: &f64) -> String {
    format!("{x:.0} s")
}

fn stairs(values: impl Iterator<Item = f64>, bucket_s: f64) -> Vec<(f64, f64)> {
    let ends = |(n, value): (usize, f64)| [(n as f64 * bucket_s, value), ((n + 1) as f64 * bucket_s, value)];
    values.enumerate().flat_map(ends).collect()
}

fn sends(area: &Area<'_>, pictures: &Pictures, group: &GroupPictures) -> Drawn {
    let most = group.sends_per_s.iter().copied().fold(0.0, f64::max);
    let is_near = |cap: &f64| *cap <= most * FAR_CAP;
    let highest = group.cap_per_s.iter().flatten().copied().filter(is_near).fold(most, f64::max);
    let mut chart = chart(area, group.sends_per_s.len() as f64 * pictures.bucket_s, highest)?;
    mesh(&mut chart, &seconds)?;
    let line = stairs(group.sends_per_s.iter().copied(), pictures.bucket_s);
    chart.draw_series(AreaSeries::new(line, 0.0, BLUE.mix(0.3)).border_style(BLUE))?;
    for (number, cap) in group.cap_per_s.iter().enumerate() {
        if let Some(cap) = cap.filter(is_near) {
            let ends = [number, number + 1].map(|n| (n as f64 * pictures.bucket_s, cap));
            chart.draw_series(LineSeries::new(ends, ShapeStyle::from(RED).stroke_width(2)))?;
        }
    }
    marks(&mut chart, pictures, highest)
}

fn windows(area: &Area<'_>, group: &GroupPictures) -> Drawn {
    let bound = group.window_bound.unwrap_or_default() as f64;
    let fullest = group.windows.iter().map(|(held, _)| *held as f64).fold(bound, f64::max);
    let most = group.windows.iter().map(|(_, count)| *count as f64).fold(0.0, f64::max);
    let mut chart = chart(area, fullest + 1.0, most)?;
    mesh(&mut chart, &|x| format!("{x:.0}"))?;
    let bars = group.windows.iter().map(|(held, count)| {
        let held = *held as f64;
        Rectangle::new([(held - 0.4, 0.0), (held + 0.4, *count as f64)], BLUE.mix(0.6).filled())
    });
    chart.draw_series(bars)?;
    let line = [(bound + 0.5, 0.0), (bound + 0.5, most * 1.12)];
    chart.draw_series(LineSeries::new(line, ShapeStyle::from(RED).stroke_width(2)))?;
    Ok(())
}

/// Over the logarithm: what matters is the tail.
fn latency(area: &Area<'_>, group: &GroupPictures) -> Drawn {
    // From ten microseconds on.
    let place = |ms: f64| (ms.max(0.01).log10() + 2.0).max(0.0);
    let longest = group.latency.iter().map(|(ms, _)| place(*ms)).fold(1.0, f64::max);
    let mut chart = chart(area, longest, 1.0)?;
    mesh(&mut chart, &|x| format!("{} ms", 10_f64.powf(x - 2.0) as f32))?;
    let line = group.latency.iter().map(|(ms, share)| (place(*ms), *share));
    chart.draw_series(LineSeries::new(line, ShapeStyle::from(BLUE).stroke_width(2)))?;
    Ok(())
}

fn backlog(area: &Area<'_>, pictures: &Pictures) -> Drawn {
    let most = pictures.backlog.iter().map(|count| *count as f64).fold(0.0, f64::max);
    let mut chart = chart(area, pictures.backlog.len() as f64 * pictures.bucket_s, most)?;
    mesh(&mut chart, &seconds)?;
    let line = stairs(pictures.backlog.iter().map(|count| *count as f64), pictures.bucket_s);
    chart.draw_series(AreaSeries::new(line, 0.0, BLUE.mix(0.3)).border_style(BLUE))?;
    marks(&mut chart, pictures, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_picture_is_drawn_and_brings_nothing_from_elsewhere() {
        let group = GroupPictures {
            name: "partner".to_owned(),
            sends_per_s: vec![1.0, 2.0, 0.0],
            cap_per_s: vec![Some(2.0), None, Some(4.0)],
            windows: vec![(1, 5), (2, 9)],
            window_bound: Some(2),
            latency: vec![(0.4, 0.0), (2.0, 0.5), (90.0, 1.0)],
        };
        let marks = vec![(1.5, "kill <worker>".to_owned())];
        let pictures = Pictures { bucket_s: 1.0, backlog: vec![3, 1, 0], marks, groups: vec![group] };
        let drawn = all(&pictures).unwrap();
        assert_eq!(drawn.len(), 4);
        for picture in &drawn {
            assert!(picture.svg.starts_with("<svg") && picture.svg.contains("</svg>"), "{}", picture.caption);
            assert!(!picture.svg.contains("href") && !picture.svg.contains("<worker>"), "{}", picture.caption);
        }
        assert!(all(&Pictures::default()).is_ok());
    }
}
