//! The page: a table of the runs, and for each what was judged and its pictures.

use std::fmt::Write;

use super::{Report, Run, pictures};
use crate::judge::GroupJudgement;

const STYLE: &str = "\
:root{color-scheme:light}body{font:15px/1.5 system-ui,sans-serif;max-width:1060px;margin:2rem auto;padding:0 1rem;color:#1f2328;background:#fff}\
h1{font-size:1.6rem}h2{margin-top:2.5rem;border-top:1px solid #d0d7de;padding-top:1.5rem}\
table{border-collapse:collapse;margin:1rem 0}th,td{padding:.25rem .75rem;text-align:right;border-bottom:1px solid #d0d7de}\
th:first-child,td:first-child{text-align:left}.ok{color:#1a7f37}.no{color:#cf222e}svg{max-width:100%;height:auto}\
figure{margin:1rem 0}figcaption{color:#57606a}";

pub(super) fn page(report: &Report) -> anyhow::Result<String> {
    let mut out = String::new();
    let passed = report.runs.iter().filter(|run| run.passed).count();
    writeln!(
        out,
        "<!doctype html><html lang=\"en-GB\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Weir under load</title><style>{STYLE}</style><h1>Weir under load</h1>\
         <p>{passed} of {} scenarios passed. Begun {}; {} cores shared by publisher, receiver and engine; {}; harness {}.</p>",
        report.runs.len(),
        report.began,
        report.machine.cores,
        escaped(&report.machine.os),
        escaped(&report.machine.harness),
    )?;
    out +=
        "<table><tr><th>scenario<th>set-up<th>verdict<th>events<th>arrivals<th>lost<th>doubled<th>drained after</tr>";
    for (number, run) in report.runs.iter().enumerate() {
        let judgement = &run.judgement;
        let drained = judgement.drained_after_s.map_or("never".to_owned(), |s| format!("{s:.1} s"));
        writeln!(
            out,
            "<tr><td><a href=\"#run{number}\">{}</a><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{drained}</tr>",
            escaped(&run.scenario),
            escaped(&run.set_up),
            verdict(run),
            judgement.events,
            judgement.arrivals,
            judgement.lost,
            judgement.duplicates,
        )?;
    }
    out += "</table>";
    for (number, run) in report.runs.iter().enumerate() {
        write_run(&mut out, number, run)?;
    }
    Ok(out)
}

fn verdict(run: &Run) -> &'static str {
    if run.passed { "<b class=\"ok\">passed</b>" } else { "<b class=\"no\">failed</b>" }
}

fn write_run(out: &mut String, number: usize, run: &Run) -> anyhow::Result<()> {
    writeln!(
        out,
        "<h2 id=\"run{number}\">{} <small>({})</small> {}</h2><p>{}</p>",
        escaped(&run.scenario),
        escaped(&run.set_up),
        verdict(run),
        escaped(&run.about)
    )?;
    if !run.passed {
        *out += "<ul class=\"no\">";
        for breach in &run.judgement.breaches {
            writeln!(out, "<li>{}</li>", escaped(breach))?;
        }
        *out += "</ul>";
    }
    write_limits(out, &run.judgement.groups)?;
    write_latencies(out, &run.judgement.groups)?;
    for picture in pictures::all(&run.judgement.pictures)? {
        writeln!(out, "<figure>{}<figcaption>{}</figcaption></figure>", picture.svg, escaped(&picture.caption))?;
    }
    Ok(())
}

fn write_limits(out: &mut String, groups: &[GroupJudgement]) -> anyhow::Result<()> {
    *out += "<table><tr><th>destinations<th>limit<th>fullest window<th>fullest of the calendar<th>fullest recorded\
             <th>above<th>used<th>excused</tr>";
    for (group, limit) in groups.iter().flat_map(|group| group.limits.iter().map(move |limit| (group, limit))) {
        writeln!(
            out,
            "<tr><td>{} ×{}<td>{} a {}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            escaped(&group.name),
            group.destinations,
            limit.bound.map_or("none".to_owned(), |bound| bound.to_string()),
            limit.period,
            limit.worst_sliding,
            limit.worst_calendar,
            limit.recorded_worst_sliding.unwrap_or(0),
            limit.violations + limit.recorded_violations,
            limit.utilisation.map_or("–".to_owned(), |used| format!("{used:.3}")),
            limit.excused,
        )?;
    }
    *out += "</table>";
    Ok(())
}

fn write_latencies(out: &mut String, groups: &[GroupJudgement]) -> anyhow::Result<()> {
    *out += "<table><tr><th>from when an event was meant to be posted to its first arrival, ms<th>p50<th>p90<th>p99<th>p99.9<th>max<th>fairness</tr>";
    for (group, latency) in groups.iter().filter_map(|group| Some((group, group.latency_ms?))) {
        writeln!(
            out,
            "<tr><td>{} ×{}<td>{:.1}<td>{:.1}<td>{:.1}<td>{:.1}<td>{:.1}<td>{}</tr>",
            escaped(&group.name),
            group.destinations,
            latency.p50,
            latency.p90,
            latency.p99,
            latency.p99_9,
            latency.max,
            group.fairness.map_or("–".to_owned(), |index| format!("{index:.3}")),
        )?;
    }
    *out += "</table>";
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
