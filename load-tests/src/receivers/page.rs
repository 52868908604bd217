//! The figures as text: a line for each case in the terminal, and the table of the guide about limits.

use std::{fmt::Write, path::Path};

use anyhow::{Context, ensure};

use super::{
    case::{Case, Setting, Wanted},
    verdict::Played,
};
use crate::scenario::SetUp;

/// The line of a case, and a line for each breach.
pub(super) fn line(played: &Played) -> String {
    let (figures, breaches) = (played.figures(), played.breaches());
    let verdict = match breaches.is_empty() {
        false => "FAILED",
        true if played.case.wanted == Wanted::default() => "shown",
        true => "met",
    };
    let used = if played.has_use() { format!("{:5.1} %", figures.used * 100.0) } else { "     –".to_owned() };
    let mut out = format!(
        "  {verdict:<6}  {:<66} {:>6} sends  {:5.2} % refused  {used} used  longest pause {:.2} s\n",
        played.case.to_string(),
        figures.sends,
        figures.refused_share() * 100.0,
        figures.longest_pause.as_secs_f64(),
    );
    for remark in played.stopped.iter().map(|stopped| format!("at the end {stopped}")).chain(breaches) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "          {remark}");
    }
    out
}

/// The cases that share a row: one for each limit.
fn shares_row(a: &Case, b: &Case) -> bool {
    a.kind == b.kind && a.jitter == b.jitter && std::mem::discriminant(&a.setting) == std::mem::discriminant(&b.setting)
}

/// A Markdown table with a row for each receiver and setting.
pub(super) fn table(played: &[Played]) -> String {
    let mut out = String::from(
        "| receiver | it counts | the destination has | limits | refused % | used % |\n|---|---|---|---|---|---|\n",
    );
    for row in played.chunk_by(|a, b| shares_row(&a.case, &b.case)) {
        let Case { kind, jitter, .. } = row[0].case;
        let each = |of: &dyn Fn(&Played) -> String| row.iter().map(of).collect::<Vec<_>>().join(" · ");
        let network =
            if jitter.is_zero() { String::new() } else { format!(", behind 0–{} ms of jitter", jitter.as_millis()) };
        let _ = writeln!(
            out,
            "| {}{network} | {} | {} | {} | {} | {} |",
            kind.title(),
            kind.counts(),
            setting(row),
            each(&|one| one.case.limit.to_string()),
            each(&|one| share(one.figures().refused_share())),
            each(&|one| if one.has_use() { share(one.figures().used) } else { "–".to_owned() }),
        );
    }
    out
}

/// The setting of a row with the value for each limit.
fn setting(row: &[Played]) -> String {
    let values = |name: &str, value: fn(&Setting) -> u32| {
        let mut values: Vec<_> = row.iter().map(|one| value(&one.case.setting).to_string()).collect();
        values.dedup();
        format!("`{name}`: {}", values.join(" · "))
    };
    match row[0].case.setting {
        Setting::MinInterval { .. } => {
            values("min_interval_ms", |setting| if let Setting::MinInterval { ms } = setting { *ms } else { 0 })
        }
        Setting::Margin { .. } => {
            values("margin_ms", |setting| if let Setting::Margin { ms } = setting { *ms } else { 0 })
        }
        Setting::Default | Setting::Unlimited | Setting::Adaptive => row[0].case.setting.to_string(),
    }
}

/// A share as per cent: two digits below one per cent, whole numbers from ten on.
fn share(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        ..0.005 => "0".to_owned(),
        ..1.0 => format!("{percent:.2}"),
        ..9.95 => format!("{percent:.1}"),
        _ => format!("{percent:.0}"),
    }
}

/// Replaces the table of a set-up in the guide.
pub(super) fn write(guide: &Path, set_up: SetUp, played: &[Played]) -> anyhow::Result<()> {
    let page = std::fs::read_to_string(guide).with_context(|| format!("cannot read {}", guide.display()))?;
    let page = with_table(&page, set_up, &table(played));
    ensure!(page.is_some(), "{} has no place for the table of {}", guide.display(), set_up.as_str());
    Ok(std::fs::write(guide, page.unwrap_or_default())?)
}

fn with_table(page: &str, set_up: SetUp, table: &str) -> Option<String> {
    let begins = format!("<!-- measured, {}: begins -->\n", set_up.as_str());
    let ends = format!("<!-- measured, {}: ends -->", set_up.as_str());
    let (before, rest) = page.split_once(&begins)?;
    let (_, after) = rest.split_once(&ends)?;
    Some(format!("{before}{begins}{table}{ends}{after}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        clock::now,
        receivers::{case::Kind, relay::Exchange},
    };

    fn played(case: Case) -> Played {
        let began = now();
        let exchanges = (0..=100)
            .map(|n| Exchange { at: began + case.limit.spacing() * n, status: if n == 50 { 429 } else { 200 } });
        let ended = began + case.limit.spacing() * 100;
        Played { case, exchanges: exchanges.collect(), ended, events: 101, dead: 0, stopped: None }
    }

    fn of(kind: Kind) -> Vec<Played> {
        Case::all().into_iter().filter(|case| case.kind == kind).map(played).collect()
    }

    #[test]
    fn a_row_has_the_figures_of_each_limit() {
        let table = table(&of(Kind::Gcra));
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(rows.len(), 3, "{table}");
        let end = "| the limit | 2/s · 10/s · 100/s · 60/min | 0.99 · 0.99 · 0.99 · 0.99 | 99 · 99 · 99 · 99 |";
        assert!(rows[0].ends_with(end), "{table}");
        assert!(rows[1].contains("| `min_interval_ms`: 500 · 100 · 10 · 1000 |"), "{table}");
        // One value stands for all limits.
        assert!(super::table(&of(Kind::MovingWindow)).contains("| `margin_ms`: 50 |"));
    }

    #[test]
    fn a_share_is_shown_with_the_digits_that_matter() {
        assert_eq!([0.0, 0.002, 0.053, 0.331, 0.995].map(share), ["0", "0.20", "5.3", "33", "100"]);
    }

    #[test]
    fn the_table_of_one_set_up_is_replaced() {
        let page = "a\n<!-- measured, embedded: begins -->\nold\n<!-- measured, embedded: ends -->\nb\n";
        let new = with_table(page, SetUp::Embedded, "new\n").unwrap();
        assert_eq!(new, page.replace("old", "new"));
        assert_eq!(with_table(page, SetUp::Scaled, "new\n"), None);
    }

    #[test]
    fn a_breach_is_shown_below_its_case() {
        let mut failed = played(Case::all()[0]);
        failed.stopped = Some("the breaker is open".to_owned());
        failed.exchanges.clear();
        let text = line(&failed);
        assert!(text.starts_with("  FAILED  nginx at 2/s, the limit"), "{text}");
        assert!(text.contains("at the end the breaker is open\n          nothing was sent\n"), "{text}");
        assert_eq!(failed.figures().longest_pause, Duration::ZERO);
        assert!(line(&played(Case::all()[0])).starts_with("  shown   nginx at 2/s"));
    }
}
