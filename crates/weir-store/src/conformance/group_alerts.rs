//! The alerts of limit groups and of the installation, and which members groups hold back.

use weir_core::{
    LimitGroup, ReservationId,
    alert::{AlertPolicy, AlertRecord, AlertState, GroupStatus},
    reservation::Reservation,
    stall::{Fault, Outage},
    temporary::{Hold, Temporary},
};

use super::{limit_groups::group, *};
use crate::{Condition, CostWatch, GroupBacklog, GroupBacklogs, GroupChange, GroupDeletion, GroupTraffic, Rates};

/// Ten minutes after the first events, so a backlog that grows never drains.
const LATER: Timestamp = Timestamp::from_secs(1_800_000_600);

impl Subject {
    /// A group of the tenant with 10/s, whose id is not that of a destination. Destination 1 has no limits, 2 has 1/s, and 3 is in no group. Each has a backlog.
    async fn grouped(&self, temporary: Temporary) -> Arc<LimitGroup> {
        let made = LimitGroup { tenant: Some(TENANT.to_owned()), temporary, ..group(9) };
        let made = self.store.set_limit_group(None, made, activity().into()).await.expect("set");
        let GroupChange::Made(made) = made else { panic!("{made:?}") };
        for (number, limits, of) in
            [(1, RateLimits::UNLIMITED, Some(made.id)), (2, per_second(1), Some(made.id)), (3, per_second(1), None)]
        {
            let mut member = destination(number);
            (member.settings.rate_limits, member.settings.limit_group) = (limits, of);
            self.create(member).await;
        }
        for (number, events) in [(1, 0..90), (2, 90..110), (3, 110..120)] {
            self.post(number, events).await;
        }
        made
    }

    /// What is known when the members send and get so much a second.
    async fn group_backlogs(
        &self,
        [one, two]: [(f64, f64); 2],
    ) -> (GroupBacklogs, Vec<Arc<Destination>>, Vec<Condition>) {
        let conditions = self.store.conditions(&TenantScope::All).await.expect("conditions");
        let ids: Vec<_> = conditions.iter().map(|condition| condition.destination_id).collect();
        let found: Vec<_> = self.store.destinations(&ids).await.expect("read").into_iter().flatten().collect();
        let mut traffic = GroupTraffic::default();
        for (destination, (sends_per_s, arrivals_per_s)) in found.iter().zip([one, two]) {
            traffic.add(destination, Rates { arrivals_per_s, sends_per_s });
        }
        let members = conditions.iter().zip(&found).map(|(condition, destination)| (condition, destination, None));
        let policy = AlertPolicy::default();
        let backlogs = GroupBacklogs::read(&*self.store, members, &traffic, &mut CostWatch::default(), &policy, LATER)
            .await
            .expect("read");
        (backlogs, found, conditions)
    }
}

fn only(backlogs: &GroupBacklogs) -> &GroupBacklog {
    backlogs.iter().next().expect("a group")
}

pub async fn a_group_holds_back_those_that_could_send_more_without_it(subject: Subject) {
    subject.grouped(Temporary::default()).await;
    let (backlogs, found, conditions) = subject.group_backlogs([(9.0, 12.0), (1.0, 1.0)]).await;
    let drains: Vec<_> = conditions
        .iter()
        .zip(&found)
        .map(|(condition, destination)| {
            backlogs.drains_in((condition, destination, None), LATER).map(|drains| drains.as_secs())
        })
        .collect();
    // The second takes its own 1/s of the 10/s, and leaves 9/s.
    assert_eq!(drains, [Some(10), Some(20), Some(10)]);
    let speaks: Vec<_> = found.iter().map(|destination| backlogs.speaks_for(destination)).collect();
    assert_eq!(speaks, [true, false, false]);
    let backlog = only(&backlogs);
    assert_eq!((backlog.status.members, backlog.status.waiting), (1, 90));
    assert!(backlog.status.never_drains() && backlog.is_behind(LATER));
    // It drains.
    let (backlogs, ..) = subject.group_backlogs([(9.0, 8.0), (1.0, 1.0)]).await;
    assert!(!only(&backlogs).is_behind(LATER));
}

pub async fn an_unused_group_holds_nobody_back_unless_others_use_it(subject: Subject) {
    let group = subject.grouped(Temporary::default()).await;
    let unused = [(2.0, 3.0), (0.0, 0.0)];
    let (backlogs, found, _) = subject.group_backlogs(unused).await;
    assert_eq!((only(&backlogs).status.members, backlogs.speaks_for(&found[0])), (0, false));
    let starts_at = LATER.before(seconds(10));
    let reservation = Reservation {
        id: ReservationId::new(starts_at, 1),
        group: group.id,
        cost: 1,
        created_at: starts_at,
        starts_at,
        ends_at: starts_at + seconds(1),
        cancelled_at: None,
    };
    subject.store.add_reservations(&[reservation]).await.expect("reserve");
    let (backlogs, found, _) = subject.group_backlogs(unused).await;
    assert!(backlogs.speaks_for(&found[0]) && only(&backlogs).is_behind(LATER));
}

pub async fn a_held_group_is_behind_only_by_thresholds(subject: Subject) {
    let hold = Some(Hold { until: LATER + seconds(100), reason: "their maintenance".to_owned() });
    subject.grouped(Temporary { hold, ..Temporary::default() }).await;
    let (backlogs, found, conditions) = subject.group_backlogs([(0.0, 12.0), (0.0, 1.0)]).await;
    let backlog = only(&backlogs);
    assert!(backlog.status.members == 1 && !backlog.status.never_drains() && !backlog.is_behind(LATER));
    let drains = backlogs.drains_in((&conditions[0], &found[0], None), LATER);
    assert_eq!(drains.map(|drains| drains.as_secs()), Some(110), "the hold and ten seconds");
}

pub async fn alerts_of_groups_are_recorded_beside_those_of_destinations(mut subject: Subject) {
    let group = subject.grouped(Temporary::default()).await;
    let status = GroupStatus::new(2.0, 1.0);
    let mut behind = status.clone();
    behind.add(
        &weir_core::alert::DestinationStatus { waiting: 1, oldest_age: seconds(600), ..Default::default() },
        &AlertPolicy::default(),
    );
    let (told, alert) = AlertState::default().group_alert(&behind.sum_up(&AlertPolicy::default()), NOW);
    assert!(alert.is_some());
    let record = AlertRecord::new(told, told);
    let set = async |version| subject.store.record_group_alerts(group.id, version, record).await.expect("record");
    assert!(set(0).await && !set(0).await && set(1).await);
    subject.reopen().await;
    assert_eq!(subject.store.group_alerts().await.expect("read"), [(group.id, 2, record)]);
    let conditions = subject.store.conditions(&TenantScope::All).await.expect("conditions");
    let versions: Vec<_> = conditions.iter().map(|condition| condition.version).collect();
    assert_eq!(versions, [0; 3], "of the destinations");
    for number in 1..=2 {
        subject.delete(number).await;
    }
    // A group that is not there any more has no alerts.
    let (backlogs, ..) = subject.group_backlogs([(0.0, 0.0); 2]).await;
    assert_eq!((only(&backlogs).version, only(&backlogs).status.members), (2, 0));
    let deleted = subject.store.delete_limit_group(group.id, group.updated_at, activity()).await;
    assert_eq!(deleted.expect("delete"), GroupDeletion::Deleted);
    assert_eq!(subject.store.group_alerts().await.expect("read"), []);
    let (backlogs, ..) = subject.group_backlogs([(0.0, 0.0); 2]).await;
    assert_eq!(backlogs.iter().count(), 0);
}

/// It leaves its members what it sends at present. Where less is out than may be, they wait for something else.
pub async fn a_group_that_only_bounds_what_is_in_flight_is_behind_while_that_is_out(subject: Subject) {
    let rate_limits = RateLimits::UNLIMITED;
    let made = LimitGroup { tenant: Some(TENANT.to_owned()), rate_limits, max_in_flight: Some(10), ..group(9) };
    let made = subject.store.set_limit_group(None, made, activity().into()).await.expect("set");
    let GroupChange::Made(made) = made else { panic!("{made:?}") };
    let mut member = destination(1);
    (member.settings.rate_limits, member.settings.limit_group) = (RateLimits::UNLIMITED, Some(made.id));
    subject.create(member).await;
    subject.post(1, 0..100).await;
    subject.claim(1, 7).await;
    let rates = [(3.0, 4.0), (0.0, 0.0)];
    let (backlogs, found, conditions) = subject.group_backlogs(rates).await;
    assert!(!backlogs.speaks_for(&found[0]) && !only(&backlogs).is_behind(LATER));
    assert_eq!(backlogs.drains_in((&conditions[0], &found[0], None), LATER), None);
    subject.claim(1, 3).await;
    let (backlogs, found, conditions) = subject.group_backlogs(rates).await;
    assert!(backlogs.speaks_for(&found[0]) && only(&backlogs).is_behind(LATER));
    let drains = backlogs.drains_in((&conditions[0], &found[0], None), LATER);
    assert_eq!(drains.map(|drains| drains.as_secs()), Some(30), "90 at three a second");
}

pub async fn the_alert_about_the_installation_is_recorded_beside_those_of_destinations(mut subject: Subject) {
    subject.create_many(1).await;
    let outage = Outage { fault: Fault::NoWorker, since: NOW, obstacle: None };
    assert_eq!(subject.store.installation_alerts().await.expect("read"), Default::default());
    let told = AlertState::default().outage_alert(Some(Some(outage))).expect("an alert");
    let record = AlertRecord::new(told, told);
    let set = async |version| subject.store.record_installation_alerts(version, record).await.expect("record");
    assert!(set(0).await && !set(0).await && set(1).await);
    subject.reopen().await;
    assert_eq!(subject.store.installation_alerts().await.expect("read"), (2, record));
    assert_eq!(subject.store.conditions(&TenantScope::All).await.expect("conditions"), [], "it is no destination");
}

/// A limit in points is used up by the cost of what waits.
pub async fn a_group_whose_limit_counts_costs_drains_by_what_waits(subject: Subject) {
    let points = RateLimit::new(600, Period::MINUTE).and_then(RateLimit::in_costs).expect("a limit");
    let rate_limits = RateLimits::new(vec![points]).expect("limits");
    let made = LimitGroup { tenant: Some(TENANT.to_owned()), rate_limits, ..group(1) };
    let made = subject.store.set_limit_group(None, made, activity().into()).await.expect("set");
    let GroupChange::Made(made) = made else { panic!("{made:?}") };
    let mut member = destination(1);
    (member.settings.rate_limits, member.settings.limit_group) = (RateLimits::UNLIMITED, Some(made.id));
    subject.create(member).await;
    let costing = |number| {
        let mut event = event(number);
        event.options.cost = Some(non_zero(5));
        named(event, &[1])
    };
    subject.ingest((0..20).map(costing).collect()).await;
    let (backlogs, found, conditions) = subject.group_backlogs([(2.0, 0.0), (0.0, 0.0)]).await;
    assert_eq!(backlogs.cost_of(found[0].id), 5.0);
    // 10 points a second are two sends a second.
    let drains = backlogs.drains_in((&conditions[0], &found[0], None), LATER);
    assert_eq!(drains.map(|drains| drains.as_secs()), Some(10));
}
