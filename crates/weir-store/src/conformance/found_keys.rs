//! The limit keys of events are found in their data before the commit.

use weir_core::limit_key::KeyLimits;

use super::{
    limit_keys::{key, keyed, of_key},
    *,
};
use crate::IngestRefusal;

/// A destination whose limit key is at this pointer.
fn keyed_at(number: u128, pointer: &str) -> Destination {
    let mut keyed = keyed(number);
    let key_limits = keyed.settings.key_limits.as_deref().expect("limit keys").clone();
    keyed.settings.key_limits = Some(Arc::new(KeyLimits { pointer: pointer.to_owned(), ..key_limits }));
    keyed
}

/// More pointers than are looked for while the others wait, at an event that nobody has looked at before.
pub async fn every_limit_key_of_an_event_is_found(subject: Subject) {
    for number in 1..=40 {
        let pointer = if number % 2 == 0 { "/number".to_owned() } else { format!("/number{number}") };
        subject.create(keyed_at(number, &pointer)).await;
    }
    let all: Vec<u128> = (1..=40).collect();
    let ingested = subject.ingest(vec![matched(event(7)), named(event(8), &all)]).await;
    for (ingested, number) in ingested.iter().zip(["7", "8"]) {
        let deliveries = subject.store.event_deliveries(ingested.event.id).await.expect("read");
        assert_eq!((deliveries.len(), ingested.wake.len()), (40, 40));
        for delivery in deliveries {
            let is_even = delivery.destination_id.as_bytes()[15].is_multiple_of(2);
            assert_eq!(delivery.limit_key, Some(key(if is_even { number } else { "" })), "{delivery:?}");
        }
    }
}

pub async fn an_event_above_the_limit_of_its_key_is_refused(subject: Subject) {
    let mut limited = keyed(1);
    let limit = RateLimit::new(100, Period::MINUTE).and_then(RateLimit::in_costs).expect("a limit");
    let rate_limits = RateLimits::new(vec![limit]).expect("one limit");
    let key_limits = limited.settings.key_limits.as_deref().expect("limit keys").clone();
    limited.settings.key_limits = Some(Arc::new(KeyLimits { rate_limits, ..key_limits }));
    subject.create(limited).await;
    let costing = |mut event: Event, cost| {
        event.options.cost = NonZeroU32::new(cost);
        matched(event)
    };
    let events = vec![
        costing(event(1), 100),
        costing(event(2), 101),
        costing(of_key(3, "a"), 100),
        costing(of_key(4, "a"), 101),
    ];
    let results = subject.store.ingest(events).await.expect("ingest");
    let refusals: Vec<_> = results.into_iter().map(Result::err).collect();
    let refused = IngestRefusal::CostAboveLimit { destination_id: destination_id(1), limit };
    assert_eq!(refusals, [None, Some(refused.clone()), None, Some(refused)]);
}
