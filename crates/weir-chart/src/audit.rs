//! The chart of audits: for each destination the sends per bucket as an area, and the cap as a line above it.

use std::borrow::Cow;

use weir_core::audit::{Series, series::Cap};

use crate::{Axis, Chart, Color, Content, Element, Key, Panel, Plot, Point, Stroke, stairs};

const WIDTH: f64 = 960.0;
const PANEL: f64 = 216.0;
const LEGEND: [Key; 2] = [
    Key { name: Cow::Borrowed("sends"), color: Color::Blue, stroke: None },
    Key { name: Cow::Borrowed("cap"), color: Color::Red, stroke: Some(Stroke::Dashed) },
];
/// A cap above this multiple of the fullest bucket is written as text, because a line at its height would make the
/// sends too small to see.
const FAR_CAP: u64 = 8;

/// One destination in the chart.
#[derive(Debug, Clone, Copy)]
pub struct AuditPanel<'a> {
    /// The destination's name.
    pub title: &'a str,
    /// The figures in a few words, shown beside the title.
    pub note: &'a str,
    /// `None` when nothing was sent.
    pub series: Option<&'a Series>,
}

/// The audits of destinations, one below the other.
pub fn audit_chart(title: &str, audits: &[AuditPanel<'_>]) -> Chart {
    let panel = |title: &str, note: &str, content| Panel {
        height: PANEL,
        title: title.to_owned(),
        note: note.to_owned(),
        legend: Vec::new(),
        content,
    };
    let mut panels: Vec<_> = audits.iter().map(|audit| panel(audit.title, audit.note, content(audit.series))).collect();
    if panels.is_empty() {
        panels.push(panel("", "", Content::Nothing("no destinations")));
    }
    Chart { width: WIDTH, title: title.to_owned(), legend: LEGEND.to_vec(), panels, values: None }
}

fn content(series: Option<&Series>) -> Content {
    match series {
        Some(series) if !series.counts.is_empty() => Content::Plot(plot(series)),
        _ => Content::Nothing("nothing was sent"),
    }
}

fn plot(series: &Series) -> Plot {
    let start_ms = series.start.as_millis();
    let end_ms = start_ms + (series.bucket_ms * series.counts.len() as u64) as i64;
    // The axis of counts reaches the highest cap that is drawn, or the fullest bucket.
    let fullest = series.counts.iter().copied().map(u64::from).max().unwrap_or(0).max(1);
    let near = |cap: &Cap| cap.sends.filter(|sends| *sends <= fullest * FAR_CAP);
    let highest = series.caps.iter().filter_map(near).max().unwrap_or(0).max(fullest);
    let lines = cap_lines(series, end_ms, near).into_iter();
    let mut elements = vec![Element::Area(Color::Blue, sends(series))];
    elements.extend(lines.map(|line| Element::Line(Color::Red, Stroke::Dashed, line)));
    let far = series.caps.iter().filter(|cap| near(cap).is_none()).filter_map(|cap| cap.sends).max();
    elements.extend(far.map(|far| Element::Remark(format!("cap {far}, far above"))));
    Plot {
        x: Axis::times(start_ms, end_ms).named_by_days(),
        y: Axis::counts(highest).named(per_bucket(series.bucket_ms)),
        elements,
    }
}

/// A step for each bucket.
fn sends(series: &Series) -> Vec<Point> {
    let at = |bucket: usize| (series.start.as_millis() + (series.bucket_ms * bucket as u64) as i64) as f64;
    let step = |(bucket, count): (usize, &u32)| (at(bucket), at(bucket + 1), Some(f64::from(*count)));
    stairs(series.counts.iter().enumerate().map(step)).concat()
}

/// The lines of the cap, with a step at each edit. There is no line while there is no cap, or while `near` rejects it
/// as too high.
fn cap_lines(series: &Series, end_ms: i64, near: impl Fn(&Cap) -> Option<u64>) -> Vec<Vec<Point>> {
    let step = |(n, cap): (usize, &Cap)| {
        let until_ms = series.caps.get(n + 1).map_or(end_ms, |next| next.at.as_millis()).min(end_ms);
        (cap.at.as_millis() as f64, until_ms as f64, near(cap).map(|sends| sends as f64))
    };
    stairs(series.caps.iter().enumerate().map(step))
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

#[cfg(test)]
mod tests {
    use weir_core::Timestamp;

    use super::*;

    fn series(counts: &[u32], caps: &[(i64, Option<u64>)]) -> Series {
        let cap = |&(at_s, sends): &(i64, Option<u64>)| Cap { at: Timestamp::from_secs(1_763_710_200 + at_s), sends };
        let caps = caps.iter().map(cap).collect();
        Series { start: Timestamp::from_secs(1_763_710_200), bucket_ms: 1_000, counts: counts.to_vec(), caps }
    }

    fn chart(series: &Series) -> String {
        let panel = AuditPanel { title: "Acme", note: "10/s", series: Some(series) };
        audit_chart("Sends per second", &[panel]).to_file()
    }

    #[test]
    fn the_chart_has_an_area_a_cap_and_labelled_axes() {
        let svg = chart(&series(&[10, 9, 10, 4], &[(0, Some(10))]));
        for part in [
            "class=\"blue area\" d=\"M72.0 166L72.0 34.0H288.0V47.2H",
            "class=\"red line dashed\" d=\"M72.0 34.0H936.0\"",
            ">sends per second<",
            ">2025-11-21 UTC<",
            ">07:30:00<",
            ">Acme<",
            ">10/s<",
            ">sends<",
            ">cap<",
        ] {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn the_cap_steps_at_an_edit_and_is_absent_without_a_limit() {
        let svg = chart(&series(&[10; 8], &[(0, Some(10)), (2, Some(20)), (4, None), (6, Some(10))]));
        let is_line = |line: &&str| line.contains("red line dashed\" d=\"M") && !line.contains("h17");
        let lines: Vec<_> = svg.lines().filter(is_line).collect();
        assert_eq!(lines.len(), 2, "{svg}");
        assert!(lines[0].contains("M72.0 ") && lines[0].matches('V').count() == 1, "{svg}");
    }

    #[test]
    fn a_cap_far_above_the_sends_is_written_instead_of_drawn() {
        let svg = chart(&series(&[3, 4], &[(0, Some(1_000_000))]));
        assert!(svg.contains("cap 1000000, far above"), "{svg}");
    }

    #[test]
    fn names_are_escaped_and_cut() {
        let name = format!("<script>&\"'\u{1}{}", "x".repeat(200));
        let svg = audit_chart(&name, &[AuditPanel { title: &name, note: &name, series: None }]).to_file();
        assert!(svg.contains("&lt;script&gt;&amp;&quot;&#39; xxx"), "{svg}");
        assert!(!svg.contains("<script>") && !svg.contains(&"x".repeat(100)), "{svg}");
    }

    #[test]
    fn a_chart_without_sends_or_destinations_says_so() {
        let nothing = AuditPanel { title: "a", note: "", series: None };
        assert!(audit_chart("t", &[nothing]).to_file().contains("nothing was sent"));
        assert!(audit_chart("t", &[]).to_file().contains("no destinations"));
    }
}
