//! What can be attained at a receiver: of paces that know its capacity and send a constant share of it, what each gets
//! and what is refused; and of constant windows beside no pace at all. For judging whether a low figure of the adaptive rate
//! is its own: `cargo run -p weir-pace-trials --example frontier -- [a part of a name]`.

use weir_pace_trials::{
    judge::{judge, median},
    opponents::Oracle,
    scenarios::{self, Scenario},
    strange, unseen,
    world::{self, Answer, Pacer},
};

const SEEDS: u64 = 5;

/// As many requests as the window has places.
struct Window(u32);

impl Pacer for Window {
    fn next_start(&mut self, _now: f64, in_flight: u32) -> Option<f64> {
        (in_flight < self.0).then_some(0.0)
    }

    fn sent(&mut self, _now: f64, _in_flight: u32) -> u32 {
        0
    }

    fn learn(&mut self, _now: f64, _answers: &[Answer]) {}
}

/// Goodput and refusals of each phase: the medians of the seeds.
fn played(scenario: &Scenario, pacer: impl Fn() -> Box<dyn Pacer>) -> Vec<(f64, f64)> {
    let figures: Vec<_> = (1..=SEEDS)
        .map(|seed| {
            let mut receiver = scenario.receiver.clone();
            let sent = world::play(&mut receiver, pacer().as_mut(), &scenario.course, seed);
            judge(&sent, &receiver, &scenario.phases, scenario.settles, scenario.course.seconds)
        })
        .collect();
    let phase = |phase: usize| {
        let goodput = median(figures.iter().map(|figures| figures.goodput[phase]));
        (goodput, median(figures.iter().map(|figures| figures.refused[phase])))
    };
    (0..scenario.phases.len()).map(phase).collect()
}

fn print(what: &str, phases: &[(f64, f64)]) {
    let cells: Vec<String> =
        phases.iter().map(|(goodput, refused)| format!("{goodput:.2} · {:.1} %", 100.0 * refused)).collect();
    println!("  {what:12} {}", cells.join("   "));
}

fn main() {
    let part = std::env::args().nth(1).unwrap_or_default();
    let all = scenarios::all().into_iter().chain(unseen::all()).chain(strange::all());
    for scenario in all.filter(|scenario| scenario.name.contains(&part)) {
        println!("{}: goodput · refused, of each phase", scenario.name);
        for share in [0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99] {
            print(&format!("share {share}"), &played(&scenario, || Box::new(Oracle::at(share))));
        }
        if scenario.name.contains("concurrency") {
            for window in [1, 2, 3, 4, 5, 6, 8, 10, 11, 12] {
                print(&format!("window {window}"), &played(&scenario, || Box::new(Window(window))));
            }
        }
    }
}
