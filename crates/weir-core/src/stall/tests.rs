use super::*;
use crate::{
    Period, RateLimit, RateLimits,
    breaker::{AttemptWindow, Breaker, BreakerPolicy, EndedAttempt},
    delivery::AttemptOutcome,
    destination::Settings,
    outcome::Effect,
    signing::{Secret, Signing},
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

fn ago(secs: u64) -> Timestamp {
    NOW - Duration::from_secs(secs)
}

/// A destination with a limit of ten a minute, at most two sends in flight, and a timeout of 15 s.
fn destination() -> Destination {
    let limits = RateLimits::new(RateLimit::new(10, Period::MINUTE).into_iter().collect()).unwrap();
    let signing = Signing::new(Secret::from_bytes(vec![7; 32]).unwrap());
    let settings = Settings {
        rate_limits: limits,
        max_in_flight: 2,
        timeout_ms: 15_000,
        ..Settings::new("https://example.com/".parse().unwrap(), signing)
    };
    Destination::new(DestinationId::new(NOW, 1), settings, ago(1_000))
}

/// Due for 100 s; the last slot began 60 s ago, and the next could have begun 40 s ago.
fn sight(destination: &Destination) -> Sight<'_> {
    let progress = Progress { last_start: Some(ago(60)), next_start: Some(ago(40)), ..Progress::default() };
    Sight { destination, due_since: Some(ago(100)), last_sent_at: Some(ago(60)), progress: Some(progress) }
}

/// A breaker that opened at this instant, for 30 s.
fn opened(at: Timestamp) -> Breaker {
    let (policy, mut window) = (BreakerPolicy::default(), AttemptWindow::default());
    let outcome = AttemptOutcome::Retryable;
    let failure = EndedAttempt { outcome, effect: Effect::None, refusal: None, began: at, now: at };
    (0..10).find_map(|_| window.observe(&Breaker::default(), &policy, &failure)).expect("it opens")
}

#[test]
fn a_start_is_allowed_from_the_latest_of_all_that_kept_it() {
    let plain = destination();
    let seen = sight(&plain);
    let of = |progress: fn(&mut Progress)| {
        let mut changed = seen;
        progress(changed.progress.as_mut().unwrap());
        changed.allowed_since(NOW)
    };
    assert_eq!(seen.allowed_since(NOW), Some(ago(40)), "the limit");
    assert_eq!(Sight { due_since: Some(ago(7)), ..seen }.allowed_since(NOW), Some(ago(7)), "the delivery");
    assert_eq!(of(|progress| progress.next_start = Some(NOW + Duration::from_secs(1))), None, "not yet");
    assert_eq!(of(|progress| progress.in_flight = 1), Some(ago(40)));
    assert_eq!(of(|progress| progress.in_flight = 2), None, "there is no room");
    assert_eq!(of(|progress| (progress.in_flight, progress.lowered_maximum) = (1, Some(1))), None, "after a hold");
    // Without its cursors: one spacing of 6.01 s after the last send that is recorded.
    let spacing = plain.settings.rate_limits.as_slice()[0].spacing();
    assert_eq!(of(|progress| progress.next_start = None), Some(ago(60) + spacing));
    assert_eq!(Sight { progress: None, ..seen }.allowed_since(NOW), Some(ago(60) + spacing), "the queue is away");
    let never_sent = Sight { progress: None, last_sent_at: None, ..seen };
    assert_eq!(never_sent.allowed_since(NOW), Some(ago(100)));
}

/// What is left of the window may be less than the next delivery costs.
#[test]
fn a_start_within_a_limit_in_costs_is_allowed_for_sure_when_its_window_is_empty() {
    let mut points = destination();
    let limit = RateLimit::new(600, Period::MINUTE).and_then(|limit| limit.in_costs());
    points.settings.rate_limits = RateLimits::new(limit.into_iter().collect()).unwrap();
    let span = points.settings.rate_limits.as_slice()[0].span();
    let last_start = NOW - span;
    let sight = Sight { last_sent_at: Some(last_start), ..sight(&points) };
    let at = |after: Duration| {
        let progress = Progress { last_start: Some(last_start), ..sight.progress.unwrap() };
        Sight { progress: Some(progress), ..sight }.allowed_since(last_start + after)
    };
    assert_eq!(at(span - Duration::from_millis(1)), None);
    assert_eq!(at(span + Duration::from_secs(5)), Some(NOW), "no send is in the window any more");
}

#[test]
fn nothing_is_late_where_nothing_is_owed() {
    let plain = destination();
    let idle = Sight { due_since: None, ..sight(&plain) };
    assert_eq!(idle.allowed_since(NOW), None);
    // All of it is claimed, and no worker uses the permits.
    let mut claimed = idle;
    claimed.progress.as_mut().unwrap().queued = 1;
    assert_eq!(claimed.allowed_since(NOW), Some(ago(40)));
}

#[test]
fn a_pause_a_hold_and_a_breaker_allow_no_start() {
    let of = |edit: &dyn Fn(&mut Destination)| {
        let mut edited = destination();
        edit(&mut edited);
        sight(&edited).allowed_since(NOW)
    };
    assert_eq!(of(&|destination| destination.settings.paused = true), None);
    assert_eq!(of(&|destination| destination.held_until = Some(NOW + Duration::from_secs(1))), None);
    assert_eq!(of(&|destination| destination.held_until = Some(ago(5))), Some(ago(5)), "since the hold has ended");
    assert_eq!(of(&|destination| destination.released_at = Some(ago(4))), Some(ago(4)));
    assert_eq!(of(&|destination| destination.breaker = opened(ago(20))), None);
    // Half open for five seconds: a probe that does not start is late, too.
    assert_eq!(of(&|destination| destination.breaker = opened(ago(35))), Some(ago(5)));
    let probing = |destination: &mut Destination| destination.breaker = opened(ago(35));
    let mut edited = destination();
    probing(&mut edited);
    let mut probed = sight(&edited);
    probed.progress.as_mut().unwrap().in_flight = 1;
    assert_eq!(probed.allowed_since(NOW), None, "one probe at a time");
}

/// Looks every two seconds, from `NOW` on, at what the queue says then, and returns after how many seconds a stall is seen.
fn stalls_after(progress_at: impl Fn(Timestamp) -> Progress, is_connecting: bool) -> Option<u64> {
    let destination = destination();
    let (mut track, mut before) = (None, NOW);
    (2..200).step_by(2).find(|secs| {
        let now = NOW + Duration::from_secs(*secs);
        let sight = Sight { progress: Some(progress_at(now)), ..sight(&destination) };
        track = Track::next(track, &sight, before, now);
        before = now;
        let late_since = track.and_then(|track| track.late_since(&sight, is_connecting, now));
        late_since.is_some_and(|since| now.since(since) >= STALLED_AFTER)
    })
}

/// The last slot began 60 s before `NOW`, and the next could have begun 40 s before it.
const STUCK: Progress = Progress {
    queued: 0,
    in_flight: 0,
    lowered_maximum: None,
    last_start: Some(Timestamp::from_secs(999_940)),
    next_start: Some(Timestamp::from_secs(999_960)),
};

#[test]
fn a_stall_is_seen_within_the_threshold_and_one_pass() {
    assert_eq!(stalls_after(|_| STUCK, false), Some(10), "counted from the beginning of the watch");
    let queued = Progress { queued: 1, ..STUCK };
    assert_eq!(stalls_after(|_| queued, true), Some(20), "the workers may connect for 10 s");
    // Until second 20 it has no room.
    let full =
        |now: Timestamp| Progress { in_flight: if now < NOW + Duration::from_secs(20) { 2 } else { 0 }, ..STUCK };
    assert_eq!(stalls_after(full, false), Some(28), "counted from the last look at which it had none");
}

#[test]
fn slots_that_are_granted_and_never_recorded_are_a_stall() {
    let granted = |now| Progress { in_flight: 2, last_start: Some(now), next_start: Some(now), ..STUCK };
    // The first look sees a grant. An attempt ends within 15 s, and is recorded within 15 s more.
    assert_eq!(stalls_after(granted, false), Some(42));
    // Nothing is granted: the limit is one a day.
    let waits = Progress { next_start: Some(NOW + Duration::from_secs(86_400)), ..STUCK };
    assert_eq!(stalls_after(|_| waits, false), None);
}

#[test]
fn the_use_of_a_limit_is_known_where_enough_sends_are_allowed() {
    let mut fast = destination();
    fast.settings.rate_limits = RateLimits::new(RateLimit::new(10, Period::SECOND).into_iter().collect()).unwrap();
    let used = |of: &Destination, sends| used(of, sends, Duration::from_secs(20));
    assert_eq!([0, 160, 200].map(|sends| used(&fast, sends)), [Some(0.0), Some(FULL_USE), Some(1.0)]);
    assert_eq!(used(&destination(), 0), None, "three sends in 20 s say little");
    fast.settings.rate_limits = RateLimits::UNLIMITED;
    assert_eq!(used(&fast, 0), None);
}

#[test]
fn a_report_says_nothing_of_what_processes_may_see_differently_or_no_longer() {
    let id = DestinationId::new(NOW, 7);
    let report = |secs, is_complete| {
        let late = [(id, Late { since: ago(secs), fault: Fault::NotPublished })].into();
        StallReport { at: NOW, is_complete, late, ..StallReport::default() }
    };
    let stall = |secs| report(secs, true).stall_of(id, NOW).map(|late| late.map(|late| late.fault));
    assert_eq!((stall(9), stall(10)), (None, Some(Some(Fault::NotPublished))));
    assert!(report(20, false).stall_of(id, NOW).is_some(), "what the watch sees is true from its beginning");
    assert_eq!(report(20, false).stall_of(DestinationId::new(NOW, 8), NOW), None, "it may not have seen this one yet");
    assert_eq!(report(20, true).stall_of(id, NOW + Duration::from_secs(31)), None, "the watch has ended");
    assert_eq!(report(20, true).stall_of(DestinationId::new(NOW, 8), NOW), Some(None));
    assert_eq!(report(9, true).fault_of(id, NOW), Some(Fault::NotPublished), "people see it before the alert");
    assert_eq!(report(9, true).stalled().count(), 0);
    assert!(Fault::all().all(|fault| Fault::named(fault.as_str()) == Some(fault)));
}

#[test]
fn a_database_that_takes_no_writes_is_an_outage_also_while_nothing_waits() {
    let unwritable = Some((ago(4), "its disk is full"));
    let report = StallReport { at: NOW, unwritable, fault: Some(Fault::StoreUnwritable), ..StallReport::default() };
    let outage = report.outage(NOW).flatten().unwrap();
    assert_eq!((outage.fault, outage.since), (Fault::StoreUnwritable, ago(4)));
    assert_eq!(outage.reason(), "the database takes no writes, because its disk is full: no event is accepted");
    assert_eq!(report.outage(NOW + Duration::from_secs(31)), None, "the watch has ended");
}
