//! The table of all pacers on all receivers, in Markdown.

use crate::{
    judge::{self, Figures},
    opponents::{ALL, Opponent},
    scenarios::{self, Scenario},
    vector, world,
};

/// The figures of one pacer on one receiver: of the phases the worst, of the seeds the median.
#[derive(Debug, Clone, Copy)]
pub struct Worst {
    pub goodput: f64,
    pub refused: f64,
    pub p99_s: f64,
    pub to_90_s: f64,
    pub flooding_s: f64,
}

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

/// Without the phases in which the receiver takes nothing, which have no share.
pub fn worst(scenario: &Scenario, figures: &[Figures]) -> Worst {
    let takes = |phase: &usize| scenario.receiver.capacity(scenario.phases[*phase]) > 0.0;
    let of = |of: fn(&Figures) -> &[f64], worse: fn(f64, f64) -> f64| {
        let medians = medians(figures, of);
        (0..medians.len()).filter(takes).map(|phase| medians[phase]).reduce(worse).unwrap_or(f64::NAN)
    };
    Worst {
        goodput: of(|f| &f.goodput, f64::min),
        refused: of(|f| &f.refused, f64::max),
        p99_s: of(|f| &f.p99_s, f64::max),
        to_90_s: of(|f| &f.to_90_s, f64::max),
        flooding_s: of(|f| &f.flooding_s, f64::max),
    }
}

fn seconds(value: f64) -> String {
    if value.is_finite() { format!("{value:.0} s") } else { "never".to_owned() }
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    format!("| {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

/// The section of the results.
pub fn markdown(seeds: u64) -> String {
    let head = || {
        let names = ALL.iter().map(|(name, _)| (*name).to_owned());
        row(std::iter::once("receiver".to_owned()).chain(names)) + &row((0..=ALL.len()).map(|_| "---".to_owned()))
    };
    let (mut rates, mut times) = (head(), head());
    for scenario in scenarios::all() {
        let cells = ALL.map(|opponent| worst(&scenario, &play(&scenario, opponent, seeds)));
        let name = || std::iter::once(scenario.name.to_owned());
        let rate = |w: &Worst| format!("{:.2} · {:.1} % · {}", w.goodput, 100.0 * w.refused, seconds(w.to_90_s));
        rates += &row(name().chain(cells.iter().map(rate)));
        if scenario.judges_latency {
            times += &row(name().chain(cells.iter().map(|w| format!("{:.2} s", w.p99_s))));
        }
    }
    let vector = vectors();
    format!(
        "## Adaptive rate\n\nWritten by `cargo run -p weir-load-tests -- adaptive`, in virtual time and from {seeds} \
         seeds: the median of the seeds, the worst of a trial's phases. All pacers meet the same receivers, get the \
         reports of two workers up to 250 ms late, and stay below the same hard limit.\n\nGoodput ÷ capacity after the \
         pacer has settled · refused requests · time until 90 % of the capacity is used. A goodput above 1 is a bucket \
         that was full, or taken from strangers.\n\n{rates}\nThe 99th percentile of the time of an \
         answer:\n\n{times}\nThe scenarios of Vector's limiter, a few hundred requests each: mean number in flight · \
         time for all · refused. Its own bounds are for ARC.\n\n{vector}"
    )
}

fn vectors() -> String {
    let played = ALL.map(|(_, new)| vector::play(new));
    let mut rows = row(["scenario", "bounds"].into_iter().chain(ALL.map(|(name, _)| name)).map(str::to_owned));
    rows += &row((0..ALL.len() + 2).map(|_| "---".to_owned()));
    for (i, first) in played[0].iter().enumerate() {
        let cell = |played: &Vec<vector::Played>| {
            let vector::Played { in_flight, seconds, refused, .. } = &played[i];
            format!("{in_flight:.1} · {seconds:.0} s · {:.0} %", 100.0 * refused)
        };
        let bounds = format!("{}–{}", first.bounds.0, first.bounds.1);
        rows += &row([first.name.to_owned(), bounds].into_iter().chain(played.iter().map(cell)));
    }
    rows
}
