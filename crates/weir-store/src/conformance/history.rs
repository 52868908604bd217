//! Reads for the API: events, deliveries, attempts, sends.

use std::collections::HashMap;

use weir_core::refusing::Refusing;

use super::*;
use crate::{EventFilter, ListOrder, PastRecord, PastRequest, RefusalWatch, SendRecord, SendsRequest, refusals_of};

pub async fn an_event_is_read_back(subject: Subject) {
    let event = with_key(event(1), "a");
    subject.ingest(vec![matched(event.clone())]).await;
    assert_eq!(subject.store.event(event.id).await.expect("read"), Some(event));
    assert_eq!(subject.store.event(EventId::new(NOW, 99)).await.expect("read"), None);
}

pub async fn the_deliveries_of_an_event_are_listed(subject: Subject) {
    subject.create_many(3).await;
    subject.ingest(vec![matched(event(1)), named(event(2), &[2])]).await;
    let deliveries = subject.store.event_deliveries(event(1).id).await.expect("read");
    let mut destinations: Vec<_> = deliveries.iter().map(|delivery| delivery.destination_id).collect();
    destinations.sort_unstable();
    assert_eq!(destinations, [1, 2, 3].map(destination_id));
    for delivery in &deliveries {
        assert_eq!((delivery.event_id, delivery.event_type.as_str()), (event(1).id, "video.created"));
        assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Pending, 0));
        assert_eq!(delivery.created_at, event(1).created_at);
        assert_eq!(delivery.next_attempt_at, Some(event(1).created_at));
    }
    assert!(subject.store.event_deliveries(event(9).id).await.expect("read").is_empty());
}

impl Subject {
    async fn events(&self, filter: &EventFilter, limit: u32) -> Vec<EventId> {
        let mut seen = Vec::new();
        let mut request = page(limit);
        loop {
            let page = self.store.list_events(filter, request).await.expect("list");
            assert!(page.rows.len() <= limit as usize);
            seen.extend(page.rows.iter().map(|event| event.id));
            request.before = page.next;
            if page.next.is_none() {
                return seen;
            }
        }
    }

    /// The recorded sends of a destination, read in pages of two.
    pub(super) async fn sends(&self, number: u128, from: Timestamp, to: Timestamp) -> Vec<SendRecord> {
        let destination_id = destination_id(number);
        let mut request = SendsRequest { destination_id, from, to, after: None, limit: 2 };
        let mut seen: Vec<SendRecord> = Vec::new();
        loop {
            let page = self.store.sends(request).await.expect("sends");
            assert!(page.len() <= 2);
            let is_last = page.len() < 2;
            seen.extend(page);
            if is_last {
                assert!(seen.is_sorted_by(|a, b| a.position < b.position), "{seen:?}");
                return seen;
            }
            request.after = seen.last().map(|send| send.position);
        }
    }

    pub(super) async fn delivery_ids(&self, filter: &DeliveryFilter, limit: u32) -> Vec<DeliveryId> {
        let mut seen = Vec::new();
        let mut request = page(limit);
        loop {
            let page = self.store.list_deliveries(filter, request).await.expect("list");
            assert!(page.rows.len() <= limit as usize);
            seen.extend(page.rows.iter().map(|delivery| delivery.id));
            request.before = page.next;
            if page.next.is_none() {
                return seen;
            }
        }
    }
}

pub async fn events_are_listed_newest_first_page_by_page(subject: Subject) {
    subject.ingest((1..=7).map(|number| matched(event(number))).collect()).await;
    let newest_first: Vec<_> = (1..=7).rev().map(|number| event(number).id).collect();
    for limit in [1, 3, 7, 200] {
        assert_eq!(subject.events(&EventFilter::default(), limit).await, newest_first, "pages of {limit}");
    }
}

pub async fn events_are_listed_without_their_bodies(subject: Subject) {
    subject.ingest(vec![matched(event(1))]).await;
    let bodiless = Event { body: EventBody::stored(Default::default(), event(1).body.data_offset()), ..event(1) };
    assert_eq!(subject.store.list_events(&EventFilter::default(), page(9)).await.expect("list").rows, [bodiless]);
    let bodies = subject.store.bodies(&[event(1).id, event(2).id]).await.expect("bodies");
    assert_eq!(bodies, [Some(event(1).body), None]);
}

pub async fn events_are_filtered_by_type_tenant_and_time(subject: Subject) {
    let mut events: Vec<Event> = (0..12).map(event).collect();
    for (index, event) in events.iter_mut().enumerate() {
        // Three events in each millisecond, so that the bound of a filter can lie inside a millisecond.
        event.created_at = NOW + Duration::from_micros(index as u64 * 300);
        event.id = EventId::new(event.created_at, index as u128);
        if index % 2 == 1 {
            event.event_type = "order.paid".to_owned();
        }
        if index % 3 == 0 {
            event.tenant = "other".to_owned();
        }
    }
    subject.ingest(events.iter().cloned().map(matched).collect()).await;
    let both = TenantScope::Only([TENANT, "other"].map(str::to_owned).into());
    let filters = [
        EventFilter { event_type: Some("order.paid".parse().expect("a pattern")), ..EventFilter::default() },
        EventFilter { tenants: TenantScope::one("other"), ..EventFilter::default() },
        EventFilter {
            event_type: Some("order.paid".parse().expect("a pattern")),
            tenants: TenantScope::one(TENANT),
            from: Some(events[3].created_at),
            to: Some(events[9].created_at),
            ..EventFilter::default()
        },
        EventFilter { from: Some(events[4].created_at), ..EventFilter::default() },
        EventFilter { to: Some(events[5].created_at), ..EventFilter::default() },
        EventFilter { event_type: Some("nothing".parse().expect("a pattern")), ..EventFilter::default() },
        EventFilter { order: ListOrder::Oldest, ..EventFilter::default() },
        EventFilter {
            tenants: both,
            order: ListOrder::Oldest,
            from: Some(events[2].created_at),
            ..EventFilter::default()
        },
    ];
    for filter in filters {
        let mut expected: Vec<_> = events
            .iter()
            .filter(|event| {
                filter.event_type.as_ref().is_none_or(|pattern| pattern.matches(&event.event_type))
                    && filter.tenants.includes(&event.tenant)
                    && filter.from.is_none_or(|from| event.created_at >= from)
                    && filter.to.is_none_or(|to| event.created_at < to)
            })
            .map(|event| event.id)
            .collect();
        if filter.order == ListOrder::Newest {
            expected.reverse();
        }
        for limit in [2, 200] {
            assert_eq!(subject.events(&filter, limit).await, expected, "{filter:?}");
        }
    }
}

pub async fn deliveries_are_listed_newest_first_page_by_page(subject: Subject) {
    subject.create_many(2).await;
    subject.ingest((1..=5).map(|number| matched(event(number))).collect()).await;
    let all = subject.delivery_ids(&DeliveryFilter::default(), 200).await;
    assert_eq!(all.len(), 10);
    assert!(all.is_sorted_by(|a, b| a > b));
    for limit in [1, 3, 10] {
        assert_eq!(subject.delivery_ids(&DeliveryFilter::default(), limit).await, all, "pages of {limit}");
    }
}

pub async fn deliveries_are_filtered_by_every_criterion(subject: Subject) {
    subject.create_many(2).await;
    subject.ingest((1..=14).map(|number| matched(event(number))).collect()).await;
    for number in [1, 2] {
        let claimed = subject.claim(number, 10).await;
        let verdicts = [Verdict::Delivered, Verdict::Failed, Verdict::Dead, Verdict::Retry { at: NOW + seconds(99) }];
        let results = claimed.iter().take(8).zip(verdicts.iter().cycle());
        let results = results.map(|(claimed, &verdict)| Arc::new(result(claimed, verdict))).collect();
        subject.store.settle(results).await.expect("settle");
    }
    let waiting = DeliveryFilter { states: vec![DeliveryState::Pending], ..DeliveryFilter::default() };
    for delivery in subject.deliveries(waiting).await.iter().step_by(3) {
        subject.store.cancel_delivery(delivery.id, NOW + seconds(20), activity()).await.expect("cancel");
    }
    let all = subject.deliveries(DeliveryFilter::default()).await;
    assert_eq!(all.len(), 28);
    let states = DeliveryState::ALL.map(Some).into_iter().chain([None]);
    for state in states {
        for destination_id in [None, Some(destination_id(2))] {
            for event_id in [None, Some(event(3).id), Some(event(11).id)] {
                for (from, to) in [(None, None), (Some(event(3).created_at), Some(event(11).created_at))] {
                    let states = state.into_iter().collect();
                    let filter =
                        DeliveryFilter { destination_id, event_id, states, from, to, ..DeliveryFilter::default() };
                    let expected: Vec<_> = all
                        .iter()
                        .filter(|delivery| {
                            destination_id.is_none_or(|id| delivery.destination_id == id)
                                && event_id.is_none_or(|id| delivery.event_id == id)
                                && state.is_none_or(|state| delivery.state == state)
                                && from.is_none_or(|from| delivery.created_at >= from)
                                && to.is_none_or(|to| delivery.created_at < to)
                        })
                        .map(|delivery| delivery.id)
                        .collect();
                    for limit in [1, 200] {
                        assert_eq!(subject.delivery_ids(&filter, limit).await, expected, "{filter:?}");
                    }
                }
            }
        }
    }
}

pub async fn sends_are_listed_with_their_results(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=4).await;
    subject.post(2, [5]).await;
    let sent = |second: u64| NOW + seconds(second);
    let plan = [(30, Verdict::Delivered), (20, Verdict::Failed), (40, Verdict::Delivered)];
    for (claimed, (second, verdict)) in subject.claim(1, 3).await.iter().zip(plan) {
        let mut result = result(claimed, verdict);
        result.attempt.sent_at = Some(sent(second));
        result.attempt.duration_ms = 250;
        subject.settle(result).await;
    }
    // The sender died, and may have sent at any time until now.
    subject.claim(1, 1).await;
    subject.store.recover_claims(sent(35), true, 9).await.expect("recover");
    let sends = subject.sends(1, Timestamp::MIN, Timestamp::MAX).await;
    let answered = |second| sent(second) + Duration::from_millis(250);
    let seen: Vec<_> = sends.iter().map(|send| (send.position.sent_at, send.delivered, send.is_unknown)).collect();
    let expected = [
        (sent(20), None, false),
        (sent(30), Some((event(1).created_at, answered(30))), false),
        (sent(35), None, true),
        (sent(40), Some((event(3).created_at, answered(40))), false),
    ];
    assert_eq!(seen, expected);
    for send in &sends {
        let attempts = subject.attempts(send.position.delivery_id).await;
        let attempt = attempts.iter().find(|attempt| attempt.number == send.position.number).expect("the attempt");
        assert_eq!(attempt.sent_at, Some(send.position.sent_at));
        assert_eq!((send.status_code, send.error_kind), (attempt.status_code, attempt.error_kind()));
    }
    assert_eq!(subject.sends(1, sent(30), sent(40)).await, sends[1..3]);
}

pub async fn sends_that_the_receiver_refuses_for_their_rate_are_marked(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=7).await;
    let header = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    let answers = [
        (Some(429), vec![], true),
        (Some(503), header("retry-after", "1"), true),
        (Some(403), header("x-ratelimit-remaining", "0"), true),
        (Some(503), vec![], false),
        (Some(403), header("x-ratelimit-remaining", "9"), false),
        (Some(500), header("retry-after", "1"), false),
        (None, vec![], false),
    ];
    for (second, (claimed, (status, headers, _))) in subject.claim(1, 7).await.iter().zip(answers.clone()).enumerate() {
        let mut result = result(claimed, Verdict::Retry { at: NOW + seconds(99) });
        result.attempt.sent_at = Some(NOW + seconds(20 + second as u64));
        result.attempt.status_code = status;
        result.attempt.details.response_headers = headers;
        subject.settle(result).await;
    }
    let seen: Vec<_> = subject.sends(1, NOW, NOW + seconds(40)).await.iter().map(|send| send.is_refused).collect();
    assert_eq!(seen, answers.map(|(_, _, is_refused)| is_refused));
}

/// Three of ten sends are refused, which a receiver with a limit of its own does.
pub async fn refusals_within_the_limit_are_found_and_end_with_an_edit(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=12).await;
    for (second, claimed) in subject.claim(1, 12).await.iter().enumerate() {
        let is_refused = second % 4 == 3;
        let verdict = if is_refused { Verdict::Retry { at: NOW + seconds(99) } } else { Verdict::Delivered };
        let mut result = result(claimed, verdict);
        result.attempt.sent_at = Some(NOW + seconds(100) + Duration::from_millis(300 * second as u64));
        result.attempt.status_code = Some(if is_refused { 429 } else { 200 });
        subject.settle(result).await;
    }
    let ids = [1, 2].map(destination_id);
    let destinations: Vec<_> = subject.store.destinations(&ids).await.expect("read").into_iter().flatten().collect();
    let [refusing, other] = &destinations[..] else { panic!("two destinations") };
    let (store, now) = (&*subject.store, NOW + seconds(110));
    let found = refusals_of(store, refusing, now).await.expect("read").expect("three refusals");
    assert_eq!((found.sends, found.refused), (12, 3));
    assert_eq!(refusals_of(store, refusing, now + seconds(400)).await.expect("read"), None, "long ago");
    // The watch knows nothing of what it has not looked at.
    let mut watch = RefusalWatch::default();
    assert!(watch.is_due(now) && watch.found(other).is_none());
    watch.look(store, destinations.clone(), now).await.expect("look");
    assert_eq!((watch.found(refusing), watch.found(other)), (Some(Some(found)), Some(None)));
    assert!(!watch.is_due(now + seconds(1)) && watch.is_due(now + seconds(30)));
    // An edit may be the remedy: what was before it says nothing about the new settings.
    let edited = Destination { updated_at: now, ..Destination::clone(refusing) };
    assert_eq!(refusals_of(store, &edited, now).await.expect("read"), None);
    assert_eq!(watch.found(&edited), None);
    let mut adaptive = Destination::clone(refusing);
    adaptive.settings.adaptive = Some(weir_core::adaptive::Settings::default());
    assert_eq!(refusals_of(store, &adaptive, now).await.expect("read"), None, "it finds its pace by refusals");
    assert_eq!(watch.found(&adaptive), Some(None));
}

/// The receiver takes a third of what it is sent for 18 s, in two buckets of traffic.
pub async fn a_receiver_that_refuses_much_is_found_in_the_counters(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=30).await;
    for (number, claimed) in subject.claim(1, 30).await.iter().enumerate() {
        let is_refused = number % 3 > 0;
        let verdict = if is_refused { Verdict::Retry { at: NOW + seconds(99) } } else { Verdict::Delivered };
        let mut result = result(claimed, verdict);
        result.attempt.sent_at = Some(NOW + seconds(100) + Duration::from_millis(600 * number as u64));
        result.attempt.status_code = Some(if is_refused { 429 } else { 200 });
        subject.settle(result).await;
    }
    let store = &*subject.store;
    let one = destination_id(1);
    let mut watch = RefusalWatch::default();
    for folded in [false, true] {
        let now = NOW + seconds(130);
        let last_minute = store.recent_traffic(NOW + seconds(70)).await.expect("traffic");
        watch.count(store, &last_minute, std::iter::empty(), now).await.expect("count");
        assert_eq!(watch.refusing().collect::<Vec<_>>(), [one], "folded: {folded}");
        let answered = watch.answered(one).expect("it refuses");
        assert_eq!((answered.sends, answered.refused), (30, 20));
        // Four of the thirteen sends of the second bucket: the traffic began in the first one.
        let takes = answered.takes_per_s.expect("a whole bucket");
        assert!(answered.is_much() && (takes - 0.97 * 0.4).abs() < 1e-9, "{answered:?}");
        assert_eq!(watch.answered(destination_id(2)), None, "nobody has asked");
        subject.fold().await;
    }
    // It is still looked at until it refuses little, and as long as an alert lasts.
    let later = NOW + seconds(600);
    watch.count(store, &HashMap::new(), std::iter::empty(), later).await.expect("count");
    assert_eq!((watch.refusing().count(), watch.answered(one)), (0, Some(Refusing::default())));
    watch.count(store, &HashMap::new(), std::iter::empty(), later).await.expect("count");
    assert_eq!(watch.answered(one), None);
    watch.count(store, &HashMap::new(), std::iter::once(one), later).await.expect("count");
    assert_eq!(watch.answered(one), Some(Refusing::default()));
}

pub async fn sends_at_the_same_instant_are_each_on_one_page(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=9).await;
    for (index, claimed) in subject.claim(1, 9).await.iter().enumerate() {
        let mut result = result(claimed, Verdict::Delivered);
        result.attempt.sent_at = Some(NOW + seconds(if index < 7 { 20 } else { 21 }));
        subject.settle(result).await;
    }
    let sends = subject.sends(1, NOW + seconds(20), NOW + seconds(22)).await;
    assert_eq!(sends.len(), 9);
    assert_eq!(subject.sends(1, NOW + seconds(20), NOW + seconds(21)).await, sends[..7]);
}

pub async fn the_past_is_read_newest_first_with_the_attempts(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=3).await;
    subject.post(2, [5]).await;
    let sent = |second: u64| NOW + seconds(second);
    let retry = |second: u64| Verdict::Retry { at: sent(second) };
    for (second, claimed) in (20..).zip(&subject.claim(1, 3).await) {
        let mut result = result(claimed, retry(30));
        result.attempt.sent_at = Some(sent(second));
        subject.settle(result).await;
    }
    for claimed in &subject.claims(vec![request(1, 2)], sent(31)).await.remove(0).deliveries {
        let mut result = result(claimed, Verdict::Delivered);
        result.attempt.sent_at = Some(sent(31));
        result.attempt.duration_ms = 250;
        subject.settle(result).await;
    }
    subject.post(1, [4]).await;
    for limit in [1, 2, 3, 99] {
        let mut request = PastRequest::new(destination_id(1), sent(40), limit);
        let mut seen: Vec<PastRecord> = Vec::new();
        loop {
            let page = subject.store.past(request).await.expect("read");
            seen.extend(&page);
            let Some(last) = page.last().filter(|_| page.len() == limit as usize) else { break };
            request.after = last.position();
        }
        let all =
            subject.deliveries(DeliveryFilter { destination_id: Some(destination_id(1)), ..DeliveryFilter::default() });
        let mut expected = Vec::new();
        for delivery in all.await {
            let attempts = subject.attempts(delivery.id).await;
            let attempts: Vec<_> = attempts.iter().map(|attempt| Some((attempt.number, attempt.sent_at))).collect();
            let attempts = if attempts.is_empty() { vec![None] } else { attempts };
            expected.extend(
                attempts.into_iter().map(|attempt| (delivery.id, delivery.state, delivery.created_at, attempt)),
            );
        }
        let of = |record: &PastRecord| {
            let attempt = record.attempt.map(|attempt| (attempt.number, Some(attempt.began_at)));
            (record.delivery_id, record.state, record.due_at, attempt)
        };
        assert_eq!(seen.iter().map(of).collect::<Vec<_>>(), expected, "pages of {limit}");
        assert_eq!(seen.len(), 6, "two were sent twice, one once, and one never");
        assert!(seen.iter().any(|record| record.attempt.is_some_and(|attempt| attempt.duration_ms == 250)));
    }
    let before = PastRequest::new(destination_id(1), event(2).created_at, 99);
    let ids: Vec<_> = subject.store.past(before).await.expect("read").iter().map(|record| record.delivery_id).collect();
    let earliest = subject.store.event_deliveries(event(1).id).await.expect("read")[0].id;
    assert_eq!(ids.last(), Some(&earliest), "{ids:?}");
}

pub async fn a_deleted_destination_is_known_to_have_existed(subject: Subject) {
    subject.create_many(2).await;
    subject.delete(2).await;
    for (number, existed) in [(1, true), (2, true), (3, false)] {
        assert_eq!(subject.store.destination_existed(destination_id(number)).await.expect("read"), existed);
    }
}

pub async fn a_working_store_passes_its_check(subject: Subject) {
    subject.store.check().await.expect("a store that reads and writes");
}
