//! Adaptive destinations: permits, slots, two workers that report late, and runs that learn.

use std::time::Duration;

use weir_core::{Period, RateLimits};

use crate::world::{PUNCTUAL, Simulation, WorkerTiming, limits};

const FAR: WorkerTiming = WorkerTiming { answer: Duration::from_millis(50), ..PUNCTUAL };

/// What the receiver took in a second, and the share that it refused, in so many seconds from now on.
fn measure(simulation: &mut Simulation, seconds: u64) -> (f64, f64) {
    let before = (simulation.sends.len(), simulation.refused.len());
    simulation.run_for(Duration::from_secs(seconds));
    let (sent, refused) = (simulation.sends.len() - before.0, simulation.refused.len() - before.1);
    ((sent - refused) as f64 / seconds as f64, refused as f64 / sent.max(1) as f64)
}

#[test]
fn what_a_receiver_takes_is_found_and_followed_below_the_limit() {
    let mut simulation = Simulation::new(limits(&[(100, Period::SECOND)]), FAR);
    simulation.adapt(Some(20));
    simulation.add(1_000_000);
    simulation.run_for(Duration::from_secs(60));
    let runs = simulation.runs;
    let (taken, refused) = measure(&mut simulation, 120);
    assert!(taken >= 0.9 * 20.0 && refused <= 0.02, "{taken}/s, {refused} refused");
    assert!(simulation.runs - runs <= 120 * 25, "{} runs", simulation.runs - runs);
    simulation.takes = Some(5);
    simulation.run_for(Duration::from_secs(60));
    let (taken, refused) = measure(&mut simulation, 120);
    assert!(taken >= 0.85 * 5.0 && refused <= 0.03, "{taken}/s, {refused} refused");
    simulation.takes = Some(1_000);
    simulation.run_for(Duration::from_secs(120));
    let (taken, refused) = measure(&mut simulation, 60);
    assert!(taken >= 0.97 * 100.0 && refused == 0.0, "{taken}/s, {refused} refused: the limit binds");
    simulation.assert_caps();
}

#[test]
fn a_receiver_without_a_limit_of_ours_is_not_flooded() {
    let mut simulation = Simulation::new(RateLimits::UNLIMITED, FAR);
    simulation.max_in_flight = 64;
    simulation.adapt(Some(20));
    simulation.add(1_000_000);
    simulation.run_for(Duration::from_secs(60));
    let (taken, refused) = measure(&mut simulation, 120);
    assert!(taken >= 0.9 * 20.0 && refused <= 0.02, "{taken}/s, {refused} refused");
}

#[test]
fn no_pace_and_no_loss_of_it_exceeds_a_limit() {
    let both = [(10, Period::SECOND), (300, Period::MINUTE)];
    let mut simulation = Simulation::new(limits(&both), WorkerTiming { lateness: Duration::from_millis(12), ..FAR });
    simulation.adapt(Some(10));
    simulation.add(1_000_000);
    for round in 0..300 {
        // The receiver takes another number each time, so the pace is always on its way.
        simulation.takes = Some([1, 40, 3, 9, 0, 12][round % 6]);
        let time = simulation.jitter(Duration::from_secs(8));
        simulation.run_for(time);
        if round % 40 == 0 {
            simulation.crash();
        }
    }
    simulation.assert_caps();
    assert!(simulation.sends.len() > 100, "{} sends", simulation.sends.len());
}

#[test]
fn after_a_crash_the_pace_comes_back_from_its_copy() {
    let mut simulation = Simulation::new(limits(&[(100, Period::SECOND)]), FAR);
    simulation.adapt(Some(20));
    simulation.add(1_000_000);
    simulation.run_for(Duration::from_secs(120));
    simulation.crash();
    simulation.run_for(Duration::from_millis(500));
    let per_s = simulation.per_s().unwrap();
    assert!((7.0..20.0).contains(&per_s), "{per_s}");
    simulation.assert_caps();
}

#[test]
fn without_the_setting_the_limit_alone_decides_at_once() {
    let mut simulation = Simulation::new(limits(&[(100, Period::SECOND)]), FAR);
    simulation.adapt(Some(20));
    simulation.add(1_000_000);
    simulation.run_for(Duration::from_secs(60));
    simulation.adapt(None);
    assert_eq!(simulation.per_s(), None);
    simulation.sends.clear();
    simulation.refused.clear();
    simulation.run_for(Duration::from_secs(10));
    assert!(simulation.utilisation() >= 0.98, "{}", simulation.utilisation());
    simulation.assert_caps();
}

#[test]
fn a_quiet_adaptive_destination_costs_nothing() {
    let mut simulation = Simulation::new(limits(&[(10, Period::SECOND)]), FAR);
    simulation.adapt(Some(20));
    simulation.add(30);
    simulation.run_for(Duration::from_secs(60));
    assert_eq!(simulation.sends.len(), 30);
    let runs = simulation.runs;
    simulation.run_for(Duration::from_secs(86_400));
    assert_eq!(simulation.runs, runs);
}
