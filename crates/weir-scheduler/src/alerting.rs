//! Alerting: publishes alerts about destinations to operators, as events.
//!
//! Each pass compares the current condition of every destination with its alert state, so no lasting condition is
//! missed, even when a process died. Any number of processes may run this. The idempotency key of an event contains the
//! version of the record, so the event is stored once; the new record is stored after that.
//!
//! An alert needs no recipient: without one its event is only in the history.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use metrics::{counter, gauge};
use serde_json::Value;
use tokio::sync::watch;
use weir_core::{
    Clock, Destination, DestinationId, EventId, Timestamp,
    access::TenantScope,
    alert::{Alert, AlertPolicy, AlertRecord, DEAD, DestinationStatus},
    alert_data::alert_data,
    destination::ALL_TENANTS,
    event::{DeliveryOptions, Event, EventBody},
    stall::StallReport,
};
use weir_queue::{SharedQueue, Wake};
use weir_store::{AlertStore, Condition, Ingested, NewEvent, PaceWatch, RefusalWatch};

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
    last_pass: Option<Timestamp>,
    /// What the watch over stalls of this process found last.
    stalls: watch::Receiver<Arc<StallReport>>,
}

/// The alerts about one destination.
struct AlertUpdate {
    destination_id: DestinationId,
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
        let stalls = Arc::clone(&self.stalls.borrow());
        Condition::add_missing(&mut conditions, stalls.stalled().map(|(id, _)| id));
        // Page by page: compare the conditions with the records, and publish the differences.
        for conditions in conditions.chunks(PAGE) {
            let ids: Vec<_> = conditions.iter().map(|condition| condition.destination_id).collect();
            let destinations = self.store.destinations(&ids).await?;
            let now = self.clock.now();
            let updates = conditions.iter().zip(&destinations).filter_map(|(condition, destination)| {
                let destination = destination.as_ref()?;
                let (refused, stalled) = (self.refusals.found(destination), stalls.stall_of(destination.id, now));
                let status = condition.status(destination, refused, stalled, now);
                let status = DestinationStatus { pace: self.paces.of(destination), ..status };
                alert_update(destination, condition, &status, &policy, &subscribers, now)
            });
            self.send(updates.collect()).await?;
        }
        Ok(())
    }

    /// Looks for refusals within the limit, where attempts failed lately and where an alert has said that there are some.
    /// Adds the refused destinations that have no other condition. Each look reads only a few destinations. While there
    /// are some of tenants with subscribers, it reads no others, which would delay the alerts about these.
    async fn look_for_refusals(
        &mut self,
        tenants: &BTreeSet<String>,
        conditions: &mut Vec<Condition>,
    ) -> Result<(), Failure> {
        let now = self.clock.now();
        if self.refusals.is_due(now) {
            let traffic = self.store.recent_traffic(now.before(FAILURES_OF)).await?;
            let failing = traffic.iter().filter(|(_, traffic)| RefusalWatch::is_suspect(traffic.sum.failed));
            let alerted = conditions.iter().filter(|condition| condition.record.history().is_refused());
            let suspects: BTreeSet<_> =
                failing.map(|(id, _)| *id).chain(alerted.map(|condition| condition.destination_id)).collect();
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
        for AlertUpdate { destination_id, version, record, .. } in updates {
            self.store.record_alerts(destination_id, version, record).await?;
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
/// later subscriber still gets it.
fn alert_update(
    destination: &Arc<Destination>,
    condition: &Condition,
    status: &DestinationStatus,
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
        let data = alert_data(destination, alert, status, &policy);
        events.extend(recipients.events(destination, alert, condition.version, &data, now));
    };
    for alert in told.alerts(&policy, status, now) {
        let recipients = Recipients::of(destination, &alert, subscribers);
        if !recipients.is_empty() {
            publish(&alert, recipients);
            told = told.with(&alert, now);
            // The history may have had some of these dead letters already.
            history = history.with(&alert, now).reconciled(&policy, status, now);
        }
    }
    for alert in history.alerts(&policy, status, now) {
        let is_dead = matches!(alert, Alert::Dead { .. });
        if !is_dead || !history.has_told_of_dead_letters(UNWATCHED_DEAD_LETTERS, now) {
            publish(&alert, Recipients::default());
            history = history.with(&alert, now);
        }
    }
    let Condition { destination_id, version, .. } = *condition;
    let record = AlertRecord::new(told, history);
    let is_same = (told, history) == (condition.record.told, condition.record.history());
    (!is_same).then_some(AlertUpdate { destination_id, version, record, events })
}

/// Who gets an alert.
#[derive(Debug, Default)]
struct Recipients {
    /// The destinations of the tenant that subscribe.
    of_tenant: Vec<DestinationId>,
    /// The destinations of operators, which subscribe for all tenants.
    operators: Vec<DestinationId>,
}

impl Recipients {
    /// The recipients of an alert about a destination. The destination itself is none of them: it would get the alert only
    /// after its failure is over. Dead letters at a destination that subscribes to dead-letter alerts have no recipients:
    /// two failing subscribers would send alerts to each other without end.
    fn of(about: &Destination, alert: &Alert, subscribers: &[Arc<Destination>]) -> Self {
        let tenant = &about.settings.tenant;
        if matches!(alert, Alert::Dead { .. }) && about.accepts(tenant, DEAD) {
            return Self::default();
        }
        let taking = |tenant: &str| -> Vec<DestinationId> {
            let takes = |one: &&Arc<Destination>| one.id != about.id && one.accepts(tenant, alert.event_type());
            subscribers.iter().filter(takes).map(|one| one.id).collect()
        };
        // About a destination of operators, the other operators are told as its tenant.
        let operators = if about.settings.is_of_all_tenants() { Vec::new() } else { taking(ALL_TENANTS) };
        Self { of_tenant: taking(tenant), operators }
    }

    fn is_empty(&self) -> bool {
        self.of_tenant.is_empty() && self.operators.is_empty()
    }

    /// The event of the tenant, which is in its history also without recipients, and the one for operators. They are two,
    /// because a key of the tenant sees the deliveries of its events, and those to operators are none of its business.
    fn events(self, about: &Destination, alert: &Alert, version: u64, data: &Value, now: Timestamp) -> Vec<NewEvent> {
        let of_tenant = event(about, alert, version, (&about.settings.tenant, self.of_tenant), data, now);
        let of_operators = (!self.operators.is_empty())
            .then(|| event(about, alert, version, (ALL_TENANTS, self.operators), data, now));
        std::iter::once(of_tenant).chain(of_operators).collect()
    }
}

fn event(
    about: &Destination,
    alert: &Alert,
    version: u64,
    (tenant, recipients): (&str, Vec<DestinationId>),
    data: &Value,
    now: Timestamp,
) -> NewEvent {
    let event_type = alert.event_type();
    // The idempotency key. Every process makes the same one for this change, so the event is stored once.
    let name = format!("{event_type}/{}/{}", about.id, version + 1);
    // The same random bits go into the ids of the event and of its deliveries.
    let random = rand::random();
    let id = EventId::new(now, random);
    let event = Event {
        id,
        tenant: tenant.to_owned(),
        event_type: event_type.to_owned(),
        created_at: now,
        idempotency_key: Some(name),
        options: DeliveryOptions::default(),
        body: EventBody::freeze(id, event_type, now, &data.to_string()),
        filtered: 0,
    };
    // Named recipients, because a destination gets no alert about itself.
    NewEvent::new(event, Some(recipients), random)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_core::{
        Period, RateLimit, RateLimits,
        alert::AlertState,
        refusals::{Cause, Refusals, Remedy},
    };
    use weir_queue::conformance::settings;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    /// Destination `number`, with a limit of 10/s and a subscription to these event types.
    fn destination(number: u8, event_types: &str) -> Arc<Destination> {
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
    fn update(
        about: &Arc<Destination>,
        condition: &Condition,
        subscribers: &[Arc<Destination>],
    ) -> Option<AlertUpdate> {
        let status = condition.status(about, None, None, NOW);
        alert_update(about, condition, &status, &AlertPolicy::default(), subscribers, NOW)
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
        let status = |count| dead(&other, count).status(&other, None, None, NOW);
        let at = |condition: &Condition, count, secs| {
            let now = NOW + Duration::from_secs(secs);
            alert_update(&other, condition, &status(count), &AlertPolicy::default(), &[], now)
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
        let status = healthy.status(&other, Some(Some(refusals)), None, NOW);
        let update = alert_update(&other, &healthy, &status, &AlertPolicy::default(), &[subscriber], NOW).unwrap();
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
    fn a_backlog_is_high_when_its_deliveries_expire_before_it_drains() {
        let other = destination(3, "*");
        let waiting = |count, expires_in| Condition {
            waiting: count,
            last_expires_at: Some(NOW + Duration::from_secs(expires_in)),
            ..dead(&other, 0)
        };
        let status_of = |condition: &Condition| condition.status(&other, None, None, NOW);
        let strained = status_of(&waiting(600, 60));
        assert_eq!(
            (strained.drains_in, strained.remaining_life),
            (Some(Duration::from_secs(60)), Duration::from_secs(60))
        );
        let high = [Alert::BacklogHigh(vec![weir_core::alert::Measure::DrainBeyondTtl])];
        assert_eq!(AlertState::default().alerts(&AlertPolicy::default(), &strained, NOW), high);
        assert!(AlertState::default().alerts(&AlertPolicy::default(), &status_of(&waiting(599, 60)), NOW).is_empty());
    }
}
