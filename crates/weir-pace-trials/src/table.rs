//! The table of all pacers on all receivers, in Markdown.

use std::fmt::Write as _;

use crate::{
    judge::{self, Figures},
    opponents::{ALL, Opponent},
    scenarios::{self, Scenario},
    world,
};

/// What one pacer does on one receiver, with each seed.
pub fn play(scenario: &Scenario, (_, new): Opponent, seeds: u64) -> Vec<Figures> {
    let play = |seed| {
        let mut receiver = scenario.receiver.clone();
        let sent = world::play(&mut receiver, new().as_mut(), &scenario.course, seed);
        judge::judge(&sent, &receiver, &scenario.phases, scenario.settles, scenario.course.seconds)
    };
    (1..=seeds).map(play).collect()
}

/// The medians of each phase.
pub fn medians(figures: &[Figures], of: impl Fn(&Figures) -> &[f64]) -> Vec<f64> {
    let phases = figures.first().map_or(0, |first| of(first).len());
    (0..phases).map(|phase| judge::median(figures.iter().map(|figures| of(figures)[phase]))).collect()
}

fn joined(values: &[f64], write: impl Fn(f64) -> String) -> String {
    values.iter().map(|value| write(*value)).collect::<Vec<_>>().join(" / ")
}

fn seconds(value: f64) -> String {
    if value.is_finite() { format!("{value:.0} s") } else { "never".to_owned() }
}

/// One table for each receiver.
pub fn markdown(only: &str, seeds: u64) -> String {
    let mut page = String::new();
    for scenario in scenarios::all().iter().filter(|scenario| scenario.name.contains(only)) {
        _ = writeln!(page, "**{}**\n\n| | goodput ÷ capacity | refused | p99 | to 90 % | flooding |", scenario.name);
        _ = writeln!(page, "|---|---|---|---|---|---|");
        for opponent in ALL.into_iter().take(if std::env::var_os("OURS").is_some() { 1 } else { 9 }) {
            let figures = play(scenario, opponent, seeds);
            let goodput = joined(&medians(&figures, |f| &f.goodput), |v| format!("{v:.2}"));
            let refused = joined(&medians(&figures, |f| &f.refused), |v| format!("{:.1} %", 100.0 * v));
            let p99 = joined(&medians(&figures, |f| &f.p99_s), |v| format!("{v:.2} s"));
            let to_90 = joined(&medians(&figures, |f| &f.to_90_s), seconds);
            let flooding = joined(&medians(&figures, |f| &f.flooding_s), seconds);
            _ = writeln!(page, "| {} | {goodput} | {refused} | {p99} | {to_90} | {flooding} |", opponent.0);
        }
        page.push('\n');
    }
    page
}
