//! The alert about an outage: a fault of Weir itself that stalls destinations. It has one cause, so one alert tells of it,
//! however many destinations wait. Every tenant with subscribers is told of its own destinations.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use serde_json::{Value, json};
use weir_core::{
    Destination, DestinationId, Timestamp,
    alert::AlertRecord,
    destination::ALL_TENANTS,
    stall::{Outage, StallReport},
};
use weir_store::{AlertStore, StoreResult};

use super::{
    AlertUpdate, PAGE, Subject,
    recipients::{Said, event},
};

/// The alert about the installation, and its new record. `None` if the record does not change.
pub(super) async fn alert_update(
    store: &dyn AlertStore,
    stalls: &StallReport,
    subscribers: &[Arc<Destination>],
    now: Timestamp,
) -> StoreResult<Option<AlertUpdate>> {
    let outage = stalls.outage(now);
    let (version, record) = store.installation_alerts().await?;
    let (mut told, mut history) = (record.told, record.history());
    let event_type = if matches!(outage, Some(Some(_))) { Outage::STALLED } else { Outage::RECOVERED };
    let mut recipients: BTreeMap<&str, Vec<DestinationId>> = BTreeMap::new();
    for subscriber in subscribers {
        let tenant = subscriber.settings.tenant.as_str();
        if subscriber.accepts(tenant, event_type) {
            recipients.entry(tenant).or_default().push(subscriber.id);
        }
    }
    // As with destinations: to its recipients once, which are also those of a later subscriber, and into the history once.
    match (told.outage_alert(outage), history.outage_alert(outage)) {
        (Some(after), _) if !recipients.is_empty() => (told, history) = (after, after),
        (_, Some(after)) => {
            history = after;
            recipients.clear();
        }
        _ => return Ok(None),
    }
    // The history of the installation is that of all tenants.
    recipients.entry(ALL_TENANTS).or_default();
    let counts = match outage.flatten() {
        Some(_) => stalled_by_tenant(store, stalls).await?,
        None => HashMap::new(),
    };
    let said = Said { event_type, about: "installation".to_owned(), version };
    let data = |tenant: &str| -> Value {
        let count = match tenant {
            ALL_TENANTS => counts.values().sum(),
            tenant => counts.get(tenant).copied().unwrap_or_default(),
        };
        outage.flatten().map_or_else(|| json!({"tenant": ALL_TENANTS}), |outage| outage.data(count))
    };
    let events = recipients.into_iter().map(|(tenant, ids)| event(&said, (tenant, ids), &data(tenant), now));
    let record = AlertRecord::new(told, history);
    Ok(Some(AlertUpdate { subject: Subject::Installation, version, record, events: events.collect() }))
}

/// How many destinations of each tenant the outage stalls. Read once for an alert.
async fn stalled_by_tenant(store: &dyn AlertStore, stalls: &StallReport) -> StoreResult<HashMap<String, u64>> {
    let ids: Vec<_> = stalls.stalled_by_outage().map(|(id, _)| id).collect();
    let mut counts = HashMap::new();
    for ids in ids.chunks(PAGE) {
        for destination in store.destinations(ids).await?.iter().flatten() {
            *counts.entry(destination.settings.tenant.clone()).or_insert(0) += 1;
        }
    }
    Ok(counts)
}
