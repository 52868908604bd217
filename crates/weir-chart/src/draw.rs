//! The document: title, legends, panels and axes.

use std::fmt::{self, Write};

use crate::{
    Chart, Content, Key, Panel, Plot, Values,
    element::Frame,
    style::STYLE,
    text::{cut, escaped},
};

/// The height of the title with the legend of the whole chart.
const HEADER: f64 = 56.0;
/// The space beside the plots, for the labels of the y axis and for the last label of the x axis.
const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
/// The space above a plot, with and without a title.
const TITLED: f64 = 34.0;
const UNTITLED: f64 = 12.0;
/// The space below a plot: the labels of the x axis, and its name.
const LABELS: f64 = 30.0;
const NAME: f64 = 20.0;
/// The left edge of titles.
const MARGIN: f64 = 24.0;
/// The longest title and note in characters. Longer texts would overlap.
const TITLE_CHARS: usize = 60;
const NOTE_CHARS: usize = 80;
/// The largest width of a character in a legend.
const CHAR: f64 = 7.0;
/// The width of the sample before a name.
const SAMPLE: f64 = 22.0;
/// The gap between two entries.
const GAP: f64 = 12.0;

pub(crate) fn svg(chart: &Chart, is_file: bool) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = draw(&mut out, chart, is_file);
    out
}

fn draw(out: &mut String, chart: &Chart, is_file: bool) -> fmt::Result {
    // The panels stand below each other, under the title if there is one.
    let width = chart.width;
    let header = if chart.title.is_empty() { 0.0 } else { HEADER };
    let height = header + chart.panels.iter().map(|panel| panel.height).sum::<f64>();
    // The name of the image for screen readers: its title, or else those of its panels.
    let title = cut(&chart.title, TITLE_CHARS);
    let panels: Vec<String> = chart.panels.iter().map(|panel| cut(&panel.title, TITLE_CHARS)).collect();
    let name = if title.is_empty() { format!(r#" aria-label="{}""#, panels.join(", ")) } else { String::new() };
    writeln!(
        out,
        r#"<svg class="weir-chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"{name}>"#
    )?;
    if !title.is_empty() {
        writeln!(out, "<title>{title}</title>")?;
    }
    // A file brings its own style and background. In a page, both belong to the page.
    if is_file {
        writeln!(out, "<style>{STYLE}</style>")?;
        writeln!(out, r#"<rect class="background" width="{width}" height="{height}" rx="8"/>"#)?;
    }
    // The visible title, and the legend of the whole chart at the right edge.
    if !title.is_empty() {
        writeln!(out, r#"<text class="heading" x="{MARGIN}" y="34">{title}</text>"#)?;
        draw_legend(out, &chart.legend, width - RIGHT, 32.0)?;
    }
    // Each panel has coordinates of its own, moved down by the heights of those above it.
    let mut top = header;
    for panel in &chart.panels {
        writeln!(out, r#"<g transform="translate(0 {top})">"#)?;
        draw_panel(out, panel, width)?;
        writeln!(out, "</g>")?;
        top += panel.height;
    }
    if let Some(values) = &chart.values {
        draw_values(out, values, width, (header, height))?;
    }
    writeln!(out, "</svg>")
}

/// An invisible rectangle over all panels for each stretch, whose title the browser shows at the pointer.
fn draw_values(out: &mut String, values: &Values, width: f64, (top, bottom): (f64, f64)) -> fmt::Result {
    let x = |value| LEFT + values.x.share(value) * (width - RIGHT - LEFT);
    for ((from, to), lines) in &values.stretches {
        let lines: Vec<String> = lines.iter().map(|line| escaped(line)).collect();
        let (x, width, height) = (x(*from), x(*to) - x(*from), bottom - top);
        writeln!(
            out,
            r#"<rect class="value" x="{x:.1}" y="{top}" width="{width:.1}" height="{height}"><title>{}</title></rect>"#,
            lines.join("\n")
        )?;
    }
    Ok(())
}

/// The width of an entry of a legend, with the gap behind it.
fn width_of(key: &Key) -> f64 {
    SAMPLE + CHAR * key.name.chars().count() as f64 + GAP
}

/// Where a legend begins that ends at `right`.
fn legend_begin(legend: &[Key], right: f64) -> f64 {
    right + GAP - legend.iter().map(width_of).sum::<f64>()
}

/// The legend ends at `right`.
fn draw_legend(out: &mut String, legend: &[Key], right: f64, baseline: f64) -> fmt::Result {
    let mut x = legend_begin(legend, right);
    for key in legend {
        let (class, middle) = (key.color.class(), baseline - 5.0);
        // The sample of an entry is a line for lines, and a rectangle for areas.
        match key.stroke {
            Some(stroke) => writeln!(out, r#"<path class="{class} {}" d="M{x} {middle}h17"/>"#, stroke.class()),
            None => {
                let top = baseline - 10.0;
                writeln!(out, r#"<rect class="{class} area" x="{x}" y="{top}" width="16" height="10"/>"#)
            }
        }?;
        writeln!(out, r#"<text x="{}" y="{baseline}">{}</text>"#, x + SAMPLE, escaped(&key.name))?;
        x += width_of(key);
    }
    Ok(())
}

fn draw_panel(out: &mut String, panel: &Panel, width: f64) -> fmt::Result {
    let right = width - RIGHT;
    // Title, note and legend share one line. Without all three the plot begins higher.
    let is_titled = !(panel.title.is_empty() && panel.note.is_empty() && panel.legend.is_empty());
    if is_titled {
        let (title, note) = (cut(&panel.title, TITLE_CHARS), cut(&panel.note, NOTE_CHARS));
        writeln!(out, r#"<text class="title" x="{MARGIN}" y="18">{title}</text>"#)?;
        writeln!(out, r#"<text class="end" x="{right}" y="18">{note}</text>"#)?;
        // A narrow page shows the right part of a chart first. There the title stands before the legend instead.
        if note.is_empty() && !title.is_empty() {
            let end = legend_begin(&panel.legend, right) - GAP;
            writeln!(out, r#"<text class="title narrow" aria-hidden="true" x="{end}" y="18">{title}</text>"#)?;
        }
        draw_legend(out, &panel.legend, right, 18.0)?;
    }
    let top = if is_titled { TITLED } else { UNTITLED };
    match &panel.content {
        Content::Nothing(why) => {
            // Without data, the reason stands in the middle.
            let middle = (top + panel.height) / 2.0;
            writeln!(out, r#"<text class="middle" x="{}" y="{middle}">{why}</text>"#, width / 2.0)
        }
        Content::Plot(plot) => {
            // A name of the x axis needs another line below its labels.
            let below = if plot.x.name.is_empty() { LABELS } else { LABELS + NAME };
            let frame = Frame { left: LEFT, right, top, bottom: panel.height - below };
            draw_axes(out, plot, &frame)?;
            frame.draw(out, plot)
        }
    }
}

fn draw_axes(out: &mut String, plot: &Plot, frame: &Frame) -> fmt::Result {
    let &Frame { left, right, top, bottom } = frame;
    // The y axis: a line across the plot at each tick. The label is lowered by 4 px, so that its middle is at the line.
    for (value, label) in &plot.y.ticks {
        let y = frame.y(plot, *value);
        writeln!(out, r#"<path class="grid" d="M{left} {y:.1}H{right}"/>"#)?;
        writeln!(out, r#"<text class="end" x="{}" y="{:.1}">{}</text>"#, left - 8.0, y + 4.0, escaped(label))?;
    }
    // The x axis: a short mark below the plot at each tick.
    for (value, label) in &plot.x.ticks {
        let x = frame.x(plot, *value);
        writeln!(out, r#"<path class="grid" d="M{x:.1} {bottom}v5"/>"#)?;
        // A label at the right edge would be cut, so it ends there.
        let is_cut = x + label.chars().count() as f64 * CHAR / 2.0 > right + RIGHT;
        let (class, x) = if is_cut { ("end", right + RIGHT) } else { ("middle", x) };
        let (y, time) = (bottom + 18.0, time_attributes(plot, *value));
        writeln!(out, r#"<text class="{class}" x="{x:.1}" y="{y}"{time}>{}</text>"#, escaped(label))?;
    }
    // The names of the axes. That of the y axis is turned and reads upwards.
    let (middle, center) = ((top + bottom) / 2.0, (left + right) / 2.0);
    if !plot.y.name.is_empty() {
        let name = escaped(&plot.y.name);
        writeln!(out, r#"<text class="middle" transform="translate(18 {middle}) rotate(-90)">{name}</text>"#)?;
    }
    if !plot.x.name.is_empty() {
        let name = escaped(&plot.x.name);
        let time = plot.x.time_form.map_or_else(String::new, |_| {
            format!(r#" data-at="{}" data-until="{}" data-form="zone""#, plot.x.first_ms(), plot.x.last_ms())
        });
        // A narrow page scrolls a chart of times to its end, where the days must be in view too.
        let (class, x) = if plot.x.time_form.is_some() { ("end", right) } else { ("middle", center) };
        writeln!(out, r#"<text class="{class}" x="{x}" y="{}"{time}>{name}</text>"#, bottom + 36.0)?;
    }
    Ok(())
}

/// The instant of a label of a time axis, so that a page can write it in the reader's zone.
fn time_attributes(plot: &Plot, at_ms: f64) -> String {
    plot.x.time_form.map_or_else(String::new, |form| format!(r#" data-at="{at_ms}" data-form="{}""#, form.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Color, Element, Stroke};

    fn panel() -> Panel {
        let elements = vec![
            Element::Band(Color::Grey, (1.0, 2.0)),
            Element::Area(Color::Blue, vec![(0.0, 1.0), (5.0, 1.0), (5.0, 3.0)]),
            Element::Line(Color::Red, Stroke::Dashed, vec![(0.0, 1.0), (10.0, 4.0)]),
            Element::Bar(Color::Blue, (1.0, 2.0), 3.0),
            Element::Mark(Color::Amber, 9.0, "kill <worker>".to_owned()),
            Element::Dot(Color::Blue, (1.0, 1.0), "p50 < 2 ms".to_owned()),
        ];
        let axis = |name: &str| Axis::linear(10.0, 5, |value| format!("<{value}>")).named(name);
        let plot = Plot { x: axis("<seconds>"), y: axis("<sends>"), elements };
        Panel { title: "<Acme>".to_owned(), note: "<10/s>".to_owned(), ..Panel::of(200.0, plot) }
    }

    #[test]
    fn every_text_is_escaped() {
        let chart = Chart { title: "<Sends>".to_owned(), ..Chart::of(960.0, panel()) }.to_file();
        for text in ["Sends", "Acme", "10/s", "seconds", "sends", "worker", "0"] {
            assert!(
                chart.contains(&format!("&lt;{text}&gt;")) && !chart.contains(&format!("<{text}>")),
                "{text}: {chart}"
            );
        }
    }

    #[test]
    fn a_chart_uses_nothing_outside_it() {
        let (file, inline) = (Chart::of(960.0, panel()).to_file(), Chart::of(960.0, panel()).inline());
        for chart in [&file, &inline] {
            assert!(chart.starts_with("<svg") && chart.ends_with("</svg>\n"), "{chart}");
            assert!(!chart.contains("href") && !chart.contains("url(") && !chart.contains("NaN"), "{chart}");
        }
        assert!(file.contains("<style>") && file.contains("class=\"background\""));
        assert!(!inline.contains("<style>") && !inline.contains("class=\"background\""), "the page has both");
    }

    #[test]
    fn a_chart_without_a_title_is_named_by_its_panels() {
        let chart = Chart::of(960.0, panel());
        assert!(chart.inline().contains(r#" role="img" aria-label="&lt;Acme&gt;">"#), "{}", chart.inline());
        let titled = Chart { title: "Sends".to_owned(), ..chart }.inline();
        assert!(titled.contains("<title>Sends</title>") && !titled.contains("aria-label"), "{titled}");
    }

    #[test]
    fn a_chart_tells_the_values_below_the_pointer_without_a_script() {
        let stretches = vec![((0.0, 5.0), vec!["<0 to 5>".to_owned(), "3 sends".to_owned()]), ((5.0, 10.0), vec![])];
        let values = Values { x: Axis::linear(10.0, 5, |value| value.to_string()), stretches };
        let chart = Chart { values: Some(values), ..Chart::of(196.0, panel()) }.inline();
        let shown = r#"<rect class="value" x="72.0" y="0" width="50.0" height="200"><title>&lt;0 to 5&gt;
3 sends</title></rect>"#;
        assert!(chart.contains(shown), "{chart}");
        assert_eq!(chart.matches("class=\"value\"").count(), 2, "{chart}");
    }

    #[test]
    fn elements_lie_between_the_axes() {
        let chart = Chart::of(196.0, panel()).inline();
        // The plot is 100 pixels wide, and 116 high below the title.
        for part in [
            r#"<rect class="grey band" x="82.0" y="34.0" width="10.0" height="116.0"/>"#,
            r#"<path class="blue area" d="M72.0 150L72.0 138.4H122.0V115.2L122.0 150Z"/>"#,
            r#"<path class="red line dashed" d="M72.0 138.4L172.0 103.6"/>"#,
            r#"<rect class="blue bar" x="82.0" y="115.2" width="10.0" height="34.8"/>"#,
            r#"<path class="amber mark" d="M162.0 34V150"/>"#,
        ] {
            assert!(chart.contains(part), "{part} is missing in {chart}");
        }
    }

    #[test]
    fn the_labels_of_times_carry_the_instant_for_other_zones() {
        let x = Axis::times(1_763_710_203_000, 1_763_710_223_000).named("2025-11-21 UTC");
        let plot = Plot { x, y: Axis::linear(1.0, 1, |value| value.to_string()), elements: Vec::new() };
        let chart = Chart::of(196.0, Panel::of(200.0, plot)).inline();
        assert!(chart.contains(r#" data-at="1763710205000" data-form="clock">07:30:05<"#), "{chart}");
        assert!(
            chart.contains(r#" data-at="1763710203000" data-until="1763710222999" data-form="zone">2025-11-21 UTC<"#),
            "{chart}"
        );
        assert!(!Chart::of(196.0, panel()).inline().contains("data-at"), "no other axis has times");
    }

    #[test]
    fn a_label_that_would_be_cut_ends_at_the_right_edge() {
        let x = Axis::linear(10.0, 2, |value| format!("{value} seconds"));
        let plot = Plot { x, y: Axis::linear(1.0, 1, |value| value.to_string()), elements: Vec::new() };
        let chart = Chart::of(196.0, Panel::of(200.0, plot)).inline();
        assert!(chart.contains(r#"<text class="middle" x="122.0""#), "{chart}");
        assert!(chart.contains(r#"<text class="end" x="196.0""#), "{chart}");
    }
}
