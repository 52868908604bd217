//! The activity log: what is recorded, and how it is listed.

use weir_core::{
    ApiKeyId,
    access::{Actor, Role, TenantScope},
    activity::{Action, Activity, HOLDS_APART, Origin},
    alert::AlertPolicy,
};

use super::*;
use crate::{
    ActivityFilter, ActorFilter, ApiKey, BreakerChange, Created, Creation, DeliveryAction, DestinationDeletion,
    DestinationPatch, KeyedAnswer, NewReplay, Purge,
};

pub(super) fn origin(name: &str) -> Origin {
    Origin {
        actor: Actor::Key { id: key_id(name), name: name.to_owned() },
        request_id: Some(format!("request of {name}")),
    }
}

pub(super) fn key_id(name: &str) -> ApiKeyId {
    ApiKeyId::from_bytes([name.as_bytes()[0]; 16])
}

pub(super) fn a_key() -> ApiKey {
    ApiKey {
        id: key_id("a key"),
        name: "a key".to_owned(),
        role: Role::Read,
        tenants: TenantScope::All,
        digest: [1; 32],
        created_at: NOW,
        expires_at: None,
        created_by: Some(origin("an admin").actor),
        last_used_at: None,
    }
}

/// An activity for tests of something else.
pub fn activity() -> Activity {
    Activity::new(origin("somebody"), Action::AlertsChanged, NOW)
}

/// A creation for tests of something else.
pub fn creation() -> Creation {
    activity().into()
}

/// The deletion of any version of a destination, this long after [`NOW`].
pub fn deletion(number: u128, after: Duration) -> DestinationDeletion {
    DestinationDeletion { id: destination_id(number), expected_updated_at: None, now: NOW + after }
}

/// An activity of the key `name` about a destination, `second` seconds after [`NOW`].
fn about(destination: &Destination, name: &str, action: Action, second: u64) -> Activity {
    let values = [1, 2].map(|value| Some(serde_json::json!({"max_in_flight": value, "name": "naïve"})));
    let [before, after] = values;
    Activity::new(origin(name), action, NOW + seconds(second)).of_destination(destination).changing(before, after)
}

pub(super) fn in_tenant(number: u128, tenant: &str) -> Destination {
    let mut made = destination(number);
    made.settings.tenant = tenant.to_owned();
    made
}

impl Subject {
    pub(super) async fn activities(&self, filter: &ActivityFilter) -> Vec<Activity> {
        self.store.list_activity(filter, page(200)).await.expect("list").rows
    }

    /// The actions in the log, oldest first.
    pub(super) async fn actions(&self) -> Vec<&'static str> {
        let all = self.activities(&ActivityFilter::default()).await;
        all.iter().rev().map(|activity| activity.action.as_str()).collect()
    }
}

pub async fn changes_are_recorded_with_their_activities(mut subject: Subject) {
    let made = destination(1);
    let created = about(&made, "ann", Action::DestinationCreated, 1);
    let made = subject.store.create_destination(made, created.clone().into()).await.expect("create");
    let made = made.into_new().expect("a new destination");
    let edited = about(&made, "bob", Action::DestinationEdited, 2);
    let mut settings = made.settings.clone();
    settings.max_in_flight = 2;
    let patch = DestinationPatch {
        id: made.id,
        expected_updated_at: made.updated_at,
        settings,
        temporary: None,
        closes_breaker: false,
        lifts_hold: false,
        now: NOW + seconds(2),
        made_at: NOW + seconds(2),
    };
    let patched = subject.store.patch_destination(patch, edited.clone().into()).await.expect("patch");
    patched.into_new().flatten().expect("applied");
    // An activity with only the fields that every activity has.
    let shown = Activity::new(Origin::weir(), Action::SecretShown, NOW + seconds(3));
    subject.store.record_activity(shown.clone().into()).await.expect("record");
    let deleted = about(&made, "ann", Action::DestinationDeleted, 4).changing(None, None);
    subject.store.delete_destination(deletion(1, seconds(4)), deleted.clone()).await.expect("delete");
    let all = [deleted, shown, edited, created];
    assert_eq!(subject.activities(&ActivityFilter::default()).await, all);
    subject.reopen().await;
    assert_eq!(subject.activities(&ActivityFilter::default()).await, all);
}

pub async fn every_kind_of_change_is_an_activity(subject: Subject) {
    let of = |action, second| Activity::new(origin("ann"), action, NOW + seconds(second));
    subject.create_many(1).await;
    subject.post(1, 1..=2).await;
    let deliveries = subject.deliveries(DeliveryFilter::default()).await;
    let cancelled = subject.store.cancel_delivery(deliveries[0].id, NOW, of(Action::DeliveryCancelled, 1)).await;
    assert!(matches!(cancelled.expect("cancel"), DeliveryAction::Done { .. }));
    let retried = subject.store.retry_delivery(deliveries[0].id, NOW, of(Action::DeliveryRetried, 2)).await;
    assert!(matches!(retried.expect("retry"), DeliveryAction::Done { .. }));
    let pulled = subject.store.retry_delivery(deliveries[1].id, NOW, of(Action::DeliveryRetried, 3)).await;
    assert!(matches!(pulled.expect("retry"), DeliveryAction::Done { .. }));
    let replay = NewReplay { id: replay_id(1), filter: all_dead(), created_at: BEGUN };
    subject.store.create_replay(replay, 0, of(Action::ReplayCreated, 4).into()).await.expect("create");
    let replayed = subject.store.cancel_replay(replay_id(1), BEGUN, of(Action::ReplayCancelled, 5)).await;
    assert!(replayed.expect("cancel").is_some());
    let policy = AlertPolicy { backlog_depth: Some(7), ..AlertPolicy::default() };
    let set = subject.store.set_alert_policy(AlertPolicy::default(), policy, of(Action::AlertsChanged, 6)).await;
    assert!(set.expect("set"));
    let key = a_key();
    subject.store.create_api_key(key.clone(), of(Action::KeyCreated, 7).into()).await.expect("create");
    assert!(subject.store.delete_api_key(key.id, of(Action::KeyDeleted, 8)).await.expect("delete"));
    let mut named = destination(2);
    named.settings.name = "named".to_owned();
    let created = subject.store.create_named_destination(named, of(Action::DestinationCreated, 9)).await;
    assert!(created.expect("create").is_new());
    assert_eq!(
        subject.actions().await[1..],
        [
            "delivery.cancelled",
            "delivery.retried",
            "delivery.retried",
            "replay.created",
            "replay.cancelled",
            "alerts.changed",
            "key.created",
            "key.deleted",
            "destination.created",
        ]
    );
}

pub async fn a_change_that_is_refused_is_no_activity(subject: Subject) {
    let first = subject.create(destination(1)).await;
    subject.patch(&first, NOW + seconds(1), |settings| settings.name = "b".to_owned()).await.expect("applied");
    subject.post(1, [1]).await;
    let claimed = subject.claim(1, 1).await.remove(0).claim.delivery_id;
    let recorded = subject.actions().await;
    let refused = || Activity::new(origin("ann"), Action::KeyDeleted, NOW + seconds(9));
    // All of these are refused: an edit of an old version, a change of a delivery in flight, and changes of what does
    // not exist.
    let patch = DestinationPatch {
        id: first.id,
        expected_updated_at: first.updated_at,
        settings: first.settings.clone(),
        temporary: None,
        closes_breaker: false,
        lifts_hold: false,
        now: NOW + seconds(9),
        made_at: NOW + seconds(9),
    };
    assert_eq!(subject.store.patch_destination(patch, refused().into()).await.expect("patch"), Created::New(None));
    let stale = DestinationDeletion { expected_updated_at: Some(first.updated_at), ..deletion(1, seconds(9)) };
    assert_eq!(subject.store.delete_destination(stale, refused()).await.expect("delete"), Deletion::Changed);
    let refusal = DeliveryAction::Refused(DeliveryState::Delivering);
    assert_eq!(subject.store.retry_delivery(claimed, NOW, refused()).await.expect("retry"), refusal);
    assert_eq!(subject.store.cancel_delivery(claimed, NOW, refused()).await.expect("cancel"), refusal);
    assert!(!subject.store.delete_api_key(key_id("nobody"), refused()).await.expect("delete"));
    assert_eq!(subject.store.cancel_replay(replay_id(9), BEGUN, refused()).await.expect("cancel"), None);
    let mut taken = destination(2);
    taken.settings.name = "b".to_owned();
    assert!(!subject.store.create_named_destination(taken, refused()).await.expect("create").is_new());
    assert_eq!(subject.actions().await, recorded);
}

pub async fn what_weir_changes_by_itself_is_recorded(subject: Subject) {
    let first = subject.create(destination(1)).await;
    let change = |expected: &Breaker, changed: &Breaker, second| BreakerChange {
        id: first.id,
        expected: expected.clone(),
        changed: changed.clone(),
        now: NOW + seconds(second),
    };
    let [once, again] = [1, 2].map(|second| opened(&Breaker::default(), NOW + seconds(second)));
    // The breaker opens, stays open after a failed probe, and closes.
    for change in [change(&first.breaker, &once, 1), change(&once, &again, 2), change(&again, &Breaker::default(), 3)] {
        assert!(subject.change_breaker(change).await);
    }
    assert!(subject.pause_at(1, "gone", NOW + seconds(4)).await);
    assert!(!subject.pause_at(1, "gone", NOW + seconds(5)).await);
    // The second hold continues the first, the fourth is shorter than the third.
    let apart = HOLDS_APART.as_secs();
    for (now, until) in [(6, 10), (10 + apart - 1, 20 + apart), (20 + 2 * apart, 90 + 2 * apart), (300, 7)] {
        subject.hold(1, NOW + seconds(until), "busy", NOW + seconds(now)).await;
    }
    let all = subject.activities(&ActivityFilter::default()).await;
    let expected = [
        ("destination.held", 20 + 2 * apart),
        ("destination.held", 6),
        ("destination.paused", 4),
        ("destination.breaker_closed", 3),
        ("destination.breaker_opened", 1),
    ];
    let seen: Vec<_> =
        all.iter().map(|activity| (activity.action.as_str(), activity.at.since(NOW).as_secs())).collect();
    assert_eq!(seen[..expected.len()], expected);
    for activity in &all[..expected.len()] {
        assert_eq!((&activity.origin, activity.destination_id), (&Origin::weir(), Some(first.id)), "{activity:?}");
        assert_eq!(activity.tenant.as_ref(), Some(&first.settings.tenant), "{activity:?}");
        let subject = activity.subject.as_ref().expect("a subject");
        assert_eq!((subject.id.clone(), subject.name.as_ref()), (first.id.to_string(), Some(&first.settings.name)));
    }
    let value = |index: usize, field: &str| all[index].after.as_ref().expect("values")[field].clone();
    assert_eq!(value(1, "held_until"), (NOW + seconds(10)).to_string());
    assert_eq!((value(1, "held_reason"), value(2, "paused_reason")), ("busy".into(), "gone".into()));
    assert_eq!((value(3, "breaker_state"), value(4, "breaker_state")), ("closed".into(), "open".into()));
}

pub async fn a_purge_is_one_activity_that_counts(subject: Subject) {
    let first = subject.create(destination(1)).await;
    let now = NOW + seconds(60);
    let purge = Purge {
        destination_id: first.id,
        pending: true,
        retrying: true,
        event_type: None,
        limit_key: None,
        before: now,
        now,
    };
    let purged = |second| about(&first, "ann", Action::DestinationPurged, second);
    assert_eq!(subject.store.purge(&purge, purged(1)).await.expect("purge"), 0);
    assert_eq!(subject.actions().await.len(), 1, "nothing was cancelled");
    subject.post(1, 1..=2_500).await;
    assert_eq!(subject.store.purge(&purge, purged(2)).await.expect("purge"), 2_500);
    let all = subject.activities(&ActivityFilter::default()).await;
    assert_eq!((all.len(), &all[0]), (2, &purged(2).with_cancelled(2_500)));
}

pub async fn activities_are_filtered_by_destination_actor_tenant_and_time(subject: Subject) {
    let [acme, globex] = [in_tenant(1, "acme"), in_tenant(2, "globex")];
    let policy = Activity::new(origin("bob"), Action::AlertsChanged, NOW + seconds(4));
    let all = [
        about(&acme, "ann", Action::SecretShown, 1),
        about(&globex, "ann", Action::SecretShown, 2),
        about(&acme, "bob", Action::SecretShown, 3),
        policy,
        Activity::new(Origin::weir(), Action::SecretShown, NOW + seconds(5)).of_destination(&globex),
    ];
    for activity in &all {
        subject.store.record_activity(activity.clone().into()).await.expect("record");
    }
    let of = |tenants: &[&str]| Some(tenants.iter().map(|&tenant| tenant.to_owned()).collect());
    let named = |name: &str| Some(ActorFilter::Name(name.to_owned()));
    let none = ActivityFilter::default;
    for (filter, expected) in [
        (none(), &[5, 4, 3, 2, 1][..]),
        (ActivityFilter { destination_id: Some(acme.id), ..none() }, &[3, 1]),
        (ActivityFilter { actor: named("ann"), ..none() }, &[2, 1]),
        (ActivityFilter { actor: named("weir"), ..none() }, &[5]),
        (ActivityFilter { actor: Some(ActorFilter::Key(key_id("bob"))), ..none() }, &[4, 3]),
        (ActivityFilter { tenants: of(&["acme"]), ..none() }, &[3, 1]),
        (ActivityFilter { tenants: of(&["acme", "globex"]), ..none() }, &[5, 3, 2, 1]),
        (ActivityFilter { tenants: of(&[]), ..none() }, &[]),
        (ActivityFilter { from: Some(NOW + seconds(2)), to: Some(NOW + seconds(4)), ..none() }, &[3, 2]),
        (ActivityFilter { destination_id: Some(globex.id), actor: named("ann"), ..none() }, &[2]),
        (ActivityFilter { destination_id: Some(globex.id), tenants: of(&["acme"]), ..none() }, &[]),
        (ActivityFilter { actor: named("ann"), tenants: of(&["globex"]), to: Some(NOW + seconds(2)), ..none() }, &[]),
    ] {
        let found = subject.activities(&filter).await;
        let found: Vec<u64> = found.iter().map(|activity| activity.at.since(NOW).as_secs()).collect();
        assert_eq!(found, expected, "{filter:?}");
    }
}

pub async fn activities_are_listed_newest_first_page_by_page(subject: Subject) {
    for second in 1..=5 {
        let shown = Activity::new(origin("ann"), Action::SecretShown, NOW + seconds(second));
        subject.store.record_activity(shown.into()).await.expect("record");
    }
    let (mut request, mut seen) = (page(2), Vec::new());
    loop {
        let page = subject.store.list_activity(&ActivityFilter::default(), request).await.expect("list");
        seen.push(page.rows.iter().map(|activity| activity.at.since(NOW).as_secs()).collect::<Vec<_>>());
        request.before = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!(seen, [vec![5, 4], vec![3, 2], vec![1]]);
}

pub async fn an_edit_with_an_answer_is_made_once(subject: Subject) {
    let current = subject.create(destination(1)).await;
    let edit = |name: &str, expected_updated_at, at: u64| {
        let mut settings = current.settings.clone();
        settings.name = name.to_owned();
        crate::DestinationPatch {
            id: current.id,
            expected_updated_at,
            settings,
            temporary: None,
            closes_breaker: false,
            lifts_hold: false,
            now: NOW + seconds(at),
            made_at: NOW + seconds(at),
        }
    };
    let answer = |at: u64| KeyedAnswer {
        key: [7; 32],
        request: [8; 32],
        answer: format!("the answer at {at}"),
        at: NOW + seconds(at),
    };
    let once = |at: u64| Creation { activity: activity(), answer: Some(answer(at)) };
    // An edit of another version changes nothing and stores no answer.
    let stale = edit("stale", current.updated_at + seconds(1), 1);
    assert_eq!(subject.store.patch_destination(stale, once(1)).await.expect("patch"), Created::New(None));
    assert_eq!(subject.store.keyed_answer([7; 32], NOW).await.expect("read"), None);
    let first = subject.store.patch_destination(edit("first", current.updated_at, 2), once(2)).await.expect("patch");
    let first = first.into_new().flatten().expect("applied");
    let again = edit("second", first.updated_at, 3);
    let again = subject.store.patch_destination(again, once(3)).await.expect("patch");
    assert_eq!(again, Created::Before(answer(2)));
    assert_eq!(subject.store.destination(current.id).await.expect("read"), Some(first));
}
