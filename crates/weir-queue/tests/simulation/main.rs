//! The whole limiter in simulated time: plans, permits and slots over hours, with workers that are late, must connect
//! first, or are killed.
//!
//! A discrete-event loop replaces scheduler and workers; the job table and the plans are the real ones. Every send
//! start is recorded and checked over every sliding window.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adaptive;
mod groups;
mod keyed_members;
mod limit_keys;
mod world;

use std::time::Duration;

use weir_core::{DestinationId, Limiter, Period, RateLimit, RateLimits, plan::NextRun};
use weir_queue::{
    Publication, Published, SlotAnswer, SlotRequest, Terms, Wake,
    conformance::settings,
    memory::{Depths, JobTable},
};

use self::world::{LEASE, PUNCTUAL, START, Simulation, WorkerTiming, delivery, limits};

const EVERY_LIMIT: [(u32, Period); 9] = [
    (1, Period::SECOND),
    (7, Period::SECOND),
    (10, Period::SECOND),
    (100, Period::SECOND),
    (1000, Period::SECOND),
    (2000, Period::SECOND),
    (30, Period::MINUTE),
    (90, Period::MINUTE),
    (500, Period::HOUR),
];

#[test]
fn every_limit_holds_and_is_used_over_hours_of_backlog() {
    for limit in EVERY_LIMIT {
        let hours = if limit.1 == Period::HOUR { 24 } else { 3 };
        let mut simulation = Simulation::new(limits(&[limit]), PUNCTUAL);
        simulation.add(u64::MAX / 2);
        simulation.run_for(Duration::from_secs(hours * 3_600 / if limit.0 >= 1000 { 10 } else { 1 }));
        simulation.assert_caps();
        assert!(simulation.utilisation() >= 0.985, "{limit:?}: {}", simulation.utilisation());
        assert!(simulation.most_queued <= limit.0, "{limit:?}: {} queued", simulation.most_queued);
    }
}

pub(crate) fn in_windows(of: &[(u32, Period)]) -> RateLimits {
    RateLimits::new(limits(of).as_slice().iter().map(RateLimit::as_window).collect()).unwrap()
}

#[test]
fn limits_of_the_window_shape_hold_and_are_used_over_hours_of_backlog() {
    let late = WorkerTiming { lateness: Duration::from_millis(40), ..PUNCTUAL };
    for limit in [(20, Period::SECOND), (190, Period::from_seconds(10).unwrap()), (300, Period::MINUTE)] {
        for (timing, least) in [(PUNCTUAL, 0.985), (late, 0.0)] {
            let mut simulation = Simulation::new(in_windows(&[limit]), timing);
            simulation.add(1_000_000);
            simulation.run_for(Duration::from_secs(3_600));
            simulation.assert_caps();
            assert!(simulation.utilisation() >= least, "{limit:?}: {}", simulation.utilisation());
            assert!(simulation.most_queued <= limit.0, "{limit:?}: {} queued", simulation.most_queued);
        }
    }
}

#[test]
fn edits_of_shapes_under_backlog_reset_no_window() {
    let minute = Period::MINUTE;
    let edits = [
        in_windows(&[(300, minute)]),
        limits(&[(300, minute)]),
        in_windows(&[(300, minute)]),
        in_windows(&[(30, minute)]),
        limits(&[(60, minute)]),
        in_windows(&[(300, minute)]),
    ];
    let mut simulation = Simulation::new(edits[0].clone(), PUNCTUAL);
    simulation.add(1_000_000);
    for round in 0..40 {
        let pause = simulation.jitter(Duration::from_secs(40));
        simulation.run_for(pause);
        simulation.edit(edits[round % edits.len()].clone());
    }
    for (first, last) in simulation.sends.iter().zip(simulation.sends.iter().skip(300)) {
        assert!(last.since(*first) >= minute.window(), "{first} {last}");
    }
    assert!(simulation.sends.len() > 300);
}

#[test]
fn several_limits_hold_together() {
    let mut simulation = Simulation::new(limits(&[(10, Period::SECOND), (300, Period::MINUTE)]), PUNCTUAL);
    simulation.add(1_000_000);
    simulation.run_for(Duration::from_secs(3_600));
    simulation.assert_caps();
    assert!(simulation.utilisation() >= 0.98);
}

#[test]
fn workers_that_miss_their_slots_do_not_exceed_the_limit() {
    let late = WorkerTiming { lateness: Duration::from_millis(40), ..PUNCTUAL };
    for limit in [(10, Period::SECOND), (1000, Period::SECOND)] {
        let mut simulation = Simulation::new(limits(&[limit]), late);
        simulation.add(1_000_000);
        simulation.run_for(Duration::from_secs(60));
        simulation.assert_caps();
        assert!(simulation.sends.len() > 100, "late workers must not livelock");
    }
}

/// With close slots, a slice that is longer than a slot costs the slot: no send may start in its time any more.
#[test]
fn workers_that_lose_a_third_of_the_processor_time_use_the_limit() {
    for (rate, slices) in [(2, &[8, 20, 30][..]), (10, &[8, 12, 20]), (100, &[8])] {
        for &slice in slices {
            let busy = WorkerTiming { slice: Duration::from_millis(slice), ..PUNCTUAL };
            let mut simulation = Simulation::new(limits(&[(rate, Period::SECOND)]), busy);
            simulation.add(1_000_000);
            simulation.run_for(Duration::from_secs(600));
            simulation.assert_caps();
            let used = simulation.utilisation();
            assert!(used >= 0.95, "{rate}/s, slices of {slice} ms: {used}");
        }
    }
}

#[test]
fn a_process_that_stalls_for_a_second_loses_no_slot_of_an_hourly_limit() {
    let late = WorkerTiming { lateness: Duration::from_secs(2), ..PUNCTUAL };
    let mut simulation = Simulation::new(limits(&[(60, Period::HOUR)]), late);
    simulation.add(1_000_000);
    simulation.run_for(Duration::from_secs(360_000));
    simulation.assert_caps();
    assert!(simulation.utilisation() >= 0.985, "{}", simulation.utilisation());
}

#[test]
fn a_destination_that_closes_after_each_answer_loses_no_slot() {
    let cold = WorkerTiming { connect: Duration::from_millis(500), ..PUNCTUAL };
    for limit in [(10, Period::SECOND), (200, Period::SECOND), (5, Period::MINUTE)] {
        let mut simulation = Simulation::new(limits(&[limit]), cold);
        simulation.add(1_000_000);
        simulation.run_for(Duration::from_secs(600));
        simulation.assert_caps();
        assert!(simulation.utilisation() >= 0.98, "{limit:?}: {}", simulation.utilisation());
    }
}

#[test]
fn edits_under_backlog_take_effect_within_100_ms_and_reset_no_cursor() {
    let edits =
        [(10, Period::SECOND), (100, Period::SECOND), (5, Period::SECOND), (1, Period::SECOND), (50, Period::SECOND)];
    let mut simulation = Simulation::new(limits(&edits[..1]), PUNCTUAL);
    simulation.add(1_000_000);
    simulation.run_for(Duration::from_secs(10));
    for pair in edits.windows(2) {
        simulation.edit(limits(&pair[1..]));
        let edited_at = simulation.now;
        simulation.run_for(Duration::from_secs(10));
        let larger = pair[0].0.max(pair[1].0);
        let around: Vec<_> =
            simulation.sends.iter().copied().filter(|send| *send >= edited_at - Duration::from_secs(1)).collect();
        for (first, last) in around.iter().zip(around.iter().skip(larger as usize)) {
            assert!(last.since(*first) >= Duration::from_secs(1), "{pair:?}");
        }
        let settled = around.iter().filter(|send| **send >= edited_at + Duration::from_millis(100)).count() as f64;
        let expected = f64::from(pair[1].0) * 9.9;
        assert!((settled - expected).abs() <= expected * 0.02 + 1.0, "{pair:?}: {settled} of {expected}");
    }
}

/// A worker that runs on while no scheduler does must not go on with a limit that is over.
#[test]
fn an_override_begins_and_ends_within_100_ms_by_itself_and_resets_no_window() {
    let second = Period::SECOND;
    for (below, over) in [(10, 100), (100, 5), (1, 50), (50, 1)] {
        for crashes in [false, true] {
            let mut simulation = Simulation::new(limits(&[(below, second)]), PUNCTUAL);
            simulation.add(1_000_000);
            simulation.run_for(Duration::from_secs(10));
            let begin = simulation.now;
            let end = begin + Duration::from_millis(20_370);
            simulation.override_limits(limits(&[(over, second)]), end.since(begin));
            simulation.run_for(Duration::from_secs(12));
            if crashes {
                simulation.crash();
            }
            simulation.run_for(Duration::from_secs(20));
            let windows = simulation.sends.iter().zip(simulation.sends.iter().skip(below.max(over) as usize));
            for (first, last) in windows {
                assert!(last.since(*first) >= second.window(), "{below} and {over}: {first} {last}");
            }
            let settled = Duration::from_millis(100);
            for (from, to, limit) in [(begin + settled, end, over), (end + settled, simulation.now, below)] {
                let inside: Vec<_> = simulation.sends.iter().filter(|send| (from..to).contains(send)).collect();
                for (first, last) in inside.iter().zip(inside.iter().skip(limit as usize)) {
                    assert!(last.since(**first) >= second.window(), "{limit}/s: {first} {last}");
                }
                // A crash costs the window that nobody remembers.
                let spared = if crashes && limit == over { 2.0 } else { 0.0 };
                let expected = f64::from(limit) * (to.since(from).as_secs_f64() - spared);
                assert!(inside.len() as f64 >= expected * 0.97 - 1.0, "{limit}/s: {} of {expected}", inside.len());
            }
        }
    }
}

#[test]
fn an_edit_to_another_period_or_to_no_limit_takes_effect() {
    let mut simulation = Simulation::new(limits(&[(10, Period::SECOND)]), PUNCTUAL);
    simulation.add(100_000);
    simulation.run_for(Duration::from_secs(5));
    simulation.edit(limits(&[(30, Period::MINUTE)]));
    simulation.sends.clear();
    simulation.run_for(Duration::from_secs(3_600));
    simulation.assert_caps();
    assert!(simulation.utilisation() >= 0.985);
    simulation.edit(RateLimits::UNLIMITED);
    simulation.run_for(Duration::from_millis(100));
    assert!(simulation.sends.len() > 5_000, "unlimited at once: {}", simulation.sends.len());
}

#[test]
fn a_stopped_and_restarted_job_starts_no_second_burst() {
    let mut simulation = Simulation::new(limits(&[(10, Period::SECOND)]), PUNCTUAL);
    for _ in 0..2_000 {
        simulation.add(3);
        let pause = simulation.jitter(Duration::from_millis(600));
        simulation.run_for(pause);
    }
    simulation.assert_caps();
    simulation.run_for(Duration::from_secs(1_000));
    assert_eq!((simulation.sends.len(), simulation.backlog), (6_000, 0));
    assert_eq!(simulation.table.depths(), Depths::default());
}

#[test]
fn a_stopped_job_is_forgotten_only_after_its_window_has_passed() {
    let [hourly, brief] = [1, 2].map(|number| DestinationId::from_bytes([number; 16]));
    let mut table = JobTable::new(START);
    let mut publish_one = |id, period, next| {
        table.wake(Wake { destination_id: id, due: START });
        let lease = table.claim_due(START, 1, LEASE).remove(0);
        let limits = limits(&[(1, period)]);
        let mut delivery = delivery(START);
        delivery.flow_id = id;
        let recovered = Some(Limiter::new(&limits));
        let terms = Some(Terms::of(&settings(&limits, 64), START));
        let publication =
            Publication { lease, terms, recovered, groups: Vec::new(), pace: None, deliveries: vec![delivery], next };
        assert!(matches!(table.publish(START, publication), Published::Done));
        let permit = table.take(1).remove(0);
        assert!(matches!(table.take_slot(START, SlotRequest::new(permit.id)), SlotAnswer::Granted(..)));
        table.settle(START, permit.id.into());
    };
    publish_one(hourly, Period::HOUR, NextRun::Stop);
    publish_one(brief, Period::SECOND, NextRun::Stop);
    // With so many jobs, idle jobs that the store can recover are dropped.
    let later = START + Duration::from_secs(600);
    for number in 0..25_000u128 {
        let far = later + Duration::from_secs(3_600);
        table.wake(Wake { destination_id: DestinationId::new(later, number), due: far });
    }
    assert!(table.claim_due(later, 1, LEASE).is_empty());
    let mut knows_cursors = |id| {
        table.wake(Wake { destination_id: id, due: later });
        table.claim_due(later, 1, LEASE).remove(0).cursors.is_some()
    };
    assert!(!knows_cursors(brief), "the store can recover these cursors");
    assert!(knows_cursors(hourly), "the send is still inside its window");
}

#[test]
fn a_pause_stops_all_sends_and_causes_no_burst_afterwards() {
    let mut simulation = Simulation::new(limits(&[(100, Period::SECOND)]), PUNCTUAL);
    simulation.add(10_000);
    simulation.run_for(Duration::from_secs(3));
    simulation.pause(true);
    let paused_at = simulation.now;
    simulation.run_for(Duration::from_secs(60));
    // A permit that has a slot may still be sent inside it.
    let latest = paused_at + Duration::from_millis(100);
    assert_eq!(simulation.sends.iter().filter(|send| **send > latest).count(), 0);
    simulation.pause(false);
    simulation.run_for(Duration::from_secs(200));
    simulation.assert_caps();
    assert_eq!(simulation.sends.len(), 10_000);
}

#[test]
fn a_crash_at_any_instant_keeps_the_cap_across_the_restart() {
    for limit in [(1, Period::SECOND), (10, Period::SECOND), (1000, Period::SECOND), (30, Period::MINUTE)] {
        let mut simulation = Simulation::new(limits(&[limit]), PUNCTUAL);
        simulation.add(1_000_000);
        for _ in 0..200 {
            let alive = simulation.jitter(Duration::from_secs(3));
            simulation.run_for(alive);
            simulation.crash();
        }
        simulation.assert_caps();
    }
}

#[test]
fn a_slow_destination_is_bounded_by_max_in_flight_and_does_not_spin() {
    let slow = WorkerTiming { answer: Duration::from_secs(30), ..PUNCTUAL };
    let mut simulation = Simulation::new(RateLimits::UNLIMITED, slow);
    simulation.max_in_flight = 8;
    simulation.add(100);
    simulation.run_for(Duration::from_secs(300));
    assert_eq!(simulation.sends.len(), 80);
    assert!(simulation.runs < 700, "{} runs", simulation.runs);
}

/// While a run claims and publishes, attempts end. The next permits are waiting for their room.
#[test]
fn a_fast_destination_without_a_limit_is_bounded_by_its_answers_and_not_by_the_runs() {
    let [answer, run] = [4, 5].map(Duration::from_millis);
    let timing = WorkerTiming { lateness: Duration::ZERO, answer, run, ..PUNCTUAL };
    let mut simulation = Simulation::new(RateLimits::UNLIMITED, timing);
    simulation.max_in_flight = 64;
    simulation.add(1_000_000);
    simulation.run_for(Duration::from_secs(1));
    simulation.sends.clear();
    simulation.run_for(Duration::from_secs(10));
    let most = 64.0 / answer.as_secs_f64() * 10.0;
    let share = simulation.sends.len() as f64 / most;
    assert!(share >= 0.9, "{share} of what {answer:?} allows");
}

#[test]
fn slow_runs_cost_no_slots() {
    for run in [20, 100, 250] {
        let slow = WorkerTiming { run: Duration::from_millis(run), ..PUNCTUAL };
        for rate in [2, 10, 100] {
            let mut simulation = Simulation::new(limits(&[(rate, Period::SECOND)]), slow);
            simulation.add(1_000_000);
            simulation.run_for(Duration::from_secs(300));
            simulation.assert_caps();
            let used = simulation.utilisation();
            assert!(used >= 0.98, "{rate}/s, runs of {run} ms: {used}");
        }
    }
}

#[test]
fn an_idle_destination_costs_nothing() {
    let mut simulation = Simulation::new(limits(&[(10, Period::SECOND)]), PUNCTUAL);
    simulation.add(1);
    simulation.run_for(Duration::from_secs(10));
    let runs = simulation.runs;
    simulation.run_for(Duration::from_secs(86_400));
    assert_eq!(simulation.runs, runs);
}
