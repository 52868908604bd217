//! What the adaptive rate promises, as medians over seeds. The trials are exact repetitions, so a miss is no chance.

use weir_pace_trials::{
    opponents::ALL,
    real,
    receiver::{Ending, Gate, Receiver, Steps},
    scenarios::{self, Scenario},
    strange,
    table::{self, Worst, play, worst},
    unseen, vector,
    world::{self, Course},
};

const SEEDS: u64 = 3;

fn scenario(name: &str) -> Scenario {
    scenarios::all().into_iter().find(|scenario| scenario.name == name).expect("a scenario of this name")
}

fn ours(name: &str) -> Worst {
    let scenario = scenario(name);
    worst(&scenario, &play(&scenario, ALL[0], SEEDS))
}

#[test]
fn policers_by_the_second_are_used_and_rarely_refuse() {
    for name in ["policer 100/20/200 per calendar second", "policer 100/20/200 per sliding second"] {
        let scenario = scenario(name);
        let figures = play(&scenario, ALL[0], SEEDS);
        let found = worst(&scenario, &figures);
        assert!(found.goodput >= 0.9 && found.refused <= 0.015, "{name}: {found:?}");
        let to_90_s = table::medians(&figures, |figures| &figures.to_90_s);
        assert!(to_90_s[0] <= 5.0 && to_90_s[2] <= 45.0, "{name}: {to_90_s:?}");
        assert!(found.flooding_s <= 5.0, "{name}: {found:?}");
    }
}

#[test]
fn buckets_are_used_and_their_depth_is_no_trap() {
    for (name, goodput, refused) in [
        ("bucket 100/20/200, 2 s deep", 0.95, 0.03),
        ("bucket 100, 20 s deep", 0.98, 0.02),
        ("leaky bucket 100/20/200", 0.9, 0.025),
    ] {
        let found = ours(name);
        assert!(found.goodput >= goodput && found.refused <= refused, "{name}: {found:?}");
    }
}

#[test]
fn pools_work_at_capacity_without_a_long_queue() {
    for (name, p99_s) in
        [("pool 96/29/191, σ 0.1", 1.1), ("pool 96/29/191, σ 1", 1.8), ("pool 96/29/191, bimodal", 1.8)]
    {
        let found = ours(name);
        assert!(found.goodput >= 0.9 && found.refused <= 0.001, "{name}: {found:?}");
        assert!(found.p99_s <= p99_s && found.to_90_s <= 15.0, "{name}: {found:?}");
    }
}

/// One answer in twenty is slow, so a test of the window is sometimes wrong. What follows from it must be bounded: a window
/// of hundreds at two workers made every answer outlast its time limit.
#[test]
fn no_seed_floods_a_pool_of_few_workers() {
    let class = real::all().into_iter().find(|class| class.scenario.name == "pool of 5/2/10 workers, bimodal");
    for (seed, figures) in (1..).zip(play(&class.expect("a class").scenario, ALL[0], 12)) {
        let most = figures.refused.iter().copied().fold(0.0, f64::max);
        assert!(most <= 0.05, "seed {seed}: {figures:?}");
    }
}

#[test]
fn slow_answers_that_are_no_queue_do_not_lower_the_pace() {
    let found = ours("five times slower for everybody");
    assert!(found.goodput >= 0.95 && found.to_90_s <= 15.0, "{found:?}");
}

#[test]
fn windows_of_minutes_are_found_after_two_walls() {
    for name in ["60 per calendar minute", "600 per sliding minute", "60 per minute, Retry-After"] {
        let found = ours(name);
        assert!(found.goodput >= 0.9 && found.refused <= 0.007, "{name}: {found:?}");
    }
    let found = ours("2 per minute");
    assert!(found.goodput >= 0.9 && found.refused <= 0.03, "{found:?}");
}

/// When a rising pace has filled a calendar second, the receiver refuses everything until that second ends. These refusals must
/// not halve the pace. If they did, one seed would use 0.73 of the capacity.
#[test]
fn no_seed_halves_its_pace_for_the_rest_of_a_calendar_second() {
    let scenario = scenario("policer 100/20/200 per calendar second");
    for (seed, figures) in (1..).zip(play(&scenario, ALL[0], 12)) {
        let least = figures.goodput.iter().copied().fold(1.0, f64::min);
        assert!(least >= 0.95, "seed {seed}: {figures:?}");
    }
}

/// With a few requests in a minute, one refusal is a large share of them. So the pace seldom tries more, and does not stay above
/// what the receiver takes.
#[test]
fn few_requests_in_a_minute_are_not_refused_by_the_dozen() {
    let Scenario { course, .. } = scenario("2 per minute");
    let course = Course { seconds: 4.0 * 3_600.0, ..course };
    let scenario = Scenario { course, settles: 1_800.0, ..scenario("2 per minute") };
    let found = worst(&scenario, &play(&scenario, ALL[0], 2 * SEEDS));
    assert!(found.goodput >= 0.95 && found.refused <= 0.029, "{found:?}");
}

#[test]
fn a_whole_second_of_retry_after_costs_little() {
    let found = ours("policer, whole-second Retry-After");
    assert!(found.goodput >= 0.8 && found.refused <= 0.01, "{found:?}");
}

#[test]
fn announced_quotas_are_kept_without_a_refusal() {
    let found = ours("600 per calendar 10 s, RateLimit headers");
    assert!(found.goodput >= 0.95 && found.refused <= 0.001, "{found:?}");
}

#[test]
fn refusals_that_do_not_depend_on_the_pace_do_not_stop_it() {
    for (name, goodput) in [("policer, 5 % errors", 0.8), ("one kind (20 %) always refused", 0.85)] {
        let found = ours(name);
        assert!(found.goodput >= goodput && found.refused <= 0.3, "{name}: {found:?}");
    }
}

#[test]
fn strangers_and_days_are_followed() {
    for (name, goodput, refused) in
        [("strangers spend half", 0.7, 0.02), ("strangers come and go", 0.9, 0.03), ("day and night", 0.85, 0.02)]
    {
        let found = ours(name);
        assert!(found.goodput >= goodput && found.refused <= refused, "{name}: {found:?}");
    }
}

#[test]
fn the_catch_up_after_an_outage_is_no_second_outage() {
    let scenario = scenario("outage of a minute, then a backlog");
    let figures = play(&scenario, ALL[0], SEEDS);
    let refused = table::medians(&figures, |figures| &figures.refused);
    let goodput = table::medians(&figures, |figures| &figures.goodput);
    assert!(refused[2] <= 0.001 && goodput[2] >= 0.95, "{refused:?} {goodput:?}");
    // Nearly nothing is sent while nothing is taken.
    assert!(figures.iter().all(|figures| figures.refused_all <= 0.01));
}

#[test]
fn a_lost_state_is_resumed_from_its_copy() {
    let found = ours("policer, the queue loses its state at 150 s");
    assert!(found.goodput >= 0.95 && found.refused <= 0.01, "{found:?}");
}

/// An opponent is better only if it sends more, is refused no more, recovers no later, and waits no longer.
#[test]
fn no_opponent_is_better_on_any_receiver() {
    for scenario in scenarios::all() {
        let ours = worst(&scenario, &play(&scenario, ALL[0], SEEDS));
        for opponent in &ALL[1..7] {
            let other = worst(&scenario, &play(&scenario, *opponent, SEEDS));
            let is_better = other.goodput > ours.goodput + 0.03
                && other.refused <= ours.refused + 0.002
                && other.to_90_s <= ours.to_90_s
                && (!scenario.judges_latency || other.p99_s <= 1.1 * ours.p99_s);
            assert!(!is_better, "{}: {} {other:?}, ours {ours:?}", scenario.name, opponent.0);
        }
    }
}

/// Else the comparison would say nothing about the original. A dropped request never ends there, and does so here.
#[test]
fn our_arc_keeps_the_bounds_of_vectors_own_scenarios() {
    for played in vector::play(ALL[3].1).iter().filter(|played| !played.name.starts_with("drops")) {
        let (least, most) = played.bounds;
        let is_within = 0.9 * least <= played.in_flight && played.in_flight <= 1.1 * most;
        assert!(is_within, "{}: {:.2}, wanted {least} to {most}", played.name, played.in_flight);
    }
}

/// As HAProxy does: what it has refused makes it refuse more.
#[test]
fn a_receiver_that_counts_what_it_refused_is_used() {
    let found = ours("policer that counts refused requests");
    assert!(found.goodput >= 0.8 && found.refused <= 0.02, "{found:?}");
}

/// Otherwise a miss on real sockets would say nothing about them. The time after a rise depends on where in a rest it comes,
/// so the median of three seeds is chance.
#[test]
fn the_receivers_of_real_sockets_get_in_virtual_time_what_is_wanted() {
    for class in real::all() {
        let missed = class.missed(&class.in_virtual_time(4 * SEEDS));
        assert!(missed.is_empty(), "{}: {missed:?}", class.scenario.name);
    }
}

/// The limit says 429, so the errors are not doubted: each of the seeds is used, also after a fall and a rise.
#[test]
fn no_seed_takes_errors_for_the_limit_of_a_receiver_that_says_429() {
    for name in ["policer 50/15/80, 5 % errors", "policer 15, 3 % errors", "policer 30, 5 % errors"] {
        let scenario = unseen::all().into_iter().find(|scenario| scenario.name == name).expect("a scenario");
        for (seed, figures) in (1..).zip(play(&scenario, ALL[0], 12)) {
            let least = figures.goodput.iter().copied().fold(1.0, f64::min);
            assert!(least >= 0.85, "{name}, seed {seed}: {figures:?}");
        }
    }
}

/// A second set, with what each gets at least: goodput, and refusals at most, those with errors of their own included.
#[test]
fn receivers_that_the_pace_was_not_made_with_are_used() {
    let mut missed = Vec::new();
    for scenario in unseen::all() {
        let (goodput, refused) = match scenario.name {
            name if name.starts_with("concurrency") => (0.65, 0.02),
            "strangers take 30 to 70 %" => (0.6, 0.03),
            name if name.contains("errors") => (0.9, 0.12),
            name if name.contains("bans") => (0.8, 0.025),
            _ => (0.9, 0.03),
        };
        let found = worst(&scenario, &play(&scenario, ALL[0], SEEDS));
        if found.goodput < goodput || found.refused > refused {
            missed.push(format!("{}: {found:?}", scenario.name));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// A third set, written down before it was played. `frontier` tells what a pace that knows the capacity would get: at a
/// leaky bucket with sends 5 ms late 0.70 with 1 % of refusals, at a concurrency limit its window alone 0.83 or 0.71.
#[test]
fn receivers_that_were_written_down_before_they_were_played_are_used() {
    let mut missed = Vec::new();
    for scenario in strange::all() {
        let (goodput, refused) = match scenario.name {
            "concurrency limit 3 of 50, 400 and 100 ms" => (0.64, 0.035),
            "concurrency limit 5/2/10 of 100 ms" => (0.74, 0.03),
            "strangers walk between 20 and 80 %" => (0.7, 0.03),
            "leaky bucket 50/10/100, sends 5 ms late" => (0.64, 0.02),
            name if name.contains("bans") => (0.6, 0.025),
            name if name.contains("Retry-After of 20 s") => (0.6, 0.01),
            name if name.contains("of 503") => (0.9, 0.07),
            _ => (0.9, 0.03),
        };
        let found = worst(&scenario, &play(&scenario, ALL[0], SEEDS));
        if found.goodput < goodput || found.refused > refused {
            missed.push(format!("{}: {found:?}", scenario.name));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// The few refusals of a pace that is nearly right show the limit of the concurrency. Without that a seed is used to 0.36, and
/// 6 % are refused after the answers have become slower. And a wall that is met again soon is no long window at once: without
/// that a seed is used to 0.11.
#[test]
fn no_seed_takes_a_limit_of_the_concurrency_or_a_long_retry_after_for_something_else() {
    for (name, goodput, refused) in [
        ("concurrency limit 3 of 50, 400 and 100 ms", 0.6, 0.04),
        ("concurrency limit 5/2/10 of 100 ms", 0.72, 0.03),
        ("policer 40, Retry-After of 20 s", 0.5, 0.01),
    ] {
        let scenario = strange::all().into_iter().find(|scenario| scenario.name == name).expect("a scenario");
        for (seed, figures) in (1..).zip(play(&scenario, ALL[0], 12)) {
            let least = figures.goodput.iter().copied().fold(1.0, f64::min);
            let most = figures.refused.iter().copied().fold(0.0, f64::max);
            assert!(least >= goodput && most <= refused, "{name}, seed {seed}: {figures:?}");
        }
    }
}

/// Errors must not hide a limit, however it refuses, and no trial goes beyond the hard limit.
#[test]
fn a_limit_of_any_height_is_obeyed_with_and_without_errors() {
    for (number, per_s) in [7.0, 23.0, 75.0, 130.0].into_iter().enumerate() {
        for refuses_with in [Ending::Refused, Ending::Failed] {
            for errors in [0.0, 0.04] {
                let gate = Gate::Sliding { seconds: 1.0, taken: Default::default() };
                let receiver = Receiver { refuses_with, errors, ..Receiver::new(gate, Steps::always(per_s)) };
                let course = Course { hard_limit: 150, ..Course::of(300.0) };
                let refused = weir_pace_trials::judge::median((1..=SEEDS).map(|seed| {
                    let mut receiver = receiver.clone();
                    let sent = world::play(&mut receiver, ALL[0].1().as_mut(), &course, 10 * seed + number as u64);
                    let figures = weir_pace_trials::judge::judge(&sent, &receiver, &[0.0], 60.0, 300.0);
                    assert!(figures.fullest <= 150);
                    figures.refused[0]
                }));
                assert!(refused <= 0.015 + 1.6 * errors, "{per_s}/s, {refuses_with:?}, {errors}: {refused}");
            }
        }
    }
}
