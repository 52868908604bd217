use super::*;
use crate::autoscale::hpa::{Policy, Rules, Select};

/// A trace with a sync every second, from second 0.
fn trace(replicas: &[u32]) -> Trace {
    Trace {
        min: 2,
        max: 20,
        capacity: 20,
        busy_target: 0.7,
        sync_s: 1.0,
        step_s: 1.0,
        down: Rules {
            window: Duration::from_secs(5),
            policies: vec![Policy { amount: Amount::Percent(25), period: Duration::from_secs(2) }],
            select: Select::Max,
            ..Rules::default_down()
        },
        replicas: replicas.iter().enumerate().map(|(at, replicas)| (at as f64, *replicas)).collect(),
        ..Trace::default()
    }
}

#[test]
fn a_lag_settles_after_the_last_value_above_the_limit() {
    let promise = Promise::Settles { from_s: 2.0, within_s: 4.0, until_s: 10.0, p99_ms: 250.0 };
    let series = |ms: &[f64]| -> Vec<(f64, f64)> { ms.iter().enumerate().map(|(at, ms)| (at as f64, *ms)).collect() };
    let with =
        |lag: &[f64], late: &[f64]| promise.judge(&Trace { lag_ms: series(lag), late_ms: series(late), ..trace(&[2]) });
    let good = [1.0, 1.0, 900.0, 900.0, 300.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    let settled = with(&good, &good);
    assert!(settled.is_kept, "{settled:?}");
    let measured = "after 3.0 s, at most 900 ms";
    assert_eq!(settled.measured, format!("{measured}; receivers: {measured}"));
    let relapsed = [1.0, 1.0, 900.0, 1.0, 1.0, 1.0, 1.0, 1.0, 251.0, 1.0];
    assert!(!with(&relapsed, &good).is_kept);
    assert!(!with(&good, &relapsed).is_kept);
    assert!(!with(&[], &good).is_kept);
    assert!(with(&good, &good[..4]).measured.ends_with("receivers: not measured to the end"));
}

#[test]
fn more_workers_than_the_allowed_multiple_break_the_promise() {
    // 120 sends at once ÷ (20 places × 0.7 busy) are 9 workers; 1.3 times as many are 11.
    let promise = Promise::Replicas { from_s: 0.0, until_s: 9.0, places: 120.0, times_at_most: 1.3 };
    assert!(promise.judge(&trace(&[2, 4, 8, 11, 11])).is_kept);
    assert!(!promise.judge(&trace(&[2, 4, 8, 12, 11])).is_kept);
    assert!(!promise.judge(&trace(&[])).is_kept);
}

#[test]
fn reversals_count_changes_of_direction() {
    assert_eq!(reversals([2, 4, 4, 8, 8].into_iter()), 0);
    assert_eq!(reversals([2, 8, 6, 6, 5].into_iter()), 1);
    assert_eq!(reversals([2, 8, 6, 7].into_iter()), 2);
}

#[test]
fn a_number_above_the_minimum_breaks_the_promise() {
    let promise = Promise::StaysAtMinimum { from_s: 1.0, until_s: 9.0 };
    assert!(promise.judge(&trace(&[3, 2, 2])).is_kept);
    assert!(!promise.judge(&trace(&[2, 2, 3, 2])).is_kept);
    assert!(!promise.judge(&trace(&[])).is_kept);
}

#[test]
fn scaling_in_waits_for_the_window_and_keeps_to_the_policy() {
    // 80 sends at once need 6 workers.
    let promise = Promise::ScalesIn { from_s: 0.0, until_s: 20.0, places: 80.0 };
    let good = [8, 8, 7, 7, 6, 6, 6, 4, 4, 3, 3, 2];
    let verdict = promise.judge(&trace(&good));
    assert!(verdict.is_kept, "{verdict:?}");
    assert_eq!(verdict.measured, "7 stayed, and 2 were reached after 11.0 s");
    let measured = |replicas: &[u32]| promise.judge(&trace(replicas)).measured;
    assert_eq!(measured(&[8, 6, 6, 5, 5, 4, 3, 3, 2]), "only 5 within the window");
    assert!(measured(&[8, 8, 8, 8, 8, 5, 5, 3, 3, 2]).contains("5 at 5.0 s, where the policy allows 6"));
    assert!(measured(&[8, 8, 8, 8, 8, 6, 4]).contains("4 at 6.0 s, where the policy allows 6"));
    assert_eq!(measured(&[8, 8, 8]), "8 at the end");
}

#[test]
fn the_number_of_workers_must_not_change_while_a_server_is_down() {
    let away = |replicas: &[u32]| {
        let outages = vec![(Server::Prometheus, 2.0, 5.0)];
        Promise::Holds(Server::Prometheus).judge(&Trace { outages, ..trace(replicas) })
    };
    assert!(away(&[2, 6, 6, 6, 6, 9]).is_kept);
    assert!(!away(&[2, 6, 6, 5, 6, 6]).is_kept);
    assert!(!away(&[2, 6, 6, 7, 7, 7]).is_kept);
    assert!(!Promise::Holds(Server::Redis).judge(&trace(&[2])).is_kept);
}

#[test]
fn only_a_faster_run_gives_time_to_what_does_not_start_faster() {
    let promise = Promise::Settles { from_s: 120.0, within_s: 180.0, until_s: 600.0, p99_ms: 250.0 };
    for (times, expected) in [(1.0, (120.0, 180.0, 600.0)), (10.0, (12.0, 24.0, 60.0))] {
        let mut sped_up = promise;
        sped_up.speed_up(times);
        let (from_s, within_s, until_s) = expected;
        assert_eq!(sped_up, Promise::Settles { from_s, within_s, until_s, p99_ms: 250.0 });
    }
}
