//! Lists of deliveries filtered by their events and last attempts, and the cost of such lists.

use weir_core::{ErrorKind, delivery::LastAttempt, outcome::Failure};

use super::*;
use crate::{ErrorFilter, ListCount, ListOrder, SCANNED_AT_MOST};

/// The result of an attempt: the verdict, the failure, the status.
type AttemptEnd = (Verdict, Option<Failure>, Option<u16>);

const RETRIED: Verdict = Verdict::Retry { at: Timestamp::from_secs(1_800_000_009) };

fn ended(claimed: &ClaimedDelivery, (verdict, failure, status_code): AttemptEnd) -> AttemptResult {
    let mut result = result(claimed, verdict);
    result.attempt.failure = failure;
    result.attempt.status_code = status_code;
    result.attempt.error = failure.map(|failure| format!("it was {}", failure.as_str()));
    result
}

fn typed(number: u64, event_type: &str) -> Event {
    Event { event_type: event_type.to_owned(), ..event(number) }
}

pub async fn the_last_error_of_a_delivery_is_shown(subject: Subject) {
    let first = subject.one_claimed().await;
    let id = first.claim.delivery_id;
    assert_eq!(subject.delivery(id).await.last_attempt, None);
    subject.settle(ended(&first, (RETRIED, Some(Failure::Timeout), None))).await;
    let timed_out = LastAttempt {
        status_code: None,
        error: Some("it was timeout".to_owned()),
        error_kind: Some(ErrorKind::Failure(Failure::Timeout)),
    };
    let listed = subject.deliveries(DeliveryFilter::default()).await.remove(0);
    assert_eq!(listed.last_attempt, Some(timed_out.clone()));
    let second = subject.claim(1, 1).await.remove(0);
    assert_eq!(subject.delivery(id).await.last_attempt, Some(timed_out), "the attempt in flight has not ended");
    subject.settle(ended(&second, (Verdict::Dead, None, Some(503)))).await;
    let unavailable = LastAttempt { status_code: Some(503), error: None, error_kind: Some(ErrorKind::Answer(5)) };
    subject.store.retry_delivery(id, NOW + seconds(8), activity()).await.expect("retry");
    for delivery in [
        subject.deliveries(DeliveryFilter::default()).await.remove(0),
        subject.store.event_deliveries(event(1).id).await.expect("read").remove(0),
        subject.delivery(id).await,
    ] {
        assert_eq!(delivery.last_attempt, Some(unavailable.clone()), "kept while it waits again");
    }
    let third = subject.claim(1, 1).await.remove(0);
    subject.settle(ended(&third, (Verdict::Delivered, None, Some(204)))).await;
    let delivered = LastAttempt { status_code: Some(204), error: None, error_kind: None };
    assert_eq!(subject.delivery(id).await.last_attempt, Some(delivered));
    let kinds: Vec<_> = subject.attempts(id).await.iter().map(Attempt::error_kind).collect();
    assert_eq!(kinds, [Some(ErrorKind::Failure(Failure::Timeout)), Some(ErrorKind::Answer(5)), None]);
}

pub async fn deliveries_are_filtered_by_tenant_type_and_error(subject: Subject) {
    subject.create(destination(1)).await;
    let mut foreign = destination(2);
    foreign.settings.tenant = "other".to_owned();
    subject.create(foreign).await;
    let types = ["video.created", "video.clip.cut", "videos.created", "order.paid", "weir.backlog.high"];
    let tenant_of = |number: u64| if number.is_multiple_of(3) { "other" } else { TENANT };
    let events: Vec<Event> = (1..=30)
        .map(|number| Event { tenant: tenant_of(number).to_owned(), ..typed(number, types[number as usize % 5]) })
        .collect();
    let to = |event: &Event| if event.tenant == TENANT { [1] } else { [2] };
    subject.ingest(events.iter().map(|event| named(event.clone(), &to(event))).collect()).await;
    let ends: [AttemptEnd; 7] = [
        (Verdict::Delivered, None, Some(200)),
        (RETRIED, Some(Failure::Timeout), None),
        (Verdict::Dead, Some(Failure::Connect), None),
        (Verdict::Dead, None, Some(503)),
        (Verdict::Failed, None, Some(404)),
        (Verdict::Failed, None, Some(301)),
        (RETRIED, None, Some(500)),
    ];
    for number in [1, 2] {
        let claimed = subject.claim(number, 9).await;
        let results = claimed.iter().zip(ends.iter().cycle()).map(|(claimed, &end)| ended(claimed, end));
        subject.store.settle(results.map(Arc::new).collect()).await.expect("settle");
        // One claim is lost, so its outcome is unknown; another stays in flight.
        subject.claim(number, 1).await;
        subject.store.recover_claims(NOW, true, 1).await.expect("recover");
        subject.claim(number, 1).await;
    }
    let all = subject.deliveries(DeliveryFilter::default()).await;
    assert_eq!(all.len(), 30);
    let event_of = |delivery: &Delivery| events.iter().find(|event| event.id == delivery.event_id).expect("its event");
    let errors = [
        None,
        Some(ErrorFilter::Kind(ErrorKind::Failure(Failure::Timeout))),
        Some(ErrorFilter::Kind(ErrorKind::Failure(Failure::Dns))),
        Some(ErrorFilter::Kind(ErrorKind::Answer(5))),
        Some(ErrorFilter::Kind(ErrorKind::Answer(4))),
        Some(ErrorFilter::Kind(ErrorKind::Unknown)),
        Some(ErrorFilter::Status(503)),
        Some(ErrorFilter::Status(200)),
    ];
    let has = |delivery: &Delivery, error: ErrorFilter| {
        let Some(last) = &delivery.last_attempt else { return false };
        match error {
            ErrorFilter::Kind(kind) => last.error_kind == Some(kind),
            ErrorFilter::Status(status) => last.error_kind.is_some() && last.status_code == Some(status),
        }
    };
    let mut found = 0;
    use DeliveryState::{Cancelled, Dead, Delivered, Delivering, Failed, Pending, Retrying};
    let several = [
        vec![],
        vec![Failed, Dead],
        vec![Dead, Pending, Retrying],
        vec![Delivering, Dead, Cancelled],
        vec![Delivered, Dead],
    ];
    let states = DeliveryState::ALL.map(|state| vec![state]).into_iter().chain(several);
    let both = TenantScope::Only([TENANT, "other"].map(str::to_owned).into());
    let mut orders = [ListOrder::Newest, ListOrder::Oldest].into_iter().cycle();
    for (states, error) in states.flat_map(|states| errors.map(|error| (states.clone(), error))) {
        for tenants in [TenantScope::All, TenantScope::one("other"), both.clone()] {
            for pattern in [None, Some("video.*"), Some("order.paid"), Some("*")] {
                let event_type = pattern.map(|pattern| pattern.parse().expect("a pattern"));
                let (states, tenants) = (states.clone(), tenants.clone());
                let order = orders.next().expect("an order");
                let filter = DeliveryFilter { states, error, tenants, event_type, order, ..DeliveryFilter::default() };
                let fits = |delivery: &&Delivery| {
                    let event = event_of(delivery);
                    (filter.states.is_empty() || filter.states.contains(&delivery.state))
                        && error.is_none_or(|error| has(delivery, error))
                        && filter.tenants.includes(&event.tenant)
                        && filter.event_type.as_ref().is_none_or(|pattern| pattern.matches(&event.event_type))
                };
                let mut expected: Vec<_> = all.iter().filter(fits).map(|delivery| delivery.id).collect();
                if order == ListOrder::Oldest {
                    expected.reverse();
                }
                found += expected.len();
                assert_eq!(subject.delivery_ids(&filter, 2).await, expected, "{filter:?}");
                let count = ListCount { value: expected.len() as u64, capped: false };
                assert_eq!(subject.store.count_deliveries(&filter).await.expect("count"), count, "{filter:?}");
            }
        }
    }
    assert!(found > 100, "too few deliveries match the filters: {found}");
}

/// A page reads no more than its window of a long history, and the next page finds the deliveries after the window.
pub async fn a_page_of_a_filtered_list_reads_a_bounded_number_of_deliveries(subject: Subject) {
    subject.create_many(1).await;
    let total = u64::from(SCANNED_AT_MOST) + 700;
    subject.ingest(vec![named(typed(1, "order.paid"), &[1])]).await;
    let rare = subject.claim(1, 1).await.remove(0);
    subject.settle(ended(&rare, (RETRIED, Some(Failure::Tls), None))).await;
    for first in (2..=total).step_by(1_000) {
        subject.post(1, first..(first + 1_000).min(total + 1)).await;
    }
    let destination_id = Some(destination_id(1));
    let all = DeliveryFilter::default;
    let order = ListOrder::Oldest;
    let oldest = DeliveryFilter { event_type: Some("order.*".parse().expect("a pattern")), order, ..all() };
    let first = subject.store.list_deliveries(&oldest, page(50)).await.expect("list");
    let found: Vec<_> = first.rows.iter().map(|delivery| delivery.id).collect();
    assert_eq!(found, [rare.claim.delivery_id], "the oldest is in the first window");
    assert!(first.next.is_some());
    for filter in [
        DeliveryFilter { event_type: Some("order.*".parse().expect("a pattern")), ..all() },
        DeliveryFilter { error: Some(ErrorFilter::Kind(ErrorKind::Failure(Failure::Tls))), destination_id, ..all() },
        // Too many deliveries wait to be sorted.
        DeliveryFilter { states: vec![DeliveryState::Retrying], ..all() },
        DeliveryFilter { states: vec![DeliveryState::Retrying], destination_id, ..all() },
    ] {
        let first = subject.store.list_deliveries(&filter, page(50)).await.expect("list");
        assert!(first.rows.is_empty(), "{filter:?}: {}", first.rows.len());
        let request = PageRequest { before: Some(first.next.expect("a next page")), limit: 50 };
        let second = subject.store.list_deliveries(&filter, request).await.expect("list");
        let found: Vec<_> = second.rows.iter().map(|delivery| delivery.id).collect();
        assert_eq!((found, second.next), (vec![rare.claim.delivery_id], None), "{filter:?}");
    }
    let delivered = DeliveryFilter { states: vec![DeliveryState::Delivered], destination_id, ..all() };
    let first = subject.store.list_deliveries(&delivered, page(50)).await.expect("list");
    assert!(first.rows.is_empty() && first.next.is_some());
    let pending = DeliveryFilter { states: vec![DeliveryState::Pending], ..all() };
    let first = subject.store.list_deliveries(&pending, page(50)).await.expect("list");
    assert_eq!(first.rows.len(), 50, "a common state fills its page");
}
