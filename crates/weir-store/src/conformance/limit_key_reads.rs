//! What is read by limit keys and their flows: the last sends, due flows, backlogs, and lists.

use weir_core::alert::{BoundKeys, DestinationStatus};

use super::{
    limit_keys::{by_number, flow, key, keyed, of_key},
    *,
};
use crate::{
    ErrorFilter, FlowKey, KeyBacklog, KeyBacklogs, KeyCounts, KeyWatch, ListOrder, Purge, SendHistory, SendsRequest,
    SentCounts, WatchedKeys,
};

impl Subject {
    pub(super) async fn histories(&self, ids: &[DestinationId]) -> Vec<SendHistory> {
        self.store.send_history(ids).await.expect("read")
    }

    async fn key_backlogs(&self, search: Option<&str>, limit: u32) -> Vec<(String, u64, u128)> {
        let backlogs = self.store.key_backlogs(destination_id(1), search, limit).await.expect("read");
        assert!(!backlogs.is_partial);
        let row = |of: KeyBacklog| (of.key.to_string(), of.waiting, of.oldest_at.since(NOW).as_millis());
        backlogs.keys.into_iter().map(row).collect()
    }
}

/// Keys of the destination may send 2/s each, and key `a` is paused.
pub async fn keys_that_wait_for_their_own_limits_are_named_and_delay_their_destination(subject: Subject) {
    let with_limit = |limit| {
        let mut destination = keyed(1);
        destination.settings.rate_limits = per_second(limit);
        Arc::new(destination)
    };
    subject.create(keyed(1)).await;
    let look = async |destination: Arc<Destination>| {
        let mut watch = KeyWatch::default();
        watch.look(&*subject.store, [&destination], NOW).await.expect("look");
        let status = DestinationStatus { waiting: 9, drains_in: Some(seconds(1)), ..Default::default() };
        (watch.add_to(status, destination.id), watch.seen(destination.id, NOW + seconds(1)).expect("seen"))
    };
    subject.post_keys(1, &["a", "b", "c", "c", "c", "c", "c", "c", "d", "d", "e"]).await;
    let (status, seen) = look(with_limit(100)).await;
    let BoundKeys { named, count, drains_in } = status.bound_keys;
    assert_eq!((named, count), (vec![key("c"), key("d"), key("b")], 4));
    assert_eq!((drains_in, status.drains_in), (Some(seconds(3)), Some(seconds(3))), "six at two a second");
    assert_eq!(seen, WatchedKeys { all_bound: true, per_s: Some(8.0), drain_in: None }, "the others are paused");
    // Where the destination leaves them less than their own limits, these hold nothing back.
    let (status, seen) = look(with_limit(4)).await;
    assert_eq!((status.bound_keys, status.drains_in), (BoundKeys::default(), Some(seconds(1))));
    assert!(!seen.all_bound);
    // Without a paused key it is known when the last one is done; a second has passed since.
    let mut resumed = keyed(1);
    resumed.settings.rate_limits = per_second(100);
    Arc::make_mut(resumed.settings.key_limits.as_mut().expect("limits of keys")).overrides.clear();
    let (_, seen) = look(Arc::new(resumed)).await;
    assert_eq!(
        seen,
        WatchedKeys { all_bound: true, per_s: Some(10.0), drain_in: Some(seconds(2)) },
        "six at two a second, a second ago"
    );
}

pub async fn the_places_of_a_flow_count_only_its_key(subject: Subject) {
    subject.with_keys(&["a", "b", "a", "b", "a"]).await;
    let filter = DeliveryFilter { order: ListOrder::Oldest, ..DeliveryFilter::default() };
    let ids: Vec<_> = subject.deliveries(filter).await.iter().map(|delivery| delivery.id).collect();
    for (text, expected) in
        [("a", [Some(0), None, Some(1), None, Some(2)]), ("b", [None, Some(0), None, Some(1), None]), ("c", [None; 5])]
    {
        let positions = subject.store.due_positions(flow(text), &ids, 9, NOW + seconds(10)).await.expect("positions");
        assert_eq!(
            ids.iter().map(|id| positions.found.get(id).map(|position| position.ahead)).collect::<Vec<_>>(),
            expected
        );
    }
}

pub async fn the_last_sends_of_a_flow_are_those_of_its_key(mut subject: Subject) {
    subject.with_keys(&["a", "a", "b", "c"]).await;
    subject.create(destination(2)).await;
    let sent = subject.claim_key("a", 9).await;
    for (claimed, after) in sent.iter().zip([20, 15]) {
        subject.sent(claimed, Verdict::Delivered, after).await;
    }
    subject.claim_key("b", 9).await;
    subject.reopen().await;
    let last = |after: Option<u64>, unsettled| SendHistory {
        last_sent_at: after.map(|after| NOW + seconds(after)),
        unsettled,
    };
    let ids = [flow("b"), destination_id(1), flow("none"), flow("a"), destination_id(2), flow("c")];
    let (out, none) = (last(None, true), last(None, false));
    // The sends of a destination are those of all its flows.
    let expected = [out, last(Some(20), true), none, last(Some(20), false), none, none];
    assert_eq!(subject.histories(&ids).await, expected);
    assert_eq!(subject.histories(&[flow("a"), flow("b")]).await, [last(Some(20), false), out]);
    // A recovered claim may have been sent until then.
    subject.recover(30, true, 9).await;
    assert_eq!(subject.histories(&[flow("b"), flow("a")]).await, [last(Some(30), false), last(Some(20), false)]);
    // The mark of a restore is that of the destination.
    subject.store.mark_restored(NOW + seconds(25)).await.expect("mark");
    let marked = [last(Some(25), false), last(Some(30), false), last(Some(25), false), none];
    assert_eq!(subject.histories(&[flow("a"), flow("b"), flow("c"), flow("none")]).await, marked);
}

pub async fn sends_of_flows_are_counted_by_the_buckets_of_a_window(subject: Subject) {
    subject.with_keys(&["a", "a", "a", "b", "b"]).await;
    for (claimed, after) in subject.claim_key("a", 2).await.iter().zip([5, 10]) {
        subject.sent(claimed, Verdict::Delivered, after).await;
    }
    let of_b = subject.claim_key("b", 9).await;
    subject.sent(&of_b[0], Verdict::Delivered, 10).await;
    let limit = RateLimit::new(3, Period::MINUTE).expect("a limit").as_window();
    let counts = async |ids: &[DestinationId], since: u64| {
        let mut counts = subject.store.sent_counts(ids, NOW + seconds(since), limit).await.expect("read");
        counts.buckets.sort_unstable();
        counts
    };
    let bucket = |after: u64| (NOW + seconds(after)).as_nanos() / 100_000_000 + 1;
    let sums =
        |buckets: &[(i64, u32)], claimed| SentCounts { buckets: buckets.to_vec(), claimed, ..Default::default() };
    let (fifth, tenth) = ((bucket(5), 1), (bucket(10), 1));
    assert_eq!(counts(&[flow("a")], 0).await, sums(&[fifth, tenth], 0));
    assert_eq!(counts(&[flow("a")], 5).await, sums(&[tenth], 0));
    assert_eq!(counts(&[flow("b")], 0).await, sums(&[tenth], 1));
    assert_eq!(counts(&[flow("none")], 0).await, SentCounts::default());
    assert_eq!(counts(&[flow("a"), flow("b")], 0).await, sums(&[fifth, (bucket(10), 2)], 1));
    assert_eq!(counts(&[destination_id(1)], 0).await, sums(&[fifth, (bucket(10), 2)], 1));
    subject.store.mark_restored(NOW + seconds(20)).await.expect("mark");
    assert_eq!(counts(&[flow("a")], 5).await.restored, Some(NOW + seconds(20)));
    assert_eq!(counts(&[flow("a")], 20).await.restored, None);
}

pub async fn sends_of_flows_are_summed_up_in_costs(subject: Subject) {
    subject.create(keyed(1)).await;
    let costing = |number, text, cost| {
        let mut event = of_key(number, text);
        event.options.cost = Some(non_zero(cost));
        named(event, &[1])
    };
    let events = vec![
        costing(1, "a", 3),
        costing(2, "a", 5),
        costing(3, "a", 7),
        costing(4, "a", 9),
        costing(5, "b", 100),
        named(of_key(6, "b"), &[1]),
    ];
    subject.ingest(events).await;
    subject.sent(&subject.claim_key("a", 1).await[0], Verdict::Delivered, 10).await;
    subject.claim_key("a", 1).await;
    let points = RateLimit::new(1_000, Period::MINUTE).and_then(RateLimit::in_costs).expect("a limit");
    let counts = async |id| subject.store.sent_counts(&[id], NOW, points).await.expect("read");
    let number = (NOW + seconds(10)).as_nanos() / 100_000_000 + 1;
    // One is recorded, one is out, and two wait.
    let expected = SentCounts { buckets: vec![(number, 3)], claimed: 5, restored: None, usual_cost: 8 * 256 };
    assert_eq!(counts(flow("a")).await, expected);
    let waiting = SentCounts { usual_cost: 101 * 128, ..SentCounts::default() };
    assert_eq!(counts(flow("b")).await, waiting);
}

pub async fn what_a_flow_is_says_any_of_its_deliveries(subject: Subject) {
    subject.with_keys(&["a", "b", "b"]).await;
    subject.create(keyed(2)).await;
    subject.ingest(vec![named(of_key(9, ""), &[2])]).await;
    let of_two = key("").flow_id(destination_id(2));
    let is = |number, text: &str| Some(FlowKey { destination_id: destination_id(number), key: key(text) });
    let flows = [flow("b"), flow("none"), of_two, flow("a"), flow("b"), destination_id(1)];
    let expected = [is(1, "b"), None, is(2, ""), is(1, "a"), is(1, "b"), None];
    assert_eq!(subject.store.flow_keys(&flows).await.expect("read"), expected);
    // An ended delivery still says it.
    subject.sent(&subject.claim_key("a", 1).await[0], Verdict::Delivered, 10).await;
    assert_eq!(subject.store.flow_keys(&[flow("a")]).await.expect("read"), [is(1, "a")]);
    assert_eq!(subject.store.flow_keys(&[]).await.expect("read"), []);
}

pub async fn due_flows_are_listed_in_the_order_of_ids(subject: Subject) {
    let texts = ["a", "b", "c", "d"];
    subject.with_keys(&texts).await;
    subject.post_keys(11, &texts).await;
    // Without keys there are no flows.
    subject.create(destination(2)).await;
    subject.post(2, [20]).await;
    let mut flows = texts.map(flow);
    flows.sort_unstable();
    let soon = NOW + seconds(10);
    let listed = subject.store.due_flows(soon, None, 9).await.expect("list");
    for due in &listed {
        let number = texts.iter().position(|text| flow(text) == due.destination_id).expect("a flow") as u64 + 1;
        assert_eq!(due.due, event(number).created_at);
    }
    assert_eq!(listed.iter().map(|due| due.destination_id).collect::<Vec<_>>(), flows);
    assert_eq!(subject.due_flows(soon, None, 2).await, flows[..2]);
    assert_eq!(subject.due_flows(soon, Some(flows[1]), 9).await, flows[2..]);
    assert_eq!(subject.due_flows(soon, Some(flows[3]), 9).await, []);
    assert_eq!(subject.due_flows(event(2).created_at, None, 9).await, [flow("a")]);
    let waiting = subject.store.due_destinations(soon, None, 9).await.expect("list");
    assert_eq!(waiting.iter().map(|due| due.destination_id).collect::<Vec<_>>(), [1, 2].map(destination_id));
    subject.claim_key("a", 9).await;
    assert!(!subject.due_flows(soon, None, 9).await.contains(&flow("a")));
}

pub async fn the_keys_with_the_longest_backlogs_are_listed_first(subject: Subject) {
    subject.create(destination(1)).await;
    subject.post(1, [1]).await;
    let current = subject.store.destination(destination_id(1)).await.expect("read").expect("a destination");
    let with_keys = |settings: &mut Settings| settings.key_limits = by_number();
    subject.patch(&current, NOW + seconds(1), with_keys).await.expect("applied");
    subject.post_keys(2, &["b", "Z_%", "a", "b", "", "é\\b", "a", "b"]).await;
    subject.create(keyed(2)).await;
    subject.ingest(vec![named(of_key(20, "other"), &[2])]).await;
    let row = |text: &str, waiting, oldest| (text.to_owned(), waiting, oldest);
    // By the bytes of the keys where the backlogs are equal.
    let all = [row("b", 3, 2), row("a", 2, 4), row("", 1, 6), row("Z_%", 1, 3), row("é\\b", 1, 7)];
    assert_eq!(subject.key_backlogs(None, 9).await, all);
    assert_eq!(subject.key_backlogs(Some(""), 9).await, all);
    assert_eq!(subject.key_backlogs(None, 2).await, all[..2]);
    assert_eq!(subject.key_backlogs(Some("b"), 9).await, [all[0].clone(), all[4].clone()]);
    for text in ["Z", "_", "%", "_%"] {
        assert_eq!(subject.key_backlogs(Some(text), 9).await, [all[3].clone()], "{text}");
    }
    assert_eq!(subject.key_backlogs(Some("z"), 9).await, [], "upper and lower case differ");
    // Deliveries in flight do not wait.
    subject.claim_key("b", 2).await;
    assert_eq!(subject.key_backlogs(Some("b"), 1).await, [row("b", 1, 9)]);
    let none = subject.store.key_backlogs(destination_id(9), None, 9).await.expect("read");
    assert_eq!(none, KeyBacklogs::default());
}

pub async fn what_is_out_of_one_key_is_counted_by_state(subject: Subject) {
    subject.with_keys(&["a", "b", "a", "a", "b", "a"]).await;
    subject.create(keyed(2)).await;
    subject.ingest(vec![named(of_key(9, "a"), &[2])]).await;
    let counts = async |text: &str| subject.store.key_counts(destination_id(1), &key(text)).await.expect("read");
    let expected = |pending, retrying, delivering, oldest: Option<u64>| KeyCounts {
        pending,
        retrying,
        delivering,
        oldest_at: oldest.map(|number| event(number).created_at),
    };
    assert_eq!(counts("a").await, expected(4, 0, 0, Some(1)));
    let claimed = subject.claim_key("a", 3).await;
    subject.sent(&claimed[0], Verdict::Delivered, 1).await;
    subject.sent(&claimed[1], Verdict::Retry { at: NOW + seconds(60) }, 1).await;
    // The claim is out, and the retry was stored before the last one.
    assert_eq!(counts("a").await, expected(1, 1, 1, Some(3)));
    assert_eq!(counts("b").await, expected(2, 0, 0, Some(2)));
    assert_eq!(counts("none").await, KeyCounts::default());
    // The n-th event is n ms later.
    let arrived = async |text: &str, until: u64| {
        let (now, window) = (NOW + Duration::from_millis(until), Duration::from_millis(3));
        subject.store.recent_arrivals(flow(text), now, window).await.expect("read").count
    };
    assert_eq!((arrived("a", 6).await, arrived("b", 6).await, arrived("a", 60).await), (3, 1, 0));
}

pub async fn the_sends_of_one_key_are_listed_in_their_order(subject: Subject) {
    subject.with_keys(&["a", "a", "b", "a"]).await;
    let sent = subject.claim_key("a", 9).await;
    for (claimed, after) in sent.iter().zip([20, 15, 30]) {
        subject.sent(claimed, Verdict::Delivered, after).await;
    }
    subject.sent(&subject.claim_key("b", 1).await[0], Verdict::Delivered, 17).await;
    let all = async |destination_id, from: u64, to: u64| {
        let (from, to) = (NOW + seconds(from), NOW + seconds(to));
        let mut request = SendsRequest { destination_id, from, to, after: None, limit: 2 };
        let mut seen = Vec::new();
        loop {
            let page = subject.store.sends(request).await.expect("sends");
            seen.extend(page.iter().map(|send| send.position.sent_at.since(NOW).as_secs()));
            match page.last() {
                Some(last) if page.len() == 2 => request.after = Some(last.position),
                _ => return seen,
            }
        }
    };
    assert_eq!(all(flow("a"), 0, 60).await, [15, 20, 30]);
    assert_eq!(all(flow("a"), 16, 30).await, [20]);
    assert_eq!(all(flow("b"), 0, 60).await, [17]);
    assert_eq!(all(flow("none"), 0, 60).await, Vec::<u64>::new());
    assert_eq!(all(destination_id(1), 0, 60).await, [15, 17, 20, 30]);
}

pub async fn deliveries_are_listed_by_their_limit_key(subject: Subject) {
    subject.with_keys(&["a", "b", "a", "a", "b", "a"]).await;
    subject.create(keyed(2)).await;
    subject.ingest(vec![named(of_key(9, "a"), &[2])]).await;
    let claimed = subject.claim_key("a", 3).await;
    subject.sent(&claimed[0], Verdict::Delivered, 1).await;
    for dead in &claimed[1..] {
        subject.sent(dead, Verdict::Dead, 1).await;
    }
    let of_a = DeliveryFilter {
        destination_id: Some(destination_id(1)),
        limit_key: Some(key("a")),
        ..DeliveryFilter::default()
    };
    let mut all: Vec<_> = claimed.iter().map(|claimed| claimed.claim.delivery_id).collect();
    all.push(subject.claim_key("a", 1).await[0].claim.delivery_id);
    let dead = DeliveryFilter { states: vec![DeliveryState::Dead], ..of_a.clone() };
    let oldest = DeliveryFilter { order: ListOrder::Oldest, ..of_a.clone() };
    let from = DeliveryFilter { from: Some(event(4).created_at), ..oldest.clone() };
    let typed = DeliveryFilter { event_type: Some("video.*".parse().expect("a pattern")), ..oldest.clone() };
    let failed = DeliveryFilter { error: Some(ErrorFilter::Status(500)), ..oldest.clone() };
    let in_flight = DeliveryFilter { states: vec![DeliveryState::Delivering], ..of_a.clone() };
    let elsewhere = DeliveryFilter { destination_id: None, ..of_a.clone() };
    let reversed: Vec<_> = all.iter().rev().copied().collect();
    for (filter, expected) in [
        (&of_a, &reversed[..]),
        (&oldest, &all[..]),
        (&dead, &reversed[1..3]),
        (&from, &all[2..]),
        (&typed, &all[..]),
        (&failed, &[]),
        (&in_flight, &all[3..]),
        (&elsewhere, &[]),
    ] {
        for limit in [1, 200] {
            assert_eq!(subject.delivery_ids(filter, limit).await, expected, "{filter:?}");
        }
        let counted = subject.store.count_deliveries(filter).await.expect("count");
        assert_eq!((counted.value, counted.capped), (expected.len() as u64, false), "{filter:?}");
    }
    let groups = subject.store.group_failures(&dead).await.expect("groups").groups;
    assert_eq!(groups.iter().map(|group| group.deliveries).collect::<Vec<_>>(), [2]);
}

pub async fn a_purge_of_a_limit_key_leaves_the_others(subject: Subject) {
    subject.with_keys(&["a", "b", "a", "a", "b"]).await;
    let now = NOW + seconds(60);
    let of_a = Purge {
        destination_id: destination_id(1),
        limit_key: Some(key("a")),
        pending: true,
        retrying: true,
        event_type: None,
        before: event(4).created_at,
        now,
    };
    let none = Purge { event_type: Some("order.*".parse().expect("a pattern")), ..of_a.clone() };
    let rest = Purge { event_type: Some("video.*".parse().expect("a pattern")), before: now, ..of_a.clone() };
    for (purge, cancelled) in [(&none, 0), (&of_a, 2), (&of_a, 0), (&rest, 1)] {
        assert_eq!(subject.store.count_purge(purge).await.expect("count"), cancelled, "{purge:?}");
        assert_eq!(subject.store.purge(purge, activity()).await.expect("purge"), cancelled, "{purge:?}");
    }
    assert!(subject.claim_key("a", 9).await.is_empty());
    assert_eq!(subject.claim_key("b", 9).await.len(), 2);
}
