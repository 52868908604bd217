//! The watch: tells operators what happens to destinations, by events of Weir's own.
//!
//! It looks at what is, not at what happens: so it misses nothing that lasts, whoever died meanwhile. Any number may run. An event
//! is named after the version of what has been told, and stored once under that name; only then is it recorded as told.
//!
//! Where nobody takes such events it does nothing but ask for those who do.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use metrics::counter;
use serde_json::json;
use weir_core::{
    Clock, Destination, DestinationId, EventId, Timestamp,
    alert::{Alert, AlertPolicy, AlertState, DEAD, DestinationStatus},
    event::{DeliveryOptions, Event, EventBody},
};
use weir_queue::{SharedQueue, Wake};
use weir_store::{Condition, Ingested, NewEvent, SharedStore};

use crate::returns::Failure;

/// The time between two passes, or more: looking may take this part of the time. What it takes to tell is not counted, or alerts
/// would come late where the disk is slow and just when there are many.
const INTERVAL: Duration = Duration::from_secs(2);
const SHARE: u32 = 100;
/// At most: on a busy machine a look waits for others longer than it takes.
const LONGEST_INTERVAL: Duration = Duration::from_secs(30);
/// Destinations looked at together.
const PAGE: usize = 256;

/// Makes events of what there is to tell of destinations.
pub struct AlertPublisher {
    store: SharedStore,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
}

/// What is told of one destination.
struct Report {
    destination_id: DestinationId,
    version: u64,
    /// What has been told once the events are stored.
    told: AlertState,
    events: Vec<NewEvent>,
}

impl AlertPublisher {
    pub fn new(store: SharedStore, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        Self { store, queue, clock }
    }

    /// Makes a pass at once and then every two seconds until `shutdown` resolves. A pass may be broken off anywhere.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            let looked = tokio::select! {
                () = &mut shutdown => return,
                looked = self.pass() => looked.unwrap_or_else(|error| {
                    tracing::warn!(%error, "could not look for what there is to tell; the next pass tries again");
                    Duration::ZERO
                }),
            };
            tokio::select! {
                () = &mut shutdown => return,
                () = tokio::time::sleep(pause_after(looked)) => {}
            }
        }
    }

    /// Tells what there is to tell now; how long it took to find out.
    async fn pass(&self) -> Result<Duration, Failure> {
        let began = self.clock.now();
        let ids = self.store.alert_subscribers().await?;
        if ids.is_empty() {
            return Ok(Duration::ZERO);
        }
        let alert_subscribers: Vec<_> = self.store.destinations(&ids).await?.into_iter().flatten().collect();
        let tenants: BTreeSet<_> =
            alert_subscribers.iter().map(|subscriber| subscriber.settings.tenant.clone()).collect();
        let policy = self.store.alert_policy().await?;
        let conditions = self.store.conditions(&Vec::from_iter(tenants)).await?;
        let looked = self.clock.now().since(began);
        for conditions in conditions.chunks(PAGE) {
            let ids: Vec<_> = conditions.iter().map(|condition| condition.destination_id).collect();
            let destinations = self.store.destinations(&ids).await?;
            let now = self.clock.now();
            let reports = conditions.iter().zip(&destinations).filter_map(|(condition, destination)| {
                report(destination.as_ref()?, condition, &policy, &alert_subscribers, now)
            });
            self.send(reports.collect()).await?;
        }
        Ok(looked)
    }

    /// Stores the events, and then that they have been told.
    async fn send(&self, mut reports: Vec<Report>) -> Result<(), Failure> {
        let events: Vec<_> = reports.iter_mut().flat_map(|report| std::mem::take(&mut report.events)).collect();
        if !events.is_empty() {
            for stored in self.store.ingest(events).await? {
                // A watcher that was deleted a moment ago: the next pass tells those that are left.
                let Ok(Ingested { event, duplicate, wake, .. }) = stored else { return Ok(()) };
                let wakes: Vec<_> =
                    wake.into_iter().map(|destination_id| Wake { destination_id, due: event.due() }).collect();
                self.queue.wake(&wakes).await?;
                if !duplicate {
                    counter!("weir_alerts_total", "type" => event.event_type).increment(1);
                }
            }
        }
        for Report { destination_id, version, told, .. } in reports {
            self.store.record_alert_state(destination_id, version, told).await?;
        }
        Ok(())
    }
}

fn pause_after(looked: Duration) -> Duration {
    (looked * SHARE).clamp(INTERVAL, LONGEST_INTERVAL)
}

/// What there is to tell of a destination that somebody wants to hear; `None` when there is nothing to record.
fn report(
    destination: &Arc<Destination>,
    condition: &Condition,
    policy: &AlertPolicy,
    alert_subscribers: &[Arc<Destination>],
    now: Timestamp,
) -> Option<Report> {
    let policy = destination.settings.alerts.apply_to(policy);
    let seen = seen(destination, condition, now);
    let mut told = condition.state.reconciled(&policy, &seen);
    let mut events = Vec::new();
    for alert in told.alerts(&policy, &seen, now) {
        let recipients = recipients(destination, &alert, alert_subscribers);
        if !recipients.is_empty() {
            events.push(event(destination, &alert, &seen, condition.version, recipients, now));
            told = told.with(&alert, now);
        }
    }
    let Condition { destination_id, version, .. } = *condition;
    (told != condition.state).then_some(Report { destination_id, version, told, events })
}

fn seen(destination: &Destination, condition: &Condition, now: Timestamp) -> DestinationStatus {
    let settings = &destination.settings;
    let held = destination.held_until.map_or(Duration::ZERO, |until| until.since(now));
    let drains_in = settings.rate_limits.per_second().map(|rate| condition.waiting as f64 / rate);
    DestinationStatus {
        waiting: condition.waiting,
        oldest_age: condition.oldest_created_at.map_or(Duration::ZERO, |at| now.since(at)),
        drains_in: drains_in.and_then(|secs| Duration::try_from_secs_f64(secs).ok()).map(|drains| held + drains),
        // As if what expires last had come last.
        remaining_life: match condition.last_expires_at {
            Some(at) => at.since(now),
            None => Duration::from_secs(settings.retry.max_age_s.into()),
        },
        breaker: destination.breaker.reason().map(ToOwned::to_owned),
        paused: destination.paused_reason.clone(),
        dead: condition.dead,
    }
}

/// Who takes an alert about a destination: not that destination, which would hear of its own failure only once it is over. Nor does
/// anybody hear of dead letters of who would hear of theirs: two that fail would write to each other for ever.
fn recipients(about: &Destination, alert: &Alert, alert_subscribers: &[Arc<Destination>]) -> Vec<DestinationId> {
    let tenant = &about.settings.tenant;
    if matches!(alert, Alert::Dead { .. }) && about.accepts(tenant, DEAD) {
        return Vec::new();
    }
    let takes =
        |subscriber: &&Arc<Destination>| subscriber.id != about.id && subscriber.accepts(tenant, alert.event_type());
    alert_subscribers.iter().filter(takes).map(|subscriber| subscriber.id).collect()
}

fn event(
    about: &Destination,
    alert: &Alert,
    seen: &DestinationStatus,
    version: u64,
    recipients: Vec<DestinationId>,
    now: Timestamp,
) -> NewEvent {
    let event_type = alert.event_type();
    let name = format!("{event_type}/{}/{}", about.id, version + 1);
    let random = rand::random();
    let id = EventId::new(now, random);
    let body = EventBody::freeze(id, event_type, now, &data(about, alert, seen).to_string());
    let event = Event {
        id,
        tenant: about.settings.tenant.clone(),
        event_type: event_type.to_owned(),
        created_at: now,
        idempotency_key: Some(name),
        options: DeliveryOptions::default(),
        body,
    };
    NewEvent { event, destinations: Some(recipients), random }
}

/// The `data` of an event. Neither the URL nor a header is in it: an alert goes to others than its destination's owner.
fn data(about: &Destination, alert: &Alert, seen: &DestinationStatus) -> serde_json::Value {
    let mut data = json!({"destination_id": about.id.to_string(), "name": about.settings.name});
    let backlog = || {
        json!({
            "waiting": seen.waiting,
            "oldest_age_s": seen.oldest_age.as_secs(),
            "drain_eta_s": seen.drains_in.map(|drains| drains.as_secs()),
        })
    };
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
            data["dead_letters"] = json!(seen.dead);
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use weir_core::{Period, RateLimit, RateLimits};
    use weir_queue::conformance::settings;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    /// Destination `number`, which may take ten a second and takes these events.
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

    fn told_to(report: Option<&Report>) -> Vec<Vec<DestinationId>> {
        report.into_iter().flat_map(|report| &report.events).map(|new| new.destinations.clone().unwrap()).collect()
    }

    #[test]
    fn a_look_that_takes_long_is_followed_by_a_longer_pause_within_reason() {
        let pauses = [0, 1, 20, 100, 299, 600, 60_000].map(|ms| pause_after(Duration::from_millis(ms)).as_millis());
        assert_eq!(pauses, [2_000, 2_000, 2_000, 10_000, 29_900, 30_000, 30_000]);
    }

    #[test]
    fn watchers_hear_of_others_and_dead_letters_of_watchers_are_nobodys() {
        let (first, second, other) = (destination(1, "weir.*"), destination(2, "weir.*"), destination(3, "*"));
        let alert_subscribers = [first.clone(), second.clone()];
        let of = |about| report(about, &dead(about, 3), &AlertPolicy::default(), &alert_subscribers, NOW);
        assert_eq!(told_to(of(&other).as_ref()), [vec![first.id, second.id]]);
        assert!(of(&first).is_none(), "or the two would write to each other for ever");
        let mut paused = Destination::clone(&first);
        paused.paused_reason = Some("410 Gone".to_owned());
        assert_eq!(told_to(of(&Arc::new(paused)).as_ref()), [vec![second.id]]);
    }

    #[test]
    fn what_nobody_wants_to_hear_is_not_taken_for_told() {
        let (subscriber, other) = (destination(1, "weir.breaker.opened"), destination(3, "*"));
        assert!(report(&other, &dead(&other, 3), &AlertPolicy::default(), &[subscriber], NOW).is_none());
    }

    #[test]
    fn an_event_is_named_after_what_has_been_told_before() {
        let (subscriber, other) = (destination(1, "weir.*"), destination(3, "*"));
        let report = report(&other, &dead(&other, 3), &AlertPolicy::default(), &[subscriber], NOW).unwrap();
        let event = &report.events[0].event;
        assert_eq!(event.idempotency_key, Some(format!("weir.delivery.dead/{}/7", other.id)));
        let data: serde_json::Value = serde_json::from_slice(&event.body.data()).unwrap();
        let expected = json!({"destination_id": other.id.to_string(), "name": "", "new": 3, "dead_letters": 3});
        assert_eq!(data, expected);
    }

    #[test]
    fn a_backlog_outlives_its_deliveries_when_the_limit_is_too_low_for_it() {
        let other = destination(3, "*");
        let waiting = |count, expires_in| Condition {
            waiting: count,
            last_expires_at: Some(NOW + Duration::from_secs(expires_in)),
            ..dead(&other, 0)
        };
        let seen_of = |condition: &Condition| seen(&other, condition, NOW);
        let strained = seen_of(&waiting(600, 60));
        assert_eq!(
            (strained.drains_in, strained.remaining_life),
            (Some(Duration::from_secs(60)), Duration::from_secs(60))
        );
        let high = [Alert::BacklogHigh(vec![weir_core::alert::Measure::DrainBeyondTtl])];
        assert_eq!(AlertState::default().alerts(&AlertPolicy::default(), &strained, NOW), high);
        assert!(AlertState::default().alerts(&AlertPolicy::default(), &seen_of(&waiting(599, 60)), NOW).is_empty());
    }
}
