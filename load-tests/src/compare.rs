//! Two reports side by side: the figures of each scenario in both.

use std::{fmt::Write, path::Path};

use crate::pages::{Report, Run};

pub(crate) fn compare(a: &Path, b: &Path) -> anyhow::Result<String> {
    Ok(side_by_side(&Report::read(a)?, &Report::read(b)?))
}

fn side_by_side(a: &Report, b: &Report) -> String {
    let mut out = format!("{:<44} {:>16} {:>16} {:>9}\n", "", a.began.to_string(), b.began.to_string(), "change");
    let key = |run: &Run| (run.scenario.clone(), run.set_up.clone());
    for run in &a.runs {
        let Some(other) = b.runs.iter().find(|other| key(other) == key(run)) else {
            let _ = writeln!(out, "{} ({}): only in the first", run.scenario, run.set_up);
            continue;
        };
        let _ = writeln!(out, "{} ({})", run.scenario, run.set_up);
        let others = figures(other);
        for (name, figure) in figures(run) {
            let other = others.iter().find(|(other, _)| *other == name).and_then(|(_, figure)| *figure);
            let _ = writeln!(out, "{}", line(&name, figure, other));
        }
    }
    for run in b.runs.iter().filter(|run| !a.runs.iter().any(|other| key(other) == key(run))) {
        let _ = writeln!(out, "{} ({}): only in the second", run.scenario, run.set_up);
    }
    out
}

fn line(name: &str, a: Option<f64>, b: Option<f64>) -> String {
    let shown = |figure: Option<f64>| figure.map_or("–".to_owned(), |figure| format!("{figure:.3}"));
    let change = a.zip(b).filter(|(a, _)| *a != 0.0).map(|(a, b)| format!("{:+.1} %", (b / a - 1.0) * 100.0));
    format!("  {name:<42} {:>16} {:>16} {:>9}", shown(a), shown(b), change.unwrap_or_default()).trim_end().to_owned()
}

fn figures(run: &Run) -> Vec<(String, Option<f64>)> {
    let judgement = &run.judgement;
    // First the figures of the run, then those of each group.
    let mut figures = vec![
        ("breaches".to_owned(), Some(judgement.breaches.len() as f64)),
        ("lost".to_owned(), Some(judgement.lost as f64)),
        ("doubled".to_owned(), Some(judgement.duplicates as f64)),
        ("drained after, s".to_owned(), judgement.drained_after_s),
    ];
    for group in &judgement.groups {
        let name = &group.name;
        for limit in &group.limits {
            figures.push((format!("{name}: fullest {}", limit.period), Some(limit.worst_sliding as f64)));
            figures.push((format!("{name}: used of a {}", limit.period), limit.utilisation));
        }
        if let Some(latency) = group.latency_ms {
            figures.push((format!("{name}: p50, ms"), Some(latency.p50)));
            figures.push((format!("{name}: p99, ms"), Some(latency.p99)));
            figures.push((format!("{name}: p99.9, ms"), Some(latency.p99_9)));
        }
        if group.fairness.is_some() {
            figures.push((format!("{name}: fairness"), group.fairness));
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_in_per_cent_when_both_figures_exist() {
        assert!(line("p50, ms", Some(2.0), Some(3.0)).ends_with("3.000   +50.0 %"));
        assert!(line("lost", Some(0.0), Some(1.0)).ends_with("1.000"));
        assert!(line("p99, ms", Some(2.0), None).ends_with("–"));
    }
}
