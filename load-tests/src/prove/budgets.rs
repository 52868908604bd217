//! The section of `RESULTS.md` about limits that several flows share: what scenarios of limit groups, limit keys, costs,
//! reservations and overrides have shown.

use crate::{
    judge::{Judgement, caps::LimitJudgement},
    pages::Run,
};

const HEAD: &str = "## Budgets

Written by `cargo xtask load SCENARIO… -- --results`. The receivers judge every sliding window of every limit: of destinations, \
of limit groups with the calls of callers outside Weir, and of each limit key. *Used* is the least of a limit that several \
flows share, while a backlog waits. *Fairness* is the Jain index of the sends ÷ weights of a group's members.

| scenario | set-up | sends above a limit | lost | used | fairness | farthest from its share | drained after | |
|---|---|---|---|---|---|---|---|---|
";

/// The section with these runs in place of older ones of the same scenario and set-up.
pub(super) fn section(old: Option<&str>, runs: &[Run]) -> String {
    let new: Vec<(String, String)> = runs.iter().map(row).collect();
    let is_kept = |row: &&str| row.starts_with("| `") && new.iter().all(|(begin, _)| !row.starts_with(begin));
    let mut rows: Vec<String> = old.unwrap_or_default().lines().filter(is_kept).map(str::to_owned).collect();
    rows.extend(new.iter().map(|(begin, rest)| format!("{begin}{rest}")));
    rows.sort();
    format!("{HEAD}{}\n", rows.join("\n"))
}

/// The row of a run, in two parts: whose it is, and its figures.
fn row(run: &Run) -> (String, String) {
    let Judgement { groups, limit_groups, lost, drained_after_s, .. } = &run.judgement;
    let shared = || groups.iter().flat_map(|of| &of.limits).chain(limit_groups.iter().flat_map(|of| &of.limits));
    let all = || shared().chain(groups.iter().flat_map(|of| &of.key_limits));
    let above: u64 = all().map(|limit: &LimitJudgement| limit.violations + limit.recorded_violations).sum();
    let used = shared().filter_map(|limit| limit.utilisation).reduce(f64::min);
    let shares = || limit_groups.iter().filter_map(|group| group.shares);
    let fairness = shares().map(|of| of.fairness).reduce(f64::min);
    let farthest = shares().map(|of| of.farthest).reduce(f64::max);
    let drained = drained_after_s.map_or("not drained".to_owned(), |s| format!("{s:.1} s"));
    let figure = |figure: Option<f64>| figure.map_or("–".to_owned(), |figure| format!("{figure:.3}"));
    let verdict = if run.passed { "passed" } else { "**failed**" };
    let (used, fairness, farthest) = (figure(used), figure(fairness), figure(farthest));
    (
        format!("| `{}` | {} |", run.scenario, run.set_up),
        format!(" {above} | {lost} | {used} | {fairness} | {farthest} | {drained} | {verdict} |"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_replaces_an_older_one_of_its_scenario_and_set_up() {
        let run = |scenario: &str, passed| Run {
            scenario: scenario.to_owned(),
            about: String::new(),
            set_up: "embedded".to_owned(),
            passed,
            judgement: Judgement::default(),
        };
        let first = section(None, &[run("key-flood", false), run("group-fair", true)]);
        let second = section(Some(&first), &[run("key-flood", true)]);
        let rows: Vec<&str> = second.lines().filter(|line| line.starts_with("| `")).collect();
        let figures = "0 | 0 | – | – | – | not drained | passed |";
        assert_eq!(
            rows,
            [format!("| `group-fair` | embedded | {figures}"), format!("| `key-flood` | embedded | {figures}")]
        );
    }
}
