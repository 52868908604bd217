//! Small pictures without axes: they fill the width that the page gives them, and the page names their ends.

use std::fmt::{self, Write};

use crate::{style::Color, text::escaped};

/// The height of a picture in its own units; the page stretches it.
const HEIGHT: f64 = 100.0;
/// The space above the highest value, so that its line is not cut.
const ROOM: f64 = 6.0;

/// The shape of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Area,
    Line,
    /// One bar for each value.
    Bars,
}

/// Values at equal distances, oldest first.
#[derive(Debug, Clone)]
pub struct Series {
    pub color: Color,
    pub shape: Shape,
    pub values: Vec<f64>,
}

/// Series in one scale, which begins at zero. Later ones lie above earlier ones.
#[derive(Debug, Clone)]
pub struct Spark {
    pub series: Vec<Series>,
    /// All of it in words, for those who do not see it.
    pub label: String,
    /// What each place shows under the pointer. Empty: nothing.
    pub places: Vec<String>,
}

impl Spark {
    /// The largest value.
    pub fn most(&self) -> f64 {
        self.series.iter().flat_map(|series| &series.values).copied().fold(0.0, f64::max)
    }

    /// The picture for a page that contains [`crate::STYLE`].
    pub fn inline(&self) -> String {
        let mut out = String::new();
        // Writing to a `String` cannot fail.
        let _ = self.draw(&mut out);
        out
    }

    fn draw(&self, out: &mut String) -> fmt::Result {
        let places = self.series.iter().map(|series| series.values.len()).max().unwrap_or(0).max(1);
        let label = escaped(&self.label);
        write!(
            out,
            r#"<svg class="weir-chart spark" viewBox="0 0 {places} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">"#
        )?;
        // Without any value the line is at the bottom.
        let most = self.most().max(f64::MIN_POSITIVE);
        let y = |value: f64| HEIGHT - value / most * (HEIGHT - ROOM);
        for Series { color, shape, values } in &self.series {
            if values.iter().all(|value| *value <= 0.0) && *shape != Shape::Line {
                continue;
            }
            let class = color.class();
            match shape {
                Shape::Bars => {
                    for (place, value) in values.iter().enumerate().filter(|(_, value)| **value > 0.0) {
                        let y = y(*value);
                        let (x, height) = (place as f64 + 0.15, HEIGHT - y);
                        write!(
                            out,
                            r#"<rect class="{class} bar" x="{x}" y="{y:.1}" width=".7" height="{height:.1}"/>"#
                        )?;
                    }
                }
                Shape::Line | Shape::Area => {
                    // Each value is in the middle of its place; the ends are drawn to the edges.
                    let mut path = String::new();
                    for (place, value) in values.iter().enumerate() {
                        let at = y(*value);
                        match place {
                            0 => write!(path, "0 {at:.1}L0.5 {at:.1}")?,
                            _ => write!(path, "L{}.5 {at:.1}", place)?,
                        }
                        if place + 1 == values.len() {
                            write!(path, "H{places}")?;
                        }
                    }
                    match shape {
                        Shape::Area => write!(out, r#"<path class="{class} area" d="M0 {HEIGHT}L{path}V{HEIGHT}Z"/>"#)?,
                        _ => write!(out, r#"<path class="{class} line" d="M{path}"/>"#)?,
                    }
                }
            }
        }
        for (place, text) in self.places.iter().enumerate() {
            let text = escaped(text);
            write!(out, r#"<rect class="place" x="{place}" width="1" height="{HEIGHT}"><title>{text}</title></rect>"#)?;
        }
        write!(out, "</svg>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spark(series: Vec<Series>) -> String {
        Spark { series, label: "<Acme>".to_owned(), places: vec!["a < b".to_owned()] }.inline()
    }

    #[test]
    fn series_share_one_scale_and_every_text_is_escaped() {
        let area = Series { color: Color::Blue, shape: Shape::Area, values: vec![0.0, 5.0, 10.0] };
        let bars = Series { color: Color::Red, shape: Shape::Bars, values: vec![0.0, 0.0, 5.0] };
        let svg = spark(vec![area, bars]);
        for part in [
            r#"viewBox="0 0 3 100""#,
            r#"<path class="blue area" d="M0 100L0 100.0L0.5 100.0L1.5 53.0L2.5 6.0H3V100Z"/>"#,
            r#"<rect class="red bar" x="2.15" y="53.0" width=".7" height="47.0"/>"#,
            r#"aria-label="&lt;Acme&gt;""#,
            "<title>a &lt; b</title>",
        ] {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
        assert_eq!(svg.matches("red").count(), 1, "no bar without a value");
    }

    #[test]
    fn what_never_happened_is_a_line_at_the_bottom_and_no_area() {
        let none = |shape| Series { color: Color::Grey, shape, values: vec![0.0, 0.0] };
        let svg = spark(vec![none(Shape::Area), none(Shape::Bars), none(Shape::Line)]);
        assert_eq!(svg.matches("<path").count(), 1, "{svg}");
        assert!(svg.contains(r#"d="M0 100.0L0.5 100.0L1.5 100.0H2""#) && !svg.contains("NaN"), "{svg}");
        assert!(!spark(Vec::new()).contains("NaN"));
    }
}
