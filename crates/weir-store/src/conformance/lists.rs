//! Counts and groups of deliveries, and the filters of events and destinations.

use weir_core::{Condition, ErrorKind, outcome::Failure};

use super::*;
use crate::{EXAMINED_AT_MOST, ErrorFilter, EventFilter, ListCount, Page, ReplayFilter, SCANNED_AT_MOST};

fn both() -> TenantScope {
    TenantScope::Only([TENANT, "other"].map(str::to_owned).into())
}

pub async fn a_count_examines_a_bounded_number_of_deliveries(subject: Subject) {
    subject.create_many(2).await;
    let most = u64::from(EXAMINED_AT_MOST);
    for first in (0..most).step_by(1_000) {
        subject.post(1, first..first + 1_000).await;
    }
    let count = async |filter: DeliveryFilter| subject.store.count_deliveries(&filter).await.expect("count");
    let all = DeliveryFilter::default;
    let exact = |value| ListCount { value, capped: false };
    assert_eq!(count(all()).await, exact(most));
    subject.post(2, [most]).await;
    assert_eq!(count(all()).await, ListCount { value: most, capped: true });
    assert_eq!(count(DeliveryFilter { destination_id: Some(destination_id(2)), ..all() }).await, exact(1));
    let pending = DeliveryFilter { states: vec![DeliveryState::Pending], ..all() };
    assert_eq!(count(pending).await, ListCount { value: most, capped: true });
    // Nothing matches, but not everything was examined.
    let foreign = DeliveryFilter { tenants: TenantScope::one("other"), ..all() };
    assert_eq!(count(foreign).await, ListCount { value: 0, capped: true });
}

pub async fn failures_are_grouped(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=4).await;
    subject.post(2, 5..=6).await;
    let end = async |number, ends: &[(Verdict, Option<Failure>, Option<u16>)]| {
        let claimed = subject.claim(number, 9).await;
        for (claimed, &(verdict, failure, status_code)) in claimed.iter().zip(ends) {
            let mut result = result(claimed, verdict);
            result.attempt.failure = failure;
            result.attempt.status_code = status_code;
            result.attempt.error = Some(format!("error of {}", claimed.event_id));
            subject.settle(result).await;
        }
    };
    let unavailable = (Verdict::Dead, None, Some(503));
    end(
        1,
        &[unavailable, (Verdict::Dead, Some(Failure::Timeout), None), unavailable, (Verdict::Failed, None, Some(404))],
    )
    .await;
    end(2, &[unavailable, (Verdict::Delivered, None, Some(200))]).await;
    subject.delete(2).await;
    let states = vec![DeliveryState::Dead, DeliveryState::Failed];
    let filter = DeliveryFilter { states: states.clone(), ..DeliveryFilter::default() };
    let found = subject.store.group_failures(&filter).await.expect("groups");
    assert_eq!((found.scanned, found.capped), (5, false));
    let shown: Vec<_> = found
        .groups
        .iter()
        .map(|group| (group.destination_name.as_str(), group.state, group.error, group.deliveries))
        .collect();
    let timeout = ErrorFilter::Kind(ErrorKind::Failure(Failure::Timeout));
    let expected = [
        ("destination 1", DeliveryState::Dead, Some(ErrorFilter::Status(503)), 2),
        ("destination 2", DeliveryState::Dead, Some(ErrorFilter::Status(503)), 1),
        ("destination 1", DeliveryState::Failed, Some(ErrorFilter::Status(404)), 1),
        ("destination 1", DeliveryState::Dead, Some(timeout), 1),
    ];
    assert_eq!(shown, expected);
    let largest = &found.groups[0];
    assert_eq!((largest.newest_at, largest.oldest_at), (event(3).created_at, event(1).created_at));
    assert_eq!(largest.last_error, Some(format!("error of {}", event(3).id)));
    assert_eq!(subject.delivery(largest.example_id).await.event_id, event(3).id);
    // A list with the destination, the state and the error of a group shows the deliveries of this group.
    for group in &found.groups {
        let of_group = DeliveryFilter {
            destination_id: Some(group.destination_id),
            states: vec![group.state],
            error: group.error,
            ..DeliveryFilter::default()
        };
        assert_eq!(subject.deliveries(of_group).await.len() as u64, group.deliveries, "{group:?}");
    }
    let only_timeouts = DeliveryFilter { states, error: Some(timeout), ..DeliveryFilter::default() };
    let found = subject.store.group_failures(&only_timeouts).await.expect("groups");
    assert_eq!((found.groups.len(), found.scanned), (1, 5));
}

pub async fn an_event_is_found_by_its_idempotency_key(subject: Subject) {
    let foreign = Event { tenant: "other".to_owned(), ..with_key(event(2), "order-1") };
    let events = [with_key(event(1), "order-1"), foreign, with_key(event(3), "order-2")];
    subject.ingest(events.iter().cloned().map(matched).collect()).await;
    for (tenants, key, expected) in [
        (TenantScope::one(TENANT), "order-1", vec![events[0].id]),
        (TenantScope::one("other"), "order-1", vec![events[1].id]),
        (TenantScope::one("other"), "order-2", vec![]),
        (both(), "order-1", vec![events[1].id, events[0].id]),
        (both(), "order-9", vec![]),
        (TenantScope::Only(Default::default()), "order-1", vec![]),
    ] {
        let filter = EventFilter { tenants, idempotency_key: Some(key.to_owned()), ..EventFilter::default() };
        let found = subject.store.list_events(&filter, page(9)).await.expect("list");
        let found: Vec<_> = found.rows.iter().map(|event| event.id).collect();
        assert_eq!(found, expected, "{filter:?}");
    }
}

pub async fn the_tenants_with_idempotency_keys_are_listed(subject: Subject) {
    assert_eq!(subject.store.tenants_with_keys(9).await.expect("list"), Vec::<String>::new());
    let of = |number, tenant: &str, key: Option<&str>| {
        let keyed = Event { tenant: tenant.to_owned(), ..event(number) };
        matched(Event { idempotency_key: key.map(str::to_owned), ..keyed })
    };
    let stored = [("b", Some("1")), ("a", Some("1")), ("none", None), ("b", Some("2")), ("B", Some("1"))];
    let events = stored.iter().zip(1..).map(|((tenant, key), number)| of(number, tenant, *key));
    subject.ingest(events.collect()).await;
    assert_eq!(subject.store.tenants_with_keys(9).await.expect("list"), ["B", "a", "b"]);
    assert_eq!(subject.store.tenants_with_keys(2).await.expect("list"), ["B", "a"]);
}

pub async fn a_page_of_filtered_events_reads_a_bounded_number_of_events(subject: Subject) {
    let rare = Event { event_type: "order.paid".to_owned(), ..event(1) };
    let alert = Event { event_type: "weir.breaker.opened".to_owned(), ..event(2) };
    subject.ingest(vec![matched(rare.clone()), matched(alert.clone())]).await;
    let total = u64::from(SCANNED_AT_MOST) + 700;
    for first in (3..=total).step_by(1_000) {
        subject.ingest((first..(first + 1_000).min(total + 1)).map(|number| matched(event(number))).collect()).await;
    }
    let of_type =
        |pattern: &str| EventFilter { event_type: Some(pattern.parse().expect("a pattern")), ..EventFilter::default() };
    let filter = of_type(&rare.event_type);
    let first = subject.store.list_events(&filter, page(50)).await.expect("list");
    assert!(first.rows.is_empty(), "{}", first.rows.len());
    let request = PageRequest { before: first.next, limit: 50 };
    let second = subject.store.list_events(&filter, request).await.expect("list");
    let found: Vec<_> = second.rows.iter().map(|event| event.id).collect();
    assert_eq!((found, second.next), (vec![rare.id], None));
    // Weir's own events are found at once, however many others there are.
    for (pattern, expected) in [
        ("weir.*", vec![alert.id]),
        ("weir.breaker.*", vec![alert.id]),
        (&*alert.event_type, vec![alert.id]),
        ("weir.test", vec![]),
    ] {
        let read = subject.store.list_events(&of_type(pattern), page(50)).await.expect("list");
        let found: Vec<_> = read.rows.iter().map(|event| event.id).collect();
        assert_eq!((found, read.next), (expected, None), "{pattern}");
    }
}

pub async fn events_are_filtered_by_patterns_of_types(subject: Subject) {
    let types = ["video", "video.created", "video.clip.cut", "videos.created", "weir.test"];
    let events: Vec<_> = (1..)
        .zip(types)
        .map(|(number, event_type)| Event { event_type: event_type.to_owned(), ..event(number) })
        .collect();
    subject.ingest(events.into_iter().map(matched).collect()).await;
    for (pattern, expected) in [
        ("video.*", vec!["video.clip.cut", "video.created"]),
        ("video", vec!["video"]),
        ("*", vec!["videos.created", "video.clip.cut", "video.created", "video"]),
        ("weir.*", vec!["weir.test"]),
    ] {
        let filter = EventFilter { event_type: Some(pattern.parse().expect("a pattern")), ..EventFilter::default() };
        let found = subject.store.list_events(&filter, page(9)).await.expect("list");
        let found: Vec<_> = found.rows.iter().map(|event| event.event_type.as_str()).collect();
        assert_eq!(found, expected, "{pattern}");
    }
}

pub async fn destinations_are_filtered_by_name_url_condition_and_text(subject: Subject) {
    let mut created = Vec::new();
    for number in 1..=5 {
        let mut new = destination(number);
        new.settings.url = format!("https://example.com/Hook/{number}").parse().expect("a url");
        created.push(subject.create(new).await);
    }
    subject.pause(1).await;
    let until = NOW + seconds(60);
    subject.hold(2, until, "Retry-After", NOW).await;
    let change = crate::BreakerChange {
        id: destination_id(3),
        expected: Breaker::default(),
        changed: stops::opened(&Breaker::default(), NOW),
        now: NOW + seconds(1),
    };
    assert!(subject.change_breaker(change).await);
    let all = || DestinationFilter { now: NOW + seconds(2), ..DestinationFilter::of(TenantScope::All) };
    let condition = |condition| DestinationFilter { condition: Some(condition), ..all() };
    let taking = |kind: &str| DestinationFilter { event_type: Some(kind.to_owned()), ..all() };
    let text = |text: &str| DestinationFilter { text: Some(text.to_owned()), ..all() };
    for (filter, expected) in [
        (all(), vec![5, 4, 3, 2, 1]),
        (condition(Condition::Paused), vec![1]),
        (condition(Condition::Held), vec![2]),
        (DestinationFilter { now: until, ..condition(Condition::Held) }, vec![]),
        (condition(Condition::Breaker), vec![3]),
        (condition(Condition::Active), vec![5, 4]),
        (DestinationFilter { name: Some("destination 4".to_owned()), ..all() }, vec![4]),
        (DestinationFilter { name: Some("Destination 4".to_owned()), ..all() }, vec![]),
        (DestinationFilter { url: Some("https://example.com/Hook/5".to_owned()), ..all() }, vec![5]),
        (taking("video.created"), vec![5, 4, 3, 2, 1]),
        (taking("weir.test"), vec![]),
        (text("hOOk/2"), vec![2]),
        (text("ATION 3"), vec![3]),
        (text("%"), vec![]),
        (DestinationFilter { tenants: TenantScope::one("other"), ..text("hook") }, vec![]),
    ] {
        let mut found = Vec::new();
        let mut request = page(2);
        loop {
            let Page { rows, next } = subject.store.list_destinations(&filter, request).await.expect("list");
            found.extend(rows.iter().map(|row| row.id));
            request.before = next;
            if next.is_none() {
                break;
            }
        }
        let expected: Vec<_> = expected.into_iter().map(destination_id).collect();
        assert_eq!(found, expected, "{filter:?}");
    }
}

pub async fn a_replay_takes_the_deliveries_of_several_tenants(subject: Subject) {
    for (number, tenant) in [(1, TENANT), (2, "other"), (3, "third")] {
        let mut new = destination(number);
        new.settings.tenant = tenant.to_owned();
        subject.create(new).await;
        let of_tenant = Event { tenant: tenant.to_owned(), ..event(number as u64) };
        subject.ingest(vec![named(of_tenant, &[number])]).await;
        let claimed = subject.claim(number, 1).await.remove(0);
        subject.settle(result(&claimed, Verdict::Dead)).await;
    }
    let deliveries = DeliveryFilter { tenants: both(), ..DeliveryFilter::default() };
    let filter = ReplayFilter { states: vec![DeliveryState::Dead], deliveries };
    assert_eq!(subject.begin(1, filter.clone()).await, 2);
    let shown = subject.store.replay(replays::replay_id(1)).await.expect("read").expect("the replay");
    assert_eq!(shown.filter, filter);
    assert_eq!(subject.steps(1).await, 2);
    let states: Vec<_> = subject.deliveries(DeliveryFilter::default()).await.iter().map(|one| one.state).collect();
    assert_eq!(states, [DeliveryState::Dead, DeliveryState::Pending, DeliveryState::Pending]);
}
