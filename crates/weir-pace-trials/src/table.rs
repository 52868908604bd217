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
    let mut behind = String::new();
    for scenario in scenarios::all() {
        let cells = ALL.map(|opponent| worst(&scenario, &play(&scenario, opponent, seeds)));
        behind += &leaders(&scenario, &cells);
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
         answer:\n\n{times}\n### Where another leads\n\nBy 0.02 of the goodput, 0.2 % of the sends, 5 s, or a fifth of \
         the p99. Left out are those that are used to less than 0.8 of what Weir is, or refused 5 % more: they flood, or \
         hardly send.\n\n{behind}\n{WHY}\nThe scenarios of Vector's limiter, a few hundred requests each: mean number in flight · \
         time for all · refused. Its own bounds are for ARC.\n\n{vector}"
    )
}

/// Why another leads; the kinds of the list.
const WHY: &str = "\
Why:

- *Buckets with room, and strangers who come and go*: a bucket refuses nothing until it is empty, so a pace a little above
  its rate is taken for as long as its room lasts. ATB and AIMD rise by a little for so long that they use it up each
  time; Weir rests at 0.97 of what was refused. It has its pace after 3 s and they after 45 to 79 s.
- *Fewer refusals at a lower goodput*: who sends less is refused less. Weir pays 1 % of its sends for finding a rise.
- *The time after an outage of a minute*: a probe finds its end up to 8 s late, and the pace goes on at 0.7 of what it was
  and climbs, so that the catch-up is no second outage.
- *Pools*: those that lead let a queue grow at the receiver, so its workers never wait, and one request in a hundred waits
  twice as long (ARC) or more. With the smaller queue of Weir a worker is idle now and then, where one answer in twenty takes
  twenty times as long.
- *Five times slower for everybody*: a base that rose is believed after two epochs with half of the window.
- *Strangers on the same quota, concurrency limits, and leaky buckets with late sends*: what is attainable is below 1. Of paces that
  know the capacity and send a constant share of it, those with at most 2 % of refusals get 0.88 where strangers spend half, and
  0.70 at a leaky bucket of 100/s with sends 5 ms late; a constant window of a concurrency limit of 100 ms gets 0.83, because
  the network takes a part of each turn ([0116](../docs/decisions/0116-a-retry-after-may-be-too-long.md)).
- *60 per minute with `Retry-After`*: after a wall Weir goes on at 0.95 of what the last window took. The others send what
  they have until they are refused, 1.6 to 5 % of the time.
";

/// The figures in which an opponent is better, one line for the receiver.
fn leaders(scenario: &Scenario, cells: &[Worst; ALL.len()]) -> String {
    let ours = cells[0];
    let mut better = Vec::new();
    for ((name, _), other) in ALL.iter().zip(cells).skip(1).take(ALL.len() - 2) {
        if other.goodput < 0.8 * ours.goodput || other.refused > ours.refused + 0.05 {
            continue;
        }
        let mut figures = Vec::new();
        if other.goodput >= ours.goodput + 0.02 {
            figures.push(format!("goodput {:.2} for {:.2}", other.goodput, ours.goodput));
        }
        if other.refused + 0.002 <= ours.refused {
            figures.push(format!("{:.1} % refused for {:.1} %", 100.0 * other.refused, 100.0 * ours.refused));
        }
        if other.to_90_s.is_finite() && other.to_90_s + 5.0 <= ours.to_90_s {
            figures.push(format!("90 % after {} for {}", seconds(other.to_90_s), seconds(ours.to_90_s)));
        }
        if scenario.judges_latency && other.p99_s <= 0.8 * ours.p99_s {
            figures.push(format!("p99 {:.2} s for {:.2} s", other.p99_s, ours.p99_s));
        }
        if !figures.is_empty() {
            better.push(format!("{name} {}", figures.join(", ")));
        }
    }
    if better.is_empty() { String::new() } else { format!("- {}: {}\n", scenario.name, better.join("; ")) }
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
