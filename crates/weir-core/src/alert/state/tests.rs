use proptest::prelude::*;

use super::*;
use crate::{
    adaptive::Fall,
    alert::AlertOverrides,
    fault::Late,
    refusals::{Cause, Refusals, Remedy},
    refusing::Refusing,
    stall::Fault,
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

fn policy() -> AlertPolicy {
    AlertPolicy { backlog_depth: Some(100), oldest_age_s: Some(60), drain_beyond_ttl: true, dead_letters: Some(5) }
}

fn waiting(count: u64) -> DestinationStatus {
    DestinationStatus { waiting: count, remaining_life: Duration::from_secs(3_600), ..DestinationStatus::default() }
}

/// Raises all alerts that are due, and returns their types.
fn raise(
    state: &mut AlertState,
    policy: &AlertPolicy,
    status: &DestinationStatus,
    now: Timestamp,
) -> Vec<&'static str> {
    *state = state.reconciled(policy, status, now);
    let alerts = state.alerts(policy, status, now);
    *state = alerts.iter().fold(*state, |state, alert| state.with(alert, now));
    alerts.iter().map(|alert| alert.alert_type().as_str()).collect()
}

#[test]
fn a_high_backlog_raises_one_alert_and_clears_well_below_its_threshold() {
    let mut state = AlertState::default();
    let steps = [
        (99, vec![]),
        (100, vec!["weir.backlog.high"]),
        (5_000, vec![]),
        (99, vec![]),
        (80, vec![]),
        (79, vec!["weir.backlog.cleared"]),
        (80, vec![]),
        (100, vec!["weir.backlog.high"]),
    ];
    for (count, expected) in steps {
        assert_eq!(raise(&mut state, &policy(), &waiting(count), NOW), expected, "{count}");
    }
}

#[test]
fn each_measure_raises_an_alert_that_names_it() {
    let old = DestinationStatus { oldest_age: Duration::from_secs(60), ..waiting(1) };
    assert_eq!(AlertState::default().alerts(&policy(), &old, NOW), [Alert::BacklogHigh(vec![Measure::OldestAgeS])]);
    let late = DestinationStatus { drains_in: Some(Duration::from_secs(3_600)), ..waiting(100) };
    assert_eq!(
        AlertState::default().alerts(&policy(), &late, NOW),
        [Alert::BacklogHigh(vec![Measure::BacklogDepth, Measure::DrainBeyondTtl])]
    );
    let hopeless =
        DestinationStatus { drains_in: Some(Duration::from_secs(1)), remaining_life: Duration::ZERO, ..waiting(1) };
    assert_eq!(
        AlertState::default().alerts(&policy(), &hopeless, NOW),
        [Alert::BacklogHigh(vec![Measure::DrainBeyondTtl])]
    );
}

#[test]
fn a_threshold_that_is_removed_clears_the_backlog() {
    let mut state = AlertState::default();
    raise(&mut state, &policy(), &waiting(500), NOW);
    let none = AlertPolicy { backlog_depth: None, ..policy() };
    assert_eq!(raise(&mut state, &none, &waiting(500), NOW), ["weir.backlog.cleared"]);
}

#[test]
fn the_alert_that_ends_another_names_the_same_measures() {
    let high = Alert::BacklogHigh(vec![Measure::BacklogDepth, Measure::DrainBeyondTtl]);
    let state = AlertState::default().with(&high, NOW);
    let cleared = [Alert::BacklogCleared(vec![Measure::BacklogDepth, Measure::DrainBeyondTtl])];
    assert_eq!(state.alerts(&policy(), &waiting(1), NOW + SEEN_LASTS), cleared);
    assert_eq!(state.with(&cleared[0], NOW), AlertState::default());
}

#[test]
fn deliveries_that_expire_now_and_then_raise_one_alert_that_lasts_until_they_have_stopped() {
    let at = |secs| NOW + Duration::from_secs(secs);
    let ttl = |secs| DestinationStatus {
        drains_in: Some(Duration::from_secs(100)),
        remaining_life: Duration::from_secs(secs),
        ..waiting(1)
    };
    let mut state = AlertState::default();
    assert_eq!(raise(&mut state, &policy(), &ttl(60), NOW), ["weir.backlog.high"]);
    for minute in 1..30 {
        assert!(raise(&mut state, &policy(), &ttl(3_600), at(minute * 60 - 30)).is_empty(), "none of them waits");
        assert!(raise(&mut state, &policy(), &ttl(60), at(minute * 60)).is_empty(), "one of them waits again");
    }
    let last = 29 * 60 + SEEN_LASTS.as_secs();
    assert!(raise(&mut state, &policy(), &ttl(3_600), at(last - 1)).is_empty());
    assert_eq!(state.problems(&policy(), &ttl(3_600), at(last - 1)).len(), 1, "it is still listed");
    assert_eq!(raise(&mut state, &policy(), &ttl(3_600), at(last)), ["weir.backlog.cleared"]);
}

#[test]
fn a_fallen_pace_raises_one_alert_and_one_when_it_is_about_what_it_was() {
    let mut state = AlertState::default();
    let pace = |per_s: f64| {
        let (reason, detail) = (crate::adaptive::Reason::Throttled, "12 of 340 answers were 429".to_owned());
        let fall = Fall { usual_per_s: 100.0, per_s, at: NOW, reason, detail };
        DestinationStatus { pace: Some(Some(fall)), ..waiting(0) }
    };
    let after = |secs| NOW + Duration::from_secs(secs);
    assert!(raise(&mut state, &policy(), &pace(50.0), NOW).is_empty());
    assert_eq!(raise(&mut state, &policy(), &pace(49.0), NOW), ["weir.rate.lowered"]);
    assert!(raise(&mut state, &policy(), &pace(10.0), after(5)).is_empty());
    // Nothing is known of a pace that did not change.
    assert!(raise(&mut state, &policy(), &waiting(0), after(9)).is_empty());
    assert!(raise(&mut state, &policy(), &pace(79.0), after(20)).is_empty());
    assert_eq!(raise(&mut state, &policy(), &pace(80.0), after(30)), ["weir.rate.restored"]);
    // Not again within ten minutes.
    assert!(raise(&mut state, &policy(), &pace(10.0), after(599)).is_empty());
    assert_eq!(raise(&mut state, &policy(), &pace(10.0), after(600)), ["weir.rate.lowered"]);
    let off = DestinationStatus { pace: Some(None), ..waiting(0) };
    assert_eq!(raise(&mut state, &policy(), &off, after(700)), ["weir.rate.restored"]);
    assert!(raise(&mut state, &policy(), &off, after(800)).is_empty());
}

#[test]
fn what_is_wrong_does_not_depend_on_what_was_told() {
    let status = DestinationStatus { undelivered: 7, breaker: Some("3 failures".to_owned()), ..waiting(500) };
    let wrong = |state: AlertState, status: &DestinationStatus| {
        state.problems(&policy(), status, NOW).iter().map(|alert| alert.alert_type().as_str()).collect::<Vec<_>>()
    };
    let all = ["weir.backlog.high", "weir.breaker.opened", "weir.delivery.dead"];
    assert_eq!(wrong(AlertState::default(), &status), all);
    let told = status_told(&status);
    assert_eq!(wrong(told, &status), all, "it is still so");
    // Below the threshold, but not cleared.
    assert_eq!(wrong(told, &waiting(90)), ["weir.backlog.high"]);
    assert_eq!(wrong(AlertState::default(), &waiting(90)), Vec::<&str>::new());
    assert_eq!(wrong(told, &waiting(10)), Vec::<&str>::new());
}

fn status_told(status: &DestinationStatus) -> AlertState {
    let none = AlertState::default();
    none.alerts(&policy(), status, NOW).iter().fold(none, |state, alert| state.with(alert, NOW))
}

#[test]
fn a_record_of_an_earlier_version_has_told_all_of_its_history() {
    let state = AlertState { backlog_high: true, dead: 3, ..AlertState::default() };
    let read: AlertRecord = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
    assert_eq!((read.told, read.history()), (state, state));
    let record = AlertRecord::new(AlertState::default(), state);
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<AlertRecord>(&text).unwrap(), record);
    // A process of an earlier version reads what was told, and ignores the rest.
    assert_eq!(serde_json::from_str::<AlertState>(&text).unwrap(), AlertState::default());
}

#[test]
fn each_opening_of_a_breaker_and_each_pause_raises_one_alert() {
    let mut state = AlertState::default();
    let open = DestinationStatus { breaker: Some("10 failures in a row".to_owned()), ..DestinationStatus::default() };
    let paused = DestinationStatus { paused: Some("410 Gone".to_owned()), ..DestinationStatus::default() };
    let steps = [
        (&open, vec!["weir.breaker.opened"]),
        (&open, vec![]),
        (&paused, vec!["weir.breaker.closed", "weir.destination.paused"]),
        (&paused, vec![]),
        (&DestinationStatus::default(), vec![]),
        (&paused, vec!["weir.destination.paused"]),
    ];
    for (status, expected) in steps {
        assert_eq!(raise(&mut state, &policy(), status, NOW), expected, "{status:?}");
    }
}

#[test]
fn refusals_within_the_limit_raise_one_alert_and_one_when_they_have_ended() {
    let refusals =
        Refusals { cause: Cause::Spacing, remedy: Remedy::Interval { min_interval_ms: 102 }, sends: 400, refused: 60 };
    let status = |refused| DestinationStatus { refused, ..DestinationStatus::default() };
    let mut state = AlertState::default();
    let steps = [
        (None, vec![]),
        (Some(None), vec![]),
        (Some(Some(refusals)), vec!["weir.destination.refused"]),
        (Some(Some(refusals)), vec![]),
        // Another process may not have looked at this destination.
        (None, vec![]),
        (Some(None), vec!["weir.destination.admitted"]),
        (Some(None), vec![]),
    ];
    for (refused, expected) in steps {
        assert_eq!(raise(&mut state, &policy(), &status(refused), NOW), expected, "{refused:?}");
    }
}

#[test]
fn a_receiver_that_refuses_much_raises_one_alert_that_lasts_until_it_has_stopped() {
    let at = |minutes: u64| NOW + Duration::from_secs(60 * minutes);
    let refusing = |refused| DestinationStatus {
        refusing: Some(Refusing { sends: 100, refused, takes_per_s: None }),
        ..DestinationStatus::default()
    };
    let mut state = AlertState::default();
    let steps = [
        (0, Some(10), vec![]),
        (1, Some(11), vec!["weir.destination.refusing"]),
        (2, Some(40), vec![]),
        // This process has not looked at the destination.
        (3, None, vec![]),
        // Above eight of a hundred it still is much.
        (11, Some(8), vec![]),
        (12, Some(7), vec![]),
        (20, Some(0), vec![]),
        (21, Some(0), vec!["weir.destination.accepting"]),
        (22, Some(10), vec![]),
        (23, Some(11), vec!["weir.destination.refusing"]),
    ];
    for (minute, refused, expected) in steps {
        let status = refused.map_or_else(DestinationStatus::default, refusing);
        assert_eq!(raise(&mut state, &policy(), &status, at(minute)), expected, "minute {minute}");
    }
    let listed = |state: AlertState, refused| state.problems(&policy(), &refusing(refused), at(24)).len();
    assert_eq!([11, 8, 7].map(|refused| listed(state, refused)), [1, 1, 0], "what is wrong now");
    assert_eq!(listed(AlertState::default(), 8), 0);
}

#[test]
fn a_stall_raises_one_alert_when_it_begins_and_one_when_it_ends() {
    let late = Late { since: NOW, fault: Fault::NoWorker };
    let status = |stalled| DestinationStatus { stalled, ..DestinationStatus::default() };
    let mut state = AlertState::default();
    let steps = [
        (Some(None), vec![]),
        (Some(Some(late)), vec!["weir.destination.stalled"]),
        (Some(Some(Late { fault: Fault::QueueAway, ..late })), vec![]),
        // This process began a moment ago.
        (None, vec![]),
        (Some(None), vec!["weir.destination.recovered"]),
        (Some(None), vec![]),
    ];
    for (stalled, expected) in steps {
        assert_eq!(raise(&mut state, &policy(), &status(stalled), NOW), expected, "{stalled:?}");
    }
}

#[test]
fn a_state_that_an_earlier_version_recorded_is_read() {
    let recorded = r#"{"backlog_high":true,"breaker_opened":false,"paused":false,"dead":3,"dead_at":null}"#;
    let state: AlertState = serde_json::from_str(recorded).unwrap();
    assert_eq!(state, AlertState { backlog_high: true, dead: 3, ..AlertState::default() });
}

#[test]
fn dead_letters_raise_an_alert_at_their_threshold_and_once_a_minute_at_most() {
    let mut state = AlertState::default();
    let dead = |count| DestinationStatus { undelivered: count, ..DestinationStatus::default() };
    let later = |secs| NOW + Duration::from_secs(secs);
    let steps = [
        (dead(4), 0, None),
        (dead(5), 1, Some(5)),
        (dead(20), 2, None),
        (dead(20), 61, Some(15)),
        (dead(24), 200, None),
        // Twenty dead letters were replayed, and four more deliveries died.
        (dead(4), 300, None),
        (dead(9), 400, Some(5)),
    ];
    for (status, at, expected) in steps {
        state = state.reconciled(&policy(), &status, later(at));
        let alerts = state.alerts(&policy(), &status, later(at));
        assert_eq!(alerts, Vec::from_iter(expected.map(|new| Alert::Dead { new })), "at {at} s");
        state = alerts.iter().fold(state, |state, alert| state.with(alert, later(at)));
    }
}

#[test]
fn dead_letters_from_a_time_without_a_threshold_raise_no_alert_later() {
    let mut state = AlertState::default();
    let off = AlertPolicy { dead_letters: None, ..policy() };
    assert!(
        raise(&mut state, &off, &DestinationStatus { undelivered: 50, ..DestinationStatus::default() }, NOW).is_empty()
    );
    assert!(
        raise(&mut state, &policy(), &DestinationStatus { undelivered: 54, ..DestinationStatus::default() }, NOW)
            .is_empty()
    );
    assert_eq!(
        raise(&mut state, &policy(), &DestinationStatus { undelivered: 55, ..DestinationStatus::default() }, NOW),
        ["weir.delivery.dead"]
    );
}

#[test]
fn an_override_replaces_only_the_fields_it_names_and_null_disables() {
    let overrides: AlertOverrides = serde_json::from_str(r#"{"backlog_depth": null, "dead_letters": 9}"#).unwrap();
    assert_eq!(overrides.apply_to(&policy()), AlertPolicy { backlog_depth: None, dead_letters: Some(9), ..policy() });
    assert_eq!(serde_json::to_string(&overrides).unwrap(), r#"{"backlog_depth":null,"dead_letters":9}"#);
}

proptest! {
    #[test]
    fn high_and_cleared_alerts_alternate(counts in proptest::collection::vec(0_u64..300, 1..50)) {
        let mut state = AlertState::default();
        let mut raised = Vec::new();
        for count in counts {
            let types = raise(&mut state, &policy(), &waiting(count), NOW);
            let expected = if count >= 100 { "weir.backlog.high" } else { "weir.backlog.cleared" };
            prop_assert!(types.iter().all(|event_type| *event_type == expected));
            raised.extend(types);
        }
        for (index, event_type) in raised.iter().enumerate() {
            prop_assert_eq!(*event_type, ["weir.backlog.high", "weir.backlog.cleared"][index % 2]);
        }
    }

    #[test]
    fn every_dead_letter_is_counted_in_one_alert(deaths in proptest::collection::vec(0_u64..20, 1..50)) {
        let mut state = AlertState::default();
        let (mut dead, mut reported, mut now) = (0, 0, NOW);
        for new in deaths {
            dead += new;
            now = now + DEAD_LETTER_INTERVAL;
            let status = DestinationStatus { undelivered: dead, ..DestinationStatus::default() };
            for alert in state.alerts(&policy(), &status, now) {
                let Alert::Dead { new } = alert else { panic!("{alert:?}") };
                reported += new;
                state = state.with(&alert, now);
            }
            prop_assert!(reported <= dead && dead - reported < 5);
        }
    }
}
