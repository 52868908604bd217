use stateright::{Checker, Model};
use weir_model::*;
fn run(name: &str, s: Scenario) {
    let t = std::process::Command::new("date").arg("+%s.%N").output().unwrap();
    let c = Protocol::new(s).checker().target_state_count(6_000_000).finish_when(stateright::HasDiscoveries::AnyFailures).spawn_bfs().join();
    let t2 = std::process::Command::new("date").arg("+%s.%N").output().unwrap();
    let f = |o: std::process::Output| String::from_utf8(o.stdout).unwrap().trim().parse::<f64>().unwrap();
    println!("{name}: unique {} total {} depth {} done {} time {:.1}", c.unique_state_count(), c.state_count(), c.max_depth(), c.is_done(), f(t2) - f(t));
    for (n, p) in c.discoveries() {
        println!("  VIOLATED {n}");
        let v = p.into_vec();
        for (s, a) in &v { println!("    {:?}", a); let _ = s; }
        println!("{:#?}", v.last().unwrap().0);
        for (s, a) in v { println!("    {:?} q {:?} deliv {:?} sched {:?}", a, s_q(&s), 0, 0); }
    }
}
fn s_q(s: &State) -> String { let d = format!("{s:?}"); d }
#[test]
fn probe() {
    let f = |crashes, losses, restores, lost_replies, refusals| Faults { crashes, losses, restores, lost_replies, refusals, stalls: std::env::var("ST").map_or(3, |s| s.parse().unwrap()) };
    let which = std::env::var("P").unwrap_or_default();
    let all: Vec<(&str, Scenario)> = vec![
        ("small", Scenario::SMALL),
        ("two", Scenario { deliveries: 2, ..Scenario::SMALL }),
        ("two-refused", Scenario { deliveries: 2, faults: f(0,0,0,0,1), ..Scenario::SMALL }),
        ("two-2sched", Scenario { deliveries: 2, schedulers: 2, ..Scenario::SMALL }),
        ("two-2sched-any", Scenario { deliveries: 2, schedulers: 2, connections: Connections::Any, ..Scenario::SMALL }),
        ("crash1", Scenario { deliveries: 2, schedulers: 1, faults: f(1,0,0,0,0), ..Scenario::SMALL }),
        ("crash1-2s", Scenario { deliveries: 2, schedulers: 2, faults: f(1,0,0,0,0), ..Scenario::SMALL }),
        ("loss1", Scenario { deliveries: 2, schedulers: 1, faults: f(0,1,0,0,0), ..Scenario::SMALL }),
        ("loss1-any", Scenario { deliveries: 2, schedulers: 1, connections: Connections::Any, faults: f(0,1,0,0,0), ..Scenario::SMALL }),
        ("w3", Scenario { deliveries: 3, window: 3, rate: 2, permits: 4, ..Scenario::SMALL }),
    ];
    for (n, s) in all { if which.is_empty() || which.split(',').any(|w| w == n) { run(n, s); } }
}
