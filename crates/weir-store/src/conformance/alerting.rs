//! Alert policies, conditions of destinations, and recorded alert states.

use weir_core::{
    alert::{Alert, AlertOverrides, AlertPolicy, AlertRecord, AlertState, Measure},
    shed::{ClientOverride, Mode, ShedPolicy},
};

use super::{replays::all_dead, *};
use crate::Condition;

impl Subject {
    async fn conditions(&self) -> Vec<Condition> {
        self.store.conditions(&TenantScope::one(TENANT)).await.expect("conditions")
    }

    /// The condition of destination `number`, which must have one.
    async fn condition(&self, number: u128) -> Condition {
        let mut found = self.conditions().await;
        found.retain(|condition| condition.destination_id == destination_id(number));
        found.pop().expect("a condition")
    }
}

pub async fn the_alert_policy_is_the_default_until_one_is_set(mut subject: Subject) {
    assert_eq!(subject.store.alert_policy().await.expect("read"), AlertPolicy::default());
    let first = AlertPolicy { backlog_depth: Some(1_000), dead_letters: None, ..AlertPolicy::default() };
    let second = AlertPolicy { oldest_age_s: Some(60), drain_beyond_ttl: false, ..first };
    let mut current = AlertPolicy::default();
    for policy in [first, second] {
        assert!(subject.store.set_alert_policy(current, policy, activity()).await.expect("set"));
        // It is no longer the expected one.
        assert!(!subject.store.set_alert_policy(current, AlertPolicy::default(), activity()).await.expect("set"));
        assert_eq!(subject.store.alert_policy().await.expect("read"), policy);
        current = policy;
    }
    subject.reopen().await;
    assert_eq!(subject.store.alert_policy().await.expect("read"), second);
}

pub async fn the_shed_policy_is_the_default_until_one_is_set(mut subject: Subject) {
    assert_eq!(subject.store.shed_policy().await.expect("read"), ShedPolicy::default());
    let acme = ClientOverride { tenant: Some("acme".into()), key: None, in_flight: Some(0), weight: 4 };
    let mut first = ShedPolicy { mode: Some(Mode::DryRun), target_ms: 400, ..ShedPolicy::default() };
    first.clients.overrides.push(acme);
    let second = ShedPolicy { mode: None, ..first.clone() };
    let mut current = ShedPolicy::default();
    for policy in [first, second.clone()] {
        assert!(subject.store.set_shed_policy(current, policy.clone(), activity()).await.expect("set"));
        // It is no longer the expected one.
        let late = subject.store.set_shed_policy(ShedPolicy::default(), ShedPolicy::default(), activity()).await;
        assert!(!late.expect("set"));
        assert_eq!(subject.store.shed_policy().await.expect("read"), policy);
        current = policy;
    }
    subject.reopen().await;
    assert_eq!(subject.store.shed_policy().await.expect("read"), second);
}

pub async fn a_destination_keeps_its_own_alerts(mut subject: Subject) {
    let mut made = destination(1);
    made.settings.alerts =
        AlertOverrides { backlog_depth: Some(None), dead_letters: Some(Some(7)), ..AlertOverrides::default() };
    let made = subject.create(made).await;
    subject.reopen().await;
    assert_eq!(subject.store.destination(made.id).await.expect("read"), Some(made.clone()));
    let patched = subject.patch(&made, NOW + seconds(1), |to| to.alerts = AlertOverrides::default()).await;
    assert_eq!(patched.expect("an edit").settings.alerts, AlertOverrides::default());
}

pub async fn alert_subscribers_are_destinations_that_name_operational_events(mut subject: Subject) {
    for (number, pattern) in [(1, "*"), (2, "weir.*"), (3, "weir.breaker.opened"), (4, "weirdo.*"), (5, "weir.*")] {
        let mut made = destination(number);
        made.settings.event_types = vec!["video.*".parse().expect("a pattern"), pattern.parse().expect("a pattern")];
        subject.create(made).await;
    }
    subject.delete(5).await;
    subject.reopen().await;
    assert_eq!(subject.store.alert_subscribers().await.expect("read"), [2, 3].map(destination_id));
    let third = subject.store.destination(destination_id(3)).await.expect("read").expect("a destination");
    let unsubscribe = |to: &mut Settings| to.event_types = vec!["*".parse().expect("a pattern")];
    subject.patch(&third, NOW + seconds(1), unsubscribe).await.expect("an edit");
    assert_eq!(subject.store.alert_subscribers().await.expect("read"), [destination_id(2)]);
}

pub async fn conditions_count_waiting_and_undelivered_deliveries(subject: Subject) {
    subject.create_many(3).await;
    assert_eq!(subject.conditions().await, []);
    subject.post(1, 1..=6).await;
    let mut expiring = event(7);
    expiring.options.expires_at = Some(NOW + seconds(90));
    subject.ingest(vec![named(expiring, &[1])]).await;
    let claimed = subject.claim(1, 4).await;
    subject.settle(result(&claimed[0], Verdict::Dead)).await;
    subject.settle(result(&claimed[1], Verdict::Delivered)).await;
    subject.settle(result(&claimed[2], Verdict::Retry { at: NOW + seconds(600) })).await;
    let condition = subject.condition(1).await;
    assert_eq!((condition.waiting, condition.undelivered), (4, 1), "one is in flight");
    subject.post(2, 8..=9).await;
    assert_eq!(subject.store.backlog().await.expect("read"), 6);
    assert_eq!(condition.last_expires_at, Some(NOW + seconds(90)));
    assert!(condition.oldest_created_at.is_some_and(|at| at <= event(4).created_at));
    // A later one that never expires is the last of the backlog now, and is taken to live as long.
    subject.post(1, [10]).await;
    let later = event(10).created_at.since(event(7).created_at);
    assert_eq!(subject.condition(1).await.last_expires_at, Some(NOW + seconds(90) + later));
    assert_eq!(subject.conditions().await.len(), 2, "the third destination has no condition");
}

pub async fn conditions_count_no_deliveries_of_replays(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=5).await;
    let claimed = subject.claim(1, 3).await;
    for (claimed, verdict) in claimed.iter().zip([Verdict::Dead, Verdict::Dead, Verdict::Failed]) {
        subject.settle(result(claimed, verdict)).await;
    }
    assert_eq!(subject.condition(1).await.undelivered, 3, "a failed one is a dead letter too");
    assert_eq!(subject.begin(1, all_dead()).await, 3);
    subject.steps(1).await;
    let condition = subject.condition(1).await;
    assert_eq!((condition.waiting, condition.undelivered), (2, 0));
    assert_eq!(condition.oldest_created_at, Some(event(4).created_at));
    assert_eq!(subject.store.backlog().await.expect("read"), 5, "the gauge has all that waits");
}

pub async fn conditions_include_impaired_destinations_of_the_given_tenants(subject: Subject) {
    let mut other = destination(4);
    other.settings.tenant = "other".to_owned();
    subject.create(other).await;
    subject.create_many(3).await;
    subject.post(3, [1]).await;
    for number in [1, 3, 4] {
        subject.pause(number).await;
    }
    let named = |conditions: Vec<Condition>| conditions.iter().map(|of| of.destination_id).collect::<Vec<_>>();
    assert_eq!(named(subject.conditions().await), [1, 3].map(destination_id));
    let of_other = subject.store.conditions(&TenantScope::one("other")).await.expect("conditions");
    assert_eq!(named(of_other), [destination_id(4)]);
    let of_all = subject.store.conditions(&TenantScope::All).await.expect("conditions");
    assert_eq!(named(of_all), [1, 3, 4].map(destination_id));
    subject.delete(3).await;
    assert_eq!(named(subject.conditions().await), [destination_id(1)]);
}

pub async fn alerts_are_recorded_only_over_the_expected_version(mut subject: Subject) {
    subject.create_many(1).await;
    let high = AlertState::default().with(&Alert::BacklogHigh(vec![Measure::OldestAgeS]), NOW);
    let told = |told| AlertRecord::new(told, high);
    let record =
        async |version, record| subject.store.record_alerts(destination_id(1), version, record).await.expect("record");
    assert!(record(0, told(high)).await);
    assert!(!record(0, AlertRecord::default()).await, "the version has changed");
    assert!(record(1, told(high.with(&Alert::Dead { new: 3 }, NOW))).await);
    assert!(record(2, told(AlertState::default())).await);
    subject.reopen().await;
    let condition = subject.condition(1).await;
    assert_eq!((condition.version, condition.record), (3, told(AlertState::default())));
}
