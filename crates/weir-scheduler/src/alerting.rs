//! Alerting: publishes alerts about destinations to operators, as events.
//!
//! Each pass compares the current condition of every destination with its alert state, so no lasting condition is
//! missed, even when a process died. Any number of processes may run this. The idempotency key of an event contains the
//! version of the alert state, so the event is stored once; the new alert state is recorded after that.
//!
//! If no destination subscribes to alerts, a pass only asks for the subscribers.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use metrics::counter;
use serde_json::json;
use weir_core::{
    Clock, Destination, DestinationId, EventId, Period, Timestamp,
    alert::{Alert, AlertPolicy, AlertState, DEAD, DestinationStatus},
    event::{DeliveryOptions, Event, EventBody},
    refusals::Refusals,
};
use weir_queue::{SharedQueue, Wake};
use weir_store::{AlertStore, Condition, Ingested, NewEvent, RefusalWatch};

use crate::{
    release::Failure,
    run_every::{Agent, run_every},
};

/// The time between two passes: an operator needs an alert within seconds.
const INTERVAL: Duration = Duration::from_secs(2);
/// The failed attempts of this time decide where refusals within the limit are looked for.
const FAILURES_OF: Duration = Duration::from_secs(60);
/// Destinations handled together, so that no statement holds its locks for long.
const PAGE: usize = 256;

/// Publishes alerts.
pub struct AlertPublisher {
    store: Arc<dyn AlertStore>,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    refusals: RefusalWatch,
}

/// The alerts about one destination.
struct AlertUpdate {
    destination_id: DestinationId,
    version: u64,
    /// The alert state after the events are stored.
    alert_state: AlertState,
    events: Vec<NewEvent>,
}

impl AlertPublisher {
    pub fn new(store: Arc<dyn AlertStore>, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        Self { store, queue, clock, refusals: RefusalWatch::default() }
    }

    /// Makes a pass at once and then every two seconds until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run_every(INTERVAL, shutdown, self).await;
    }

    /// Publishes the alerts that are due now.
    async fn pass(&mut self) -> Result<(), Failure> {
        // Without subscribers this look-up is the whole pass.
        let ids = self.store.alert_subscribers().await?;
        if ids.is_empty() {
            return Ok(());
        }
        let subscribers: Vec<_> = self.store.destinations(&ids).await?.into_iter().flatten().collect();
        // Only destinations of these tenants can have recipients.
        let tenants: BTreeSet<_> = subscribers.iter().map(|subscriber| subscriber.settings.tenant.clone()).collect();
        let policy = self.store.alert_policy().await?;
        let mut conditions = self.store.conditions(&Vec::from_iter(tenants.clone())).await?;
        self.look_for_refusals(&tenants, &mut conditions).await?;
        // Page by page: compare the conditions with the alert states, and publish the differences.
        for conditions in conditions.chunks(PAGE) {
            let ids: Vec<_> = conditions.iter().map(|condition| condition.destination_id).collect();
            let destinations = self.store.destinations(&ids).await?;
            let now = self.clock.now();
            let updates = conditions.iter().zip(&destinations).filter_map(|(condition, destination)| {
                let destination = destination.as_ref()?;
                let status = status(destination, condition, self.refusals.found(destination), now);
                alert_update(destination, condition, &status, &policy, &subscribers, now)
            });
            self.send(updates.collect()).await?;
        }
        Ok(())
    }

    /// Looks for refusals within the limit, where attempts failed lately and where an alert has said that there are some.
    /// Adds the refused destinations that have no other condition. Each look reads only a few destinations. Tenants
    /// without subscribers are left out, because their destinations would delay the alerts about others.
    async fn look_for_refusals(
        &mut self,
        tenants: &BTreeSet<String>,
        conditions: &mut Vec<Condition>,
    ) -> Result<(), Failure> {
        let now = self.clock.now();
        if self.refusals.is_due(now) {
            let traffic = self.store.recent_traffic(now.before(FAILURES_OF)).await?;
            let failing = traffic.iter().filter(|(_, traffic)| RefusalWatch::is_suspect(traffic.sum.failed));
            let alerted = conditions.iter().filter(|condition| condition.state.is_refused());
            let suspects: BTreeSet<_> =
                failing.map(|(id, _)| *id).chain(alerted.map(|condition| condition.destination_id)).collect();
            let suspects = self.store.destinations(&Vec::from_iter(suspects)).await?.into_iter().flatten();
            let suspects = suspects.filter(|suspect| tenants.contains(&suspect.settings.tenant)).collect();
            self.refusals.look(&*self.store, suspects, now).await?;
        }
        let mut refused = self.refusals.refused();
        for condition in &*conditions {
            refused.remove(&condition.destination_id);
        }
        conditions.extend(refused.into_iter().map(Condition::healthy));
        Ok(())
    }

    /// Stores the events, and then the new alert states.
    async fn send(&self, mut updates: Vec<AlertUpdate>) -> Result<(), Failure> {
        let events: Vec<_> =
            updates.iter_mut().flat_map(|alert_update| std::mem::take(&mut alert_update.events)).collect();
        if !events.is_empty() {
            for stored in self.store.ingest(events).await? {
                // A subscriber was deleted in the meantime: the next pass publishes to the others.
                let Ok(Ingested { event, duplicate, wake, .. }) = stored else { return Ok(()) };
                let wakes: Vec<_> =
                    wake.into_iter().map(|destination_id| Wake { destination_id, due: event.due() }).collect();
                self.queue.wake(&wakes).await?;
                if !duplicate {
                    counter!("weir_alerts_total", "type" => event.event_type).increment(1);
                }
            }
        }
        // Last: if this process dies before, the next pass makes the same events, and their keys show that they are
        // stored.
        for AlertUpdate { destination_id, version, alert_state, .. } in updates {
            self.store.record_alert_state(destination_id, version, alert_state).await?;
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

/// The alerts about a destination that have recipients, and its new alert state. `None` if the alert state does not
/// change.
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
    let mut alert_state = condition.state.reconciled(&policy, status);
    let mut events = Vec::new();
    for alert in alert_state.alerts(&policy, status, now) {
        let recipients = recipients(destination, &alert, subscribers);
        // An alert without recipients is not recorded, so a later subscriber still gets it.
        if !recipients.is_empty() {
            events.push(event(destination, &alert, status, condition.version, recipients, now));
            alert_state = alert_state.with(&alert, now);
        }
    }
    let Condition { destination_id, version, .. } = *condition;
    (alert_state != condition.state).then_some(AlertUpdate { destination_id, version, alert_state, events })
}

fn status(
    destination: &Destination,
    condition: &Condition,
    refused: Option<Option<Refusals>>,
    now: Timestamp,
) -> DestinationStatus {
    let settings = &destination.settings;
    let held = destination.held_until.map_or(Duration::ZERO, |until| until.since(now));
    let drains_in = settings.rate_limits.per_second().map(|rate| condition.waiting as f64 / rate);
    DestinationStatus {
        waiting: condition.waiting,
        oldest_age: condition.oldest_created_at.map_or(Duration::ZERO, |at| now.since(at)),
        drains_in: drains_in.and_then(|secs| Duration::try_from_secs_f64(secs).ok()).map(|drains| held + drains),
        // The delivery that expires last counts as the last in the backlog.
        remaining_life: match condition.last_expires_at {
            Some(at) => at.since(now),
            None => Duration::from_secs(settings.retry.max_age_s.into()),
        },
        breaker: destination.breaker.reason().map(ToOwned::to_owned),
        paused: destination.paused_reason.clone(),
        dead: condition.dead,
        refused,
    }
}

/// The recipients of an alert about a destination. The destination itself is none of them: it would get the alert only
/// after its failure is over. Dead letters at a destination that subscribes to dead-letter alerts raise no alert: two
/// failing subscribers would send alerts to each other without end.
fn recipients(about: &Destination, alert: &Alert, subscribers: &[Arc<Destination>]) -> Vec<DestinationId> {
    let tenant = &about.settings.tenant;
    if matches!(alert, Alert::Dead { .. }) && about.accepts(tenant, DEAD) {
        return Vec::new();
    }
    let takes =
        |subscriber: &&Arc<Destination>| subscriber.id != about.id && subscriber.accepts(tenant, alert.event_type());
    subscribers.iter().filter(takes).map(|subscriber| subscriber.id).collect()
}

fn event(
    about: &Destination,
    alert: &Alert,
    status: &DestinationStatus,
    version: u64,
    recipients: Vec<DestinationId>,
    now: Timestamp,
) -> NewEvent {
    let event_type = alert.event_type();
    // The idempotency key. Every process makes the same one for this change, so the event is stored once.
    let name = format!("{event_type}/{}/{}", about.id, version + 1);
    // The same random bits go into the ids of the event and of its deliveries.
    let random = rand::random();
    let id = EventId::new(now, random);
    let body = EventBody::freeze(id, event_type, now, &data(about, alert, status).to_string());
    let event = Event {
        id,
        tenant: about.settings.tenant.clone(),
        event_type: event_type.to_owned(),
        created_at: now,
        idempotency_key: Some(name),
        options: DeliveryOptions::default(),
        body,
    };
    // Named recipients, because a destination gets no alert about itself.
    NewEvent { event, destinations: Some(recipients), random }
}

/// The `data` of an event. It contains neither the URL nor headers, because the recipients are not the destination's
/// owner.
fn data(about: &Destination, alert: &Alert, status: &DestinationStatus) -> serde_json::Value {
    let mut data = json!({"destination_id": about.id.to_string(), "name": about.settings.name});
    let backlog = || {
        json!({
            "waiting": status.waiting,
            "oldest_age_s": status.oldest_age.as_secs(),
            "drain_eta_s": status.drains_in.map(|drains| drains.as_secs()),
        })
    };
    // Each alert adds the condition behind it.
    match alert {
        Alert::BacklogHigh(measures) => {
            data["reasons"] = json!(measures);
            data["backlog"] = backlog();
        }
        Alert::BacklogCleared => data["backlog"] = backlog(),
        Alert::BreakerOpened { reason } => {
            data["reason"] = json!(reason);
            data["next_probe_at"] = json!(about.breaker.next_probe_at().map(|at| at.to_string()));
        }
        Alert::BreakerClosed => {}
        Alert::Paused { reason } => data["reason"] = json!(reason),
        Alert::Dead { new } => {
            data["new"] = json!(new);
            data["dead_letters"] = json!(status.dead);
        }
        Alert::Refused(refusals) => {
            let (setting, value, period) = refusals.remedy.parts();
            data["reason"] = json!(refusals.sentence());
            data["cause"] = json!(refusals.cause.as_str());
            data["sends"] = json!(refusals.sends);
            data["refused"] = json!(refusals.refused);
            data["setting"] = json!(setting);
            data["value"] = json!(value);
            data["period"] = json!(period.map(Period::as_str));
        }
        Alert::Admitted => {}
    }
    data
}

#[cfg(test)]
mod tests {
    use weir_core::{
        RateLimit, RateLimits,
        refusals::{Cause, Remedy},
    };
    use weir_queue::conformance::settings;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    /// Destination `number`, with a limit of 10/s and a subscription to these event types.
    fn destination(number: u8, event_types: &str) -> Arc<Destination> {
        let limits = RateLimits::new(vec![RateLimit::new(10, Period::Second).unwrap()]).unwrap();
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
            dead: count,
            state: AlertState::default(),
            version: 6,
        }
    }

    /// The update for a destination that nothing is known to refuse.
    fn update(
        about: &Arc<Destination>,
        condition: &Condition,
        subscribers: &[Arc<Destination>],
    ) -> Option<AlertUpdate> {
        let status = status(about, condition, None, NOW);
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
        assert!(of(&first).is_none(), "the two would send alerts to each other without end");
        let mut paused = Destination::clone(&first);
        paused.paused_reason = Some("410 Gone".to_owned());
        assert_eq!(recipients_in(of(&Arc::new(paused)).as_ref()), [vec![second.id]]);
    }

    #[test]
    fn an_alert_without_recipients_does_not_change_the_alert_state() {
        let (subscriber, other) = (destination(1, "weir.breaker.opened"), destination(3, "*"));
        assert!(update(&other, &dead(&other, 3), &[subscriber]).is_none());
    }

    #[test]
    fn the_idempotency_key_of_an_event_contains_the_version_of_the_alert_state() {
        let (subscriber, other) = (destination(1, "weir.*"), destination(3, "*"));
        let alert_update = update(&other, &dead(&other, 3), &[subscriber]).unwrap();
        let event = &alert_update.events[0].event;
        assert_eq!(event.idempotency_key, Some(format!("weir.delivery.dead/{}/7", other.id)));
        let data: serde_json::Value = serde_json::from_slice(&event.body.data()).unwrap();
        let expected = json!({"destination_id": other.id.to_string(), "name": "", "new": 3, "dead_letters": 3});
        assert_eq!(data, expected);
    }

    #[test]
    fn an_alert_about_refusals_names_the_cause_and_the_setting_that_helps() {
        let (subscriber, other) = (destination(1, "weir.destination.refused"), destination(3, "*"));
        let remedy = Remedy::Margin { period: Period::Second, margin_ms: 50 };
        let refusals = Refusals { cause: Cause::Jitter, remedy, sends: 1_000, refused: 42 };
        let healthy = dead(&other, 0);
        let status = status(&other, &healthy, Some(Some(refusals)), NOW);
        let update = alert_update(&other, &healthy, &status, &AlertPolicy::default(), &[subscriber], NOW).unwrap();
        let data: serde_json::Value = serde_json::from_slice(&update.events[0].event.body.data()).unwrap();
        let expected = json!({
            "destination_id": other.id.to_string(), "name": "", "cause": "jitter", "sends": 1_000, "refused": 42,
            "setting": "margin_ms", "value": 50, "period": "second", "reason": refusals.sentence(),
        });
        assert_eq!(data, expected);
        assert!(update.alert_state.is_refused());
    }

    #[test]
    fn a_backlog_is_high_when_its_deliveries_expire_before_it_drains() {
        let other = destination(3, "*");
        let waiting = |count, expires_in| Condition {
            waiting: count,
            last_expires_at: Some(NOW + Duration::from_secs(expires_in)),
            ..dead(&other, 0)
        };
        let status_of = |condition: &Condition| status(&other, condition, None, NOW);
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
