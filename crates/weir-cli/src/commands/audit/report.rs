//! The table and the chart of audits, for `weir audit` and `weir demo`.

use std::borrow::Cow;

use serde::Serialize;
use weir_chart::{AuditPanel, audit_chart};
use weir_core::audit::{AuditReport, LimitAudit, MinIntervalAudit, Window};

use crate::{
    flags::limit::LimitText,
    output::{
        Screen,
        table::{Cell, Column, Table},
        texts::{NONE, clean, shortened},
    },
};

/// A destination and its audit.
#[derive(Debug, Clone, Serialize)]
pub struct Audited {
    pub id: String,
    pub name: String,
    /// The limit key, if the audit is of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_key: Option<String>,
    #[serde(flatten)]
    pub report: AuditReport,
}

impl Audited {
    fn title(&self) -> Cow<'_, str> {
        let name = if self.name.is_empty() { &self.id } else { &self.name };
        match &self.limit_key {
            Some(key) => format!("{name}, key {key:?}").into(),
            None => name.into(),
        }
    }
}

/// The table of the audits.
fn columns() -> [Column; 9] {
    [
        Column::text("destination").flexible(),
        Column::text("cap"),
        Column::number("sends"),
        Column::number("worst calendar").or("calendar").optional(),
        Column::number("worst sliding").or("worst"),
        Column::number("violations").or("over"),
        Column::number("utilisation").or("use"),
        Column::number("p50 ms"),
        Column::number("p99 ms"),
    ]
}
/// Longer names are truncated, so that a row fits on one line.
const NAME_CHARS: usize = 32;

/// One row for each limit and each minimum interval that was in force. Of several rows, only the first shows the
/// destination's name and figures.
pub(super) fn table(audited: &[Audited], screen: Screen) -> String {
    Table::new(columns()).with(audited.iter().flat_map(rows_of).map(|row| row.map(Cell::from))).render(screen)
}

fn rows_of(audited: &Audited) -> Vec<[String; 9]> {
    let report = &audited.report;
    let latency = |latency: Option<f64>| latency.map_or(NONE.to_owned(), |ms| format!("{ms:.1}"));
    // The cap, its worst windows, its violations and its use.
    let none = || NONE.to_owned();
    let of_limit = |limit: &LimitAudit| {
        let utilisation = limit.utilisation.map_or_else(none, |share| format!("{share:.4}"));
        let (calendar, sliding) = (fullest(limit.worst_calendar_window), fullest(limit.worst_sliding_window));
        [cap(limit), calendar, sliding, limit.violations.to_string(), utilisation]
    };
    let of_interval = |interval: &MinIntervalAudit| {
        let least = interval.least_gap_ms.map_or_else(none, |gap| format!("{gap:.1} ms"));
        [apart(interval), none(), least, interval.violations.to_string(), none()]
    };
    let mut caps: Vec<_> = report.rate_limits.iter().map(of_limit).collect();
    caps.extend(report.min_intervals.iter().map(of_interval));
    // A destination without limits has a row too.
    if caps.is_empty() {
        caps.push(["none".to_owned(), none(), none(), none(), none()]);
    }
    let row = |(n, [cap, calendar, sliding, violations, utilisation]): (usize, [String; 5])| {
        // The figures of the destination stand only in its first row.
        let of_destination = |text: String| if n == 0 { text } else { String::new() };
        [
            of_destination(name(audited)),
            cap,
            of_destination(report.sends.to_string()),
            calendar,
            sliding,
            violations,
            utilisation,
            of_destination(latency(report.delivery_latency_ms.p50)),
            of_destination(latency(report.delivery_latency_ms.p99)),
        ]
    };
    caps.into_iter().enumerate().map(row).collect()
}

/// The sends of unknown outcome, one per line; empty if there are none.
pub(super) fn unknown(audited: &[Audited]) -> String {
    // The lines of one destination.
    let of = |audited: &Audited| {
        let report = &audited.report;
        let mut lines: Vec<_> = report
            .unknown_sends
            .iter()
            .map(|send| {
                format!(
                    "  {}  attempt {} of {}, no later than {}",
                    name(audited),
                    send.number,
                    send.delivery_id,
                    send.latest_at
                )
            })
            .collect();
        // The report names only the first of these sends, but counts all of them.
        let unnamed = report.unknown_sends_total.saturating_sub(lines.len() as u64);
        lines.extend((unnamed > 0).then(|| format!("  {}  and {unnamed} more", name(audited))));
        lines
    };
    let lines: Vec<_> = audited.iter().flat_map(of).collect();

    // Print the heading only if there are such sends.
    match lines.as_slice() {
        [] => String::new(),
        lines => format!(
            "Sends of unknown outcome, counted at the latest instant at which they may have started:\n{}\n",
            lines.join("\n")
        ),
    }
}

/// The chart, with a panel for each destination: its sends, its limits, its figures.
pub(super) fn chart_svg(title: &str, audited: &[Audited]) -> String {
    let texts: Vec<_> = audited.iter().map(|audited| (audited.title(), note(&audited.report))).collect();
    let panels = audited.iter().zip(&texts);
    let panels: Vec<_> = panels
        .map(|(audited, (title, note))| AuditPanel { title, note, series: audited.report.series.as_ref() })
        .collect();
    audit_chart(title, &panels).to_file()
}

fn note(report: &AuditReport) -> String {
    let caps = report.rate_limits.iter().map(cap).chain(report.min_intervals.iter().map(apart));
    let caps = caps.collect::<Vec<_>>().join(", ");
    let caps = if caps.is_empty() { "no limit".to_owned() } else { caps };
    let worst = report.rate_limits.first().and_then(|limit| limit.worst_sliding_window);
    let worst = worst.map(|window| format!(" · worst sliding window {}", window.sends)).unwrap_or_default();
    let sends = if report.sends == 1 { "send" } else { "sends" };
    let broken = match report.violations() {
        0 => String::new(),
        violations => format!(" · violations {violations}"),
    };
    format!("{caps} · {} {sends}{worst}{broken}", report.sends)
}

fn cap(limit: &LimitAudit) -> String {
    let mut text = LimitText::new(limit.limit, limit.period, limit.burst);
    text.0.unit.clone_from(&limit.unit);
    text.to_string()
}

fn apart(interval: &MinIntervalAudit) -> String {
    format!("{} ms apart", interval.min_interval_ms)
}

fn fullest(window: Option<Window>) -> String {
    window.map_or(NONE.to_owned(), |window| window.sends.to_string())
}

fn name(audited: &Audited) -> String {
    shortened(&clean(&audited.title()), NAME_CHARS)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_core::{
        DeliveryId, Period, RateLimit, RateLimits, Timestamp,
        audit::{Auditor, UnknownSend},
        limit::MinInterval,
    };

    use super::*;

    const START: Timestamp = Timestamp::from_millis(1_763_710_200_000);

    /// An audit of four sends under these limits.
    fn audit_of(limits: Vec<RateLimit>) -> Auditor {
        audit_by(RateLimits::new(limits).unwrap())
    }

    fn audit_by(limits: RateLimits) -> Auditor {
        let mut auditor = Auditor::new(vec![(Timestamp::MIN, limits)], Timestamp::MIN, Timestamp::MAX);
        (0..4).for_each(|n| auditor.send(START + Duration::from_millis(n * 250)));
        auditor.delivered(Duration::from_micros(1_540));
        auditor
    }

    fn named(name: &str, auditor: Auditor) -> Audited {
        Audited { id: "dst_1".to_owned(), name: name.to_owned(), limit_key: None, report: auditor.report() }
    }

    fn audited(name: &str, limits: Vec<RateLimit>) -> Audited {
        named(name, audit_of(limits))
    }

    #[test]
    fn the_table_has_a_row_for_each_limit() {
        let second = RateLimit::with_burst(2, Period::SECOND, 2).unwrap();
        let minute = RateLimit::new(30, Period::MINUTE).unwrap();
        let screen = Screen { width: Some(120), colours: false, moves: false };
        let table = table(&[audited("Acme", vec![second, minute]), audited("", Vec::new())], screen);
        let lines: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 5, "{table}");
        assert_eq!(lines[2], ["Acme", "2/second:2", "4", "4", "4", "1", "1.2500", "1.5", "1.5"]);
        assert_eq!(lines[3], ["30/minute", "4", "4", "0", "1.2500"]);
        assert_eq!(lines[4], ["dst_1", "none", "4", "–", "–", "–", "–", "1.5", "1.5"]);
    }

    #[test]
    fn a_minimum_interval_has_a_row_with_the_shortest_gap() {
        let second = RateLimits::new(vec![RateLimit::new(9, Period::SECOND).unwrap()]).unwrap();
        let limits = second.with_min_interval(MinInterval::from_millis(251));
        let table =
            table(&[named("Acme", audit_by(limits))], Screen { width: Some(120), colours: false, moves: false });
        let lines: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[3], ["251", "ms", "apart", "–", "250.0", "ms", "3", "–"], "{table}");
    }

    #[test]
    fn sends_of_unknown_outcome_are_listed() {
        assert_eq!(unknown(&[audited("Acme", Vec::new())]), "");
        let mut auditor = audit_of(Vec::new());
        let delivery_id = DeliveryId::from_bytes([0; 16]);
        for number in 1..=101 {
            auditor.unknown_send(UnknownSend { delivery_id, number, latest_at: START + Duration::from_secs(1) }, 1);
        }
        let shown = unknown(&[audited("Bolt", Vec::new()), named("Acme", auditor)]);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines.len(), 102, "{shown}");
        assert_eq!(lines[1], format!("  Acme  attempt 1 of {delivery_id}, no later than 2025-11-21T07:30:01.000Z"));
        assert_eq!(lines[101], "  Acme  and 1 more");
    }

    #[test]
    fn the_table_of_the_demo_fits_80_columns_with_its_names() {
        let second = RateLimit::new(100, Period::SECOND).unwrap();
        let mut auditor = audit_of(vec![second]);
        auditor.delivered(Duration::from_millis(18_020));
        let screen = Screen { width: Some(80), ..Screen::PLAIN };
        let table = table(&[named("Growing partner", auditor)], screen);
        assert!(table.lines().all(|line| line.chars().count() <= 80) && table.contains("Growing partner"), "{table}");
    }

    #[test]
    fn a_name_cannot_break_the_table() {
        let name = format!("\u{1b}[2J\n{}", "é".repeat(60));
        let table = table(&[audited(&name, Vec::new())], Screen::PLAIN);
        assert_eq!(table.lines().count(), 2, "{table}");
        assert!(!table.contains('\u{1b}') && table.contains('…'), "{table}");
    }

    #[test]
    fn the_chart_has_a_panel_for_each_destination() {
        let limit = RateLimit::new(2, Period::SECOND).unwrap();
        let chart = chart_svg("Sends", &[audited("Acme", vec![limit]), audited("Bolt", Vec::new())]);
        for part in
            [">Acme<", "2/second · 4 sends · worst sliding window 4 · violations 2", ">Bolt<", "no limit · 4 sends"]
        {
            assert!(chart.contains(part), "{part} is missing in {chart}");
        }
    }

    #[test]
    fn json_contains_the_destination_and_its_audit() {
        let json = serde_json::to_value(audited("Acme", Vec::new())).unwrap();
        assert_eq!((json["id"].as_str(), json["sends"].as_u64()), (Some("dst_1"), Some(4)));
    }
}
