//! Charts as SVG: panels with axes, areas, lines, bars and marks. The audit, the load tests and their pages draw with
//! it.
//!
//! An SVG is self-contained: no fonts, scripts or links. Its colours follow the reader's colour scheme. As a file of
//! its own it has a background, so it is legible on every page. Every text is escaped here.
//!
//! `draw` makes the document, `axis` maps values to positions, `element` has what is drawn, `style` the colours, `text`
//! the escaping, and `audit` the chart of audits.

mod audit;
mod axis;
mod draw;
mod element;
mod style;
mod text;

use std::borrow::Cow;

pub use audit::{AuditPanel, audit_chart};
pub use axis::Axis;
pub use element::{Element, Point, stairs};
pub use style::{Color, STYLE, Stroke};
pub use text::escaped;

/// A chart: panels, one below the other.
#[derive(Debug, Clone)]
pub struct Chart {
    /// In pixels.
    pub width: f64,
    /// Empty: no title.
    pub title: String,
    pub legend: Vec<Key>,
    pub panels: Vec<Panel>,
    /// The values below the pointer, where all panels have the same x axis.
    pub values: Option<Values>,
}

/// What a reader sees who points at a place of a chart. The title of a shape shows it, without a script.
#[derive(Debug, Clone)]
pub struct Values {
    pub x: Axis,
    /// Stretches of the x axis, each with the lines of its text.
    pub stretches: Vec<((f64, f64), Vec<String>)>,
}

/// A part of a chart with its own axes.
#[derive(Debug, Clone)]
pub struct Panel {
    /// In pixels.
    pub height: f64,
    /// Empty: no title.
    pub title: String,
    /// The figures in a few words, shown beside the title.
    pub note: String,
    pub legend: Vec<Key>,
    pub content: Content,
}

/// What a panel shows.
#[derive(Debug, Clone)]
pub enum Content {
    Plot(Plot),
    /// The reason why there is nothing to draw.
    Nothing(&'static str),
}

/// Axes, and what is drawn between them. Later elements lie above earlier ones.
#[derive(Debug, Clone)]
pub struct Plot {
    pub x: Axis,
    pub y: Axis,
    pub elements: Vec<Element>,
}

/// An entry of a legend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub name: Cow<'static, str>,
    pub color: Color,
    /// `None`: an area.
    pub stroke: Option<Stroke>,
}

impl Panel {
    /// A panel without title and legend.
    pub fn of(height: f64, plot: Plot) -> Self {
        Self { height, title: String::new(), note: String::new(), legend: Vec::new(), content: Content::Plot(plot) }
    }
}

impl Chart {
    /// A chart of one panel.
    pub fn of(width: f64, panel: Panel) -> Self {
        Self { width, title: String::new(), legend: Vec::new(), panels: vec![panel], values: None }
    }

    /// The chart as a file of its own.
    pub fn to_file(&self) -> String {
        draw::svg(self, true)
    }

    /// The chart for a page that contains [`STYLE`].
    pub fn inline(&self) -> String {
        draw::svg(self, false)
    }
}
