//! What is drawn between the axes of a plot.

use std::fmt::{self, Write};

use crate::{
    Plot,
    style::{Color, Stroke},
    text::escaped,
};

/// A value of the x axis and one of the y axis.
pub type Point = (f64, f64);

/// The number of lines over which the labels of marks are spread, so that close ones can be read. A label that would
/// cover others on every line is left out; its mark is drawn.
const MARK_LINES: usize = 4;
/// About the width of a character of a label, in pixels.
const LABEL_CHARACTER: f64 = 7.0;
/// The height of such a line in pixels.
const MARK_LINE: f64 = 14.0;
/// The space between a mark and its label in pixels.
const MARK_GAP: f64 = 4.0;

#[derive(Debug, Clone)]
pub enum Element {
    /// Filled down to the x axis.
    Area(Color, Vec<Point>),
    Line(Color, Stroke, Vec<Point>),
    /// From one value of the x axis to another, as high as a value of the y axis.
    Bar(Color, (f64, f64), f64),
    /// A stretch of the x axis, over the whole height.
    Band(Color, (f64, f64)),
    /// An instant of the x axis with its label, over the whole height.
    Mark(Color, f64, String),
    /// A point with its label.
    Dot(Color, Point, String),
    /// A text above a point.
    Label(Color, Point, String),
    /// A text in the upper right corner.
    Remark(String),
}

/// Each value from an instant to the next, as lines. A gap, or a stretch without a value, ends a line.
pub fn stairs(steps: impl IntoIterator<Item = (f64, f64, Option<f64>)>) -> Vec<Vec<Point>> {
    let mut lines: Vec<Vec<Point>> = Vec::new();
    let mut open_until = None;
    for (from, until, value) in steps {
        if let Some(value) = value {
            let ends = [(from, value), (until, value)];
            // A step continues the line only if it begins where the previous one ended.
            match lines.last_mut() {
                Some(line) if open_until == Some(from) => line.extend(ends),
                _ => lines.push(ends.to_vec()),
            }
        }
        open_until = value.map(|_| until);
    }
    lines
}

/// The pixels between the axes.
pub(crate) struct Frame {
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

impl Frame {
    pub(crate) fn x(&self, plot: &Plot, value: f64) -> f64 {
        self.left + plot.x.share(value) * (self.right - self.left)
    }

    pub(crate) fn y(&self, plot: &Plot, value: f64) -> f64 {
        self.bottom - plot.y.share(value) * (self.bottom - self.top)
    }

    /// A path through these points. Horizontal and vertical parts are written shorter.
    fn path(&self, plot: &Plot, points: &[Point]) -> String {
        let mut path = String::new();
        let mut before: Option<(String, String)> = None;
        for &(x, y) in points {
            let (x, y) = (format!("{:.1}", self.x(plot, x)), format!("{:.1}", self.y(plot, y)));
            path += &match &before {
                None => format!("M{x} {y}"),
                Some(at) if at.0 == x && at.1 == y => String::new(),
                Some(at) if at.1 == y => format!("H{x}"),
                Some(at) if at.0 == x => format!("V{y}"),
                Some(_) => format!("L{x} {y}"),
            };
            before = Some((x, y));
        }
        path
    }

    pub(crate) fn draw(&self, out: &mut String, plot: &Plot) -> fmt::Result {
        // What the labels of marks cover, on each line.
        let mut covered = [const { Vec::<(f64, f64)>::new() }; MARK_LINES];
        for element in &plot.elements {
            let mark_line = match element {
                Element::Mark(_, at, label) => {
                    let (from, to) = self.mark_label(plot, *at, label);
                    let is_free = |line: &Vec<(f64, f64)>| line.iter().all(|other| other.1 <= from || to <= other.0);
                    let free = covered.iter().position(is_free);
                    free.inspect(|&line| covered[line].push((from, to)))
                }
                _ => None,
            };
            self.draw_element(out, plot, element, mark_line)?;
        }
        Ok(())
    }

    /// From where to where the label of a mark reaches.
    fn mark_label(&self, plot: &Plot, at: f64, label: &str) -> (f64, f64) {
        let (x, width) = (self.x(plot, at), LABEL_CHARACTER * label.chars().count() as f64);
        if is_label_before(plot, at) { (x - MARK_GAP - width, x) } else { (x, x + MARK_GAP + width) }
    }

    /// `mark_line`: the line for the label of a mark; `None`: there is no room for the label.
    fn draw_element(&self, out: &mut String, plot: &Plot, element: &Element, mark_line: Option<usize>) -> fmt::Result {
        let &Self { right, top, bottom, .. } = self;
        match element {
            Element::Area(color, points) => {
                // The line as it is, closed at both ends by lines down to the x axis.
                let (Some(first), Some(last)) = (points.first(), points.last()) else { return Ok(()) };
                let (first, last) = (self.x(plot, first.0), self.x(plot, last.0));
                let line = self.path(plot, points).replacen('M', "L", 1);
                let class = color.class();
                writeln!(out, r#"<path class="{class} area" d="M{first:.1} {bottom}{line}L{last:.1} {bottom}Z"/>"#)
            }
            Element::Line(color, stroke, points) => {
                let (class, path) = (color.class(), self.path(plot, points));
                writeln!(out, r#"<path class="{class} {}" d="{path}"/>"#, stroke.class())
            }
            Element::Bar(color, (from, to), height) => {
                let (x, y) = (self.x(plot, *from), self.y(plot, *height));
                let (width, height) = (self.x(plot, *to) - x, bottom - y);
                self.rectangle(out, *color, "bar", (x, y), (width, height))
            }
            Element::Band(color, (from, to)) => {
                let x = self.x(plot, *from);
                self.rectangle(out, *color, "band", (x, top), (self.x(plot, *to) - x, bottom - top))
            }
            Element::Mark(color, at, label) => {
                let x = self.x(plot, *at);
                writeln!(out, r#"<path class="{} mark" d="M{x:.1} {top}V{bottom}"/>"#, color.class())?;
                let Some(mark_line) = mark_line else { return Ok(()) };
                let y = top + 10.0 + MARK_LINE * mark_line as f64;
                let (anchor, gap) = if is_label_before(plot, *at) { (" end", -MARK_GAP) } else { ("", MARK_GAP) };
                self.label(out, *color, anchor, (x + gap, y), label)
            }
            Element::Dot(color, (x, y), label) => {
                let is_left_of_it = plot.x.share(*x) > 0.5;
                let (anchor, gap) = if is_left_of_it { (" end", -6.0) } else { ("", 6.0) };
                let (x, y) = (self.x(plot, *x), self.y(plot, *y));
                writeln!(out, r#"<circle class="{}" cx="{x:.1}" cy="{y:.1}" r="3"/>"#, color.class())?;
                self.label(out, Color::Grey, anchor, (x + gap, y + 14.0), label)
            }
            Element::Label(color, (x, y), label) => {
                self.label(out, *color, "", (self.x(plot, *x), self.y(plot, *y) - 8.0), label)
            }
            Element::Remark(remark) => self.label(out, Color::Grey, " end", (right, top + 14.0), remark),
        }
    }

    fn rectangle(
        &self,
        out: &mut String,
        color: Color,
        kind: &str,
        (x, y): Point,
        (width, height): (f64, f64),
    ) -> fmt::Result {
        let class = color.class();
        writeln!(out, r#"<rect class="{class} {kind}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#)
    }

    fn label(&self, out: &mut String, color: Color, anchor: &str, (x, y): Point, text: &str) -> fmt::Result {
        let (class, text) = (color.class(), escaped(text));
        writeln!(out, r#"<text class="{class} label{anchor}" x="{x:.1}" y="{y:.1}">{text}</text>"#)
    }
}

/// Whether the label of a mark is on the left, because there is too little space on the right.
fn is_label_before(plot: &Plot, at: f64) -> bool {
    plot.x.share(at) > 0.75
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_close_marks_stand_on_different_lines_and_those_without_room_are_left_out() {
        let axis = || crate::Axis::linear(100.0, 5, |value| value.to_string());
        let mark = |at: f64| Element::Mark(Color::Amber, at, format!("edit {at}"));
        let elements = [10.0, 11.0, 12.0, 13.0, 14.0, 50.0].map(mark).to_vec();
        let plot = Plot { x: axis(), y: axis(), elements };
        let frame = Frame { left: 0.0, right: 500.0, top: 0.0, bottom: 100.0 };
        let mut svg = String::new();
        frame.draw(&mut svg, &plot).unwrap();
        let labels: Vec<_> = svg.lines().filter(|line| line.starts_with("<text")).collect();
        let line_of = |text: &str| {
            let label = labels.iter().find(|label| label.contains(text))?;
            label.split_once("y=\"")?.1.split_once('"')?.0.parse::<f64>().ok()
        };
        assert_eq!(["edit 10", "edit 11", "edit 12", "edit 13"].map(line_of), [10.0, 24.0, 38.0, 52.0].map(Some));
        assert_eq!((line_of("edit 14"), line_of("edit 50")), (None, Some(10.0)));
        assert_eq!(svg.matches(" mark\"").count(), 6, "every mark is drawn");
    }

    #[test]
    fn stairs_keep_a_value_until_the_next_and_end_where_there_is_none() {
        let steps = [(0.0, 1.0, Some(2.0)), (1.0, 2.0, None), (2.0, 3.0, Some(4.0)), (3.0, 4.0, Some(5.0))];
        let after = [(2.0, 4.0), (3.0, 4.0), (3.0, 5.0), (4.0, 5.0)];
        assert_eq!(stairs(steps), [vec![(0.0, 2.0), (1.0, 2.0)], after.to_vec()]);
        assert_eq!(stairs([(0.0, 1.0, Some(1.0)), (2.0, 3.0, Some(1.0))]).len(), 2, "a gap ends a line");
        assert!(stairs([]).is_empty());
    }
}
