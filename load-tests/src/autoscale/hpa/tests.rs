//! Cases of Kubernetes' own tests (`pkg/controller/podautoscaler`), one row each, with the name used there
//! ("upstream").

use std::time::Duration;

use super::*;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn bounds(min: u32, max: u32) -> Bounds {
    Bounds { min, max, up: Rules::default_up(), down: Rules::default_down() }
}

fn ready(current: u32) -> Replicas {
    Replicas { wanted: current, current, ready: current }
}

/// `replica_calculator_test.go`: TestReplicaCalcExternalPerPodMetric.
#[test]
fn a_metric_per_pod_proposes_the_same_as_upstream() {
    let rows = [
        ("replica count overflow saturates to MaxInt32", 1, i64::MAX, 1, TOLERANCE, i32::MAX as u32),
        ("usage overflow with huge target leaves replicas unchanged", 1, i64::MAX, i64::MAX, TOLERANCE, 1),
        ("scale up", 3, 8_600, 2_150, TOLERANCE, 4),
        ("scale down", 5, 8_600, 2_867, TOLERANCE, 3),
        ("within default tolerance", 3, 8_600, 2_900, TOLERANCE, 3),
        ("outside configurable 1% tolerance", 3, 8_600, 2_800, 0.01, 4),
    ];
    for (name, current, value, target, tolerance, expected) in rows {
        let mut bounds = bounds(1, 1_000);
        bounds.up.tolerance = tolerance;
        assert_eq!(proposal(Target::AverageValue(target), value, ready(current), &bounds), expected, "{name}");
    }
}

/// The cases of `TestReplicaCalcExternalMetric` in `replica_calculator_test.go`, and those of
/// `TestReplicaCalcObjectMetric` that run through the same code.
#[test]
fn a_metric_of_all_pods_proposes_the_same_as_upstream() {
    let one_of_three = Replicas { wanted: 3, current: 3, ready: 1 };
    let rows = [
        ("scale down: ignores unready pods (would otherwise scale up)", one_of_three, 8_600, 4_400, TOLERANCE, 2),
        ("scale down", ready(5), 8_600, 14_334, TOLERANCE, 3),
        ("within default tolerance", ready(3), 8_600, 8_888, TOLERANCE, 3),
        ("outside configurable 1% tolerance", ready(3), 8_900, 8_800, 0.01, 4),
        ("usage overflow caps at MaxInt64", ready(3), i64::MAX, i64::MAX, TOLERANCE, 3),
        ("scale up", ready(3), 20_000, 15_000, TOLERANCE, 4),
        (
            "scale up: very large metric saturates replicas to MaxInt32",
            ready(3),
            i64::MAX,
            1,
            TOLERANCE,
            i32::MAX as u32,
        ),
        ("scale up: ignores unready pods", one_of_three, 50_000, 10_000, TOLERANCE, 5),
        ("scale down (object)", ready(5), 12_000, 20_000, TOLERANCE, 3),
        ("within default tolerance (object)", ready(3), 20_666, 20_000, TOLERANCE, 3),
        ("outside configurable 1% tolerance (object)", ready(3), 20_666, 20_000, 0.01, 4),
        // getUsageRatioReplicaCount: from zero replicas, neither ready pods nor the tolerance count.
        ("from zero", ready(0), 1_050, 1_000, TOLERANCE, 2),
        ("zero stays zero", ready(0), 0, 1_000, TOLERANCE, 0),
    ];
    for (name, replicas, value, target, tolerance, expected) in rows {
        let mut bounds = bounds(1, 1_000);
        bounds.up.tolerance = tolerance;
        assert_eq!(proposal(Target::Value(target), value, replicas, &bounds), expected, "{name}");
    }
}

/// `horizontal_test.go`: TestScaleUpOneMetricEmpty, TestNoScaleDownOneMetricInvalid, TestNoScaleDownOneMetricEmpty, and
/// `computeReplicasForMetrics`, which takes the largest.
#[test]
fn the_largest_proposal_wins_and_a_missing_one_blocks_scaling_in() {
    let rows = [
        ("the largest of all", vec![Some(2), Some(7), Some(4)], 3, Ok(7)),
        ("TestScaleUpOneMetricEmpty", vec![None, Some(4)], 3, Ok(4)),
        ("TestNoScaleDownOneMetricInvalid", vec![None, Some(3)], 5, Err(Blocked::MissingMetric)),
        ("TestNoScaleDownOneMetricEmpty", vec![Some(3), None], 5, Err(Blocked::MissingMetric)),
        ("one is missing and the other asks for no change", vec![Some(5), None], 5, Ok(5)),
        ("all are missing", vec![None, None], 5, Err(Blocked::NoMetric)),
    ];
    for (name, proposals, wanted, expected) in rows {
        assert_eq!(largest(&proposals, wanted), expected, "{name}");
    }
}

/// Policies as upstream's `generateScalingRules(pods, podsPeriod, percent, percentPeriod, window)` makes them.
fn rules(pods: u32, pods_s: u64, percent: u32, percent_s: u64, window_s: u64) -> Rules {
    let policies = [(Amount::Pods(pods), pods, pods_s), (Amount::Percent(percent), percent, percent_s)];
    let policies = policies.into_iter().filter(|(_, value, _)| *value > 0);
    let policies = policies.map(|(amount, _, period_s)| Policy { amount, period: seconds(period_s) });
    Rules { window: seconds(window_s), select: Select::Max, policies: policies.collect(), tolerance: TOLERANCE }
}

fn selecting(select: Select, rules: Rules) -> Rules {
    Rules { select, ..rules }
}

const NOW: Duration = Duration::from_secs(10_000);

/// Like upstream's `generateEventsUniformDistribution`: the changes at even distances over the last `period_s`.
fn events(changes: &[u32], period_s: f64) -> Vec<(Duration, u32)> {
    let apart = period_s / changes.len() as f64;
    let at = |number: usize| NOW - Duration::from_secs_f64((number as f64 + 0.5) * apart);
    changes.iter().enumerate().map(|(number, change)| (at(number), *change)).collect()
}

struct Limited {
    name: &'static str,
    added: Vec<(Duration, u32)>,
    removed: Vec<(Duration, u32)>,
    up: Rules,
    down: Rules,
    min: u32,
    max: u32,
    current: u32,
    desired: u32,
    expected: u32,
}

/// A row of upstream's table. Fields that upstream leaves out have their defaults.
fn limited(name: &'static str, bounds: (u32, u32), current: u32, desired: u32, expected: u32) -> Limited {
    let (up, down) = (Rules::default_up(), Rules::default_down());
    let (added, removed) = (Vec::new(), Vec::new());
    Limited { name, added, removed, up, down, min: bounds.0, max: bounds.1, current, desired, expected }
}

impl Limited {
    fn up(self, up: Rules) -> Self {
        Self { up, ..self }
    }

    fn down(self, down: Rules) -> Self {
        Self { down, ..self }
    }

    fn added(self, changes: &[u32]) -> Self {
        Self { added: events(changes, 120.0), ..self }
    }

    fn removed(self, changes: &[u32]) -> Self {
        Self { removed: events(changes, 120.0), ..self }
    }

    #[track_caller]
    fn check(self) {
        let history = History { added: self.added, removed: self.removed, ..History::default() };
        let bounds = Bounds { min: self.min, max: self.max, up: self.up, down: self.down };
        assert_eq!(history.limit(self.desired, self.current, &bounds, NOW), self.expected, "{}", self.name);
    }
}

/// `horizontal_test.go`: the rows for scaling up of the table for `convertDesiredReplicasWithBehaviorRate`.
#[test]
fn policies_limit_scaling_up_as_upstream_does() {
    let all = (1, 1_000);
    let rows = [
        limited("scaleUp with default behavior", all, 10, 50, 20),
        limited("scaleUp with pods policy larger than percent policy", all, 10, 500, 110)
            .up(rules(100, 60, 100, 60, 0)),
        limited("scaleUp with percent policy larger than pods policy", all, 10, 500, 20).up(rules(2, 60, 100, 60, 0)),
        limited("scaleUp with spec MaxReplicas limitation with large pod policy", all, 10, 50, 50)
            .up(rules(100, 60, 0, 0, 0)),
        limited("scaleUp with pod policy limitation", all, 10, 50, 40).up(rules(30, 60, 0, 0, 0)),
        limited("scaleUp with percent policy limitation", all, 10, 50, 30).up(rules(0, 0, 200, 60, 0)),
        limited("scaleUp with spec MaxReplicas limitation with large pod policy and events", (1, 200), 100, 500, 200)
            .up(rules(300, 60, 0, 0, 0))
            .added(&[1, 5, 9]),
        limited(
            "scaleUp with spec MaxReplicas limitation with large percent policy and events",
            (1, 200),
            100,
            500,
            200,
        )
        .up(rules(0, 0, 10_000, 60, 0))
        .added(&[1, 5, 9]),
        // (100 - 15) + 5 is below the current number, which therefore stays.
        limited("scaleUp with currentReplicas limitation with a lot of recent scale up events", all, 100, 500, 100)
            .up(rules(5, 120, 0, 0, 0))
            .added(&[1, 5, 9]),
        limited("scaleUp with pod policy and previous scale up events", all, 100, 500, 235)
            .up(rules(150, 120, 0, 0, 0))
            .added(&[1, 5, 9]),
        limited("scaleUp with percent policy and previous scale up events", all, 100, 500, 255)
            .up(rules(0, 0, 200, 120, 0))
            .added(&[1, 5, 9]),
        limited("check 'outdated' flag for events for one behavior for up", all, 100, 200, 200)
            .up(rules(1_000, 60, 0, 0, 0))
            .added(&[8, 12, 9, 11]),
        // The period began with (100 + 15) replicas, so the removed ones may be added again.
        limited("scaleUp with percent policy and previous scale down events", all, 100, 500, 230)
            .up(rules(0, 0, 100, 120, 0))
            .removed(&[1, 5, 9]),
        limited("selectPolicy Min takes the smallest change", all, 10, 500, 12)
            .up(selecting(Select::Min, rules(2, 60, 100, 60, 0))),
        limited("selectPolicy Disabled changes nothing", all, 10, 500, 10)
            .up(selecting(Select::Disabled, rules(2, 60, 100, 60, 0))),
    ];
    rows.into_iter().for_each(Limited::check);
}

/// The rows for scaling down of the same table.
#[test]
fn policies_limit_scaling_down_as_upstream_does() {
    let all = (1, 1_000);
    let rows = [
        limited("scaleDown with percent policy larger than pod policy", all, 100, 2, 80)
            .down(rules(20, 60, 1, 60, 300)),
        limited("scaleDown with pod policy larger than percent policy", all, 100, 2, 98).down(rules(2, 60, 1, 60, 300)),
        limited("scaleDown with spec MinReplicas limitation with large pod policy", all, 10, 0, 1)
            .down(rules(100, 60, 0, 0, 300)),
        limited("scaleDown with spec MinReplicas limitation with large percent policy", (5, 1_000), 10, 2, 5)
            .down(rules(0, 0, 100, 60, 300)),
        limited("scaleDown with pod policy limitation", all, 10, 2, 5).down(rules(5, 60, 0, 0, 300)),
        limited("scaleDown with percent policy limitation", all, 10, 5, 5).down(rules(0, 0, 50, 60, 300)),
        limited("scaleDown with default policy and previous events", all, 10, 5, 5).removed(&[1, 5, 9]),
        limited("scaleDown with large pod policy and previous events", all, 100, 0, 1)
            .down(rules(115, 120, 0, 0, 300))
            .removed(&[1, 5, 9]),
        limited("scaleDown with spec MinReplicas and large pod policy and previous events", (5, 1_000), 100, 0, 5)
            .down(rules(130, 120, 0, 0, 300))
            .removed(&[1, 5, 9]),
        limited("scaleDown with pod policy limitation and previous events", all, 100, 2, 100)
            .down(rules(5, 120, 0, 0, 300))
            .removed(&[1, 5, 9]),
        limited("scaleDown with percent policy limitation and previous events", all, 100, 0, 56)
            .down(rules(0, 0, 50, 120, 300))
            .removed(&[2, 4, 6]),
        limited("scaleDown with previous events preventing further scale down", all, 100, 0, 100)
            .down(rules(0, 0, 10, 120, 300))
            .removed(&[10, 10, 10]),
        limited("scaleDown with previous events still allowing more scale down", all, 10, 5, 5)
            .down(rules(0, 0, 1_000, 120, 300))
            .removed(&[10, 10, 10]),
        limited("check 'outdated' flag for events for one behavior for down", all, 100, 5, 5)
            .down(rules(1_000, 60, 0, 0, 300))
            .removed(&[8, 12, 9, 11]),
        limited("selectPolicy Min takes the smallest change", all, 100, 2, 99)
            .down(selecting(Select::Min, rules(20, 60, 1, 60, 300))),
        limited("selectPolicy Disabled changes nothing", all, 100, 2, 100)
            .down(selecting(Select::Disabled, rules(20, 60, 1, 60, 300))),
    ];
    rows.into_iter().for_each(Limited::check);
}

/// `horizontal_test.go`: the table for `stabilizeRecommendationWithBehaviors`.
#[test]
fn windows_stabilise_as_upstream_does() {
    let minutes = |ago: u64| NOW - seconds(60 * ago);
    // Recommendations with their age in minutes; the window of the direction in seconds.
    let rows = [
        ("empty recommendations for scaling down", vec![], 300, 100, 5, 5),
        ("simple scale down stabilization", vec![(2, 4), (1, 5)], 300, 100, 3, 5),
        ("simple scale up stabilization", vec![(2, 4), (1, 5)], 150, 1, 7, 4),
        ("no scale down stabilization", vec![(2, 1), (1, 2)], 300, 100, 3, 3),
        ("no scale up stabilization", vec![(2, 4), (1, 5)], 150, 1, 3, 3),
        ("no scale down stabilization, reuse recommendation element", vec![(10, 10), (9, 9)], 300, 100, 3, 3),
        ("no scale up stabilization, reuse recommendation element", vec![(10, 10), (9, 9)], 60, 1, 100, 100),
        ("scale down stabilization, reuse one of obsolete", vec![(10, 10), (1, 4), (2, 5), (9, 9)], 150, 100, 3, 5),
        ("scale up stabilization, reuse one of obsolete", vec![(100, 10), (1, 6), (2, 5), (3, 9)], 150, 1, 100, 5),
    ];
    for (name, recommended, window_s, current, desired, expected) in rows {
        let recommendations = recommended.into_iter().map(|(ago, replicas)| (minutes(ago), replicas)).collect();
        let mut history = History { recommendations, ..History::default() };
        let mut bounds = bounds(1, 1_000);
        let rules = if desired > current { &mut bounds.up } else { &mut bounds.down };
        rules.window = seconds(window_s);
        assert_eq!(history.stabilise(desired, current, &bounds, NOW), expected, "{name}");
    }
}

/// `horizontal_test.go`: TestStoreScaleUpEvents, TestStoreScaleDownEvents: events older than the longest period are
/// forgotten.
#[test]
fn events_are_kept_for_the_longest_period() {
    let rows = [
        ("empty entries", vec![], vec![5]),
        ("one outdated entry to be replaced", vec![(61, 7)], vec![5]),
        ("two entries, one of them to be replaced", vec![(61, 7), (59, 6)], vec![6, 5]),
        ("two entries, both actual", vec![(58, 7), (59, 6)], vec![7, 6, 5]),
    ];
    for (name, before, expected) in rows {
        let mut bounds = bounds(1, 1_000);
        bounds.up = rules(100, 60, 0, 0, 0);
        let added = before.into_iter().map(|(ago, change)| (NOW - seconds(ago), change)).collect();
        let mut history = History { added, ..History::default() };
        let reading = Reading { target: Target::AverageValue(1_000), value: Some(10_000) };
        assert_eq!(history.decide(&[reading], ready(5), &bounds, NOW).replicas, 10, "{name}");
        assert_eq!(history.added.iter().map(|(_, change)| *change).collect::<Vec<_>>(), expected, "{name}");
    }
}

/// `horizontal_test.go`: TestScaleUpRCImmediately, TestScaleDownRCImmediately: bounds are enforced without metrics.
#[test]
fn a_number_out_of_bounds_is_corrected_at_once() {
    let mut history = History::default();
    let missing = Reading { target: Target::Value(1_000), value: None };
    assert_eq!(history.decide(&[missing], ready(1), &bounds(2, 6), NOW).replicas, 2);
    let decision = history.decide(&[missing], ready(6), &bounds(2, 5), NOW);
    assert_eq!((decision.replicas, decision.desired), (5, Err(Blocked::OutOfBounds)));
}

/// The whole algorithm: after a step down the number stays for the window, then falls as the policy allows.
#[test]
fn scaling_in_waits_for_the_window_and_then_follows_the_policy() {
    let mut bounds = bounds(2, 20);
    bounds.down = rules(0, 0, 25, 60, 300);
    let mut history = History::default();
    let mut wanted = 2;
    let mut series = Vec::new();
    for tick in 0..80 {
        let now = seconds(tick * 15);
        let busy = if tick < 10 { 7_000 } else { 700 };
        let reading = Reading { target: Target::AverageValue(700), value: Some(busy) };
        wanted = history.decide(&[reading], ready(wanted), &bounds, now).replicas;
        series.push((tick * 15, wanted));
    }
    let mut changes = series.clone();
    changes.dedup_by_key(|(_, replicas)| *replicas);
    // It starts with 2 replicas and may double them, or add four, every 15 s. The last high recommendation is made at
    // second 135. The window of 300 s keeps it until second 435.
    assert_eq!(changes, [(0, 6), (15, 10), (435, 7), (495, 5), (555, 3), (615, 2)]);
}
