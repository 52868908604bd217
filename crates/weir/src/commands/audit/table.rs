//! The audit as a table: one line per limit.

use weir_core::audit::LimitAudit;

use super::Audited;

const HEAD: [&str; 9] =
    ["destination", "cap", "sends", "worst calendar", "worst sliding", "violations", "utilisation", "p50 ms", "p99 ms"];

/// Renders the table; a destination without a limit has one line, with its sends and latencies.
pub(in crate::commands) fn table(audited: &[Audited]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    for audited in audited {
        let limits = &audited.report.rate_limits;
        rows.extend(limits.iter().map(|limit| row(audited, Some(limit))));
        if limits.is_empty() {
            rows.push(row(audited, None));
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; HEAD.len()] = std::array::from_fn(width);
    let lines: Vec<_> = rows.iter().map(|row| line(row, &widths)).collect();
    let rule = widths.map(|width| "─".repeat(width)).join("  ");
    format!("{}\n{rule}\n{}", lines[0], lines[1..].join("\n"))
}

/// A limit in a few characters: `10/second`, `10/second burst 5`.
pub(super) fn cap(limit: &LimitAudit) -> String {
    let burst = if limit.burst > 1 { format!(" burst {}", limit.burst) } else { String::new() };
    format!("{}/{}{burst}", limit.limit, limit.period.as_str())
}

fn row(audited: &Audited, limit: Option<&LimitAudit>) -> [String; HEAD.len()] {
    let report = &audited.report;
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    let millis = |value: Option<f64>| or_dash(value.map(|value| format!("{value:.1}")));
    let worst = |window: Option<weir_core::audit::Window>| or_dash(window.map(|window| window.sends.to_string()));
    [
        if audited.name.is_empty() { audited.id.clone() } else { audited.name.clone() },
        limit.map_or("none".to_owned(), cap),
        report.sends.to_string(),
        worst(limit.and_then(|limit| limit.worst_calendar_window)),
        worst(limit.and_then(|limit| limit.worst_sliding_window)),
        or_dash(limit.map(|limit| limit.violations.to_string())),
        or_dash(limit.and_then(|limit| limit.utilisation).map(|share| format!("{share:.4}"))),
        millis(report.delivery_latency_ms.p50),
        millis(report.delivery_latency_ms.p99),
    ]
}

/// The first two columns are words, to the left; the others figures, to the right.
fn line(row: &[String], widths: &[usize]) -> String {
    let cells: Vec<_> = row
        .iter()
        .zip(widths)
        .enumerate()
        .map(|(column, (cell, &width))| if column < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") })
        .collect();
    cells.join("  ").trim_end().to_owned()
}
