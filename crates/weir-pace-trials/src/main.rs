use weir_pace_trials::{judge, ours::Ours, scenarios, world};

fn main() {
    let only = std::env::args().nth(1).unwrap_or_default();
    let seeds: u64 = std::env::args().nth(2).and_then(|s| s.parse().ok()).unwrap_or(3);
    for s in scenarios::all().into_iter().filter(|s| s.name.contains(&only)) {
        let runs: Vec<_> = (std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1)..=seeds)
            .map(|seed| {
                let mut receiver = s.receiver.clone();
                let sent = world::play(&mut receiver, &mut Ours::new(), &s.course, seed);
                judge::judge(&sent, &receiver, &s.phases, s.settles, s.course.seconds)
            })
            .collect();
        let med = |f: &dyn Fn(&judge::Figures) -> &Vec<f64>| -> String {
            (0..s.phases.len()).map(|i| format!("{:.3}", judge::median(runs.iter().map(|r| f(r)[i])))).collect::<Vec<_>>().join(" / ")
        };
        println!(
            "{:46} good {:24} ref {:24} p99 {:22} t90 {:22} flood {}  | all {:.3} {:.4}",
            s.name, med(&|r| &r.goodput), med(&|r| &r.refused), med(&|r| &r.p99_s), med(&|r| &r.to_90_s), med(&|r| &r.flooding_s),
            judge::median(runs.iter().map(|r| r.goodput_all)), judge::median(runs.iter().map(|r| r.refused_all)),
        );
    }
}
