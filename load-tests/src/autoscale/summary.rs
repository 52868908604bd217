//! The summary of a run, for the terminal and for the page of results.

use std::fmt::Write;

use super::{play::Played, trace::Trace};

/// The number of columns on a terminal.
const COLUMNS: usize = 12;

/// A table of the run over time and the verdict on each promise.
pub(super) fn of(played: &Played) -> String {
    let mut out = format!("{}: {}\n", played.name, played.about);
    out += &table(&played.trace);
    for (promise, measured, is_kept) in lines(played) {
        let _ = writeln!(out, "  {} {promise}: {measured}", if is_kept { "✓" } else { "✗" });
    }
    out
}

/// Every promise, including those of the judge, with the measured result.
fn lines(played: &Played) -> Vec<(String, String, bool)> {
    let verdict =
        |verdict: &super::promise::Verdict| (verdict.promise.clone(), verdict.measured.clone(), verdict.is_kept);
    let mut lines: Vec<_> = played.verdicts.iter().map(verdict).collect();
    let judgement = &played.judgement;
    let above: u64 =
        judgement.groups.iter().flat_map(|group| &group.limits).map(|l| l.violations + l.recorded_violations).sum();
    let doubled = judgement.duplicates - judgement.explained;
    let counted = format!(
        "{} lost, {doubled} doubled, {above} above a limit, of {} arrivals",
        judgement.lost, judgement.arrivals
    );
    let used = judgement.groups.iter().flat_map(|group| &group.limits).filter_map(|limit| limit.utilisation);
    let used = used.reduce(f64::min).map(|used| format!("; use of limits {used:.4}")).unwrap_or_default();
    let broken =
        if played.breaches.is_empty() { String::new() } else { format!(" — {}", played.breaches.join("; ")) };
    let promise = "nothing lost, doubled or above a limit, and every process exits with success".to_owned();
    lines.push((promise, format!("{counted}{used}{broken}"), played.breaches.is_empty()));
    lines
}

/// A table of the run over time. Each column shows the largest value of its time, for the rates the mean.
fn table(trace: &Trace) -> String {
    // Every column covers an equal part of the run.
    let length_s = trace.replicas.last().map_or(1.0, |(at, _)| *at).max(1.0);
    let column_s = length_s / COLUMNS as f64;
    let mut out = String::new();
    // Writes a row. `value` gets the beginning and the end of each column.
    let mut row = |name: &str, value: &dyn Fn(f64, f64) -> Option<f64>| {
        let _ = write!(out, "  {name:<16}");
        for column in 0..COLUMNS {
            let from_s = column as f64 * column_s;
            match value(from_s, from_s + column_s) {
                Some(value) => _ = write!(out, "{value:>7.0}"),
                None => out += "      –",
            }
        }
        out.push('\n');
    };
    row("until second", &|_, until_s| Some(until_s));
    row("offered/s", &|from_s, until_s| mean(&trace.offered, from_s, until_s));
    row("started/s", &|from_s, until_s| mean(&trace.started, from_s, until_s));
    row("workers wanted", &|from_s, until_s| most(&trace.replicas, from_s, until_s));
    row("workers ready", &|from_s, until_s| most(&trace.ready, from_s, until_s));
    row("p99 lag, ms", &|from_s, until_s| most(&trace.lag_ms, from_s, until_s));
    row("p99 late, ms", &|from_s, until_s| most(&trace.late_ms, from_s, until_s));
    row("queued", &|from_s, until_s| most(&trace.queued, from_s, until_s));
    row("stored", &|from_s, until_s| most(&trace.stored, from_s, until_s));
    out
}

fn within<T: Copy + Into<f64>>(series: &[(f64, T)], from_s: f64, until_s: f64) -> impl Iterator<Item = f64> + '_ {
    let is_within = move |(at, _): &&(f64, T)| (from_s..until_s).contains(at);
    series.iter().filter(is_within).map(|(_, value)| (*value).into())
}

fn most<T: Copy + Into<f64>>(series: &[(f64, T)], from_s: f64, until_s: f64) -> Option<f64> {
    within(series, from_s, until_s).reduce(f64::max)
}

fn mean(series: &[(f64, f64)], from_s: f64, until_s: f64) -> Option<f64> {
    let values: Vec<f64> = within(series, from_s, until_s).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// A row of the page for each promise.
pub(super) fn markdown(played: &[Played], kind: &str) -> String {
    let mut out = "## Autoscaling\n\n".to_owned();
    out += "Written by `cargo xtask load --autoscale --results`. It runs real processes: a worker starts 5 s after the decision and is stopped by \
            SIGTERM; a real Prometheus scrapes them every 10 s; a controller reads queries, targets and behaviour from the ";
    let _ =
        write!(out, "{kind} in `k8s/` and decides as the HPA does. See [the load tests](README.md#autoscaling).\n\n");
    out += "![Load, workers and start lag through a step up and down](autoscale.svg)\n\n";
    out += "| scenario | promise | measured | |\n|---|---|---|---|\n";
    for run in played {
        for (promise, measured, is_kept) in lines(run) {
            let verdict = if is_kept { "met" } else { "**not met**" };
            let _ = writeln!(out, "| {} | {promise} | {measured} | {verdict} |", run.name);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_shows_its_largest_value_or_a_dash() {
        let trace = Trace {
            replicas: (0..24).map(|at| (f64::from(at), 2 + at / 2)).collect(),
            lag_ms: vec![(0.5, 7.0), (0.6, 9.0)],
            ..Trace::default()
        };
        let table = table(&trace);
        let row = |name: &str| table.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(row("wanted").ends_with("13"), "{table}");
        assert!(row("p99 lag").contains("      9      –"), "{table}");
    }
}
