//! Creations with an idempotency key: the first answer is kept, and a repetition creates nothing.

use weir_core::{
    LimitGroup,
    activity::{Action, Activity},
    retention::ANSWERS_KEPT,
};

use super::{limit_groups::group, *};
use crate::{Created, Creation, GroupChange, KeyedAnswer, NewReplay};

/// The answer of a request with a key, `second` seconds after [`NOW`].
fn answer(key: u8, request: u8, second: u64) -> KeyedAnswer {
    let answer = format!(r#"{{"request": {request}}}"#);
    KeyedAnswer { key: [key; 32], request: [request; 32], answer, at: NOW + seconds(second) }
}

fn answered(action: Action, answer: &KeyedAnswer) -> Creation {
    Creation { activity: Activity::new(origin("ann"), action, answer.at), answer: Some(answer.clone()) }
}

pub async fn a_repeated_creation_returns_the_first_answer_and_creates_nothing(subject: Subject) {
    let (first, again) = (answer(1, 1, 1), answer(1, 2, 2));
    let create = async |number, answer| {
        let creation = answered(Action::DestinationCreated, answer);
        subject.store.create_destination(destination(number), creation).await.expect("create")
    };
    assert!(create(1, &first).await.into_new().is_some());
    assert_eq!(create(2, &again).await, Created::Before(first.clone()));
    assert!(subject.store.destination(destination_id(2)).await.expect("read").is_none());

    let replay = || NewReplay { id: replay_id(1), filter: all_dead(), created_at: BEGUN };
    let creation = || answered(Action::ReplayCreated, &again);
    let repeated = subject.store.create_replay(replay(), 0, creation()).await.expect("create");
    assert_eq!(repeated, Created::Before(first.clone()));
    assert!(subject.store.replay(replay_id(1)).await.expect("read").is_none());
    let repeated = subject.store.create_api_key(a_key(), answered(Action::KeyCreated, &again)).await.expect("create");
    assert_eq!(repeated, Created::Before(first.clone()));
    assert_eq!(subject.store.api_keys().await.expect("read"), []);
    // The answer counts even where the name is taken by now: by the group of the first request.
    let group_of = async |number, answer| {
        let creation = answered(Action::LimitGroupCreated, answer);
        let group = LimitGroup { name: "one".to_owned(), ..group(number) };
        subject.store.set_limit_group(None, group, creation).await.expect("create")
    };
    assert_eq!(group_of(1, &again).await, GroupChange::Before(first.clone()));
    assert_eq!(subject.store.limit_group_named(None, "one").await.expect("read"), None);
    let repeated = subject.store.record_activity(answered(Action::DestinationTested, &again)).await.expect("record");
    assert_eq!(repeated, Created::Before(first));

    assert_eq!(subject.actions().await, ["destination.created"]);
    let other = answer(2, 1, 3);
    assert!(subject.store.create_replay(replay(), 0, answered(Action::ReplayCreated, &other)).await.is_ok());
    assert!(subject.store.replay(replay_id(1)).await.expect("read").is_some());
    let third = answer(3, 1, 4);
    assert!(matches!(group_of(1, &third).await, GroupChange::Made(_)));
    assert_eq!(group_of(2, &third).await, GroupChange::Before(third.clone()));
    assert_eq!(group_of(2, &answer(4, 1, 5)).await, GroupChange::Taken);
    assert_eq!(subject.store.keyed_answer([4; 32], NOW).await.expect("read"), None, "a refused request stores nothing");
}

pub async fn twenty_concurrent_creations_with_one_key_create_once(subject: Subject) {
    let calls = (1..=20u8).map(|number| {
        let store = Arc::clone(&subject.store);
        tokio::spawn(async move {
            let creation = answered(Action::DestinationCreated, &answer(1, number, 1));
            store.create_destination(destination(number.into()), creation).await.expect("create").into_new().is_some()
        })
    });
    let calls: Vec<_> = calls.collect();
    let mut created = 0;
    for call in calls {
        created += u32::from(call.await.expect("a call"));
    }
    assert_eq!(created, 1);
    assert_eq!(
        subject
            .store
            .list_destinations(&DestinationFilter::of(TenantScope::All), page(200))
            .await
            .expect("list")
            .rows
            .len(),
        1
    );
    assert_eq!(subject.actions().await, ["destination.created"]);
}

pub async fn an_answer_is_kept_for_a_day(subject: Subject) {
    let first = answer(1, 1, 0);
    let day = ANSWERS_KEPT.as_secs();
    let (before, at) = (answer(1, 2, day - 1), answer(1, 3, day));
    let record = async |answer| subject.store.record_activity(answered(Action::DestinationTested, answer)).await;
    assert_eq!(record(&first).await.expect("record"), Created::New(()));
    assert_eq!(record(&before).await.expect("record"), Created::Before(first.clone()));
    let read = async |kept_from| subject.store.keyed_answer([1; 32], kept_from).await.expect("read");
    assert_eq!((read(NOW).await, read(NOW + seconds(1)).await), (Some(first.clone()), None));
    assert_eq!(record(&at).await.expect("record"), Created::New(()));
    assert_eq!(read(NOW + seconds(1)).await, Some(at));
    assert_eq!(subject.store.keyed_answer([2; 32], NOW).await.expect("read"), None);
}

pub async fn old_activities_and_answers_are_pruned(subject: Subject) {
    for second in 1..=4 {
        let creation = answered(Action::DestinationTested, &answer(second as u8, 1, second));
        subject.store.record_activity(creation).await.expect("record");
    }
    let prune = async || subject.store.prune_activity(NOW + seconds(3), NOW + seconds(4)).await.expect("prune");
    assert_eq!((prune().await, prune().await), (2 + 3, 0));
    assert_eq!(subject.actions().await.len(), 2);
    for (key, kept) in [(3, false), (4, true)] {
        assert_eq!(subject.store.keyed_answer([key; 32], NOW).await.expect("read").is_some(), kept, "{key}");
    }
}
