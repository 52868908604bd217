//! The ingest of events.

use super::*;
use crate::IngestRefusal;

fn of_type(mut event: Event, event_type: &str) -> Event {
    event.event_type = event_type.to_owned();
    event
}

fn of_tenant(mut event: Event, tenant: &str) -> Event {
    event.tenant = tenant.to_owned();
    event
}

fn taking(number: u128, pattern: &str) -> Destination {
    let mut destination = destination(number);
    destination.settings.event_types = vec![pattern.parse().expect("a pattern")];
    destination
}

pub async fn an_event_goes_to_the_destinations_of_its_tenant_that_match(subject: Subject) {
    for (number, pattern) in [(1, "*"), (2, "video.*"), (3, "video.created"), (4, "order.paid")] {
        subject.create(taking(number, pattern)).await;
    }
    let mut foreign = taking(5, "*");
    foreign.settings.tenant = "other".to_owned();
    subject.create(foreign).await;
    let created = event(1);
    let deleted = of_type(event(2), "video.deleted");
    let elsewhere = of_tenant(event(3), "other");
    let answers = subject.ingest(vec![matched(created.clone()), matched(deleted), matched(elsewhere)]).await;
    let wakes = answers.iter().map(|answer| {
        let mut wake = answer.wake.clone();
        wake.sort_unstable();
        wake
    });
    let expected: [&[u128]; 3] = [&[1, 2, 3], &[1, 2], &[5]];
    assert!(wakes.eq(expected.map(|numbers| numbers.iter().copied().map(destination_id).collect::<Vec<_>>())));
    assert_eq!(answers.iter().map(|answer| answer.deliveries).collect::<Vec<_>>(), [3, 2, 1]);
    assert_eq!(answers[0].event, created);
    assert!(answers.iter().all(|answer| !answer.duplicate));
}

pub async fn an_event_without_destinations_is_stored(subject: Subject) {
    let answers = subject.ingest(vec![matched(event(1)), named(event(2), &[])]).await;
    assert!(answers.iter().all(|answer| answer.deliveries == 0 && answer.wake.is_empty()));
    for number in [1, 2] {
        assert_eq!(subject.store.event(event(number).id).await.expect("read"), Some(event(number)));
    }
}

pub async fn an_edited_pattern_applies_to_the_next_event(subject: Subject) {
    let first = subject.create(taking(1, "order.paid")).await;
    assert_eq!(subject.ingest(vec![matched(event(1))]).await[0].deliveries, 0);
    let widen = |settings: &mut Settings| settings.event_types = vec!["video.*".parse().expect("a pattern")];
    subject.patch(&first, NOW + seconds(1), widen).await.expect("applied");
    assert_eq!(subject.ingest(vec![matched(event(2))]).await[0].deliveries, 1);
    subject.create(taking(2, "*")).await;
    assert_eq!(subject.ingest(vec![matched(event(3))]).await[0].deliveries, 2);
    subject.delete(1).await;
    let last = subject.ingest(vec![matched(event(4))]).await.remove(0);
    assert_eq!((last.deliveries, last.wake), (1, vec![destination_id(2)]));
}

pub async fn a_destination_named_twice_gets_one_delivery(subject: Subject) {
    subject.create_many(3).await;
    let answer = subject.ingest(vec![named(event(1), &[2, 1, 2])]).await.remove(0);
    assert_eq!((answer.deliveries, answer.wake.len()), (2, 2));
    assert_eq!(subject.store.event_deliveries(event(1).id).await.expect("read").len(), 2);
}

pub async fn an_unknown_destination_refuses_only_its_own_event(subject: Subject) {
    subject.create_many(1).await;
    let events = vec![named(event(1), &[1]), named(event(2), &[1, 7]), named(event(3), &[1])];
    let answers = subject.store.ingest(events).await.expect("ingest");
    assert!(answers[0].is_ok() && answers[2].is_ok());
    assert!(matches!(answers[1], Err(IngestRefusal::UnknownDestination { index: 1 })));
    assert_eq!(subject.store.event(event(2).id).await.expect("read"), None);
    assert_eq!(subject.claim(1, 9).await.len(), 2);
}

pub async fn foreign_and_deleted_destinations_are_unknown(subject: Subject) {
    subject.create_many(2).await;
    subject.delete(2).await;
    let events = vec![named(of_tenant(event(1), "other"), &[1]), named(event(2), &[2])];
    let answers = subject.store.ingest(events).await.expect("ingest");
    for answer in answers {
        assert!(matches!(answer, Err(IngestRefusal::UnknownDestination { index: 0 })));
    }
}

pub async fn a_repeated_idempotency_key_returns_the_first_event(mut subject: Subject) {
    subject.create_many(2).await;
    let first = with_key(event(1), "order-1");
    subject.ingest(vec![matched(first.clone())]).await;
    for number in [2, 3] {
        let again = subject.ingest(vec![matched(with_key(event(number), "order-1"))]).await.remove(0);
        assert!(again.duplicate && again.wake.is_empty());
        assert_eq!((again.event, again.deliveries), (first.clone(), 2));
        assert_eq!(subject.store.event(event(number).id).await.expect("read"), None);
        subject.reopen().await;
    }
    assert_eq!(subject.claim(1, 9).await.len(), 1);
}

pub async fn an_idempotency_key_belongs_to_its_tenant(subject: Subject) {
    let events = vec![matched(with_key(event(1), "a")), matched(of_tenant(with_key(event(2), "a"), "other"))];
    assert!(subject.ingest(events).await.iter().all(|answer| !answer.duplicate));
    let again = subject.ingest(vec![matched(of_tenant(with_key(event(3), "a"), "other"))]).await.remove(0);
    assert_eq!((again.duplicate, again.event.id), (true, event(2).id));
}

pub async fn a_key_used_twice_in_one_call_is_one_event(subject: Subject) {
    subject.create_many(1).await;
    let events = [(1, "a"), (2, "b"), (3, "a"), (4, "a")];
    let events = events.map(|(number, key)| matched(with_key(event(number), key))).to_vec();
    let answers = subject.ingest(events).await;
    assert_eq!(answers.iter().map(|answer| answer.duplicate).collect::<Vec<_>>(), [false, false, true, true]);
    let ids: Vec<_> = answers.iter().map(|answer| answer.event.id).collect();
    assert_eq!(ids, [1, 2, 1, 1].map(|number| event(number).id));
    assert!(answers.iter().all(|answer| answer.deliveries == 1));
    assert_eq!(subject.claim(1, 9).await.len(), 2);
}

pub async fn fifty_concurrent_posts_with_one_key_are_one_event(subject: Subject) {
    subject.create_many(1).await;
    let posts = (1..=50).map(|number| {
        let store = Arc::clone(&subject.store);
        tokio::spawn(async move { store.ingest(vec![matched(with_key(event(number), "once"))]).await })
    });
    let mut answers = Vec::new();
    for post in posts.collect::<Vec<_>>() {
        let answer = post.await.expect("joined").expect("ingest").remove(0);
        answers.push(answer.expect("accepted"));
    }
    assert_eq!(answers.iter().filter(|answer| !answer.duplicate).count(), 1);
    assert!(answers.iter().all(|answer| answer.event == answers[0].event && answer.deliveries == 1));
    assert_eq!(subject.claim(1, 99).await.len(), 1);
}

pub async fn a_refused_event_does_not_keep_its_key(subject: Subject) {
    subject.create_many(1).await;
    let events = vec![named(with_key(event(1), "a"), &[9]), named(with_key(event(2), "a"), &[1])];
    let answers = subject.store.ingest(events).await.expect("ingest");
    assert!(answers[0].is_err());
    assert!(answers[1].as_ref().is_ok_and(|answer| !answer.duplicate));
}

pub async fn a_known_key_returns_its_event_even_if_the_destination_is_deleted(subject: Subject) {
    subject.create_many(1).await;
    subject.ingest(vec![named(with_key(event(1), "a"), &[1])]).await;
    subject.delete(1).await;
    let again = subject.ingest(vec![named(with_key(event(2), "a"), &[1])]).await.remove(0);
    assert_eq!((again.duplicate, again.event.id), (true, event(1).id));
}

pub async fn a_paused_destination_gets_deliveries_and_no_wake(subject: Subject) {
    subject.create_many(2).await;
    subject.pause(1).await;
    let answer = subject.ingest(vec![matched(event(1))]).await.remove(0);
    assert_eq!(answer.deliveries, 2);
    assert!(answer.wake.contains(&destination_id(2)));
    let counts = subject.store.destination_counts(destination_id(1)).await.expect("count");
    assert_eq!(counts.pending, 1);
}

pub async fn bodies_are_kept_byte_for_byte(mut subject: Subject) {
    subject.create_many(1).await;
    let data = ["null".to_owned(), "\"\\u0000 é 🦀 ' \\\\\"".to_owned(), format!("\"{}\"", "x".repeat(300_000))];
    let mut events = Vec::new();
    for (number, data) in (1..).zip(&data) {
        let mut event = event(number);
        event.body = EventBody::freeze(event.id, &event.event_type, event.created_at, data);
        events.push(event);
    }
    subject.ingest(events.iter().cloned().map(matched).collect()).await;
    let first = subject.claim(1, 1).await;
    subject.reopen().await;
    let rest = subject.claim(1, 9).await;
    let bodies: Vec<_> = first.iter().chain(&rest).map(|claimed| claimed.body.clone()).collect();
    assert_eq!(bodies, events.iter().map(|event| ClaimedBody::Inline(event.body.clone())).collect::<Vec<_>>());
    let kept =
        |body: &ClaimedBody, data: &str| matches!(body, ClaimedBody::Inline(body) if body.data() == data.as_bytes());
    assert!(bodies.iter().zip(&data).all(|(body, data)| kept(body, data)));
}

pub async fn many_events_in_one_call_are_all_stored(subject: Subject) {
    subject.create_many(1).await;
    let answers = subject.ingest((1..=1_337).map(|number| matched(event(number))).collect()).await;
    assert!(answers.iter().zip(1..).all(|(answer, number)| answer.event.id == event(number).id));
    let counts = subject.store.destination_counts(destination_id(1)).await.expect("count");
    assert_eq!(counts.pending, 1_337);
}

pub async fn one_event_for_many_destinations_is_delivered_to_each(subject: Subject) {
    subject.create_many(700).await;
    let answer = subject.ingest(vec![matched(event(1))]).await.remove(0);
    assert_eq!((answer.deliveries, answer.wake.len()), (700, 700));
    let requests = (1..=700).map(|number| request(number, 5)).collect();
    let claims = subject.claims(requests, NOW + seconds(10)).await;
    assert!(claims.iter().all(|claims| claims.deliveries.len() == 1));
}

pub async fn concurrent_calls_get_their_own_events(subject: Subject) {
    subject.create_many(1).await;
    let calls = (0..64).map(|call| {
        let store = Arc::clone(&subject.store);
        tokio::spawn(async move {
            let numbers = [1, 2, 3].map(|number| call * 10 + number);
            let events = numbers.map(|number| matched(event(number))).to_vec();
            let answers = store.ingest(events).await.expect("ingest");
            let ids = answers.into_iter().map(|answer| answer.expect("accepted").event.id);
            assert!(ids.eq(numbers.map(|number| event(number).id)));
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("answered with its own");
    }
    assert_eq!(subject.store.destination_counts(destination_id(1)).await.expect("count").pending, 192);
}

pub async fn an_event_that_cannot_be_stored_does_not_fail_its_neighbours(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, [1]).await;
    // The id of the first event already exists. Callers never do this, so the call fails.
    let calls = (1..=20).map(|number| {
        let store = Arc::clone(&subject.store);
        tokio::spawn(async move { store.ingest(vec![matched(event(number))]).await.is_ok() })
    });
    let mut stored = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        stored.push(call.await.expect("joined"));
    }
    assert!(!stored[0]);
    assert!(stored[1..].iter().all(|stored| *stored));
    assert_eq!(subject.claim(1, 99).await.len(), 20);
}

pub async fn accepted_events_survive_a_restart(mut subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=100).await;
    subject.reopen().await;
    let claimed = subject.claim(1, 200).await;
    assert!(claimed.iter().map(number_of).eq(1..=100));
}
