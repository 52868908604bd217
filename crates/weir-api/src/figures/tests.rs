use std::sync::Arc;

use weir_core::{
    DestinationId, LimitKey, Period, RateLimit,
    address::AddressPolicy,
    breaker::{AttemptWindow, Breaker, BreakerPolicy, EndedAttempt},
    delivery::AttemptOutcome,
    limit::MinInterval,
    limit_key::{KeyLimits, KeyOverride},
    order::DeliveryOrder,
    outcome::Effect,
    refusals::{Cause, Remedy},
};

use weir_store::{DestinationCounts, KeyBacklog, KeyBacklogs, WatchedKeys};

use super::*;
use crate::{
    overview::Row,
    resources::{backlog, destinations::settings, overview::row_view, preview},
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

/// A destination with a limit of ten a second and at most eight sends in flight.
fn destination(edit: impl FnOnce(&mut Destination)) -> Destination {
    let body = serde_json::json!({
        "url": "https://example.com/", "rate_limits": [{"limit": 10, "period": "second"}], "max_in_flight": 8,
    });
    let mut destination =
        Destination::new(DestinationId::new(NOW, 1), settings::read(body, &AddressPolicy::default()).unwrap(), NOW);
    edit(&mut destination);
    destination
}

fn measured(pending: u64, delivering: u64, achieved_per_s: f64) -> Measured {
    let mut counts = StateCounts::default();
    counts.add(DeliveryState::Pending, pending);
    counts.add(DeliveryState::Delivering, delivering);
    let oldest_at = Some(NOW - Duration::from_millis(2_500));
    Measured { counts, oldest_at, achieved_per_s, last_sent_at: Some(NOW), ..Measured::default() }
}

fn reason_of(edit: impl FnOnce(&mut Destination), measured: &Measured) -> Option<&'static str> {
    Figures::of(&destination(edit), measured, NOW).reason.map(Reason::as_str)
}

#[test]
fn the_reason_names_the_first_thing_that_keeps_a_backlog_from_being_sent() {
    let hold = |destination: &mut Destination| destination.held_until = Some(NOW + Duration::from_secs(1));
    let order =
        |destination: &mut Destination| destination.settings.order = DeliveryOrder::ByKey { skip_after_attempts: None };
    let free = |destination: &mut Destination| destination.settings.rate_limits = RateLimits::UNLIMITED;
    let waits = measured(100, 2, 0.0);
    assert_eq!(reason_of(|_| {}, &measured(0, 8, 9.9)), None, "nothing waits");
    assert_eq!(reason_of(|_| {}, &waits), Some("limit"));
    assert_eq!(reason_of(|_| {}, &measured(100, 8, 9.9)), Some("limit"), "full, and at the limit");
    assert_eq!(reason_of(|_| {}, &measured(100, 8, 5.0)), Some("slow"));
    assert_eq!(reason_of(free, &measured(100, 8, 5.0)), Some("slow"));
    assert_eq!(reason_of(free, &waits), None, "no bound is reached");
    assert_eq!(reason_of(order, &waits), Some("ordered"));
    assert_eq!(reason_of(order, &measured(100, 2, 9.9)), Some("limit"));
    assert_eq!(reason_of(order, &measured(100, 8, 2.0)), Some("slow"));
    assert_eq!(reason_of(hold, &waits), Some("held"));
    let remedy = Remedy::Interval { min_interval_ms: 102 };
    let refusals = Some(Refusals { cause: Cause::Spacing, remedy, sends: 400, refused: 60 });
    assert_eq!(reason_of(hold, &Measured { refusals, ..waits.clone() }), Some("refused_within_limit"));
    let pause = |destination: &mut Destination| {
        hold(destination);
        destination.settings.paused = true;
    };
    assert_eq!(reason_of(pause, &waits), Some("paused"));
    let mut retrying = StateCounts::default();
    retrying.add(DeliveryState::Retrying, 5);
    let retrying = Measured { counts: retrying, ..waits.clone() };
    assert_eq!(reason_of(|_| {}, &retrying), None, "they wait for their retries");
    let failing = |of: &Measured| Measured { fails: true, ..of.clone() };
    assert_eq!(reason_of(|_| {}, &failing(&retrying)), Some("failing"));
    assert_eq!(reason_of(order, &failing(&waits)), Some("failing"), "the heads of its groups fail");
    assert_eq!(reason_of(|_| {}, &failing(&waits)), Some("limit"), "new deliveries are due");
    assert_eq!(reason_of(hold, &failing(&retrying)), Some("held"));
}

#[test]
fn a_hold_that_has_ended_is_no_reason() {
    let ended = |destination: &mut Destination| destination.held_until = Some(NOW);
    assert_eq!(reason_of(ended, &measured(1, 0, 0.0)), Some("limit"));
}

#[test]
fn the_drain_follows_the_limit_the_inflow_and_a_hold() {
    let eta = |edit: fn(&mut Destination), measured: &Measured| {
        let figures = Figures::of(&destination(edit), measured, NOW);
        (figures.drain_eta.map(|eta| eta.as_millis()), figures.drains)
    };
    let waits = measured(100, 2, 9.9);
    let inflow = |per_s| Measured { older_arrivals_per_s: per_s, newer_arrivals_per_s: per_s, ..waits.clone() };
    assert_eq!(eta(|_| {}, &waits), (Some(10_100), Some(true)));
    assert_eq!(eta(|_| {}, &inflow(5.0)), (Some(20_503), Some(true)));
    assert_eq!(eta(|_| {}, &inflow(10.0)), (None, Some(false)));
    // All of it arrived at once.
    assert_eq!(eta(|_| {}, &Measured { newer_arrivals_per_s: 50.0, ..waits.clone() }), (Some(10_100), Some(true)));
    assert_eq!(eta(|destination| destination.settings.paused = true, &waits), (None, None));
    assert_eq!(eta(|destination| destination.settings.paused = true, &measured(0, 0, 0.0)), (Some(0), Some(true)));
    let (held, _) = eta(|destination| destination.held_until = Some(NOW + Duration::from_secs(60)), &waits);
    assert_eq!(held, Some(69_999));
}

#[test]
fn without_a_limit_the_recent_rate_is_the_estimate() {
    let free = || destination(|destination| destination.settings.rate_limits = RateLimits::UNLIMITED);
    let of = |measured: &Measured| Figures::of(&free(), measured, NOW);
    let drained = of(&measured(100, 2, 50.0));
    assert_eq!((drained.drain_eta, drained.drains), (Some(Duration::from_secs(2)), Some(true)));
    let unknown = of(&measured(100, 2, 0.0));
    assert_eq!(
        (unknown.drain_eta, unknown.drains, unknown.utilisation, unknown.effective_per_s),
        (None, None, None, None)
    );
    let busy = Measured { older_arrivals_per_s: 50.0, newer_arrivals_per_s: 50.0, ..measured(100, 2, 50.0) };
    assert_eq!(of(&busy).drains, None);
}

#[test]
fn the_use_is_of_the_minimum_interval_where_it_is_stricter_than_the_limits() {
    let second = RateLimit::new(100, Period::SECOND).unwrap().with_margin(100).unwrap();
    let interval = |millis| {
        move |destination: &mut Destination| {
            let limits = RateLimits::new(vec![second]).unwrap();
            destination.settings.rate_limits = limits.with_min_interval(MinInterval::from_millis(millis));
        }
    };
    let strict = Figures::of(&destination(interval(100)), &measured(100, 2, 9.0), NOW);
    assert_eq!(strict.binding, Some(Bound::MinInterval(MinInterval::from_millis(100).unwrap())));
    // Slots start 106.25 ms apart.
    assert!((strict.configured_per_s.unwrap() - 9.41).abs() < 0.01 && strict.utilisation.unwrap() > 0.95);
    let loose = Figures::of(&destination(interval(1)), &measured(100, 2, 9.0), NOW);
    assert_eq!(loose.binding, Some(Bound::Limit(second)));
    assert!((loose.configured_per_s.unwrap() - 100.0 / 1.1).abs() < 0.01);
}

#[test]
fn the_use_is_of_the_strictest_limit() {
    let limits = [RateLimit::new(10, Period::SECOND).unwrap(), RateLimit::new(60, Period::MINUTE).unwrap()];
    let strict =
        |destination: &mut Destination| destination.settings.rate_limits = RateLimits::new(limits.to_vec()).unwrap();
    let figures = Figures::of(&destination(strict), &measured(100, 2, 0.5), NOW);
    assert_eq!((figures.binding, figures.utilisation), (Some(Bound::Limit(limits[1])), Some(0.5)));
    // Slots are (60 s + 0.1 s) / 60 apart.
    assert_eq!(figures.effective_per_s.map(millis), Some(0.998));
    assert_eq!(figures.oldest_age, Some(Duration::from_millis(2_500)));
    let stopped = |destination: &mut Destination| destination.settings.paused = true;
    assert_eq!(Figures::of(&destination(stopped), &measured(1, 0, 0.0), NOW).effective_per_s, Some(0.0));
    assert_eq!(Figures::of(&destination(|_| {}), &measured(0, 0, 0.0), NOW).oldest_age, None);
}

#[test]
fn the_backlog_the_row_and_the_preview_agree_in_every_condition() {
    let open = |destination: &mut Destination| {
        let (policy, mut window) = (BreakerPolicy::default(), AttemptWindow::default());
        let outcome = AttemptOutcome::Retryable;
        let failure = EndedAttempt { outcome, effect: Effect::None, refusal: None, began: NOW, now: NOW };
        let opened = (0..10).find_map(|_| window.observe(&destination.breaker, &policy, &failure));
        destination.breaker = opened.expect("it opens");
    };
    type Change<'a> = &'a dyn Fn(&mut Destination);
    let cases: [(&str, Change<'_>, u64); 6] = [
        ("active", &|_| {}, 100),
        ("paused", &|destination| destination.settings.paused = true, 100),
        ("held", &|destination| destination.held_until = Some(NOW + Duration::from_secs(60)), 100),
        ("breaker open", &open, 100),
        ("unlimited", &|destination| destination.settings.rate_limits = RateLimits::UNLIMITED, 100),
        ("no backlog", &|_| {}, 0),
    ];
    for (case, edit, pending) in cases {
        let measured = Measured {
            arrivals_per_s: 5.0,
            older_arrivals_per_s: 5.0,
            newer_arrivals_per_s: 5.0,
            answer_time: Some(Duration::from_millis(100)),
            ..measured(pending, 2, 9.0)
        };
        let destination = destination(edit);
        let figures = |destination: &Destination| Figures::of(destination, &measured, NOW);
        let counted = DestinationCounts { pending, delivering: 2, ..DestinationCounts::default() };
        let backlog = backlog::view(&counted, figures(&destination), NOW);
        let row = Row { destination: Arc::new(destination.clone()), figures: figures(&destination) };
        let row = row_view(&row, NOW);
        assert_eq!(
            (row.drains, row.drain_eta_s, row.effective_per_s, row.arrivals_per_s),
            (backlog.drains, backlog.drain_eta_s, backlog.effective_per_s, backlog.arrivals_per_s),
            "{case}"
        );
        // A preview is of the time from which the destination sends again.
        let settings = &destination.settings;
        let preview = preview::view(&measured, None, &settings.rate_limits, |limits| {
            measured.forecast(&destination, limits, settings.max_in_flight, NOW)
        });
        let mut sending = Destination { breaker: Breaker::default(), ..destination.clone() };
        sending.settings.paused = false;
        let sending = figures(&sending);
        let drain_eta_s = sending.drain_eta.map(|eta| millis(eta.as_secs_f64()));
        assert_eq!((preview.drains, preview.drain_eta_s), (sending.drains, drain_eta_s), "{case}");
        if destination.is_stopped() {
            let stopped = (backlog.drains, backlog.drain_eta_s, backlog.effective_per_s);
            assert_eq!(stopped, (None, None, Some(0.0)), "{case}");
        } else {
            assert_eq!((preview.drains, preview.drain_eta_s), (backlog.drains, backlog.drain_eta_s), "{case}");
        }
        if destination.is(Condition::Active, NOW) {
            assert_eq!(preview.effective_per_s, backlog.effective_per_s, "{case}");
        }
    }
}

#[test]
fn the_sends_of_a_long_window_are_averaged_over_a_minute() {
    let limits = |limit, period, shape| {
        let limit = RateLimit::new(limit, period).unwrap().with_shape(shape).unwrap();
        RateLimits::new(vec![limit]).unwrap()
    };
    assert!(is_slow(&limits(100, Period::MINUTE, Shape::Window)), "all of it may be sent in the first second");
    assert!(
        !is_slow(&limits(100, Period::MINUTE, Shape::Even)) && !is_slow(&limits(100, Period::SECOND, Shape::Window))
    );
    assert!(is_slow(&limits(30, Period::MINUTE, Shape::Even)));
}

#[test]
fn a_rate_below_one_keeps_its_digits() {
    let rates = [0.0, 1.0 / 60.0, 1.0 / 86_400.0, 0.5, -0.25, 9.900_990_1, 299.4];
    assert_eq!(rates.map(millis), [0.0, 0.016_67, 0.000_011_57, 0.5, -0.25, 9.901, 299.4]);
}

/// The destination with limits of its keys, which was edited a minute ago.
fn keyed(destination: &mut Destination) {
    destination.settings.key_limits = Some(Arc::new(KeyLimits {
        pointer: "/customer".to_owned(),
        rate_limits: RateLimits::new(vec![RateLimit::new(2, Period::SECOND).unwrap()]).unwrap(),
        max_in_flight: None,
        weight: 1,
        overrides: [(LimitKey::new("still"), KeyOverride { paused: true, ..KeyOverride::default() })].into(),
    }));
    destination.updated_at = NOW - Duration::from_secs(60);
}

#[test]
fn keys_bind_where_what_waits_is_not_sent_as_fast_as_the_destination_may() {
    let waits = Measured { oldest_at: Some(NOW - Duration::from_secs(30)), ..measured(100, 2, 4.0) };
    let figures = Figures::of(&destination(keyed), &waits, NOW);
    assert_eq!((figures.reason, figures.effective_per_s), (Some(Reason::Key), Some(4.0)));
    assert_eq!(figures.drain_eta.map(|eta| eta.as_secs()), Some(25), "at the recent rate");
    let nothing = Figures::of(&destination(keyed), &Measured { achieved_per_s: 0.0, ..waits.clone() }, NOW);
    assert_eq!((nothing.reason, nothing.drain_eta), (Some(Reason::Key), None));
    let arrives = Measured { older_arrivals_per_s: 9.0, newer_arrivals_per_s: 9.0, ..waits.clone() };
    let busy = Figures::of(&destination(keyed), &arrives, NOW);
    assert_eq!((busy.reason, busy.drains), (Some(Reason::Key), None), "it may be of keys that do not wait");
    assert_eq!(reason_of(keyed, &Measured { achieved_per_s: 9.5, ..waits.clone() }), Some("limit"));
    assert_eq!(reason_of(keyed, &measured(100, 8, 4.0)), Some("slow"));
    // It has not waited long enough to be sure.
    assert_eq!(reason_of(keyed, &measured(100, 2, 4.0)), Some("limit"));
    let edited = |destination: &mut Destination| {
        keyed(destination);
        destination.updated_at = NOW;
    };
    assert_eq!(reason_of(edited, &waits), Some("limit"));
    let only_turns = |destination: &mut Destination| {
        keyed(destination);
        let limits = Arc::make_mut(destination.settings.key_limits.as_mut().unwrap());
        (limits.rate_limits, limits.overrides) = (RateLimits::UNLIMITED, Default::default());
    };
    assert_eq!(reason_of(only_turns, &waits), Some("limit"));
}

#[test]
fn known_keys_that_wait_bound_the_rate_and_the_drain() {
    let of = |backlogs: &[(&str, u64)], is_partial| {
        let row = |&(key, waiting): &(&str, u64)| KeyBacklog { key: LimitKey::new(key), waiting, oldest_at: NOW };
        let backlogs = KeyBacklogs { keys: backlogs.iter().map(row).collect(), is_partial };
        let keys = KeysTogether::of(&destination(keyed), &backlogs);
        let waiting = backlogs.keys.iter().map(|backlog| backlog.waiting).sum();
        Figures::of(&destination(keyed), &Measured { keys, ..measured(waiting, 0, 0.0) }, NOW)
    };
    let seconds = |eta: Option<Duration>| eta.map(|eta| eta.as_secs_f64().round());
    let two = of(&[("a", 90), ("b", 10)], false);
    assert_eq!((two.reason, two.effective_per_s), (Some(Reason::Key), Some(4.0)));
    assert_eq!(seconds(two.drain_eta), Some(45.0), "as long as the longest of them");
    let six = of(&[("a", 9), ("b", 9), ("c", 9), ("d", 9), ("e", 9), ("f", 9)], false);
    assert_eq!((six.reason, seconds(six.drain_eta)), (Some(Reason::Limit), Some(5.0)));
    let stands = of(&[("still", 9)], false);
    assert_eq!((stands.reason, stands.effective_per_s, stands.drain_eta), (Some(Reason::Key), Some(0.0), None));
    assert_eq!(of(&[("a", 9)], true).reason, Some(Reason::Limit), "there may be others");
    // Where they are not read now, what was read last counts, also at once.
    for (all_bound, reason) in [(true, Reason::Key), (false, Reason::Limit)] {
        let seen = WatchedKeys { all_bound, per_s: None, drain_in: Some(Duration::from_secs(700)) };
        let known = Measured { watched_keys: Some(seen), ..measured(9, 0, 1.0) };
        let figures = Figures::of(&destination(keyed), &known, NOW);
        assert_eq!(figures.reason, Some(reason), "{all_bound}");
        assert_eq!(figures.drain_eta, Some(Duration::from_secs(700)), "the last of the keys drains then");
        let paused = WatchedKeys { drain_in: None, ..seen };
        let known = Measured { watched_keys: Some(paused), ..measured(9, 0, 1.0) };
        assert_eq!(Figures::of(&destination(keyed), &known, NOW).drain_eta, None, "a paused key waits");
    }
}
