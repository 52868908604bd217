//! Limit keys: what a delivery, a claim and an attempt know of them, and what is read by them.

use weir_core::limit_key::KeyLimits;

use super::{
    replays::{all_dead, replay_id},
    *,
};
use crate::{ClaimedFlow, DeliveryAction, DestinationDeletion, NamedCreation, ReplayFilter};

/// The key of every event of the suite is its number, unless it names one itself.
pub(super) fn by_number() -> Option<Arc<KeyLimits>> {
    Some(Arc::new(KeyLimits {
        pointer: "/number".to_owned(),
        rate_limits: per_second(2),
        max_in_flight: Some(3),
        weight: 5,
        overrides: [(key("a"), weir_core::limit_key::KeyOverride { paused: true, ..Default::default() })].into(),
    }))
}

pub(super) fn keyed(number: u128) -> Destination {
    let mut keyed = destination(number);
    keyed.settings.key_limits = by_number();
    keyed
}

pub(super) fn key(text: &str) -> LimitKey {
    LimitKey::new(text)
}

/// The flow of a key of destination 1.
pub(super) fn flow(text: &str) -> DestinationId {
    key(text).flow_id(destination_id(1))
}

/// The `number`-th event, with a key that it names itself.
pub(super) fn of_key(number: u64, text: &str) -> Event {
    let mut event = event(number);
    event.options.limit_key = Some(key(text));
    event
}

/// A claim of a flow of destination 1.
pub(super) fn flow_request(flow: ClaimedFlow, limit: u32) -> ClaimRequest {
    ClaimRequest { flow, ..request(1, limit) }
}

impl Subject {
    /// Creates destination 1 with limit keys, and stores events with these keys, numbered from 1.
    pub(super) async fn with_keys(&self, keys: &[&str]) {
        self.create(keyed(1)).await;
        self.post_keys(1, keys).await;
    }

    pub(super) async fn post_keys(&self, first: u64, keys: &[&str]) {
        let events = (first..).zip(keys).map(|(number, text)| named(of_key(number, text), &[1]));
        self.ingest(events.collect()).await;
    }

    pub(super) async fn claim_flow(&self, flow: ClaimedFlow, limit: u32, after: u64) -> Claims {
        self.claims(vec![flow_request(flow, limit)], NOW + seconds(after)).await.remove(0)
    }

    /// Claims up to `limit` deliveries of a key, ten seconds after [`NOW`].
    pub(super) async fn claim_key(&self, text: &str, limit: u32) -> Vec<ClaimedDelivery> {
        self.claim_flow(ClaimedFlow::Key(flow(text)), limit, 10).await.deliveries
    }

    /// Settles a claim, sent so many seconds after [`NOW`].
    pub(super) async fn sent(&self, claimed: &ClaimedDelivery, verdict: Verdict, after: u64) {
        let mut result = result(claimed, verdict);
        result.attempt.sent_at = Some(NOW + seconds(after));
        self.settle(result).await;
    }

    pub(super) async fn flow_sends(&self, flows: &[DestinationId], since: u64) -> Vec<u64> {
        self.store.flow_sends(flows, NOW + seconds(since)).await.expect("read")
    }

    pub(super) async fn due_flows(
        &self,
        before: Timestamp,
        after: Option<DestinationId>,
        limit: u32,
    ) -> Vec<DestinationId> {
        let due = self.store.due_flows(before, after, limit).await.expect("list");
        due.into_iter().map(|due| due.destination_id).collect()
    }
}

pub async fn an_event_and_its_deliveries_keep_their_limit_key(mut subject: Subject) {
    subject.create(keyed(1)).await;
    subject.create(destination(2)).await;
    let mut ordered = keyed(3);
    ordered.settings.order = DeliveryOrder::new(true, None);
    subject.create(ordered).await;
    let mut in_order = of_key(3, "c");
    in_order.options.ordering_key = Some("o".to_owned());
    let events = [event(1), of_key(2, "b"), in_order];
    let answers = subject.ingest(events.iter().cloned().map(matched).collect()).await;
    let flow_of = |number, text: &str| key(text).flow_id(destination_id(number));
    assert_eq!(answers[0].wake, [flow_of(1, "1"), destination_id(2), flow_of(3, "1")]);
    assert_eq!(answers[1].wake, [flow_of(1, "b"), destination_id(2), flow_of(3, "b")]);
    subject.reopen().await;
    for (event, text) in events.iter().zip(["1", "b", "c"]) {
        assert_eq!(&subject.store.event(event.id).await.expect("read").expect("an event"), event);
        for delivery in subject.store.event_deliveries(event.id).await.expect("read") {
            let has_keys = delivery.destination_id != destination_id(2);
            assert_eq!(delivery.limit_key, has_keys.then(|| key(text)), "{delivery:?}");
        }
    }
}

pub async fn a_repeated_event_has_the_limit_key_of_the_first(subject: Subject) {
    subject.create(keyed(1)).await;
    let first = with_key(of_key(1, "a"), "once");
    subject.ingest(vec![matched(first.clone())]).await;
    let again = subject.ingest(vec![matched(with_key(of_key(2, "b"), "once"))]).await.remove(0);
    assert_eq!((again.duplicate, again.deliveries, &again.event), (true, 1, &first));
}

pub async fn a_claim_of_a_flow_takes_its_deliveries_the_oldest_due_first(subject: Subject) {
    subject.with_keys(&["a", "b", "a", "b", "a"]).await;
    let a = ClaimedFlow::Key(flow("a"));
    let first = subject.claim_flow(a, 2, 10).await;
    assert_eq!((numbers_of(&first), first.next_due), (vec![1, 3], None));
    for claimed in &first.deliveries {
        assert_eq!((claimed.flow_id, claimed.claim.destination_id), (flow("a"), destination_id(1)));
    }
    let asked = subject.claim_flow(a, 0, 10).await;
    assert_eq!((numbers_of(&asked), asked.next_due), (vec![], Some(event(5).created_at)));
    let early = subject.claims(vec![flow_request(ClaimedFlow::Key(flow("b")), 9)], event(3).created_at).await.remove(0);
    assert_eq!((numbers_of(&early), early.next_due), (vec![2], Some(event(4).created_at)));
    let requests = [a, ClaimedFlow::Key(flow("none")), ClaimedFlow::Key(flow("b"))];
    let requests = requests.map(|flow| flow_request(flow, 9)).to_vec();
    let claims = subject.claims(requests, NOW + seconds(10)).await;
    assert_eq!(claims.iter().map(numbers_of).collect::<Vec<_>>(), [vec![5], vec![], vec![4]]);
    assert!(claims.iter().all(|claims| claims.next_due.is_none()));
}

pub async fn requests_of_flows_and_of_destinations_may_be_in_one_claim(subject: Subject) {
    subject.with_keys(&["a", "b"]).await;
    subject.create(destination(2)).await;
    subject.post(2, [3, 4]).await;
    let requests = vec![
        request(2, 1),
        flow_request(ClaimedFlow::Key(flow("b")), 9),
        flow_request(ClaimedFlow::Keyless, 9),
        request(2, 9),
        flow_request(ClaimedFlow::Key(flow("a")), 9),
    ];
    let claims = subject.claims(requests, NOW + seconds(10)).await;
    assert_eq!(claims.iter().map(numbers_of).collect::<Vec<_>>(), [vec![3], vec![2], vec![], vec![4], vec![1]]);
}

pub async fn deliveries_without_a_limit_key_are_a_flow_of_their_own(subject: Subject) {
    // Stored before there were keys, with keys, and after they were removed.
    let made = subject.create(destination(1)).await;
    let mut delayed = event(3);
    delayed.options.deliver_at = Some(NOW + seconds(50));
    subject.ingest([event(1), event(2), delayed].map(|event| named(event, &[1])).to_vec()).await;
    let with_keys = |settings: &mut Settings| settings.key_limits = by_number();
    let with = subject.patch(&made, NOW + seconds(1), with_keys).await.expect("applied");
    subject.post_keys(4, &["a", "a"]).await;
    subject.patch(&with, NOW + seconds(2), |settings| settings.key_limits = None).await.expect("applied");
    let after = subject.ingest(vec![named(event(6), &[1])]).await.remove(0);
    assert_eq!(after.wake, [destination_id(1)]);

    let asked = subject.claim_flow(ClaimedFlow::Keyless, 0, 10).await;
    assert_eq!((numbers_of(&asked), asked.next_due), (vec![], Some(event(1).created_at)));
    let first = subject.claim_flow(ClaimedFlow::Keyless, 1, 10).await;
    assert_eq!((numbers_of(&first), first.next_due), (vec![1], None));
    assert_eq!(first.deliveries[0].flow_id, destination_id(1));
    let others = subject.claim_flow(ClaimedFlow::Keyless, 9, 10).await;
    assert_eq!((numbers_of(&others), others.next_due), (vec![2, 6], Some(NOW + seconds(50))));
    assert_eq!(subject.claim_key("a", 9).await.len(), 2);
}

pub async fn a_delivery_keeps_its_flow_until_it_ends(subject: Subject) {
    subject.with_keys(&["a"]).await;
    let first = subject.claim_key("a", 9).await.remove(0);
    let id = first.claim.delivery_id;
    subject.sent(&first, Verdict::Retry { at: NOW + seconds(5) }, 1).await;
    let second = subject.claim_key("a", 9).await.remove(0);
    subject.store.release(vec![second.claim], NOW + seconds(6)).await.expect("release");
    assert_eq!(subject.claim_key("a", 9).await.len(), 1);
    subject.recover(8, true, 9).await;
    let third = subject.claim_key("a", 9).await.remove(0);
    subject.sent(&third, Verdict::Dead, 9).await;
    let retried = subject.store.retry_delivery(id, NOW + seconds(9), activity()).await.expect("retry");
    assert_eq!(retried, DeliveryAction::Done { destination_id: destination_id(1) });
    let fourth = subject.claim_key("a", 9).await.remove(0);
    assert_eq!((fourth.claim.delivery_id, fourth.attempts), (id, 3));
    // Sent at 1 s and 9 s, and of unknown outcome at 8 s.
    assert_eq!(subject.flow_sends(&[flow("b"), flow("a")], 0).await, [0, 3]);
    assert_eq!(subject.flow_sends(&[flow("a"), flow("b")], 8).await, [1, 0]);
}

pub async fn nothing_is_claimed_for_the_flows_of_paused_and_deleted_destinations(subject: Subject) {
    subject.with_keys(&["a"]).await;
    subject.post_keys(2, &["b"]).await;
    subject.pause(1).await;
    assert!(subject.claim_key("a", 9).await.is_empty());
    assert!(subject.claim_flow(ClaimedFlow::Keyless, 9, 10).await.deliveries.is_empty());
    assert_eq!(subject.due_flows(NOW + seconds(10), None, 9).await, []);
    let paused = subject.store.destination(destination_id(1)).await.expect("read").expect("a destination");
    subject.patch(&paused, NOW + seconds(3), |settings| settings.paused = false).await.expect("applied");
    assert_eq!(subject.claim_key("a", 9).await.len(), 1);
    let deletion = DestinationDeletion { id: destination_id(1), expected_updated_at: None, now: NOW + seconds(4) };
    subject.store.delete_destination(deletion, activity()).await.expect("delete");
    assert!(subject.claim_key("b", 9).await.is_empty());
    assert_eq!(subject.due_flows(NOW + seconds(10), None, 9).await, []);
}

pub async fn an_expired_delivery_of_a_flow_is_not_claimed(subject: Subject) {
    subject.create(keyed(1)).await;
    let mut expiring = of_key(1, "a");
    expiring.options.expires_at = Some(NOW + seconds(5));
    subject.ingest(vec![named(expiring, &[1]), named(of_key(2, "a"), &[1])]).await;
    let claims = subject.claim_flow(ClaimedFlow::Key(flow("a")), 9, 10).await;
    assert_eq!((numbers_of(&claims), claims.next_due), (vec![2], Some(NOW + seconds(10))));
}

pub async fn a_destination_stays_keyed_when_its_limit_keys_are_removed(mut subject: Subject) {
    let made = subject.create(keyed(1)).await;
    assert_eq!((made.keyed_at, &made.settings.key_limits), (Some(NOW), &by_number()));
    let plain = subject.create(destination(2)).await;
    assert_eq!(plain.keyed_at, None);
    let mut named = keyed(3);
    named.settings.name = "by name".to_owned();
    let created = subject.store.create_named_destination(named, activity()).await.expect("create");
    assert!(matches!(created, NamedCreation::New(made) if made.keyed_at == Some(NOW)));

    let removed = subject.patch(&made, NOW + seconds(1), |settings| settings.key_limits = None).await;
    let removed = removed.expect("applied");
    assert_eq!((removed.keyed_at, &removed.settings.key_limits), (Some(NOW), &None));
    let again = subject.patch(&removed, NOW + seconds(2), |settings| settings.key_limits = by_number()).await;
    let again = again.expect("applied");
    assert_eq!(again.keyed_at, Some(NOW));
    let later = subject.patch(&plain, NOW + seconds(3), |settings| settings.key_limits = by_number()).await;
    let later = later.expect("applied");
    assert_eq!(later.keyed_at, Some(NOW + seconds(3)));
    // Other writes of the row keep both.
    subject.pause_at(2, "gone", NOW + seconds(4)).await;
    subject.hold(1, NOW + seconds(60), "429", NOW + seconds(4)).await;
    subject.reopen().await;
    let read = async |number| subject.store.destination(destination_id(number)).await.expect("read").expect("one");
    for (number, keyed_at) in [(1, NOW), (2, NOW + seconds(3)), (3, NOW)] {
        let read = read(number).await;
        assert_eq!((read.keyed_at, &read.settings.key_limits), (Some(keyed_at), &by_number()), "{number}");
        assert_eq!(read.settings.rate_limits, per_second(10));
    }
    assert!(read(2).await.settings.paused && read(1).await.held_until.is_some());
}

pub async fn limit_keys_are_no_change_of_the_limits_of_a_destination(subject: Subject) {
    let made = subject.create(keyed(1)).await;
    let removed = subject.patch(&made, NOW + seconds(1), |settings| settings.key_limits = None).await;
    let raised = |settings: &mut Settings| {
        settings.rate_limits = per_second(20);
        settings.key_limits = by_number();
    };
    subject.patch(&removed.expect("applied"), NOW + seconds(2), raised).await.expect("applied");
    let changes = subject.store.limit_changes(made.id).await.expect("read");
    let changes: Vec<_> = changes.into_iter().map(|change| (change.at, change.limits)).collect();
    assert_eq!(changes, [(NOW, per_second(10)), (NOW + seconds(2), per_second(20))]);
}

pub async fn a_replay_of_a_limit_key_is_claimed_by_its_flow(subject: Subject) {
    subject.with_keys(&["a", "b", "a", "b"]).await;
    for text in ["a", "b"] {
        for claimed in subject.claim_key(text, 9).await {
            subject.sent(&claimed, Verdict::Dead, 1).await;
        }
    }
    let deliveries = DeliveryFilter {
        destination_id: Some(destination_id(1)),
        limit_key: Some(key("a")),
        ..DeliveryFilter::default()
    };
    assert_eq!(subject.begin(1, ReplayFilter { deliveries, ..all_dead() }).await, 2);
    assert_eq!(subject.steps(1).await, 2);
    // One of all keys: only those of the other key are left.
    assert_eq!(subject.begin(2, all_dead()).await, 2);
    let mut woken = Vec::new();
    loop {
        let step = subject.store.step_replay(replay_id(2), NOW + seconds(61)).await.expect("a step");
        woken.extend(step.flows);
        if !step.more {
            break;
        }
    }
    assert_eq!(woken, [flow("b")]);
    assert_eq!(subject.store.replay_destinations().await.expect("read"), [destination_id(1)]);
    assert_eq!(subject.due_flows(NOW + seconds(99), None, 9).await.len(), 2);
    assert!(subject.claim_key("a", 9).await.is_empty(), "no live delivery");
    let claim = async |flow, limit| {
        let request = ClaimRequest { expires_at: NOW + seconds(200), ..flow_request(flow, limit) };
        subject.store.claim_replays(vec![request], NOW + seconds(99)).await.expect("claim").remove(0)
    };
    let of_a = claim(ClaimedFlow::Key(flow("a")), 9).await;
    assert_eq!((numbers_of(&of_a), of_a.next_due), (vec![1, 3], None));
    assert!(of_a.deliveries.iter().all(|claimed| claimed.flow_id == flow("a") && claimed.is_replay));
    assert!(claim(ClaimedFlow::Keyless, 9).await.deliveries.is_empty());
    // A cancelled replay puts back what waits.
    subject.store.cancel_replay(replay_id(2), NOW + seconds(100), activity()).await.expect("cancel");
    assert_eq!(subject.steps(2).await, 2);
    assert!(claim(ClaimedFlow::Key(flow("b")), 9).await.deliveries.is_empty());
}
