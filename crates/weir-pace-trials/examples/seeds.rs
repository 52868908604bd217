//! Weir's figures on every receiver over many seeds: the median and the worst seed, and what the oracle gets. For
//! comparing two versions:
//! `cargo run -p weir-pace-trials --example seeds -- 20 [a part of a name [milliseconds that sends are late]]`.

use weir_pace_trials::{judge::Figures, opponents::ALL, real, scenarios, strange, table, unseen};

fn main() {
    let mut args = std::env::args().skip(1);
    let seeds = args.next().and_then(|seeds| seeds.parse().ok()).unwrap_or(20);
    let part = args.next().unwrap_or_default();
    let late_ms: Option<f64> = args.next().and_then(|late| late.parse().ok());
    let real = || real::all().into_iter().map(|class| class.scenario);
    let sets = [
        ("", scenarios::all()),
        ("unseen: ", unseen::all()),
        ("strange: ", strange::all()),
        ("real: ", real().collect()),
    ];
    println!(
        "{:58} {:>22} {:>17} {:>13} {:>13} {:>13}  all: goodput, refused; oracle",
        "receiver: median / worst", "goodput", "refused %", "to 90 % s", "flooding s", "p99 s"
    );
    for (set, mut scenarios) in sets {
        for scenario in scenarios.iter_mut().filter(|scenario| format!("{set}{}", scenario.name).contains(&part)) {
            scenario.course.late_s = late_ms.map_or(scenario.course.late_s, |late| late / 1e3);
            let scenario = &*scenario;
            let played = table::play(scenario, ALL[0], seeds);
            let takes = |phase: &usize| scenario.receiver.capacity(scenario.phases[*phase]) > 0.0;
            let phases: Vec<usize> = (0..scenario.phases.len()).filter(takes).collect();
            let of = |of: fn(&Figures) -> &[f64], worse: fn(f64, f64) -> f64| {
                let mut values: Vec<f64> = played
                    .iter()
                    .map(|figures| phases.iter().map(|phase| of(figures)[*phase]).reduce(worse).unwrap_or(f64::NAN))
                    .collect();
                values.sort_by(f64::total_cmp);
                if worse(0.0, 1.0) == 1.0 {
                    values.reverse();
                }
                (values[values.len() / 2], values[0])
            };
            let oracle = table::worst(scenario, &table::play(scenario, ALL[ALL.len() - 1], seeds));
            let mean = |of: fn(&Figures) -> f64| played.iter().map(of).sum::<f64>() / played.len() as f64;
            let goodput = of(|f| &f.goodput, f64::min);
            let refused = of(|f| &f.refused, f64::max);
            let to_90_s = of(|f| &f.to_90_s, f64::max);
            let flooding_s = of(|f| &f.flooding_s, f64::max);
            let p99_s = of(|f| &f.p99_s, f64::max);
            let (good, bad) = (mean(|f| f.goodput_all), mean(|f| f.refused_all));
            println!(
                "{:58} {:>10.2} / {:.2} {:>10.1} / {:>4.1} {:>8.0} / {:>3.0} {:>7.1} / {:>4.1} {:>6.2} / {:>4.2}   {good:.2} {:.1}; {:.2} {:.1}",
                format!("{set}{}", scenario.name),
                goodput.0,
                goodput.1,
                100.0 * refused.0,
                100.0 * refused.1,
                to_90_s.0,
                to_90_s.1,
                flooding_s.0,
                flooding_s.1,
                p99_s.0,
                p99_s.1,
                100.0 * bad,
                oracle.goodput,
                100.0 * oracle.refused
            );
        }
    }
}
