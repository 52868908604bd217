//! A chart of audits as one SVG: for each destination the sends per bucket as an area, and the cap as a line above it.
//!
//! The SVG is self-contained: no fonts, scripts or links. It has its own background and follows the reader's colour
//! scheme, so it is legible on light and dark pages. Every text that comes from outside is escaped.

mod scale;

use std::fmt::Write;

use crate::{
    audit::{Series, series::Cap},
    time::Timestamp,
};
use scale::{Scale, count_ticks, time_ticks};

const WIDTH: f64 = 960.0;
const HEADER: f64 = 56.0;
const PANEL: f64 = 216.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = WIDTH - 24.0;
/// The plot within its panel, below the panel's title.
const TOP: f64 = 34.0;
const BOTTOM: f64 = 166.0;
/// A cap above this multiple of the fullest bucket is written as text, because a line at its height would make the
/// sends too small to see.
const FAR_CAP: u64 = 8;
/// The longest title and note in characters. Longer texts would overlap.
const TITLE_CHARS: usize = 60;
const NOTE_CHARS: usize = 80;

const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#57606a}\
.bg{fill:#ffffff}.h{font-size:18px;font-weight:600;fill:#1f2328}.t{font-size:14px;font-weight:600;fill:#1f2328}\
.m{text-anchor:middle}.e{text-anchor:end}.grid{stroke:#d0d7de;stroke-width:1}\
.sends{fill:#54aeff;fill-opacity:.45;stroke:#0969da;stroke-width:1.25;stroke-linejoin:round}\
.cap{fill:none;stroke:#cf222e;stroke-width:1.75;stroke-dasharray:7 4}\
@media (prefers-color-scheme:dark){text{fill:#9198a1}.bg{fill:#0d1117}.h,.t{fill:#f0f6fc}.grid{stroke:#3d444d}\
.sends{fill:#388bfd;stroke:#58a6ff}.cap{stroke:#ff7b72}}";

/// One destination in the chart.
#[derive(Debug, Clone, Copy)]
pub struct Panel<'a> {
    /// The destination's name.
    pub title: &'a str,
    /// The figures in a few words, shown beside the title.
    pub note: &'a str,
    /// `None` when nothing was sent.
    pub series: Option<&'a Series>,
}

/// Draws the panels one below the other.
pub fn svg(title: &str, panels: &[Panel<'_>]) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = draw(&mut out, title, panels);
    out
}

fn draw(out: &mut String, title: &str, panels: &[Panel<'_>]) -> std::fmt::Result {
    let height = HEADER + PANEL * panels.len().max(1) as f64;
    let title = text(title, TITLE_CHARS);
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">"#
    )?;
    writeln!(out, "<title>{title}</title>\n<style>{STYLE}</style>")?;
    writeln!(out, r#"<rect class="bg" width="{WIDTH}" height="{height}" rx="8"/>"#)?;
    writeln!(out, r#"<text class="h" x="24" y="34">{title}</text>"#)?;
    legend(out)?;
    for (n, panel) in panels.iter().enumerate() {
        writeln!(out, r#"<g transform="translate(0 {})">"#, HEADER + PANEL * n as f64)?;
        draw_panel(out, panel)?;
        writeln!(out, "</g>")?;
    }
    if panels.is_empty() {
        writeln!(out, r#"<text class="m" x="{}" y="{}">no destinations</text>"#, WIDTH / 2.0, HEADER + PANEL / 2.0)?;
    }
    writeln!(out, "</svg>")
}

fn legend(out: &mut String) -> std::fmt::Result {
    let x = RIGHT - 130.0;
    writeln!(
        out,
        r#"<rect class="sends" x="{x}" y="22" width="16" height="10"/><text x="{}" y="32">sends</text>"#,
        x + 22.0
    )?;
    writeln!(out, r#"<path class="cap" d="M{} 27h28"/><text class="e" x="{RIGHT}" y="32">cap</text>"#, x + 74.0)
}

fn draw_panel(out: &mut String, panel: &Panel<'_>) -> std::fmt::Result {
    writeln!(out, r#"<text class="t" x="24" y="18">{}</text>"#, text(panel.title, TITLE_CHARS))?;
    writeln!(out, r#"<text class="e" x="{RIGHT}" y="18">{}</text>"#, text(panel.note, NOTE_CHARS))?;
    match panel.series {
        Some(series) if !series.counts.is_empty() => draw_series(out, series),
        _ => {
            writeln!(out, r#"<text class="m" x="{}" y="{}">nothing was sent</text>"#, WIDTH / 2.0, (TOP + BOTTOM) / 2.0)
        }
    }
}

fn draw_series(out: &mut String, series: &Series) -> std::fmt::Result {
    // The scales: the axis of counts reaches the highest cap that is drawn, or the fullest bucket.
    let end_ms = series.start.as_millis() + (series.bucket_ms * series.counts.len() as u64) as i64;
    let fullest = series.counts.iter().copied().map(u64::from).max().unwrap_or(0).max(1);
    let near = |cap: &Cap| cap.sends.filter(|sends| *sends <= fullest * FAR_CAP);
    let highest = series.caps.iter().filter_map(near).max().unwrap_or(0).max(fullest);
    let ticks = count_ticks(highest);
    let top = ticks.last().copied().unwrap_or(1);
    let x = Scale { from: (series.start.as_millis() as f64, end_ms as f64), to: (LEFT, RIGHT) };
    let y = Scale { from: (0.0, top as f64), to: (BOTTOM, TOP) };

    // The axes with their labels.
    for tick in ticks {
        let at = y.position(tick as f64);
        writeln!(
            out,
            r#"<path class="grid" d="M{LEFT} {at:.1}H{RIGHT}"/><text class="e" x="{}" y="{:.1}">{tick}</text>"#,
            LEFT - 8.0,
            at + 4.0
        )?;
    }
    for (at_ms, label) in time_ticks(series.start.as_millis(), end_ms) {
        let at = x.position(at_ms as f64);
        writeln!(
            out,
            r#"<path class="grid" d="M{at:.1} {BOTTOM}v5"/><text class="m" x="{at:.1}" y="{}">{label}</text>"#,
            BOTTOM + 18.0
        )?;
    }
    let middle = (TOP + BOTTOM) / 2.0;
    writeln!(
        out,
        r#"<text class="m" transform="translate(18 {middle}) rotate(-90)">{}</text>"#,
        per_bucket(series.bucket_ms)
    )?;
    writeln!(
        out,
        r#"<text class="m" x="{}" y="{}">{}</text>"#,
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 36.0,
        day_of(series.start)
    )?;
    // The sends, and the cap as a line or as text.
    writeln!(out, r#"<path class="sends" d="{}"/>"#, area(series, &x, &y))?;
    let line = cap_line(series, end_ms, &x, &y, near);
    if !line.is_empty() {
        writeln!(out, r#"<path class="cap" d="{line}"/>"#)?;
    }
    match series.caps.iter().filter(|cap| near(cap).is_none()).filter_map(|cap| cap.sends).max() {
        Some(far) => writeln!(out, r#"<text class="e" x="{RIGHT}" y="{}">cap {far}, far above</text>"#, TOP + 14.0),
        None => Ok(()),
    }
}

/// The outline of the sends: a step for each bucket, down to the axis at both ends.
fn area(series: &Series, x: &Scale, y: &Scale) -> String {
    let mut path = format!("M{LEFT} {BOTTOM}");
    let mut at_ms = series.start.as_millis() as f64;
    for count in &series.counts {
        at_ms += series.bucket_ms as f64;
        let _ = write!(path, "V{:.1}H{:.1}", y.position(f64::from(*count)), x.position(at_ms));
    }
    let _ = write!(path, "V{BOTTOM}Z");
    path
}

/// The line of the cap, with a step at each edit. There is no line while there is no cap, or while `near` rejects it as
/// too high.
fn cap_line(series: &Series, end_ms: i64, x: &Scale, y: &Scale, near: impl Fn(&Cap) -> Option<u64>) -> String {
    let mut path = String::new();
    let mut drawing = false;
    for (n, cap) in series.caps.iter().enumerate() {
        let until_ms = series.caps.get(n + 1).map_or(end_ms, |next| next.at.as_millis()).min(end_ms);
        let Some(sends) = near(cap) else {
            drawing = false;
            continue;
        };
        let level = y.position(sends as f64);
        let _ = match drawing {
            true => write!(path, "V{level:.1}"),
            false => write!(path, "M{:.1} {level:.1}", x.position(cap.at.as_millis() as f64)),
        };
        let _ = write!(path, "H{:.1}", x.position(until_ms as f64));
        drawing = true;
    }
    path
}

fn per_bucket(bucket_ms: u64) -> String {
    match bucket_ms / 1_000 {
        1 => "sends per second".to_owned(),
        60 => "sends per minute".to_owned(),
        3_600 => "sends per hour".to_owned(),
        86_400 => "sends per day".to_owned(),
        seconds => format!("sends per {seconds} s"),
    }
}

/// The day on which a series begins, as the title of the time axis.
fn day_of(start: Timestamp) -> String {
    let shown = start.to_string();
    format!("{} UTC", shown.split('T').next().unwrap_or(&shown))
}

/// Text for XML: cut to `max` characters, escaped, without the control characters that XML forbids.
fn text(raw: &str, max: usize) -> String {
    let cut = raw.char_indices().nth(max).map_or(raw, |(end, _)| &raw[..end]);
    let mut escaped = String::with_capacity(cut.len());
    for char in cut.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            char if char.is_control() || matches!(char, '\u{fffe}' | '\u{ffff}') => escaped.push(' '),
            char => escaped.push(char),
        }
    }
    if cut.len() < raw.len() {
        escaped.push('…');
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(counts: &[u32], caps: &[(i64, Option<u64>)]) -> Series {
        let cap = |&(at_s, sends): &(i64, Option<u64>)| Cap { at: Timestamp::from_secs(1_763_710_200 + at_s), sends };
        let caps = caps.iter().map(cap).collect();
        Series { start: Timestamp::from_secs(1_763_710_200), bucket_ms: 1_000, counts: counts.to_vec(), caps }
    }

    fn chart(series: &Series) -> String {
        svg("Sends per second", &[Panel { title: "Acme", note: "10/s", series: Some(series) }])
    }

    #[test]
    fn the_chart_has_an_area_a_cap_and_labelled_axes() {
        let svg = chart(&series(&[10, 9, 10, 4], &[(0, Some(10))]));
        for part in [
            "class=\"sends\" d=\"M72 166V",
            "class=\"cap\" d=\"M72.0",
            ">sends per second<",
            ">2025-11-21 UTC<",
            ">07:30:00<",
            ">Acme<",
            ">10/s<",
        ] {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn the_cap_steps_at_an_edit_and_is_absent_without_a_limit() {
        let svg = chart(&series(&[10; 8], &[(0, Some(10)), (2, Some(20)), (4, None), (6, Some(10))]));
        let line = svg.lines().find(|line| line.starts_with(r#"<path class="cap" d="M72"#)).unwrap();
        assert_eq!(line.matches('M').count(), 2, "{line}");
        assert_eq!(line.matches('V').count(), 1, "{line}");
    }

    #[test]
    fn a_cap_far_above_the_sends_is_written_instead_of_drawn() {
        let svg = chart(&series(&[3, 4], &[(0, Some(1_000_000))]));
        assert!(svg.contains("cap 1000000, far above"), "{svg}");
    }

    #[test]
    fn names_are_escaped_and_cut() {
        let name = format!("<script>&\"'\u{1}{}", "x".repeat(200));
        let svg = svg(&name, &[Panel { title: &name, note: &name, series: None }]);
        assert!(svg.contains("&lt;script&gt;&amp;&quot;&#39; xxx"), "{svg}");
        assert!(!svg.contains("<script>") && !svg.contains(&"x".repeat(100)), "{svg}");
    }

    #[test]
    fn a_chart_without_sends_or_destinations_says_so() {
        assert!(svg("t", &[Panel { title: "a", note: "", series: None }]).contains("nothing was sent"));
        assert!(svg("t", &[]).contains("no destinations"));
    }
}
