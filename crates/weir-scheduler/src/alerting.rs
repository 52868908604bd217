//! Alerting: publishes alerts about destinations, limit groups and the installation to operators, as events.
//!
//! Each pass compares the current condition of every destination with its alert state, so no lasting condition is
//! missed, even when a process died. Any number of processes may run this. The idempotency key of an event contains the
//! version of the record, so the event is stored once; the new record is stored after that.
//!
//! An alert needs no recipient: without one its event is only in the history.

mod groups;
mod installation;
mod recipients;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use metrics::{counter, gauge};
use tokio::sync::watch;
use weir_api_types::AlertData;
use weir_core::{
    Clock, Destination, DestinationId, LimitGroupId, Timestamp,
    access::TenantScope,
    alert::{Alert, AlertPolicy, AlertRecord, AlertState, DestinationStatus},
    destination::ALL_TENANTS,
    stall::StallReport,
};
use weir_queue::{SharedQueue, Wake, known_paces};
use weir_store::{
    AlertStore, Condition, CostWatch, GroupBacklogs, GroupTraffic, Ingested, KeyWatch, NewEvent, PaceWatch,
    RefusalWatch,
};

use self::recipients::{Recipients, Said};
use crate::{
    release::Failure,
    run_every::{Agent, run_every},
};

/// The time between two passes: an operator needs an alert within seconds.
const INTERVAL: Duration = Duration::from_secs(2);
/// The failed attempts of this time decide where refusals within the limit are looked for.
const FAILURES_OF: Duration = Duration::from_secs(60);
/// The time between two passes while nobody subscribes, so that only the history needs them.
const UNWATCHED_INTERVAL: Duration = Duration::from_secs(10);
/// The shortest time between two alerts about dead letters of one destination without recipients: thousands of
/// destinations that fail for good would otherwise fill the history.
const UNWATCHED_DEAD_LETTERS: Duration = Duration::from_secs(3_600);
/// Destinations handled together, so that no statement holds its locks for long.
const PAGE: usize = 256;

/// Publishes alerts.
pub struct AlertPublisher {
    store: Arc<dyn AlertStore>,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    refusals: RefusalWatch,
    paces: PaceWatch,
    /// What limit groups got and sent in the last minute, as it was read last; read while a group has a backlog or an alert.
    traffic: GroupTraffic,
    wants_traffic: bool,
    costs: CostWatch,
    keys: KeyWatch,
    last_pass: Option<Timestamp>,
    /// What the watch over stalls of this process found last.
    stalls: watch::Receiver<Arc<StallReport>>,
}

/// What alerts are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Destination(DestinationId),
    Group(LimitGroupId),
    Installation,
}

/// The alerts about one destination or limit group.
struct AlertUpdate {
    subject: Subject,
    version: u64,
    /// The record after the events are stored.
    record: AlertRecord,
    events: Vec<NewEvent>,
}

impl AlertPublisher {
    pub fn new(
        store: Arc<dyn AlertStore>,
        queue: SharedQueue,
        clock: Arc<dyn Clock>,
        stalls: watch::Receiver<Arc<StallReport>>,
    ) -> Self {
        Self {
            store,
            queue,
            clock,
            refusals: RefusalWatch::default(),
            paces: PaceWatch::default(),
            traffic: GroupTraffic::default(),
            wants_traffic: false,
            costs: CostWatch::default(),
            keys: KeyWatch::default(),
            last_pass: None,
            stalls,
        }
    }

    /// Makes a pass at once and then every two seconds until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run_every(INTERVAL, shutdown, self).await;
    }

    /// Publishes the alerts that are due now.
    async fn pass(&mut self) -> Result<(), Failure> {
        let ids = self.store.alert_subscribers().await?;
        let now = self.clock.now();
        if ids.is_empty() && self.last_pass.is_some_and(|last| now.since(last) < UNWATCHED_INTERVAL) {
            return Ok(());
        }
        self.last_pass = Some(now);
        let subscribers: Vec<_> = self.store.destinations(&ids).await?.into_iter().flatten().collect();
        let tenants: BTreeSet<_> = subscribers.iter().map(|subscriber| subscriber.settings.tenant.clone()).collect();
        let policy = self.store.alert_policy().await?;
        let mut conditions = self.store.conditions(&TenantScope::All).await?;
        self.look_for_refusals(&tenants, &mut conditions).await?;
        self.paces.look(&*self.store, now).await?;
        gauge!("weir_destinations_slowed").set(self.paces.fallen().count() as f64);
        Condition::add_missing(&mut conditions, self.paces.fallen());
        Condition::add_missing(&mut conditions, self.refusals.refusing());
        let stalls = Arc::clone(&self.stalls.borrow());
        Condition::add_missing(&mut conditions, stalls.stalled_alone());
        let outage = installation::alert_update(&*self.store, &stalls, &subscribers, now).await?;
        self.send(outage.into_iter().collect()).await?;
        // Page by page: what the destinations are, and how fast they may be sent to.
        let mut about = Vec::with_capacity(conditions.len());
        for conditions in conditions.chunks(PAGE) {
            let ids: Vec<_> = conditions.iter().map(|condition| condition.destination_id).collect();
            let destinations = self.store.destinations(&ids).await?;
            let paces = known_paces(&self.queue, destinations.iter().flatten().map(|destination| &**destination)).await;
            about.extend(conditions.iter().zip(destinations).filter_map(|(condition, destination)| {
                let destination = destination?;
                let pace_per_s = paces.get(&destination.id).map(|pace| pace.per_s);
                Some((condition, destination, pace_per_s))
            }));
        }
        // Groups first: their alerts speak for their members.
        let members = about.iter().map(|(condition, destination, pace_per_s)| (*condition, destination, *pace_per_s));
        let now = self.clock.now();
        let groups = GroupBacklogs::read(&*self.store, members, &self.traffic, &mut self.costs, &policy, now).await?;
        let waiting = about.iter().filter(|(condition, ..)| condition.waiting > 0);
        self.keys.look(&*self.store, waiting.map(|(_, destination, _)| destination), now).await?;
        self.wants_traffic = groups.iter().next().is_some();
        gauge!("weir_limit_groups_behind").set(groups.iter().filter(|group| group.is_behind(now)).count() as f64);
        let updates: Vec<_> =
            groups.iter().filter_map(|group| groups::alert_update(group, &policy, &subscribers, now)).collect();
        self.send_in_pages(updates).await?;
        // Page by page: compare the conditions with the records, and publish the differences.
        for page in about.chunks(PAGE) {
            let now = self.clock.now();
            let updates = page.iter().filter_map(|(condition, destination, pace_per_s)| {
                let (refused, stalled) = (self.refusals.found(destination), stalls.stall_of(destination.id, now));
                let status = condition.status(destination, refused, stalled, *pace_per_s, now);
                let status = DestinationStatus {
                    drains_in: groups.drains_in((*condition, destination, *pace_per_s), now),
                    pace: self.paces.of(destination),
                    refusing: self.refusals.answered(destination.id),
                    ..status
                };
                let status = self.keys.add_to(status, destination.id);
                let speaks_for = groups.speaks_for(destination);
                alert_update(destination, condition, &status, speaks_for, &policy, &subscribers, now)
            });
            self.send(updates.collect()).await?;
        }
        Ok(())
    }

    async fn send_in_pages(&self, mut updates: Vec<AlertUpdate>) -> Result<(), Failure> {
        while !updates.is_empty() {
            let rest = updates.split_off(updates.len().min(PAGE));
            self.send(std::mem::replace(&mut updates, rest)).await?;
        }
        Ok(())
    }

    /// Looks for receivers that refuse much, and for refusals within the limit, where attempts failed lately and where an
    /// alert has said that there are some. Adds the refused destinations that have no other condition. Each look reads only a few destinations. While there
    /// are some of tenants with subscribers, it reads no others, which would delay the alerts about these.
    async fn look_for_refusals(
        &mut self,
        tenants: &BTreeSet<String>,
        conditions: &mut Vec<Condition>,
    ) -> Result<(), Failure> {
        let now = self.clock.now();
        if self.refusals.is_due(now) {
            let from = now.before(FAILURES_OF);
            let traffic = self.store.recent_traffic(from).await?;
            self.traffic = match self.wants_traffic {
                true => groups::traffic(&*self.store, &traffic, from, now).await?,
                false => GroupTraffic::default(),
            };
            let failing = traffic.iter().filter(|(_, traffic)| RefusalWatch::is_suspect(traffic.sum.failed));
            let alerted = |is: fn(&AlertState) -> bool| {
                let records = conditions.iter().map(|condition| (condition.destination_id, &condition.record));
                records.filter(move |(_, record)| is(&record.told) || is(&record.history())).map(|(id, _)| id)
            };
            self.refusals.count(&*self.store, &traffic, alerted(AlertState::is_refusing), now).await?;
            gauge!("weir_destinations_refusing").set(self.refusals.refusing().count() as f64);
            let suspects: BTreeSet<_> = failing.map(|(id, _)| *id).chain(alerted(AlertState::is_refused)).collect();
            let suspects = self.store.destinations(&Vec::from_iter(suspects)).await?.into_iter().flatten();
            let is_watched = |suspect: &Arc<Destination>| {
                tenants.contains(&suspect.settings.tenant) || tenants.contains(ALL_TENANTS)
            };
            let (watched, others): (Vec<_>, Vec<_>) = suspects.partition(is_watched);
            let suspects = if watched.is_empty() { others } else { watched };
            self.refusals.look(&*self.store, suspects, now).await?;
        }
        Condition::add_missing(conditions, self.refusals.refused());
        Ok(())
    }

    /// Stores the events, and then the new records.
    async fn send(&self, mut updates: Vec<AlertUpdate>) -> Result<(), Failure> {
        let events: Vec<_> =
            updates.iter_mut().flat_map(|alert_update| std::mem::take(&mut alert_update.events)).collect();
        if !events.is_empty() {
            for stored in self.store.ingest(events).await? {
                // A subscriber was deleted in the meantime: the next pass publishes to the others.
                let Ok(Ingested { event, deliveries, duplicate, wake }) = stored else { return Ok(()) };
                let wakes: Vec<_> =
                    wake.into_iter().map(|destination_id| Wake { destination_id, due: event.due() }).collect();
                self.queue.wake(&wakes).await?;
                if !duplicate && deliveries > 0 {
                    counter!("weir_alerts_total", "type" => event.event_type).increment(1);
                }
            }
        }
        // Last: if this process dies before, the next pass makes the same events, and their keys show that they are
        // stored.
        for AlertUpdate { subject, version, record, .. } in updates {
            match subject {
                Subject::Destination(id) => self.store.record_alerts(id, version, record).await?,
                Subject::Group(id) => self.store.record_group_alerts(id, version, record).await?,
                Subject::Installation => self.store.record_installation_alerts(version, record).await?,
            };
        }
        Ok(())
    }
}

impl Agent for AlertPublisher {
    async fn make_pass(&mut self) {
        if let Err(error) = self.pass().await {
            tracing::warn!(%error, "could not publish alerts; the next pass tries again");
        }
    }
}

/// The alerts about a destination, and its new record. `None` if the record does not change.
///
/// An alert goes to its recipients once, and into the history once. Without recipients it is only in the history, and a
/// later subscriber still gets it. `is_told_of_group`: an alert about its limit group tells of its backlog.
fn alert_update(
    destination: &Arc<Destination>,
    condition: &Condition,
    status: &DestinationStatus,
    is_told_of_group: bool,
    policy: &AlertPolicy,
    subscribers: &[Arc<Destination>],
    now: Timestamp,
) -> Option<AlertUpdate> {
    let policy = destination.settings.alerts.apply_to(policy);
    // Conditions that end without an alert are forgotten first.
    let mut told = condition.record.told.reconciled(&policy, status, now);
    let mut history = condition.record.history().reconciled(&policy, status, now);
    let mut events = Vec::new();
    let mut publish = |alert: &Alert, recipients: Recipients| {
        let data = AlertData::of_destination(destination, alert, status, &policy);
        let said =
            Said { alert_type: alert.alert_type(), about: destination.id.to_string(), version: condition.version };
        events.extend(recipients.events(&said, &destination.settings.tenant, &data, now));
    };
    let is_news = |alert: &Alert| !(is_told_of_group && matches!(alert, Alert::BacklogHigh(_)));
    for alert in told.alerts(&policy, status, now).into_iter().filter(is_news) {
        let recipients = Recipients::of(destination, &alert, subscribers);
        if !recipients.is_empty() {
            publish(&alert, recipients);
            told = told.with(&alert, now);
            // The history may have had some of these dead letters already.
            history = history.with(&alert, now).reconciled(&policy, status, now);
        }
    }
    for alert in history.alerts(&policy, status, now).into_iter().filter(is_news) {
        let is_dead = matches!(alert, Alert::Dead { .. });
        if !is_dead || !history.has_told_of_dead_letters(UNWATCHED_DEAD_LETTERS, now) {
            publish(&alert, Recipients::default());
            history = history.with(&alert, now);
        }
    }
    let (subject, version) = (Subject::Destination(condition.destination_id), condition.version);
    let record = AlertRecord::new(told, history);
    let is_same = (told, history) == (condition.record.told, condition.record.history());
    (!is_same).then_some(AlertUpdate { subject, version, record, events })
}

#[cfg(test)]
mod tests;
