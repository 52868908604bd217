//! The page: the verdict, a table of the runs, and for each run its judgement and charts. One self-contained file for
//! light and dark screens.

use std::fmt::Write;

use weir_chart::escaped;

use super::{
    Report, Run,
    pictures::{self, Picture},
};
use crate::judge::{GroupJudgement, Judgement};

const STYLE: &str = include_str!("style.css");

pub(super) fn page(report: &Report) -> anyhow::Result<String> {
    let mut out = String::new();
    writeln!(
        out,
        "<!doctype html><html lang=\"en-GB\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Weir under load</title><style>\n{STYLE}{}</style>",
        weir_chart::STYLE
    )?;
    write_verdict(&mut out, report)?;
    write_summary(&mut out, report)?;
    for (number, run) in report.runs.iter().enumerate() {
        write_run(&mut out, number, run)?;
    }
    Ok(out)
}

/// The verdict and the totals of all runs.
fn write_verdict(out: &mut String, report: &Report) -> anyhow::Result<()> {
    let failed = report.runs.iter().filter(|run| !run.passed).count();
    let breaches: usize = report.runs.iter().map(|run| run.judgement.breaches.len()).sum();
    // The class gives the verdict its colour.
    let (class, verdict) = match failed {
        0 => ("ok", "Every promise was kept.".to_owned()),
        _ => (
            "no",
            format!("{breaches} broken promise{} in {failed} of {} scenarios.", plural(breaches), report.runs.len()),
        ),
    };
    writeln!(out, "<h1>Weir under load</h1><p class=\"verdict {class}\">{verdict}</p>")?;
    // The totals of all runs.
    let sum = |figure: fn(&Judgement) -> u64| report.runs.iter().map(|run| figure(&run.judgement)).sum::<u64>();
    let facts = [
        ("scenarios passed", format!("{} of {}", report.runs.len() - failed, report.runs.len())),
        ("events accepted", grouped(sum(|judgement| judgement.events - judgement.refused - judgement.unknown))),
        ("sends judged", grouped(sum(|judgement| judgement.arrivals))),
        ("above a limit", grouped(sum(above))),
        ("lost", grouped(sum(|judgement| judgement.lost))),
        ("doubled without a fault", grouped(sum(|judgement| judgement.duplicates - judgement.explained))),
        ("out of order", grouped(sum(|judgement| judgement.out_of_order))),
    ];
    *out += "<dl>";
    for (name, figure) in facts {
        write!(out, "<div><dt>{name}</dt><dd>{figure}</dd></div>")?;
    }
    writeln!(
        out,
        "</dl><p class=\"soft\">Started {}. {} cores ({}), shared by publisher, receiver and engine. Harness {}.</p>",
        report.began,
        report.machine.cores,
        escaped(&report.machine.os),
        escaped(&report.machine.harness),
    )?;
    Ok(())
}

/// Sends above a limit, at the receiver or in Weir's record.
fn above(judgement: &Judgement) -> u64 {
    judgement.limits().map(|(_, limit)| limit.violations.max(limit.recorded_violations)).sum()
}

fn write_summary(out: &mut String, report: &Report) -> anyhow::Result<()> {
    *out += "<div class=\"wide\"><table><thead><tr><th>Scenario<th>Set-up<th>Verdict<th>Events<th>Sends<th>Above a limit<th>Lost\
             <th>Doubled<th>Explained<th>Out of order<th>Drained, s</tr></thead>";
    for (number, run) in report.runs.iter().enumerate() {
        let judgement = &run.judgement;
        writeln!(
            out,
            "<tr><td><a href=\"#run{number}\">{}</a><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            escaped(&run.scenario),
            escaped(&run.set_up),
            verdict(run),
            grouped(judgement.events),
            grouped(judgement.arrivals),
            above(judgement),
            judgement.lost,
            judgement.duplicates,
            judgement.explained,
            judgement.out_of_order,
            judgement.drained_after_s.map_or("never".to_owned(), |s| format!("{s:.1}")),
        )?;
    }
    *out += "</table></div>";
    Ok(())
}

fn verdict(run: &Run) -> &'static str {
    if run.passed { "<b class=\"ok\">✓ passed</b>" } else { "<b class=\"no\">✗ failed</b>" }
}

fn write_run(out: &mut String, number: usize, run: &Run) -> anyhow::Result<()> {
    writeln!(
        out,
        "<h2 id=\"run{number}\">{} <small>{}</small> {}</h2><p>{}</p>",
        escaped(&run.scenario),
        escaped(&run.set_up),
        verdict(run),
        escaped(&run.about)
    )?;
    // The broken promises, in words.
    if !run.passed {
        *out += "<ul class=\"no\">";
        for breach in &run.judgement.breaches {
            writeln!(out, "<li>{}</li>", escaped(breach))?;
        }
        *out += "</ul>";
    }
    for (group, overload) in run.judgement.groups.iter().filter_map(|group| Some((group, group.overload?))) {
        writeln!(
            out,
            "<p>This machine can take {} events a second to {}. It was offered {} a second and sent {} a second: {:.0} % of the rate that it can take.</p>",
            grouped(overload.capacity_per_s as u64),
            escaped(&group.name),
            grouped(overload.offered_per_s as u64),
            grouped(overload.sent_per_s as u64),
            overload.share() * 100.0
        )?;
    }
    write_limits(out, &run.judgement)?;
    write_latencies(out, &run.judgement.groups)?;
    // The pictures of a group follow each other. Each group has a heading and a box.
    let mut last = None;
    for picture in pictures::all(&run.judgement.pictures) {
        if picture.group != last
            && let Some(name) = &picture.group
        {
            let end = if last.is_some() { "</div>" } else { "" };
            writeln!(out, "{end}<h3>{}</h3><div class=\"group\">", escaped(name))?;
            last.clone_from(&picture.group);
        }
        write_picture(out, &picture)?;
    }
    if last.is_some() {
        *out += "</div>";
    }
    Ok(())
}

fn write_picture(out: &mut String, picture: &Picture) -> anyhow::Result<()> {
    writeln!(out, "<figure><figcaption>{}</figcaption>{}</figure>", escaped(&picture.title), picture.svg)?;
    Ok(())
}

fn write_limits(out: &mut String, judgement: &Judgement) -> anyhow::Result<()> {
    if judgement.limits().next().is_none() {
        return Ok(());
    }
    *out += "<div class=\"wide\"><table><thead><tr><th rowspan=2>Destinations<th rowspan=2>Limit<th colspan=2>Fullest window at the receiver\
             <th colspan=2>Fullest window in Weir’s record<th rowspan=2>Above<th rowspan=2>Excused<th rowspan=2>Used</tr>\
             <tr><th>of any<th>of the calendar<th>of any<th>of the calendar</tr></thead>";
    for (title, limit) in judgement.limits() {
        let recorded = |figure: Option<u64>| figure.map_or("–".to_owned(), grouped);
        writeln!(
            out,
            "<tr><td>{}<td>{} a {}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            escaped(&title),
            limit.bound.map_or("none".to_owned(), grouped),
            limit.period,
            grouped(limit.worst_sliding),
            grouped(limit.worst_calendar),
            recorded(limit.recorded_worst_sliding),
            recorded(limit.recorded_worst_calendar),
            limit.violations.max(limit.recorded_violations),
            limit.excused,
            limit.utilisation.map_or("–".to_owned(), |used| format!("{:.1} %", used * 100.0)),
        )?;
    }
    *out += "</table></div>";
    Ok(())
}

fn write_latencies(out: &mut String, groups: &[GroupJudgement]) -> anyhow::Result<()> {
    *out += "<div class=\"wide\"><table><thead><tr><th rowspan=2>Destinations<th colspan=6>From when an event was meant to be posted to its \
             first arrival, ms<th rowspan=2>Fairness</tr><tr><th>p50<th>p90<th>p99<th>p99.9<th>max<th></tr></thead>";
    for (group, latency) in groups.iter().filter_map(|group| Some((group, group.latency_ms?))) {
        writeln!(
            out,
            "<tr><td>{}<td>{:.1}<td>{:.1}<td>{:.1}<td>{:.1}<td>{:.1}<td><td>{}</tr>",
            escaped(&group.title()),
            latency.p50,
            latency.p90,
            latency.p99,
            latency.p99_9,
            latency.max,
            group.fairness.map_or("–".to_owned(), |index| format!("{index:.3}")),
        )?;
    }
    *out += "</table></div>";
    Ok(())
}

/// With a thin space between thousands.
fn grouped(figure: u64) -> String {
    let digits = figure.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]);
    }
}
