//! The figures as text: lines for the terminal, and the section of RESULTS.md.

use std::fmt::Write;

use weir_pace_trials::{judge::Figures, real::Class};

use super::verdict::{Row, Verdict};
use crate::scenario::SetUp;

/// A line for each row, and one for each figure that was missed.
pub(super) fn lines(verdict: &Verdict<'_>) -> String {
    let mut out = String::new();
    let mut line = |name: &str, what: String, missed: &[String]| {
        let met = if missed.is_empty() { "met" } else { "NOT MET" };
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "  {met:<7}  {name:<44} {what}");
        for missed in missed {
            let _ = writeln!(out, "           {missed}");
        }
    };
    for Row { class, figures, above, missed } in &verdict.rows {
        let what = format!(
            "goodput {}  refused {}  90 % after {}  {above} above the limit",
            goodput(figures),
            refused(figures),
            times(class, &figures.to_90_s)
        );
        line(class.scenario.name, what, missed);
    }
    let neighbours = &verdict.neighbours;
    let what = format!("used {:.3}  p99 {:.0} ms  {} above", neighbours.used, neighbours.p99_ms, neighbours.above);
    line("neighbours with a fixed limit", what, &neighbours.missed);
    for (what, is_found) in &verdict.controls {
        let missed = if *is_found { Vec::new() } else { vec!["it was not found".to_owned()] };
        line("control", (*what).to_owned(), &missed);
    }
    out
}

pub(super) fn section(set_up: SetUp, verdict: &Verdict<'_>, seeds: u64) -> String {
    let (name, processes, loss) = match set_up {
        SetUp::Embedded => ("embedded", "one process", "the process is killed and started again"),
        SetUp::Scaled => ("scaled", "an API, a scheduler and two workers on PostgreSQL and Redis", "Redis is flushed"),
    };
    let mut out = format!(
        "## Adaptive rate on real sockets, {name}\n\nWritten by `weir-load-tests adaptive --real --spawn {name} \
         --results`: {processes}, real HTTP and real time, one play. All receivers are destinations of the same run. \
         The capacity falls at 60 s and rises at 120 s; at 240 s {loss}. Requests per second; figures of the phases, each \
         after it has settled. *Virtual*: the same receivers in virtual time, the median of {seeds} \
         seeds.\n\n| receiver | goodput ÷ capacity | virtual | refused | virtual | 90 % used after | virtual | above the \
         hard limit | |\n|---|---|---|---|---|---|---|---|---|\n"
    );
    let mut missed = String::new();
    for row in &verdict.rows {
        let Row { class, figures, above, .. } = row;
        let virtually = class.in_virtual_time(seeds);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {above} | {} |",
            class.scenario.name,
            goodput(figures),
            goodput(&virtually),
            refused(figures),
            refused(&virtually),
            times(class, &figures.to_90_s),
            times(class, &virtually.to_90_s),
            met(&row.missed),
        );
        for what in &row.missed {
            let _ = writeln!(missed, "- {}, {what}", class.scenario.name);
        }
    }
    let neighbours = &verdict.neighbours;
    for what in &neighbours.missed {
        let _ = writeln!(missed, "- neighbours, {what}");
    }
    let _ = writeln!(
        out,
        "\nBeside them two neighbours with a fixed limit: one with a backlog used {:.3} of it, and one that was posted half \
         of it got its events {:.0} ms after the post (p99); {} above their limits: {}. Judged wrongly on purpose: {}.",
        neighbours.used,
        neighbours.p99_ms,
        neighbours.above,
        met(&neighbours.missed),
        controls(verdict),
    );
    if !missed.is_empty() {
        let _ = write!(out, "\nNot met:\n\n{missed}");
    }
    out
}

fn met(missed: &[String]) -> &'static str {
    if missed.is_empty() { "met" } else { "**not met**" }
}

fn controls(verdict: &Verdict<'_>) -> String {
    let told = |(what, is_found): &(&str, bool)| {
        format!("{what}, which was {}", if *is_found { "found" } else { "**not found**" })
    };
    verdict.controls.iter().map(told).collect::<Vec<_>>().join("; ")
}

fn each(values: &[f64], text: impl Fn(f64) -> String) -> String {
    values.iter().map(|value| text(*value)).collect::<Vec<_>>().join(" · ")
}

fn goodput(figures: &Figures) -> String {
    each(&figures.goodput, |value| format!("{value:.2}"))
}

fn refused(figures: &Figures) -> String {
    each(&figures.refused, |value| format!("{:.1} %", 100.0 * value))
}

/// Windows of minutes have no time in which they are used.
fn times(class: &Class, values: &[f64]) -> String {
    if class.judged_from > 0 {
        return "–".to_owned();
    }
    each(values, |value| if value.is_finite() { format!("{value:.0} s") } else { "never".to_owned() })
}
