use serde_json::{Value, json};
use weir_core::{
    LimitGroup, Period, RateLimit, RateLimits,
    alert::GroupStatus,
    refusals::{Cause, Refusals, Remedy},
    refusing::Refusing,
};
use weir_queue::conformance::settings;
use weir_store::GroupBacklog;

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

/// Destination `number`, with a limit of 10/s and a subscription to these event types.
pub(super) fn destination(number: u8, event_types: &str) -> Arc<Destination> {
    let limits = RateLimits::new(vec![RateLimit::new(10, Period::SECOND).unwrap()]).unwrap();
    let mut made = Destination { id: DestinationId::from_bytes([number; 16]), ..settings(&limits, 64) };
    made.settings.event_types = vec![event_types.parse().unwrap()];
    Arc::new(made)
}

fn dead(about: &Destination, count: u64) -> Condition {
    Condition {
        destination_id: about.id,
        waiting: 0,
        oldest_created_at: None,
        last_expires_at: None,
        undelivered: count,
        record: AlertRecord::default(),
        version: 6,
    }
}

/// The update for a destination that nothing is known to refuse.
fn update(about: &Arc<Destination>, condition: &Condition, subscribers: &[Arc<Destination>]) -> Option<AlertUpdate> {
    let status = condition.status(about, None, None, None, NOW);
    alert_update(about, condition, &status, false, &AlertPolicy::default(), subscribers, NOW)
}

fn recipients_in(alert_update: Option<&AlertUpdate>) -> Vec<Vec<DestinationId>> {
    alert_update
        .into_iter()
        .flat_map(|alert_update| &alert_update.events)
        .map(|new| new.destinations.clone().unwrap())
        .collect()
}

#[test]
fn subscribers_get_alerts_about_others_but_none_about_dead_letters_of_subscribers() {
    let (first, second, other) = (destination(1, "weir.*"), destination(2, "weir.*"), destination(3, "*"));
    let subscribers = [first.clone(), second.clone()];
    let of = |about| update(about, &dead(about, 3), &subscribers);
    assert_eq!(recipients_in(of(&other).as_ref()), [vec![first.id, second.id]]);
    // The two would send alerts to each other without end.
    assert_eq!(recipients_in(of(&first).as_ref()), [vec![]]);
    let mut paused = Destination::clone(&first);
    paused.paused_reason = Some("410 Gone".to_owned());
    assert_eq!(recipients_in(of(&Arc::new(paused)).as_ref()), [vec![second.id], vec![]]);
}

#[test]
fn an_alert_without_recipients_is_in_the_history_and_a_later_subscriber_still_gets_it() {
    let other = destination(3, "*");
    let condition = dead(&other, 3);
    let first = update(&other, &condition, &[destination(1, "weir.breaker.opened")]).unwrap();
    assert_eq!(recipients_in(Some(&first)), [vec![]]);
    assert_eq!(first.record.told, AlertState::default());
    // It is in the history once.
    let again = Condition { record: first.record, version: 7, ..condition };
    assert!(update(&other, &again, &[]).is_none());
    let subscriber = destination(2, "weir.*");
    let told = update(&other, &again, std::slice::from_ref(&subscriber)).unwrap();
    assert_eq!(recipients_in(Some(&told)), [vec![subscriber.id]]);
    let told = Condition { record: told.record, version: 8, ..again };
    assert!(update(&other, &told, &[subscriber]).is_none());
}

#[test]
fn dead_letters_that_nobody_is_told_of_are_in_the_history_once_an_hour() {
    let other = destination(3, "*");
    let status = |count| dead(&other, count).status(&other, None, None, None, NOW);
    let at = |condition: &Condition, count, secs| {
        let now = NOW + Duration::from_secs(secs);
        alert_update(&other, condition, &status(count), false, &AlertPolicy::default(), &[], now)
    };
    let first = at(&dead(&other, 3), 3, 0).unwrap();
    let condition = Condition { record: first.record, ..dead(&other, 3) };
    assert!(at(&condition, 9, 3_599).is_none());
    let second = at(&condition, 9, 3_600).unwrap();
    let data: Value = serde_json::from_slice(&second.events[0].event.body.data()).unwrap();
    assert_eq!((&data["new"], &data["dead_letters"]), (&json!(6), &json!(9)));
}

#[test]
fn operators_are_told_of_all_tenants_by_an_event_that_no_tenant_sees() {
    let (subscriber, other) = (destination(1, "weir.*"), destination(3, "*"));
    let mut operators = Destination::clone(&destination(2, "weir.*"));
    operators.settings.tenant = ALL_TENANTS.to_owned();
    let operators = Arc::new(operators);
    let told = update(&other, &dead(&other, 3), &[subscriber.clone(), operators.clone()]).unwrap();
    let tenants: Vec<_> = told.events.iter().map(|new| new.event.tenant.as_str()).collect();
    assert_eq!(tenants, [&*other.settings.tenant, ALL_TENANTS]);
    assert_eq!(recipients_in(Some(&told)), [vec![subscriber.id], vec![operators.id]]);
    let data: Value = serde_json::from_slice(&told.events[1].event.body.data()).unwrap();
    assert_eq!(data["tenant"], other.settings.tenant);
    // Without a subscriber of the tenant, its history has the alert all the same.
    let told = update(&other, &dead(&other, 3), std::slice::from_ref(&operators)).unwrap();
    assert_eq!(recipients_in(Some(&told)), [vec![], vec![operators.id]]);
    assert_ne!(told.record.told, AlertState::default());
}

#[test]
fn the_idempotency_key_of_an_event_contains_the_version_of_the_record() {
    let (subscriber, other) = (destination(1, "weir.*"), destination(3, "*"));
    let alert_update = update(&other, &dead(&other, 3), &[subscriber]).unwrap();
    let event = &alert_update.events[0].event;
    assert_eq!(event.idempotency_key, Some(format!("weir.delivery.dead/{}/7", other.id)));
    let data: serde_json::Value = serde_json::from_slice(&event.body.data()).unwrap();
    let expected = json!({
        "destination_id": other.id.to_string(), "name": "", "tenant": other.settings.tenant, "new": 3,
        "dead_letters": 3,
    });
    assert_eq!(data, expected);
}

#[test]
fn an_alert_about_refusals_names_the_cause_and_the_setting_that_helps() {
    let (subscriber, other) = (destination(1, "weir.destination.refused"), destination(3, "*"));
    let remedy = Remedy::Margin { period: Period::SECOND, margin_ms: 50 };
    let refusals = Refusals { cause: Cause::Jitter, remedy, sends: 1_000, refused: 42 };
    let healthy = dead(&other, 0);
    let status = healthy.status(&other, Some(Some(refusals)), None, None, NOW);
    let update = alert_update(&other, &healthy, &status, false, &AlertPolicy::default(), &[subscriber], NOW).unwrap();
    let data: serde_json::Value = serde_json::from_slice(&update.events[0].event.body.data()).unwrap();
    let expected = json!({
        "destination_id": other.id.to_string(), "name": "", "tenant": other.settings.tenant, "cause": "jitter",
        "sends": 1_000, "refused": 42,
        "setting": "margin_ms", "value": 50, "period": "second", "reason": refusals.sentence(),
    });
    assert_eq!(data, expected);
    assert!(update.record.told.is_refused() && update.record.history().is_refused());
}

#[test]
fn an_alert_about_a_receiver_that_refuses_much_says_what_it_takes() {
    let (subscriber, other) = (destination(1, "weir.*"), destination(3, "*"));
    let healthy = dead(&other, 0);
    let refusing = Refusing { sends: 300, refused: 150, takes_per_s: Some(4.85) };
    let status = healthy.status(&other, None, None, None, NOW);
    let status = DestinationStatus { refusing: Some(refusing), ..status };
    let update = alert_update(&other, &healthy, &status, false, &AlertPolicy::default(), &[subscriber], NOW).unwrap();
    let event = &update.events[0].event;
    let data: Value = serde_json::from_slice(&event.body.data()).unwrap();
    assert_eq!(event.event_type, "weir.destination.refusing");
    assert_eq!((&data["sends"], &data["refused"], &data["takes_per_s"]), (&json!(300), &json!(150), &json!(4.85)));
    let reason = "the receiver answered 150 of the 300 sends of five minutes with 429; turn on the adaptive pace, or set a limit of 291 per minute, which is about what it takes";
    assert_eq!(data["reason"], reason);
}

#[test]
fn a_backlog_is_high_when_its_deliveries_expire_before_it_drains() {
    let other = destination(3, "*");
    let waiting = |count, expires_in| Condition {
        waiting: count,
        last_expires_at: Some(NOW + Duration::from_secs(expires_in)),
        ..dead(&other, 0)
    };
    let status_of = |condition: &Condition| condition.status(&other, None, None, None, NOW);
    // It drains at its adaptive pace, which is below the limit of ten a second.
    let paced = waiting(60, 60).status(&other, None, None, Some(0.5), NOW);
    assert_eq!(paced.drains_in, Some(Duration::from_secs(120)));
    let strained = status_of(&waiting(600, 60));
    assert_eq!((strained.drains_in, strained.remaining_life), (Some(Duration::from_secs(60)), Duration::from_secs(60)));
    let high = [Alert::BacklogHigh(vec![weir_core::alert::Measure::DrainBeyondTtl])];
    assert_eq!(AlertState::default().alerts(&AlertPolicy::default(), &strained, NOW), high);
    assert!(AlertState::default().alerts(&AlertPolicy::default(), &status_of(&waiting(599, 60)), NOW).is_empty());
}

/// A group of this tenant that is behind: two members have 9 waiting deliveries, and more arrive than are sent.
fn behind(tenant: Option<&str>) -> GroupBacklog {
    let group = LimitGroup {
        id: LimitGroupId::from_bytes([9; 16]),
        tenant: tenant.map(ToOwned::to_owned),
        name: "partner".to_owned(),
        rate_limits: RateLimits::new(vec![RateLimit::new(10, Period::SECOND).unwrap()]).unwrap(),
        max_in_flight: None,
        temporary: Default::default(),
        created_at: NOW,
        updated_at: NOW,
        keys_of: None,
    };
    let mut status = GroupStatus::new(12.0, 9.5);
    for waiting in [4, 5] {
        let oldest_age = Duration::from_secs(400);
        status.add(&DestinationStatus { waiting, oldest_age, ..DestinationStatus::default() }, &AlertPolicy::default());
    }
    let (status, record) = (status.sum_up(&AlertPolicy::default()), AlertRecord::default());
    GroupBacklog { group: Arc::new(group), status, record, version: 6 }
}

fn group_update(backlog: &GroupBacklog, subscribers: &[Arc<Destination>]) -> Option<AlertUpdate> {
    groups::alert_update(backlog, &AlertPolicy::default(), subscribers, NOW)
}

#[test]
fn an_alert_about_a_group_goes_to_all_but_its_members_and_says_what_waits() {
    let (subscriber, mut member) = (destination(1, "weir.*"), Destination::clone(&destination(2, "weir.*")));
    let group = behind(Some("default"));
    member.settings.limit_group = Some(group.group.id);
    let mut operators = Destination::clone(&destination(3, "weir.*"));
    operators.settings.tenant = ALL_TENANTS.to_owned();
    let subscribers = [subscriber.clone(), Arc::new(member), Arc::new(operators)];
    let told = group_update(&group, &subscribers).unwrap();
    assert_eq!(recipients_in(Some(&told)), [vec![subscriber.id], vec![subscribers[2].id]]);
    let event = &told.events[0].event;
    assert_eq!(event.idempotency_key, Some(format!("weir.limit_group.behind/{}/7", group.group.id)));
    let data: Value = serde_json::from_slice(&event.body.data()).unwrap();
    let expected = json!({
        "limit_group_id": group.group.id.to_string(), "name": "partner", "tenant": "default",
        "reasons": ["drain_beyond_ttl"], "thresholds": {}, "members": 2, "never_drains": true,
        "backlog": {"waiting": 9, "oldest_age_s": 400, "drain_eta_s": null},
        "limit_per_s": data["limit_per_s"], "arrivals_per_s": 12.0, "sends_per_s": 9.5,
    });
    assert_eq!(data, expected);
    // It is told once.
    let again = GroupBacklog { record: told.record, version: 7, ..group };
    assert!(group_update(&again, &subscribers).is_none());
    let caught_up = GroupBacklog { status: GroupStatus::new(0.0, 0.0).sum_up(&AlertPolicy::default()), ..again };
    let later = NOW + Duration::from_secs(601);
    let told = groups::alert_update(&caught_up, &AlertPolicy::default(), &subscribers, later).unwrap();
    assert_eq!(told.events[0].event.event_type, "weir.limit_group.caught_up");
    assert_eq!(told.record, AlertRecord::new(AlertState::default(), AlertState::default()));
}

#[test]
fn a_group_for_all_tenants_is_the_business_of_operators() {
    let mut operators = Destination::clone(&destination(3, "weir.*"));
    operators.settings.tenant = ALL_TENANTS.to_owned();
    let subscribers = [destination(1, "weir.*"), Arc::new(operators)];
    let told = group_update(&behind(None), &subscribers).unwrap();
    assert_eq!(recipients_in(Some(&told)), [vec![subscribers[1].id]]);
    assert_eq!(told.events[0].event.tenant, ALL_TENANTS);
    // Without recipients it is in the history once.
    let group = behind(None);
    let first = group_update(&group, &[]).unwrap();
    assert_eq!((recipients_in(Some(&first)), first.record.told), (vec![vec![]], AlertState::default()));
    let again = GroupBacklog { record: first.record, ..group };
    assert!(group_update(&again, &[]).is_none());
    assert_eq!(recipients_in(group_update(&again, &subscribers).as_ref()), [vec![subscribers[1].id]]);
}

#[test]
fn a_member_that_its_group_holds_back_raises_no_alert_about_its_backlog() {
    let (subscriber, member) = (destination(1, "weir.*"), destination(3, "*"));
    let expiring = Condition { waiting: 600, last_expires_at: Some(NOW + Duration::from_secs(60)), ..dead(&member, 2) };
    let status = expiring.status(&member, None, None, None, NOW);
    let types = |is_told_of_group| {
        let subscribers = std::slice::from_ref(&subscriber);
        let policy = AlertPolicy::default();
        let update = alert_update(&member, &expiring, &status, is_told_of_group, &policy, subscribers, NOW).unwrap();
        update.events.into_iter().map(|new| new.event.event_type).collect::<Vec<_>>()
    };
    assert_eq!(types(false), ["weir.backlog.high", "weir.delivery.dead"]);
    assert_eq!(types(true), ["weir.delivery.dead"]);
}
