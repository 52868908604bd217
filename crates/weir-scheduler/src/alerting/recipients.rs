//! Who gets an alert, and the events that tell of it.

use std::sync::Arc;

use weir_api_types::AlertData;
use weir_core::{
    Destination, DestinationId, EventId, LimitGroup, Timestamp,
    alert::{Alert, AlertType},
    destination::ALL_TENANTS,
    event::{DeliveryOptions, Event, EventBody},
};
use weir_store::NewEvent;

/// Who gets an alert.
#[derive(Debug, Default)]
pub(super) struct Recipients {
    /// The destinations of the tenant that subscribe.
    of_tenant: Vec<DestinationId>,
    /// The destinations of operators, which subscribe for all tenants.
    operators: Vec<DestinationId>,
}

impl Recipients {
    /// The recipients of an alert about a destination. The destination itself is none of them: it would get the alert only
    /// after its failure is over. Dead letters at a destination that subscribes to dead-letter alerts have no recipients:
    /// two failing subscribers would send alerts to each other without end.
    pub(super) fn of(about: &Destination, alert: &Alert, subscribers: &[Arc<Destination>]) -> Self {
        let tenant = &about.settings.tenant;
        if matches!(alert, Alert::Dead { .. }) && about.accepts(tenant, alert.alert_type().as_str()) {
            return Self::default();
        }
        let taking = |tenant: &str| -> Vec<DestinationId> {
            let takes =
                |one: &&Arc<Destination>| one.id != about.id && one.accepts(tenant, alert.alert_type().as_str());
            subscribers.iter().filter(takes).map(|one| one.id).collect()
        };
        // About a destination of operators, the other operators are told as its tenant.
        let operators = if about.settings.is_of_all_tenants() { Vec::new() } else { taking(ALL_TENANTS) };
        Self { of_tenant: taking(tenant), operators }
    }

    /// The recipients of an alert about a limit group: no member of it, which would get the alert only after its turn.
    pub(super) fn of_group(about: &LimitGroup, alert_type: AlertType, subscribers: &[Arc<Destination>]) -> Self {
        let taking = |tenant: &str| -> Vec<DestinationId> {
            let takes = |one: &&Arc<Destination>| {
                one.settings.limit_group != Some(about.id) && one.accepts(tenant, alert_type.as_str())
            };
            subscribers.iter().filter(takes).map(|one| one.id).collect()
        };
        match &about.tenant {
            Some(tenant) => Self { of_tenant: taking(tenant), operators: taking(ALL_TENANTS) },
            // A group for all tenants is the business of operators only.
            None => Self { of_tenant: taking(ALL_TENANTS), operators: Vec::new() },
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of_tenant.is_empty() && self.operators.is_empty()
    }

    /// The event of the tenant, which is in its history also without recipients, and the one for operators. They are two,
    /// because a key of the tenant sees the deliveries of its events, and those to operators are none of its business.
    pub(super) fn events(self, said: &Said, tenant: &str, data: &AlertData, now: Timestamp) -> Vec<NewEvent> {
        let of_tenant = event(said, (tenant, self.of_tenant), data, now);
        let of_operators = (!self.operators.is_empty()).then(|| event(said, (ALL_TENANTS, self.operators), data, now));
        std::iter::once(of_tenant).chain(of_operators).collect()
    }
}

/// What an alert says, and about what.
pub(super) struct Said {
    pub(super) alert_type: AlertType,
    /// The id of the destination or the limit group.
    pub(super) about: String,
    /// The version of the record before the alert.
    pub(super) version: u64,
}

pub(super) fn event(
    said: &Said,
    (tenant, recipients): (&str, Vec<DestinationId>),
    data: &AlertData,
    now: Timestamp,
) -> NewEvent {
    let &Said { alert_type, ref about, version } = said;
    let event_type = alert_type.as_str();
    // The idempotency key. Every process makes the same one for this change, so the event is stored once.
    let name = format!("{event_type}/{about}/{}", version + 1);
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
        body: EventBody::freeze(id, event_type, now, &serde_json::to_string(data).unwrap_or_default()),
        filtered: 0,
    };
    // Named recipients, because a destination gets no alert about itself.
    NewEvent::new(event, Some(recipients), random)
}
