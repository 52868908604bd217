//! The cost of an event: stored, claimed, and summed up for limits in costs.

use weir_core::limit::Shape;

use super::{limit_groups::group, *};
use crate::{GroupChange, IngestRefusal, SentCounts};

/// A limit of this many points a minute.
fn points(limit: u32) -> RateLimit {
    RateLimit::new(limit, Period::MINUTE).and_then(RateLimit::in_costs).expect("a limit")
}

/// A destination with such a limit.
fn limited(number: u128, limit: u32) -> Destination {
    let mut limited = destination(number);
    limited.settings.rate_limits = RateLimits::new(vec![points(limit)]).expect("one limit");
    limited
}

fn costing(number: u64, cost: u32) -> Event {
    let mut event = event(number);
    event.options.cost = Some(non_zero(cost));
    event
}

pub async fn an_event_keeps_its_cost_until_it_is_claimed_and_audited(mut subject: Subject) {
    let mut destination = limited(1, 1_000);
    destination.settings.order = DeliveryOrder::new(true, None);
    subject.create(destination).await;
    let ordered = {
        let mut ordered = costing(3, 30);
        ordered.options.ordering_key = Some("a".to_owned());
        ordered
    };
    let events = [costing(1, 300), event(2), ordered];
    subject.ingest(events.iter().cloned().map(matched).collect()).await;
    subject.reopen().await;
    for event in &events {
        assert_eq!(&subject.store.event(event.id).await.expect("read").expect("an event"), event);
    }
    let claimed = subject.claim(1, 2).await;
    assert_eq!(claimed.iter().map(|claimed| claimed.cost).collect::<Vec<_>>(), [300, 1]);
    assert_eq!(subject.delivery(claimed[0].claim.delivery_id).await.cost, 300);
    let mut sent = result(&claimed[0], Verdict::Delivered);
    sent.attempt.sent_at = Some(NOW + seconds(10));
    subject.settle(sent).await;
    assert_eq!(subject.sends(1, Timestamp::MIN, Timestamp::MAX).await[0].cost, 300);
    // One is recorded, one is out, and one waits.
    let sums = subject.store.sent_counts(&[destination_id(1)], NOW, points(1_000)).await.expect("read");
    let number = (NOW + seconds(10)).as_nanos() / 100_000_000 + 1;
    assert_eq!(sums, SentCounts { buckets: vec![(number, 300)], claimed: 1, restored: None, usual_cost: 30 * 256 });
    let in_requests =
        RateLimit::new(1_000, Period::MINUTE).and_then(|limit| limit.with_shape(Shape::Window)).expect("a limit");
    let requests = subject.store.sent_counts(&[destination_id(1)], NOW, in_requests).await.expect("read");
    assert_eq!((requests.buckets, requests.usual_cost), (vec![(number, 1)], 0));
}

pub async fn a_retry_and_a_recovered_claim_keep_the_cost(subject: Subject) {
    subject.create(limited(1, 1_000)).await;
    subject.ingest(vec![matched(costing(1, 7))]).await;
    let first = subject.claim(1, 1).await.remove(0);
    subject.settle(result(&first, Verdict::Retry { at: NOW + seconds(1) })).await;
    assert_eq!(subject.claim(1, 1).await[0].cost, 7);
    subject.recover(3_600, true, 9).await;
    let unknown = subject.sends(1, Timestamp::MIN, Timestamp::MAX).await;
    assert_eq!(unknown.iter().map(|send| send.cost).collect::<Vec<_>>(), vec![7; unknown.len()]);
    assert!(unknown.iter().any(|send| send.is_unknown));
}

pub async fn a_cost_on_the_fast_path_is_that_of_the_event(subject: Subject) {
    let fast_path = subject.fast_path(9).await;
    subject.ingest(vec![matched(costing(1, 9))]).await;
    let admitted = fast_path.admitted();
    assert_eq!(admitted.iter().map(|claimed| claimed.cost).collect::<Vec<_>>(), [9]);
    assert_eq!(subject.delivery(admitted[0].claim.delivery_id).await.cost, 9);
}

pub async fn an_event_above_the_limit_of_a_destination_that_takes_it_is_refused(subject: Subject) {
    subject.create(limited(1, 100)).await;
    subject.create(limited(2, 200)).await;
    let refused = IngestRefusal::CostAboveLimit { destination_id: destination_id(1), limit: points(100) };
    let events = vec![
        matched(costing(1, 100)),
        matched(costing(2, 101)),
        named(costing(3, 101), &[2]),
        named(costing(4, 150), &[2, 1]),
    ];
    let results = subject.store.ingest(events).await.expect("ingest");
    let refusals: Vec<_> = results.into_iter().map(Result::err).collect();
    assert_eq!(refusals, [None, Some(refused.clone()), None, Some(refused)]);
    assert_eq!(subject.deliveries(DeliveryFilter::default()).await.len(), 3);
}

/// An edit of the group counts from the next event on, and so does a destination that joins.
pub async fn an_event_above_the_limit_of_a_group_that_takes_it_is_refused(subject: Subject) {
    let set = async |expected: Option<Timestamp>, limit: u32, second: u64| {
        let rate_limits = RateLimits::new(vec![points(limit)]).expect("one limit");
        let group = weir_core::LimitGroup { rate_limits, updated_at: NOW + seconds(second), ..group(1) };
        let change = subject.store.set_limit_group(expected, group, activity().into()).await.expect("set");
        let GroupChange::Made(made) = change else { panic!("{change:?}") };
        made
    };
    let first = set(None, 100, 1).await;
    let mut member = destination(1);
    member.settings.limit_group = Some(first.id);
    subject.create(member).await;
    let alone = subject.create(destination(2)).await;
    let refusals = async |events: Vec<NewEvent>| {
        let results = subject.store.ingest(events).await.expect("ingest");
        results.into_iter().map(Result::err).collect::<Vec<_>>()
    };
    let refused = |number: u128, group: &Arc<weir_core::LimitGroup>, limit: u32| {
        let (destination_id, group) = (destination_id(number), Arc::clone(group));
        Some(IngestRefusal::CostAboveGroupLimit { destination_id, group, limit: points(limit) })
    };
    let events = vec![
        matched(costing(1, 100)),
        matched(costing(2, 101)),
        named(costing(3, 101), &[2]),
        named(costing(4, 150), &[2, 1]),
        matched(event(5)),
    ];
    let by_first = refused(1, &first, 100);
    assert_eq!(refusals(events).await, [None, by_first.clone(), None, by_first, None]);
    // The group gets a lower limit, and the other destination joins it.
    let lower = set(Some(first.updated_at), 50, 2).await;
    assert_eq!(refusals(vec![matched(costing(6, 51))]).await, [refused(1, &lower, 50)]);
    assert_eq!(refusals(vec![named(costing(7, 51), &[2])]).await, [None]);
    let joined = subject.patch(&alone, NOW + seconds(3), |settings| settings.limit_group = Some(lower.id)).await;
    joined.expect("joined");
    let after = vec![named(costing(8, 51), &[2]), named(costing(9, 50), &[2])];
    assert_eq!(refusals(after).await, [refused(2, &lower, 50), None]);
}
