//! Destinations and the effects of their edits.

use weir_core::{
    egress::{ClientCertificate, Egress, ProxyChoice, Tls},
    limit::MinInterval,
    signing::{CUSTOM, KeyKind, StyleSpec, style_names},
};

use super::*;
use crate::{DestinationDeletion, EditPosition};

pub async fn a_created_destination_is_read_back(subject: Subject) {
    let mut made = destination(1);
    made.settings.event_types = ["video.*", "order.paid"].map(|pattern| pattern.parse().expect("a pattern")).to_vec();
    let minute = RateLimit::with_burst(300, Period::MINUTE, 3).expect("a limit");
    let second = RateLimit::new(10, Period::SECOND).and_then(|limit| limit.with_margin(50)).expect("a limit");
    let limits = RateLimits::new(vec![second, minute]).expect("limits");
    made.settings.rate_limits = limits.with_min_interval(MinInterval::from_millis(100));
    made.settings.headers = vec![("x-key".to_owned(), "value \"quoted\"".to_owned())];
    made.settings.retry.delays = weir_core::retry::RetryDelays::Schedule(vec![100, 2_000]);
    assert_eq!(*subject.create(made.clone()).await, made);
    let read = subject.store.destination(made.id).await.expect("read").expect("a destination");
    assert_eq!(*read, made);
    assert_eq!(subject.store.destination(destination_id(2)).await.expect("read"), None);
}

pub async fn destinations_are_returned_in_the_requested_order(subject: Subject) {
    subject.create_many(3).await;
    subject.delete(2).await;
    let ids = [3, 9, 2, 1, 3].map(destination_id);
    let found = subject.store.destinations(&ids).await.expect("read");
    let found: Vec<_> = found.into_iter().map(|found| found.map(|found| found.id)).collect();
    assert_eq!(found, [Some(ids[0]), None, None, Some(ids[3]), Some(ids[0])]);
}

pub async fn destinations_are_listed_newest_first_and_by_tenant(subject: Subject) {
    subject.create_many(5).await;
    let mut other = destination(6);
    other.settings.tenant = "other".to_owned();
    subject.create(other).await;
    subject.delete(4).await;
    let of = |tenants: TenantScope| DestinationFilter::of(tenants);
    let mut seen = Vec::new();
    let mut request = page(2);
    loop {
        let page = subject.store.list_destinations(&of(TenantScope::All), request).await.expect("list");
        assert!(page.rows.len() <= 2);
        seen.extend(page.rows.iter().map(|row| row.id));
        request.before = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!(seen, [6, 5, 3, 2, 1].map(destination_id));
    let other = of(TenantScope::one("other"));
    let of_tenant = subject.store.list_destinations(&other, page(10)).await.expect("list");
    assert_eq!(of_tenant.rows.iter().map(|row| row.id).collect::<Vec<_>>(), [destination_id(6)]);
    assert_eq!(of_tenant.next, None);
    let nobody = of(TenantScope::one("nobody"));
    assert!(subject.store.list_destinations(&nobody, page(10)).await.expect("list").rows.is_empty());
    let both = of(TenantScope::Only(["nobody", "other", TENANT].map(str::to_owned).into()));
    assert_eq!(subject.store.list_destinations(&both, page(10)).await.expect("list").rows.len(), 5);
}

pub async fn edits_are_read_in_the_order_of_their_times(subject: Subject) {
    subject.create_many(4).await;
    let began = subject.store.destination(destination_id(1)).await.expect("read").expect("a destination").updated_at;
    let later = began + seconds(1);
    assert!(subject.pause_at(3, "it asked for it", later).await);
    let second = Duration::from_secs(1);
    subject.store.delete_destination(deletion(1, later.since(NOW) + second), activity()).await.expect("delete");
    assert!(subject.pause_at(2, "so did it", later + seconds(2)).await);
    let all = subject.store.edited_after(EditPosition::at(began), 9).await.expect("read");
    let seen: Vec<_> = all.iter().map(|edited| (edited.position.id, edited.destination.is_some())).collect();
    let [first, second, third, fourth] = [1, 2, 3, 4].map(destination_id);
    assert_eq!(seen, [(fourth, true), (third, true), (first, false), (second, true)]);
    assert_eq!(all[1].position.updated_at, later);
    assert!(all[1].destination.as_ref().expect("a destination").settings.paused);
    let two = subject.store.edited_after(all[0].position, 2).await.expect("read");
    assert_eq!(two.iter().map(|edited| edited.position).collect::<Vec<_>>(), [all[1].position, all[2].position]);
}

pub async fn an_edit_applies_only_to_the_version_it_names(subject: Subject) {
    let first = subject.create(destination(1)).await;
    let rename = |settings: &mut Settings| settings.name = "renamed".to_owned();
    let second = subject.patch(&first, NOW + seconds(1), rename).await.expect("applied");
    assert_eq!((second.settings.name.as_str(), second.updated_at), ("renamed", NOW + seconds(1)));
    assert_eq!(second.created_at, NOW);
    let stale = subject.patch(&first, NOW + seconds(2), |settings| settings.name = "lost".to_owned()).await;
    assert_eq!(stale, None);
    assert_eq!(subject.store.destination(first.id).await.expect("read"), Some(second));
}

pub async fn a_deleted_destination_cannot_be_edited(subject: Subject) {
    let first = subject.create(destination(1)).await;
    subject.delete(1).await;
    assert_eq!(subject.patch(&first, NOW + seconds(2), |_| ()).await, None);
    assert!(!subject.pause_at(1, "gone", NOW).await);
    subject.hold(1, NOW + seconds(9), "busy", NOW).await;
    let again = subject.store.delete_destination(deletion(1, seconds(9)), activity()).await.expect("delete");
    assert_eq!(again, Deletion::Missing);
    assert_eq!(subject.store.destination(first.id).await.expect("read"), None);
}

pub async fn changed_limits_are_recorded_and_unchanged_ones_are_not(subject: Subject) {
    let first = subject.create(destination(1)).await;
    let second =
        subject.patch(&first, NOW + seconds(1), |settings| settings.name = "b".to_owned()).await.expect("applied");
    let third = subject
        .patch(&second, NOW + seconds(2), |settings| {
            settings.rate_limits = per_second(99);
        })
        .await;
    let third = third.expect("applied");
    let with_interval = |limits: RateLimits| limits.with_min_interval(MinInterval::from_millis(60_000));
    let unlimited = |settings: &mut Settings| settings.rate_limits = RateLimits::UNLIMITED;
    let fourth = subject.patch(&third, NOW + seconds(3), unlimited).await.expect("applied");
    let add_interval = |settings: &mut Settings| settings.rate_limits = with_interval(settings.rate_limits.clone());
    subject.patch(&fourth, NOW + seconds(4), add_interval).await.expect("applied");
    subject.delete(1).await;
    let changes = subject.store.limit_changes(first.id).await.expect("read");
    let changes: Vec<_> = changes.into_iter().map(|change| (change.at, change.limits)).collect();
    let expected = [
        (NOW, per_second(10)),
        (NOW + seconds(2), per_second(99)),
        (NOW + seconds(3), RateLimits::UNLIMITED),
        (NOW + seconds(4), with_interval(RateLimits::UNLIMITED)),
    ];
    assert_eq!(changes, expected);
}

pub async fn deleting_a_destination_cancels_its_waiting_deliveries_and_keeps_its_history(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=4).await;
    subject.post(2, [5]).await;
    let claimed = subject.claim(1, 3).await;
    subject.settle(result(&claimed[0], Verdict::Delivered)).await;
    subject.settle(result(&claimed[1], Verdict::Retry { at: NOW + seconds(60) })).await;
    subject.delete(1).await;
    let states = [&claimed[0], &claimed[1], &claimed[2]].map(|claimed| claimed.claim.delivery_id);
    assert_eq!(subject.state(states[0]).await, DeliveryState::Delivered);
    assert_eq!(subject.state(states[1]).await, DeliveryState::Cancelled);
    assert_eq!(subject.state(states[2]).await, DeliveryState::Delivering);
    let of_first = DeliveryFilter { destination_id: Some(destination_id(1)), ..DeliveryFilter::default() };
    let all = subject.deliveries(of_first).await;
    assert_eq!(all.iter().filter(|row| row.state == DeliveryState::Cancelled).count(), 2);
    assert_eq!(subject.claim(2, 9).await.len(), 1);
}

pub async fn counts_follow_the_backlog(subject: Subject) {
    subject.create_many(2).await;
    let none = subject.store.destination_counts(destination_id(1)).await.expect("count");
    assert_eq!(none, crate::DestinationCounts::default());
    subject.post(1, 1..=5).await;
    subject.post(2, [6]).await;
    let claimed = subject.claim(1, 3).await;
    subject.settle(result(&claimed[0], Verdict::Delivered)).await;
    subject.settle(result(&claimed[1], Verdict::Retry { at: NOW + seconds(60) })).await;
    let counts = subject.store.destination_counts(destination_id(1)).await.expect("count");
    assert_eq!((counts.pending, counts.retrying, counts.delivering), (2, 1, 1));
    assert_eq!(counts.oldest_created_at, Some(event(2).created_at));
}

pub async fn recent_sends_are_counted_in_a_window(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=3).await;
    for (claimed, sent) in subject.claim(1, 3).await.iter().zip([Some(10), Some(20), None]) {
        let mut result = result(claimed, Verdict::Retry { at: NOW + seconds(60) });
        result.attempt.sent_at = sent.map(|sent| NOW + seconds(sent));
        subject.settle(result).await;
    }
    for (now, window, expected) in [(25, 60, 2), (25, 10, 1), (15, 60, 1), (60, 10, 0)] {
        let recent = subject.store.recent_sends(destination_id(1), NOW + seconds(now), seconds(window)).await;
        assert_eq!(recent.expect("count"), expected, "{window} s before {now} s");
    }
    assert_eq!(subject.store.recent_sends(destination_id(2), NOW + seconds(25), seconds(60)).await.expect("count"), 0);
}

pub async fn recent_arrivals_are_counted_in_a_window(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, [1, 500, 1_000]).await;
    subject.post(2, [2]).await;
    let claimed = subject.claim(1, 1).await;
    subject.settle(result(&claimed[0], Verdict::Delivered)).await;
    let arrivals = async |end: u64, window: u64| {
        let (end, window) = (NOW + Duration::from_millis(end), Duration::from_millis(window));
        let found = subject.store.recent_arrivals(destination_id(1), end, window).await.expect("a count");
        (found.count, found.first_at.map(|at| at.since(NOW).as_millis()))
    };
    assert_eq!(arrivals(1_000, 5_000).await, (3, Some(1)), "in any state");
    assert_eq!(arrivals(1_000, 600).await, (2, Some(500)));
    assert_eq!(arrivals(999, 5_000).await, (2, Some(1)));
    assert_eq!(arrivals(9_000, 5_000).await, (0, None));
}

pub async fn destinations_survive_a_restart(mut subject: Subject) {
    let first = subject.create(destination(1)).await;
    subject.create_many(0).await;
    subject.create(destination(2)).await;
    subject.delete(2).await;
    let edited = subject
        .patch(&first, NOW + seconds(1), |settings| {
            settings.rate_limits = per_second(3);
        })
        .await;
    subject.hold(1, NOW + seconds(60), "busy", NOW).await;
    subject.reopen().await;
    let read = subject.store.destination(first.id).await.expect("read").expect("a destination");
    assert_eq!(read.settings, edited.expect("applied").settings);
    assert_eq!(read.held_until, Some(NOW + seconds(60)));
    assert_eq!(subject.store.destination(destination_id(2)).await.expect("read"), None);
    let known = subject.ingest(vec![matched(event(1))]).await;
    assert_eq!(known[0].wake, [first.id]);
}

/// The secret of every destination in the suite, and a new one.
fn secrets() -> [Secret; 2] {
    [7, 8].map(|byte| Secret::from_bytes(vec![byte; 32]).expect("a secret"))
}

pub async fn a_rotation_keeps_the_previous_secret_until_its_expiry(mut subject: Subject) {
    let [old, new] = secrets();
    let first = subject.create(destination(1)).await;
    let until = NOW + Duration::from_nanos(60_000_000_001);
    let rotate = |settings: &mut Settings| settings.signing = settings.signing.rotated(new.clone(), Some(until));
    let rotated = subject.patch(&first, NOW + seconds(1), rotate).await.expect("applied");
    for reopened in [false, true] {
        if reopened {
            subject.reopen().await;
        }
        let read = subject.store.destination(first.id).await.expect("read").expect("a destination");
        assert_eq!(read, rotated, "reopened: {reopened}");
        let signing = &read.settings.signing;
        assert_eq!(signing.secret, new);
        let before = Timestamp::from_nanos(until.as_nanos() - 1);
        assert_eq!(signing.previous_at(before).map(|previous| &previous.secret), Some(&old));
        assert_eq!(signing.previous_at(until), None);
    }
}

pub async fn a_rotation_of_a_changed_destination_is_refused(subject: Subject) {
    let [old, new] = secrets();
    let first = subject.create(destination(1)).await;
    subject.patch(&first, NOW + seconds(1), |settings| settings.name = "b".to_owned()).await.expect("applied");
    let rotate = |settings: &mut Settings| settings.signing = settings.signing.rotated(new, Some(Timestamp::MAX));
    assert_eq!(subject.patch(&first, NOW + seconds(2), rotate).await, None);
    let read = subject.store.destination(first.id).await.expect("read").expect("a destination");
    assert_eq!((&read.settings.signing.secret, &read.settings.signing.previous), (&old, &None));
}

pub async fn every_signature_style_is_read_back(mut subject: Subject) {
    let named = style_names().filter(|name| *name != CUSTOM).map(StyleSpec::named);
    let own = |text: &str| Some(text.to_owned());
    let others = [
        StyleSpec { header: own("x-s"), timestamp_header: own("x-time"), ..StyleSpec::named("prefixed") },
        StyleSpec { header: own("x-own"), ..StyleSpec::named("slack") },
        StyleSpec {
            signed: own("{id}\n{timestamp}.{body}"),
            value: own("t={timestamp};s={signature}"),
            separator: own(";"),
            encoding: own("base64"),
            ..StyleSpec::named(CUSTOM)
        },
    ];
    let mut made = Vec::new();
    for (number, spec) in (1..).zip(named.chain(others)) {
        let mut styled = destination(number);
        let style = spec.resolve().expect("a style");
        styled.settings.signing = Signing { style: style.clone(), ..Signing::new(style.new_secret(None, [5; 32])) };
        made.push(subject.create(styled).await);
    }
    let mut private = destination(99);
    private.settings.signing = Signing::new(Secret::from_random(KeyKind::Ed25519, [5; 32]));
    made.push(subject.create(private).await);
    subject.reopen().await;
    for made in made {
        assert_eq!(subject.store.destination(made.id).await.expect("read"), Some(made));
    }
}

pub async fn the_form_of_a_body_is_read_back_and_edited(mut subject: Subject) {
    let text = |text: &str| Some(text.to_owned());
    let mut made = Vec::new();
    for (number, format) in (1..).zip(BodyFormat::ALL) {
        let mut formed = destination(number);
        formed.settings.body = BodySettings { format, content_type: text("text/plain"), source: text("urn:acme") };
        made.push(subject.create(formed).await);
    }
    let plain = BodySettings::default();
    let edit = |settings: &mut Settings| settings.body = plain.clone();
    made[1] = subject.patch(&made[1], NOW + seconds(1), edit).await.expect("applied");
    assert_eq!(made[1].settings.body, plain);
    subject.reopen().await;
    for made in made {
        assert_eq!(subject.store.destination(made.id).await.expect("read"), Some(made));
    }
}

pub async fn the_way_out_is_read_back_with_its_secrets_and_edited(mut subject: Subject) {
    let client = ClientCertificate { chain: "chain".to_owned(), key: "key".to_owned() };
    let own = Egress {
        proxy: "http://weir:p%40ss@proxy.example:3128".parse().expect("a proxy"),
        tls: Tls { ca: Some("ca".to_owned()), client: Some(client) },
    };
    let mut made = Vec::new();
    for (number, proxy) in (1..).zip([ProxyChoice::Installation, ProxyChoice::Direct, own.proxy.clone()]) {
        let mut reached = destination(number);
        reached.settings.egress = Egress { proxy, ..own.clone() };
        made.push(subject.create(reached).await);
    }
    let edit = |settings: &mut Settings| settings.egress = Egress::default();
    made[0] = subject.patch(&made[0], NOW + seconds(1), edit).await.expect("applied");
    subject.reopen().await;
    for made in made {
        assert_eq!(subject.store.destination(made.id).await.expect("read"), Some(made));
    }
}

pub async fn a_deletion_names_the_version_that_it_deletes(subject: Subject) {
    let first = subject.create(destination(1)).await;
    subject.post(1, 1..=3).await;
    let edited =
        subject.patch(&first, NOW + seconds(1), |settings| settings.name = "b".to_owned()).await.expect("applied");
    let delete = async |version: &Destination| {
        let expected_updated_at = Some(version.updated_at);
        let deletion = DestinationDeletion { expected_updated_at, ..deletion(1, seconds(2)) };
        subject.store.delete_destination(deletion, activity()).await.expect("delete")
    };
    assert_eq!(delete(&first).await, Deletion::Changed);
    let waiting = subject.store.destination_counts(first.id).await.expect("count");
    assert_eq!(waiting.pending, 3, "a refused deletion cancels nothing");
    assert_eq!(delete(&edited).await, Deletion::Deleted);
    assert_eq!(subject.store.destination_counts(first.id).await.expect("count").pending, 0);
    assert_eq!(delete(&edited).await, Deletion::Missing);
}
