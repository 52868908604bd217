//! What stops a destination, or lets it send otherwise for a while: pauses, breakers, holds and overrides.

use weir_core::{
    activity::Action,
    breaker::{AttemptWindow, EndedAttempt},
    egress::ProxyChoice,
    outcome::Effect,
    temporary::{Override, Temporary},
};

use super::*;
use crate::{ActivityFilter, DestinationPatch};

pub async fn resuming_clears_the_reason_of_the_pause(subject: Subject) {
    subject.create_many(1).await;
    subject.pause(1).await;
    let paused = subject.store.destination(destination_id(1)).await.expect("read").expect("a destination");
    assert!(paused.settings.paused);
    assert_eq!(paused.paused_reason.as_deref(), Some("gone"));
    let renamed = subject.patch(&paused, NOW + seconds(2), |settings| settings.name = "b".to_owned()).await;
    let renamed = renamed.expect("applied");
    assert_eq!(renamed.paused_reason.as_deref(), Some("gone"));
    let resumed = subject.patch(&renamed, NOW + seconds(3), |settings| settings.paused = false).await.expect("applied");
    assert_eq!((resumed.settings.paused, &resumed.paused_reason), (false, &None));
}

/// The state of a breaker after ten failures in a row.
pub(super) fn opened(breaker: &Breaker, at: Timestamp) -> Breaker {
    let (policy, mut window) = (BreakerPolicy::default(), AttemptWindow::default());
    let outcome = AttemptOutcome::Retryable;
    let failure = EndedAttempt { outcome, effect: Effect::None, refusal: None, began: at, now: at };
    (0..10).find_map(|_| window.observe(breaker, &policy, &failure)).expect("it opens")
}

pub async fn a_breaker_changes_only_from_its_expected_state(subject: Subject) {
    let first = subject.create(destination(1)).await;
    let open = opened(&first.breaker, NOW + seconds(1));
    let change = |expected: &Breaker, changed: &Breaker| BreakerChange {
        id: first.id,
        expected: expected.clone(),
        changed: changed.clone(),
        now: NOW + seconds(1),
    };
    assert!(subject.change_breaker(change(&first.breaker, &open)).await);
    assert!(!subject.change_breaker(change(&first.breaker, &open)).await, "the state has changed");
    let read = subject.store.destination(first.id).await.expect("read").expect("a destination");
    assert_eq!((&read.breaker, read.settings == first.settings), (&open, true));
    assert!(read.updated_at > first.updated_at, "caches must see the change");
    let again = change(&read.breaker, &opened(&Breaker::default(), NOW + seconds(9)));
    assert!(subject.change_breaker(again.clone()).await);
    subject.delete(1).await;
    assert!(!subject.change_breaker(again).await, "it is deleted");
}

/// Of each list some destinations change and others do not: one is deleted, one has changed meanwhile.
pub async fn many_destinations_are_held_paused_and_broken_at_once(subject: Subject) {
    let mut made = Vec::new();
    for number in 1..=40 {
        made.push(subject.create(destination(number)).await);
    }
    subject.delete(5).await;
    subject.pause(6).await;
    subject.hold(7, NOW + seconds(90), "longer", NOW).await;
    let all = || made.iter().map(|destination| destination.id);
    let holds =
        all().map(|id| Hold { id, until: NOW + seconds(60), reason: "busy".to_owned(), sent_at: NOW, now: NOW });
    subject.store.hold_destinations(holds.collect()).await.expect("hold");
    let open = opened(&Breaker::default(), NOW);
    let change = |id| BreakerChange { id, expected: Breaker::default(), changed: open.clone(), now: NOW + seconds(1) };
    subject.change_breaker(change(destination_id(8))).await;
    let changed = subject.store.change_breakers(all().map(change).collect()).await.expect("change");
    let pause = |id| Pause { id, reason: "all fail".to_owned(), now: NOW + seconds(2) };
    let paused = subject.store.pause_destinations(all().map(pause).collect()).await.expect("pause");
    for (index, destination) in made.iter().enumerate() {
        let number = index + 1;
        assert_eq!((changed[index], paused[index]), (![5, 8].contains(&number), ![5, 6].contains(&number)), "{number}");
        let read = subject.store.destination(destination.id).await.expect("read");
        assert_eq!(read.is_some(), number != 5);
        let Some(read) = read else { continue };
        let held_until = NOW + seconds(if number == 7 { 90 } else { 60 });
        let reason = if number == 6 { "gone" } else { "all fail" };
        assert_eq!((read.held_until, &read.breaker, read.settings.paused), (Some(held_until), &open, true), "{number}");
        assert_eq!(read.paused_reason.as_deref(), Some(reason));
        assert!(read.updated_at > destination.updated_at);
        let of_it = ActivityFilter { destination_id: Some(destination.id), ..ActivityFilter::default() };
        let actions: Vec<_> = subject.activities(&of_it).await.iter().map(|activity| activity.action).collect();
        for action in [Action::DestinationHeld, Action::BreakerOpened, Action::DestinationPaused] {
            assert_eq!(actions.iter().filter(|seen| **seen == action).count(), 1, "{action} of {number}");
        }
    }
    // Nothing to do is not an error.
    subject.store.hold_destinations(Vec::new()).await.expect("hold");
    assert!(subject.store.pause_destinations(Vec::new()).await.expect("pause").is_empty());
    assert!(subject.store.change_breakers(Vec::new()).await.expect("change").is_empty());
}

pub async fn an_edit_that_may_fix_a_destination_closes_its_breaker(subject: Subject) {
    type Edit = fn(&mut Settings);
    let edits: [(&str, bool, Edit); 6] = [
        ("name", false, |settings| settings.name = "b".to_owned()),
        ("url", true, |settings| settings.url = "https://example.com/other".parse().expect("a URL")),
        ("breaker", true, |settings| settings.breaker = None),
        ("egress", true, |settings| settings.egress.proxy = ProxyChoice::Direct),
        ("pause", false, |settings| settings.paused = true),
        ("resume", true, |settings| settings.paused = false),
    ];
    let mut current = subject.create(destination(1)).await;
    for (index, (field, closes, edit)) in edits.into_iter().enumerate() {
        let at = NOW + seconds(10 * (index as u64 + 1));
        let open = opened(&Breaker::default(), at);
        let (id, expected) = (current.id, current.breaker.clone());
        let change = BreakerChange { id, expected, changed: open.clone(), now: at };
        assert!(subject.change_breaker(change).await, "{field}");
        let read = subject.store.destination(id).await.expect("read").expect("a destination");
        current = subject.patch(&read, at + seconds(5), edit).await.expect("applied");
        assert_eq!(current.breaker, if closes { Breaker::default() } else { open }, "{field}");
    }
    // An edit of a running destination may say that the problem is over.
    let (id, expected, changed) = (current.id, current.breaker.clone(), opened(&Breaker::default(), NOW + seconds(90)));
    let change = BreakerChange { id, expected, changed, now: NOW + seconds(90) };
    assert!(subject.change_breaker(change).await);
    let current = subject.store.destination(id).await.expect("read").expect("a destination");
    let (expected_updated_at, settings, now) = (current.updated_at, current.settings.clone(), NOW + seconds(100));
    let patch = crate::DestinationPatch {
        id,
        expected_updated_at,
        settings,
        temporary: None,
        closes_breaker: true,
        lifts_hold: false,
        now,
        made_at: now,
    };
    let edited = subject.store.patch_destination(patch, creation()).await.expect("patch");
    let edited = edited.into_new().flatten().expect("applied");
    assert_eq!(edited.breaker, Breaker::default());
}

pub async fn a_destination_is_paused_once(subject: Subject) {
    subject.create_many(1).await;
    subject.pause(1).await;
    assert!(!subject.pause_at(1, "again", NOW + seconds(2)).await);
    let paused = subject.store.destination(destination_id(1)).await.expect("read").expect("a destination");
    assert_eq!((paused.paused_reason.as_deref(), paused.updated_at), (Some("gone"), NOW + seconds(1)));
    assert!(!subject.pause_at(2, "gone", NOW).await);
}

/// The queue ignores terms with an older version, and the clock of the process that pauses may be behind.
pub async fn a_pause_is_later_than_the_previous_edit(subject: Subject) {
    let made = subject.create(destination(1)).await;
    let edited =
        subject.patch(&made, NOW + seconds(5), |settings| settings.name = "b".to_owned()).await.expect("applied");
    assert!(subject.pause_at(1, "gone", NOW + seconds(1)).await);
    let paused = subject.store.destination(made.id).await.expect("read").expect("a destination");
    assert!(paused.updated_at > edited.updated_at, "{:?}", paused.updated_at);
}

pub async fn a_hold_is_only_ever_extended(subject: Subject) {
    let made = subject.create(destination(1)).await;
    for (until, reason, expected) in
        [(60, "busy", (60, "busy")), (30, "less", (60, "busy")), (90, "more", (90, "more"))]
    {
        subject.hold(1, NOW + seconds(until), reason, NOW).await;
        let held = subject.store.destination(made.id).await.expect("read").expect("a destination");
        assert_eq!(held.held_until, Some(NOW + seconds(expected.0)));
        assert_eq!(held.held_reason.as_deref(), Some(expected.1));
        assert_eq!(held.updated_at, made.updated_at);
    }
}

/// Another URL, a resume, and an edit that says so. The hold ends with the edit, and holds of earlier sends do not count,
/// whenever they are recorded.
pub async fn a_release_lifts_the_hold_and_ignores_those_of_earlier_sends(subject: Subject) {
    type Edit = fn(&mut Settings);
    let edits: [(&str, bool, bool, Edit); 6] = [
        ("name", false, false, |settings| settings.name = "b".to_owned()),
        ("breaker", false, false, |settings| settings.breaker = None),
        ("url", false, true, |settings| settings.url = "https://example.com/other".parse().expect("a URL")),
        ("pause", false, false, |settings| settings.paused = true),
        ("resume", false, true, |settings| settings.paused = false),
        ("release", true, true, |_| {}),
    ];
    let id = subject.create(destination(1)).await.id;
    let read = async || subject.store.destination(id).await.expect("read").expect("a destination");
    let hold = async |until, sent_at, now| {
        let hold = Hold { id, until, reason: "busy".to_owned(), sent_at, now };
        subject.store.hold_destinations(vec![hold]).await.expect("hold");
    };
    let mut released_at = None;
    for (index, (field, lifts_hold, lifts, edit)) in edits.into_iter().enumerate() {
        let at = NOW + seconds(100 * (index as u64 + 1));
        let until = at + seconds(1_000);
        hold(until, at, at).await;
        let current = read().await;
        assert_eq!(current.held_until, Some(until), "{field}");
        let mut settings = current.settings.clone();
        edit(&mut settings);
        // The previous edit was made by a clock that was ahead.
        let (now, made_at) = (at + seconds(60), at + seconds(5));
        let patch = DestinationPatch {
            id,
            expected_updated_at: current.updated_at,
            settings,
            temporary: None,
            closes_breaker: false,
            lifts_hold,
            now,
            made_at,
        };
        subject
            .store
            .patch_destination(patch, creation())
            .await
            .expect("patch")
            .into_new()
            .expect("new")
            .expect("applied");
        // A send from before the edit is answered after it.
        hold(until + seconds(1), at + seconds(4), at + seconds(6)).await;
        let edited = read().await;
        released_at = if lifts { Some(made_at) } else { released_at };
        let held = (!lifts).then(|| (until + seconds(1), "busy"));
        let shown = edited.held_until.zip(edited.held_reason.as_deref());
        assert_eq!((shown, edited.released_at), (held, released_at), "{field}");
    }
    hold(NOW + seconds(900), released_at.expect("released"), NOW + seconds(700)).await;
    assert_eq!(read().await.held_until, Some(NOW + seconds(900)), "a send from after the release");
}

pub(super) fn per_second_until(limit: u32, until: Timestamp) -> Temporary {
    let reason = "launch day".to_owned();
    let limits = Some(per_second(limit));
    Temporary { overridden: Some(Override { limits, max_in_flight: Some(9), until, reason }), hold: None }
}

async fn override_with(subject: &Subject, temporary: Temporary, at: u64) -> Arc<Destination> {
    let now = NOW + seconds(at);
    let current = subject.store.destination(destination_id(1)).await.expect("read").expect("a destination");
    let patch = DestinationPatch {
        id: current.id,
        expected_updated_at: current.updated_at,
        settings: current.settings.clone(),
        temporary: Some(temporary),
        closes_breaker: false,
        lifts_hold: false,
        now,
        made_at: now,
    };
    subject.store.patch_destination(patch, creation()).await.expect("patch").into_new().flatten().expect("applied")
}

/// The end has its row from the begin on, because nobody may be there to write it. An edit moves it.
pub async fn an_override_is_kept_beside_the_settings_and_its_end_is_recorded_ahead(subject: Subject) {
    let made = subject.create(destination(1)).await;
    let history = async || {
        let changes = subject.store.limit_changes(made.id).await.expect("read");
        changes.into_iter().map(|change| (change.at.since(NOW).as_secs(), change.limits)).collect::<Vec<_>>()
    };
    let raised = override_with(&subject, per_second_until(50, NOW + seconds(100)), 10).await;
    let read = subject.store.destination(made.id).await.expect("read").expect("a destination");
    assert_eq!((&read, &read.settings), (&raised, &made.settings));
    assert_eq!(history().await, [(0, per_second(10)), (10, per_second(50)), (100, per_second(10))]);
    // The settings below are edited while it runs.
    let edit = |settings: &mut Settings| settings.rate_limits = per_second(20);
    let edited = subject.patch(&raised, NOW + seconds(20), edit).await.expect("applied");
    assert_eq!(edited.temporary, raised.temporary);
    assert_eq!(history().await, [(0, per_second(10)), (10, per_second(50)), (100, per_second(20))]);
    // Another one replaces it, and is ended early.
    override_with(&subject, per_second_until(5, NOW + seconds(60)), 30).await;
    override_with(&subject, Temporary::default(), 40).await;
    let lowered = [(0, per_second(10)), (10, per_second(50)), (30, per_second(5)), (40, per_second(20))];
    assert_eq!(history().await, lowered);
    // One that is over by itself is dropped by the next edit.
    override_with(&subject, per_second_until(20, NOW + seconds(60)), 50).await;
    let over = subject.store.destination(made.id).await.expect("read").expect("a destination");
    let renamed = subject.patch(&over, NOW + seconds(70), |settings| settings.name = "b".to_owned()).await;
    assert!(renamed.expect("applied").temporary.is_none());
    assert_eq!(history().await, lowered, "the limits were the same");
}

pub async fn a_hold_by_people_ends_with_a_release_or_a_resume_and_not_with_that_of_the_receiver(subject: Subject) {
    let made = subject.create(destination(1)).await;
    let of_people =
        |until| Temporary { hold: Some(hold_until(NOW + seconds(until), "their maintenance")), ..Temporary::default() };
    let held = override_with(&subject, of_people(100), 10).await;
    assert_eq!((held.held().0, held.released_at), (Some(NOW + seconds(100)), None));
    subject.hold(1, NOW + seconds(60), "busy", NOW + seconds(20)).await;
    let both = subject.store.destination(made.id).await.expect("read").expect("a destination");
    assert_eq!(both.held(), (Some(NOW + seconds(100)), Some("their maintenance".to_owned())));
    let ended = override_with(&subject, Temporary::default(), 30).await;
    assert_eq!((ended.held().0, ended.released_at), (Some(NOW + seconds(60)), Some(NOW + seconds(30))));
    override_with(&subject, of_people(100), 40).await;
    subject.pause(1).await;
    let paused = subject.store.destination(made.id).await.expect("read").expect("a destination");
    assert!(paused.temporary.hold.is_some());
    let resume = |settings: &mut Settings| settings.paused = false;
    let resumed = subject.patch(&paused, NOW + seconds(50), resume).await.expect("applied");
    assert!(resumed.temporary.is_none() && resumed.held().0.is_none());
}

fn hold_until(until: Timestamp, reason: &str) -> weir_core::temporary::Hold {
    weir_core::temporary::Hold { until, reason: reason.to_owned() }
}
